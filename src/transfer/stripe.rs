//! A lane's part of one transfer: claims runs of slices and posts them in the cheapest way.

use super::claims::{Claims, Run};
use super::geometry::{Geometry, Position, PIECE};
use super::layer::Layer;
use super::operation::Move;
use super::shape::View;
use super::stripes::{NewStripe, Step, TURN};
use super::table::{id_in, Slot, Table};
use super::Direction;
use crate::fabric::{Posted, Rma, Segment};
use crate::ids::LaneSlot;
use crate::rail::{Burst, Tag, Work};
use crate::status::Status;
use crate::trace;
use crate::transfer::Outcome;
use crate::without::{is_without, Technique};
use arrayvec::ArrayVec;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

/// Maximum slices per claim, regardless of size.
const CLAIM_MAX: u64 = 256;
/// Maximum segments per post, and the bytes up to which segments are added.
const VECTOR: usize = 16;
const VECTOR_LEN: u64 = 256 << 10;
/// The same where the target makes a call for each post: long vectors need few calls.
const LONG_VECTOR: usize = 128;
const LONG_VECTOR_LEN: u64 = 512 << 10;
/// The same between devices' memory, where the cost of a post dominates.
const SHARED_VECTOR: usize = 64;
const SHARED_VECTOR_LEN: u64 = 1 << 20;
/// Maximum whole pages posted at once.
const RUN: usize = 32;
/// A transfer begins only if this many times its expected duration is left. Others may begin after
/// it and slow it, and a transfer that misses its deadline wastes the link.
const HEADROOM: u128 = 2;
/// Shortest part of a slice, where bulk slices are split to keep the queue short.
const PART_LEAST: u64 = 16 << 10;

mod gather;

pub struct Stripe {
    /// Valid until the stripe leaves the slot, as is the slot's transfer.
    slot: NonNull<Slot>,
    transfer: NonNull<Move>,
    /// How many lanes share the transfer: claims shrink towards its end.
    parts: u64,
    /// Slices that may be claimed in this pass; the rest is for the other lanes.
    quota: u64,
    pass: u32,
    urgent: bool,
    /// Its bytes may wait for devices too, so they are in flight longer than the link takes.
    staged: bool,
    /// What it posts now is for a disk.
    slow: bool,
    /// Some post may wait for a disk.
    has_slow: bool,
    /// Its posts may need credits.
    counted: bool,
    next: u64,
    end: u64,
    at: Position,
    /// Bytes of the next slice posted so far, if it is split.
    within: u64,
    layer: Layer,
    claims: Claims,
    /// Runs claimed by a lane that failed: these are posted first.
    again: Vec<Run>,
    arrived: u64,
    /// Bytes left in this turn.
    turn: u64,
    /// The stripe is no longer deferred.
    begun: bool,
    exhausted: bool,
    /// This lane alone carries the transfer, so the notification may follow the last post.
    speculative: bool,
    /// A post failed or may have failed: unsettled slices do not count as arrived.
    spoilt: bool,
    /// No NIC works for the stripe.
    down: bool,
    /// When its operation was first seen ended, with posts still at the NIC.
    late_ns: Option<u64>,
}

// SAFETY: the slot outlives the stripe and is shared between threads by design.
unsafe impl Send for Stripe {}

struct Gathered {
    bytes: u64,
    slices: u64,
    after: Position,
}

impl Stripe {
    pub fn new(slot: &Slot, transfer: &Move, new: NewStripe, claims: Claims) -> Stripe {
        Stripe {
            slot: NonNull::from(slot),
            transfer: NonNull::from(transfer),
            parts: new.parts.max(1),
            quota: 0,
            pass: 0,
            urgent: transfer.urgent,
            staged: false,
            slow: false,
            has_slow: false,
            counted: transfer.is_counted(),
            next: 0,
            end: 0,
            at: Position::default(),
            within: 0,
            layer: Layer::NONE,
            claims,
            again: new.again,
            arrived: 0,
            turn: TURN,
            begun: false,
            exhausted: false,
            speculative: new.speculative,
            spoilt: false,
            down: false,
            late_ns: None,
        }
    }

    pub fn slot(&self) -> &Slot {
        // SAFETY: the stripe holds the slot until it leaves.
        unsafe { self.slot.as_ref() }
    }

    /// Whether it should be deferred: at `rate`, bytes a second of each lane, shared with `others`,
    /// it would miss its deadline. Once begun, on any lane, it continues.
    pub fn would_miss(&mut self, now: u64, rate: u64, others: usize) -> bool {
        if self.begun || rate == 0 {
            return false;
        }
        // SAFETY: the stripe's hold keeps the slot and its transfer alive.
        let (slot, transfer) = unsafe { (self.slot.as_ref(), self.transfer.as_ref()) };
        let bytes = u128::from(transfer.view().bytes()) * (others as u128 + 1);
        let ns = bytes * 1_000_000_000 / (u128::from(rate) * u128::from(self.parts));
        let time = slot.deadline.load(Relaxed).saturating_sub(now);
        let misses = HEADROOM * ns > time.into() && slot.cursor.load(Relaxed) == 0;
        self.begun = !misses;
        misses
    }

    pub fn begin(&mut self) {
        self.begun = true;
    }

    /// Its emptied claims, after the stripe has left.
    pub fn take_claims(&mut self) -> Claims {
        std::mem::take(&mut self.claims).cleared()
    }

    /// Everything has been posted and has come back.
    pub fn is_done(&self) -> bool {
        self.exhausted && self.claims.inflight() == 0
    }

    /// Counts finished posts of a generation of claims, and slices that arrived through
    /// them; true if it may be done.
    #[inline]
    pub fn count(&mut self, generation: usize, posts: u32, slices: u32) -> bool {
        if self.spoilt {
            self.claims.came_back(generation, posts);
        } else {
            self.claims.finished(generation, posts, (self.next, self.end));
        }
        self.arrived += u64::from(slices);
        self.exhausted
    }

    pub fn spoil(&mut self) {
        if !self.spoilt {
            self.claims.settle((self.next, self.end));
        }
        self.spoilt = true;
        self.speculative = false;
    }

    /// No NIC works for the stripe, so its operation's completion need not wait for it.
    pub fn put_down(&mut self, table: &Table) {
        if !std::mem::replace(&mut self.down, true) {
            table.put_down(self.slot());
        }
    }

    /// What was looked up of memories may have changed.
    pub fn forget_keys(&mut self) {
        self.layer = Layer::NONE;
    }

    pub fn is_granted(&self) -> bool {
        // SAFETY: the stripe's hold keeps the slot and its transfer alive.
        unsafe { self.transfer.as_ref() }.grant.is_some()
    }

    /// Whether its posts may wait for a disk.
    pub fn is_slow(&self) -> bool {
        self.has_slow
    }

    /// The entry that is a layer, if its transfer is a list.
    pub fn entry_in(&self, layer: u64) -> Option<u64> {
        // SAFETY: the stripe's hold keeps the slot and its transfer alive.
        unsafe { self.transfer.as_ref() }.view().entry_in(layer)
    }

    /// A NIC has a post of the stripe.
    pub fn is_posted(&self) -> bool {
        self.claims.inflight() > 0
    }

    /// Whether its operation has ended and has waited for the stripe for longer than `grace_ns`.
    pub fn is_overdue(&mut self, now: u64, grace_ns: u64) -> bool {
        if self.down || !Table::is_late(self.slot()) {
            return false;
        }
        // (A disk may take long, and its NIC takes memory back at once.)
        if self.has_slow {
            return true;
        }
        now.saturating_sub(*self.late_ns.get_or_insert(now)) > grace_ns
    }

    /// The arrived slices of a stripe that others take over, its other runs, and whether some of these may have arrived.
    pub fn surrender(&mut self) -> (u64, Vec<Run>, bool) {
        let mut runs = self.claims.take_unsettled();
        let posted = runs.iter().any(|(start, _)| *start < self.next || *start >= self.end);
        runs.append(&mut self.again);
        (self.claims.settled(), runs, posted)
    }

    /// Whether there may be unclaimed slices.
    pub fn has_unclaimed(&self) -> bool {
        // SAFETY: the stripe's hold keeps the slot and its transfer alive.
        let (slot, transfer) = unsafe { (self.slot.as_ref(), self.transfer.as_ref()) };
        slot.cursor.load(Relaxed) < transfer.slices
    }

    /// Whether every slice is claimed, and the stripe has posted all that it claimed.
    #[inline]
    fn is_through(&self) -> bool {
        self.next == self.end && self.again.is_empty() && !self.has_unclaimed()
    }

    /// Whether the speculative notification may be sent, now that all is posted. True once.
    pub fn may_notify(&mut self) -> bool {
        std::mem::take(&mut self.speculative)
    }

    /// Whether its turn has ended: the next one then begins, and has also what is left of this one.
    pub fn end_turn(&mut self) -> bool {
        let over = self.turn < TURN / 4;
        if over {
            self.turn += TURN;
        }
        over
    }

    /// Stops claiming, since the operation has ended.
    pub fn give_up(&mut self) {
        self.exhausted = true;
        self.speculative = false;
    }

    /// Slices that count as arrived when the stripe leaves.
    pub fn counts(&self) -> u64 {
        if self.spoilt {
            self.claims.settled()
        } else {
            self.arrived
        }
    }

    pub fn is_finished(&mut self) -> bool {
        if !Table::wanted(self.slot()) {
            self.give_up();
        }
        self.exhausted |= self.is_through();
        self.exhausted
    }

    /// Begins a pass: a lane claims at most its share before the other lanes may claim.
    pub fn enter(&mut self, pass: u32) {
        if self.pass == pass {
            return;
        }
        // SAFETY: the stripe's hold keeps the slot and its transfer alive.
        let (slot, transfer) = unsafe { (self.slot.as_ref(), self.transfer.as_ref()) };
        let unclaimed = transfer.slices.saturating_sub(slot.cursor.load(Relaxed));
        (self.pass, self.quota) = (pass, unclaimed.div_ceil(self.parts).max(1));
    }

    /// Posts until the turn, the claim, the window or the budget of posts is used up.
    #[inline]
    pub fn step(&mut self, burst: &mut Burst, index: u32, budget: &mut u32) -> Step {
        // SAFETY: the stripe's hold keeps the slot and its transfer alive.
        let (slot, transfer) = unsafe { (self.slot.as_ref(), self.transfer.as_ref()) };
        if !Table::wanted(slot) {
            self.give_up();
            return Step::Finished;
        }
        let index = self.claims.tag(index);
        let starved = self.counted && burst.countable().1 == 0;
        if self.urgent && !starved {
            burst.kick();
        }
        let mut room = if self.slow { burst.room_of_slow() } else { burst.room(self.urgent, self.staged) };
        if room == 0 {
            return if self.slow { Step::Starved } else { Step::Full };
        }
        let has_claim = self.next != self.end || !self.again.is_empty();
        if !has_claim && !self.exhausted && (self.quota == 0 || starved) {
            if slot.cursor.load(Relaxed) < transfer.slices {
                return if starved { Step::Starved } else { Step::Shared };
            }
            self.exhausted = true;
        }
        if self.next == self.end {
            if !self.claim(slot, transfer, burst, room) {
                return Step::Finished;
            }
            if !transfer.allows(self.at, self.end - self.next, burst.limits.grants) {
                return Step::Ended(Outcome::new(Status::Revoked));
            }
        }
        if self.layer.index != self.at.layer && !self.look_up(transfer, burst) {
            return Step::Finished;
        }
        if self.layer.slow != self.slow {
            room = self.change_speed(burst);
            if room == 0 {
                return if self.slow { Step::Starved } else { Step::Full };
            }
        }
        if starved && self.layer.immediate.is_some() {
            return Step::Starved;
        }
        if slot.first_post.load(Relaxed) == 0 {
            slot.first_post.store(burst.now, Relaxed);
        }
        self.staged = self.layer.on_device && burst.limits.grants;
        if self.layer.on_device {
            if self.layer.gone {
                log::warn!("a transfer ends: local device memory was freed while it was registered");
                return Step::Ended(Outcome::new(Status::MemoryGone));
            }
            // The notification could overtake bytes that a device has yet to copy.
            self.speculative = false;
        }
        if burst.limits.vector >= LONG_VECTOR {
            self.post::<LONG_VECTOR, LONG_VECTOR_LEN>(burst, index, transfer, room, budget)
        } else if self.layer.on_device {
            self.post::<SHARED_VECTOR, SHARED_VECTOR_LEN>(burst, index, transfer, room, budget)
        } else {
            self.post::<VECTOR, VECTOR_LEN>(burst, index, transfer, room, budget)
        }
    }

    /// The next layer is on a disk, or no longer: bytes that may be posted now.
    #[cold]
    fn change_speed(&mut self, burst: &mut Burst) -> u64 {
        self.slow = self.layer.slow;
        self.has_slow |= self.slow;
        if self.slow {
            burst.room_of_slow()
        } else {
            burst.room(self.urgent, self.staged)
        }
    }

    #[inline]
    fn post<const MOST: usize, const MOST_LEN: u64>(
        &mut self,
        burst: &mut Burst,
        index: u32,
        transfer: &Move,
        mut room: u64,
        budget: &mut u32,
    ) -> Step {
        let (view, read) = (transfer.view(), transfer.direction == Direction::Read);
        let whole = self.within == 0 && (self.urgent || self.slow || !burst.is_brief());
        let mut vector = self.vector(burst, read, whole).min(MOST);
        let mut posts = burst.posts().min(*budget);
        let alone = vector == 1 || self.end - self.next == 1;
        if alone && !self.slow && (whole || self.layer.immediate.is_some()) {
            if let Some((geometry, run)) = view.whole_pages(self.at, self.end - self.next) {
                let bytes = room.min(self.turn);
                let run = run.min(posts.into()).min(bytes.div_ceil(geometry.slice_len()));
                return self.post_pages(burst, index, geometry, run, read, budget);
            }
        }
        let mut segments = ArrayVec::<Segment, MOST>::new();
        let mut outcome = Step::Posted;
        while posts > 0 && room > 0 && self.turn > 0 && self.next < self.end {
            if self.layer.index != self.at.layer {
                if !self.look_up(transfer, burst) {
                    outcome = Step::Finished;
                    break;
                }
                if self.layer.on_device || self.slow {
                    break;
                }
                vector = self.vector(burst, read, whole).min(MOST);
            }
            let (slice, after) = view.take(self.at, self.end - self.next);
            let (work, credits) = self.work(burst);
            if credits == 0 {
                break;
            }
            let (descriptor, key) = (self.layer.descriptor, self.layer.key);
            let mut gathered = Gathered { bytes: slice.len, slices: slice.slices, after };
            segments.clear();
            segments.push(self.layer.segment(&slice));
            if !whole && self.layer.immediate.is_none() {
                if room < PART_LEAST.min(slice.len) && !burst.is_idle() {
                    return Step::Full;
                }
                self.cut(&mut segments[0], &mut gathered, room);
            } else if vector > 1 {
                self.gather(&mut segments, &mut gathered, transfer, burst, vector, room.min(MOST_LEN));
            }
            let Gathered { bytes, slices, after } = gathered;
            let next = self.next + slices;
            let rma = Rma {
                read,
                segments: &segments,
                descriptor,
                key,
                immediate: self.layer.immediate,
                // Only when the next post of this claim follows at once.
                more: !is_without(Technique::Batches)
                    && posts > 1
                    && room.min(self.turn) > bytes
                    && next < self.end
                    && slices > 0,
            };
            let tag = Tag { len: bytes, ..Tag::new(work, LaneSlot::NONE, index, slices as u32) };
            let posted = match self.slow {
                // SAFETY: the memory stays registered while the slot is held, and the rail keeps the
                // op until the NIC gives it back.
                true => unsafe { burst.post_slow(rma, self.layer.index, self.layer.theirs, tag) },
                // SAFETY: the same holds here.
                false => unsafe { burst.post(rma, bytes, tag) },
            };
            match posted {
                Posted::Yes => {}
                Posted::Again => {
                    outcome = if self.slow { Step::Starved } else { Step::Full };
                    break;
                }
                Posted::Failed(errno) => return Step::Failed(errno),
            }
            if self.layer.immediate.is_some() {
                burst.spend(1);
            }
            self.within = if slices == 0 { self.within + bytes } else { 0 };
            self.advance(bytes, slices, after);
            room = room.saturating_sub(bytes);
            posts -= 1;
            *budget -= 1;
        }
        match outcome {
            Step::Posted => self.after_posts(),
            other => other,
        }
    }

    /// Looks up the layer that is posted next. False: the operation has ended, so the stripe gives up.
    /// What was found may be a key that its grant no longer includes.
    fn look_up(&mut self, transfer: &Move, burst: &Burst) -> bool {
        self.layer = Layer::new(transfer, self.at.layer, burst);
        let ended = transfer.grant.is_some() && !Table::wanted(self.slot());
        if ended {
            self.give_up();
        }
        !ended
    }

    /// Maximum segments of a post. `whole`: slices are not split.
    #[inline]
    fn vector(&self, burst: &Burst, read: bool, whole: bool) -> usize {
        if whole && (read || self.layer.immediate.is_none()) {
            burst.limits.vector
        } else {
            1
        }
    }

    /// Posts a run of whole pages of one layer, one by one: the shortest code path.
    fn post_pages(
        &mut self,
        burst: &mut Burst,
        index: u32,
        geometry: &Geometry,
        run: u64,
        read: bool,
        budget: &mut u32,
    ) -> Step {
        let len = geometry.slice_len();
        let Layer { descriptor, key, immediate, .. } = self.layer;
        let (work, credits) = self.work(burst);
        let run = run.min(credits.into()).min(RUN as u64);
        let tag = Tag { len, ..Tag::new(work, LaneSlot::NONE, index, 1) };
        let mut segments = ArrayVec::<Segment, RUN>::new();
        segments.extend(geometry.each_whole_page(self.at, run).map(|page| self.layer.segment(&page)));
        let rma = Rma { read, segments: &segments, descriptor, key, immediate, more: false };
        // SAFETY: the reason given in `post` holds here as well.
        let (posted, outcome) = unsafe { burst.post_each(rma, run as usize, len, tag) };
        if immediate.is_some() {
            burst.spend(posted);
        }
        *budget -= posted;
        self.claims.posted(posted);
        let posted = u64::from(posted);
        self.next += posted;
        self.at = geometry.after_pages(self.at, posted);
        self.turn = self.turn.saturating_sub(posted * len);
        match outcome {
            Posted::Yes => self.after_posts(),
            Posted::Again => Step::Full,
            Posted::Failed(errno) => Step::Failed(errno),
        }
    }

    /// Begins after the only post of its transfer, of one slice (`Stripes::post_first`).
    #[inline]
    pub fn posted_alone(&mut self, now: u64) {
        let slot = self.slot();
        slot.cursor.store(1, Relaxed);
        slot.first_post.store(now, Relaxed);
        self.claims.claim((0, 1));
        self.claims.posted(1);
        (self.next, self.end) = (1, 1);
        self.exhausted = true;
    }

    #[inline]
    fn after_posts(&mut self) -> Step {
        if !self.is_through() {
            return Step::Posted;
        }
        self.exhausted = true;
        Step::Finished
    }

    /// The kind of the next post, and how many posts are allowed.
    #[inline]
    fn work(&self, burst: &Burst) -> (Work, u32) {
        match self.layer.immediate {
            None => (Work::Slice, u32::MAX),
            Some(_) => burst.countable(),
        }
    }

    #[inline]
    fn advance(&mut self, bytes: u64, slices: u64, at: Position) {
        self.claims.posted(1);
        self.next += slices;
        self.at = at;
        self.turn = self.turn.saturating_sub(bytes);
    }

    /// Claims the next run of slices, of about as many bytes as the window allows; false when no
    /// slices are left.
    fn claim(&mut self, slot: &Slot, transfer: &Move, burst: &Burst, room: u64) -> bool {
        let (view, slices) = (transfer.view(), transfer.slices);
        if let Some(run) = self.again.pop() {
            self.take(run, view, slot, burst, true);
            return true;
        }
        let unclaimed = slices.saturating_sub(slot.cursor.load(Relaxed));
        self.exhausted |= unclaimed == 0;
        if self.exhausted {
            return false;
        }
        let fair = unclaimed / (2 * self.parts);
        // Leave slices beyond this lane's credits to other lanes.
        let limit = if self.counted { burst.countable().1.into() } else { CLAIM_MAX };
        let most = (room.min(PIECE) / view.slice_len()).clamp(1, CLAIM_MAX.min(limit).max(1));
        let most = if is_without(Technique::Sharding) { 1 } else { most };
        let run = fair.clamp(1, most).min(self.quota.max(1));
        let start = slot.cursor.fetch_add(run, Relaxed);
        self.exhausted = start >= slices;
        if self.exhausted {
            return false;
        }
        self.quota = self.quota.saturating_sub(run);
        self.take((start, slices.min(start + run)), view, slot, burst, false);
        true
    }

    fn take(&mut self, run: Run, view: View, slot: &Slot, burst: &Burst, again: bool) {
        trace::add(|| burst.claimed(id_in(slot.state.load(Relaxed), slot.index), run, again));
        self.claims.claim(run);
        (self.next, self.end) = run;
        self.at = view.seek(run.0);
    }
}
