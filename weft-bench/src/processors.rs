//! The processors that a thread runs on, and the distances between them.

use std::hint::black_box;
use std::mem::{size_of, zeroed};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// Bounces per measurement, and processors that are tried.
const BOUNCES: u64 = 10_000;
/// Steps of work per measurement, which take some milliseconds, and the least slowdown beside
/// another thread on the same core.
const STEPS: u64 = 2_000_000;
const SHARED: f64 = 1.25;
const MOST: usize = 8;

/// The processors of this process, for pinning and unpinning.
pub fn all() -> libc::cpu_set_t {
    // SAFETY: the set is passed with its own size.
    unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        set
    }
}

/// Pins the calling thread to these.
pub fn keep_on(set: &libc::cpu_set_t) {
    // SAFETY: the set is passed with its size; if refused, the thread stays where it was.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) };
}

/// Pins the calling thread to this one.
pub fn keep_on_only(number: usize) {
    keep_on(&only(number));
}

/// Pins the calling thread, and threads that it starts, to the first of its processors.
pub fn keep_on_first(count: usize) {
    let mut set = all();
    for number in numbers(&set).into_iter().skip(count) {
        // SAFETY: the index is below CPU_SETSIZE.
        unsafe { libc::CPU_CLR(number, &mut set) };
    }
    keep_on(&set);
}

/// The number of processors.
pub fn count() -> usize {
    numbers(&all()).len()
}

fn numbers(set: &libc::cpu_set_t) -> Vec<usize> {
    // SAFETY: the indexes are below CPU_SETSIZE.
    (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, set) }).collect()
}

fn only(number: usize) -> libc::cpu_set_t {
    // SAFETY: the set has only integers; the index is below CPU_SETSIZE, as in all sets.
    unsafe {
        let mut one: libc::cpu_set_t = zeroed();
        libc::CPU_SET(number, &mut one);
        one
    }
}

/// The two processors with the fastest round trip of a cache line, and its nanoseconds; `None` with
/// one processor. Threads of one core are skipped: each would get half of the core. (Virtual
/// machines do not report which those are, and change them.)
pub fn nearest() -> Option<(usize, usize, f64)> {
    let numbers = numbers(&all());
    let known = &numbers[..numbers.len().min(MOST)];
    let pairs = known.iter().enumerate().flat_map(|(i, a)| known[i + 1..].iter().map(move |b| (*a, *b)));
    let mut pairs: Vec<_> = pairs.map(|(a, b)| (a, b, bounce(a, b))).collect();
    pairs.sort_by(|one, other| one.2.total_cmp(&other.2));
    pairs.iter().find(|(a, b, _)| !share_a_core(*a, *b)).or(pairs.first()).copied()
}

/// Whether two processors slow each other down.
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

/// The seconds that some independent work takes on a processor: four chains of sums.
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

/// The nanoseconds of a cache line's round trip.
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
                    // The other thread is running.
                    begun = Instant::now();
                }
            }
            begun.elapsed().as_nanos() as f64 / (BOUNCES - 1) as f64
        });
        thrower.join().unwrap_or(f64::NAN)
    })
}
