//! The progress of an operation after the doorbell: lines, delays, landing, completion. `cut` has
//! how connections end before that.

use super::endpoint::{access_of, Endpoint};
use super::flight::{retry_at, Next, REPEAT_PS};
use super::port::{Port, DEAD, ERRORS, KILLED, RX_DOWN, TX_DOWN};
use super::queue::{Finished, Owner};
use super::wire::{enter, leave, Answer, Kind, Op, Request, State, Wire};
use crate::bytes;
use crate::device::fake;
use libfabric_sys::{FI_ECANCELED, FI_EIO};
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::Arc;

/// The largest difference in landing time of writes that were posted together on one route.
const SPREAD_PS: u64 = 4_000_000;
/// Copies bytes, even between overlapping ranges.
///
/// # Safety
/// `from` must be readable, and `to` writable.
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    if len > 0 && !fake::move_bytes(from as u64, to as u64, len) {
        // SAFETY: no fake device has them, so the caller's word holds for the CPU: it can read and write these bytes.
        unsafe { bytes::copy(to, from, len) };
    }
}

/// Moves an operation's bytes between its local range and the remote one, at this address.
///
/// # Safety
/// Nothing else may use either range.
pub unsafe fn move_bytes(op: &Op, remote: u64) {
    let local = op.local.iov_base;
    // SAFETY: the local bytes are valid until the operation is read, and the remote ones are registered.
    unsafe {
        if op.kind == Kind::Read {
            copy(remote as *const u8, local.cast(), op.len);
        } else {
            copy(local.cast(), remote as *mut u8, op.len);
        }
    }
}

impl Owner for Endpoint {
    fn reported(&self, errno: c_int) -> (c_int, c_int) {
        self.mode.reported(errno)
    }

    fn progress(&mut self) {
        self.world.strike_faults();
        if self.port.has(KILLED) {
            return;
        }
        if self.port.cuts.load(SeqCst) != self.cuts_seen {
            self.notice_cuts();
        }
        if !self.orphans.is_empty() {
            self.bury();
        }
        if !self.flight.is_empty() {
            self.fly();
        }
        if self.in_wires > 0 {
            self.read_answers();
        }
        self.serve();
    }

    fn may_sleep(&mut self) -> bool {
        let port = self.port.clone();
        port.bell.arm();
        port.inbound(&mut self.inbound, &mut self.inbound_seen);
        // SAFETY: this endpoint's thread is the only one that pops.
        let asked = self.inbound.iter().any(|wire| unsafe { wire.requests.peek() }.is_some());
        let answered = self.outbound.iter().any(|out| {
            let busy = out.in_wire > 0 || out.shaking;
            // SAFETY: this endpoint is the one that reads its wires' answers.
            busy && out
                .wire
                .as_ref()
                .is_some_and(|w| unsafe { w.answers.peek() }.is_some() || w.target_is_gone())
        });
        let cut = port.cuts.load(SeqCst) != self.cuts_seen;
        let calls = port.has_calls();
        let idle =
            !asked && !answered && !cut && !calls && self.flight.is_empty() && !self.world.has_faults();
        if !idle {
            port.bell.disarm();
        }
        idle
    }

    unsafe fn given_back(&mut self, entry: &Finished) -> bool {
        // SAFETY: the entry's context was claimed by its operation, which has ended.
        unsafe { self.give_back(entry) }
    }
}

impl Endpoint {
    pub(super) fn now(&self) -> u64 {
        if self.timeless {
            0
        } else {
            self.world.now()
        }
    }

    fn at(&mut self, due: u64, op: u32, next: Next) {
        self.world.wake_at(due);
        self.flight.add(due, op, next);
    }

    /// Starts an operation after its doorbell.
    pub(super) fn launch(&mut self, index: u32) {
        // SAFETY: this fabric made every operation in this list.
        let op = unsafe { &mut *self.pool.op(index) };
        let out = &mut self.outbound[op.outbound as usize];
        let Some(wire) = &out.wire else {
            return self.fail_later(index, self.mode.never_there);
        };
        if out.broken {
            return self.fail_later(index, FI_ECANCELED);
        }
        out.used = true;
        out.posts += 1;
        op.order = out.posts;
        if wire.target_is_gone() && !self.mode.connections {
            return self.fail_later(index, self.mode.gone);
        }
        if out.shaken {
            return self.depart(index);
        }
        out.waiting.push_back(index);
        if !out.shaking {
            out.shaking = true;
            self.in_wires += 1;
            let wire = wire.clone();
            let due = if self.delay == 0 { 0 } else { self.world.now() + self.delay };
            self.send_request(&wire, due, Request::Handshake);
        }
    }

    fn fail_later(&mut self, index: u32, errno: i32) {
        // SAFETY: this fabric made every operation in this list.
        unsafe { (*self.pool.op(index)).errno = errno };
        let due = if self.delay == 0 { 0 } else { self.world.now() + 2 * self.delay };
        self.complete_at(index, due);
    }

    fn send_request(&self, wire: &Wire, due: u64, request: Request) {
        self.world.wake_at(due);
        // SAFETY: this endpoint's thread is the only one that pushes. The ring has space for every
        // operation and as many arrivals, which `land` checks first.
        let pushed = unsafe { wire.requests.push((due, request)) };
        debug_assert!(pushed);
        wire.to.bell.ring();
    }

    /// When bytes that start now have left, and when they have arrived.
    fn cross(&self, from: &Port, to: &Port, now: u64, len: usize) -> (u64, u64) {
        let (slow, fast) = (from.cost(len), to.cost(len));
        let left = from.sending.take(now, slow) + slow;
        let there = to.receiving.take(left - slow + self.delay, fast) + fast;
        (left, there.max(left + self.delay))
    }

    fn depart(&mut self, index: u32) {
        // SAFETY: this fabric made every operation in this list.
        let op = unsafe { &mut *self.pool.op(index) };
        let Some(wire) = self.outbound[op.outbound as usize].wire.clone() else { return };
        let now = self.now();
        match op.kind {
            Kind::Send => {
                let (_, there) = self.cross(&wire.from, &wire.to, now, op.len);
                if !self.mode.ordered_messages && !self.timeless {
                    let due = there + self.random.next() % SPREAD_PS;
                    return self.at(due, index, Next::Depart);
                }
                if self.mode.connections && !self.timeless {
                    return self.at(there, index, Next::Depart);
                }
                self.send_off(index, &wire, there);
            }
            Kind::Write if self.mode.target_serves => {
                let (_, there) = self.cross(&wire.from, &wire.to, now, op.len);
                self.hand_over(index, &wire, there);
            }
            Kind::Read if self.mode.target_serves => self.hand_over(index, &wire, now + self.delay),
            kind => {
                let (_, there) = match kind {
                    Kind::Read => self.cross(&wire.to, &wire.from, now + self.delay, op.len),
                    _ => self.cross(&wire.from, &wire.to, now, op.len),
                };
                if self.timeless {
                    return self.land(index, now);
                }
                let spread = if self.mode.ordered { 0 } else { self.random.next() % SPREAD_PS };
                self.at(there + spread, index, Next::Land);
            }
        }
    }

    /// Sends a message, unless it must wait for earlier posts.
    fn send_off(&mut self, index: u32, wire: &Wire, due: u64) {
        // SAFETY: this fabric made every operation in this list.
        let op = unsafe { &mut *self.pool.op(index) };
        let out = &mut self.outbound[op.outbound as usize];
        if self.mode.connections && out.is_behind(op) {
            return self.stall(index, retry_at(self.world.now()), Next::Depart);
        }
        out.stalled.remove(&op.order);
        if out.broken {
            return self.fail_later(index, FI_ECANCELED);
        }
        self.hand_over(index, wire, due);
    }

    /// Passes an operation to the other side.
    fn hand_over(&mut self, index: u32, wire: &Wire, due: u64) {
        // SAFETY: this fabric made every operation in this list.
        let op = unsafe { &mut *self.pool.op(index) };
        op.state = State::InWire;
        self.outbound[op.outbound as usize].in_wire += 1;
        self.in_wires += 1;
        self.send_request(wire, due, Request::Op(index));
    }

    fn fly(&mut self) {
        let now = self.world.now();
        while let Some((due, index, next)) = self.flight.due(now) {
            match next {
                Next::Complete if self.awaits_answer(index) => self.at(retry_at(now), index, Next::Complete),
                Next::Complete => self.finish(index),
                Next::Land => self.land(index, now),
                Next::Depart => {
                    // SAFETY: this fabric made every operation in this list.
                    let out = unsafe { (*self.pool.op(index)).outbound } as usize;
                    if let Some(wire) = self.outbound[out].wire.clone() {
                        self.send_off(index, &wire, due);
                    }
                }
            }
        }
    }

    /// Whether the packet that reports an operation's arrival cannot pass now.
    fn awaits_answer(&self, index: u32) -> bool {
        // SAFETY: an operation in state `Here` is ours, and an orphan's fields are only read.
        let op = unsafe { &*self.pool.op(index) };
        let wire = self.outbound[op.outbound as usize].wire.as_ref();
        !op.orphan && op.kind == Kind::Write && wire.is_some_and(|wire| is_mute(wire))
    }

    fn complete_at(&mut self, index: u32, due: u64) {
        if due == 0 {
            self.finish(index);
        } else {
            self.at(due, index, Next::Complete);
        }
    }

    /// A write or read that this side performs itself has arrived.
    fn land(&mut self, index: u32, now: u64) {
        // SAFETY: this fabric made every operation in this list.
        let op = unsafe { &mut *self.pool.op(index) };
        let Some(wire) = self.outbound[op.outbound as usize].wire.clone() else { return };
        // A reset takes effect once its packet can pass.
        let over = wire.is_cut() || self.mode.connections && wire.target_is_gone();
        let lost = is_down(&wire, op.kind);
        let down = lost || over;
        let full = op.data.is_some() && !wire.requests.is_half_free();
        let behind = self.mode.ordered && self.outbound[op.outbound as usize].is_behind(op);
        if down || full || behind {
            let full = full && !down && !behind;
            let due = match (full, lost && self.mode.connections) {
                (true, _) => now + SPREAD_PS,
                (false, true) => now + REPEAT_PS,
                (false, false) => retry_at(self.world.now()),
            };
            return self.stall(index, due, Next::Land);
        }
        self.outbound[op.outbound as usize].stalled.remove(&op.order);
        op.errno = if self.outbound[op.outbound as usize].broken {
            FI_ECANCELED
        } else if enter(&wire, &wire.sender_works, Wire::target_is_gone) {
            let errno = self.reach(op, &wire);
            leave(&wire.sender_works);
            errno
        } else if wire.is_cut() || self.mode.connections {
            return self.stall(index, retry_at(self.world.now()), Next::Land);
        } else {
            self.mode.gone
        };
        self.outbound[op.outbound as usize].broken |= self.mode.connections && op.errno != 0;
        if let (Some(data), 0) = (op.data, op.errno) {
            self.send_request(&wire, now, Request::Arrived { data, len: op.len });
        }
        let back = if op.kind == Kind::Read { 0 } else { self.delay };
        let due = if self.timeless || back == 0 { 0 } else { now + back };
        self.complete_at(index, due);
    }

    /// Makes the operation wait, and, where NICs keep the order, all later posts with it.
    fn stall(&mut self, index: u32, due: u64, next: Next) {
        // SAFETY: this fabric made every operation in this list.
        let op = unsafe { &*self.pool.op(index) };
        self.outbound[op.outbound as usize].stalled.insert(op.order);
        self.at(due, index, next);
    }

    fn reach(&mut self, op: &Op, wire: &Wire) -> i32 {
        let out = &mut self.outbound[op.outbound as usize];
        let Some(remote) = out.locate(&op.remote, access_of(op.kind)) else { return self.mode.refused };
        if wire.copies {
            // SAFETY: the target waits for us before its region closes, and the caller keeps the
            // local range.
            unsafe { move_bytes(op, remote) };
        }
        0
    }

    // Answers.

    fn read_answers(&mut self) {
        let mut now = 0;
        for out in 0..self.outbound.len() {
            let to = &self.outbound[out];
            if to.in_wire == 0 && !to.shaking {
                continue;
            }
            let Some(wire) = to.wire.clone() else { continue };
            // SAFETY: this endpoint's thread is the only one that pops.
            while let Some((due, answer)) = unsafe { wire.answers.peek() } {
                if due > 0 && now == 0 {
                    now = self.world.now();
                }
                if due > now {
                    break;
                }
                if is_mute(&wire) {
                    self.world.wake_at(retry_at(self.world.now()));
                    break;
                }
                // SAFETY: this endpoint is the one that reads its wires' answers.
                unsafe { wire.answers.pop() };
                self.answered(out, answer);
            }
            if wire.target_is_gone() && !self.mode.connections {
                self.abandon(out, &wire);
            }
        }
    }

    fn answered(&mut self, out: usize, answer: Answer) {
        self.in_wires -= 1;
        match answer {
            Answer::Handshake => {
                let to = &mut self.outbound[out];
                (to.shaking, to.shaken) = (false, true);
                while let Some(op) = self.outbound[out].waiting.pop_front() {
                    self.depart(op);
                }
            }
            Answer::Op { op: index, errno } => {
                self.outbound[out].in_wire -= 1;
                // SAFETY: an answered operation is ours again.
                let op = unsafe { &mut *self.pool.op(index) };
                op.state = State::Here;
                op.errno = errno;
                self.finish(index);
            }
        }
    }

    /// The other side is gone, and will not answer.
    fn abandon(&mut self, out: usize, wire: &Arc<Wire>) {
        // SAFETY: this endpoint's thread is the only one that pops.
        let answers = unsafe { wire.answers.peek() }.is_some();
        if answers || wire.target_works.load(SeqCst) {
            return; // The answer has not arrived yet.
        }
        let to = &mut self.outbound[out];
        if std::mem::take(&mut to.shaking) {
            to.shaken = true;
            self.in_wires -= 1;
        }
        let waiting = std::mem::take(&mut to.waiting);
        self.in_wires -= std::mem::take(&mut to.in_wire);
        let in_wire = (0..self.pool.len() as u32).filter(|index| {
            // SAFETY: these two fields always belong to the sender.
            let op = unsafe { &*self.pool.op(*index) };
            op.state == State::InWire && op.outbound as usize == out
        });
        let lost: Vec<u32> = in_wire.chain(waiting).collect();
        for index in lost {
            // SAFETY: the target no longer touches the operation.
            let op = unsafe { &mut *self.pool.op(index) };
            op.state = State::Here;
            op.errno = self.mode.gone;
            self.finish(index);
        }
    }

    /// Adds an operation to the queue.
    pub(super) fn finish(&mut self, index: u32) {
        // SAFETY: a finished operation is ours.
        let op = unsafe { &*self.pool.op(index) };
        let entry =
            Finished { context: op.context, flags: op.flags, len: 0, data: 0, errno: op.errno, sent: true };
        self.release(index);
        self.publish(entry);
    }

    pub(super) fn publish(&mut self, mut entry: Finished) {
        if self.port.has(DEAD) {
            return;
        }
        if self.port.has(ERRORS) && entry.errno == 0 {
            self.spoil(&mut entry);
        }
        if entry.errno != 0 && !self.mode.errors_have_flags {
            entry.flags = 0;
        }
        // SAFETY: the object is bound to the endpoint, and open as long as the endpoint.
        unsafe { (*self.cq).push(entry) };
    }

    /// Applies a planned error. NICs without connections do not name the operation.
    #[cold]
    fn spoil(&mut self, entry: &mut Finished) {
        entry.errno = FI_EIO;
        if !self.mode.connects && !self.mode.connections {
            entry.context = ptr::null_mut();
        }
        if self.port.errors.fetch_sub(1, Relaxed) == 1 {
            self.port.state.fetch_and(!ERRORS, Relaxed);
        }
    }
}

/// Whether the target's answers cannot pass now. (The end of the target needs no answer to be
/// seen.)
pub fn is_mute(wire: &Wire) -> bool {
    (wire.to.has(TX_DOWN) || wire.from.has(RX_DOWN)) && !wire.target_is_gone()
}

/// Whether an operation's bytes cannot pass now.
pub fn is_down(wire: &Wire, kind: Kind) -> bool {
    let there = wire.from.has(TX_DOWN) || wire.to.has(RX_DOWN);
    there || kind == Kind::Read && (wire.from.has(RX_DOWN) || wire.to.has(TX_DOWN))
}
