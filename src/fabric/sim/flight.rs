//! Operations that wait for a time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A link that is down is retried at this interval.
const RETRY_PS: u64 = 1_000_000_000;

/// When to try again: at one time for all, so that those who wait do not become more.
pub fn retry_at(now: u64) -> u64 {
    (now / RETRY_PS + 1) * RETRY_PS
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Next {
    Complete,
    Land,
    Depart,
}

/// Operations that wait for a time: the time, a number that orders those of one
/// time, the operation.
pub struct Flight {
    waiting: BinaryHeap<Reverse<(u64, u64, u32, Next)>>,
    count: u64,
}

impl Flight {
    pub fn with_capacity(capacity: usize) -> Flight {
        Flight { waiting: BinaryHeap::with_capacity(capacity), count: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn add(&mut self, due: u64, op: u32, next: Next) {
        self.count += 1;
        self.waiting.push(Reverse((due, self.count, op, next)));
    }

    /// The next operation whose time has come, and that time.
    pub fn due(&mut self, now: u64) -> Option<(u64, u32, Next)> {
        let Reverse((due, _, op, next)) =
            self.waiting.peek().copied().filter(|Reverse(first)| first.0 <= now)?;
        self.waiting.pop();
        Some((due, op, next))
    }

    /// Takes out the operations of which this is true.
    pub fn take(&mut self, taken: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut found = Vec::new();
        self.waiting.retain(|Reverse((_, _, op, _))| {
            let takes = taken(*op);
            found.extend(takes.then_some(*op));
            !takes
        });
        found
    }
}
