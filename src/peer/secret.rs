//! The shared secret by which endpoints know each other, and challenges.
//!
//! Who greets and who welcomes seals what it says: an HMAC-SHA256 under the secret
//! over what this is (so that neither can be sent back as the other), both
//! incarnations, and the body. Each body has a number in it that the other side
//! drew: a hello the challenge of who is greeted, a welcome the nonce of who
//! greeted.

use crate::clock::Random;
use crate::status::{Error, Result};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::fmt;

type Keyed = Hmac<Sha256>;

/// Bytes of a secret.
pub const SHORTEST: usize = 16;
pub const LONGEST: usize = 1024;
/// Bytes of a challenge, and of a proof.
pub const CHALLENGE: usize = 32;
pub const PROOF: usize = 32;
/// A challenge can be answered for so long, and until the next such span is over.
const SPAN_NS: u64 = 10_000_000_000;

pub type Challenge = [u8; CHALLENGE];

/// What is sealed.
#[derive(Clone, Copy)]
pub enum Sealed {
    Hello,
    Welcome,
}

/// Only the key's state is kept, and never shown.
#[derive(Clone)]
pub struct Secret(Keyed);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

fn keyed(key: &[u8]) -> Result<Keyed> {
    Keyed::new_from_slice(key).map_err(|_| Error::invalid("the secret cannot be a key"))
}

impl Secret {
    pub fn check_len(len: u64) -> Result<usize> {
        usize::try_from(len).ok().filter(|len| (SHORTEST..=LONGEST).contains(len)).ok_or_else(|| {
            Error::limit(format!(
                "secret_len is {len}: a secret has {SHORTEST} to {LONGEST} bytes (secret NULL and secret_len 0: none)"
            ))
        })
    }

    pub fn new(bytes: &[u8]) -> Result<Secret> {
        Self::check_len(bytes.len() as u64)?;
        if bytes.iter().all(|byte| *byte == bytes[0]) {
            return Err(Error::invalid(
                "all bytes of secret are the same: it was not filled in; take random bytes",
            ));
        }
        keyed(bytes).map(Secret)
    }

    fn mac(&self, what: Sealed, from: u64, to: u64, body: &[u8]) -> Keyed {
        let label: &[u8; 16] = match what {
            Sealed::Hello => b"weft.1 a hello..",
            Sealed::Welcome => b"weft.1 a welcome",
        };
        let mut mac = self.0.clone();
        mac.update(label);
        mac.update(&from.to_le_bytes());
        mac.update(&to.to_le_bytes());
        mac.update(body);
        mac
    }

    /// Appends the proof that who says this knows the secret.
    pub fn seal(&self, what: Sealed, from: u64, to: u64, body: &mut Vec<u8>) {
        let proof = self.mac(what, from, to, body).finalize().into_bytes();
        body.extend_from_slice(&proof);
    }

    /// What was sealed, without its proof; `None` if that is none.
    pub fn open<'a>(&self, what: Sealed, from: u64, to: u64, sealed: &'a [u8]) -> Option<&'a [u8]> {
        let (body, proof) = sealed.split_last_chunk::<PROOF>()?;
        // In constant time.
        self.mac(what, from, to, body).verify_slice(proof).is_ok().then_some(body)
    }
}

/// Challenges to who greets us. Nothing is kept of them: they follow from a key of
/// our own, so that strangers, however many, cost no memory.
pub struct Challenges(Keyed);

impl Challenges {
    pub fn new(random: &Random) -> Result<Challenges> {
        let mut key = [0; 32];
        for word in key.chunks_exact_mut(8) {
            word.copy_from_slice(&random.u64()?.to_le_bytes());
        }
        keyed(&key).map(Challenges)
    }

    fn mac(&self, stranger: u64, nonce: u64, span: u64) -> Keyed {
        let mut mac = self.0.clone();
        [stranger, nonce, span].iter().for_each(|number| mac.update(&number.to_le_bytes()));
        mac
    }

    /// For a hello of this incarnation with this nonce.
    pub fn draw(&self, stranger: u64, nonce: u64, now: u64) -> Challenge {
        self.mac(stranger, nonce, now / SPAN_NS).finalize().into_bytes().into()
    }

    /// Whether it was drawn for that hello, not long ago.
    pub fn drew(&self, challenge: &Challenge, stranger: u64, nonce: u64, now: u64) -> bool {
        let span = now / SPAN_NS;
        [span, span.saturating_sub(1)]
            .into_iter()
            .any(|span| self.mac(stranger, nonce, span).verify_slice(challenge).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &[u8]) -> Secret {
        Secret::new(text).expect("it is long enough")
    }

    #[test]
    fn only_what_was_sealed_so_opens() {
        let ours = secret(b"correct horse battery");
        let mut sealed = b"body".to_vec();
        ours.seal(Sealed::Hello, 1, 2, &mut sealed);
        assert_eq!(ours.open(Sealed::Hello, 1, 2, &sealed), Some(&b"body"[..]));
        assert!(ours.open(Sealed::Welcome, 1, 2, &sealed).is_none(), "sent back as an answer");
        assert!(ours.open(Sealed::Hello, 2, 1, &sealed).is_none(), "sent back");
        assert!(ours.open(Sealed::Hello, 1, 3, &sealed).is_none(), "sent to another");
        assert!(secret(b"correct horse batterz").open(Sealed::Hello, 1, 2, &sealed).is_none());
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert!(ours.open(Sealed::Hello, 1, 2, &damaged).is_none(), "byte {at}");
            assert!(ours.open(Sealed::Hello, 1, 2, &sealed[..at]).is_none(), "cut at {at}");
        }
    }

    #[test]
    fn a_challenge_is_for_one_hello_and_a_while() {
        let challenges = Challenges::new(&Random::System).expect("random numbers");
        let now = 77 * SPAN_NS;
        let drawn = challenges.draw(1, 2, now);
        assert!(challenges.drew(&drawn, 1, 2, now) && challenges.drew(&drawn, 1, 2, now + SPAN_NS));
        assert!(!challenges.drew(&drawn, 1, 2, now + 2 * SPAN_NS), "it is too old");
        assert!(!challenges.drew(&drawn, 2, 2, now) && !challenges.drew(&drawn, 1, 3, now));
        let others = Challenges::new(&Random::System).expect("random numbers");
        assert!(!others.drew(&drawn, 1, 2, now));
    }

    #[test]
    fn poor_secrets_are_refused_and_none_is_shown() {
        for poor in [&b""[..], b"too short", &[7; 64], &[0; LONGEST + 1]] {
            assert!(Secret::new(poor).is_err(), "{poor:?}");
        }
        let shown = format!("{:?}", Some(secret(b"correct horse battery")));
        assert_eq!(shown, "Some(Secret(not shown))");
    }
}
