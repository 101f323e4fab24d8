//! Writes that are durable: once the bytes have arrived, the memory's owner flushes its files, and
//! answers. Only then follow the counters and the notification, or the completion.

use crate::ids::{GrantToken, MemoryId, OpId};
use crate::status::Status;
use crate::transfer::Outcome;
use crate::wire::frame::{numbers, read_numbers};

/// The most memories of one peer in a transfer: one frame of every fabric names them.
pub const MEMORIES_MAX: usize = 240;

/// The request to the owner.
pub struct Request {
    /// The requester's, for the answer.
    pub id: u64,
    pub grant: Option<GrantToken>,
    pub memories: Vec<MemoryId>,
}

impl Request {
    pub fn encode(&self) -> Vec<u8> {
        let grant = self.grant.map_or(0, GrantToken::get);
        let memories = self.memories.iter().map(|memory| memory.get());
        let all: Vec<u64> =
            [self.id, grant as u64, (grant >> 64) as u64].into_iter().chain(memories).collect();
        numbers(&all)
    }

    pub fn decode(body: &[u8]) -> Option<Request> {
        let [id, low, high] = read_numbers(body)?;
        let words = body.chunks(8).skip(3).map(read_numbers::<1>);
        let memories =
            words.map(|word| word.map(|[memory]| MemoryId::new(memory))).collect::<Option<Vec<_>>>()?;
        let grant = GrantToken::new(u128::from(low) | u128::from(high) << 64);
        (memories.len() <= MEMORIES_MAX).then_some(Request { id, grant, memories })
    }
}

/// How an owner has flushed: `errno` is the system's, with `Status::File`. `index`: which memory of
/// the request has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    pub status: Status,
    pub errno: i32,
    pub index: u64,
}

impl Answer {
    pub const OK: Answer = Answer { status: Status::Ok, errno: 0, index: 0 };

    pub fn encode(&self, id: u64) -> Vec<u8> {
        numbers(&[id, self.status as i32 as u32 as u64, self.errno as u32 as u64, self.index])
    }

    pub fn decode(body: &[u8]) -> Option<(OpId, Answer)> {
        let [id, code, errno, index] = read_numbers(body)?;
        let status = match Status::from_code(code as u32 as i32) {
            known @ (Status::Ok
            | Status::File
            | Status::MemoryGone
            | Status::Revoked
            | Status::Unsupported) => known,
            // Any other status of the owner counts as a rejection.
            _ => Status::RemoteAccess,
        };
        Some((OpId::new(id)?, Answer { status, errno: errno as u32 as i32, index }))
    }

    pub fn outcome(&self, entry: Option<u64>) -> Outcome {
        Outcome { provider_errno: self.errno, entry, ..Outcome::new(self.status) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_round_trip_and_malformed_ones_are_rejected() {
        for (grant, count) in [(None, 0), (GrantToken::new(5 << 100 | 7), MEMORIES_MAX as u64)] {
            let memories: Vec<MemoryId> = (1..=count).map(MemoryId::new).collect();
            let mut body = Request { id: 9, grant, memories: memories.clone() }.encode();
            let read = Request::decode(&body).expect("a request");
            assert!(read.id == 9 && read.grant == grant && read.memories == memories);
            body.push(0);
            assert!(Request::decode(&body).is_none() && Request::decode(&body[..20]).is_none());
        }
        let body = numbers(&[1; MEMORIES_MAX + 4]);
        assert!(Request::decode(&body).is_none(), "more than a frame holds");
        let failed = Answer { status: Status::File, errno: libc::EIO, index: 3 };
        for answer in [Answer::OK, failed] {
            assert_eq!(Answer::decode(&answer.encode(4)), Some((OpId::numbered(4), answer)));
        }
        let other = Answer { status: Status::Internal, ..failed };
        assert_eq!(
            Answer::decode(&other.encode(4)).map(|(_, answer)| answer.status),
            Some(Status::RemoteAccess)
        );
        assert_eq!(Answer::decode(&failed.encode(0)), None);
    }
}
