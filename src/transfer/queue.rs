//! A completion queue: bounded, many producers, many consumers. An operation
//! reserves its place when it is accepted, so publishing cannot fail.

use super::completion::Completion;
use crate::failing::step;
use crate::ring::Ring;
use crate::status::{Error, Result, Status};
use crate::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Condvar, Event, Mutex};
use crossbeam_utils::CachePadded;
use std::mem::MaybeUninit;
use std::time::Duration;

/// In `Queue::reserved`: no place can be reserved. (It is more than any capacity.)
const RETIRED: u64 = 1 << 63;

pub struct Queue {
    capacity: u64,
    ring: Ring<Completion>,
    /// Places taken by completions in the ring and by active operations.
    reserved: CachePadded<AtomicU64>,
    /// Threads asleep in `sleep`.
    sleepers: AtomicU32,
    armed: AtomicBool,
    /// A caller has its descriptor, and may wait on it.
    signals: AtomicBool,
    /// Nothing more will be published. SeqCst, with `armed`: closing sets this and then reads
    /// `armed`, arming does the reverse.
    closed: AtomicBool,
    /// Set when its endpoint is closed, under the lock of `event`.
    shut: AtomicBool,
    /// A sleeping poller waits with this lock.
    event: Mutex<Option<Event>>,
    wake: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arm {
    Armed,
    /// There are completions: poll first.
    NotEmpty,
}

impl Arm {
    pub fn into_result(self) -> Result<()> {
        match self {
            Arm::Armed => Ok(()),
            Arm::NotEmpty => {
                Err(Error::new(Status::Again, "there are completions already: poll them, then arm again"))
            }
        }
    }
}

/// Reserved places that belong to no operation yet: given back if this is dropped.
pub struct Places<'a> {
    queue: &'a Queue,
    places: u64,
}

impl Places<'_> {
    /// The operation has them from here on.
    #[inline]
    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// Gives back all but this many.
    pub fn shrink(&mut self, to: u64) {
        self.queue.unreserve(self.places - to);
        self.places = to;
    }
}

impl Drop for Places<'_> {
    fn drop(&mut self) {
        self.queue.unreserve(self.places);
    }
}

impl Queue {
    pub fn new(depth: usize) -> Result<Queue> {
        Ok(Queue {
            capacity: depth as u64,
            ring: Ring::new(depth, "a completion queue")?,
            reserved: CachePadded::new(AtomicU64::new(0)),
            sleepers: AtomicU32::new(0),
            armed: AtomicBool::new(false),
            signals: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            shut: AtomicBool::new(false),
            event: Mutex::new(None),
            wake: Condvar::new(),
        })
    }

    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Reserves `places` for later completions; false when the queue is full.
    #[inline]
    pub fn reserve(&self, places: u64) -> bool {
        // Not an addition that is taken back: another caller would see it meanwhile, and be refused a
        // place that is free.
        let more = |before: u64| Some(before + places).filter(|after| *after <= self.capacity);
        !step("places in a queue")
            && self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Like `reserve`, until the result is dropped or kept.
    #[inline]
    pub fn hold(&self, places: u64) -> Option<Places<'_>> {
        self.reserve(places).then(|| Places { queue: self, places })
    }

    pub fn unreserve(&self, places: u64) {
        self.reserved.fetch_sub(places, Ordering::Relaxed);
    }

    pub fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Acquire) & !RETIRED
    }

    /// Reserves no place from here on; false if any is reserved.
    pub fn retire(&self) -> bool {
        let retired = self.reserved.compare_exchange(0, RETIRED, Ordering::AcqRel, Ordering::Acquire);
        retired.is_ok() || retired == Err(RETIRED)
    }

    #[inline]
    pub fn is_retired(&self) -> bool {
        self.reserved.load(Ordering::Acquire) == RETIRED
    }

    pub fn is_full(&self) -> bool {
        self.reserved.load(Ordering::Relaxed) >= self.capacity
    }

    /// Completions that were not polled yet.
    pub fn unpolled(&self) -> usize {
        self.ring.len()
    }

    /// How many completions were ever polled.
    pub fn polled(&self) -> u64 {
        self.ring.popped() as u64
    }

    /// Whether there are unpolled completions, or operations that will complete here.
    pub fn in_use(&self) -> bool {
        self.reserved() > 0
    }

    /// Whether its users may sleep on its descriptor.
    #[inline]
    pub fn signals(&self) -> bool {
        self.signals.load(Ordering::Relaxed)
    }

    /// Publishes a completion in its reserved place.
    #[inline]
    pub fn publish(&self, completion: Completion) {
        self.publish_as(completion);
    }

    /// Like `publish`; returns its number among all completions, from 1: it is polled once this many are.
    pub fn publish_as(&self, completion: Completion) -> u64 {
        completion.trace();
        let pushed = self.ring.push(completion);
        debug_assert!(pushed.is_ok(), "a completion without a reserved place");
        // Pairs with the fences in `sleep` and `arm`: either the poller sees the completion, or
        // this thread sees that the poller sleeps.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            let _held = self.event.lock();
            self.wake.notify_one();
        }
        if self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::AcqRel) {
            self.signal();
        }
        pushed.map_or(0, |before| before as u64 + 1)
    }

    fn signal(&self) {
        if let Some(event) = &*self.event.lock() {
            event.set();
        }
    }

    pub fn poll(&self, out: &mut [MaybeUninit<Completion>]) -> usize {
        let mut taken = 0;
        // At most the ring's length: taking from an empty ring costs a fence.
        for place in out.iter_mut().take(self.ring.len()) {
            let Some(completion) = self.ring.pop() else { break };
            place.write(completion);
            taken += 1;
        }
        if taken > 0 {
            self.unreserve(taken as u64);
        }
        taken
    }

    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Sleeps until something is published or the time has passed.
    pub fn sleep(&self, at_most: Duration) {
        let mut held = self.event.lock();
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.ring.is_empty() && !self.closed.load(Ordering::Relaxed) {
            self.wake.wait_for(&mut held, at_most);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes all sleeping pollers without a completion; for good (`over`) if nothing more will be
    /// published.
    pub fn interrupt(&self, over: bool) {
        let event = self.event.lock();
        self.closed.fetch_or(over, Ordering::SeqCst);
        self.wake.notify_all();
        if self.armed.swap(false, Ordering::AcqRel) {
            if let Some(event) = &*event {
                event.set();
            }
        }
    }

    /// Closes the event fd with its endpoint: pollers are no longer signalled.
    pub fn close_event(&self) {
        let mut event = self.event.lock();
        self.shut.store(true, Ordering::Relaxed);
        *event = None;
    }

    fn with_event<T>(&self, body: impl FnOnce(&Event) -> T) -> Result<T> {
        let mut event = self.event.lock();
        if self.shut.load(Ordering::Relaxed) {
            return Err(Error::closed());
        }
        if event.is_none() {
            *event = Some(Event::new()?);
        }
        event.as_ref().map(body).ok_or_else(Error::closed)
    }

    pub fn event_fd(&self) -> Result<i32> {
        let descriptor = self.with_event(Event::descriptor)?;
        self.signals.store(true, Ordering::Relaxed);
        Ok(descriptor)
    }

    pub fn arm(&self) -> Result<Arm> {
        self.with_event(Event::clear)?;
        self.armed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.ring.is_empty() && !self.closed.load(Ordering::SeqCst) {
            return Ok(Arm::Armed);
        }
        if !self.armed.swap(false, Ordering::AcqRel) {
            self.with_event(Event::clear)?; // A completion was published meanwhile and has set the event.
        }
        Ok(Arm::NotEmpty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PeerId;
    use crate::transfer::{completion, Outcome};

    fn queue() -> Queue {
        Queue::new(16).expect("there is memory")
    }

    fn one() -> Completion {
        Completion::new(completion::KIND_WRITE, Outcome::OK, None::<PeerId>, 0)
    }

    #[test]
    fn full_queue_rejects_reservations_until_polled() {
        let queue = queue();
        assert!(queue.reserve(16) && !queue.reserve(1) && queue.hold(1).is_none());
        queue.publish(one());
        assert!(!queue.reserve(1));
        let mut out = [MaybeUninit::uninit(); 4];
        assert_eq!(queue.poll(&mut out), 1);
        assert!(queue.reserve(1) && queue.in_use());
    }

    #[test]
    fn refused_reservation_takes_no_place_from_another() {
        let queue = queue();
        assert!(queue.reserve(1));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert!(!queue.reserve(16), "there are 15");
                }
            });
            for _ in 0..10 * ROUNDS {
                let places = queue.hold(15);
                over.fetch_or(places.is_none(), Ordering::Relaxed);
                assert!(places.is_some(), "there are 15");
            }
            over.store(true, Ordering::Relaxed);
        });
        queue.unreserve(1);
        assert!(!queue.in_use());
    }

    #[test]
    #[cfg_attr(miri, ignore)] // It has no poll.
    fn arm_reports_existing_and_signals_later_completions() {
        let queue = queue();
        assert_eq!(queue.arm().ok(), Some(Arm::Armed));
        assert!(queue.reserve(1));
        queue.publish(one());
        let mut set = libc::pollfd { fd: queue.event_fd().unwrap_or(-1), events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointer is to one valid pollfd.
        assert_eq!(unsafe { libc::poll(&mut set, 1, 0) }, 1);
        assert_eq!(queue.arm().ok(), Some(Arm::NotEmpty));
    }

    /// Publishes each completion while the poller goes to sleep after the last one.
    fn one_by_one(rounds: u32, wait: impl Fn(&Queue)) {
        let (queue, taken) = (queue(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..rounds {
                    while taken.load(Ordering::Relaxed) < round {
                        std::thread::yield_now();
                    }
                    assert!(queue.reserve(1));
                    queue.publish(one());
                }
            });
            let mut out = [MaybeUninit::uninit(); 4];
            for round in 1..=rounds {
                while queue.poll(&mut out) == 0 {
                    wait(&queue);
                }
                taken.store(round, Ordering::Relaxed);
            }
        });
    }

    /// Miri also tries the orders that weaker processors allow (tools/miri.sh).
    const ROUNDS: u32 = if cfg!(miri) { 4 } else { 20_000 };
    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn sleeping_thread_is_woken() {
        one_by_one(ROUNDS, |queue| {
            let begun = std::time::Instant::now();
            queue.sleep(PATIENCE);
            assert!(begun.elapsed() < PATIENCE, "a wake-up was lost");
        });
    }

    #[test]
    fn armed_descriptor_is_signalled() {
        one_by_one(ROUNDS, |queue| {
            if queue.arm().ok() != Some(Arm::Armed) {
                return;
            }
            let (fd, begun, mut event) = (queue.event_fd().unwrap_or(-1), std::time::Instant::now(), 0u64);
            // SAFETY: reads eight bytes from an eventfd that does not block.
            while unsafe { libc::read(fd, (&raw mut event).cast(), 8) } != 8 {
                assert!(begun.elapsed() < PATIENCE, "a signal was lost");
                std::thread::yield_now();
            }
        });
    }
}
