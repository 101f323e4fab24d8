//! The tables of an object's calls. Slots that versions after 1.17 added at the end are left out;
//! nothing here calls them.

use crate::*;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::size_of;

macro_rules! ops {
    ($name:ident { $($slot:ident: fn($($arg:ident: $type:ty),* $(,)?) -> $ret:ty;)* }) => {
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name {
            /// Bytes of the table; slots past it do not exist.
            pub size: usize,
            $(pub $slot: Option<unsafe extern "C" fn($($arg: $type),*) -> $ret>,)*
        }

        impl $name {
            /// A table without calls, to build others from: `fi_ops { close: Some(f), ..fi_ops::EMPTY }`.
            pub const EMPTY: Self = Self { size: size_of::<Self>(), $($slot: None),* };
        }
    };
}

ops! { fi_ops {
    close: fn(fid: *mut fid) -> c_int;
    bind: fn(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int;
    control: fn(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int;
    ops_open: fn(fid: *mut fid, name: *const c_char, flags: u64, ops: *mut *mut c_void, context: *mut c_void) -> c_int;
    tostr: fn(fid: *const fid, buf: *mut c_char, len: usize) -> c_int;
    ops_set: fn(fid: *mut fid, name: *const c_char, flags: u64, ops: *mut c_void, context: *mut c_void) -> c_int;
} }

ops! { fi_ops_fabric {
    domain: fn(fabric: *mut fid_fabric, info: *mut fi_info, dom: *mut *mut fid_domain, context: *mut c_void) -> c_int;
    passive_ep: fn(fabric: *mut fid_fabric, info: *mut fi_info, pep: *mut *mut fid_pep, context: *mut c_void) -> c_int;
    eq_open: fn(fabric: *mut fid_fabric, attr: *mut fi_eq_attr, eq: *mut *mut fid_eq, context: *mut c_void) -> c_int;
    wait_open: fn(fabric: *mut fid_fabric, attr: *mut fi_wait_attr, waitset: *mut *mut fid_wait) -> c_int;
    trywait: fn(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int;
    domain2: fn(fabric: *mut fid_fabric, info: *mut fi_info, dom: *mut *mut fid_domain, flags: u64,
        context: *mut c_void) -> c_int;
} }

ops! { fi_ops_domain {
    av_open: fn(domain: *mut fid_domain, attr: *mut fi_av_attr, av: *mut *mut fid_av, context: *mut c_void) -> c_int;
    cq_open: fn(domain: *mut fid_domain, attr: *mut fi_cq_attr, cq: *mut *mut fid_cq, context: *mut c_void) -> c_int;
    endpoint: fn(domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, context: *mut c_void) -> c_int;
    scalable_ep: fn(domain: *mut fid_domain, info: *mut fi_info, sep: *mut *mut fid_ep, context: *mut c_void) -> c_int;
    cntr_open: fn(domain: *mut fid_domain, attr: *mut fi_cntr_attr, cntr: *mut *mut fid_cntr,
        context: *mut c_void) -> c_int;
    poll_open: fn(domain: *mut fid_domain, attr: *mut fi_poll_attr, pollset: *mut *mut fid_poll) -> c_int;
    stx_ctx: fn(domain: *mut fid_domain, attr: *mut fi_tx_attr, stx: *mut *mut fid_stx, context: *mut c_void) -> c_int;
    srx_ctx: fn(domain: *mut fid_domain, attr: *mut fi_rx_attr, rx_ep: *mut *mut fid_ep,
        context: *mut c_void) -> c_int;
    query_atomic: fn(domain: *mut fid_domain, datatype: fi_datatype, op: fi_op, attr: *mut fi_atomic_attr,
        flags: u64) -> c_int;
    query_collective: fn(domain: *mut fid_domain, coll: c_uint, attr: *mut fi_collective_attr, flags: u64) -> c_int;
    endpoint2: fn(domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, flags: u64,
        context: *mut c_void) -> c_int;
} }

ops! { fi_ops_mr {
    reg: fn(fid: *mut fid, buf: *const c_void, len: usize, access: u64, offset: u64, requested_key: u64, flags: u64,
        mr: *mut *mut fid_mr, context: *mut c_void) -> c_int;
    regv: fn(fid: *mut fid, iov: *const iovec, count: usize, access: u64, offset: u64, requested_key: u64, flags: u64,
        mr: *mut *mut fid_mr, context: *mut c_void) -> c_int;
    regattr: fn(fid: *mut fid, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr) -> c_int;
} }

ops! { fi_ops_av {
    insert: fn(av: *mut fid_av, addr: *const c_void, count: usize, fi_addr: *mut fi_addr_t, flags: u64,
        context: *mut c_void) -> c_int;
    insertsvc: fn(av: *mut fid_av, node: *const c_char, service: *const c_char, fi_addr: *mut fi_addr_t, flags: u64,
        context: *mut c_void) -> c_int;
    insertsym: fn(av: *mut fid_av, node: *const c_char, nodecnt: usize, service: *const c_char, svccnt: usize,
        fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void) -> c_int;
    remove: fn(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int;
    lookup: fn(av: *mut fid_av, fi_addr: fi_addr_t, addr: *mut c_void, addrlen: *mut usize) -> c_int;
    straddr: fn(av: *mut fid_av, addr: *const c_void, buf: *mut c_char, len: *mut usize) -> *const c_char;
    av_set: fn(av: *mut fid_av, attr: *mut fi_av_set_attr, av_set: *mut *mut fid_av_set,
        context: *mut c_void) -> c_int;
} }

ops! { fi_ops_ep {
    cancel: fn(fid: fid_t, context: *mut c_void) -> isize;
    getopt: fn(fid: fid_t, level: c_int, optname: c_int, optval: *mut c_void, optlen: *mut usize) -> c_int;
    setopt: fn(fid: fid_t, level: c_int, optname: c_int, optval: *const c_void, optlen: usize) -> c_int;
    tx_ctx: fn(sep: *mut fid_ep, index: c_int, attr: *mut fi_tx_attr, tx_ep: *mut *mut fid_ep,
        context: *mut c_void) -> c_int;
    rx_ctx: fn(sep: *mut fid_ep, index: c_int, attr: *mut fi_rx_attr, rx_ep: *mut *mut fid_ep,
        context: *mut c_void) -> c_int;
    rx_size_left: fn(ep: *mut fid_ep) -> isize;
    tx_size_left: fn(ep: *mut fid_ep) -> isize;
} }

ops! { fi_ops_cm {
    setname: fn(fid: fid_t, addr: *mut c_void, addrlen: usize) -> c_int;
    getname: fn(fid: fid_t, addr: *mut c_void, addrlen: *mut usize) -> c_int;
    getpeer: fn(ep: *mut fid_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int;
    connect: fn(ep: *mut fid_ep, addr: *const c_void, param: *const c_void, paramlen: usize) -> c_int;
    listen: fn(pep: *mut fid_pep) -> c_int;
    accept: fn(ep: *mut fid_ep, param: *const c_void, paramlen: usize) -> c_int;
    reject: fn(pep: *mut fid_pep, handle: fid_t, param: *const c_void, paramlen: usize) -> c_int;
    shutdown: fn(ep: *mut fid_ep, flags: u64) -> c_int;
    join: fn(ep: *mut fid_ep, addr: *const c_void, flags: u64, mc: *mut *mut fid_mc, context: *mut c_void) -> c_int;
} }

ops! { fi_ops_msg {
    recv: fn(ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t,
        context: *mut c_void) -> isize;
    recvv: fn(ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t,
        context: *mut c_void) -> isize;
    recvmsg: fn(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize;
    send: fn(ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t,
        context: *mut c_void) -> isize;
    sendv: fn(ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
        context: *mut c_void) -> isize;
    sendmsg: fn(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize;
    inject: fn(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t) -> isize;
    senddata: fn(ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64, dest_addr: fi_addr_t,
        context: *mut c_void) -> isize;
    injectdata: fn(ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t) -> isize;
} }

ops! { fi_ops_rma {
    read: fn(ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t, addr: u64,
        key: u64, context: *mut c_void) -> isize;
    readv: fn(ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t,
        addr: u64, key: u64, context: *mut c_void) -> isize;
    readmsg: fn(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize;
    write: fn(ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t, addr: u64,
        key: u64, context: *mut c_void) -> isize;
    writev: fn(ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
        addr: u64, key: u64, context: *mut c_void) -> isize;
    writemsg: fn(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize;
    inject: fn(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t, addr: u64, key: u64) -> isize;
    writedata: fn(ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
        dest_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void) -> isize;
    injectdata: fn(ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t, addr: u64,
        key: u64) -> isize;
} }

ops! { fi_ops_atomic {
    write: fn(ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, dest_addr: fi_addr_t, addr: u64,
        key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void) -> isize;
    writev: fn(ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
        addr: u64, key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void) -> isize;
    writemsg: fn(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize;
    inject: fn(ep: *mut fid_ep, buf: *const c_void, count: usize, dest_addr: fi_addr_t, addr: u64, key: u64,
        datatype: fi_datatype, op: fi_op) -> isize;
    readwrite: fn(ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
        result_desc: *mut c_void, dest_addr: fi_addr_t, addr: u64, key: u64, datatype: fi_datatype, op: fi_op,
        context: *mut c_void) -> isize;
    readwritev: fn(ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize, resultv: *mut fi_ioc,
        result_desc: *mut *mut c_void, result_count: usize, dest_addr: fi_addr_t, addr: u64, key: u64,
        datatype: fi_datatype, op: fi_op, context: *mut c_void) -> isize;
    readwritemsg: fn(ep: *mut fid_ep, msg: *const fi_msg_atomic, resultv: *mut fi_ioc, result_desc: *mut *mut c_void,
        result_count: usize, flags: u64) -> isize;
    compwrite: fn(ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, compare: *const c_void,
        compare_desc: *mut c_void, result: *mut c_void, result_desc: *mut c_void, dest_addr: fi_addr_t, addr: u64,
        key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void) -> isize;
    compwritev: fn(ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize, comparev: *const fi_ioc,
        compare_desc: *mut *mut c_void, compare_count: usize, resultv: *mut fi_ioc, result_desc: *mut *mut c_void,
        result_count: usize, dest_addr: fi_addr_t, addr: u64, key: u64, datatype: fi_datatype, op: fi_op,
        context: *mut c_void) -> isize;
    compwritemsg: fn(ep: *mut fid_ep, msg: *const fi_msg_atomic, comparev: *const fi_ioc,
        compare_desc: *mut *mut c_void, compare_count: usize, resultv: *mut fi_ioc, result_desc: *mut *mut c_void,
        result_count: usize, flags: u64) -> isize;
    writevalid: fn(ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize) -> c_int;
    readwritevalid: fn(ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize) -> c_int;
    compwritevalid: fn(ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize) -> c_int;
} }

ops! { fi_ops_cq {
    read: fn(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize;
    readfrom: fn(cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t) -> isize;
    readerr: fn(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> isize;
    sread: fn(cq: *mut fid_cq, buf: *mut c_void, count: usize, cond: *const c_void, timeout: c_int) -> isize;
    sreadfrom: fn(cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t, cond: *const c_void,
        timeout: c_int) -> isize;
    signal: fn(cq: *mut fid_cq) -> c_int;
    strerror: fn(cq: *mut fid_cq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char,
        len: usize) -> *const c_char;
} }

ops! { fi_ops_eq {
    read: fn(eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize;
    readerr: fn(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize;
    write: fn(eq: *mut fid_eq, event: u32, buf: *const c_void, len: usize, flags: u64) -> isize;
    sread: fn(eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, timeout: c_int, flags: u64) -> isize;
    strerror: fn(eq: *mut fid_eq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char,
        len: usize) -> *const c_char;
} }
