//! What a NIC does with connections whose memory devices copy: it goes on with them as copies end, and ends them.

use super::connection::{Connection, State};
use super::listener::DISKS;
use super::nic::TcpNic;
use crate::fabric::own::pool::Pool;
use crate::fabric::FAULT;
use crate::status::Result;
use std::os::fd::AsRawFd;

/// The slots of a NIC, and what waits for copies.
#[derive(Default)]
pub struct Devices {
    pub pool: Pool,
    /// A disk has said something.
    pub heard: bool,
    /// Ended connections for whose operations devices still copy.
    dying: Vec<Connection>,
}

impl Devices {
    pub fn dying(&mut self) -> (impl Iterator<Item = &mut Connection>, &mut Pool) {
        (self.dying.iter_mut(), &mut self.pool)
    }
}

impl TcpNic {
    /// Devices have copied, or slots are free: what waits for them goes on.
    #[cold]
    pub(super) fn look_at_slots(&mut self) {
        let heard = std::mem::take(&mut self.devices.heard);
        if self.devices.pool.go_on(heard) {
            self.list_staging();
            let (devices, finished) = (&mut self.devices, &mut self.finished);
            devices.dying.retain_mut(|one| !one.end_copied(&mut devices.pool, finished));
        }
    }

    /// Has the connections that move memory of devices look at their slots.
    pub(super) fn list_staging(&mut self) {
        for at in 0..self.connections.len() as u32 {
            if self.connection(at).is_some_and(Connection::look_at_slots) {
                self.list(at);
            }
        }
    }

    /// Watches the disks that are new.
    pub(super) fn watch_disks(&mut self) {
        let epoll = &self.epoll;
        self.devices.pool.watch(|disk| epoll.add(disk.as_raw_fd(), libc::EPOLLIN, DISKS).is_ok());
    }

    /// Peers reach nothing by a registration's key any longer; `Status::Again` while a device copies for one.
    pub(super) fn close_registration(&mut self, key: u64) -> Result<()> {
        let connections = self.connections.iter_mut().flatten();
        connections.for_each(|connection| connection.forget(key, &mut self.sink));
        self.registry.close(key)
    }

    /// Ends a connection and its routes. `FAULT`: pages could not be read in the middle of a frame. It ends
    /// what needs them; the rest is repeated over the next connection, which begins no frame for them.
    pub(super) fn end(&mut self, at: u32, mut errno: i32) {
        let Some(mut connection) = self.connections.get_mut(at as usize).and_then(Option::take) else {
            return;
        };
        if errno == FAULT {
            self.registry.doubt();
            connection.end_unreadable(&mut self.finished);
            errno = libc::ECONNABORTED;
        }
        // Callers' threads may still have the socket, and the next connection gets its event data.
        if let Some(socket) = connection.socket() {
            self.epoll.remove(socket);
        }
        let own = connection.far.map_or(self.at, |far| self.own_for(far));
        self.paths.ended(own, &connection, self.clock.now());
        let was_up = connection.state == State::Up;
        connection.die(errno, &mut self.devices.pool, &mut self.finished);
        self.routes.end(at, errno);
        self.end_beside(&connection, was_up, errno);
        if !connection.end_copied(&mut self.devices.pool, &mut self.finished) {
            self.devices.dying.push(*connection);
        }
    }

    pub(super) fn end_those(&mut self, errno: i32, goes: impl Fn(u32, &Connection) -> bool) {
        for at in 0..self.connections.len() as u32 {
            if self.connections[at as usize].as_deref().is_some_and(|one| goes(at, one)) {
                self.end(at, errno);
            }
        }
    }
}
