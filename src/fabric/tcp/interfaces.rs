//! The network interfaces at which this fabric can listen.

use crate::topology::network::{Nic, Reach};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

#[derive(Clone, Debug)]
pub struct Interface {
    pub name: String,
    /// The best of its addresses, without a port.
    pub address: SocketAddr,
    /// The best of the other family.
    pub other: Option<IpAddr>,
    /// The name of its network, as "10.77.1.0/24".
    pub network: String,
    pub loopback: bool,
}

impl Interface {
    /// The interface, at its best address; `None` without one. A link-local address serves only an
    /// interface that the caller has named.
    pub fn of(nic: &Nic) -> Option<Interface> {
        let left = nic.served.left.iter().filter(|left| !left.soon).map(|left| left.ip);
        let ip = nic.served.best.first().map(|address| address.ip).or_else(|| left.min())?;
        let address = match ip {
            IpAddr::V4(ip) => SocketAddr::new(ip.into(), 0),
            IpAddr::V6(ip) if ip.is_unicast_link_local() => SocketAddrV6::new(ip, 0, 0, nic.index).into(),
            IpAddr::V6(ip) => SocketAddr::new(ip.into(), 0),
        };
        let mut all = nic.served.best.iter().map(|address| address.ip);
        let other = all.find(|other| other.is_ipv4() != ip.is_ipv4());
        let (name, network) = (nic.name.clone(), nic.served.network.clone());
        Some(Interface { name, address, other, network, loopback: nic.reach == Reach::Loopback })
    }
}

/// An interface of this machine, at its best address alone.
#[cfg(test)]
pub fn named(name: &str) -> Interface {
    let nics = crate::topology::network::read().unwrap().nics();
    let interface = Interface::of(nics.iter().find(|nic| nic.name == name).unwrap()).unwrap();
    Interface { other: None, ..interface }
}
