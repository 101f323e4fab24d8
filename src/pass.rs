//! Measures how long a worker's passes take, in CPU time of its thread: everything that the worker
//! serves waits that long. Reading that clock is a system call, so it is read once per tick, and
//! after passes that were long in wall-clock time.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Shorter passes are not measured.
const LONG_NS: u64 = 500_000;
/// Shorter calls into drivers count as part of the pass: there may be many.
const LONG_CALL_NS: u64 = 50_000;

thread_local! {
    /// Time of long calls into drivers since the last reading: the sum, and the longest.
    static CALLS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Makes a call into a driver, whose duration Weft does not control.
#[inline]
pub fn call<T>(call: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let answer = call();
    let took = began.elapsed().as_nanos() as u64;
    if took > LONG_CALL_NS {
        // A thread that is ending no longer has thread-locals.
        let _ = CALLS.try_with(|calls| {
            let (sum, longest) = calls.get();
            calls.set((sum + took, longest.max(took)));
        });
    }
    answer
}

#[derive(Default)]
pub struct Longest {
    pass_ns: AtomicU64,
    call_ns: AtomicU64,
}

impl Longest {
    /// The longest pass without long driver calls, and the longest driver call.
    pub fn get(&self) -> (u64, u64) {
        (self.pass_ns.load(Ordering::Relaxed), self.call_ns.load(Ordering::Relaxed))
    }
}

/// The durations of one worker thread's passes.
#[derive(Default)]
pub struct Passes {
    /// Wall-clock and CPU time at the last reading; 0: never read.
    read_ns: u64,
    cpu_ns: u64,
    /// When the current pass began; 0: no pass is running.
    began_ns: u64,
}

/// CPU time of this thread so far.
pub fn thread_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Passes {
    /// Reads both clocks; only on the worker's own thread.
    pub fn read(&mut self, now: u64) {
        (self.read_ns, self.cpu_ns) = (now.max(1), thread_ns());
        CALLS.set((0, 0));
    }

    /// Like `read`, if the clocks were read before.
    pub fn tick(&mut self, now: u64) {
        if self.read_ns != 0 {
            self.read(now);
        }
    }

    #[inline]
    pub fn begin(&mut self, now: u64, longest: &Longest) {
        self.end(now, longest);
        self.began_ns = now;
    }

    #[inline]
    pub fn end(&mut self, now: u64, longest: &Longest) {
        let began = std::mem::take(&mut self.began_ns);
        if self.read_ns != 0 && began != 0 && now.saturating_sub(began) > LONG_NS {
            self.count(began, now, longest);
        }
    }

    #[cold]
    fn count(&mut self, began: u64, now: u64, longest: &Longest) {
        let computed = thread_ns().saturating_sub(self.cpu_ns);
        // The thread may have computed during all the time before the pass.
        let before = began.saturating_sub(self.read_ns);
        let (calls, call) = CALLS.get();
        let pass = computed.saturating_sub(before).min(now - began).saturating_sub(calls);
        longest.pass_ns.fetch_max(pass, Ordering::Relaxed);
        longest.call_ns.fetch_max(call, Ordering::Relaxed);
        self.read(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use std::time::Duration;

    fn compute(ns: u64) {
        let until = thread_ns() + ns;
        while thread_ns() < until {}
    }

    #[test]
    fn passes_are_measured_in_cpu_time_of_the_thread() {
        let (clock, longest) = (Clock::System, Longest::default());
        let mut passes = Passes::default();
        passes.read(clock.now());
        passes.begin(clock.now(), &longest);
        std::thread::sleep(Duration::from_millis(20));
        passes.begin(clock.now(), &longest);
        let (slept, _) = longest.get();
        assert!(slept < 5_000_000, "{slept}");
        compute(10_000_000);
        passes.begin(clock.now(), &longest);
        let (computed, no_call) = longest.get();
        assert!((9_000_000..20_000_000).contains(&computed) && no_call == 0, "{computed}");
        call(|| compute(30_000_000));
        passes.end(clock.now(), &longest);
        let (pass, call) = longest.get();
        assert!(pass == computed && call >= 30_000_000, "{pass} {call}");
    }
}
