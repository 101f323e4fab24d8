//! The NIC that carries a connection: by which one its packets leave, and by which they arrive.
//!
//! Which NIC of a host receives is for the sender to decide, by what ARP has answered. So each
//! connection is bound to its own NIC where the routes allow that, and where packets arrive by
//! another one all the same, the connection is that one's.

use super::accept::watch;
use super::connection::{Connection, State};
use super::nic::TcpNic;
use super::options::Options;
use super::paths::{self, Choice, Flow};
use super::socket;
use crate::descriptor::Descriptor;
use crate::topology::interfaces;
use crate::topology::read::Root;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

/// The NICs of a connection's two directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Carriers {
    pub leaves: u32,
    pub arrives: u32,
    /// The socket was bound to them when it was accepted.
    bound: bool,
}

/// How a destination is dialled: by these devices in turn (0: as the routes say), each for a moment.
pub struct Turns {
    to: IpAddr,
    devices: Vec<u32>,
    at: usize,
}

/// Each device has this long to answer. All of them are in one subnet with the destination, or have
/// a gateway to it.
const TURN_NS: u64 = 150_000_000;
/// The most destinations that are remembered.
const REMEMBERED: usize = 256;
/// How long connections from a host are not bound after one that was bound served nothing.
const UNBOUND_NS: u64 = 60_000_000_000;

impl Carriers {
    fn both(device: u32) -> Carriers {
        Carriers { leaves: device, arrives: device, bound: false }
    }
}

/// What a NIC knows of its paths.
#[derive(Default)]
pub struct Paths {
    /// The NIC's own device; 0: unknown.
    own: u32,
    /// The device that its sockets are bound to from the start, such as a VRF; 0: none.
    within: u32,
    turns: Vec<Turns>,
    /// Connections from there ended before they had a peer, once bound; and when.
    unbound: Vec<(IpAddr, u64)>,
}

impl Paths {
    /// The listeners of an interface, and the address of both. The second one, where other NICs lead
    /// to the same hosts, is for what arrives by this NIC: the answers leave by it, too.
    pub fn listen(
        name: &str,
        (at, network): (SocketAddr, &str),
        options: &Options,
    ) -> crate::status::Result<(Vec<Descriptor>, SocketAddr, Paths)> {
        let own = paths::index_of(name);
        let (first, at) = match (socket::listen(at, 0, options), paths::master_of(name)) {
            // An address within a VRF exists for sockets of the VRF alone.
            (Err(error), Some(vrf)) if error.provider_errno == libc::EADDRNOTAVAIL => {
                socket::listen(at, vrf, options)?
            }
            (listener, _) => listener?,
        };
        let within = socket::device(first.as_fd());
        let paths = Paths { own, within, ..Paths::default() };
        let second =
            (paths.shares(at, network, options)).then(|| socket::listen_by(own, first.as_fd(), at, options));
        Ok((std::iter::once(first).chain(second.flatten()).collect(), at, paths))
    }

    /// A listener at another address of the same interface.
    pub fn listen_also(&self, at: SocketAddr, options: &Options) -> Option<Descriptor> {
        let listener = socket::listen_at(at, self.within, options);
        let failed = |error: &crate::status::Error| log::debug!("the NIC does not serve at {at}: {error}");
        listener.inspect_err(failed).ok().map(|(listener, _)| listener)
    }

    fn flow(&self, from: IpAddr, to: SocketAddr, options: &Options) -> Flow {
        Flow { from, to, dscp: options.dscp, within: self.within }
    }

    /// Whether others of this host's NICs lead to the hosts of this network, and this one leads
    /// wherever connections may come from: then what arrives by it is answered by it. (IPv6 tells
    /// neighbours only about the NIC's own addresses, and needs no second listener.)
    fn shares(&self, at: SocketAddr, network: &str, options: &Options) -> bool {
        let IpAddr::V4(own) = at.ip() else { return false };
        let bits = network.rsplit_once('/').and_then(|(_, bits)| bits.parse::<u32>().ok());
        let Some(bits) = bits.filter(|bits| (1..31).contains(bits) && self.within == 0) else { return false };
        let (own, hosts) = (u32::from(own), u32::MAX >> bits);
        let near = (1..=NEAR.min(hosts)).map(|i| own & !hosts | own.wrapping_add(i) & hosts);
        let near = near.filter(|near| near & hosts != 0 && near & hosts != hosts);
        let flow =
            |to: u32| self.flow(at.ip(), SocketAddr::new(std::net::Ipv4Addr::from(to).into(), 1), options);
        let leads = |to: u32| paths::choice(self.own, &flow(to)).map(|choice| (to, choice.leads));
        let Some((near, true)) = near.into_iter().find_map(leads) else { return false };
        let far = paths::choice(self.own, &flow(FAR));
        let far =
            far.is_none_or(|far| far.leads || far.device == self.own || options.nics.contains(&far.device));
        far && !paths::beside(self.own, &flow(near)).is_empty()
    }

    /// The device to bind a socket to that dials a destination (0: none), and what will carry it.
    pub fn dial(&mut self, at: SocketAddr, to: SocketAddr, options: &Options) -> (u32, Carriers) {
        let own = Carriers::both(self.own);
        let flow = self.flow(at.ip(), to, options);
        let Some(choice) = paths::choice(self.own, &flow) else { return (self.within, own) };
        if !choice.leads {
            return (self.within, Carriers { leaves: choice.device, ..own });
        }
        if !self.turns.iter().any(|turns| turns.to == to.ip()) {
            let others = paths::beside(self.own, &flow);
            if others.is_empty() {
                return (self.within, own);
            }
            let mut devices = vec![self.own];
            if to.is_ipv4() && paths::stray_setting(self.own, &others).is_some() {
                devices.extend(others.into_iter().chain([0]));
            }
            self.turns.truncate(REMEMBERED);
            self.turns.insert(0, Turns { to: to.ip(), devices, at: 0 });
        }
        match self.turns.iter().find(|turns| turns.to == to.ip()).map_or(0, |turns| turns.devices[turns.at]) {
            0 => (self.within, Carriers::both(choice.device)),
            device => (device, Carriers::both(device)),
        }
    }

    /// What carries an accepted connection, which is bound to the NIC that it arrived by if the
    /// routes lead back by that one, too.
    fn accept(
        &self,
        socket: BorrowedFd,
        (at, from): (SocketAddr, SocketAddr),
        options: &Options,
    ) -> Carriers {
        let bound = socket::device(socket);
        if bound != 0 && bound != self.within {
            return Carriers::both(bound);
        }
        let arrives = socket::arrival(socket, at.is_ipv4()).filter(|device| *device != self.within);
        let arrives = arrives.unwrap_or(self.own);
        let choice = paths::choice(arrives, &self.flow(at.ip(), from, options));
        let Some(Choice { device, leads }) = choice else { return Carriers::both(arrives) };
        let binds = leads
            && device != arrives
            && self.within == 0
            && !self.unbound.iter().any(|(host, _)| *host == from.ip());
        match binds && socket::bind_device(socket, arrives) {
            true => Carriers { bound: true, ..Carriers::both(arrives) },
            false => Carriers { leaves: device, ..Carriers::both(arrives) },
        }
    }

    /// A connection has ended. One that was bound and never served shows that this was no way; after
    /// one that served, the NIC's own device has its turn again.
    pub fn ended(&mut self, one: &Connection, now: u64) {
        let Some(host) = one.host() else { return };
        match (one.dialed, one.state == State::Up) {
            (true, true) => self.turns.retain(|turns| turns.to != host),
            (true, false) if one.state == State::Handshaking => self.advance(host, one.carriers),
            (false, _) if one.owner().is_none() && one.carriers.bound => {
                self.unbound.truncate(REMEMBERED);
                self.unbound.insert(0, (host, now));
            }
            _ => {}
        }
    }

    fn takes_turns(&self, host: IpAddr) -> bool {
        self.turns.iter().any(|turns| turns.to == host && turns.devices.len() > 1)
    }

    /// The device by which a host was dialled has had its turn. (While the NIC itself is down,
    /// nothing takes its place.)
    fn advance(&mut self, host: IpAddr, tried: Carriers) {
        let own = paths::name_of(self.own);
        if own.is_none_or(|own| interfaces::is_down(&Root::from_environment(), &own)) {
            return;
        }
        let Some(turns) = self.turns.iter_mut().find(|turns| turns.to == host) else { return };
        if turns.devices[turns.at] == tried.leaves || turns.devices[turns.at] == 0 {
            turns.at = (turns.at + 1) % turns.devices.len();
        }
    }

    /// The names of a connection's carriers, where those are other NICs; the first time, a warning
    /// says why.
    pub fn elsewhere(&self, carriers: Carriers, at: SocketAddr, options: &Options) -> [Option<String>; 2] {
        let other = |device: u32| (![0, self.own].contains(&device) && self.own != 0).then_some(device);
        let devices = [other(carriers.leaves), other(carriers.arrives)];
        if devices != [None, None] && !options.warned.swap(true, Ordering::Relaxed) {
            self.explain(devices, at.ip());
        }
        devices.map(|device| paths::name_of(device?))
    }

    fn explain(&self, [leaves, arrives]: [Option<u32>; 2], ip: IpAddr) {
        let name = |device| paths::name_of(device).unwrap_or_else(|| format!("interface {device}"));
        let own = name(self.own);
        let Some(device) = arrives else {
            let other = leaves.map_or_else(String::new, name);
            return log::warn!(
                "packets from {own} ({ip}) leave by {other}, as the routes of this host say: what they carry counts for \
                 {other}, and {own} is no way around it; a route by {own} with the same prefix changes that"
            );
        };
        let other = name(device);
        let setting = paths::stray_setting(self.own, &[device]);
        let cure = setting.map_or_else(
            || "the hosts that send them have learned that from this host's ARP: set net.ipv4.conf.all.arp_announce=2".into(),
            |setting| format!("set {setting} on this host"),
        );
        log::warn!(
            "packets for {own} ({ip}) arrive by {other}: what they carry counts for {other}, and {own} is no way around it; {cure}"
        );
    }
}

impl TcpNic {
    /// What carries an accepted connection.
    pub(super) fn carry_accepted(&mut self, socket: BorrowedFd, from: SocketAddr) -> Carriers {
        let now = self.clock.now();
        self.paths.unbound.retain(|(_, at)| now.saturating_sub(*at) < UNBOUND_NS);
        self.paths.accept(socket, (self.own_for(from), from), &self.options)
    }

    /// Dials by other devices where one does not answer.
    pub(super) fn turn(&mut self, now: u64) {
        for at in 0..self.connections.len() as u32 {
            let waits = |one: &&mut Connection| {
                one.state == State::Dialing && now.saturating_sub(one.tried_ns) > TURN_NS
            };
            let Some(one) = self.connection(at).filter(waits) else { continue };
            let (Some(to), carriers) = (one.far, one.carriers) else { continue };
            one.tried_ns = now;
            if !self.paths.takes_turns(to.ip()) {
                continue;
            }
            self.paths.advance(to.ip(), carriers);
            let (device, next) = self.paths.dial(self.at, to, &self.options);
            if next == carriers {
                continue;
            }
            let Ok(socket) = socket::connect(self.at, to, device, &self.options) else { continue };
            if watch(&self.epoll, socket.as_fd(), at.into()).is_err() {
                continue;
            }
            if let Some(one) = self.connection(at) {
                one.try_again(socket, next, now);
            }
        }
    }
}

/// How many addresses near our own are looked at, and one that is far.
const NEAR: u32 = 64;
const FAR: u32 = u32::from_be_bytes([192, 0, 2, 1]);
