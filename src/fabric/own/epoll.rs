//! Descriptors of a NIC, behind one descriptor to wait on.

use crate::descriptor::Descriptor;
use crate::failing::step;
use crate::status::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

pub struct Epoll(Descriptor);

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Epoll {
    pub fn new() -> Result<Epoll> {
        // SAFETY: the call has no preconditions; it returns a new descriptor or an error.
        let made = Descriptor::opened(|| unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
        made.map(Epoll).ok_or_else(|| Error::system("making a descriptor to wait on"))
    }

    fn control(&self, what: i32, fd: RawFd, events: i32, word: u64) -> bool {
        let mut event = libc::epoll_event { events: events as u32, u64: word };
        // SAFETY: the event outlives the call, which takes any number for a descriptor.
        unsafe { libc::epoll_ctl(self.0.as_raw_fd(), what, fd, &mut event) == 0 }
    }

    /// Reports these events of a descriptor, with this word.
    pub fn add(&self, fd: RawFd, events: i32, word: u64) -> Result<()> {
        let added = self.control(libc::EPOLL_CTL_ADD, fd, events, word) && !step("watching a socket");
        added.then_some(()).ok_or_else(|| {
            let provider_errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            Error { provider_errno, ..Error::system("watching a socket") }
        })
    }

    pub fn change(&self, fd: BorrowedFd, events: i32, word: u64) {
        self.control(libc::EPOLL_CTL_MOD, fd.as_raw_fd(), events, word);
    }

    /// Call before closing a descriptor: a forked child may keep its file open.
    pub fn remove(&self, fd: BorrowedFd) {
        self.control(libc::EPOLL_CTL_DEL, fd.as_raw_fd(), 0, 0);
    }

    /// What has happened, without waiting: events, with their words.
    pub fn ready<const MOST: usize>(&self) -> impl Iterator<Item = (u32, u64)> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST];
        // SAFETY: the buffer has space for this many events.
        let count = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), MOST as i32, 0) };
        events.into_iter().take(count.max(0) as usize).map(|event| (event.events, event.u64))
    }
}
