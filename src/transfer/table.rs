//! The table of operations: slots that are recycled, ids that are checked.
//!
//! A slot's `held` word counts, in one place, the flows that work on it (and its
//! hand-overs to workers), its readers (the active operation itself is one) and
//! the slices that are not settled. A flow leaves with a single subtraction, and
//! the one who takes the flows to zero knows whether everything has arrived. The
//! slot is free again when flows and readers are both gone.

use super::atomic::Atomic;
use super::completion::Completion;
use super::expect::Expecting;
use super::gate::{Gate, Passing};
use super::prefetch;
use super::queue::Queue;
use super::shape::{Shape, View};
use super::tally::{Ended, Tally};
use super::watch::Mark;
use super::whole::{Whole, ALONE, IN_PARTS};
use super::{Direction, Outcome};
use crate::fabric::{error_text, Immediate};
use crate::memory::RemoteMemory;
use crate::status::Status;
use crossbeam_utils::CachePadded;
use once_cell::sync::OnceCell;
use std::cell::UnsafeCell;
use std::sync::atomic::{fence, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering};
use std::sync::Arc;

/// The parts of `held`: 12 bits of flows, 12 of readers, 40 of slices.
const FLOW: u64 = 1 << 52;
const READER: u64 = 1 << 40;
const SLICES: u64 = READER - 1;
const READERS: u64 = FLOW - READER;
const CHUNK: usize = 1024;
/// Of an id's high half; its first bit is that of messages.
const GENERATIONS: u64 = 0x7fff_ffff;

/// What has happened to a transfer that its peer is told of early.
const TOLD: u8 = 1;
pub const ARRIVED: u8 = 2;
pub const HEARD: u8 = 4;

/// Phases of a slot, in the low byte of its state; above it the generation.
const FREE: u64 = 0;
const ACTIVE: u64 = 1;
const ENDED: u64 = 2;

/// What a transfer moves.
pub struct Move {
    pub direction: Direction,
    /// Of the latency class.
    pub urgent: bool,
    pub shape: Shape,
    pub slices: u64,
    pub notify: Option<(u64, Box<[u8]>)>,
    pub counting: Option<Counting>,
    /// Set when it has ended.
    pub done: Option<Mark>,
}

/// How a transfer raises a counter of its peer.
#[derive(Clone, Copy)]
pub struct Counting {
    /// Names the counter.
    pub immediate: Immediate,
    /// By how much after the last byte; 0: by each page, with its bytes.
    pub at_end: u64,
}

impl Move {
    /// What each page raises: it is posted in one piece.
    #[inline]
    pub fn page_immediate(&self) -> Option<Immediate> {
        self.counting.filter(|counting| counting.at_end == 0).map(|counting| counting.immediate)
    }

    /// Some of its posts carry an immediate.
    #[inline]
    pub fn is_counted(&self) -> bool {
        match self.view() {
            View::Pages(_) => self.page_immediate().is_some(),
            View::List(_, part) => part.is_counted(self.direction),
        }
    }

    /// The peer hears of it after the last byte.
    pub fn is_announced(&self) -> bool {
        let counted = self.counting.is_some_and(|counting| counting.at_end > 0);
        self.notify.is_some() || counted || self.view().announces(self.direction)
    }

    /// The counters that are raised after the last byte, and by how much.
    pub fn raises(&self) -> Vec<(Immediate, u64)> {
        let mut raises: Vec<(Immediate, u64)> = Vec::new();
        if let Some(Counting { immediate, at_end: by @ 1.. }) = self.counting {
            raises.push((immediate, by));
        }
        if let View::List(_, part) = self.view() {
            for immediate in part.announced(self.direction) {
                match raises.last_mut().filter(|(last, _)| *last == immediate) {
                    Some((_, by)) => *by += 1,
                    None => raises.push((immediate, 1)),
                }
            }
        }
        raises
    }

    #[inline]
    pub fn view(&self) -> View<'_> {
        self.shape.view()
    }
}

/// What does not change while a slot is held.
pub struct Body {
    /// Of its completion.
    pub kind: i32,
    pub to: To,
    pub user_data: u64,
    pub peer: u64,
    pub submit_ns: u64,
    pub bytes: u64,
    pub work: Work,
}

/// Where a completion goes.
pub enum To {
    /// There is none: of parts that only the whole tells of, or a whole whose parts tell
    /// for themselves.
    Nowhere,
    /// The endpoint's own queue: nothing is counted for it.
    Own,
    Queue(Arc<Queue>),
}

/// What an operation is at.
pub enum Work {
    Send,
    Fence,
    Transfer(Move),
    /// It has parts, which are operations of their own.
    Parts,
    Atomic(Atomic),
    /// It leaves the counters that it waits for when the slot is free.
    Expect {
        _until: Expecting,
    },
}

impl Body {
    #[inline]
    pub fn transfer(&self) -> Option<&Move> {
        match &self.work {
            Work::Transfer(transfer) => Some(transfer),
            _ => None,
        }
    }

    fn tells(&self) -> bool {
        !matches!(self.to, To::Nowhere)
    }

    pub fn atomic(&self) -> Option<&Atomic> {
        match &self.work {
            Work::Atomic(atomic) => Some(atomic),
            _ => None,
        }
    }

    /// How it ends if that is because of a remote memory; `None` if it does not use it.
    fn if_using(&self, remote: &Arc<RemoteMemory>, outcome: Outcome) -> Option<Outcome> {
        if self.atomic().is_some_and(|atomic| Arc::ptr_eq(&atomic.remote, remote)) {
            return Some(outcome);
        }
        let view = self.transfer().map(Move::view).filter(|view| view.uses(remote))?;
        Some(Outcome { entry: view.entry_of(remote), ..outcome })
    }
}

pub struct Slot {
    index: u32,
    /// `generation << 8 | phase`.
    state: AtomicU64,
    pub(super) deadline: AtomicU64,
    peer: AtomicU64,
    next_free: AtomicU32,
    body: UnsafeCell<Option<Body>>,
    /// The next slice that nobody has claimed.
    pub cursor: CachePadded<AtomicU64>,
    held: CachePadded<AtomicU64>,
    pub first_post: AtomicU64,
    /// Of a transfer that its peer heard of early: what has happened since.
    early: AtomicU8,
    /// Flows that NICs may be at work for.
    carried: AtomicU32,
    late: AtomicU8,
    /// How an operation ended while NICs were at work for it (`late`).
    ending: UnsafeCell<Option<Ending>>,
    pub(super) whole: Whole,
}

/// Of `Slot::late`: its completion waits for the NICs; somebody publishes it.
const WAITS: u8 = 1;
const PUBLISHED: u8 = 2;

/// What a completion will say.
#[derive(Clone, Copy)]
struct Ending {
    outcome: Outcome,
    /// Who it names, if not the body's.
    peer: Option<u64>,
    value: u64,
    now: u64,
}

// SAFETY: `ending` is written by the one who ended the operation, and read by the one who takes
// `late` from `WAITS`. `body` is written only by the one who took the slot (before its id is known to anyone)
// and by the last holder; holders only read it.
unsafe impl Sync for Slot {}
// SAFETY: all parts can move between threads.
unsafe impl Send for Slot {}

/// What a holder learns when it leaves.
#[derive(PartialEq, Eq, Debug)]
pub enum Left {
    /// Other flows go on.
    Done,
    /// It has not left yet, but posted everything: the peer may hear of it already.
    Posted(u64, u64),
    /// It was the last, and every slice has arrived.
    Arrived(u64),
    /// As before, and this peer should be told.
    ToNotify(u64, u64),
    /// It cannot go on here.
    Ended(u64, Status),
    /// It was the last, and slices are missing, or nobody wants them any more.
    Short(u64),
}

pub struct Table {
    /// The endpoint's own.
    queue: Arc<Queue>,
    first: u64,
    chunks: Box<[OnceCell<Box<[Slot]>>]>,
    capacity: usize,
    /// Slots that were ever used; those below may be scanned.
    used: AtomicUsize,
    /// Free slots, last in first out: `tag << 32 | index + 1`.
    free: CachePadded<AtomicU64>,
    /// No deadline is earlier than this.
    next_deadline: CachePadded<AtomicU64>,
    /// Operations that have ended, and whose completions wait for NICs.
    waiting: CachePadded<AtomicU64>,
    pub tally: Tally,
    /// Who ends an operation passes it until the completion is in its queue.
    gate: Gate,
}

fn index_of(id: u64) -> usize {
    (id & 0xffff_ffff) as usize
}

impl Table {
    /// `first` is where generations begin: ids of one endpoint should mean
    /// nothing to another.
    pub fn new(capacity: usize, first: u32, queue: Arc<Queue>) -> Table {
        Table {
            queue,
            first: GENERATIONS & first as u64,
            chunks: (0..capacity.div_ceil(CHUNK)).map(|_| OnceCell::new()).collect(),
            capacity,
            used: AtomicUsize::new(0),
            free: CachePadded::new(AtomicU64::new(0)),
            next_deadline: CachePadded::new(AtomicU64::new(u64::MAX)),
            waiting: CachePadded::new(AtomicU64::new(0)),
            tally: Tally::new(),
            gate: Gate::new(),
        }
    }

    fn slot(&self, index: usize) -> Option<&Slot> {
        self.chunks.get(index / CHUNK)?.get().map(|chunk| &chunk[index % CHUNK])
    }

    /// The slot that a holder of `id` holds.
    pub fn held_slot(&self, id: u64) -> &Slot {
        self.slot(index_of(id)).expect("a holder's slot exists")
    }

    /// The body of a slot that the caller holds.
    ///
    /// # Safety
    /// The caller must hold the slot for as long as it uses the reference.
    pub unsafe fn body<'a>(&self, slot: &'a Slot) -> &'a Body {
        // SAFETY: it was filled before the id was published, and stays while the slot is held.
        unsafe { (*slot.body.get()).as_ref() }.expect("a held slot has a body")
    }

    fn pop_free(&self) -> Option<usize> {
        let mut head = self.free.load(Ordering::Acquire);
        loop {
            let index = (head & 0xffff_ffff).checked_sub(1)? as usize;
            let next = self.slot(index)?.next_free.load(Ordering::Relaxed);
            let new = (head & !0xffff_ffff).wrapping_add(1 << 32) | next as u64;
            match self.free.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(index),
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

    /// Has the slot fetched that will be taken next: other processors had it last.
    #[inline]
    pub fn foresee(&self) {
        let next = (self.free.load(Ordering::Relaxed) & 0xffff_ffff).checked_sub(1);
        if let Some(slot) = next.and_then(|index| self.slot(index as usize)) {
            prefetch::to_write(slot);
        }
    }

    pub(super) fn take(&self) -> Option<&Slot> {
        if let Some(index) = self.pop_free() {
            return self.slot(index);
        }
        let index = self
            .used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                (used < self.capacity).then_some(used + 1)
            })
            .ok()?;
        let chunk = self.chunks[index / CHUNK].get_or_init(|| {
            let first = index / CHUNK * CHUNK;
            (first..first + CHUNK).map(|i| Slot::new(i as u32, self.first)).collect()
        });
        Some(&chunk[index % CHUNK])
    }

    /// Takes a slot and fills it. The operation is active, and the caller holds
    /// it as a flow: it must pass that on, or `leave`.
    /// `None`: all slots are in use.
    #[inline]
    pub fn begin(&self, body: impl FnOnce() -> Body, slices: u64, deadline: u64) -> Option<u64> {
        Some(self.fill(self.take()?, body, slices, deadline, ALONE))
    }

    /// For a completion in one of the endpoint's queues.
    #[inline]
    pub fn to(&self, queue: &Arc<Queue>) -> To {
        if Arc::ptr_eq(queue, &self.queue) {
            To::Own
        } else {
            To::Queue(queue.clone())
        }
    }

    /// Chains slots that were taken, and not filled yet.
    pub(super) fn chain(&self, slot: &Slot, next: Option<&Slot>) {
        slot.next_free.store(next.map_or(0, |next| next.index + 1), Ordering::Relaxed);
    }

    /// The next of a chain.
    pub(super) fn after(&self, slot: &Slot) -> Option<&Slot> {
        let next = slot.next_free.load(Ordering::Relaxed);
        self.slot(next.checked_sub(1)? as usize)
    }

    /// Begins in a slot that was taken. `body` is made in place: it is large. `whole`: what
    /// it is a part of.
    #[inline]
    pub(super) fn fill(
        &self,
        slot: &Slot,
        body: impl FnOnce() -> Body,
        slices: u64,
        deadline: u64,
        whole: u64,
    ) -> u64 {
        let generation = slot.state.load(Ordering::Relaxed) >> 8;
        // SAFETY: the slot came off the free list, so it is empty, and nobody else holds it.
        let body = unsafe {
            slot.body.get().write(Some(body()));
            self.body(slot)
        };
        slot.peer.store(body.peer, Ordering::Relaxed);
        slot.deadline.store(deadline, Ordering::Relaxed);
        slot.cursor.store(0, Ordering::Relaxed);
        slot.first_post.store(0, Ordering::Relaxed);
        slot.early.store(0, Ordering::Relaxed);
        slot.late.store(0, Ordering::Relaxed);
        if body.tells() {
            self.tally.begun(body.kind);
        }
        slot.whole.of.store(whole, Ordering::Relaxed);
        slot.held.store(FLOW + READER + slices, Ordering::Release);
        slot.state.store(generation << 8 | ACTIVE, Ordering::SeqCst);
        if deadline < self.next_deadline.load(Ordering::SeqCst) {
            self.next_deadline.fetch_min(deadline, Ordering::SeqCst);
        }
        generation << 32 | slot.index as u64
    }

    /// The peer is told before the last byte is known to have arrived. By the worker
    /// that is the peer's home, as what follows.
    pub fn tell_early(&self, slot: &Slot) {
        slot.early.store(TOLD, Ordering::Relaxed);
    }

    /// Of what was told early, one of two has happened: it has `ARRIVED`, or the peer
    /// has `HEARD` of it. The second one ends it. False if it was not told early.
    pub fn half_done(&self, id: u64, half: u8, now: u64) -> bool {
        let Some(slot) = self.read(id) else { return true };
        let early = slot.early.load(Ordering::Relaxed);
        slot.early.store(early | half, Ordering::Relaxed);
        self.release(slot);
        if early & TOLD != 0 && early & !(TOLD | half) != 0 {
            self.end(id, Outcome::OK, now);
        }
        early & TOLD != 0
    }

    /// Operations that have not ended and will tell of it: of those in parts, the whole
    /// or the parts.
    pub fn active(&self) -> u64 {
        self.tally.active()
    }

    pub fn is_active(&self, id: u64) -> bool {
        self.slot(index_of(id))
            .is_some_and(|slot| slot.state.load(Ordering::Acquire) == (id >> 32) << 8 | ACTIVE)
    }

    /// With whom an active operation is.
    pub fn peer_of(&self, id: u64) -> Option<u64> {
        let slot = self.read(id)?;
        let peer = slot.peer.load(Ordering::Relaxed);
        self.release(slot);
        Some(peer)
    }

    /// Whether the operation of a slot that the caller holds is still wanted.
    #[inline]
    pub fn wanted(slot: &Slot) -> bool {
        slot.state.load(Ordering::Relaxed) & 0xff == ACTIVE
    }

    /// Counts slices as arrived, of a slot that the caller holds as a flow.
    pub fn settle(&self, slot: &Slot, arrived: u64) {
        slot.held.fetch_sub(arrived, Ordering::AcqRel);
    }

    /// Holds, as flows, the transfers with a peer that flows work on and that are not
    /// claimed whole.
    pub fn join(&self, peer: u64, mut each: impl FnMut(&Slot, &Body)) {
        for index in 0..self.used.load(Ordering::Acquire) {
            let Some(slot) = self.slot(index) else { continue };
            let active = slot.state.load(Ordering::SeqCst) & 0xff == ACTIVE;
            if !active || slot.peer.load(Ordering::Relaxed) != peer {
                continue;
            }
            let more = |held: u64| (held >= FLOW).then_some(held + FLOW);
            if slot.held.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok() {
                // Another operation may have the slot by now.
                if slot.peer.load(Ordering::Relaxed) == peer {
                    // SAFETY: held as a flow, until `each` passes that on.
                    each(slot, unsafe { self.body(slot) });
                } else {
                    self.leave(slot, 0);
                }
            }
        }
    }

    /// Adds flows to a slot that the caller holds as one.
    pub fn share(&self, slot: &Slot, flows: u64) {
        slot.held.fetch_add(flows * FLOW, Ordering::Relaxed);
    }

    /// Holds the slot of an active operation as a reader; to be released.
    pub fn read(&self, id: u64) -> Option<&Slot> {
        let slot = self.slot(index_of(id))?;
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

    /// A reader leaves.
    pub fn release(&self, slot: &Slot) {
        let before = slot.held.fetch_sub(READER, Ordering::AcqRel);
        if before & !SLICES == READER {
            self.recycle(slot);
        }
    }

    /// The id of a slot that the caller holds.
    pub fn id_of(&self, slot: &Slot) -> u64 {
        slot.state.load(Ordering::Acquire) >> 8 << 32 | slot.index as u64
    }

    /// A flow is with a lane from now on: NICs may work for it. False: nobody wants it
    /// any more.
    pub fn carry(&self, slot: &Slot) -> bool {
        slot.carried.fetch_add(1, Ordering::SeqCst);
        // Who ended it before has not seen this; who ends it after waits.
        slot.state.load(Ordering::SeqCst) & 0xff == ACTIVE
    }

    /// No NIC works for a flow any more. It leaves, or goes to another lane.
    pub fn put_down(&self, slot: &Slot) {
        if slot.carried.fetch_sub(1, Ordering::SeqCst) == 1 && slot.late.load(Ordering::SeqCst) == WAITS {
            self.publish_late(slot);
        }
    }

    /// Whether an operation has ended, and its completion waits for NICs.
    pub fn is_late(slot: &Slot) -> bool {
        slot.late.load(Ordering::Relaxed) == WAITS
    }

    /// How many there are of these.
    pub fn late(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether any of a peer's is one of them.
    pub fn has_late(&self, peer: u64) -> bool {
        let slots = 0..self.used.load(Ordering::Acquire);
        self.late() != 0
            && slots.filter_map(|index| self.slot(index)).any(|slot| {
                slot.late.load(Ordering::SeqCst) == WAITS && slot.peer.load(Ordering::Relaxed) == peer
            })
    }

    /// Publishes the completion of an operation that has ended, unless somebody has.
    /// The caller holds the slot.
    pub fn publish_late(&self, slot: &Slot) {
        let taken = slot.late.compare_exchange(WAITS, PUBLISHED, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if !taken {
            return;
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: written before `late` was, and taken by us alone.
        if let Some(ending) = unsafe { (*slot.ending.get()).take() } {
            let passing = self.gate.pass();
            let published = self.publish(slot, &ending);
            drop(passing);
            published.explain();
        }
    }

    /// A flow leaves, with the slices that arrived through it.
    pub fn leave(&self, slot: &Slot, arrived: u64) -> Left {
        let id = self.id_of(slot);
        // SAFETY: the flow holds the slot until it has left.
        let body = unsafe { self.body(slot) };
        let notify = body.transfer().is_some_and(Move::is_announced).then_some(body.peer);
        let before = slot.held.fetch_sub(FLOW + arrived, Ordering::AcqRel);
        debug_assert!(before & SLICES >= arrived, "more slices arrived than there are");
        let after = before - FLOW - arrived;
        if after >= FLOW {
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
        drop(unsafe { (*slot.body.get()).take() });
        let generation = (slot.state.load(Ordering::Relaxed) >> 8).wrapping_add(1) & GENERATIONS;
        slot.state.store(generation.max(1) << 8 | FREE, Ordering::Release);
        self.push_free(slot);
    }

    /// The slot of an operation that was active, and that the caller has ended.
    fn take_end(&self, id: u64) -> Option<&Slot> {
        let slot = self.slot(index_of(id))?;
        let active = (id >> 32) << 8 | ACTIVE;
        let ended = (id >> 32) << 8 | ENDED;
        let won = slot.state.compare_exchange(active, ended, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        won.then_some(slot)
    }

    /// Ends an operation that was never accepted, without a completion; false if it
    /// has ended with one.
    pub fn take_back(&self, id: u64) -> bool {
        let Some(slot) = self.take_end(id) else { return false };
        // SAFETY: the operation's own hold is ours now, until we release it.
        let body = unsafe { self.body(slot) };
        let tells = body.tells();
        match &body.to {
            To::Nowhere => {}
            To::Own => self.queue.unreserve(1),
            To::Queue(queue) => queue.unreserve(1),
        }
        let kind = body.kind;
        self.release(slot);
        if tells {
            self.tally.taken_back(kind);
        }
        true
    }

    /// Ends an operation with its one completion; false if it ended before.
    pub fn end(&self, id: u64, outcome: Outcome, now: u64) -> bool {
        self.end_as(id, outcome, (None, 0), now)
    }

    /// As `end`; the completion has a value.
    pub fn end_with_value(&self, id: u64, outcome: Outcome, value: u64, now: u64) -> bool {
        self.end_as(id, outcome, (None, value), now)
    }

    /// As `end`. `peer`: who the completion names, if not the body's.
    pub(super) fn end_as(
        &self,
        id: u64,
        outcome: Outcome,
        (peer, value): (Option<u64>, u64),
        now: u64,
    ) -> bool {
        let passing = self.gate.pass();
        let Some(slot) = self.take_end(id) else { return false };
        let ending = Ending { outcome, peer, value, now };
        if outcome.status != Status::Ok && slot.carried.load(Ordering::SeqCst) != 0 {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            // SAFETY: only who ended it writes, and nobody reads before `late` says so.
            unsafe { *slot.ending.get() = Some(ending) };
            slot.late.store(WAITS, Ordering::SeqCst);
            drop(passing);
            if slot.carried.load(Ordering::SeqCst) == 0 {
                self.publish_late(slot);
            }
            return true;
        }
        let published = self.publish(slot, &ending);
        // First: nobody waits for what the host program does with a line of the log.
        drop(passing);
        published.explain();
        true
    }

    /// Publishes the completion of an operation that has ended.
    fn publish(&self, slot: &Slot, ending: &Ending) -> Published {
        let &Ending { outcome, peer, value, now } = ending;
        let id = self.id_of(slot);
        // SAFETY: the operation's own hold is ours now, until we release it.
        let body = unsafe { self.body(slot) };
        let outcome = self.with_entry(body, outcome);
        // A worker's time is that of the beginning of its pass, and workers' passes overlap.
        let first_post = match slot.first_post.load(Ordering::Relaxed) {
            0 => 0,
            posted => posted.max(body.submit_ns),
        };
        let now = now.max(body.submit_ns).max(first_post);
        let whole = Some(slot.whole.of.load(Ordering::Relaxed)).filter(|of| !matches!(*of, ALONE | IN_PARTS));
        let mut completion = Completion::new(body.kind, outcome, peer.unwrap_or(body.peer), now);
        completion.transfer = whole.unwrap_or(id);
        completion.user_data = body.user_data;
        completion.value = value;
        completion.bytes = if outcome.status == Status::Ok { body.bytes } else { 0 };
        completion.submit_ns = body.submit_ns;
        completion.first_post_ns = first_post;
        self.count(body, &completion, outcome.status);
        let other = if let To::Queue(queue) = &body.to { Some(queue.clone()) } else { None };
        let (tells, deadline) = (body.tells(), slot.deadline.load(Ordering::Relaxed));
        if let Some((watch, value)) = body.transfer().and_then(|transfer| transfer.done.as_ref()) {
            watch.set(*value);
        }
        // First: whoever polls the completion may give the memory back at once.
        self.release(slot);
        if tells {
            self.tally.over();
        }
        if let Some(whole) = whole {
            // Before its own completion: who has polled the last one finds all of it gone.
            self.part_ended(whole, outcome, (completion.peer, first_post), now);
        }
        if tells {
            other.as_ref().unwrap_or(&self.queue).publish(completion);
        }
        Published { completion, outcome, deadline }
    }

    /// Holds up `await_publication` until it is dropped.
    pub fn pass(&self) -> Passing<'_> {
        self.gate.pass()
    }

    /// Returns when the completions of all that has ended are in their queues.
    pub fn await_publication(&self) {
        self.gate.wait();
    }

    fn count(&self, body: &Body, completion: &Completion, status: Status) {
        if body.tells() {
            self.tally.ended(&Ended {
                kind: completion.kind,
                status,
                bytes: completion.bytes,
                took_ns: completion.done_ns - body.submit_ns,
            });
        }
        // A whole's parts have told their peers.
        let notifies = body.transfer().is_some_and(|transfer| transfer.notify.is_some());
        if notifies && status == Status::Ok {
            self.tally.notified();
        }
    }

    /// Of a list that failed: the entry, unless that is known already.
    fn with_entry(&self, body: &Body, outcome: Outcome) -> Outcome {
        if outcome.status == Status::Ok || outcome.entry.is_some() {
            return outcome;
        }
        Outcome { entry: body.transfer().and_then(|t| t.view().first_entry()), ..outcome }
    }

    /// Whether it is an operation with parts, which has not ended.
    pub(super) fn is_in_parts(&self, id: u64) -> bool {
        self.slot(index_of(id)).is_some_and(|slot| slot.whole.of.load(Ordering::Relaxed) == IN_PARTS)
            && self.is_active(id)
    }

    /// Ends the parts of an operation, and so the operation; false if all had ended.
    pub(super) fn end_parts(&self, whole: u64, outcome: Outcome, now: u64) -> bool {
        self.end_where(|slot, _| slot.whole.of.load(Ordering::Relaxed) == whole, outcome, now)
    }

    /// Ends all active operations that `which` (slot, id) chooses; whether there was
    /// any. Those with parts end with these.
    fn end_where(&self, which: impl Fn(&Slot, u64) -> bool, outcome: Outcome, now: u64) -> bool {
        let mut any = false;
        fence(Ordering::SeqCst);
        for index in 0..self.used.load(Ordering::Acquire) {
            let Some(slot) = self.slot(index) else { continue };
            let state = slot.state.load(Ordering::SeqCst);
            let id = state >> 8 << 32 | index as u64;
            let alone = slot.whole.of.load(Ordering::Relaxed) != IN_PARTS;
            if state & 0xff == ACTIVE && alone && which(slot, id) {
                any |= self.end(id, outcome, now);
            }
        }
        any
    }

    pub fn end_all(&self, outcome: Outcome, now: u64) {
        self.end_where(|_, _| true, outcome, now);
    }

    pub fn end_of_peer(&self, peer: u64, outcome: Outcome, now: u64) {
        self.end_where(|slot, _| slot.peer.load(Ordering::Relaxed) == peer, outcome, now);
    }

    /// Ends the transfers that use a remote memory.
    pub fn end_of_remote(&self, remote: &Arc<RemoteMemory>, outcome: Outcome, now: u64) {
        fence(Ordering::SeqCst);
        for index in 0..self.used.load(Ordering::Acquire) {
            let Some(slot) = self.slot(index) else { continue };
            if slot.peer.load(Ordering::Relaxed) != remote.peer {
                continue;
            }
            let id = slot.state.load(Ordering::SeqCst) >> 8 << 32 | index as u64;
            let Some(slot) = self.read(id) else { continue };
            // SAFETY: held as a reader.
            let outcome = unsafe { self.body(slot) }.if_using(remote, outcome);
            self.release(slot);
            if let Some(outcome) = outcome {
                self.end(id, outcome, now);
            }
        }
    }

    /// Ends what is past its deadline. Cheap until the earliest one has passed:
    /// with long deadlines and short transfers the table is scanned about once
    /// in a deadline.
    pub fn expire(&self, now: u64) {
        if now < self.next_deadline.load(Ordering::Relaxed) {
            return;
        }
        self.next_deadline.store(u64::MAX, Ordering::SeqCst);
        let late = |slot: &Slot, _| slot.deadline.load(Ordering::Relaxed) <= now;
        self.end_where(late, Outcome::of(Status::TimedOut), now);
        let mut earliest = u64::MAX;
        for index in 0..self.used.load(Ordering::Acquire) {
            if let Some(slot) = self.slot(index) {
                if slot.state.load(Ordering::SeqCst) & 0xff == ACTIVE {
                    earliest = earliest.min(slot.deadline.load(Ordering::Relaxed));
                }
            }
        }
        self.next_deadline.fetch_min(earliest, Ordering::SeqCst);
    }
}

/// A completion that is in its queue.
struct Published {
    completion: Completion,
    outcome: Outcome,
    deadline: u64,
}

impl Published {
    /// Says why an operation failed: what its completion has no room for.
    fn explain(&self) {
        let &Published { completion, outcome, deadline } = self;
        let level = if outcome.provider_errno == 0 { log::Level::Debug } else { log::Level::Info };
        if outcome.status == Status::Ok || !log::log_enabled!(level) {
            return;
        }
        let Completion { transfer, peer, submit_ns, .. } = completion;
        let mut why = Status::text_of(completion.status).to_string_lossy();
        if outcome.status == Status::TimedOut && deadline != u64::MAX {
            why = format!("{why}, {} ns after the submission", deadline.saturating_sub(submit_ns)).into();
        }
        match (outcome.rail, outcome.provider_errno) {
            (_, 0) => log::debug!("operation {transfer:#x} with peer {peer:#x}: {why}"),
            (Some(rail), errno) => log::info!(
                "operation {transfer:#x} with peer {peer:#x}: {why}; rail {rail}: {} ({errno})",
                error_text(errno)
            ),
            (None, errno) => {
                log::info!(
                    "operation {transfer:#x} with peer {peer:#x}: {why}: {} ({errno})",
                    error_text(errno)
                )
            }
        }
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
            early: AtomicU8::new(0),
            carried: AtomicU32::new(0),
            late: AtomicU8::new(0),
            ending: UnsafeCell::new(None),
            whole: Whole::new(),
        }
    }
}
