//! The links of the peers that a worker owns.

use super::link::Link;
use crate::ids::PeerId;

/// By their peers' slots.
#[derive(Default)]
pub struct Links {
    all: Vec<Option<Box<Link>>>,
    /// Slots of links that have frames to send.
    pub dirty: Vec<usize>,
    /// Peers for which something has to become idle.
    pub quiescing: Vec<PeerId>,
}

impl Links {
    pub fn get(&self, peer: PeerId) -> Option<&Link> {
        self.all.get(peer.place())?.as_deref().filter(|link| link.peer.id == peer)
    }

    pub fn get_mut(&mut self, peer: PeerId) -> Option<&mut Link> {
        self.all.get_mut(peer.place())?.as_deref_mut().filter(|link| link.peer.id == peer)
    }

    pub fn insert(&mut self, link: Link) -> &mut Link {
        let at = link.peer.id.place();
        if self.all.len() <= at {
            self.all.resize_with(at + 1, || None);
        }
        self.all[at].insert(Box::new(link))
    }

    /// A peer has ended.
    pub fn remove(&mut self, peer: PeerId) -> Option<Box<Link>> {
        self.get(peer)?;
        self.dirty.retain(|dirty| *dirty != peer.place());
        self.quiescing.retain(|other| *other != peer);
        self.all[peer.place()].take()
    }

    /// The link at a slot that has frames to send.
    pub fn at(&mut self, place: usize) -> Option<&mut Link> {
        self.all.get_mut(place)?.as_deref_mut()
    }

    /// The link has frames to send.
    pub fn mark(&mut self, peer: PeerId) {
        if let Some(link) = self.get_mut(peer).filter(|link| !link.dirty) {
            link.dirty = true;
            self.dirty.push(peer.place());
        }
    }

    /// Something of the peer has to become idle.
    pub fn await_rest(&mut self, peer: PeerId) {
        if !self.quiescing.contains(&peer) {
            self.quiescing.push(peer);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Link> {
        self.all.iter().flatten().map(|link| &**link)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        self.all.iter_mut().flatten().map(|link| &mut **link)
    }

    pub fn peers(&self) -> Vec<PeerId> {
        self.iter().map(|link| link.peer.id).collect()
    }
}
