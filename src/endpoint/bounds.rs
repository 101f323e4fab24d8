//! Bounds on what a peer may request. A peer that goes beyond one is dropped, and the log names the
//! bound. No endpoint of Weft comes near them.

use super::inbox::Command;
use super::keys::push_keys;
use super::worker::Worker;
use crate::ids::{MemoryId, PeerId};
use crate::memory::Memory;
use crate::peer::link::Link;
use crate::peer::Peer;
use crate::session::channel::Out;
use crate::status::Status;
use crate::transfer::Outcome;
use crate::wire::frame::SYSTEM;
use std::sync::atomic::Ordering;

/// Answers that may wait for a peer: it has asked, and takes nothing.
pub(super) const ANSWERS: usize = 4096;
/// The same, of frames that go behind our own requests, which may be many.
const BEHIND: usize = 65_536;
/// Memories that a peer takes back while transfers here still use them.
const REVOKING: usize = 65_536;
/// Frames of a peer that wait for its owner. Its windows allow some hundred.
const AWAITING: u32 = 4096;

impl Worker {
    /// Nothing more of this peer is looked at.
    #[cold]
    pub(super) fn breach(&self, peer: &Peer, why: &str) {
        if !peer.breached.swap(true, Ordering::Relaxed) {
            log::warn!("{peer} broke the protocol and is disconnected: {why}");
            let outcome = Outcome::of(Status::Protocol);
            self.command_owner(peer, Command::EndPeer { peer: peer.id, outcome });
        }
    }

    /// Answers what a peer asked by its system channel.
    pub(super) fn answer(&self, link: &mut Link, out: Out) {
        if link.answers() >= ANSWERS {
            return self.breach(&link.peer, "it asks, and does not acknowledge the answers");
        }
        link.push_answer(out);
    }

    /// Answers an import of a memory whose keys were replaced: the descriptor may be from before. The
    /// keys go behind what was said of grants that ended.
    pub(super) fn answer_with_keys(&self, link: &mut Link, memory: &Memory, out: Out) {
        if link.session.channels[SYSTEM].waiting() >= BEHIND {
            return self.breach(&link.peer, "it imports, and does not acknowledge the answers");
        }
        push_keys(link, memory, self.frame_bytes());
        link.push(out);
    }

    pub(super) fn revoking(&self, link: &mut Link, memory: MemoryId) {
        if link.revoking.len() >= REVOKING {
            return self.breach(&link.peer, "it takes back more memories than there can be");
        }
        link.revoking.insert(memory);
    }

    /// Something of a peer that its owner is to look at.
    pub(super) fn hand_to_owner(&self, peer: &Peer, command: Command) {
        if peer.awaiting.fetch_add(1, Ordering::Relaxed) >= AWAITING {
            peer.awaiting.fetch_sub(1, Ordering::Relaxed);
            return self.breach(peer, "it sends more than its windows allow");
        }
        self.command_owner(peer, command);
    }

    /// Counts off a command that `hand_to_owner` passed.
    pub(super) fn handed(&mut self, peer: PeerId) {
        if let Some(link) = self.link(peer) {
            link.peer.awaiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
