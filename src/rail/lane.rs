//! A rail's queue to one of a peer's rails.

use super::credits::{Credits, Granted};
use super::lane_traffic::LaneTraffic;
use super::traffic::{Elsewhere, Glance};
use super::window::Window;
use crate::fabric::Route;
use crate::ids::{LaneId, PeerId, RailIndex};
use crate::lane::{Carried, Life};
use crate::wire::seal::{Opener, Sealer};
use std::sync::Arc;

/// The least window: keeps the link busy while completions are reaped, whatever was measured.
const WINDOW_LEAST: u64 = 128 << 10;

/// The peer's rail that a lane leads to, and the figures of the pair.
pub struct OfPeer {
    pub peer: PeerId,
    pub remote_rail: RailIndex,
    pub traffic: Arc<LaneTraffic>,
}

pub struct Lane {
    pub id: LaneId,
    pub peer: PeerId,
    pub remote_rail: RailIndex,
    pub route: Route,
    /// Address and key of the remote rail's probe buffer, once the peer has answered.
    pub probe_buffer: (u64, u64),
    /// The peer's token for this endpoint, once it is known.
    pub to: u128,
    /// Keys of the session's two directions, if a secret is set.
    pub sealer: Option<Sealer>,
    pub opener: Option<Opener>,
    pub life: Life,
    pub carried: Carried,
    pub traffic: Arc<LaneTraffic>,
    pub window: Window,
    /// Bytes posted and not known to be delivered.
    pub inflight_bytes: u64,
    /// Operations that the NIC has not returned.
    pub inflight_ops: u32,
    pub inflight_frames: u32,
    /// Of the operations, those that wait for disks, and their bytes, which the windows do not count.
    pub slow_ops: u32,
    pub slow_bytes: u64,
    /// The NIC rejected the last frame although nothing was in flight.
    pub refused: bool,
    /// The time of the last delivery, or of the first post after a pause.
    pub progress_ns: u64,
    /// The lane is stalled: its bytes do not count against the rail's window.
    pub parked: bool,
    /// The time of the last delivery.
    pub delivered_ns: u64,
    /// The NICs of other rails that carry the lane, if they do.
    pub elsewhere: Option<Box<Elsewhere>>,
    /// Credits for writes with immediates, on rails that need them.
    pub credits: Credits,
    /// Credits granted to the peer.
    pub granted: Granted,
}

impl Lane {
    pub fn new(id: LaneId, to: OfPeer, life: Life, route: Route, window: u64) -> Lane {
        Lane {
            id,
            peer: to.peer,
            remote_rail: to.remote_rail,
            route,
            probe_buffer: (0, 0),
            to: 0,
            sealer: None,
            opener: None,
            life,
            carried: Carried::default(),
            traffic: to.traffic,
            window: Window::new(WINDOW_LEAST, window),
            inflight_bytes: 0,
            inflight_ops: 0,
            inflight_frames: 0,
            slow_ops: 0,
            slow_bytes: 0,
            refused: false,
            progress_ns: 0,
            parked: false,
            delivered_ns: 0,
            elsewhere: None,
            credits: Credits::default(),
            granted: Granted::default(),
        }
    }

    /// Counts bytes as in flight, on the lane and on the rail.
    #[inline]
    pub fn charge(&mut self, bytes: u64, of_rail: &mut u64, now: u64) {
        if self.inflight_bytes == 0 {
            self.progress_ns = now;
        }
        self.inflight_bytes += bytes;
        self.carried.post(bytes);
        if !self.parked {
            *of_rail += bytes;
        }
    }

    /// Whether the delivery of a post made now should end a sample of the window.
    #[inline]
    pub fn begin_sample(&mut self, now: u64) -> bool {
        let since = if self.inflight_bytes == 0 { now } else { self.progress_ns };
        self.window.begin(now, since)
    }

    /// Counts bytes as delivered, so the lane is not stalled.
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

    /// Publishes its figures, and adds them to its rail's.
    pub fn add_to(&self, glance: &mut Glance) {
        self.traffic.publish(self);
        glance.bytes += self.inflight_bytes;
        glance.ops += u64::from(self.inflight_ops);
        glance.bytes_per_s = glance.bytes_per_s.max(self.window.bytes_per_s());
        let times = [glance.round_trip_ns, self.window.round_trip_ns()];
        glance.round_trip_ns = times.into_iter().flatten().min();
        glance.lanes += u32::from(self.serves_its_rail());
        glance.parked += u32::from(self.life.is_up() && self.parked);
    }

    /// It takes nothing new, and goes once the NIC has returned its operations.
    pub fn drain(&mut self, closed: bool, now: u64) {
        self.life.drain(closed, now);
        self.traffic.publish_end();
    }

    /// Whether it is up, and the rail's own NIC carries it.
    pub fn serves_its_rail(&self) -> bool {
        self.life.is_up() && !self.elsewhere.as_ref().is_some_and(|elsewhere| elsewhere.leaves())
    }

    /// Whether nothing is in flight, but for what waits for disks.
    pub fn is_idle(&self) -> bool {
        self.inflight_ops == self.slow_ops && self.inflight_bytes == 0
    }
}
