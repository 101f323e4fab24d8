//! Time and randomness of an endpoint: from the machine, or from a virtual world that decides both
//! and can be replayed.

use crate::failing::step;
use crate::status::{Error, Result, Status};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A clock that counts nanoseconds from an arbitrary origin.
#[derive(Clone, Default)]
pub enum Clock {
    /// CLOCK_MONOTONIC.
    #[default]
    System,
    Virtual(Arc<Virtual>),
}

impl Clock {
    #[inline]
    pub fn now(&self) -> u64 {
        match self {
            Clock::System => monotonic(),
            Clock::Virtual(time) => time.now(),
        }
    }

    /// Registers a time at which something is due: virtual time does not jump past it.
    #[inline]
    pub fn wake_at(&self, at: u64) {
        if let Clock::Virtual(time) = self {
            time.wake_at(at);
        }
    }
}

#[inline]
fn monotonic() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is valid for the call, and this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Unpredictable numbers from the system, on which keys and incarnations depend. In a virtual
/// world, numbers follow from its seed.
#[derive(Clone, Default)]
pub enum Random {
    #[default]
    System,
    Virtual(Arc<Virtual>),
}

impl Random {
    /// A random number of 128 bits; never 0.
    pub fn u128(&self) -> Result<u128> {
        Ok(u128::from(self.u64()?) << 64 | u128::from(self.u64()?))
    }

    /// Never 0.
    pub fn u64(&self) -> Result<u64> {
        if step("random numbers") {
            return Err(Error::new(Status::System, "no random numbers from the system"));
        }
        loop {
            let number = match self {
                Random::System => from_system()?,
                Random::Virtual(time) => time.random.lock().next(),
            };
            if number != 0 {
                return Ok(number);
            }
        }
    }
}

fn from_system() -> Result<u64> {
    let mut bytes = [0u8; 8];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::new(Status::System, format!("no random numbers from the system: {e}")))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Splitmix64, a deterministic generator.
#[derive(Clone, Debug)]
pub struct Sequence(pub u64);

impl Sequence {
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

/// A part of a virtual world: a worker and its rails.
pub trait Actor: Send + Sync {
    /// Makes one pass; true if it did anything.
    fn step(&self) -> bool;
}

/// The time and randomness of a world in which one thread at a time steps all parts, in the order
/// in which they joined. Time stands still while any part is busy, then jumps to the next due time.
pub struct Virtual {
    now: AtomicU64,
    wakes: Mutex<BinaryHeap<Reverse<u64>>>,
    /// Something is due now, and no part has run since.
    stirred: AtomicBool,
    random: Mutex<Sequence>,
    parts: Mutex<Vec<Weak<dyn Actor>>>,
    stepping: Mutex<()>,
}

/// The initial time. Not 0, which means "never" in many places.
const BEGIN_NS: u64 = 1_000_000_000;

impl Virtual {
    pub fn new(seed: u64) -> Virtual {
        Virtual {
            now: AtomicU64::new(BEGIN_NS),
            wakes: Mutex::default(),
            stirred: AtomicBool::new(false),
            random: Mutex::new(Sequence(seed)),
            parts: Mutex::default(),
            stepping: Mutex::default(),
        }
    }

    #[inline]
    pub fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn wake_at(&self, at: u64) {
        if at > self.now() {
            self.wakes.lock().push(Reverse(at));
        } else {
            self.stirred.store(true, Ordering::Relaxed);
        }
    }

    pub fn join(&self, part: Weak<dyn Actor>) {
        self.parts.lock().push(part);
    }

    /// Steps every part once. If all were idle, time jumps to the next due time, at most to
    /// `horizon`. True if any part was busy.
    pub fn step(&self, horizon: u64) -> bool {
        let Some(_turn) = self.stepping.try_lock() else { return false };
        let parts: Vec<Arc<dyn Actor>> = {
            let mut parts = self.parts.lock();
            parts.retain(|part| part.strong_count() > 0);
            parts.iter().filter_map(Weak::upgrade).collect()
        };
        let busy = parts.iter().filter(|part| part.step()).count() > 0;
        if !self.stirred.swap(false, Ordering::Relaxed) && !busy {
            self.advance(horizon);
        }
        busy
    }

    fn advance(&self, horizon: u64) {
        let now = self.now();
        let mut wakes = self.wakes.lock();
        while wakes.peek().is_some_and(|Reverse(at)| *at <= now) {
            wakes.pop();
        }
        let next = wakes.peek().map_or(horizon, |Reverse(at)| (*at).min(horizon));
        if next != u64::MAX && next > now {
            self.now.store(next, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Busy(AtomicU64);

    impl Actor for Busy {
        fn step(&self) -> bool {
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
        }
    }

    #[test]
    fn virtual_time_jumps_only_while_all_parts_are_idle() {
        let time = Virtual::new(1);
        let part = Arc::new(Busy(AtomicU64::new(2)));
        let weak: Weak<Busy> = Arc::downgrade(&part);
        time.join(weak);
        let begin = time.now();
        time.wake_at(begin + 50);
        time.wake_at(begin + 20);
        assert!(time.step(u64::MAX) && time.step(u64::MAX));
        assert_eq!(time.now(), begin);
        assert!(!time.step(u64::MAX));
        assert_eq!(time.now(), begin + 20);
        time.step(begin + 30);
        assert_eq!(time.now(), begin + 30);
        time.wake_at(begin);
        time.step(u64::MAX);
        assert_eq!(time.now(), begin + 30);
        time.step(u64::MAX);
        assert_eq!(time.now(), begin + 50);
    }

    #[test]
    fn virtual_randomness_follows_from_the_seed() {
        let draw = |seed| {
            let random = Random::Virtual(Arc::new(Virtual::new(seed)));
            (random.u64().unwrap_or(0), random.u64().unwrap_or(0))
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
