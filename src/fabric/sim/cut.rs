//! How a connection ends: one side removes the other's address, and nothing that
//! either side had posted to the other lands any more. Who did so has its
//! operations back at once; the other side when the word of it can pass.
//!
//! What is posted afterwards goes over a new connection.

use super::endpoint::Endpoint;
use super::flight::{is_mute, retry_at};
use super::wire::State;
use std::sync::atomic::Ordering::SeqCst;

impl Endpoint {
    /// Others have cut wires of ours.
    #[cold]
    pub(super) fn notice_cuts(&mut self) {
        let cuts = self.port.cuts.load(SeqCst);
        let mut unheard = false;
        for out in 0..self.outbound.len() {
            let Some(wire) = self.outbound[out].wire.as_ref().filter(|wire| wire.is_cut()) else { continue };
            if is_mute(wire) {
                unheard = true;
            } else {
                self.disconnect(out, self.mode.gone);
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
        wire.cut();
        let pool = self.pool.clone();
        // SAFETY: these fields are always ours.
        let is_of = |index: u32| unsafe { (*pool.op(index)).outbound as usize == out };
        self.held.retain(|index| !is_of(*index));
        let waiting = self.flight.take(is_of);
        let fresh = self.connect(&wire.to);
        let to = &mut self.outbound[out];
        self.in_wires -= std::mem::take(&mut to.in_wire) + usize::from(std::mem::take(&mut to.shaking));
        to.waiting.clear();
        to.stalled = 0;
        to.regions = Default::default();
        to.wire = Some(fresh);
        for index in (0..self.pool.len() as u32).filter(|index| is_of(*index)) {
            // SAFETY: the target touches it no more.
            let op = unsafe { &mut *self.pool.op(index) };
            let told = op.early && !waiting.contains(&index);
            match std::mem::replace(&mut op.state, State::Here) {
                State::Free => op.state = State::Free,
                _ if told => self.release(index),
                _ => {
                    (op.early, op.errno) = (false, errno);
                    self.finish(index);
                }
            }
        }
    }
}
