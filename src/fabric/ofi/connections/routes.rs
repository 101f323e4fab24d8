//! Routes: the addresses that a rail has inserted, and the connections that they lead to.

use super::{Connection, Connections, NOBODY};
use crate::fabric::Route;
use crate::ids::PeerId;
use crate::status::{Error, Result, Status};
use crate::wire::tcp::Name;
use libfabric_sys::fid_ep;
use std::collections::HashSet;
use std::ptr;

/// A route has no connection before it is first dialed (`redial`): a caller may insert many at once,
/// and some versions of libfabric wait for the network for each.
const UNDIALED: i32 = libc::ENOTCONN;

/// A route: the state behind an inserted address.
pub struct RouteSlot {
    pub generation: u32,
    /// How often the address was inserted; 0: the slot is free.
    pub users: u32,
    pub target: Name,
    pub peer: Option<PeerId>,
    pub to: Box<[u8]>,
    /// The number of its connection, or the error that ended it.
    pub leads: std::result::Result<u32, i32>,
    /// The connection's endpoint, while the connection is up.
    pub ep: *mut fid_ep,
    /// The operations that failed with the connection were reaped.
    pub reported: bool,
}

/// The slot of a route, if the route still owns it.
#[inline]
pub fn find(places: &mut [RouteSlot], route: Route) -> Option<&mut RouteSlot> {
    let place = places.get_mut(route as u32 as usize)?;
    (place.users > 0 && place.generation == (route >> 32) as u32).then_some(place)
}

impl Connections {
    fn target(&self, address: &[u8]) -> Result<(Box<[u8]>, Name)> {
        let none = || Error {
            provider_errno: libc::EHOSTUNREACH,
            ..Error::new(Status::Fabric, "an address that is none of this fabric")
        };
        let (to, target) = address.split_last_chunk::<16>().ok_or_else(none)?;
        if to.is_empty() || *target == NOBODY {
            return Err(none());
        }
        // A provider reads as many bytes as its address format has, whatever the peer sent.
        let mut padded = vec![0u8; 512].into_boxed_slice();
        let len = to.len().min(padded.len() - 1);
        padded[..len].copy_from_slice(&to[..len]);
        Ok((padded, *target))
    }

    fn place(
        &mut self,
        target: Name,
        peer: Option<PeerId>,
        to: Box<[u8]>,
        leads: std::result::Result<u32, i32>,
    ) -> Route {
        let ep = leads.ok().map_or(ptr::null_mut(), |number| self.endpoint_of(number));
        let at = self.places.iter().position(|place| place.users == 0).unwrap_or(self.places.len());
        let generation = self.places.get(at).map_or(1, |place| place.generation.wrapping_add(1));
        let new = RouteSlot { generation, users: 1, target, peer, to, leads, ep, reported: leads.is_err() };
        match self.places.get_mut(at) {
            Some(place) => *place = new,
            None => self.places.push(new),
        }
        u64::from(generation) << 32 | at as u64
    }

    pub fn insert(&mut self, address: &[u8], peer: Option<PeerId>) -> Result<Route> {
        let (to, target) = self.target(address)?;
        self.claim(|name| *name == target, peer);
        let same = |place: &RouteSlot| {
            let leads = place.leads.is_ok() || place.leads == Err(UNDIALED);
            place.users > 0 && (place.target, place.peer) == (target, peer) && leads
        };
        if let Some(at) = self.places.iter().position(same) {
            let place = &mut self.places[at];
            place.users += 1;
            return Ok(u64::from(place.generation) << 32 | at as u64);
        }
        Ok(self.place(target, peer, to, Err(UNDIALED)))
    }

    /// Assigns accepted connections from these NICs to the peer, if they belong to none.
    fn claim(&mut self, is_named: impl Fn(&Name) -> bool, peer: Option<PeerId>) {
        let unclaimed = |one: &&mut Connection| !one.dialed && one.owner.is_none();
        for one in self.all.iter_mut().filter(unclaimed).filter(|one| is_named(&one.name)) {
            one.owner = Some(peer);
        }
    }

    /// A peer has authenticated: the connections that its NICs dialed belong to it.
    pub fn assign(&mut self, peer: PeerId) {
        let its = self.places.iter().filter(|place| place.users > 0 && place.peer == Some(peer));
        let names: HashSet<Name> = its.map(|place| place.target).collect();
        self.claim(|name| names.contains(name), Some(peer));
    }

    /// A route that answers an endpoint at this address, over a connection that the endpoint made.
    pub fn insert_caller(&mut self, address: &[u8]) -> Result<Route> {
        let (to, target) = self.target(address)?;
        let theirs = self.all.iter().filter(|one| one.up && !one.dialed && one.name == target);
        match theirs.map(|one| one.number).max() {
            Some(number) => Ok(self.place(NOBODY, None, to, Ok(number))),
            None => Err(Error::new(Status::Fabric, "the connection is closed")),
        }
    }

    /// Closes a route in both directions, unless it has other users.
    pub fn remove(&mut self, route: Route) {
        let Some(place) = find(&mut self.places, route) else { return };
        place.users -= 1;
        if place.users > 0 || place.target == NOBODY {
            return;
        }
        let (target, peer, leads) = (place.target, place.peer, place.leads);
        (place.leads, place.ep) = (Err(libc::ENOTCONN), ptr::null_mut());
        if let Ok(number) = leads {
            self.end(number, libc::ECANCELED);
        }
        let same = |place: &RouteSlot| place.users > 0 && (place.target, place.peer) == (target, peer);
        if !self.places.iter().any(same) {
            self.end_theirs(target, peer);
        }
    }

    /// Closes a route in both directions, even if it has other users.
    pub fn reset(&mut self, route: Route) {
        if let Some(place) = find(&mut self.places, route).filter(|place| place.target != NOBODY) {
            let (target, peer, leads) = (place.target, place.peer, place.leads);
            if let Ok(number) = leads {
                self.end(number, libc::ECANCELED);
            }
            self.end_theirs(target, peer);
        }
        self.remove(route);
    }

    /// Closes the connections that a peer's NIC dialed.
    fn end_theirs(&mut self, name: Name, peer: Option<PeerId>) {
        self.end_those(|one| !one.dialed && one.name == name && one.owner == Some(peer));
    }

    pub fn redial(&mut self, route: Route) {
        let Some(place) = find(&mut self.places, route) else { return };
        // Operations that failed with the connection are reaped first: no later result may overtake
        // them.
        let (true, Err(errno)) = (place.reported, place.leads) else { return };
        let (to, target) = (place.to.clone(), place.target);
        let why = |error: Error| if errno == UNDIALED { error.provider_errno } else { errno };
        let leads = self.dial(&to, target).map_err(why);
        if let Some(place) = find(&mut self.places, route) {
            place.leads = leads;
        }
    }

    pub fn is_gone(&mut self, route: Route) -> bool {
        find(&mut self.places, route).is_some_and(|place| place.leads == Err(libc::ECONNREFUSED))
    }

    pub fn end_peer(&mut self, peer: PeerId) {
        let its = self.places.iter().filter(|place| place.users > 0 && place.peer == Some(peer));
        let dialed: Vec<u32> = its.filter_map(|place| place.leads.ok()).collect();
        self.end_those(|one| dialed.contains(&one.number) || one.owner == Some(Some(peer)));
    }

    pub fn take_rejected(&mut self) -> u64 {
        std::mem::take(&mut self.rejected)
    }
}
