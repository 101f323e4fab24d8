//! Objects, and the attributes for opening them.

use crate::{
    fi_av_type, fi_cq_format, fi_cq_wait_cond, fi_hmem_iface, fi_info, fi_ops, fi_ops_atomic, fi_ops_av,
    fi_ops_cm, fi_ops_cq, fi_ops_domain, fi_ops_ep, fi_ops_eq, fi_ops_fabric, fi_ops_mr, fi_ops_msg,
    fi_ops_rma, fi_wait_obj, zero_default,
};
use libc::iovec;
use std::ffi::{c_char, c_int, c_void};

/// Every object starts with one, so a pointer to an object may be cast to `*mut fid`.
#[repr(C)]
#[derive(Debug)]
pub struct fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *mut fi_ops,
}

pub type fid_t = *mut fid;

#[repr(C)]
#[derive(Debug)]
pub struct fid_fabric {
    pub fid: fid,
    pub ops: *mut fi_ops_fabric,
    pub api_version: u32,
}

#[repr(C)]
#[derive(Debug)]
pub struct fid_domain {
    pub fid: fid,
    pub ops: *mut fi_ops_domain,
    pub mr: *mut fi_ops_mr,
}

/// A provider may allocate only the part that the endpoint's capabilities need.
#[repr(C)]
#[derive(Debug)]
pub struct fid_ep {
    pub fid: fid,
    pub ops: *mut fi_ops_ep,
    pub cm: *mut fi_ops_cm,
    pub msg: *mut fi_ops_msg,
    pub rma: *mut fi_ops_rma,
    pub tagged: *mut fi_ops_tagged,
    pub atomic: *mut fi_ops_atomic,
    pub collective: *mut fi_ops_collective,
}

/// It begins like an endpoint, up to the table of its connections.
#[repr(C)]
#[derive(Debug)]
pub struct fid_pep {
    pub fid: fid,
    pub ops: *mut fi_ops_ep,
    pub cm: *mut fi_ops_cm,
}

#[repr(C)]
#[derive(Debug)]
pub struct fid_cq {
    pub fid: fid,
    pub ops: *mut fi_ops_cq,
}

#[repr(C)]
#[derive(Debug)]
pub struct fid_eq {
    pub fid: fid,
    pub ops: *mut fi_ops_eq,
}

#[repr(C)]
#[derive(Debug)]
pub struct fid_av {
    pub fid: fid,
    pub ops: *mut fi_ops_av,
}

#[repr(C)]
#[derive(Debug)]
pub struct fid_mr {
    pub fid: fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

macro_rules! opaque {
    ($($name:ident),* $(,)?) => {
        $(
            /// An opaque type, used only by pointer.
            #[repr(C)]
            #[derive(Debug)]
            pub struct $name {
                _private: [u8; 0],
            }
        )*
    };
}

opaque! {
    fid_av_set, fid_cntr, fid_mc, fid_poll, fid_stx, fid_wait, fid_xpu_ctx,
    fi_av_set_attr, fi_cntr_attr, fi_collective_attr, fi_poll_attr, fi_wait_attr,
    fi_ops_collective, fi_ops_tagged,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_av_attr {
    pub type_: fi_av_type,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cq_attr {
    pub size: usize,
    pub flags: u64,
    pub format: fi_cq_format,
    pub wait_obj: fi_wait_obj,
    pub signaling_vector: c_int,
    pub wait_cond: fi_cq_wait_cond,
    pub wait_set: *mut fid_wait,
    /// 2.7: leave NULL.
    pub xpu_ctx: *mut fid_xpu_ctx,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_eq_attr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: fi_wait_obj,
    pub signaling_vector: c_int,
    pub wait_set: *mut fid_wait,
}

/// What `FI_GETWAIT` returns for `FI_WAIT_POLLFD`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_wait_pollfd {
    pub change_index: u64,
    pub nfds: usize,
    pub fd: *mut libc::pollfd,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_attr {
    pub iov: fi_mr_attr_memory,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    /// Read only in a domain that was opened with `FI_HMEM`.
    pub iface: fi_hmem_iface,
    pub device: fi_mr_attr_device,
    /// API 1.19.
    pub hmem_data: *mut c_void,
    /// API 1.22.
    pub page_size: usize,
    /// API 2.0.
    pub base_mr: *const fid_mr,
    /// API 2.0.
    pub sub_mr_cnt: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_mr_attr_memory {
    pub mr_iov: *const iovec,
    /// With `FI_MR_DMABUF`, which a library before API 1.20 does not know: it would read an
    /// `iovec` here.
    pub dmabuf: *const fi_mr_dmabuf,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_mr_attr_device {
    pub reserved: u64,
    pub cuda: c_int,
    pub ze: c_int,
    pub neuron: c_int,
    pub synapseai: c_int,
    /// 2.5.
    pub rocr: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_mr_dmabuf {
    pub fd: c_int,
    pub offset: u64,
    pub len: usize,
    pub base_addr: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_atomic_attr {
    pub count: usize,
    pub size: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_eq_entry {
    pub fid: fid_t,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_eq_err_entry {
    pub fid: fid_t,
    pub context: *mut c_void,
    pub data: u64,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

/// An event of a connection; the bytes read in addition are the other side's private data.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_eq_cm_entry {
    pub fid: fid_t,
    /// With `FI_CONNREQ`: for [`fi_endpoint`](crate::fi_endpoint); the reader frees it.
    pub info: *mut fi_info,
    pub data: [u8; 0],
}

zero_default! {
    fi_av_attr, fi_cq_attr, fi_eq_attr, fi_wait_pollfd, fi_mr_attr, fi_mr_dmabuf, fi_atomic_attr, fi_eq_entry,
    fi_eq_err_entry, fi_eq_cm_entry,
}
