//! How a thread passes the time between two passes: it spins while it has its processor to itself, and yields where
//! another thread wants it. That may be the very one which is to answer.

use crate::clock::Clock;
use std::sync::atomic::{AtomicBool, Ordering};

/// A thread that has nothing to do for this long yields, too.
const SPIN_NS: u64 = 5_000;
/// A yield that takes longer has let others run.
const SHARED_NS: u64 = 1_500;

#[derive(Default)]
pub struct Pause {
    /// Others want the processor.
    shared: AtomicBool,
}

impl Pause {
    /// After a pass at `now`, the last of `idle_ns` without anything to do.
    #[inline]
    pub fn between(&self, clock: &Clock, now: u64, idle_ns: u64) {
        let shared = self.shared.load(Ordering::Relaxed);
        if idle_ns < SPIN_NS && !shared {
            return std::hint::spin_loop();
        }
        std::thread::yield_now();
        let others = clock.now().saturating_sub(now) > SHARED_NS;
        if others != shared {
            self.shared.store(others, Ordering::Relaxed);
        }
    }
}
