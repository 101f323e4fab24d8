//! Compares every struct and constant of the crate with the C headers that are installed, or with
//! those under the folder that `WEFT_LIBFABRIC_HEADERS` names (the one that has `rdma/` in it).

use libfabric_sys::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library allocates these, and newer ones are longer.
const GROW: [&str; 6] =
    ["fi_ep_attr", "fi_domain_attr", "fi_ops_av", "fi_ops_domain", "fi_ops_ep", "fi_ops_cq"];

/// The caller allocates these: ours have the newest ends.
const AHEAD: [&str; 3] = ["fi_mr_attr", "fi_cq_attr", "fi_cq_err_entry"];

/// The version whose headers first have it, for what those of 1.17 lack. Fields of a struct in the
/// list need no line of their own.
const SINCE: &[(&str, (u32, u32))] = &[
    ("FI_ADDR_UCX", (1, 18)),
    ("FI_OPT_CUDA_API_PERMITTED", (1, 18)),
    ("FI_OPT_EFA_EMULATED_ATOMICS", (1, 18)),
    ("FI_OPT_EFA_EMULATED_READ", (1, 18)),
    ("FI_OPT_EFA_EMULATED_WRITE", (1, 18)),
    ("FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES", (1, 18)),
    ("FI_OPT_EFA_USE_DEVICE_RDMA", (1, 18)),
    ("FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES", (1, 18)),
    ("fi_mr_attr.hmem_data", (1, 19)),
    ("FI_ENOMR", (1, 20)),
    ("FI_MR_DMABUF", (1, 20)),
    ("fi_cq_err_entry.src_addr", (1, 20)),
    ("fi_mr_attr.dmabuf", (1, 20)),
    ("fi_mr_dmabuf", (1, 20)),
    ("FI_OPT_SHARED_MEMORY_PERMITTED", (1, 21)),
    ("FI_PROGRESS_CONTROL_UNIFIED", (1, 21)),
    ("FI_OPT_INJECT_ATOMIC_SIZE", (1, 22)),
    ("FI_OPT_INJECT_MSG_SIZE", (1, 22)),
    ("FI_OPT_INJECT_RMA_SIZE", (1, 22)),
    ("FI_OPT_INJECT_TAGGED_SIZE", (1, 22)),
    ("FI_OPT_MAX_ATOMIC_SIZE", (1, 22)),
    ("FI_OPT_MAX_MSG_SIZE", (1, 22)),
    ("FI_OPT_MAX_RMA_SIZE", (1, 22)),
    ("FI_OPT_MAX_TAGGED_SIZE", (1, 22)),
    ("fi_mr_attr.page_size", (1, 22)),
    ("FI_EXACT_DIRECTED_RECV", (2, 0)),
    ("FI_MR_SINGLE_USE", (2, 0)),
    ("fi_mr_attr.base_mr", (2, 0)),
    ("fi_mr_attr.sub_mr_cnt", (2, 0)),
    ("FI_EFIREWALLADDR", (2, 2)),
    ("FI_FIREWALL_ADDR", (2, 2)),
    ("FI_OPT_FIREWALL_ADDR", (2, 2)),
    ("FI_RESCAN", (2, 2)),
    ("FI_SOCKADDR_IP", (2, 3)),
    ("fi_mr_attr.device.rocr", (2, 5)),
    ("fi_cq_attr.xpu_ctx", (2, 7)),
];

fn since(name: &str) -> Option<(u32, u32)> {
    let covers =
        |known: &str| name.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    SINCE.iter().find(|(known, _)| covers(known)).map(|(_, version)| *version)
}

/// By name: offset and size of a field (`struct.field`, as C names it).
type Fields = BTreeMap<String, (usize, usize)>;

#[derive(Default)]
struct Layout {
    version: (u32, u32),
    sizes: BTreeMap<String, usize>,
    fields: Fields,
    constants: BTreeMap<String, i64>,
}

impl Layout {
    fn parse(text: &str) -> Layout {
        let mut layout = Layout::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<i64>().expect("a number");
            match words[0] {
                "version" => layout.version = (number(1) as u32, number(2) as u32),
                "size" => {
                    layout.sizes.insert(words[1].into(), number(2) as usize);
                }
                "field" => {
                    layout.fields.insert(words[1].into(), (number(2) as usize, number(3) as usize));
                }
                "const" => {
                    layout.constants.insert(words[1].into(), number(2));
                }
                other => panic!("layout.c printed \"{other}\""),
            }
        }
        layout
    }

    fn ours() -> Layout {
        let mut ours = Layout::default();
        structs(&mut ours);
        constants(&mut ours);
        unions(&mut ours);
        ours
    }
}

fn size_of_field<T, F>(_: impl Fn(*const T) -> *const F) -> usize {
    size_of::<F>()
}

macro_rules! field {
    ($layout:ident, $name:expr, $type:ident, $($field:ident).+) => {{
        // SAFETY: never called; only its type is asked for.
        let size = size_of_field(|s: *const $type| unsafe { &raw const (*s).$($field).+ });
        $layout.fields.insert($name.into(), (offset_of!($type, $($field).+), size));
    }};
}

macro_rules! structs {
    ($layout:ident; $($name:ident { $($field:ident),* $(,)? })*) => {
        $({
            // Does not compile when a field is missing from the list.
            #[allow(dead_code)]
            fn all_fields(s: &$name) {
                let $name { $($field: _),* } = s;
            }
            $layout.sizes.insert(stringify!($name).into(), size_of::<$name>());
            $(
                let name = concat!(stringify!($name), ".", stringify!($field)).trim_end_matches('_');
                field!($layout, name, $name, $field);
            )*
        })*
    };
}

macro_rules! constants {
    ($layout:ident; $($name:ident),* $(,)?) => {
        $($layout.constants.insert(stringify!($name).into(), $name as i64);)*
    };
}

macro_rules! enums {
    ($layout:ident; $($type:ident { $($name:ident),* $(,)? })*) => {
        $($($layout.constants.insert(stringify!($name).into(), i64::from($type::$name.0));)*)*
    };
}

fn unions(layout: &mut Layout) {
    field!(layout, "fi_mr_attr.device.reserved", fi_mr_attr, device.reserved);
    field!(layout, "fi_mr_attr.device.cuda", fi_mr_attr, device.cuda);
    field!(layout, "fi_mr_attr.device.ze", fi_mr_attr, device.ze);
    field!(layout, "fi_mr_attr.device.neuron", fi_mr_attr, device.neuron);
    field!(layout, "fi_mr_attr.device.synapseai", fi_mr_attr, device.synapseai);
    field!(layout, "fi_mr_attr.device.rocr", fi_mr_attr, device.rocr);
    // C has no name for this one.
    layout.fields.remove("fi_mr_attr.iov");
    // Has no size in C.
    layout.fields.remove("fi_eq_cm_entry.data");
    field!(layout, "fi_mr_attr.mr_iov", fi_mr_attr, iov.mr_iov);
    field!(layout, "fi_mr_attr.dmabuf", fi_mr_attr, iov.dmabuf);
    field!(layout, "fi_bus_attr.attr.pci", fi_bus_attr, attr.pci);
}

fn structs(layout: &mut Layout) {
    structs! { layout;
        fi_info {
            next, caps, mode, addr_format, src_addrlen, dest_addrlen, src_addr, dest_addr, handle,
            tx_attr, rx_attr, ep_attr, domain_attr, fabric_attr, nic,
        }
        fi_tx_attr {
            caps, mode, op_flags, msg_order, comp_order, inject_size, size, iov_limit,
            rma_iov_limit, tclass,
        }
        fi_rx_attr {
            caps, mode, op_flags, msg_order, comp_order, total_buffered_recv, size, iov_limit,
        }
        fi_ep_attr {
            type_, protocol, protocol_version, max_msg_size, msg_prefix_size, max_order_raw_size,
            max_order_war_size, max_order_waw_size, mem_tag_format, tx_ctx_cnt, rx_ctx_cnt,
            auth_key_size, auth_key,
        }
        fi_domain_attr {
            domain, name, threading, control_progress, data_progress, resource_mgmt, av_type,
            mr_mode, mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt,
            max_ep_tx_ctx, max_ep_rx_ctx, max_ep_stx_ctx, max_ep_srx_ctx, cntr_cnt, mr_iov_limit,
            caps, mode, auth_key, auth_key_size, max_err_data, mr_cnt, tclass,
        }
        fi_fabric_attr {
            fabric, name, prov_name, prov_version, api_version,
        }
        fid_nic {
            fid, device_attr, bus_attr, link_attr, prov_attr,
        }
        fi_device_attr {
            name, device_id, device_version, vendor_id, driver, firmware,
        }
        fi_bus_attr {
            bus_type, attr,
        }
        fi_pci_attr {
            domain_id, bus_id, device_id, function_id,
        }
        fi_link_attr {
            address, mtu, speed, state, network_type,
        }
        fid {
            fclass, context, ops,
        }
        fid_fabric {
            fid, ops, api_version,
        }
        fid_domain {
            fid, ops, mr,
        }
        fid_ep {
            fid, ops, cm, msg, rma, tagged, atomic, collective,
        }
        fid_pep {
            fid, ops, cm,
        }
        fid_cq {
            fid, ops,
        }
        fid_eq {
            fid, ops,
        }
        fid_av {
            fid, ops,
        }
        fid_mr {
            fid, mem_desc, key,
        }
        fi_av_attr {
            type_, rx_ctx_bits, count, ep_per_node, name, map_addr, flags,
        }
        fi_cq_attr {
            size, flags, format, wait_obj, signaling_vector, wait_cond, wait_set, xpu_ctx,
        }
        fi_eq_attr {
            size, flags, wait_obj, signaling_vector, wait_set,
        }
        fi_wait_pollfd {
            change_index, nfds, fd,
        }
        fi_mr_attr {
            iov, iov_count, access, offset, requested_key, context, auth_key_size, auth_key, iface,
            device, hmem_data, page_size, base_mr, sub_mr_cnt,
        }
        fi_mr_dmabuf {
            fd, offset, len, base_addr,
        }
        fi_atomic_attr {
            count, size,
        }
        fi_eq_entry {
            fid, context, data,
        }
        fi_eq_err_entry {
            fid, context, data, err, prov_errno, err_data, err_data_size,
        }
        fi_eq_cm_entry {
            fid, info, data,
        }
        fi_msg {
            msg_iov, desc, iov_count, addr, context, data,
        }
        fi_rma_iov {
            addr, len, key,
        }
        fi_msg_rma {
            msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context, data,
        }
        fi_ioc {
            addr, count,
        }
        fi_rma_ioc {
            addr, count, key,
        }
        fi_msg_atomic {
            msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, datatype, op, context, data,
        }
        fi_context {
            internal,
        }
        fi_context2 {
            internal,
        }
        fi_cq_entry {
            op_context,
        }
        fi_cq_msg_entry {
            op_context, flags, len,
        }
        fi_cq_data_entry {
            op_context, flags, len, buf, data,
        }
        fi_cq_tagged_entry {
            op_context, flags, len, buf, data, tag,
        }
        fi_cq_err_entry {
            op_context, flags, len, buf, data, tag, olen, err, prov_errno, err_data, err_data_size,
            src_addr,
        }
        fi_ops {
            size, close, bind, control, ops_open, tostr, ops_set,
        }
        fi_ops_fabric {
            size, domain, passive_ep, eq_open, wait_open, trywait, domain2,
        }
        fi_ops_domain {
            size, av_open, cq_open, endpoint, scalable_ep, cntr_open, poll_open, stx_ctx, srx_ctx,
            query_atomic, query_collective, endpoint2,
        }
        fi_ops_mr {
            size, reg, regv, regattr,
        }
        fi_ops_av {
            size, insert, insertsvc, insertsym, remove, lookup, straddr, av_set,
        }
        fi_ops_ep {
            size, cancel, getopt, setopt, tx_ctx, rx_ctx, rx_size_left, tx_size_left,
        }
        fi_ops_cm {
            size, setname, getname, getpeer, connect, listen, accept, reject, shutdown, join,
        }
        fi_ops_msg {
            size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata,
        }
        fi_ops_rma {
            size, read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata,
        }
        fi_ops_atomic {
            size, write, writev, writemsg, inject, readwrite, readwritev, readwritemsg, compwrite,
            compwritev, compwritemsg, writevalid, readwritevalid, compwritevalid,
        }
        fi_ops_cq {
            size, read, readfrom, readerr, sread, sreadfrom, signal, strerror,
        }
        fi_ops_eq {
            size, read, readerr, write, sread, strerror,
        }
    }
}

fn constants(layout: &mut Layout) {
    constants! { layout;
        FI_MSG, FI_RMA, FI_TAGGED, FI_ATOMIC, FI_ATOMICS, FI_MULTICAST, FI_COLLECTIVE, FI_READ,
        FI_WRITE, FI_RECV, FI_SEND, FI_TRANSMIT, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_MULTI_RECV,
        FI_REMOTE_CQ_DATA, FI_MORE, FI_PEEK, FI_TRIGGER, FI_FENCE, FI_COMPLETION, FI_EVENT,
        FI_INJECT, FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE, FI_AFFINITY,
        FI_COMMIT_COMPLETE, FI_MATCH_COMPLETE, FI_RESCAN, FI_PEER_TRANSFER, FI_AV_USER_ID,
        FI_FIREWALL_ADDR, FI_PEER, FI_HMEM, FI_EXACT_DIRECTED_RECV, FI_RMA_PMEM, FI_SOURCE_ERR,
        FI_LOCAL_COMM, FI_REMOTE_COMM, FI_SHARED_AV, FI_PROV_ATTR_ONLY, FI_NUMERICHOST,
        FI_RMA_EVENT, FI_SOURCE, FI_NAMED_RX_CTX, FI_DIRECTED_RECV, FI_CLAIM, FI_DISCARD,
        FI_SELECTIVE_COMPLETION, FI_FETCH_ATOMIC, FI_COMPARE_ATOMIC, FI_SYMMETRIC, FI_SYNC_ERR,
        FI_UNIVERSE, FI_MR_DMABUF, FI_MR_SINGLE_USE, FI_HMEM_HOST_ALLOC, FI_HMEM_DEVICE_ONLY,
        FI_CONTEXT, FI_MSG_PREFIX, FI_ASYNC_IOV, FI_RX_CQ_DATA, FI_CONTEXT2, FI_MR_LOCAL, FI_MR_RAW,
        FI_MR_VIRT_ADDR, FI_MR_ALLOCATED, FI_MR_PROV_KEY, FI_MR_MMU_NOTIFY, FI_MR_RMA_EVENT,
        FI_MR_ENDPOINT, FI_MR_HMEM, FI_MR_COLLECTIVE, FI_ORDER_RAR, FI_ORDER_RAW, FI_ORDER_RAS,
        FI_ORDER_WAR, FI_ORDER_WAW, FI_ORDER_WAS, FI_ORDER_SAR, FI_ORDER_SAW, FI_ORDER_SAS,
        FI_ORDER_RMA_RAR, FI_ORDER_RMA_RAW, FI_ORDER_RMA_WAR, FI_ORDER_RMA_WAW, FI_ORDER_ATOMIC_RAR,
        FI_ORDER_ATOMIC_RAW, FI_ORDER_ATOMIC_WAR, FI_ORDER_ATOMIC_WAW, FI_FORMAT_UNSPEC,
        FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOCKADDR_IB, FI_ADDR_PSMX, FI_ADDR_GNI,
        FI_ADDR_BGQ, FI_ADDR_MLX, FI_ADDR_STR, FI_ADDR_PSMX2, FI_ADDR_IB_UD, FI_ADDR_EFA,
        FI_ADDR_PSMX3, FI_ADDR_OPX, FI_ADDR_CXI, FI_ADDR_UCX, FI_SOCKADDR_IP, FI_ADDR_UNSPEC,
        FI_ADDR_NOTAVAIL, FI_KEY_NOTAVAIL, FI_SHARED_CONTEXT, FI_NAME_MAX, FI_TC_UNSPEC, FI_TC_DSCP,
        FI_TC_LABEL, FI_TC_BEST_EFFORT, FI_TC_LOW_LATENCY, FI_TC_DEDICATED_ACCESS, FI_TC_BULK_DATA,
        FI_TC_SCAVENGER, FI_TC_NETWORK_CTRL, FI_CLASS_UNSPEC, FI_CLASS_FABRIC, FI_CLASS_DOMAIN,
        FI_CLASS_EP, FI_CLASS_SEP, FI_CLASS_RX_CTX, FI_CLASS_SRX_CTX, FI_CLASS_TX_CTX,
        FI_CLASS_STX_CTX, FI_CLASS_PEP, FI_CLASS_INTERFACE, FI_CLASS_AV, FI_CLASS_MR, FI_CLASS_EQ,
        FI_CLASS_CQ, FI_CLASS_CNTR, FI_CLASS_WAIT, FI_CLASS_POLL, FI_CLASS_CONNREQ, FI_CLASS_MC,
        FI_CLASS_NIC, FI_CLASS_AV_SET, FI_GETFIDFLAG, FI_SETFIDFLAG, FI_GETOPSFLAG, FI_SETOPSFLAG,
        FI_ALIAS, FI_GETWAIT, FI_ENABLE, FI_BACKLOG, FI_GET_RAW_MR, FI_MAP_RAW_MR, FI_UNMAP_KEY,
        FI_QUEUE_WORK, FI_CANCEL_WORK, FI_FLUSH_WORK, FI_REFRESH, FI_DUP, FI_GETWAITOBJ, FI_GET_VAL,
        FI_SET_VAL, FI_EXPORT_FID, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, FI_OPT_CM_DATA_SIZE,
        FI_OPT_BUFFERED_MIN, FI_OPT_BUFFERED_LIMIT, FI_OPT_SEND_BUF_SIZE, FI_OPT_RECV_BUF_SIZE,
        FI_OPT_TX_SIZE, FI_OPT_RX_SIZE, FI_OPT_FI_HMEM_P2P, FI_OPT_CUDA_API_PERMITTED,
        FI_OPT_SHARED_MEMORY_PERMITTED, FI_OPT_MAX_MSG_SIZE, FI_OPT_MAX_TAGGED_SIZE,
        FI_OPT_MAX_RMA_SIZE, FI_OPT_MAX_ATOMIC_SIZE, FI_OPT_INJECT_MSG_SIZE,
        FI_OPT_INJECT_TAGGED_SIZE, FI_OPT_INJECT_RMA_SIZE, FI_OPT_INJECT_ATOMIC_SIZE,
        FI_OPT_FIREWALL_ADDR, FI_HMEM_P2P_ENABLED, FI_HMEM_P2P_REQUIRED, FI_HMEM_P2P_PREFERRED,
        FI_HMEM_P2P_DISABLED, FI_PROV_SPECIFIC_EFA, FI_OPT_EFA_RNR_RETRY, FI_OPT_EFA_EMULATED_READ,
        FI_OPT_EFA_EMULATED_WRITE, FI_OPT_EFA_EMULATED_ATOMICS, FI_OPT_EFA_USE_DEVICE_RDMA,
        FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES, FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES,
        FI_NOTIFY, FI_CONNREQ, FI_CONNECTED, FI_SHUTDOWN, FI_MR_COMPLETE, FI_AV_COMPLETE,
        FI_JOIN_COMPLETE, FI_SUCCESS, FI_EPERM, FI_ENOENT, FI_EINTR, FI_EIO, FI_E2BIG, FI_EBADF,
        FI_EAGAIN, FI_ENOMEM, FI_EACCES, FI_EFAULT, FI_EBUSY, FI_ENODEV, FI_EINVAL, FI_EMFILE,
        FI_ENOSPC, FI_ENOSYS, FI_EWOULDBLOCK, FI_ENOMSG, FI_ENODATA, FI_EOVERFLOW, FI_EMSGSIZE,
        FI_ENOPROTOOPT, FI_EOPNOTSUPP, FI_EADDRINUSE, FI_EADDRNOTAVAIL, FI_ENETDOWN, FI_ENETUNREACH,
        FI_ECONNABORTED, FI_ECONNRESET, FI_ENOBUFS, FI_EISCONN, FI_ENOTCONN, FI_ESHUTDOWN,
        FI_ETIMEDOUT, FI_ECONNREFUSED, FI_EHOSTDOWN, FI_EHOSTUNREACH, FI_EALREADY, FI_EINPROGRESS,
        FI_EREMOTEIO, FI_ECANCELED, FI_EKEYREJECTED, FI_ERRNO_OFFSET, FI_EOTHER, FI_ETOOSMALL,
        FI_EOPBADSTATE, FI_EAVAIL, FI_EBADFLAGS, FI_ENOEQ, FI_EDOMAIN, FI_ENOCQ, FI_ECRC, FI_ETRUNC,
        FI_ENOKEY, FI_ENOAV, FI_EOVERRUN, FI_ENORX, FI_ENOMR, FI_EFIREWALLADDR,
    }
    enums! { layout;
        fi_av_type {
            FI_AV_UNSPEC, FI_AV_MAP, FI_AV_TABLE,
        }
        fi_progress {
            FI_PROGRESS_UNSPEC, FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL, FI_PROGRESS_CONTROL_UNIFIED,
        }
        fi_threading {
            FI_THREAD_UNSPEC, FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_DOMAIN, FI_THREAD_COMPLETION,
            FI_THREAD_ENDPOINT,
        }
        fi_resource_mgmt {
            FI_RM_UNSPEC, FI_RM_DISABLED, FI_RM_ENABLED,
        }
        fi_ep_type {
            FI_EP_UNSPEC, FI_EP_MSG, FI_EP_DGRAM, FI_EP_RDM,
        }
        fi_bus_type {
            FI_BUS_UNSPEC, FI_BUS_UNKNOWN, FI_BUS_PCI,
        }
        fi_link_state {
            FI_LINK_UNKNOWN, FI_LINK_DOWN, FI_LINK_UP,
        }
        fi_hmem_iface {
            FI_HMEM_SYSTEM, FI_HMEM_CUDA, FI_HMEM_ROCR, FI_HMEM_ZE, FI_HMEM_NEURON,
            FI_HMEM_SYNAPSEAI,
        }
        fi_wait_obj {
            FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_SET, FI_WAIT_FD, FI_WAIT_MUTEX_COND,
            FI_WAIT_YIELD, FI_WAIT_POLLFD,
        }
        fi_cq_format {
            FI_CQ_FORMAT_UNSPEC, FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_DATA,
            FI_CQ_FORMAT_TAGGED,
        }
        fi_cq_wait_cond {
            FI_CQ_COND_NONE, FI_CQ_COND_THRESHOLD,
        }
        fi_datatype {
            FI_INT8, FI_UINT8, FI_INT16, FI_UINT16, FI_INT32, FI_UINT32, FI_INT64, FI_UINT64,
            FI_FLOAT, FI_DOUBLE, FI_FLOAT_COMPLEX, FI_DOUBLE_COMPLEX, FI_LONG_DOUBLE,
            FI_LONG_DOUBLE_COMPLEX, FI_INT128, FI_UINT128,
        }
        fi_op {
            FI_MIN, FI_MAX, FI_SUM, FI_PROD, FI_LOR, FI_LAND, FI_BOR, FI_BAND, FI_LXOR, FI_BXOR,
            FI_ATOMIC_READ, FI_ATOMIC_WRITE, FI_CSWAP, FI_CSWAP_NE, FI_CSWAP_LE, FI_CSWAP_LT,
            FI_CSWAP_GE, FI_CSWAP_GT, FI_MSWAP,
        }
        fi_type {
            FI_TYPE_INFO, FI_TYPE_EP_TYPE, FI_TYPE_CAPS, FI_TYPE_OP_FLAGS, FI_TYPE_ADDR_FORMAT,
            FI_TYPE_TX_ATTR, FI_TYPE_RX_ATTR, FI_TYPE_EP_ATTR, FI_TYPE_DOMAIN_ATTR,
            FI_TYPE_FABRIC_ATTR, FI_TYPE_THREADING, FI_TYPE_PROGRESS, FI_TYPE_PROTOCOL,
            FI_TYPE_MSG_ORDER, FI_TYPE_MODE, FI_TYPE_AV_TYPE, FI_TYPE_ATOMIC_TYPE,
            FI_TYPE_ATOMIC_OP, FI_TYPE_VERSION, FI_TYPE_EQ_EVENT, FI_TYPE_CQ_EVENT_FLAGS,
            FI_TYPE_MR_MODE, FI_TYPE_OP_TYPE, FI_TYPE_FID, FI_TYPE_COLLECTIVE_OP,
            FI_TYPE_HMEM_IFACE, FI_TYPE_CQ_FORMAT, FI_TYPE_LOG_LEVEL, FI_TYPE_LOG_SUBSYS,
        }
    }
}

/// What layout.c prints: all declarations of ours that headers of its version have.
fn entries(ours: &Layout) -> String {
    let sizes = ours.sizes.keys().map(|name| (name, format!("SIZE({name})")));
    let fields = ours.fields.keys().map(|name| (name, format!("FIELD({})", name.replacen('.', ", ", 1))));
    let constants = ours.constants.keys().map(|name| (name, format!("CONST({name})")));
    sizes
        .chain(fields)
        .chain(constants)
        .map(|(name, entry)| match since(name) {
            Some((major, minor)) => format!("#if AT_LEAST({major}, {minor})\n{entry}\n#endif\n"),
            None => format!("{entry}\n"),
        })
        .collect()
}

/// The values of the headers, or why they are unavailable.
fn theirs(ours: &Layout) -> Result<Layout, &'static str> {
    let headers = std::env::var_os("WEFT_LIBFABRIC_HEADERS").map(PathBuf::from);
    if let Some(headers) = &headers {
        // A named folder without headers is a mistake, not a machine without headers.
        assert!(headers.join("rdma/fabric.h").exists(), "no rdma/fabric.h under {}", headers.display());
    }
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let compile = |arguments: &[&OsStr]| {
        let mut command = Command::new(&compiler);
        if let Some(headers) = &headers {
            command.arg("-I").arg(headers);
        }
        command.args(arguments).output()
    };
    match compile(&["-E", "-include", "rdma/fabric.h", "-x", "c", "/dev/null"].map(AsRef::as_ref)) {
        Err(_) => return Err("there is no C compiler (apt-get install gcc)"),
        Ok(output) if !output.status.success() => {
            return Err("there are no libfabric headers (apt-get install libfabric-dev)")
        }
        Ok(_) => {}
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder under target");
    std::fs::write(folder.join("entries.h"), entries(ours)).expect("writing entries.h");
    let (source, program) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/layout.c"), folder.join("layout"));
    let arguments: [&OsStr; 5] =
        ["-I".as_ref(), folder.as_ref(), "-o".as_ref(), program.as_ref(), source.as_ref()];
    let compiled = compile(&arguments).expect("it ran before");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&program).output().expect("the program that was just compiled");
    std::fs::remove_dir_all(&folder).expect("removing it again");
    assert!(output.status.success());
    Ok(Layout::parse(&String::from_utf8(output.stdout).expect("text")))
}

fn compare<T: PartialEq + std::fmt::Debug>(
    ours: &BTreeMap<String, T>,
    theirs: &BTreeMap<String, T>,
    version: (u32, u32),
    wrong: &mut Vec<String>,
) {
    for (name, value) in ours {
        match theirs.get(name) {
            Some(other) if other != value => wrong.push(format!("{name}: {value:?}, in C {other:?}")),
            None if since(name).is_none_or(|since| since <= version) => {
                wrong.push(format!("{name}: not in C"))
            }
            _ => {}
        }
    }
}

#[test]
fn layouts_and_constants_match_the_headers() {
    let mut ours = Layout::ours();
    let theirs = match theirs(&ours) {
        Ok(theirs) => theirs,
        Err(why) => return println!("skipped: {why}"),
    };
    let mut wrong = Vec::new();
    // Sizes are not compared past the end, nor as a whole, where they may differ.
    for name in GROW.iter().chain(&AHEAD) {
        let (mine, other) = (ours.sizes[*name], theirs.sizes[*name]);
        let fits = if AHEAD.contains(name) {
            mine >= other
        } else if theirs.version == (1, 17) {
            mine == other
        } else {
            mine <= other
        };
        if !fits {
            wrong.push(format!("{name}: {mine} bytes, in C {other}"));
        }
        ours.sizes.insert((*name).into(), other);
    }
    compare(&ours.sizes, &theirs.sizes, theirs.version, &mut wrong);
    compare(&ours.fields, &theirs.fields, theirs.version, &mut wrong);
    compare(&ours.constants, &theirs.constants, theirs.version, &mut wrong);
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
    println!(
        "compared with libfabric {}.{}: {} structs, {} fields, {} constants",
        theirs.version.0,
        theirs.version.1,
        theirs.sizes.len(),
        theirs.fields.len(),
        theirs.constants.len()
    );
}

/// The names that a source file defines with lines that start with `start`.
fn defined<'a>(source: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
    source.lines().filter_map(move |line| {
        let rest = line.trim_start().strip_prefix(start)?;
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        Some(&rest[..end])
    })
}

#[test]
fn every_declaration_is_compared() {
    let ours = Layout::ours();
    let sources = [
        include_str!("../src/constants.rs"),
        include_str!("../src/info.rs"),
        include_str!("../src/messages.rs"),
        include_str!("../src/objects.rs"),
        include_str!("../src/ops.rs"),
    ];
    let mut missing = BTreeSet::new();
    for source in sources {
        missing.extend(
            defined(source, "pub const FI_").filter(|n| !ours.constants.contains_key(&format!("FI_{n}"))),
        );
        for start in ["pub struct ", "ops! { "] {
            missing.extend(defined(source, start).filter(|n| !n.is_empty() && !ours.sizes.contains_key(*n)));
        }
    }
    let enums = include_str!("../src/enums.rs").lines().filter_map(|line| {
        line.trim_start()
            .strip_suffix(',')?
            .split_once(" = ")
            .map(|(name, _)| name)
            .filter(|n| n.starts_with("FI_"))
    });
    missing.extend(enums.filter(|n| !ours.constants.contains_key(*n)));
    assert!(missing.is_empty(), "not in the lists above: {missing:?}");
}
