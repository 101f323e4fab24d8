//! The addresses of an interface at which peers find it.

use super::values::{is_link_local, Address, Link, Network};
use std::net::IpAddr;

/// The addresses of an interface.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// Those that serve, best first.
    pub best: Vec<Address>,
    pub left: Vec<Left>,
    /// The name of the first one's network: NICs of one network are paired first.
    pub network: String,
    /// The interface whose address it is: this one has none of its own.
    pub lender: Option<String>,
}

/// An address that does not serve, and why.
#[derive(Clone, Debug)]
pub struct Left {
    pub ip: IpAddr,
    pub why: &'static str,
    /// It may serve soon.
    pub soon: bool,
}

/// The network of NICs that have the host's address and no own: any of them leads everywhere.
const ROUTED: &str = "routed";

impl Network {
    pub(super) fn served(&self, link: &Link) -> Served {
        let mut served = self.own(link);
        let has_own = !served.best.is_empty() || served.left.iter().any(|left| left.soon);
        if has_own || link.loopback {
            return served;
        }
        if let Some((lender, address)) = self.borrowed(link) {
            served.network = ROUTED.into();
            served.lender = Some(lender.name.clone());
            served.best.push(address.clone());
        }
        served
    }

    fn own(&self, link: &Link) -> Served {
        let mut served = Served::default();
        for address in self.addresses_of(link.index) {
            match why_not(address) {
                None => served.best.push(address.clone()),
                Some((why, soon)) => served.left.push(Left { ip: address.ip, why, soon }),
            }
        }
        served.best.sort_by_key(preference);
        served.network = served.best.first().map(|first| self.network_of(first)).unwrap_or_default();
        served
    }

    /// Hosts of a cloud have whole subnets behind one gateway, and addresses that are alone: the
    /// gateway is what they share.
    fn network_of(&self, address: &Address) -> String {
        let of_link = self.routes_of(address.link).iter().filter(|route| route.v6 == address.ip.is_ipv6());
        let gateways = of_link.filter_map(|route| route.gateway);
        let mut shared =
            gateways.filter(|gateway| gateway.is_ipv6() == address.ip.is_ipv6() && !is_link_local(*gateway));
        match shared.next().filter(|_| address.is_alone() && address.peer.is_none()) {
            Some(gateway) => format!("via {gateway}"),
            None => address.subnet(),
        }
    }

    /// The host's address that the routes of a NIC without its own use: of the loopback interface,
    /// a dummy or a VRF (BGP to the host).
    fn borrowed(&self, link: &Link) -> Option<(&Link, &Address)> {
        let routed = || self.routes_of(link.index).iter().filter(|route| route.gateway.is_some());
        routed().next()?;
        let of_host = |lender: &&Link| lender.loopback || ["dummy", "vrf"].contains(&lender.kind.as_str());
        let lends = |address: &&Address| why_not(address).is_none() && !address.ip.is_loopback();
        let lent_by = |lender: &Link| self.addresses_of(lender.index).iter().filter(lends);
        let lenders = self.links.iter().filter(of_host);
        let lent: Vec<(&Link, &Address)> =
            lenders.flat_map(|lender| lent_by(lender).map(move |address| (lender, address))).collect();
        let mut named = routed().filter_map(|route| route.source);
        let by_route = named.find_map(|ip| lent.iter().find(|(_, address)| address.ip == ip));
        // Without a preferred source the system takes one of the loopback interface.
        let family = |address: &Address| routed().any(|route| route.v6 == address.ip.is_ipv6());
        let of_loopback = lent.iter().filter(|(lender, address)| lender.loopback && family(address));
        by_route.or_else(|| of_loopback.min_by_key(|(_, address)| preference(address))).copied()
    }
}

/// Why an address does not serve, and whether it may do so soon.
fn why_not(address: &Address) -> Option<(&'static str, bool)> {
    match address {
        _ if address.duplicate => Some(("of another host as well (duplicate address detection)", false)),
        _ if is_link_local(address.ip) => Some(("link-local: of use on its own link alone", false)),
        _ if address.tentative => Some(("tentative: duplicates are still looked for", true)),
        _ if address.ip.is_unspecified() || address.ip.is_multicast() => {
            Some(("no address of a host", false))
        }
        _ => None,
    }
}

/// Lower is better. The order of the kernel decides between equals.
fn preference(address: &Address) -> impl Ord {
    // An address that is alone beside others is one that moves from host to host.
    (
        address.deprecated,
        address.ip.is_loopback(),
        address.ip.is_ipv6(),
        address.temporary,
        address.secondary,
        address.is_alone() && address.peer.is_none(),
    )
}
