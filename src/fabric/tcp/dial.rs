//! Connections that a NIC makes.

use super::carriers::TURN_NS;
use super::connection::{Connection, State};
use super::nic::{TcpNic, HEEDED};
use super::paths::Carriers;
use super::routes::Target;
use super::sealed::Sealed;
use super::socket;
use crate::descriptor::Descriptor;
use crate::ids::PeerId;
use crate::status::Result;
use crate::wire::tcp::{Handshake, Name};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

/// A NIC that has not answered for this long is dialed at its other address; this doubles each time.
const ANSWER_NS: u64 = 300_000_000;
const TURNED_MOST: u32 = 8;
/// Where one address refuses, the other one has this long: the system repeats a packet that is lost after 1 s.
const REFUSED_NS: u64 = 2_500_000_000;

impl TcpNic {
    pub(super) fn dial(&mut self, target: &Target) -> Result<u32> {
        self.dial_as(target, Handshake { target: target.name, initiator: self.name, beside: false })
    }

    pub(super) fn dial_as(&mut self, target: &Target, handshake: Handshake) -> Result<u32> {
        let now = self.clock.now();
        let secrets = self.options.secrets.as_ref();
        let sealed = secrets.map(|secrets| Sealed::initiator(&secrets.now(now))).transpose()?;
        let (to, elsewhere, (socket, carriers)) = match (self.connect(target.to), target.other) {
            (Ok(begun), other) => (target.to, other, begun),
            (Err(_), Some(other)) => (other, None, self.connect(other)?),
            (Err(error), None) => return Err(error),
        };
        let mut connection = Connection::dialed(socket, sealed, handshake, target.peer, now);
        (connection.far, connection.elsewhere, connection.carriers) = (Some(to), elsewhere, carriers);
        self.add(connection)
    }

    fn connect(&mut self, to: SocketAddr) -> Result<(Descriptor, Carriers)> {
        let from = self.own_for(to);
        let (device, carriers) = self.paths.dial(from, to, &self.options);
        Ok((socket::connect(from, to, device, &self.options)?, carriers))
    }

    /// Dials by other devices, or another address, where one does not answer.
    pub(super) fn turn(&mut self, now: u64) {
        for at in 0..self.connections.len() as u32 {
            let dials = |one: &&mut Connection| one.state == State::Dialing;
            let Some(one) = self.connection(at).filter(dials) else { continue };
            let (Some(to), carriers) = (one.far, one.carriers) else { continue };
            let patience = if one.refused { REFUSED_NS } else { ANSWER_NS << one.turned.min(TURNED_MOST) };
            if one.elsewhere.is_some() && now.saturating_sub(one.since_ns) > patience {
                match one.refused {
                    true => self.end(at, libc::ECONNREFUSED),
                    false => _ = self.dial_elsewhere(at, now),
                }
            } else if now.saturating_sub(one.tried_ns) > TURN_NS {
                one.tried_ns = now;
                let from = self.own_for(to);
                if self.paths.takes_turns(from, to, &self.options)
                    && self.paths.advance(from, to.ip(), carriers, now)
                {
                    self.dial_again(at, to, now);
                }
            }
        }
    }

    /// Dials the other address of a NIC, if it has one.
    fn dial_elsewhere(&mut self, at: u32, now: u64) -> bool {
        let Some(one) = self.connection(at) else { return false };
        let (Some(to), Some(other)) = (one.far, one.elsewhere) else { return false };
        one.turned += 1;
        let dialed = self.dial_again(at, other, now);
        if let Some(one) = self.connection(at).filter(|_| dialed) {
            one.elsewhere = Some(to);
        }
        dialed
    }

    fn dial_again(&mut self, at: u32, to: SocketAddr, now: u64) -> bool {
        let Ok((socket, carriers)) = self.connect(to) else { return false };
        if self.epoll.add(socket.as_raw_fd(), HEEDED, at.into()).is_err() {
            return false;
        }
        let Some(one) = self.connections[at as usize].as_deref_mut() else { return false };
        if let Some(unanswered) = one.socket() {
            self.epoll.remove(unanswered);
        }
        one.far = Some(to);
        one.try_again(socket, carriers, now);
        true
    }

    /// A connection has failed. One that was not made yet is dialed once at the NIC's other address.
    pub(super) fn fail(&mut self, at: u32, errno: i32) {
        let now = self.clock.now();
        let first = |one: &&mut Connection| one.state == State::Dialing && one.turned == 0;
        if let Some(one) = self.connection(at).filter(first) {
            one.refused = errno == libc::ECONNREFUSED;
            if self.dial_elsewhere(at, now) {
                return;
            }
        }
        self.end(at, errno)
    }

    /// A peer has authenticated over an accepted connection: routes to its NIC that get no answer lead over
    /// this one now. (A side whose address has changed dials the other side, which only knows the old one.)
    pub(super) fn take_over(&mut self, at: u32, source: (Name, PeerId)) {
        let dials = |at: &u32| {
            let one = self.connections.get(*at as usize).and_then(Option::as_deref);
            one.is_some_and(|one| one.state == State::Dialing)
        };
        let mut given_up = Vec::new();
        for place in self.routes.to((source.0, Some(source.1))) {
            if let Some(old) = place.leads.ok().filter(dials) {
                place.leads = Ok(at);
                given_up.push(old);
            }
        }
        for old in given_up {
            self.end(old, libc::ECANCELED);
        }
    }
}
