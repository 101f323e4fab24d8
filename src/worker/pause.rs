//! How a thread spends the time between two passes: it spins while it has its processor to itself,
//! and yields if another thread wants it, possibly the very thread that will answer.

use crate::clock::Clock;
use std::sync::atomic::{AtomicBool, Ordering};

/// A thread without work for this long yields, too.
const SPIN_NS: u64 = 5_000;
/// A yield that takes longer has let other threads run.
const SHARED_NS: u64 = 1_500;

#[derive(Default)]
pub struct Pause {
    /// Other threads want the processor.
    shared: AtomicBool,
}

impl Pause {
    /// Call after a pass at `now`, which follows `idle_ns` without work.
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
