//! Fences: once one completes, nothing that a peer had accepted before it can land here.
//!
//! The peer has to answer, since only the peer knows what it has accepted, and what its NICs still
//! have: writes of operations that ended early are posted all the same. The peer waits until the
//! operations that it had accepted when it received the fence have ended, with their notifications
//! and counts; later ones proceed meanwhile. Then it holds each of its lanes to us until everything
//! on that lane is delivered; each lane proceeds independently (one may be dead without being known
//! to be). Once all have, and frames of ended operations are acknowledged, the peer answers. A
//! failed lane is idle once its own reset is done (`failover`).

use super::Endpoint;
use crate::ids::{OpId, PeerId};
use crate::revocation::{Scope, Then};
use crate::status::{Error, Result};
use crate::transfer::completion::KIND_FENCE;
use crate::transfer::operation::Work;
use crate::transfer::Common;

impl Endpoint {
    /// `peer`: as the caller names it.
    pub fn fence(&self, peer: u64, common: &Common) -> Result<OpId> {
        let core = &self.core;
        core.phase.check_open()?;
        let peer = core.named_peer(peer)?;
        let id = self.begin_fence(common, Some(peer.id), || peer.ended())?;
        core.quiesce(peer.owner, Scope::Peer(peer.id), Then::Fence(id));
        self.kick(core.clock.now());
        Ok(id)
    }

    /// Begins an operation that moves no bytes and ends with an answer. `peer`: the peer for its
    /// completion; `ended`: the reason why it cannot begin, checked once the operation is visible.
    pub(crate) fn begin_fence(
        &self,
        common: &Common,
        peer: Option<PeerId>,
        ended: impl FnOnce() -> Option<Error>,
    ) -> Result<OpId> {
        let (hold, _) = self.begin(common, KIND_FENCE, peer, 0, Work::Fence, ended)?;
        let id = hold.id();
        // A fence has no stripes.
        let _ = self.core.table.leave(hold);
        Ok(id)
    }
}
