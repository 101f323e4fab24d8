//! Domains: their address vectors and registrations.

use super::endpoint::Endpoint;
use super::fid_ops::{self, table};
use super::port::{Port, Region, REMOVED};
use super::queue::Queue;
use super::spec::Spec;
use super::world::World;
use crate::clock::Sequence;
use crate::device::fake;
use crate::failing::step;
use crate::range::{self, Range};
use libfabric_sys::*;
use std::ffi::{c_int, c_void, CStr};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

/// A simulated NIC.
#[repr(C)]
pub struct Domain {
    pub fid: fid_domain,
    /// The number of NICs in the fabric.
    pub domains: *mut usize,
    pub world: Arc<World>,
    pub port: Arc<Port>,
    pub spec: Spec,
    /// One-way delay in picoseconds.
    pub delay: u64,
    /// Open objects in this domain.
    pub users: usize,
    /// The domain's queue, and what its connections share, if its NIC has connections.
    pub cq: *mut Queue,
    pub endpoint: *mut Endpoint,
    /// Local regions by descriptor minus one.
    pub locals: Vec<Option<Arc<Region>>>,
    pub free_locals: Vec<usize>,
    pub keys: Sequence,
}

pub static MR_OPS: fi_ops_mr = fi_ops_mr { reg: Some(reg), regattr: Some(regattr), ..fi_ops_mr::EMPTY };

impl Domain {
    /// Whether a descriptor's registration contains a local range.
    #[inline]
    pub fn covers(&self, descriptor: *mut c_void, base: u64, len: u64) -> bool {
        let region = (descriptor as usize).checked_sub(1).and_then(|at| self.locals.get(at));
        let Some(Some(region)) = region else { return false };
        base >= region.base && base + len <= region.base + region.len
    }
}

// Registrations.

#[repr(C)]
struct Mr {
    fid: fid_mr,
    domain: *mut Domain,
    region: Arc<Region>,
}

static MR_FID: fi_ops = fi_ops { close: Some(close_mr), ..fi_ops::EMPTY };

unsafe extern "C" fn reg(
    fid: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    _offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let iov = iovec { iov_base: buf.cast_mut(), iov_len: len };
    let mut attr = fi_mr_attr { iov_count: 1, access, requested_key, context, ..Default::default() };
    attr.iov.mr_iov = &iov;
    // SAFETY: the caller upholds the contract of `fi_mr_reg`.
    unsafe { regattr(fid, &attr, flags, mr) }
}

/// The real NICs pin memory as writable if they may write to it.
fn can_pin(base: u64, len: u64, access: u64) -> bool {
    let writes = access & (FI_RECV | FI_READ | FI_REMOTE_WRITE) != 0;
    let range = Range { base, len };
    range::check([(0, &range)].into_iter()).is_ok_and(|found| found.fixed.is_none() || !writes)
}

unsafe extern "C" fn regattr(
    fid: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    if step("registering") {
        return -FI_ENOMEM;
    }
    // SAFETY: the caller upholds the contract of `fi_mr_regattr`.
    unsafe {
        let (owner, attr) = (fid.cast::<Domain>(), &*attr);
        let domain = &mut *owner;
        if domain.port.has(REMOVED) {
            return -libc::ENODEV;
        }
        if attr.iov_count != 1 || flags & !FI_MR_DMABUF != 0 {
            return -FI_EINVAL;
        }
        let mode = domain.world.mode();
        let on_device = attr.iface != fi_hmem_iface::FI_HMEM_SYSTEM;
        if on_device && !(mode.hmem && fake::has_hmem()) {
            return -FI_ENOSYS;
        }
        let (base, len) = match flags & FI_MR_DMABUF {
            0 => ((*attr.iov.mr_iov).iov_base as u64, (*attr.iov.mr_iov).iov_len as u64),
            _ if !(on_device && mode.dmabuf) => return -FI_ENOSYS,
            _ => match within(&*attr.iov.dmabuf) {
                Some(place) => place,
                None => return -FI_EINVAL,
            },
        };
        if mode.has(FI_MR_ALLOCATED) && !on_device && !can_pin(base, len, attr.access) {
            return -libc::EFAULT;
        }
        let own_key = mode.has(FI_MR_PROV_KEY);
        let key = if own_key { domain.keys.next() >> 32 } else { attr.requested_key };
        let region = Arc::new(Region {
            base,
            len,
            key,
            access: attr.access,
            virtual_addresses: mode.has(FI_MR_VIRT_ADDR),
            valid: AtomicBool::new(true),
        });
        if !domain.port.add_region(region.clone()) {
            if own_key {
                return regattr(fid, attr, flags, mr);
            }
            return -FI_ENOKEY;
        }
        let at = domain.free_locals.pop().unwrap_or(domain.locals.len());
        domain.locals.resize_with(domain.locals.len().max(at + 1), || None);
        domain.locals[at] = Some(region.clone());
        domain.users += 1;
        let fid = fid_mr {
            fid: fid_ops::fid(FI_CLASS_MR, attr.context, &MR_FID),
            mem_desc: (at + 1) as *mut c_void,
            key,
        };
        *mr = Box::into_raw(Box::new(Mr { fid, domain: owner, region })).cast();
    }
    0
}

/// The part of a DMA-BUF to register: address and length.
fn within(dmabuf: &fi_mr_dmabuf) -> Option<(u64, u64)> {
    // SAFETY: the file is open during the call, by the contract of `fi_mr_regattr`.
    let fd = unsafe { BorrowedFd::borrow_raw(dmabuf.fd) };
    let (base, all) = fake::memory_of(fd)?;
    let len = dmabuf.len as u64;
    let fits = dmabuf.base_addr as u64 == base && dmabuf.offset.checked_add(len)? <= all;
    fits.then_some((base + dmabuf.offset, len))
}

unsafe extern "C" fn close_mr(fid: *mut fid) -> c_int {
    if step("closing a registration") {
        return -FI_EBUSY;
    }
    // SAFETY: `regattr` made the registration, which is closed once, before its domain.
    unsafe {
        if (*(*fid.cast::<Mr>()).domain).port.is_busy() {
            return -FI_EBUSY;
        }
        let mr = Box::from_raw(fid.cast::<Mr>());
        let domain = &mut *mr.domain;
        domain.port.remove_region(&mr.region);
        let at = mr.fid.mem_desc as usize - 1;
        domain.locals[at] = None;
        domain.free_locals.push(at);
        domain.users -= 1;
    }
    0
}

// Address vectors.

#[repr(C)]
pub struct AddressVector {
    fid: fid_av,
    domain: *mut Domain,
    pub users: usize,
    pub endpoint: *mut Endpoint,
    /// Routes by their `fi_addr_t`.
    routes: Vec<Option<InsertedAddress>>,
}

struct InsertedAddress {
    address: String,
    /// Where NICs connect, inserting an address again returns the same entry, which ends after as
    /// many removals.
    uses: usize,
}

static AV_FID: fi_ops = fi_ops { close: Some(close_av), ..fi_ops::EMPTY };
static AV_OPS: fi_ops_av = fi_ops_av { insert: Some(insert), remove: Some(remove), ..fi_ops_av::EMPTY };

pub unsafe extern "C" fn open_av(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    av: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    if step("an address vector") {
        return -FI_ENOMEM;
    }
    // SAFETY: the caller upholds the contract of `fi_av_open`.
    unsafe {
        if !matches!((*attr).type_, fi_av_type::FI_AV_TABLE | fi_av_type::FI_AV_UNSPEC) {
            return -FI_ENOSYS;
        }
        let domain: *mut Domain = domain.cast();
        (*domain).users += 1;
        let fid = fid_av { fid: fid_ops::fid(FI_CLASS_AV, context, &AV_FID), ops: table(&AV_OPS) };
        let made = AddressVector { fid, domain, users: 0, endpoint: ptr::null_mut(), routes: Vec::new() };
        *av = Box::into_raw(Box::new(made)).cast();
    }
    0
}

unsafe extern "C" fn close_av(fid: *mut fid) -> c_int {
    if step("closing an address vector") {
        return -FI_EBUSY;
    }
    let av: *mut AddressVector = fid.cast();
    // SAFETY: `open_av` made the address vector, which is closed once, before its domain.
    unsafe {
        if (*av).users > 0 {
            return -FI_EBUSY;
        }
        (*(*av).domain).users -= 1;
        drop(Box::from_raw(av));
    }
    0
}

/// Inserts addresses, which are NUL-terminated strings.
unsafe extern "C" fn insert(
    av: *mut fid_av,
    addr: *const c_void,
    count: usize,
    fi_addr: *mut fi_addr_t,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    if step("inserting an address") {
        return -FI_ENOMEM;
    }
    if count != 1 {
        return -FI_ENOSYS;
    }
    // SAFETY: the caller upholds the contract of `fi_av_insert`.
    unsafe {
        let av = &mut *av.cast::<AddressVector>();
        let Ok(address) = CStr::from_ptr(addr.cast()).to_str() else { return -FI_EINVAL };
        if !address.starts_with("sim://") {
            return -FI_EINVAL;
        }
        let at = av.place_for(address, (*av.domain).world.mode().connects);
        av.routes.resize_with(av.routes.len().max(at + 1), || None);
        let new = || InsertedAddress { address: address.to_owned(), uses: 0 };
        av.routes[at].get_or_insert_with(new).uses += 1;
        *fi_addr = at as fi_addr_t;
    }
    1
}

unsafe extern "C" fn remove(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, _flags: u64) -> c_int {
    // SAFETY: the contract of `fi_av_remove` holds; the endpoint releases the vector before it
    // closes.
    unsafe {
        let av = &mut *av.cast::<AddressVector>();
        for i in 0..count {
            let at = *fi_addr.add(i) as usize;
            let Some(Some(entry)) = av.routes.get_mut(at) else { return -FI_EINVAL };
            entry.uses -= 1;
            let gone = av.routes[at].take_if(|entry| entry.uses == 0);
            if let (Some(entry), false) = (gone, av.endpoint.is_null()) {
                (*av.endpoint).forget_route(at, &entry.address);
            }
        }
    }
    0
}

impl AddressVector {
    /// Whether the NIC at an address is gone.
    ///
    /// # Safety
    /// The domain must be open.
    pub unsafe fn is_gone(&self, route: fi_addr_t) -> bool {
        // SAFETY: the domain stays open as long as its address vectors.
        let world = unsafe { &(*self.domain).world };
        self.address(route).and_then(|address| world.port_at(address)).is_none_or(|port| port.is_gone())
    }

    /// # Safety
    /// The same contract as `is_gone`; only this thread uses the endpoint.
    pub unsafe fn redial(&mut self, route: fi_addr_t) {
        let Some(Some(entry)) = self.routes.get(route as usize) else { return };
        if !self.endpoint.is_null() {
            // SAFETY: the endpoint is bound to this address vector, and unbinds itself before it is freed.
            unsafe { (*self.endpoint).redial(&entry.address) }
        }
    }

    pub fn address(&self, route: fi_addr_t) -> Option<&str> {
        Some(&self.routes.get(route as usize)?.as_ref()?.address)
    }

    fn place_for(&self, address: &str, once: bool) -> usize {
        let same =
            |entry: &Option<InsertedAddress>| entry.as_ref().is_some_and(|entry| entry.address == address);
        let known = self.routes.iter().position(same).filter(|_| once);
        let free = || self.routes.iter().position(Option::is_none);
        known.or_else(free).unwrap_or(self.routes.len())
    }
}
