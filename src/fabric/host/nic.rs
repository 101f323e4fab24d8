//! A NIC of the fabric between processes of one host.

use super::area::SharedAreas;
use super::channel::Channel;
use super::incoming::{Incoming, Serving};
use super::outgoing::Outgoing;
use super::registry::Registry;
use super::request::{MESSAGE, PIECES};
use super::socket::{self, Heard, Word};
use super::watch::{self, Watch, Whose};
use crate::clock::Random;
use crate::fabric::{
    Access, Buffer, Delivery, HostRange, Limits, Nic, Posted, Reaped, Registration, Rma, Route, Scratch, GONE,
};
use crate::memory::device::{driver, present, Device};
use crate::status::{Error, Result, Status};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::atomic::{fence, Ordering};

/// Bytes that a pass copies for peers, and for our own operations.
const PASS: u64 = 512 << 10;
/// Passes between looks at the sockets; each 64 KiB that were copied count as one.
const LOOK: u64 = 128;
/// Who connected and has passed no channel yet: the oldest makes room for the next.
const STRANGERS: usize = 256;
const TX_DEPTH: usize = 512;
const RX_DEPTH: usize = 256;
const LANE_WINDOW: u64 = 4 << 20;
const RAIL_WINDOW: u64 = 64 << 20;
/// Between devices: what some launches copy.
const DEVICE_WINDOW: u64 = 64 << 20;

/// A place for a route.
struct Place {
    generation: u32,
    route: Option<Box<Line>>,
}

/// A route and who it leads to.
struct Line {
    outgoing: Outgoing,
    name: String,
    process: Option<OwnedFd>,
}

/// Somebody who connected to us.
struct Peer {
    number: u32,
    process: Option<OwnedFd>,
    talk: Talk,
}

enum Talk {
    /// Has not passed a channel yet.
    Stranger(OwnedFd),
    Channel(Box<Incoming>),
}

pub struct HostNic {
    limits: Limits,
    /// "boot id/network namespace/name": the first two are the network.
    address: String,
    network: String,
    /// None once the NIC is closed.
    listener: Option<OwnedFd>,
    watch: Watch,
    places: Vec<Place>,
    peers: Vec<Peer>,
    next_peer: u32,
    registry: Registry,
    areas: SharedAreas,
    receives: VecDeque<(Buffer, *mut Scratch)>,
    /// Finished between two calls of `reap`.
    finished: Vec<Reaped>,
    random: Random,
    /// Peers were told that we sleep.
    armed: bool,
    passes: u64,
    turn: usize,
}

// SAFETY: the pointers are the rail's, which moves with its NIC.
unsafe impl Send for HostNic {}

/// The line of a route, if it is still the route's.
#[inline]
fn line(places: &mut [Place], route: Route) -> Option<&mut Line> {
    let place = places.get_mut(route as u32 as usize)?;
    place.route.as_deref_mut().filter(|_| place.generation == (route >> 32) as u32)
}

impl HostNic {
    pub fn open() -> Result<HostNic> {
        let random = Random::System;
        let network = super::network()?;
        let name = format!("weft-{:016x}{:016x}", random.u64()?, random.u64()?);
        let listener = socket::listen(&name)?;
        let watch = Watch::new()?;
        watch.add(listener.as_fd(), Whose::Listener)?;
        let limits = Limits {
            delivery: Delivery::Native,
            tx_depth: TX_DEPTH,
            rx_depth: RX_DEPTH,
            costly_posts: false,
            sends_follow_writes: true,
            failures_cut: false,
            reconnects: false,
            cuts: false,
            cuts_reads: false,
            vector: PIECES,
            read_vector: PIECES,
            counted_vector: 1,
            message_max: MESSAGE as usize,
            virtual_addresses: true,
            local_registration: false,
            immediate_max: u64::MAX,
            arrival_room: None,
            lane_window: if present().is_some() { DEVICE_WINDOW } else { LANE_WINDOW },
            rail_window: if present().is_some() { 4 * DEVICE_WINDOW } else { RAIL_WINDOW },
        };
        Ok(HostNic {
            limits,
            address: format!("{network}/{name}"),
            network,
            listener: Some(listener),
            watch,
            places: Vec::new(),
            peers: Vec::new(),
            next_peer: 0,
            registry: Registry::default(),
            areas: SharedAreas::default(),
            receives: VecDeque::new(),
            finished: Vec::new(),
            random,
            armed: false,
            passes: 0,
            turn: 0,
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

    /// Connects a route; true when it is, false when it can be tried again.
    fn connect(watch: &Watch, at: usize, line: &mut Line) -> Result<bool> {
        if !line.outgoing.connect(&line.name)? {
            return Ok(false);
        }
        if let Some(socket) = line.outgoing.socket() {
            watch.add(socket, Whose::Route(at as u32))?;
            line.process = socket::of_our_user(socket).and_then(watch::process);
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

    /// Does what peers ask for, beginning with another one each time.
    #[inline]
    fn serve(&mut self, reaped: &mut Vec<Reaped>) -> u64 {
        let mut with =
            Serving { registry: &mut self.registry, receives: &mut self.receives, reaped, budget: PASS };
        let count = self.peers.len();
        self.turn = if self.turn + 1 < count { self.turn + 1 } else { 0 };
        let mut over = false;
        for i in 0..count {
            let at = if self.turn + i < count { self.turn + i } else { self.turn + i - count };
            let Talk::Channel(channel) = &mut self.peers[at].talk else { continue };
            if !channel.serve(&mut with) {
                log::warn!("a peer on this host breaks the rules of the fabric: its connection is closed");
                channel.refuse();
            }
            over |= channel.is_over();
        }
        let copied = PASS - with.budget;
        if over {
            self.sweep_peers();
        }
        copied
    }

    #[cold]
    fn sweep_peers(&mut self) {
        let watch = &self.watch;
        self.peers.retain(|peer| {
            let Talk::Channel(channel) = &peer.talk else { return true };
            let over = channel.is_over();
            if over {
                watch.remove(channel.socket());
                peer.process.iter().for_each(|process| watch.remove(process.as_fd()));
            }
            !over
        });
    }

    /// Moves our own operations on.
    #[inline]
    fn progress(&mut self, reaped: &mut Vec<Reaped>) -> u64 {
        let mut budget = PASS;
        for place in &mut self.places {
            let Some(line) = &mut place.route else { continue };
            let outgoing = &mut line.outgoing;
            if !outgoing.is_idle() {
                if !outgoing.progress(&mut budget, reaped) {
                    log::warn!("a peer on this host gives answers that cannot be: it is left");
                    outgoing.die(libc::EPROTO);
                    outgoing.fail_all(libc::EPROTO, reaped);
                }
                outgoing.pump(&mut budget, reaped);
                outgoing.tell();
            } else if outgoing.removed {
                Self::unwatch_line(&self.watch, line);
                place.route = None;
                place.generation = place.generation.wrapping_add(1);
            }
        }
        PASS - budget
    }

    // Meeting and parting.

    /// Looks at what the sockets have to say.
    #[cold]
    fn look(&mut self, reaped: &mut Vec<Reaped>) {
        for whose in self.watch.ready() {
            match whose {
                Whose::Listener => self.accept_all(),
                Whose::Route(at) => self.hear_route(at, false, reaped),
                Whose::RouteProcess(at) => self.hear_route(at, true, reaped),
                Whose::Peer(number) => self.hear_peer(number, false),
                Whose::PeerProcess(number) => self.hear_peer(number, true),
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

    fn next_caller(&self) -> Option<OwnedFd> {
        socket::accept(self.listener.as_ref()?.as_fd())
    }

    fn accept_all(&mut self) {
        while let Some(socket) = self.next_caller() {
            let Some(pid) = socket::of_our_user(socket.as_fd()) else { continue };
            self.limit_strangers();
            let number = self.next_peer;
            self.next_peer = self.next_peer.wrapping_add(1);
            let process = watch::process(pid);
            let watched = self.watch.add(socket.as_fd(), Whose::Peer(number)).and_then(|()| {
                process.iter().try_for_each(|fd| self.watch.add(fd.as_fd(), Whose::PeerProcess(number)))
            });
            if let Err(error) = watched {
                log::warn!("a peer on this host is turned away: {error}");
                self.watch.remove(socket.as_fd());
                continue;
            }
            self.peers.push(Peer { number, process, talk: Talk::Stranger(socket) });
            // What it has to say is usually there.
            self.hear_peer(number, false);
        }
    }

    /// Lets the oldest stranger go if one more would be too many: who means well speaks
    /// as soon as it has connected.
    fn limit_strangers(&mut self) {
        let strangers = self.peers.iter().enumerate().filter(|(_, p)| matches!(p.talk, Talk::Stranger(_)));
        if strangers.clone().count() < STRANGERS {
            return;
        }
        let age = |peer: &Peer| self.next_peer.wrapping_sub(peer.number);
        let Some((at, _)) = strangers.max_by_key(|(_, peer)| age(peer)) else { return };
        let Peer { process, talk, .. } = self.peers.swap_remove(at);
        log::debug!("a process on this host connected and said nothing: it is turned away");
        process.iter().for_each(|process| self.watch.remove(process.as_fd()));
        if let Talk::Stranger(socket) = talk {
            self.watch.remove(socket.as_fd());
            socket::shut(socket.as_fd());
        }
    }

    fn hear_peer(&mut self, number: u32, process_ended: bool) {
        let Some(at) = self.peers.iter().position(|peer| peer.number == number) else { return };
        let Peer { mut process, talk, .. } = self.peers.swap_remove(at);
        let talk = match talk {
            Talk::Stranger(socket) => self.meet(socket, process_ended),
            Talk::Channel(mut channel) => {
                if !channel.listen() || process_ended {
                    channel.end();
                    self.watch.remove(channel.socket());
                    process.take().iter().for_each(|process| self.watch.remove(process.as_fd()));
                }
                (!channel.is_over()).then_some(Talk::Channel(channel))
            }
        };
        match talk {
            Some(talk) => self.peers.push(Peer { number, process, talk }),
            None => process.iter().for_each(|process| self.watch.remove(process.as_fd())),
        }
    }

    /// What a stranger says first makes it a peer.
    fn meet(&self, socket: OwnedFd, process_ended: bool) -> Option<Talk> {
        match socket::hear(socket.as_fd()) {
            Heard::Word(Word::Channel(file)) => match Channel::attach(file.as_fd()) {
                Ok(channel) => return Some(Talk::Channel(Box::new(Incoming::new(socket, channel)))),
                Err(error) => log::warn!("a peer on this host is turned away: {error}"),
            },
            Heard::Nothing if !process_ended => return Some(Talk::Stranger(socket)),
            _ => {}
        }
        self.watch.remove(socket.as_fd());
        None
    }

    fn hear_route(&mut self, at: u32, process_ended: bool, reaped: &mut Vec<Reaped>) {
        let Some(line) = self.places.get_mut(at as usize).and_then(|place| place.route.as_deref_mut()) else {
            return;
        };
        if !line.outgoing.listen() || process_ended {
            // What it had answered before counts.
            line.outgoing.progress(&mut { u64::MAX }, reaped);
            Self::end_line(&self.watch, line, libc::ECONNRESET, reaped);
        }
    }

    /// Nobody is at the other end any more.
    fn end_line(watch: &Watch, line: &mut Line, errno: i32, reaped: &mut Vec<Reaped>) {
        Self::unwatch_line(watch, line);
        line.outgoing.die(errno);
        line.outgoing.fail_all(errno, reaped);
    }

    // Sleeping.

    /// Tells peers whether we sleep.
    fn say_sleeping(&mut self, sleeping: bool) {
        self.armed = sleeping;
        for place in &self.places {
            if let Some(line) = &place.route {
                line.outgoing.sleeps(sleeping);
            }
        }
        for peer in &self.peers {
            if let Talk::Channel(channel) = &peer.talk {
                channel.sleeps(sleeping);
            }
        }
    }

    fn has_work(&self) -> bool {
        let receives = !self.receives.is_empty();
        !self.finished.is_empty()
            || self.places.iter().filter_map(|place| place.route.as_ref()).any(|l| l.outgoing.has_work())
            || self.peers.iter().any(|peer| match &peer.talk {
                Talk::Channel(channel) => channel.has_work(receives),
                Talk::Stranger(_) => false,
            })
    }
}

impl Nic for HostNic {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> &[u8] {
        self.address.as_bytes()
    }

    fn insert(&mut self, address: &[u8]) -> Result<Route> {
        let name = self.name_of(address)?;
        let at = self.places.iter().position(|place| place.route.is_none()).unwrap_or_else(|| {
            self.places.push(Place { generation: 0, route: None });
            self.places.len() - 1
        });
        let mut line = Line { outgoing: Outgoing::new()?, name, process: None };
        Self::connect(&self.watch, at, &mut line)
            .inspect_err(|_| Self::unwatch_line(&self.watch, &mut line))?;
        let place = &mut self.places[at];
        place.route = Some(Box::new(line));
        Ok((place.generation as u64) << 32 | at as u64)
    }

    /// What was posted still goes: a route is taken off when all is answered, or
    /// its peer is gone.
    fn remove(&mut self, route: Route) {
        if let Some(line) = line(&mut self.places, route) {
            line.outgoing.removed = true;
        }
    }

    fn register(&mut self, range: HostRange, access: Access) -> Result<Registration> {
        let mut key = self.random.u64()?;
        while !self.registry.add(key, range, access, None) {
            key = self.random.u64()?;
        }
        let area = self.areas.enter(range.base, range.len);
        Ok(Registration { handle: key as *mut c_void, descriptor: area as *mut c_void, key, direct: None })
    }

    fn register_device(
        &mut self,
        range: HostRange,
        access: Access,
        (device, shareable): (Device, bool),
    ) -> Result<Registration> {
        let handle = if shareable { Some(driver()?.share(device, range.base)?) } else { None };
        let identity = driver()?.identity(range.base).unwrap_or_default();
        let mut key = self.random.u64()?;
        while !self.registry.add(key, range, access, Some((device, identity))) {
            key = self.random.u64()?;
        }
        let area = handle.map_or(0, |handle| self.areas.enter_device(handle));
        Ok(Registration { handle: key as *mut c_void, descriptor: area as *mut c_void, key, direct: None })
    }

    fn reaches_device(&mut self, route: Route, read: bool, local: *mut c_void, remote: (u64, u64)) -> bool {
        let area = self.areas.get(local as u64).filter(|area| area.handle().is_some());
        let (Some(line), Some(area)) = (line(&mut self.places, route), area) else {
            return false;
        };
        line.outgoing.reaches_device(read, area, remote)
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        for peer in &mut self.peers {
            if let Talk::Channel(channel) = &mut peer.talk {
                channel.settle_devices();
                channel.hide_device(registration.key);
            }
        }
        for place in &mut self.places {
            place.route.iter_mut().for_each(|line| line.outgoing.settle_devices());
        }
        if !self.registry.remove(registration.key) {
            return Err(Error::new(Status::Internal, "a registration that this NIC does not have"));
        }
        if let Some(area) = self.areas.leave(registration.descriptor as u64) {
            for place in &mut self.places {
                place.route.iter_mut().for_each(|line| line.outgoing.forget(&area));
            }
        }
        Ok(())
    }

    #[inline]
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
            if !line.outgoing.rma(&Rma { segments, ..*rma }, area, *scratch) {
                self.finished.push(Reaped::of(*scratch, GONE));
            }
        }
        line.outgoing.pump(&mut { PASS }, &mut self.finished);
        if !rma.more {
            line.outgoing.tell();
        }
        (scratches.len(), Posted::Yes)
    }

    fn disown(&mut self, scratches: &[*mut Scratch]) {
        let lines = self.places.iter_mut().filter_map(|place| place.route.as_mut());
        lines.for_each(|line| line.outgoing.disown(scratches));
    }

    unsafe fn send(&mut self, buffer: Buffer, route: Route, scratch: *mut Scratch) -> Posted {
        let Some(line) = line(&mut self.places, route) else {
            return Posted::Failed(libc::ENOTCONN);
        };
        if buffer.len > MESSAGE as usize {
            return Posted::Failed(libc::EMSGSIZE);
        }
        if let Some(errno) = line.outgoing.dead() {
            // By a completion: who sends seldom looks at what a post says.
            self.finished.push(Reaped::of(scratch, errno));
            return Posted::Yes;
        }
        line.outgoing.send(buffer.address as u64, buffer.len as u64, scratch);
        line.outgoing.pump(&mut { PASS }, &mut self.finished);
        line.outgoing.tell();
        Posted::Yes
    }

    unsafe fn receive(&mut self, buffer: Buffer, scratch: *mut Scratch) -> Posted {
        if self.receives.len() == RX_DEPTH {
            return Posted::Again;
        }
        self.receives.push_back((buffer, scratch));
        Posted::Yes
    }

    #[inline]
    fn reap(&mut self, reaped: &mut Vec<Reaped>) {
        if self.armed {
            self.say_sleeping(false);
            self.passes = LOOK;
        }
        let copied = self.serve(reaped) + self.progress(reaped);
        reaped.append(&mut self.finished);
        self.passes += 1 + copied / (64 << 10);
        if self.passes >= LOOK {
            self.passes = 0;
            self.look(reaped);
        }
    }

    fn wait_fd(&mut self) -> Option<(RawFd, bool)> {
        self.say_sleeping(true);
        // Pairs with the fence of who publishes: either we see what it published, or it sees that
        // we sleep.
        fence(Ordering::SeqCst);
        let busy = self.has_work();
        if busy {
            self.say_sleeping(false);
        }
        Some((self.watch.fd(), !busy))
    }

    fn close(&mut self) -> Result<()> {
        // With the mappings gone, nothing can be touched; peers see the sockets' hangup.
        self.places.clear();
        self.peers.clear();
        self.receives.clear();
        self.finished.clear();
        self.registry.clear();
        self.areas.clear();
        // Who waits to be accepted sees it, too.
        while let Some(socket) = self.next_caller() {
            socket::shut(socket.as_fd());
        }
        if let Some(listener) = self.listener.take() {
            self.watch.remove(listener.as_fd());
            socket::shut(listener.as_fd());
        }
        Ok(())
    }
}
