//! What a rail has carried: counted by its worker, read by anybody.

use std::sync::atomic::{AtomicU64, Ordering};

/// On a cache line of its own: readers must not slow the worker's neighbours.
#[derive(Default)]
#[repr(align(128))]
pub struct Traffic {
    bytes: AtomicU64,
    posts: AtomicU64,
}

impl Traffic {
    /// By the rail's worker alone: nobody else writes, so no atomic addition is needed.
    #[inline]
    pub fn add(&self, posts: u64, bytes: u64) {
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
        self.posts.store(self.posts.load(Ordering::Relaxed) + posts, Ordering::Relaxed);
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn posts(&self) -> u64 {
        self.posts.load(Ordering::Relaxed)
    }
}
