//! A lane's share in a transfer: claims runs of slices, posts them, counts what
//! arrives, and leaves.

use super::geometry::{Position, PIECE};
use super::table::{Left, Move, Slot, Table};
use super::Direction;
use crate::fabric::{Delivery, Posted, Rma, Segment};
use crate::rail::{Rail, Tag, Work};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::NonNull;

/// Posts of one lane before the completion queue is looked at again: some NICs
/// lose rate when posts come without polls.
const BATCH: usize = 32;
/// Bytes of one flow before the lane's next flow has its turn.
const TURN: u64 = PIECE;
/// Slices of one claim at most, however small they are.
const CLAIM_MAX: u64 = 256;

/// The shares of one lane.
#[derive(Default)]
pub struct Flows {
    flows: Vec<Option<Flow>>,
    free: Vec<u32>,
    /// Flows that may have something to post, in turn.
    ready: VecDeque<u32>,
}

struct Flow {
    /// Valid while the flow has not left it.
    slot: NonNull<Slot>,
    /// How many lanes share the transfer: claims shrink towards its end.
    sharers: u64,
    next: u64,
    end: u64,
    at: Position,
    layer: Layer,
    inflight: u32,
    arrived: u64,
    /// Bytes left of this turn.
    turn: u64,
    exhausted: bool,
    /// Writes were posted that no delivery-complete one covers yet.
    uncovered: bool,
    /// Where the last post began, on both sides.
    last: Segment,
}

// SAFETY: the slot outlives the flow and is shared between threads by design.
unsafe impl Send for Flow {}

/// The addresses of the layer that a flow is in.
#[derive(Clone, Copy)]
struct Layer {
    index: u64,
    local: u64,
    descriptor: *mut c_void,
    remote: u64,
    key: u64,
}

impl Layer {
    fn of(transfer: &Move, index: u64, rail: usize, remote_rail: usize) -> Layer {
        let (range, at) = transfer.geometry.local.layer(index);
        let local = transfer.local.ranges()[range].base + at;
        let descriptor = transfer.local.registration(rail, range).descriptor;
        let (range, at) = transfer.geometry.remote.layer(index);
        let (remote, key) = transfer.remote.locate(remote_rail, range, at);
        Layer { index, local, descriptor, remote, key }
    }
}

enum Step {
    Posted,
    /// The lane or rail has no room: try again after completions.
    Full,
    /// Nothing more to post in this flow.
    Finished,
    Failed(i32),
}

impl Flows {
    /// Begins a share; the caller's hold on the slot becomes the flow's.
    pub fn begin(&mut self, slot: &Slot, sharers: u64) {
        let flow = Flow {
            slot: NonNull::from(slot),
            sharers: sharers.max(1),
            next: 0,
            end: 0,
            at: Position::default(),
            layer: Layer { index: u64::MAX, local: 0, descriptor: std::ptr::null_mut(), remote: 0, key: 0 },
            inflight: 0,
            arrived: 0,
            turn: TURN,
            exhausted: false,
            uncovered: false,
            last: Segment::default(),
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.flows[index as usize] = Some(flow);
                index
            }
            None => {
                self.flows.push(Some(flow));
                self.flows.len() as u32 - 1
            }
        };
        self.ready.push_back(index);
    }

    pub fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }

    /// Posts what the windows allow, up to a batch. Flows that are through with
    /// everything leave; `left` learns it. True if anything was posted.
    pub fn pump(
        &mut self,
        rail: &mut Rail,
        lane: u32,
        table: &Table,
        now: u64,
        left: &mut Vec<Left>,
    ) -> Result<bool, i32> {
        let mut posted = 0;
        while posted < BATCH {
            let Some(&index) = self.ready.front() else { break };
            let Some(flow) = self.flows[index as usize].as_mut() else {
                self.ready.pop_front();
                continue;
            };
            let last = posted + 1 == BATCH;
            match flow.step(rail, lane, index, table, now, last) {
                Step::Posted => {
                    posted += 1;
                    if flow.turn == 0 {
                        flow.turn = TURN;
                        self.ready.rotate_left(1);
                    }
                }
                Step::Full => break,
                Step::Finished => {
                    self.ready.pop_front();
                    self.leave_if_done(index, table, left);
                }
                Step::Failed(errno) => return Err(errno),
            }
        }
        Ok(posted > 0)
    }

    /// Counts a finished post.
    #[inline]
    pub fn reaped(&mut self, index: u32, slices: u32, arrived: bool, table: &Table, left: &mut Vec<Left>) {
        let Some(flow) = self.flows.get_mut(index as usize).and_then(Option::as_mut) else { return };
        flow.inflight -= 1;
        if arrived {
            flow.arrived += slices as u64;
        }
        self.leave_if_done(index, table, left);
    }

    fn leave_if_done(&mut self, index: u32, table: &Table, left: &mut Vec<Left>) {
        let place = &mut self.flows[index as usize];
        if let Some(flow) = place.take_if(|flow| flow.exhausted && flow.inflight == 0 && !flow.uncovered) {
            // SAFETY: the flow holds the slot until here.
            left.push(table.leave(unsafe { flow.slot.as_ref() }, flow.arrived));
            self.free.push(index);
        }
    }

    /// The lane takes nothing new: shares end as their operations come back.
    pub fn stop(&mut self, table: &Table, left: &mut Vec<Left>) {
        self.ready.clear();
        for index in 0..self.flows.len() as u32 {
            if let Some(flow) = &mut self.flows[index as usize] {
                flow.give_up();
            }
            self.leave_if_done(index, table, left);
        }
    }

    /// The rail is no more: every share ends, with what had arrived. The ids of
    /// the transfers are told by `left`.
    pub fn abandon(&mut self, table: &Table, left: &mut Vec<Left>) {
        self.ready.clear();
        self.free.clear();
        for flow in self.flows.drain(..).flatten() {
            // SAFETY: the flow holds the slot until here.
            left.push(table.leave(unsafe { flow.slot.as_ref() }, flow.arrived));
        }
    }
}

impl Flow {
    /// Nobody waits for it any more: nothing is claimed, nothing covered.
    fn give_up(&mut self) {
        self.exhausted = true;
        self.uncovered = false;
    }

    fn step(&mut self, rail: &mut Rail, lane: u32, index: u32, table: &Table, now: u64, last: bool) -> Step {
        // SAFETY: the flow holds the slot.
        let slot = unsafe { self.slot.as_ref() };
        // SAFETY: as above.
        let body = unsafe { table.body(slot) };
        let Some(transfer) = &body.transfer else { return Step::Finished };
        if !Table::wanted(slot) {
            self.give_up();
            return Step::Finished;
        }
        if !rail.has_room(lane) {
            return Step::Full;
        }
        if self.next == self.end && !self.claim(slot, transfer) {
            return self.cover(rail, lane, index);
        }
        let left = self.end - self.next;
        let (slice, after) = transfer.geometry.take(self.at, left);
        if self.layer.index != self.at.layer {
            self.layer = Layer::of(transfer, self.at.layer, rail.index, rail.remote_rail(lane));
        }
        let is_last = self.next + slice.slices == transfer.geometry.slices;
        let segment = Segment {
            local: self.layer.local + slice.local,
            remote: self.layer.remote + slice.remote,
            len: slice.len,
        };
        let read = transfer.direction == Direction::Read;
        let (delivered, covers) = delivery(rail.limits().delivery, read, is_last);
        let rma = Rma {
            read,
            segments: &[segment],
            descriptor: self.layer.descriptor,
            key: self.layer.key,
            route: rail.route(lane),
            delivered,
            // Only when the next post of this claim follows at once.
            more: !last
                && self.next + slice.slices < self.end
                && self.turn > slice.len
                && rail.will_have_room(lane, slice.len),
        };
        let tag = Tag { work: Work::Slice, lane, flow: index, slices: slice.slices as u32, bytes: slice.len };
        // SAFETY: the memory stays registered while the slot is held, and the rail keeps the op
        // until the NIC gives it back.
        match unsafe { rail.post(&rma, tag) } {
            Posted::Yes => {}
            Posted::Again => return Step::Full,
            Posted::Failed(errno) => return Step::Failed(errno),
        }
        if slot.first_post.load(std::sync::atomic::Ordering::Relaxed) == 0 {
            slot.first_post.store(now, std::sync::atomic::Ordering::Relaxed);
        }
        self.uncovered = !covers;
        self.last = segment;
        self.inflight += 1;
        self.next += slice.slices;
        self.at = after;
        self.turn = self.turn.saturating_sub(slice.len);
        Step::Posted
    }

    /// Claims the next run of slices; false when there are no more.
    fn claim(&mut self, slot: &Slot, transfer: &Move) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        let slices = transfer.geometry.slices;
        let unclaimed = slices.saturating_sub(slot.cursor.load(Relaxed));
        if self.exhausted || unclaimed == 0 {
            self.exhausted = true;
            return false;
        }
        let fair = unclaimed / (2 * self.sharers);
        let run = fair.clamp(1, transfer.geometry.claim_max().min(CLAIM_MAX));
        let start = slot.cursor.fetch_add(run, Relaxed);
        if start >= slices {
            self.exhausted = true;
            return false;
        }
        self.next = start;
        self.end = slices.min(start + run);
        self.at = transfer.geometry.seek(start);
        true
    }

    /// When this flow has nothing more to post: one last write of a byte that
    /// it has written already, which is delivered after all before it.
    fn cover(&mut self, rail: &mut Rail, lane: u32, index: u32) -> Step {
        if !self.uncovered {
            return Step::Finished;
        }
        let rma = Rma {
            read: false,
            segments: &[Segment { len: 1, ..self.last }],
            descriptor: self.layer.descriptor,
            key: self.layer.key,
            route: rail.route(lane),
            delivered: true,
            more: false,
        };
        let tag = Tag { work: Work::Slice, lane, flow: index, slices: 0, bytes: 1 };
        // SAFETY: as for a slice.
        match unsafe { rail.post(&rma, tag) } {
            Posted::Yes => {
                self.uncovered = false;
                self.inflight += 1;
                Step::Posted
            }
            Posted::Again => Step::Full,
            Posted::Failed(errno) => Step::Failed(errno),
        }
    }
}

/// Whether a write asks for delivery, and whether nothing before it needs
/// covering once it has completed.
fn delivery(fabric: Delivery, read: bool, is_last: bool) -> (bool, bool) {
    match fabric {
        _ if read => (false, true),
        Delivery::Native => (false, true),
        Delivery::Each => (true, true),
        Delivery::Covers => (is_last, is_last),
    }
}
