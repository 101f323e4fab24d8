//! Connections of endpoints of type FI_EP_MSG, as verbs has them: listeners, event queues, and
//! endpoints that share one queue and one set of receives.
//!
//! Both sides of a connection have a `Link`. Each step of one side reaches the other as a `Call`,
//! which the other's event queue reads once the call has crossed. A side that closes causes an
//! event at the other side, whose posts stay pending until that side closes its own end, too.

use super::domain::Domain;
use super::endpoint::{self, Endpoint};
use super::fid_ops::{self, table};
use super::flight::retry_at;
use super::info::Info;
use super::port::{Port, DEAD, FORGOTTEN, KILLED, RX_DOWN, TX_DOWN};
use super::wire::{Call, Kind, Link};
use super::world::World;
use crate::failing::step;
use libfabric_sys::*;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void, CStr};
use std::ptr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::Arc;

/// The most bytes that a connection request carries.
const DATA: usize = 56;

/// Sends a call to another port, where it arrives after the delay.
fn call(world: &World, to: &Port, after: u64, call: Call) {
    let due = world.now() + after;
    world.wake_at(due);
    to.call(due, call);
}

// Event queues.

#[repr(C)]
pub struct Events {
    fid: fid_eq,
    users: usize,
    domain: *mut Domain,
    listener: *mut Listener,
    connections: Vec<*mut Connection>,
    /// Errors that are not read yet.
    failed: VecDeque<(*mut Connection, c_int)>,
}

static EQ_FID: fi_ops = fi_ops { close: Some(close_events), ..fi_ops::EMPTY };
static EQ_OPS: fi_ops_eq = fi_ops_eq { read: Some(read), readerr: Some(readerr), ..fi_ops_eq::EMPTY };

/// Like `fi_eq_open`, but without a descriptor: events ring the NIC's bell.
pub unsafe extern "C" fn open_events(
    _fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    eq: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    if step("an event queue") {
        return -FI_ENOMEM;
    }
    // SAFETY: the caller upholds the contract of `fi_eq_open`.
    unsafe {
        if (*attr).wait_obj != fi_wait_obj::FI_WAIT_NONE {
            return -FI_ENOSYS;
        }
        let made = Events {
            fid: fid_eq { fid: fid_ops::fid(FI_CLASS_EQ, context, &EQ_FID), ops: table(&EQ_OPS) },
            users: 0,
            domain: ptr::null_mut(),
            listener: ptr::null_mut(),
            connections: Vec::new(),
            failed: VecDeque::new(),
        };
        *eq = Box::into_raw(Box::new(made)).cast();
    }
    0
}

unsafe extern "C" fn close_events(fid: *mut fid) -> c_int {
    if step("closing an event queue") {
        return -FI_EBUSY;
    }
    let events: *mut Events = fid.cast();
    // SAFETY: `open_events` made the queue, which is closed only here.
    unsafe {
        if (*events).users > 0 {
            return -FI_EBUSY;
        }
        drop(Box::from_raw(events));
    }
    0
}

unsafe extern "C" fn read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    _flags: u64,
) -> isize {
    // SAFETY: `open_events` made the queue, and the caller passes an entry of `len` bytes in all.
    unsafe {
        let events = &mut *eq.cast::<Events>();
        if events.domain.is_null() {
            return -(FI_EAGAIN as isize);
        }
        match events.next() {
            Err(errno) => -(errno as isize),
            Ok((kind, fid, info, data)) => {
                let room = len.saturating_sub(size_of::<fi_eq_cm_entry>()).min(data.len());
                let entry: *mut fi_eq_cm_entry = buf.cast();
                entry.write_unaligned(fi_eq_cm_entry { fid, info, data: [] });
                ptr::copy_nonoverlapping(data.as_ptr(), entry.add(1).cast(), room);
                *event = kind;
                (size_of::<fi_eq_cm_entry>() + room) as isize
            }
        }
    }
}

unsafe extern "C" fn readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, _flags: u64) -> isize {
    // SAFETY: `open_events` made the queue, and the caller passes one entry.
    unsafe {
        let Some((connection, errno)) = (*eq.cast::<Events>()).failed.pop_front() else {
            return -(FI_EAGAIN as isize);
        };
        *buf = fi_eq_err_entry { fid: connection.cast(), err: errno, prov_errno: -8, ..Default::default() };
    }
    size_of::<fi_eq_err_entry>() as isize
}

type Event = (u32, fid_t, *mut fi_info, Vec<u8>);

impl Events {
    /// The next event, or an error number: FI_EAVAIL if an error can be read.
    ///
    /// # Safety
    /// Every object that is bound to the queue must be open.
    unsafe fn next(&mut self) -> Result<Event, c_int> {
        // SAFETY: the domain stays open as long as this queue, which is bound to it.
        let (world, port) = unsafe { ((*self.domain).world.clone(), (*self.domain).port.clone()) };
        world.strike_faults();
        if !self.failed.is_empty() {
            return Err(FI_EAVAIL);
        }
        if port.has(KILLED | DEAD) {
            return Err(FI_EAGAIN);
        }
        // SAFETY: endpoints that this queue knows take themselves out of it before they are freed.
        unsafe { self.look_for_the_gone(&port) };
        while let Some(call) = port.take_call(world.now(), |call| self.may_pass(&port, call)) {
            // SAFETY: the call was for an endpoint or listener that this queue knows, so it is not freed.
            if let Some(event) = unsafe { self.take(&world, call) } {
                return Ok(event);
            }
            if !self.failed.is_empty() {
                return Err(FI_EAVAIL);
            }
        }
        if port.has_calls() {
            world.wake_at(retry_at(world.now()));
        }
        Err(FI_EAGAIN)
    }

    /// Whether a call's packet can pass now.
    fn may_pass(&self, port: &Port, call: &Call) -> bool {
        let from = match call {
            Call::Request(link, _) => Some(link.caller.clone()),
            Call::Connected(side) | Call::Closed(side) | Call::Refused(side) => {
                self.connection(*side).and_then(|connection| {
                    // SAFETY: an object in this list is open.
                    unsafe { (*connection).link.as_ref().map(|link| link.other(port).clone()) }
                })
            }
        };
        from.is_none_or(|from| from.is_gone() || !(from.has(TX_DOWN) || port.has(RX_DOWN)))
    }

    fn connection(&self, side: u64) -> Option<*mut Connection> {
        // SAFETY: objects in this list are open.
        let is_it = |one: &&*mut Connection| unsafe { (***one).side == side };
        self.connections.iter().find(is_it).copied()
    }

    /// A killed side sends no call: its end is reported all the same.
    ///
    /// # Safety
    /// The same contract as `next`.
    unsafe fn look_for_the_gone(&mut self, port: &Arc<Port>) {
        for connection in &self.connections {
            // SAFETY: an object in this list is open.
            let connection = unsafe { &mut **connection };
            let gone = connection.link.as_ref().is_some_and(|link| link.other(port).is_gone());
            if gone && !std::mem::replace(&mut connection.knows_of_end, true) {
                let up = connection.state == State::Up;
                let call = if up { Call::Closed } else { Call::Refused };
                port.call(0, call(connection.side));
            }
        }
    }

    /// # Safety
    /// The same contract as `next`.
    unsafe fn take(&mut self, world: &Arc<World>, call: Call) -> Option<Event> {
        let event =
            |kind, connection: *mut Connection| Some((kind, connection.cast(), ptr::null_mut(), Vec::new()));
        match call {
            Call::Request(link, data) => {
                if self.listener.is_null() || link.closed.load(SeqCst) {
                    return None;
                }
                // SAFETY: the listener takes itself out of this queue before it is freed.
                let info = unsafe { (*self.listener).info_for(link, world) };
                Some((FI_CONNREQ, self.listener.cast(), info, data))
            }
            Call::Connected(side) => {
                let connection = self.connection(side)?;
                // SAFETY: an object in this list is open.
                unsafe { (*connection).establish() };
                event(FI_CONNECTED, connection)
            }
            Call::Refused(side) => {
                self.failed.push_back((self.connection(side)?, FI_ECONNREFUSED));
                None
            }
            Call::Closed(side) => event(FI_SHUTDOWN, self.connection(side)?),
        }
    }
}

// Listeners.

#[repr(C)]
pub struct Listener {
    fid: fid_pep,
    fabric_domain: *mut Domain,
    events: *mut Events,
    spec: super::spec::Spec,
    rail: usize,
}

static PEP_FID: fi_ops = fi_ops { close: Some(close_listener), bind: Some(bind_listener), ..fi_ops::EMPTY };
static PEP_CM: fi_ops_cm = fi_ops_cm {
    getname: Some(name_of_listener),
    listen: Some(listen),
    reject: Some(reject),
    ..fi_ops_cm::EMPTY
};

/// A listener of a domain's NIC.
///
/// # Safety
/// The caller upholds the contract of `fi_passive_ep`.
pub unsafe fn open_listener(
    domain: *mut Domain,
    info: *mut Info,
    pep: *mut *mut fid_pep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: `pep` has room for a pointer, and the info is one of `info`.
    unsafe {
        let fid = fid_pep {
            fid: fid_ops::fid(FI_CLASS_PEP, context, &PEP_FID),
            ops: ptr::null_mut(),
            cm: table(&PEP_CM),
        };
        let (spec, rail) = ((*info).spec().clone(), (*info).rail());
        let made = Listener { fid, fabric_domain: domain, events: ptr::null_mut(), spec, rail };
        *pep = Box::into_raw(Box::new(made)).cast();
    }
    0
}

unsafe extern "C" fn bind_listener(fid: *mut fid, other: *mut fid, _flags: u64) -> c_int {
    if step("binding a listener") {
        return -FI_ENOMEM;
    }
    // SAFETY: both objects are ours, by the contract of `fi_pep_bind`.
    unsafe {
        let listener: *mut Listener = fid.cast();
        if (*other).fclass != FI_CLASS_EQ {
            return -FI_EINVAL;
        }
        let events: *mut Events = other.cast();
        ((*events).listener, (*events).domain) = (listener, (*listener).fabric_domain);
        (*events).users += 1;
        (*listener).events = events;
    }
    0
}

unsafe extern "C" fn listen(pep: *mut fid_pep) -> c_int {
    if step("listening") {
        return -FI_ENOMEM;
    }
    // SAFETY: the listener is ours, and its domain is open.
    unsafe { (*(*pep.cast::<Listener>()).fabric_domain).port.listen(true) };
    0
}

unsafe extern "C" fn close_listener(fid: *mut fid) -> c_int {
    if step("closing a listener") {
        return -FI_EBUSY;
    }
    // SAFETY: `open_listener` made the listener, which is closed once, before its queue and domain.
    unsafe {
        let listener = Box::from_raw(fid.cast::<Listener>());
        (*listener.fabric_domain).port.listen(false);
        if !listener.events.is_null() {
            (*listener.events).listener = ptr::null_mut();
            (*listener.events).users -= 1;
        }
    }
    0
}

unsafe extern "C" fn name_of_listener(fid: fid_t, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    if step("an address") {
        return -FI_ENOMEM;
    }
    // SAFETY: the listener is ours, and the buffer has the given length.
    unsafe {
        let domain = &*(*fid.cast::<Listener>()).fabric_domain;
        endpoint::write_name(&(domain.world.address_of(&domain.port) + "\0"), addr, addrlen)
    }
}

/// The handle in the info of a connection request.
#[repr(C)]
struct Request {
    fid: fid,
    link: Arc<Link>,
}

static REQUEST_FID: fi_ops = fi_ops::EMPTY;

unsafe extern "C" fn reject(
    pep: *mut fid_pep,
    handle: fid_t,
    _param: *const c_void,
    _paramlen: usize,
) -> c_int {
    // SAFETY: the listener is ours, and the handle belongs to a request that reached it, and is
    // used once.
    unsafe {
        let request = Box::from_raw(handle.cast::<Request>());
        let domain = &*(*pep.cast::<Listener>()).fabric_domain;
        call(&domain.world, &request.link.caller, domain.delay, Call::Refused(request.link.side(false)));
    }
    0
}

impl Listener {
    unsafe fn info_for(&self, link: Arc<Link>, world: &Arc<World>) -> *mut fi_info {
        let info = Info::make(&self.spec, self.rail, world.clone(), Arc::default());
        let request = Request { fid: fid_ops::fid(FI_CLASS_CONNREQ, ptr::null_mut(), &REQUEST_FID), link };
        // SAFETY: the info was just made.
        unsafe { (*info).handle = Box::into_raw(Box::new(request)).cast() };
        info
    }
}

// Connected endpoints.

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Connecting,
    Up,
}

#[repr(C)]
pub struct Connection {
    fid: fid_ep,
    domain: *mut Domain,
    events: *mut Events,
    link: Option<Arc<Link>>,
    /// Its side of its link; 0: it has no link.
    side: u64,
    state: State,
    enabled: bool,
    knows_of_end: bool,
    /// Its index in the NIC's endpoint, once it is up.
    out: Option<usize>,
}

static FID: fi_ops = fi_ops { close: Some(close), bind: Some(bind), control: Some(control), ..fi_ops::EMPTY };
static CM: fi_ops_cm = fi_ops_cm { connect: Some(connect), accept: Some(accept), ..fi_ops_cm::EMPTY };
static MSG: fi_ops_msg = fi_ops_msg { send: Some(send), ..fi_ops_msg::EMPTY };
static RMA: fi_ops_rma = fi_ops_rma { readmsg: Some(readmsg), writemsg: Some(writemsg), ..fi_ops_rma::EMPTY };

/// # Safety
/// The caller upholds the contract of `fi_endpoint`.
pub unsafe fn open(
    domain: *mut Domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the info is one of `info`; its handle belongs to a request, and is used once.
    unsafe {
        let request = (*info).handle.cast::<Request>();
        let link = (!request.is_null()).then(|| Box::from_raw(request).link);
        let fid = fid_ep {
            fid: fid_ops::fid(FI_CLASS_EP, context, &FID),
            ops: ptr::null_mut(),
            cm: table(&CM),
            msg: table(&MSG),
            rma: table(&RMA),
            tagged: ptr::null_mut(),
            atomic: ptr::null_mut(),
            collective: ptr::null_mut(),
        };
        (*domain).users += 1;
        let made = Connection {
            fid,
            domain,
            events: ptr::null_mut(),
            side: link.as_ref().map_or(0, |link| link.side(true)),
            link,
            state: State::New,
            enabled: false,
            knows_of_end: false,
            out: None,
        };
        *ep = Box::into_raw(Box::new(made)).cast();
    }
    0
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, _flags: u64) -> c_int {
    if step("binding") {
        return -FI_ENOMEM;
    }
    // SAFETY: both objects are ours, by the contract of `fi_ep_bind`.
    unsafe {
        let connection: *mut Connection = fid.cast();
        match (*other).fclass {
            FI_CLASS_EQ => {
                (*connection).events = other.cast();
                (*(*connection).events).users += 1;
                (*(*connection).events).connections.push(connection);
            }
            // The NIC has only one queue, and one set of receives.
            FI_CLASS_CQ | FI_CLASS_SRX_CTX => {}
            _ => return -FI_EINVAL,
        }
    }
    0
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, _arg: *mut c_void) -> c_int {
    if step("enabling") {
        return -FI_ENOMEM;
    }
    // SAFETY: `open` made the connection.
    unsafe {
        let connection = &mut *fid.cast::<Connection>();
        if command != FI_ENABLE {
            return -FI_ENOSYS;
        }
        if connection.events.is_null() {
            return -FI_ENOEQ;
        }
        if (*connection.domain).endpoint.is_null() {
            return -FI_ENOCQ;
        }
        if (*connection.domain).port.has(FORGOTTEN) {
            return -FI_EINVAL;
        }
        connection.enabled = true;
    }
    0
}

unsafe extern "C" fn connect(
    ep: *mut fid_ep,
    addr: *const c_void,
    param: *const c_void,
    paramlen: usize,
) -> c_int {
    if step("connecting") {
        return -FI_ENOMEM;
    }
    static LINKS: AtomicU64 = AtomicU64::new(1);
    // SAFETY: the contract of `fi_connect` holds; an address is a NUL-terminated string.
    unsafe {
        let connection = &mut *ep.cast::<Connection>();
        if !connection.enabled || connection.state != State::New || paramlen > DATA {
            return -FI_EINVAL;
        }
        let Ok(address) = CStr::from_ptr(addr.cast()).to_str() else { return -FI_EINVAL };
        if !address.starts_with("sim://") {
            return -FI_EINVAL;
        }
        let domain = &*connection.domain;
        let there = domain.world.port_at(address).filter(|port| port.listens());
        let listener = there.clone().unwrap_or_else(|| domain.port.clone());
        let number = LINKS.fetch_add(1, SeqCst);
        let caller = domain.port.clone();
        let link = Arc::new(Link { number, caller, listener, closed: AtomicBool::new(false) });
        (connection.state, connection.side, connection.link) =
            (State::Connecting, link.side(false), Some(link.clone()));
        let data = std::slice::from_raw_parts(param.cast::<u8>(), paramlen).to_vec();
        match there {
            Some(there) => call(&domain.world, &there, domain.delay, Call::Request(link, data)),
            None => call(&domain.world, &domain.port, 2 * domain.delay, Call::Refused(connection.side)),
        }
    }
    0
}

unsafe extern "C" fn accept(ep: *mut fid_ep, _param: *const c_void, _paramlen: usize) -> c_int {
    if step("accepting") {
        return -FI_ENOMEM;
    }
    // SAFETY: `open` made the connection, from a request.
    unsafe {
        let connection = &mut *ep.cast::<Connection>();
        let Some(link) =
            connection.link.clone().filter(|_| connection.enabled && connection.state == State::New)
        else {
            return -FI_EINVAL;
        };
        let domain = &*connection.domain;
        connection.establish();
        call(&domain.world, &domain.port, 0, Call::Connected(connection.side));
        call(&domain.world, &link.caller, domain.delay, Call::Connected(connection.side ^ 1));
    }
    0
}

/// Pending posts come back, and nothing moves over the connection any longer.
unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    if step("closing a connection") {
        return -FI_EBUSY;
    }
    // SAFETY: `open` made the connection, which is closed once, before what it is bound to.
    unsafe {
        let connection: *mut Connection = fid.cast();
        if !(*connection).events.is_null() {
            (*(*connection).events).connections.retain(|other| *other != connection);
            (*(*connection).events).failed.retain(|(other, _)| *other != connection);
            (*(*connection).events).users -= 1;
        }
        let connection = Box::from_raw(connection);
        let domain = &mut *connection.domain;
        domain.users -= 1;
        if let Some(out) = connection.out {
            (*domain.endpoint).end_connection(out);
        }
        if let Some(link) = connection.link.as_ref().filter(|_| connection.state != State::New) {
            link.closed.store(true, SeqCst);
            domain.port.cut_link(link.number);
            let other = link.other(&domain.port);
            call(&domain.world, other, domain.delay, Call::Closed(connection.side ^ 1));
        }
    }
    0
}

impl Connection {
    /// # Safety
    /// The connection's domain and endpoint must be open.
    unsafe fn establish(&mut self) {
        let Some(link) = self.link.as_ref().filter(|_| self.state != State::Up) else { return };
        // SAFETY: the domain stays open as long as its endpoints.
        unsafe {
            let domain = &*self.domain;
            let other = link.other(&domain.port);
            self.out = Some((*domain.endpoint).begin_connection(other, link.number));
        }
        self.state = State::Up;
    }

    /// # Safety
    /// The same contract as `establish`.
    unsafe fn at(&self) -> Result<(*mut Endpoint, usize), c_int> {
        // SAFETY: the domain stays open as long as its endpoints.
        unsafe { Ok(((*self.domain).endpoint, self.out.ok_or(FI_EINVAL)?)) }
    }
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    _dest_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let iov = iovec { iov_base: buf.cast_mut(), iov_len: len };
    let mut desc = desc;
    let msg = fi_msg { msg_iov: &iov, desc: &mut desc, iov_count: 1, addr: 0, context, data: 0 };
    // SAFETY: the caller upholds the contract of `fi_send`.
    unsafe {
        let at = (*ep.cast::<Connection>()).at();
        endpoint::answer(at.and_then(|(endpoint, out)| (*endpoint).send_to(out, &msg, 0)))
    }
}

unsafe extern "C" fn readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the caller upholds the contract of `fi_readmsg`.
    unsafe {
        let at = (*ep.cast::<Connection>()).at();
        endpoint::answer(at.and_then(|(endpoint, out)| (*endpoint).rma_to(out, &*msg, flags, Kind::Read)))
    }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the caller upholds the contract of `fi_writemsg`.
    unsafe {
        let at = (*ep.cast::<Connection>()).at();
        endpoint::answer(at.and_then(|(endpoint, out)| (*endpoint).rma_to(out, &*msg, flags, Kind::Write)))
    }
}
