//! What a NIC waits for beside its connections: others that connect, and news of the network.

use crate::descriptor::Descriptor;
use crate::fabric::own::epoll::Epoll;
use crate::topology::network::Watch;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// The event data of the listeners; that of a connection is its index.
pub const LISTENER: u64 = u64::MAX;
/// The event data of the watch.
pub const NEWS: u64 = u64::MAX - 1;
/// The event data of what disks say.
pub const DISKS: u64 = u64::MAX - 2;

/// A socket that listens, and the address where.
pub struct Listener {
    pub ip: IpAddr,
    pub socket: Descriptor,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The watch for changes, among a NIC's events.
pub fn watch(epoll: &Epoll) -> Option<Watch> {
    let watch = Watch::open().inspect_err(|error| log::debug!("{error}")).ok()?;
    epoll.add(watch.as_fd().as_raw_fd(), libc::EPOLLIN | libc::EPOLLET, NEWS).ok()?;
    Some(watch)
}
