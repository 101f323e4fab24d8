//! Synchronization primitives of the structures that `loom/` models, where loom's versions replace
//! these.

pub use crate::event::Event;
pub use crossbeam_utils::Backoff;
pub use parking_lot::{Condvar, Mutex, MutexGuard as Guard};
pub use std::sync::atomic;

use atomic::{AtomicUsize, Ordering};
use std::cell::Cell;

/// The number of parts of a sharded counter, so that threads seldom share a cache line.
pub const PARTS: usize = if cfg!(miri) { 2 } else { 16 };

/// The part in which this thread counts.
#[inline]
pub fn part() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static PART: Cell<Option<usize>> = const { Cell::new(None) };
    }
    let chosen = PART.try_with(|part| {
        let chosen = part.get().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed) % PARTS);
        part.set(Some(chosen));
        chosen
    });
    chosen.unwrap_or(0)
}

/// Like the standard library's; loom's version checks accesses.
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub const fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline(always)]
    pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
