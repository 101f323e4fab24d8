//! Connections that this NIC makes itself, where a provider has them (endpoints of type FI_EP_MSG):
//! verbs, whose endpoints are queue pairs.
//!
//! A NIC listens, and dials one connection per route: every post to the route uses it. Over
//! accepted connections the NIC only receives, and answers endpoints that are not yet peers. So two
//! NICs have two connections, one per direction, and both sides never dial the same one. An address
//! consists of the listener's address and the NIC's name; a connection request names the NIC that
//! is called and the NIC that calls. All connections share the rail's completion queue and
//! receives, so a message does not show which of them it came over.
//!
//! A route is closed in both directions: the connections that the same NIC dialed for the same peer
//! end with the route's own. An accepted connection belongs to a peer once that peer has
//! authenticated; one that is accepted later belongs to the next peer there, and stays.

mod closing;
mod dialer;
mod routes;
mod scratches;

use super::discover::{ListedNic, Source};
use super::events::{Event, Events};
use crate::clock::Clock;
use crate::fabric::own::admission::admit;
use crate::fabric::own::routes::Routes;
use crate::fabric::{Buffer, Posted, Progress, Reaped, Route, Scratch};
use crate::ids::PeerId;
use crate::status::{Error, Result, Status};
use crate::wire::address::RAILS_MAX;
use crate::wire::tcp::{Handshake, Name, HANDSHAKE};
use dialer::{towards, Dialer, Opening, RESOLVES};
use libfabric_sys::*;
use routes::Target;
use scratches::Scratches;
use std::ffi::c_void;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// The most accepted connections without a peer, in all and from one NIC, and how long one of them
/// lasts.
const UNAUTHENTICATED_MOST: usize = 256;
const OF_NIC: usize = RAILS_MAX;
const UNAUTHENTICATED_NS: u64 = 5_000_000_000;
/// At the limit, the oldest connection of the NIC that has the most is closed, once this time has passed.
const TIME_NS: u64 = 50_000_000;
/// A connection attempt is abandoned after this time. (rdma_cm itself takes a minute.)
const DIAL_NS: u64 = 10_000_000_000;
/// The interval between checks of connection attempts.
const LOOK_NS: u64 = 100_000_000;
/// Passes between two reads of an event queue that has a descriptor: each read is a system call.
const PASSES: u32 = 64;
/// The send queue of a connection: posts of a lane, and answers over an accepted connection. (Each
/// post takes about 1 KiB of memory.)
const POSTS: usize = 160;
const ANSWERS: usize = 32;
/// The target of a route back to an unauthenticated endpoint: no NIC's name.
const NOBODY: Name = [0; 16];
/// The word of a scratch that holds the connection of a post.
const WORD: usize = 7;

struct Connection {
    /// Null while the dialer opens it.
    ep: *mut fid_ep,
    wanted: Arc<AtomicBool>,
    number: u32,
    /// The NIC at the other end.
    name: Name,
    dialed: bool,
    up: bool,
    /// For an accepted connection: the peer that has authenticated over it, if that is known.
    owner: Option<Option<PeerId>>,
    since_ns: u64,
    /// Messages that wait until the connection is up.
    waiting: Vec<(Buffer, *mut Scratch)>,
}

pub struct Connections {
    source: Source,
    clock: Clock,
    domain: *mut fid_domain,
    cq: *mut fid_cq,
    /// The info for opening endpoints.
    info: *mut fi_info,
    srx: *mut fid_ep,
    events: Events,
    dialer: Option<Dialer>,
    name: Name,
    routes: Routes<Target>,
    all: Vec<Connection>,
    last_number: u32,
    /// Connections that are not up yet.
    pending: usize,
    finished: Vec<Reaped>,
    /// Connections that the other side ended: their received messages are reaped first.
    ending: Vec<(u32, i32)>,
    /// Connections whose posts have failed, with the error.
    failed: Vec<(u32, i32)>,
    passes: u32,
    looked_ns: u64,
    /// Endpoints of ended connections that could not be closed yet.
    unclosed: Vec<*mut fid_ep>,
    rejected: u64,
    scratches: Scratches,
    /// An endpoint that cannot be enabled shows that librdmacm has forgotten the NIC; of one that was opened anew for
    /// this, once an endpoint could be.
    enables: bool,
    forgotten: bool,
}

/// A listener's error; where the NIC has no IP address, the error says so.
fn without_address(entry: &ListedNic, error: Error) -> Error {
    if entry.ip.is_some() || error.provider_errno != libc::ENODEV {
        return error;
    }
    let hint = "the network interface of this NIC has no IP address that peers can connect to (link-local ones do not \
                count): give it one (ip address add), then start the process again";
    Error { message: format!("{}; {hint}", error.message).into(), ..error }
}

/// Whether an info's endpoints are connected individually.
///
/// # Safety
/// The info came from a provider.
pub unsafe fn has_connections(info: *const fi_info) -> bool {
    // SAFETY: an info of a provider has every part.
    unsafe { (*(*info).ep_attr).type_ == fi_ep_type::FI_EP_MSG }
}

impl Connections {
    /// Listens; also returns the NIC's address. `anew`: the NIC was forgotten before.
    ///
    /// # Safety
    /// The objects must be open, belong to the entry, and outlive this value.
    pub unsafe fn open(
        entry: &ListedNic,
        fabric: *mut fid_fabric,
        domain: *mut fid_domain,
        cq: *mut fid_cq,
        progress: Progress,
        anew: bool,
    ) -> Result<(Connections, Vec<u8>)> {
        let source = entry.source();
        let name = entry.random.u128()?.to_le_bytes();
        // SAFETY: the entry's info lives as long as the entry, and the copy is ours.
        unsafe {
            let info = source.dupinfo(entry.info());
            if info.is_null() {
                return Err(Error::new(Status::NoMemory, "no memory for a description of a NIC"));
            }
            (*(*info).ep_attr).rx_ctx_cnt = FI_SHARED_CONTEXT;
            let mut connections = Connections {
                source,
                clock: entry.clock.clone(),
                domain,
                cq,
                info,
                srx: ptr::null_mut(),
                events: Events::new(source),
                dialer: None,
                name,
                routes: Routes::default(),
                all: Vec::new(),
                last_number: 0,
                pending: 0,
                finished: Vec::new(),
                ending: Vec::new(),
                failed: Vec::new(),
                passes: 0,
                looked_ns: 0,
                unclosed: Vec::new(),
                rejected: 0,
                scratches: Scratches::default(),
                enables: !anew,
                forgotten: false,
            };
            let rc = fi_srx_context(domain, (*info).rx_attr, &mut connections.srx, ptr::null_mut());
            source.check("opening receives that connections share", rc)?;
            if source.version() < RESOLVES && progress.threads {
                connections.dialer =
                    Some(Dialer::start().map_err(|_| Error::system("starting a thread that dials"))?);
            } else if source.version() < RESOLVES {
                dialer::warn_of_waiting();
            }
            let opened = connections.events.open(fabric, info, progress.waits);
            let mut address = opened.map_err(|error| without_address(entry, error))?;
            address.extend(name);
            Ok((connections, address))
        }
    }

    // Connections.

    fn endpoint_of(&self, number: u32) -> *mut fid_ep {
        let up = self.all.iter().find(|one| one.number == number && one.up);
        up.map_or(ptr::null_mut(), |one| one.ep)
    }

    fn dial(&mut self, to: &[u8], target: Name) -> Result<u32> {
        // SAFETY: the info is our own.
        let info = unsafe { towards(self.source, self.info, to) };
        if info.is_null() {
            return Err(Error::new(Status::NoMemory, "no memory for a connection"));
        }
        // SAFETY: it is a copy of an info of the provider.
        unsafe { shape(info, POSTS) };
        let dialed = self.keep(ptr::null_mut(), target, true);
        let (number, wanted) = (dialed.number, dialed.wanted.clone());
        let (ep, to) = (ptr::null_mut(), to.into());
        let one = Opening { number, to, info, domain: self.domain, wanted, ep, rc: 0 };
        let here = match &self.dialer {
            Some(dialer) => dialer.ask(one),
            None => Some(one),
        };
        if let Some(mut one) = here {
            one.open();
            self.opened(one)?;
        }
        Ok(number)
    }

    /// An endpoint was opened: connects it.
    fn opened(&mut self, mut one: Opening) -> Result<()> {
        let now = self.clock.now();
        let Some(known) = self.all.iter_mut().find(|known| known.number == one.number) else {
            self.discard(one);
            return Ok(());
        };
        let ep = std::mem::replace(&mut one.ep, ptr::null_mut());
        (known.ep, known.since_ns) = (ep, now);
        let request = Handshake { target: known.name, initiator: self.name, beside: false }.bytes();
        // SAFETY: the endpoint is made in libfabric's order.
        let mut connect = || unsafe {
            self.source.check("opening a connection", one.rc)?;
            self.ready(ep)?;
            let rc = fi_connect(ep, one.to.as_ptr().cast(), request.as_ptr().cast(), request.len());
            self.source.check("connecting", rc)
        };
        let connecting = connect();
        if let Err(error) = &connecting {
            self.end(one.number, error.provider_errno);
        }
        self.discard(one);
        connecting
    }

    /// Makes an endpoint that is ready to be connected, with a send queue for this many posts.
    ///
    /// # Safety
    /// The info must belong to this NIC.
    unsafe fn endpoint(&mut self, info: *mut fi_info, posts: usize) -> Result<*mut fid_ep> {
        let mut ep = ptr::null_mut();
        // SAFETY: `info` is valid, and domain and queues stay open until this is closed.
        unsafe {
            shape(info, posts);
            let rc = fi_endpoint(self.domain, info, &mut ep, ptr::null_mut());
            self.source.check("opening a connection", rc)?;
            self.ready(ep).inspect_err(|_| self.part_with(ep))?;
        }
        Ok(ep)
    }

    /// Binds an open endpoint to what all connections share.
    ///
    /// # Safety
    /// The endpoint must be this NIC's.
    unsafe fn ready(&mut self, ep: *mut fid_ep) -> Result<()> {
        let source = self.source;
        // SAFETY: `ep` is open and new, and the queues stay open until this is closed.
        unsafe {
            let bound = fi_ep_bind(ep, self.events.queue(), 0);
            source.check("binding the event queue", bound)?;
            source.check("binding shared receives", fi_ep_bind(ep, self.srx.cast(), 0))?;
            let bound = fi_ep_bind(ep, self.cq.cast(), FI_TRANSMIT | FI_RECV);
            source.check("binding the completion queue", bound)?;
            let enabled = fi_enable(ep);
            self.enables |= enabled == 0;
            // librdmacm (before rdma-core 52) may take another device that is added for this one's end, and opens this one a
            // second time: for it are all connections from then on.
            if enabled == -FI_EINVAL && self.enables && !self.forgotten {
                log::warn!(
                    "librdmacm has opened a NIC a second time: Weft's own opening is closed, and follows"
                );
                self.forgotten = true;
            }
            source.check("enabling a connection", enabled)
        }
    }

    /// The device must be opened anew: it makes no connections any longer.
    pub fn is_forgotten(&self) -> bool {
        self.forgotten
    }

    /// Stores an endpoint that is being connected.
    fn keep(&mut self, ep: *mut fid_ep, name: Name, dialed: bool) -> &Connection {
        self.last_number = self.last_number.wrapping_add(1).max(1);
        let (number, since_ns) = (self.last_number, self.clock.now());
        let (up, owner, waiting) = (false, None, Vec::new());
        let wanted = Arc::new(AtomicBool::new(true));
        self.pending += 1;
        self.all.push(Connection { ep, wanted, number, name, dialed, up, owner, since_ns, waiting });
        &self.all[self.all.len() - 1]
    }

    /// Ends a connection and its routes. Its posts come back through the completion queue.
    fn end(&mut self, number: u32, errno: i32) {
        let Some(at) = self.all.iter().position(|one| one.number == number) else { return };
        let mut ended = self.all.swap_remove(at);
        self.pending -= usize::from(!ended.up);
        self.routes.end(number, errno);
        self.finished.extend(ended.waiting.drain(..).map(|(_, scratch)| Reaped::new(scratch, errno)));
        ended.wanted.store(false, Ordering::Release);
        self.part_with(ended.ep);
    }

    fn end_those(&mut self, goes: impl Fn(&Connection) -> bool) {
        let gone: Vec<u32> = self.all.iter().filter(|one| goes(one)).map(|one| one.number).collect();
        gone.into_iter().for_each(|number| self.end(number, libc::ECANCELED));
    }

    // Posts.

    /// The endpoint of a route.
    #[inline]
    pub fn at(&mut self, route: Route) -> std::result::Result<(*mut fid_ep, u32), Posted> {
        let place = self.routes.find(route).ok_or(Posted::Failed(libc::ENOTCONN))?;
        match (place.leads, place.target.ep) {
            (Ok(_), ep) if ep.is_null() => Err(Posted::Again),
            (Ok(number), ep) => Ok((ep, number)),
            (Err(errno), _) => Err(Posted::Failed(errno)),
        }
    }

    /// Stores a post's connection in its scratch.
    ///
    /// # Safety
    /// The scratch belongs to the NIC. No provider with connections uses that word.
    #[inline]
    pub unsafe fn mark(scratch: *mut Scratch, number: u32) {
        // SAFETY: the scratch is in place until it is reaped, and has this word.
        unsafe { (*scratch).0[WORD] = number as usize as *mut c_void };
    }

    /// # Safety
    /// The same contract as `Nic::send`.
    pub unsafe fn send(&mut self, buffer: Buffer, route: Route, scratch: *mut Scratch) -> Posted {
        self.knows(scratch);
        match self.at(route) {
            Ok((ep, number)) => {
                // SAFETY: endpoint and buffer are valid until the operation is reaped, and so is the scratch.
                unsafe {
                    Self::mark(scratch, number);
                    posted(post(ep, buffer, scratch))
                }
            }
            Err(Posted::Again) => {
                let leads = self.routes.leads(route).ok();
                let connection = self.all.iter_mut().find(|one| Some(one.number) == leads);
                connection.map_or(Posted::Failed(libc::ENOTCONN), |connection| {
                    // One is enough, and the rail has few for handshakes.
                    if connection.ep.is_null() && !connection.waiting.is_empty() {
                        return Posted::Again;
                    }
                    connection.waiting.push((buffer, scratch));
                    Posted::Yes
                })
            }
            // Report the failure as a completion: senders seldom check the result of a post.
            Err(Posted::Failed(errno)) => {
                self.finished.push(Reaped::new(scratch, errno));
                Posted::Yes
            }
            Err(Posted::Yes) => Posted::Yes,
        }
    }

    /// # Safety
    /// The same contract as `Nic::receive`.
    pub unsafe fn receive(&mut self, buffer: Buffer, scratch: *mut Scratch) -> Posted {
        self.knows(scratch);
        // SAFETY: buffer and scratch are valid until the operation is reaped.
        unsafe {
            Self::mark(scratch, 0);
            let Buffer { address, len, descriptor, .. } = buffer;
            posted(fi_recv(self.srx, address, len, descriptor, FI_ADDR_UNSPEC, scratch.cast()))
        }
    }

    #[inline]
    pub fn knows(&mut self, scratch: *mut Scratch) {
        self.scratches.know(scratch);
    }

    /// A post has failed, and so has its connection.
    #[cold]
    pub fn failed(&mut self, scratch: *mut Scratch, errno: i32) {
        if self.scratches.has(scratch) {
            // SAFETY: the scratch is one of the rail's, which are there as long as this NIC.
            let number = unsafe { (*scratch).0[WORD] } as usize as u32;
            self.failed.push((number, errno));
        }
    }

    // Passes.

    /// Reads events when that is due. `emptied`: the completion queue was read to its end.
    #[inline]
    pub fn pass(&mut self, reaped: &mut Vec<Reaped>, emptied: bool) {
        if !self.failed.is_empty() {
            self.end_failed();
        } else if emptied && (self.routes.has_deaths() || !self.ending.is_empty()) {
            self.bury();
        }
        self.passes = self.passes.wrapping_add(1);
        if self.passes >= PASSES || self.pending > 0 || !self.events.has_descriptor() {
            self.passes = 0;
            self.look();
        }
        reaped.append(&mut self.finished);
    }

    #[cold]
    fn end_failed(&mut self) {
        for (number, errno) in std::mem::take(&mut self.failed) {
            self.end(number, errno);
        }
    }

    /// Removes ended connections whose received messages were all reaped.
    #[cold]
    fn bury(&mut self) {
        self.routes.report();
        for (number, errno) in std::mem::take(&mut self.ending) {
            self.end(number, errno);
        }
    }

    /// Reads events.
    pub fn look(&mut self) {
        while let Some(one) = self.dialer.as_ref().and_then(Dialer::next) {
            if let Err(error) = self.opened(one) {
                log::debug!("a connection is not made: {error}");
            }
        }
        while let Some(event) = self.events.next() {
            match event {
                Event::Request(info, data) => self.requested(info, &data),
                Event::Connected(ep) => self.connected(ep),
                Event::Ended(ep, errno) => {
                    let known = self.all.iter().find(|one| one.ep == ep).map(|one| (one.number, one.up));
                    match known {
                        Some((number, true)) => self.ending.push((number, errno)),
                        Some((number, false)) => self.end(number, errno),
                        None => {}
                    }
                }
            }
        }
    }

    #[cold]
    fn connected(&mut self, ep: *mut fid_ep) {
        let Some(connected) = self.all.iter_mut().find(|one| one.ep == ep && !one.up) else { return };
        connected.up = true;
        self.pending -= 1;
        let number = connected.number;
        for (buffer, scratch) in connected.waiting.drain(..) {
            // SAFETY: the caller of `send` promised this for each waiting message.
            let rc = unsafe {
                Self::mark(scratch, number);
                post(ep, buffer, scratch)
            };
            if rc != 0 {
                self.finished.push(Reaped::new(scratch, -rc as i32));
            }
        }
        self.routes.over(number).for_each(|place| place.target.ep = ep);
    }

    /// Makes room for one more connection without a peer, from a NIC as it names itself; false if there is none.
    fn find_room(&mut self, initiator: Name) -> bool {
        let (now, accepted) = (self.clock.now(), self.all.iter().filter(|one| !one.dialed));
        if accepted.clone().filter(|one| one.name == initiator).count() >= OF_NIC {
            return false;
        }
        let waiting = accepted.filter(|one| one.owner.is_none());
        let waiting = waiting.map(|one| (one.number, one.name, now.saturating_sub(one.since_ns)));
        let admitted = admit(&waiting.collect::<Vec<_>>(), UNAUTHENTICATED_MOST, TIME_NS);
        if let Ok(Some(number)) = admitted {
            self.end(number, libc::ECONNABORTED);
        }
        admitted.is_ok()
    }

    #[cold]
    fn requested(&mut self, info: *mut fi_info, data: &[u8]) {
        let handshake = data.first_chunk::<HANDSHAKE>().and_then(Handshake::read).filter(|one| !one.beside);
        let meant =
            handshake.filter(|handshake| handshake.target == self.name && handshake.initiator != NOBODY);
        self.rejected += u64::from(meant.is_none());
        let room = meant.filter(|handshake| self.find_room(handshake.initiator));
        // SAFETY: the info came with a request, and is freed only here.
        unsafe {
            match room {
                Some(handshake) => {
                    let made = self.endpoint(info, ANSWERS).and_then(|ep| {
                        let rc = fi_accept(ep, ptr::null(), 0);
                        let accepted = self.source.check("accepting a connection", rc);
                        accepted.map(|()| ep).inspect_err(|_| self.part_with(ep))
                    });
                    match made {
                        Ok(ep) => _ = self.keep(ep, handshake.initiator, false),
                        Err(error) => log::debug!("a connection is not accepted: {error}"),
                    }
                }
                None => self.events.reject(info),
            }
            self.source.freeinfo(info);
        }
    }

    pub fn tend(&mut self) {
        let now = self.clock.now();
        if now.saturating_sub(self.looked_ns) < LOOK_NS {
            return;
        }
        self.looked_ns = now;
        let _ = self.close_again();
        let old = |one: &Connection| {
            let age = now.saturating_sub(one.since_ns);
            !one.up && !one.ep.is_null() && age > DIAL_NS
                || !one.dialed && one.owner.is_none() && age > UNAUTHENTICATED_NS
        };
        let old: Vec<u32> = self.all.iter().filter(|one| old(one)).map(|one| one.number).collect();
        old.into_iter().for_each(|number| self.end(number, libc::ETIMEDOUT));
    }

    /// The event queue's descriptor, and whether nothing is left to be reaped.
    pub fn wait_fd(&self) -> (Option<RawFd>, bool) {
        (
            self.events.descriptor(),
            self.finished.is_empty() && self.ending.is_empty() && !self.routes.has_deaths(),
        )
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            log::warn!("{}", error.message);
        }
        // SAFETY: the descriptor is our own duplicate, which nothing else closes.
        unsafe { self.source.freeinfo(self.info) };
    }
}

/// Prepares an info for an endpoint with a send queue for this many posts.
///
/// # Safety
/// An info of a provider, which is ours.
unsafe fn shape(info: *mut fi_info, posts: usize) {
    // SAFETY: it has every part.
    unsafe {
        (*(*info).ep_attr).rx_ctx_cnt = FI_SHARED_CONTEXT;
        let tx = (*info).tx_attr;
        (*tx).size = (*tx).size.min(posts);
    }
}

#[inline]
pub fn posted(rc: isize) -> Posted {
    match rc {
        0 => Posted::Yes,
        rc if rc == -(FI_EAGAIN as isize) => Posted::Again,
        rc => Posted::Failed(-rc as i32),
    }
}

/// # Safety
/// The same contract as `Nic::send`.
unsafe fn post(ep: *mut fid_ep, buffer: Buffer, scratch: *mut Scratch) -> isize {
    let Buffer { address, len, descriptor, .. } = buffer;
    // SAFETY: the endpoint is open, and the buffer valid until the send is reaped.
    unsafe { fi_send(ep, address, len, descriptor, FI_ADDR_UNSPEC, scratch.cast()) }
}
