//! Fences: nothing that a peer had accepted so far can land here afterwards.
//!
//! The peer is asked, since only it knows what it has accepted, and what its NICs still have:
//! writes of operations that ended early are posted all the same. It waits until the
//! operations that it had accepted when it saw the fence have ended, with their notifications
//! and counts; others are submitted and go on meanwhile. Then it holds its lanes to us,
//! each until everything on it has come back delivered: then that one goes on, whatever the others do (one may be dead, and not
//! known to be). When all have, and frames of ended operations are acknowledged, the peer answers. A lane that is broken is at rest once its
//! own fence is (`failover`).

use super::inbox::Command;
use super::lanes::LaneWork;
use super::later::{FenceWaits, QuiescingLanes, Until};
use super::worker::Worker;
use super::Endpoint;
use crate::ids::{OpId, PeerId};
use crate::peer::link::{Link, Quiescing};
use crate::peer::{PeerState, Rests};
use crate::session::channel::{Channel, Out};
use crate::status::{Error, Result, Status};
use crate::transfer::completion::KIND_FENCE;
use crate::transfer::operation::{Body, Work};
use crate::transfer::queue::Queue;
use crate::transfer::{FenceSpec, Outcome};
use crate::wire::frame::{numbers, Kind};
use std::num::NonZeroU64;
use std::sync::Arc;

/// Fences of one peer that may be under way.
const FENCES: usize = 64;
/// How long one pass looks for the operations that fences wait for.
const FENCE_LOOK_NS: u64 = 500_000;

impl Endpoint {
    pub fn fence(&self, spec: FenceSpec) -> Result<OpId> {
        let core = &self.core;
        core.check_open()?;
        let peer = core.peers.find(spec.peer)?;
        let down = || (peer.state() == PeerState::Down).then(|| Error::handle("the peer has just ended"));
        let of = (spec.queue, spec.user_data, spec.timeout_ns);
        let id = self.begin_fence(of, Some(peer.id), down)?;
        core.inboxes[peer.owner].command(Command::Fence { peer: peer.id, id });
        self.kick(core.clock.now());
        Ok(id)
    }

    /// Begins an operation that moves no bytes and that an answer ends. `peer`: the peer that its
    /// completion names; `ended`: why it cannot begin, checked once it is visible.
    pub(super) fn begin_fence(
        &self,
        (queue, user_data, timeout_ns): (&Arc<Queue>, u64, Option<NonZeroU64>),
        peer: Option<PeerId>,
        ended: impl FnOnce() -> Option<Error>,
    ) -> Result<OpId> {
        let core = &self.core;
        if !queue.reserve(1) {
            return Err(self.no_places(queue, 1));
        }
        let now = core.clock.now();
        let body = || Body {
            kind: KIND_FENCE,
            to: core.table.to(queue),
            user_data,
            peer,
            submit_ns: now,
            bytes: 0,
            done: None,
            work: Work::Fence,
        };
        let Some(hold) = core.table.begin(body, 0, self.deadline(now, timeout_ns)) else {
            queue.unreserve(1);
            return Err(self.no_slots());
        };
        let hold = self.take_back_if_late(hold, ended())?;
        let id = hold.id();
        // A fence has no stripes.
        let _ = core.table.leave(hold);
        Ok(id)
    }
}

impl Worker {
    /// The caller wants a fence.
    pub fn link_fence(&mut self, peer: PeerId, id: OpId, now: u64) {
        let core = self.core.clone();
        // A peer that has ended took its fences with it.
        let Some(link) = self.link(peer) else { return };
        link.fences.retain(|_, id| core.table.is_active(*id));
        if link.fences.len() >= FENCES {
            core.table.end(id, Outcome::of(Status::Limit), now);
            return;
        }
        let number = link.next_fence;
        link.next_fence += 1;
        link.fences.insert(number, id);
        link.push(Out::new(Kind::Quiesce, numbers(&[number])));
        self.mark(peer);
    }

    /// The peer answers one.
    pub(super) fn quiesced(&self, link: &mut Link, number: u64, now: u64) {
        if let Some(id) = link.fences.remove(&number) {
            self.core.table.end(id, Outcome::OK, now);
        }
        if let Some(rested) = link.resting.take_if(|resting| resting.number == number) {
            rested.of.iter().for_each(|of| match of {
                Rests::Revoke(of) => self.core.count_arrivals_of(of, now),
                Rests::Keys(of, _) => self.core.keys_known(of),
            });
            self.ask_to_rest(link);
        }
    }

    /// The peer asks that everything which we have accepted for it come to rest.
    pub(super) fn quiesce(&mut self, link: &mut Link, number: u64) {
        let until = Until::Ended(self.core.table.accepted(link.peer.id));
        self.come_to_rest(link, number, until);
    }

    pub(super) fn come_to_rest(&mut self, link: &mut Link, number: u64, until: Until) {
        let peer = link.peer.id;
        let waits = self.fence_waits.iter().filter(|of| of.peer == peer).count();
        // One more place is for grants that the peer has revoked.
        if waits + link.quiescing.len() > FENCES {
            return self.breach(&link.peer, "it asks for more fences than there can be");
        }
        self.fence_waits.push(FenceWaits { peer, number, until });
    }

    /// Goes on with the peers' fences.
    pub(super) fn advance_fences(&mut self, now: u64) {
        if self.fence_waits.is_empty() {
            return;
        }
        let core = self.core.clone();
        let over = || core.clock.now().saturating_sub(now) > FENCE_LOOK_NS;
        let mut waits = std::mem::take(&mut self.fence_waits);
        waits.retain_mut(|of| {
            let Some(mut link) = self.links.get_mut(of.peer.place()).and_then(Option::take) else {
                return false;
            };
            // A peer that has ended took its fences with it.
            let here = link.peer.id == of.peer;
            let done = here
                && match &mut of.until {
                    Until::Ended(accepted) => core.table.have_ended(accepted, over),
                    Until::Swept => self.sweeps.is_empty(),
                    Until::Taken(ends, asked) => {
                        asked.retain(|id| link.atomics.contains_key(id));
                        let taken = |(channel, last): (&Channel, &Option<u32>)| {
                            last.is_none_or(|last| channel.has_acknowledged(last))
                        };
                        asked.is_empty()
                            && link.session.channels.iter().zip(ends).map(|(c, l)| (c, &*l)).all(taken)
                    }
                };
            match &of.until {
                _ if !done => {}
                Until::Ended(_) | Until::Swept => self.quiesce_all_lanes(&mut link, of.number),
                Until::Taken(..) => {
                    self.answer(&mut link, Out::new(Kind::Quiesced, numbers(&[of.number])));
                }
            }
            self.links[of.peer.place()] = Some(link);
            if done {
                self.mark(of.peer);
            }
            here && !done
        });
        waits.append(&mut self.fence_waits);
        self.fence_waits = waits;
    }

    fn quiesce_all_lanes(&self, link: &mut Link, number: u64) {
        let workers = (0..self.core.inboxes.len()).filter(|worker| link.peer.workers & 1 << worker != 0);
        let mut waiting = 0;
        for worker in workers {
            waiting += 1;
            self.core.inboxes[worker].command(Command::QuiesceLanes { peer: link.peer.id, number });
        }
        link.quiescing.push(Quiescing { number, waiting });
    }

    /// At the peer's owner: the lanes of one worker are at rest.
    pub fn link_lanes_quiet(&mut self, peer: PeerId, number: u64) {
        let core = self.core.clone();
        let Some(link) = self.link(peer) else { return };
        let Some(of) = link.quiescing.iter_mut().find(|of| of.number == number) else { return };
        of.waiting -= 1;
        if of.waiting > 0 {
            return;
        }
        link.quiescing.retain(|of| of.number != number);
        // Notifications and requests of operations that ended early may still be in flight.
        let wanted = |id: OpId| core.table.is_active(id);
        let ends = link.session.channels.each_mut().map(|channel| channel.end(wanted));
        let asked = link.atomics.keys().copied().filter(|id| !wanted(*id)).collect();
        self.fence_waits.push(FenceWaits { peer, number, until: Until::Taken(ends, asked) });
    }

    /// Holds each of a peer's lanes until it is at rest.
    pub fn quiesce_lanes(&mut self, peer: PeerId, number: u64) {
        let mut lanes = Vec::new();
        for of in self.rails.lanes_mut().filter(|of| of.peer.id == peer) {
            of.held += 1;
            of.stripes.forget_keys();
            lanes.push(of.lane.id);
        }
        self.quiescing_lanes.push(QuiescingLanes { peer, number, lanes });
        self.advance_quiescing();
    }

    /// Looks which lanes have come to rest.
    pub(super) fn advance_quiescing(&mut self) {
        if self.quiescing_lanes.is_empty() {
            return;
        }
        let mut done = Vec::new();
        for of in &mut self.quiescing_lanes {
            let rails = &mut self.rails;
            of.lanes.retain(|lane| {
                let Some((_, one)) = rails.lane_mut(*lane) else { return false };
                let rests = is_at_rest(one);
                one.held = one.held.saturating_sub(rests as u32);
                !rests
            });
            if of.lanes.is_empty() {
                done.push((of.peer, of.number));
            }
        }
        self.quiescing_lanes.retain(|of| !of.lanes.is_empty());
        for (peer, number) in done {
            if let Ok(found) = self.core.peers.get(peer) {
                self.command_owner(&found, Command::LanesQuiet { peer, number });
            }
        }
    }
}

/// Whether nothing of a lane is under way.
fn is_at_rest(of: &LaneWork) -> bool {
    of.lane.inflight_ops == 0 && of.resetting.is_none()
}
