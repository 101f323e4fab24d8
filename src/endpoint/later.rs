//! What a worker has to come back to.

use crate::ids::{Hold, LaneId, OpId, PeerId};
use crate::rail::Half;
use crate::transfer::claims::Run;
use crate::transfer::ending::Accepted;
use crate::transfer::watch::Mark;
use crate::wire::frame::CHANNELS;

/// How far a lane is with draining.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub enum Drain {
    #[default]
    No,
    /// It is drained when nothing is in flight.
    Begun,
    Done,
}

/// A word about a half of a lane's credits that is still to be said.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Owed {
    pub lane: LaneId,
    pub half: Half,
    pub what: What,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum What {
    Ask,
    /// So many are given.
    Grant(u32),
}

/// A frame that waits for room. There are no more than the channels' windows allow.
pub struct Relayed {
    pub peer: PeerId,
    pub bytes: Vec<u8>,
    pub since: u64,
}

/// A fence of a peer, and what it waits for, before its lanes are brought to rest or after.
pub struct FenceWaits {
    pub peer: PeerId,
    pub number: u64,
    pub until: Until,
}

pub enum Until {
    /// What was accepted before it has ended.
    Ended(Accepted),
    /// What is under grants that the peer has taken back has ended.
    Swept,
    /// The peer has taken what ended operations told it, or asked of it: the last frame of each channel, and
    /// atomics that it has not answered.
    Taken([Option<u32>; CHANNELS], Vec<OpId>),
}

/// A peer's lanes here that are held for one of its fences: those not at rest yet.
pub struct QuiescingLanes {
    pub peer: PeerId,
    pub number: u64,
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
    /// What lanes that failed had claimed.
    pub runs: Vec<Run>,
}
