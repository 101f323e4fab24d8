//! The calls that libfabric's headers inline: each goes through a table in its object.
//!
//! All are `unsafe`: objects must be open and of the right kind, pointers must be as the call's man
//! page requires, and the domain's threading model must be kept. A call returns `-FI_ENOSYS` if the
//! object lacks the table or the slot. That is checked on the data path, too: next to an indirect
//! call, the check is a well-predicted branch.

#![allow(clippy::missing_safety_doc, clippy::too_many_arguments)]

use crate::*;
use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr::{null, null_mut};

/// Only the slot is read, through the raw pointer: a table may end before its struct does.
macro_rules! call {
    ($table:expr, $slot:ident($($arg:expr),*)) => {{
        let table = $table;
        match if table.is_null() { None } else { (*table).$slot } {
            Some(call) => call($($arg),*),
            None => (-FI_ENOSYS) as _,
        }
    }};
}

/// A call whose slot may lie beyond the end of an older provider's table, like the headers'
/// `FI_CHECK_OP`.
macro_rules! late {
    ($table:expr, $type:ident, $slot:ident($($arg:expr),*)) => {{
        let table = $table;
        if table.is_null() || (*table).size <= offset_of!($type, $slot) {
            -FI_ENOSYS
        } else {
            call!(table, $slot($($arg),*))
        }
    }};
}

// Any object.

#[inline]
pub unsafe fn fi_close(fid: *mut fid) -> c_int {
    call!((*fid).ops, close(fid))
}

#[inline]
pub unsafe fn fi_control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    call!((*fid).ops, control(fid, command, arg))
}

#[inline]
pub unsafe fn fi_open_ops(
    fid: *mut fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    call!((*fid).ops, ops_open(fid, name, flags, ops, context))
}

#[inline]
pub unsafe fn fi_set_ops(
    fid: *mut fid,
    name: *const c_char,
    flags: u64,
    ops: *mut c_void,
    context: *mut c_void,
) -> c_int {
    late!((*fid).ops, fi_ops, ops_set(fid, name, flags, ops, context))
}

// Fabrics.

#[inline]
pub unsafe fn fi_domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    call!((*fabric).ops, domain(fabric, info, domain, context))
}

#[inline]
pub unsafe fn fi_eq_open(
    fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    eq: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    call!((*fabric).ops, eq_open(fabric, attr, eq, context))
}

#[inline]
pub unsafe fn fi_passive_ep(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    pep: *mut *mut fid_pep,
    context: *mut c_void,
) -> c_int {
    call!((*fabric).ops, passive_ep(fabric, info, pep, context))
}

#[inline]
pub unsafe fn fi_trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    call!((*fabric).ops, trywait(fabric, fids, count))
}

// Domains.

#[inline]
pub unsafe fn fi_endpoint(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    call!((*domain).ops, endpoint(domain, info, ep, context))
}

/// Receives that endpoints share.
#[inline]
pub unsafe fn fi_srx_context(
    domain: *mut fid_domain,
    attr: *mut fi_rx_attr,
    srx: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    call!((*domain).ops, srx_ctx(domain, attr, srx, context))
}

#[inline]
pub unsafe fn fi_cq_open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    cq: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    call!((*domain).ops, cq_open(domain, attr, cq, context))
}

#[inline]
pub unsafe fn fi_av_open(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    av: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    call!((*domain).ops, av_open(domain, attr, av, context))
}

#[inline]
pub unsafe fn fi_query_atomic(
    domain: *mut fid_domain,
    datatype: fi_datatype,
    op: fi_op,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    late!((*domain).ops, fi_ops_domain, query_atomic(domain, datatype, op, attr, flags))
}

// Memory regions.

#[inline]
pub unsafe fn fi_mr_reg(
    domain: *mut fid_domain,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    call!((*domain).mr, reg(domain.cast(), buf, len, access, offset, requested_key, flags, mr, context))
}

#[inline]
pub unsafe fn fi_mr_regattr(
    domain: *mut fid_domain,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    call!((*domain).mr, regattr(domain.cast(), attr, flags, mr))
}

#[inline]
pub unsafe fn fi_mr_desc(mr: *mut fid_mr) -> *mut c_void {
    (*mr).mem_desc
}

#[inline]
pub unsafe fn fi_mr_key(mr: *mut fid_mr) -> u64 {
    (*mr).key
}

#[inline]
pub unsafe fn fi_mr_bind(mr: *mut fid_mr, bfid: *mut fid, flags: u64) -> c_int {
    call!((*mr).fid.ops, bind(mr.cast(), bfid, flags))
}

#[inline]
pub unsafe fn fi_mr_enable(mr: *mut fid_mr) -> c_int {
    fi_control(mr.cast(), FI_ENABLE, null_mut())
}

// Address vectors.

/// How many addresses were inserted, or an error.
#[inline]
pub unsafe fn fi_av_insert(
    av: *mut fid_av,
    addr: *const c_void,
    count: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    call!((*av).ops, insert(av, addr, count, fi_addr, flags, context))
}

#[inline]
pub unsafe fn fi_av_remove(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int {
    call!((*av).ops, remove(av, fi_addr, count, flags))
}

#[inline]
pub unsafe fn fi_av_lookup(
    av: *mut fid_av,
    fi_addr: fi_addr_t,
    addr: *mut c_void,
    addrlen: *mut usize,
) -> c_int {
    call!((*av).ops, lookup(av, fi_addr, addr, addrlen))
}

/// NULL if the provider has no such call.
#[inline]
pub unsafe fn fi_av_straddr(
    av: *mut fid_av,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    let ops = (*av).ops;
    match if ops.is_null() { None } else { (*ops).straddr } {
        Some(call) => call(av, addr, buf, len),
        None => null(),
    }
}

// Endpoints.

#[inline]
pub unsafe fn fi_ep_bind(ep: *mut fid_ep, bfid: *mut fid, flags: u64) -> c_int {
    call!((*ep).fid.ops, bind(ep.cast(), bfid, flags))
}

#[inline]
pub unsafe fn fi_enable(ep: *mut fid_ep) -> c_int {
    fi_control(ep.cast(), FI_ENABLE, null_mut())
}

/// `fid` must belong to an endpoint, here and in the next three.
#[inline]
pub unsafe fn fi_cancel(fid: fid_t, context: *mut c_void) -> isize {
    call!((*fid.cast::<fid_ep>()).ops, cancel(fid, context))
}

#[inline]
pub unsafe fn fi_getopt(
    fid: fid_t,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut usize,
) -> c_int {
    call!((*fid.cast::<fid_ep>()).ops, getopt(fid, level, optname, optval, optlen))
}

#[inline]
pub unsafe fn fi_setopt(
    fid: fid_t,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: usize,
) -> c_int {
    call!((*fid.cast::<fid_ep>()).ops, setopt(fid, level, optname, optval, optlen))
}

#[inline]
pub unsafe fn fi_getname(fid: fid_t, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    call!((*fid.cast::<fid_ep>()).cm, getname(fid, addr, addrlen))
}

// Connections.

#[inline]
pub unsafe fn fi_pep_bind(pep: *mut fid_pep, bfid: *mut fid, flags: u64) -> c_int {
    call!((*pep).fid.ops, bind(pep.cast(), bfid, flags))
}

#[inline]
pub unsafe fn fi_listen(pep: *mut fid_pep) -> c_int {
    call!((*pep).cm, listen(pep))
}

#[inline]
pub unsafe fn fi_connect(
    ep: *mut fid_ep,
    addr: *const c_void,
    param: *const c_void,
    paramlen: usize,
) -> c_int {
    call!((*ep).cm, connect(ep, addr, param, paramlen))
}

#[inline]
pub unsafe fn fi_accept(ep: *mut fid_ep, param: *const c_void, paramlen: usize) -> c_int {
    call!((*ep).cm, accept(ep, param, paramlen))
}

/// `handle` must come from the info of a request.
#[inline]
pub unsafe fn fi_reject(pep: *mut fid_pep, handle: fid_t, param: *const c_void, paramlen: usize) -> c_int {
    call!((*pep).cm, reject(pep, handle, param, paramlen))
}

// Messages.

#[inline]
pub unsafe fn fi_recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    call!((*ep).msg, recv(ep, buf, len, desc, src_addr, context))
}

#[inline]
pub unsafe fn fi_recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    call!((*ep).msg, recvmsg(ep, msg, flags))
}

#[inline]
pub unsafe fn fi_send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    call!((*ep).msg, send(ep, buf, len, desc, dest_addr, context))
}

#[inline]
pub unsafe fn fi_sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    call!((*ep).msg, sendmsg(ep, msg, flags))
}

#[inline]
pub unsafe fn fi_inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t) -> isize {
    call!((*ep).msg, inject(ep, buf, len, dest_addr))
}

// RMA.

#[inline]
pub unsafe fn fi_read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    call!((*ep).rma, read(ep, buf, len, desc, src_addr, addr, key, context))
}

#[inline]
pub unsafe fn fi_readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    call!((*ep).rma, readmsg(ep, msg, flags))
}

#[inline]
pub unsafe fn fi_write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    call!((*ep).rma, write(ep, buf, len, desc, dest_addr, addr, key, context))
}

#[inline]
pub unsafe fn fi_writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    call!((*ep).rma, writemsg(ep, msg, flags))
}

#[inline]
pub unsafe fn fi_inject_write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    call!((*ep).rma, inject(ep, buf, len, dest_addr, addr, key))
}

#[inline]
pub unsafe fn fi_writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    call!((*ep).rma, writedata(ep, buf, len, desc, data, dest_addr, addr, key, context))
}

#[inline]
pub unsafe fn fi_inject_writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    call!((*ep).rma, injectdata(ep, buf, len, data, dest_addr, addr, key))
}

// Atomics.

#[inline]
pub unsafe fn fi_atomicmsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize {
    call!((*ep).atomic, writemsg(ep, msg, flags))
}

#[inline]
pub unsafe fn fi_fetch_atomicmsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    resultv: *mut fi_ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    call!((*ep).atomic, readwritemsg(ep, msg, resultv, result_desc, result_count, flags))
}

#[inline]
pub unsafe fn fi_compare_atomicmsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    comparev: *const fi_ioc,
    compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    call!(
        (*ep).atomic,
        compwritemsg(
            ep,
            msg,
            comparev,
            compare_desc,
            compare_count,
            resultv,
            result_desc,
            result_count,
            flags
        )
    )
}

#[inline]
pub unsafe fn fi_atomicvalid(ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize) -> c_int {
    call!((*ep).atomic, writevalid(ep, datatype, op, count))
}

#[inline]
pub unsafe fn fi_fetch_atomicvalid(
    ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    call!((*ep).atomic, readwritevalid(ep, datatype, op, count))
}

#[inline]
pub unsafe fn fi_compare_atomicvalid(
    ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    call!((*ep).atomic, compwritevalid(ep, datatype, op, count))
}

// Completion queues.

/// `buf` has space for `count` entries of the format that the queue was opened with.
#[inline]
pub unsafe fn fi_cq_read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    call!((*cq).ops, read(cq, buf, count))
}

/// Waits; only for a queue that was opened with a wait object.
#[inline]
pub unsafe fn fi_cq_sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    call!((*cq).ops, sread(cq, buf, count, cond, timeout))
}

#[inline]
pub unsafe fn fi_cq_readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> isize {
    if !buf.is_null() {
        // A library before API 1.20 does not write it.
        (*buf).src_addr = FI_ADDR_NOTAVAIL;
    }
    call!((*cq).ops, readerr(cq, buf, flags))
}

#[inline]
pub unsafe fn fi_cq_signal(cq: *mut fid_cq) -> c_int {
    call!((*cq).ops, signal(cq))
}

/// NULL if the provider has no such call.
#[inline]
pub unsafe fn fi_cq_strerror(
    cq: *mut fid_cq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let ops = (*cq).ops;
    match if ops.is_null() { None } else { (*ops).strerror } {
        Some(call) => call(cq, prov_errno, err_data, buf, len),
        None => null(),
    }
}

// Event queues.

#[inline]
pub unsafe fn fi_eq_read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    call!((*eq).ops, read(eq, event, buf, len, flags))
}

#[inline]
pub unsafe fn fi_eq_readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize {
    call!((*eq).ops, readerr(eq, buf, flags))
}
