//! All peers of an endpoint: by id, by incarnation, and by the token in their frames.

use super::Peer;
use crate::failing::step;
use crate::ids::PeerId;
use crate::room;
use crate::status::{Error, Result};
use crate::wire::address::Address;
use crate::wire::frame::Token;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;

pub struct PeerTable {
    inner: RwLock<Inner>,
    capacity: usize,
    /// The first generation: random, so that ids of one endpoint are invalid at another.
    first: NonZeroU32,
}

/// How many ended peers are remembered, because they may not know that they have ended.
const ENDED: usize = 1024;

/// A peer that ended recently.
struct Ended {
    incarnation: u64,
    token: Token,
    theirs: Token,
    begun: u64,
    address: Address,
}

/// The result of looking up a token.
pub enum Named {
    Peer(Arc<Peer>),
    /// A peer that has ended: its token for us, and its address with its incarnation.
    Ended(Token, Address),
}

#[derive(Default)]
struct Inner {
    slots: Vec<Slot>,
    free: Vec<usize>,
    by_incarnation: HashMap<u64, Arc<Peer>>,
    /// Tokens are random and ours, so a peer cannot choose their hashes.
    by_token: FxHashMap<Token, Arc<Peer>>,
    /// Peers that have ended, the most recent last.
    ended: VecDeque<Ended>,
    /// Peers that have ended, whose last completion the caller has not polled; and up to which of all
    /// completions it has to poll (u64::MAX: it is not published yet).
    unpolled: HashMap<PeerId, (Arc<Peer>, u64)>,
    /// The published ones of these, in order.
    published: VecDeque<(u64, PeerId)>,
}

impl Inner {
    fn begun_before(&self, incarnation: u64) -> u64 {
        let before = self.ended.iter().filter(|ended| ended.incarnation == incarnation);
        before.map(|ended| ended.begun).max().unwrap_or(0)
    }
}

struct Slot {
    generation: NonZeroU32,
    peer: Option<Arc<Peer>>,
}

impl PeerTable {
    pub fn new(capacity: usize, first: u32) -> PeerTable {
        PeerTable {
            inner: RwLock::default(),
            capacity,
            first: NonZeroU32::new(first).unwrap_or(NonZeroU32::MIN),
        }
    }

    /// The peer that a caller's id names, unless the caller knows that it has ended. `polled`: how many completions
    /// the caller has polled.
    pub fn find(&self, number: u64, polled: u64) -> Result<Arc<Peer>> {
        let none = || Error::handle("peer is 0: it comes from weft_peer_connect, or from a PEER_UP");
        let id = PeerId::new(number).ok_or_else(none)?;
        self.get(id).or_else(|unknown| match self.inner.read().unpolled.get(&id) {
            Some((peer, until)) if polled < *until => Ok(peer.clone()),
            _ => Err(unknown),
        })
    }

    /// The same, of a peer that has not ended.
    pub fn living(&self, number: u64, polled: u64) -> Result<Arc<Peer>> {
        let peer = self.find(number, polled)?;
        peer.ended().map_or(Ok(peer), Err)
    }

    /// Publishes an ended peer's last completion, with its number among all; 0: it has none, since no
    /// caller knows the peer. `polled`: how many the caller has polled.
    pub fn publish_end(&self, id: PeerId, polled: u64, publish: impl FnOnce() -> u64) {
        // Callers who poll the completion at once meet the lock.
        let mut inner = self.inner.write();
        let until = publish();
        if until == 0 {
            inner.unpolled.remove(&id);
        } else if let Some((_, at)) = inner.unpolled.get_mut(&id) {
            *at = until;
            inner.published.push_back((until, id));
        }
        while let Some((_, id)) = inner.published.front().copied().filter(|(until, _)| *until <= polled) {
            inner.published.pop_front();
            inner.unpolled.remove(&id);
        }
    }

    pub fn get(&self, id: PeerId) -> Result<Arc<Peer>> {
        let inner = self.inner.read();
        let found =
            inner.slots.get(id.place()).and_then(|slot| slot.peer.as_ref()).filter(|peer| peer.id == id);
        found
            .cloned()
            .ok_or_else(|| Error::handle(format!("{id:#x} is not a peer of this endpoint, or it has ended")))
    }

    pub fn by_incarnation(&self, incarnation: u64) -> Option<Arc<Peer>> {
        self.inner.read().by_incarnation.get(&incarnation).cloned()
    }

    /// The connection number that an ended incarnation used last.
    pub fn begun_before(&self, incarnation: u64) -> u64 {
        self.inner.read().begun_before(incarnation)
    }

    /// The peer whose frames carry this token.
    pub fn named(&self, token: Token) -> Option<Named> {
        let inner = self.inner.read();
        if let Some(peer) = inner.by_token.get(&token) {
            return Some(Named::Peer(peer.clone()));
        }
        let ended = inner.ended.iter().rev().find(|ended| ended.token == token)?;
        Some(Named::Ended(ended.theirs, ended.address.clone()))
    }

    /// The peer of this incarnation: the existing one, or a new one that `make` makes for an id and
    /// the number of the last connection, and that `start` starts before other threads see it.
    /// Returns whether it is new.
    pub fn get_or_insert(
        &self,
        incarnation: u64,
        make: impl FnOnce(PeerId, u64) -> Result<Peer>,
        start: impl FnOnce(&Arc<Peer>),
    ) -> Result<(Arc<Peer>, bool)> {
        let mut inner = self.inner.write();
        if let Some(peer) = inner.by_incarnation.get(&incarnation) {
            return Ok((peer.clone(), false));
        }
        if inner.by_incarnation.len() >= self.capacity {
            return Err(Error::limit(format!(
                "the endpoint has {} peers already: raise max_peers",
                self.capacity
            )));
        }
        let room = inner.slots.try_reserve(1).and_then(|()| inner.by_incarnation.try_reserve(1));
        if room.is_err() || step("memory") {
            return Err(room::none::<Slot>(self.capacity, "a further peer"));
        }
        let index = inner.free.last().copied().unwrap_or(inner.slots.len());
        let generation = inner.slots.get(index).map_or(self.first, |slot| slot.generation);
        let before = inner.begun_before(incarnation);
        let peer = Arc::new(make(PeerId::from_parts(generation, index as u32), before)?);
        if index == inner.slots.len() {
            inner.slots.push(Slot { generation, peer: None });
        } else {
            inner.free.pop();
        }
        inner.slots[index].peer = Some(peer.clone());
        inner.by_incarnation.insert(incarnation, peer.clone());
        inner.by_token.insert(peer.token, peer.clone());
        start(&peer);
        Ok((peer, true))
    }

    /// `remembered`: the peer may not know that it has ended.
    pub fn remove(&self, peer: &Peer, remembered: bool) {
        let mut inner = self.inner.write();
        let index = peer.id.place();
        if inner.slots.get(index).is_some_and(|slot| slot.peer.as_ref().is_some_and(|p| p.id == peer.id)) {
            let slot = &mut inner.slots[index];
            let ended = slot.peer.take();
            slot.generation = slot.generation.checked_add(1).unwrap_or(NonZeroU32::MIN);
            inner.free.push(index);
            inner.by_incarnation.remove(&peer.address.incarnation);
            inner.by_token.remove(&peer.token);
            if let Some(ended) = ended.filter(|ended| ended.ended().is_some()) {
                inner.unpolled.insert(peer.id, (ended, u64::MAX));
            }
            if remembered {
                let (theirs, begun) = peer.named_by();
                let (incarnation, token) = (peer.address.incarnation, peer.token);
                let address = peer.address.clone();
                inner.ended.push_back(Ended { incarnation, token, theirs, begun, address });
            }
            if inner.ended.len() > ENDED {
                inner.ended.pop_front();
            }
        }
    }

    pub fn all(&self) -> Vec<Arc<Peer>> {
        self.inner.read().by_incarnation.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tokens;
    use super::*;
    use crate::status::Status;

    #[test]
    fn ends_that_no_caller_learns_of_leave_nothing() {
        let (table, id) = (PeerTable::new(4, 1), PeerId::numbered);
        let end = |number, until| {
            let tokens = Tokens { token: 1, begun: 1, before: 0 };
            let address = Address::new(number, Vec::new());
            let peer = Peer::new(id(number), address, 0, 0, String::new(), tokens);
            peer.set_down(Status::PeerLost);
            table.inner.write().unpolled.insert(id(number), (Arc::new(peer), u64::MAX));
            table.publish_end(id(number), 0, || until);
        };
        let status = |number, polled| table.living(number, polled).map(drop).map_err(|error| error.status);
        // Its completion stays unpolled while other peers end.
        end(1, 7);
        (2..1000).for_each(|number| end(number, 0));
        assert_eq!((status(1, 6), status(1, 7)), (Err(Status::PeerLost), Err(Status::Handle)));
        assert!(table.find(1, 6).is_ok() && table.find(1, 7).is_err());
        assert_eq!(status(2, 0), Err(Status::Handle));
        let inner = table.inner.read();
        assert_eq!((inner.unpolled.len(), inner.published.len()), (1, 1));
    }
}
