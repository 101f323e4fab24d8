//! The processors that a thread runs on, and how far apart they are.

use std::hint::black_box;
use std::mem::{size_of, zeroed};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// Bounces of one measurement, and processors that are looked at.
const BOUNCES: u64 = 10_000;
/// Steps of work of one measurement, which take some milliseconds, and how much slower they are beside
/// others on the same core, at least.
const STEPS: u64 = 2_000_000;
const SHARED: f64 = 1.25;
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

/// Keeps the calling thread on this one.
pub fn keep_on_only(number: usize) {
    keep_on(&only(number));
}

/// Keeps the calling thread, and those that it starts, on the first of its processors.
pub fn keep_on_first(count: usize) {
    let mut set = all();
    for number in numbers(&set).into_iter().skip(count) {
        // SAFETY: an index below CPU_SETSIZE.
        unsafe { libc::CPU_CLR(number, &mut set) };
    }
    keep_on(&set);
}

/// How many there are.
pub fn count() -> usize {
    numbers(&all()).len()
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
/// nanoseconds of that; none where there is one processor. Threads of one core are passed over:
/// each gets half of what it could do. (Virtual machines do not say which those are, and change it.)
pub fn nearest() -> Option<(usize, usize, f64)> {
    let numbers = numbers(&all());
    let known = &numbers[..numbers.len().min(MOST)];
    let pairs = known.iter().enumerate().flat_map(|(i, a)| known[i + 1..].iter().map(move |b| (*a, *b)));
    let mut pairs: Vec<_> = pairs.map(|(a, b)| (a, b, bounce(a, b))).collect();
    pairs.sort_by(|one, other| one.2.total_cmp(&other.2));
    pairs.iter().find(|(a, b, _)| !share_a_core(*a, *b)).or(pairs.first()).copied()
}

/// Whether two processors slow each other.
fn share_a_core(here: usize, there: usize) -> bool {
    let over = AtomicBool::new(false);
    let alone = thread::scope(|scope| scope.spawn(|| work_on(here)).join());
    let beside = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                work_on(there);
            }
        });
        let beside = scope.spawn(|| work_on(here).min(work_on(here))).join();
        over.store(true, Ordering::Relaxed);
        beside
    });
    matches!((alone, beside), (Ok(alone), Ok(beside)) if beside > alone * SHARED)
}

/// The seconds that some work takes on a processor which nothing of it waits for: four chains of sums.
fn work_on(processor: usize) -> f64 {
    keep_on_only(processor);
    let begun = Instant::now();
    let mut sums = [1u64, 2, 3, 4];
    for step in 0..STEPS {
        sums.iter_mut().for_each(|sum| *sum = black_box(sum.wrapping_mul(3) ^ step));
    }
    black_box(sums);
    begun.elapsed().as_secs_f64()
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
