//! A forked child shares the parent's memory but none of its threads, so its calls are rejected
//! before they touch a lock. It must not keep the parent's sockets either, or peers would not
//! notice the parent's death while the child lives; close-on-exec covers only children that exec.

use crate::status::{Error, Result, Status};
use parking_lot::Mutex;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Once;
use std::time::Duration;

static CHILD: AtomicBool = AtomicBool::new(false);

/// Descriptors that a child closes, one bit each. Descriptors beyond this, which are rare, stay
/// open in the child.
const WORDS: usize = (1 << 20) / 64;
static OURS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// The number of words in use, from the first on.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Held while forking, so that every open descriptor has its bit set.
static CHANGES: Mutex<()> = Mutex::new(());
/// The thread that holds `CHANGES` for a fork. Another thread may fork at the same time without the
/// lock.
static FORKING: AtomicUsize = AtomicUsize::new(0);
/// How long a fork waits for `CHANGES`: a signal handler that forks may have interrupted the
/// holder.
const WAIT: Duration = Duration::from_millis(10);

/// A descriptor that forked children close.
pub struct Descriptor(RawFd);

impl Descriptor {
    /// Wraps the descriptor that `make` returns, which nothing else may own; `None` if it is
    /// negative.
    pub fn of(make: impl FnOnce() -> RawFd) -> Option<Descriptor> {
        let _changes = CHANGES.lock();
        let fd = make();
        if let Some((word, bit)) = place(fd) {
            word.fetch_or(bit, Ordering::Relaxed);
            USED.fetch_max(fd as usize / 64 + 1, Ordering::Relaxed);
        }
        (fd >= 0).then(|| Descriptor(fd))
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open until `self` is dropped.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if CHILD.load(Ordering::Relaxed) {
            return; // The fork closed it, and its number may be reused.
        }
        let _changes = CHANGES.lock();
        if let Some((word, bit)) = place(self.0) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
        // SAFETY: nothing else owns the descriptor.
        unsafe { libc::close(self.0) };
    }
}

fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OURS.get(fd / 64)?, 1 << (fd % 64)))
}

fn this_thread() -> usize {
    // SAFETY: takes no arguments.
    unsafe { libc::pthread_self() as usize }
}

extern "C" fn before() {
    if CHILD.load(Ordering::Relaxed) {
        return;
    }
    if let Some(changes) = CHANGES.try_lock_for(WAIT) {
        std::mem::forget(changes);
        FORKING.store(this_thread(), Ordering::Relaxed);
    }
}

extern "C" fn in_parent() {
    if FORKING.compare_exchange(this_thread(), 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        // SAFETY: `before` has forgotten this thread's guard.
        unsafe { CHANGES.force_unlock() };
    }
}

/// Releases no lock: the child never locks again.
extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
    for (at, word) in OURS.iter().enumerate().take(USED.load(Ordering::Relaxed)) {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            // SAFETY: the child's copy of a descriptor of the library, which nothing in the child
            // uses.
            unsafe { libc::close((at * 64) as RawFd + bits.trailing_zeros() as RawFd) };
            bits &= bits - 1;
        }
    }
}

/// Installs the fork handlers, so that children reject calls.
pub fn watch() {
    static ONCE: Once = Once::new();
    // SAFETY: the handlers use only statics, and the library is never unloaded (-z nodelete).
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}

pub fn check() -> Result<()> {
    if CHILD.load(Ordering::Relaxed) {
        return Err(Error::new(
            Status::Forked,
            "this process was forked from one that uses Weft: only the parent can use it; exec a program, or fork before the first weft_endpoint_create",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_fork_does_not_release_the_lock_of_another() {
        // Other tests may hold the lock briefly.
        while FORKING.load(Ordering::Relaxed) != this_thread() {
            before();
        }
        let other = std::thread::spawn(|| {
            before();
            in_parent();
        });
        other.join().expect("no panic");
        assert!(CHANGES.try_lock().is_none() && FORKING.load(Ordering::Relaxed) == this_thread());
        in_parent();
        assert_eq!(FORKING.load(Ordering::Relaxed), 0);
    }
}
