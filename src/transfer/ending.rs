//! How operations end: each with exactly one completion, which is held back while NICs may still
//! work for the operation.

use super::completion::{self, Completion};
use super::explain::Published;
use super::gate::{Before, Passing};
use super::operation::{Body, To};
use super::parts::{Failure, PartOf};
use super::table::{id_in, Slot, Table, ACTIVE};
use super::tally::Ended;
use super::Outcome;
use crate::ids::{GrantToken, Hold, OpId, PeerId};
use crate::memory::RemoteMemory;
use crate::status::Status;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

/// The low byte of `Slot::late`: the completion waits for NICs, or is being published.
const WAITS: u64 = 1;
const PUBLISHED: u64 = 2;

#[derive(Clone, Copy)]
pub(super) struct Ending {
    outcome: Outcome,
    /// The peer that the completion names, if not the body's.
    peer: Option<PeerId>,
    previous: u64,
    now: u64,
}

/// Slots scanned between checks of the clock.
const CLOCK_STRIDE: usize = 64;

enum Swept {
    /// All operations with a peer.
    Peer(PeerId),
    /// The transfers that use a remote memory.
    Remote(Arc<RemoteMemory>),
    /// Operations of a peer under grants that it has revoked.
    Revoked(PeerId, HashSet<GrantToken>),
}

/// Ends many operations in steps, so that one pass of a worker is not held up. It may miss
/// operations submitted meanwhile: their submitters see that the peer or the memory has ended.
pub struct Sweep {
    what: Swept,
    outcome: Outcome,
    next: usize,
}

impl Sweep {
    pub fn of_peer(peer: PeerId, outcome: Outcome) -> Sweep {
        Sweep { what: Swept::Peer(peer), outcome, next: 0 }
    }

    pub fn of_remote(remote: &Arc<RemoteMemory>, outcome: Outcome) -> Sweep {
        Sweep { what: Swept::Remote(remote.clone()), outcome, next: 0 }
    }

    pub fn of_revoked(peer: PeerId, grant: GrantToken) -> Sweep {
        let what = Swept::Revoked(peer, HashSet::from([grant]));
        Sweep { what, outcome: Outcome::new(Status::Revoked), next: 0 }
    }

    /// Adds a revoked grant of the peer; false if this sweep is for others, or has begun.
    pub fn join_revoked(&mut self, peer: PeerId, grant: GrantToken) -> bool {
        match &mut self.what {
            Swept::Revoked(owner, grants) if *owner == peer && self.next == 0 => {
                grants.insert(grant);
                true
            }
            _ => false,
        }
    }
}

/// The active operations with a peer that can change its memory, as of this call; found in steps,
/// and removed as they end.
pub struct Accepted {
    peer: PeerId,
    next: usize,
    until: usize,
    active: Vec<OpId>,
}

/// The progress of a scan of all deadlines.
#[derive(Default)]
pub(super) struct Expiring {
    begun: AtomicBool,
    scan: Mutex<Scan>,
}

#[derive(Default)]
struct Scan {
    next: usize,
    /// The earliest deadline of the slots scanned so far.
    earliest: u64,
}

impl Table {
    /// Counts a stripe for which NICs may work. False: the operation has ended.
    pub fn carry(&self, slot: &Slot) -> bool {
        slot.carried.fetch_add(1, Ordering::SeqCst);
        // An end before this load did not see the count; a later end waits for the stripe.
        slot.state.load(Ordering::SeqCst) & 0xff == ACTIVE
    }

    /// Uncounts a stripe for which no NIC works: the stripe leaves, or moves to another lane.
    pub fn put_down(&self, slot: &Slot) {
        if slot.carried.fetch_sub(1, Ordering::SeqCst) == 1
            && slot.late.load(Ordering::SeqCst) & 0xff == WAITS
        {
            self.publish_late(slot);
        }
    }

    /// Whether an operation has ended, and its completion waits for NICs.
    pub fn is_late(slot: &Slot) -> bool {
        slot.late.load(Ordering::Relaxed) & 0xff == WAITS
    }

    /// The number of ended operations whose completions wait for NICs.
    pub fn late(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether completions of this peer, or of an earlier peer with its index, wait for NICs.
    pub fn has_late(&self, peer: PeerId) -> bool {
        self.waiting_of.get(peer.place()).is_some_and(|waiting| waiting.load(Ordering::SeqCst) != 0)
    }

    fn count_late(&self, slot: &Slot, count: impl Fn(&AtomicU64)) {
        count(&self.waiting);
        let peer = PeerId::new(slot.peer.load(Ordering::Relaxed));
        if let Some(waiting) = peer.and_then(|peer| self.waiting_of.get(peer.place())) {
            count(waiting);
        }
    }

    /// Publishes the completion of an operation that has ended, unless another thread has. The
    /// caller holds the slot.
    pub fn publish_late(&self, slot: &Slot) {
        // Pass first: a thread that reads 0 waiting must then wait at the gate for this completion.
        let passing = self.gate.pass();
        let published = self.take_late(slot, self.id_of(slot));
        drop(passing);
        published.iter().for_each(Published::explain);
    }

    /// The same within the gate; the caller needs no hold. Returns the completion for the log.
    fn take_late(&self, slot: &Slot, id: OpId) -> Option<Published> {
        let late = |how| id.generation() << 8 | how;
        slot.late.compare_exchange(late(WAITS), late(PUBLISHED), Ordering::SeqCst, Ordering::Relaxed).ok()?;
        self.count_late(slot, |waiting| _ = waiting.fetch_sub(1, Ordering::SeqCst));
        // SAFETY: `ending` was written before `late`, and only this thread has moved `late` on.
        let ending = slot.ending.with_mut(|ending| unsafe { (*ending).take() })?;
        self.publish(slot, &ending)
    }

    /// Ends an operation that was not accepted, without a completion; false if it has ended with
    /// one.
    pub fn take_back(&self, id: OpId) -> bool {
        let Some(slot) = self.take_end(id) else { return false };
        // SAFETY: this thread ended the operation, so it owns the operation's hold until it releases it.
        let body = unsafe { self.body(slot) };
        let completes = body.completes();
        match &body.to {
            To::Nowhere => {}
            To::Own => self.queue.unreserve(1),
            To::Queue(queue) => queue.unreserve(1),
        }
        let kind = body.kind;
        self.release(slot);
        if completes {
            self.tally.taken_back(kind);
        }
        true
    }

    /// Ends an operation with its one completion; false if it ended before.
    pub fn end(&self, id: OpId, outcome: Outcome, now: u64) -> bool {
        self.end_as(id, outcome, None, 0, now)
    }

    /// Like `end`; the completion has the word's previous value.
    pub fn end_with_previous(&self, id: OpId, outcome: Outcome, previous: u64, now: u64) -> bool {
        self.end_as(id, outcome, None, previous, now)
    }

    /// Like `end`. `peer`: the peer that the completion names, if not the body's.
    pub(super) fn end_as(
        &self,
        id: OpId,
        outcome: Outcome,
        peer: Option<PeerId>,
        previous: u64,
        now: u64,
    ) -> bool {
        let passing = self.gate.pass();
        let Some(slot) = self.take_end(id) else { return false };
        let ending = Ending { outcome, peer, previous, now };
        let late = outcome.status != Status::Ok && slot.carried.load(Ordering::SeqCst) != 0;
        if late {
            self.count_late(slot, |waiting| _ = waiting.fetch_add(1, Ordering::SeqCst));
            // SAFETY: only the thread that ended the operation writes, and no thread reads before
            // `late` is set.
            slot.ending.with_mut(|at| unsafe { *at = Some(ending) });
            slot.late.store(id.generation() << 8 | WAITS, Ordering::SeqCst);
        }
        // From here on, another thread may publish a late completion, and the slot go to another operation.
        let published = match late {
            false => self.publish(slot, &ending),
            true if slot.carried.load(Ordering::SeqCst) == 0 => self.take_late(slot, id),
            true => None,
        };
        // Leave the gate first: a slow log callback must not delay a PEER_DOWN.
        drop(passing);
        published.iter().for_each(Published::explain);
        true
    }

    /// Publishes the completion of an operation that has ended; returns it for the log if it
    /// failed.
    fn publish(&self, slot: &Slot, ending: &Ending) -> Option<Published> {
        let &Ending { outcome, peer, previous, now } = ending;
        let id = self.id_of(slot);
        // SAFETY: this thread ended the operation, so it owns the operation's hold until it releases it.
        let body = unsafe { self.body(slot) };
        let outcome = self.with_entry(body, outcome);
        // A worker's clock is read when its pass begins, and passes of workers overlap.
        let first_post = match slot.first_post.load(Ordering::Relaxed) {
            0 => 0,
            posted => posted.max(body.submit_ns),
        };
        let now = now.max(body.submit_ns).max(first_post);
        let whole = match slot.whole.part_of() {
            PartOf::Whole(whole) => Some(whole),
            PartOf::Nothing | PartOf::HasParts => None,
        };
        let mut completion = Completion::new(body.kind, outcome, peer.or(body.peer), now);
        completion.transfer = whole.unwrap_or(id).get();
        completion.user_data = body.user_data;
        completion.previous = previous;
        completion.bytes = if outcome.status == Status::Ok { body.bytes } else { 0 };
        completion.submit_ns = body.submit_ns;
        completion.first_post_ns = first_post;
        self.count(body, &completion, outcome.status);
        let other = if let To::Queue(queue) = &body.to { Some(queue.clone()) } else { None };
        let (completes, deadline) = (body.completes(), slot.deadline.load(Ordering::Relaxed));
        let late = outcome.status == Status::TimedOut && log::log_enabled!(log::Level::Debug);
        let so_far = if late { so_far(slot, body) } else { String::new() };
        let failed = if outcome.status == Status::Ok { None } else { body.failed(id, outcome.status) };
        if let Some((watch, value)) = body.done.as_deref() {
            watch.set(*value);
        }
        // Release first: the poller of the completion may deregister the memory at once.
        self.release(slot);
        if let (Some(failed), Some(tell)) = (failed, self.failing.get()) {
            tell(failed);
        }
        if completes {
            self.tally.over();
        }
        if let Some(whole) = whole {
            // End the whole before the part's completion: once the last completion is polled, the
            // whole must have ended.
            self.part_ended(whole, outcome, completion.peer, first_post, now);
        }
        if completes {
            other.as_ref().unwrap_or(&self.queue).publish(completion);
        }
        (outcome.status != Status::Ok).then_some(Published { completion, outcome, deadline, so_far })
    }

    /// Blocks `await_publication` until it is dropped.
    pub fn pass(&self) -> Passing<'_> {
        self.gate.pass()
    }

    /// Marks the operations ended so far; `are_published` checks whether their completions are in
    /// their queues.
    pub fn ended_so_far(&self) -> Before {
        self.gate.before()
    }

    pub fn are_published(&self, ended: Before) -> bool {
        self.gate.have_passed(ended)
    }

    /// Like `are_published`, blocking, for callers' threads.
    pub fn await_publication(&self) {
        self.gate.wait();
    }

    fn count(&self, body: &Body, completion: &Completion, status: Status) {
        if body.completes() {
            self.tally.ended(&Ended {
                kind: completion.kind,
                status,
                bytes: completion.bytes,
                took_ns: completion.done_ns - body.submit_ns,
            });
        }
        // (The parts of a whole notify their peers.)
        let notifies = body.transfer().is_some_and(|transfer| transfer.notify.is_some());
        if notifies && status == Status::Ok {
            self.tally.notified();
        }
    }

    /// Adds the first entry of a failed list, unless the failed entry is known.
    fn with_entry(&self, body: &Body, outcome: Outcome) -> Outcome {
        if outcome.status == Status::Ok || outcome.entry.is_some() {
            return outcome;
        }
        Outcome { entry: body.transfer().and_then(|t| t.view().first_entry()), ..outcome }
    }

    /// Whether the operation has parts and has not ended.
    pub(super) fn is_in_parts(&self, id: OpId) -> bool {
        self.slot(id.index()).is_some_and(|slot| slot.whole.part_of() == PartOf::HasParts)
            && self.is_active(id)
    }

    /// Ends the parts of an operation, and so the operation; false if all had ended.
    pub(super) fn end_parts(&self, whole: OpId, outcome: Outcome, now: u64) -> bool {
        self.end_where(|slot| slot.whole.part_of() == PartOf::Whole(whole), outcome, now)
    }

    /// Ends all active operations that `which` selects; true if it ended any. Operations with parts
    /// end with their parts.
    fn end_where(&self, which: impl Fn(&Slot) -> bool, outcome: Outcome, now: u64) -> bool {
        let mut any = false;
        fence(Ordering::SeqCst);
        for index in 0..self.used.load(Ordering::Acquire) {
            let chosen = self.active_at(index).filter(|(slot, _)| which(slot));
            any |= chosen.is_some_and(|(_, id)| self.end(id, outcome, now));
        }
        any
    }

    /// The active operation of a slot, unless it has parts.
    fn active_at(&self, index: usize) -> Option<(&Slot, OpId)> {
        let slot = self.slot(index)?;
        let state = slot.state.load(Ordering::SeqCst);
        let alone = slot.whole.part_of() != PartOf::HasParts;
        (state & 0xff == ACTIVE && alone).then(|| (slot, id_in(state, index as u32)))
    }

    pub fn end_all(&self, outcome: Outcome, now: u64) {
        self.end_where(|_| true, outcome, now);
    }

    /// Continues a sweep until it is done (true) or the time is `over`.
    pub fn go_on(&self, sweep: &mut Sweep, now: u64, over: impl Fn() -> bool) -> bool {
        fence(Ordering::SeqCst);
        while sweep.next < self.used.load(Ordering::Acquire) {
            if let Some((slot, id)) = self.active_at(sweep.next) {
                let peer = slot.peer.load(Ordering::Relaxed);
                let outcome = match &sweep.what {
                    Swept::Peer(owner) => (peer == owner.get()).then_some(sweep.outcome),
                    Swept::Remote(owner) if peer == owner.peer.get() => {
                        self.if_using(id, owner, sweep.outcome)
                    }
                    Swept::Revoked(owner, revoked) if peer == owner.get() => {
                        self.is_under(id, revoked).then_some(sweep.outcome)
                    }
                    Swept::Remote(_) | Swept::Revoked(..) => None,
                };
                if let Some(outcome) = outcome {
                    _ = self.end(id, outcome, now);
                }
            }
            sweep.next += 1;
            if sweep.next % CLOCK_STRIDE == 0 && over() {
                return false;
            }
        }
        true
    }

    /// The peer's operations accepted so far; may include later ones.
    pub fn accepted(&self, peer: PeerId) -> Accepted {
        fence(Ordering::SeqCst);
        Accepted { peer, next: 0, until: self.used.load(Ordering::Acquire), active: Vec::new() }
    }

    /// Whether all of these have ended; false also if the time is `over` before all are checked.
    pub fn have_ended(&self, these: &mut Accepted, over: impl Fn() -> bool) -> bool {
        while these.next < these.until {
            let found = self
                .active_at(these.next)
                .filter(|(slot, _)| slot.peer.load(Ordering::Relaxed) == these.peer.get());
            these.active.extend(found.map(|(_, id)| id).filter(|id| self.may_change_memory(*id)));
            these.next += 1;
            if these.next % CLOCK_STRIDE == 0 && over() {
                return false;
            }
        }
        while these.active.last().is_some_and(|id| !self.is_active(*id)) {
            these.active.pop();
        }
        these.active.is_empty()
    }

    fn may_change_memory(&self, id: OpId) -> bool {
        let Some(slot) = self.read(id) else { return false };
        // SAFETY: `read` holds the slot.
        let body = unsafe { self.body(slot) };
        let may = body.transfer().is_some() || body.atomic().is_some();
        self.release(slot);
        may
    }

    /// Whether an operation is under one of these grants.
    fn is_under(&self, id: OpId, revoked: &HashSet<GrantToken>) -> bool {
        let Some(slot) = self.read(id) else { return false };
        // SAFETY: `read` holds the slot.
        let body = unsafe { self.body(slot) };
        let of_transfer = body.transfer().and_then(|transfer| transfer.grant);
        let grant = of_transfer.or(body.atomic().and_then(|atomic| atomic.grant));
        self.release(slot);
        grant.is_some_and(|grant| revoked.contains(&grant))
    }

    /// The outcome of an operation if a remote memory ends it; `None` if it does not use that
    /// memory.
    fn if_using(&self, id: OpId, remote: &Arc<RemoteMemory>, outcome: Outcome) -> Option<Outcome> {
        let slot = self.read(id)?;
        // SAFETY: `read` holds the slot.
        let outcome = unsafe { self.body(slot) }.if_using(remote, outcome);
        self.release(slot);
        outcome
    }

    /// Announces that the thread that checks deadlines sleeps until `until`; returns how long it
    /// may sleep. A later operation with an earlier deadline wakes it.
    pub fn may_sleep_until(&self, until: u64) -> u64 {
        // Either this thread sees the operation's deadline, or the submitter sees `sleeps_until`.
        self.sleeps_until.store(until, Ordering::SeqCst);
        self.next_deadline.load(Ordering::SeqCst).min(until)
    }

    /// Ends operations past their deadlines, until the time is `over`: the others in the next tick.
    /// Cheap before the earliest deadline: with long deadlines and short transfers, the table is
    /// scanned about once per deadline.
    pub fn expire(&self, now: u64, over: impl Fn() -> bool) {
        let Expiring { begun, scan } = &self.expiring;
        if !begun.load(Ordering::Relaxed) && now < self.next_deadline.load(Ordering::Relaxed) {
            return;
        }
        // Another thread may be scanning.
        let Some(mut at) = scan.try_lock() else { return };
        if !begun.swap(true, Ordering::Relaxed) {
            // Later submissions report their deadlines.
            self.next_deadline.store(u64::MAX, Ordering::SeqCst);
            *at = Scan { next: 0, earliest: u64::MAX };
        }
        fence(Ordering::SeqCst);
        while at.next < self.used.load(Ordering::Acquire) {
            if let Some((slot, id)) = self.active_at(at.next) {
                let deadline = slot.deadline.load(Ordering::Relaxed);
                if deadline > now {
                    at.earliest = at.earliest.min(deadline);
                } else {
                    self.end(id, Outcome::new(Status::TimedOut), now);
                }
            }
            at.next += 1;
            if at.next % CLOCK_STRIDE == 0 && over() {
                return;
            }
        }
        self.next_deadline.fetch_min(at.earliest, Ordering::SeqCst);
        begun.store(false, Ordering::Relaxed);
    }
}

/// Slots taken and not yet filled; dropping it frees the rest.
pub struct Reserved<'a> {
    pub(super) table: &'a Table,
    pub(super) first: Option<&'a Slot>,
}

impl<'a> Reserved<'a> {
    fn take(&mut self) -> Option<&'a Slot> {
        let slot = self.first.take()?;
        self.first = self.table.after(slot);
        Some(slot)
    }

    /// Begins an operation of this many parts. Its slot is held until the last part has ended.
    pub fn begin_whole(&mut self, body: impl FnOnce() -> Body, parts: u64) -> Option<OpId> {
        let slot = self.take()?;
        slot.whole.left.store(parts, Ordering::Relaxed);
        *slot.whole.failed.lock() = None;
        // `part_ended` takes the hold back for the last part.
        Some(self.table.fill_part(slot, body, 0, u64::MAX, PartOf::HasParts).give())
    }

    pub fn begin_part(
        &mut self,
        body: impl FnOnce() -> Body,
        slices: u64,
        deadline: u64,
        whole: OpId,
    ) -> Option<Hold> {
        let slot = self.take()?;
        Some(self.table.fill_part(slot, body, slices, deadline, PartOf::Whole(whole)))
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        while let Some(slot) = self.take() {
            self.table.push_free(slot);
        }
    }
}

impl Table {
    /// Takes this many slots, or none and returns `None`.
    pub fn reserve(&self, count: usize) -> Option<Reserved<'_>> {
        let mut reserved = Reserved { table: self, first: None };
        for _ in 0..count {
            let slot = self.take()?;
            self.chain(slot, reserved.first);
            reserved.first = Some(slot);
        }
        Some(reserved)
    }

    /// Counts an ended part; the last one ends the whole.
    pub(super) fn part_ended(
        &self,
        whole: OpId,
        outcome: Outcome,
        peer: Option<PeerId>,
        first_post: u64,
        now: u64,
    ) {
        let hold = Hold::on(whole);
        let slot = self.held_slot(&hold);
        if outcome.status != Status::Ok {
            slot.whole.failed.lock().get_or_insert(Failure { outcome, peer });
        }
        if first_post != 0 {
            let earlier = |first: u64| (first == 0 || first_post < first).then_some(first_post);
            let _ = slot.first_post.fetch_update(Ordering::Relaxed, Ordering::Relaxed, earlier);
        }
        if slot.whole.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            hold.give();
            return;
        }
        let failed = slot.whole.failed.lock().take();
        let Failure { outcome, peer } = failed.unwrap_or(Failure { outcome: Outcome::OK, peer: None });
        let _ = self.leave(hold);
        self.end_as(whole, outcome, peer, 0, now);
    }

    /// Cancels an operation, with its parts if it has any; false if there was
    /// nothing left to cancel.
    pub fn cancel(&self, id: OpId, now: u64) -> bool {
        let canceled = Outcome::new(Status::Canceled);
        if self.is_in_parts(id) {
            return self.end_parts(id, canceled, now);
        }
        self.end(id, canceled, now)
    }
}

/// How far an operation had come whose deadline passed, for the log.
fn so_far(slot: &Slot, body: &Body) -> String {
    let Some(transfer) = body.transfer() else {
        return match body.kind {
            completion::KIND_SEND => {
                "; the peer has not taken it: it does not poll or release, or does not answer".into()
            }
            _ => String::new(),
        };
    };
    let (slices, claimed) = (transfer.slices, slot.cursor.load(Ordering::Relaxed).min(transfer.slices));
    if Table::is_staged(slot) && !Table::has_arrived(slot) {
        return "; it goes through slots of both sides, and not all of its bytes were copied".into();
    }
    if !Table::is_sent_off(slot) && !Table::is_staged(slot) {
        return "; it had not begun: its peer is not up, the owner of the memory has not answered, or its \
                start_watch has not come"
            .into();
    }
    if Table::is_flushing(slot) {
        return "; its bytes are there, and the peer's disk has not flushed them".into();
    }
    if transfer.is_announced() && Table::has_arrived(slot) {
        return "; its bytes are there, and the peer has not taken the notification or count: its queue is full, or it \
                does not answer"
            .into();
    }
    format!("; {claimed} of {slices} pieces were given to NICs, which have not delivered all of them")
}

#[cfg(test)]
mod tests {
    use super::super::queue::Queue;
    use super::*;

    /// The thread that ended an operation looks whether NICs still work for it, after another thread has
    /// published that and the slot has gone to the next operation.
    #[test]
    fn late_end_publishes_no_other_operation_of_the_slot() {
        let queue = Arc::new(Queue::new(16).expect("there is memory"));
        let table = Table::new(1, 1, 1, queue.clone());
        let ends_late = || -> Hold {
            assert!(queue.reserve(1));
            let body = || Body::bare(To::Own);
            let hold = table.begin(body, 1, u64::MAX).expect("the slot is free");
            assert!(table.carry(table.held_slot(&hold)));
            assert!(table.end(hold.id(), Outcome::new(Status::Canceled), 0));
            hold
        };
        let first = ends_late();
        let (id, slot) = (first.id(), table.held_slot(&first));
        table.put_down(slot);
        let _ = table.leave(first);
        assert_eq!((queue.unpolled(), table.late()), (1, 0));
        let second = ends_late();
        assert!(table.take_late(slot, id).is_none() && Table::is_late(slot));
        assert_eq!((queue.unpolled(), table.late()), (1, 1), "a NIC works for the second");
        table.put_down(slot);
        let _ = table.leave(second);
        assert_eq!((queue.unpolled(), table.late()), (2, 0));
    }
}
