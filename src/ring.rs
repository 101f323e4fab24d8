//! A bounded queue for many producers and many consumers.
//!
//! Each place has a stamp: twice the lap of its next push, plus one while it is full. The thread
//! that moves the tail (or the head) past a place owns it until it stores the stamp.

use crate::room;
use crate::status::Result;
use crate::sync::atomic::{fence, AtomicUsize, Ordering};
use crate::sync::{Backoff, UnsafeCell};
use crossbeam_utils::CachePadded;
use std::mem::MaybeUninit;

struct RingSlot<T> {
    stamp: AtomicUsize,
    value: UnsafeCell<MaybeUninit<T>>,
}

pub struct Ring<T> {
    head: CachePadded<AtomicUsize>,
    tail: CachePadded<AtomicUsize>,
    /// The number of places is a power of two.
    places: Box<[RingSlot<T>]>,
    /// The low bits of a position are its place; the bits above are its lap.
    shift: u32,
}

// SAFETY: only the thread that owns a place writes or reads its value.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: it has values of T and atomics, which may go to another thread as T may.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// A ring of at least `least` places.
    pub fn new(least: usize, what: &str) -> Result<Ring<T>> {
        let len = least.next_power_of_two();
        let mut places = room::vec(len, what)?;
        let place = || RingSlot { stamp: AtomicUsize::new(0), value: UnsafeCell::new(MaybeUninit::uninit()) };
        places.resize_with(len, place);
        Ok(Ring {
            head: CachePadded::new(AtomicUsize::new(0)),
            tail: CachePadded::new(AtomicUsize::new(0)),
            places: places.into_boxed_slice(),
            shift: len.trailing_zeros(),
        })
    }

    /// The place of a position, and the stamp that it has while it is empty.
    #[inline]
    fn at(&self, position: usize) -> (&RingSlot<T>, usize) {
        (&self.places[position & (self.places.len() - 1)], position >> self.shift << 1)
    }

    /// Returns how many values were pushed before, or the value if the ring is full.
    #[inline]
    pub fn push(&self, value: T) -> std::result::Result<usize, T> {
        let (mut tail, backoff) = (self.tail.load(Ordering::Relaxed), Backoff::new());
        loop {
            let (place, empty) = self.at(tail);
            let stamp = place.stamp.load(Ordering::Acquire);
            if stamp == empty {
                let moved =
                    self.tail.compare_exchange_weak(tail, tail + 1, Ordering::SeqCst, Ordering::Relaxed);
                let Err(now) = moved else {
                    // SAFETY: this thread moved the tail past the place, so it owns the place.
                    place.value.with_mut(|at| unsafe { (*at).write(value) });
                    place.stamp.store(empty + 1, Ordering::Release);
                    return Ok(tail);
                };
                tail = now;
                continue;
            }
            if stamp < empty {
                // Full, unless a thread is just taking the value. (Pairs with the move of `head` in
                // `pop`.)
                fence(Ordering::SeqCst);
                if self.head.load(Ordering::Relaxed) + self.places.len() == tail {
                    return Err(value);
                }
                backoff.snooze();
            }
            tail = self.tail.load(Ordering::Relaxed);
        }
    }

    #[inline]
    pub fn pop(&self) -> Option<T> {
        let (mut head, backoff) = (self.head.load(Ordering::Relaxed), Backoff::new());
        loop {
            let (place, empty) = self.at(head);
            let stamp = place.stamp.load(Ordering::Acquire);
            if stamp == empty + 1 {
                let moved =
                    self.head.compare_exchange_weak(head, head + 1, Ordering::SeqCst, Ordering::Relaxed);
                let Err(now) = moved else {
                    // SAFETY: this thread owns the place, and the thread that stored this stamp had
                    // written the value.
                    let value = place.value.with(|at| unsafe { (*at).assume_init() });
                    place.stamp.store(empty + 2, Ordering::Release);
                    return Some(value);
                };
                head = now;
                continue;
            }
            if stamp == empty {
                // Empty, unless a thread is just pushing a value. (Pairs with the move of `tail` in
                // `push`.)
                fence(Ordering::SeqCst);
                if self.tail.load(Ordering::Relaxed) == head {
                    return None;
                }
                backoff.snooze();
            }
            head = self.head.load(Ordering::Relaxed);
        }
    }

    /// The recent number of values, including those being pushed: cheaper than a `pop` of an empty
    /// ring.
    #[inline]
    pub fn len(&self) -> usize {
        let head = self.head.load(Ordering::SeqCst);
        self.tail.load(Ordering::SeqCst) - head
    }

    /// How many values were ever popped.
    pub fn popped(&self) -> usize {
        self.head.load(Ordering::SeqCst)
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_is_fifo_lap_after_lap() {
        let ring = Ring::new(3, "a ring").expect("there is memory");
        for lap in 0..5 {
            for i in 0..4 {
                assert_eq!(ring.push(lap * 4 + i), Ok(lap * 4 + i));
            }
            assert_eq!((ring.push(99), ring.len()), (Err(99), 4));
            for i in 0..4 {
                assert_eq!(ring.pop(), Some(lap * 4 + i));
            }
            assert_eq!((ring.pop(), ring.popped()), (None, lap * 4 + 4));
        }
    }

    #[test]
    fn ring_value_is_popped_once() {
        const EACH: u64 = if cfg!(miri) { 20 } else { 100_000 };
        let (ring, taken) = (Ring::new(8, "a ring").expect("there is memory"), AtomicUsize::new(0));
        let sum = crate::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for first in [0, EACH] {
                let ring = &ring;
                scope.spawn(move || {
                    for value in first..first + EACH {
                        while ring.push(value).is_err() {
                            std::thread::yield_now();
                        }
                    }
                });
                scope.spawn(|| {
                    while taken.load(Ordering::Relaxed) < 2 * EACH as usize {
                        match ring.pop() {
                            Some(value) => {
                                sum.fetch_add(value, Ordering::Relaxed);
                                taken.fetch_add(1, Ordering::Relaxed);
                            }
                            None => std::thread::yield_now(),
                        }
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), EACH * (2 * EACH - 1));
    }
}
