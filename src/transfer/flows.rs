//! The shares that one lane has in transfers: whose turn it is, what arrives of
//! each, and when it leaves. `flow` has what one of them does.

use super::claims::{split, Claims};
use super::flow::{Flow, Share, Step};
use super::operation::Move;
use super::pack::{Landed, Packer};
use super::table::{Left, Slot, Table};
use crate::fabric::{Posted, Rma};
use crate::ids::{Hold, LaneSlot, OpId};
use crate::rail::{Burst, Lane, Rail, Tag, Work};
use crate::status::Status;
use std::collections::VecDeque;
use std::fmt;

/// Posts of one lane before the completion queue is looked at again: some NICs
/// lose rate when posts come without polls.
const BATCH: u32 = 32;
/// Bytes of one flow before the lane's next flow has its turn.
pub(super) const TURN: u64 = 128 << 10;
/// Of this many posts, one is for the bulk class even while the latency class has
/// something to post.
const BULK_TURN: u32 = 8;
/// The classes.
const URGENT: usize = 0;
const BULK: usize = 1;
/// Flows that are looked at for having nothing left to do, when a lane is full or has no credits.
const SWEEP: usize = 16;
/// And in a tick, when an operation has ended that one of them may be of.
const LET_GO: usize = 256;
/// Claims that are kept for flows to come.
const SPARE: usize = 64;
/// Flows that are looked at in one go, of those of a lane that waits: once a tick.
const ROUND: usize = 4096;
/// Flows that end before the clock is looked at.
const LOOK: u32 = 64;

fn class_of(transfer: &Move) -> usize {
    if transfer.urgent {
        URGENT
    } else {
        BULK
    }
}

/// Shares by number. They do not move when there are more: copying very many takes too long.
#[derive(Default)]
struct Shares(Vec<Vec<Option<Flow>>>);

/// So many lie together.
const CHUNK: usize = 256;

impl Shares {
    #[inline]
    fn at(&mut self, index: u32) -> Option<&mut Option<Flow>> {
        self.0.get_mut(index as usize / CHUNK)?.get_mut(index as usize % CHUNK)
    }

    #[inline]
    fn get(&self, index: u32) -> Option<&Flow> {
        self.0.get(index as usize / CHUNK)?.get(index as usize % CHUNK)?.as_ref()
    }

    #[inline]
    fn get_mut(&mut self, index: u32) -> Option<&mut Flow> {
        self.at(index)?.as_mut()
    }

    fn len(&self) -> u32 {
        let last = self.0.last().map_or(0, Vec::len);
        (self.0.len().saturating_sub(1) * CHUNK + last) as u32
    }

    fn push(&mut self, flow: Option<Flow>) {
        match self.0.last_mut().filter(|chunk| chunk.len() < CHUNK) {
            Some(chunk) => chunk.push(flow),
            None => self.0.push(vec![flow]),
        }
    }

    fn pop(&mut self) -> Option<Option<Flow>> {
        let last = self.0.last_mut()?;
        let flow = last.pop();
        if last.is_empty() {
            self.0.pop();
        }
        flow
    }

    fn places(&mut self) -> impl Iterator<Item = &mut Option<Flow>> {
        self.0.iter_mut().flatten()
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Flow> {
        self.places().flatten()
    }
}

/// The shares of one lane.
#[derive(Default)]
pub struct Flows {
    flows: Shares,
    free: Vec<u32>,
    /// Of flows that left: the next ones need not allocate.
    spare: Vec<Claims>,
    /// Flows that may have something to post, in turn: by class.
    ready: [VecDeque<u32>; 2],
    /// Flows that wait for credits: by class.
    starved: [VecDeque<u32>; 2],
    /// Flows of the bulk class that would not be done by their deadlines beside the others:
    /// they begin when they would, or nothing else is ready. So the others are in time
    /// where more is submitted than the line carries.
    deferred: VecDeque<u32>,
    /// Nothing new is taken: those before this one have been told so.
    stopping: Option<u32>,
    round: usize,
    posts: u32,
    passes: u32,
    pub packer: Option<Packer>,
}

impl Flows {
    /// Begins a share, which has the hold from here on.
    pub fn begin(&mut self, hold: Hold, of: (&Slot, &Move), share: Share, table: &Table) {
        let index = self.add(hold, of, share, table);
        self.ready[class_of(of.1)].push_back(index);
    }

    /// Posts what is all of a transfer, whose share is made when it is `posted`.
    ///
    /// # Safety
    /// As `Burst::post`.
    #[inline]
    pub unsafe fn post_first(&mut self, burst: &mut Burst, rma: Rma, len: u64) -> bool {
        let index = self.free.last().map_or(self.flows.len(), |index| *index);
        let tag = Tag { len, ..Tag::new(Work::Slice, LaneSlot::NONE, index, 1) };
        // SAFETY: passed on.
        unsafe { burst.post(rma, len, tag) == Posted::Yes }
    }

    /// It was: its share begins, the next one after that post.
    #[inline]
    pub fn posted(&mut self, hold: Hold, of: (&Slot, &Move), table: &Table, now: u64) {
        let share = Share { sharers: 1, early: false, again: Vec::new() };
        let index = self.add(hold, of, share, table);
        if let Some(flow) = self.flows.get_mut(index) {
            flow.posted_alone(now);
        }
    }

    /// The share's number.
    #[inline]
    fn add(&mut self, hold: Hold, (slot, transfer): (&Slot, &Move), share: Share, table: &Table) -> u32 {
        hold.give(); // The flow's, from here on.
        let wanted = table.carry(slot);
        let claims = self.spare.pop().unwrap_or_default();
        let mut flow = Flow::new(slot, transfer, share, claims);
        if !wanted {
            flow.give_up();
        }
        let index = self.free.pop().unwrap_or_else(|| self.flows.len());
        match self.flows.at(index) {
            Some(place) => *place = Some(flow),
            None => self.flows.push(Some(flow)),
        }
        index
    }

    /// Something is to be posted as soon as there is room.
    pub fn is_ready(&self) -> bool {
        !self.ready.iter().all(VecDeque::is_empty)
    }

    /// Something to post, now or with credits, or to announce.
    pub fn has_work(&self) -> bool {
        self.is_ready()
            || !self.starved.iter().all(VecDeque::is_empty)
            || !self.deferred.is_empty()
            || self.packer.as_ref().is_some_and(Packer::is_behind)
    }

    /// Bundles that the target has not acknowledged.
    pub fn has_bundles(&self) -> bool {
        self.packer.as_ref().is_some_and(Packer::is_awaiting)
    }

    pub fn is_urgent(&self) -> bool {
        !self.ready[URGENT].is_empty()
    }

    /// Posts what the windows allow, up to a batch. Flows that are through with
    /// everything leave; `left` learns it. True if anything was posted.
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
            self.tend_starved(burst.countable().1, table, left);
        }
        if !self.deferred.is_empty() {
            self.tend_deferred(&burst, table, left);
        }
        // What has room for the latency class may have none for the bulk class.
        let mut bulk_full = false;
        while left_of_batch > 0 {
            let (class, most) = self.class(bulk_full);
            let bulk = self.ready[BULK].len();
            let Some(&index) = self.ready[class].front() else { break };
            let Some(flow) = self.flows.get_mut(index) else {
                self.ready[class].pop_front();
                continue;
            };
            if class == BULK && bulk > 1 && flow.would_miss(now, burst.lane.window.bytes_per_s(), bulk - 1) {
                self.ready[BULK].pop_front();
                self.deferred.push_back(index);
                continue;
            }
            let most = most.min(left_of_batch);
            let mut budget = most;
            flow.enter(self.passes);
            let step = flow.step(&mut burst, index, self.packer.as_mut(), &mut budget);
            left_of_batch -= most - budget;
            self.posts = self.posts.wrapping_add(most - budget);
            match step {
                Step::Posted if flow.end_turn() => {
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
                    if flow.may_tell() {
                        left.push(Left::Posted(table.id_of(flow.slot()), burst.lane.peer));
                    }
                    self.leave_if_done(index, table, left);
                }
                Step::Ended(status) => {
                    flow.give_up();
                    left.push(Left::Ended(table.id_of(flow.slot()), status));
                    self.ready[class].pop_front();
                    self.leave_if_done(index, table, left);
                }
                Step::Failed(errno) => return Err(errno),
            }
        }
        Ok(left_of_batch < BATCH)
    }

    /// Whose turn it is, and for how many posts: the latency class's, with a little
    /// for the others.
    fn class(&self, bulk_full: bool) -> (usize, u32) {
        let until_bulk = BULK_TURN - 1 - self.posts % BULK_TURN;
        match (self.ready[URGENT].is_empty(), self.ready[BULK].is_empty() || bulk_full) {
            (true, _) => (BULK, BATCH),
            (false, true) => (URGENT, BATCH),
            (false, false) if until_bulk == 0 => (BULK, 1),
            (false, false) => (URGENT, until_bulk),
        }
    }

    /// Flows that wait for credits are ready again when there are some; until then,
    /// those that nobody waits for any longer leave.
    fn tend_starved(&mut self, credits: u32, table: &Table, left: &mut Vec<Left>) {
        for class in [URGENT, BULK] {
            let mut starved = std::mem::take(&mut self.starved[class]);
            if credits > 0 {
                self.ready[class].append(&mut starved);
            } else {
                self.sweep(&mut starved, SWEEP, table, left);
            }
            self.starved[class] = starved;
        }
    }

    /// Flows that were deferred begin if they need not be, or another lane has begun, or there
    /// is nothing else to do; those that are over leave.
    fn tend_deferred(&mut self, burst: &Burst, table: &Table, left: &mut Vec<Left>) {
        let rate = burst.lane.window.bytes_per_s();
        let mut deferred = std::mem::take(&mut self.deferred);
        self.sweep(&mut deferred, SWEEP, table, left);
        self.deferred = deferred;
        for _ in 0..self.deferred.len().min(SWEEP) {
            let Some(index) = self.deferred.pop_front() else { return };
            let bulk = self.ready[BULK].len();
            let Some(flow) = self.flows.get_mut(index) else { continue };
            if bulk > 0 && flow.would_miss(burst.now, rate, bulk) {
                self.deferred.push_back(index);
                continue;
            }
            flow.begin();
            self.ready[BULK].push_back(index);
        }
    }

    /// Flows for which others have claimed everything need not wait for room, or for
    /// credits.
    fn sweep(&mut self, waiting: &mut VecDeque<u32>, most: usize, table: &Table, left: &mut Vec<Left>) {
        for _ in 0..waiting.len().min(most) {
            let Some(index) = waiting.pop_front() else { return };
            let over = self.flows.get_mut(index).is_none_or(Flow::is_over);
            if !over {
                waiting.push_back(index);
            } else {
                self.leave_if_done(index, table, left);
            }
        }
    }

    /// Flows whose operations have ended leave, whatever the lane waits for, unless something of
    /// them is posted. (Of very many, some at a time.)
    pub fn let_go(&mut self, table: &Table, left: &mut Vec<Left>) {
        let [urgent, bulk] = std::mem::take(&mut self.ready);
        let [urgent_starved, bulk_starved] = std::mem::take(&mut self.starved);
        let mut waiting = [urgent, bulk, urgent_starved, bulk_starved, std::mem::take(&mut self.deferred)];
        waiting.iter_mut().for_each(|waiting| self.sweep(waiting, LET_GO, table, left));
        let [urgent, bulk, urgent_starved, bulk_starved, deferred] = waiting;
        (self.ready, self.starved) = ([urgent, bulk], [urgent_starved, bulk_starved]);
        self.deferred = deferred;
    }

    /// Counts finished posts, with the slices that arrived through them.
    #[inline]
    pub fn reaped(&mut self, tagged: u32, (posts, slices): (u32, u32), table: &Table, left: &mut Vec<Left>) {
        let (index, generation) = split(tagged);
        let Some(flow) = self.flows.get_mut(index) else { return };
        if flow.count(generation, posts, slices) {
            self.leave_if_done(index, table, left);
        }
    }

    /// The target has scattered bundles up to number `count`.
    pub fn landed(
        &mut self,
        count: u32,
        rail: &mut Rail,
        lane: &mut Lane,
        now: u64,
        table: &Table,
        left: &mut Vec<Left>,
    ) {
        while let Some(landed) = self.packer.as_mut().and_then(|packer| packer.acknowledge(count)) {
            let Landed { flow, slices, bytes, sampled } = landed;
            rail.credit(lane, bytes, sampled, now);
            self.reaped(flow, (1, slices), table, left);
        }
    }

    /// Ends the transfers whose bytes a device could not copy.
    pub fn end_lost(&mut self, table: &Table, left: &mut Vec<Left>) {
        while let Some(flow) = self.packer.as_mut().and_then(Packer::take_lost) {
            self.end_of(flow, Status::MemoryGone, table, left);
        }
    }

    /// Ends the transfer that a share is of.
    pub fn end_of(&mut self, tagged: u32, status: Status, table: &Table, left: &mut Vec<Left>) {
        if let Some(flow) = self.flows.get(split(tagged).0) {
            left.push(Left::Ended(table.id_of(flow.slot()), status));
        }
    }

    /// The target does not have the memory that a share is of, or nothing under its grant.
    pub fn end_gone(&mut self, tagged: u32, table: &Table, left: &mut Vec<Left>) {
        let granted = self.flows.get(split(tagged).0).is_some_and(Flow::is_granted);
        let status = if granted { Status::Revoked } else { Status::MemoryGone };
        self.end_of(tagged, status, table, left);
    }

    /// Whether a transfer still wants what one of its shares has fetched.
    pub fn wants(&self, tagged: u32) -> bool {
        let flow = self.flows.get(split(tagged).0);
        flow.is_some_and(|flow| Table::wanted(flow.slot()))
    }

    /// The next answer to a question is at its place, or never will be.
    pub fn fetched(
        &mut self,
        outcome: Result<(), Status>,
        rail: &mut Rail,
        (lane, now): (&mut Lane, u64),
        table: &Table,
        left: &mut Vec<Left>,
    ) {
        let Some(landed) = self.packer.as_mut().and_then(|packer| packer.fetcher.finish()) else { return };
        let Landed { flow, slices, bytes, sampled } = landed;
        rail.credit(lane, bytes, sampled, now);
        if let Err(status) = outcome {
            self.end_of(flow, status, table, left);
        }
        let arrived = if outcome.is_ok() { slices } else { 0 };
        self.reaped(flow, (1, arrived), table, left);
    }

    /// Whether all bundles before this one are acknowledged, and it is not.
    pub fn is_next(&self, bundle: u32) -> bool {
        self.packer.as_ref().is_some_and(|packer| packer.acknowledged() == bundle)
    }

    /// The target refused the next bundle: the id of its transfer.
    pub fn refused(
        &mut self,
        rail: &mut Rail,
        lane: &mut Lane,
        now: u64,
        table: &Table,
        left: &mut Vec<Left>,
    ) -> Option<OpId> {
        let packer = self.packer.as_mut()?;
        let next = packer.acknowledged().wrapping_add(1);
        let Landed { flow, bytes, sampled, .. } = packer.acknowledge(next)?;
        rail.credit(lane, bytes, sampled, now);
        let of = self.flows.get(split(flow).0)?;
        let id = table.id_of(of.slot());
        self.reaped(flow, (1, 0), table, left);
        Some(id)
    }

    fn leave_if_done(&mut self, index: u32, table: &Table, left: &mut Vec<Left>) {
        let Some(place) = self.flows.at(index) else { return };
        let Some(flow) = place.as_mut().filter(|flow| flow.is_done()) else { return };
        left.push(end(table, flow));
        if self.spare.len() < SPARE {
            self.spare.push(flow.take_claims());
        }
        *place = None;
        self.free.push(index);
    }

    /// The lane failed: nothing that it carried for transfers which are not over is
    /// known to be delivered. Shares end as their operations come back.
    pub fn fail(&mut self, table: &Table, left: &mut Vec<Left>) {
        self.flows.all().for_each(Flow::spoil);
        self.stop(table, left);
    }

    /// The lane failed, and other lanes will do what it has not done.
    pub fn suspend(&mut self) {
        self.clear();
        self.flows.all().for_each(Flow::suspend);
    }

    /// Nothing of it will be posted.
    fn clear(&mut self) {
        self.ready.iter_mut().chain(&mut self.starved).for_each(VecDeque::clear);
        self.deferred.clear();
    }

    /// The next of the flows that were suspended.
    pub fn take_suspended(&mut self, table: &Table) -> Option<Flow> {
        let mut flow = std::iter::from_fn(|| self.flows.pop()).flatten().next()?;
        flow.put_down(table);
        Some(flow)
    }

    /// The lane is cut, and its operations are back: no operation waits for it to end. Those
    /// that nobody waits for leave.
    /// (Of very many, the others when it is called again.)
    pub fn put_down(&mut self, table: &Table, left: &mut Vec<Left>) {
        let next = self.next_round();
        for place in self.flows.places().skip(next).take(ROUND) {
            place.iter_mut().for_each(|flow| flow.put_down(table));
            let over = place.take_if(|flow| !Table::wanted(flow.slot()));
            left.extend(over.map(|mut flow| end(table, &mut flow)));
        }
    }

    /// Flows whose operations have ended, and that have not left for longer than this, by
    /// number. (Of very many, some at a time.)
    pub fn overdue(&mut self, now: u64, grace_ns: u64) -> impl Iterator<Item = (u32, &Flow)> {
        let next = self.next_round();
        let places = self.flows.places().skip(next).take(ROUND);
        let flows = (next as u32..).zip(places).filter_map(|(index, flow)| Some((index, flow.as_mut()?)));
        flows.filter_map(move |(index, flow)| flow.is_overdue(now, grace_ns).then_some((index, &*flow)))
    }

    /// Where a look at some of the flows begins: where the last one ended.
    fn next_round(&mut self) -> usize {
        let next = if self.round < self.flows.len() as usize { self.round } else { 0 };
        self.round = next + ROUND;
        next
    }

    /// The lane takes nothing new: shares end as their operations come back, those that wait for
    /// none now, or where they are many as it goes on (`go_on_stopping`).
    pub fn stop(&mut self, table: &Table, left: &mut Vec<Left>) {
        self.clear();
        self.stopping = Some(0);
        self.go_on_stopping(table, left, || true);
    }

    /// True: it has stopped, or has no time to (`over`).
    pub fn go_on_stopping(&mut self, table: &Table, left: &mut Vec<Left>, over: impl Fn() -> bool) -> bool {
        let Some(from) = self.stopping else { return true };
        for index in from..self.flows.len() {
            if let Some(flow) = self.flows.get_mut(index) {
                flow.give_up();
            }
            self.leave_if_done(index, table, left);
            if (index + 1) % LOOK == 0 && over() {
                self.stopping = Some(index + 1);
                return false;
            }
        }
        self.stopping = None;
        true
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// The lane is no more: every share ends, with what had arrived, as far as there is time. True:
    /// none is left. The ids of the transfers are told by `left`.
    pub fn abandon(&mut self, table: &Table, left: &mut Vec<Left>, over: impl Fn() -> bool) -> bool {
        while let Some(place) = self.flows.pop() {
            left.extend(place.map(|mut flow| end(table, &mut flow)));
            if self.flows.len() % LOOK == 0 && over() {
                break;
            }
        }
        self.flows.len() == 0
    }
}

/// What there is to do, for the log.
impl fmt::Display for Flows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |queues: &[VecDeque<u32>; 2]| queues.iter().map(VecDeque::len).sum::<usize>();
        let all = self.flows.0.iter().flatten().flatten().count();
        let (ready, starved) = (of(&self.ready), of(&self.starved));
        let deferred = self.deferred.len();
        write!(f, "{all} shares ({ready} ready, {starved} without credits, {deferred} deferred)")?;
        self.packer.as_ref().map_or(Ok(()), |packer| write!(f, ", bundles {packer}"))
    }
}

/// A flow ends: no NIC works for it.
fn end(table: &Table, flow: &mut Flow) -> Left {
    flow.put_down(table);
    table.flow_leaves(flow.slot(), flow.counts())
}
