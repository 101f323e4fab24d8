//! Submission: the caller's part of an operation's life.

use super::Endpoint;
use crate::device::FILE;
use crate::ids::{Hold, OpId, PeerId};
use crate::memory::{Memory, RemoteMemory, RemoteState};
use crate::peer::PeerState;
use crate::room::{self, Theirs};
use crate::status::{Error, Result, Status};
use crate::transfer::completion;
use crate::transfer::geometry::{Cut, Geometry, Pages, Single};
use crate::transfer::list::{List, Part};
use crate::transfer::operation::{Body, Counting, Message, Move, To, Work};
use crate::transfer::queue::{Places, Queue};
use crate::transfer::shape::{check_access, Entered, Shape};
use crate::transfer::watch::Mark;
use crate::transfer::{Common, Direction, Outcome, Terms};
use crate::worker::config::MESSAGE_MAX;
use crate::worker::inbox::Command;
use once_cell::sync::OnceCell;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// The cost of a message in its sender's allowance, in addition to its bytes.
const MESSAGE_COST: u64 = 64;

pub(crate) fn full(what: &str) -> Error {
    Error::new(Status::Again, format!("{what}: poll, then try again"))
}

impl Endpoint {
    pub(crate) fn deadline(&self, now: u64, timeout_ns: Option<NonZeroU64>) -> u64 {
        self.core.deadline(now, timeout_ns)
    }

    /// Asks a worker to start an accepted transfer when its watch reaches a value.
    fn start_later(&self, hold: Hold, start: Mark, now: u64) {
        let owner = self.core.table.held(&hold).1.peer.and_then(|peer| self.core.owner_of(peer)).unwrap_or(0);
        self.core.hand_over(owner, Command::GoOn { hold, start: Some(start) }, now);
    }

    pub fn submit(
        &self,
        local: &Arc<Memory>,
        remote: &Arc<RemoteMemory>,
        pages: &Pages,
        terms: &Terms,
    ) -> Result<OpId> {
        self.core.phase.check_open()?;
        if !self.core.config.manual {
            self.core.table.prefetch();
            remote.prefetch();
            local.prefetch();
        }
        if let Some(error) = Error::of_remote(remote.state()) {
            return Err(error);
        }
        check_access(terms.direction, local, remote)?;
        self.check_terms(terms, remote)?;
        let single = || pages.single(|range| local.range_len(range), |range| remote.range_len(range));
        if let Some(single) = terms.count.map_or_else(single, |_| None) {
            return self.submit_single(local, remote, single, terms);
        }
        let counting = self.counting(terms, remote, pages.page_len, pages.count())?;
        let whole = counting.is_some_and(|counting| counting.at_end.is_none());
        let geometry = check_pages(pages, local, remote, terms.urgent, whole)?;
        geometry.check_destination(terms.direction)?;
        let (entered, slices) = (Entered::new(local, remote)?, geometry.slices);
        self.launch(
            slices,
            || entered.shape(geometry),
            counting,
            terms,
            || remote.state_under(terms.common.grant),
        )
    }

    /// Like `submit`, for one short page that raises no counter: the small transfer is built in its
    /// slot, not moved there.
    #[inline]
    fn submit_single(
        &self,
        local: &Arc<Memory>,
        remote: &Arc<RemoteMemory>,
        single: Single,
        terms: &Terms,
    ) -> Result<OpId> {
        if let Some(id) = self.post_inline(local, remote, single, terms) {
            return Ok(id);
        }
        let entered = Entered::new(local, remote)?;
        self.launch(
            1,
            || entered.shape(single.geometry()),
            None,
            terms,
            || remote.state_under(terms.common.grant),
        )
    }

    /// Begins a transfer to one peer and starts it. Its shape is large, so it is built in place.
    /// `state`: of its peer and memories.
    #[inline(always)]
    pub(crate) fn launch(
        &self,
        slices: u64,
        shape: impl FnOnce() -> Shape,
        counting: Option<Counting>,
        terms: &Terms,
        state: impl Fn() -> RemoteState,
    ) -> Result<OpId> {
        let core = &self.core;
        let now = core.clock.now();
        let place = self.hold_places(terms.common.queue, 1)?;
        let body = || body(shape, counting, terms, core.table.to(terms.common.queue), done(terms), now);
        let hold = core.table.begin(body, slices, self.deadline(now, terms.common.timeout_ns));
        let hold = hold.ok_or_else(|| self.no_slots())?;
        place.keep();
        let hold = self.take_back_if_late(hold, Error::of_remote(state()))?;
        let (id, bytes) = (hold.id(), core.table.held(&hold).1.bytes);
        self.start_inline(terms.common.queue, bytes, now, || self.start_when(hold, slices, terms, now));
        Ok(id)
    }

    /// Like `launch`, for a list with several peers.
    pub(crate) fn launch_parts(
        &self,
        list: &Arc<List>,
        terms: &Terms,
        state: impl Fn(&Part) -> (RemoteState, u64),
    ) -> Result<OpId> {
        let core = &self.core;
        let (now, parts) = (core.clock.now(), list.parts().len());
        let completions = if terms.each_peer { parts as u64 } else { 1 };
        self.check_parts(parts, completions, terms.common.queue)?;
        let mut holds: Vec<Hold> = room::vec(parts, "the list's peers")?;
        // The peer's PEER_DOWN waits for this part: operations that this thread ends come before
        // it.
        let passing = core.table.pass();
        self.core.phase.check_open()?;
        let ended = |part: &Part| Error::of_remote(state(part).0);
        if let Some(error) = list.parts().iter().find_map(ended) {
            return Err(error);
        }
        let places = self.hold_places(terms.common.queue, completions)?;
        let mut reserved = core.table.reserve(parts + 1).ok_or_else(|| self.no_slots())?;
        let to = |completes: bool| if completes { core.table.to(terms.common.queue) } else { To::Nowhere };
        let whole = || Body {
            kind: kind(terms.direction),
            to: to(!terms.each_peer),
            user_data: terms.common.user_data,
            peer: None,
            submit_ns: now,
            bytes: list.parts().iter().fold(0, |sum: u64, part| sum.saturating_add(part.bytes)),
            done: done(terms),
            work: Work::Parts,
        };
        let whole = reserved.begin_whole(whole, parts as u64).ok_or_else(|| self.no_slots())?;
        places.keep();
        let deadline = self.deadline(now, terms.common.timeout_ns);
        let begin = |(i, part): (usize, &Part)| {
            let body = || body(|| Shape::part(list, i), None, terms, to(terms.each_peer), None, now);
            reserved.begin_part(body, part.slices, deadline, whole)
        };
        holds.extend(list.parts().iter().enumerate().filter_map(begin));
        for (hold, part) in holds.iter().zip(list.parts()) {
            let (state, entry) = state(part);
            self.end_if_too_late(hold.id(), state, entry);
        }
        drop(passing);
        let bytes = list.parts().iter().fold(0, |sum: u64, part| sum.saturating_add(part.bytes));
        self.start_inline(terms.common.queue, bytes, now, || {
            for (hold, part) in holds.into_iter().zip(list.parts()) {
                self.start_when(hold, part.slices, terms, now);
            }
        });
        Ok(whole)
    }

    /// A message that never fits must not be retried.
    fn check_parts(&self, parts: usize, completions: u64, queue: &Queue) -> Result<()> {
        let (slots, depth) = (self.core.config.max_transfers as usize, queue.capacity());
        if parts >= slots {
            return Err(Error::limit(format!(
                "a list over {parts} peers takes {} of max_transfers, which is {slots}",
                parts + 1
            )));
        }
        if completions > depth {
            return Err(Error::limit(format!(
                "the list has {completions} completions, but its queue only holds {depth}"
            )));
        }
        Ok(())
    }

    pub(crate) fn no_slots(&self) -> Error {
        self.core.table.no_slot()
    }

    /// Places in a queue for an operation that begins.
    #[inline]
    pub(crate) fn hold_places<'a>(&self, queue: &'a Arc<Queue>, wanted: u64) -> Result<Places<'a>> {
        queue.hold(wanted).ok_or_else(|| self.no_places(queue, wanted))
    }

    #[cold]
    fn no_places(&self, queue: &Arc<Queue>, wanted: u64) -> Error {
        if queue.is_retired() {
            return super::destroyed();
        }
        let (name, depth) = match Arc::ptr_eq(queue, &self.core.queue) {
            true => ("the endpoint's queue", "queue_depth"),
            false => ("the operation's queue", "depth"),
        };
        full(&format!("{name} has no room for {wanted} more ({depth} is {})", queue.capacity()))
    }

    /// Starts an accepted transfer now, or when its watch is reached.
    fn start_when(&self, hold: Hold, slices: u64, terms: &Terms, now: u64) {
        match &terms.common.marks.start {
            Some(start) => self.start_later(hold, start.clone(), now),
            None => self.core.start(hold, slices, now),
        }
    }

    /// A peer or memory that ended during the submission ended every part that it found; this part
    /// may not have been among them.
    fn end_if_too_late(&self, id: OpId, state: RemoteState, entry: u64) {
        let late = if !self.core.phase.is_open() {
            Some(Status::Canceled)
        } else {
            Error::of_remote(state).map(|error| error.status)
        };
        if let Some(status) = late {
            let outcome = Outcome { entry: Some(entry), ..Outcome::new(status) };
            self.core.table.end(id, outcome, self.core.clock.now());
        }
    }

    /// Takes an operation back if its peer or memory ended during the submission. Ending one ends
    /// all operations that it finds. Ours may not have been among them: then it was never accepted,
    /// because its completion could otherwise follow the peer's PEER_DOWN. Anything that ends from
    /// here on finds it.
    pub(crate) fn take_back_if_late(&self, hold: Hold, ended: Option<Error>) -> Result<Hold> {
        let table = &self.core.table;
        let error = match self.core.phase.check_open() {
            Ok(()) => ended,
            Err(closed) => Some(closed),
        };
        match error {
            Some(error) if table.take_back(hold.id()) => {
                let body = table.held(&hold).1;
                let grant = body.transfer().and_then(|transfer| transfer.grant);
                let error = match grant.filter(|_| error.status == Status::Revoked) {
                    Some(grant) => {
                        error.about(&format!("grant {grant} of peer {:#x}", body.peer.map_or(0, PeerId::get)))
                    }
                    None => error,
                };
                let _ = table.leave(hold);
                Err(error)
            }
            _ => Ok(hold),
        }
    }

    /// Checks that a transfer has a grant if it needs one, and can be kept within it; and that its bytes
    /// can be made durable.
    pub(crate) fn check_terms(&self, terms: &Terms, remote: &RemoteMemory) -> Result<()> {
        if terms.durable {
            self.check_durable(terms.direction, remote)?;
        }
        match terms.common.grant {
            None if remote.granted_only => Err(ungranted()),
            Some(_) if !self.core.rails_check => self.core.check_covered(remote.peer),
            _ => Ok(()),
        }
    }

    #[cold]
    fn check_durable(&self, direction: Direction, remote: &RemoteMemory) -> Result<()> {
        let flushes = || Ok(self.core.peers.get(remote.peer)?.address.flushes());
        let why = match direction {
            Direction::Read => "it is for writes: after a read into a file, fdatasync it",
            Direction::Write if remote.device != Some(FILE as u8) => "the remote memory is not a file",
            Direction::Write if !flushes()? => {
                "the peer's Weft does not flush files: see capabilities in weft_peer_info"
            }
            Direction::Write => return Ok(()),
        };
        Err(Error::new(Status::Unsupported, format!("WEFT_DURABLE is set in flags, but {why}")))
    }

    /// Begins an operation without stripes. `ended`: why it is too late for it.
    pub(super) fn begin(
        &self,
        common: &Common,
        kind: i32,
        peer: Option<PeerId>,
        bytes: u64,
        work: Work,
        ended: impl FnOnce() -> Option<Error>,
    ) -> Result<(Hold, u64)> {
        let core = &self.core;
        let place = self.hold_places(common.queue, 1)?;
        let now = core.clock.now();
        let (to, done) = (core.table.to(common.queue), common.marks.done.clone().map(Box::new));
        let (user_data, submit_ns) = (common.user_data, now);
        let body = || Body { kind, to, user_data, peer, submit_ns, bytes, done, work };
        let hold = core.table.begin(body, 0, self.deadline(now, common.timeout_ns));
        let hold = hold.ok_or_else(|| self.no_slots())?;
        place.keep();
        Ok((self.take_back_if_late(hold, ended())?, now))
    }

    /// `peer`: as the caller names it.
    pub fn send(&self, peer: u64, data: Theirs<u8>, common: &Common) -> Result<OpId> {
        let core = &self.core;
        core.phase.check_open()?;
        if data.len() > MESSAGE_MAX {
            return Err(Error::limit(format!(
                "a message of {} bytes: at most {MESSAGE_MAX} are allowed",
                data.len()
            )));
        }
        let data = data.copied("the message")?;
        let peer = core.named_peer(peer)?;
        let allowance = data.len() as u64 + MESSAGE_COST;
        let allowed = peer.allow(allowance, core.config.message_bytes).map_err(|before| {
            Error::new(
                Status::Again,
                format!(
                    "{before} bytes of messages wait for this peer (message_bytes is {}): it must poll and \
                     release what it polls, then try again",
                    core.config.message_bytes
                ),
            )
        })?;
        let (bytes, work) = (data.len() as u64, Work::Send(Message { data: Arc::new(data), allowance }));
        let (hold, now) =
            self.begin(common, completion::KIND_SEND, Some(peer.id), bytes, work, || peer.ended())?;
        allowed.keep();
        let id = hold.id();
        if let Err(hold) = self.send_now(peer.id, hold, bytes, common.queue, now) {
            core.hand_over(peer.owner, Command::GoOn { hold, start: None }, now);
            self.kick(now);
        }
        Ok(id)
    }

    /// `id`: from the caller.
    pub fn cancel(&self, id: u64) -> Result<()> {
        if !OpId::new(id).is_some_and(|id| self.core.table.cancel(id, self.core.clock.now())) {
            return Err(Error::handle(format!(
                "{id:#x} is not an operation of this endpoint, or it has completed already"
            )));
        }
        Ok(())
    }

    pub fn release_message(&self, id: u64) -> Result<()> {
        if id == 0 {
            return Ok(());
        }
        let peer = self.core.messages.release(id)?;
        // If the two just miss each other, the next tick delivers.
        if peer.stalled.load(Ordering::Relaxed) && peer.state() == PeerState::Up {
            peer.stalled.store(false, Ordering::Relaxed);
            self.core.inboxes[peer.owner].command(Command::Resume { peer: peer.id });
        }
        Ok(())
    }
}

pub(crate) fn ungranted() -> Error {
    Error::invalid("its owner lets nobody reach this memory but under grants: name one in the options")
}

/// Checks pages against two memories.
#[inline(always)]
pub(crate) fn check_pages(
    pages: &Pages,
    local: &Arc<Memory>,
    remote: &Arc<RemoteMemory>,
    urgent: bool,
    whole: bool,
) -> Result<Geometry> {
    pages.check(
        Cut { rails: remote.lanes(), urgent, whole },
        |range| local.range_len(range),
        |range| remote.range_len(range),
    )
}

fn kind(direction: Direction) -> i32 {
    match direction {
        Direction::Write => completion::KIND_WRITE,
        Direction::Read => completion::KIND_READ,
    }
}

#[inline]
fn done(terms: &Terms) -> Option<Box<Mark>> {
    terms.common.marks.done.clone().map(Box::new)
}

#[inline(always)]
pub(crate) fn body(
    shape: impl FnOnce() -> Shape,
    counting: Option<Counting>,
    terms: &Terms,
    to: To,
    done: Option<Box<Mark>>,
    now: u64,
) -> Body {
    let notify = terms.notify.map(|notify| (notify.value, notify.data.iter().collect()));
    let shape = shape();
    let view = shape.view();
    Body {
        kind: kind(terms.direction),
        to,
        user_data: terms.common.user_data,
        peer: Some(view.peer()),
        submit_ns: now,
        bytes: view.bytes(),
        done,
        work: Work::Transfer(Move {
            direction: terms.direction,
            urgent: terms.urgent,
            durable: terms.durable,
            slices: view.slices(),
            notify,
            notifies_failure: terms.notify.is_some_and(|notify| notify.of_failure),
            counting,
            grant: terms.common.grant,
            covered: OnceCell::new(),
            shape,
        }),
    }
}
