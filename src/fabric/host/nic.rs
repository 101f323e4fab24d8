//! A NIC of the fabric between processes of one host.

use super::area::{self, SharedAreas};
use super::connections::Connections;
use super::errands::Errands;
use super::incoming::Serving;
use super::outgoing::Outgoing;
use super::request::{MESSAGE, PIECES};
use super::user;
use super::watch::{self, Watch, Whose};
use crate::clock::Random;
use crate::descriptor::Descriptor;
use crate::device::{driver, is_slow, present, Device};
use crate::fabric::grants::Grants;
use crate::fabric::own;
use crate::fabric::own::pool::Pool;
use crate::fabric::registry::Registry;
use crate::fabric::{
    Access, Buffer, Connection, HostRange, Limits, Nic, Posted, Reaped, Registration, Rma, Route, Scratch,
    Way, MAY_FAULT,
};
use crate::ids::{GrantToken, PeerId};
use crate::logging::seldom::warn_seldom;
use crate::range::Range;
use crate::status::{Error, Result, Status};
use std::collections::{HashSet, VecDeque};
use std::ffi::c_void;
use std::os::fd::{AsFd, RawFd};
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

/// Bytes that a pass copies for peers, and the same for our own operations.
const PASS: u64 = 512 << 10;
/// Messages that a pass reads from sockets for requests; and that a check of the sockets reads.
const WORDS: u32 = 64;
/// Passes between checks of the sockets; each 64 KiB copied count as one pass.
const LOOK: u64 = 128;
/// Passes that serve the requests which a dead peer left in its channel, before its route ends.
const LAST_PASSES: u32 = 16;
/// Device memories of ours that are probed against an imported one.
const REACHED: usize = 64;
/// The window between devices: the bytes of some launches.
const DEVICE_WINDOW: u64 = 64 << 20;

mod slow;

/// A slot for a route.
struct RouteSlot {
    generation: u32,
    route: Option<Box<Line>>,
}

/// A route and its destination.
struct Line {
    outgoing: Outgoing,
    name: String,
    process: Option<Descriptor>,
    /// The peer at the other end; `None` before one is assigned.
    peer: Option<PeerId>,
    /// Set when the other side is gone: passes until the route ends.
    ending: Option<u32>,
    /// The route beside it, for disks: both end together.
    disks: Option<Route>,
}

pub struct HostNic {
    limits: Limits,
    /// "boot id/network namespace/name": the first two are the network.
    address: String,
    network: String,
    watch: Watch,
    places: Vec<RouteSlot>,
    /// Some route is about to end.
    ending: bool,
    connections: Connections,
    /// The slots of disks, and operations of our own ones. `heard`: a disk has said something.
    pool: Pool,
    errands: Errands,
    heard: bool,
    registry: Registry,
    areas: SharedAreas,
    receives: VecDeque<(Buffer, *mut Scratch)>,
    /// Finished between two calls of `reap`.
    finished: Vec<Reaped>,
    random: Random,
    /// The channels publish that this worker sleeps.
    armed: bool,
    passes: u64,
}

// SAFETY: the pointers belong to the rail, which moves together with its NIC.
unsafe impl Send for HostNic {}

/// The line of a route, if the route still owns it.
#[inline]
fn line(places: &mut [RouteSlot], route: Route) -> Option<&mut Line> {
    let place = places.get_mut(route as u32 as usize)?;
    place.route.as_deref_mut().filter(|_| place.generation == (route >> 32) as u32)
}

impl HostNic {
    pub fn open() -> Result<HostNic> {
        let random = Random::System;
        let network = super::network()?;
        let name = format!("weft-{:016x}{:016x}", random.u64()?, random.u64()?);
        user::check()?;
        let watch = Watch::new()?;
        let connections = Connections::open(&name, &watch)?;
        let mut limits = Limits { vector: PIECES, message_max: MESSAGE as usize, ..own::LIMITS };
        if present().is_some() {
            (limits.lane_window, limits.rail_window) = (DEVICE_WINDOW, 4 * DEVICE_WINDOW);
        }
        Ok(HostNic {
            limits,
            address: format!("{network}/{name}"),
            network,
            watch,
            places: Vec::new(),
            ending: false,
            connections,
            pool: Pool::default(),
            errands: Errands::default(),
            heard: false,
            registry: Registry::default(),
            areas: SharedAreas::default(),
            receives: VecDeque::new(),
            finished: Vec::new(),
            random,
            armed: false,
            passes: 0,
        })
    }

    /// The name in an address of this host.
    fn name_of(&self, address: &[u8]) -> Result<String> {
        let text = std::str::from_utf8(address).ok().and_then(|text| text.rsplit_once('/'));
        let sound = |name: &str| {
            name.strip_prefix("weft-")
                .is_some_and(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
        };
        let unreachable =
            |text: String| Error { provider_errno: libc::EHOSTUNREACH, ..Error::new(Status::Fabric, text) };
        match text {
            Some((network, name)) if network == self.network && sound(name) => Ok(name.to_owned()),
            Some((network, name)) if sound(name) => Err(unreachable(format!(
                "the peer is not on this host, or in another network namespace ({network}, not {})",
                self.network
            ))),
            _ => Err(unreachable("an address that is none of the fabric \"host\"".to_owned())),
        }
    }

    /// Connects a route; false if that is to be tried again.
    fn connect(watch: &Watch, at: usize, line: &mut Line) -> Result<bool> {
        if !line.outgoing.connect(&line.name)? {
            return Ok(false);
        }
        if let Some(socket) = line.outgoing.socket() {
            watch.add(socket, Whose::Route(at as u32))?;
            line.process = user::process_of(socket).and_then(watch::process);
        }
        if let Some(process) = &line.process {
            watch.add(process.as_fd(), Whose::RouteProcess(at as u32))?;
        }
        Ok(true)
    }

    fn unwatch_line(watch: &Watch, line: &mut Line) {
        if let Some(socket) = line.outgoing.socket() {
            watch.remove(socket);
        }
        if let Some(process) = line.process.take() {
            watch.remove(process.as_fd());
        }
    }

    // A pass.

    /// Serves the peers' requests.
    #[inline]
    fn serve(&mut self, reaped: &mut Vec<Reaped>) -> u64 {
        self.registry.begin_pass();
        let (registry, receives, pool) = (&mut self.registry, &mut self.receives, &mut self.pool);
        let mut with = Serving { registry, receives, reaped, pool, budget: PASS, words: WORDS };
        self.connections.serve(&mut with, &self.watch);
        let served = PASS - with.budget;
        self.registry.end_pass();
        served
    }

    /// Continues our own operations.
    #[inline]
    fn progress(&mut self, reaped: &mut Vec<Reaped>) -> u64 {
        let (mut budget, mut removed) = (PASS, false);
        for place in &mut self.places {
            let Some(line) = &mut place.route else { continue };
            let outgoing = &mut line.outgoing;
            if !outgoing.is_idle() {
                if !outgoing.progress(&mut budget, reaped) {
                    warn_seldom!(
                        "a peer on this host sent an invalid answer: the connection to it is closed"
                    );
                    outgoing.die(libc::EPROTO);
                    outgoing.fail_all(libc::EPROTO, reaped);
                }
                outgoing.pump(&mut budget, reaped);
                outgoing.wake_peer();
            } else {
                removed |= outgoing.removed;
            }
        }
        if removed {
            self.drop_removed();
        }
        PASS - budget
    }

    // Connecting and closing.

    /// Reads the sockets.
    #[cold]
    fn look(&mut self, reaped: &mut Vec<Reaped>) {
        let mut words = WORDS;
        for whose in self.watch.ready() {
            match whose {
                Whose::Listener => self.connections.accept(&self.watch, &mut self.pool),
                Whose::Disk => self.heard = true,
                Whose::Timer => self.connections.resume(&self.watch),
                Whose::Route(at) => self.receive_route(at, false),
                Whose::RouteProcess(at) => self.receive_route(at, true),
                Whose::Connection(number) if words == 0 => _ = number, // The socket is reported again.
                Whose::Connection(number) => {
                    self.connections.listen(number, false, &mut words, &self.watch, &mut self.pool)
                }
                Whose::ConnectionProcess(number) => {
                    self.connections.listen(number, true, &mut words, &self.watch, &mut self.pool)
                }
            }
        }
        for (at, place) in self.places.iter_mut().enumerate() {
            let Some(line) = place.route.as_deref_mut() else { continue };
            if line.outgoing.socket().is_some() || line.outgoing.dead().is_some() {
                continue;
            }
            if let Err(error) = Self::connect(&self.watch, at, line) {
                log::debug!("{error}");
                Self::end_line(&self.watch, line, error.provider_errno, reaped);
            }
        }
    }

    fn receive_route(&mut self, at: u32, process_ended: bool) {
        let Some(line) = self.places.get_mut(at as usize).and_then(|place| place.route.as_deref_mut()) else {
            return;
        };
        if !line.outgoing.listen() || process_ended {
            Self::unwatch_line(&self.watch, line);
            line.ending = Some(LAST_PASSES);
            self.ending = true;
        }
    }

    /// Ends routes whose other side is gone, once the requests that the peer left are served.
    #[cold]
    fn finish_ending(&mut self, reaped: &mut Vec<Reaped>) {
        self.ending = false;
        let mut disks = Vec::new();
        for place in &mut self.places {
            let Some(line) = &mut place.route else { continue };
            let Some(passes) = line.ending.map(|passes| passes - 1) else { continue };
            let (registry, receives, pool) = (&mut self.registry, &mut self.receives, &mut self.pool);
            let mut with = Serving { registry, receives, reaped, pool, budget: PASS, words: WORDS };
            let over = line.peer.is_none_or(|peer| self.connections.finish(peer, &mut with));
            self.registry.end_pass();
            line.ending = Some(passes).filter(|passes| !over && *passes > 0);
            if line.ending.is_some() {
                self.ending = true;
                continue;
            }
            if let Some(peer) = line.peer {
                self.connections.end_peer(peer, true, &self.watch, &mut self.pool);
            }
            // Answers from before the end count.
            line.outgoing.progress(&mut { u64::MAX }, reaped);
            Self::end_line(&self.watch, line, libc::ECONNRESET, reaped);
            disks.extend(line.disks);
        }
        for route in disks {
            if let Some(line) = line(&mut self.places, route) {
                line.outgoing.progress(&mut { u64::MAX }, reaped);
                Self::end_line(&self.watch, line, libc::ECONNRESET, reaped);
            }
        }
    }

    /// Ends a route whose other side is gone.
    fn end_line(watch: &Watch, line: &mut Line, errno: i32, reaped: &mut Vec<Reaped>) {
        Self::unwatch_line(watch, line);
        line.ending = None;
        line.outgoing.die(errno);
        line.outgoing.fail_all(errno, reaped);
    }

    // Sleeping.

    /// Publishes to peers whether this worker sleeps.
    fn publish_sleeping(&mut self, sleeping: bool) {
        self.armed = sleeping;
        for place in &self.places {
            if let Some(line) = &place.route {
                line.outgoing.sleeps(sleeping);
            }
        }
        self.connections.sleeps(sleeping);
    }

    /// Waits until no device touches a registration's memory.
    #[cold]
    fn settle_devices(&mut self, key: u64) {
        self.connections.hide_device(key);
        for place in &mut self.places {
            if let Some(line) = &mut place.route {
                line.outgoing.settle_devices();
            }
        }
    }

    fn has_work(&mut self) -> bool {
        let receives = !self.receives.is_empty();
        self.ending
            || !self.finished.is_empty()
            || self.pool.is_in_use() && (self.heard || self.pool.is_busy())
            || self.errands.has_work()
            || self.places.iter().filter_map(|place| place.route.as_ref()).any(|l| l.outgoing.has_work())
            || self.connections.have_work(receives)
    }
}

impl Nic for HostNic {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> &[u8] {
        self.address.as_bytes()
    }

    fn insert(&mut self, address: &[u8], peer: Option<PeerId>) -> Result<Route> {
        let name = self.name_of(address)?;
        let at = self.vacancy();
        let mut line =
            Line { outgoing: Outgoing::new()?, name, process: None, peer, ending: None, disks: None };
        Self::connect(&self.watch, at, &mut line)
            .inspect_err(|_| Self::unwatch_line(&self.watch, &mut line))?;
        Ok(self.place(line))
    }

    /// Posted operations are still sent: a route is removed when all of them are answered, or its
    /// peer is gone.
    fn remove(&mut self, route: Route) {
        let disks = line(&mut self.places, route).and_then(|line| line.disks);
        for route in [Some(route), disks].into_iter().flatten() {
            if let Some(line) = line(&mut self.places, route) {
                line.outgoing.removed = true;
            }
        }
    }

    fn assign_connection(&mut self, connection: Connection, peer: PeerId) {
        self.connections.assign(connection, peer, &self.watch, &mut self.pool);
    }

    fn end_peer(&mut self, peer: PeerId, at_once: bool) {
        self.connections.end_peer(peer, at_once, &self.watch, &mut self.pool);
        let lines = self.places.iter_mut().filter_map(|place| place.route.as_deref_mut());
        for line in lines.filter(|line| at_once && line.peer == Some(peer)) {
            Self::end_line(&self.watch, line, libc::ECANCELED, &mut self.finished);
        }
    }

    fn tend(&mut self) {
        let lines = self.places.iter_mut().filter_map(|place| place.route.as_deref_mut());
        lines.for_each(|line| line.outgoing.send_forgotten());
        if !self.connections.are_due() {
            return;
        }
        let lines = self.places.iter().filter_map(|place| place.route.as_deref());
        let served: HashSet<PeerId> = lines.filter(|l| !l.outgoing.removed).filter_map(|l| l.peer).collect();
        self.connections.tend(&served, &self.watch, &mut self.pool);
        self.pool.rest(|disk| self.watch.remove(disk));
    }

    fn register(&mut self, range: HostRange, access: Access) -> Result<Registration> {
        let key = self.registry.add_new(&self.random, range, access, None)?;
        let area = if access.may_fault { MAY_FAULT } else { self.areas.enter(range.base, range.len) };
        Ok(Registration { handle: key as *mut c_void, descriptor: area as *mut c_void, key, way: None })
    }

    fn register_device(
        &mut self,
        range: HostRange,
        access: Access,
        device: Device,
        shareable: bool,
    ) -> Result<Option<Registration>> {
        let handle = if shareable && !is_slow(device) {
            Some(driver(device)?.share(device, &Range { base: range.base, len: range.len })?)
        } else {
            None
        };
        let identity = driver(device)?.identity(range.base).unwrap_or_default();
        let key = self.registry.add_new(&self.random, range, access, Some((device, identity)))?;
        let way = Some(if handle.is_some() { Way::Shared } else { Way::Staged });
        let area = handle.map_or(area::only_on(device), |handle| self.areas.enter_device(handle));
        let descriptor = area as *mut c_void;
        Ok(Some(Registration { handle: key as *mut c_void, descriptor, key, way }))
    }

    fn use_grants(&mut self, grants: Arc<Grants>) {
        self.pool.use_copying(grants.copying.clone());
        self.registry.use_grants(grants);
    }

    /// Requests for host memory are served in one step, so none is in flight. (Disks are in `Copying`.)
    fn revoke(&mut self, grant: GrantToken) {
        if self.registry.is_device(grant.key()) {
            self.connections.settle_devices();
        }
        self.registry.remove(grant.key());
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        if self.registry.is_device(registration.key) {
            self.settle_devices(registration.key);
        }
        self.registry.close(registration.key)?;
        if let Some(area) = self.areas.leave(registration.descriptor as u64) {
            for place in &mut self.places {
                if let Some(line) = &mut place.route {
                    line.outgoing.forget(&area);
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn reach(&mut self, route: Route, remotes: &[(u64, u64)]) {
        let Some(line) = line(&mut self.places, route) else { return };
        if line.outgoing.dead().is_some() {
            return;
        }
        let areas: Vec<_> = self.areas.devices().take(REACHED).collect();
        line.outgoing.reach(&areas, remotes);
        line.outgoing.pump(&mut { PASS }, &mut self.finished);
        line.outgoing.wake_peer();
    }

    #[inline]
    fn rouse(&mut self, route: Route) {
        if let Some(line) = line(&mut self.places, route) {
            line.outgoing.rouse_peer();
        }
    }

    unsafe fn rma(&mut self, rma: &Rma<'_>, route: Route, scratches: &[*mut Scratch]) -> (usize, Posted) {
        let Some(line) = line(&mut self.places, route) else {
            return (0, Posted::Failed(libc::ENOTCONN));
        };
        if let Some(errno) = line.outgoing.dead() {
            return (0, Posted::Failed(errno));
        }
        let segments = rma.segments.len() / scratches.len().max(1);
        if !(1..=PIECES).contains(&segments) {
            return (0, Posted::Failed(libc::EINVAL));
        }
        let area = self.areas.get(rma.descriptor as u64);
        for (segments, scratch) in rma.segments.chunks_exact(segments).zip(scratches) {
            line.outgoing.rma(&Rma { segments, ..*rma }, area, *scratch);
        }
        line.outgoing.pump(&mut { PASS }, &mut self.finished);
        if !rma.more {
            line.outgoing.wake_peer();
        }
        (scratches.len(), Posted::Yes)
    }

    unsafe fn rma_slow(
        &mut self,
        rma: &Rma<'_>,
        route: Route,
        scratches: &[*mut Scratch],
        knows: bool,
    ) -> (usize, Posted) {
        self.post_slow(rma, route, scratches, knows)
    }

    fn disown(&mut self, scratches: &[*mut Scratch]) {
        let posted = self.errands.disown(scratches, &mut self.pool);
        let lines = self.places.iter_mut().filter_map(|place| place.route.as_mut());
        lines.for_each(|line| {
            line.outgoing.disown(scratches);
            line.outgoing.disown(&posted);
        });
    }

    fn touches(&mut self, peer: PeerId) -> bool {
        self.pool.touches(peer)
    }

    unsafe fn send(&mut self, buffer: Buffer, route: Route, scratch: *mut Scratch) -> Posted {
        let Some(line) = line(&mut self.places, route) else {
            return Posted::Failed(libc::ENOTCONN);
        };
        if buffer.len > MESSAGE as usize {
            return Posted::Failed(libc::EMSGSIZE);
        }
        if let Some(errno) = line.outgoing.dead() {
            // Report the failure as a completion: senders seldom check the result of a post.
            self.finished.push(Reaped::new(scratch, errno));
            return Posted::Yes;
        }
        line.outgoing.send(buffer.address as u64, buffer.len as u64, scratch);
        line.outgoing.pump(&mut { PASS }, &mut self.finished);
        line.outgoing.wake_peer();
        Posted::Yes
    }

    unsafe fn receive(&mut self, buffer: Buffer, scratch: *mut Scratch) -> Posted {
        if self.receives.len() == self.limits.rx_depth {
            return Posted::Again;
        }
        self.receives.push_back((buffer, scratch));
        Posted::Yes
    }

    #[inline]
    fn reap(&mut self, reaped: &mut Vec<Reaped>) -> bool {
        if self.armed {
            self.publish_sleeping(false);
        }
        if self.pool.is_in_use() {
            self.look_at_slots();
        }
        let copied = self.serve(reaped) + self.progress(reaped);
        reaped.append(&mut self.finished);
        self.passes += 1 + copied / (64 << 10);
        if self.passes >= LOOK {
            self.passes = 0;
            self.look(reaped);
        }
        if self.ending {
            self.finish_ending(reaped);
        }
        if !self.errands.is_empty() {
            self.go_on_errands(reaped);
        }
        copied > 0 || !reaped.is_empty()
    }

    fn has_ended(&mut self, route: Route) -> Option<i32> {
        line(&mut self.places, route)?.outgoing.dead()
    }

    fn wait_fd(&mut self) -> Option<(RawFd, bool)> {
        self.publish_sleeping(true);
        // Pairs with the fence of the publisher: either this worker sees what was published, or the
        // publisher sees that it sleeps.
        fence(Ordering::SeqCst);
        let busy = self.has_work();
        if busy {
            self.publish_sleeping(false);
        }
        Some((self.watch.fd(), !busy))
    }

    fn woken(&mut self) {
        self.passes = LOOK;
    }

    fn close(&mut self) -> Result<()> {
        // Without the mappings, nothing can be touched; peers see the sockets' hangup.
        self.places.clear();
        self.errands = Errands::default();
        self.connections.close(&self.watch, &mut self.pool);
        self.pool = Pool::default();
        self.receives.clear();
        self.finished.clear();
        self.registry.clear();
        self.areas.clear();
        Ok(())
    }
}
