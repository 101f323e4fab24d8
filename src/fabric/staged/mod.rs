//! Staging: memory that no NIC of a peer's fabric reaches, as files over libfabric, and memory of GPUs where NICs do
//! not register it. Its bytes go in frames of the peer's session, through slots (`Pool`) of both workers' own.
//!
//! ```text
//! write   Stage(id, pieces) ->            <- Staged(id, ready)     Stored(id, bytes) ...  -> slot -> disk or device
//!                                         <- Staged(id, how it ended)
//! read    Stage(id, pieces) ->            disk or device -> slot ->  <- Fetched(id, bytes) ...
//!                                         <- Staged(id, why not), if it fails
//! either  Unstage(id) ->                  <- Staged(id, canceled), unless it has ended
//! ```
//!
//! **Frames, and not NICs that write into slots.** What a NIC may still write into a slot keeps the slot from everybody else
//! until a lane is reset; a frame is copied by its owner. So all that has to end in time (a revoke, a fence, a
//! deregistration, a peer) is decided where the memory is, as over tcp: the owner looks a request up by memory and
//! grant when it gets a slot and again before a device copies, and `Copying` knows what is being copied. The session's
//! channel delivers each frame once, over whichever lanes there are: a lane that fails repeats no write.
//!
//! **A slot is a credit.** Bytes of a write come once the owner has a slot for all of them, so staged bytes are never held back by
//! a disk: what a hung one holds are its slots, of which a peer and a memory have a part (`Pool`). A peer may have
//! `ASKS` requests without an answer, of one memory half as many; those that have no slot wait in line.
//!
//! **An operation that has ended keeps nothing here.** Whatever the peer does, its requests let go of slot and memory at once,
//! and are given up (`Unstage`): their places at the peer are free once it has answered. What arrives meanwhile is discarded:
//! `Staged(ready)` and bytes at this side, and at the owner bytes of what it has ended. The owner lets a device finish that
//! empties a slot, so that its answer still means that nothing of the request lands later; and it ends a write of which
//! no bytes come for its `timeout_ns`.
//!
//! **Where.** The transfer's worker is the peer's owner; there are no stripes. `asking` is this side's part, `serving` the
//! owner's, both without I/O; `owner::staged` carries them out. A transfer comes here if no rail of the fabric in use knows
//! both of its memories, one of them is a device's, and the peer knows these frames (`wire::address`): else it ends as before.

pub mod asking;
pub mod serving;
#[cfg(test)]
mod tests;

pub use super::own::epoll::Epoll;
pub use super::own::pool::{Pool, Purpose};
use crate::ids::{GrantToken, MemoryId};
use crate::status::Status;
use crate::wire::frame::{numbers, read_numbers};
pub use crate::wire::tcp::RUN as SLOT;

/// Requests of a peer without an answer, and those of them for one memory.
pub const ASKS: usize = 32;
pub const OF_MEMORY: usize = ASKS / 2;
/// Pieces of a request: they fit into every fabric's frames.
pub const PIECES: usize = 64;
/// Words of a request before its pieces, and of each piece.
const HEAD: usize = 5;
const WORDS: usize = 3;
/// Bytes before those that a frame carries.
pub const NUMBER: usize = 8;

/// Bytes of a memory, by the number of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub range: u64,
    pub offset: u64,
    pub len: u64,
}

/// What is asked of a memory's owner.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    pub read: bool,
    pub memory: MemoryId,
    pub grant: Option<GrantToken>,
    pub pieces: Vec<Piece>,
}

impl Request {
    pub fn len(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len).sum()
    }

    pub fn encode(&self, id: u64) -> Vec<u8> {
        let grant = self.grant.map_or(0, |grant| grant.get());
        let head = [id, self.read.into(), self.memory.get(), grant as u64, (grant >> 64) as u64];
        let pieces = self.pieces.iter().flat_map(|piece| [piece.range, piece.offset, piece.len]);
        numbers(&head.into_iter().chain(pieces).collect::<Vec<u64>>())
    }

    pub fn decode(body: &[u8]) -> Option<(u64, Request)> {
        let (head, rest) = body.split_at_checked(8 * HEAD)?;
        let [id, read, memory, low, high] = read_numbers(head)?;
        let grant = GrantToken::new(u128::from(low) | u128::from(high) << 64);
        let words = rest.chunks(8 * WORDS).map(read_numbers);
        let pieces: Vec<Piece> = words
            .map(|words| words.map(|[range, offset, len]| Piece { range, offset, len }))
            .collect::<Option<_>>()?;
        let short = |piece: &Piece| (1..=SLOT).contains(&piece.len);
        let fits = (1..=PIECES).contains(&pieces.len()) && pieces.iter().all(short);
        let request = Request { read: read == 1, memory: MemoryId::new(memory), grant, pieces };
        (fits && read <= 1 && request.len() <= SLOT).then_some((id, request))
    }
}

/// The owner's answer: it has a slot for the bytes, or the request has ended, with the system's error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    Ready,
    Ended(Status, i32),
}

/// No status has this code.
const READY: u64 = 1;

impl Answer {
    pub fn encode(self, id: u64) -> Vec<u8> {
        match self {
            Answer::Ready => numbers(&[id, READY, 0]),
            Answer::Ended(status, errno) => numbers(&[id, status as i32 as u32 as u64, errno as u32 as u64]),
        }
    }

    pub fn decode(body: &[u8]) -> Option<(u64, Answer)> {
        let [id, code, errno] = read_numbers(body)?;
        let ended = || match Status::from_code(code as u32 as i32) {
            Status::Ok => Answer::Ended(Status::Ok, 0),
            known @ (Status::File
            | Status::MemoryGone
            | Status::Revoked
            | Status::Range
            | Status::Canceled
            | Status::TimedOut
            | Status::NoMemory) => Answer::Ended(known, errno as u32 as i32),
            // Any other status of the owner's counts as a refusal.
            _ => Answer::Ended(Status::RemoteAccess, 0),
        };
        Some((id, if code == READY { Answer::Ready } else { ended() }))
    }
}

/// A frame of another request, or of none: the peer breaks the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Breach;
