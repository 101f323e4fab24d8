//! Atomics: requests, their wire format, and their execution at the target.
//!
//! The target's CPU executes them, not a NIC: so they are atomic with the target program's own
//! accesses, over every fabric alike.

use super::Common;
use crate::fabric::grants::Grant;
use crate::ids::{GrantToken, MemoryId};
use crate::kernel_copy;
use crate::memory::{Memory, RemoteMemory};
use crate::status::Status;
use crate::wire::frame::{numbers, read_numbers};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Bytes of the word.
pub const WORD: u64 = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Operation {
    /// Adds `operand`, modulo 2^64.
    FetchAdd = 1,
    /// Stores `operand` if the value is `compare`.
    CompareSwap = 2,
}

/// The request to the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub operation: Operation,
    pub memory: MemoryId,
    pub range: u64,
    pub offset: u64,
    pub operand: u64,
    pub compare: u64,
}

pub struct AtomicSpec<'a> {
    pub operation: Operation,
    pub remote: &'a Arc<RemoteMemory>,
    /// Into its concatenated ranges.
    pub offset: u64,
    pub operand: u64,
    pub compare: u64,
    pub common: Common<'a>,
}

/// An operation's part of its slot.
pub struct Atomic {
    pub remote: Arc<RemoteMemory>,
    pub grant: Option<GrantToken>,
    pub request: Request,
}

impl Atomic {
    /// Keeps the remote memory from being released; `None` if it was released.
    pub fn new(remote: &Arc<RemoteMemory>, grant: Option<GrantToken>, request: Request) -> Option<Atomic> {
        remote.keep_and_enter().then(|| Atomic { remote: remote.clone(), grant, request })
    }
}

impl Drop for Atomic {
    fn drop(&mut self) {
        self.remote.exit_and_unkeep();
    }
}

impl Request {
    /// `id`: the requester's, for the answer.
    pub fn encode(&self, id: u64) -> Vec<u8> {
        let Request { operation, memory, range, offset, operand, compare } = *self;
        numbers(&[id, operation as u64, memory.get(), range, offset, operand, compare])
    }

    pub fn decode(body: &[u8]) -> Option<(u64, Request)> {
        let [id, operation, memory, range, offset, operand, compare] = read_numbers(body)?;
        let operation = [Operation::FetchAdd, Operation::CompareSwap]
            .into_iter()
            .find(|known| *known as u64 == operation)?;
        let memory = MemoryId::new(memory);
        Some((id, Request { operation, memory, range, offset, operand, compare }))
    }

    /// The address of the word, if the requester may access it.
    fn locate(&self, memory: &Memory, grant: Option<&Grant>) -> Result<u64, Status> {
        let access = grant.map_or(memory.access(), |grant| grant.access);
        if !access.remote_read || !access.remote_write {
            return Err(Status::RemoteAccess);
        }
        let range = usize::try_from(self.range).ok().and_then(|at| memory.ranges().get(at));
        let range = range.ok_or(Status::Range)?;
        let end = self.offset.checked_add(WORD).ok_or(Status::Range)?;
        let address = range.base.wrapping_add(self.offset);
        if grant.is_some_and(|grant| !grant.covers(address, WORD)) {
            return Err(Status::Revoked);
        }
        match end <= range.len {
            true if address % WORD == 0 => Ok(address),
            true => Err(Status::Invalid),
            false => Err(Status::Range),
        }
    }

    /// Executes the request, and returns the previous value.
    ///
    /// # Safety
    /// The memory must stay registered during the call.
    pub unsafe fn execute(&self, memory: &Memory, grant: Option<&Grant>) -> Result<u64, Status> {
        if memory.place().is_some() {
            return Err(Status::RemoteAccess);
        }
        let address = self.locate(memory, grant)?;
        // The kernel makes no atomic accesses; it says whether the word is there.
        if memory.access().may_fault && !kernel_copy::can_read(std::iter::once(address)) {
            return Err(Status::MemoryGone);
        }
        // SAFETY: the address is aligned and inside a registered range. The program's own accesses
        // to memory that peers may change are atomic or do not depend on the value read. (SeqCst:
        // the program that owns the memory may depend on the strongest order.)
        let word = unsafe { AtomicU64::from_ptr(address as *mut u64) };
        Ok(match self.operation {
            Operation::FetchAdd => word.fetch_add(self.operand, Ordering::SeqCst),
            Operation::CompareSwap => word
                .compare_exchange(self.compare, self.operand, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|other| other),
        })
    }
}

/// The answer to a request: the previous value, or why nothing was done.
pub fn answer(id: u64, done: Result<u64, Status>) -> Vec<u8> {
    let (old, status) = match done {
        Ok(old) => (old, Status::Ok),
        Err(status) => (0, status),
    };
    numbers(&[id, old, status as i32 as u32 as u64])
}

pub fn read_answer(body: &[u8]) -> Option<(u64, Result<u64, Status>)> {
    let [id, old, code] = read_numbers(body)?;
    let done = match Status::from_code(code as u32 as i32) {
        Status::Ok => Ok(old),
        // Any other status of the target counts as a rejection.
        known @ (Status::MemoryGone
        | Status::Range
        | Status::Invalid
        | Status::Unsupported
        | Status::Revoked) => Err(known),
        _ => Err(Status::RemoteAccess),
    };
    Some((id, done))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Access, Range};

    fn request(range: u64, offset: u64) -> Request {
        Request {
            operation: Operation::FetchAdd,
            memory: MemoryId::new(1),
            range,
            offset,
            operand: 5,
            compare: 0,
        }
    }

    #[test]
    fn atomics_reach_only_accessible_aligned_words() {
        let words = [7u64; 4];
        let range = Range { base: words.as_ptr() as u64, len: 31 };
        let memory = |access| Memory::new(MemoryId::new(1), 2, vec![range], access, None, vec![]);
        let both = memory(Access::ALL);
        let locate = |range, offset| request(range, offset).locate(&both, None);
        assert_eq!(locate(0, 16), Ok(range.base + 16));
        assert_eq!(locate(0, 17), Err(Status::Invalid));
        assert_eq!(locate(0, 24), Err(Status::Range), "its last byte is outside");
        assert_eq!(locate(0, u64::MAX - 7), Err(Status::Range));
        assert_eq!(locate(1, 0), Err(Status::Range));
        for (remote_write, remote_read) in [(true, false), (false, true)] {
            let half = memory(Access { remote_write, remote_read, ..Access::ALL });
            assert_eq!(request(0, 0).locate(&half, None), Err(Status::RemoteAccess));
        }
    }

    #[test]
    fn requests_and_answers_round_trip_and_malformed_ones_are_rejected() {
        let asked = Request { operation: Operation::CompareSwap, ..request(3, 64) };
        let body = asked.encode(9);
        assert_eq!(Request::decode(&body), Some((9, asked)));
        assert_eq!(Request::decode(&body[..body.len() - 1]), None);
        assert_eq!(Request::decode(&[3; 56]), None, "an unknown operation");
        for done in [Ok(u64::MAX), Err(Status::MemoryGone), Err(Status::Unsupported)] {
            assert_eq!(read_answer(&answer(4, done)), Some((4, done)));
        }
        assert_eq!(read_answer(&answer(4, Err(Status::Internal))), Some((4, Err(Status::RemoteAccess))));
    }
}
