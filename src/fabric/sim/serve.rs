//! The target's side: arriving messages, and, in some modes, writes and reads that the target's own
//! progress serves.

use super::endpoint::{access_of, Endpoint, Receive};
use super::flight::retry_at;
use super::port::DEAD;
use super::progress::{copy, is_down, move_bytes};
use super::queue::Finished;
use super::wire::{enter, leave, Answer, Kind, Op, Request, Wire};
use libfabric_sys::*;

impl Endpoint {
    /// Serves arrived requests.
    pub(super) fn serve(&mut self) {
        let (port, mut wires) = (self.port.clone(), std::mem::take(&mut self.inbound));
        port.inbound(&mut wires, &mut self.inbound_seen);
        let mut ended = false;
        for wire in &wires {
            if wire.is_cut() {
                ended = true;
                continue;
            }
            // SAFETY: this endpoint's thread is the only one that pops.
            match unsafe { wire.requests.peek() } {
                Some((due, _)) if due == 0 || due <= self.world.now() => self.serve_wire(wire),
                Some(_) => {}
                None => ended |= wire.sender_is_gone() || wire.is_left(),
            }
        }
        self.inbound = wires;
        if ended {
            port.detach_ended();
        }
    }

    fn serve_wire(&mut self, wire: &Wire) {
        if is_down(wire, Kind::Write) {
            return self.world.wake_at(retry_at(self.world.now()));
        }
        let alive = enter(wire, &wire.target_works, Wire::sender_is_gone);
        if wire.is_cut() || wire.is_leaving() {
            return if alive {
                leave(&wire.target_works)
            };
        }
        let mut now = 0;
        // SAFETY: this endpoint's thread is the only one that pops.
        while let Some((due, request)) = unsafe { wire.requests.peek() } {
            if due > 0 && now == 0 {
                now = self.world.now();
            }
            if due > now || !self.take(wire, request, now, alive) {
                break;
            }
            // SAFETY: the target's endpoint is the one that pops requests, and this is it.
            unsafe { wire.requests.pop() };
        }
        if alive {
            leave(&wire.target_works);
        }
    }

    /// Serves a request; false if it must wait.
    fn take(&mut self, wire: &Wire, request: Request, now: u64, alive: bool) -> bool {
        match request {
            Request::Handshake => {
                if alive {
                    self.reply(wire, now, Answer::Handshake);
                }
                true
            }
            Request::Arrived { data, len } => self.arrived(data, len),
            Request::Op(index) => {
                // SAFETY: the operation belongs to the target until the answer. A sender that is
                // gone frees none of its pool, only the memory that operations point to.
                let op = unsafe { &*wire.pool.op(index) };
                if !alive && !op.orphan {
                    return true;
                }
                let served = match op.kind {
                    Kind::Send => self.deliver(op),
                    _ => self.serve_rma(op, wire),
                };
                if let (Some(errno), true) = (served, alive) {
                    self.reply(wire, self.sent_back(op, wire, now), Answer::Op { op: index, errno });
                }
                served.is_some()
            }
        }
    }

    fn reply(&self, wire: &Wire, now: u64, answer: Answer) {
        let due = if wire.delay == 0 { now } else { now.max(1) + wire.delay };
        self.world.wake_at(due);
        // SAFETY: this endpoint's thread is the only one that pushes; the ring has space for an
        // answer to every operation of the sender.
        let pushed = unsafe { wire.answers.push((due, answer)) };
        debug_assert!(pushed);
        wire.from.bell.ring();
    }

    /// When the bytes of a read have left this side.
    fn sent_back(&self, op: &Op, wire: &Wire, now: u64) -> u64 {
        if op.kind != Kind::Read || now == 0 {
            return now;
        }
        let cost = self.port.cost(op.len).max(wire.from.cost(op.len));
        wire.from.receiving.take(self.port.sending.take(now, cost), cost) + cost
    }

    /// Places a message into the first receive; `None` without a receive.
    fn deliver(&mut self, op: &Op) -> Option<i32> {
        let receive = self.receives.pop_front()?;
        // SAFETY: the sender waits for us before it frees its buffer; the receive's buffer is ours
        // until its completion.
        unsafe { copy(op.local.iov_base.cast(), receive.base.cast(), receive.len.min(op.len)) };
        let errno = if op.len > receive.len { FI_ETRUNC } else { 0 };
        self.received(receive, FI_MSG | FI_RECV, op.len, 0, errno);
        Some(0)
    }

    fn received(&mut self, receive: Receive, flags: u64, len: usize, data: u64, errno: i32) {
        if !self.port.has(DEAD) {
            let entry = Finished { context: receive.context, flags, len, data, errno, sent: false };
            // SAFETY: the object is bound to the endpoint, and open as long as the endpoint.
            unsafe { (*self.cq).push(entry) };
        }
    }

    fn serve_rma(&mut self, op: &Op, wire: &Wire) -> Option<i32> {
        let (port, access) = (&self.port, access_of(op.kind));
        let (at, len) = (op.remote.addr, op.remote.len as u64);
        let located = port.region(op.remote.key).and_then(|region| region.locate(at, len, access));
        let Some(remote) = located else { return Some(self.mode.refused) };
        if let Some(data) = op.data {
            if !self.arrived(data, op.len) {
                return None;
            }
        }
        if wire.copies {
            // SAFETY: this thread alone closes the region, and the sender waits for us before it
            // frees its ranges.
            unsafe { move_bytes(op, remote) };
        }
        Some(0)
    }

    /// Delivers an immediate; false if it must wait for a receive, or for space in the queue.
    fn arrived(&mut self, data: u64, len: usize) -> bool {
        // SAFETY: the object is bound to the endpoint, and open as long as the endpoint.
        if self.mode.target_serves && unsafe { (*self.cq).is_half_full() } {
            return false;
        }
        // With shared receives, verbs reports that one was used.
        let by = if self.mode.connections { FI_MSG | FI_RECV } else { FI_RMA | FI_REMOTE_WRITE };
        let flags = by | FI_REMOTE_CQ_DATA;
        let receive = if self.mode.mode & FI_RX_CQ_DATA == 0 {
            Receive { base: std::ptr::null_mut(), len: 0, context: std::ptr::null_mut() }
        } else {
            match self.receives.pop_front() {
                Some(receive) => receive,
                None => return false,
            }
        };
        self.received(receive, flags, len, data, 0);
        true
    }
}
