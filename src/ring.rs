//! A bounded queue of many producers and many consumers.
//!
//! Each place has a stamp: twice the lap around the ring in which it is used next, and one more
//! while it is full. The thread that moves the tail (or the head) past a place owns it until it
//! stores the stamp.

use crate::room;
use crate::status::Result;
use crate::sync::atomic::{fence, AtomicUsize, Ordering};
use crate::sync::{Backoff, UnsafeCell};
use crossbeam_utils::CachePadded;
use std::mem::MaybeUninit;

struct Place<T> {
    stamp: AtomicUsize,
    value: UnsafeCell<MaybeUninit<T>>,
}

pub struct Ring<T> {
    head: CachePadded<AtomicUsize>,
    tail: CachePadded<AtomicUsize>,
    /// A power of two of them.
    places: Box<[Place<T>]>,
    /// Bits of a position that are its place; its lap is above them.
    shift: u32,
}

// SAFETY: a value is written and read by the thread that has its place alone.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: the same.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// With room for `least` or more.
    pub fn new(least: usize, what: &str) -> Result<Ring<T>> {
        let len = least.next_power_of_two();
        let mut places = room::vec(len, what)?;
        let place = || Place { stamp: AtomicUsize::new(0), value: UnsafeCell::new(MaybeUninit::uninit()) };
        places.resize_with(len, place);
        Ok(Ring {
            head: CachePadded::new(AtomicUsize::new(0)),
            tail: CachePadded::new(AtomicUsize::new(0)),
            places: places.into_boxed_slice(),
            shift: len.trailing_zeros(),
        })
    }

    /// The place of a position in the ring, and the stamp of an empty one.
    #[inline]
    fn at(&self, position: usize) -> (&Place<T>, usize) {
        (&self.places[position & (self.places.len() - 1)], position >> self.shift << 1)
    }

    /// Gives the value back if the ring is full.
    #[inline]
    pub fn push(&self, value: T) -> std::result::Result<(), T> {
        let (mut tail, backoff) = (self.tail.load(Ordering::Relaxed), Backoff::new());
        loop {
            let (place, empty) = self.at(tail);
            let stamp = place.stamp.load(Ordering::Acquire);
            if stamp == empty {
                let moved =
                    self.tail.compare_exchange_weak(tail, tail + 1, Ordering::SeqCst, Ordering::Relaxed);
                let Err(now) = moved else {
                    // SAFETY: the place is ours.
                    place.value.with_mut(|at| unsafe { (*at).write(value) });
                    place.stamp.store(empty + 1, Ordering::Release);
                    return Ok(());
                };
                tail = now;
                continue;
            }
            if stamp < empty {
                // Full, unless it is being taken just now. (Pairs with the move of `head` in `pop`.)
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
                    // SAFETY: the place is ours, and the thread that stored this stamp had written
                    // the value.
                    let value = place.value.with(|at| unsafe { (*at).assume_init() });
                    place.stamp.store(empty + 2, Ordering::Release);
                    return Some(value);
                };
                head = now;
                continue;
            }
            if stamp == empty {
                // Empty, unless it is being filled just now. (Pairs with the move of `tail` in `push`.)
                fence(Ordering::SeqCst);
                if self.tail.load(Ordering::Relaxed) == head {
                    return None;
                }
                backoff.snooze();
            }
            head = self.head.load(Ordering::Relaxed);
        }
    }

    /// How many there were, or were being pushed, a moment ago: asking costs less than taking
    /// from none.
    #[inline]
    pub fn len(&self) -> usize {
        let head = self.head.load(Ordering::SeqCst);
        self.tail.load(Ordering::SeqCst) - head
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
    fn values_come_out_in_their_order_lap_after_lap() {
        let ring = Ring::new(3, "a ring").expect("there is memory");
        for lap in 0..5 {
            for i in 0..4 {
                assert_eq!(ring.push(lap * 4 + i), Ok(()));
            }
            assert_eq!((ring.push(99), ring.len()), (Err(99), 4));
            for i in 0..4 {
                assert_eq!(ring.pop(), Some(lap * 4 + i));
            }
            assert_eq!(ring.pop(), None);
        }
    }

    #[test]
    fn each_value_is_taken_once() {
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
