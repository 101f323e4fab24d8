//! What serves a peer: each of its lanes, and what it has done.

use super::Endpoint;
use crate::fabric::Seen;
use crate::peer::{readable_rail, Peer};
use crate::rail::LaneTraffic;
use crate::session::Plan;
use crate::status::{Error, Result, Status};
use crate::worker::core::RailInfo;
use std::net::SocketAddr;
use std::sync::Arc;

/// A lane, or the pair of rails that has had some.
pub struct LaneInfo {
    pub plan: Plan,
    /// The peer's rail, in readable form.
    pub address: String,
    pub traffic: Arc<LaneTraffic>,
    /// What the system counts, now.
    pub seen: Seen,
    /// The ends of its connection, ours first.
    pub ends: Option<(SocketAddr, SocketAddr)>,
}

impl LaneInfo {
    fn new(peer: &Peer, plan: Plan, traffic: Arc<LaneTraffic>) -> LaneInfo {
        let theirs = peer.rail_address(plan.remote_rail);
        let address = theirs.map(|rail| readable_rail(&rail)).unwrap_or_default();
        LaneInfo { plan, address, seen: traffic.seen(), ends: traffic.ends(), traffic }
    }
}

impl Endpoint {
    /// Also of a peer that has ended, until its PEER_DOWN was polled.
    pub fn lane(&self, peer: u64, index: u32) -> Result<LaneInfo> {
        let peer = self.core.peers.find(peer, self.core.queue.polled())?;
        let mut all = peer.traffic();
        if index as usize >= all.len() {
            let text = format!("lane {index} does not exist: the peer has {}", all.len());
            return Err(Error::new(Status::Range, text));
        }
        let (plan, traffic) = all.swap_remove(index as usize);
        Ok(LaneInfo::new(&peer, plan, traffic))
    }

    pub(crate) fn lanes_of<'a>(&self, peer: &'a Peer) -> impl Iterator<Item = LaneInfo> + use<'a> {
        peer.traffic().into_iter().map(|(plan, traffic)| LaneInfo::new(peer, plan, traffic))
    }

    pub(crate) fn rail_of(&self, lane: &LaneInfo) -> Option<&RailInfo> {
        self.rails().get(lane.plan.rail.place())
    }

    /// Grants that peers may use.
    pub fn live_grants(&self) -> u64 {
        self.core.grants.live() as u64
    }
}
