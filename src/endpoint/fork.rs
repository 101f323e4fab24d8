//! A forked child shares the parent's memory but none of its threads: it is
//! turned away before it touches a lock.

use crate::status::{Error, Result, Status};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Once;

static CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
}

/// From now on, children of this process know that they are.
pub fn watch() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler only stores to a static, and the library is never unloaded (-z nodelete).
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

pub fn check() -> Result<()> {
    if CHILD.load(Ordering::Relaxed) {
        return Err(Error::new(
            Status::Forked,
            "this process was forked from one that uses Weft: only the parent can use it; exec a program, or fork before the first weft_endpoint_open",
        ));
    }
    Ok(())
}
