//! A NIC's descriptors, behind one descriptor to wait on.

use crate::descriptor::Descriptor;
use crate::fabric::own::epoll::Epoll;
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
    /// A disk, which has said something.
    Disk,
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
            Whose::Disk => 6 << 32,
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
            6 => Whose::Disk,
            _ => Whose::Listener,
        }
    }
}

pub struct Watch(Epoll);

impl Watch {
    pub fn new() -> Result<Watch> {
        Epoll::new().map(Watch)
    }

    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub fn add(&self, fd: BorrowedFd, whose: Whose) -> Result<()> {
        self.0.add(fd.as_raw_fd(), libc::EPOLLIN, whose.word())
    }

    pub fn remove(&self, fd: BorrowedFd) {
        self.0.remove(fd);
    }

    /// Owners of readable descriptors, at most 32, without waiting.
    pub fn ready(&self) -> impl Iterator<Item = Whose> {
        self.0.ready::<32>().map(|(_, word)| Whose::from_word(word))
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
