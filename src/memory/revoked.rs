//! The grants that a peer has revoked, by their numbers among those that it made for this endpoint.

use crate::ids::GrantToken;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum runs of numbers: a peer that leaves more gaps between its revoked grants exceeds the
/// limit.
const RUNS: usize = 1 << 20;

#[derive(Default)]
pub struct Revoked {
    /// SeqCst, with slots' states: beginning an operation activates its slot and then reads this;
    /// revoking a grant sets this and then looks for operations.
    any: AtomicBool,
    /// The first number of each run, and the number after its last.
    runs: Mutex<BTreeMap<u64, u64>>,
}

impl Revoked {
    /// False: there are too many runs (`RUNS`).
    pub fn insert(&self, grant: GrantToken) -> bool {
        let number = grant.number();
        let mut runs = self.runs.lock();
        self.any.store(true, Ordering::SeqCst);
        let before = runs.range(..=number).next_back().map(|(from, to)| (*from, *to));
        let from = match before {
            Some((_, to)) if number < to => return true,
            Some((from, to)) if number == to => from,
            _ => number,
        };
        let to = runs.remove(&(number + 1)).unwrap_or(number + 1);
        runs.insert(from, to);
        runs.len() <= RUNS
    }

    #[inline]
    pub fn contains(&self, grant: GrantToken) -> bool {
        self.any.load(Ordering::SeqCst) && self.holds(grant.number())
    }

    #[cold]
    fn holds(&self, number: u64) -> bool {
        self.runs.lock().range(..=number).next_back().is_some_and(|(_, to)| number < *to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revoked_runs_are_merged() {
        let grant = |number| GrantToken::of(77, number).unwrap();
        let revoked = Revoked::default();
        assert!(!revoked.contains(grant(0)));
        for number in [5, 3, 4, 4, 9, 7, 8, 0, 1] {
            assert!(revoked.insert(grant(number)));
        }
        let held: Vec<u64> = (0..12).filter(|number| revoked.contains(grant(*number))).collect();
        assert_eq!(held, [0, 1, 3, 4, 5, 7, 8, 9]);
        assert_eq!(revoked.runs.lock().len(), 3);
        [2, 6].into_iter().for_each(|number| assert!(revoked.insert(grant(number))));
        assert_eq!(revoked.runs.lock().iter().next(), Some((&0, &10)));
    }
}
