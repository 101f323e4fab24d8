//! A burst of posts of one lane, with one lookup for all of them.

use super::lane::Lane;
use super::op::{Op, Tag, Work};
use super::{Rail, Traffic, PROBE_LEN, SENDS, STAGED_WINDOW, URGENT_NS, URGENT_WINDOW};
use crate::fabric::{Limits, Nic, Posted, Rma, Segment};
use crate::ids::{LaneSlot, OpId, PeerId, RailIndex};
use crate::trace::{self, Event};
use crate::without::{is_without, Technique};
use std::ffi::c_void;

/// Bytes of a lane that wait for disks: so many keep a disk busy.
const SLOW_WINDOW: u64 = 8 << 20;
/// Bytes of a probe write.
const PROBE_BYTES: u64 = 8;
/// Of the posts that are kept for idle lanes, each may take one in this many.
const IDLE_SHARES: usize = 16;

pub struct Burst<'a> {
    pub lane: &'a mut Lane,
    pub limits: &'a Limits,
    /// The rail's index.
    pub rail: RailIndex,
    pub now: u64,
    /// The half of the rail's probe buffer that peers do not write to: its address, and its
    /// descriptor.
    probe_buffer: (u64, *mut c_void),
    nic: &'a mut dyn Nic,
    free_ops: &'a mut Vec<*mut Op>,
    lane_ops: u32,
    urgent_until: &'a mut u64,
    inflight_bytes: &'a mut u64,
    /// Posted since the last `settle`, and not yet counted on the lane.
    ops: u32,
    bytes: u64,
    /// The last post announced that another follows.
    more: bool,
    unflushed: &'a mut Option<LaneSlot>,
    traffic: &'a Traffic,
}

impl Rail {
    /// Whether devices still copy for requests of a peer whose connection has ended (`Nic::touches`).
    pub fn touches(&mut self, peer: PeerId) -> bool {
        self.nic.touches(peer)
    }

    /// `None`: the lane was reset.
    #[inline]
    pub fn burst<'a>(&'a mut self, lane: &'a mut Lane, now: u64) -> Option<Burst<'a>> {
        Some(Burst {
            lane: Some(lane).filter(|lane| !lane.life.is_closed())?,
            limits: &self.limits,
            rail: self.index,
            now,
            probe_buffer: (
                self.probe_buffer.address() as u64 + PROBE_LEN as u64 / 2,
                self.probe_buffer.descriptor(),
            ),
            nic: &mut *self.nic,
            free_ops: &mut self.free_ops,
            lane_ops: self.lane_ops,
            urgent_until: &mut self.urgent_until,
            inflight_bytes: &mut self.inflight_bytes,
            ops: 0,
            bytes: 0,
            more: false,
            unflushed: &mut self.unflushed,
            traffic: &self.traffic,
        })
    }
}

impl Burst<'_> {
    /// For traces: slices of an operation, from the first to the one before the end, are claimed for the rail.
    pub fn claimed(&self, id: OpId, slices: (u64, u64), again: bool) -> Event {
        Event::Claimed {
            rail: self.rail.get(),
            again,
            id: id.get(),
            first: slices.0,
            slices: slices.1 - slices.0,
            at: self.now,
        }
    }

    /// A post follows at once (`Nic::rouse`).
    #[inline]
    pub fn rouse(&mut self) {
        self.nic.rouse(self.lane.route);
    }

    /// The rails that the lane connects, and whether the local NIC checks grants.
    #[inline]
    pub fn path(&self) -> (RailIndex, RailIndex, bool) {
        (self.rail, self.lane.remote_rail, self.limits.grants)
    }

    /// Bytes that the lane may post now. An idle lane may always post at least one byte, so a
    /// window smaller than a slice cannot block it. Urgent or staged transfers may exceed a full
    /// window.
    #[inline]
    pub fn room(&mut self, urgent: bool, staged: bool) -> u64 {
        self.settle();
        let lane = &*self.lane;
        let extra = if urgent { URGENT_WINDOW } else { 0 } + if staged { STAGED_WINDOW } else { 0 };
        let of_lane = (self.window(urgent) + extra).saturating_sub(lane.inflight_bytes);
        let of_rail = (self.limits.rail_window + extra).saturating_sub(*self.inflight_bytes);
        match self.posts() {
            0 => 0,
            _ if is_without(Technique::LazyPosting) => u64::MAX,
            _ if lane.is_idle() => of_lane.min(of_rail).max(1),
            _ => of_lane.min(of_rail),
        }
    }

    /// Bytes for disks that the lane may post now. Half of the operations are left to the others: a disk may return
    /// none.
    #[cold]
    pub fn room_of_slow(&mut self) -> u64 {
        self.settle();
        let free = self.free_ops.len().saturating_sub(SENDS);
        let lane = &*self.lane;
        let some = free > self.limits.tx_depth / 2 && lane.slow_ops < self.lane_ops / 2;
        match self.posts() > 0 && (some || free > 0 && lane.slow_ops == 0) {
            true => SLOW_WINDOW.saturating_sub(lane.slow_bytes),
            false => 0,
        }
    }

    pub fn is_idle(&self) -> bool {
        self.lane.is_idle() && self.ops == 0
    }

    /// The lane's window for a class.
    #[inline]
    fn window(&self, urgent: bool) -> u64 {
        if !urgent && self.is_brief() {
            self.lane.window.brief()
        } else {
            self.lane.window.bytes()
        }
    }

    /// Notes that this rail carries a transfer of the latency class.
    #[inline]
    pub fn kick(&mut self) {
        *self.urgent_until = self.now + URGENT_NS;
    }

    /// Whether the rail recently carried the latency class, so that the bulk class keeps its queue
    /// short.
    #[inline]
    pub fn is_brief(&self) -> bool {
        *self.urgent_until > self.now
    }

    /// Operations that the lane may post now.
    #[inline]
    pub fn posts(&self) -> u32 {
        let free = self.free_ops.len().saturating_sub(SENDS);
        let kept = self.lane_ops as usize;
        if self.lane.is_idle() && free <= kept {
            // Many whose peers are silent leave some.
            return free.div_ceil(IDLE_SHARES) as u32;
        }
        let free = free.saturating_sub(kept) as u32;
        self.lane_ops.saturating_sub(self.lane.inflight_ops).min(free)
    }

    /// The work of a post with an immediate, and how many such posts the credits allow.
    #[inline]
    pub fn countable(&self) -> (Work, u32) {
        if self.limits.arrival_room.is_none() {
            return (Work::Slice, u32::MAX);
        }
        let (half, left) = self.lane.credits.remaining();
        (Work::Counted(half), left)
    }

    #[inline]
    pub fn spend(&mut self, posts: u32) {
        if self.limits.arrival_room.is_some() {
            self.lane.credits.spend(posts);
        }
    }

    /// Posts a write or read of `bytes`.
    ///
    /// # Safety
    /// The local range must stay registered until the operation is done, or the rail is closed.
    #[inline]
    pub unsafe fn post(&mut self, rma: Rma<'_>, bytes: u64, tag: Tag) -> Posted {
        if self.free_ops.is_empty() {
            return Posted::Again;
        }
        // SAFETY: the local range stays registered until the operation is done.
        unsafe { self.post_part(rma, 1, bytes, tag).1 }
    }

    /// Like `post`, to or from a disk, of the target or (not `theirs`) our own. `layer`: of what is posted.
    ///
    /// # Safety
    /// Like `post`.
    #[cold]
    pub unsafe fn post_slow(&mut self, rma: Rma<'_>, layer: u64, theirs: bool, tag: Tag) -> Posted {
        let Some(&op) = self.free_ops.last() else { return Posted::Again };
        let tag = Tag { work: Work::Slow, lane: self.lane.id.slot, read: rma.read, bytes: layer, ..tag };
        // SAFETY: no NIC uses a free op.
        unsafe { (*op).tag = tag };
        // SAFETY: an op begins with its scratch, and stays in place until it is reaped; the caller
        // keeps the range registered.
        let (_, outcome) = unsafe { self.nic.rma_slow(&rma, self.lane.route, &[op.cast()], theirs) };
        if outcome != Posted::Yes {
            // SAFETY: the NIC did not take it.
            unsafe { (*op).tag.work = Work::Nothing };
            return outcome;
        }
        self.free_ops.pop();
        self.lane.inflight_ops += 1;
        self.lane.slow_ops += 1;
        self.lane.slow_bytes += tag.len;
        outcome
    }

    pub fn probe(&mut self, tag: Tag) -> Posted {
        let ((local, descriptor), (remote, key)) = (self.probe_buffer, self.lane.probe_buffer);
        let rma = Rma {
            read: false,
            segments: &[Segment { local, remote, len: PROBE_BYTES }],
            descriptor,
            key,
            immediate: None,
            more: false,
        };
        // SAFETY: the probe buffer lives as long as the rail.
        unsafe { self.post(rma, PROBE_BYTES, tag) }
    }

    /// Like `post`, for a run of posts with this many bytes and the same number of segments each.
    /// Returns how many were made, and the result of the next one. `rma.more` applies to the last
    /// post.
    ///
    /// # Safety
    /// Like `post`.
    #[inline]
    pub unsafe fn post_each(&mut self, rma: Rma<'_>, count: usize, bytes: u64, tag: Tag) -> (u32, Posted) {
        let segments = rma.segments.len() / count;
        let mut left = rma.segments;
        let mut posted = 0;
        while posted < count {
            let free = self.free_ops.len();
            if free == 0 {
                return (posted as u32, Posted::Again);
            }
            let mut part = rma;
            let rest = count - posted;
            let run = if is_without(Technique::Batches) { 1 } else { rest.min(free) };
            (part.segments, left) = left.split_at(run * segments);
            part.more = rma.more || run < rest && !is_without(Technique::Batches);
            // SAFETY: the local ranges, of which these are some, stay registered until the operations are done.
            let (done, outcome) = unsafe { self.post_part(part, run, bytes, tag) };
            posted += done;
            if outcome != Posted::Yes {
                return (posted as u32, outcome);
            }
        }
        (posted as u32, Posted::Yes)
    }

    /// Posts a run for which there are free ops.
    // Always inline: otherwise the tag is stored to the stack in parts and loaded as a whole. That
    // load stalls on all earlier stores, some of them to cache lines that the peer holds.
    #[inline(always)]
    unsafe fn post_part(&mut self, rma: Rma<'_>, count: usize, bytes: u64, mut tag: Tag) -> (usize, Posted) {
        let from = self.free_ops.len() - count;
        let ops = &self.free_ops[from..];
        let sampled = bytes > 0 && self.lane.begin_sample(self.now);
        (tag.lane, tag.read, tag.bytes) = (self.lane.id.slot, rma.read, bytes);
        for op in ops {
            // SAFETY: no NIC uses a free op.
            unsafe { (**op).tag = tag };
        }
        // SAFETY: the op is in place until it is reaped, and was not posted yet.
        unsafe { (*ops[0]).tag.sampled = sampled };
        // SAFETY: an op begins with its scratch, and stays in place until it is reaped; the caller
        // keeps the ranges registered.
        let (done, outcome) = unsafe {
            let scratches = std::slice::from_raw_parts(ops.as_ptr().cast(), count);
            self.nic.rma(&rma, self.lane.route, scratches)
        };
        self.ops += done as u32;
        self.bytes += done as u64 * bytes;
        if outcome != Posted::Yes {
            self.free_ops.drain(from..from + done);
            for op in &self.free_ops[from..] {
                // SAFETY: the NIC did not take these.
                unsafe { (**op).tag.work = Work::Nothing };
            }
            self.more |= done > 0;
            return (done, self.not_posted(outcome, sampled && done == 0));
        }
        self.free_ops.truncate(from);
        self.more = rma.more;
        (count, outcome)
    }

    #[cold]
    fn not_posted(&mut self, posted: Posted, sampled: bool) -> Posted {
        if sampled {
            self.lane.window.forget();
        }
        let name = match posted {
            Posted::Again => {
                self.traffic.refused.add(1);
                "post refused"
            }
            _ => {
                self.traffic.errors.add(1);
                "post failed"
            }
        };
        trace::add(|| Event::Rail { rail: self.rail.get(), name, at: self.now });
        posted
    }

    /// Counts the posts since the last call on the lane and the rail.
    #[inline]
    fn settle(&mut self) {
        self.lane.inflight_ops += self.ops;
        if self.ops > 0 {
            *self.unflushed = self.more.then_some(self.lane.id.slot);
        }
        if self.bytes > 0 {
            self.lane.charge(self.bytes, self.inflight_bytes, self.now);
        }
        (self.ops, self.bytes) = (0, 0);
    }
}

impl Drop for Burst<'_> {
    fn drop(&mut self) {
        self.settle();
    }
}
