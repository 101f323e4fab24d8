//! Lets a thread wait for threads inside: completions are in their queues before a PEER_DOWN is
//! published.
//!
//! A passing thread counts itself in and out, in one of two rounds. The counts are split into
//! parts, so that threads seldom share a cache line. A waiter begins the next round, and waits only
//! for threads of the previous one. It polls, since such a thread may be a caller's that the system
//! has preempted.

use crate::sync::{part, PARTS};
use crossbeam_utils::{Backoff, CachePadded};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Pause between checks while a thread stays inside.
const PAUSE: Duration = Duration::from_micros(50);

/// SeqCst: a passing thread counts itself in and then reads the round again, while a waiter begins
/// the next round and then reads the counts. So one of the two sees the other.
pub struct Gate {
    round: AtomicU64,
    /// Passing threads by the parity of their round: at most two rounds have any.
    parts: Box<[CachePadded<[AtomicU64; 2]>]>,
    /// All threads of rounds before this one have passed. One thread at a time checks.
    empty: AtomicU64,
    checking: Mutex<()>,
}

/// The threads that were passing at some moment.
#[derive(Clone, Copy)]
pub struct Before(u64);

/// A pass, until it is dropped. Its thread must not wait for another thread meanwhile.
pub struct Passing<'a>(&'a AtomicU64);

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Gate {
    pub fn new() -> Gate {
        let parts = (0..PARTS).map(|_| CachePadded::new([AtomicU64::new(0), AtomicU64::new(0)]));
        let (round, empty) = (AtomicU64::new(0), AtomicU64::new(0));
        Gate { round, parts: parts.collect(), empty, checking: Mutex::new(()) }
    }

    #[inline]
    pub fn pass(&self) -> Passing<'_> {
        let part = &self.parts[part()];
        loop {
            let round = self.round.load(Ordering::SeqCst);
            let passing = Passing(&part[round as usize & 1]);
            passing.0.fetch_add(1, Ordering::SeqCst);
            // Otherwise a waiter may have read the count before this increment.
            if self.round.load(Ordering::SeqCst) == round {
                return passing;
            }
        }
    }

    /// Marks the threads that are passing now; `have_passed` checks them.
    pub fn before(&self) -> Before {
        Before(self.round.load(Ordering::SeqCst))
    }

    /// Whether all marked threads have passed. Never waits: a marked thread may be preempted for
    /// long.
    pub fn have_passed(&self, before: Before) -> bool {
        let Some(_alone) = self.checking.try_lock() else { return false };
        loop {
            let empty = self.empty.load(Ordering::SeqCst);
            if empty > before.0 {
                return true;
            }
            // Later threads count in the next round, whose counts are 0.
            let _ = self.round.compare_exchange(empty, empty + 1, Ordering::SeqCst, Ordering::SeqCst);
            let inside =
                |part: &CachePadded<[AtomicU64; 2]>| part[empty as usize & 1].load(Ordering::SeqCst) != 0;
            if self.parts.iter().any(inside) {
                return false;
            }
            self.empty.store(empty + 1, Ordering::SeqCst);
        }
    }

    /// Returns when all threads that were passing have passed.
    pub fn wait(&self) {
        let (before, backoff) = (self.before(), Backoff::new());
        while !self.have_passed(before) {
            if backoff.is_completed() {
                std::thread::sleep(PAUSE); // One of the threads is preempted.
            } else {
                backoff.snooze();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn gate_waits_for_earlier_users_only() {
        let (gate, waited) = (Gate::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let before = gate.pass();
            scope.spawn(|| {
                gate.wait();
                waited.store(true, Ordering::SeqCst);
            });
            while gate.round.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let _after = gate.pass();
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waited.load(Ordering::SeqCst), "a thread is passing");
            drop(before);
            while !waited.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        });
    }

    /// A thread that checks the gate never waits for a thread inside.
    #[test]
    fn gate_check_never_waits() {
        let gate = Gate::new();
        let passing = gate.pass();
        let first = gate.before();
        assert!(!gate.have_passed(first));
        let later = gate.pass();
        let second = gate.before();
        assert!(!gate.have_passed(second) && !gate.have_passed(first));
        drop(later);
        assert!(!gate.have_passed(first) && !gate.have_passed(second), "the first thread is inside");
        drop(passing);
        assert!(gate.have_passed(second) && gate.have_passed(first) && gate.have_passed(gate.before()));
    }

    /// Passes begun before the wait are over when it returns.
    #[test]
    fn closed_gate_admits_no_late_user() {
        let (gate, gone, over) = (Gate::new(), AtomicU64::new(0), AtomicBool::new(false));
        let inside: [AtomicU64; 4] = Default::default();
        std::thread::scope(|scope| {
            for at in &inside {
                scope.spawn(|| {
                    while !over.load(Ordering::SeqCst) {
                        let _passing = gate.pass();
                        at.store(gone.load(Ordering::SeqCst) + 1, Ordering::SeqCst);
                        at.store(0, Ordering::SeqCst);
                    }
                });
            }
            for round in 1..=if cfg!(miri) { 8 } else { 20_000 } {
                gone.store(round, Ordering::SeqCst);
                gate.wait();
                let late =
                    inside.iter().map(|at| at.load(Ordering::SeqCst)).find(|at| (1..=round).contains(at));
                if let Some(late) = late {
                    over.store(true, Ordering::SeqCst);
                    panic!("a thread of round {} is inside after {round}", late - 1);
                }
            }
            over.store(true, Ordering::SeqCst);
        });
    }
}
