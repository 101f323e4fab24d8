//! Ids that callers and peers use.

use crate::ids::{self, PeerId};
use std::fmt;

/// A submitted operation, as an id that is not reused within 2^42 operations. Its completion names it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Op(pub(super) u64);

impl Op {
    /// The number, for logs.
    pub fn id(self) -> u64 {
        self.0
    }
}

/// A remote endpoint, as a checked id: valid from the connect, or its [`PeerUp`](crate::Completion::PeerUp), until its
/// [`PeerDown`](crate::Completion::PeerDown).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer(pub(super) PeerId);

impl Peer {
    /// No peer has it: ids begin with a generation.
    pub(super) const UNKNOWN: Peer = match PeerId::new(u64::MAX) {
        Some(id) => Peer(id),
        None => unreachable!(),
    };

    /// The number, for logs and maps.
    pub fn id(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({:#x})", self.id())
    }
}

/// Names a counter: its owner sends it to peers, who name it in operations that raise it. A peer that knows or guesses
/// an id can raise the counter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CounterId(pub(super) u64);

impl CounterId {
    /// The bytes from the counter's owner; `None`: 0, which is no counter.
    pub fn new(id: u64) -> Option<CounterId> {
        (id != 0).then_some(CounterId(id))
    }

    /// The bytes to send.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// Names a grant: 16 bytes that cannot be guessed, and never repeat. The owner sends them to the peer, which names
/// them in the options of its operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GrantToken(pub(super) ids::GrantToken);

impl GrantToken {
    /// The bytes from the grant's owner; `None`: all are 0, which is no grant.
    pub fn from_bytes(bytes: [u8; 16]) -> Option<GrantToken> {
        ids::GrantToken::new(u128::from_le_bytes(bytes)).map(GrantToken)
    }

    /// The bytes to send.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.get().to_le_bytes()
    }
}

impl fmt::Debug for GrantToken {
    /// Without the token, which is a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GrantToken")
    }
}
