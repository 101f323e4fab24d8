//! The network of another host, from what these printed there, below the folder `ip` of its tree:
//! `ip -j -d link` (link.json), `ip -j addr` (addr.json), `ip -j route show table all` (route.json).

use super::values::{Address, Link, Network, Route};
use crate::topology::read::Root;
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::Value;
use std::net::IpAddr;

pub fn read(root: &Root) -> Network {
    let [link, addr, route] = ["link", "addr", "route"].map(|name| root.json(&format!("ip/{name}.json")));
    network(&link, &addr, &route)
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SavedLink {
    ifindex: u32,
    ifname: String,
    flags: Vec<String>,
    operstate: String,
    link_type: String,
    /// The interface beneath, in this namespace; or its index in another.
    link: Option<String>,
    link_index: Option<u32>,
    link_netnsid: Option<i64>,
    master: Option<String>,
    linkinfo: SavedInfo,
    addr_info: Vec<SavedAddress>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SavedInfo {
    info_kind: String,
}

#[derive(Deserialize)]
struct SavedAddress {
    local: IpAddr,
    /// Of the other end.
    address: Option<IpAddr>,
    prefixlen: u8,
    #[serde(default)]
    secondary: bool,
    #[serde(default)]
    temporary: bool,
    #[serde(default)]
    deprecated: bool,
    #[serde(default)]
    tentative: bool,
    #[serde(default)]
    optimistic: bool,
    #[serde(default)]
    dadfailed: bool,
    preferred_life_time: Option<u32>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SavedRoute {
    r#type: Option<String>,
    dst: String,
    prefsrc: Option<IpAddr>,
    #[serde(flatten)]
    hop: SavedHop,
    nexthops: Vec<SavedHop>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SavedHop {
    dev: Option<String>,
    gateway: Option<IpAddr>,
    via: Option<SavedVia>,
}

#[derive(Deserialize)]
struct SavedVia {
    host: IpAddr,
}

/// The members of a list that can be read.
fn members<T: DeserializeOwned>(list: &Value) -> impl Iterator<Item = T> + '_ {
    list.as_array().into_iter().flatten().filter_map(|one| T::deserialize(one).ok())
}

pub fn network(links: &Value, addresses: &Value, routes: &Value) -> Network {
    let listed: Vec<SavedLink> = members(links).filter(|link: &SavedLink| link.ifindex != 0).collect();
    let index = |name: &String| listed.iter().find(|link| link.ifname == *name).map(|link| link.ifindex);
    let link = |saved: &SavedLink| Link {
        index: saved.ifindex,
        name: saved.ifname.clone(),
        kind: saved.linkinfo.info_kind.clone(),
        up: saved.flags.iter().any(|flag| flag == "UP"),
        carrier: !["DOWN", "LOWERLAYERDOWN", "NOTPRESENT"].contains(&saved.operstate.as_str()),
        loopback: saved.link_type == "loopback",
        master: saved.master.as_ref().and_then(index),
        below: saved.link.as_ref().and_then(index).or(saved.link_index),
        elsewhere: saved.link_netnsid.is_some(),
    };
    let of_link =
        |saved: SavedLink| saved.addr_info.into_iter().map(move |address| value(saved.ifindex, address));
    let addresses = members(addresses).flat_map(of_link).collect();
    let hop = |(hop, shared): (SavedHop, RouteOf)| {
        let gateway = hop.gateway.or(hop.via.map(|via| via.host));
        let link = index(&hop.dev?)?;
        let route = Route { link, gateway, source: shared.source, v6: shared.v6, default: shared.default };
        Some(route).filter(|route| route.gateway.is_some() || route.default)
    };
    let routes = members(routes).flat_map(hops).filter_map(hop).collect();
    Network::new(listed.iter().map(link).collect(), addresses, routes)
}

/// What the next hops of a route share.
#[derive(Clone, Copy)]
struct RouteOf {
    source: Option<IpAddr>,
    v6: bool,
    default: bool,
}

fn hops(route: SavedRoute) -> Vec<(SavedHop, RouteOf)> {
    // A default route does not name its family; without a gateway it counts as one of IPv4.
    let all = || [&route.hop].into_iter().chain(&route.nexthops);
    let v6 = route.dst.contains(':') || all().any(|hop| hop.gateway.is_some_and(|gateway| gateway.is_ipv6()));
    let shared = RouteOf { source: route.prefsrc, v6, default: route.dst == "default" };
    let is_unicast = route.r#type.is_none_or(|class| class == "unicast");
    let hops = route.nexthops.into_iter().chain([route.hop]).filter(|_| is_unicast);
    hops.map(|hop| (hop, shared)).collect()
}

fn value(link: u32, saved: SavedAddress) -> Address {
    Address {
        link,
        ip: saved.local,
        prefix: saved.prefixlen,
        peer: saved.address.filter(|peer| *peer != saved.local),
        secondary: saved.secondary,
        temporary: saved.temporary,
        deprecated: saved.deprecated || saved.preferred_life_time == Some(0),
        tentative: saved.tentative && !saved.optimistic,
        duplicate: saved.dadfailed,
    }
}
