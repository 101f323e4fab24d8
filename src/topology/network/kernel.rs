//! The network of this machine, by netlink. Attributes are read one by one: what a newer kernel adds
//! is passed over.

use super::values::{Address, Link, Network, Route};
use crate::descriptor::Descriptor;
use netlink_packet_core::{
    NetlinkBuffer, NlasIterator, NLMSG_DONE, NLMSG_ERROR, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST,
};
use std::io::{Error, ErrorKind, Result as IoResult};
use std::net::IpAddr;
use std::os::fd::AsRawFd;

/// The kernel fills no more than half of it at once.
pub(super) const BYTES: usize = 64 << 10;
/// The kernel says when something has changed meanwhile; the last attempt counts in any case.
const ATTEMPTS: usize = 5;
/// A host can have all routes of the Internet. The default routes come first.
const ROUTES_MAX: usize = 20_000;

const HEADER: usize = 16;
const LINK_FIXED: usize = 16;
const ADDRESS_FIXED: usize = 8;
const ROUTE_FIXED: usize = 12;
const NEXT_HOP_FIXED: usize = 8;
/// The kernel need not count packets for us.
const SKIP_STATISTICS: u32 = 8;
/// `operstate`: not present, down, and a lower layer down.
const DOWN: std::ops::RangeInclusive<u8> = 1..=3;

/// What is there, as far as the kernel says so while it changes.
pub fn read() -> Result<Network, String> {
    read_once().map(|(network, _)| network)
}

/// Fails while it changes too fast: an address that was not seen may be there.
pub fn read_settled() -> Result<Network, String> {
    match read_once()? {
        (network, false) => Ok(network),
        (_, true) => Err("the network changes while it is read".to_owned()),
    }
}

/// Also whether interfaces or addresses have changed meanwhile.
fn read_once() -> Result<(Network, bool), String> {
    let (mut links, mut addresses, mut found) = (Vec::new(), Vec::new(), Vec::new());
    let mut asked = [0u8; LINK_FIXED + 8];
    asked[LINK_FIXED..][..2].copy_from_slice(&8u16.to_ne_bytes());
    asked[LINK_FIXED + 2..][..2].copy_from_slice(&libc::IFLA_EXT_MASK.to_ne_bytes());
    asked[LINK_FIXED + 4..].copy_from_slice(&SKIP_STATISTICS.to_ne_bytes());
    let mut changed = dump(libc::RTM_GETLINK, &asked, usize::MAX, |bytes| links.extend(link(bytes)))?;
    let of_addresses = [0; ADDRESS_FIXED];
    changed |= dump(libc::RTM_GETADDR, &of_addresses, usize::MAX, |bytes| addresses.extend(address(bytes)))?;
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut asked = [0; ROUTE_FIXED];
        asked[0] = family as u8;
        let routes = dump(libc::RTM_GETROUTE, &asked, ROUTES_MAX, |bytes| routes(bytes, &mut found));
        if let Err(error) = routes {
            log::debug!("interfaces are chosen without the routes: {error}");
        }
    }
    Ok((Network::new(links, addresses, found), changed))
}

/// Each message of an answer, of at most this many. Whether something has changed meanwhile.
fn dump(request: u16, asked: &[u8], most: usize, mut each: impl FnMut(&[u8])) -> Result<bool, String> {
    let failed = |error: Error| format!("netlink request {request}: {error}");
    let (mut messages, mut changed, mut attempts) = (Vec::new(), true, 0);
    while changed && attempts < ATTEMPTS {
        messages.clear();
        changed = ask(request, asked, most, &mut messages).map_err(failed)?;
        attempts += 1;
    }
    messages.iter().for_each(|message: &Vec<u8>| each(message));
    Ok(changed)
}

/// Whether something has changed meanwhile.
fn ask(request: u16, asked: &[u8], most: usize, messages: &mut Vec<Vec<u8>>) -> IoResult<bool> {
    let socket = Socket::open(0)?;
    let mut message = vec![0; HEADER + asked.len()];
    message[HEADER..].copy_from_slice(asked);
    let mut header = NetlinkBuffer::new(&mut message);
    header.set_length((HEADER + asked.len()) as u32);
    header.set_message_type(request);
    header.set_flags(NLM_F_REQUEST | NLM_F_DUMP);
    header.set_sequence_number(1);
    socket.send(&message)?;
    let (mut buffer, mut changed) = (vec![0; BYTES], false);
    loop {
        let len = socket.receive(&mut buffer)?;
        let part = buffer.get(..len).ok_or(ErrorKind::InvalidData)?;
        if take(part, most, messages, &mut changed)? {
            return Ok(changed);
        }
    }
}

/// The messages of a part of an answer; whether it was the last part. The last message has an error number, too: of an
/// answer that is not whole.
fn take(mut left: &[u8], most: usize, messages: &mut Vec<Vec<u8>>, changed: &mut bool) -> IoResult<bool> {
    while let Ok(one) = NetlinkBuffer::new_checked(left) {
        *changed |= one.flags() & NLM_F_DUMP_INTR != 0;
        let errno = || one.payload().first_chunk().map_or(0, |code| i32::from_ne_bytes(*code).wrapping_neg());
        match one.message_type() {
            NLMSG_DONE if errno() <= 0 => return Ok(true),
            NLMSG_DONE | NLMSG_ERROR => return Err(Error::from_raw_os_error(errno())),
            _ => messages.push(one.payload().to_vec()),
        }
        if messages.len() >= most {
            return Ok(true);
        }
        left = left.get((one.length() as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// A socket to the kernel alone: the messages of other processes do not arrive at it.
pub(super) struct Socket(Descriptor);

impl Socket {
    /// `groups`: what the kernel sends unasked.
    pub(super) fn open(groups: u32) -> IoResult<Socket> {
        // The kernel answers within the call that asks, and no read has to wait.
        let flags = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: the call has no preconditions; it returns a new descriptor or an error.
        let socket =
            Descriptor::opened(|| unsafe { libc::socket(libc::AF_NETLINK, flags, libc::NETLINK_ROUTE) });
        let socket = socket.ok_or_else(Error::last_os_error)?;
        // SAFETY: all fields may be zero: the kernel's address.
        let mut kernel: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        kernel.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        let mut own = kernel;
        own.nl_groups = groups;
        let len = std::mem::size_of_val(&kernel) as libc::socklen_t;
        // SAFETY: each address and its length belong together, and the socket is open.
        let rc = unsafe {
            let bound = match groups {
                0 => 0,
                _ => libc::bind(socket.as_raw_fd(), (&raw const own).cast(), len),
            };
            bound | libc::connect(socket.as_raw_fd(), (&raw const kernel).cast(), len)
        };
        match rc {
            0 => Ok(Socket(socket)),
            _ => Err(Error::last_os_error()),
        }
    }

    pub(super) fn descriptor(&self) -> &Descriptor {
        &self.0
    }

    fn send(&self, message: &[u8]) -> IoResult<usize> {
        // SAFETY: the message is readable for its length.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        usize::try_from(sent).map_err(|_| Error::last_os_error())
    }

    /// The length of the next messages, which is beyond the buffer's where that is too short.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> IoResult<usize> {
        let (to, len) = (buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: the buffer is writable for its length.
        let got = unsafe { libc::recv(self.0.as_raw_fd(), to, len, libc::MSG_TRUNC) };
        usize::try_from(got).map_err(|_| Error::last_os_error())
    }
}

/// The attributes of a message, behind its fixed part.
fn attributes(bytes: &[u8], fixed: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let whole = bytes.get(fixed..).unwrap_or_default();
    NlasIterator::new(whole).map_while(Result::ok).map(|one| (one.kind(), one.into_inner())).map(
        |(kind, inner)| {
            let len = inner.first_chunk().map_or(0, |len| usize::from(u16::from_ne_bytes(*len)));
            (kind, inner.get(4..len).unwrap_or_default())
        },
    )
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn text(bytes: &[u8]) -> String {
    let whole = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(whole).into_owned()
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    v4().or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

pub(super) fn link(bytes: &[u8]) -> Option<Link> {
    let flags = number(bytes.get(8..)?)? as i32;
    let mut link = Link {
        index: number(bytes.get(4..)?)?,
        up: flags & libc::IFF_UP != 0,
        loopback: flags & libc::IFF_LOOPBACK != 0,
        carrier: true,
        ..Link::default()
    };
    for (kind, value) in attributes(bytes, LINK_FIXED) {
        match kind {
            libc::IFLA_IFNAME => link.name = text(value),
            libc::IFLA_LINK => link.below = number(value).filter(|below| *below != 0),
            libc::IFLA_LINK_NETNSID => link.elsewhere = true,
            libc::IFLA_MASTER => link.master = number(value),
            libc::IFLA_OPERSTATE => link.carrier = !value.first().is_some_and(|state| DOWN.contains(state)),
            libc::IFLA_LINKINFO => {
                let mut info = attributes(value, 0);
                let kind = info.find(|(kind, _)| *kind == libc::IFLA_INFO_KIND);
                link.kind = kind.map(|(_, kind)| text(kind)).unwrap_or_default();
            }
            _ => {}
        }
    }
    (!link.name.is_empty()).then_some(link)
}

pub(super) fn address(bytes: &[u8]) -> Option<Address> {
    let (prefix, link) = (*bytes.get(1)?, number(bytes.get(4..)?)?);
    let mut flags = u32::from(*bytes.get(2)?);
    let (mut local, mut other, mut expired) = (None, None, false);
    for (kind, value) in attributes(bytes, ADDRESS_FIXED) {
        match kind {
            libc::IFA_LOCAL => local = ip(value),
            libc::IFA_ADDRESS => other = ip(value),
            libc::IFA_CACHEINFO => expired = number(value) == Some(0),
            libc::IFA_FLAGS => flags = number(value).unwrap_or(flags),
            _ => {}
        }
    }
    let (ip, peer) = (local.or(other)?, other.filter(|other| local.is_some_and(|local| local != *other)));
    let has = |flag: u32| flags & flag != 0;
    Some(Address {
        link,
        ip,
        prefix,
        peer,
        secondary: ip.is_ipv4() && has(libc::IFA_F_SECONDARY),
        temporary: ip.is_ipv6() && has(libc::IFA_F_TEMPORARY),
        deprecated: expired || has(libc::IFA_F_DEPRECATED),
        // An optimistic one may be used meanwhile.
        tentative: has(libc::IFA_F_TENTATIVE) && !has(libc::IFA_F_OPTIMISTIC),
        duplicate: has(libc::IFA_F_DADFAILED),
    })
}

/// The routes to other hosts that have a gateway, or lead everywhere.
fn routes(bytes: &[u8], found: &mut Vec<Route>) {
    let [family, len, _, _, _, _, _, class, ..] = *bytes else { return };
    if class != libc::RTN_UNICAST || bytes.len() < ROUTE_FIXED {
        return;
    }
    let base = Route {
        link: 0,
        gateway: None,
        source: None,
        v6: i32::from(family) == libc::AF_INET6,
        default: len == 0,
    };
    let (mut one, mut hops) = (base.clone(), Vec::new());
    for (kind, value) in attributes(bytes, ROUTE_FIXED) {
        match kind {
            libc::RTA_PREFSRC => one.source = ip(value),
            libc::RTA_MULTIPATH => hops = next_hops(value, &base),
            _ => hop(kind, value, &mut one),
        }
    }
    let source = one.source;
    hops.iter_mut().for_each(|hop| hop.source = source);
    hops.push(one);
    found.extend(
        hops.into_iter().filter(|route| route.link != 0 && (route.gateway.is_some() || route.default)),
    );
}

fn hop(kind: u16, value: &[u8], route: &mut Route) {
    match kind {
        libc::RTA_OIF => route.link = number(value).unwrap_or(0),
        libc::RTA_GATEWAY => route.gateway = ip(value),
        // A family, and the address.
        libc::RTA_VIA => route.gateway = value.get(2..).and_then(ip),
        _ => {}
    }
}

fn next_hops(mut bytes: &[u8], base: &Route) -> Vec<Route> {
    let mut hops = Vec::new();
    while let Some(len) = bytes.first_chunk().map(|len| usize::from(u16::from_ne_bytes(*len))) {
        let Some(whole) = bytes.get(..len).filter(|_| len >= NEXT_HOP_FIXED) else { break };
        let mut one = Route { link: number(&whole[4..]).unwrap_or(0), ..base.clone() };
        attributes(whole, NEXT_HOP_FIXED).for_each(|(kind, value)| hop(kind, value, &mut one));
        hops.push(one);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    hops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_of_this_machine_is_read() {
        let network = read().unwrap();
        let lo = network.links.iter().find(|link| link.loopback).unwrap();
        assert!(lo.up && lo.carrier && lo.kind.is_empty());
        let own =
            |ip: &str| network.addresses.iter().find(|address| address.ip == ip.parse::<IpAddr>().unwrap());
        assert_eq!(own("127.0.0.1").map(|address| (address.link, address.prefix)), Some((lo.index, 8)));
        assert_eq!(network.subnet_at([127, 0, 0, 1].into()).as_deref(), Some("127.0.0.0/8"));
        assert_eq!(network.subnet_at([192, 0, 2, 1].into()), None, "an address that no interface has");
    }

    #[test]
    fn answer_ends_with_its_last_message_and_its_error() {
        let message = |kind: u16, body: &[u8]| {
            let mut whole = [&[0; HEADER][..], body].concat();
            let mut header = NetlinkBuffer::new(&mut whole);
            header.set_length((HEADER + body.len()) as u32);
            header.set_message_type(kind);
            whole
        };
        let part = |last: &[u8]| [message(libc::RTM_NEWLINK, &[0; 16]), last.to_vec()].concat();
        let taken = |part: &[u8], most| {
            let (mut messages, mut changed) = (Vec::new(), false);
            let last = take(part, most, &mut messages, &mut changed).map_err(|error| error.raw_os_error());
            (last, messages.len())
        };
        assert_eq!(taken(&part(&[]), 9), (Ok(false), 1));
        assert_eq!(taken(&part(&[]), 1), (Ok(true), 1));
        assert_eq!(taken(&part(&message(NLMSG_DONE, &[0; 4])), 9), (Ok(true), 1));
        assert_eq!(taken(&part(&message(NLMSG_DONE, &[])), 9), (Ok(true), 1));
        let failed = (-libc::ENOBUFS).to_ne_bytes();
        for kind in [NLMSG_DONE, NLMSG_ERROR] {
            assert_eq!(taken(&part(&message(kind, &failed)), 9).0, Err(Some(libc::ENOBUFS)));
        }
    }

    #[test]
    fn cut_messages_are_read_as_far_as_they_go() {
        let whole = [vec![0; 16], vec![8, 0, 3, 0, b'l', b'o', 0, 0], vec![9, 0, 5, 0, 1]].concat();
        for len in 0..whole.len() {
            let _ = (link(&whole[..len]), address(&whole[..len]));
            routes(&whole[..len], &mut Vec::new());
        }
        assert_eq!(link(&whole).map(|link| link.name), Some("lo".into()));
        let mut found = Vec::new();
        let hops = [[12, 0, 9, 0].to_vec(), [200, 0, 0, 0, 2, 0, 0, 0].to_vec()].concat();
        routes(&[vec![2, 0, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0], hops].concat(), &mut found);
        assert!(found.is_empty(), "a next hop that is longer than its list: {found:?}");
    }
}
