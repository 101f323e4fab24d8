//! Work that a worker resumes in later passes.

use crate::ids::{Hold, PeerId};
use crate::peer::link::{Link, Outstanding};
use crate::transfer::claims::Run;
use crate::transfer::completion::Completion;
use crate::transfer::gate::Before;
use crate::transfer::watch::Mark;
use crate::transfer::Outcome;

/// The longest time that a tick spends on potentially long work.
pub(crate) const ENDS_NS: u64 = 1_000_000;
/// Steps between readings of the clock.
pub(crate) const LOOK: usize = 64;

/// The most workers that may pass on a transfer for which none has a lane.
pub const HOPS: u32 = 64;

/// A frame that waits for space. The channels' windows limit their number.
pub struct Relayed {
    pub peer: PeerId,
    pub bytes: Vec<u8>,
    pub since: u64,
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

/// A peer that has ended, and whose PEER_DOWN is pending.
pub struct Leaving {
    pub peer: PeerId,
    pub outcome: Outcome,
    pub stage: LeavingStage,
}

pub enum LeavingStage {
    /// Outstanding operations are ending. This comes first: posts that lanes leave undone would
    /// otherwise look like failures.
    Ending(Box<Link>, Outstanding),
    /// Its lanes are being dropped.
    Dropping {
        /// The PEER_DOWN, if the peer was up.
        down: Option<Completion>,
        /// Workers that have not dropped its lanes yet.
        others: usize,
        /// When all had.
        dropped_ns: Option<u64>,
        /// What it has posted may land by keys that are being replaced.
        lands: bool,
        /// Operations that had ended when the last worker had dropped its lanes: PEER_DOWN follows
        /// their completions.
        ended: Option<Before>,
    },
}
