//! Control frames: what endpoints say to each other beside the data.
//!
//! A frame is one message of the fabric:
//!
//!     u16 "WF"  u8 kind  u8 channel  u32 body length  u64 to  u64 from  u32 sequence  u32 acknowledged
//!     body
//!
//! `to` is the receiver's own id of the sender (0 in a hello), `from` the
//! sender's incarnation. Frames of a channel are sequenced (see `channel`);
//! others are repeated by their sender until answered, or do not matter.

use super::secret::{Challenge, CHALLENGE, PROOF};
use crate::codec::{Reader, Writer};
use crate::status::Status;

/// Wire versions that this library speaks.
pub const WIRE_LOWEST: u16 = 1;
pub const WIRE_HIGHEST: u16 = 1;

const MAGIC: u16 = u16::from_le_bytes(*b"WF");
pub const HEADER: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Unsequenced: a lane greets, is welcomed, or is refused, or asked for a proof first.
    Hello = 1,
    Welcome = 2,
    Refuse = 3,
    Ack = 4,
    Challenge = 13,
    /// The receiver has been silent for long: it is to say something.
    Ask = 14,
    /// The sender's lanes are new: what has the receiver delivered of it? The answer.
    Resume = 65,
    Resumed = 66,
    /// A bundle is in the landing; the target has scattered all up to one, or
    /// refuses the next.
    Bundle = 8,
    Landed = 9,
    Unlanded = 10,
    /// The sender wants the bytes of pieces in a bundle; there they are, or a refusal.
    Fetch = 15,
    Fetched = 64,
    /// The writes that took a half of the sender's credits are done; the target gives it anew.
    Spent = 11,
    Granted = 12,
    /// The sender leaves; it has drained its lanes; so has who answers.
    Leave = 7,
    Bye = 5,
    ByeAck = 6,
    /// System channel: the sender's lanes over the fabric that serves are up.
    Ready = 16,
    Import = 17,
    Imported = 18,
    Revoke = 19,
    Revoked = 20,
    /// A transfer has arrived: counters are raised.
    Count = 21,
    /// The answer to an atomic.
    AtomicDone = 24,
    /// A lane failed, and the sender has cut its end: the receiver cuts its own, and
    /// says so.
    Fence = 25,
    Fenced = 26,
    /// A fence: everything that the receiver has posted to the sender is to come to
    /// rest; it has.
    Quiesce = 27,
    Quiesced = 28,
    /// User channel.
    Message = 32,
    Notify = 33,
    /// As a count, before the notification of the same transfer.
    Raise = 34,
    /// Requests channel.
    Atomic = 48,
}

impl Kind {
    fn from_u8(v: u8) -> Option<Kind> {
        use Kind::*;
        [
            Hello, Welcome, Refuse, Ack, Challenge, Ask, Resume, Resumed, Bundle, Landed, Unlanded, Fetch,
            Fetched, Spent, Granted, Leave, Bye, ByeAck, Ready, Import, Imported, Revoke, Revoked, Count,
            AtomicDone, Fence, Fenced, Quiesce, Quiesced, Message, Notify, Raise, Atomic,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == v)
    }

    /// What takes the place in its channel, with an empty body, of a frame that was told early
    /// and is not to be sent again: a count, or a notification and what it raises.
    pub fn raising_nothing(self) -> Kind {
        if self.channel() == Some(SYSTEM) {
            Kind::Count
        } else {
            Kind::Raise
        }
    }

    /// The channel that carries it, if one does.
    pub fn channel(self) -> Option<usize> {
        match self as u8 {
            16..32 => Some(SYSTEM),
            32..48 => Some(USER),
            48..64 => Some(REQUESTS),
            _ => None,
        }
    }
}

/// Memory must be revoked even while messages are held back.
pub const SYSTEM: usize = 0;
pub const USER: usize = 1;
/// Held back while their answers pile up.
pub const REQUESTS: usize = 2;
pub const CHANNELS: usize = 3;

#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub kind: Kind,
    pub to: u64,
    pub from: u64,
    pub sequence: u32,
    /// The last frame of the same channel that was delivered here.
    pub acknowledged: u32,
}

impl Header {
    /// An unsequenced frame's.
    pub fn plain(kind: Kind, to: u64, from: u64) -> Header {
        Header { kind, to, from, sequence: 0, acknowledged: 0 }
    }

    /// Writes header and body into a frame; its length. The parts must fit.
    pub fn write(&self, frame: &mut [u8], body: &[u8], payload: &[u8]) -> usize {
        let len = body.len() + payload.len();
        frame[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        frame[2] = self.kind as u8;
        frame[3] = 0;
        frame[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        frame[8..16].copy_from_slice(&self.to.to_le_bytes());
        frame[16..24].copy_from_slice(&self.from.to_le_bytes());
        frame[24..28].copy_from_slice(&self.sequence.to_le_bytes());
        frame[28..32].copy_from_slice(&self.acknowledged.to_le_bytes());
        frame[HEADER..HEADER + body.len()].copy_from_slice(body);
        frame[HEADER + body.len()..HEADER + len].copy_from_slice(payload);
        HEADER + len
    }

    /// Reads a frame; `None` if it is not one.
    pub fn read(frame: &[u8]) -> Option<(Header, &[u8])> {
        let mut r = Reader::new(frame);
        if r.u16()? != MAGIC {
            return None;
        }
        let kind = Kind::from_u8(r.u8()?)?;
        r.u8()?;
        let len = r.u32()? as usize;
        let header =
            Header { kind, to: r.u64()?, from: r.u64()?, sequence: r.u32()?, acknowledged: r.u32()? };
        let body = r.rest();
        (body.len() == len).then_some((header, body))
    }
}

/// What a lane says until it is welcomed.
pub struct Hello<'a> {
    /// The incarnation that is meant.
    pub target: u64,
    /// The sender's id of the receiver: the `to` of answers.
    pub peer: u64,
    pub nonce: u64,
    /// The receiver's id of the sender; 0 if that is not known yet.
    pub yours: u64,
    /// Of the sender's lanes between the two rails, a later one has a higher number.
    pub epoch: u64,
    /// The sender's rail, and the receiver's.
    pub rail: u16,
    pub your_rail: u16,
    pub wire: u16,
    pub credential: Credential,
    pub address: &'a [u8],
}

/// What a hello has to show for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Credential {
    /// The sender has no secret.
    Nothing,
    /// It has one, and waits for a challenge.
    Asks,
    /// The challenge; the proof ends the body.
    Proof(Challenge),
}

impl<'a> Hello<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u64(self.target).u64(self.peer).u64(self.nonce).u64(self.yours).u64(self.epoch);
        w.u16(self.rail).u16(self.your_rail).u16(self.wire);
        match &self.credential {
            Credential::Nothing => w.u8(0),
            Credential::Asks => w.u8(1),
            Credential::Proof(challenge) => w.u8(2).raw(challenge),
        };
        w.raw(self.address);
        w.finish()
    }

    pub fn decode(body: &'a [u8]) -> Option<Hello<'a>> {
        let mut r = Reader::new(body);
        let (target, peer, nonce) = (r.u64()?, r.u64()?, r.u64()?);
        let (yours, epoch) = (r.u64()?, r.u64()?);
        let (rail, your_rail, wire) = (r.u16()?, r.u16()?, r.u16()?);
        let credential = match r.u8()? {
            0 => Credential::Nothing,
            1 => Credential::Asks,
            2 => Credential::Proof(r.raw(CHALLENGE)?.try_into().ok()?),
            _ => return None,
        };
        let rest = r.rest();
        let address = match credential {
            Credential::Proof(_) => rest.split_last_chunk::<PROOF>()?.0,
            _ => rest,
        };
        Some(Hello { target, peer, nonce, yours, epoch, rail, your_rail, wire, credential, address })
    }
}

/// The answer to a hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// The hello's.
    pub nonce: u64,
    /// The answerer's id of the greeter.
    pub peer: u64,
    /// The answerer's lane, as in a hello of its own.
    pub epoch: u64,
    /// Where the answerer takes bundles over this lane: address and key.
    pub landing: Option<(u64, u64)>,
}

impl Welcome {
    pub fn encode(&self) -> Vec<u8> {
        let (address, key) = self.landing.unwrap_or_default();
        numbers(&[self.nonce, self.peer, self.epoch, self.landing.is_some() as u64, address, key])
    }

    pub fn decode(body: &[u8]) -> Option<Welcome> {
        let [nonce, peer, epoch, lands, address, key] = read_numbers::<6>(body)?;
        Some(Welcome { nonce, peer, epoch, landing: (lands == 1).then_some((address, key)) })
    }
}

/// The body of a challenge: the hello's nonce before it.
pub fn challenge(nonce: u64, challenge: &Challenge) -> Vec<u8> {
    let mut w = Writer::new();
    w.u64(nonce).raw(challenge);
    w.finish()
}

pub fn read_challenge(body: &[u8]) -> Option<(u64, Challenge)> {
    let mut r = Reader::new(body);
    let nonce = r.u64()?;
    Some((nonce, r.rest().try_into().ok()?))
}

/// Bytes of what `about_lane` puts before the rest.
pub const ABOUT_LANE: usize = 8;

/// Which of the receiver's lanes a bundle is about: the sender's rail, before
/// what else there is to say.
pub fn about_lane(rail: usize, rest: &[u8], frame: &mut [u8], header: &Header) -> usize {
    header.write(frame, &(rail as u64).to_le_bytes(), rest)
}

pub fn read_about_lane(body: &[u8]) -> Option<(usize, &[u8])> {
    let (rail, rest) = body.split_first_chunk::<ABOUT_LANE>()?;
    Some((usize::try_from(u64::from_le_bytes(*rail)).ok()?, rest))
}

pub fn refuse(status: Status, text: &str) -> Vec<u8> {
    let mut w = Writer::new();
    w.u32(status as i32 as u32).short(text.as_bytes());
    w.finish()
}

pub fn read_refuse(body: &[u8]) -> Option<(Status, String)> {
    let mut r = Reader::new(body);
    let status = Status::from_code(r.u32()? as i32);
    // Whatever a stranger claims, a refused connect is the peer's affair.
    let status = match status {
        Status::PeerGone | Status::Version | Status::NoCommonFabric | Status::Denied => status,
        _ => Status::Unreachable,
    };
    Some((status, r.text()?))
}

/// The body of a ready: the fabric.
pub fn ready(fabric: &str) -> Vec<u8> {
    let mut w = Writer::new();
    w.short(fabric.as_bytes());
    w.finish()
}

pub fn read_ready(body: &[u8]) -> Option<String> {
    Reader::new(body).text()
}

/// Numbers, as most bodies are.
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

    #[test]
    fn frames_are_read_as_written_and_rubbish_is_not() {
        let header = Header { kind: Kind::Notify, to: 7, from: 8, sequence: 9, acknowledged: 10 };
        let mut frame = [0; 64];
        let len = header.write(&mut frame, b"body", b"payload");
        let (read, body) = Header::read(&frame[..len]).expect("a frame");
        assert_eq!((read.kind, read.to, read.from, read.sequence), (Kind::Notify, 7, 8, 9));
        assert_eq!((read.acknowledged, body), (10, &b"bodypayload"[..]));
        assert!(Header::read(&frame[..len - 1]).is_none());
        assert!(Header::read(&[0; 64]).is_none());
        assert!(Header::read(b"WF").is_none());
    }
}
