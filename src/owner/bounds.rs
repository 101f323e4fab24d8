//! Limits on what a peer may request. A peer that exceeds one is dropped, and the log names the
//! limit. No unmodified endpoint reaches them.

use crate::ids::MemoryId;
use crate::memory::Memory;
use crate::peer::link::Link;
use crate::peer::Peer;
use crate::session::channel::Out;
use crate::status::Status;
use crate::transfer::Outcome;
use crate::wire::frame::SYSTEM;
use crate::worker::core::Core;
use crate::worker::inbox::Command;
use std::sync::atomic::Ordering;

/// The most answers that may wait for a peer that reads nothing.
pub(crate) const ANSWERS: usize = 4096;
/// The same for frames that go behind our own requests, which may be many.
const BEHIND: usize = 65_536;
/// Memories that a peer revokes while transfers here still use them.
const REVOKING: usize = 65_536;
/// The most frames of a peer that may wait for its owner. Its windows allow some hundreds.
const AWAITING: u32 = 4096;

impl Core {
    /// Drops a peer that violated a limit; its frames are no longer handled.
    #[cold]
    pub(crate) fn breach(&self, peer: &Peer, why: &str) {
        if !peer.breached.swap(true, Ordering::Relaxed) {
            log::warn!("{peer} broke the protocol and is disconnected: {why}");
            let outcome = Outcome::new(Status::Protocol);
            self.command_owner(peer, Command::EndPeer { peer: peer.id, outcome });
        }
    }

    /// Hands a peer's command to its owner.
    pub(crate) fn hand_to_owner(&self, peer: &Peer, command: Command) {
        if peer.awaiting.fetch_add(1, Ordering::Relaxed) >= AWAITING {
            peer.awaiting.fetch_sub(1, Ordering::Relaxed);
            return self.breach(peer, "it sends more frames than its windows allow");
        }
        self.command_owner(peer, command);
    }
}

impl Link {
    /// Queues an answer to a request on the system channel.
    pub(crate) fn answer(&mut self, core: &Core, out: Out) {
        if self.answers() >= ANSWERS {
            return core.breach(&self.peer, "it sends requests, and does not acknowledge the answers");
        }
        self.push_answer(out);
    }

    /// Answers an import of a memory whose keys were replaced: the descriptor may be older. The
    /// keys follow all frames about revoked grants.
    pub(crate) fn answer_with_keys(&mut self, core: &Core, memory: &Memory, out: Out) {
        if self.session.channels[SYSTEM].waiting() >= BEHIND {
            return core.breach(&self.peer, "it imports memories, and does not acknowledge the answers");
        }
        self.push_keys(memory, core.frame_bytes());
        self.push(out);
    }

    pub(crate) fn revoking(&mut self, core: &Core, memory: MemoryId) {
        if self.revoking.len() >= REVOKING {
            return core.breach(&self.peer, "it deregisters more memories than it can have exported");
        }
        self.revoking.insert(memory);
    }

    /// Counts a command that `hand_to_owner` passed and the owner has handled.
    pub(crate) fn handed(&self) {
        self.peer.awaiting.fetch_sub(1, Ordering::Relaxed);
    }
}
