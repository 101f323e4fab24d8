//! The grants of a peer that are of no use any longer: those that it has revoked, by their numbers
//! among those that it made in this session, and all of other sessions. A key that came with an
//! earlier session may still open the memory where NICs do not check grants.
//!
//! Of grants that were revoked long ago, some may be forgotten, so that a peer which keeps every
//! second grant costs no more than others. Their owner refuses them (`owner::granted`, `owner::covered`).

use crate::ids::GrantToken;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

/// The most runs of numbers that are remembered.
const RUNS: usize = 1024;

/// Flags beside the session's tag: it is known, and the peer has revoked grants.
const KNOWN: u32 = 1 << 31;
const ANY: u32 = 1 << 30;

#[derive(Default)]
pub struct Revoked {
    /// The tag of the session (`GrantToken::session_tag`), and the flags. While the tag is not known,
    /// no handshake has arrived, so nothing can be posted.
    /// SeqCst, with slots' states: beginning an operation activates its slot and then reads this;
    /// revoking a grant sets this and then looks for operations.
    session: AtomicU32,
    /// The first number of each run, and the number after its last.
    runs: Mutex<BTreeMap<u64, u64>>,
}

impl Revoked {
    /// The peer has reported its number of the session.
    pub fn set_session(&self, session: u64) {
        self.session.fetch_or(GrantToken::session_tag(session) | KNOWN, Ordering::SeqCst);
    }

    pub fn insert(&self, grant: GrantToken) {
        let number = grant.number();
        let mut runs = self.runs.lock();
        self.session.fetch_or(ANY, Ordering::SeqCst);
        let before = runs.range(..=number).next_back().map(|(from, to)| (*from, *to));
        let from = match before {
            Some((_, to)) if number < to => return,
            Some((from, to)) if number == to => from,
            _ => number,
        };
        let to = runs.remove(&(number + 1)).unwrap_or(number + 1);
        runs.insert(from, to);
        if runs.len() > RUNS {
            runs.pop_first();
        }
    }

    #[inline]
    pub fn contains(&self, grant: GrantToken) -> bool {
        let session = self.session.load(Ordering::SeqCst);
        session != grant.session() | KNOWN && self.holds(grant, session)
    }

    #[cold]
    fn holds(&self, grant: GrantToken, session: u32) -> bool {
        if session & KNOWN != 0 && session & !ANY != grant.session() | KNOWN {
            return true;
        }
        self.runs.lock().range(..=grant.number()).next_back().is_some_and(|(_, to)| grant.number() < *to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revoked_runs_are_merged() {
        let grant = |number| GrantToken::from_parts(77, 5, number).unwrap();
        let revoked = Revoked::default();
        assert!(!revoked.contains(grant(0)));
        for number in [5, 3, 4, 4, 9, 7, 8, 0, 1] {
            revoked.insert(grant(number));
        }
        let held: Vec<u64> = (0..12).filter(|number| revoked.contains(grant(*number))).collect();
        assert_eq!(held, [0, 1, 3, 4, 5, 7, 8, 9]);
        assert_eq!(revoked.runs.lock().len(), 3);
        [2, 6].into_iter().for_each(|number| revoked.insert(grant(number)));
        assert_eq!(revoked.runs.lock().iter().next(), Some((&0, &10)));
    }

    #[test]
    fn the_oldest_of_many_runs_are_forgotten() {
        let grant = |number| GrantToken::from_parts(77, 5, 2 * number).unwrap();
        let (revoked, last) = (Revoked::default(), 10 * RUNS as u64);
        (0..=last).for_each(|number| revoked.insert(grant(number)));
        assert_eq!(revoked.runs.lock().len(), RUNS);
        assert!(revoked.contains(grant(last)) && revoked.contains(grant(last + 1 - RUNS as u64)));
        assert!(!revoked.contains(grant(last - RUNS as u64)));
    }

    #[test]
    fn grants_of_other_sessions_are_of_no_use() {
        let grant = |session| GrantToken::from_parts(u64::MAX, session, 0).unwrap();
        let unknown = Revoked::default();
        assert!(!unknown.contains(grant(0)) && !unknown.contains(grant(7)));
        for session in [0, 7, (1 << 24) - 1, 1 << 24] {
            let revoked = Revoked::default();
            revoked.set_session(session);
            let others = [session ^ 1, session ^ 1 << 23];
            let others_are = || others.iter().all(|number| revoked.contains(grant(*number)));
            assert!(!revoked.contains(grant(session)) && others_are());
            revoked.insert(GrantToken::from_parts(1, session, 1).unwrap());
            assert!(!revoked.contains(grant(session)) && others_are(), "another grant was revoked");
            revoked.insert(grant(session));
            assert!(revoked.contains(grant(session)));
        }
    }
}
