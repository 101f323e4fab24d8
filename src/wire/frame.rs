//! Control frames, which endpoints exchange beside the data.
//!
//! A frame is one message of the fabric (wire version 5):
//!
//! ```text
//! u16 "WF"  u8 3  u8 kind  u16 rail  u16 body length  u128 to  u32 sequence  u32 acknowledged
//! body
//! u64 number  16 bytes tag                            in a session with a secret: `wire::seal`
//! ```
//!
//! `rail` is the sender's rail. `to` is the receiver's token for the sender: 128 random bits that
//! the receiver drew for this peer, and gave to it alone (0 in a handshake request). It identifies
//! the sender. If a secret is set, only a handshake is accepted without the tag of the lane's
//! session. Frames of a channel are sequenced (see `channel`); others are repeated by their sender
//! until answered, or may be lost.
//!
//! A handshake has two messages, each with a proof if a secret is set. Each side makes its own
//! handshake for each of its lanes:
//!
//! ```text
//! request  the target endpoint; the sender's token, nonce, lane and whole address
//! reply    the same nonce; the receiver's token, nonce and lane; its keys for this lane
//! ```
//!
//! The request's proof authenticates its sender; the reply's proof binds it to the request. From
//! both nonces the two sides derive the key for the requester's frames. A replayed request leads to
//! a key that only the original sender can derive.

use crate::codec::{Reader, Text, Writer};
use crate::ids::RailIndex;
use crate::status::Status;
use crate::wire::seal::PROOF;
pub use crate::wire::HEADER;
use crate::wire::{RAIL, TO};

/// Wire versions that this library supports.
pub const WIRE_LOWEST: u16 = 5;
pub const WIRE_HIGHEST: u16 = 5;

const MAGIC: u16 = u16::from_le_bytes(*b"WF");

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Unsequenced: the handshake of a lane.
    HandshakeRequest = 1,
    HandshakeReply = 2,
    Refuse = 3,
    /// What was delivered, and what of it was refused (`session::channel::acknowledgement`).
    Ack = 4,
    /// A probe: the receiver has been silent for too long, and must answer.
    Ask = 14,
    /// The sender has new lanes: it requests which of its frames were delivered. The answer, which also
    /// has the number of the last frame of the system channel that there is to send.
    Resume = 65,
    Resumed = 66,
    /// The writes that took a half of the sender's credits are done; the target grants the half
    /// again.
    Spent = 11,
    Credits = 12,
    /// The sender is closing; it has drained its lanes; the receiver has drained its own.
    Closing = 7,
    Close = 5,
    CloseAck = 6,
    /// System channel: the sender's lanes over the fabric in use are up.
    Ready = 16,
    Import = 17,
    Imported = 18,
    Revoke = 19,
    Revoked = 20,
    /// A transfer has arrived, and raises counters.
    Count = 21,
    /// The sender revokes a grant that the receiver uses. QuiesceRevoked, after some of these: the
    /// receiver finishes all its posts under these grants, and reports it by Quiesced.
    Withdraw = 22,
    QuiesceRevoked = 23,
    /// The answer to an atomic.
    AtomicDone = 24,
    /// A lane failed, and the sender has reset its end: the receiver resets its own end, and
    /// answers.
    Reset = 25,
    ResetDone = 26,
    /// The sender has replaced keys of its memory: the memory, the rail, the first range, and a key
    /// for this range and each after it.
    Keys = 29,
    /// What a grant covers: the token, the memory, the directions, the number of its ranges, the first
    /// of those that follow, and address and length of each. No ranges: it is not live.
    Granted = 30,
    /// A fence: the receiver finishes everything that it has posted to the sender; it has finished.
    Quiesce = 27,
    Quiesced = 28,
    /// The answer to a Flush (`transfer::durable`).
    Flushed = 31,
    /// User channel.
    Message = 32,
    Notify = 33,
    /// A count that precedes the notification of the same transfer.
    Raise = 34,
    /// The same under a grant, whose token comes first.
    NotifyUnder = 35,
    RaiseUnder = 36,
    /// A transfer has failed: sent instead of its notification.
    Failure = 37,
    FailureUnder = 38,
    /// Requests channel.
    Atomic = 48,
    /// A count under a grant: on this channel, so that no frame which a revoke waits for is queued
    /// behind it.
    CountUnder = 49,
    AtomicUnder = 50,
    /// The sender asks what a grant covers, from one of its ranges on.
    AskGrant = 51,
    /// The bytes of a transfer have arrived: the files that it wrote are to be flushed.
    Flush = 52,
    /// Staging (`fabric::staged`): a request, its answer, bytes of a write and of a read, and that a request is given up.
    Stage = 53,
    Staged = 54,
    Stored = 55,
    Fetched = 56,
    Unstage = 57,
}

impl Kind {
    pub(crate) fn from_u8(v: u8) -> Option<Kind> {
        use Kind::*;
        [
            HandshakeRequest,
            HandshakeReply,
            Refuse,
            Ack,
            Ask,
            Resume,
            Resumed,
            Spent,
            Credits,
            Closing,
            Close,
            CloseAck,
            Ready,
            Import,
            Imported,
            Revoke,
            Revoked,
            Count,
            AtomicDone,
            Reset,
            ResetDone,
            Quiesce,
            Quiesced,
            Message,
            Notify,
            Raise,
            Atomic,
            Withdraw,
            QuiesceRevoked,
            Keys,
            NotifyUnder,
            RaiseUnder,
            CountUnder,
            Failure,
            FailureUnder,
            AtomicUnder,
            Granted,
            AskGrant,
            Flush,
            Flushed,
            Stage,
            Staged,
            Stored,
            Fetched,
            Unstage,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == v)
    }

    /// The kind of the frame, with an empty body, that replaces a speculative frame which is not
    /// sent again.
    pub fn raising_nothing(self) -> Kind {
        if self.channel() == Some(SYSTEM) {
            Kind::Count
        } else {
            Kind::Raise
        }
    }

    /// The base kind, if the frame announces a transfer.
    pub fn announces(self) -> Option<Kind> {
        match self {
            Kind::Count | Kind::CountUnder => Some(Kind::Count),
            Kind::Raise | Kind::RaiseUnder => Some(Kind::Raise),
            Kind::Notify | Kind::NotifyUnder => Some(Kind::Notify),
            _ => None,
        }
    }

    /// Whether it announces a transfer under a grant.
    pub fn is_under_a_grant(self) -> bool {
        self.announces().is_some_and(|kind| kind != self)
    }

    pub fn under(self) -> Kind {
        match self {
            Kind::Count => Kind::CountUnder,
            Kind::Raise => Kind::RaiseUnder,
            Kind::Notify => Kind::NotifyUnder,
            other => other,
        }
    }

    /// The channel of a sequenced frame.
    pub fn channel(self) -> Option<usize> {
        match self as u8 {
            16..32 => Some(SYSTEM),
            32..48 => Some(USER),
            48..64 => Some(REQUESTS),
            _ => None,
        }
    }
}

/// A channel of its own: memory must be revoked even while messages are held back.
pub const SYSTEM: usize = 0;
pub const USER: usize = 1;
/// Held back while their answers pile up.
pub const REQUESTS: usize = 2;
pub const CHANNELS: usize = 3;

/// Identifies a peer in frames to the endpoint that drew the token. 0: none.
pub type Token = u128;

#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub kind: Kind,
    /// The sender's rail; `Rail::send_frame` fills it in.
    pub rail: RailIndex,
    pub to: Token,
    pub sequence: u32,
    /// The last frame of the same channel that was delivered here.
    pub acknowledged: u32,
}

impl Header {
    pub fn plain(kind: Kind) -> Header {
        Header { kind, rail: RailIndex::at(0), to: 0, sequence: 0, acknowledged: 0 }
    }

    /// The header of a frame about a lane, with its own number.
    pub fn numbered(kind: Kind, sequence: u32) -> Header {
        Header { sequence, ..Header::plain(kind) }
    }

    /// Writes header and body into a frame, where they must fit; returns its length.
    pub fn write(&self, frame: &mut [u8], body: &[u8], payload: &[u8]) -> usize {
        let len = body.len() + payload.len();
        frame[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        frame[2] = WIRE_HIGHEST as u8;
        frame[3] = self.kind as u8;
        frame[RAIL..RAIL + 2].copy_from_slice(&self.rail.get().to_le_bytes());
        frame[6..8].copy_from_slice(&(len as u16).to_le_bytes());
        frame[TO..TO + 16].copy_from_slice(&self.to.to_le_bytes());
        frame[24..28].copy_from_slice(&self.sequence.to_le_bytes());
        frame[28..32].copy_from_slice(&self.acknowledged.to_le_bytes());
        frame[HEADER..HEADER + body.len()].copy_from_slice(body);
        frame[HEADER + body.len()..HEADER + len].copy_from_slice(payload);
        HEADER + len
    }

    /// Parses a frame without a seal; `None` if it is malformed.
    pub fn read(frame: &[u8]) -> Option<(Header, &[u8])> {
        Self::begins(frame)
            .filter(|(_, body, rest)| body.len() == *rest)
            .map(|(header, body, _)| (header, body))
    }

    /// Parses a frame that may end with a seal: the header, the body, and the number of bytes after
    /// the header.
    pub fn begins(frame: &[u8]) -> Option<(Header, &[u8], usize)> {
        let mut r = Reader::new(frame);
        if r.u16()? != MAGIC || u16::from(r.u8()?) != WIRE_HIGHEST {
            return None;
        }
        let kind = Kind::from_u8(r.u8()?)?;
        let (rail, len) = (RailIndex::new(r.u16()?), usize::from(r.u16()?));
        let header = Header { kind, rail, to: r.u128()?, sequence: r.u32()?, acknowledged: r.u32()? };
        let rest = r.rest();
        rest.get(..len).map(|body| (header, body, rest.len()))
    }
}

/// A lane's handshake request, repeated until answered.
pub struct HandshakeRequest<'a> {
    /// The incarnation of the intended receiver.
    pub target: u64,
    /// The sender's token for the receiver: the `to` of answers.
    pub token: Token,
    /// The receiver's token for the sender; 0 if not known yet.
    pub yours: Token,
    pub nonce: u128,
    /// The number of the connection: a later one between the two endpoints is higher.
    pub begun: u64,
    /// The number of the lane: a later one between the two rails is higher.
    pub epoch: u64,
    /// The sender's rail, and the receiver's.
    pub rail: RailIndex,
    pub your_rail: RailIndex,
    pub wire: u16,
    /// Whether a proof ends the body, since the sender has a secret.
    pub proven: bool,
    pub address: &'a [u8],
}

impl<'a> HandshakeRequest<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u64(self.target).u128(self.token).u128(self.yours).u128(self.nonce);
        w.u64(self.begun).u64(self.epoch);
        w.u16(self.rail.get()).u16(self.your_rail.get()).u16(self.wire).u8(self.proven as u8);
        w.raw(self.address);
        w.finish()
    }

    pub fn decode(body: &'a [u8]) -> Option<HandshakeRequest<'a>> {
        let mut r = Reader::new(body);
        let (target, token, yours, nonce) = (r.u64()?, r.u128()?, r.u128()?, r.u128()?);
        let (begun, epoch) = (r.u64()?, r.u64()?);
        let (rail, your_rail, wire) = (RailIndex::new(r.u16()?), RailIndex::new(r.u16()?), r.u16()?);
        let proven = match r.u8()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let rest = r.rest();
        let address = if proven { rest.split_last_chunk::<PROOF>()?.0 } else { rest };
        Some(HandshakeRequest {
            target,
            token,
            yours,
            nonce,
            begun,
            epoch,
            rail,
            your_rail,
            wire,
            proven,
            address,
        })
    }
}

/// The answer to a handshake request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandshakeReply {
    /// The nonce of the handshake request.
    pub nonce: u128,
    /// The replier's nonce, for the session of the requester's frames.
    pub own: u128,
    /// The sender's token for the receiver, and the number of its connection.
    pub token: Token,
    pub begun: u64,
    /// The number of the sender's lane, like in a handshake request.
    pub epoch: u64,
    /// Address and key of the probe buffer, for the lane's first write.
    pub probe_buffer: (u64, u64),
}

impl HandshakeReply {
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u128(self.nonce).u128(self.own).u128(self.token).u64(self.begun).u64(self.epoch);
        w.u64(self.probe_buffer.0).u64(self.probe_buffer.1);
        w.finish()
    }

    pub fn decode(body: &[u8]) -> Option<HandshakeReply> {
        let mut r = Reader::new(body);
        let (nonce, own, token) = (r.u128()?, r.u128()?, r.u128()?);
        let (begun, epoch, probe_buffer) = (r.u64()?, r.u64()?, (r.u64()?, r.u64()?));
        (r.remaining() == 0).then_some(HandshakeReply { nonce, own, token, begun, epoch, probe_buffer })
    }
}

/// The body of a refusal; a proof may follow it, if the sender has the receiver's secret.
pub fn refuse(status: Status, text: &str) -> Vec<u8> {
    let mut w = Writer::new();
    w.u32(status as i32 as u32).short(text.as_bytes());
    w.finish()
}

pub fn read_refuse(body: &[u8]) -> Option<(Status, Text)> {
    let mut r = Reader::new(body);
    let status = Status::from_code(r.u32()? as i32);
    // An unauthenticated endpoint may claim any status: only statuses of the peer are accepted.
    let status = match status {
        Status::PeerGone | Status::Version | Status::NoCommonFabric | Status::Denied => status,
        _ => Status::Unreachable,
    };
    let why = match r.short()? {
        b"" => Status::text_of(status as i32).to_bytes(),
        why => why,
    };
    Some((status, Text::escaped(why)))
}

/// The body of a Ready: the fabric in use.
pub fn ready(fabric: &str) -> Vec<u8> {
    let mut w = Writer::new();
    w.short(fabric.as_bytes());
    w.finish()
}

pub fn read_ready(body: &[u8]) -> Option<String> {
    Reader::new(body).text()
}

/// A body of numbers, like most bodies.
pub fn numbers(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn read_numbers<const N: usize>(body: &[u8]) -> Option<[u64; N]> {
    let mut r = Reader::new(body);
    let mut values = [0; N];
    for value in &mut values {
        *value = r.u64()?;
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::stamp;

    #[test]
    fn frames_round_trip_and_malformed_ones_are_rejected() {
        let header = Header { acknowledged: 10, ..Header::numbered(Kind::Notify, 9) };
        let mut frame = [0; 64];
        let len = header.write(&mut frame, b"body", b"payload");
        stamp(&mut frame, RailIndex::new(8), 7);
        let (read, body) = Header::read(&frame[..len]).expect("a frame");
        assert_eq!((read.kind, read.to, read.rail, read.sequence), (Kind::Notify, 7, RailIndex::new(8), 9));
        assert_eq!((read.acknowledged, body), (10, &b"bodypayload"[..]));
        assert!(Header::read(&frame[..len - 1]).is_none() && Header::read(&frame[..len + 1]).is_none());
        assert!(Header::begins(&frame[..len + 1]).is_some() && Header::begins(&frame[..len - 1]).is_none());
        assert!(Header::read(&[0; 64]).is_none());
        assert!(Header::read(b"WF").is_none());
    }
}
