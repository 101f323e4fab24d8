//! Operations that wait until a time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The interval at which an operation retries a link that is down.
const RETRY_PS: u64 = 1_000_000_000;

/// After this time the NIC of a connection repeats what the link has lost, although the link may be
/// up again long before.
pub const REPEAT_PS: u64 = 60_000_000_000_000;

/// When to retry: at the same time for all operations, so that retries do not multiply.
pub fn retry_at(now: u64) -> u64 {
    (now / RETRY_PS + 1) * RETRY_PS
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Next {
    Complete,
    Land,
    Depart,
}

/// Waiting operations: the time, a number that orders operations of the same time, and the
/// operation.
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

    /// The next operation whose time has come, and its time.
    pub fn due(&mut self, now: u64) -> Option<(u64, u32, Next)> {
        let Reverse((due, _, op, next)) =
            self.waiting.peek().copied().filter(|Reverse(first)| first.0 <= now)?;
        self.waiting.pop();
        Some((due, op, next))
    }

    /// Removes the operations for which this is true.
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
