//! Submission: the caller's part of an operation's life.

use super::inbox::Command;
use super::Endpoint;
use crate::clock::Clock;
use crate::memory::{Memory, RemoteMemory, RemoteState};
use crate::peer::PeerState;
use crate::status::{Error, Result, Status};
use crate::transfer::table::{Body, Left, Move};
use crate::transfer::{Direction, Outcome, SendSpec, TransferSpec};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// What a message costs of the allowance beside its bytes.
const MESSAGE_COST: u64 = 64;

fn full(what: &str) -> Error {
    Error::new(Status::Again, format!("{what}: poll, then try again"))
}

impl Endpoint {
    fn deadline(&self, now: u64, timeout_ns: u64) -> u64 {
        let timeout = if timeout_ns == 0 { self.core.config.timeout_ns } else { timeout_ns };
        now.saturating_add(timeout)
    }

    pub fn submit(&self, spec: TransferSpec) -> Result<u64> {
        let core = &self.core;
        core.check_open()?;
        if let Some(error) = Error::of_remote(spec.remote.state()) {
            return Err(error);
        }
        check_access(&spec)?;
        let (local, remote) = (spec.local, spec.remote);
        let geometry = spec.pages.check(
            (remote.lanes(), spec.urgent),
            |range| local.range_len(range),
            |range| remote.range_len(range),
        )?;
        let now = core.clock.now();
        if !spec.queue.reserve(1) {
            return Err(full("the completion queue is full"));
        }
        if let Err(error) = enter(local, remote) {
            spec.queue.unreserve(1);
            return Err(error);
        }
        let slices = geometry.slices;
        let body = Body {
            queue: spec.queue.clone(),
            user_data: spec.user_data,
            peer: remote.peer,
            submit_ns: now,
            bytes: geometry.bytes(),
            transfer: Some(Move {
                direction: spec.direction,
                urgent: spec.urgent,
                geometry,
                local: local.clone(),
                remote: remote.clone(),
                notify: spec.notify.map(|notify| (notify.value, notify.data.into())),
            }),
        };
        let Some(id) = core.table.begin(body, slices, self.deadline(now, spec.timeout_ns)) else {
            local.exit();
            remote.exit();
            spec.queue.unreserve(1);
            return Err(full(&format!("{} operations are outstanding (max_transfers)", core.table.active())));
        };
        self.take_back_if_late(id, Error::of_remote(remote.state()))?;
        self.start(id, remote, slices, now);
        self.hurry(now);
        Ok(id)
    }

    /// With manual progress the caller is the worker, too: unless another thread is
    /// at it, posts go out at once.
    fn hurry(&self, now: u64) {
        if let (Some(worker), Clock::System) = (&self.manual, &self.core.clock) {
            if let Some(mut worker) = worker.try_lock() {
                worker.hurry(now);
            }
        }
    }

    /// Sends an accepted transfer on its way.
    fn start(&self, id: u64, remote: &Arc<RemoteMemory>, slices: u64, now: u64) {
        let core = &self.core;
        if slices == 0 {
            match core.table.leave(core.table.held_slot(id), 0) {
                Left::ToNotify(id, peer) => core.notify(id, peer, now),
                _ => {
                    core.table.end(id, Outcome::OK, now);
                }
            }
        } else {
            match remote.wait(id) {
                None => {}
                Some(RemoteState::Ready) => core.send_off(id, now),
                Some(state) => {
                    let status = Error::of_remote(state).map_or(Status::PeerLost, |error| error.status);
                    core.abandon(id, Outcome::of(status), now);
                }
            }
        }
    }

    /// What ended while we submitted ends all operations that it sees. Ours may not
    /// have been among them: then it was never accepted, for a completion could come
    /// after the peer's PEER_DOWN. What ends from here on sees it.
    fn take_back_if_late(&self, id: u64, ended: Option<Error>) -> Result<()> {
        let table = &self.core.table;
        let error = match self.core.check_open() {
            Ok(()) => ended,
            Err(closed) => Some(closed),
        };
        match error {
            Some(error) if table.take_back(id) => {
                table.leave(table.held_slot(id), 0);
                Err(error)
            }
            _ => Ok(()),
        }
    }

    pub fn send(&self, spec: SendSpec) -> Result<u64> {
        let core = &self.core;
        core.check_open()?;
        let peer = core.peers.get(spec.peer)?;
        let allowance = spec.data.len() as u64 + MESSAGE_COST;
        let before = peer.outgoing.fetch_add(allowance, Ordering::Relaxed);
        if before > 0 && before + allowance > core.config.message_bytes {
            peer.outgoing.fetch_sub(allowance, Ordering::Relaxed);
            return Err(full(&format!(
                "{before} bytes of messages wait for this peer (message_bytes: {})",
                core.config.message_bytes
            )));
        }
        if !spec.queue.reserve(1) {
            peer.outgoing.fetch_sub(allowance, Ordering::Relaxed);
            return Err(full("the completion queue is full"));
        }
        let now = core.clock.now();
        let body = Body {
            queue: spec.queue.clone(),
            user_data: spec.user_data,
            peer: peer.id,
            submit_ns: now,
            bytes: spec.data.len() as u64,
            transfer: None,
        };
        let Some(id) = core.table.begin(body, 0, self.deadline(now, spec.timeout_ns)) else {
            peer.outgoing.fetch_sub(allowance, Ordering::Relaxed);
            spec.queue.unreserve(1);
            return Err(full(&format!("{} operations are outstanding (max_transfers)", core.table.active())));
        };
        let ended = (peer.state() == PeerState::Down).then(|| Error::handle("the peer has just ended"));
        self.take_back_if_late(id, ended)?;
        // A send has no flows: its place in the peer's channel ends it.
        core.table.leave(core.table.held_slot(id), 0);
        core.inboxes[peer.home].command(Command::Send {
            peer: peer.id,
            id,
            data: spec.data.into(),
            allowance,
        });
        Ok(id)
    }

    pub fn cancel(&self, id: u64) -> Result<()> {
        if !self.core.table.end(id, Outcome::of(Status::Canceled), self.core.clock.now()) {
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
        if peer.state() == PeerState::Up {
            self.core.inboxes[peer.home].command(Command::Resume { peer: peer.id });
        }
        Ok(())
    }
}

fn check_access(spec: &TransferSpec) -> Result<()> {
    let (allowed, needed) = match spec.direction {
        Direction::Write => (spec.remote.writable, "WEFT_ACCESS_REMOTE_WRITE"),
        Direction::Read => (spec.remote.readable, "WEFT_ACCESS_REMOTE_READ"),
    };
    if !allowed {
        return Err(Error::new(
            Status::RemoteAccess,
            format!("the owner registered this memory without {needed}"),
        ));
    }
    if spec.direction == Direction::Read && !spec.local.is_writable() {
        return Err(Error::invalid("a read into memory that this process may not write to"));
    }
    Ok(())
}

fn enter(local: &Memory, remote: &RemoteMemory) -> Result<()> {
    if !local.enter() {
        return Err(Error::handle("the local memory is being deregistered"));
    }
    remote.enter();
    Ok(())
}
