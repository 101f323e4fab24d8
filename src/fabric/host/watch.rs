//! A NIC's descriptors, behind one descriptor to wait on.

use super::socket::errno;
use crate::descriptor::Descriptor;
use crate::status::{Error, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

/// The owner of a watched descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    Listener,
    /// The listener's pause has ended.
    Timer,
    /// The socket of a route, by index; or of an incoming connection, by number.
    Route(u32),
    Connection(u32),
    /// The process at the other end has ended. A forked child of it may hold its sockets open.
    RouteProcess(u32),
    ConnectionProcess(u32),
}

impl Whose {
    fn word(self) -> u64 {
        match self {
            Whose::Listener => 0,
            Whose::Route(at) => 1 << 32 | at as u64,
            Whose::Connection(at) => 2 << 32 | at as u64,
            Whose::RouteProcess(at) => 3 << 32 | at as u64,
            Whose::ConnectionProcess(at) => 4 << 32 | at as u64,
            Whose::Timer => 5 << 32,
        }
    }

    fn from_word(word: u64) -> Whose {
        let at = word as u32;
        match word >> 32 {
            1 => Whose::Route(at),
            2 => Whose::Connection(at),
            3 => Whose::RouteProcess(at),
            4 => Whose::ConnectionProcess(at),
            5 => Whose::Timer,
            _ => Whose::Listener,
        }
    }
}

pub struct Watch(Descriptor);

impl Watch {
    pub fn new() -> Result<Watch> {
        // SAFETY: the call has no preconditions; it returns a new descriptor or an error.
        let made = Descriptor::opened(|| unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
        made.map(Watch).ok_or_else(|| Error::system("making a descriptor to wait on"))
    }

    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub fn add(&self, fd: BorrowedFd, whose: Whose) -> Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: whose.word() };
        // SAFETY: both descriptors are open, and the event outlives the call.
        let rc =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &mut event) };
        if rc != 0 {
            return Err(Error { provider_errno: errno(), ..Error::system("watching a socket") });
        }
        Ok(())
    }

    /// Call before closing a descriptor: a forked child may keep its file open.
    pub fn remove(&self, fd: BorrowedFd) {
        // SAFETY: removing takes no event, and both descriptors are open.
        unsafe {
            libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), std::ptr::null_mut())
        };
    }

    /// Owners of readable descriptors, at most 32, without waiting.
    pub fn ready(&self) -> impl Iterator<Item = Whose> {
        const MOST: usize = 32;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST];
        // SAFETY: the buffer has space for this many events.
        let count = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), MOST as i32, 0) };
        events.into_iter().take(count.max(0) as usize).map(|event| Whose::from_word(event.u64))
    }
}

/// A descriptor that becomes readable once, after a chosen time.
pub struct Timer(Descriptor);

impl Timer {
    pub fn new() -> Result<Timer> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: the call has no preconditions; it returns a new descriptor or an error.
        let made = Descriptor::opened(|| unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) });
        made.map(Timer).ok_or_else(|| Error::system("making a timer"))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Sets the timer, and discards an earlier setting and an unread expiry.
    pub fn set(&self, after: Duration) {
        let at = libc::timespec { tv_sec: after.as_secs() as _, tv_nsec: after.subsec_nanos() as _ };
        let once = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        // SAFETY: the timer is open, and the time outlives the call.
        unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &once, std::ptr::null_mut()) };
    }

    /// Clears the readable state.
    pub fn clear(&self) {
        self.set(Duration::ZERO);
    }
}

/// A descriptor that becomes readable when a process ends; `None` for our own process, for one that
/// this PID namespace does not see, and where the system lacks such descriptors.
pub fn process(pid: libc::pid_t) -> Option<Descriptor> {
    // SAFETY: the call has no preconditions.
    if pid <= 0 || pid == unsafe { libc::getpid() } {
        return None;
    }
    // SAFETY: makes a descriptor that nobody else has; it is closed at exec.
    Descriptor::opened(|| unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) as RawFd })
}
