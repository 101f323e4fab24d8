//! The formats of `fabric::tcp`, which documents them.

use super::Immediate;
pub use super::RequestKind as Kind;

/// Maximum payload of a request or an answer, and the bytes received by one call. A message may have
/// to wait for one. (64 to 192 KiB: the same rate; 512 KiB: less by a tenth.)
pub const RUN: u64 = 192 << 10;
/// Requests that an end may have without an answer.
pub const FLIGHTS: usize = 4096;
/// Maximum pieces of a request.
pub const PIECES: usize = 128;
/// Maximum bytes of a message.
pub const MESSAGE: usize = 8192;

const MAGIC: [u8; 8] = *b"WEFT-TCP";
const VERSION: u16 = 3;

pub const HANDSHAKE: usize = 48;
pub const REQUEST: usize = 32;
pub const PIECE: usize = 12;
pub const ANSWER: usize = 16;
/// Maximum bytes of a request's header and list.
pub const HEAD_MAX: usize = REQUEST + PIECES * PIECE;

/// The lowest kind of an answer: lower kinds are requests.
const DONE: u8 = 4;

/// Whether a frame with this first byte is an answer.
pub fn is_answer(first: u8) -> bool {
    first >= DONE
}

/// The name of a NIC.
pub type Name = [u8; 16];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handshake {
    pub target: Name,
    /// The initiator's NIC; or (`beside`) what was announced over a connection that this one lies beside.
    pub initiator: Name,
    pub beside: bool,
}

impl Handshake {
    pub fn bytes(&self) -> [u8; HANDSHAKE] {
        let mut bytes = [0; HANDSHAKE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = self.beside.into();
        bytes[16..32].copy_from_slice(&self.target);
        bytes[32..].copy_from_slice(&self.initiator);
        bytes
    }

    /// `None`: not a handshake of this version.
    pub fn read(bytes: &[u8; HANDSHAKE]) -> Option<Handshake> {
        let (head, names) = bytes.split_first_chunk::<16>()?;
        let mut expected = [0; 16];
        expected[..8].copy_from_slice(&MAGIC);
        expected[8..10].copy_from_slice(&VERSION.to_le_bytes());
        let beside = bytes[10] == 1;
        expected[10] = beside.into();
        let (target, names) = names.split_first_chunk::<16>()?;
        let handshake = Handshake { target: *target, initiator: *names.first_chunk::<16>()?, beside };
        (*head == expected).then_some(handshake)
    }
}

/// A piece of a target's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Piece {
    pub address: u64,
    pub len: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub kind: Kind,
    pub pieces: u16,
    pub len: u32,
    pub key: u64,
    pub immediate: Option<Immediate>,
    /// The address of the only piece.
    pub address: u64,
}

impl Request {
    pub fn bytes(&self) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        bytes[0] = self.kind as u8;
        bytes[2..4].copy_from_slice(&self.pieces.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.immediate.map_or(0, Immediate::get).to_le_bytes());
        bytes[24..].copy_from_slice(&self.address.to_le_bytes());
        bytes
    }

    /// `None`: the request is malformed.
    pub fn read(bytes: &[u8; REQUEST]) -> Option<Request> {
        let kind = match bytes[0] {
            0 => Kind::Beside,
            1 => Kind::Write,
            2 => Kind::Read,
            3 => Kind::Message,
            _ => return None,
        };
        let request = Request {
            kind,
            pieces: u16::from_le_bytes([bytes[2], bytes[3]]),
            len: word(&bytes[4..]),
            key: long(&bytes[8..]),
            immediate: Immediate::new(word(&bytes[16..])),
            address: long(&bytes[24..]),
        };
        let (most, pieces) = match kind {
            Kind::Beside => (0, 1),
            Kind::Message => (MESSAGE as u64, 1),
            Kind::Write | Kind::Read => (RUN, PIECES),
        };
        let sound = bytes[1] == 0
            && bytes[20..24] == [0; 4]
            && u64::from(request.len) <= most
            && (1..=pieces).contains(&usize::from(request.pieces))
            && (request.immediate.is_none() || kind == Kind::Write);
        sound.then_some(request)
    }

    /// Announces a connection beside this one, whose handshake has this name.
    pub fn beside(name: &Name) -> Request {
        let (key, address) = (long(name), long(&name[8..]));
        Request { kind: Kind::Beside, pieces: 1, len: 0, key, immediate: None, address }
    }

    /// The name of an announced connection.
    pub fn name(&self) -> Name {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&self.key.to_le_bytes());
        name[8..].copy_from_slice(&self.address.to_le_bytes());
        name
    }

    /// Bytes of the list behind the header.
    pub fn list_len(&self) -> usize {
        if self.pieces > 1 {
            usize::from(self.pieces) * PIECE
        } else {
            0
        }
    }

    /// Reads the pieces into `to`; false if they do not add up to the request.
    pub fn read_pieces(&self, list: &[u8], to: &mut Vec<Piece>) -> bool {
        to.clear();
        if self.pieces == 1 {
            to.push(Piece { address: self.address, len: self.len });
            return true;
        }
        to.extend(list.chunks_exact(PIECE).map(|at| Piece { address: long(at), len: word(&at[8..]) }));
        let sum: u64 = to.iter().map(|piece| u64::from(piece.len)).sum();
        sum == u64::from(self.len) && to.len() == usize::from(self.pieces)
    }
}

impl Piece {
    pub fn bytes(&self) -> [u8; PIECE] {
        let mut bytes = [0; PIECE];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Requests with lower numbers are complete.
    Done(u64),
    /// The bytes of a read follow.
    Data {
        number: u64,
        len: u32,
    },
    Failed {
        number: u64,
        errno: u32,
    },
    /// Answers a handshake: the connection is up.
    Accepted,
}

impl Answer {
    pub fn bytes(&self) -> [u8; ANSWER] {
        let (kind, len, number) = match *self {
            Answer::Done(number) => (DONE, 0, number),
            Answer::Data { number, len } => (DONE + 1, len, number),
            Answer::Failed { number, errno } => (DONE + 2, errno, number),
            Answer::Accepted => (DONE + 3, 0, 0),
        };
        let mut bytes = [0; ANSWER];
        bytes[0] = kind;
        bytes[4..8].copy_from_slice(&len.to_le_bytes());
        bytes[8..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    /// `None`: the answer is malformed.
    pub fn read(bytes: &[u8; ANSWER]) -> Option<Answer> {
        let (len, number) = (word(&bytes[4..]), long(&bytes[8..]));
        if bytes[1..4] != [0; 3] {
            return None;
        }
        match bytes[0].checked_sub(DONE)? {
            0 if len == 0 => Some(Answer::Done(number)),
            1 if u64::from(len) <= RUN => Some(Answer::Data { number, len }),
            2 if (1..4096).contains(&len) => Some(Answer::Failed { number, errno: len }),
            3 if len == 0 && number == 0 => Some(Answer::Accepted),
            _ => None,
        }
    }
}

fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn long(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
