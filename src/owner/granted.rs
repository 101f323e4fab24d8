//! Grants at their owner: what a peer does under them, and the owner's notifications. `calls::grants` has their life.

use super::deliver::{Delivery, Pass};
use crate::fabric::grants::Grant;
use crate::ids::{GrantToken, PeerId};
use crate::logging::seldom::warn_seldom;
use crate::peer::link::Link;
use crate::peer::Peer;
use crate::status::Status;
use crate::transfer::completion::{Completion, KIND_NOTIFICATION};
use crate::transfer::Outcome;
use crate::wire::frame::Kind;
use crate::worker::core::Core;
use std::sync::Arc;

/// The most pieces of a grant.
pub(crate) const PIECES: u64 = 1 << 20;

/// The token at the beginning of a body, and the rest.
pub(crate) fn granted(body: &[u8]) -> Option<(GrantToken, &[u8])> {
    let (token, rest) = body.split_first_chunk::<16>()?;
    Some((GrantToken::new(u128::from_le_bytes(*token))?, rest))
}

impl Core {
    /// Notifies the owner of grants to a peer that has ended, where that was requested.
    pub(crate) fn notify_of_end(&self, peer: PeerId, outcome: Outcome) {
        self.grants.of_peer(peer).iter().for_each(|grant| self.notify_owner(grant, outcome));
    }

    pub(crate) fn notify_owner(&self, grant: &Grant, outcome: Outcome) {
        let Some(value) = grant.take_notify() else { return };
        let now = self.clock.now();
        let mut completion = Completion::new(KIND_NOTIFICATION, outcome, grant.peer, now);
        completion.notify = value;
        self.table.tally.notification();
        self.grants.yield_place();
        self.queue.publish(completion);
    }

    /// The owner has received the grant's notification.
    pub(crate) fn spare_owner(&self, grant: &Grant) {
        if grant.take_notify().is_some() {
            self.give_place_back();
        }
    }

    /// The queue is full for a peer's arrivals. Logs at most one line per second.
    pub(crate) fn warn_of_full_queue(&self, peer: &Peer) {
        let (depth, unpolled, held) = (self.queue.capacity(), self.queue.unpolled(), self.grants.places());
        warn_seldom!(
            "the endpoint's queue is full, and what arrives from {peer} waits: of its {depth} places {unpolled} are \
             completions to be polled, {held} are held by grants with WEFT_NOTIFY_FAILURE, and the others by \
             operations under way: poll, or raise queue_depth"
        );
    }

    pub(crate) fn give_place_back(&self) {
        self.grants.yield_place();
        self.queue.unreserve(1);
    }
}

impl Link {
    /// A frame that announces an operation under a grant.
    pub(crate) fn under_a_grant(&mut self, pass: &mut Pass, kind: Kind, body: &[u8]) -> Delivery {
        let core = pass.core;
        let Some((token, body)) = granted(body) else {
            core.count_malformed();
            return Delivery::Taken;
        };
        let ours = |grant: &Arc<Grant>| grant.peer == self.peer.id;
        let entered = core.grants.named(token).filter(ours).and_then(|grant| grant.enter());
        if let Some(entered) = entered {
            return match kind {
                Kind::NotifyUnder => self.notification(pass, body),
                Kind::FailureUnder => {
                    let delivery = self.failure(pass, body);
                    if !matches!(delivery, Delivery::Stalled) {
                        core.spare_owner(entered.grant());
                    }
                    delivery
                }
                Kind::AtomicUnder => self.atomic(core, body, Some(entered.grant())),
                _ => pass.raise(body),
            };
        }
        if kind == Kind::AtomicUnder {
            return self.refuse_atomic(core, body, Status::Revoked);
        }
        log::debug!(
            "{}: announces an operation under grant {token}, which is revoked or not its own",
            self.peer
        );
        if kind == Kind::FailureUnder {
            return Delivery::TakenUrgently;
        }
        if self.peer.address.answers_about_grants() {
            return Delivery::Refused;
        }
        // Check after the table: a grant that has left the table is there.
        match core.revocations.lock().is_unknown_to(self.peer.id, token) {
            true => Delivery::Stalled,
            false => Delivery::TakenUrgently,
        }
    }
}
