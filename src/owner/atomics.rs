//! Atomics at the peer's owner: requests out, requests in, answers. `calls::atomics` has their path.

use super::deliver::{Delivery, Pass};
use crate::fabric::grants::Grant;
use crate::ids::{Hold, OpId};
use crate::memory::RemoteState;
use crate::peer::link::Link;
use crate::peer::Peer;
use crate::session::channel::Out;
use crate::status::{Error, Status};
use crate::transfer::atomic::{self, Atomic, Request};
use crate::transfer::operation::Work;
use crate::transfer::Outcome;
use crate::wire::frame::{Kind, REQUESTS, SYSTEM};
use crate::worker::core::{Core, Needs};

/// The most answers that may wait until the peer reads them.
const ANSWERS: usize = 64;

impl Core {
    /// Sends what has no stripes to its peer's owner: a message, or an atomic, once the memory's owner has
    /// confirmed the memory.
    pub(crate) fn go_on_without(&self, hold: Hold, now: u64, ask: impl FnOnce(&Peer, Hold, Needs)) {
        let body = self.table.held(&hold).1;
        let (remote, grant) = match (&body.work, body.peer) {
            (Work::Atomic(atomic), _) => (atomic.remote.clone(), atomic.grant),
            (Work::Send(_), Some(peer)) => {
                return self.ask_owner(peer, hold, now, |peer, hold| ask(peer, hold, Needs::Message))
            }
            _ => return self.abandon(hold, Outcome::new(Status::Internal), now),
        };
        let hold = match remote.wait(hold, grant) {
            // The worker that delivers the answer releases the hold.
            Ok(()) => return,
            Err((hold, RemoteState::Ready)) => hold,
            Err((hold, state)) => {
                let status = Error::of_remote(state).map_or(Status::PeerLost, |error| error.status);
                return self.abandon(hold, Outcome::new(status), now);
            }
        };
        self.ask_owner(remote.peer, hold, now, |peer, hold| ask(peer, hold, Needs::Request));
    }
}

impl Link {
    /// Sends the request. The hold is kept until the answer arrives, so a canceled atomic still
    /// counts as outstanding, and the table's slots limit their number.
    pub(crate) fn push_atomic(&mut self, core: &Core, hold: Hold, now: u64) {
        let atomic = core.table.held(&hold).1.atomic().filter(|_| core.table.is_active(hold.id()));
        let Some(Atomic { request, grant, .. }) = atomic else {
            return core.abandon(hold, Outcome::new(Status::Internal), now);
        };
        let body = request.encode(hold.id().get());
        self.push(match *grant {
            Some(grant) => Out::new(Kind::AtomicUnder, [&grant.get().to_le_bytes()[..], &body].concat()),
            None => Out::new(Kind::Atomic, body),
        });
        self.atomics.insert(hold.id(), hold);
    }

    /// A request from a peer.
    pub(crate) fn atomic(&mut self, core: &Core, body: &[u8], grant: Option<&Grant>) -> Delivery {
        if !self.takes_requests() {
            return Delivery::Stalled;
        }
        let Some((id, request)) = Request::decode(body) else {
            core.count_malformed();
            return Delivery::Taken;
        };
        let memory = match grant {
            Some(grant) => core.memories.granted(grant, request.memory),
            None => core.memories.offered(request.memory, self.peer.id).ok_or(Status::MemoryGone),
        };
        // SAFETY: deregistering waits for every worker's pass to end.
        let done = memory.and_then(|memory| unsafe { request.execute(&memory, grant) });
        self.answer(core, Out::new(Kind::AtomicDone, atomic::answer(id, done)));
        Delivery::Taken
    }

    /// Refuses a request from a peer.
    pub(crate) fn refuse_atomic(&mut self, core: &Core, body: &[u8], status: Status) -> Delivery {
        if !self.takes_requests() {
            return Delivery::Stalled;
        }
        match Request::decode(body) {
            Some((id, _)) => {
                self.answer(core, Out::new(Kind::AtomicDone, atomic::answer(id, Err(status))));
            }
            None => core.count_malformed(),
        }
        Delivery::Taken
    }

    /// An answer from a peer.
    pub(crate) fn atomic_done(&mut self, pass: &Pass, body: &[u8]) -> Delivery {
        let answer = atomic::read_answer(body).and_then(|(id, done)| Some((OpId::new(id)?, done)));
        let answer = answer.and_then(|(id, done)| Some((id, self.atomics.remove(&id)?, done)));
        let Some((id, hold, done)) = answer else {
            pass.core.count_malformed();
            return Delivery::Taken;
        };
        let (table, now) = (&pass.core.table, pass.now);
        // Release first: the poller of the completion may release the remote memory at once.
        let _ = table.leave(hold);
        match done {
            Ok(old) => table.end_with_previous(id, Outcome::OK, old, now),
            Err(status) => table.end(id, Outcome::new(status), now),
        };
        Delivery::Taken
    }

    /// Whether few enough answers wait for the peer.
    pub(crate) fn takes_requests(&self) -> bool {
        self.session.channels[SYSTEM].waiting() < ANSWERS
    }

    /// Requests were left unread, and there is room for their answers.
    pub(crate) fn resumes_requests(&self) -> bool {
        let next = self.session.channels[REQUESTS].deliverable().filter(|_| self.session.is_up());
        next.is_some_and(|(kind, _)| match kind {
            Kind::Flush => self.takes_flushes(),
            _ => self.takes_requests(),
        })
    }
}
