//! Transfers that wait for a watch to reach a value.

use super::core::Core;
use super::later::Awaiting;
use crate::transfer::Outcome;

/// Transfers whose watches are looked at.
#[derive(Default)]
pub(crate) struct Watching(Vec<Awaiting>);

impl Watching {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn push(&mut self, awaiting: Awaiting) {
        self.0.push(awaiting);
    }

    /// Starts transfers whose watch has reached its value; true while others wait, since watches
    /// are polled without pause.
    pub fn look(&mut self, core: &Core, now: u64) -> bool {
        if self.0.is_empty() {
            return false;
        }
        for Awaiting { hold, start: (watch, value) } in std::mem::take(&mut self.0) {
            if !core.table.is_active(hold.id()) {
                // The transfer was canceled, or its deadline has passed.
                core.abandon(hold, Outcome::OK, now);
            } else if watch.has_reached(value) {
                let slices = core.held(&hold).map_or(0, |transfer| transfer.slices);
                core.start(hold, slices, now);
            } else {
                self.0.push(Awaiting { hold, start: (watch, value) });
            }
        }
        true
    }

    /// The worker ends, and with it the waiting transfers.
    pub fn stop(&mut self, core: &Core, outcome: Outcome, now: u64) {
        for Awaiting { hold, .. } in std::mem::take(&mut self.0) {
            core.abandon(hold, outcome, now);
        }
    }
}
