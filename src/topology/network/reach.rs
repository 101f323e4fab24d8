//! Where an interface leads: to other hosts, through another interface, or nowhere beyond this host.
//!
//! The kernel says what made an interface and what it is joined with, and the routes say the rest: a
//! veth is a container's way out if the default route leaves by it, and the host's end of it if not.

use super::values::{is_link_local, Address, Link, Network};

/// Where packets go that leave by an interface; the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Other hosts: a NIC, or what lies over one.
    Hosts,
    /// Other hosts: what a container or a virtual machine has in place of a NIC.
    Container,
    /// Perhaps other hosts: a subnet is behind it.
    Subnet,
    /// Other hosts, in packets that leave by another interface.
    Tunnel,
    /// This host.
    Loopback,
    /// Containers of this host, or nothing.
    Inside,
    /// It is part of another interface, which has its packets.
    Port,
    Down,
}

/// What is made over another interface, of which it has the reach.
const OVER: [&str; 7] = ["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec", "hsr"];
const TUNNELS: [&str; 20] = [
    "wireguard",
    "tun",
    "vxlan",
    "geneve",
    "gre",
    "gretap",
    "ip6gre",
    "ip6gretap",
    "erspan",
    "ip6erspan",
    "ipip",
    "sit",
    "ip6tnl",
    "vti",
    "vti6",
    "xfrm",
    "bareudp",
    "gtp",
    "ovpn",
    "amt",
];
/// Interfaces over interfaces: no host has more of them.
const DEPTH: usize = 8;

impl Network {
    /// Where an interface leads, and why, in words that follow its name.
    pub(super) fn reach(&self, link: &Link) -> (Reach, String) {
        if !link.up {
            return (Reach::Down, "down".into());
        }
        if link.loopback {
            return (Reach::Loopback, "loopback".into());
        }
        if let Some(master) =
            link.master.and_then(|master| self.link(master)).filter(|master| master.kind != "vrf")
        {
            return (Reach::Port, format!("a port of {}", master.name));
        }
        self.medium(link, DEPTH)
    }

    /// Where an interface leads, whatever it is a port of.
    fn medium(&self, link: &Link, depth: usize) -> (Reach, String) {
        let is_driven = link.kind.is_empty() || link.kind == "ipoib";
        let inside = |why: &str| (Reach::Inside, why.to_owned());
        match link.kind.as_str() {
            _ if link.loopback || depth == 0 => inside("loopback"),
            _ if is_driven => (Reach::Hosts, "a NIC".into()),
            "bond" | "team" | "bridge" => self.joined(link, depth),
            kind if OVER.contains(&kind) => self.over(link, depth),
            kind if TUNNELS.contains(&kind) => {
                (Reach::Tunnel, format!("a tunnel ({kind}): its packets leave by another interface"))
            }
            "veth" | "netkit" => self.pair(link, depth),
            "dummy" | "ifb" | "nlmon" | "vrf" | "vcan" | "can" => {
                inside(&format!("{}: leads nowhere", link.kind))
            }
            _ if self.is_way_out(link) => (Reach::Container, "the default route leaves by it".into()),
            kind => (Reach::Subnet, format!("a virtual interface ({kind}) that may lead to other hosts")),
        }
    }

    /// A bond, a team or a bridge leads where the best of its ports does.
    fn joined(&self, link: &Link, depth: usize) -> (Reach, String) {
        let ports = self.links.iter().filter(|port| port.master == Some(link.index) && port.up);
        let of_ports = ports.map(|port| (self.medium(port, depth - 1).0, &port.name));
        let leads = |reach: Reach| reach <= Reach::Tunnel && reach != Reach::Subnet;
        let best = of_ports.filter(|(reach, _)| leads(*reach)).min_by_key(|(reach, _)| *reach);
        match best {
            Some((reach, name)) => (reach, format!("{} over {name}", link.kind)),
            None if self.is_way_out(link) => (Reach::Container, "the default route leaves by it".into()),
            None => (Reach::Inside, format!("a {} of this host: no NIC is a port of it", link.kind)),
        }
    }

    fn over(&self, link: &Link, depth: usize) -> (Reach, String) {
        let below = link.below.filter(|below| !link.elsewhere && *below != link.index);
        match below.and_then(|below| self.link(below)) {
            Some(below) => (self.medium(below, depth - 1).0, format!("{} over {}", link.kind, below.name)),
            None => (Reach::Container, format!("{} over an interface of the host", link.kind)),
        }
    }

    /// One end of a pair of interfaces. The other one is in a container, or this is the container.
    fn pair(&self, link: &Link, depth: usize) -> (Reach, String) {
        let other = link.below.filter(|_| !link.elsewhere).and_then(|below| self.link(below));
        let bridge = other.and_then(|other| self.link(other.master?));
        let over = bridge.map(|bridge| (self.medium(bridge, depth - 1).0, &bridge.name));
        if let Some((reach, name)) = over.filter(|(reach, _)| *reach <= Reach::Tunnel) {
            return (reach, format!("{} into {name}", link.kind));
        }
        if self.is_way_out(link) {
            return (Reach::Container, "the default route leaves by it".into());
        }
        if self.links.iter().any(|link| link.kind.is_empty() && !link.loopback) {
            return (
                Reach::Inside,
                "leads to a container of this host: no default route leaves by it".into(),
            );
        }
        let is_subnet =
            |address: &Address| (!address.is_alone() || address.peer.is_some()) && !is_link_local(address.ip);
        let has_subnet = self.addresses_of(link.index).iter().any(is_subnet);
        match has_subnet && other.is_none() {
            true => (Reach::Container, format!("{}, with a subnet behind it", link.kind)),
            false => (Reach::Subnet, format!("{}, which may lead to a container of this host", link.kind)),
        }
    }

    fn is_way_out(&self, link: &Link) -> bool {
        self.routes_of(link.index).iter().any(|route| route.default)
    }
}
