//! The scratches that a NIC was given. What a provider returns is followed only if it is one of them.

use crate::fabric::{Scratch, SLOT};

/// All lie in one array, each at the beginning of its slot.
pub struct Scratches {
    first: usize,
    last: usize,
}

impl Default for Scratches {
    fn default() -> Scratches {
        Scratches { first: usize::MAX, last: 0 }
    }
}

impl Scratches {
    #[inline]
    pub fn know(&mut self, scratch: *mut Scratch) {
        (self.first, self.last) = (self.first.min(scratch as usize), self.last.max(scratch as usize));
    }

    pub fn has(&self, scratch: *mut Scratch) -> bool {
        let within = (self.first..=self.last).contains(&(scratch as usize));
        within && (scratch as usize - self.first) % SLOT == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginnings_of_slots_are_scratches() {
        let mut scratches = Scratches::default();
        let at = |address: usize| address as *mut Scratch;
        let none = [0, 64, SLOT, usize::MAX];
        assert!(none.iter().all(|address| !scratches.has(at(*address))), "it was given none");
        let first = 5 * SLOT + 64;
        scratches.know(at(first + 3 * SLOT));
        scratches.know(at(first));
        assert!((0..=3).all(|slot| scratches.has(at(first + slot * SLOT))));
        let others = [first - SLOT, first + 64, first + SLOT + 64, first + 1, first + 4 * SLOT, 0];
        assert!(others.iter().all(|address| !scratches.has(at(*address))));
    }
}
