//! Transfers that wait for a word to reach a value.

use super::inbox::Command;
use super::worker::Worker;
use super::Endpoint;
use crate::ids::OpId;
use crate::transfer::watch::Mark;
use crate::transfer::Outcome;

/// A transfer that has not started.
pub struct Awaiting {
    pub id: OpId,
    pub start: Mark,
}

impl Endpoint {
    /// Has a worker start an accepted transfer when its word says so. The caller's hold
    /// goes with it.
    pub(super) fn start_later(&self, id: OpId, start: Mark) {
        let home = self.core.table.peer_of(id).and_then(|peer| self.core.home_of(peer)).unwrap_or(0);
        self.core.inboxes[home].command(Command::Await(Awaiting { id, start }));
    }
}

impl Worker {
    /// Starts what need not wait any more; true while something waits, for then words are
    /// looked at without rest.
    pub(super) fn look_at_watches(&mut self, now: u64) -> bool {
        if self.awaiting.is_empty() {
            return false;
        }
        let core = &self.core;
        self.awaiting.retain(|Awaiting { id, start: (watch, value) }| {
            if !core.table.is_active(*id) {
                // It was canceled, or its deadline has passed.
                core.abandon(*id, Outcome::OK, now);
                return false;
            }
            let reached = watch.has_reached(*value);
            if reached {
                core.start(*id, core.held(*id).map_or(0, |transfer| transfer.slices), now);
            }
            !reached
        });
        true
    }

    /// The worker ends, and what waits with it.
    pub(super) fn stop_watching(&mut self, outcome: Outcome, now: u64) {
        for Awaiting { id, .. } in std::mem::take(&mut self.awaiting) {
            self.core.abandon(id, outcome, now);
        }
    }
}
