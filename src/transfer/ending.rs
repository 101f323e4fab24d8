//! How operations end: each with its one completion, which waits for the NICs where they
//! may still be at work for it.

use super::completion::Completion;
use super::gate::{Before, Passing};
use super::operation::{Body, To};
use super::table::{id_in, index_of, Slot, Table, ACTIVE};
use super::tally::Ended;
use super::whole::{ALONE, IN_PARTS};
use super::Outcome;
use crate::fabric::error_text;
use crate::ids::PeerId;
use crate::memory::RemoteMemory;
use crate::status::Status;
use std::cell::Cell;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

/// Of `Slot::late`: its completion waits for the NICs; somebody publishes it.
const WAITS: u8 = 1;
const PUBLISHED: u8 = 2;

/// What a completion will say.
#[derive(Clone, Copy)]
pub(super) struct Ending {
    outcome: Outcome,
    /// Who it names, if not the body's.
    peer: Option<PeerId>,
    value: u64,
    now: u64,
}

/// Operations that a look at the deadlines ends: a pass has other things to do.
const EXPIRES: u32 = 512;

impl Table {
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
    pub fn has_late(&self, peer: PeerId) -> bool {
        let slots = 0..self.used.load(Ordering::Acquire);
        self.late() != 0
            && slots.filter_map(|index| self.slot(index)).any(|slot| {
                slot.late.load(Ordering::SeqCst) == WAITS && slot.peer.load(Ordering::Relaxed) == peer.get()
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
        if let Some(ending) = slot.ending.with_mut(|ending| unsafe { (*ending).take() }) {
            let passing = self.gate.pass();
            let published = self.publish(slot, &ending);
            drop(passing);
            published.iter().for_each(Published::explain);
        }
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
        (peer, value): (Option<PeerId>, u64),
        now: u64,
    ) -> bool {
        let passing = self.gate.pass();
        let Some(slot) = self.take_end(id) else { return false };
        let ending = Ending { outcome, peer, value, now };
        if outcome.status != Status::Ok && slot.carried.load(Ordering::SeqCst) != 0 {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            // SAFETY: only who ended it writes, and nobody reads before `late` says so.
            slot.ending.with_mut(|at| unsafe { *at = Some(ending) });
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
        published.iter().for_each(Published::explain);
        true
    }

    /// Publishes the completion of an operation that has ended: what there is to say of it.
    fn publish(&self, slot: &Slot, ending: &Ending) -> Option<Published> {
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
        let mut completion = Completion::new(body.kind, outcome, peer.or(body.peer), now);
        completion.transfer = whole.unwrap_or(id);
        completion.user_data = body.user_data;
        completion.value = value;
        completion.bytes = if outcome.status == Status::Ok { body.bytes } else { 0 };
        completion.submit_ns = body.submit_ns;
        completion.first_post_ns = first_post;
        self.count(body, &completion, outcome.status);
        let other = if let To::Queue(queue) = &body.to { Some(queue.clone()) } else { None };
        let (tells, deadline) = (body.tells(), slot.deadline.load(Ordering::Relaxed));
        if let Some((watch, value)) = body.done.as_deref() {
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
        (outcome.status != Status::Ok).then_some(Published { completion, outcome, deadline })
    }

    /// Holds up `await_publication` until it is dropped.
    pub fn pass(&self) -> Passing<'_> {
        self.gate.pass()
    }

    /// What has ended so far: `are_published` says when the completions are in their queues.
    pub fn ended_so_far(&self) -> Before {
        self.gate.before()
    }

    pub fn are_published(&self, ended: Before) -> bool {
        self.gate.have_passed(ended)
    }

    /// As these, at once: for who has nothing else to do.
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
            let id = id_in(state, index as u32);
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

    pub fn end_of_peer(&self, peer: PeerId, outcome: Outcome, now: u64) {
        self.end_where(|slot, _| slot.peer.load(Ordering::Relaxed) == peer.get(), outcome, now);
    }

    /// Ends the transfers that use a remote memory.
    pub fn end_of_remote(&self, remote: &Arc<RemoteMemory>, outcome: Outcome, now: u64) {
        fence(Ordering::SeqCst);
        for index in 0..self.used.load(Ordering::Acquire) {
            let Some(slot) = self.slot(index) else { continue };
            if slot.peer.load(Ordering::Relaxed) != remote.peer.get() {
                continue;
            }
            let id = id_in(slot.state.load(Ordering::SeqCst), index as u32);
            let Some(slot) = self.read(id) else { continue };
            // SAFETY: held as a reader.
            let outcome = unsafe { self.body(slot) }.if_using(remote, outcome);
            self.release(slot);
            if let Some(outcome) = outcome {
                self.end(id, outcome, now);
            }
        }
    }

    /// For who looks after deadlines, and is about to sleep until some time: until when it may.
    /// An operation that is due earlier, and is not known here, wakes it.
    pub fn may_sleep_until(&self, until: u64) -> u64 {
        // Either this sees the operation's deadline, or whoever submits it sees this.
        self.sleeps_until.store(until, Ordering::SeqCst);
        self.next_deadline.load(Ordering::SeqCst).min(until)
    }

    /// Ends what is past its deadline, as many as a pass has time for: the others in the next
    /// tick. Cheap until the earliest one has passed:
    /// with long deadlines and short transfers the table is scanned about once
    /// in a deadline.
    pub fn expire(&self, now: u64) {
        if now < self.next_deadline.load(Ordering::Relaxed) {
            return;
        }
        self.next_deadline.store(u64::MAX, Ordering::SeqCst);
        let ended = Cell::new(0);
        let late = |slot: &Slot, _| {
            let late = slot.deadline.load(Ordering::Relaxed) <= now && ended.get() < EXPIRES;
            ended.set(ended.get() + u32::from(late));
            late
        };
        self.end_where(late, Outcome::of(Status::TimedOut), now);
        if ended.get() == EXPIRES {
            self.next_deadline.fetch_min(now, Ordering::SeqCst);
            return;
        }
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

/// A completion that is in its queue, of an operation that failed.
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
        if !log::log_enabled!(level) {
            return;
        }
        let Completion { transfer, submit_ns, .. } = completion;
        let peer = completion.peer.map_or(0, PeerId::get);
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
