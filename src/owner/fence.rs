//! Fences at the peer's owner, which comes to rest. `calls::fence` says what they promise.

use crate::ids::OpId;
use crate::peer::link::{Link, Quiescing, Until};
use crate::revocation::asking::FENCES;
use crate::revocation::{Scope, Then};
use crate::session::channel::Out;
use crate::wire::frame::{numbers, Kind};
use crate::worker::core::Core;

impl Link {
    /// The peer requests that everything accepted for it ends first.
    pub(crate) fn quiesce(&mut self, core: &Core, number: u64) {
        let until = Until::Ended(core.table.accepted(self.peer.id));
        self.quiesce_until(core, number, until);
    }

    pub(crate) fn quiesce_until(&mut self, core: &Core, number: u64, until: Until) {
        // One more place is reserved for grants that the peer has revoked.
        if self.quiescing.len() > FENCES {
            return core.breach(&self.peer, "it requests more fences than an endpoint can have in flight");
        }
        self.quiescing.push(Quiescing { then: Then::Answer(number), until });
    }

    /// The session closes.
    pub(crate) fn quiesce_to_close(&mut self, core: &Core) {
        let until = self.quiesce_lanes(core, Then::Close);
        self.quiescing.push(Quiescing { then: Then::Close, until });
    }

    /// Goes on with what is to come to rest: true while there is any.
    pub(crate) fn advance_quiescing(&mut self, core: &Core, now: u64, over: impl Fn() -> bool) -> bool {
        for mut one in std::mem::take(&mut self.quiescing) {
            let done = match &mut one.until {
                Until::Ended(accepted) => core.table.have_ended(accepted, &over),
                Until::Swept => self.sweeps.is_empty(),
                Until::Quiesced(workers) => *workers == 0,
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
                    (Until::Quiesced(_), Then::Answer(_)) => self.until_taken(core),
                    (Until::Taken(..), Then::Answer(number)) => {
                        self.answer(core, Out::new(Kind::Quiesced, numbers(&[number])));
                        continue;
                    }
                    (..) => {
                        self.session.lanes_quiesced(now);
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
        Until::Quiesced(those.map(|worker| core.quiesce(worker, Scope::Lanes(self.peer.id), then)).count())
    }

    /// The lanes of one worker are at rest.
    pub(crate) fn lanes_have_quiesced(&mut self, then: Then) {
        let waits = self.quiescing.iter_mut().find(|one| one.then == then);
        if let Some(Until::Quiesced(workers)) = waits.map(|one| &mut one.until) {
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
