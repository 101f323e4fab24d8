//! What crossbeam's `ArrayQueue` does, as far as others can see it: the same loads, stores and
//! fences in the same order. (Its own atomics cannot be loom's.)

use loom::cell::UnsafeCell;
use loom::sync::atomic::{fence, AtomicUsize, Ordering};
use loom::thread::yield_now;

struct Place<T> {
    stamp: AtomicUsize,
    value: UnsafeCell<Option<T>>,
}

pub struct ArrayQueue<T> {
    head: AtomicUsize,
    tail: AtomicUsize,
    places: Box<[Place<T>]>,
    lap: usize,
}

// SAFETY: who moves the head or the tail past a place has it alone until it stores the stamp.
unsafe impl<T: Send> Sync for ArrayQueue<T> {}

impl<T> ArrayQueue<T> {
    pub fn new(capacity: usize) -> ArrayQueue<T> {
        let place = |i| Place { stamp: AtomicUsize::new(i), value: UnsafeCell::new(None) };
        ArrayQueue {
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
            places: (0..capacity).map(place).collect(),
            lap: (capacity + 1).next_power_of_two(),
        }
    }

    pub fn capacity(&self) -> usize {
        self.places.len()
    }

    fn after(&self, at: usize) -> usize {
        let index = at & (self.lap - 1);
        if index + 1 < self.capacity() {
            at + 1
        } else {
            (at & !(self.lap - 1)) + self.lap
        }
    }

    pub fn push(&self, value: T) -> Result<(), T> {
        let mut tail = self.tail.load(Ordering::Relaxed);
        loop {
            let place = &self.places[tail & (self.lap - 1)];
            let stamp = place.stamp.load(Ordering::Acquire);
            if tail == stamp {
                let next = self.after(tail);
                match self.tail.compare_exchange_weak(tail, next, Ordering::SeqCst, Ordering::Relaxed) {
                    Ok(_) => {
                        // SAFETY: the place is ours.
                        place.value.with_mut(|of| unsafe { *of = Some(value) });
                        place.stamp.store(tail + 1, Ordering::Release);
                        return Ok(());
                    }
                    Err(now) => tail = now,
                }
                continue;
            }
            if stamp + self.lap == tail + 1 {
                fence(Ordering::SeqCst);
                if self.head.load(Ordering::Relaxed) + self.lap == tail {
                    return Err(value);
                }
            }
            yield_now();
            tail = self.tail.load(Ordering::Relaxed);
        }
    }

    pub fn pop(&self) -> Option<T> {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let place = &self.places[head & (self.lap - 1)];
            let stamp = place.stamp.load(Ordering::Acquire);
            if head + 1 == stamp {
                let next = self.after(head);
                match self.head.compare_exchange_weak(head, next, Ordering::SeqCst, Ordering::Relaxed) {
                    Ok(_) => {
                        // SAFETY: the place is ours.
                        let value = place.value.with_mut(|of| unsafe { (*of).take() });
                        place.stamp.store(head + self.lap, Ordering::Release);
                        return value;
                    }
                    Err(now) => head = now,
                }
                continue;
            }
            if stamp == head {
                fence(Ordering::SeqCst);
                if self.tail.load(Ordering::Relaxed) == head {
                    return None;
                }
            }
            yield_now();
            head = self.head.load(Ordering::Relaxed);
        }
    }

    pub fn is_empty(&self) -> bool {
        let head = self.head.load(Ordering::SeqCst);
        self.tail.load(Ordering::SeqCst) == head
    }

    pub fn len(&self) -> usize {
        loop {
            let tail = self.tail.load(Ordering::SeqCst);
            let head = self.head.load(Ordering::SeqCst);
            if self.tail.load(Ordering::SeqCst) == tail {
                let (from, to) = (head & (self.lap - 1), tail & (self.lap - 1));
                return match from.cmp(&to) {
                    std::cmp::Ordering::Less => to - from,
                    std::cmp::Ordering::Greater => self.capacity() - from + to,
                    std::cmp::Ordering::Equal if tail == head => 0,
                    std::cmp::Ordering::Equal => self.capacity(),
                };
            }
        }
    }
}
