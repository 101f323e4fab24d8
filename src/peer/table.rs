//! All peers of an endpoint, by id and by incarnation.

use super::address::Address;
use super::Peer;
use crate::status::{Error, Result};
use parking_lot::RwLock;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::Arc;

pub struct PeerTable {
    inner: RwLock<Inner>,
    capacity: usize,
    /// Where generations begin: ids of one endpoint should mean nothing to another.
    first: u32,
}

/// Ended peers that are remembered.
const ENDED: usize = 256;

#[derive(Default)]
struct Inner {
    slots: Vec<Slot>,
    free: Vec<usize>,
    by_incarnation: HashMap<u64, Arc<Peer>>,
    /// Peers that ended lately, the last ones last.
    ended: VecDeque<Arc<Peer>>,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    peer: Option<Arc<Peer>>,
}

/// The place of a peer in tables: the low half of its id.
pub fn place(id: u64) -> usize {
    (id & 0xffff_ffff) as usize
}

impl PeerTable {
    pub fn new(capacity: usize, first: u32) -> PeerTable {
        PeerTable { inner: RwLock::default(), capacity, first: first.max(1) }
    }

    pub fn get(&self, id: u64) -> Result<Arc<Peer>> {
        if id == 0 {
            return Err(Error::handle("peer is 0: it comes from weft_peer_connect, or from a PEER_UP"));
        }
        let inner = self.inner.read();
        let found =
            inner.slots.get(place(id)).and_then(|slot| slot.peer.as_ref()).filter(|peer| peer.id == id);
        found
            .cloned()
            .ok_or_else(|| Error::handle(format!("{id:#x} is not a peer of this endpoint, or it has ended")))
    }

    pub fn by_incarnation(&self, incarnation: u64) -> Option<Arc<Peer>> {
        self.inner.read().by_incarnation.get(&incarnation).cloned()
    }

    /// The peer of this incarnation: the one there is, or a new one that `make`
    /// makes for an id, and that `start` starts before anybody else can see it.
    /// Says whether it is new.
    pub fn get_or_insert(
        &self,
        incarnation: u64,
        make: impl FnOnce(u64) -> Result<Peer>,
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
        let index = inner.free.last().copied().unwrap_or(inner.slots.len());
        let generation = inner.slots.get(index).map_or(self.first, |slot| slot.generation);
        let peer = Arc::new(make((generation as u64) << 32 | index as u64)?);
        if index == inner.slots.len() {
            inner.slots.push(Slot { generation, peer: None });
        } else {
            inner.free.pop();
        }
        inner.slots[index].peer = Some(peer.clone());
        inner.by_incarnation.insert(incarnation, peer.clone());
        start(&peer);
        Ok((peer, true))
    }

    pub fn remove(&self, peer: &Peer) {
        let mut inner = self.inner.write();
        let index = place(peer.id);
        if inner.slots.get(index).is_some_and(|slot| slot.peer.as_ref().is_some_and(|p| p.id == peer.id)) {
            let slot = &mut inner.slots[index];
            slot.peer = None;
            slot.generation = slot.generation.wrapping_add(1).max(1);
            inner.free.push(index);
            if let Some(ended) = inner.by_incarnation.remove(&peer.address.incarnation) {
                inner.ended.push_back(ended);
            }
            if inner.ended.len() > ENDED {
                inner.ended.pop_front();
            }
        }
    }

    /// Of an incarnation that ended lately: its id of us, and its address.
    pub fn ended(&self, incarnation: u64) -> Option<(u64, Address)> {
        let inner = self.inner.read();
        let peer = inner.ended.iter().rev().find(|peer| peer.address.incarnation == incarnation)?;
        Some((peer.their_id.load(Ordering::Acquire), peer.address.clone()))
    }

    pub fn all(&self) -> Vec<Arc<Peer>> {
        self.inner.read().by_incarnation.values().cloned().collect()
    }
}
