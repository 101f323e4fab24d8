//! The processors that a thread runs on, and how far apart they are.

use std::mem::{size_of, zeroed};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// Bounces of one measurement, and processors that are looked at.
const BOUNCES: u64 = 10_000;
const MOST: usize = 8;

/// The processors of this process, to pin to and to go back to.
pub fn all() -> libc::cpu_set_t {
    // SAFETY: a set of bits of its own size.
    unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        set
    }
}

/// Keeps the calling thread on these.
pub fn keep_on(set: &libc::cpu_set_t) {
    // SAFETY: the same; a refusal leaves it where it was.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) };
}

/// Of the set, one: the first for 0 and so on.
pub fn one_of(set: &libc::cpu_set_t, number: usize) -> libc::cpu_set_t {
    let numbers = numbers(set);
    numbers.get(number % numbers.len().max(1)).map_or(*set, |cpu| only(*cpu))
}

/// Keeps the calling thread on this one.
pub fn keep_on_only(number: usize) {
    keep_on(&only(number));
}

fn numbers(set: &libc::cpu_set_t) -> Vec<usize> {
    // SAFETY: indexes below CPU_SETSIZE.
    (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, set) }).collect()
}

fn only(number: usize) -> libc::cpu_set_t {
    // SAFETY: integers; the index is below CPU_SETSIZE, as those of all sets are.
    unsafe {
        let mut one: libc::cpu_set_t = zeroed();
        libc::CPU_SET(number, &mut one);
        one
    }
}

/// Two processors between which a cache line goes there and back fastest, and the
/// nanoseconds of that; none where there is one processor.
pub fn nearest() -> Option<(usize, usize, f64)> {
    let numbers = numbers(&all());
    let known = &numbers[..numbers.len().min(MOST)];
    let pairs = known.iter().enumerate().flat_map(|(i, a)| known[i + 1..].iter().map(move |b| (*a, *b)));
    pairs.map(|(a, b)| (a, b, bounce(a, b))).min_by(|one, other| one.2.total_cmp(&other.2))
}

#[repr(align(128))]
struct Line(AtomicU64);

/// The nanoseconds of a line there and back.
fn bounce(here: usize, there: usize) -> f64 {
    let (ping, pong) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let wait = |line: &Line, value| {
        while line.0.load(Ordering::Acquire) != value {}
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            keep_on_only(there);
            for value in 1..=BOUNCES {
                wait(&ping, value);
                pong.0.store(value, Ordering::Release);
            }
        });
        let thrower = scope.spawn(|| {
            keep_on_only(here);
            let mut begun = Instant::now();
            for value in 1..=BOUNCES {
                ping.0.store(value, Ordering::Release);
                wait(&pong, value);
                if value == 1 {
                    // The other thread is there.
                    begun = Instant::now();
                }
            }
            begun.elapsed().as_nanos() as f64 / (BOUNCES - 1) as f64
        });
        thrower.join().unwrap_or(f64::NAN)
    })
}
