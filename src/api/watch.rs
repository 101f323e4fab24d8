//! Words that order transfers with the streams of GPUs.

use super::parked::Shared;
use crate::transfer::watch;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;

/// A word of 8 bytes, 0 at first, that orders transfers with the streams of GPUs without a CPU that waits for either.
///
/// A transfer with [`start_watch`](crate::OpOptions::start_watch) starts once `word - value >= 0`, and moves what was
/// done before: a stream (`cuStreamWriteValue64`), a kernel or the program writes it. An operation with
/// [`done_watch`](crate::OpOptions::done_watch) sets the word when it has ended, also when it failed; a stream that
/// waits for it (`cuStreamWaitValue64`) then sees the bytes.
///
/// ```
/// # let world = libweft::testing::world()?;
/// # let (a, local, remote) = (&world.a, &world.local, &world.remote);
/// use libweft::OpOptions;
/// use std::sync::atomic::Ordering;
///
/// let watch = a.create_watch()?;
/// let op = a.write(local, 0, remote, 0, 4096, &OpOptions::new().start_watch(&watch, 1))?;
/// local.write_at(0, b"ready")?; // It has not started.
/// watch.word().store(1, Ordering::Release); // Now it does.
/// world.wait_a(op)?.done().unwrap().result()?;
/// # Ok::<(), libweft::Error>(())
/// ```
#[derive(Clone)]
pub struct Watch {
    pub(super) shared: Arc<Shared>,
    pub(super) watch: Arc<watch::Watch>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watch({:?})", self.word())
    }
}

impl Watch {
    /// The word, for the CPU; if CUDA is loaded, all GPUs reach it at the same address.
    pub fn word(&self) -> &AtomicU64 {
        // SAFETY: the word is aligned, and is freed with the last clone and the last operation that names it.
        unsafe { AtomicU64::from_ptr(self.watch.address() as *mut u64) }
    }
}
