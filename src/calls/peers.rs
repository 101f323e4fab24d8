//! How peers begin: by a caller's connect, or by a handshake that is accepted. The peer's owner gets a
//! session, which tries the fabrics that both sides have.

use super::Endpoint;
use crate::codec::Text;
use crate::fabric::{host, tcp};
use crate::ids::{PeerId, RailIndex};
use crate::peer::{Peer, PeerInfo, PeerState, Tokens};
use crate::session::approach::{Approach, Approaches};
use crate::session::{pair, Session, Terms};
use crate::status::{Error, Result, Status};
use crate::transfer::Outcome;
use crate::wire::address::Address;
use crate::wire::frame::Token;
use crate::worker::core::Core;
use crate::worker::inbox::{AcceptedHandshake, Command};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// The rails of one fabric, out of all (fabric, network): their indexes and networks.
fn on_fabric<'a>(fabric: &str, rails: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<(RailIndex, &'a str)> {
    let wanted = RailIndex::each(rails).filter(|(_, (named, _))| *named == fabric);
    wanted.map(|(index, (_, network))| (index, network)).collect()
}

/// How a peer begins: this side connects, or its handshake request was accepted.
pub enum Begin {
    Connecting { user_data: u64 },
    Accepted { token: Token, begun: u64, accepted: AcceptedHandshake, source: u64 },
}

impl Endpoint {
    pub fn connect(&self, blob: &[u8], timeout_ns: u64, user_data: u64) -> Result<u64> {
        let core = &self.core;
        core.phase.check_open()?;
        let address = Address::decode(blob)?;
        address.common_wire()?;
        let timeout = if timeout_ns == 0 { core.config.connect_timeout_ns } else { timeout_ns };
        let mut places = self.hold_places(&core.queue, 2)?;
        let (peer, new) = core.make_peer(address, timeout, Begin::Connecting { user_data })?;
        log::trace!("connect to {peer}: {}", if new { "it is new" } else { "it is known" });
        if !new {
            places.shrink(1);
        }
        places.keep();
        if !new {
            peer.connects.lock().push(user_data);
            core.inboxes[peer.owner].command(Command::Resume { peer: peer.id });
            if peer.state() == PeerState::Down {
                return self.connect_to_ended(&peer, user_data);
            }
        }
        Ok(peer.id.get())
    }

    /// The peer ended during the lookup: unless its end has answered this connect already, nothing
    /// will.
    fn connect_to_ended(&self, peer: &Peer, user_data: u64) -> Result<u64> {
        let mut connects = peer.connects.lock();
        match connects.iter().position(|waiting| *waiting == user_data) {
            Some(at) => {
                connects.remove(at);
                self.core.queue.unreserve(1);
                Err(Error::new(
                    Status::Again,
                    "the previous connection to this peer is just ending: try again",
                ))
            }
            None => Ok(peer.id.get()),
        }
    }

    pub fn disconnect(&self, peer: u64) -> Result<()> {
        self.core.phase.check_open()?;
        let peer = self.core.named_peer(peer)?;
        log::trace!("disconnect from {peer}");
        self.core.inboxes[peer.owner].command(Command::EndPeer { peer: peer.id, outcome: Outcome::OK });
        Ok(())
    }

    /// Why a peer has ended, or could not be reached; of one that is there, why its fabric serves it.
    pub fn peer_reason(&self, peer: u64) -> Result<String> {
        match PeerId::new(peer).and_then(|peer| self.core.ends.reason(peer)) {
            Some(why) => Ok(why.to_string()),
            None => Ok(self.core.peers.find(peer, self.core.queue.polled())?.info().reason),
        }
    }

    pub fn peer_info(&self, peer: u64) -> Result<PeerInfo> {
        Ok(self.core.named_peer(peer)?.info())
    }
}

impl Core {
    /// An unauthenticated endpoint started a handshake over one of our rails. `token`: its token
    /// for us. `begun`: its number of this connection. `source`: its origin.
    pub fn accept(
        &self,
        address: Address,
        token: Token,
        begun: u64,
        accepted: AcceptedHandshake,
        source: u64,
    ) -> Result<PeerId> {
        self.phase.check_open()?;
        let fabric = &self.rails[accepted.plan.rail.place()].fabric;
        if address.rails.get(accepted.plan.remote_rail.place()).is_none_or(|rail| rail.fabric != *fabric) {
            return Err(Error::new(Status::NoCommonFabric, "a hello over another fabric than it names"));
        }
        self.let_in(source, self.clock.now())?;
        let entered = self.enter(address, Begin::Accepted { token, begun, accepted, source });
        if !matches!(entered, Ok((_, true))) {
            self.unauthenticated.stayed_out();
        }
        entered.map(|(peer, _)| peer)
    }

    /// Makes an unauthenticated endpoint a peer, unless it is one.
    fn enter(&self, address: Address, begin: Begin) -> Result<(PeerId, bool)> {
        let full = || Error::new(Status::Again, "the completion queue is full; the peer tries again");
        let places = self.queue.hold(2).ok_or_else(full)?;
        let (peer, new) = self.make_peer(address, self.config.connect_timeout_ns, begin)?;
        if new {
            places.keep();
        }
        Ok((peer.id, new))
    }

    /// Whether the host fabric may reach the peer: both addresses name the same host and network
    /// namespace. (Connecting may still fail.)
    pub(crate) fn shares_host(&self, fabric: &str, address: &Address) -> bool {
        if fabric != host::NAME {
            return true;
        }
        let ours = self.rails.iter().find(|rail| rail.fabric == fabric).map(|rail| &rail.network);
        let theirs = address.rails.iter().find(|rail| rail.fabric == fabric).map(|rail| &rail.network);
        ours == theirs
    }

    /// The fabrics that both sides have, best first, with the lanes for each.
    fn approaches(&self, address: &Address) -> Result<Vec<Approach>> {
        let shared = self.fabrics.iter().filter(|fabric| self.shares_host(fabric, address));
        let approaches = shared.map(|fabric| {
            let ours = on_fabric(fabric, self.rails.iter().map(|rail| (&*rail.fabric, &*rail.network)));
            let theirs = on_fabric(fabric, address.rails.iter().map(|rail| (&*rail.fabric, &*rail.network)));
            Approach::new(fabric.clone(), pair(&ours, &theirs))
        });
        let common: Vec<Approach> = approaches.filter(|approach| approach.plans().len() > 0).collect();
        if common.is_empty() {
            let theirs = address.fabrics();
            let here = self.fabrics.iter().any(|fabric| fabric == tcp::ENCRYPTED);
            let cure = match (here, theirs.contains(&tcp::ENCRYPTED)) {
                (true, false) => "encrypt is set here and not there",
                (false, true) => "encrypt is set there and not here",
                _ => "open both with a fabric in common",
            };
            return Err(Error::new(
                Status::NoCommonFabric,
                format!(
                    "the peer has {}, this endpoint {}: {cure}",
                    Text::escaped(theirs.join(", ").as_bytes()),
                    self.fabrics.join(", ")
                ),
            ));
        }
        Ok(common)
    }

    /// The workers with the rails of an approach, one bit each.
    fn workers_of(&self, approach: &Approach) -> u64 {
        approach.plans().fold(0, |mask, plan| mask | 1 << self.rails[plan.rail.place()].worker)
    }

    /// The worker that will own a peer: one with rails of the best fabric, and of as many others as
    /// possible, since its own lanes need no relay.
    fn choose_owner(&self, incarnation: u64, approaches: &[Approach]) -> usize {
        let mut masks = approaches.iter().map(|approach| self.workers_of(approach));
        let best = masks.next().unwrap_or(1);
        let narrowed = masks.fold(best, |owner, mask| if owner & mask != 0 { owner & mask } else { owner });
        let nth = incarnation % u64::from(narrowed.count_ones().max(1));
        let without = (0..nth).fold(narrowed, |mask, _| mask & mask.wrapping_sub(1));
        without.trailing_zeros() as usize
    }

    /// The peer of an address, and whether it is new.
    pub fn make_peer(&self, address: Address, timeout_ns: u64, begin: Begin) -> Result<(Arc<Peer>, bool)> {
        let approaches = self.approaches(&address)?;
        let workers = approaches.iter().fold(0, |mask, approach| mask | self.workers_of(approach));
        let incarnation = address.incarnation;
        let owner = self.choose_owner(incarnation, &approaches);
        let terms = Terms {
            // An endpoint that is its own peer is both sides.
            decides: self.incarnation <= incarnation,
            deadline: self.clock.now().saturating_add(timeout_ns),
            // The limit allows joining all rails of either side, twice.
            lanes: 2 * self.rails.len().max(address.rails.len()),
            liveness_ns: self.config.silence_ns(),
        };
        let session = Session::new(terms, Approaches::new(approaches, timeout_ns));
        let reason = session.reason();
        let mut started = true;
        let (peer, new) = self.peers.get_or_insert(
            incarnation,
            |id, before| {
                let begun = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
                let tokens = Tokens { token: self.random.u128()?, begun, before };
                Ok(Peer::new(id, address, owner, workers, reason, tokens))
            },
            |peer| started = self.start_peer(peer, Box::new(session), begin),
        )?;
        if !started {
            self.unauthenticated.took_back(peer.id);
            self.peers.remove(&peer, false);
            self.peers.publish_end(peer.id, self.queue.polled(), || 0);
            return Err(Error::closed());
        }
        Ok((peer, new))
    }

    /// Passes a new peer to its owner. False: the owner has ended, and so has the peer.
    fn start_peer(&self, peer: &Arc<Peer>, session: Box<Session>, begin: Begin) -> bool {
        let accepted = match begin {
            Begin::Connecting { user_data } => {
                peer.connects.lock().push(user_data);
                None
            }
            Begin::Accepted { token, begun, accepted, source } => {
                peer.meet(token, begun);
                peer.authenticate_by(&accepted.root);
                peer.lanes.lock().is_newest(accepted.plan, accepted.epoch, usize::MAX);
                self.unauthenticated.came(peer.id, source, self.clock.now());
                Some(accepted)
            }
        };
        let link = Command::AddLink { peer: peer.clone(), session, accepted };
        let refused = self.inboxes[peer.owner].try_command(link).is_some();
        if refused {
            peer.set_down(Status::Canceled); // Before another connect finds it.
        }
        !refused
    }
}
