//! Why the last peers ended, in words.

use crate::ids::PeerId;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// The most peers whose end is remembered.
const REMEMBERED: usize = 256;

/// Why the last peers ended.
#[derive(Default)]
pub struct Ends(Mutex<VecDeque<(PeerId, Arc<str>)>>);

impl Ends {
    /// The first reason counts: what follows is a consequence.
    pub fn note(&self, peer: PeerId, why: &str) {
        let mut known = self.0.lock();
        if known.iter().any(|(known, _)| *known == peer) {
            return;
        }
        known.truncate(REMEMBERED - 1);
        known.push_front((peer, why.into()));
    }

    pub fn reason(&self, peer: PeerId) -> Option<Arc<str>> {
        self.0.lock().iter().find(|(ended, _)| *ended == peer).map(|(_, why)| why.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_reason_of_a_peer_counts_and_old_peers_are_forgotten() {
        let (ends, id) = (Ends::default(), PeerId::numbered);
        ends.note(id(1), "no route");
        ends.note(id(1), "closed");
        assert_eq!(ends.reason(id(1)).as_deref(), Some("no route"));
        (2..=REMEMBERED as u64 + 1).for_each(|number| ends.note(id(number), "later"));
        assert_eq!((ends.reason(id(1)), ends.reason(id(2)).as_deref()), (None, Some("later")));
    }
}
