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
use super::inbox::Command;
use super::Endpoint;
use crate::ids::{OpId, PeerId};
use crate::peer::link::{Link, Quiesce, Quiescing, Until};
use crate::peer::Rests;
use crate::session::channel::Out;
use crate::status::{Error, Result, Status};
use crate::transfer::completion::KIND_FENCE;
use crate::transfer::operation::{Body, Work};
use crate::transfer::{Common, Outcome};
use crate::wire::frame::{numbers, Kind};

/// The most concurrent fences of one peer.
const FENCES: usize = 64;

impl Endpoint {
    /// `peer`: as the caller names it.
    pub fn fence(&self, peer: u64, common: &Common) -> Result<OpId> {
        let core = &self.core;
        core.check_open()?;
        let peer = core.named_peer(peer)?;
        let id = self.begin_fence(common, Some(peer.id), || peer.ended())?;
        core.inboxes[peer.owner].command(Command::Fence { peer: peer.id, id });
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
    /// A caller's fence.
    pub(super) fn fence(&mut self, core: &Core, id: OpId, now: u64) {
        self.fences.retain(|_, id| core.table.is_active(*id));
        if self.fences.len() >= FENCES {
            core.table.end(id, Outcome::of(Status::Limit), now);
            return;
        }
        let number = self.next_fence;
        self.next_fence += 1;
        self.fences.insert(number, id);
        self.push(Out::new(Kind::Quiesce, numbers(&[number])));
    }

    /// The peer answers a fence.
    pub(super) fn quiesced(&mut self, core: &Core, number: u64, now: u64) {
        if let Some(id) = self.fences.remove(&number) {
            core.table.end(id, Outcome::OK, now);
        }
        if let Some(rested) = self.resting.take_if(|resting| resting.number == number) {
            rested.of.iter().for_each(|of| match of {
                Rests::Revoke(of) => core.count_arrivals_of(of, now),
                Rests::Keys(of, _) => core.keys_known(of),
            });
            self.ask_to_rest(core);
        }
    }

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
        self.quiescing.push(Quiescing { of: Quiesce::Fence(number), until });
    }

    /// The session closes.
    pub(super) fn quiesce_to_close(&mut self, core: &Core) {
        let until = self.quiesce_lanes(core, Quiesce::Close);
        self.quiescing.push(Quiescing { of: Quiesce::Close, until });
    }

    /// Goes on with what is to come to rest: true while there is any.
    pub(super) fn advance_quiescing(&mut self, core: &Core, now: u64, over: impl Fn() -> bool) -> bool {
        for mut of in std::mem::take(&mut self.quiescing) {
            let done = match &mut of.until {
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
                of.until = match (of.until, of.of) {
                    (Until::Ended(_) | Until::Swept, _) => self.quiesce_lanes(core, of.of),
                    (Until::Quiet(_), Quiesce::Fence(_)) => self.until_taken(core),
                    (Until::Taken(..), Quiesce::Fence(number)) => {
                        self.answer(core, Out::new(Kind::Quiesced, numbers(&[number])));
                        continue;
                    }
                    (_, Quiesce::Close) => {
                        self.session.lanes_quiet(now);
                        continue;
                    }
                };
            }
            self.quiescing.push(of);
        }
        !self.quiescing.is_empty()
    }

    /// Has all workers bring the peer's lanes to rest.
    fn quiesce_lanes(&self, core: &Core, of: Quiesce) -> Until {
        let peer = self.peer.id;
        let workers = core.workers_of_peer(&self.peer);
        Until::Quiet(workers.map(|inbox| inbox.command(Command::QuiesceLanes { peer, of })).count())
    }

    /// The lanes of one worker are at rest.
    pub(super) fn lanes_are_quiet(&mut self, of: Quiesce) {
        let waits = self.quiescing.iter_mut().find(|one| one.of == of);
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
