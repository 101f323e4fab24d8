//! Work that a worker comes back to in later passes.

use crate::ids::{Hold, LaneId, PeerId};
use crate::peer::link::{Link, Outstanding, Quiesce};
use crate::peer::{Replacing, Revoking};
use crate::rail::Half;
use crate::transfer::claims::Run;
use crate::transfer::completion::Completion;
use crate::transfer::gate::Before;
use crate::transfer::watch::Mark;
use crate::transfer::Outcome;
use std::sync::atomic::AtomicUsize;
use std::sync::Arc;

/// The longest that a tick spends on work that may be large.
pub(super) const ENDS_NS: u64 = 1_000_000;
/// Steps between reads of the clock.
pub(super) const LOOK: usize = 64;

/// Workers that may pass on what none of them has a lane for.
pub const HOPS: u32 = 64;

/// A frame about a half of a lane's credits that is still to be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Owed {
    pub lane: LaneId,
    pub half: Half,
    pub what: What,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum What {
    Ask,
    /// This many are granted.
    Grant(u32),
}

/// A frame that waits for room. There are no more than the channels' windows allow.
pub struct Relayed {
    pub peer: PeerId,
    pub bytes: Vec<u8>,
    pub since: u64,
}

/// A peer's lanes here that are not at rest yet.
pub struct QuiescingLanes {
    pub peer: PeerId,
    pub of: Quiesce,
    pub lanes: Vec<LaneId>,
}

/// A transfer that has not started.
pub struct Awaiting {
    pub hold: Hold,
    pub start: Mark,
}

/// A transfer that waits for lanes.
pub struct Parked {
    pub hold: Hold,
    pub peer: Option<PeerId>,
    /// Runs that failed lanes had claimed.
    pub runs: Vec<Run>,
}

/// A peer that has ended, and whose PEER_DOWN is to come.
pub struct Leaving {
    pub peer: PeerId,
    pub outcome: Outcome,
    pub since: u64,
    pub stage: LeavingStage,
    /// Grants that it can use no more once it has gone.
    pub revoking: Vec<Arc<Revoking>>,
}

pub enum LeavingStage {
    /// Outstanding operations end. This comes first: posts that lanes leave undone would look like
    /// failures.
    Ending(Box<Link>, Outstanding),
    /// Its lanes are dropped.
    Dropping {
        /// If it was up.
        down: Option<Completion>,
        /// Workers that have not dropped its lanes.
        others: Arc<AtomicUsize>,
        /// Memories whose keys are replaced, because it may have posted more.
        replacing: Vec<Arc<Replacing>>,
        /// Operations that had ended when the last worker had dropped its lanes: PEER_DOWN follows their
        /// completions.
        ended: Option<Before>,
    },
}
