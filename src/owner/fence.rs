//! Fences at the peer's owner, which comes to rest. `calls::fence` says what they promise.

use crate::ids::OpId;
use crate::peer::link::{Link, Wait};
use crate::revocation::asking::FENCES;
use crate::revocation::quiescing::{Due, Quiescing, Step};
use crate::revocation::{Scope, Then};
use crate::session::channel::Out;
use crate::wire::frame::{numbers, Kind};
use crate::worker::core::Core;

impl Link {
    /// The peer requests that everything accepted for it ends first.
    pub(crate) fn quiesce(&mut self, core: &Core, number: u64) {
        let accepted = core.table.accepted(self.peer.id);
        self.begin_quiescing(core, number, Wait::Accepted(accepted));
    }

    pub(crate) fn begin_quiescing(&mut self, core: &Core, number: u64, first: Wait) {
        // One more place is reserved for grants that the peer has revoked.
        if self.quiescing.len() > FENCES {
            return core.breach(&self.peer, "it requests more fences than an endpoint can have in flight");
        }
        self.quiescing.push(Quiescing { then: Then::Answer(number), step: Step::Operations(first) });
    }

    /// The session closes.
    pub(crate) fn quiesce_to_close(&mut self, core: &Core) {
        let step = Step::Lanes(self.quiesce_lanes(core, Then::Close));
        self.quiescing.push(Quiescing { then: Then::Close, step });
    }

    /// Goes on with what is to come to rest: true while there is any.
    pub(crate) fn advance_quiescing(&mut self, core: &Core, now: u64, over: impl Fn() -> bool) -> bool {
        for mut one in std::mem::take(&mut self.quiescing) {
            match one.poll(|wait| self.is_over(core, wait, &over)) {
                Some(Due::Lanes(then)) => one.handle_asked(self.quiesce_lanes(core, then)),
                Some(Due::Frames(_)) => one.handle_frames(self.last_frames(core)),
                Some(Due::Done(Then::Answer(number))) => {
                    self.answer(core, Out::new(Kind::Quiesced, numbers(&[number])));
                    continue;
                }
                Some(Due::Done(_)) => {
                    self.session.lanes_quiesced(now);
                    continue;
                }
                None => {}
            }
            self.quiescing.push(one);
        }
        !self.quiescing.is_empty()
    }

    fn is_over(&self, core: &Core, wait: &mut Wait, over: &impl Fn() -> bool) -> bool {
        match wait {
            Wait::Accepted(accepted) => core.table.have_ended(accepted, over),
            Wait::Swept => self.withdrawals.is_empty(),
            Wait::Taken(ends, asked) => {
                asked.retain(|id| self.atomics.contains_key(id) || self.staged.ops().any(|op| op == *id));
                let mut channels = self.session.channels.iter().zip(ends.iter());
                let taken =
                    channels.all(|(channel, last)| last.is_none_or(|last| channel.has_acknowledged(last)));
                asked.is_empty() && taken
            }
        }
    }

    /// Has all workers bring the peer's lanes to rest; returns how many there are.
    fn quiesce_lanes(&self, core: &Core, then: Then) -> usize {
        let workers = self.peer.workers;
        let those = (0..core.inboxes.len()).filter(|worker| workers >> worker & 1 != 0);
        those.map(|worker| core.quiesce(worker, Scope::Lanes(self.peer.id), then)).count()
    }

    /// The lanes of one worker are at rest.
    pub(crate) fn lanes_have_quiesced(&mut self, then: Then) {
        if let Some(waits) = self.quiescing.iter_mut().find(|one| one.then == then) {
            waits.handle_quiesced();
        }
    }

    /// Notifications and requests of operations that ended early may still be in flight.
    fn last_frames(&mut self, core: &Core) -> Wait {
        let wanted = |id: OpId| core.table.is_active(id);
        let ends = self.session.channels.each_mut().map(|channel| channel.end(wanted));
        let asked = self.atomics.keys().copied().chain(self.staged.ops()).filter(|id| !wanted(*id)).collect();
        Wait::Taken(ends, asked)
    }
}
