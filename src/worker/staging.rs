//! The slots of a worker for what is staged (`fabric::staged`), and its peers for whom something is.

use crate::fabric::copying::Copying;
use crate::fabric::staged::{Epoll, Pool};
use crate::ids::PeerId;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// Slots that were not used for this long are freed.
const REST_NS: u64 = 100_000_000;

pub(crate) struct Staging {
    pub pool: Pool,
    pub peers: Vec<PeerId>,
    /// Has the descriptors of disks. `None`: not needed yet.
    epoll: Option<Epoll>,
    looked_ns: u64,
}

impl Staging {
    pub fn new(copying: Arc<Copying>) -> Staging {
        let mut pool = Pool::default();
        pool.use_copying(copying);
        Staging { pool, peers: Vec::new(), epoll: None, looked_ns: 0 }
    }

    #[inline]
    pub fn is_idle(&self) -> bool {
        self.peers.is_empty() && !self.pool.exists()
    }

    /// Frees what nobody waits for; true if requests may go on.
    pub fn go_on(&mut self) -> bool {
        let heard = self.epoll.as_ref().is_some_and(|epoll| epoll.ready::<4>().next().is_some());
        self.pool.go_on(heard)
    }

    /// Watches the disks that are new.
    pub fn watch(&mut self) {
        if self.pool.exists() && self.epoll.is_none() {
            self.epoll = Epoll::new().ok(); // Without one, the disks are polled.
        }
        if let Some(epoll) = &self.epoll {
            self.pool.watch(|disk| epoll.add(disk.as_raw_fd(), libc::EPOLLIN, 0).is_ok());
        }
    }

    /// A descriptor that becomes readable when a disk has said something.
    pub fn wait_fd(&self) -> Option<RawFd> {
        self.epoll.as_ref().filter(|_| self.pool.exists()).map(AsRawFd::as_raw_fd)
    }

    /// Frees slots that are not used.
    pub fn rest(&mut self, now: u64) {
        if now.saturating_sub(self.looked_ns) >= REST_NS {
            self.looked_ns = now;
            let epoll = &self.epoll;
            self.pool.rest(|disk| {
                if let Some(epoll) = epoll {
                    epoll.remove(disk);
                }
            });
        }
    }
}
