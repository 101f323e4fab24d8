//! A forked child shares the parent's memory but none of its threads, so its calls are rejected
//! before they touch a lock. It keeps none of the parent's descriptors (`descriptor`).

use crate::descriptor;
use crate::status::{Error, Result, Status};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Once;
use std::time::Duration;

static CHILD: AtomicBool = AtomicBool::new(false);

/// The thread that holds the lock on descriptors for a fork. Another thread may fork at the same
/// time without the lock.
static FORKING: AtomicUsize = AtomicUsize::new(0);
/// How long a fork waits for that lock: a signal handler that forks may have interrupted the holder.
const WAIT: Duration = Duration::from_millis(10);

pub fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}

fn this_thread() -> usize {
    // SAFETY: takes no arguments.
    unsafe { libc::pthread_self() as usize }
}

extern "C" fn before() {
    if is_child() {
        return;
    }
    if let Some(held) = descriptor::hold(WAIT) {
        std::mem::forget(held);
        FORKING.store(this_thread(), Ordering::Relaxed);
    }
}

extern "C" fn in_parent() {
    if FORKING.compare_exchange(this_thread(), 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        // SAFETY: `before` has forgotten this thread's guard.
        unsafe { descriptor::release() };
    }
}

/// Releases no lock: the child never locks again.
extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
    descriptor::close_all();
}

/// Installs the fork handlers, so that children reject calls.
pub fn watch() {
    static ONCE: Once = Once::new();
    if cfg!(miri) {
        return; // It has no forks.
    }
    // SAFETY: the handlers use only statics, and the library is never unloaded (-z nodelete).
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}

pub fn check() -> Result<()> {
    if is_child() {
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
        assert!(
            descriptor::hold(Duration::ZERO).is_none() && FORKING.load(Ordering::Relaxed) == this_thread()
        );
        in_parent();
        assert_eq!(FORKING.load(Ordering::Relaxed), 0);
    }
}
