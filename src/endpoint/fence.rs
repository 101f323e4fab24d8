//! Fences: once one completes, nothing that a peer had accepted before it can land here.
//!
//! The peer has to answer, since only the peer knows what it has accepted, and what its NICs still
//! have: writes of operations that ended early are posted all the same. The peer waits until the
//! operations that it had accepted when it received the fence have ended, with their notifications
//! and counts; later ones proceed meanwhile. Then it holds each of its lanes to us until everything
//! on that lane is delivered; each lane proceeds independently (one may be dead without being known
//! to be). Once all have, and frames of ended operations are acknowledged, the peer answers. A
//! failed lane is idle once its own reset is done (`failover`).

use super::core::Core;
use super::Endpoint;
use crate::ids::{OpId, PeerId};
use crate::peer::link::{Link, Quiescing, Until};
use crate::revocation::asking::FENCES;
use crate::revocation::{Scope, Then};
use crate::session::channel::Out;
use crate::status::{Error, Result};
use crate::transfer::completion::KIND_FENCE;
use crate::transfer::operation::{Body, Work};
use crate::transfer::Common;
use crate::wire::frame::{numbers, Kind};

impl Endpoint {
    /// `peer`: as the caller names it.
    pub fn fence(&self, peer: u64, common: &Common) -> Result<OpId> {
        let core = &self.core;
        core.check_open()?;
        let peer = core.named_peer(peer)?;
        let id = self.begin_fence(common, Some(peer.id), || peer.ended())?;
        core.quiesce(peer.owner, Scope::Peer(peer.id), Then::Fence(id));
        self.kick(core.clock.now());
        Ok(id)
    }

    /// Begins an operation that moves no bytes and ends with an answer. `peer`: the peer for its
    /// completion; `ended`: the reason why it cannot begin, checked once the operation is visible.
    pub(super) fn begin_fence(
        &self,
        &Common { queue, user_data, timeout_ns, .. }: &Common,
        peer: Option<PeerId>,
        ended: impl FnOnce() -> Option<Error>,
    ) -> Result<OpId> {
        let core = &self.core;
        let place = self.hold_places(queue, 1)?;
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
        let hold = core.table.begin(body, 0, self.deadline(now, timeout_ns));
        let hold = hold.ok_or_else(|| self.no_slots())?;
        place.keep();
        let hold = self.take_back_if_late(hold, ended())?;
        let id = hold.id();
        // A fence has no stripes.
        let _ = core.table.leave(hold);
        Ok(id)
    }
}

impl Link {
    /// The peer requests that everything accepted for it ends first.
    pub(super) fn quiesce(&mut self, core: &Core, number: u64) {
        let until = Until::Ended(core.table.accepted(self.peer.id));
        self.come_to_rest(core, number, until);
    }

    pub(super) fn come_to_rest(&mut self, core: &Core, number: u64, until: Until) {
        // One more place is reserved for grants that the peer has revoked.
        if self.quiescing.len() > FENCES {
            return core.breach(&self.peer, "it requests more fences than an endpoint can have in flight");
        }
        self.quiescing.push(Quiescing { then: Then::Answer(number), until });
    }

    /// The session closes.
    pub(super) fn quiesce_to_close(&mut self, core: &Core) {
        let until = self.quiesce_lanes(core, Then::Close);
        self.quiescing.push(Quiescing { then: Then::Close, until });
    }

    /// Goes on with what is to come to rest: true while there is any.
    pub(super) fn advance_quiescing(&mut self, core: &Core, now: u64, over: impl Fn() -> bool) -> bool {
        for mut one in std::mem::take(&mut self.quiescing) {
            let done = match &mut one.until {
                Until::Ended(accepted) => core.table.have_ended(accepted, &over),
                Until::Swept => self.sweeps.is_empty(),
                Until::Quiet(workers) => *workers == 0,
                Until::Taken(ends, asked) => {
                    asked.retain(|id| self.atomics.contains_key(id));
                    let mut channels = self.session.channels.iter().zip(ends.iter());
                    let taken = channels
                        .all(|(channel, last)| last.is_none_or(|last| channel.has_acknowledged(last)));
                    asked.is_empty() && taken
                }
            };
            if done {
                one.until = match (one.until, one.then) {
                    (Until::Ended(_) | Until::Swept, _) => self.quiesce_lanes(core, one.then),
                    (Until::Quiet(_), Then::Answer(_)) => self.until_taken(core),
                    (Until::Taken(..), Then::Answer(number)) => {
                        self.answer(core, Out::new(Kind::Quiesced, numbers(&[number])));
                        continue;
                    }
                    (..) => {
                        self.session.lanes_quiet(now);
                        continue;
                    }
                };
            }
            self.quiescing.push(one);
        }
        !self.quiescing.is_empty()
    }

    /// Has all workers bring the peer's lanes to rest.
    fn quiesce_lanes(&self, core: &Core, then: Then) -> Until {
        let workers = self.peer.workers;
        let those = (0..core.inboxes.len()).filter(|worker| workers >> worker & 1 != 0);
        Until::Quiet(those.map(|worker| core.quiesce(worker, Scope::Lanes(self.peer.id), then)).count())
    }

    /// The lanes of one worker are at rest.
    pub(super) fn lanes_are_quiet(&mut self, then: Then) {
        let waits = self.quiescing.iter_mut().find(|one| one.then == then);
        if let Some(Until::Quiet(workers)) = waits.map(|one| &mut one.until) {
            *workers = workers.saturating_sub(1);
        }
    }

    /// Notifications and requests of operations that ended early may still be in flight.
    fn until_taken(&mut self, core: &Core) -> Until {
        let wanted = |id: OpId| core.table.is_active(id);
        let ends = self.session.channels.each_mut().map(|channel| channel.end(wanted));
        let asked = self.atomics.keys().copied().filter(|id| !wanted(*id)).collect();
        Until::Taken(ends, asked)
    }
}
