//! The routes of a NIC: the inserted addresses, and the connection of each.

use crate::fabric::Route;
use crate::ids::PeerId;
use crate::wire::tcp::Name;
use std::collections::HashSet;

/// A NIC, and the peer that it is of.
pub type Whose = (Name, Option<PeerId>);

/// The purpose of a route.
pub trait Target {
    fn whose(&self) -> Whose;
}

pub struct RouteSlot<T> {
    generation: u32,
    /// How often its address was inserted; 0: the slot is free.
    users: u32,
    pub target: T,
    /// Its connection, or the error that ended it.
    pub leads: Result<u32, i32>,
    /// The operations that failed with its connection were reaped.
    reported: bool,
}

pub struct Routes<T> {
    places: Vec<RouteSlot<T>>,
    /// A connection has ended since failures were reaped.
    deaths: bool,
}

impl<T> Default for Routes<T> {
    fn default() -> Routes<T> {
        Routes { places: Vec::new(), deaths: false }
    }
}

impl<T: Target> Routes<T> {
    /// The slot of a route, if the route still owns it.
    #[inline]
    pub fn find(&mut self, route: Route) -> Option<&mut RouteSlot<T>> {
        let place = self.places.get_mut(route as u32 as usize)?;
        (place.users > 0 && place.generation == (route >> 32) as u32).then_some(place)
    }

    /// The connection of a route.
    #[inline]
    pub fn leads(&mut self, route: Route) -> Result<u32, i32> {
        self.find(route).map_or(Err(libc::ENOTCONN), |place| place.leads)
    }

    /// The purposes of all routes in use.
    pub fn targets(&self) -> impl Iterator<Item = (&T, Result<u32, i32>)> {
        self.places.iter().filter(|place| place.users > 0).map(|place| (&place.target, place.leads))
    }

    /// The NICs and peers in use.
    pub fn used(&self) -> HashSet<Whose> {
        self.targets().map(|(target, _)| target.whose()).collect()
    }

    /// Adds a use to an existing route to a peer's NIC, if one leads there, or has this error.
    pub fn again(&mut self, whose: Whose, or: Option<i32>) -> Option<Route> {
        let at = self.places.iter().position(|place| {
            let leads = place.leads.is_ok() || place.leads.err() == or;
            place.users > 0 && place.target.whose() == whose && leads
        })?;
        self.places[at].users += 1;
        Some(u64::from(self.places[at].generation) << 32 | at as u64)
    }

    pub fn add(&mut self, target: T, leads: Result<u32, i32>) -> Route {
        let at = self.places.iter().position(|place| place.users == 0).unwrap_or(self.places.len());
        let generation = self.places.get(at).map_or(1, |place| place.generation.wrapping_add(1));
        let new = RouteSlot { generation, users: 1, target, leads, reported: leads.is_err() };
        match self.places.get_mut(at) {
            Some(place) => *place = new,
            None => self.places.push(new),
        }
        u64::from(generation) << 32 | at as u64
    }

    /// Removes a use; returns the connection if that was the last use, and the route's purpose.
    pub fn remove(&mut self, route: Route) -> Option<(Result<u32, i32>, &T)> {
        let place = self.find(route)?;
        place.users -= 1;
        (place.users == 0).then(|| (std::mem::replace(&mut place.leads, Err(libc::ENOTCONN)), &place.target))
    }

    /// The routes that lead over a connection.
    pub fn over(&mut self, connection: u32) -> impl Iterator<Item = &mut RouteSlot<T>> {
        self.places.iter_mut().filter(move |place| place.leads == Ok(connection))
    }

    /// The routes to a peer's NIC.
    pub fn to(&mut self, whose: Whose) -> impl Iterator<Item = &mut RouteSlot<T>> {
        self.places.iter_mut().filter(move |place| place.users > 0 && place.target.whose() == whose)
    }

    /// A connection has ended.
    pub fn end(&mut self, connection: u32, errno: i32) {
        for place in self.over(connection) {
            (place.leads, place.reported) = (Err(errno), false);
        }
        self.deaths = true;
    }

    /// Whether operations that failed with a connection may not be reaped yet.
    #[inline]
    pub fn has_deaths(&self) -> bool {
        self.deaths
    }

    /// All operations that failed with connections were reaped.
    #[inline]
    pub fn report(&mut self) {
        if std::mem::take(&mut self.deaths) {
            self.places.iter_mut().for_each(|place| place.reported = place.leads.is_err());
        }
    }

    /// A route whose connection has ended, and the error. Operations that failed with it are reaped
    /// first: no later result may overtake them.
    pub fn ended(&mut self, route: Route) -> Option<(&mut RouteSlot<T>, i32)> {
        let place = self.find(route).filter(|place| place.reported)?;
        let errno = place.leads.err()?;
        Some((place, errno))
    }

    pub fn clear(&mut self) {
        self.places.clear();
    }
}
