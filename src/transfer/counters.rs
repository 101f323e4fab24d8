//! Counters at their owner.
//!
//! A raise names its counter by 32 bits (an immediate): its index in a dense array and, above that,
//! the generation, so that late arrivals for a destroyed counter do not count for its successor. A
//! counter's value and generation share one word: an arrival indexes, compares and adds, without a
//! lock, a lookup or an allocation. `expect` has the operations that wait for values.

use super::expect::{Abandoned, Waiting};
use crate::fabric::Immediate;
use crate::room;
use crate::status::{Error, Result};
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bits of a counter's value, below its generation.
const VALUE_BITS: u32 = 48;
pub const VALUE_MAX: u64 = (1 << VALUE_BITS) - 1;
const GENERATION_BITS: u32 = 64 - VALUE_BITS;
const CHUNK: usize = 1024;
/// A freed place is reused only after this many others were freed, while unused places are left.
const REUSE_DISTANCE: usize = 1024;
/// No operation waits for a value.
pub const NO_WAITER: u64 = u64::MAX;

/// On its own cache line, since rails raise neighbouring counters concurrently.
#[repr(align(64))]
pub struct Counter {
    /// `generation << VALUE_BITS | value`; 0: there is none. SeqCst, with `wanted`: a raise changes
    /// this and reads `wanted` afterwards, a wait for a value writes `wanted` and then reads this
    /// (`Counters::settle_in`).
    state: AtomicU64,
    /// The lowest value that an operation waits for.
    pub wanted: AtomicU64,
    /// 0: not in the list `unsettled`; else `LAST`, or the next index and `AFTER`.
    listed: AtomicU32,
}

/// Counters that a worker took from the list to settle; other workers do not see them.
#[derive(Default)]
pub struct Unsettled(u32);

impl Unsettled {
    pub fn is_empty(&self) -> bool {
        self.0 < AFTER
    }
}

const LAST: u32 = 1;
const AFTER: u32 = 2;

impl Counter {
    fn new() -> Counter {
        Counter { state: AtomicU64::new(0), wanted: AtomicU64::new(NO_WAITER), listed: AtomicU32::new(0) }
    }

    /// The value of the counter, if it still has that generation.
    pub fn value(&self, generation: u32) -> Option<u64> {
        let state = self.state.load(Ordering::SeqCst);
        (state >> VALUE_BITS == u64::from(generation) && generation != 0).then_some(state & VALUE_MAX)
    }

    pub fn any_value(&self) -> u64 {
        self.state.load(Ordering::SeqCst) & VALUE_MAX
    }
}

/// A counter that this endpoint has, or had.
#[derive(Clone, Copy)]
pub struct CounterPlace {
    pub index: u32,
    pub generation: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Raised {
    /// The arrival names no counter.
    Unknown,
    Yes,
    /// An operation may wait for that value: call `settle` with this index.
    Reached(u32),
}

#[derive(Default)]
struct Places {
    used: usize,
    /// The oldest first.
    free: VecDeque<CounterPlace>,
}

pub struct Counters {
    capacity: usize,
    /// The low bits of an immediate that are the index.
    index_bits: u32,
    generations: u32,
    /// The high half of ids, so that another endpoint's ids are rejected.
    owner: u32,
    chunks: Box<[OnceCell<Box<[Counter]>>]>,
    places: Mutex<Places>,
    pub waiting: Mutex<Waiting>,
    /// The head of the list of counters with reached values to be removed: index + `AFTER`, or 0.
    unsettled: AtomicU32,
}

fn owner_of(incarnation: u64) -> u32 {
    (incarnation >> 32) as u32
}

/// The name of a peer's counter on the wire.
pub fn immediate_of(id: u64, incarnation: u64) -> Result<Immediate> {
    let owner = owner_of(incarnation);
    let of_owner = (id >> 32) as u32 == owner;
    Immediate::new(id as u32).filter(|_| of_owner).ok_or_else(|| {
        Error::handle(format!(
            "counter {id:#x} is not one of the peer's (they begin with {owner:#010x}): it is this endpoint's own or \
             another's, or the peer was restarted"
        ))
    })
}

impl Counters {
    pub fn new(capacity: usize, incarnation: u64) -> Counters {
        // At least one bit: then the immediate 1 has generation 0 and names no counter.
        let index_bits = capacity.next_power_of_two().trailing_zeros().max(1);
        let generation_bits = GENERATION_BITS.min(u32::BITS - index_bits);
        Counters {
            capacity,
            index_bits,
            generations: (1 << generation_bits) - 1,
            owner: owner_of(incarnation),
            chunks: (0..capacity.div_ceil(CHUNK)).map(|_| OnceCell::new()).collect(),
            places: Mutex::default(),
            waiting: Mutex::default(),
            unsettled: AtomicU32::new(0),
        }
    }

    #[inline]
    pub fn counter(&self, index: u32) -> Option<&Counter> {
        let index = index as usize;
        self.chunks.get(index / CHUNK)?.get().map(|chunk| &chunk[index % CHUNK])
    }

    #[inline]
    pub fn has_unsettled(&self) -> bool {
        self.unsettled.load(Ordering::Relaxed) != 0
    }

    /// Lists a counter as unsettled, once.
    pub fn list(&self, index: u32) {
        let Some(counter) = self.counter(index) else { return };
        if counter.listed.compare_exchange(0, LAST, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return;
        }
        let mut first = self.unsettled.load(Ordering::Relaxed);
        loop {
            counter.listed.store(first.max(LAST), Ordering::Relaxed);
            let new = index + AFTER;
            match self.unsettled.compare_exchange_weak(first, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// The next of the taken counters, or else of the listed ones. It may be listed again from then
    /// on.
    pub fn next_unsettled(&self, taken: &mut Unsettled) -> Option<u32> {
        if taken.is_empty() {
            taken.0 = self.unsettled.swap(0, Ordering::AcqRel);
        }
        let index = taken.0.checked_sub(AFTER)?;
        taken.0 = self.counter(index).map_or(0, |counter| counter.listed.swap(0, Ordering::AcqRel));
        Some(index)
    }

    #[inline]
    fn place(&self, immediate: u32) -> CounterPlace {
        let index = immediate & ((1 << self.index_bits) - 1);
        CounterPlace { index, generation: immediate >> self.index_bits }
    }

    /// How many counters there are.
    #[cfg(feature = "sim")]
    pub fn count(&self) -> u64 {
        let places = self.places.lock();
        (places.used - places.free.len()) as u64
    }

    pub fn create(&self) -> Result<u64> {
        let mut places = self.places.lock();
        let fresh = places.used < self.capacity;
        let place = if places.free.len() > REUSE_DISTANCE || !fresh { places.free.pop_front() } else { None };
        let place = match place {
            Some(place) => place,
            None if fresh => {
                places.used += 1;
                CounterPlace { index: places.used as u32 - 1, generation: 1 }
            }
            None => {
                return Err(Error::limit(format!(
                    "{} counters exist: destroy some, or raise max_counters",
                    self.capacity
                )))
            }
        };
        drop(places);
        let make = || {
            let mut counters = room::vec(CHUNK, "further counters")?;
            counters.resize_with(CHUNK, Counter::new);
            Ok(counters.into_boxed_slice())
        };
        let chunk = self.chunks[place.index as usize / CHUNK]
            .get_or_try_init(make)
            .inspect_err(|_: &Error| self.places.lock().free.push_front(place))?;
        let state = u64::from(place.generation) << VALUE_BITS;
        chunk[place.index as usize % CHUNK].state.store(state, Ordering::SeqCst);
        Ok(u64::from(self.owner) << 32 | u64::from(place.generation << self.index_bits | place.index))
    }

    pub fn find(&self, id: u64) -> Result<(CounterPlace, u64)> {
        if (id >> 32) as u32 != self.owner || id as u32 == 0 {
            let why = if id == 0 { "0 is no counter" } else { "it is another endpoint's, or none" };
            return Err(Error::handle(format!("{id:#x} is not a counter of this endpoint: {why}")));
        }
        let place = self.place(id as u32);
        let value = self.counter(place.index).and_then(|counter| counter.value(place.generation));
        value.map(|value| (place, value)).ok_or_else(|| gone(id))
    }

    /// Destroys a counter: it is no longer raised. Returns the operations that end with it.
    pub fn destroy(&self, id: u64) -> Result<Abandoned> {
        let (place, _) = self.find(id)?;
        let counter = self.counter(place.index).ok_or_else(|| gone(id))?;
        let of_this = |state: u64| state >> VALUE_BITS == u64::from(place.generation);
        let taken = counter
            .state
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |state| of_this(state).then_some(0));
        let before = taken.map_err(|_| gone(id))?;
        let abandoned = self.abandon(place.index, before & VALUE_MAX);
        let generation = ((place.generation + 1) & self.generations).max(1);
        self.places.lock().free.push_back(CounterPlace { generation, ..place });
        Ok(abandoned)
    }

    /// Raises a counter for an arrival. A thread that sees the value also sees the bytes that
    /// arrived before.
    #[inline]
    pub fn raise(&self, immediate: u32, by: u64) -> Raised {
        let CounterPlace { index, generation } = self.place(immediate);
        let Some(counter) = self.counter(index).filter(|_| generation != 0) else { return Raised::Unknown };
        let mut state = counter.state.load(Ordering::Relaxed);
        loop {
            if state >> VALUE_BITS != u64::from(generation) {
                return Raised::Unknown;
            }
            let value = (state & VALUE_MAX).saturating_add(by).min(VALUE_MAX);
            let new = u64::from(generation) << VALUE_BITS | value;
            match counter.state.compare_exchange_weak(state, new, Ordering::SeqCst, Ordering::Relaxed) {
                // Either this sees the waited value, or the waiter sees this value (see `settle`).
                Ok(_) if value < counter.wanted.load(Ordering::SeqCst) => return Raised::Yes,
                Ok(_) => return Raised::Reached(index),
                Err(now) => state = now,
            }
        }
    }
}

fn gone(id: u64) -> Error {
    Error::handle(format!("counter {id:#x} was destroyed, or never was"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INCARNATION: u64 = 0x1234_5678_9abc_def0;

    #[test]
    fn late_arrival_does_not_count_for_the_next_counter() {
        let counters = Counters::new(1, INCARNATION);
        let first = counters.create().expect("room");
        assert!(counters.create().is_err(), "the capacity is one");
        assert_eq!(counters.raise(first as u32, 3), Raised::Yes);
        assert_eq!(counters.find(first).map(|(_, value)| value).ok(), Some(3));
        counters.destroy(first).expect("it exists");
        assert_eq!(counters.raise(first as u32, 1), Raised::Unknown);
        let second = counters.create().expect("room again");
        assert_eq!(counters.raise(first as u32, 1), Raised::Unknown);
        assert!(counters.find(first).is_err() && counters.destroy(first).is_err());
        assert_eq!(counters.find(second).map(|(_, value)| value).ok(), Some(0));
    }

    #[test]
    fn immediates_never_issued_are_unknown() {
        let counters = Counters::new(1 << 20, INCARNATION);
        let id = counters.create().expect("room");
        for immediate in [0, 1, u32::MAX, id as u32 + 1, id as u32 ^ 1 << 31] {
            assert_eq!(counters.raise(immediate, 1), Raised::Unknown, "{immediate:#x}");
        }
        assert_eq!(counters.raise(id as u32, u64::MAX), Raised::Yes);
        assert_eq!(counters.find(id).map(|(_, value)| value).ok(), Some(VALUE_MAX));
        assert!(immediate_of(id, INCARNATION).is_ok() && immediate_of(id, !INCARNATION).is_err());
    }

    #[test]
    fn unsettled_counters_are_listed_once() {
        let counters = Counters::new(1 << 11, INCARNATION);
        let [a, b] = [0, CHUNK as u32].map(|index| {
            while counters.create().expect("room") as u32 & 0x7ff != index {}
            index
        });
        for index in [a, b, a, b] {
            counters.list(index);
        }
        let mut taken = Unsettled::default();
        assert_eq!(counters.next_unsettled(&mut taken), Some(b));
        counters.list(b);
        counters.list(a);
        assert!(counters.has_unsettled() && !taken.is_empty());
        assert_eq!(counters.next_unsettled(&mut taken), Some(a));
        assert_eq!(counters.next_unsettled(&mut taken), Some(b));
        assert!(!counters.has_unsettled() && taken.is_empty());
        assert_eq!(counters.next_unsettled(&mut taken), None);
    }

    #[test]
    fn counter_generations_wrap_past_0() {
        let counters = Counters::new(1, INCARNATION);
        for _ in 0..200_000 {
            let id = counters.create().expect("room");
            assert_ne!(id as u32, 0);
            counters.destroy(id).expect("it exists");
        }
    }
}
