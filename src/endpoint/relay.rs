//! Control frames of a peer whose owner has no lane that serves it: another worker
//! relays them.

use super::core::Core;
use super::inbox::Command;
use super::later::Relayed;
use super::worker::Worker;
use crate::fabric::Posted;
use crate::ids::{LaneId, PeerId, RailIndex};
use crate::peer::link::Link;
use crate::wire::frame::{Header, Kind, HEADER};

/// A lane that refuses frames for this long, with nothing posted, is lost.
const REFUSED_NS: u64 = 3_000_000_000;
/// The same where lanes can be reset: only its own connection can be the cause, so a new one is
/// tried, and if the peer does not accept it, the peer is lost.
const REFUSED_AGAIN_NS: u64 = 100_000_000;

/// The path of a link's frames.
#[derive(Clone, Copy)]
pub(super) enum Path {
    /// Over a lane of this worker; `behind`: after its writes.
    Lane {
        lane: LaneId,
        behind: bool,
    },
    Worker(usize),
}

fn is_ack(bytes: &[u8]) -> bool {
    Header::read(bytes).is_some_and(|(header, _)| header.kind == Kind::Ack)
}

impl Core {
    /// A worker that has a lane which serves a link.
    fn relaying_worker(&self, link: &Link) -> Option<usize> {
        link.lanes_up().first().map(|plan| self.rails[plan.rail.place()].worker)
    }

    fn relay(&self, worker: usize, peer: PeerId, header: &Header, body: &[u8], payload: &[u8]) {
        let mut bytes = vec![0; HEADER + body.len() + payload.len()];
        header.write(&mut bytes, body, payload);
        self.inboxes[worker].command(Command::Relay { peer, bytes });
    }
}

impl Worker {
    /// For how long a lane may refuse frames.
    pub(super) fn refusal_ns(&self, rail: RailIndex) -> u64 {
        if self.rails[rail].rail.limits().resets {
            REFUSED_AGAIN_NS
        } else {
            REFUSED_NS
        }
    }

    pub(super) fn path_to(&self, link: &Link) -> Option<Path> {
        let lane = self.control_lane(link.peer.id).map(|lane| Path::Lane { lane, behind: false });
        let relaying_worker =
            || self.core.relaying_worker(link).filter(|worker| *worker != self.index).map(Path::Worker);
        lane.or_else(relaying_worker)
    }

    /// Posts a control frame, or has it relayed.
    pub(super) fn send_by(
        &mut self,
        path: Path,
        peer: PeerId,
        header: &Header,
        body: &[u8],
        payload: &[u8],
    ) -> Posted {
        match path {
            Path::Lane { lane, behind } => match self.rails.lane_mut(lane) {
                Some((rail, of)) => {
                    rail.send_frame(&mut of.lane, behind, |frame| header.write(frame, body, payload))
                }
                None => Posted::Failed(libc::ENOTCONN),
            },
            Path::Worker(worker) => {
                self.core.relay(worker, peer, header, body, payload);
                Posted::Yes
            }
        }
    }

    /// The peer's owner asks us to post a frame.
    pub fn relay(&mut self, peer: PeerId, bytes: Vec<u8>, now: u64) {
        let waiting = self.relayed.iter_mut().find(|other| {
            // Both acknowledge everything up to a number: the later one suffices.
            other.peer == peer && is_ack(&other.bytes) && is_ack(&bytes)
        });
        match waiting {
            Some(other) => other.bytes = bytes,
            None => self.relayed.push_back(Relayed { peer, bytes, since: now }),
        }
        self.post_relayed(now);
    }

    /// Posts what there is room for, each peer's frames in their order.
    pub(super) fn post_relayed(&mut self, now: u64) -> bool {
        let mut queue = std::mem::take(&mut self.relayed);
        let (mut held, mut posted) = (Vec::new(), false);
        queue.retain(|frame| {
            if held.contains(&frame.peer) {
                return true;
            }
            // Without a lane the peer has ended, or is about to.
            let Some(lane) = self.control_lane(frame.peer) else { return false };
            let Some((rail, of)) = self.rails.lane_mut(lane) else { return false };
            let fill = |to: &mut [u8]| {
                to[..frame.bytes.len()].copy_from_slice(&frame.bytes);
                frame.bytes.len()
            };
            if rail.send_frame(&mut of.lane, false, fill) == Posted::Yes {
                posted = true;
                return false;
            }
            if of.lane.refused && now.saturating_sub(frame.since) > self.refusal_ns(lane.rail) {
                self.lane_failed(lane, libc::ENOTCONN, 0, now);
            }
            held.push(frame.peer);
            true
        });
        queue.append(&mut self.relayed);
        self.relayed = queue;
        posted
    }
}
