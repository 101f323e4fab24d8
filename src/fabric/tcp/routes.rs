//! The routes of a NIC: the inserted addresses, and the connection of each.

use super::socket::Outcome;
use crate::fabric::Route;
use crate::ids::PeerId;
use crate::wire::tcp::Name;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

/// The purpose of a route.
#[derive(Clone, Copy)]
pub struct Target {
    pub name: Name,
    /// The peer at the address.
    pub peer: Option<PeerId>,
    pub to: SocketAddr,
    /// Where it is dialed if nothing answers there.
    pub other: Option<SocketAddr>,
}

pub struct RouteSlot {
    generation: u32,
    /// How often its address was inserted; 0: the slot is free.
    users: u32,
    pub target: Target,
    /// Its connection, or the error that ended it.
    pub leads: Outcome<u32>,
    /// The operations that failed with its connection were reaped.
    reported: bool,
}

#[derive(Default)]
pub struct Routes {
    places: Vec<RouteSlot>,
    /// A connection has ended since failures were reaped.
    deaths: bool,
}

impl Routes {
    /// The slot of a route, if the route still owns it.
    #[inline]
    pub fn find(&mut self, route: Route) -> Option<&mut RouteSlot> {
        let place = self.places.get_mut(route as u32 as usize)?;
        (place.users > 0 && place.generation == (route >> 32) as u32).then_some(place)
    }

    /// The connection of a route.
    #[inline]
    pub fn leads(&mut self, route: Route) -> Outcome<u32> {
        self.find(route).map_or(Err(libc::ENOTCONN), |place| place.leads)
    }

    /// Adds a use to an existing route to a peer's NIC, if there is one.
    pub fn again(&mut self, name: Name, peer: Option<PeerId>) -> Option<Route> {
        let at = self.places.iter().position(|place| {
            place.users > 0 && (place.target.name, place.target.peer) == (name, peer) && place.leads.is_ok()
        })?;
        self.places[at].users += 1;
        Some(u64::from(self.places[at].generation) << 32 | at as u64)
    }

    pub fn add(&mut self, target: Target, leads: Outcome<u32>) -> Route {
        let new = |generation| RouteSlot { generation, users: 1, target, leads, reported: leads.is_err() };
        let free = self.places.iter_mut().enumerate().find(|(_, place)| place.users == 0);
        let (at, generation) = match free {
            Some((at, place)) => {
                *place = new(place.generation.wrapping_add(1));
                (at, place.generation)
            }
            None => {
                self.places.push(new(1));
                (self.places.len() - 1, 1)
            }
        };
        u64::from(generation) << 32 | at as u64
    }

    /// Removes a use; returns the connection if that was the last use, and the route's purpose.
    pub fn remove(&mut self, route: Route) -> Option<(u32, Target)> {
        let place = self.find(route)?;
        place.users -= 1;
        let at = place.leads.ok().filter(|_| place.users == 0)?;
        place.leads = Err(libc::ENOTCONN);
        Some((at, place.target))
    }

    /// The routes to a peer's NIC lead over this connection, instead of some that are given up.
    pub fn turn(&mut self, source: (Name, PeerId), to: u32, gives_up: impl Fn(u32) -> bool) -> Vec<u32> {
        let is_of = |place: &&mut RouteSlot| {
            place.users > 0 && (place.target.name, place.target.peer) == (source.0, Some(source.1))
        };
        let mut given_up = Vec::new();
        for place in self.places.iter_mut().filter(is_of) {
            if let Some(old) = place.leads.ok().filter(|old| gives_up(*old)) {
                place.leads = Ok(to);
                given_up.push(old);
            }
        }
        given_up
    }

    /// A connection has ended.
    pub fn end(&mut self, connection: u32, errno: i32) {
        for place in self.places.iter_mut().filter(|place| place.leads == Ok(connection)) {
            (place.leads, place.reported) = (Err(errno), false);
            self.deaths = true;
        }
    }

    /// All operations that failed with connections were reaped.
    #[inline]
    pub fn report(&mut self) {
        if std::mem::take(&mut self.deaths) {
            self.places.iter_mut().for_each(|place| place.reported = place.leads.is_err());
        }
    }

    /// The purpose of a route whose connection has ended, and the error. Operations that failed
    /// with it are reaped first: no later result may overtake them.
    pub fn ended(&mut self, route: Route) -> Option<(Target, i32)> {
        let place = self.find(route).filter(|place| place.reported)?;
        Some((place.target, place.leads.err()?))
    }

    /// Where a peer's NIC is dialed, if that is an address of this host.
    pub fn dialed(&self, name: Name, peer: Option<PeerId>, host: IpAddr) -> Option<SocketAddr> {
        let is_of =
            |place: &&RouteSlot| place.users > 0 && (place.target.name, place.target.peer) == (name, peer);
        let all =
            self.places.iter().filter(is_of).flat_map(|place| [Some(place.target.to), place.target.other]);
        all.flatten().find(|to| to.ip() == host)
    }

    /// The NICs and peers in use.
    pub fn used(&self) -> HashSet<(Name, Option<PeerId>)> {
        let used = self.places.iter().filter(|place| place.users > 0);
        used.map(|place| (place.target.name, place.target.peer)).collect()
    }

    pub fn clear(&mut self) {
        self.places.clear();
    }
}
