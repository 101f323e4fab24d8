//! A registration of a memory, as its NIC has it now.

use crate::fabric::{Registration, Way};
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

pub struct Kept {
    handle: *mut c_void,
    /// These two change where a removed device comes back: before that, no lane over it is up, and nobody posts by them.
    descriptor: AtomicPtr<c_void>,
    key: AtomicU64,
    way: Option<Way>,
}

// SAFETY: as of `Registration`: the pointers are plain tokens.
unsafe impl Send for Kept {}
// SAFETY: the handle does not change, and all else is atomic.
unsafe impl Sync for Kept {}

impl Kept {
    pub fn new(from: &Registration) -> Kept {
        let &Registration { handle, descriptor, key, way } = from;
        Kept { handle, descriptor: AtomicPtr::new(descriptor), key: AtomicU64::new(key), way }
    }

    pub fn get(&self) -> Registration {
        let (descriptor, key) = (self.descriptor(), self.key());
        Registration { handle: self.handle, descriptor, key, way: self.way }
    }

    pub fn set(&self, now: Registration) {
        self.descriptor.store(now.descriptor, Ordering::Relaxed);
        self.key.store(now.key, Ordering::Relaxed);
    }

    #[inline]
    pub fn descriptor(&self) -> *mut c_void {
        self.descriptor.load(Ordering::Relaxed)
    }

    pub fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }
}
