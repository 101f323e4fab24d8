//! The states of a session, the events of its lanes, and the actions that it requests.

use super::channel::Out;
use super::closing::Closing;
use super::resuming::Resuming;
use crate::ids::{OpId, Plan};
use crate::lane::{Carried, Why};
use crate::transfer::Outcome;

#[derive(Debug)]
pub enum State {
    Connecting {
        ready_sent: bool,
        ready_seen: bool,
    },
    Up,
    /// No lane is left, or new ones wait for the peer's answer.
    Resuming(Resuming),
    Closing(Closing),
    /// Whether it was up, and the peer may know of it; whether both sides have drained.
    Ended {
        was_up: bool,
        known: bool,
        agreed: bool,
    },
}

/// The moves between states, for `Session::enter` and for the diagram of ARCHITECTURE.
pub(super) const MOVES: &[(&str, &str, &str)] = &[
    ("Connecting", "Up", "Ready sent and received"),
    ("Connecting", "Ended", "no fabric came up, the caller disconnects, or the peer refuses"),
    ("Connecting", "Closing", "a side disconnects while a lane is up"),
    ("Up", "Resuming", "the last lane is reset"),
    ("Up", "Closing", "a side disconnects"),
    ("Up", "Ended", "the peer is lost"),
    ("Resuming", "Up", "the peer has said over a new lane what it has, or another lane was first"),
    ("Resuming", "Closing", "a side disconnects while a lane is up"),
    ("Resuming", "Ended", "the peer is lost, or the caller disconnects"),
    ("Closing", "Ended", "both sides have drained, or one does not answer"),
];

impl State {
    pub(super) fn name(&self) -> &'static str {
        match self {
            State::Connecting { .. } => "Connecting",
            State::Up => "Up",
            State::Resuming(_) => "Resuming",
            State::Closing(_) => "Closing",
            State::Ended { .. } => "Ended",
        }
    }
}

/// The new state of a lane.
pub enum LaneEvent {
    /// Its handshake and its probe were answered.
    Up,
    Failed {
        errno: i32,
        why: Why,
    },
    /// Its handshake has no answer so far.
    Waits(Why),
    /// It served, failed, and is being reset here. The peer has not confirmed the reset yet
    /// (`asks`), or has reported its own.
    Reset {
        epoch: u64,
        outcome: Outcome,
        asks: bool,
        carried: Carried,
    },
    /// This end of the peer's lane of this epoch is reset, as the peer requested or not. `address`: the new one of its
    /// rail, if that was closed for it.
    ResetHere {
        epoch: u64,
        address: Vec<u8>,
    },
    /// Both ends are reset and nothing moves.
    Quiesced {
        epoch: u64,
    },
}

/// An action that the owner performs.
#[derive(Debug)]
pub enum Action {
    /// Make these lanes.
    AddLanes(Vec<Plan>),
    /// The serving fabric is selected: drop lanes over others.
    Serve,
    /// The set of lanes that are up has changed.
    ShowLanes,
    /// A lane that had failed for this time in ns is up, or up `again`; for the log, which has warned of it (`warned`).
    /// `stuck`: it is the only one, and small frames pass alone.
    LaneBack { plan: Plan, ns: u64, again: bool, warned: bool, stuck: bool },
    /// These lanes, each with its reason, have not come up beside others; for the log.
    LanesMissing(String),
    /// A channel has a frame to send.
    Flush,
    /// The peer is up.
    Up,
    /// Another fabric is tried; for the log.
    TryAnother,
    /// No endpoint was reached, for this reason: end the peer.
    GiveUp(String),
    /// End all outstanding operations with the peer with this outcome; then call
    /// `outstanding_ended`.
    EndOutstanding(Outcome),
    /// Stop the lanes and wait until they are idle; then call `lanes_quiesced`.
    Quiesce,
    /// End the peer.
    End(Outcome),
    /// The peer has reset its end of a lane, and (`asks`) waits for ours. `epoch` is that of the
    /// lane of the side that asks. `address`: the new one of the peer's rail, or nothing.
    ResetLane { plan: Plan, epoch: u64, asks: bool, address: Vec<u8> },
    /// It is unknown whether the peer was notified of these operations.
    Unknown(Vec<OpId>, Outcome),
    /// The peer has refused the frames of these operations: their grants are not live.
    Refused(Vec<OpId>),
    /// The peer has received these frames of a channel.
    Acknowledged(usize, Vec<Out>),
    /// The peer was not notified of these operations.
    Retract(Vec<OpId>),
    /// The last lane was reset, with this outcome: operations wait for a new one.
    Away(Outcome),
    /// Operations continue after this time in ns.
    Back(u64),
    /// An operation may have ended a lane by a key that the peer has replaced: operations under
    /// grants wait for what the peer has to say.
    Behind,
    /// All has arrived that the peer had to say when a lane was reset: operations under grants go on,
    /// by the keys that they have now.
    CaughtUp,
}
