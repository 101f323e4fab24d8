//! Commands from other threads to a worker.

use super::chores::Chore;
use super::mailbox::Mailbox;
use crate::ids::{Hold, PeerId, RailIndex};
use crate::memory::{Memory, RemoteMemory};
use crate::peer::Peer;
use crate::revocation::{Scope, Then};
use crate::session::{LaneEvent, Plan, Session};
use crate::transfer::claims::Run;
use crate::transfer::operation::Notice;
use crate::transfer::watch::Mark;
use crate::transfer::Outcome;
use crate::wire::seal::Root;
use std::sync::Arc;

/// The accepted handshake request of a peer's lane, which is to be answered.
#[derive(Clone)]
pub struct AcceptedHandshake {
    pub plan: Plan,
    pub nonce: u128,
    pub epoch: u64,
    /// The secret that proved the request.
    pub root: Option<Root>,
}

pub enum Command {
    Chore(Chore),
    /// From a peer's owner to the workers that may have lanes; `accepted`: the handshake request
    /// that asks for lanes.
    AddLanes {
        peer: Arc<Peer>,
        plans: Vec<Plan>,
        reply: Option<AcceptedHandshake>,
    },
    /// The lanes of a peer but those over the rails in `keep`, one bit each.
    DropLanes {
        peer: PeerId,
        keep: u64,
    },
    /// A frame to a peer whose owner has no lane to it.
    Relay {
        peer: PeerId,
        bytes: Vec<u8>,
    },
    /// The remaining commands are for the peer's owner.
    AddLink {
        peer: Arc<Peer>,
        session: Box<Session>,
        /// Set if the peer's handshake request reached us first.
        accepted: Option<AcceptedHandshake>,
    },
    /// The peer sent a handshake request over a rail that has no lane to it.
    HandshakeAccepted {
        peer: PeerId,
        accepted: AcceptedHandshake,
    },
    /// The new state of a lane to the peer.
    Lane {
        peer: PeerId,
        plan: Plan,
        event: LaneEvent,
    },
    /// To a lane's worker: the peer has reset its end, and (`asks`) waits for ours. `epoch` is the
    /// epoch of the requester's lane.
    ResetLane {
        peer: PeerId,
        plan: Plan,
        epoch: u64,
        asks: bool,
    },
    /// To a worker with lanes: runs of a transfer that failed lanes had claimed.
    Again {
        hold: Hold,
        runs: Vec<Run>,
        hops: u32,
    },
    /// Something is to come to rest, for what follows.
    Quiesce {
        scope: Scope,
        then: Then,
    },
    /// To a peer's owner: the lanes of one worker are at rest, or it has counted what has arrived.
    Quiesced {
        peer: PeerId,
        then: Then,
    },
    /// To all workers: the kernel reports the link of this rail as up again.
    LinkUp {
        rail: RailIndex,
    },
    /// To a peer's workers: some of its lanes stall; check whether the others move.
    Probe {
        peer: PeerId,
    },
    /// An importer gets the keys of a memory that has others.
    GiveKeys {
        peer: PeerId,
        memory: Arc<Memory>,
    },
    /// A peer ends with this outcome: `OK`, the caller disconnects it; `UNREACHABLE`, an
    /// unauthenticated endpoint had enough time to become a peer, and others need its place.
    EndPeer {
        peer: PeerId,
        outcome: Outcome,
    },
    Frame {
        peer: PeerId,
        bytes: Vec<u8>,
    },
    Notify(Notice),
    /// A memory of the peer was imported, or released. Of device memory all workers learn.
    Remote {
        remote: Arc<RemoteMemory>,
    },
    /// An operation needs what only its peer's owner can do (`Needs`). `start`: once its watch reaches
    /// a value.
    GoOn {
        hold: Hold,
        start: Option<Mark>,
    },
    /// A memory of a peer's request to flush is flushed, or the system's error number.
    Flushed {
        peer: PeerId,
        number: u64,
        index: usize,
        flushed: Result<(), i32>,
    },
    /// There is another connect to the peer, or space for its messages.
    Resume {
        peer: PeerId,
    },
}

pub type Inbox = Mailbox<Command>;

impl Inbox {
    pub fn command(&self, command: Command) {
        if let Some(Command::Chore(refused)) = self.try_command(command) {
            refused.refuse();
        }
    }
}
