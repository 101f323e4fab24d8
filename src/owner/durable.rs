//! Writes that are durable, at both peers' owners: requests to flush files, and their answers.

use super::deliver::Delivery;
use crate::fabric::grants::Grant;
use crate::ids::MemoryId;
use crate::memory::Memory;
use crate::peer::link::{Flushing, Link};
use crate::session::channel::Out;
use crate::status::Status;
use crate::transfer::durable::{Answer, Request};
use crate::transfer::operation::Move;
use crate::transfer::table::Table;
use crate::wire::frame::Kind;
use crate::worker::core::Core;
use crate::worker::inbox::Command;
use std::sync::Arc;

/// A peer has no further request taken while this many memories of its requests wait for disks.
const FLUSHES: usize = 1024;

impl Link {
    /// A request from the peer. Its answer comes once all of its memories are flushed.
    pub(crate) fn flush(&mut self, core: &Core, body: &[u8]) -> Delivery {
        if !self.takes_flushes() {
            return Delivery::Stalled;
        }
        let Some(Request { id, grant, memories }) = Request::decode(body) else {
            core.count_malformed();
            return Delivery::Taken;
        };
        let ours = |grant: &Arc<Grant>| grant.peer == self.peer.id;
        let granted = grant.map(|token| core.grants.named(token).filter(ours));
        let number = self.next_flush;
        self.next_flush += 1;
        // One more, so that no answer precedes the last request.
        self.flushing.insert(number, Flushing { id, left: memories.len() + 1, answer: Answer::OK });
        for (index, memory) in memories.into_iter().enumerate() {
            let found = self.writable(core, &granted, memory);
            let begun = found.and_then(|memory| self.begin_flush(core, &memory, number, index));
            if let Err(status) = begun {
                self.one_is_flushed(core, number, Answer { status, errno: 0, index: index as u64 });
            }
        }
        self.one_is_flushed(core, number, Answer::OK);
        Delivery::Taken
    }

    /// Whether few enough answers and flushes wait.
    pub(crate) fn takes_flushes(&self) -> bool {
        self.takes_requests() && self.flushing.values().map(|one| one.left).sum::<usize>() < FLUSHES
    }

    /// Our memory, if the peer may write to it. `granted`: the grant that it names, if that is live.
    fn writable(
        &self,
        core: &Core,
        granted: &Option<Option<Arc<Grant>>>,
        memory: MemoryId,
    ) -> Result<Arc<Memory>, Status> {
        let (memory, access) = match granted {
            None => {
                let memory = core.memories.offered(memory, self.peer.id).ok_or(Status::MemoryGone)?;
                let access = memory.access();
                (memory, access)
            }
            Some(None) => return Err(Status::Revoked),
            Some(Some(grant)) => (core.memories.granted(grant, memory)?, grant.access),
        };
        if access.remote_write {
            Ok(memory)
        } else {
            Err(Status::RemoteAccess)
        }
    }

    fn begin_flush(&self, core: &Core, memory: &Memory, number: u64, index: usize) -> Result<(), Status> {
        let place = memory.place().ok_or(Status::Unsupported)?;
        let (inboxes, owner, peer) = (core.inboxes.clone(), self.peer.owner, self.peer.id);
        let done = move |flushed| inboxes[owner].command(Command::Flushed { peer, number, index, flushed });
        match place.flush(Box::new(done)) {
            true => Ok(()),
            false => Err(Status::MemoryGone),
        }
    }

    /// A memory is flushed, or the system's error number.
    pub(crate) fn has_flushed(&mut self, core: &Core, number: u64, index: usize, flushed: Result<(), i32>) {
        let (status, errno) = match flushed {
            Ok(()) => (Status::Ok, 0),
            Err(libc::ESTALE) => (Status::MemoryGone, 0),
            Err(errno) => (Status::File, errno),
        };
        self.one_is_flushed(core, number, Answer { status, errno, index: index as u64 });
    }

    fn one_is_flushed(&mut self, core: &Core, number: u64, answer: Answer) {
        let Some(flushing) = self.flushing.get_mut(&number) else { return };
        if flushing.answer.status == Status::Ok {
            flushing.answer = answer;
        }
        flushing.left -= 1;
        if flushing.left > 0 {
            return;
        }
        if let Some(Flushing { id, answer, .. }) = self.flushing.remove(&number) {
            self.answer(core, Out::new(Kind::Flushed, answer.encode(id)));
        }
    }

    /// The answer of a peer: what else the transfer announces may follow.
    pub(crate) fn flush_answered(&mut self, core: &Core, body: &[u8], now: u64) {
        let Some((id, answer)) = Answer::decode(body) else { return core.count_malformed() };
        // (The operation may have ended meanwhile.)
        let Some(slot) = core.table.flushed(id, self.peer.id) else { return };
        // SAFETY: a reader hold keeps the slot alive until it is released.
        let transfer = unsafe { core.table.body(slot) }.transfer();
        let goes_on = transfer.filter(|transfer| answer.status == Status::Ok && transfer.tells());
        let entry = transfer.and_then(|transfer| entry_at(transfer, answer.index));
        if let Some(transfer) = goes_on {
            self.push_arrived(id, transfer, false, Table::is_staged(slot));
        }
        let is_done = goes_on.is_none();
        core.table.release(slot);
        if is_done {
            core.table.end(id, answer.outcome(entry), now);
        }
    }
}

/// The first entry of a list that uses a memory of the request.
fn entry_at(transfer: &Move, index: u64) -> Option<u64> {
    let view = transfer.view();
    let remote = view.remotes().nth(usize::try_from(index).ok()?)?;
    view.entry_of(remote)
}
