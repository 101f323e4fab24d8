//! The second connection to a NIC, for what disks write and read. Requests of a connection are settled in order, so a slow
//! disk would hold up memory and messages. It is made on first use, lies beside the connection of a route, and both end
//! together. Whose it is shows a random name, announced over the first one.
//!
//! Where a peer's disks are used, it knows of this. What cannot be dialled in this direction goes over the first
//! connection.

use super::connection::{Beside, Connection, State};
use super::nic::TcpNic;
use super::routes::NOBODY;
use crate::fabric::Route;
use crate::wire::tcp::Handshake;

/// It is to be up after this time.
pub const UP_NS: u64 = 2_000_000_000;

impl TcpNic {
    /// The connection for requests of a route to disks; `Ok(None)`: it is not up yet. `knows`: the peer knows of it.
    pub(super) fn for_disks(&mut self, route: Route, knows: bool) -> Result<Option<u32>, i32> {
        let Some(place) = self.routes.find(route) else { return Err(libc::ENOTCONN) };
        let (main, target) = (place.leads?, place.target);
        let Some(one) = self.connection(main) else { return Err(libc::ENOTCONN) };
        let number = one.number;
        match one.beside {
            Beside::Itself => return Ok(Some(main)),
            Beside::At(at) => {
                let other = self.connection(at).filter(|other| other.lies_beside == number);
                return Ok(other.filter(|other| other.state == State::Up).map(|_| at));
            }
            Beside::Unused if !knows || target.name == NOBODY => return Ok(Some(main)),
            Beside::Unused => {}
        }
        let Some(announced) = self.random.u128().ok().map(u128::to_le_bytes) else { return Ok(Some(main)) };
        let may = self.connection(main).is_some_and(|one| one.announce(announced));
        if !may {
            return Ok(None);
        }
        let handshake = Handshake { target: target.name, initiator: announced, beside: true };
        let dialed = self.dial_as(&target, handshake);
        let at = dialed.inspect_err(|error| log::debug!("no connection for disks: {error}")).ok();
        if let Some(other) = at.and_then(|at| self.connection(at)) {
            other.lies_beside = number;
        }
        if let Some(one) = self.connection(main) {
            one.beside = at.map_or(Beside::Itself, Beside::At);
        }
        self.list(main);
        Ok(at.is_none().then_some(main))
    }

    /// A handshake for a connection beside another: accepts it once that one has announced it.
    #[cold]
    pub(super) fn meet_beside(&mut self, at: u32, handshake: Handshake) {
        let is_it = |one: &Connection| one.announced == Some(handshake.initiator) && one.serves();
        let found = self.connections.iter_mut().flatten().find(|one| is_it(one));
        let Some((peer, number, name)) = found.and_then(|one| {
            one.announced = None;
            Some((one.owner()?, one.number, one.name))
        }) else {
            self.besides_wait = true;
            return;
        };
        // The peer would not dial if it still had an earlier one, which ends alone.
        let is_earlier = |one: &Connection| !one.dialed && one.lies_beside == number;
        let earlier = self.connections.iter().position(|one| one.as_deref().is_some_and(is_earlier));
        if let Some(earlier) = earlier.map(|at| at as u32) {
            if let Some(one) = self.connection(earlier) {
                one.lies_beside = 0;
            }
            self.end(earlier, libc::ECONNRESET);
        }
        if let Some(one) = self.connection(at) {
            one.accept();
            (one.name, one.lies_beside) = (name, number);
            one.authenticate(peer);
        }
        self.list(at);
    }

    /// There was an announcement: looks again at handshakes that wait for theirs.
    #[cold]
    pub(super) fn meet_besides(&mut self) {
        self.besides_wait = false;
        for at in 0..self.connections.len() as u32 {
            if self.connection(at).is_some_and(|one| one.handshake.is_some()) {
                self.meet(at);
            }
        }
    }

    /// A connection has ended, and with it the one that it lies beside, or that lies beside it.
    pub(super) fn end_beside(&mut self, ended: &Connection, was_up: bool, errno: i32) {
        let (number, main) = (ended.number, ended.lies_beside);
        if main == 0 || was_up {
            return self
                .end_those(errno, |_, one| one.lies_beside == number || main != 0 && one.number == main);
        }
        let main = self.numbered(main).and_then(|at| self.connection(at));
        if let Some(one) = main.filter(|_| ended.dialed) {
            log::debug!("no connection for disks (error {errno}): they go over the first one");
            one.beside = Beside::Itself;
        }
    }
}
