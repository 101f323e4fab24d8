//! What a NIC does with its connections from time to time, and when peers come and end.

use super::accept::UNAUTHENTICATED_NS;
use super::beside::UP_NS;
use super::connection::{Connection, State};
use super::nic::TcpNic;
use crate::fabric::Connection as Number;
use crate::ids::PeerId;
use crate::wire::address::RAILS_MAX;

/// The most accepted connections of one peer, beside those for disks: each of its NICs needs one.
const OF_PEER: usize = RAILS_MAX;
/// A connection that no route uses is closed after this time.
const UNUSED_NS: u64 = 30_000_000_000;
/// The interval between checks for unused connections.
const LOOK_NS: u64 = 100_000_000;

impl TcpNic {
    pub(super) fn look_after(&mut self) {
        let now = self.clock.now();
        if self.news {
            self.take_news();
        }
        if self.paused_until != 0 && now >= self.paused_until {
            self.paused_until = 0;
            self.heed_listeners(true);
        }
        if now.saturating_sub(self.looked_ns) < LOOK_NS {
            return;
        }
        self.looked_ns = now;
        self.take_addresses();
        self.turn(now);
        self.try_return(now);
        self.connections.iter_mut().flatten().for_each(|one| one.rest());
        self.devices.pool.rest(|disk| self.epoll.remove(disk));
        let used = self.routes.used();
        let patience_ns = self.options.patience_ns();
        self.end_those(libc::ETIMEDOUT, |_, one| {
            let age = now.saturating_sub(one.since_ns);
            one.is_unauthenticated() && age > UNAUTHENTICATED_NS
                || age > UNUSED_NS && !used.contains(&(one.name, one.owner()))
                || age > if one.is_beside() { UP_NS } else { patience_ns }
                    && matches!(one.state, State::Dialing | State::Handshaking)
        });
    }

    /// A peer has authenticated over a connection.
    pub(super) fn give_to(&mut self, connection: Number, peer: PeerId) {
        let Some(at) = self.numbered(connection) else { return };
        let Some(one) = self.connection(at).filter(|one| one.may_be_of(peer)) else { return };
        let (name, new) = (one.name, one.owner() != Some(peer));
        one.authenticate(peer);
        self.list(at);
        if new {
            self.take_over(at, (name, peer));
            // The peer would not dial if it still had an earlier connection.
            self.end_those(libc::ECONNRESET, |other, one| other != at && one.is_accepted_of(peer, name));
            let connections = self.connections.iter().flatten();
            let is_theirs = |one: &Connection| !one.dialed && one.owner() == Some(peer) && !one.is_beside();
            let theirs = connections.filter(|one| is_theirs(one));
            let mut numbers: Vec<Number> = theirs.map(|one| one.number).collect();
            if numbers.len() > OF_PEER {
                numbers.sort_unstable();
                self.end_those(libc::ECONNRESET, |_, one| one.number == numbers[0]);
            }
        }
    }

    pub(super) fn end_all_of(&mut self, peer: PeerId, at_once: bool) {
        if at_once {
            return self.end_those(libc::ECANCELED, |_, one| one.owner() == Some(peer));
        }
        let now = self.clock.now();
        for at in 0..self.connections.len() as u32 {
            let connection = self.connections[at as usize].as_deref_mut();
            if let Some(one) = connection.filter(|one| one.owner() == Some(peer)) {
                one.refuse(now, &mut self.sink);
                self.list(at);
            }
        }
    }
}
