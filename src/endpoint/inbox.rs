//! Commands that other threads send a worker.

use super::chores::{Registered, Reply, Wanted};
use super::later::Awaiting;
use super::mailbox::Mailbox;
use crate::ids::{Hold, MemoryId, OpId, PeerId};
use crate::memory::{Memory, RemoteMemory, RemoteState};
use crate::peer::link::Quiesce;
use crate::peer::{Peer, Replacing, Revoking};
use crate::session::{LaneEvent, Plan, Session};
use crate::status::Result;
use crate::transfer::claims::Run;
use crate::transfer::operation::Failed;
use crate::transfer::Outcome;
use crate::wire::seal::Root;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// A handshake request of a peer's lane, which is to be welcomed.
#[derive(Clone)]
pub struct AcceptedHandshake {
    pub plan: Plan,
    pub nonce: u128,
    pub epoch: u64,
    /// The secret that proved it.
    pub root: Option<Root>,
}

pub enum Command {
    Register {
        wanted: Wanted,
        reply: Registered,
    },
    Deregister {
        memory: Arc<Memory>,
        reply: Reply<Result<()>>,
    },
    /// From a peer's owner to the workers that may have lanes; `accepted`: the handshake request
    /// that asks for them.
    AddLanes {
        peer: Arc<Peer>,
        plans: Vec<Plan>,
        reply: Option<AcceptedHandshake>,
    },
    /// Lanes over the rails in `keep`, one bit each, stay.
    DropLanes {
        peer: PeerId,
        keep: u64,
        /// For a peer that has ended: whether its lanes are reset, and how many workers have yet to
        /// drop them.
        ended: Option<(bool, Arc<AtomicUsize>)>,
    },
    /// A frame to a peer whose owner has no lane for it.
    Relay {
        peer: PeerId,
        bytes: Vec<u8>,
    },
    /// The rest is for the peer's owner.
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
    /// What became of a lane of the peer's.
    Lane {
        peer: PeerId,
        plan: Plan,
        event: LaneEvent,
    },
    /// To a lane's worker: the peer has reset its end, and (`asks`) waits for ours. `epoch` is that
    /// of the requester's lane.
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
    /// The caller wants a fence.
    Fence {
        peer: PeerId,
        id: OpId,
    },
    /// To a peer's workers: its lanes are to come to rest.
    QuiesceLanes {
        peer: PeerId,
        of: Quiesce,
    },
    /// The lanes are at rest.
    LanesQuiet {
        peer: PeerId,
        of: Quiesce,
    },
    /// To a peer's workers: some of its lanes stand still; do the others move?
    Probe {
        peer: PeerId,
    },
    EndPeer {
        peer: PeerId,
        outcome: Outcome,
    },
    /// An unauthenticated endpoint had time enough to become a peer, and others want its place.
    Evict {
        peer: PeerId,
    },
    Frame {
        peer: PeerId,
        bytes: Vec<u8>,
    },
    Send {
        peer: PeerId,
        id: OpId,
        data: Arc<Vec<u8>>,
        allowance: u64,
    },
    Notify {
        peer: PeerId,
        id: OpId,
    },
    /// Notify the peer of a failed transfer.
    Failed(Failed),
    /// To be asked for.
    Atomic {
        peer: PeerId,
        hold: Hold,
    },
    Import {
        remote: Arc<RemoteMemory>,
    },
    /// Their remote memory is known to be there, or not to be.
    GoOn {
        remote: Arc<RemoteMemory>,
        state: RemoteState,
        holds: Vec<Hold>,
    },
    Release {
        remote: Arc<RemoteMemory>,
    },
    Revoke {
        peer: PeerId,
        memory: MemoryId,
    },
    /// A grant of ours ends.
    RevokeGrant(Arc<Revoking>),
    /// Nothing of it comes any longer: what NICs have reported is counted, and that is all.
    CountArrivals(Arc<Revoking>),
    /// To an importer's owner: it is to be given the new keys of a memory, and (`waits`) the old ones
    /// are closed when it is at rest.
    GiveKeys {
        peer: PeerId,
        of: Arc<Replacing>,
        waits: bool,
    },
    CloseKeys(Arc<Replacing>),
    Resume {
        peer: PeerId,
    },
    Connected {
        peer: PeerId,
    },
    /// A transfer wants a lane between rails that have none.
    Join {
        peer: PeerId,
        hold: Hold,
    },
    Disconnect {
        peer: PeerId,
    },
    /// A transfer that starts when its watch reaches a value.
    Await(Awaiting),
    Shutdown,
}

impl Command {
    /// The worker has ended: answers callers that still wait.
    pub(super) fn refuse(self) {
        match self {
            Command::Register { reply, .. } => reply.refuse(),
            // The rails are closed, and the registrations with them.
            Command::Deregister { reply, .. } => reply.put(Ok(())),
            Command::DropLanes { ended: Some((_, others)), .. } => {
                others.fetch_sub(1, Ordering::AcqRel);
            }
            Command::RevokeGrant(of) | Command::CountArrivals(of) => {
                _ = of.is_done_by_one().then(|| of.let_memory_go())
            }
            _ => {}
        }
    }
}

pub type Inbox = Mailbox<Command>;

impl Inbox {
    pub fn command(&self, command: Command) {
        if let Some(refused) = self.try_command(command) {
            refused.refuse();
        }
    }
}
