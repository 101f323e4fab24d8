//! Transfers that wait for a watch to reach a value.

use super::inbox::Command;
use super::later::Awaiting;
use super::worker::Worker;
use super::Endpoint;
use crate::ids::Hold;
use crate::transfer::watch::Mark;
use crate::transfer::Outcome;

impl Endpoint {
    /// Has a worker start an accepted transfer when its watch reaches a value.
    pub(super) fn start_later(&self, hold: Hold, start: Mark, now: u64) {
        let owner = self.core.table.held(&hold).1.peer.and_then(|peer| self.core.owner_of(peer)).unwrap_or(0);
        self.core.hand_over(owner, Command::Await(Awaiting { hold, start }), now);
    }
}

impl Worker {
    /// Starts transfers whose watch has reached its value; true while others wait, since watches
    /// are polled without pause.
    pub(super) fn look_at_watches(&mut self, now: u64) -> bool {
        if self.awaiting.is_empty() {
            return false;
        }
        let core = &self.core;
        for Awaiting { hold, start: (watch, value) } in std::mem::take(&mut self.awaiting) {
            if !core.table.is_active(hold.id()) {
                // The transfer was canceled, or its deadline has passed.
                core.abandon(hold, Outcome::OK, now);
            } else if watch.has_reached(value) {
                let slices = core.held(&hold).map_or(0, |transfer| transfer.slices);
                core.start(hold, slices, now);
            } else {
                self.awaiting.push(Awaiting { hold, start: (watch, value) });
            }
        }
        true
    }

    /// The worker ends, and what waits with it.
    pub(super) fn stop_watching(&mut self, outcome: Outcome, now: u64) {
        for Awaiting { hold, .. } in std::mem::take(&mut self.awaiting) {
            self.core.abandon(hold, outcome, now);
        }
    }
}
