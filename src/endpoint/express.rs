//! The short way of a transfer that is one small post, with manual progress: the caller posts it
//! on a lane that has nothing else to do, and only then makes its operation. From there on its
//! stripe is as any other.
//!
//! Who waits for the bytes waits for what comes before the post alone. All of it happens while
//! the worker is held, so nothing of the peer ends, and nothing comes back, before the
//! operation is there.

use super::core::{Core, OPEN};
use super::submit::body;
use super::worker::Worker;
use super::Endpoint;
use crate::clock::Clock;
use crate::fabric::{Rma, Segment};
use crate::ids::{GrantToken, OpId};
use crate::memory::{Memory, RemoteMemory, RemoteState};
use crate::rail::{Burst, LaneState};
use crate::status::Status;
use crate::transfer::geometry::Single;
use crate::transfer::shape::Entered;
use crate::transfer::stripes::Stripes;
use crate::transfer::{Direction, Outcome, Terms};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// What is to be moved.
struct Parcel<'a> {
    local: &'a Arc<Memory>,
    remote: &'a Arc<RemoteMemory>,
    single: Single,
    terms: &'a Terms<'a>,
}

impl Endpoint {
    /// Posts a transfer, if it is as simple as that. `None`: nothing has happened, and it takes
    /// the long way, where it is said if anything is wrong with it.
    #[inline]
    pub(super) fn express(
        &self,
        local: &Arc<Memory>,
        remote: &Arc<RemoteMemory>,
        single: Single,
        terms: &Terms,
    ) -> Option<OpId> {
        let (Some(worker), Clock::System) = (&self.manual, &self.core.clock) else { return None };
        let parcel = Parcel { local, remote, single, terms };
        if !parcel.is_plain() {
            return None;
        }
        worker.try_lock()?.express(&parcel)
    }
}

impl Parcel<'_> {
    #[inline]
    fn is_plain(&self) -> bool {
        let Parcel { local, remote, terms, .. } = self;
        let on_hosts = local.place().is_none() && remote.device.is_none();
        on_hosts && terms.notify.is_none() && terms.marks.are_none()
    }
}

impl Worker {
    fn express(&mut self, parcel: &Parcel) -> Option<OpId> {
        let mail = self.has_mail();
        let Worker { core, rails, lanes_of, turn, closed, .. } = self;
        let Parcel { local, remote, terms, .. } = parcel;
        if *closed || mail {
            return None;
        }
        let lanes = lanes_of.get(remote.peer.place()).filter(|lanes| !lanes.is_empty())?;
        *turn = turn.wrapping_add(1);
        let id = lanes[*turn % lanes.len()];
        let (rail, work) = rails.lane_mut(id).filter(|(_, work)| work.is_free())?;
        let mut burst = rail.burst(&mut work.lane, core.clock.now())?;
        let (of, there) = (&burst.lane, burst.lane.remote_rail);
        let up = of.state == LaneState::Up && of.peer == remote.peer;
        if !up || !local.knows(id.rail) || !remote.knows(there) || !has_room(&mut burst, terms.urgent) {
            return None;
        }
        parcel.send(core, &mut work.stripes, &mut burst)
    }
}

/// Whether a lane that is free posts a whole page now.
#[inline]
fn has_room(burst: &mut Burst, urgent: bool) -> bool {
    if urgent {
        burst.kick();
    }
    (urgent || !burst.is_brief()) && burst.room(urgent, false) > 0
}

impl Parcel<'_> {
    #[inline]
    fn send(&self, core: &Core, stripes: &mut Stripes, burst: &mut Burst) -> Option<OpId> {
        let Parcel { local, remote, single, terms } = self;
        let (table, now) = (&core.table, burst.now);
        let entered = Entered::new(local, remote).ok()?;
        let state = remote.state_under(terms.grant);
        if core.phase.load(Ordering::SeqCst) != OPEN || state != RemoteState::Ready {
            return None;
        }
        if !terms.queue.reserve(1) {
            return None;
        }
        let slot = table.take().filter(|slot| self.post(stripes, burst) || table.put_back(slot));
        let Some(slot) = slot else {
            terms.queue.unreserve(1);
            return None;
        };
        let body =
            || body(|| entered.shape(single.geometry()), None, (terms, table.to(terms.queue), None), now);
        let hold = table.fill(slot, body, 1, core.deadline(now, terms.timeout_ns));
        let id = hold.id();
        // SAFETY: it is held.
        if let Some(transfer) = unsafe { table.body(slot) }.transfer() {
            stripes.posted(hold, (slot, transfer), table, now);
        }
        if core.phase.load(Ordering::SeqCst) != OPEN {
            // Who closes the endpoint may not have seen it.
            table.end(id, Outcome::of(Status::Canceled), now);
        }
        Some(id)
    }

    #[inline]
    fn post(&self, stripes: &mut Stripes, burst: &mut Burst) -> bool {
        let Single { len, local: (from, at), remote: (to, offset) } = self.single;
        let (from, to) = (from as usize, to as usize);
        let (_, remote_rail, grants) = burst.path();
        let (remote, base_key) = self.remote.locate(remote_rail, to, offset);
        let key = self.terms.grant.filter(|_| grants).map_or(base_key, GrantToken::key);
        let local = self.local.ranges()[from].base + at;
        let rma = Rma {
            read: self.terms.direction == Direction::Read,
            segments: &[Segment { local, remote, len }],
            descriptor: self.local.registration(burst.rail, from).descriptor,
            key,
            immediate: None,
            more: false,
        };
        // SAFETY: both memories are entered, and will be while the transfer's slot is held; the rail
        // keeps the op until the NIC gives it back.
        unsafe { stripes.post_first(burst, rma, len) }
    }
}
