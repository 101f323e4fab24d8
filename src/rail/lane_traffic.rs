//! Figures of the lanes between one of our rails and one of a peer's: published by their worker, read
//! by any thread.

use super::lane::Lane;
use super::traffic::Figure;
use crate::fabric::{ends, seen, Seen, Socket};
use crate::lane::LaneState;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::Arc;

/// The words for a lane's state, by its number.
const WORDS: [&str; 5] = ["down", "handshake", "probe", "up", "stalled"];
const UP: u8 = 3;
const STALLED: u8 = 4;

/// A lane that failed is followed by another one, so the figures are of all lanes of the pair. On
/// cache lines of their own, as a rail's are.
#[derive(Default)]
#[repr(align(128))]
pub struct LaneTraffic {
    written: Figure,
    read: Figure,
    pub resets: Figure,
    /// How often a lane came up again.
    pub reconnects: Figure,
    // These two are updated by `publish`.
    pub inflight_bytes: Figure,
    pub bytes_per_s: Figure,
    /// The shortest time from a post to its delivery; 0: not measured yet.
    round_trip_ns: Figure,
    state: AtomicU8,
    system: Mutex<System>,
}

/// What the system counts for the lanes.
#[derive(Default)]
struct System {
    sockets: Vec<Arc<Socket>>,
    /// Of sockets that no longer serve the lanes.
    before: Seen,
    /// One of the lanes was up.
    was_up: bool,
}

impl LaneTraffic {
    /// Counts delivered bytes of one direction.
    #[inline]
    pub fn add(&self, read: bool, bytes: u64) {
        if read { &self.read } else { &self.written }.add(bytes);
    }

    /// The bytes of this endpoint's own writes, or reads.
    pub fn moved(&self, read: bool) -> u64 {
        if read { &self.read } else { &self.written }.get()
    }

    /// The lane's state, as a word, and whether it carries operations.
    pub fn state(&self) -> (&'static str, bool) {
        let state = self.state.load(Relaxed);
        (WORDS.get(usize::from(state)).copied().unwrap_or_default(), state >= UP)
    }

    /// What the system counts, of all lanes of the pair; the time is the round trip now.
    pub fn seen(&self) -> Seen {
        let system = self.system.lock();
        let sum = system.sockets.iter().map(|socket| seen(socket)).fold(Seen::default(), Seen::and);
        let round_trip_ns =
            if system.sockets.is_empty() { self.round_trip_ns.get() } else { sum.round_trip_ns };
        Seen { round_trip_ns, ..sum.and(system.before) }
    }

    /// The ends of the connection that carries this endpoint's own operations, ours first.
    pub fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.system.lock().sockets.first().and_then(|socket| ends(socket))
    }

    /// A lane is up; whether one was up before.
    pub(super) fn comes_up(&self) -> bool {
        std::mem::replace(&mut self.system.lock().was_up, true)
    }

    /// These sockets serve the lane from here on.
    pub(super) fn use_sockets(&self, new: Vec<Arc<Socket>>) {
        let mut system = self.system.lock();
        let before = std::mem::replace(&mut system.sockets, new);
        let is_kept = |socket: &&Arc<Socket>| system.sockets.iter().any(|kept| Arc::ptr_eq(kept, socket));
        let gone = before.iter().filter(|socket| !is_kept(socket)).map(|socket| seen(socket));
        let gone = gone.fold(Seen::default(), Seen::and);
        system.before = system.before.and(gone);
    }

    /// Publishes the present figures of a lane. One that ends has a successor, or none.
    pub(super) fn publish(&self, lane: &Lane) {
        let state = match lane.life.state() {
            LaneState::Handshaking(_) if lane.life.is_waiting() => 1,
            LaneState::Probing(_) => 2,
            LaneState::Up if lane.parked => STALLED,
            LaneState::Up => UP,
            LaneState::Handshaking(_) | LaneState::Broken => 0,
            LaneState::Resetting { .. } | LaneState::Draining { .. } => return,
        };
        if state < UP {
            return self.show_down(state);
        }
        self.state.store(state, Relaxed);
        self.inflight_bytes.set(lane.inflight_bytes);
        self.bytes_per_s.set(lane.window.bytes_per_s());
        self.round_trip_ns.set(lane.window.round_trip_ns().unwrap_or(0));
    }

    /// The lane ends.
    pub(super) fn publish_end(&self) {
        self.show_down(0);
    }

    fn show_down(&self, state: u8) {
        if self.state.swap(state, Relaxed) >= UP {
            [&self.inflight_bytes, &self.bytes_per_s, &self.round_trip_ns]
                .into_iter()
                .for_each(|one| one.set(0));
            self.use_sockets(Vec::new());
        }
    }
}
