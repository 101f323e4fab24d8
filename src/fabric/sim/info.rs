//! The list of `fi_getinfo`.

use super::mode::Mode;
use super::spec::Spec;
use super::world::World;
use crate::device::fake;
use libfabric_sys::*;
use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

/// One NIC's info, with all parts in one allocation.
#[repr(C)]
pub struct Info {
    info: fi_info,
    tx: fi_tx_attr,
    rx: fi_rx_attr,
    ep: fi_ep_attr,
    domain: fi_domain_attr,
    fabric: fi_fabric_attr,
    domain_name: CString,
    fabric_name: CString,
    provider: CString,
    spec: Spec,
    rail: usize,
    world: Arc<World>,
    /// Until when the device is away, in the world's time.
    away: Arc<AtomicU64>,
}

const CAPS: u64 = FI_MSG
    | FI_RMA
    | FI_READ
    | FI_WRITE
    | FI_SEND
    | FI_RECV
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_LOCAL_COMM
    | FI_REMOTE_COMM;

/// A C string of our own text, which contains no NUL.
fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

impl Info {
    pub fn make(spec: &Spec, rail: usize, world: Arc<World>, away: Arc<AtomicU64>) -> *mut fi_info {
        // SAFETY: the struct has only integers, pointers, and enums for which any value is valid.
        let (info, tx, rx, ep, domain, fabric) = unsafe { std::mem::zeroed() };
        let mut made = Box::new(Info {
            info,
            tx,
            rx,
            ep,
            domain,
            fabric,
            domain_name: c_string(&format!("sim{rail}")),
            fabric_name: c_string(spec.like.name()),
            provider: c_string(&spec.fabric()),
            spec: spec.clone(),
            rail,
            world,
            away,
        });
        made.fill(spec.like.mode());
        let made = Box::into_raw(made);
        // SAFETY: the parts are in the same allocation, which this is the only pointer to.
        unsafe {
            let info = &raw mut (*made).info;
            (*info).tx_attr = &raw mut (*made).tx;
            (*info).rx_attr = &raw mut (*made).rx;
            (*info).ep_attr = &raw mut (*made).ep;
            (*info).domain_attr = &raw mut (*made).domain;
            (*info).fabric_attr = &raw mut (*made).fabric;
        }
        made.cast()
    }

    fn fill(&mut self, mode: &Mode) {
        self.info.caps = CAPS | if mode.hmem && fake::has_hmem() { FI_HMEM } else { 0 };
        self.info.mode = mode.mode;
        self.info.addr_format = FI_ADDR_STR;
        self.tx = fi_tx_attr {
            caps: CAPS,
            mode: mode.mode,
            msg_order: mode.msg_order(),
            size: self.spec.depth,
            iov_limit: 1,
            rma_iov_limit: 1,
            inject_size: 0,
            ..self.tx
        };
        self.rx = fi_rx_attr {
            caps: CAPS,
            mode: mode.mode,
            msg_order: mode.msg_order(),
            size: self.spec.depth,
            iov_limit: 1,
            ..self.rx
        };
        self.ep.type_ = match mode.connections {
            true => fi_ep_type::FI_EP_MSG,
            false => fi_ep_type::FI_EP_RDM,
        };
        self.ep.max_msg_size = 1 << 30;
        (self.ep.tx_ctx_cnt, self.ep.rx_ctx_cnt) = (1, 1);
        self.domain.name = self.domain_name.as_ptr().cast_mut();
        self.domain.threading = fi_threading::FI_THREAD_DOMAIN;
        let progress =
            if mode.auto_progress { fi_progress::FI_PROGRESS_AUTO } else { fi_progress::FI_PROGRESS_MANUAL };
        (self.domain.control_progress, self.domain.data_progress) = (progress, progress);
        self.domain.resource_mgmt = fi_resource_mgmt::FI_RM_ENABLED;
        self.domain.av_type = fi_av_type::FI_AV_TABLE;
        self.domain.mr_mode = mode.mr_mode;
        self.domain.mr_key_size = if mode.has(FI_MR_PROV_KEY) { 4 } else { 8 };
        self.domain.cq_data_size = mode.cq_data;
        self.fabric.name = self.fabric_name.as_ptr().cast_mut();
        self.fabric.prov_name = self.provider.as_ptr().cast_mut();
        self.fabric.api_version = FI_VERSION(1, 18);
    }

    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    pub fn rail(&self) -> usize {
        self.rail
    }

    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    pub fn away(&self) -> &Arc<AtomicU64> {
        &self.away
    }

    pub fn is_there(&self) -> bool {
        self.world.now() >= self.away.load(Relaxed)
    }
}

/// Like `fi_freeinfo`.
///
/// # Safety
/// `Info::make` or `duplicate` made the info, which is freed once; `malloc` allocated its
/// `dest_addr`.
pub unsafe fn free(info: *mut fi_info) {
    // SAFETY: `Info::make` made the info, and nothing uses it after this; its address is of `malloc`.
    unsafe {
        libc::free((*info).dest_addr);
        drop(Box::from_raw(info.cast::<Info>()));
    }
}

/// Like `fi_dupinfo`, without addresses.
///
/// # Safety
/// `Info::make` or this function made the info.
pub unsafe fn duplicate(info: *const fi_info) -> *mut fi_info {
    // SAFETY: `Info::make` made the info, which is not freed yet.
    let known = unsafe { &*info.cast::<Info>() };
    Info::make(&known.spec, known.rail, known.world.clone(), known.away.clone())
}
