//! Endpoints: posting, and what is refused at once. `flight` has what happens to an operation
//! afterwards, `serve` the target's side.

use super::domain::{AddressVector, Domain};
use super::fid_ops::{self, table};
use super::flight::Flight;
use super::mode::Mode;
use super::port::{Port, Region, AGAIN, DEAD, KILLED};
use super::queue::{Finished, Queue};
use super::spec::Spec;
use super::wire::{Kind, Op, Orphan, Pool, State, Wire};
use super::world::World;
use crate::clock::Sequence;
use crate::failing::step;
use libfabric_sys::*;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// Regions of one peer that are cached, without a lookup in its table.
const KNOWN_REGIONS: usize = 16;
pub(super) const NOWHERE: u32 = u32::MAX;

#[repr(C)]
pub struct Endpoint {
    fid: fid_ep,
    pub(super) domain: *mut Domain,
    domain_users: *mut usize,
    pub(super) world: Arc<World>,
    pub(super) mode: &'static Mode,
    pub(super) port: Arc<Port>,
    pub(super) cq: *mut Queue,
    av: *mut AddressVector,
    enabled: bool,
    has_events: bool,
    emulated: bool,
    depth: usize,
    pub(super) copies: bool,
    pub(super) delay: u64,
    /// Operations take no time.
    pub(super) timeless: bool,
    /// Operations take no time and move no bytes: a post completes immediately.
    instant: bool,
    /// Operations that were posted, and not yet read from the queue.
    outstanding: usize,
    pub(super) pool: Arc<Pool>,
    pub(super) free: Vec<u32>,
    /// Operations that wait for the doorbell, and those that are already done.
    pub(super) held: Vec<u32>,
    pub(super) orphans: Vec<Orphan>,
    quiet: Vec<Finished>,
    pub(super) flight: Flight,
    pub(super) outbound: Vec<Outbound>,
    /// Outbound wires by port number.
    outbound_of: HashMap<u64, u32>,
    /// Outbound wires by route, if known.
    routes: Vec<u32>,
    pub(super) in_wires: usize,
    pub(super) inbound: Vec<Arc<Wire>>,
    pub(super) inbound_seen: u64,
    /// How many cuts of our wires were handled.
    pub(super) cuts_seen: u64,
    pub(super) receives: VecDeque<Receive>,
    pub(super) random: Sequence,
}

/// The connection to one other NIC.
pub struct Outbound {
    /// `None`: there never was such a NIC.
    pub wire: Option<Arc<Wire>>,
    pub regions: [Option<Arc<Region>>; KNOWN_REGIONS],
    pub shaken: bool,
    pub shaking: bool,
    /// Operations that wait for the handshake.
    pub waiting: VecDeque<u32>,
    pub in_wire: usize,
    /// Operations that wait to land, in order: where the mode requires it, later ones do not pass
    /// them.
    pub stalled: BTreeSet<u64>,
    /// The number of posts so far.
    pub posts: u64,
    /// An operation failed, and the NICs have connections: later operations are not performed.
    pub broken: bool,
    /// Something was posted to the connection.
    pub used: bool,
    /// Operations of the pool, and routes, that refer to it.
    pub(super) ops: usize,
    routes: usize,
}

impl Outbound {
    /// Whether an operation that was posted earlier still waits.
    pub fn is_behind(&self, op: &Op) -> bool {
        self.stalled.first().is_some_and(|first| *first < op.order)
    }
}

#[derive(Clone, Copy)]
pub struct Receive {
    pub base: *mut c_void,
    pub len: usize,
    pub context: *mut c_void,
}

static FID: fi_ops = fi_ops { close: Some(close), bind: Some(bind), control: Some(control), ..fi_ops::EMPTY };
static OPS: fi_ops_ep = fi_ops_ep { cancel: Some(cancel), getopt: Some(getopt), ..fi_ops_ep::EMPTY };
static CM: fi_ops_cm = fi_ops_cm { getname: Some(getname), ..fi_ops_cm::EMPTY };
static MSG: fi_ops_msg =
    fi_ops_msg { recv: Some(recv), send: Some(send), sendmsg: Some(sendmsg), ..fi_ops_msg::EMPTY };
static RMA: fi_ops_rma = fi_ops_rma { readmsg: Some(readmsg), writemsg: Some(writemsg), ..fi_ops_rma::EMPTY };

/// # Safety
/// The caller upholds the contract of `fi_endpoint`; the domain outlives the endpoint.
pub unsafe fn open(
    domain: *mut Domain,
    spec: &Spec,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
    domain_users: *mut usize,
) -> c_int {
    // SAFETY: the domain is open.
    let (world, port) = unsafe { ((*domain).world.clone(), (*domain).port.clone()) };
    port.open_anew();
    let mode = world.mode();
    let fid = fid_ep {
        fid: fid_ops::fid(FI_CLASS_EP, context, &FID),
        ops: table(&OPS),
        cm: table(&CM),
        msg: table(&MSG),
        rma: table(&RMA),
        tagged: ptr::null_mut(),
        atomic: ptr::null_mut(),
        collective: ptr::null_mut(),
    };
    let limitless = spec.gbps == 0.0 && spec.delay_us == 0.0;
    let size = 2 * spec.depth;
    let made = Box::new(Endpoint {
        fid,
        domain,
        domain_users,
        mode,
        cq: ptr::null_mut(),
        av: ptr::null_mut(),
        enabled: false,
        has_events: false,
        emulated: spec.emulated,
        depth: spec.depth,
        copies: !spec.nocopy,
        delay: (spec.delay_us * 1e6) as u64,
        timeless: limitless && (mode.ordered || spec.nocopy),
        instant: limitless && spec.nocopy && !mode.target_serves,
        outstanding: 0,
        pool: Arc::new(Pool::new(size)),
        free: (0..size as u32).rev().collect(),
        held: Vec::with_capacity(spec.depth),
        orphans: Vec::new(),
        quiet: Vec::with_capacity(spec.depth),
        flight: Flight::with_capacity(size),
        outbound: Vec::new(),
        outbound_of: HashMap::new(),
        routes: Vec::new(),
        in_wires: 0,
        inbound: Vec::new(),
        inbound_seen: 0,
        cuts_seen: 0,
        receives: VecDeque::with_capacity(spec.depth),
        random: Sequence(world.seed ^ (port.number + 1) << 16),
        world,
        port,
    });
    // SAFETY: `ep` has room for a pointer.
    unsafe { *ep = Box::into_raw(made).cast() };
    0
}

/// The state that a NIC's connections share; it is bound to the NIC's queue.
///
/// # Safety
/// The caller upholds the contract of `fi_srx_context`; domain and queue outlive it.
pub unsafe fn open_shared(
    domain: *mut Domain,
    cq: *mut Queue,
    srx: *mut *mut fid_ep,
    context: *mut c_void,
    domain_users: *mut usize,
) -> c_int {
    // SAFETY: the domain is open, and `srx` has room for a pointer, which `open` has made an endpoint's.
    unsafe {
        let rc = open(domain, &(*domain).spec, srx, context, domain_users);
        let endpoint: *mut Endpoint = (*srx).cast();
        (*endpoint).fid.fid.fclass = FI_CLASS_SRX_CTX;
        ((*endpoint).cq, (*endpoint).enabled) = (cq, true);
        (*cq).serve(endpoint);
        (*domain).endpoint = endpoint;
        rc
    }
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, _flags: u64) -> c_int {
    if step("binding") {
        return -FI_ENOMEM;
    }
    let endpoint: *mut Endpoint = fid.cast();
    // SAFETY: both objects are ours, and are released before the queue and the vector close.
    unsafe {
        match (*other).fclass {
            FI_CLASS_CQ if (*endpoint).cq.is_null() => {
                (*endpoint).cq = other.cast();
                (*(*endpoint).cq).serve(endpoint);
            }
            FI_CLASS_AV if (*endpoint).av.is_null() => {
                (*endpoint).av = other.cast();
                (*(*endpoint).av).users += 1;
                (*(*endpoint).av).endpoint = endpoint;
            }
            FI_CLASS_EQ => (*endpoint).has_events = true,
            _ => return -FI_EINVAL,
        }
    }
    0
}

/// The one option that there is.
unsafe extern "C" fn getopt(
    fid: *mut fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: the caller upholds the contract of `fi_getopt`, and `open` made the endpoint.
    unsafe {
        if (level, name) != (FI_OPT_ENDPOINT, FI_OPT_EFA_EMULATED_WRITE) || *len < size_of::<bool>() {
            return -FI_ENOPROTOOPT;
        }
        *value.cast() = (*fid.cast::<Endpoint>()).emulated;
        *len = size_of::<bool>();
    }
    0
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, _arg: *mut c_void) -> c_int {
    if step("enabling") {
        return -FI_ENOMEM;
    }
    let endpoint: *mut Endpoint = fid.cast();
    // SAFETY: `open` made the endpoint.
    unsafe {
        if command != FI_ENABLE {
            return -FI_ENOSYS;
        }
        if (*endpoint).cq.is_null() {
            return -FI_ENOCQ;
        }
        if (*endpoint).av.is_null() {
            return -FI_ENOAV;
        }
        // The provider ends the process instead, at the first error that belongs to no operation.
        if (*endpoint).mode.needs_events && !(*endpoint).has_events {
            return -FI_ENOEQ;
        }
        (*endpoint).enabled = true;
    }
    0
}

/// Outstanding operations end without completions.
unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    if step("closing an endpoint") {
        return -FI_EBUSY;
    }
    // SAFETY: `open` made the endpoint, which is closed once, before what it is bound to.
    unsafe {
        if (*fid.cast::<Endpoint>()).port.is_stuck() {
            return -FI_EBUSY;
        }
        let endpoint = Box::from_raw(fid.cast::<Endpoint>());
        endpoint.port.close();
        endpoint.outbound.iter().filter_map(|out| out.wire.as_ref()).for_each(|wire| wire.await_target());
        let lost = endpoint.held.len() + endpoint.quiet.len();
        if lost > 0 {
            endpoint.world.counts.lost_flushes.fetch_add(lost as u64, Relaxed);
            log::warn!("sim: {lost} operations waited for a doorbell that never rang");
        }
        if !endpoint.cq.is_null() {
            (*endpoint.cq).release();
        }
        if !endpoint.av.is_null() {
            (*endpoint.av).users -= 1;
            (*endpoint.av).endpoint = ptr::null_mut();
        }
        (*endpoint.domain).endpoint = ptr::null_mut();
        *endpoint.domain_users -= 1;
    }
    0
}

unsafe extern "C" fn cancel(_fid: fid_t, _context: *mut c_void) -> isize {
    // Like tcp's, this succeeds and does nothing.
    0
}

unsafe extern "C" fn getname(fid: fid_t, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    if step("an address") {
        return -FI_ENOMEM;
    }
    // SAFETY: `open` made the endpoint, and the caller passes a buffer of this length.
    unsafe {
        let endpoint = &*fid.cast::<Endpoint>();
        write_name(&(endpoint.world.address_of(&endpoint.port) + "\0"), addr, addrlen)
    }
}

/// Implements `getname`.
///
/// # Safety
/// The caller upholds the contract of `fi_getname`.
pub unsafe fn write_name(name: &str, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    // SAFETY: `addrlen` is the room at `addr`, and at most as much is written.
    unsafe {
        let room = *addrlen;
        *addrlen = name.len();
        if room < name.len() {
            return -FI_ETOOSMALL;
        }
        ptr::copy_nonoverlapping(name.as_ptr(), addr.cast(), name.len());
    }
    0
}

pub fn answer(outcome: Result<(), c_int>) -> isize {
    match outcome {
        Ok(()) => 0,
        Err(errno) => -(errno as isize),
    }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    _src_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    if step("posting a receive") {
        return (-FI_EAGAIN) as isize;
    }
    // SAFETY: the caller upholds the contract of `fi_recv`.
    answer(unsafe { (*ep.cast::<Endpoint>()).receive(Receive { base: buf, len, context }, desc) })
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    if step("posting a message") {
        return (-FI_EAGAIN) as isize;
    }
    let iov = iovec { iov_base: buf.cast_mut(), iov_len: len };
    let mut desc = desc;
    let msg = fi_msg { msg_iov: &iov, desc: &mut desc, iov_count: 1, addr: dest_addr, context, data: 0 };
    // SAFETY: the caller upholds the contract of `fi_send`.
    answer(unsafe { (*ep.cast::<Endpoint>()).send(&msg, 0) })
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: the caller upholds the contract of `fi_sendmsg`.
    answer(unsafe { (*ep.cast::<Endpoint>()).send(&*msg, flags) })
}

unsafe extern "C" fn readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    if step("posting a read") {
        return (-FI_EAGAIN) as isize;
    }
    // SAFETY: the caller upholds the contract of `fi_readmsg`.
    answer(unsafe { (*ep.cast::<Endpoint>()).rma(&*msg, flags, Kind::Read) })
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    if step("posting a write") {
        return (-FI_EAGAIN) as isize;
    }
    // SAFETY: the caller upholds the contract of `fi_writemsg`.
    answer(unsafe { (*ep.cast::<Endpoint>()).rma(&*msg, flags, Kind::Write) })
}

impl Endpoint {
    /// # Safety
    /// The caller upholds the contract of `fi_recv`.
    unsafe fn receive(&mut self, receive: Receive, desc: *mut c_void) -> Result<(), c_int> {
        if !self.enabled {
            return Err(FI_EOPBADSTATE);
        }
        if self.receives.len() == self.depth {
            return Err(FI_EAGAIN);
        }
        // SAFETY: the descriptor is NULL or a registration of this domain that is open.
        unsafe { self.check_local(receive.base as u64, receive.len, desc)? };
        // SAFETY: the context has eight words where the mode asks for them.
        unsafe { self.claim(receive.context)? };
        self.receives.push_back(receive);
        Ok(())
    }

    /// # Safety
    /// The caller upholds the contract of `fi_sendmsg`.
    unsafe fn send(&mut self, msg: &fi_msg, flags: u64) -> Result<(), c_int> {
        let out = self.outbound_at(msg.addr)?;
        // SAFETY: the message is valid for the call, and what it names until the operation is read.
        unsafe { self.send_to(out, msg, flags) }
    }

    /// # Safety
    /// The caller upholds the contract of `fi_sendmsg`.
    pub(super) unsafe fn send_to(&mut self, out: usize, msg: &fi_msg, flags: u64) -> Result<(), c_int> {
        self.check_post()?;
        if msg.iov_count != 1 || flags & !(FI_MORE | FI_COMPLETION) != 0 {
            return Err(FI_EINVAL);
        }
        // SAFETY: the message has one range and its descriptor.
        let iov = unsafe { *msg.msg_iov };
        // SAFETY: a message has one descriptor for each vector, NULL or an open registration.
        unsafe { self.check_local(iov.iov_base as u64, iov.iov_len, *msg.desc)? };
        // SAFETY: the context has eight words where the mode asks for them, until the operation is read.
        let op = unsafe { self.begin(out, Kind::Send, msg.context)? };
        // SAFETY: the operation is ours until it is launched.
        let filled = unsafe { &mut *self.pool.op(op) };
        filled.flags = FI_MSG | FI_SEND;
        filled.len = iov.iov_len;
        filled.local = iov;
        filled.data = None;
        self.ring(op, flags & FI_MORE != 0);
        Ok(())
    }

    /// # Safety
    /// The caller upholds the contract of `fi_writemsg` or `fi_readmsg`.
    #[inline]
    unsafe fn rma(&mut self, msg: &fi_msg_rma, flags: u64, kind: Kind) -> Result<(), c_int> {
        let out = self.outbound_at(msg.addr)?;
        // SAFETY: the message is valid for the call, and what it names until the operation is read.
        unsafe { self.rma_to(out, msg, flags, kind) }
    }

    /// # Safety
    /// The same contract as `rma`.
    #[inline]
    pub(super) unsafe fn rma_to(
        &mut self,
        out: usize,
        msg: &fi_msg_rma,
        flags: u64,
        kind: Kind,
    ) -> Result<(), c_int> {
        self.check_post()?;
        // SAFETY: the message's vectors are as many as it says.
        unsafe { self.check_rma(msg, flags)? };
        if self.instant && self.is_ready(out) && flags & FI_REMOTE_CQ_DATA == 0 {
            // SAFETY: the message was checked, and its local bytes are valid.
            return unsafe { self.at_once(out, msg, flags, kind) };
        }
        // SAFETY: the context has eight words where the mode asks for them, until the operation is read.
        let op = unsafe { self.begin(out, kind, msg.context)? };
        // SAFETY: the operation is ours, and each side has one range.
        unsafe {
            let filled = &mut *self.pool.op(op);
            filled.flags = FI_RMA | if kind == Kind::Read { FI_READ } else { FI_WRITE };
            (filled.local, filled.remote) = (*msg.msg_iov, *msg.rma_iov);
            filled.len = filled.local.iov_len;
            filled.data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
        }
        self.ring(op, flags & FI_MORE != 0);
        Ok(())
    }

    /// Rejects what the mode does not offer, and calls that lack what it requires.
    ///
    /// # Safety
    /// The caller upholds the contract of `fi_writemsg`.
    #[inline]
    unsafe fn check_rma(&self, msg: &fi_msg_rma, flags: u64) -> Result<(), c_int> {
        if msg.iov_count != 1 || msg.rma_iov_count != 1 {
            return Err(FI_EINVAL);
        }
        if flags & FI_DELIVERY_COMPLETE != 0 && !self.mode.delivery_complete {
            return Err(FI_EOPNOTSUPP);
        }
        if flags & FI_REMOTE_CQ_DATA != 0 && self.mode.cq_data == 4 && msg.data >> 32 != 0 {
            return Err(FI_EINVAL);
        }
        // SAFETY: both counts were found to be one, so there is a vector at each side.
        unsafe { self.check_ranges(msg) }
    }

    /// # Safety
    /// The caller upholds the contract of `fi_writemsg`, and each side has one range.
    #[inline]
    unsafe fn check_ranges(&self, msg: &fi_msg_rma) -> Result<(), c_int> {
        // SAFETY: the message has one vector at each side, and a descriptor for the local one.
        unsafe {
            let local = *msg.msg_iov;
            if local.iov_len != (*msg.rma_iov).len {
                return Err(FI_EINVAL);
            }
            let desc = if msg.desc.is_null() { ptr::null_mut() } else { *msg.desc };
            self.check_local(local.iov_base as u64, local.iov_len, desc)
        }
    }

    #[inline]
    fn check_post(&self) -> Result<(), c_int> {
        if !self.enabled {
            return Err(FI_EOPBADSTATE);
        }
        if self.outstanding >= self.depth {
            return Err(FI_EAGAIN);
        }
        if self.port.has(AGAIN | KILLED | DEAD) {
            return self.check_faults();
        }
        Ok(())
    }

    #[cold]
    fn check_faults(&self) -> Result<(), c_int> {
        if self.port.has(AGAIN) {
            let until = self.port.again_until.load(Relaxed);
            if self.world.now() < until {
                self.world.wake_at(until);
                return Err(FI_EAGAIN);
            }
            self.port.state.fetch_and(!AGAIN, Relaxed);
        }
        Ok(())
    }

    /// # Safety
    /// The domain must be open.
    #[inline]
    unsafe fn check_local(&self, base: u64, len: usize, desc: *mut c_void) -> Result<(), c_int> {
        // SAFETY: the descriptor is NULL or an open registration, and the domain stays open as long as this.
        if self.mode.has(FI_MR_LOCAL) && !unsafe { (*self.domain).covers(desc, base, len as u64) } {
            return Err(FI_EINVAL);
        }
        Ok(())
    }

    // Claims a context, which belongs to the provider until the completion.

    fn mark(context: *mut c_void) -> u64 {
        0x5157_c0de_0000_0001 ^ (context as u64).rotate_left(17)
    }

    /// # Safety
    /// `context` must be as large as the mode requires.
    #[inline]
    unsafe fn claim(&self, context: *mut c_void) -> Result<(), c_int> {
        if self.mode.mode & FI_CONTEXT2 == 0 {
            return Ok(());
        }
        let (words, mark) = (context.cast::<[u64; 8]>(), Self::mark(context));
        // SAFETY: a context that is not NULL has eight words.
        if words.is_null() || unsafe { (*words)[0] == mark && (*words)[7] == mark } {
            return Err(self.spoilt());
        }
        // SAFETY: the context has eight words, and is the NIC's until the operation is read.
        unsafe { *words = [mark; 8] };
        Ok(())
    }

    #[cold]
    fn spoilt(&self) -> c_int {
        self.world.counts.spoilt_contexts.fetch_add(1, Relaxed);
        log::error!("sim: a context slot was missing, used twice, or written to before its completion");
        FI_EINVAL
    }

    /// A completion was read: its context belongs to the caller again. False if the caller touched
    /// it earlier.
    ///
    /// # Safety
    /// The entry must belong to this endpoint.
    #[inline]
    pub(super) unsafe fn give_back(&mut self, entry: &Finished) -> bool {
        if entry.sent {
            self.outstanding -= 1;
        }
        if self.mode.mode & FI_CONTEXT2 == 0 || entry.context.is_null() {
            return true;
        }
        let (words, mark) = (entry.context.cast::<[u64; 8]>(), Self::mark(entry.context));
        // SAFETY: the context was claimed, so it has eight words, and is given back once.
        unsafe {
            let whole = *words == [mark; 8];
            if !whole && entry.errno == 0 {
                self.spoilt();
            }
            *words = [0; 8];
            whole
        }
    }

    // Routes.

    #[inline]
    fn outbound_at(&mut self, route: fi_addr_t) -> Result<usize, c_int> {
        match self.routes.get(route as usize) {
            Some(out) if *out != NOWHERE => Ok(*out as usize),
            _ => self.find_outbound(route),
        }
    }

    #[cold]
    fn find_outbound(&mut self, route: fi_addr_t) -> Result<usize, c_int> {
        // SAFETY: the object is bound to the endpoint, and open as long as the endpoint.
        let address = unsafe { (*self.av).address(route) }.ok_or(FI_EINVAL)?;
        let port = self.world.port_at(address).filter(|port| !port.is_gone());
        let leads =
            |out: &u32| self.outbound[*out as usize].wire.as_ref().is_some_and(|wire| !wire.target_is_gone());
        let known = port.as_ref().and_then(|port| self.outbound_of.get(&port.number).copied()).filter(leads);
        let out = known.map_or_else(|| self.new_outbound(port), |out| out as usize);
        self.routes.resize(self.routes.len().max(route as usize + 1), NOWHERE);
        self.routes[route as usize] = out as u32;
        self.outbound[out].routes += 1;
        Ok(out)
    }

    fn new_outbound(&mut self, port: Option<Arc<Port>>) -> usize {
        let number = port.as_ref().map(|port| port.number);
        let wire = port.map(|port| self.connect(&port, 0));
        let at = self.place_outbound(wire);
        if let Some(number) = number {
            self.outbound_of.insert(number, at as u32);
        }
        at
    }

    /// The slot of a wire.
    fn place_outbound(&mut self, wire: Option<Arc<Wire>>) -> usize {
        let fresh = Outbound {
            wire,
            regions: Default::default(),
            shaken: self.mode.before_handshake.is_none(),
            shaking: false,
            waiting: VecDeque::new(),
            in_wire: 0,
            stalled: BTreeSet::new(),
            posts: 0,
            broken: false,
            used: false,
            ops: 0,
            routes: 0,
        };
        let unused = |out: &Outbound| {
            let over = out.wire.as_ref().is_none_or(|wire| wire.target_is_gone());
            out.routes == 0 && out.ops == 0 && over
        };
        let at = match self.outbound.iter().position(unused) {
            Some(at) => {
                self.outbound_of.retain(|_, out| *out as usize != at);
                self.outbound[at] = fresh;
                at
            }
            None => {
                self.outbound.push(fresh);
                self.outbound.len() - 1
            }
        };
        at
    }

    /// Begins a new connection to another NIC.
    pub(super) fn begin_connection(&mut self, port: &Arc<Port>, link: u64) -> usize {
        let wire = self.connect(port, link);
        let at = self.place_outbound(Some(wire));
        self.outbound[at].routes = 1;
        at
    }

    /// Ends a connection: its posts come back.
    pub(super) fn end_connection(&mut self, out: usize) {
        self.disconnect(out, FI_ECANCELED);
        self.outbound[out].routes = 0;
        self.outbound[out].wire = None;
    }

    pub(super) fn connect(&self, port: &Arc<Port>, link: u64) -> Arc<Wire> {
        let wire = Arc::new(Wire::new(&self.port, port, &self.pool, self.copies, self.delay, link));
        port.attach(&wire);
        wire
    }

    /// An address was removed from the vector: where NICs connect, the connection ends.
    pub fn forget_route(&mut self, route: usize, address: &str) {
        if let Some(out) = self.routes.get_mut(route).filter(|out| **out != NOWHERE) {
            self.outbound[*out as usize].routes -= 1;
            *out = NOWHERE;
        }
        if let Some(other) = self.world.port_at(address).filter(|_| self.mode.connects) {
            self.port.cut_from(&other);
            if let Some(out) = self.outbound_of.get(&other.number).copied() {
                self.disconnect(out as usize, FI_ECANCELED);
                self.outbound[out as usize].broken = false;
            }
        }
    }

    /// Lets posts reach an address again, although the other side ended the connection.
    pub fn redial(&mut self, address: &str) {
        let other = self.world.port_at(address).filter(|_| self.mode.connects);
        let out = other.and_then(|other| self.outbound_of.get(&other.number).copied());
        if let Some(out) = out {
            self.outbound[out as usize].broken = false;
        }
    }

    // Operations.

    /// Takes a free operation, and claims the caller's context.
    ///
    /// # Safety
    /// `context` must be as large as the mode requires.
    unsafe fn begin(&mut self, out: usize, kind: Kind, context: *mut c_void) -> Result<u32, c_int> {
        let to = &self.outbound[out];
        let queued = self.mode.before_handshake.is_some_and(|most| to.waiting.len() >= most);
        if !to.shaken && queued {
            return Err(FI_EAGAIN);
        }
        let Some(op) = self.free.last().copied() else { return Err(FI_EAGAIN) };
        // SAFETY: the context has eight words where the mode asks for them, until the operation is read.
        unsafe { self.claim(context)? };
        self.free.pop();
        self.outbound[out].ops += 1;
        self.outstanding += 1;
        // SAFETY: a free operation is ours.
        let taken: &mut Op = unsafe { &mut *self.pool.op(op) };
        (taken.state, taken.outbound) = (State::Here, out as u32);
        (taken.kind, taken.context) = (kind, context);
        (taken.errno, taken.orphan) = (0, false);
        Ok(op)
    }

    pub(super) fn release(&mut self, op: u32) {
        // SAFETY: an operation that has come back is ours.
        let released = unsafe { &mut *self.pool.op(op) };
        released.state = State::Free;
        self.outbound[released.outbound as usize].ops -= 1;
        self.free.push(op);
    }

    /// Rings the doorbell, unless another post will.
    fn ring(&mut self, op: u32, more: bool) {
        if more {
            return self.held.push(op);
        }
        self.flush();
        self.launch(op);
    }

    fn flush(&mut self) {
        for entry in self.quiet.drain(..) {
            // SAFETY: the object is bound to the endpoint, and open as long as the endpoint.
            unsafe { (*self.cq).push(entry) };
        }
        if !self.held.is_empty() {
            let mut held = std::mem::take(&mut self.held);
            held.drain(..).for_each(|op| self.launch(op));
            self.held = held;
        }
    }

    /// Whether an instant operation can complete now.
    #[inline]
    fn is_ready(&self, out: usize) -> bool {
        let out = &self.outbound[out];
        let clear = |port: &Port| port.state.load(Relaxed) == 0;
        out.shaken
            && clear(&self.port)
            && out.wire.as_ref().is_some_and(|w| clear(&w.to) && !w.target_is_gone())
    }

    /// Performs an operation while it is posted.
    ///
    /// # Safety
    /// The same contract as `rma`.
    #[inline]
    unsafe fn at_once(&mut self, out: usize, msg: &fi_msg_rma, flags: u64, kind: Kind) -> Result<(), c_int> {
        // SAFETY: the context has eight words where the mode asks for them.
        unsafe { self.claim(msg.context)? };
        let mut errno = 0;
        let access = access_of(kind);
        // SAFETY: the message has one range.
        if self.outbound[out].locate(unsafe { &*msg.rma_iov }, access).is_none() {
            errno = self.mode.refused;
        }
        let flag = if kind == Kind::Read { FI_READ } else { FI_WRITE };
        let flags_of = if errno == 0 || self.mode.errors_have_flags { FI_RMA | flag } else { 0 };
        let entry = Finished { context: msg.context, flags: flags_of, len: 0, data: 0, errno, sent: true };
        self.outstanding += 1;
        if flags & FI_MORE != 0 {
            self.quiet.push(entry);
        } else {
            self.flush();
            // SAFETY: the object is bound to the endpoint, and open as long as the endpoint.
            unsafe { (*self.cq).push(entry) };
        }
        Ok(())
    }
}

/// The access that a region must allow for an operation.
#[inline]
pub fn access_of(kind: Kind) -> u64 {
    if kind == Kind::Read {
        FI_REMOTE_READ
    } else {
        FI_REMOTE_WRITE
    }
}

impl Outbound {
    /// Where a remote range is in this process.
    #[inline]
    pub fn locate(&mut self, range: &fi_rma_iov, access: u64) -> Option<u64> {
        let place = range.key as usize % KNOWN_REGIONS;
        let known = self.regions[place].as_ref();
        if let Some(region) = known.filter(|region| region.key == range.key) {
            if let Some(at) = region.locate(range.addr, range.len as u64, access) {
                return Some(at);
            }
        }
        self.look_up(place, range, access)
    }

    #[cold]
    fn look_up(&mut self, place: usize, range: &fi_rma_iov, access: u64) -> Option<u64> {
        let region = self.wire.as_ref()?.to.region(range.key)?;
        let at = region.locate(range.addr, range.len as u64, access);
        self.regions[place] = Some(region);
        at
    }
}
