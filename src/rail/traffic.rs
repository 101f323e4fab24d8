//! Figures of a rail: published by its worker, read by any thread.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// A figure written by one worker, so it needs no atomic addition.
#[derive(Default)]
pub struct Figure(AtomicU64);

impl Figure {
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.store(self.0.load(Relaxed) + more, Relaxed);
    }

    fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[derive(Default)]
pub struct Carried {
    pub bytes: Figure,
    pub slices: Figure,
}

/// On cache lines of its own: readers must not slow the worker's neighbours.
#[derive(Default)]
#[repr(align(128))]
pub struct Traffic {
    pub written: Carried,
    pub read: Carried,
    /// Completed posts.
    pub posts: Figure,
    /// Posts that the NIC rejected because its queue was full.
    pub refused: Figure,
    /// Posts that failed.
    pub errors: Figure,
    /// Handshake requests that were repeated.
    pub retries: Figure,
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
    /// Counts completed posts of one direction.
    #[inline]
    pub fn add(&self, read: bool, posts: u64, slices: u64, bytes: u64) {
        let carried = if read { &self.read } else { &self.written };
        carried.bytes.add(bytes);
        carried.slices.add(slices);
        self.posts.add(posts);
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

    pub fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    pub fn lanes(&self) -> (u32, u32) {
        (self.lanes.load(Relaxed), self.parked.load(Relaxed))
    }
}
