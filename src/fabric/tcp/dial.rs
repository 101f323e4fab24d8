//! Connections that a NIC makes.

use super::carriers::TURN_NS;
use super::connection::{Connection, State};
use super::nic::{TcpNic, HEEDED};
use super::routes::Target;
use super::sealed::Sealed;
use super::socket;
use crate::status::Result;
use crate::wire::tcp::Handshake;
use std::os::fd::AsFd;

impl TcpNic {
    pub(super) fn dial(&mut self, target: &Target) -> Result<u32> {
        let handshake = Handshake { target: target.name, initiator: self.name };
        let now = self.clock.now();
        let secrets = self.options.secrets.as_ref();
        let sealed = secrets.map(|secrets| Sealed::initiator(&secrets.now(now))).transpose()?;
        let from = self.own_for(target.to);
        let (device, carriers) = self.paths.dial((from, target.to), &self.options, now);
        let socket = socket::connect(from, target.to, device, &self.options)?;
        let mut connection = Connection::dialed(socket, sealed, handshake, target.peer, now);
        (connection.far, connection.carriers) = (Some(target.to), carriers);
        self.add(connection)
    }

    /// Dials by other devices where one does not answer.
    pub(super) fn turn(&mut self, now: u64) {
        for at in 0..self.connections.len() as u32 {
            let waits = |one: &&mut Connection| {
                one.state == State::Dialing && now.saturating_sub(one.tried_ns) > TURN_NS
            };
            let Some(one) = self.connection(at).filter(waits) else { continue };
            let (Some(to), carriers) = (one.far, one.carriers) else { continue };
            one.tried_ns = now;
            let (from, turns) = (self.own_for(to), self.paths.takes_turns(to.ip()));
            if !turns || !self.paths.advance(from, to.ip(), carriers, now) {
                continue;
            }
            let (device, carriers) = self.paths.dial((from, to), &self.options, now);
            let Ok(socket) = socket::connect(from, to, device, &self.options) else { continue };
            if socket::watch(&self.epoll, socket.as_fd(), HEEDED, at.into()).is_err() {
                continue;
            }
            let Some(one) = self.connections[at as usize].as_deref_mut() else { continue };
            if let Some(unanswered) = one.socket() {
                socket::unwatch(&self.epoll, unanswered);
            }
            one.try_again(socket, carriers, now);
        }
    }
}
