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
    pub fn find(nic: &Nic) -> Option<Interface> {
        let left = nic.served.left.iter().filter(|left| !left.soon).map(|left| left.ip);
        let ip = nic.served.best.first().map(|address| address.ip).or_else(|| left.min())?;
        let mut all = nic.served.best.iter().map(|address| address.ip);
        Some(Interface::at(nic, ip, all.find(|other| other.is_ipv4() != ip.is_ipv4())))
    }

    /// The interface at the addresses that it has now. Those in use (`first`, `other`) stay while they are
    /// there, unless they are deprecated and another of the family is not. `None`: it has none.
    pub fn after(nic: &Nic, first: IpAddr, other: Option<IpAddr>) -> Option<Interface> {
        let of_family = |v4: bool| nic.served.best.iter().filter(move |address| address.ip.is_ipv4() == v4);
        let stays = |ip: IpAddr| {
            let best = of_family(ip.is_ipv4()).next()?;
            let used = of_family(ip.is_ipv4()).find(|address| address.ip == ip);
            Some(used.filter(|used| !used.deprecated || best.deprecated).unwrap_or(best).ip)
        };
        let best_other = || of_family(!first.is_ipv4()).next().map(|address| address.ip);
        let other = other.map_or_else(best_other, stays);
        match stays(first) {
            Some(ip) => Some(Interface::at(nic, ip, other)),
            None => Some(Interface::at(nic, other?, None)),
        }
    }

    fn at(nic: &Nic, ip: IpAddr, other: Option<IpAddr>) -> Interface {
        let address = match ip {
            IpAddr::V4(ip) => SocketAddr::new(ip.into(), 0),
            IpAddr::V6(ip) if ip.is_unicast_link_local() => SocketAddrV6::new(ip, 0, 0, nic.index).into(),
            IpAddr::V6(ip) => SocketAddr::new(ip.into(), 0),
        };
        let (name, network) = (nic.name.clone(), nic.served.network.clone());
        Interface { name, address, other, network, loopback: nic.reach == Reach::Loopback }
    }
}

/// An interface of this machine, at its best address alone.
#[cfg(test)]
pub fn named(name: &str) -> Interface {
    let nics = crate::topology::network::read().unwrap().nics();
    let interface = Interface::find(nics.iter().find(|nic| nic.name == name).unwrap()).unwrap();
    Interface { other: None, ..interface }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::network::saved_as;
    use serde_json::json;

    fn after(
        addresses: serde_json::Value,
        first: &str,
        other: Option<&str>,
    ) -> Option<(String, Option<IpAddr>)> {
        let link = json!([{ "ifindex": 2, "ifname": "eth0", "flags": ["UP"], "operstate": "UP", "link_type": "ether" }]);
        let network =
            saved_as(&link, &json!([{ "ifindex": 2, "ifname": "eth0", "addr_info": addresses }]), &json!([]));
        let (first, other) = (first.parse().unwrap(), other.map(|other| other.parse().unwrap()));
        let after = Interface::after(&network.nics()[0], first, other)?;
        Some((after.address.ip().to_string(), after.other))
    }

    #[test]
    fn address_in_use_stays_while_it_is_there() {
        let address = |ip: &str, prefix: u8, more: serde_json::Value| {
            let mut one = json!({ "local": ip, "prefixlen": prefix });
            one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            one
        };
        let v4 = |ip: &str| address(ip, 24, json!({}));
        let some = |ip: &str, other: Option<&str>| Some((ip.to_owned(), other.map(|ip| ip.parse().unwrap())));
        assert_eq!(after(json!([v4("10.9.0.7"), v4("10.9.0.1")]), "10.9.0.1", None), some("10.9.0.1", None));
        assert_eq!(after(json!([v4("10.9.0.7")]), "10.9.0.1", None), some("10.9.0.7", None));
        assert_eq!(after(json!([]), "10.9.0.1", Some("fd09::1")), None);
        let old = address("fd09::1", 64, json!({ "preferred_life_time": 0 }));
        let new = address("fd09::2", 64, json!({ "temporary": true }));
        assert_eq!(after(json!([old]), "fd09::1", None), some("fd09::1", None), "deprecated, and alone");
        assert_eq!(after(json!([old, new]), "fd09::1", None), some("fd09::2", None));
        let tentative = address("fd09::3", 64, json!({ "tentative": true }));
        assert_eq!(after(json!([tentative]), "fd09::1", None), None, "a tentative one is waited for");
        // The other family: one comes, one goes, and one takes the place of the first.
        assert_eq!(after(json!([v4("10.9.0.1"), new]), "10.9.0.1", None), some("10.9.0.1", Some("fd09::2")));
        assert_eq!(after(json!([v4("10.9.0.1")]), "10.9.0.1", Some("fd09::2")), some("10.9.0.1", None));
        assert_eq!(after(json!([new]), "10.9.0.1", Some("fd09::2")), some("fd09::2", None));
    }
}
