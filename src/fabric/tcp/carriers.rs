//! The NIC that carries a connection: by which one its packets leave, and by which they arrive.
//!
//! Which NIC of a host receives is for the sender to decide, by what it has learned from ARP. So
//! each connection is bound to its own NIC where the routes allow that. Where packets arrive by
//! another one, the NIC announces itself; and where that does not help, the connection is that one's.

use super::connection::{Connection, State};
use super::options::Options;
use super::paths::{self, Carriers, Choice, Flow};
use super::socket;
use crate::descriptor::Descriptor;
use crate::status::Result;
use crate::topology::interfaces;
use crate::topology::read::Root;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

/// A device has this long to answer. All of them are in one subnet with the destination, or have a
/// gateway to it.
pub const TURN_NS: u64 = 150_000_000;
/// The most hosts that are remembered.
const REMEMBERED: usize = 256;
/// The most hosts that have connected lately for which the system is asked, each once in this time.
const CALLERS: usize = 1024;
const CALLERS_NS: u64 = 1_000_000_000;
/// How long connections from a host are not bound after one that was bound served nothing.
const UNBOUND_NS: u64 = 60_000_000_000;
/// How often a NIC announces itself to a host, and the time after which that begins anew. The
/// pauses double: a host believes another answer only after a second.
const ANNOUNCED: u32 = 5;
const FORGOTTEN_NS: u64 = 60_000_000_000;
/// The pauses between trials: each doubles the last one.
const PAUSE_LEAST_NS: u64 = 1_000_000_000;
const PAUSE_MOST_NS: u64 = 30_000_000_000;
/// How many addresses near our own are looked at, and one that is far.
const NEAR: u32 = 64;
const FAR: u32 = u32::from_be_bytes([192, 0, 2, 1]);

/// How a destination is dialled: by these devices in turn (0: as the routes say). None: no other NIC
/// leads there.
struct Turns {
    to: IpAddr,
    devices: Vec<u32>,
    at: usize,
}

/// A host to which the NIC has announced itself.
struct Announced {
    host: IpAddr,
    count: u32,
    at_ns: u64,
}

/// What is known of connections from a host by a device.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Caller {
    /// It has learned another NIC than this one from ARP.
    misled: bool,
    /// The way back.
    choice: Option<Choice>,
}

/// Hosts that have connected lately, the devices by which, and when that was. Whoever connects causes questions
/// before any peer has authenticated, so their number has a bound.
#[derive(Default)]
struct Callers(Vec<((IpAddr, u32), u64, Caller)>);

impl Callers {
    /// What is known of one, or is learned now; nothing while there are too many others.
    fn learn(&mut self, asked_for: (IpAddr, u32), now: u64, ask: impl FnOnce() -> Caller) -> Caller {
        self.0.retain(|(_, at, _)| now.saturating_sub(*at) < CALLERS_NS);
        let known = self.0.iter().find(|(known, ..)| *known == asked_for).map(|(.., caller)| *caller);
        known.unwrap_or_else(|| {
            if self.0.len() == CALLERS {
                return Caller::default();
            }
            let caller = ask();
            self.0.push((asked_for, now, caller));
            caller
        })
    }
}

/// A connection that is tried (`return_trial`), and its host.
pub struct Trial {
    pub host: IpAddr,
    pub socket: Descriptor,
    pub until_ns: u64,
}

#[derive(Default)]
pub struct Trials {
    pub current: Option<Trial>,
    count: usize,
    begun_ns: u64,
    pub next_ns: u64,
    pause_ns: u64,
}

impl Trials {
    /// A trial begins; returns its number.
    pub fn begin(&mut self, now: u64) -> usize {
        self.pause_ns = (2 * self.pause_ns).clamp(PAUSE_LEAST_NS, PAUSE_MOST_NS);
        (self.begun_ns, self.next_ns) = (now, now + self.pause_ns);
        self.count = self.count.wrapping_add(1);
        self.count
    }

    /// There is nothing to try. (A way back that does not last is tried more and more seldom.)
    pub fn rest(&mut self, now: u64) {
        if now.saturating_sub(self.begun_ns) > FORGOTTEN_NS {
            self.pause_ns = 0;
        }
        self.next_ns = now + self.pause_ns.max(PAUSE_LEAST_NS);
    }
}

/// What a NIC knows of its paths.
#[derive(Default)]
pub struct Paths {
    /// The NIC's own device, and its name; 0: unknown.
    own: u32,
    name: String,
    /// The device that its sockets are bound to from the start, such as a VRF; 0: none.
    within: u32,
    /// Sockets cannot be bound to the own device.
    unbindable: bool,
    /// The bits of an address that its subnet leaves to hosts (IPv4).
    hosts: u32,
    /// This host's interfaces that lead somewhere; `None`: not read since they have changed.
    interfaces: Option<Vec<u32>>,
    turns: Vec<Turns>,
    announced: Vec<Announced>,
    callers: Callers,
    /// Connections from there ended before they had a peer, once bound; and when.
    unbound: Vec<(IpAddr, u64)>,
    pub trials: Trials,
}

impl Paths {
    /// The listeners of an interface, and the address of both. The second one, where other NICs lead
    /// to the same hosts, is for what arrives by this NIC: the answers leave by it, too. (Answers
    /// of the first one leave as the routes say, and the other NIC's ARP would name itself.)
    pub fn listen(
        name: &str,
        at: SocketAddr,
        network: &str,
        options: &Options,
    ) -> Result<(Vec<Descriptor>, SocketAddr, Paths)> {
        let own = paths::index_of(name);
        let (first, at) = match (socket::listen(at, 0, options), paths::master_of(name)) {
            // An address within a VRF exists for sockets of the VRF alone.
            (Err(error), Some(vrf)) if error.provider_errno == libc::EADDRNOTAVAIL => {
                socket::listen(at, vrf, options)?
            }
            (listener, _) => listener?,
        };
        let within = socket::device(first.as_fd());
        let mut paths = Paths { within, name: name.to_owned(), ..Paths::default() };
        paths.is_at(own, network);
        Ok((paths.with_second(first, at, options), at, paths))
    }

    /// Listeners at another address of the same interface.
    pub fn listen_at(&mut self, at: SocketAddr, options: &Options) -> Result<Vec<Descriptor>> {
        let (first, at) = socket::listen_at(at, self.within, options)?;
        Ok(self.with_second(first, at, options))
    }

    fn with_second(&mut self, first: Descriptor, at: SocketAddr, options: &Options) -> Vec<Descriptor> {
        let shares = self.shares(at, options);
        let second = shares.then(|| socket::listen_by(self.own, first.as_fd(), at, options));
        std::iter::once(first).chain(second.flatten()).collect()
    }

    /// The interface has this index now, and is in this network.
    pub fn is_at(&mut self, own: u32, network: &str) {
        let bits = network.rsplit_once('/').and_then(|(_, bits)| bits.parse::<u32>().ok());
        self.hosts = bits.filter(|bits| (1..31).contains(bits)).map_or(0, |bits| u32::MAX >> bits);
        self.own = own;
        self.unbindable = own != 0 && !socket::may_bind(Ipv4Addr::LOCALHOST.into(), own);
    }

    /// The index and the name of the NIC's own device.
    pub fn own(&self) -> (u32, &str) {
        (self.own, &self.name)
    }

    /// The network has changed: what is known of it holds no longer.
    pub fn forget(&mut self) {
        self.interfaces = None;
        self.turns.clear();
        self.callers.0.clear();
    }

    /// The other NICs of this host that lead to a destination as well as this one.
    fn beside(&mut self, flow: &Flow) -> Vec<u32> {
        let all = self.interfaces.get_or_insert_with(paths::interfaces);
        paths::beside(self.own, flow, all)
    }

    fn flow(&self, from: IpAddr, to: SocketAddr, options: &Options) -> Flow {
        Flow { from, to, dscp: options.dscp, within: self.within }
    }

    /// Another address of the subnet.
    fn near(&self, own: Ipv4Addr, distance: u32) -> Ipv4Addr {
        let own = u32::from(own);
        (own & !self.hosts | own.wrapping_add(distance) & self.hosts).into()
    }

    /// Whether others of this host's NICs lead to the hosts of this network, and this one leads
    /// wherever connections may come from: then what arrives by it is answered by it. (IPv6
    /// neighbours learn of a NIC's own addresses alone, which need no second listener.)
    fn shares(&mut self, at: SocketAddr, options: &Options) -> bool {
        let IpAddr::V4(own) = at.ip() else { return false };
        if self.within != 0 || self.hosts == 0 || paths::is_strict(self.own) {
            return false;
        }
        let is_host = |ip: &Ipv4Addr| ![0, self.hosts].contains(&(u32::from(*ip) & self.hosts));
        let mut near = (1..=NEAR.min(self.hosts)).map(|i| self.near(own, i)).filter(is_host);
        let flow = |to: Ipv4Addr| self.flow(at.ip(), SocketAddr::new(to.into(), 1), options);
        let leads = |to| paths::choice(self.own, &flow(to)).map(|choice| (to, choice.leads));
        let Some((near, true)) = near.find_map(leads) else { return false };
        let far = paths::choice(self.own, &flow(FAR.into()));
        let far =
            far.is_none_or(|far| far.leads || far.device == self.own || options.nics.contains(&far.device));
        let flow = flow(near);
        far && !self.beside(&flow).is_empty()
    }

    /// The device to bind a socket to that dials a destination (0: none), and what will carry it.
    pub fn dial(&mut self, at: SocketAddr, to: SocketAddr, options: &Options) -> (u32, Carriers) {
        let own = Carriers::both(self.own);
        let flow = self.flow(at.ip(), to, options);
        let Some(choice) = paths::choice(self.own, &flow) else { return (self.within, own) };
        if !choice.leads || self.unbindable {
            return (self.within, Carriers { leaves: choice.device, ..own });
        }
        if to.is_ipv4() && choice.device != self.own && paths::is_strict(self.own) {
            // What the destination sends to this NIC is dropped.
            return (self.within, Carriers::both(choice.device));
        }
        if self.turns_of(to.ip()).is_none() {
            let others = self.beside(&flow);
            let mut devices = if others.is_empty() { Vec::new() } else { vec![self.own] };
            if to.is_ipv4() && paths::stray_setting(self.own, &others).is_some() {
                devices.extend(others.into_iter().chain([0]));
            }
            self.turns.truncate(REMEMBERED);
            self.turns.insert(0, Turns { to: to.ip(), devices, at: 0 });
        }
        match self.turns_of(to.ip()).and_then(|turns| turns.devices.get(turns.at)) {
            None => (self.within, own),
            Some(0) => (self.within, Carriers::both(choice.device)),
            Some(device) => (*device, Carriers::both(*device)),
        }
    }

    fn turns_of(&self, host: IpAddr) -> Option<&Turns> {
        self.turns.iter().find(|turns| turns.to == host)
    }

    /// Whether other NICs of this host lead to a destination that is dialled. (The network may have changed
    /// since that began.)
    pub fn takes_turns(&mut self, at: SocketAddr, to: SocketAddr, options: &Options) -> bool {
        if self.turns_of(to.ip()).is_none() {
            self.dial(at, to, options);
        }
        self.leads_beside(to.ip())
    }

    fn leads_beside(&self, host: IpAddr) -> bool {
        self.turns_of(host).is_some_and(|turns| !turns.devices.is_empty())
    }

    /// A host does not answer by the device that it was dialled by: its answer may have arrived by
    /// another one, so the NIC announces itself; and then the next device has its turn. True
    /// if dialling again may help. (While the NIC itself is down, nothing takes its place.)
    pub fn advance(&mut self, at: SocketAddr, host: IpAddr, tried: Carriers, now: u64) -> bool {
        if self.is_down() {
            return false;
        }
        let own = tried.leaves == self.own;
        if let Some(announced) = own.then(|| self.announce(at.ip(), host, now)).flatten() {
            return announced;
        }
        let turns = self.turns.iter_mut().find(|turns| turns.to == host && !turns.devices.is_empty());
        let Some(turns) = turns else { return false };
        if turns.devices[turns.at] == tried.leaves || turns.devices[turns.at] == 0 {
            turns.at = (turns.at + 1) % turns.devices.len();
        }
        turns.devices.len() > 1
    }

    fn is_down(&self) -> bool {
        let own = paths::name_of(self.own);
        own.is_none_or(|own| interfaces::is_down(&Root::from_environment(), &own))
    }

    /// Lets a host learn that the NIC has our address: from a question for its own MAC, if the system
    /// has to ask for that, and from one for another. Whether that was done now; `None` once that was
    /// done often enough in vain, or while it is done for too many other hosts.
    fn announce(&mut self, own: IpAddr, host: IpAddr, now: u64) -> Option<bool> {
        let IpAddr::V4(ip) = own else { return None };
        self.announced.retain(|announced| now.saturating_sub(announced.at_ns) < FORGOTTEN_NS);
        let at = match self.announced.iter().position(|announced| announced.host == host) {
            Some(at) => at,
            // Hosts that took each other's places would begin anew each time.
            None if self.announced.len() == REMEMBERED => return None,
            None => {
                self.announced.push(Announced { host, count: 0, at_ns: 0 });
                self.announced.len() - 1
            }
        };
        let announced = &mut self.announced[at];
        if announced.count == ANNOUNCED {
            return None;
        }
        if announced.at_ns != 0 && now.saturating_sub(announced.at_ns) < (TURN_NS / 2) << announced.count {
            return Some(false);
        }
        (announced.count, announced.at_ns) = (announced.count + 1, now);
        self.ask_for(ip, host, now);
        Some(true)
    }

    fn ask_for(&self, own: Ipv4Addr, host: IpAddr, now: u64) {
        socket::announce(own.into(), host, self.own);
        if self.hosts > 1 {
            let distance = (now as u32 >> 10).wrapping_mul(0x9e37_79b1) >> 8;
            socket::announce(own.into(), self.near(own, distance.max(1)).into(), self.own);
        }
    }

    /// Announces the NIC to a host, and begins to connect by its own device, if the routes lead there by it.
    pub fn try_return(
        &self,
        at: SocketAddr,
        to: SocketAddr,
        options: &Options,
        now: u64,
    ) -> Option<Descriptor> {
        let IpAddr::V4(ip) = at.ip() else { return None };
        if !self.is_misled(&self.flow(at.ip(), to, options)) {
            return None;
        }
        self.ask_for(ip, to.ip(), now);
        socket::connect(at, to, self.own, options).ok()
    }

    /// What carries an accepted connection, which is bound to the NIC that it arrived by if the
    /// routes lead back by that one, too. `None`: the host should connect again, since it
    /// was announced that another NIC has the address.
    pub fn accept(
        &mut self,
        socket: BorrowedFd,
        at: SocketAddr,
        from: SocketAddr,
        options: &Options,
        now: u64,
    ) -> Option<Carriers> {
        let bound = socket::device(socket);
        if bound != 0 && bound != self.within {
            return Some(Carriers::both(bound));
        }
        let arrives = socket::arrival(socket, at.is_ipv4()).filter(|device| *device != self.within);
        let arrives = arrives.unwrap_or(self.own);
        let mut callers = std::mem::take(&mut self.callers);
        let caller = callers.learn((from.ip(), arrives), now, || {
            let flow = self.flow(at.ip(), from, options);
            let misled = arrives != self.own && self.is_misled(&flow);
            Caller { misled, choice: paths::choice(arrives, &flow) }
        });
        self.callers = callers;
        if caller.misled && self.announce(at.ip(), from.ip(), now).is_some() {
            self.warn_of_answers(arrives, at.ip(), options);
            return None;
        }
        let Some(Choice { device, leads }) = caller.choice else {
            return Some(Carriers::both(self.own));
        };
        self.unbound.retain(|(_, at)| now.saturating_sub(*at) < UNBOUND_NS);
        let steady = !self.unbound.iter().any(|(host, _)| *host == from.ip());
        let binds = leads && device != arrives && steady;
        Some(match binds && socket::bind_device(socket, arrives) {
            true => Carriers { bound: true, ..Carriers::both(arrives) },
            false => Carriers { leaves: device, ..Carriers::both(arrives) },
        })
    }

    /// Whether a host has learned a wrong NIC from ARP: this one leads to it as well, and is up.
    fn is_misled(&self, flow: &Flow) -> bool {
        let leads = paths::choice(self.own, flow).is_some_and(|choice| choice.leads);
        leads && self.within == 0 && !self.is_down() && !paths::is_strict(self.own)
    }

    /// A connection has ended. One that was bound, over which nothing came, shows that this was no way; after
    /// one that served, the NIC's own device has its turn again.
    pub fn ended(&mut self, at: SocketAddr, one: &Connection, now: u64) {
        let Some(host) = one.host() else { return };
        match (one.dialed, one.state == State::Up) {
            (true, true) => {
                self.turns.retain(|turns| turns.to != host);
                self.announced.retain(|announced| announced.host != host);
            }
            (true, false) if !self.leads_beside(host) => self.turns.retain(|turns| turns.to != host),
            (true, false) if one.state == State::Handshaking => {
                self.advance(at, host, one.carriers, now);
            }
            (false, _) if one.owner().is_none() && one.carriers.bound && !one.has_closed() => {
                self.unbound.truncate(REMEMBERED);
                self.unbound.insert(0, (host, now));
            }
            _ => {}
        }
    }

    /// The names of a connection's carriers, where those are other NICs; the first time, a warning
    /// says why.
    pub fn elsewhere(
        &self,
        carriers: Carriers,
        own_ip: IpAddr,
        host: Option<IpAddr>,
        options: &Options,
    ) -> [Option<String>; 2] {
        let other = |device: u32| (![0, self.own].contains(&device) && self.own != 0).then_some(device);
        let devices = [other(carriers.leaves), other(carriers.arrives)];
        if devices != [None, None] && !options.warned.swap(true, Ordering::Relaxed) {
            self.explain(devices, own_ip, host);
        }
        devices.map(|device| paths::name_of(device?))
    }

    /// Warns once that another NIC answers for this one.
    fn warn_of_answers(&self, arrives: u32, ip: IpAddr, options: &Options) {
        let Some(cure) = paths::stray_setting(self.own, &[arrives]) else { return };
        let names = (paths::name_of(self.own), paths::name_of(arrives));
        if let ((Some(own), Some(other)), false) = (names, options.warned.swap(true, Ordering::Relaxed)) {
            log::warn!(
                "packets for {own} ({ip}) arrived by {other}, which answers ARP in its place: {own} announces itself to \
                 hosts when they connect, which may forget it; set {cure} on this host"
            );
        }
    }

    fn explain(&self, [leaves, arrives]: [Option<u32>; 2], ip: IpAddr, host: Option<IpAddr>) {
        let name = |device| paths::name_of(device).unwrap_or_else(|| format!("interface {device}"));
        let own = name(self.own);
        let Some(device) = arrives else {
            let other = leaves.map_or_else(String::new, name);
            let cure = match host.filter(|host| !paths::is_beside(self.own, *host)) {
                None => format!("a route by {own} with the same prefix changes that"),
                Some(host) => format!(
                    "{host} is not in a subnet of {own}: the peer lacks a rail there, or this host a route by {own} \
                     with the same prefix"
                ),
            };
            return log::warn!(
                "packets from {own} ({ip}) leave by {other}, as the routes of this host say: what they carry counts for \
                 {other}, and {own} is no way around it; {cure}"
            );
        };
        let other = name(device);
        let setting = paths::stray_setting(self.own, &[device]);
        let cure = setting.unwrap_or_else(|| "net.ipv4.conf.all.arp_announce=2".into());
        log::warn!(
            "packets for {own} ({ip}) arrive by {other}: what they carry counts for {other}, and {own} is no way around it; \
             set {cure} on this host"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_finds_no_place_is_not_turned_away_for_ever() {
        let (mut paths, own) =
            (Paths { own: paths::index_of("lo"), ..Paths::default() }, [127, 0, 0, 1].into());
        let host = |i: usize| IpAddr::from([127, 1, (i >> 8) as u8, i as u8]);
        assert!((0..REMEMBERED).all(|i| paths.announce(own, host(i), 1) == Some(true)));
        assert_eq!(paths.announce(own, host(REMEMBERED), 1), None);
        assert_eq!(paths.announce(own, host(0), 1), Some(false));
        assert_eq!(paths.announce(own, host(REMEMBERED), 2 * FORGOTTEN_NS), Some(true));
    }

    #[test]
    fn questions_about_callers_are_bounded() {
        let (mut callers, mut asked) = (Callers::default(), 0);
        let host = |i: usize| IpAddr::from([10, 3, (i / 256) as u8, i as u8]);
        let misled = Caller { misled: true, choice: None };
        let mut learn = |i: usize, now| {
            let caller = callers.learn((host(i), 1), now, || {
                asked += 1;
                misled
            });
            (caller, asked)
        };
        for round in 1..=3 {
            (0..CALLERS).for_each(|i| assert_eq!(learn(i, round).0, misled));
        }
        assert_eq!(learn(CALLERS, 4), (Caller::default(), CALLERS), "not asked for");
        assert_eq!(learn(CALLERS, 4 + CALLERS_NS), (misled, CALLERS + 1));
    }
}
