//! A descriptor that one thread sets and another waits for, alone or beside others.

use crate::status::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

pub struct Event(OwnedFd);

impl Event {
    pub fn new() -> Result<Event> {
        // SAFETY: makes a descriptor that nobody else has.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Error::system("making an event fd"));
        }
        // SAFETY: as above.
        Ok(Event(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub fn set(&self) {
        let one = 1u64;
        // SAFETY: writes eight bytes to an eventfd of ours; a full counter is readable already.
        unsafe { libc::write(self.descriptor(), (&raw const one).cast(), 8) };
    }

    pub fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: reads eight bytes; an eventfd that is not set gives EAGAIN.
        unsafe { libc::read(self.descriptor(), (&raw mut count).cast(), 8) };
    }

    /// Until it is set, or one of `fds` is readable, to which it is added; or the time has
    /// passed. It is clear then.
    pub fn wait(&self, fds: &mut Vec<libc::pollfd>, at_most: Duration) {
        fds.push(libc::pollfd { fd: self.descriptor(), events: libc::POLLIN, revents: 0 });
        let time = libc::timespec {
            tv_sec: at_most.as_secs() as libc::time_t,
            tv_nsec: at_most.subsec_nanos() as libc::c_long,
        };
        // SAFETY: pollfds, a valid time, no signal mask.
        unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &time, std::ptr::null()) };
        if fds.last().is_some_and(|event| event.revents != 0) {
            self.clear();
        }
    }
}

/// Whether this process, or the system, has no descriptor left for one more file.
pub fn is_out_of_descriptors() -> bool {
    // SAFETY: makes a descriptor that nobody else has, and closes it.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_CLOEXEC);
        fd < 0 || libc::close(fd) != 0
    }
}
