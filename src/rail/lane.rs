//! A rail's queue towards one of a peer's rails.

use crate::fabric::Route;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneState {
    /// Greets until the peer has answered over it.
    Greeting,
    /// Answered; its first write is under way.
    Warming,
    Up,
    Down,
}

pub struct Lane {
    pub peer: u64,
    pub remote_rail: usize,
    pub route: Route,
    /// Address and key of the remote rail's pad.
    pub pad: (u64, u64),
    pub state: LaneState,
    /// Bytes that may be in flight, and that are.
    pub window: u64,
    pub inflight_bytes: u64,
    pub inflight_ops: u32,
    pub inflight_frames: u32,
    /// The last frame was refused although nothing was in flight.
    pub refused: bool,
}

impl Lane {
    pub fn new(peer: u64, remote_rail: usize, route: Route, pad: (u64, u64), window: u64) -> Lane {
        Lane {
            peer,
            remote_rail,
            route,
            pad,
            state: LaneState::Greeting,
            window,
            inflight_bytes: 0,
            inflight_ops: 0,
            inflight_frames: 0,
            refused: false,
        }
    }
}
