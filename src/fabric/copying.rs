//! What devices copy now between NICs' buffers and memory that peers reach, and what is announced behind such copies. A
//! disk may take long, or never end: nothing waits for it inside a NIC. Who takes access back asks here whether it is
//! over.

use crate::ids::PeerId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The copies in flight, of all NICs of an endpoint, in the order in which they began.
#[derive(Default)]
pub struct Copying(Mutex<Begun>);

#[derive(Default)]
struct Begun {
    next: u64,
    copies: BTreeMap<u64, (Option<PeerId>, u64)>,
}

/// A copy for a peer's request, or what the request announces; over when this is dropped.
pub struct Copy {
    among: Arc<Copying>,
    number: u64,
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.among.0.lock().copies.remove(&self.number);
    }
}

impl Copying {
    /// A copy of memory under a key begins.
    pub fn begin(self: &Arc<Copying>, peer: Option<PeerId>, key: u64) -> Copy {
        let mut begun = self.0.lock();
        let number = begun.next;
        begun.next += 1;
        begun.copies.insert(number, (peer, key));
        Copy { among: self.clone(), number }
    }

    /// The number of the next copy.
    pub fn next(&self) -> u64 {
        self.0.lock().next
    }

    /// Whether a copy for a peer is in flight that began before one.
    pub fn has_peer(&self, peer: PeerId, before: u64) -> bool {
        self.0.lock().copies.range(..before).any(|(_, (other, _))| *other == Some(peer))
    }

    /// Whether memory under a key is being copied.
    pub fn has_key(&self, key: u64) -> bool {
        self.0.lock().copies.values().any(|(_, other)| *other == key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_in_flight_until_they_are_dropped() {
        let copying = Arc::<Copying>::default();
        let [one, two] = [1, 2].map(PeerId::numbered);
        let early = copying.begin(Some(one), 7);
        let now = copying.next();
        let late = copying.begin(Some(two), 8);
        assert!(copying.has_peer(one, now) && copying.has_key(7) && copying.has_key(8));
        assert!(!copying.has_peer(two, now) && copying.has_peer(two, u64::MAX), "it began later");
        drop(early);
        assert!(!copying.has_peer(one, u64::MAX) && !copying.has_key(7) && copying.has_key(8));
        drop(late);
        assert!(!copying.has_key(8));
    }
}
