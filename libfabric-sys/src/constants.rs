//! Versions, flags, modes, options and error numbers. A comment marks constants that a version
//! after 1.17 added; constants that 2.x removed or redefined are left out.

use std::ffi::c_int;

/// An API version, as `fi_getinfo` takes it and `fi_version` returns it.
#[allow(non_snake_case)]
pub const fn FI_VERSION(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

#[allow(non_snake_case)]
pub const fn FI_MAJOR(version: u32) -> u32 {
    version >> 16
}

#[allow(non_snake_case)]
pub const fn FI_MINOR(version: u32) -> u32 {
    version & 0xffff
}

// Capabilities, operation flags and completion flags share one 64-bit word.
pub const FI_MSG: u64 = 1 << 1;
pub const FI_RMA: u64 = 1 << 2;
pub const FI_TAGGED: u64 = 1 << 3;
pub const FI_ATOMIC: u64 = 1 << 4;
pub const FI_ATOMICS: u64 = FI_ATOMIC;
pub const FI_MULTICAST: u64 = 1 << 5;
pub const FI_COLLECTIVE: u64 = 1 << 6;
pub const FI_READ: u64 = 1 << 8;
pub const FI_WRITE: u64 = 1 << 9;
pub const FI_RECV: u64 = 1 << 10;
pub const FI_SEND: u64 = 1 << 11;
pub const FI_TRANSMIT: u64 = FI_SEND;
pub const FI_REMOTE_READ: u64 = 1 << 12;
pub const FI_REMOTE_WRITE: u64 = 1 << 13;
pub const FI_MULTI_RECV: u64 = 1 << 16;
pub const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub const FI_MORE: u64 = 1 << 18;
pub const FI_PEEK: u64 = 1 << 19;
pub const FI_TRIGGER: u64 = 1 << 20;
pub const FI_FENCE: u64 = 1 << 21;
pub const FI_COMPLETION: u64 = 1 << 24;
pub const FI_EVENT: u64 = FI_COMPLETION;
pub const FI_INJECT: u64 = 1 << 25;
pub const FI_INJECT_COMPLETE: u64 = 1 << 26;
pub const FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
pub const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub const FI_AFFINITY: u64 = 1 << 29;
pub const FI_COMMIT_COMPLETE: u64 = 1 << 30;
pub const FI_MATCH_COMPLETE: u64 = 1 << 31;
/// 2.2.
pub const FI_RESCAN: u64 = 1 << 35;
pub const FI_PEER_TRANSFER: u64 = 1 << 36;
pub const FI_AV_USER_ID: u64 = 1 << 41;
/// 2.2.
pub const FI_FIREWALL_ADDR: u64 = 1 << 42;
pub const FI_PEER: u64 = 1 << 43;
pub const FI_HMEM: u64 = 1 << 47;
/// 2.0.
pub const FI_EXACT_DIRECTED_RECV: u64 = 1 << 48;
pub const FI_RMA_PMEM: u64 = 1 << 49;
pub const FI_SOURCE_ERR: u64 = 1 << 50;
pub const FI_LOCAL_COMM: u64 = 1 << 51;
pub const FI_REMOTE_COMM: u64 = 1 << 52;
pub const FI_SHARED_AV: u64 = 1 << 53;
pub const FI_PROV_ATTR_ONLY: u64 = 1 << 54;
pub const FI_NUMERICHOST: u64 = 1 << 55;
pub const FI_RMA_EVENT: u64 = 1 << 56;
pub const FI_SOURCE: u64 = 1 << 57;
pub const FI_NAMED_RX_CTX: u64 = 1 << 58;
pub const FI_DIRECTED_RECV: u64 = 1 << 59;
pub const FI_CLAIM: u64 = 1 << 59;
pub const FI_DISCARD: u64 = 1 << 58;
pub const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;

// Atomics: flags of `fi_query_atomic`.
pub const FI_FETCH_ATOMIC: u64 = 1 << 58;
pub const FI_COMPARE_ATOMIC: u64 = 1 << 59;

// Address vectors.
pub const FI_SYMMETRIC: u64 = 1 << 59;
pub const FI_SYNC_ERR: u64 = 1 << 58;
pub const FI_UNIVERSE: u64 = 1 << 57;

// Registration: flags of `fi_mr_regattr`.
/// 1.20.
pub const FI_MR_DMABUF: u64 = 1 << 40;
/// 2.0.
pub const FI_MR_SINGLE_USE: u64 = 1 << 41;
pub const FI_HMEM_HOST_ALLOC: u64 = 1 << 45;
pub const FI_HMEM_DEVICE_ONLY: u64 = 1 << 46;

// Modes: what the provider requires of the caller.
pub const FI_CONTEXT: u64 = 1 << 59;
pub const FI_MSG_PREFIX: u64 = 1 << 58;
pub const FI_ASYNC_IOV: u64 = 1 << 57;
pub const FI_RX_CQ_DATA: u64 = 1 << 56;
pub const FI_CONTEXT2: u64 = 1 << 52;

// `fi_domain_attr.mr_mode`.
pub const FI_MR_LOCAL: c_int = 1 << 2;
pub const FI_MR_RAW: c_int = 1 << 3;
pub const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub const FI_MR_ALLOCATED: c_int = 1 << 5;
pub const FI_MR_PROV_KEY: c_int = 1 << 6;
pub const FI_MR_MMU_NOTIFY: c_int = 1 << 7;
pub const FI_MR_RMA_EVENT: c_int = 1 << 8;
pub const FI_MR_ENDPOINT: c_int = 1 << 9;
pub const FI_MR_HMEM: c_int = 1 << 10;
pub const FI_MR_COLLECTIVE: c_int = 1 << 11;

// Message and completion order.
pub const FI_ORDER_RAR: u64 = 1 << 0;
pub const FI_ORDER_RAW: u64 = 1 << 1;
pub const FI_ORDER_RAS: u64 = 1 << 2;
pub const FI_ORDER_WAR: u64 = 1 << 3;
pub const FI_ORDER_WAW: u64 = 1 << 4;
pub const FI_ORDER_WAS: u64 = 1 << 5;
pub const FI_ORDER_SAR: u64 = 1 << 6;
pub const FI_ORDER_SAW: u64 = 1 << 7;
pub const FI_ORDER_SAS: u64 = 1 << 8;
pub const FI_ORDER_RMA_RAR: u64 = 1 << 32;
pub const FI_ORDER_RMA_RAW: u64 = 1 << 33;
pub const FI_ORDER_RMA_WAR: u64 = 1 << 34;
pub const FI_ORDER_RMA_WAW: u64 = 1 << 35;
pub const FI_ORDER_ATOMIC_RAR: u64 = 1 << 36;
pub const FI_ORDER_ATOMIC_RAW: u64 = 1 << 37;
pub const FI_ORDER_ATOMIC_WAR: u64 = 1 << 38;
pub const FI_ORDER_ATOMIC_WAW: u64 = 1 << 39;

// `fi_info.addr_format`.
pub const FI_FORMAT_UNSPEC: u32 = 0;
pub const FI_SOCKADDR: u32 = 1;
pub const FI_SOCKADDR_IN: u32 = 2;
pub const FI_SOCKADDR_IN6: u32 = 3;
pub const FI_SOCKADDR_IB: u32 = 4;
pub const FI_ADDR_PSMX: u32 = 5;
pub const FI_ADDR_GNI: u32 = 6;
pub const FI_ADDR_BGQ: u32 = 7;
pub const FI_ADDR_MLX: u32 = 8;
pub const FI_ADDR_STR: u32 = 9;
pub const FI_ADDR_PSMX2: u32 = 10;
pub const FI_ADDR_IB_UD: u32 = 11;
pub const FI_ADDR_EFA: u32 = 12;
pub const FI_ADDR_PSMX3: u32 = 13;
pub const FI_ADDR_OPX: u32 = 14;
pub const FI_ADDR_CXI: u32 = 15;
/// 1.18.
pub const FI_ADDR_UCX: u32 = 16;
/// 2.3.
pub const FI_SOCKADDR_IP: u32 = 17;

/// What an address vector returns for an address.
pub type fi_addr_t = u64;
pub const FI_ADDR_UNSPEC: fi_addr_t = u64::MAX;
pub const FI_ADDR_NOTAVAIL: fi_addr_t = u64::MAX;
pub const FI_KEY_NOTAVAIL: u64 = u64::MAX;
pub const FI_SHARED_CONTEXT: usize = usize::MAX;
pub const FI_NAME_MAX: usize = 64;

// Traffic classes.
pub const FI_TC_UNSPEC: u32 = 0;
pub const FI_TC_DSCP: u32 = 0x100;
pub const FI_TC_LABEL: u32 = 0x200;
pub const FI_TC_BEST_EFFORT: u32 = 0x200;
pub const FI_TC_LOW_LATENCY: u32 = 0x201;
pub const FI_TC_DEDICATED_ACCESS: u32 = 0x202;
pub const FI_TC_BULK_DATA: u32 = 0x203;
pub const FI_TC_SCAVENGER: u32 = 0x204;
pub const FI_TC_NETWORK_CTRL: u32 = 0x205;

// `fid.fclass`.
pub const FI_CLASS_UNSPEC: usize = 0;
pub const FI_CLASS_FABRIC: usize = 1;
pub const FI_CLASS_DOMAIN: usize = 2;
pub const FI_CLASS_EP: usize = 3;
pub const FI_CLASS_SEP: usize = 4;
pub const FI_CLASS_RX_CTX: usize = 5;
pub const FI_CLASS_SRX_CTX: usize = 6;
pub const FI_CLASS_TX_CTX: usize = 7;
pub const FI_CLASS_STX_CTX: usize = 8;
pub const FI_CLASS_PEP: usize = 9;
pub const FI_CLASS_INTERFACE: usize = 10;
pub const FI_CLASS_AV: usize = 11;
pub const FI_CLASS_MR: usize = 12;
pub const FI_CLASS_EQ: usize = 13;
pub const FI_CLASS_CQ: usize = 14;
pub const FI_CLASS_CNTR: usize = 15;
pub const FI_CLASS_WAIT: usize = 16;
pub const FI_CLASS_POLL: usize = 17;
pub const FI_CLASS_CONNREQ: usize = 18;
pub const FI_CLASS_MC: usize = 19;
pub const FI_CLASS_NIC: usize = 20;
pub const FI_CLASS_AV_SET: usize = 21;

// Commands of `fi_control`.
pub const FI_GETFIDFLAG: c_int = 0;
pub const FI_SETFIDFLAG: c_int = 1;
pub const FI_GETOPSFLAG: c_int = 2;
pub const FI_SETOPSFLAG: c_int = 3;
pub const FI_ALIAS: c_int = 4;
pub const FI_GETWAIT: c_int = 5;
pub const FI_ENABLE: c_int = 6;
pub const FI_BACKLOG: c_int = 7;
pub const FI_GET_RAW_MR: c_int = 8;
pub const FI_MAP_RAW_MR: c_int = 9;
pub const FI_UNMAP_KEY: c_int = 10;
pub const FI_QUEUE_WORK: c_int = 11;
pub const FI_CANCEL_WORK: c_int = 12;
pub const FI_FLUSH_WORK: c_int = 13;
pub const FI_REFRESH: c_int = 14;
pub const FI_DUP: c_int = 15;
pub const FI_GETWAITOBJ: c_int = 16;
pub const FI_GET_VAL: c_int = 17;
pub const FI_SET_VAL: c_int = 18;
pub const FI_EXPORT_FID: c_int = 19;

// Options of `fi_getopt` and `fi_setopt`; the type of the value beside each.
pub const FI_OPT_ENDPOINT: c_int = 0;
/// `usize`.
pub const FI_OPT_MIN_MULTI_RECV: c_int = 0;
/// `usize`.
pub const FI_OPT_CM_DATA_SIZE: c_int = 1;
/// `usize`.
pub const FI_OPT_BUFFERED_MIN: c_int = 2;
/// `usize`.
pub const FI_OPT_BUFFERED_LIMIT: c_int = 3;
pub const FI_OPT_SEND_BUF_SIZE: c_int = 4;
pub const FI_OPT_RECV_BUF_SIZE: c_int = 5;
pub const FI_OPT_TX_SIZE: c_int = 6;
pub const FI_OPT_RX_SIZE: c_int = 7;
/// `c_int`: one of `FI_HMEM_P2P_*`.
pub const FI_OPT_FI_HMEM_P2P: c_int = 8;
/// `bool`; 1.18.
pub const FI_OPT_CUDA_API_PERMITTED: c_int = 10;
/// `bool`; 1.21.
pub const FI_OPT_SHARED_MEMORY_PERMITTED: c_int = 11;
/// `usize`; 1.22.
pub const FI_OPT_MAX_MSG_SIZE: c_int = 12;
/// `usize`; 1.22.
pub const FI_OPT_MAX_TAGGED_SIZE: c_int = 13;
/// `usize`; 1.22.
pub const FI_OPT_MAX_RMA_SIZE: c_int = 14;
/// `usize`; 1.22.
pub const FI_OPT_MAX_ATOMIC_SIZE: c_int = 15;
/// `usize`; 1.22.
pub const FI_OPT_INJECT_MSG_SIZE: c_int = 16;
/// `usize`; 1.22.
pub const FI_OPT_INJECT_TAGGED_SIZE: c_int = 17;
/// `usize`; 1.22.
pub const FI_OPT_INJECT_RMA_SIZE: c_int = 18;
/// `usize`; 1.22.
pub const FI_OPT_INJECT_ATOMIC_SIZE: c_int = 19;
/// `bool`; 2.2.
pub const FI_OPT_FIREWALL_ADDR: c_int = 20;

pub const FI_HMEM_P2P_ENABLED: c_int = 0;
pub const FI_HMEM_P2P_REQUIRED: c_int = 1;
pub const FI_HMEM_P2P_PREFERRED: c_int = 2;
pub const FI_HMEM_P2P_DISABLED: c_int = 3;

// EFA's own options; those after the first are 1.18 and later, `bool`.
pub const FI_PROV_SPECIFIC_EFA: c_int = 0xefa << 16;
/// `usize`.
pub const FI_OPT_EFA_RNR_RETRY: c_int = -FI_PROV_SPECIFIC_EFA;
pub const FI_OPT_EFA_EMULATED_READ: c_int = FI_OPT_EFA_RNR_RETRY + 1;
pub const FI_OPT_EFA_EMULATED_WRITE: c_int = FI_OPT_EFA_RNR_RETRY + 2;
pub const FI_OPT_EFA_EMULATED_ATOMICS: c_int = FI_OPT_EFA_RNR_RETRY + 3;
pub const FI_OPT_EFA_USE_DEVICE_RDMA: c_int = FI_OPT_EFA_RNR_RETRY + 4;
pub const FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES: c_int = FI_OPT_EFA_RNR_RETRY + 5;
pub const FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES: c_int = FI_OPT_EFA_RNR_RETRY + 6;

// Events of an event queue.
pub const FI_NOTIFY: u32 = 0;
pub const FI_CONNREQ: u32 = 1;
pub const FI_CONNECTED: u32 = 2;
pub const FI_SHUTDOWN: u32 = 3;
pub const FI_MR_COMPLETE: u32 = 4;
pub const FI_AV_COMPLETE: u32 = 5;
pub const FI_JOIN_COMPLETE: u32 = 6;

// Error numbers; calls return them negated. Those under 256 are the system's.
pub const FI_SUCCESS: c_int = 0;
pub const FI_EPERM: c_int = libc::EPERM;
pub const FI_ENOENT: c_int = libc::ENOENT;
pub const FI_EINTR: c_int = libc::EINTR;
pub const FI_EIO: c_int = libc::EIO;
pub const FI_E2BIG: c_int = libc::E2BIG;
pub const FI_EBADF: c_int = libc::EBADF;
pub const FI_EAGAIN: c_int = libc::EAGAIN;
pub const FI_ENOMEM: c_int = libc::ENOMEM;
pub const FI_EACCES: c_int = libc::EACCES;
pub const FI_EFAULT: c_int = libc::EFAULT;
pub const FI_EBUSY: c_int = libc::EBUSY;
pub const FI_ENODEV: c_int = libc::ENODEV;
pub const FI_EINVAL: c_int = libc::EINVAL;
pub const FI_EMFILE: c_int = libc::EMFILE;
pub const FI_ENOSPC: c_int = libc::ENOSPC;
pub const FI_ENOSYS: c_int = libc::ENOSYS;
pub const FI_EWOULDBLOCK: c_int = libc::EWOULDBLOCK;
pub const FI_ENOMSG: c_int = libc::ENOMSG;
pub const FI_ENODATA: c_int = libc::ENODATA;
pub const FI_EOVERFLOW: c_int = libc::EOVERFLOW;
pub const FI_EMSGSIZE: c_int = libc::EMSGSIZE;
pub const FI_ENOPROTOOPT: c_int = libc::ENOPROTOOPT;
pub const FI_EOPNOTSUPP: c_int = libc::EOPNOTSUPP;
pub const FI_EADDRINUSE: c_int = libc::EADDRINUSE;
pub const FI_EADDRNOTAVAIL: c_int = libc::EADDRNOTAVAIL;
pub const FI_ENETDOWN: c_int = libc::ENETDOWN;
pub const FI_ENETUNREACH: c_int = libc::ENETUNREACH;
pub const FI_ECONNABORTED: c_int = libc::ECONNABORTED;
pub const FI_ECONNRESET: c_int = libc::ECONNRESET;
pub const FI_ENOBUFS: c_int = libc::ENOBUFS;
pub const FI_EISCONN: c_int = libc::EISCONN;
pub const FI_ENOTCONN: c_int = libc::ENOTCONN;
pub const FI_ESHUTDOWN: c_int = libc::ESHUTDOWN;
pub const FI_ETIMEDOUT: c_int = libc::ETIMEDOUT;
pub const FI_ECONNREFUSED: c_int = libc::ECONNREFUSED;
pub const FI_EHOSTDOWN: c_int = libc::EHOSTDOWN;
pub const FI_EHOSTUNREACH: c_int = libc::EHOSTUNREACH;
pub const FI_EALREADY: c_int = libc::EALREADY;
pub const FI_EINPROGRESS: c_int = libc::EINPROGRESS;
pub const FI_EREMOTEIO: c_int = libc::EREMOTEIO;
pub const FI_ECANCELED: c_int = libc::ECANCELED;
pub const FI_EKEYREJECTED: c_int = libc::EKEYREJECTED;
pub const FI_ERRNO_OFFSET: c_int = 256;
pub const FI_EOTHER: c_int = 256;
pub const FI_ETOOSMALL: c_int = 257;
pub const FI_EOPBADSTATE: c_int = 258;
pub const FI_EAVAIL: c_int = 259;
pub const FI_EBADFLAGS: c_int = 260;
pub const FI_ENOEQ: c_int = 261;
pub const FI_EDOMAIN: c_int = 262;
pub const FI_ENOCQ: c_int = 263;
pub const FI_ECRC: c_int = 264;
pub const FI_ETRUNC: c_int = 265;
pub const FI_ENOKEY: c_int = 266;
pub const FI_ENOAV: c_int = 267;
pub const FI_EOVERRUN: c_int = 268;
pub const FI_ENORX: c_int = 269;
/// 1.20.
pub const FI_ENOMR: c_int = 270;
/// 2.2.
pub const FI_EFIREWALLADDR: c_int = 271;
