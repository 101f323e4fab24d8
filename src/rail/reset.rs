//! What was posted over lanes is taken back: over one, or, where only the NIC's endpoint as a whole can be closed, over
//! all of them.

use super::op::Work;
use super::{HasLane, Lane, Lanes, Rail, NO_ROUTE};
use crate::clock::Clock;
use crate::fabric::{Reaped, Registration, Resets, Return, Scratch};
use crate::status::Result;
use std::ptr;

/// How often a completion queue is read before it closes: peers may go on writing.
const LOOKS: usize = 4096;

impl Rail {
    /// Closes the path of a lane that is being reset, or drains, to its peer, where the NIC can (`Resets::Lane`): from now
    /// on, no post of either side over the lane moves bytes here. Its operations come back.
    pub fn reset_lane(&mut self, lane: &Lane) {
        self.trace("lane reset", Clock::System.now());
        lane.traffic.publish_end();
        if self.limits.resets == Resets::Rail {
            return;
        }
        let route = lane.route;
        // Also the routes inserted to answer the endpoint before it was a peer.
        let answers = self.answered.iter().filter(|(answered, _)| *answered == route).count();
        self.answered.retain(|(answered, _)| *answered != route);
        (0..=answers).for_each(|_| self.nic.reset(route));
    }

    /// Closes the NIC's endpoint: from now on, nothing that was posted before over any lane moves bytes here. What
    /// was posted here comes back with the next `reap`, and so do peers' writes that have arrived: they are acknowledged
    /// already. One that arrives between the last look and the close counts for its writer alone.
    pub fn close_endpoint(&mut self, lanes: &mut Lanes<impl HasLane>) -> Result<()> {
        for _ in 0..LOOKS {
            let before = self.reaped.len();
            self.nic.reap(&mut self.reaped);
            if self.reaped.len() == before {
                break;
            }
        }
        self.nic.close_endpoint()?;
        self.reaped.retain_mut(|one| {
            one.scratch = ptr::null_mut(); // A receive that it took goes back below, with the others.
            one.immediate.is_some()
        });
        self.trace("endpoint closed", Clock::System.now());
        lanes.iter_mut().for_each(|one| one.lane_mut().route = NO_ROUTE);
        self.answered.clear();
        self.unflushed = None;
        for i in 0..self.op_count {
            // SAFETY: `i < op_count`, so the pointer is inside the array, and the closed endpoint uses no op.
            let op = unsafe { &mut *self.ops.add(i) };
            op.scratch = Scratch([ptr::null_mut(); 8]);
            match op.tag.work {
                Work::Nothing => continue,
                Work::Receive => {
                    self.receives.put(op.tag.index);
                    self.put_op(op);
                    continue;
                }
                Work::Answer => op.tag.bytes = NO_ROUTE,
                _ => {}
            }
            self.reaped.push(Reaped::new(&raw mut op.scratch, libc::ECANCELED));
        }
        Ok(())
    }

    /// Opens the NIC's endpoint anew, if it is closed.
    pub fn open_endpoint(&mut self) -> Result<()> {
        if !self.nic.open_endpoint()? {
            return Ok(());
        }
        self.sends.refresh(&mut *self.nic);
        self.receives.refresh(&mut *self.nic);
        self.probe_buffer.refresh(&mut *self.nic);
        self.post_receives()
    }

    /// Goes on opening a device that was removed (`Nic::come_back`).
    pub fn come_back(&mut self) -> Result<Return> {
        self.nic.come_back()
    }

    pub fn refreshed(&mut self, registration: Registration) -> Registration {
        self.nic.refreshed(registration)
    }
}
