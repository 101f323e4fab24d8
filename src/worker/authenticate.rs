//! How handshakes prove that they know the endpoint's secret (`wire::seal`).
//!
//! A handshake request and its reply carry proofs. A request's proof names its sender and its
//! target. An attacker can replay the request, but that only leads to a reply and lanes to the
//! address in it, and only that address's owner can continue from there.

use super::core::Core;
use crate::fabric::SECRETS_DIFFER;
use crate::peer::Peer;
use crate::wire::frame::{HandshakeReply, HandshakeRequest, Token};
use crate::wire::seal::{Proof, Root};
use std::borrow::Cow;

/// The verdict on a handshake request.
pub(crate) enum Verdict {
    /// Authenticated, by this secret if the endpoint has secrets.
    Believed(Option<Root>),
    Denied(&'static str),
}

impl Core {
    /// The secret for a new lane to a peer: the one that the peer has proven, if it is still valid,
    /// else the first. `None` without secrets.
    pub(crate) fn root_for(&self, peer: Option<&Peer>) -> Option<Root> {
        let roots = self.config.secrets.as_ref()?.now(self.clock.now());
        let known = peer.and_then(Peer::root).filter(|known| roots.contains(known));
        known.or_else(|| roots.first().cloned())
    }

    pub(crate) fn has_secret(&self) -> bool {
        self.config.secrets.is_some()
    }

    /// Judges a handshake request from the endpoint `from`; `body` is the whole request.
    pub(crate) fn judge(&self, request: &HandshakeRequest, from: u64, body: &[u8], now: u64) -> Verdict {
        match (&self.config.secrets, request.proven) {
            (None, false) => Verdict::Believed(None),
            (None, true) => Verdict::Denied("the connecting side has a secret, the accepting side has none"),
            (Some(_), false) => {
                Verdict::Denied("the connecting side has no secret, the accepting side has one")
            }
            (Some(secrets), true) => {
                let roots = secrets.now(now);
                let knows =
                    |root: &&Root| root.verify(Proof::Request, from, self.incarnation, body).is_some();
                match roots.iter().find(knows) {
                    Some(root) => Verdict::Believed(Some(root.clone())),
                    None => Verdict::Denied(SECRETS_DIFFER),
                }
            }
        }
    }

    /// The body of a handshake request, with a secret's proof.
    pub(crate) fn handshake_request(&self, request: HandshakeRequest, root: Option<&Root>) -> Vec<u8> {
        let mut body = HandshakeRequest { proven: root.is_some(), ..request }.encode();
        if let Some(root) = root {
            root.prove(Proof::Request, self.incarnation, request.target, &mut body);
        }
        body
    }

    /// The body of a handshake reply, with a proof by the request's secret.
    pub(crate) fn handshake_reply(
        &self,
        peer: &Peer,
        reply: &HandshakeReply,
        root: Option<&Root>,
    ) -> Vec<u8> {
        let mut body = reply.encode();
        if let Some(root) = root {
            root.prove(Proof::Reply, self.incarnation, peer.address.incarnation, &mut body);
        }
        body
    }

    /// The body of a refusal to the endpoint `to`. With a secret, its proof is for that name, so an
    /// endpoint that does not know the name learns nothing.
    pub(crate) fn refusal(&self, incarnation: u64, to: Token, mut body: Vec<u8>) -> Vec<u8> {
        if let Some(root) = self.root_for(None) {
            let (named, len) = (to.to_le_bytes(), body.len());
            body.splice(0..0, named);
            root.prove(Proof::Refusal, self.incarnation, incarnation, &mut body);
            body.drain(..named.len());
            debug_assert!(body.len() > len);
        }
        body
    }

    /// Whether a refusal proves that the peer itself sent it.
    pub(crate) fn is_own_refusal(&self, peer: &Peer, body: &[u8], now: u64) -> bool {
        let Some(secrets) = &self.config.secrets else { return false };
        let mut message = peer.token.to_le_bytes().to_vec();
        message.extend_from_slice(body);
        let own = |root: &Root| {
            root.verify(Proof::Refusal, peer.address.incarnation, self.incarnation, &message).is_some()
        };
        secrets.now(now).iter().any(own)
    }
}

/// The text of a refusal.
pub(crate) fn denial(why: &'static str) -> Cow<'static, str> {
    format!("{why} (secret or secret_file)").into()
}
