//! One NIC through libfabric: a domain, an endpoint, a completion queue and an
//! address vector.

use super::discover::{Entry, Source, DMABUFS};
use super::registrations::Registrations;
use super::routes::Routes;
use super::{settings, signals};
use crate::clock::Random;
use crate::device::{driver, Device, Export};
#[cfg(any(test, feature = "sim"))]
use crate::fabric::sim;
use crate::fabric::{
    connection_of, Access, Buffer, Delivery, HostRange, Immediate, Limits, Nic, Posted, Reaped, Registration,
    Rma, Route, Scratch, Way,
};
use crate::ids::PeerId;
use crate::pass;
use crate::status::Result;
use libfabric_sys::*;
use std::ffi::c_void;
use std::mem::{size_of, zeroed, MaybeUninit};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;

/// A frame must fit into what every provider takes without a rendezvous.
const MESSAGE_MAX: usize = 8192;
/// Entries of a completion queue that grows by itself.
const QUEUE: usize = 8192;
/// The size of a queue that can overrun, since arrivals of peers' writes are unsolicited. The most
/// that NICs have; enough for the first credits of a thousand lanes.
const QUEUE_FIXED: usize = 32768;
/// shm holds back messages above this when no receive is posted.
const MESSAGE_MAX_SHM: usize = 4096;
const STALE_NAMES: usize = 16;
/// Operations that we keep in flight on a NIC at most.
const TX_DEPTH: usize = 512;
const RX_DEPTH: usize = 256;
/// Eight 64 KiB pages fill a loopback connection (measured); twice that, and
/// two pieces of a large page, cost no more.
const LANE_WINDOW: u64 = 1 << 20;
const RAIL_WINDOW: u64 = 8 << 20;

pub struct OfiNic {
    source: Source,
    fabric: *mut fid_fabric,
    domain: *mut fid_domain,
    ep: *mut fid_ep,
    cq: *mut fid_cq,
    av: *mut fid_av,
    /// Closed before the domain.
    mrs: Registrations,
    limits: Limits,
    mr_mode: i32,
    /// The NIC reaches device memory (FI_HMEM), and takes DMA-BUFs of it.
    hmem: bool,
    takes_dmabufs: bool,
    /// A device of the target copies from memory that other processes can open: shm.
    ipc: bool,
    /// A write with an immediate takes a receive here.
    arrivals_take_receives: bool,
    address: Vec<u8>,
    random: Random,
    /// shm reads freed memory when an address is removed while its peer lives on
    /// (1.17: a crash in the next read of the queue).
    keeps_routes: bool,
    /// Routes of ofi_rxm.
    routes: Option<Routes>,
    /// The queue reports the route of a frame: for ofi_rxm, whose connections have one.
    sources: bool,
    /// -1 where the provider has none.
    wait_fd: i32,
}

// SAFETY: all objects belong to this NIC, which one thread uses at a time.
unsafe impl Send for OfiNic {}

fn check(source: Source, doing: &str, rc: i32) -> Result<()> {
    if rc == 0 {
        return Ok(());
    }
    Err(source.error(doing, rc))
}

impl OfiNic {
    pub fn open(entry: &Entry, waits: bool) -> Result<OfiNic> {
        let mut nic = Self::open_fresh(entry, waits)?;
        if nic.limits.resets && matches!(entry.source(), Source::Libfabric(_)) {
            nic.limits.resets = super::resets::proven(entry);
        }
        Ok(nic)
    }

    fn open_fresh(entry: &Entry, waits: bool) -> Result<OfiNic> {
        if entry.provider == "shm" {
            super::segments::make_room()?;
        }
        // A dead process that had our PID may have left segments by the names that ours
        // get: the next name is tried.
        for _ in 0..STALE_NAMES {
            match Self::open_once(entry, waits) {
                Err(error) if entry.provider == "shm" && error.provider_errno == libc::EBUSY => {}
                outcome => return outcome,
            }
        }
        Self::open_once(entry, waits)
    }

    pub(super) fn open_once(entry: &Entry, waits: bool) -> Result<OfiNic> {
        // SAFETY: reading what libfabric described.
        let (limits, mr_mode) = unsafe { limits(entry) };
        let mut nic = OfiNic {
            source: entry.source(),
            fabric: ptr::null_mut(),
            domain: ptr::null_mut(),
            ep: ptr::null_mut(),
            cq: ptr::null_mut(),
            av: ptr::null_mut(),
            mrs: Registrations::default(),
            limits,
            mr_mode,
            // SAFETY: as above.
            hmem: unsafe { (*entry.info()).caps } & FI_HMEM != 0,
            takes_dmabufs: takes_dmabufs(entry),
            ipc: entry.provider == "shm",
            // SAFETY: as above.
            arrivals_take_receives: unsafe { (*entry.info()).mode } & FI_RX_CQ_DATA != 0,
            address: Vec::new(),
            random: entry.random.clone(),
            keeps_routes: entry.provider == "shm",
            routes: (matches!(entry.source(), Source::Libfabric(_)) && is_rxm(&entry.provider))
                .then(Routes::default),
            sources: entry.provider.ends_with(";ofi_rxm"),
            wait_fd: -1,
        };
        // Dropping a NIC that opened halfway closes the half.
        // SAFETY: the info is valid while the entry is.
        let bring_up = || unsafe { nic.bring_up(entry, waits) };
        signals::preserved(|| settings::while_opening(entry, bring_up))?;
        Ok(nic)
    }

    /// # Safety
    /// `entry.info()` must be valid.
    unsafe fn bring_up(&mut self, entry: &Entry, waits: bool) -> Result<()> {
        let source = self.source;
        let null = ptr::null_mut();
        // SAFETY: objects are made in libfabric's order, from an info of its own; every
        // out-pointer is a field of ours.
        unsafe {
            let info = entry.info();
            let (tx, rx) = ((*info).tx_attr, (*info).rx_attr);
            (*tx).op_flags = 0;
            (*rx).op_flags = 0;
            if self.sources {
                (*info).caps |= FI_SOURCE;
                (*rx).caps |= FI_SOURCE;
            }
            let rc = source.fabric((*info).fabric_attr, &mut self.fabric);
            check(source, "opening the fabric", rc)?;
            check(source, "opening the domain", fi_domain(self.fabric, info, &mut self.domain, null))?;
            let mut av_attr: fi_av_attr = zeroed();
            av_attr.type_ = fi_av_type::FI_AV_TABLE;
            check(
                source,
                "opening the address vector",
                fi_av_open(self.domain, &mut av_attr, &mut self.av, null),
            )?;
            let mut cq_attr: fi_cq_attr = zeroed();
            cq_attr.format = fi_cq_format::FI_CQ_FORMAT_DATA;
            check(source, "opening the completion queue", self.open_queue(&mut cq_attr, waits))?;
            if self.waits_on(&cq_attr) {
                let asked = fi_control(&mut (*self.cq).fid, FI_GETWAIT, (&raw mut self.wait_fd).cast());
                check(source, "asking for the completion queue's descriptor", asked)?;
            }
            check(source, "opening the endpoint", fi_endpoint(self.domain, info, &mut self.ep, null))?;
            let bound = fi_ep_bind(self.ep, &mut (*self.cq).fid, FI_TRANSMIT | FI_RECV);
            check(source, "binding the completion queue", bound)?;
            check(source, "binding the address vector", fi_ep_bind(self.ep, &mut (*self.av).fid, 0))?;
            check(source, "enabling the endpoint", fi_enable(self.ep))
                .map_err(|error| settings::explained(&entry.provider, error))?;
            let mut len = 256;
            let mut name = vec![0u8; len];
            let named = fi_getname(&mut (*self.ep).fid, name.as_mut_ptr().cast(), &mut len);
            check(source, "asking for the endpoint's address", named)?;
            name.truncate(len);
            self.address = name;
        }
        Ok(())
    }

    /// Entries that our own operations may take.
    fn own_entries(&self) -> usize {
        2 * (self.limits.tx_depth + self.limits.rx_depth)
    }

    /// Opens the completion queue, as large as the provider lets it be, and with a descriptor
    /// if it has one and it is wanted.
    ///
    /// # Safety
    /// The domain must be open.
    unsafe fn open_queue(&mut self, attr: &mut fi_cq_attr, waits: bool) -> i32 {
        let fixed = self.limits.arrival_room.is_some();
        let mut size = if fixed { QUEUE_FIXED } else { QUEUE + self.own_entries() };
        loop {
            let mut opened = -FI_ENOSYS;
            for wait_obj in [fi_wait_obj::FI_WAIT_FD, fi_wait_obj::FI_WAIT_NONE] {
                if opened != 0 && (waits || wait_obj == fi_wait_obj::FI_WAIT_NONE) {
                    (attr.size, attr.wait_obj) = (size, wait_obj);
                    // SAFETY: as the caller promised.
                    opened = unsafe { fi_cq_open(self.domain, attr, &mut self.cq, ptr::null_mut()) };
                }
            }
            if opened == 0 && fixed {
                // The provider reports the size that it chose.
                let room = attr.size.saturating_sub(self.own_entries());
                self.limits.arrival_room = Some(room.try_into().unwrap_or(u32::MAX));
            }
            size /= 2;
            if opened == 0 || size < self.own_entries() {
                return opened;
            }
        }
    }

    fn waits_on(&self, attr: &fi_cq_attr) -> bool {
        attr.wait_obj == fi_wait_obj::FI_WAIT_FD
    }

    fn register_at(&mut self, range: HostRange, access: Access, by: By) -> Result<Registration> {
        let mut flags = FI_SEND | FI_WRITE;
        // NICs pin what they may write to as memory that can be written to.
        if access.local_write {
            flags |= FI_RECV | FI_READ;
        }
        if access.remote_write {
            flags |= FI_REMOTE_WRITE;
        }
        if access.remote_read {
            flags |= FI_REMOTE_READ;
        }
        let iov = libc::iovec { iov_base: range.base as *mut c_void, iov_len: range.len as usize };
        let dmabuf;
        // SAFETY: integers and pointers; the iov and the DMA-BUF outlive the call.
        let mr = unsafe {
            let mut attr: fi_mr_attr = zeroed();
            attr.iov.mr_iov = &iov;
            attr.iov_count = 1;
            attr.access = flags;
            if let By::Address(device, _) | By::Dmabuf(device, _) = by {
                attr.iface = fi_hmem_iface::FI_HMEM_CUDA;
                attr.device.cuda = device as i32;
            }
            let mut options = 0;
            match by {
                By::Dmabuf(_, export) => {
                    dmabuf = fi_mr_dmabuf {
                        fd: export.dmabuf.as_raw_fd(),
                        offset: range.base - export.base,
                        len: range.len as usize,
                        base_addr: export.base as *mut c_void,
                    };
                    attr.iov.dmabuf = &dmabuf;
                    options = FI_MR_DMABUF;
                }
                By::Address(_, true) if self.ipc => options = FI_HMEM_DEVICE_ONLY,
                By::Address(..) | By::Host => {}
            }
            if self.mr_mode & FI_MR_PROV_KEY == 0 {
                // We choose the key, so that it cannot be guessed.
                attr.requested_key = self.random.u64()?;
            }
            let mut mr = ptr::null_mut();
            let rc = pass::call(|| fi_mr_regattr(self.domain, &attr, options, &mut mr));
            check(self.source, &format!("registering {} bytes at {:#x}", range.len, range.base), rc)?;
            mr
        };
        // SAFETY: just opened.
        unsafe {
            Ok(Registration {
                handle: self.mrs.keep(mr),
                descriptor: fi_mr_desc(mr),
                key: fi_mr_key(mr),
                way: by.way(),
            })
        }
    }

    fn close_registrations(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        for mr in self.mrs.take_all() {
            // SAFETY: open until here.
            let rc = unsafe { fi_close(&mut (*mr).fid) };
            outcome = outcome.and(check(self.source, "closing a registration", rc));
        }
        outcome
    }
}

/// How a range is registered.
#[derive(Clone, Copy)]
enum By<'a> {
    /// By address, host memory.
    Host,
    /// By address, device memory; whether other processes can open it.
    Address(Device, bool),
    Dmabuf(Device, &'a Export),
}

impl By<'_> {
    fn way(self) -> Option<Way> {
        match self {
            By::Host => None,
            By::Address(..) => Some(Way::Address),
            By::Dmabuf(..) => Some(Way::Dmabuf),
        }
    }
}

/// Whether a provider reads what FI_MR_DMABUF says: others would take it for an address.
fn takes_dmabufs(entry: &Entry) -> bool {
    let reads = ["efa", "verbs", "sim:"].iter().any(|name| entry.provider.starts_with(name));
    reads && entry.source().version() >= DMABUFS
}

/// # Safety
/// The entry's info must be valid.
unsafe fn limits(entry: &Entry) -> (Limits, i32) {
    // SAFETY: an info of libfabric has all its parts.
    unsafe {
        let info = entry.info();
        let (tx, rx, ep, domain) =
            (&*(*info).tx_attr, &*(*info).rx_attr, &*(*info).ep_attr, &*(*info).domain_attr);
        let shm = entry.provider == "shm";
        let order = tx.msg_order & rx.msg_order;
        let ordered = order & (FI_ORDER_WAW | FI_ORDER_RMA_WAW) != 0;
        let delivery = if entry.delivers { Delivery::Native } else { Delivery::Each };
        let in_software = shm || is_rxm(&entry.provider) || entry.provider.starts_with("sim:like=tcp:");
        let depth = |size: usize, ours: usize| if size == 0 { ours } else { size.min(ours) };
        let largest = if shm { MESSAGE_MAX_SHM } else { MESSAGE_MAX };
        let limits = Limits {
            delivery,
            tx_depth: depth(tx.size, TX_DEPTH),
            rx_depth: depth(rx.size, RX_DEPTH),
            // tcp closes the connection, and verbs' queue pair stops; shm and simulated NICs go on.
            failures_reset: ordered && !shm && !entry.provider.starts_with("sim"),
            reconnects: true,
            // With the setting that `discover` makes, if `cuts` finds it in force. (tcp's 1.17 crashes
            // when a connection is closed over which it receives what a read asked for.)
            resets: connects(&entry.provider),
            vector: 1,
            message_max: ep.max_msg_size.min(largest),
            virtual_addresses: domain.mr_mode & FI_MR_VIRT_ADDR != 0,
            prompt: false,
            grants: false,
            local_registration: domain.mr_mode & FI_MR_LOCAL != 0,
            immediate_max: if is_rxm(&entry.provider) || domain.cq_data_size < size_of::<u32>() {
                0
            } else {
                ep.max_msg_size as u64
            },
            // shm, ofi_rxm and a simulated tcp queue in software, without an end.
            arrival_room: (!in_software).then_some(0),
            lane_window: LANE_WINDOW,
            rail_window: RAIL_WINDOW,
        };
        (limits, domain.mr_mode)
    }
}

/// Whether removing an address ends a connection. (On EFA it ends nothing.)
fn connects(provider: &str) -> bool {
    is_rxm(provider) && !provider.starts_with("tcp") || provider.starts_with("sim:like=tcp:")
}

/// Whether ofi_rxm, or a simulation of it, is above the NIC. Its writes have no immediates. Over
/// tcp, a connection that ends in the middle of a write with an immediate takes the receiving
/// process along: ofi_rxm looks into the context of tcp's error, which has none (1.17 to 2.1).
/// Over verbs, where receives are shared (`settings`), an immediate that arrives is taken for a
/// message, and read from a buffer that holds an older one: verbs says that it was a receive (1.17 to 2.7).
fn is_rxm(provider: &str) -> bool {
    provider.ends_with(";ofi_rxm") || provider.starts_with("sim:like=verbs:")
}

#[inline]
fn flags(rma: &Rma<'_>, delivered: bool, more: bool) -> u64 {
    let when = |on, flag| if on { flag } else { 0 };
    let of_write = when(delivered, FI_DELIVERY_COMPLETE) | when(rma.immediate.is_some(), FI_REMOTE_CQ_DATA);
    FI_COMPLETION | when(more, FI_MORE) | when(!rma.read, of_write)
}

fn posted(rc: isize) -> Posted {
    match rc {
        0 => Posted::Yes,
        rc if rc == -(FI_EAGAIN as isize) => Posted::Again,
        rc => Posted::Failed(-rc as i32),
    }
}

impl Nic for OfiNic {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> &[u8] {
        &self.address
    }

    fn insert(&mut self, address: &[u8], _peer: Option<PeerId>) -> Result<Route> {
        let mut route: fi_addr_t = 0;
        // A provider reads as much as its address format has, whatever was sent.
        let mut padded = [0u8; 512];
        let len = address.len().min(padded.len());
        padded[..len].copy_from_slice(&address[..len]);
        // SAFETY: one address, longer than any format of libfabric's.
        let rc = unsafe { fi_av_insert(self.av, padded.as_ptr().cast(), 1, &mut route, 0, ptr::null_mut()) };
        if rc == 1 {
            if let Some(routes) = &mut self.routes {
                routes.inserted(route);
            }
            return Ok(route);
        }
        Err(self.source.error("inserting a peer's address", if rc < 0 { rc } else { FI_EINVAL }))
    }

    fn remove(&mut self, route: Route) {
        self.reset(route, false);
    }

    fn reset(&mut self, route: Route, connected: bool) {
        if self.keeps_routes {
            return;
        }
        let times = match &mut self.routes {
            Some(routes) => routes.left(route, connected),
            None => 1,
        };
        self.take_out(route, times);
        self.tend();
    }

    fn is_gone(&mut self, route: Route) -> bool {
        #[cfg(any(test, feature = "sim"))]
        if matches!(self.source, Source::Sim) {
            // SAFETY: open, and of the simulation.
            return unsafe { sim::is_gone(self.av, route) };
        }
        let _ = route;
        false // libfabric does not say.
    }

    fn dials(&self) -> bool {
        self.sources
    }

    /// Nothing was sent there but over a connection that was there: nothing is tried.
    fn forget(&mut self, route: Route) {
        self.reset(route, true);
    }

    fn tend(&mut self) {
        let Some(mut routes) = self.routes.take() else { return };
        for (route, tries) in routes.take_retiring() {
            let posted = self.knock(route);
            // At once: to try the next one may take the connection away.
            let times = routes.tried(route, tries, posted);
            self.take_out(route, times);
        }
        self.routes = Some(routes);
    }

    fn register(&mut self, range: HostRange, access: Access) -> Result<Registration> {
        self.register_at(range, access, By::Host)
    }

    fn register_device(
        &mut self,
        range: HostRange,
        access: Access,
        (device, shareable): (Device, bool),
    ) -> Result<Option<Registration>> {
        if !self.hmem {
            return Ok(None);
        }
        if self.takes_dmabufs {
            let registered = driver()
                .and_then(|driver| driver.export(device, &range))
                .and_then(|export| self.register_at(range, access, By::Dmabuf(device, &export)));
            match registered {
                Ok(registration) => return Ok(Some(registration)),
                Err(error) => log::info!("no DMA-BUF of device {device}: {error}"),
            }
        }
        // Some providers make DMA-BUFs of their own then.
        let registered = self.register_at(range, access, By::Address(device, shareable));
        Ok(registered.inspect_err(|error| log::info!("memory of device {device} is not moved: {error}")).ok())
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        let mr = self.mrs.get(registration.handle)?;
        // SAFETY: open until here. Where closing fails it still is.
        let rc = pass::call(|| unsafe { fi_close(&mut (*mr).fid) });
        check(self.source, "closing a registration", rc)?;
        self.mrs.forget(registration.handle);
        Ok(())
    }

    #[inline]
    unsafe fn rma(&mut self, rma: &Rma<'_>, route: Route, scratches: &[*mut Scratch]) -> (usize, Posted) {
        if rma.segments.len() != scratches.len() {
            return (0, Posted::Failed(FI_EINVAL));
        }
        let mut local = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let mut remote = fi_rma_iov { addr: 0, len: 0, key: rma.key };
        let (local, remote, mut descriptor) = (&raw mut local, &raw mut remote, rma.descriptor);
        let mut message = fi_msg_rma {
            msg_iov: local,
            desc: &mut descriptor,
            iov_count: 1,
            addr: route,
            rma_iov: remote,
            rma_iov_count: 1,
            context: ptr::null_mut(),
            data: rma.immediate.map_or(0, |immediate| immediate.get().into()),
        };
        let last = scratches.len().wrapping_sub(1);
        let delivered = self.limits.delivery == Delivery::Each;
        let (each, ending) = (flags(rma, delivered, true), flags(rma, delivered, rma.more));
        for (i, (segment, scratch)) in rma.segments.iter().zip(scratches).enumerate() {
            message.context = scratch.cast();
            let flags = if i == last { ending } else { each };
            // SAFETY: the places live through the call, and nobody else reads them; what the message
            // points to as the caller promised.
            let rc = unsafe {
                ((*local).iov_base, (*local).iov_len) = (segment.local as *mut c_void, segment.len as usize);
                ((*remote).addr, (*remote).len) = (segment.remote, segment.len as usize);
                match rma.read {
                    true => fi_readmsg(self.ep, &message, flags),
                    false => fi_writemsg(self.ep, &message, flags),
                }
            };
            if rc != 0 {
                return (i, posted(rc));
            }
        }
        (scratches.len(), Posted::Yes)
    }

    unsafe fn send(&mut self, buffer: Buffer, route: Route, scratch: *mut Scratch) -> Posted {
        // SAFETY: as the caller promised.
        posted(unsafe {
            fi_send(self.ep, buffer.address, buffer.len, buffer.descriptor, route, scratch.cast())
        })
    }

    unsafe fn receive(&mut self, buffer: Buffer, scratch: *mut Scratch) -> Posted {
        // SAFETY: as the caller promised.
        posted(unsafe {
            fi_recv(self.ep, buffer.address, buffer.len, buffer.descriptor, FI_ADDR_UNSPEC, scratch.cast())
        })
    }

    #[inline]
    fn reap(&mut self, reaped: &mut Vec<Reaped>) -> bool {
        const MOST: usize = 32;
        let mut entries: [MaybeUninit<fi_cq_data_entry>; MOST] = [const { MaybeUninit::uninit() }; MOST];
        let mut sources: [fi_addr_t; MOST] = [FI_ADDR_NOTAVAIL; MOST];
        // SAFETY: room for `MOST` entries of the queue's format, and as many addresses.
        let rc = unsafe {
            match self.sources {
                true => {
                    fi_cq_readfrom(self.cq, entries.as_mut_ptr().cast(), MOST, sources.as_mut_ptr().cast())
                }
                false => fi_cq_read(self.cq, entries.as_mut_ptr().cast(), MOST),
            }
        };
        if rc > 0 {
            let read = entries.iter().zip(sources).take(rc as usize);
            reaped.extend(read.map(|(entry, source)| {
                // SAFETY: libfabric filled in the first `rc` entries.
                let entry = unsafe { entry.assume_init_ref() };
                if is_arrival(entry.flags) {
                    return self.arrival(entry);
                }
                let (len, connection) = (entry.len as u32, connection_of(source));
                Reaped { len, connection, ..Reaped::of(entry.op_context.cast(), 0) }
            }));
        } else if rc == -(FI_EAVAIL as isize) {
            self.reap_error(reaped);
        }
        !reaped.is_empty()
    }

    fn wait_fd(&mut self) -> Option<(RawFd, bool)> {
        if self.wait_fd < 0 {
            return None;
        }
        let mut fids: [*mut fid; 1] = [self.cq.cast()];
        // SAFETY: one open queue.
        let ready = unsafe { fi_trywait(self.fabric, fids.as_mut_ptr(), 1) } == 0;
        Some((self.wait_fd, ready))
    }

    fn close(&mut self) -> Result<()> {
        let source = self.source;
        let mut outcome = Ok(());
        // Registrations outlive the endpoint that uses them, and nothing else.
        // SAFETY: each object is closed once, in libfabric's order.
        signals::preserved(|| unsafe {
            if !self.ep.is_null() {
                outcome = check(source, "closing the endpoint", fi_close(&mut (*self.ep).fid));
                self.ep = ptr::null_mut();
            }
            let registrations = self.close_registrations();
            outcome = std::mem::replace(&mut outcome, Ok(())).and(registrations);
            let fids: [*mut fid; 4] =
                [self.cq.cast(), self.av.cast(), self.domain.cast(), self.fabric.cast()];
            for (fid, what) in
                fids.into_iter().zip(["completion queue", "address vector", "domain", "fabric"])
            {
                if !fid.is_null() {
                    let closed = check(source, &format!("closing the {what}"), fi_close(fid));
                    outcome = std::mem::replace(&mut outcome, Ok(())).and(closed);
                }
            }
        });
        (self.cq, self.av, self.domain, self.fabric) =
            (ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        outcome
    }
}

impl OfiNic {
    fn take_out(&mut self, route: Route, times: u32) {
        let mut route: fi_addr_t = route;
        for _ in 0..times {
            // SAFETY: a route that `insert` returned.
            let rc = unsafe { fi_av_remove(self.av, &mut route, 1, 0) };
            if rc != 0 {
                log::debug!("removing a peer's address: libfabric error {}", -rc);
            }
        }
    }

    /// Sends an empty message; `Again` where there is no connection yet.
    pub(super) fn knock(&mut self, route: Route) -> Posted {
        // SAFETY: no bytes.
        posted(unsafe { fi_inject(self.ep, ptr::null(), 0, route) })
    }

    /// A peer's write with an immediate arrived.
    #[cold]
    fn arrival(&self, entry: &fi_cq_data_entry) -> Reaped {
        // Where it took no receive, the context is meaningless.
        let scratch = if self.arrivals_take_receives { entry.op_context.cast() } else { ptr::null_mut() };
        // A value that no endpoint sends names no counter, as 1 does.
        let sent = u32::try_from(entry.data).ok().and_then(Immediate::new);
        Reaped { scratch, ..Reaped::arrival(sent.unwrap_or(Immediate::MIN)) }
    }

    #[cold]
    fn reap_error(&mut self, reaped: &mut Vec<Reaped>) {
        // SAFETY: integers and pointers; no buffer for provider data is offered.
        let mut entry: fi_cq_err_entry = unsafe { zeroed() };
        // SAFETY: one entry.
        if unsafe { fi_cq_readerr(self.cq, &mut entry, 0) } < 1 {
            return;
        }
        let errno = if entry.err == 0 { FI_EOTHER } else { entry.err };
        let (scratch, provider_errno) = (entry.op_context.cast(), entry.prov_errno);
        reaped.push(Reaped { len: entry.len as u32, provider_errno, ..Reaped::of(scratch, errno) });
    }
}

impl Drop for OfiNic {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            log::warn!("{}", error.message);
        }
    }
}

// The provider's part of an op slot must be as large as libfabric asks.
const _: () = assert!(size_of::<Scratch>() >= size_of::<fi_context2>());

/// Whether a completion is of a peer's write with an immediate. A message with one, which we
/// never send, is a receive like any other: its buffer is given back.
#[inline]
fn is_arrival(flags: u64) -> bool {
    flags & FI_REMOTE_CQ_DATA != 0 && (flags & FI_RECV == 0 || flags & (FI_RMA | FI_REMOTE_WRITE) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_with_data_is_no_arrival() {
        assert!(is_arrival(FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA));
        assert!(is_arrival(FI_RMA | FI_REMOTE_WRITE | FI_RECV | FI_REMOTE_CQ_DATA));
        assert!(!is_arrival(FI_MSG | FI_RECV | FI_REMOTE_CQ_DATA));
        assert!(!is_arrival(FI_MSG | FI_RECV) && !is_arrival(FI_RMA | FI_WRITE));
    }
}
