//! Memories that a peer has reported deregistered. The list is limited, however many the peer
//! reports: the oldest are dropped, and importing one of them gets the same answer from the peer.

use crate::ids::MemoryId;
use std::collections::{HashSet, VecDeque};

const MOST: usize = 4096;

#[derive(Default)]
pub struct Gone {
    known: HashSet<MemoryId>,
    order: VecDeque<MemoryId>,
}

impl Gone {
    pub fn insert(&mut self, memory: MemoryId) {
        if !self.known.insert(memory) {
            return;
        }
        self.order.push_back(memory);
        if self.order.len() > MOST {
            if let Some(oldest) = self.order.pop_front() {
                self.known.remove(&oldest);
            }
        }
    }

    pub fn contains(&self, memory: MemoryId) -> bool {
        self.known.contains(&memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_deregistered_memories_are_remembered() {
        let mut gone = Gone::default();
        (0..10 * MOST as u64).map(MemoryId::new).for_each(|memory| {
            gone.insert(memory);
            gone.insert(memory);
        });
        let last = 10 * MOST as u64 - 1;
        let contains = |memory| gone.contains(MemoryId::new(memory));
        assert!(contains(last) && contains(last + 1 - MOST as u64));
        assert!(!contains(last - MOST as u64));
        assert_eq!((gone.known.len(), gone.order.len()), (MOST, MOST));
    }
}
