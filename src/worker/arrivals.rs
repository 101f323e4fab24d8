//! Increments of counters by peers, and the operations that wait for the values.

use super::core::Core;
use crate::ids::OpId;
use crate::status::Status;
use crate::transfer::counters::{Raised, Unsettled};
use crate::transfer::Outcome;

/// Roughly the most operations that arrivals end in one pass.
const ENDS: usize = 512;

impl Core {
    /// A peer raises a counter: the bytes have arrived. `ended`: operations that this pass has
    /// ended for this reason; if there are very many, the next passes continue.
    #[inline]
    pub fn count(&self, immediate: u32, by: u64, now: u64, ended: &mut usize) {
        match self.counters.raise(immediate, by) {
            Raised::Yes => {}
            Raised::Unknown => self.count_malformed(),
            Raised::Reached(index) if *ended >= ENDS => self.counters.list(index),
            Raised::Reached(index) => _ = self.reached(index, now, ended),
        }
    }

    /// False: another thread holds the lock of the waiting operations.
    #[cold]
    fn reached(&self, index: u32, now: u64, ended: &mut usize) -> bool {
        let mut operations = Vec::new();
        let alone = self.counters.settle(index, &mut operations);
        *ended += operations.len();
        self.end_all_of(operations, Status::Ok, now);
        alone
    }

    /// Ends operations without a lock: each one removes its own entries.
    pub(crate) fn end_all_of(&self, operations: Vec<OpId>, status: Status, now: u64) {
        for id in operations {
            self.table.end(id, Outcome::new(status), now);
        }
    }
}

/// Counters whose values were reached, for the operations that wait for them.
#[derive(Default)]
pub(crate) struct Reached {
    pub unsettled: Unsettled,
    /// Operations that this pass has ended for that.
    pub ended: usize,
}

impl Reached {
    /// As `go_on`, in a pass.
    pub fn go_on_some(&mut self, core: &Core, now: u64) -> bool {
        self.ended = 0;
        self.go_on(core, now, ENDS, || false)
    }

    /// Ends more operations whose values were reached, within the time, and about `most` of them;
    /// whether any counter was checked.
    pub fn go_on(&mut self, core: &Core, now: u64, most: usize, over: impl Fn() -> bool) -> bool {
        let (mut ended, mut busy) = (0, false);
        while !self.unsettled.is_empty() || core.counters.has_unsettled() {
            let Some(index) = core.counters.next_unsettled(&mut self.unsettled) else { break };
            if !core.reached(index, now, &mut ended) {
                break;
            }
            busy = true;
            if ended >= most || over() {
                break;
            }
        }
        busy
    }
}
