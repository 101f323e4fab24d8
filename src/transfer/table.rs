//! The table of operations: recycled slots, checked ids.
//!
//! A slot's `held` word counts its stripes (and hand-overs to workers), its readers (the active
//! operation is one) and the slices that have not arrived. A stripe leaves with a single
//! subtraction, and the thread that takes the stripes to zero sees whether everything has arrived.
//! The slot is free again when no stripe and no reader is left.

use super::ending::{Ending, Expiring};
use super::gate::Gate;
use super::operation::{Body, Notice, To};
use super::parts::{PartOf, Whole};
use super::queue::Queue;
use super::tally::Tally;
use crate::failing::step;
use crate::ids::{Hold, OpId, PeerId};
use crate::prefetch;
use crate::room;
use crate::status::{Error, Status};
use crate::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering};
use crate::sync::UnsafeCell;
use crate::transfer::Outcome;
use crossbeam_utils::CachePadded;
use once_cell::sync::OnceCell;
use std::sync::Arc;

/// The parts of `held`: 12 bits of stripes, 12 of readers, 40 of slices.
const STRIPE: u64 = 1 << 52;
const READER: u64 = 1 << 40;
const SLICES: u64 = READER - 1;
const READERS: u64 = STRIPE - READER;
/// Slots that are made at once, by the operation that needs the first of them.
const CHUNK: usize = 64;

/// Progress of a transfer: a speculative notification was sent; all slices have arrived; workers
/// have the transfer.
const NOTIFIED: u8 = 1;
const ARRIVED: u8 = 2;
const SENT_OFF: u8 = 4;
/// One lane carries all of the transfer, and may notify the peer speculatively; or any lane may
/// take part.
const ALONE: u8 = 8;
const SHARED: u8 = 16;
/// The owner of the memories is asked to flush their files; no lane carries it (`fabric::staged`).
const FLUSHING: u8 = 32;
const STAGED: u8 = 64;

/// Phases of a slot, in the low byte of its state; above it the generation.
const FREE: u64 = 0;
pub(super) const ACTIVE: u64 = 1;
const ENDED: u64 = 2;

pub struct Slot {
    pub(super) index: u32,
    /// `generation << 8 | phase`. SeqCst, like the endpoint's phase and the states of peers and
    /// remote memories: a submission activates the slot and then reads those states, while an end
    /// sets its state and then scans all slots. So one of the two sees the other. The same holds
    /// with `carried` (`Table::carry`), and with `next_deadline` (`Table::expire`).
    pub(super) state: AtomicU64,
    pub(super) deadline: AtomicU64,
    pub(super) peer: AtomicU64,
    next_free: AtomicU32,
    body: UnsafeCell<Option<Body>>,
    /// The next unclaimed slice.
    pub cursor: CachePadded<AtomicU64>,
    held: CachePadded<AtomicU64>,
    pub first_post: AtomicU64,
    /// Progress flags of a transfer, and which lanes may take part.
    pub(super) progress: AtomicU8,
    /// Stripes for which NICs may work. SeqCst, with `late`: the end of the operation sets `late`
    /// and then reads this; the last stripe decrements this and then reads `late`.
    pub(super) carried: AtomicU32,
    /// `generation << 8`, and whether the completion waits for NICs. The generation, since the thread that
    /// ended the operation looks again without a hold (`Table::end_as`).
    pub(super) late: AtomicU64,
    /// The outcome of an operation that ended while NICs worked for it (`late`).
    pub(super) ending: UnsafeCell<Option<Ending>>,
    pub(super) whole: Whole,
}

// SAFETY: `ending` is written by the thread that ended the operation, and read by the one that
// takes `late` (`publish_late`). `body` is written only by the thread that took the slot, before
// its id is published, and by the last holder; other holders only read it.
unsafe impl Sync for Slot {}
// SAFETY: all fields can move between threads.
unsafe impl Send for Slot {}

/// The result of the end of a hold.
#[derive(PartialEq, Eq, Debug)]
pub enum Left {
    /// Nothing to do: other stripes continue, or the operation had ended.
    Done,
    /// The stripe has posted everything, but not left: a speculative notification may be sent.
    Posted(OpId, PeerId),
    /// The last stripe left, and every slice has arrived.
    Arrived(OpId),
    /// Like `Arrived`, and this peer is to be notified.
    ToNotify(OpId, PeerId),
    /// The operation cannot continue, and ends so.
    Ended(OpId, Outcome),
    /// The last stripe left, and slices are missing or no longer wanted.
    Short(OpId),
}

pub struct Table {
    pub(super) queue: Arc<Queue>,
    first: u64,
    chunks: Box<[OnceCell<Box<[Slot]>>]>,
    capacity: usize,
    /// The number of slots used so far; scans cover these.
    pub(super) used: AtomicUsize,
    /// Free slots, last in first out: `tag << 32 | index + 1`.
    free: CachePadded<AtomicU64>,
    /// No deadline is earlier than this. SeqCst, with `sleeps_until` (`Table::may_sleep_until`).
    pub(super) next_deadline: CachePadded<AtomicU64>,
    /// The thread that checks deadlines sleeps until then.
    pub(super) sleeps_until: AtomicU64,
    wakes: OnceCell<Box<dyn Fn() + Send + Sync>>,
    pub(super) failing: OnceCell<Box<dyn Fn(Notice) + Send + Sync>>,
    /// Ended operations whose completions wait for NICs.
    pub(super) waiting: CachePadded<AtomicU64>,
    /// The same by peer index. SeqCst, with the gate: a thread that reads 0 here and then waits for
    /// the gate has also waited for the publication of the last completion.
    pub(super) waiting_of: Box<[AtomicU64]>,
    pub(super) expiring: Expiring,
    pub tally: Tally,
    /// A thread that ends an operation is inside until the completion is in its queue.
    pub(super) gate: Gate,
}

/// The id of the operation in a slot with this state.
#[inline]
pub(super) fn id_in(state: u64, index: u32) -> OpId {
    OpId::from_parts(state >> 8, index)
}

/// The state of an id's slot.
#[inline]
fn state_of(id: OpId, phase: u64) -> u64 {
    id.generation() << 8 | phase
}

impl Table {
    /// `first`: the first generation, so that ids of one endpoint are unlikely to match another's.
    pub fn new(capacity: usize, peers: usize, first: u64, queue: Arc<Queue>) -> Table {
        debug_assert!(capacity <= 1 << OpId::INDEX_BITS);
        Table {
            queue,
            first: OpId::GENERATIONS & first,
            chunks: (0..capacity.div_ceil(CHUNK)).map(|_| OnceCell::new()).collect(),
            capacity,
            used: AtomicUsize::new(0),
            free: CachePadded::new(AtomicU64::new(0)),
            next_deadline: CachePadded::new(AtomicU64::new(u64::MAX)),
            sleeps_until: AtomicU64::new(0),
            wakes: OnceCell::new(),
            failing: OnceCell::new(),
            waiting: CachePadded::new(AtomicU64::new(0)),
            waiting_of: (0..peers).map(|_| AtomicU64::new(0)).collect(),
            expiring: Expiring::default(),
            tally: Tally::new(),
            gate: Gate::new(),
        }
    }

    /// Sets how the thread that checks deadlines is woken.
    pub fn woken_by(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.wakes.set(Box::new(wake));
    }

    /// Sets how peers are notified of failures.
    pub fn failing_to(&self, notify: impl Fn(Notice) + Send + Sync + 'static) {
        let _ = self.failing.set(Box::new(notify));
    }

    pub(super) fn slot(&self, index: usize) -> Option<&Slot> {
        self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)
    }

    pub fn held_slot(&self, hold: &Hold) -> &Slot {
        self.slot(hold.id().index()).expect("a holder's slot exists")
    }

    pub fn held<'a>(&'a self, hold: &'a Hold) -> (&'a Slot, &'a Body) {
        let slot = self.held_slot(hold);
        // SAFETY: `hold` holds the slot.
        (slot, unsafe { self.body(slot) })
    }

    /// The body of a slot that the caller holds.
    ///
    /// # Safety
    /// The caller must hold the slot for as long as it uses the reference.
    pub unsafe fn body<'a>(&self, slot: &'a Slot) -> &'a Body {
        // SAFETY: the body was written before the id was published, and stays while the slot is
        // held.
        slot.body.with(|body| unsafe { (*body).as_ref() }).expect("a held slot has a body")
    }

    fn pop_free(&self) -> Option<usize> {
        let mut head = self.free.load(Ordering::Acquire);
        loop {
            let index = (head & 0xffff_ffff).checked_sub(1)? as usize;
            let next = self.slot(index)?.next_free.load(Ordering::Relaxed);
            let new = (head & !0xffff_ffff).wrapping_add(1 << 32) | next as u64;
            match self.free.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    // The next thread to take a slot should not miss the cache.
                    self.fetch(u64::from(next));
                    return Some(index);
                }
                Err(now) => head = now,
            }
        }
    }

    pub(super) fn push_free(&self, slot: &Slot) {
        let mut head = self.free.load(Ordering::Acquire);
        loop {
            slot.next_free.store(head as u32, Ordering::Relaxed);
            let new = (head & !0xffff_ffff).wrapping_add(1 << 32) | (slot.index as u64 + 1);
            match self.free.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Prefetches the slot that will be taken next, which other processors used last. (In a burst
    /// the previous take has prefetched it.)
    #[inline]
    pub fn prefetch(&self) {
        self.fetch(self.free.load(Ordering::Relaxed) & 0xffff_ffff);
    }

    /// Prefetches a slot by its number, counted from 1.
    #[inline]
    fn fetch(&self, number: u64) {
        if let Some(slot) = number.checked_sub(1).and_then(|index| self.slot(index as usize)) {
            prefetch::to_write(slot);
        }
    }

    /// Takes a free slot, to be filled or put back.
    pub fn take(&self) -> Option<&Slot> {
        if step("a slot for an operation") {
            return None;
        }
        if let Some(index) = self.pop_free() {
            return self.slot(index);
        }
        let mut index = self.used.load(Ordering::Acquire);
        loop {
            let chunk = self.chunk(index).filter(|_| index < self.capacity)?;
            match self.used.compare_exchange_weak(index, index + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(&chunk[index % CHUNK]),
                Err(now) => index = now,
            }
        }
    }

    /// The chunk of a slot, allocated on first use; `None`: out of memory.
    fn chunk(&self, index: usize) -> Option<&[Slot]> {
        let make = || {
            let first = index / CHUNK * CHUNK;
            let all = first..self.capacity.min(first + CHUNK);
            let mut slots = room::vec(all.len(), "operations")?;
            slots.extend(all.map(|i| Slot::new(i as u32, self.first)));
            Ok::<_, Error>(slots.into_boxed_slice())
        };
        self.chunks.get(index / CHUNK)?.get_or_try_init(make).ok().map(|chunk| &**chunk)
    }

    /// Why there was no slot to take.
    #[cold]
    pub fn no_slot(&self) -> Error {
        if self.used.load(Ordering::Relaxed) < self.capacity {
            return room::none::<Slot>(CHUNK, "further operations");
        }
        let active = self.active();
        Error::new(
            Status::Again,
            format!("{active} operations are outstanding (max_transfers): poll, then try again"),
        )
    }

    /// Takes a slot and fills it: the operation is active. `None`: all slots are in use.
    #[inline]
    pub fn begin(&self, body: impl FnOnce() -> Body, slices: u64, deadline: u64) -> Option<Hold> {
        Some(self.fill(self.take()?, body, slices, deadline))
    }

    /// Like `begin`, in a slot that was taken.
    #[inline]
    pub fn fill(&self, slot: &Slot, body: impl FnOnce() -> Body, slices: u64, deadline: u64) -> Hold {
        self.fill_part(slot, body, slices, deadline, PartOf::Nothing)
    }

    /// Frees a slot that was taken and not filled; returns false.
    pub fn put_back(&self, slot: &Slot) -> bool {
        self.push_free(slot);
        false
    }

    /// The destination of a completion in one of the endpoint's queues.
    #[inline]
    pub fn to(&self, queue: &Arc<Queue>) -> To {
        if Arc::ptr_eq(queue, &self.queue) {
            To::Own
        } else {
            To::Queue(queue.clone())
        }
    }

    /// Chains slots that were taken and not yet filled.
    pub(super) fn chain(&self, slot: &Slot, next: Option<&Slot>) {
        slot.next_free.store(next.map_or(0, |next| next.index + 1), Ordering::Relaxed);
    }

    pub(super) fn after(&self, slot: &Slot) -> Option<&Slot> {
        let next = slot.next_free.load(Ordering::Relaxed);
        self.slot(next.checked_sub(1)? as usize)
    }

    /// Begins an operation in a slot that was taken. `body` is large, so it is made in place.
    /// `whole`: what the operation is a part of.
    #[inline]
    pub(super) fn fill_part(
        &self,
        slot: &Slot,
        body: impl FnOnce() -> Body,
        slices: u64,
        deadline: u64,
        whole: PartOf,
    ) -> Hold {
        let generation = slot.state.load(Ordering::Relaxed) >> 8;
        // SAFETY: the slot was taken, so it is empty and no other thread holds it.
        let body = unsafe {
            slot.body.with_mut(|at| at.write(Some(body())));
            self.body(slot)
        };
        slot.peer.store(body.peer.map_or(0, PeerId::get), Ordering::Relaxed);
        slot.deadline.store(deadline, Ordering::Relaxed);
        slot.cursor.store(0, Ordering::Relaxed);
        slot.first_post.store(0, Ordering::Relaxed);
        slot.progress.store(0, Ordering::Relaxed);
        slot.late.store(0, Ordering::Relaxed);
        if body.completes() {
            self.tally.begun(body.kind);
        }
        slot.whole.belong(whole);
        slot.held.store(STRIPE + READER + slices, Ordering::Release);
        let state = generation << 8 | ACTIVE;
        slot.state.store(state, Ordering::SeqCst);
        if deadline < self.next_deadline.load(Ordering::SeqCst) {
            self.next_deadline.fetch_min(deadline, Ordering::SeqCst);
            if deadline < self.sleeps_until.load(Ordering::SeqCst) {
                if let Some(wake) = self.wakes.get() {
                    wake();
                }
            }
        }
        Hold::on(id_in(state, slot.index))
    }

    /// Marks the notification as sent before the last byte is known to have arrived. Called by the
    /// peer's owner, like `retract` and `arrives`.
    pub fn notify_early(&self, slot: &Slot) {
        slot.progress.fetch_or(NOTIFIED, Ordering::Relaxed);
    }

    /// Whether a speculative notification was sent and not retracted.
    pub fn is_notified(slot: &Slot) -> bool {
        slot.progress.load(Ordering::Acquire) & NOTIFIED != 0
    }

    /// Whether every byte is known to have arrived.
    pub(super) fn has_arrived(slot: &Slot) -> bool {
        slot.progress.load(Ordering::Acquire) & ARRIVED != 0
            || slot.held.load(Ordering::Acquire) & SLICES == 0
    }

    /// Retracts a speculative notification that will not be delivered: any lane may take part in
    /// the rest. `Some(true)`: all bytes have arrived, and only the notification is missing.
    pub fn retract(&self, id: OpId) -> Option<bool> {
        let slot = self.read(id)?;
        let before = slot.progress.fetch_and(!(NOTIFIED | ALONE | ARRIVED), Ordering::AcqRel);
        self.release(slot);
        Some(before & ARRIVED != 0)
    }

    /// Whether a lane may take part in a transfer that is announced to its peer: `alone`, or with
    /// others. The first lane decides. The caller holds the slot.
    pub fn takes_part(slot: &Slot, alone: bool) -> bool {
        let (how, other) = if alone { (ALONE, SHARED) } else { (SHARED, ALONE) };
        let join = |before: u8| (before & other == 0).then_some(before | how);
        slot.progress.fetch_update(Ordering::AcqRel, Ordering::Acquire, join).is_ok()
    }

    /// Lets any lane take part after the lane that was alone.
    pub fn join_all(slot: &Slot) {
        slot.progress.fetch_and(!ALONE, Ordering::AcqRel);
    }

    /// Marks all slices as arrived. True if a speculative notification was sent: then its delivery
    /// ends the operation.
    pub fn arrives(&self, id: OpId) -> bool {
        let Some(slot) = self.read(id) else { return true };
        let before = slot.progress.fetch_or(ARRIVED, Ordering::Relaxed);
        self.release(slot);
        before & NOTIFIED != 0
    }

    /// The owner of the memories is asked to flush their files.
    pub fn asks_to_flush(&self, slot: &Slot) {
        slot.progress.fetch_or(FLUSHING, Ordering::Relaxed);
    }

    pub(super) fn is_flushing(slot: &Slot) -> bool {
        slot.progress.load(Ordering::Relaxed) & FLUSHING != 0
    }

    /// This peer has answered. `None`: the operation does not wait for that, or has ended.
    pub fn flushed(&self, id: OpId, peer: PeerId) -> Option<&Slot> {
        let slot = self.read(id)?;
        let theirs = slot.peer.load(Ordering::Relaxed) == peer.get();
        if theirs && slot.progress.fetch_and(!FLUSHING, Ordering::Relaxed) & FLUSHING != 0 {
            return Some(slot);
        }
        self.release(slot);
        None
    }

    /// Operations that have not released their resources; of a list in parts, either the whole or
    /// the parts count.
    pub fn active(&self) -> u64 {
        self.tally.active()
    }

    pub fn is_active(&self, id: OpId) -> bool {
        self.slot(id.index()).is_some_and(|slot| slot.state.load(Ordering::Acquire) == state_of(id, ACTIVE))
    }

    pub fn peer_of(&self, id: OpId) -> Option<PeerId> {
        let slot = self.read(id)?;
        let peer = slot.peer.load(Ordering::Relaxed);
        self.release(slot);
        PeerId::new(peer)
    }

    /// Whether the operation of a slot that the caller holds is active.
    #[inline]
    pub fn wanted(slot: &Slot) -> bool {
        slot.state.load(Ordering::Relaxed) & 0xff == ACTIVE
    }

    /// Ends an active operation: the caller takes over the operation's hold as a reader. `None` if
    /// it was not active.
    pub(super) fn take_end(&self, id: OpId) -> Option<&Slot> {
        let slot = self.slot(id.index())?;
        let (active, ended) = (state_of(id, ACTIVE), state_of(id, ENDED));
        let won = slot.state.compare_exchange(active, ended, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        won.then_some(slot)
    }

    /// Counts slices as arrived. The caller holds the slot as a stripe.
    pub fn settle(&self, slot: &Slot, arrived: u64) {
        slot.held.fetch_sub(arrived, Ordering::AcqRel);
    }

    /// Marks the transfer as handed to the workers: from here on, any lane may join. The caller
    /// holds the slot.
    #[inline]
    pub fn send_off(slot: &Slot) {
        slot.progress.store(SENT_OFF, Ordering::Release);
    }

    pub fn is_sent_off(slot: &Slot) -> bool {
        slot.progress.load(Ordering::Acquire) & SENT_OFF != 0
    }

    /// Marks the transfer as one that its peer's owner carries. The caller holds the slot.
    pub fn stage(slot: &Slot) {
        slot.progress.store(STAGED, Ordering::Release);
    }
    pub fn is_staged(slot: &Slot) -> bool {
        slot.progress.load(Ordering::Acquire) & STAGED != 0
    }

    /// Holds as stripes the transfers with a peer that workers have. If another operation has taken
    /// the slot meanwhile, `each` gets that one, and must check.
    pub fn join(&self, peer: PeerId, mut each: impl FnMut(Hold)) {
        for index in 0..self.used.load(Ordering::Acquire) {
            let Some(slot) = self.slot(index) else { continue };
            let active = slot.state.load(Ordering::SeqCst) & 0xff == ACTIVE;
            if !active || slot.peer.load(Ordering::Relaxed) != peer.get() || !Self::is_sent_off(slot) {
                continue;
            }
            let more = |held: u64| (held >= STRIPE).then_some(held + STRIPE);
            if slot.held.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok() {
                each(Hold::on(self.id_of(slot)));
            }
        }
    }

    /// The caller holds the slot as a stripe.
    pub fn add_stripes(&self, slot: &Slot, stripes: u64) {
        slot.held.fetch_add(stripes * STRIPE, Ordering::Relaxed);
    }

    /// Holds the slot of an active operation as a reader, until `release`.
    pub fn read(&self, id: OpId) -> Option<&Slot> {
        let slot = self.slot(id.index())?;
        let mut held = slot.held.load(Ordering::Acquire);
        loop {
            if held < READER {
                return None;
            }
            match slot.held.compare_exchange_weak(held, held + READER, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => held = now,
            }
        }
        if self.is_active(id) {
            return Some(slot);
        }
        self.release(slot);
        None
    }

    /// Ends a reader's hold.
    pub fn release(&self, slot: &Slot) {
        let before = slot.held.fetch_sub(READER, Ordering::AcqRel);
        if before & !SLICES == READER {
            self.recycle(slot);
        }
    }

    /// The id of a slot that the caller holds.
    pub fn id_of(&self, slot: &Slot) -> OpId {
        id_in(slot.state.load(Ordering::Acquire), slot.index)
    }

    /// Ends a hold of a stripe: its holder no longer works for the operation.
    pub fn leave(&self, hold: Hold) -> Left {
        let slot = self.held_slot(&hold);
        hold.give();
        self.stripe_leaves(slot, 0)
    }

    /// A stripe leaves, and counts the slices that arrived through it.
    pub fn stripe_leaves(&self, slot: &Slot, arrived: u64) -> Left {
        let id = self.id_of(slot);
        // SAFETY: the stripe holds the slot until it has left.
        let body = unsafe { self.body(slot) };
        let notify = body.transfer().filter(|transfer| transfer.is_announced()).and(body.peer);
        let before = slot.held.fetch_sub(STRIPE + arrived, Ordering::AcqRel);
        debug_assert!(before & SLICES >= arrived, "more slices arrived than there are");
        let after = before - STRIPE - arrived;
        if after >= STRIPE {
            return Left::Done;
        }
        if after & READERS == 0 {
            self.recycle(slot);
            return Left::Done;
        }
        match notify {
            _ if after & SLICES != 0 => Left::Short(id),
            Some(peer) => Left::ToNotify(id, peer),
            None => Left::Arrived(id),
        }
    }

    fn recycle(&self, slot: &Slot) {
        // SAFETY: the last holder has left.
        slot.body.with_mut(|body| unsafe { *body = None });
        let generation = (slot.state.load(Ordering::Relaxed) >> 8).wrapping_add(1) & OpId::GENERATIONS;
        slot.state.store(generation.max(1) << 8 | FREE, Ordering::Release);
        self.push_free(slot);
    }
}

impl Slot {
    fn new(index: u32, generation: u64) -> Slot {
        Slot {
            index,
            state: AtomicU64::new(generation.max(1) << 8 | FREE),
            deadline: AtomicU64::new(u64::MAX),
            peer: AtomicU64::new(0),
            next_free: AtomicU32::new(0),
            body: UnsafeCell::new(None),
            cursor: CachePadded::new(AtomicU64::new(0)),
            held: CachePadded::new(AtomicU64::new(0)),
            first_post: AtomicU64::new(0),
            progress: AtomicU8::new(0),
            carried: AtomicU32::new(0),
            late: AtomicU64::new(0),
            ending: UnsafeCell::new(None),
            whole: Whole::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfer_is_taken_by_one_lane_until_all_may_join() {
        let slot = Slot::new(0, 1);
        assert!(Table::takes_part(&slot, true));
        assert!(!Table::takes_part(&slot, false));
        Table::join_all(&slot);
        assert!(Table::takes_part(&slot, false) && Table::takes_part(&slot, false));
        assert!(!Table::takes_part(&slot, true));
    }
}
