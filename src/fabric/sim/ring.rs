//! A bounded queue between two threads.

use crossbeam_utils::CachePadded;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One thread pushes and one pops, as `push` and `pop` require.
pub struct Ring<T> {
    places: Box<[UnsafeCell<MaybeUninit<T>>]>,
    tail: CachePadded<AtomicUsize>,
    head: CachePadded<AtomicUsize>,
}

// SAFETY: a slot belongs to the pusher until `tail` passes it, then to the popper.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: one thread pushes and one pops, by the contracts of these, and the indexes are atomics.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T: Copy> Ring<T> {
    pub fn new(capacity: usize) -> Ring<T> {
        let places =
            (0..capacity.next_power_of_two()).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
        Ring { places, tail: Default::default(), head: Default::default() }
    }

    fn place(&self, at: usize) -> *mut MaybeUninit<T> {
        self.places[at & (self.places.len() - 1)].get()
    }

    /// Whether half of the ring is free; for the pusher's thread.
    pub fn is_half_free(&self) -> bool {
        2 * (self.tail.load(Ordering::Relaxed) - self.head.load(Ordering::Acquire)) < self.places.len()
    }

    /// Whether every element was popped; for any thread.
    pub fn is_empty(&self) -> bool {
        self.tail.load(Ordering::Acquire) == self.head.load(Ordering::Acquire)
    }

    /// Adds an element; false if the ring is full.
    ///
    /// # Safety
    /// Only one thread at a time may push.
    pub unsafe fn push(&self, value: T) -> bool {
        let tail = self.tail.load(Ordering::Relaxed);
        if tail - self.head.load(Ordering::Acquire) == self.places.len() {
            return false;
        }
        // SAFETY: the slot is free, and belongs to the pusher until `tail` passes it.
        unsafe { (*self.place(tail)).write(value) };
        self.tail.store(tail + 1, Ordering::Release);
        true
    }

    /// The oldest element, which stays in the ring.
    ///
    /// # Safety
    /// Only one thread at a time may peek and pop.
    #[inline]
    pub unsafe fn peek(&self) -> Option<T> {
        let head = self.head.load(Ordering::Relaxed);
        if head == self.tail.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the slot was written before `tail` passed it.
        Some(unsafe { (*self.place(head)).assume_init() })
    }

    /// Removes the oldest element, which `peek` has returned.
    ///
    /// # Safety
    /// The same contract as `peek`.
    pub unsafe fn pop(&self) {
        self.head.store(self.head.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_keeps_the_order_between_threads() {
        let ring = Ring::new(4);
        std::thread::scope(|scope| {
            // SAFETY: this is the only thread that pushes.
            scope.spawn(|| (0..10_000u32).for_each(|i| while !unsafe { ring.push(i) } {}));
            for i in 0..10_000 {
                // SAFETY: this is the only thread that pops.
                let got = loop {
                    if let Some(got) = unsafe { ring.peek() } {
                        break got;
                    }
                };
                assert_eq!(got, i);
                // SAFETY: this thread is the one that pops.
                unsafe { ring.pop() };
            }
        });
    }

    #[test]
    fn ring_rejects_pushes_when_full() {
        let ring = Ring::new(2);
        // SAFETY: this is the only thread.
        unsafe {
            assert!(ring.push(1) && ring.push(2) && !ring.push(3));
            ring.pop();
            assert!(ring.push(3));
            assert_eq!(ring.peek(), Some(2));
        }
    }
}
