//! The routes of a NIC: what the addresses that were inserted stand for, and where each leads.

use super::socket::Outcome;
use crate::fabric::Route;
use crate::ids::PeerId;
use crate::wire::tcp::Name;
use std::collections::HashSet;
use std::net::SocketAddr;

/// What a route is for.
#[derive(Clone, Copy)]
pub struct Target {
    pub name: Name,
    /// The peer that has the address.
    pub peer: Option<PeerId>,
    pub to: SocketAddr,
}

pub struct Place {
    generation: u32,
    /// How often its address was inserted; 0: the place is free.
    users: u32,
    pub target: Target,
    /// Its connection, or the error that ended it.
    pub leads: Outcome<u32>,
    /// Operations that failed with its connection were reaped.
    reported: bool,
}

#[derive(Default)]
pub struct Routes {
    places: Vec<Place>,
    /// A connection has ended since failures were reaped.
    deaths: bool,
}

impl Routes {
    /// The place of a route, if it is still the route's.
    #[inline]
    pub fn find(&mut self, route: Route) -> Option<&mut Place> {
        let place = self.places.get_mut(route as u32 as usize)?;
        (place.users > 0 && place.generation == (route >> 32) as u32).then_some(place)
    }

    /// Where a route leads.
    #[inline]
    pub fn leads(&mut self, route: Route) -> Outcome<u32> {
        self.find(route).map_or(Err(libc::ENOTCONN), |place| place.leads)
    }

    /// One more use of the route to a peer's NIC, if there is one that leads there.
    pub fn again(&mut self, name: Name, peer: Option<PeerId>) -> Option<Route> {
        let at = self.places.iter().position(|place| {
            place.users > 0 && (place.target.name, place.target.peer) == (name, peer) && place.leads.is_ok()
        })?;
        self.places[at].users += 1;
        Some(u64::from(self.places[at].generation) << 32 | at as u64)
    }

    pub fn add(&mut self, target: Target, leads: Outcome<u32>) -> Route {
        let new = |generation| Place { generation, users: 1, target, leads, reported: leads.is_err() };
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

    /// One use less; hands out the connection if that was the last, and what the route was for.
    pub fn remove(&mut self, route: Route) -> Option<(u32, Target)> {
        let place = self.find(route)?;
        place.users -= 1;
        let at = place.leads.ok().filter(|_| place.users == 0)?;
        place.leads = Err(libc::ENOTCONN);
        Some((at, place.target))
    }

    /// A connection has ended.
    pub fn end(&mut self, connection: u32, errno: i32) {
        for place in self.places.iter_mut().filter(|place| place.leads == Ok(connection)) {
            (place.leads, place.reported) = (Err(errno), false);
            self.deaths = true;
        }
    }

    /// What failed with connections is reaped.
    #[inline]
    pub fn report(&mut self) {
        if std::mem::take(&mut self.deaths) {
            self.places.iter_mut().for_each(|place| place.reported = place.leads.is_err());
        }
    }

    /// What a route is for whose connection has ended, and how. Operations that failed with it are
    /// reaped first: nothing may overtake them.
    pub fn ended(&mut self, route: Route) -> Option<(Target, i32)> {
        let place = self.find(route).filter(|place| place.reported)?;
        Some((place.target, place.leads.err()?))
    }

    /// The NICs and peers that are in use.
    pub fn used(&self) -> HashSet<(Name, Option<PeerId>)> {
        let used = self.places.iter().filter(|place| place.users > 0);
        used.map(|place| (place.target.name, place.target.peer)).collect()
    }

    pub fn clear(&mut self) {
        self.places.clear();
    }
}
