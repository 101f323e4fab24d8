//! Reaps finished operations: frees their slots, and takes their bytes off the windows.

use super::op::{Done, Op, Tag, Work, NO_RECEIVE};
use super::{HasLane, Lane, Lanes, Rail};
use crate::fabric::{Cause, Reaped};
use crate::ids::LaneSlot;
use crate::trace::{self, Event};

/// Consecutive finished posts of one stripe.
struct Run {
    lane: LaneSlot,
    index: u32,
    posts: u32,
    slices: u32,
    /// As in `Tag`.
    bytes: u64,
    len: u64,
    sampled: bool,
    read: bool,
}

impl Run {
    fn new(tag: &Tag) -> Run {
        let &Tag { lane, index, read, .. } = tag;
        Run { lane, index, posts: 0, slices: 0, bytes: 0, len: 0, sampled: false, read }
    }

    #[inline]
    fn is_of(&self, tag: &Tag) -> bool {
        (self.lane, self.index) == (tag.lane, tag.index)
    }

    #[inline]
    fn add(&mut self, tag: &Tag) {
        self.posts += 1;
        self.slices += tag.slices;
        self.bytes += tag.bytes;
        self.len += tag.len;
        self.sampled |= tag.sampled;
    }
}

impl Rail {
    /// Drives the NIC; finished operations go to `done`.
    pub fn reap(&mut self, lanes: &mut Lanes<impl HasLane>, done: &mut Vec<Done>, now: u64) -> bool {
        let mut reaped = std::mem::take(&mut self.reaped);
        let busy = self.nic.reap(&mut reaped);
        let mut run: Option<Run> = None;
        for one in &reaped {
            let op = self.op_of(one.scratch);
            let Some((op, tag)) = op.and_then(|op| arrived(one, op)) else {
                done.extend(run.take().map(|run| self.finish_run(lanes, &run, now)));
                done.push(self.finish(lanes, one, op, now));
                continue;
            };
            match &mut run {
                Some(run) if run.is_of(tag) => run.add(tag),
                _ => {
                    done.extend(run.take().map(|run| self.finish_run(lanes, &run, now)));
                    run.insert(Run::new(tag)).add(tag);
                }
            }
            self.put_op(op);
        }
        done.extend(run.map(|run| self.finish_run(lanes, &run, now)));
        self.changed |= !reaped.is_empty();
        reaped.clear();
        self.reaped = reaped;
        busy
    }

    #[inline]
    fn finish_run(&mut self, lanes: &mut Lanes<impl HasLane>, run: &Run, now: u64) -> Done {
        let &Run { lane, index, posts, slices, .. } = run;
        let carrier = self.account(lanes, lane, posts, run.bytes, run.sampled, now);
        self.count(run.read, posts, slices, run.len, carrier);
        trace::add(|| Event::Delivered {
            rail: self.index.get(),
            posts,
            bytes: run.len,
            inflight: self.inflight_bytes,
            at: now,
        });
        Done { slices, posts, ..Done::new(Work::Slice, lane, index) }
    }

    fn finish(
        &mut self,
        lanes: &mut Lanes<impl HasLane>,
        reaped: &Reaped,
        op: Option<*mut Op>,
        now: u64,
    ) -> Done {
        let &Reaped { errno, provider_errno, connection, .. } = reaped;
        let len = reaped.len as usize;
        if let Some(immediate) = reaped.immediate {
            return Done {
                immediate: immediate.get(),
                ..Done::new(Work::Arrival, LaneSlot::NONE, self.take_receive(op))
            };
        }
        let Some(op) = op else {
            // The provider does not name the operation, or names an unknown one: the error is
            // counted for the rail.
            self.traffic.errors.add(1);
            return Done { errno, provider_errno, ..Done::new(Work::Frame, LaneSlot::NONE, u32::MAX) };
        };
        // SAFETY: `op_of` found a posted op, which the NIC has returned.
        let tag = unsafe { (*op).tag };
        self.put_op(op);
        if errno != 0 {
            // Memory that is gone, a grant that was revoked, or a disk, says nothing of the rail.
            self.traffic.errors.add(u64::from(!Cause::from_errno(errno).is_of_memory()));
        }
        match tag.work {
            Work::Slice | Work::Counted(_) | Work::Probe => {
                let carrier = self.account(lanes, tag.lane, 1, tag.bytes, tag.sampled, now);
                if tag.len > 0 && errno == 0 {
                    self.count(tag.read, 1, tag.slices, tag.len, carrier);
                }
            }
            Work::Slow => {
                let mut lane = lanes.get_mut(tag.lane).map(HasLane::lane_mut);
                if let Some(lane) = &mut lane {
                    lane.inflight_ops -= 1;
                    lane.slow_ops -= 1;
                    lane.slow_bytes -= tag.len;
                }
                if errno == 0 {
                    self.count(tag.read, 1, tag.slices, tag.len, lane);
                }
                let layer = tag.bytes as usize;
                return Done {
                    slices: tag.slices,
                    errno,
                    provider_errno,
                    len: layer,
                    ..Done::new(Work::Slow, tag.lane, tag.index)
                };
            }
            Work::Frame | Work::Handshake => {
                self.sends.put(tag.index);
                self.handshakes -= usize::from(tag.work == Work::Handshake);
                if let Some(one) = lanes.get_mut(tag.lane) {
                    one.lane_mut().inflight_frames -= 1;
                }
            }
            Work::Answer => {
                self.sends.put(tag.index);
                self.answers -= 1;
                self.answered.push((tag.bytes, now));
            }
            Work::Receive if errno == 0 => self.traffic.frames_received.add(1),
            Work::Receive | Work::Arrival | Work::Nothing => {}
        }
        let Tag { work, lane, index, slices, .. } = tag;
        Done { slices, errno, provider_errno, len, connection, ..Done::new(work, lane, index) }
    }

    /// The buffer of the receive that an arrival took, if it took one.
    fn take_receive(&mut self, op: Option<*mut Op>) -> u32 {
        // SAFETY: `op_of` found a posted op, and the NIC does not write its tag.
        let of_receive = |op: &*mut Op| unsafe { (**op).tag.work } == Work::Receive;
        let Some(op) = op.filter(of_receive) else { return NO_RECEIVE };
        // SAFETY: the NIC has returned the op.
        let buffer = unsafe { (*op).tag.index };
        self.put_op(op);
        buffer
    }

    /// Returns the lane, if it exists.
    fn account<'a>(
        &mut self,
        lanes: &'a mut Lanes<impl HasLane>,
        lane: LaneSlot,
        posts: u32,
        bytes: u64,
        sampled: bool,
        now: u64,
    ) -> Option<&'a mut Lane> {
        // The bytes of a removed lane were subtracted when it was removed.
        let lane = lanes.get_mut(lane).map(HasLane::lane_mut)?;
        lane.inflight_ops -= posts;
        if bytes > 0 {
            lane.credit(bytes, sampled, &mut self.inflight_bytes, now);
        }
        Some(lane)
    }

    /// Counts completed posts, their slices and their bytes for the rail and the lane.
    #[inline]
    fn count(&self, read: bool, posts: u32, slices: u32, bytes: u64, carrier: Option<&mut Lane>) {
        let elsewhere = carrier.as_ref().and_then(|lane| lane.elsewhere.as_deref());
        self.traffic.add(read, posts.into(), slices.into(), bytes, elsewhere);
        if let Some(lane) = carrier {
            lane.carried.arrive(bytes);
            lane.traffic.add(read, bytes);
        }
    }
}

/// The op and tag of a post of slices that succeeded.
#[inline]
fn arrived(reaped: &Reaped, op: *mut Op) -> Option<(*mut Op, &Tag)> {
    // SAFETY: the NIC has returned the op, and the tag is read before the op is reused.
    let tag = unsafe { &(*op).tag };
    (reaped.errno == 0 && tag.work == Work::Slice).then_some((op, tag))
}
