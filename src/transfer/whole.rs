//! An operation in parts: a list over several peers. Each part is an operation of
//! its own, with its own deadline; the whole ends when the last of them has.

use super::operation::Body;
use super::table::{Slot, Table};
use super::Outcome;
use crate::ids::{Hold, OpId, PeerId};
use crate::status::Status;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// How an operation and others belong together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PartOf {
    Nothing,
    Whole(OpId),
    HasParts,
}

/// In a slot, where it is one word. (No id is all ones.)
const HAS_PARTS: u64 = u64::MAX;

/// How the first part that failed did.
#[derive(Clone, Copy)]
struct Failure {
    outcome: Outcome,
    peer: Option<PeerId>,
}

/// What a slot knows of the whole.
pub(super) struct Whole {
    of: AtomicU64,
    /// Parts that have not ended.
    left: AtomicU64,
    failed: Mutex<Option<Failure>>,
}

impl Whole {
    pub fn new() -> Whole {
        Whole { of: AtomicU64::new(0), left: AtomicU64::new(0), failed: Mutex::new(None) }
    }

    #[inline]
    pub fn belong(&self, of: PartOf) {
        let word = match of {
            PartOf::Nothing => 0,
            PartOf::Whole(whole) => whole.get(),
            PartOf::HasParts => HAS_PARTS,
        };
        self.of.store(word, Ordering::Relaxed);
    }

    pub fn of(&self) -> PartOf {
        match self.of.load(Ordering::Relaxed) {
            HAS_PARTS => PartOf::HasParts,
            whole => OpId::new(whole).map_or(PartOf::Nothing, PartOf::Whole),
        }
    }
}

/// Slots that were taken and not filled yet; those left over go back.
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

    /// Begins an operation of so many parts. It is held until the last has ended.
    pub fn begin_whole(&mut self, body: impl FnOnce() -> Body, parts: u64) -> Option<OpId> {
        let slot = self.take()?;
        slot.whole.left.store(parts, Ordering::Relaxed);
        *slot.whole.failed.lock() = None;
        // The last part has the hold (`part_ended`).
        Some(self.table.fill_part(slot, body, 0, u64::MAX, PartOf::HasParts).give())
    }

    /// Begins one of its parts, as `Table::begin`.
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
    /// Takes slots; `None`, and none is taken, where there are not so many.
    pub fn reserve(&self, count: usize) -> Option<Reserved<'_>> {
        let mut reserved = Reserved { table: self, first: None };
        for _ in 0..count {
            let slot = self.take()?;
            self.chain(slot, reserved.first);
            reserved.first = Some(slot);
        }
        Some(reserved)
    }

    /// A part has ended; the last one ends the whole.
    pub(super) fn part_ended(
        &self,
        whole: OpId,
        outcome: Outcome,
        (peer, first_post): (Option<PeerId>, u64),
        now: u64,
    ) {
        let hold = Hold::of(whole);
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
        self.end_as(whole, outcome, (peer, 0), now);
    }

    /// Cancels an operation, with its parts if it has any; false if there was
    /// nothing left to cancel.
    pub fn cancel(&self, id: OpId, now: u64) -> bool {
        let canceled = Outcome::of(Status::Canceled);
        if self.is_in_parts(id) {
            return self.end_parts(id, canceled, now);
        }
        self.end(id, canceled, now)
    }
}
