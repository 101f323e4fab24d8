//! Routes: the addresses that a rail has inserted, and the connections that they lead to.

use super::{Connection, Connections, NOBODY};
use crate::fabric::own::routes::{self, Target as _, Whose};
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

/// The purpose of a route.
pub struct Target {
    name: Name,
    peer: Option<PeerId>,
    to: Box<[u8]>,
    /// The connection's endpoint, while the connection is up.
    pub ep: *mut fid_ep,
}

impl routes::Target for Target {
    fn whose(&self) -> Whose {
        (self.name, self.peer)
    }
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

    pub fn insert(&mut self, address: &[u8], peer: Option<PeerId>) -> Result<Route> {
        let (to, target) = self.target(address)?;
        self.claim(|name| *name == target, peer);
        if let Some(route) = self.routes.again((target, peer), Some(UNDIALED)) {
            return Ok(route);
        }
        Ok(self.routes.add(Target { name: target, peer, to, ep: ptr::null_mut() }, Err(UNDIALED)))
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
        let used = self.routes.used().into_iter();
        let names: HashSet<Name> =
            used.filter(|(_, owner)| *owner == Some(peer)).map(|(name, _)| name).collect();
        self.claim(|name| names.contains(name), Some(peer));
    }

    /// A route that answers an endpoint at this address, over a connection that the endpoint made.
    pub fn insert_caller(&mut self, address: &[u8]) -> Result<Route> {
        let (to, target) = self.target(address)?;
        let theirs = self.all.iter().filter(|one| one.up && !one.dialed && one.name == target);
        match theirs.map(|one| one.number).max() {
            Some(number) => {
                let ep = self.endpoint_of(number);
                Ok(self.routes.add(Target { name: NOBODY, peer: None, to, ep }, Ok(number)))
            }
            None => Err(Error::new(Status::Fabric, "the connection is closed")),
        }
    }

    /// Closes a route in both directions, unless it has other users.
    pub fn remove(&mut self, route: Route) {
        let Some((leads, target)) = self.routes.remove(route) else { return };
        let (name, peer) = target.whose();
        if name == NOBODY {
            return;
        }
        if let Ok(number) = leads {
            self.end(number, libc::ECANCELED);
        }
        if self.routes.to((name, peer)).next().is_none() {
            self.end_theirs(name, peer);
        }
    }

    /// Closes a route in both directions, even if it has other users.
    pub fn reset(&mut self, route: Route) {
        if let Some(place) = self.routes.find(route).filter(|place| place.target.name != NOBODY) {
            let ((name, peer), leads) = (place.target.whose(), place.leads);
            if let Ok(number) = leads {
                self.end(number, libc::ECANCELED);
            }
            self.end_theirs(name, peer);
        }
        self.remove(route);
    }

    /// Closes the connections that a peer's NIC dialed.
    fn end_theirs(&mut self, name: Name, peer: Option<PeerId>) {
        self.end_those(|one| !one.dialed && one.name == name && one.owner == Some(peer));
    }

    pub fn redial(&mut self, route: Route) {
        let Some((place, errno)) = self.routes.ended(route) else { return };
        let (to, name) = (place.target.to.clone(), place.target.name);
        let why = |error: Error| if errno == UNDIALED { error.provider_errno } else { errno };
        let leads = self.dial(&to, name).map_err(why);
        if let Some(place) = self.routes.find(route) {
            (place.leads, place.target.ep) = (leads, ptr::null_mut());
        }
    }

    pub fn is_gone(&mut self, route: Route) -> bool {
        self.routes.leads(route) == Err(libc::ECONNREFUSED)
    }

    pub fn end_peer(&mut self, peer: PeerId) {
        let its = self.routes.targets().filter(|(target, _)| target.peer == Some(peer));
        let dialed: Vec<u32> = its.filter_map(|(_, leads)| leads.ok()).collect();
        self.end_those(|one| dialed.contains(&one.number) || one.owner == Some(Some(peer)));
    }

    pub fn take_rejected(&mut self) -> u64 {
        std::mem::take(&mut self.rejected)
    }
}
