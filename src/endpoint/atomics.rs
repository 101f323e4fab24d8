//! The path of an atomic: it is submitted, sent as a request to the peer's owner, executed by the
//! peer, and answered.
//!
//! Requests have a channel of their own, which the target does not read while its answers pile up;
//! answers use the system channel, which is always read. So two sides that send requests to each
//! other cannot block one another.

use super::core::Core;
use super::deliver::{Delivery, Pass};
use super::inbox::Command;
use super::submit::ungranted;
use super::Endpoint;
use crate::fabric::grants::Grant;
use crate::ids::{GrantToken, Hold, OpId};
use crate::memory::{place, RemoteMemory, RemoteState};
use crate::peer::link::Link;
use crate::peer::Peer;
use crate::session::channel::Out;
use crate::status::{Error, Result, Status};
use crate::transfer::atomic::{self, Atomic, AtomicSpec, Request, WORD};
use crate::transfer::completion::KIND_ATOMIC;
use crate::transfer::operation::{Body, Work};
use crate::transfer::Outcome;
use crate::wire::frame::{Kind, REQUESTS, SYSTEM};

/// The most answers that may wait until the peer reads them.
const ANSWERS: usize = 64;

impl Endpoint {
    pub fn atomic(&self, spec: AtomicSpec) -> Result<OpId> {
        let core = &self.core;
        core.check_open()?;
        let remote = spec.remote;
        if let Some(error) = Error::of_remote(remote.state()) {
            return Err(error);
        }
        let ended = |error| Error::of_remote(RemoteState::PeerLost).unwrap_or(error);
        check_support(&*core.peers.get(remote.peer).map_err(ended)?)?;
        check_access(remote, spec.common.grant)?;
        let (range, offset) = place(|range| remote.range_len(range), spec.offset);
        check_place(remote, range.into(), offset)?;
        let now = core.clock.now();
        let request = Request {
            operation: spec.operation,
            memory: remote.id,
            range: range.into(),
            offset,
            operand: spec.operand,
            compare: spec.compare,
        };
        let Some(atomic) = Atomic::new(remote, spec.common.grant, request) else {
            return Err(Error::handle("the remote memory was released"));
        };
        let place = self.hold_places(spec.common.queue, 1)?;
        let body = || Body {
            kind: KIND_ATOMIC,
            to: core.table.to(spec.common.queue),
            user_data: spec.common.user_data,
            peer: Some(remote.peer),
            submit_ns: now,
            bytes: 0,
            done: None,
            work: Work::Atomic(atomic),
        };
        let hold = core.table.begin(body, 0, self.deadline(now, spec.common.timeout_ns));
        let hold = hold.ok_or_else(|| self.no_slots())?;
        place.keep();
        let hold = self.take_back_if_late(hold, Error::of_remote(remote.state_under(spec.common.grant)))?;
        let id = hold.id();
        core.go_on(hold, now);
        self.kick(now);
        Ok(id)
    }
}

fn check_support(peer: &Peer) -> Result<()> {
    if !peer.address.does_atomics() {
        return Err(Error::new(
            Status::Unsupported,
            "the peer's Weft does no atomics: see capabilities in weft_peer_info",
        ));
    }
    Ok(())
}

fn check_access(remote: &RemoteMemory, grant: Option<GrantToken>) -> Result<()> {
    if !remote.writable || !remote.readable {
        let missing = if remote.writable { "READ" } else { "WRITE" };
        return Err(Error::new(
            Status::RemoteAccess,
            format!(
                "the owner registered this memory without WEFT_ACCESS_REMOTE_{missing}: atomics need both"
            ),
        ));
    }
    if remote.granted_only && grant.is_none() {
        return Err(ungranted());
    }
    if remote.device.is_some() {
        return Err(Error::new(
            Status::Unsupported,
            "the remote memory is on a device: atomics are done by CPUs",
        ));
    }
    Ok(())
}

fn outside(message: String) -> Error {
    Error::new(Status::Range, message)
}

fn check_place(remote: &RemoteMemory, range: u64, offset: u64) -> Result<()> {
    let Some(place) = remote.range(range) else {
        return Err(outside(format!("remote_range is {range}, which the remote memory does not have")));
    };
    if offset.checked_add(WORD).is_none_or(|end| end > place.len) {
        return Err(outside(format!(
            "remote_offset is {offset}: the {WORD} bytes from there are not all in range {range}, which has {}",
            place.len
        )));
    }
    let address = place.base.wrapping_add(offset);
    if address % WORD != 0 {
        return Err(Error::invalid(format!(
            "remote_offset is {offset}, which is address {address:#x} there: it must be a multiple of {WORD}"
        )));
    }
    Ok(())
}

impl Core {
    /// Sends an atomic to its peer's owner, once the memory's owner has confirmed the memory.
    pub(super) fn go_on_atomic(&self, hold: Hold, now: u64) {
        let of = self.table.held(&hold).1.atomic();
        let Some((remote, grant)) = of.map(|atomic| (atomic.remote.clone(), atomic.grant)) else {
            return self.abandon(hold, Outcome::of(Status::Internal), now);
        };
        let hold = match remote.wait(hold, grant) {
            // The worker that delivers the answer releases the hold.
            Ok(()) => return,
            Err((hold, RemoteState::Ready)) => hold,
            Err((hold, state)) => {
                let status = Error::of_remote(state).map_or(Status::PeerLost, |error| error.status);
                return self.abandon(hold, Outcome::of(status), now);
            }
        };
        match self.peers.get(remote.peer) {
            Ok(peer) => self.hand_over(peer.owner, Command::Atomic { peer: peer.id, hold }, now),
            Err(_) => self.abandon(hold, Outcome::of(Status::PeerLost), now),
        }
    }

    /// The request for an atomic, unless the atomic has ended.
    pub(super) fn request(&self, hold: &Hold) -> Option<(Request, Option<GrantToken>)> {
        let atomic = self.table.held(hold).1.atomic()?;
        self.table.is_active(hold.id()).then_some((atomic.request, atomic.grant))
    }
}

impl Link {
    /// Sends the request. The hold is kept until the answer arrives, so a canceled atomic still
    /// counts as outstanding, and the table's slots limit their number.
    pub(super) fn push_atomic(&mut self, hold: Hold, (request, grant): (Request, Option<GrantToken>)) {
        let body = request.encode(hold.id().get());
        self.push(match grant {
            Some(grant) => Out::new(Kind::AtomicUnder, [&grant.get().to_le_bytes()[..], &body].concat()),
            None => Out::new(Kind::Atomic, body),
        });
        self.atomics.insert(hold.id(), hold);
    }

    /// A request from a peer.
    pub(super) fn atomic(&mut self, core: &Core, body: &[u8], grant: Option<&Grant>) -> Delivery {
        if !self.takes_requests() {
            return Delivery::Stalled;
        }
        let Some((id, request)) = Request::decode(body) else {
            core.count_malformed();
            return Delivery::Taken;
        };
        let memory = match grant {
            Some(grant) => core.granted(grant, request.memory),
            None => core.offered(request.memory, self.peer.id).ok_or(Status::MemoryGone),
        };
        // SAFETY: deregistering waits for every worker's pass to end.
        let done = memory.and_then(|memory| unsafe { request.execute(&memory, grant) });
        self.answer(core, Out::new(Kind::AtomicDone, atomic::answer(id, done)));
        Delivery::Taken
    }

    /// Refuses a request from a peer.
    pub(super) fn refuse_atomic(&mut self, core: &Core, body: &[u8], status: Status) -> Delivery {
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
    pub(super) fn atomic_done(&mut self, pass: &Pass, body: &[u8]) -> Delivery {
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
            Err(status) => table.end(id, Outcome::of(status), now),
        };
        Delivery::Taken
    }

    /// Whether few enough answers wait for the peer.
    pub(super) fn takes_requests(&self) -> bool {
        self.session.channels[SYSTEM].waiting() < ANSWERS
    }

    /// Requests were left unread, and there is room for their answers.
    pub(super) fn resumes_requests(&self) -> bool {
        let left = self.session.channels[REQUESTS].deliverable().is_some();
        left && self.session.is_up() && self.takes_requests()
    }
}
