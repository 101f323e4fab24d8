//! The layout of requests in a cell.
//!
//! ```text
//! u64 stamp (32 bits), kind (8), inline bytes (7), past the caches (1), segments (16)
//! u64 bytes in all (32 bits), area (32): where a write's bytes are, or the number by
//!     which the initiator reads device memory of the target's; 0 for the ring
//! u64 key
//! u64 remote address          } of the only segment; several stand in
//! u64 offset in the area      } `forward`, as pieces
//! 3 words more: with the one before, room for 32 bytes inline; the first is
//! the immediate of a write that has one
//! ```
//!
//! A request's block in `forward` holds its pieces, then its bytes; each of the two begins on a
//! cache line.

use super::channel::{Cell, AREA};
use crate::fabric::Immediate;
use crate::wire::tcp::RUN;
pub use crate::wire::RequestKind as Kind;
use arrayvec::ArrayVec;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The most segments of one request.
pub const PIECES: usize = 64;
/// The most bytes of one request, through the ring and out of shared memory. The target serves a
/// request in one step.
pub const BYTES: u64 = 64 << 10;
pub const AREA_BYTES: u64 = 256 << 10;
/// The same limit for copies by a device.
pub const DEVICE_BYTES: u64 = 1 << 20;
/// The most bytes inside a cell.
pub const INLINE: u64 = 32;
/// The most bytes of one message.
pub const MESSAGE: u64 = 8192;

/// In the cell, a write with an immediate has its own kind.
const WRITE_IMMEDIATE: u8 = 4;

/// A segment of a request.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Piece {
    pub remote: u64,
    pub len: u64,
    /// Offset of its bytes in the area.
    pub offset: u64,
}

/// The pieces of a request.
pub type Pieces = ArrayVec<Piece, PIECES>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub kind: Kind,
    pub inline: u64,
    /// Whether its bytes should bypass the caches.
    pub stream: bool,
    pub pieces: usize,
    pub len: u64,
    pub area: u32,
    pub key: u64,
    pub remote: u64,
    /// The immediate of a write without inline bytes.
    pub immediate: Option<Immediate>,
    /// The inline bytes; without any, the offset comes first.
    pub words: [u64; 4],
}

impl Request {
    /// Bytes that its pieces take in `forward`.
    #[inline]
    pub fn list_len(&self) -> u64 {
        if self.pieces > 1 {
            ((self.pieces * size_of::<Piece>()) as u64).next_multiple_of(64)
        } else {
            0
        }
    }

    /// Bytes that its block takes in `forward`.
    #[inline]
    pub fn block_len(&self) -> u64 {
        let carried = self.kind != Kind::Read && self.inline == 0 && self.area == 0;
        self.list_len() + if carried { self.len } else { 0 }
    }

    /// Publishes the request to the target.
    #[inline]
    pub fn publish(&self, cell: &Cell, stamp: u32) {
        cell[1].store(self.len | (self.area as u64) << 32, Relaxed);
        cell[2].store(self.key, Relaxed);
        cell[3].store(self.remote, Relaxed);
        for (word, value) in cell[4..].iter().zip(self.words) {
            word.store(value, Relaxed);
        }
        let kind = match self.immediate {
            Some(immediate) => {
                cell[5].store(immediate.get().into(), Relaxed);
                WRITE_IMMEDIATE
            }
            None => self.kind as u8,
        };
        let shape = self.inline | (self.stream as u64) << 7 | (self.pieces as u64) << 8;
        let first = stamp as u64 | (kind as u64) << 32 | shape << 40;
        cell[0].store(first, Release);
    }

    /// Whether a cell holds the request with this stamp.
    #[inline]
    pub fn is_there(cell: &Cell, stamp: u32) -> bool {
        cell[0].load(Acquire) as u32 == stamp
    }

    /// Reads a cell once; `None` if it is malformed.
    #[inline]
    pub fn read(cell: &Cell) -> Option<Request> {
        let (first, second) = (cell[0].load(Acquire), cell[1].load(Relaxed));
        let kind = match (first >> 32) as u8 {
            1 | WRITE_IMMEDIATE => Kind::Write,
            2 => Kind::Read,
            3 => Kind::Message,
            _ => return None,
        };
        let request = Request {
            kind,
            inline: first >> 40 & 0x7f,
            stream: first >> 47 & 1 != 0,
            pieces: (first >> 48) as usize,
            len: second & 0xffff_ffff,
            area: (second >> 32) as u32,
            key: cell[2].load(Relaxed),
            remote: cell[3].load(Relaxed),
            immediate: match (first >> 32) as u8 {
                WRITE_IMMEDIATE => Immediate::new(cell[5].load(Relaxed) as u32),
                _ => None,
            },
            words: [4, 5, 6, 7].map(|i| cell[i].load(Relaxed)),
        };
        request.makes_sense().then_some(request)
    }

    fn makes_sense(&self) -> bool {
        let most = match (self.kind, self.area) {
            (Kind::Message, _) => MESSAGE,
            (_, 0) => RUN,
            _ => DEVICE_BYTES,
        };
        let inline = self.inline == 0
            || (self.kind == Kind::Write && self.pieces == 1 && self.area == 0 && self.inline == self.len);
        let immediate = self.immediate.is_none() || self.inline == 0;
        let area = self.area == 0 || self.kind != Kind::Message;
        let pieces = if self.kind == Kind::Message { self.pieces == 1 } else { self.pieces <= PIECES };
        self.pieces > 0 && pieces && area && inline && immediate && self.inline <= INLINE && self.len <= most
    }

    pub fn inline_bytes(&self) -> [u8; INLINE as usize] {
        let mut bytes = [0; INLINE as usize];
        for (at, word) in bytes.chunks_exact_mut(8).zip(self.words) {
            at.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// Checks that a request decoded from any cell can be served without leaving its block.
#[cfg(any(test, fuzzing))]
pub fn check(words: [u64; 8]) {
    use std::sync::atomic::AtomicU64;
    let cell = words.map(AtomicU64::new);
    let Some(request) = Request::read(&cell) else { return };
    assert!((1..=PIECES).contains(&request.pieces) && request.inline <= INLINE);
    assert!(request.block_len() <= AREA / 2 && request.len <= DEVICE_BYTES);
    assert!(request.inline == 0 || request.inline == request.len);
    request.publish(&cell, words[0] as u32);
    let again = Request::read(&cell).map(|again| (again.immediate, again.key, again.len, again.words[0]));
    assert_eq!(again, Some((request.immediate, request.key, request.len, request.words[0])));
}

const _: () = assert!(RUN >= BYTES && RUN + (PIECES * size_of::<Piece>()) as u64 + 64 <= AREA / 2);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn cell_of(words: [u64; 8]) -> Cell {
        words.map(AtomicU64::new)
    }

    #[test]
    fn request_round_trips_through_a_cell() {
        let request = Request {
            kind: Kind::Write,
            inline: 8,
            stream: true,
            pieces: 1,
            len: 8,
            area: 0,
            key: u64::MAX,
            remote: 77,
            immediate: None,
            words: [1, 2, 3, 4],
        };
        let cell = cell_of([0; 8]);
        assert!(!Request::is_there(&cell, 9));
        request.publish(&cell, 9);
        assert!(Request::is_there(&cell, 9));
        assert_eq!(Request::read(&cell), Some(request));
        assert_eq!(request.inline_bytes()[..16], [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        let paged = Request { inline: 0, pieces: 3, len: 12288, ..request };
        assert_eq!((paged.list_len(), paged.block_len()), (128, 128 + 12288));
        assert_eq!(Request { area: 5, ..paged }.block_len(), 128);
        let counted = Request { immediate: Some(Immediate::MAX), words: [1, u32::MAX.into(), 3, 4], ..paged };
        counted.publish(&cell, 10);
        assert_eq!(Request::read(&cell), Some(counted));
    }

    #[test]
    fn malformed_request_is_rejected() {
        let sound = Request {
            kind: Kind::Write,
            inline: 0,
            stream: false,
            pieces: 2,
            len: RUN,
            area: 0,
            key: 1,
            remote: 2,
            immediate: None,
            words: [0; 4],
        };
        assert!(sound.makes_sense());
        for bad in [
            Request { pieces: 0, ..sound },
            Request { pieces: PIECES + 1, ..sound },
            Request { len: RUN + 1, ..sound },
            Request { inline: 33, len: 33, pieces: 1, ..sound },
            Request { inline: 8, pieces: 1, ..sound },
            Request { inline: 8, len: 8, pieces: 1, immediate: Some(Immediate::MIN), ..sound },
            Request { kind: Kind::Message, pieces: 1, len: 1, area: 1, ..sound },
            Request { kind: Kind::Read, len: RUN + 1, ..sound },
            Request { area: 1, len: DEVICE_BYTES + 1, ..sound },
            Request { kind: Kind::Message, pieces: 1, len: MESSAGE + 1, ..sound },
            Request { kind: Kind::Message, len: 1, ..sound },
        ] {
            assert!(!bad.makes_sense(), "{bad:?}");
        }
        assert_eq!(Request::read(&cell_of([9 << 32, 0, 0, 0, 0, 0, 0, 0])), None);
    }
}
