//! Parts: a list over several peers. Each part is an operation with its own deadline; the whole ends
//! when its last part ends (`ending`).

use super::Outcome;
use crate::ids::{OpId, PeerId};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// An operation's role in a list over several peers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PartOf {
    Nothing,
    Whole(OpId),
    HasParts,
}

/// Marks an operation with parts in `Whole::of`. (No id is all ones.)
const HAS_PARTS: u64 = u64::MAX;

/// How the first part that failed did.
#[derive(Clone, Copy)]
pub struct Failure {
    pub outcome: Outcome,
    pub peer: Option<PeerId>,
}

/// A part's reference to the whole.
pub struct Whole {
    part_of: AtomicU64,
    /// Parts that have not ended.
    pub left: AtomicU64,
    pub failed: Mutex<Option<Failure>>,
}

impl Whole {
    pub fn new() -> Whole {
        Whole { part_of: AtomicU64::new(0), left: AtomicU64::new(0), failed: Mutex::new(None) }
    }

    #[inline]
    pub fn belong(&self, to: PartOf) {
        let word = match to {
            PartOf::Nothing => 0,
            PartOf::Whole(whole) => whole.get(),
            PartOf::HasParts => HAS_PARTS,
        };
        self.part_of.store(word, Ordering::Relaxed);
    }

    pub fn part_of(&self) -> PartOf {
        match self.part_of.load(Ordering::Relaxed) {
            HAS_PARTS => PartOf::HasParts,
            whole => OpId::new(whole).map_or(PartOf::Nothing, PartOf::Whole),
        }
    }
}
