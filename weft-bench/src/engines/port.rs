//! A libfabric endpoint with a registered pool, and nothing else.

use super::Rail;
use crate::memory::Pool;
use anyhow::{anyhow, bail, Context, Result};
use libfabric_sys::*;
use std::ffi::{c_char, c_void, CStr, CString};
use std::mem::zeroed;
use std::ptr;
use std::sync::OnceLock;

/// As Weft asks for.
const API: u32 = FI_VERSION(1, 18);

/// Where Weft was first in this process, ofi_rxm's buffers are short, and here, too, it must be told
/// what to send eagerly all the same: as much as at the other end, or the two do not connect
/// (docs/tuning.md). It reads this whenever an endpoint is made.
const EAGER: (&str, &str) = ("FI_OFI_RXM_EAGER_LIMIT", "16384");
const BUFFERS: &str = "FI_OFI_RXM_BUFFER_SIZE";

pub struct Port {
    info: *mut fi_info,
    fabric: *mut fid_fabric,
    domain: *mut fid_domain,
    av: *mut fid_av,
    pub cq: *mut fid_cq,
    pub ep: *mut fid_ep,
    mr: *mut fid_mr,
    pub descriptor: *mut c_void,
    pub address: Vec<u8>,
}

/// Of the registered pool, for the other side.
#[derive(Clone, Copy)]
pub struct Remote {
    pub base: u64,
    pub key: u64,
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

/// With Weft's default for what is sent eagerly, unless the user has one.
fn sending_eagerly<T>(open: impl FnOnce() -> T) -> T {
    let (name, value) = EAGER;
    let ours = [name, BUFFERS].iter().all(|name| std::env::var_os(name).is_none());
    if ours {
        std::env::set_var(name, value);
    }
    let opened = open();
    if ours {
        std::env::remove_var(name);
    }
    opened
}

impl Port {
    pub fn open(rail: &Rail, wait_fd: bool, pool: &Pool) -> Result<Port> {
        let info = find(rail)?;
        let mut port = Port {
            info,
            fabric: ptr::null_mut(),
            domain: ptr::null_mut(),
            av: ptr::null_mut(),
            cq: ptr::null_mut(),
            ep: ptr::null_mut(),
            mr: ptr::null_mut(),
            descriptor: ptr::null_mut(),
            address: Vec::new(),
        };
        // SAFETY: an info of libfabric's; objects are made in libfabric's order.
        unsafe { port.bring_up(wait_fd, pool)? };
        Ok(port)
    }

    unsafe fn bring_up(&mut self, wait_fd: bool, pool: &Pool) -> Result<()> {
        let null = ptr::null_mut();
        // SAFETY: as the caller promised; every out-pointer is a field of ours.
        unsafe {
            let rc = library()?.fabric((*self.info).fabric_attr, &mut self.fabric, null);
            check("opening the fabric", rc)?;
            check("opening the domain", fi_domain(self.fabric, self.info, &mut self.domain, null))?;
            let mut av_attr: fi_av_attr = zeroed();
            av_attr.type_ = fi_av_type::FI_AV_TABLE;
            check("opening the address vector", fi_av_open(self.domain, &mut av_attr, &mut self.av, null))?;
            let mut cq_attr: fi_cq_attr = zeroed();
            cq_attr.size = 2048;
            cq_attr.format = fi_cq_format::FI_CQ_FORMAT_DATA;
            cq_attr.wait_obj = if wait_fd { fi_wait_obj::FI_WAIT_FD } else { fi_wait_obj::FI_WAIT_NONE };
            check("opening the completion queue", fi_cq_open(self.domain, &mut cq_attr, &mut self.cq, null))?;
            let open = || fi_endpoint(self.domain, self.info, &mut self.ep, null);
            check("opening the endpoint", sending_eagerly(open))?;
            check("binding the queue", fi_ep_bind(self.ep, &mut (*self.cq).fid, FI_TRANSMIT | FI_RECV))?;
            check("binding the address vector", fi_ep_bind(self.ep, &mut (*self.av).fid, 0))?;
            check("enabling the endpoint", fi_enable(self.ep))?;
            let (mut name, mut len) = (vec![0u8; 512], 512);
            check(
                "naming the endpoint",
                fi_getname(&mut (*self.ep).fid, name.as_mut_ptr().cast(), &mut len),
            )?;
            name.truncate(len);
            self.address = name;
            let iov = libc::iovec { iov_base: pool.base().cast(), iov_len: pool.len() };
            let mut attr: fi_mr_attr = zeroed();
            attr.iov = fi_mr_attr_memory { mr_iov: &iov };
            attr.iov_count = 1;
            attr.access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
            attr.requested_key = 1;
            check("registering the pool", fi_mr_regattr(self.domain, &attr, 0, &mut self.mr))?;
            self.descriptor = fi_mr_desc(self.mr);
        }
        Ok(())
    }

    pub fn remote(&self, pool: &Pool) -> Remote {
        // SAFETY: info and registration are open.
        unsafe {
            let virtual_addresses = (*(*self.info).domain_attr).mr_mode & FI_MR_VIRT_ADDR != 0;
            let base = if virtual_addresses { pool.base() as u64 } else { 0 };
            Remote { base, key: fi_mr_key(self.mr) }
        }
    }

    /// Whether a delivered write tells that all earlier ones are delivered, too.
    pub fn ordered(&self) -> bool {
        // SAFETY: an info of libfabric's has all its parts.
        let order = unsafe { (*(*self.info).tx_attr).msg_order & (*(*self.info).rx_attr).msg_order };
        order & (FI_ORDER_WAW | FI_ORDER_RMA_WAW) != 0
    }

    pub fn insert(&self, address: &[u8]) -> Result<fi_addr_t> {
        let mut padded = address.to_vec();
        padded.resize(512, 0);
        let mut route = 0;
        // SAFETY: one address, longer than any format of libfabric's.
        let rc = unsafe { fi_av_insert(self.av, padded.as_ptr().cast(), 1, &mut route, 0, ptr::null_mut()) };
        if rc != 1 {
            bail!("inserting an address: libfabric answered {rc}");
        }
        Ok(route)
    }

    /// Takes finished operations from the queue; how many.
    #[inline]
    pub fn reap(&self, entries: &mut [fi_cq_data_entry]) -> Result<usize> {
        // SAFETY: room for as many entries of the queue's format.
        let rc = unsafe { fi_cq_read(self.cq, entries.as_mut_ptr().cast(), entries.len()) };
        match rc {
            0.. => Ok(rc as usize),
            rc if rc == -(FI_EAGAIN as isize) => Ok(0),
            rc => Err(self.failure(rc)),
        }
    }

    #[cold]
    fn failure(&self, rc: isize) -> anyhow::Error {
        // SAFETY: one entry, all zero at first.
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
        let rest: [*mut fid; 4] = [self.cq.cast(), self.av.cast(), self.domain.cast(), self.fabric.cast()];
        for object in [ep, mr].into_iter().chain(rest).filter(|object| !object.is_null()) {
            // SAFETY: each begins with its fid and is closed once, in libfabric's order.
            let rc = unsafe { fi_close(object) };
            if rc != 0 {
                eprintln!("weft-bench: closing a libfabric object: error {}", -rc);
            }
        }
        if let Ok(library) = library() {
            // SAFETY: our own duplicate.
            unsafe { library.freeinfo(self.info) };
        }
    }
}

/// The info of the rail that Weft opened, too.
fn find(rail: &Rail) -> Result<*mut fi_info> {
    let library = library()?;
    let name = CString::new(rail.provider.as_str()).context("a provider's name")?;
    // SAFETY: dupinfo(NULL) allocates hints, which we fill in as Weft does; the provider's name
    // is taken out before they are freed, since it is ours.
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

/// libfabric 1.17 filters neither by domain nor, for layered providers, by name.
unsafe fn is_of(info: *const fi_info, rail: &Rail) -> bool {
    // SAFETY: an info of libfabric's has all its parts.
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
    // SAFETY: a C string of libfabric's.
    unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned()
}
