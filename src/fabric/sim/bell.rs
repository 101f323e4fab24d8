//! Wakes whoever sleeps on a NIC's descriptor.

use once_cell::sync::OnceCell;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use std::sync::atomic::{fence, AtomicBool};

#[derive(Default)]
pub struct Bell {
    fd: OnceCell<OwnedFd>,
    armed: AtomicBool,
}

impl Bell {
    /// The descriptor; none if the system has none left.
    pub fn descriptor(&self) -> Option<RawFd> {
        let make = || {
            // SAFETY: makes a descriptor that nobody else has.
            let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            // SAFETY: as above.
            (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) }).ok_or(())
        };
        self.fd.get_or_try_init(make).ok().map(AsRawFd::as_raw_fd)
    }

    /// From here on, what is pushed rings; what was pushed before must be looked for.
    pub fn arm(&self) {
        if let Some(fd) = self.fd.get() {
            let mut count = 0u64;
            // SAFETY: reads eight bytes from an eventfd of ours.
            unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) };
        }
        self.armed.store(true, Relaxed);
        // Pairs with the fence in `ring`: either we see the push, or it sees that we are armed.
        fence(SeqCst);
    }

    pub fn disarm(&self) {
        self.armed.store(false, Relaxed);
    }

    /// Something was pushed.
    #[inline]
    pub fn ring(&self) {
        fence(SeqCst);
        if self.armed.load(Relaxed) && self.armed.swap(false, AcqRel) {
            if let Some(fd) = self.fd.get() {
                let one = 1u64;
                // SAFETY: writes eight bytes to an eventfd of ours.
                unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
            }
        }
    }
}
