//! How a connection ends: one side removes the other's address, and nothing that was posted to it
//! by either side lands there any longer. It has its own operations back at once; the other side
//! once the reset can pass.
//!
//! Over tcp, what has left such a side is in its kernel's hands: it still lands on the other one,
//! later even than the link is up again, unless that cuts, too.
//!
//! What is posted afterwards fails until this side begins a new lane, or has removed the address, too:
//! else it would land over a new connection, which the side that ended the old one knows nothing of.
//! Where connections are made by calls of their own (`connect`), it is by those.

use super::endpoint::{Endpoint, NOWHERE};
use super::flight::retry_at;
use super::progress::is_mute;
use super::queue::Entry;
use super::wire::{Kind, Orphan, State};
use std::sync::atomic::Ordering::SeqCst;

impl Endpoint {
    /// Others have cut wires of ours.
    #[cold]
    pub(super) fn notice_cuts(&mut self) {
        let cuts = self.port.cuts.load(SeqCst);
        if self.mode.connections {
            self.cuts_seen = cuts; // Events report them, and what was posted stands.
            return;
        }
        let mut unheard = false;
        for out in 0..self.outbound.len() {
            let Some(wire) = self.outbound[out].wire.as_ref().filter(|wire| wire.is_cut()) else { continue };
            if is_mute(wire) {
                unheard = true;
            } else {
                let used = self.outbound[out].used;
                self.disconnect(out, self.mode.gone);
                self.outbound[out].broken = used;
            }
        }
        if unheard {
            self.world.wake_at(retry_at(self.world.now()));
        } else {
            self.cuts_seen = cuts;
        }
    }

    /// The connection to another NIC ends here: what was posted to it comes back.
    pub(super) fn disconnect(&mut self, out: usize, errno: i32) {
        let Some(wire) = self.outbound[out].wire.clone() else { return };
        let goes_on = self.mode.target_serves && !wire.is_cut();
        if goes_on {
            wire.begin_leaving();
        } else {
            wire.cut();
        }
        let pool = self.pool.clone();
        // SAFETY: these fields are always ours.
        let is_of = |index: u32| unsafe { (*pool.op(index)).outbound as usize == out };
        self.held.retain(|index| !is_of(*index));
        self.flight.take(is_of);
        let fresh = (!self.mode.connections).then(|| self.connect(&wire.to, 0));
        let to = &mut self.outbound[out];
        self.in_wires -= std::mem::take(&mut to.in_wire) + usize::from(std::mem::take(&mut to.shaking));
        to.waiting.clear();
        to.stalled.clear();
        to.used = false;
        to.regions = Default::default();
        to.wire = fresh;
        let mut ops = Vec::new();
        for index in (0..self.pool.len() as u32).filter(|index| is_of(*index)) {
            // SAFETY: the target touches it no more, or only reads it.
            let op = unsafe { &mut *self.pool.op(index) };
            match op.state {
                State::Free => {}
                State::InWire if goes_on && op.kind == Kind::Write => {
                    self.orphan(index, errno);
                    ops.push(index);
                }
                _ => {
                    (op.state, op.errno) = (State::Here, errno);
                    self.finish(index);
                }
            }
        }
        if goes_on {
            wire.leave();
        }
        if !ops.is_empty() {
            self.orphans.push(Orphan { wire, ops });
        }
    }

    /// A write that goes on by itself, and has failed for its caller.
    fn orphan(&mut self, index: u32, errno: i32) {
        // SAFETY: the target does not serve a wire that is being left.
        let op = unsafe { &mut *self.pool.op(index) };
        op.orphan = true;
        if self.copies {
            // SAFETY: the caller's until its completion, which comes now.
            unsafe { op.keep_bytes() };
        }
        self.outbound[op.outbound as usize].ops -= 1;
        op.outbound = NOWHERE;
        let (context, flags) = (op.context, op.flags);
        self.publish(Entry { context, flags, len: 0, data: 0, errno, sent: true });
    }

    /// Takes back those that have landed, or never will.
    #[cold]
    pub(super) fn bury(&mut self) {
        for Orphan { wire, ops } in std::mem::take(&mut self.orphans) {
            if !wire.is_cut() && !wire.to.is_gone() && !wire.requests.is_empty() {
                self.orphans.push(Orphan { wire, ops });
                continue;
            }
            for index in ops {
                // SAFETY: the target is through with it.
                unsafe { (*self.pool.op(index)).state = State::Free };
                self.free.push(index);
            }
        }
    }
}
