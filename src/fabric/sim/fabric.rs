//! Fabrics, and the objects opened from them and their domains.

use super::connect;
use super::domain::{open_av, Domain, MR_OPS};
use super::endpoint;
use super::fid_ops::{self, table};
use super::info::Info;
use super::queue;
use crate::clock::Sequence;
use crate::failing::step;
use libfabric_sys::*;
use std::ffi::{c_int, c_void};
use std::ptr;

#[repr(C)]
struct Fabric {
    fid: fid_fabric,
    domains: usize,
    /// The domain opened last, whose NIC has the listeners.
    domain: *mut Domain,
}

static FABRIC_FID: fi_ops = fi_ops { close: Some(close_fabric), ..fi_ops::EMPTY };
static FABRIC_OPS: fi_ops_fabric = fi_ops_fabric {
    domain: Some(open_domain),
    passive_ep: Some(open_listener),
    eq_open: Some(connect::open_events),
    trywait: Some(queue::trywait),
    ..fi_ops_fabric::EMPTY
};

/// Like `fi_fabric`.
///
/// # Safety
/// `fabric` is written.
pub unsafe fn open_fabric(fabric: *mut *mut fid_fabric, context: *mut c_void) -> c_int {
    if step("a fabric") {
        return -FI_ENOMEM;
    }
    let fid = fid_fabric {
        fid: fid_ops::fid(FI_CLASS_FABRIC, context, &FABRIC_FID),
        ops: table(&FABRIC_OPS),
        api_version: FI_VERSION(1, 18),
    };
    // SAFETY: `fabric` has room for a pointer.
    unsafe { *fabric = Box::into_raw(Box::new(Fabric { fid, domains: 0, domain: ptr::null_mut() })).cast() };
    0
}

unsafe extern "C" fn close_fabric(fid: *mut fid) -> c_int {
    if step("closing a fabric") {
        return -FI_EBUSY;
    }
    let fabric: *mut Fabric = fid.cast();
    // SAFETY: `open_fabric` made the fabric, which is closed only here.
    unsafe {
        if (*fabric).domains > 0 {
            return -FI_EBUSY;
        }
        drop(Box::from_raw(fabric));
    }
    0
}

static DOMAIN_FID: fi_ops = fi_ops { close: Some(close_domain), ..fi_ops::EMPTY };
static DOMAIN_OPS: fi_ops_domain = fi_ops_domain {
    av_open: Some(open_av),
    cq_open: Some(open_cq),
    endpoint: Some(open_endpoint),
    srx_ctx: Some(open_receives),
    ..fi_ops_domain::EMPTY
};

unsafe extern "C" fn open_domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    if step("a domain") {
        return -FI_ENOMEM;
    }
    // SAFETY: the fabric and the info are ours, as libfabric also requires.
    unsafe {
        let (fabric, info): (*mut Fabric, *mut Info) = (fabric.cast(), info.cast());
        let (spec, rail, world) = ((*info).spec(), (*info).rail(), (*info).world());
        if !(*info).is_there() {
            return -libc::ENODEV;
        }
        let port = world.open_port(rail, spec.rate_of(rail), (*info).away().clone());
        let keys = Sequence(world.seed ^ port.number << 32);
        let fid = fid_domain {
            fid: fid_ops::fid(FI_CLASS_DOMAIN, context, &DOMAIN_FID),
            ops: table(&DOMAIN_OPS),
            mr: table(&MR_OPS),
        };
        (*fabric).domains += 1;
        let made = Domain {
            fid,
            domains: &raw mut (*fabric).domains,
            world: world.clone(),
            port,
            delay: (spec.delay_us * 1e6) as u64,
            spec: spec.clone(),
            users: 0,
            cq: ptr::null_mut(),
            endpoint: ptr::null_mut(),
            locals: Vec::new(),
            free_locals: Vec::new(),
            keys,
        };
        (*fabric).domain = Box::into_raw(Box::new(made));
        *domain = (*fabric).domain.cast();
    }
    0
}

unsafe extern "C" fn open_listener(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    pep: *mut *mut fid_pep,
    context: *mut c_void,
) -> c_int {
    if step("a listener") {
        return -FI_ENOMEM;
    }
    // SAFETY: the contract of `fi_passive_ep` holds; the domain closes after its listener.
    unsafe {
        match (*fabric.cast::<Fabric>()).domain {
            domain if domain.is_null() => -FI_EOPBADSTATE,
            domain => connect::open_listener(domain, info.cast(), pep, context),
        }
    }
}

unsafe extern "C" fn close_domain(fid: *mut fid) -> c_int {
    if step("closing a domain") {
        return -FI_EBUSY;
    }
    let domain: *mut Domain = fid.cast();
    // SAFETY: `open_domain` made the domain, which is closed only here.
    unsafe {
        if (*domain).users > 0 {
            return -FI_EBUSY;
        }
        *(*domain).domains -= 1;
        drop(Box::from_raw(domain));
    }
    0
}

unsafe extern "C" fn open_cq(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    cq: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    if step("a completion queue") {
        return -FI_ENOMEM;
    }
    let domain: *mut Domain = domain.cast();
    // SAFETY: the contract of `fi_cq_open` holds; domains outlive their queues.
    unsafe {
        // In virtual time, no thread sleeps.
        let known = &*domain;
        let fd = if known.world.is_virtual() { None } else { known.port.bell.descriptor() };
        let rc = queue::open(attr, cq, context, fd, &raw mut (*domain).users);
        if rc == 0 {
            (*domain).cq = (*cq).cast();
        }
        rc
    }
}

unsafe extern "C" fn open_endpoint(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    if step("an endpoint") {
        return -FI_ENOMEM;
    }
    let domain: *mut Domain = domain.cast();
    // SAFETY: the contract of `fi_endpoint` holds; domains outlive their endpoints.
    unsafe {
        if (*domain).world.mode().connections {
            return connect::open(domain, info, ep, context);
        }
        (*domain).users += 1;
        let users = &raw mut (*domain).users;
        endpoint::open(domain, (*info.cast::<Info>()).spec(), ep, context, users)
    }
}

/// Opens the receives that connections share. Their completion queue, also shared, is open already.
unsafe extern "C" fn open_receives(
    domain: *mut fid_domain,
    attr: *mut fi_rx_attr,
    srx: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    if step("shared receives") {
        return -FI_ENOMEM;
    }
    let domain: *mut Domain = domain.cast();
    // SAFETY: the contract of `fi_srx_context` holds; domains outlive their receives.
    unsafe {
        let known = &mut *domain;
        if !known.world.mode().connections || known.cq.is_null() || (*attr).size > known.spec.depth {
            return -FI_EINVAL;
        }
        known.users += 1;
        let users = &raw mut (*domain).users;
        endpoint::open_shared(domain, (*domain).cq, srx, context, users)
    }
}
