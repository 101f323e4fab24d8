//! A libfabric endpoint with a registered pool.

use crate::memory::Pool;
use anyhow::{anyhow, bail, Context, Result};
use libfabric_sys::*;
use serde::{Deserialize, Serialize};
use std::ffi::{c_char, c_void, CStr, CString};
use std::mem::zeroed;
use std::ptr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The API version that Weft requests.
const API: u32 = FI_VERSION(1, 18);

const PATIENCE: Duration = Duration::from_secs(10);

/// The rail that Weft opens, by libfabric's names: the other engines use the same.
#[derive(Clone, Serialize, Deserialize)]
pub struct Rail {
    pub provider: String,
    pub domain: String,
    pub libfabric: String,
}

pub struct Port {
    info: *mut fi_info,
    fabric: *mut fid_fabric,
    domain: *mut fid_domain,
    av: *mut fid_av,
    cq: *mut fid_cq,
    eq: *mut fid_eq,
    ep: *mut fid_ep,
    mr: *mut fid_mr,
    base: u64,
    descriptor: *mut c_void,
    simulated: bool,
}

// SAFETY: its objects belong to its domain, and one thread at a time uses them (FI_THREAD_DOMAIN).
unsafe impl Send for Port {}

/// What the other side needs to reach the registered pool.
#[derive(Clone, Serialize, Deserialize)]
pub struct Offer {
    address: Vec<u8>,
    base: u64,
    key: u64,
}

/// The other side's pool.
#[derive(Clone, Copy, Default)]
pub struct Remote {
    pub route: fi_addr_t,
    pub base: u64,
    pub key: u64,
}

/// Operation contexts for the provider.
pub fn contexts(count: usize) -> Vec<fi_context2> {
    // SAFETY: the struct has only pointers, for which zero is valid.
    (0..count).map(|_| unsafe { zeroed() }).collect()
}

/// Space for completions.
#[inline]
pub fn entries<const COUNT: usize>() -> [fi_cq_data_entry; COUNT] {
    // SAFETY: the struct has only integers and pointers, for which zero is valid.
    unsafe { zeroed() }
}

/// True if the provider accepted the post; false if it was full.
#[inline]
fn taken(doing: &str, rc: isize) -> Result<bool> {
    match rc {
        0 => Ok(true),
        rc if rc == -(FI_EAGAIN as isize) => Ok(false),
        rc => bail!("{doing}: libfabric error {}", -rc),
    }
}

/// Aborts a loop that makes no progress; it reads the clock once per million turns.
#[derive(Default)]
pub struct Patience {
    turns: u32,
    since: Option<Instant>,
}

impl Patience {
    #[inline]
    pub fn turn(&mut self, doing: impl FnOnce() -> String) -> Result<()> {
        self.turns = self.turns.wrapping_add(1);
        if self.turns % (1 << 20) == 0 && self.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            bail!("{}: nothing more for {PATIENCE:?}", doing());
        }
        Ok(())
    }
}

fn library() -> Result<&'static Library> {
    static LIBRARY: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
    let loaded = LIBRARY.get_or_init(|| Library::load().map_err(|error| error.to_string()));
    loaded.as_ref().map_err(|error| anyhow!("{error}"))
}

fn check(doing: &str, rc: i32) -> Result<()> {
    if rc != 0 {
        bail!("{doing}: {} (libfabric error {})", library()?.strerror(-rc), -rc);
    }
    Ok(())
}

impl Port {
    pub fn open(rail: &Rail, wait_fd: bool, pool: &Pool) -> Result<Port> {
        let library = library()?;
        // SAFETY: libfabric fills in every part of an info that it returns.
        Port::bring_up(find(rail)?, false, wait_fd, pool, |info, fabric| unsafe {
            library.fabric((*info).fabric_attr, fabric, ptr::null_mut())
        })
    }

    /// The first NIC of the simulation.
    pub fn simulated(fabric: &str, pool: &Pool) -> Result<Port> {
        let infos = weft::simulated::nics(fabric).map_err(|error| anyhow!(error))?;
        // SAFETY: the caller passes space for the fabric.
        Port::bring_up(infos[0], true, false, pool, |_, fabric| unsafe {
            weft::simulated::open_fabric(fabric, ptr::null_mut())
        })
    }

    fn bring_up(
        info: *mut fi_info,
        simulated: bool,
        wait_fd: bool,
        pool: &Pool,
        open_fabric: impl FnOnce(*mut fi_info, *mut *mut fid_fabric) -> i32,
    ) -> Result<Port> {
        let null = ptr::null_mut();
        // SAFETY: the struct has only pointers, for which zero is valid.
        let mut port: Port = unsafe { zeroed() };
        (port.info, port.simulated) = (info, simulated);
        // SAFETY: libfabric returned the info; objects are made in its order; every out-pointer is
        // a field of ours.
        unsafe {
            check("opening the fabric", open_fabric(info, &mut port.fabric))?;
            check("opening the domain", fi_domain(port.fabric, info, &mut port.domain, null))?;
            let mut av_attr = fi_av_attr { type_: fi_av_type::FI_AV_TABLE, ..zeroed() };
            check("opening the address vector", fi_av_open(port.domain, &mut av_attr, &mut port.av, null))?;
            let wait_obj = if wait_fd { fi_wait_obj::FI_WAIT_FD } else { fi_wait_obj::FI_WAIT_NONE };
            let format = fi_cq_format::FI_CQ_FORMAT_DATA;
            let mut cq_attr = fi_cq_attr { size: 2048, format, wait_obj, ..zeroed() };
            check("opening the completion queue", fi_cq_open(port.domain, &mut cq_attr, &mut port.cq, null))?;
            check("opening the endpoint", fi_endpoint(port.domain, info, &mut port.ep, null))?;
            check("binding the queue", fi_ep_bind(port.ep, port.cq.cast(), FI_TRANSMIT | FI_RECV))?;
            check("binding the address vector", fi_ep_bind(port.ep, port.av.cast(), 0))?;
            // Without a queue for errors that belong to no operation, libfabric's efa ends the process at the first one.
            if simulated || CStr::from_ptr((*(*info).fabric_attr).prov_name).to_bytes() == b"efa" {
                let mut eq_attr = fi_eq_attr { wait_obj: fi_wait_obj::FI_WAIT_NONE, ..zeroed() };
                check("opening the event queue", fi_eq_open(port.fabric, &mut eq_attr, &mut port.eq, null))?;
                check("binding the event queue", fi_ep_bind(port.ep, port.eq.cast(), 0))?;
            }
            check("enabling the endpoint", fi_enable(port.ep))?;
            let iov = libc::iovec { iov_base: pool.base().cast(), iov_len: pool.len() };
            let mut attr: fi_mr_attr = zeroed();
            attr.iov = fi_mr_attr_memory { mr_iov: &iov };
            attr.iov_count = 1;
            attr.access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
            attr.requested_key = 1;
            check("registering the pool", fi_mr_regattr(port.domain, &attr, 0, &mut port.mr))?;
            port.descriptor = fi_mr_desc(port.mr);
            let virtual_addresses = (*(*info).domain_attr).mr_mode & FI_MR_VIRT_ADDR != 0;
            port.base = if virtual_addresses { pool.base() as u64 } else { 0 };
        }
        Ok(port)
    }

    pub fn offer(&self) -> Result<Offer> {
        let (mut address, mut len) = (vec![0u8; 512], 512);
        // SAFETY: the buffer has space for the name; endpoint and registration are open.
        let key = unsafe {
            check("naming the endpoint", fi_getname(self.ep.cast(), address.as_mut_ptr().cast(), &mut len))?;
            fi_mr_key(self.mr)
        };
        address.truncate(len);
        Ok(Offer { address, base: self.base, key })
    }

    /// Whether a delivered write implies that all earlier ones are delivered, too.
    pub fn ordered(&self) -> bool {
        // SAFETY: libfabric fills in every part of an info that it returns.
        let order = unsafe { (*(*self.info).tx_attr).msg_order & (*(*self.info).rx_attr).msg_order };
        order & (FI_ORDER_WAW | FI_ORDER_RMA_WAW) != 0
    }

    pub fn join(&self, offer: &Offer) -> Result<Remote> {
        let mut padded = offer.address.clone();
        padded.resize(512, 0);
        let mut route = 0;
        // SAFETY: the buffer holds one address, and is longer than any of libfabric's formats.
        let rc = unsafe { fi_av_insert(self.av, padded.as_ptr().cast(), 1, &mut route, 0, ptr::null_mut()) };
        if rc != 1 {
            bail!("inserting an address: libfabric answered {rc}");
        }
        Ok(Remote { route, base: offer.base, key: offer.key })
    }

    /// Posts a write from a local address to a remote offset. False if the provider is full.
    #[inline]
    pub fn write(
        &self,
        remote: &Remote,
        from: *const u8,
        offset: usize,
        len: usize,
        flags: u64,
        context: *mut fi_context2,
    ) -> Result<bool> {
        let iov = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len };
        let there = fi_rma_iov { addr: remote.base + offset as u64, len, key: remote.key };
        let mut descriptor = self.descriptor;
        let message = fi_msg_rma {
            msg_iov: &iov,
            desc: &mut descriptor,
            iov_count: 1,
            addr: remote.route,
            rma_iov: &there,
            rma_iov_count: 1,
            context: context.cast(),
            data: 0,
        };
        // SAFETY: the message lives through the call; pool and context outlive the endpoint.
        taken("posting a write", unsafe { fi_writemsg(self.ep, &message, FI_COMPLETION | flags) })
    }

    /// Sends a message; an injected one is copied at once.
    #[inline]
    pub fn send(
        &self,
        remote: &Remote,
        from: *const u8,
        len: usize,
        inject: bool,
        context: *mut fi_context2,
    ) -> Result<bool> {
        let from = from.cast_mut().cast::<c_void>();
        // SAFETY: buffer and context stay in place until it is sent.
        taken("sending a message", unsafe {
            match inject {
                true => fi_inject(self.ep, from, len, remote.route),
                false => fi_send(self.ep, from, len, self.descriptor, remote.route, context.cast()),
            }
        })
    }

    #[inline]
    pub fn receive(&self, into: *mut u8, len: usize, context: *mut fi_context2) -> Result<()> {
        let (into, context) = (into.cast::<c_void>(), context.cast());
        // SAFETY: nothing else uses the buffer until its context comes back.
        match unsafe { fi_recv(self.ep, into, len, self.descriptor, FI_ADDR_UNSPEC, context) } {
            0 => Ok(()),
            rc => bail!("posting a receive: libfabric error {}", -rc),
        }
    }

    /// Takes finished operations from the queue; returns how many.
    #[inline]
    pub fn reap(&self, entries: &mut [fi_cq_data_entry]) -> Result<usize> {
        // SAFETY: the buffer has space for this many entries of the queue's format.
        let rc = unsafe { fi_cq_read(self.cq, entries.as_mut_ptr().cast(), entries.len()) };
        match rc {
            0.. => Ok(rc as usize),
            rc if rc == -(FI_EAGAIN as isize) => Ok(0),
            rc => Err(self.failure(rc)),
        }
    }

    #[cold]
    fn failure(&self, rc: isize) -> anyhow::Error {
        // SAFETY: the buffer has one entry, all zero at first.
        let errno = unsafe {
            let mut entry: fi_cq_err_entry = zeroed();
            if rc == -(FI_EAVAIL as isize) && fi_cq_readerr(self.cq, &mut entry, 0) > 0 {
                entry.err
            } else {
                -rc as i32
            }
        };
        let text = library().map(|library| library.strerror(errno)).unwrap_or_default();
        anyhow!("the completion queue: {text} (libfabric error {errno})")
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let (ep, mr): (*mut fid, *mut fid) = (self.ep.cast(), self.mr.cast());
        let queues: [*mut fid; 3] = [self.cq.cast(), self.av.cast(), self.eq.cast()];
        let rest = queues.into_iter().chain([self.domain.cast(), self.fabric.cast()]);
        for object in [ep, mr].into_iter().chain(rest).filter(|object| !object.is_null()) {
            // SAFETY: each object begins with its fid and is closed once, in libfabric's order.
            let rc = unsafe { fi_close(object) };
            if rc != 0 {
                eprintln!("weft-bench: closing a libfabric object: error {}", -rc);
            }
        }
        if self.simulated {
            // SAFETY: the simulation made it, and it is freed once.
            unsafe { weft::simulated::free(self.info) };
        } else if let Ok(library) = library() {
            // SAFETY: the descriptor is our own duplicate, which nothing else closes.
            unsafe { library.freeinfo(self.info) };
        }
    }
}

/// The info of the same rail that Weft opened.
fn find(rail: &Rail) -> Result<*mut fi_info> {
    let library = library()?;
    let name = CString::new(rail.provider.as_str()).context("a provider's name")?;
    // SAFETY: dupinfo(NULL) allocates hints, which are filled in as Weft does; the provider's name,
    // which is ours, is taken out before they are freed.
    unsafe {
        let hints = library.dupinfo(ptr::null());
        if hints.is_null() {
            bail!("no memory for libfabric's hints");
        }
        (*hints).caps = FI_MSG | FI_RMA;
        (*hints).mode = FI_CONTEXT | FI_CONTEXT2;
        (*(*hints).ep_attr).type_ = fi_ep_type::FI_EP_RDM;
        let domain = (*hints).domain_attr;
        (*domain).mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
        (*domain).threading = fi_threading::FI_THREAD_DOMAIN;
        (*(*hints).fabric_attr).prov_name = name.as_ptr().cast_mut();
        let mut infos = ptr::null_mut();
        let rc = library.getinfo(library.version().min(API), ptr::null(), ptr::null(), 0, hints, &mut infos);
        (*(*hints).fabric_attr).prov_name = ptr::null_mut();
        library.freeinfo(hints);
        check("listing the NICs", rc)?;
        let (mut info, mut found): (_, *mut fi_info) = (infos, ptr::null_mut());
        while !info.is_null() && found.is_null() {
            if is_of(info, rail) {
                found = library.dupinfo(info);
            }
            info = (*info).next;
        }
        library.freeinfo(infos);
        if found.is_null() {
            bail!("libfabric lists no {} named {}", rail.provider, rail.domain);
        }
        (*(*found).tx_attr).op_flags = 0;
        (*(*found).rx_attr).op_flags = 0;
        Ok(found)
    }
}

/// libfabric 1.17 does not filter by domain or, for layered providers, by name.
unsafe fn is_of(info: *const fi_info, rail: &Rail) -> bool {
    // SAFETY: libfabric fills in every part of an info that it returns.
    unsafe {
        if text((*(*info).fabric_attr).prov_name) != rail.provider
            || text((*(*info).domain_attr).name) != rail.domain
        {
            return false;
        }
        let source: *const u16 = (*info).src_addr.cast();
        let sockets = matches!((*info).addr_format, FI_SOCKADDR | FI_SOCKADDR_IN | FI_SOCKADDR_IN6);
        !sockets || source.is_null() || i32::from(source.read_unaligned()) == libc::AF_INET
    }
}

unsafe fn text(s: *const c_char) -> String {
    if s.is_null() {
        return String::new();
    }
    // SAFETY: libfabric's pointer is a NUL-terminated string.
    unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned()
}
