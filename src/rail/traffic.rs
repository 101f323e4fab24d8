//! Figures of a rail: published by its worker, read by any thread.

use crate::fabric::LinkState;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicU8, Ordering::Relaxed};
use std::sync::Arc;

/// A figure written by one worker, so it needs no atomic addition.
#[derive(Default)]
pub struct Figure(AtomicU64);

impl Figure {
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.store(self.0.load(Relaxed) + more, Relaxed);
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[derive(Default)]
struct Carried {
    bytes: Figure,
    slices: Figure,
}

/// On cache lines of its own: readers must not slow the worker's neighbours.
#[derive(Default)]
#[repr(align(128))]
pub struct Traffic {
    written: Carried,
    read: Carried,
    /// Completed posts.
    pub posts: Figure,
    /// Posts that the NIC rejected because its queue was full.
    pub refused: Figure,
    /// Posts that failed.
    pub errors: Figure,
    /// Handshake requests that were repeated.
    pub retries: Figure,
    /// Lanes that served and were reset, and lanes that came up again.
    pub lane_resets: Figure,
    pub lane_reconnects: Figure,
    pub frames_sent: Figure,
    pub frames_received: Figure,
    // The fields below are updated by `publish`.
    pub inflight_bytes: Figure,
    pub inflight_ops: Figure,
    pub bytes_per_s: Figure,
    /// 0: not measured yet.
    pub round_trip_ns: Figure,
    lanes: AtomicU32,
    parked: AtomicU32,
    closed: AtomicBool,
    /// The link of its NIC.
    link: AtomicU8,
    /// What the lanes of other rails have carried over this rail's NIC.
    guests: Guests,
}

/// Written by several workers.
#[derive(Default)]
struct Guests {
    lanes: AtomicU32,
    written: [AtomicU64; 2],
    read: [AtomicU64; 2],
}

/// The rails whose NICs carry a lane of another rail: its writes, and its reads. Each is the
/// lane's own rail if `None`.
#[derive(Default)]
pub struct Elsewhere([Option<Arc<Traffic>>; 2]);

impl Elsewhere {
    pub fn new(written: Option<Arc<Traffic>>, read: Option<Arc<Traffic>>) -> Elsewhere {
        if let Some(traffic) = &written {
            traffic.guests.lanes.fetch_add(1, Relaxed);
        }
        Elsewhere([written, read])
    }

    /// Whether the rail's own NIC does not carry what leaves.
    pub fn leaves(&self) -> bool {
        self.0[0].is_some()
    }

    fn traffic(&self, read: bool) -> Option<&Traffic> {
        self.0[usize::from(read)].as_deref()
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        if let Some(traffic) = &self.0[0] {
            traffic.guests.lanes.fetch_sub(1, Relaxed);
        }
    }
}

/// Current figures of a rail and its lanes.
#[derive(Default)]
pub struct Glance {
    pub bytes: u64,
    pub ops: u64,
    pub bytes_per_s: u64,
    pub round_trip_ns: Option<u64>,
    /// Lanes that are up, and how many of them are stalled.
    pub lanes: u32,
    pub parked: u32,
}

impl Traffic {
    /// Counts completed posts of one direction, of a lane that other NICs may carry.
    #[inline]
    pub fn add(&self, read: bool, posts: u64, slices: u64, bytes: u64, elsewhere: Option<&Elsewhere>) {
        self.posts.add(posts);
        if let Some(host) = elsewhere.and_then(|elsewhere| elsewhere.traffic(read)) {
            return host.add_guest(read, slices, bytes);
        }
        let carried = if read { &self.read } else { &self.written };
        carried.bytes.add(bytes);
        carried.slices.add(slices);
    }

    #[cold]
    fn add_guest(&self, read: bool, slices: u64, bytes: u64) {
        let [of_bytes, of_slices] = if read { &self.guests.read } else { &self.guests.written };
        of_bytes.fetch_add(bytes, Relaxed);
        of_slices.fetch_add(slices, Relaxed);
    }

    /// The bytes and slices that the rail's NIC has carried in one direction.
    pub fn carried(&self, read: bool) -> (u64, u64) {
        let (own, [bytes, slices]) = match read {
            true => (&self.read, &self.guests.read),
            false => (&self.written, &self.guests.written),
        };
        (own.bytes.get() + bytes.load(Relaxed), own.slices.get() + slices.load(Relaxed))
    }

    pub fn publish(&self, glance: &Glance) {
        self.inflight_bytes.set(glance.bytes);
        self.inflight_ops.set(glance.ops);
        self.bytes_per_s.set(glance.bytes_per_s);
        self.round_trip_ns.set(glance.round_trip_ns.unwrap_or(0));
        self.lanes.store(glance.lanes, Relaxed);
        self.parked.store(glance.parked, Relaxed);
    }

    /// Publishes that the rail is closed.
    pub fn close(&self) {
        self.publish(&Glance {
            bytes_per_s: self.bytes_per_s.get(),
            round_trip_ns: Some(self.round_trip_ns.get()),
            ..Glance::default()
        });
        self.closed.store(true, Relaxed);
    }

    /// Whether it is open, and its NIC has a link.
    pub fn is_up(&self) -> bool {
        !self.closed.load(Relaxed) && self.link.load(Relaxed) == LinkState::Up as u8
    }

    pub(super) fn set_link(&self, link: LinkState) {
        self.link.store(link as u8, Relaxed);
    }

    /// The link of its NIC, in a word.
    pub fn link(&self) -> &'static str {
        let state = [LinkState::Down, LinkState::Removed];
        state.into_iter().find(|state| *state as u8 == self.link.load(Relaxed)).unwrap_or_default().name()
    }

    pub fn lanes(&self) -> (u32, u32) {
        (self.lanes.load(Relaxed) + self.guests.lanes.load(Relaxed), self.parked.load(Relaxed))
    }
}
