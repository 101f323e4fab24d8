//! The stripes of one lane: their turns, their arrivals, and when they leave. `stripe` has the work
//! of one stripe.

use super::claims::{split, Claims, Run};
use super::operation::Move;
use super::stripe::Stripe;
use super::table::{Left, Slot, Table};
use crate::fabric::{Posted, Rma, ON_DISK};
use crate::ids::{Hold, LaneSlot};
use crate::lane::Life;
use crate::rail::{Burst, Done, Lane, Rail, Tag, Work};
use crate::status::Status;
use crate::transfer::Outcome;
use std::collections::VecDeque;
use std::fmt;

/// Posts of one lane between polls of the completion queue: some NICs lose rate when posts come
/// without polls.
const BATCH: u32 = 32;
/// Bytes of one stripe's turn.
pub(super) const TURN: u64 = 128 << 10;
/// One of this many posts is for the bulk class even while the latency class has posts.
const BULK_TURN: u32 = 8;
const URGENT: usize = 0;
const BULK: usize = 1;
/// Stripes checked for being finished, when a lane is full or has no credits.
const SWEEP: usize = 16;
/// The same in a tick, after an operation ended that a stripe may belong to.
const SWEEP_PER_TICK: usize = 256;
/// Claims kept for later stripes.
const SPARE: usize = 64;
/// Stripes of a waiting lane checked per tick.
const STRIPES_PER_TICK: usize = 4096;
/// Stripes ended between checks of the clock.
const CLOCK_STRIDE: u32 = 64;

fn class_of(transfer: &Move) -> usize {
    if transfer.urgent {
        URGENT
    } else {
        BULK
    }
}

/// Stripes by number. They do not move when more are added: copying very many takes too long.
#[derive(Default)]
struct StripeSlots(Vec<Vec<Option<Stripe>>>);

const CHUNK: usize = 256;

impl StripeSlots {
    #[inline]
    fn at(&mut self, index: u32) -> Option<&mut Option<Stripe>> {
        self.0.get_mut(index as usize / CHUNK)?.get_mut(index as usize % CHUNK)
    }

    #[inline]
    fn get(&self, index: u32) -> Option<&Stripe> {
        self.0.get(index as usize / CHUNK)?.get(index as usize % CHUNK)?.as_ref()
    }

    #[inline]
    fn get_mut(&mut self, index: u32) -> Option<&mut Stripe> {
        self.at(index)?.as_mut()
    }

    fn len(&self) -> u32 {
        let last = self.0.last().map_or(0, Vec::len);
        (self.0.len().saturating_sub(1) * CHUNK + last) as u32
    }

    fn push(&mut self, stripe: Option<Stripe>) {
        match self.0.last_mut().filter(|chunk| chunk.len() < CHUNK) {
            Some(chunk) => chunk.push(stripe),
            None => self.0.push(vec![stripe]),
        }
    }

    fn pop(&mut self) -> Option<Option<Stripe>> {
        let last = self.0.last_mut()?;
        let stripe = last.pop();
        if last.is_empty() {
            self.0.pop();
        }
        stripe
    }

    fn places(&mut self) -> impl Iterator<Item = &mut Option<Stripe>> {
        self.0.iter_mut().flatten()
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Stripe> {
        self.places().flatten()
    }
}

#[derive(Default)]
pub struct Stripes {
    stripes: StripeSlots,
    free: Vec<u32>,
    /// Claims of stripes that left, so that the next ones need not allocate.
    spare: Vec<Claims>,
    /// Stripes that may have something to post, by class, in the order of their turns.
    ready: [VecDeque<u32>; 2],
    /// Stripes that wait for credits or disks, by class.
    starved: [VecDeque<u32>; 2],
    /// Bulk stripes that would miss their deadlines beside the others: each begins when it would
    /// meet its deadline, or when nothing else is ready. So the others meet theirs where more is
    /// submitted than the link carries.
    deferred: VecDeque<u32>,
    /// Stripes that are to be posted again, once all their posts are back.
    refused: Vec<u32>,
    /// Stripes from this number on are still to give up.
    to_give_up: Option<u32>,
    round: usize,
    posts: u32,
    passes: u32,
}

/// What came of a stripe's turn.
pub enum Step {
    /// Something was posted; there may be more.
    Posted,
    /// The window of lane or rail is full: try again after completions.
    Full,
    /// The next post needs a credit, and the lane has none, or a disk has enough: other stripes may continue.
    Starved,
    /// The stripe has claimed its share of this pass.
    Shared,
    /// Nothing more to post in this stripe.
    Finished,
    /// The stripe cannot continue: the transfer ends.
    Ended(Outcome),
    Failed(i32),
}

pub struct NewStripe {
    pub parts: u64,
    pub speculative: bool,
    /// Runs claimed by a lane that failed.
    pub again: Vec<Run>,
}

impl Stripes {
    /// Begins a stripe, which takes over the hold.
    pub fn begin(&mut self, hold: Hold, slot: &Slot, transfer: &Move, new: NewStripe, table: &Table) {
        let index = self.add(hold, slot, transfer, new, table);
        self.ready[class_of(transfer)].push_back(index);
    }

    /// Posts the only slice of a transfer, whose stripe is made by `posted`.
    ///
    /// # Safety
    /// Like `Burst::post`.
    #[inline]
    pub unsafe fn post_first(&mut self, burst: &mut Burst, rma: Rma, len: u64) -> bool {
        let index = self.free.last().map_or(self.stripes.len(), |index| *index);
        let tag = Tag { len, ..Tag::new(Work::Slice, LaneSlot::NONE, index, 1) };
        // SAFETY: the caller upholds the contract of `Burst::post`.
        unsafe { burst.post(rma, len, tag) == Posted::Yes }
    }

    /// Begins the stripe of the transfer that `post_first` posted; no other stripe may begin in
    /// between.
    #[inline]
    pub fn posted(&mut self, hold: Hold, slot: &Slot, transfer: &Move, table: &Table, now: u64) {
        let new = NewStripe { parts: 1, speculative: false, again: Vec::new() };
        let index = self.add(hold, slot, transfer, new, table);
        if let Some(stripe) = self.stripes.get_mut(index) {
            stripe.posted_alone(now);
        }
    }

    #[inline]
    fn add(&mut self, hold: Hold, slot: &Slot, transfer: &Move, new: NewStripe, table: &Table) -> u32 {
        hold.give(); // The stripe leaves with it.
        let wanted = table.carry(slot);
        let claims = self.spare.pop().unwrap_or_default();
        let mut stripe = Stripe::new(slot, transfer, new, claims);
        if !wanted {
            stripe.give_up();
        }
        let index = self.free.pop().unwrap_or_else(|| self.stripes.len());
        match self.stripes.at(index) {
            Some(place) => *place = Some(stripe),
            None => self.stripes.push(Some(stripe)),
        }
        index
    }

    /// Whether something can be posted once the window allows.
    pub fn is_ready(&self) -> bool {
        !self.ready.iter().all(VecDeque::is_empty)
    }

    /// Whether there is something to post, now or with credits or later.
    pub fn has_work(&self) -> bool {
        self.is_ready() || !self.starved.iter().all(VecDeque::is_empty) || !self.deferred.is_empty()
    }

    pub fn is_urgent(&self) -> bool {
        !self.ready[URGENT].is_empty()
    }

    /// Posts what the windows allow, up to a batch. Stripes that are done leave, and are added to
    /// `left`. True if anything was posted.
    pub fn pump(
        &mut self,
        rail: &mut Rail,
        lane: &mut Lane,
        now: u64,
        table: &Table,
        left: &mut Vec<Left>,
    ) -> Result<bool, i32> {
        let Some(mut burst) = rail.burst(lane, now) else { return Err(libc::ENOTCONN) };
        self.passes = self.passes.wrapping_add(1);
        let mut left_of_batch = BATCH;
        if !self.starved.iter().all(VecDeque::is_empty) {
            // On NICs without credits, they wait for disks.
            let room = match burst.limits.arrival_room {
                Some(_) => burst.countable().1.into(),
                None => burst.room_of_slow(),
            };
            self.tend_starved(room, table, left);
        }
        if !self.deferred.is_empty() {
            self.tend_deferred(&burst, table, left);
        }
        // A window may be full for the bulk class but not for the latency class.
        let mut bulk_full = false;
        while left_of_batch > 0 {
            let (class, most) = self.class(bulk_full);
            let bulk = self.ready[BULK].len();
            let Some(&index) = self.ready[class].front() else { break };
            let Some(stripe) = self.stripes.get_mut(index) else {
                self.ready[class].pop_front();
                continue;
            };
            if class == BULK && bulk > 1 && stripe.would_miss(now, burst.lane.window.bytes_per_s(), bulk - 1)
            {
                self.ready[BULK].pop_front();
                self.deferred.push_back(index);
                continue;
            }
            let most = most.min(left_of_batch);
            let mut budget = most;
            stripe.enter(self.passes);
            let step = stripe.step(&mut burst, index, &mut budget);
            left_of_batch -= most - budget;
            self.posts = self.posts.wrapping_add(most - budget);
            match step {
                Step::Posted if stripe.end_turn() => {
                    self.ready[class].rotate_left(1);
                }
                Step::Posted => {}
                Step::Starved => {
                    self.ready[class].pop_front();
                    self.starved[class].push_back(index);
                }
                Step::Shared => {
                    self.ready[class].rotate_left(1);
                    break;
                }
                Step::Full => {
                    let mut ready = std::mem::take(&mut self.ready[class]);
                    self.sweep(&mut ready, SWEEP, table, left);
                    self.ready[class] = ready;
                    if class == URGENT || self.ready[URGENT].is_empty() {
                        break;
                    }
                    bulk_full = true;
                }
                Step::Finished => {
                    self.ready[class].pop_front();
                    if stripe.may_notify() {
                        left.push(Left::Posted(table.id_of(stripe.slot()), burst.lane.peer));
                    }
                    self.leave_if_done(index, table, left);
                }
                Step::Ended(outcome) => {
                    stripe.give_up();
                    left.push(Left::Ended(table.id_of(stripe.slot()), outcome));
                    self.ready[class].pop_front();
                    self.leave_if_done(index, table, left);
                }
                Step::Failed(errno) => return Err(errno),
            }
        }
        Ok(left_of_batch < BATCH)
    }

    /// The class whose turn it is, and for how many posts: mostly the latency class.
    fn class(&self, bulk_full: bool) -> (usize, u32) {
        let until_bulk = BULK_TURN - 1 - self.posts % BULK_TURN;
        match (self.ready[URGENT].is_empty(), self.ready[BULK].is_empty() || bulk_full) {
            (true, _) => (BULK, BATCH),
            (false, true) => (URGENT, BATCH),
            (false, false) if until_bulk == 0 => (BULK, 1),
            (false, false) => (URGENT, until_bulk),
        }
    }

    /// Stripes that wait for credits, or for disks, become ready when there is room; until then, finished ones
    /// leave.
    fn tend_starved(&mut self, room: u64, table: &Table, left: &mut Vec<Left>) {
        for class in [URGENT, BULK] {
            let mut starved = std::mem::take(&mut self.starved[class]);
            if room > 0 {
                self.ready[class].append(&mut starved);
            } else {
                self.sweep(&mut starved, SWEEP, table, left);
            }
            self.starved[class] = starved;
        }
    }

    /// Deferred stripes begin if they would meet their deadlines, if another lane has begun their
    /// transfer, or if nothing else is ready; finished ones leave.
    fn tend_deferred(&mut self, burst: &Burst, table: &Table, left: &mut Vec<Left>) {
        let rate = burst.lane.window.bytes_per_s();
        let mut deferred = std::mem::take(&mut self.deferred);
        self.sweep(&mut deferred, SWEEP, table, left);
        self.deferred = deferred;
        for _ in 0..self.deferred.len().min(SWEEP) {
            let Some(index) = self.deferred.pop_front() else { return };
            let bulk = self.ready[BULK].len();
            let Some(stripe) = self.stripes.get_mut(index) else { continue };
            if bulk > 0 && stripe.would_miss(burst.now, rate, bulk) {
                self.deferred.push_back(index);
                continue;
            }
            stripe.begin();
            self.ready[BULK].push_back(index);
        }
    }

    /// Removes stripes whose slices other lanes have claimed: these need not wait for the window or
    /// credits.
    fn sweep(&mut self, waiting: &mut VecDeque<u32>, most: usize, table: &Table, left: &mut Vec<Left>) {
        for _ in 0..waiting.len().min(most) {
            let Some(index) = waiting.pop_front() else { return };
            let finished = self.stripes.get_mut(index).is_none_or(Stripe::is_finished);
            if !finished {
                waiting.push_back(index);
            } else {
                self.leave_if_done(index, table, left);
            }
        }
    }

    /// Stripes whose operations have ended leave, whatever the lane waits for, unless a NIC has a
    /// post of theirs. (Of very many, some at a time.)
    pub fn let_go(&mut self, table: &Table, left: &mut Vec<Left>) {
        let [urgent, bulk] = std::mem::take(&mut self.ready);
        let [urgent_starved, bulk_starved] = std::mem::take(&mut self.starved);
        let mut waiting = [urgent, bulk, urgent_starved, bulk_starved, std::mem::take(&mut self.deferred)];
        waiting.iter_mut().for_each(|waiting| self.sweep(waiting, SWEEP_PER_TICK, table, left));
        let [urgent, bulk, urgent_starved, bulk_starved, deferred] = waiting;
        (self.ready, self.starved) = ([urgent, bulk], [urgent_starved, bulk_starved]);
        self.deferred = deferred;
    }

    /// Counts finished posts, with the slices that arrived through them. The stripes of a lane that is being reset
    /// stay: other lanes take them over.
    #[inline]
    pub fn reaped(
        &mut self,
        tagged: u32,
        posts: u32,
        slices: u32,
        life: &Life,
        table: &Table,
        left: &mut Vec<Left>,
    ) {
        let (index, generation) = split(tagged);
        let Some(stripe) = self.stripes.get_mut(index) else { return };
        if stripe.count(generation, posts, slices) && !life.is_resetting() {
            self.leave_if_done(index, table, left);
        }
    }

    fn end_of(&mut self, tagged: u32, outcome: Outcome, table: &Table, left: &mut Vec<Left>) {
        if let Some(stripe) = self.stripes.get(split(tagged).0) {
            left.push(Left::Ended(table.id_of(stripe.slot()), outcome));
        }
    }

    /// Ends a stripe's transfer because a disk of either side failed its post.
    pub fn end_failed(&mut self, done: &Done, table: &Table, left: &mut Vec<Left>) {
        let stripe = self.stripes.get(split(done.index).0);
        let entry = stripe.and_then(|stripe| stripe.entry_in(done.len as u64));
        let provider_errno = done.errno - ON_DISK;
        let outcome = Outcome { provider_errno, entry, ..Outcome::new(Status::File) };
        self.end_of(done.index, outcome, table, left);
    }

    /// Ends a stripe's transfer because the target no longer has its memory, or has nothing under
    /// its grant. `ours`: the local memory is what is gone.
    pub fn end_gone(&mut self, tagged: u32, ours: bool, table: &Table, left: &mut Vec<Left>) {
        let granted = self.stripes.get(split(tagged).0).filter(|stripe| stripe.is_granted() && !ours);
        if let Some(stripe) = granted {
            log::debug!(
                "operation {:#x}: the target refused an access under its grant: revoked there, not ours, or outside of it",
                table.id_of(stripe.slot())
            );
        }
        let status = if granted.is_some() { Status::Revoked } else { Status::MemoryGone };
        self.end_of(tagged, Outcome::new(status), table, left);
    }

    /// The target refused a post of a stripe. True: only this stripe fails for that, under a grant,
    /// and is to be done again (`take_refused`).
    pub fn refuse(&mut self, tagged: u32) -> bool {
        let index = split(tagged).0;
        let Some(stripe) = self.stripes.get_mut(index).filter(|stripe| stripe.is_granted()) else {
            return false;
        };
        if !self.refused.contains(&index) {
            stripe.spoil();
            let queues = self.ready.iter_mut().chain(&mut self.starved).chain([&mut self.deferred]);
            queues.for_each(|queue| queue.retain(|waiting| *waiting != index));
            self.refused.push(index);
        }
        true
    }

    /// Refused stripes of which the NIC has nothing left.
    pub fn take_refused(&mut self, table: &Table) -> Vec<Stripe> {
        let mut taken = Vec::new();
        let mut refused = std::mem::take(&mut self.refused);
        refused.retain(|index| {
            let Some(place) = self.stripes.at(*index) else { return false };
            if place.as_ref().is_some_and(Stripe::is_posted) {
                return true;
            }
            taken.extend(place.take());
            self.free.push(*index);
            false
        });
        self.refused = refused;
        taken.iter_mut().for_each(|stripe| stripe.put_down(table));
        taken
    }

    /// What was looked up of memories may have changed.
    pub fn forget_keys(&mut self) {
        self.stripes.all().for_each(Stripe::forget_keys);
    }

    fn leave_if_done(&mut self, index: u32, table: &Table, left: &mut Vec<Left>) {
        let Some(place) = self.stripes.at(index) else { return };
        let done = |stripe: &&mut Stripe| stripe.is_done() && !self.refused.contains(&index);
        let Some(stripe) = place.as_mut().filter(done) else { return };
        left.push(end(table, stripe));
        if self.spare.len() < SPARE {
            self.spare.push(stripe.take_claims());
        }
        *place = None;
        self.free.push(index);
    }

    /// The lane failed: its undelivered posts do not count as delivered. Stripes end as their
    /// operations come back.
    pub fn fail(&mut self, table: &Table, left: &mut Vec<Left>) {
        self.stripes.all().for_each(Stripe::spoil);
        self.stop(table, left);
    }

    /// The lane failed, and other lanes will take over its unsettled slices.
    pub fn suspend(&mut self) {
        self.clear();
        self.stripes.all().for_each(Stripe::spoil);
    }

    /// Empties the queues: nothing more will be posted.
    fn clear(&mut self) {
        self.ready.iter_mut().chain(&mut self.starved).for_each(VecDeque::clear);
        self.deferred.clear();
    }

    pub fn take_suspended(&mut self, table: &Table) -> Option<Stripe> {
        let mut stripe = std::iter::from_fn(|| self.stripes.pop()).flatten().next()?;
        stripe.put_down(table);
        Some(stripe)
    }

    /// The lane is reset, and the NIC has returned its posts: no completion waits for the lane.
    /// Stripes of ended operations leave. (Of very many, the others in the next call.)
    pub fn put_down(&mut self, table: &Table, left: &mut Vec<Left>) {
        let next = self.next_round();
        for place in self.stripes.places().skip(next).take(STRIPES_PER_TICK) {
            if let Some(stripe) = place {
                stripe.put_down(table);
            }
            let over = place.take_if(|stripe| !Table::wanted(stripe.slot()));
            left.extend(over.map(|mut stripe| end(table, &mut stripe)));
        }
    }

    /// The numbers of stripes that have not left `grace_ns` after their operations ended. (Of very
    /// many, some at a time.)
    pub fn overdue(&mut self, now: u64, grace_ns: u64) -> impl Iterator<Item = (u32, &mut Stripe)> {
        let next = self.next_round();
        let places = self.stripes.places().skip(next).take(STRIPES_PER_TICK);
        let stripes =
            (next as u32..).zip(places).filter_map(|(index, stripe)| Some((index, stripe.as_mut()?)));
        stripes.filter_map(move |(index, stripe)| stripe.is_overdue(now, grace_ns).then_some((index, stripe)))
    }

    /// Where the next check of some of the stripes begins: where the last one ended.
    fn next_round(&mut self) -> usize {
        let next = if self.round < self.stripes.len() as usize { self.round } else { 0 };
        self.round = next + STRIPES_PER_TICK;
        next
    }

    /// The lane accepts nothing new. Stripes end as their posts come back, those without posts now
    /// or, of very many, in `go_on_stopping`.
    pub fn stop(&mut self, table: &Table, left: &mut Vec<Left>) {
        self.clear();
        self.to_give_up = Some(0);
        self.go_on_stopping(table, left, || true);
    }

    /// Continues to stop until the time is `over`; true when all stripes are stopped.
    pub fn go_on_stopping(&mut self, table: &Table, left: &mut Vec<Left>, over: impl Fn() -> bool) -> bool {
        let Some(from) = self.to_give_up else { return true };
        for index in from..self.stripes.len() {
            if let Some(stripe) = self.stripes.get_mut(index) {
                stripe.give_up();
            }
            self.leave_if_done(index, table, left);
            if (index + 1) % CLOCK_STRIDE == 0 && over() {
                self.to_give_up = Some(index + 1);
                return false;
            }
        }
        self.to_give_up = None;
        true
    }

    pub fn is_stopping(&self) -> bool {
        self.to_give_up.is_some()
    }

    /// The lane was closed: every stripe ends, with the slices that had arrived, until the time is
    /// `over`. True when no stripe is left. `left` gets the ids of the transfers.
    pub fn abandon(&mut self, table: &Table, left: &mut Vec<Left>, over: impl Fn() -> bool) -> bool {
        while let Some(place) = self.stripes.pop() {
            left.extend(place.map(|mut stripe| end(table, &mut stripe)));
            if self.stripes.len() % CLOCK_STRIDE == 0 && over() {
                break;
            }
        }
        self.stripes.len() == 0
    }
}

/// The pending work, for the log.
impl fmt::Display for Stripes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |queues: &[VecDeque<u32>; 2]| queues.iter().map(VecDeque::len).sum::<usize>();
        let all = self.stripes.0.iter().flatten().flatten().count();
        let (ready, starved) = (count(&self.ready), count(&self.starved));
        let deferred = self.deferred.len();
        write!(
            f,
            "{all} stripes ({ready} ready, {starved} without credits or a free disk, {deferred} deferred)"
        )
    }
}

/// No NIC works for the stripe.
fn end(table: &Table, stripe: &mut Stripe) -> Left {
    stripe.put_down(table);
    table.stripe_leaves(stripe.slot(), stripe.counts())
}
