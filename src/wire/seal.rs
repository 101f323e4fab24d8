//! The key schedule: how a secret that endpoints share becomes proofs and session keys, and how
//! control frames are authenticated under a session key.
//!
//! ```text
//! root     = HMAC(secret, "weft.2 root key.")
//! proof    = HMAC(root, label  u64 from  u64 to  body)                        a handshake's message
//! session  = HMAC(root, "weft.2 session.."  from  to  both nonces  both epochs  both rails)
//! key      = HMAC(session, purpose)                                           one for each purpose
//! psk      = HMAC(root, "weft.2 connectns")                                   of an encrypted connection's handshake
//! tag      = HMAC(key, frame  u64 number), the first 16 bytes
//! ```
//!
//! HMAC is HMAC-SHA256; integers are little-endian; labels and purposes have 16 bytes. A session
//! has one direction, from the side that sends its frames to the side that receives them. `from`
//! draws the request's nonce and `to` the reply's, so the key is new for each lane and neither side
//! alone decides it. A frame of one session is not valid in another.

use crate::ids::RailIndex;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::fmt;
use std::sync::Arc;

type Keyed = Hmac<Sha256>;

/// Bytes of a proof.
pub const PROOF: usize = 32;
/// Bytes of a truncated tag; bytes of a seal, which is number and tag.
const TAG: usize = 16;
pub const SEAL: usize = 8 + TAG;

/// The purpose of a proof, so that no message can be replayed as another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proof {
    Request,
    Reply,
    Refusal,
}

impl Proof {
    fn label(self) -> &'static [u8; 16] {
        match self {
            Proof::Request => b"weft.2 a hello..",
            Proof::Reply => b"weft.2 a welcome",
            Proof::Refusal => b"weft.2 a refusal",
        }
    }
}

/// The purpose of a session key.
const FRAMES: &[u8; 16] = b"weft.2 frames...";

/// One side's part of a session: its nonce, lane and epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Side {
    pub incarnation: u64,
    pub nonce: u128,
    pub epoch: u64,
    pub rail: RailIndex,
}

fn keyed(key: &[u8]) -> Keyed {
    // HMAC takes keys of any length.
    Keyed::new_from_slice(key).unwrap_or_else(|_| Keyed::new(&Default::default()))
}

fn derive(key: &Keyed, parts: &[&[u8]]) -> Keyed {
    let mut mac = key.clone();
    parts.iter().for_each(|part| mac.update(part));
    keyed(&mac.finalize().into_bytes())
}

/// The key schedule's root of a secret: the state of a keyed hash, which is never shown.
#[derive(Clone)]
pub struct Root {
    key: Arc<Keyed>,
    /// Tells secrets apart; never sent.
    mark: [u8; 32],
}

impl PartialEq for Root {
    fn eq(&self, other: &Root) -> bool {
        self.mark == other.mark
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Root(not shown)")
    }
}

impl Root {
    pub fn new(secret: &[u8]) -> Root {
        let key = derive(&keyed(secret), &[b"weft.2 root key."]);
        let mut mark = key.clone();
        mark.update(b"weft.2 its mark.");
        Root { key: Arc::new(key), mark: mark.finalize().into_bytes().into() }
    }

    /// The key by which both ends of an encrypted connection prove the secret.
    pub fn connection_key(&self) -> [u8; 32] {
        let mut mac = Keyed::clone(&self.key);
        mac.update(b"weft.2 connectns");
        mac.finalize().into_bytes().into()
    }

    fn mac(&self, what: Proof, from: u64, to: u64, body: &[u8]) -> Keyed {
        let mut mac = Keyed::clone(&self.key);
        mac.update(what.label());
        mac.update(&from.to_le_bytes());
        mac.update(&to.to_le_bytes());
        mac.update(body);
        mac
    }

    /// Appends the proof that `from`, an owner of the secret, sends this to `to`.
    pub fn prove(&self, what: Proof, from: u64, to: u64, body: &mut Vec<u8>) {
        let proof = self.mac(what, from, to, body).finalize().into_bytes();
        body.extend_from_slice(&proof);
    }

    /// The body of an authenticated message, without its proof; `None` if the proof is wrong.
    pub fn verify<'a>(&self, what: Proof, from: u64, to: u64, message: &'a [u8]) -> Option<&'a [u8]> {
        let (body, proof) = message.split_last_chunk::<PROOF>()?;
        // In constant time.
        self.mac(what, from, to, body).verify_slice(proof).is_ok().then_some(body)
    }

    fn frames(&self, from: &Side, to: &Side) -> Keyed {
        let mut session = Keyed::clone(&self.key);
        session.update(b"weft.2 session..");
        session.update(&from.incarnation.to_le_bytes());
        session.update(&to.incarnation.to_le_bytes());
        session.update(&from.nonce.to_le_bytes());
        session.update(&to.nonce.to_le_bytes());
        session.update(&from.epoch.to_le_bytes());
        session.update(&to.epoch.to_le_bytes());
        session.update(&from.rail.get().to_le_bytes());
        session.update(&to.rail.get().to_le_bytes());
        derive(&keyed(&session.finalize().into_bytes()), &[FRAMES])
    }
}

/// Seals frames of a session: each gets the next number.
pub struct Sealer {
    key: Keyed,
    number: u64,
}

impl Sealer {
    pub fn new(root: &Root, from: &Side, to: &Side) -> Sealer {
        Sealer { key: root.frames(from, to), number: 0 }
    }

    /// Seals the first `len` bytes in place and returns the new length. If the seal does not fit,
    /// the frame stays unsealed, and the receiver drops it.
    pub fn seal(&mut self, frame: &mut [u8], len: usize) -> usize {
        let Some(tail) = frame.get_mut(len..len + SEAL) else { return len };
        self.number += 1;
        tail[..8].copy_from_slice(&self.number.to_le_bytes());
        let mut mac = self.key.clone();
        mac.update(&frame[..len + 8]);
        let tag = mac.finalize().into_bytes();
        frame[len + 8..len + SEAL].copy_from_slice(&tag[..TAG]);
        len + SEAL
    }
}

/// Opens frames of a session: each once, in any order.
pub struct Opener {
    key: Keyed,
    seen: Window,
}

impl Opener {
    pub fn new(root: &Root, from: &Side, to: &Side) -> Opener {
        Opener { key: root.frames(from, to), seen: Window::default() }
    }

    /// A sealed frame without its seal; `None` if it is not of this session, or a replay.
    pub fn open<'a>(&mut self, sealed: &'a [u8]) -> Option<&'a [u8]> {
        let (numbered, tag) = sealed.split_last_chunk::<TAG>()?;
        let (frame, number) = numbered.split_last_chunk::<8>()?;
        let number = u64::from_le_bytes(*number);
        if !self.seen.is_new(number) {
            return None;
        }
        let mut mac = self.key.clone();
        mac.update(numbered);
        mac.verify_truncated_left(tag).ok()?;
        self.seen.note(number);
        Some(frame)
    }
}

/// A frame is accepted if at most this many later ones overtook it. Some fabrics reorder frames; a
/// lane has far fewer in flight. (One word is being refilled.)
const AHEAD: u64 = 64 * (WORDS as u64 - 1);
const WORDS: usize = 32;

/// The numbers that were seen: all numbers before the window count as seen.
struct Window {
    highest: u64,
    bits: Box<[u64; WORDS]>,
}

impl Default for Window {
    fn default() -> Window {
        Window { highest: 0, bits: Box::new([0; WORDS]) }
    }
}

fn bit(number: u64) -> (usize, u64) {
    ((number / 64) as usize % WORDS, 1 << (number % 64))
}

impl Window {
    fn is_new(&self, number: u64) -> bool {
        let (word, bit) = bit(number);
        number > self.highest || number != 0 && self.highest - number < AHEAD && self.bits[word] & bit == 0
    }

    fn note(&mut self, number: u64) {
        if number > self.highest {
            // Numbers that enter the window are unseen.
            let (first, last) = (self.highest / 64 + 1, number / 64);
            (first..=last).take(WORDS).for_each(|word| self.bits[word as usize % WORDS] = 0);
            self.highest = number;
        }
        let (word, bit) = bit(number);
        self.bits[word] |= bit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const SECRET: &[u8] = b"correct horse battery";

    fn side(n: u64) -> Side {
        Side { incarnation: n, nonce: u128::from(n) << 64 | 7, epoch: n + 10, rail: RailIndex::new(n as u16) }
    }

    fn session() -> (Sealer, Opener) {
        let root = Root::new(SECRET);
        (Sealer::new(&root, &side(1), &side(2)), Opener::new(&root, &side(1), &side(2)))
    }

    fn sealed(sealer: &mut Sealer, frame: &[u8]) -> Vec<u8> {
        let mut bytes = frame.to_vec();
        bytes.resize(frame.len() + SEAL, 0);
        let len = sealer.seal(&mut bytes, frame.len());
        assert_eq!(len, bytes.len());
        bytes
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn key_schedule_matches_its_test_vectors() {
        let mut proof = b"body".to_vec();
        Root::new(SECRET).prove(Proof::Request, 1, 2, &mut proof);
        assert_eq!(hex(&proof[4..]), "6981ada2578bd7d97c53e6d5da4f00b6d8e41fcfb3501ed7432a1b11830725c3");
        let bytes = sealed(&mut session().0, b"frame");
        assert_eq!(hex(&bytes[5..]), "01000000000000003760f07fdc74a08835026c914225afe3");
    }

    #[test]
    fn proofs_are_valid_for_their_content_only() {
        let root = Root::new(SECRET);
        let mut message = b"body".to_vec();
        root.prove(Proof::Request, 1, 2, &mut message);
        assert_eq!(root.verify(Proof::Request, 1, 2, &message), Some(&b"body"[..]));
        assert!(root.verify(Proof::Reply, 1, 2, &message).is_none(), "reflected as an answer");
        assert!(root.verify(Proof::Request, 2, 1, &message).is_none(), "reflected");
        assert!(root.verify(Proof::Request, 1, 3, &message).is_none(), "sent to another");
        assert!(Root::new(b"correct horse batterz").verify(Proof::Request, 1, 2, &message).is_none());
        for at in 0..message.len() {
            let mut damaged = message.clone();
            damaged[at] ^= 1;
            assert!(root.verify(Proof::Request, 1, 2, &damaged).is_none(), "byte {at}");
            assert!(root.verify(Proof::Request, 1, 2, &message[..at]).is_none(), "cut at {at}");
        }
    }

    #[test]
    fn frame_opens_once_and_only_in_its_session() {
        let (mut sealer, mut opener) = session();
        let first = sealed(&mut sealer, b"frame");
        assert_eq!(opener.open(&first), Some(&b"frame"[..]));
        assert!(opener.open(&first).is_none(), "replayed");
        let second = sealed(&mut sealer, b"frame");
        for at in 0..second.len() {
            let mut damaged = second.clone();
            damaged[at] ^= 1;
            assert!(opener.open(&damaged).is_none() && opener.open(&second[..at]).is_none(), "byte {at}");
        }
        let root = Root::new(SECRET);
        let other = |change: fn(&mut Side)| {
            let mut to = side(2);
            change(&mut to);
            Opener::new(&root, &side(1), &to).open(&second).is_some()
        };
        assert!(other(|_| ()));
        let changes: [fn(&mut Side); 4] = [
            |to| to.incarnation += 1,
            |to| to.nonce += 1,
            |to| to.epoch += 1,
            |to| to.rail = RailIndex::new(to.rail.get() + 1),
        ];
        assert!(!changes.into_iter().any(other));
        assert!(Opener::new(&root, &side(2), &side(1)).open(&second).is_none(), "the other direction");
        assert_eq!(opener.open(&second), Some(&b"frame"[..]));
    }

    #[test]
    fn frames_may_overtake_each_other() {
        let mut window = Window::default();
        let mut take = |number| {
            let new = window.is_new(number);
            if new {
                window.note(number);
            }
            new
        };
        assert!(!take(0) && take(3) && take(1) && !take(3) && take(2) && !take(1));
        assert!(take(AHEAD + 2) && !take(3) && take(4) && !take(4) && !take(2));
        assert!(take(3 * AHEAD) && !take(4) && !take(2 * AHEAD) && take(2 * AHEAD + 1));
        assert!((1..10 * AHEAD).filter(|n| take(*n)).count() as u64 == 8 * AHEAD - 1 - 2);
        assert!((1..10 * AHEAD).all(|n| !take(n)));
        assert!(take(u64::MAX) && !take(u64::MAX) && take(u64::MAX - 1));
    }

    /// `cargo test --release -p weft mac_ns -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement"]
    fn mac_ns() {
        let (mut sealer, mut opener) = session();
        for body in [0, 24, 64, 264] {
            let mut frame = vec![7; 32 + body + SEAL];
            let mut best = f64::MAX;
            for _ in 0..500 {
                let began = Instant::now();
                for _ in 0..100 {
                    sealer.seal(&mut frame, 32 + body);
                    assert!(opener.open(&frame).is_some());
                }
                best = best.min(began.elapsed().as_nanos() as f64 / 100.0);
            }
            println!("made and checked with {body} bytes of body: {best:.0} ns");
            if body == 64 {
                println!("mac_ns {best:.0}");
            }
        }
    }
}
