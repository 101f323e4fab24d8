//! A rail's queue towards one of a peer's rails.

use super::credits::{Credits, Granted};
use super::traffic::Glance;
use super::window::Window;
use crate::fabric::Route;
use crate::ids::{LaneId, PeerId, RailIndex};
use crate::wire::seal::{Opener, Sealer};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneState {
    /// In its handshake: the peer has not answered over it yet.
    Handshaking,
    /// Answered; its first write is under way.
    Probing,
    Up,
    Down,
}

/// Keeps the line busy while the last of it is reaped, whatever was measured.
const WINDOW_LEAST: u64 = 128 << 10;

pub struct Lane {
    pub id: LaneId,
    pub peer: PeerId,
    pub remote_rail: RailIndex,
    pub route: Route,
    /// Address and key of the remote rail's probe buffer, once it was welcomed.
    pub probe_buffer: (u64, u64),
    /// The peer's token for us, once it is known.
    pub to: u128,
    /// Keys of the session's two directions, where there is a secret.
    pub sealer: Option<Sealer>,
    pub opener: Option<Opener>,
    pub state: LaneState,
    pub window: Window,
    /// Bytes that were posted and are not known to be delivered.
    pub inflight_bytes: u64,
    /// Operations that the NIC has not given back.
    pub inflight_ops: u32,
    pub inflight_frames: u32,
    /// An operation or a post of the lane has failed.
    pub failed: bool,
    /// The last frame was refused although nothing was in flight.
    pub refused: bool,
    /// When something was delivered last, or posted after a pause.
    pub progress_ns: u64,
    /// Nothing moves: its bytes do not count against the rail.
    pub parked: bool,
    /// When something was delivered last.
    pub delivered_ns: u64,
    /// Its route is closed; it waits for its operations to come back.
    pub reset: bool,
    /// For writes with immediates, where they need some.
    pub credits: Credits,
    /// Credits granted to the peer.
    pub granted: Granted,
}

impl Lane {
    pub fn new(id: LaneId, peer: PeerId, remote_rail: RailIndex, route: Route, window: u64) -> Lane {
        Lane {
            id,
            peer,
            remote_rail,
            route,
            probe_buffer: (0, 0),
            to: 0,
            sealer: None,
            opener: None,
            state: LaneState::Handshaking,
            window: Window::new(WINDOW_LEAST, window),
            inflight_bytes: 0,
            inflight_ops: 0,
            inflight_frames: 0,
            failed: false,
            refused: false,
            progress_ns: 0,
            parked: false,
            delivered_ns: 0,
            reset: false,
            credits: Credits::default(),
            granted: Granted::default(),
        }
    }

    /// Counts bytes as in flight, here and on the rail.
    #[inline]
    pub fn charge(&mut self, bytes: u64, of_rail: &mut u64, now: u64) {
        if self.inflight_bytes == 0 {
            self.progress_ns = now;
        }
        self.inflight_bytes += bytes;
        if !self.parked {
            *of_rail += bytes;
        }
    }

    /// Whether a post of now should end a sample of the window when it is delivered.
    #[inline]
    pub fn begin_sample(&mut self, now: u64) -> bool {
        let since = if self.inflight_bytes == 0 { now } else { self.progress_ns };
        self.window.begin(now, since)
    }

    /// Counts bytes as delivered: the lane moves.
    #[inline]
    pub fn credit(&mut self, bytes: u64, sampled: bool, of_rail: &mut u64, now: u64) {
        if self.parked {
            self.parked = false;
            *of_rail += self.inflight_bytes;
        }
        (self.progress_ns, self.delivered_ns) = (now, now);
        self.inflight_bytes -= bytes;
        *of_rail -= bytes;
        self.window.deliver(bytes);
        if sampled {
            self.window.measure(now);
        }
    }

    /// Adds itself to what its rail tells.
    pub fn add_to(&self, glance: &mut Glance) {
        glance.bytes += self.inflight_bytes;
        glance.ops += u64::from(self.inflight_ops);
        glance.bytes_per_s = glance.bytes_per_s.max(self.window.bytes_per_s());
        let times = [glance.round_trip_ns, self.window.round_trip_ns()];
        glance.round_trip_ns = times.into_iter().flatten().min();
        glance.lanes += u32::from(self.state == LaneState::Up);
        glance.parked += u32::from(self.state == LaneState::Up && self.parked);
    }

    /// Whether nothing of the lane is in flight.
    pub fn is_idle(&self) -> bool {
        self.inflight_ops == 0 && self.inflight_bytes == 0
    }
}
