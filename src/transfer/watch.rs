//! Words shared with devices: a transfer starts when a stream has set its word to a value; a stream
//! continues when a transfer's end has set it.

use crate::device::{present, Driver};
use crate::status::Result;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Bytes of a watch, so that two watches share no cache line.
const LEN: u64 = 128;

/// A word in host memory that devices can access too.
pub struct Watch {
    base: u64,
    /// The driver that allocated the memory; `None`: the global allocator.
    driver: Option<&'static dyn Driver>,
}

impl Watch {
    pub fn new() -> Result<Watch> {
        let driver = present();
        let base = match driver {
            Some(driver) => driver.words(LEN)?,
            None => Box::into_raw(Box::new([0u64; LEN as usize / 8])) as u64,
        };
        Ok(Watch { base, driver })
    }

    pub fn address(&self) -> u64 {
        self.base
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the word is aligned, valid as long as the watch, and written only by atomics or
        // devices.
        unsafe { AtomicU64::from_ptr(self.base as *mut u64) }
    }

    /// Whether the word has reached a value, modulo 2^64 like CUDA's waits.
    #[inline]
    pub fn has_reached(&self, value: u64) -> bool {
        self.word().load(Ordering::Acquire).wrapping_sub(value) as i64 >= 0
    }

    /// A thread that sees the value also sees the writes before it.
    pub fn set(&self, value: u64) {
        self.word().store(value, Ordering::Release);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        match self.driver {
            Some(driver) => driver.free_words(self.base),
            // SAFETY: `new` made it by `Box::into_raw` with this type.
            None => drop(unsafe { Box::from_raw(self.base as *mut [u64; LEN as usize / 8]) }),
        }
    }
}

pub type Mark = (Arc<Watch>, u64);

/// The marks of a transfer: `start`, which it waits for, and `done`, which it sets when it ends.
#[derive(Clone, Default)]
pub struct Marks {
    pub start: Option<Mark>,
    pub done: Option<Mark>,
}

impl Marks {
    pub fn are_none(&self) -> bool {
        self.start.is_none() && self.done.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_compares_values_modulo_2_to_64() {
        let watch = Watch::new().unwrap();
        assert!(watch.has_reached(0) && !watch.has_reached(1));
        watch.set(5);
        assert!(watch.has_reached(5) && watch.has_reached(u64::MAX) && !watch.has_reached(6));
        watch.set(u64::MAX);
        assert!(watch.has_reached(u64::MAX) && !watch.has_reached(3));
    }
}
