//! What the kernel tells of the network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Each list is in the order of the interfaces, and otherwise as the kernel has it.
#[derive(Clone, Debug, Default)]
pub struct Network {
    pub links: Vec<Link>,
    pub addresses: Vec<Address>,
    /// Unicast routes to other hosts.
    pub routes: Vec<Route>,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// The kind of a virtual interface, as "bridge" or "veth"; "" for one that a NIC's driver made.
    pub kind: String,
    /// The administrator has set it up.
    pub up: bool,
    /// Packets can leave, as far as the kernel knows.
    pub carrier: bool,
    pub loopback: bool,
    /// The bond, bridge or VRF that has it.
    pub master: Option<u32>,
    /// The interface beneath (of a VLAN), or the other end (of a veth pair).
    pub below: Option<u32>,
    /// `below` is in another network namespace.
    pub elsewhere: bool,
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub link: u32,
    pub ip: IpAddr,
    pub prefix: u8,
    /// The address of the other end of a point-to-point link.
    pub peer: Option<IpAddr>,
    /// Not the first of its subnet (IPv4).
    pub secondary: bool,
    /// Made for privacy: another takes its place after some hours (IPv6).
    pub temporary: bool,
    /// Its preferred lifetime has ended.
    pub deprecated: bool,
    /// The system still asks whether another host has it.
    pub tentative: bool,
    /// Another host has it.
    pub duplicate: bool,
}

/// A route, once for each of its next hops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub link: u32,
    pub gateway: Option<IpAddr>,
    /// The source address that the route prefers.
    pub source: Option<IpAddr>,
    pub v6: bool,
    /// To everywhere.
    pub default: bool,
}

impl Network {
    pub fn new(mut links: Vec<Link>, mut addresses: Vec<Address>, mut routes: Vec<Route>) -> Network {
        links.sort_by_key(|link| link.index);
        addresses.sort_by_key(|address| address.link);
        routes.sort_by_key(|route| route.link);
        Network { links, addresses, routes }
    }

    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.binary_search_by_key(&index, |link| link.index).ok().map(|at| &self.links[at])
    }

    pub fn addresses_of(&self, link: u32) -> &[Address] {
        of_link(&self.addresses, link, |address| address.link)
    }

    pub fn routes_of(&self, link: u32) -> &[Route] {
        of_link(&self.routes, link, |route| route.link)
    }

    /// The subnet of an address of this host, as "10.77.1.0/24".
    pub fn subnet_at(&self, ip: IpAddr) -> Option<String> {
        let address = self.addresses.iter().find(|address| address.ip == ip)?;
        Some(address.subnet())
    }
}

impl Address {
    /// The whole subnet is the address.
    pub fn is_alone(&self) -> bool {
        self.prefix == if self.ip.is_ipv4() { 32 } else { 128 }
    }

    /// Whether another address is in the subnet.
    pub fn has(&self, ip: IpAddr) -> bool {
        let there = || Address { ip, ..self.clone() }.subnet() == self.subnet();
        self.peer.map_or_else(|| self.ip.is_ipv4() == ip.is_ipv4() && there(), |peer| peer == ip)
    }

    pub fn subnet(&self) -> String {
        // Both ends of a point-to-point link name it alike.
        if let Some(peer) = self.peer {
            return format!("{}-{}", self.ip.min(peer), self.ip.max(peer));
        }
        let network = match self.ip {
            IpAddr::V4(ip) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix.min(32))).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from(u32::from(ip) & mask))
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix.min(128))).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from(u128::from(ip) & mask))
            }
        };
        format!("{network}/{}", self.prefix)
    }
}

/// The part of a sorted list that belongs to an interface.
fn of_link<T>(sorted: &[T], link: u32, link_of: impl Fn(&T) -> u32) -> &[T] {
    let begin = sorted.partition_point(|one| link_of(one) < link);
    let len = sorted[begin..].partition_point(|one| link_of(one) == link);
    &sorted[begin..begin + len]
}

/// Only hosts on the same link reach it.
pub fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnet_is_address_and_prefix_length() {
        let network = |ip: &str, prefix, peer: &str| {
            let (ip, peer) = (ip.parse().unwrap(), peer.parse().ok());
            let (secondary, temporary, deprecated, tentative, duplicate) =
                (false, false, false, false, false);
            Address { link: 1, ip, prefix, peer, secondary, temporary, deprecated, tentative, duplicate }
        };
        let has = |address: Address, ip: &str| address.has(ip.parse().unwrap());
        assert!(has(network("10.77.1.9", 24, ""), "10.77.1.200"));
        assert!(
            !has(network("10.77.1.9", 24, ""), "10.77.2.9") && !has(network("0.0.0.1", 0, ""), "fd00::1")
        );
        assert!(has(network("10.0.0.2", 32, "10.0.0.1"), "10.0.0.1"));
        let network = |ip: &str, prefix, peer: &str| network(ip, prefix, peer).subnet();
        assert_eq!(network("10.77.1.9", 24, ""), "10.77.1.0/24");
        assert_eq!(network("10.77.1.9", 31, ""), "10.77.1.8/31");
        assert_eq!(network("10.77.1.9", 0, ""), "0.0.0.0/0");
        assert_eq!(network("fd00:1::7", 64, ""), "fd00:1::/64");
        assert_eq!(network("fd00:1::7", 128, ""), "fd00:1::7/128");
        assert_eq!(network("10.0.0.2", 32, "10.0.0.1"), "10.0.0.1-10.0.0.2");
    }
}
