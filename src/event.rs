//! An eventfd that one thread sets and another waits for, alone or with other descriptors.

use crate::descriptor::Descriptor;
use crate::status::{Error, Result};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

pub struct Event(Descriptor);

impl Event {
    pub fn new() -> Result<Event> {
        make().map(Event).ok_or_else(|| Error::system("making an event fd"))
    }

    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub fn set(&self) {
        let one = 1u64;
        // SAFETY: reads eight bytes from `one`. (If the counter is full, the event is set already.)
        unsafe { libc::write(self.descriptor(), (&raw const one).cast(), 8) };
    }

    pub fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: writes eight bytes to `count`. (An eventfd that is not set returns EAGAIN.)
        unsafe { libc::read(self.descriptor(), (&raw mut count).cast(), 8) };
    }

    /// Waits until the event is set, one of `fds` is readable, or the time has passed. Adds the
    /// event to `fds`, and clears it.
    pub fn wait(&self, fds: &mut Vec<libc::pollfd>, at_most: Duration) {
        fds.push(libc::pollfd { fd: self.descriptor(), events: libc::POLLIN, revents: 0 });
        let time = libc::timespec {
            tv_sec: at_most.as_secs() as libc::time_t,
            tv_nsec: at_most.subsec_nanos() as libc::c_long,
        };
        // SAFETY: `fds` and `time` are valid for the call; no signal mask is passed.
        unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &time, std::ptr::null()) };
        if fds.last().is_some_and(|event| event.revents != 0) {
            self.clear();
        }
    }
}

fn make() -> Option<Descriptor> {
    // SAFETY: the call takes no pointers.
    Descriptor::opened(|| unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Whether this process or the system has run out of file descriptors.
pub fn is_out_of_descriptors() -> bool {
    make().is_none()
}
