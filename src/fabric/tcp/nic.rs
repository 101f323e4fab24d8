//! A NIC of the fabric of TCP sockets: a listener, and one connection to each NIC that it
//! communicates with.

use super::carriers::Paths;
use super::connection::{Connection, Moving, State};
use super::devices::Devices;
use super::interfaces::Interface;
use super::listener::{self, Listener, DISKS, LISTENER, NEWS};
use super::options::Options;
use super::outgoing::descriptor_of;
use super::routes::{Target, NOBODY};
use super::sealed::OTHER_SECRET;
use super::socket;
use super::stream::{Spare, SINK};
use crate::clock::{Clock, Random};
use crate::device::{driver, Device};
use crate::fabric::grants::Grants;
use crate::fabric::own;
use crate::fabric::own::epoll::Epoll;
use crate::fabric::own::routes::Routes;
use crate::fabric::registry::Registry;
use crate::fabric::{
    Access, Buffer, Connection as Number, HostRange, Limits, LinkState, Nic, Posted, Reaped, Registration,
    Rejected, Resets, Rma, Route, Scratch, Segment, Socket, Way, MAY_FAULT, SECRETS_DIFFER,
};
use crate::ids::{GrantToken, PeerId};
use crate::status::{Error, Result, Status};
use crate::topology::link::Link;
use crate::topology::network::Watch;
use crate::topology::read::Root;
use crate::wire::tcp::{Kind, Name, MESSAGE, PIECES};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

/// Bytes that one pass moves per connection.
const PASS: u64 = 1 << 20;
/// The most events read at once.
const EVENTS: usize = 64;
/// The events of a connection.
pub const HEEDED: i32 = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;

pub struct TcpNic {
    limits: Limits,
    pub(super) clock: Clock,
    pub(super) random: Random,
    pub(super) options: Arc<Options>,
    pub(super) name: Name,
    pub(super) at: SocketAddr,
    /// Another address, with the same port.
    pub(super) other: Option<IpAddr>,
    pub(super) address: Vec<u8>,
    /// None once the NIC is closed.
    pub(super) listeners: Vec<Listener>,
    /// Tells of changes of the network, of which there is news.
    pub(super) watch: Option<Watch>,
    pub(super) news: bool,
    /// The interface's link, and its state when there was news of it (`link_news`).
    link: (Link, LinkState),
    pub(super) link_news: bool,
    /// The interface's addresses may have changed, and were not read since.
    pub(super) outdated: bool,
    /// The interface has no address now.
    pub(super) homeless: bool,
    /// The network to which the NIC has moved (`take_moved`).
    pub(super) moved_to: Option<String>,
    pub(super) paths: Paths,
    pub(super) epoll: Epoll,
    pub(super) routes: Routes<Target>,
    pub(super) connections: Vec<Option<Box<Connection>>>,
    last_number: Number,
    /// Connections that may have work.
    active: Vec<u32>,
    next_active: Vec<u32>,
    /// Handshakes for connections beside others wait for their announcement.
    pub(super) besides_wait: bool,
    /// A connection waits to be accepted.
    pub(super) calls: bool,
    /// The number of passes.
    pass: u32,
    pub(super) paused_until: u64,
    pub(super) looked_ns: u64,
    /// What `take_rejected` returns.
    pub(super) rejected: Vec<Rejected>,
    pub(super) registry: Registry,
    receives: VecDeque<(Buffer, *mut Scratch)>,
    /// Finished between two calls of `reap`.
    pub(super) finished: Vec<Reaped>,
    spare: Spare,
    pub(super) devices: Devices,
    /// A buffer for discarded bytes.
    pub(super) sink: Box<[u8]>,
}

// SAFETY: the pointers are the rail's, which moves with its NIC.
unsafe impl Send for TcpNic {}

impl TcpNic {
    pub fn open(interface: &Interface, options: Arc<Options>) -> Result<TcpNic> {
        let (clock, random) = (Clock::System, Random::System);
        let name = random.u128()?.to_le_bytes();
        let (listeners, at, paths) =
            Paths::listen(&interface.name, interface.address, &interface.network, &options)?;
        let epoll = Epoll::new()?;
        let limits = Limits {
            failures_reset: true,
            reconnects: true,
            resets: Resets::Lane,
            vector: PIECES,
            message_max: MESSAGE,
            ..own::LIMITS
        };
        let mut nic = TcpNic {
            limits,
            clock,
            random,
            name,
            at,
            other: None,
            address: Vec::new(),
            options,
            listeners: Vec::new(),
            watch: listener::watch(&epoll),
            news: false,
            link: (Link::find(Root::from_environment(), &interface.name), LinkState::Up),
            link_news: true,
            outdated: false,
            homeless: false,
            moved_to: None,
            paths,
            epoll,
            routes: Routes::default(),
            connections: Vec::new(),
            last_number: 0,
            active: Vec::new(),
            next_active: Vec::new(),
            besides_wait: false,
            calls: false,
            pass: 0,
            paused_until: 0,
            looked_ns: 0,
            rejected: Vec::new(),
            registry: Registry::default(),
            receives: VecDeque::new(),
            finished: Vec::new(),
            spare: Spare::default(),
            devices: Devices::default(),
            sink: vec![0; SINK].into_boxed_slice(),
        };
        for listener in listeners {
            nic.listen(at.ip(), listener)?;
        }
        let other = interface.other.filter(|_| nic.options.at.ip().is_none());
        nic.other = other.filter(|ip| nic.listen_at(SocketAddr::new(*ip, at.port())));
        nic.address = nic.full_address();
        Ok(nic)
    }

    /// Bytes of the connections' buffers.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.connections.iter().flatten().map(|one| one.held()).sum()
    }

    // Connections.

    pub(super) fn connection(&mut self, at: u32) -> Option<&mut Connection> {
        self.connections.get_mut(at as usize).and_then(Option::as_deref_mut)
    }

    /// The index of a connection with this number, unless it has ended and another uses the slot.
    pub(super) fn numbered(&self, number: Number) -> Option<u32> {
        let is_it = |one: &Option<Box<Connection>>| one.as_ref().is_some_and(|one| one.number == number);
        self.connections.iter().position(is_it).map(|at| at as u32)
    }

    pub(super) fn add(&mut self, mut connection: Connection) -> Result<u32> {
        self.last_number = self.last_number.wrapping_add(1).max(1);
        connection.number = self.last_number;
        let at = self.connections.iter().position(Option::is_none).unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        if let Some(socket) = connection.socket() {
            self.epoll.add(socket.as_raw_fd(), HEEDED, at as u64)?;
        }
        self.connections[at] = Some(Box::new(connection));
        self.list(at as u32);
        Ok(at as u32)
    }

    pub(super) fn list(&mut self, at: u32) {
        if let Some(connection) = self.connection(at).filter(|connection| !connection.listed) {
            connection.listed = true;
            self.active.push(at);
        }
    }

    /// A connection, and the parts of the NIC that its progress uses.
    #[inline]
    fn moving<'a>(
        &'a mut self,
        at: u32,
        reaped: Option<&'a mut Vec<Reaped>>,
    ) -> Option<(&'a mut Connection, Moving<'a>)> {
        let connection = self.connections.get_mut(at as usize)?.as_deref_mut()?;
        let with = Moving {
            registry: &mut self.registry,
            receives: &mut self.receives,
            reaped: reaped.unwrap_or(&mut self.finished),
            spare: &mut self.spare,
            pool: &mut self.devices.pool,
            sink: &mut self.sink,
            pass: self.pass,
            budget: PASS,
        };
        Some((connection, with))
    }

    /// Sends a connection's queued bytes immediately.
    #[inline]
    fn pump(&mut self, at: u32) {
        let Some((connection, mut with)) = self.moving(at, None) else { return };
        match connection.pump(&mut with) {
            Err(errno) => self.end(at, errno),
            Ok(()) if connection.has_work() => self.list(at),
            Ok(()) => {}
        }
    }

    /// Queues operations on a connection.
    ///
    /// # Safety
    /// Like `Nic::rma`.
    #[inline]
    unsafe fn post(
        &mut self,
        rma: &Rma<'_>,
        leads: std::result::Result<u32, i32>,
        scratches: &[*mut Scratch],
    ) -> (usize, Posted) {
        let segments = rma.segments.len() / scratches.len().max(1);
        let at = match leads {
            Ok(at) if segments > 0 => at,
            Ok(_) => return (0, Posted::Failed(libc::EINVAL)),
            Err(errno) => return (0, Posted::Failed(errno)),
        };
        let kind = if rma.read { Kind::Read } else { Kind::Write };
        let Some(connection) = self.connection(at) else { return (0, Posted::Failed(libc::ENOTCONN)) };
        for (segments, scratch) in rma.segments.chunks_exact(segments).zip(scratches) {
            connection.push(kind, &Rma { segments, ..*rma }, *scratch);
        }
        if rma.more {
            self.list(at);
        } else {
            self.pump(at);
        }
        (scratches.len(), Posted::Yes)
    }

    // A pass.

    /// Queries the system for connections that have work.
    fn look(&mut self) -> bool {
        let mut any = false;
        for (what, at) in self.epoll.ready::<EVENTS>() {
            any = true;
            if at >= DISKS {
                self.calls |= at == LISTENER;
                self.news |= at == NEWS;
                self.devices.heard |= at == DISKS;
                continue;
            }
            let has = |flags: i32| what & flags as u32 != 0;
            let ends = has(libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR);
            if let Some(connection) = self.connection(at as u32) {
                connection.heed(has(libc::EPOLLIN), has(libc::EPOLLOUT), ends);
                self.list(at as u32);
            }
        }
        any
    }

    fn move_on(&mut self, reaped: &mut Vec<Reaped>) {
        let mut active = std::mem::replace(&mut self.active, std::mem::take(&mut self.next_active));
        for at in active.drain(..) {
            self.move_one(at, reaped);
        }
        self.next_active = active;
    }

    fn move_one(&mut self, at: u32, reaped: &mut Vec<Reaped>) {
        let Some((connection, mut with)) = self.moving(at, Some(reaped)) else { return };
        connection.listed = false;
        let (announced, from) = (connection.announced, connection.far);
        if let Err(errno) = connection.progress(&mut with) {
            let why = match errno {
                OTHER_SECRET => Some(SECRETS_DIFFER),
                libc::EPROTO => {
                    Some("it sends no handshake of this version, or proves no secret to encrypt by")
                }
                _ => None,
            };
            let rejected = why.filter(|_| connection.state == State::Unauthenticated);
            self.rejected.extend(rejected.map(|why| Rejected { from, why }));
            return self.fail(at, errno);
        }
        if connection.leaving && connection.is_idle() {
            return self.end(at, libc::ECANCELED);
        }
        let met = connection.handshake.is_some();
        if met {
            return self.meet(at);
        }
        let (works, announces) = (connection.has_work(), connection.announced != announced);
        if works {
            self.list(at);
        }
        if announces && self.besides_wait {
            self.meet_besides();
        }
    }
}

impl Nic for TcpNic {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> &[u8] {
        &self.address
    }

    fn other_ip(&self) -> Option<IpAddr> {
        self.other
    }

    fn insert(&mut self, address: &[u8], peer: Option<PeerId>) -> Result<Route> {
        let (to, other, name) = self.target(address)?;
        if let Some(route) = self.routes.again((name, peer), None) {
            return Ok(route);
        }
        let is_theirs =
            |one: &Connection| peer.is_some_and(|peer| one.is_accepted_of(peer, name)) && one.serves();
        let theirs = self.connections.iter().position(|one| one.as_deref().is_some_and(is_theirs));
        // Connect to ourselves by the local address: a NAT may not let us in by the public one.
        let (to, other) = if name == self.name { (self.at, None) } else { (to, other) };
        let target = Target { name, peer, to, other };
        let leads = match theirs.filter(|_| name != self.name) {
            Some(at) => Ok(at as u32),
            None => self.dial(&target).map_err(|error| error.provider_errno),
        };
        Ok(self.routes.add(target, leads))
    }

    fn waits_for(&mut self, route: Route) -> &'static str {
        self.routes.leads(route).map_or("", |at| self.dialed_waits_for(at))
    }

    fn remove(&mut self, route: Route) {
        let Some((Ok(at), target)) = self.routes.remove(route) else { return };
        let answered = target.name == NOBODY;
        let goes = |one: &&mut Connection| !answered || one.is_unauthenticated();
        if let Some(connection) = self.connection(at).filter(goes) {
            connection.leaving = true;
            self.list(at);
        }
    }

    /// Our own worker serves the peer's requests: with the connections closed, it serves none. A
    /// connection over which no peer has authenticated has moved no bytes yet, and may be the
    /// peer's next.
    fn reset(&mut self, route: Route) {
        let Some(Target { name, peer, .. }) = self.routes.find(route).map(|place| place.target) else {
            return;
        };
        let owner = (name, peer);
        self.end_those(libc::ECANCELED, |_, one| {
            (one.name, one.owner()) == owner && !one.is_unauthenticated()
        });
        self.remove(route);
    }

    fn assign_connection(&mut self, connection: Number, peer: PeerId) {
        self.give_to(connection, peer);
    }

    fn end_peer(&mut self, peer: PeerId, at_once: bool) {
        self.end_all_of(peer, at_once);
    }

    fn redial(&mut self, route: Route) {
        let Some((place, errno)) = self.routes.ended(route) else { return };
        let target = place.target;
        let leads = self.dial(&target).map_err(|_| errno);
        if let Some(place) = self.routes.find(route) {
            place.leads = leads;
        }
    }

    /// Answers never dial.
    fn insert_caller(&mut self, _address: &[u8], connection: Number) -> Result<Route> {
        let at = self.numbered(connection);
        let up = |at: &u32| self.connections[*at as usize].as_ref().is_some_and(|one| one.state == State::Up);
        match at.filter(up) {
            Some(at) => {
                Ok(self.routes.add(Target { name: NOBODY, peer: None, to: self.at, other: None }, Ok(at)))
            }
            None => Err(Error::new(Status::Fabric, "the connection is closed")),
        }
    }

    fn elsewhere(&mut self, route: Route) -> [Option<String>; 2] {
        let Ok(at) = self.routes.leads(route) else { return [None, None] };
        let known = self.connection(at).map(|one| (one.carriers, one.host()));
        let (carriers, host) = known.unwrap_or_default();
        self.paths.elsewhere(carriers, self.at.ip(), host, &self.options)
    }

    fn sockets_of(&mut self, route: Route) -> Vec<Arc<Socket>> {
        let lead = self.routes.find(route).map(|place| (place.target, place.leads.ok()));
        lead.map_or_else(Vec::new, |(target, at)| self.sockets_to(&target, at))
    }

    fn is_gone(&mut self, route: Route) -> bool {
        self.routes.leads(route) == Err(libc::ECONNREFUSED)
    }

    fn link(&mut self) -> LinkState {
        if std::mem::take(&mut self.link_news) || self.watch.is_none() {
            self.link.1 = self.link.0.state();
        }
        self.link.1
    }

    fn has_ended(&mut self, route: Route) -> Option<i32> {
        self.routes.ended(route).map(|(_, errno)| errno)
    }

    fn take_rejected(&mut self) -> Vec<Rejected> {
        std::mem::take(&mut self.rejected)
    }

    fn take_moved(&mut self) -> Option<String> {
        self.moved_to.take()
    }

    fn tend(&mut self) {
        self.look_after();
    }

    fn register(&mut self, range: HostRange, access: Access) -> Result<Registration> {
        let key = self.registry.add_new(&self.random, range, access, None)?;
        let descriptor = if access.may_fault { MAY_FAULT } else { 0 };
        Ok(Registration { handle: key as *mut c_void, descriptor: descriptor as *mut c_void, key, way: None })
    }

    fn register_device(
        &mut self,
        range: HostRange,
        access: Access,
        device: Device,
        _: bool,
    ) -> Result<Option<Registration>> {
        let identity = driver(device)?.identity(range.base).unwrap_or_default();
        let key = self.registry.add_new(&self.random, range, access, Some((device, identity)))?;
        let handle = key as *mut c_void;
        let descriptor = descriptor_of(device);
        Ok(Some(Registration { handle, descriptor, key, way: Some(Way::Staged) }))
    }

    fn use_grants(&mut self, grants: Arc<Grants>) {
        self.devices.pool.use_copying(grants.copying.clone());
        self.registry.use_grants(grants);
    }

    fn revoke(&mut self, grant: GrantToken) {
        if self.registry.remove(grant.key()) {
            let connections = self.connections.iter_mut().flatten();
            connections.for_each(|connection| connection.forget(grant.key(), &mut self.sink));
        }
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        self.close_registration(registration.key)
    }

    #[inline]
    unsafe fn rma(&mut self, rma: &Rma<'_>, route: Route, scratches: &[*mut Scratch]) -> (usize, Posted) {
        let leads = self.routes.leads(route);
        // SAFETY: the contract is the same.
        unsafe { self.post(rma, leads, scratches) }
    }

    unsafe fn rma_slow(
        &mut self,
        rma: &Rma<'_>,
        route: Route,
        scratches: &[*mut Scratch],
        knows: bool,
    ) -> (usize, Posted) {
        match self.for_disks(route, knows) {
            Ok(None) => (0, Posted::Again),
            // SAFETY: the contract is the same.
            Ok(Some(at)) => unsafe { self.post(rma, Ok(at), scratches) },
            Err(errno) => (0, Posted::Failed(errno)),
        }
    }

    fn disown(&mut self, scratches: &[*mut Scratch]) {
        let (dying, pool) = self.devices.dying();
        let connections = self.connections.iter_mut().flatten().map(Box::as_mut).chain(dying);
        connections.for_each(|connection| connection.disown(scratches, pool, &mut self.sink));
        self.list_staging(); // What waited behind them goes on.
    }

    fn touches(&mut self, peer: PeerId) -> bool {
        self.devices.pool.touches(peer)
    }

    unsafe fn send(&mut self, buffer: Buffer, route: Route, scratch: *mut Scratch) -> Posted {
        if buffer.len > MESSAGE {
            return Posted::Failed(libc::EMSGSIZE);
        }
        let Some(leads) = self.routes.find(route).map(|place| place.leads) else {
            return Posted::Failed(libc::ENOTCONN);
        };
        let segment = Segment { local: buffer.address as u64, remote: 0, len: buffer.len as u64 };
        let rma = Rma {
            read: false,
            segments: &[segment],
            descriptor: buffer.descriptor,
            key: 0,
            immediate: None,
            more: false,
        };
        match leads.map(|at| (at, self.connection(at))) {
            Ok((at, Some(connection))) => {
                connection.outgoing.push_message(&rma, buffer.follows, scratch);
                self.pump(at);
            }
            // Report the failure as a completion: senders seldom check the result of a post.
            Ok((_, None)) => self.finished.push(Reaped::new(scratch, libc::ENOTCONN)),
            Err(errno) => self.finished.push(Reaped::new(scratch, errno)),
        }
        Posted::Yes
    }

    unsafe fn receive(&mut self, buffer: Buffer, scratch: *mut Scratch) -> Posted {
        if self.receives.len() == self.limits.rx_depth {
            return Posted::Again;
        }
        self.receives.push_back((buffer, scratch));
        if self.receives.len() == 1 {
            for at in 0..self.connections.len() as u32 {
                if self.connection(at).is_some_and(Connection::feed) {
                    self.list(at);
                }
            }
        }
        Posted::Yes
    }

    #[inline]
    fn reap(&mut self, reaped: &mut Vec<Reaped>) -> bool {
        self.pass = self.pass.wrapping_add(1);
        self.registry.begin_pass();
        let busy = self.look();
        if self.calls {
            self.accept();
        }
        if self.devices.heard || self.devices.pool.is_busy() {
            self.look_at_slots();
        }
        self.move_on(reaped);
        self.watch_disks();
        reaped.append(&mut self.finished);
        self.routes.report();
        busy
    }

    fn wait_fd(&mut self) -> Option<(RawFd, bool)> {
        let idle = self.active.is_empty() && self.finished.is_empty() && !self.devices.pool.is_busy();
        Some((self.epoll.as_raw_fd(), idle))
    }

    fn close(&mut self) -> Result<()> {
        // Connections in the listener's queue end, too, when the listener closes.
        self.listeners.drain(..).for_each(|listener| socket::shut(listener.as_fd()));
        self.connections.clear();
        self.devices = Devices::default();
        self.routes.clear();
        self.active.clear();
        self.receives.clear();
        self.finished.clear();
        self.registry.clear();
        Ok(())
    }
}
