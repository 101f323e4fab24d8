//! Registrations for peers alone, which can be replaced.
//!
//! A NIC that does not check grants lets in whoever holds a key. So a memory that peers reach under
//! grants alone is registered there twice: for our own posts, and for peers. To take it back from a
//! peer that does not answer is to register it anew for the others, and to close what all had.

use crate::fabric::Registration;
use crate::ids::RailIndex;

/// The registrations of one rail, by range.
type OfRail = (RailIndex, Box<[Registration]>);

#[derive(Default)]
pub struct Exports {
    /// What the descriptor names.
    current: Vec<OfRail>,
    /// Complete for its rail, and not named yet.
    fresh: Vec<OfRail>,
    /// To be closed.
    old: Vec<(RailIndex, Registration)>,
    /// How often peers were given new keys.
    generation: u64,
    /// Rails that have registered everything again, one bit each.
    again: u64,
    /// They could not be replaced: no peer reaches the memory.
    pub lost: bool,
}

impl Exports {
    /// A worker has registered the memory anew. `left`: what it could not close.
    pub fn add(&mut self, rails: Vec<OfRail>, left: Vec<(RailIndex, Registration)>) {
        self.fresh.extend(rails);
        self.old.extend(left);
    }

    /// All rails have registered it anew.
    pub fn is_complete(&self) -> bool {
        self.fresh.len() >= self.current.len()
    }

    /// A rail has registered everything again, and peers are to be given the keys.
    pub fn refresh(&mut self, rail: RailIndex, now: &mut impl FnMut(Registration) -> Registration) {
        let its = self.current.iter_mut().chain(&mut self.fresh).filter(|(known, _)| *known == rail);
        its.flat_map(|(_, all)| all.iter_mut()).for_each(|one| *one = now(*one));
        self.again |= rail.bit();
    }

    /// Whether a descriptor of before may have other keys.
    pub fn has_other_keys(&self) -> bool {
        self.generation > 1 || self.again != 0
    }

    /// What was registered anew takes the place of what there was.
    pub fn replace(&mut self) {
        let fresh = std::mem::take(&mut self.fresh);
        let before = std::mem::replace(&mut self.current, fresh);
        self.give_up(before);
        self.generation += 1;
    }

    /// Nothing takes the place of what there was.
    pub fn lose(&mut self) {
        let (before, fresh) = (std::mem::take(&mut self.current), std::mem::take(&mut self.fresh));
        self.give_up(before);
        self.give_up(fresh);
        self.lost = true;
    }

    fn give_up(&mut self, rails: Vec<OfRail>) {
        for (rail, registrations) in rails {
            self.old.extend(registrations.into_vec().into_iter().map(|registration| (rail, registration)));
        }
    }

    /// The keys that peers use over a rail.
    pub fn keys(&self, rail: RailIndex) -> Option<Box<[u64]>> {
        let found = self.current.iter().find(|(found, _)| *found == rail)?;
        Some(found.1.iter().map(|registration| registration.key).collect())
    }

    /// The rails whose keys peers may not have.
    pub fn rails(&self) -> impl Iterator<Item = RailIndex> {
        RailIndex::each_in(self.current.iter().fold(self.again, |set, (rail, _)| set | rail.bit()))
    }

    /// One of a rail's that is to be closed; `forget` it when it was.
    pub fn next_old(&self, rail: RailIndex) -> Option<Registration> {
        self.old.iter().rev().find(|(known, _)| *known == rail).map(|(_, registration)| *registration)
    }

    pub fn forget(&mut self, rail: RailIndex, registration: &Registration) {
        // Handles of several NICs may be equal.
        let is_it = |(on, old): &(RailIndex, Registration)| (*on, old.handle) == (rail, registration.handle);
        if let Some(at) = self.old.iter().rposition(is_it) {
            self.old.swap_remove(at);
        }
    }

    /// Registrations that are open.
    pub fn open(&self) -> u64 {
        let count = |all: &[OfRail]| all.iter().map(|(_, registrations)| registrations.len()).sum::<usize>();
        (count(&self.current) + count(&self.fresh) + self.old.len()) as u64
    }
}
