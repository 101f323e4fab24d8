//! The end of a connection: one side removes the other's address, and nothing that either side has
//! posted to the other lands any longer. The removing side has its own operations back at once; the
//! other side once the reset has crossed.
//!
//! Over tcp, bytes that have left the other side are in its kernel: they still land here, even
//! after the link is up again, unless that side closes the connection, too.
//!
//! Later posts of the other side fail until it begins a new lane, or has removed the address, too:
//! otherwise they would land over a new connection, which the side that ended the old one knows
//! nothing about. NICs that make connections by separate calls (`connect`) use those instead.

use super::endpoint::{Endpoint, NOWHERE};
use super::flight::retry_at;
use super::progress::is_mute;
use super::queue::Finished;
use super::wire::{Kind, Orphan, State};
use std::sync::atomic::Ordering::SeqCst;

impl Endpoint {
    /// Handles cuts that others made to our wires.
    #[cold]
    pub(super) fn notice_cuts(&mut self) {
        let cuts = self.port.cuts.load(SeqCst);
        if self.mode.connections {
            self.cuts_seen = cuts; // Events report these cuts, and pending posts stay.
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

    /// Ends the connection to another NIC: its posts come back.
    pub(super) fn disconnect(&mut self, out: usize, errno: i32) {
        let Some(wire) = self.outbound[out].wire.clone() else { return };
        let goes_on = self.mode.target_serves && !wire.is_cut();
        if goes_on {
            wire.begin_leaving();
        } else {
            wire.cut();
        }
        let pool = self.pool.clone();
        // SAFETY: these fields always belong to the sender.
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
            // SAFETY: the target no longer touches the operation, or only reads it.
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

    /// The write continues on its own, but has failed for its caller.
    fn orphan(&mut self, index: u32, errno: i32) {
        // SAFETY: the target does not serve a wire that the sender is leaving.
        let op = unsafe { &mut *self.pool.op(index) };
        op.orphan = true;
        if self.copies {
            // SAFETY: the bytes belong to the caller until the completion, which follows.
            unsafe { op.keep_bytes() };
        }
        self.outbound[op.outbound as usize].ops -= 1;
        op.outbound = NOWHERE;
        let (context, flags) = (op.context, op.flags);
        self.publish(Finished { context, flags, len: 0, data: 0, errno, sent: true });
    }

    /// Takes back writes that have landed, or never will.
    #[cold]
    pub(super) fn bury(&mut self) {
        for Orphan { wire, ops } in std::mem::take(&mut self.orphans) {
            if !wire.is_cut() && !wire.target_is_gone() && !wire.requests.is_empty() {
                self.orphans.push(Orphan { wire, ops });
                continue;
            }
            for index in ops {
                // SAFETY: the target no longer uses the operation.
                unsafe { (*self.pool.op(index)).state = State::Free };
                self.free.push(index);
            }
        }
    }
}
