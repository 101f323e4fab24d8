//! How greetings prove that they know the endpoint's secret.
//!
//! With a secret, a hello gets a challenge for an answer; said again with that and
//! a proof, it is believed, and its welcome is sealed likewise. Until one of the two
//! has come from a peer, nothing else of it is looked at.

use super::core::Core;
use super::worker::Worker;
use crate::clock::Random;
use crate::peer::secret::{Challenge, Challenges, Sealed, Secret};
use crate::peer::wire::{self, Credential, Header, Hello, Kind};
use crate::peer::Peer;
use crate::rail::LaneState;
use crate::status::Result;
use std::borrow::Cow;

/// An endpoint's secret, and its challenges to others.
pub struct Gate {
    secret: Secret,
    challenges: Challenges,
}

impl Gate {
    pub fn new(secret: &Secret, random: &Random) -> Result<Gate> {
        Ok(Gate { secret: secret.clone(), challenges: Challenges::new(random)? })
    }
}

/// What to do about a hello.
pub(super) enum Verdict {
    Believed,
    Ask(Challenge),
    Denied(&'static str),
}

impl Core {
    /// `body`: the whole hello, of the endpoint `from`.
    pub(super) fn judge(&self, hello: &Hello, from: u64, body: &[u8], now: u64) -> Verdict {
        let ask = |gate: &Gate| Verdict::Ask(gate.challenges.draw(from, hello.nonce, now));
        match (&self.gate, &hello.credential) {
            (None, Credential::Nothing) => Verdict::Believed,
            (None, _) => Verdict::Denied("the one who connects has a secret, who is connected to has none"),
            (Some(_), Credential::Nothing) => {
                Verdict::Denied("the one who connects has no secret, who is connected to has one")
            }
            (Some(gate), Credential::Asks) => ask(gate),
            (Some(gate), Credential::Proof(challenge)) => {
                if !gate.challenges.drew(challenge, from, hello.nonce, now) {
                    return ask(gate);
                }
                match gate.secret.open(Sealed::Hello, from, self.incarnation, body) {
                    Some(_) => Verdict::Believed,
                    None => Verdict::Denied("the two sides do not have the same secret"),
                }
            }
        }
    }

    /// The body of a hello to the endpoint `to`.
    pub(super) fn greeting(&self, mut hello: Hello, challenge: Option<Challenge>) -> Vec<u8> {
        let Some(gate) = &self.gate else { return hello.encode() };
        hello.credential = challenge.map_or(Credential::Asks, Credential::Proof);
        let mut body = hello.encode();
        if challenge.is_some() {
            gate.secret.seal(Sealed::Hello, self.incarnation, hello.target, &mut body);
        }
        body
    }

    pub(super) fn seal_welcome(&self, peer: &Peer, body: &mut Vec<u8>) {
        if let Some(gate) = &self.gate {
            gate.secret.seal(Sealed::Welcome, self.incarnation, peer.address.incarnation, body);
        }
    }

    /// What a welcome says, if its sender has proven itself where it must.
    pub(super) fn open_welcome<'a>(&self, peer: &Peer, body: &'a [u8]) -> Option<&'a [u8]> {
        match &self.gate {
            None => Some(body),
            Some(gate) => gate.secret.open(Sealed::Welcome, peer.address.incarnation, self.incarnation, body),
        }
    }
}

impl Worker {
    /// Asks a stranger for a proof.
    pub(super) fn ask(&mut self, r: usize, hello: &Hello, address: &[u8], challenge: &Challenge) {
        let header = Header::plain(Kind::Challenge, hello.peer, self.core.incarnation);
        let body = wire::challenge(hello.nonce, challenge);
        self.rails[r].rail.answer(address, |frame| header.write(frame, &body, &[]));
    }

    /// We are asked for a proof over rail `r`.
    pub(super) fn challenged(&mut self, r: usize, peer: &Peer, body: &[u8], now: u64) {
        let Some((nonce, challenge)) = wire::read_challenge(body) else { return self.core.count_rubbish() };
        let work = &mut self.rails[r];
        let mut lanes = work.lanes.iter_mut().flatten();
        let Some(lane) = lanes.find(|lane| lane.is_greeting(peer.id, nonce)) else { return };
        let greets = work.rail.lane(lane.lane).is_some_and(|lane| lane.state == LaneState::Greeting);
        // Each challenge is answered once; a lost answer is said again like any hello.
        if greets && lane.greeting.take_challenge(challenge) {
            self.greet_lanes(now);
        }
    }
}

/// What a refusal says, for people.
pub(super) fn denial(why: &'static str) -> Cow<'static, str> {
    format!("{why} (the field secret of weft_endpoint_config)").into()
}
