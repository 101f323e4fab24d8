//! The named C enums. Each is an integer that may have any value: a newer library may return
//! one that is not listed here.

use std::ffi::c_uint;

macro_rules! c_enum {
    ($name:ident { $($value:ident = $number:literal),* $(,)? }) => {
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub c_uint);

        impl $name {
            $(pub const $value: Self = Self($number);)*
        }
    };
}

c_enum! { fi_av_type {
    FI_AV_UNSPEC = 0,
    FI_AV_MAP = 1,
    FI_AV_TABLE = 2,
} }

c_enum! { fi_progress {
    FI_PROGRESS_UNSPEC = 0,
    FI_PROGRESS_AUTO = 1,
    FI_PROGRESS_MANUAL = 2,
    FI_PROGRESS_CONTROL_UNIFIED = 3,
} }

c_enum! { fi_threading {
    FI_THREAD_UNSPEC = 0,
    FI_THREAD_SAFE = 1,
    FI_THREAD_FID = 2,
    FI_THREAD_DOMAIN = 3,
    FI_THREAD_COMPLETION = 4,
    FI_THREAD_ENDPOINT = 5,
} }

c_enum! { fi_resource_mgmt {
    FI_RM_UNSPEC = 0,
    FI_RM_DISABLED = 1,
    FI_RM_ENABLED = 2,
} }

c_enum! { fi_ep_type {
    FI_EP_UNSPEC = 0,
    FI_EP_MSG = 1,
    FI_EP_DGRAM = 2,
    FI_EP_RDM = 3,
} }

c_enum! { fi_bus_type {
    FI_BUS_UNSPEC = 0,
    FI_BUS_UNKNOWN = 0,
    FI_BUS_PCI = 1,
} }

c_enum! { fi_link_state {
    FI_LINK_UNKNOWN = 0,
    FI_LINK_DOWN = 1,
    FI_LINK_UP = 2,
} }

c_enum! { fi_hmem_iface {
    FI_HMEM_SYSTEM = 0,
    FI_HMEM_CUDA = 1,
    FI_HMEM_ROCR = 2,
    FI_HMEM_ZE = 3,
    FI_HMEM_NEURON = 4,
    FI_HMEM_SYNAPSEAI = 5,
} }

c_enum! { fi_wait_obj {
    FI_WAIT_NONE = 0,
    FI_WAIT_UNSPEC = 1,
    FI_WAIT_SET = 2,
    FI_WAIT_FD = 3,
    FI_WAIT_MUTEX_COND = 4,
    FI_WAIT_YIELD = 5,
    FI_WAIT_POLLFD = 6,
} }

c_enum! { fi_cq_format {
    FI_CQ_FORMAT_UNSPEC = 0,
    FI_CQ_FORMAT_CONTEXT = 1,
    FI_CQ_FORMAT_MSG = 2,
    FI_CQ_FORMAT_DATA = 3,
    FI_CQ_FORMAT_TAGGED = 4,
} }

c_enum! { fi_cq_wait_cond {
    FI_CQ_COND_NONE = 0,
    FI_CQ_COND_THRESHOLD = 1,
} }

c_enum! { fi_datatype {
    FI_INT8 = 0,
    FI_UINT8 = 1,
    FI_INT16 = 2,
    FI_UINT16 = 3,
    FI_INT32 = 4,
    FI_UINT32 = 5,
    FI_INT64 = 6,
    FI_UINT64 = 7,
    FI_FLOAT = 8,
    FI_DOUBLE = 9,
    FI_FLOAT_COMPLEX = 10,
    FI_DOUBLE_COMPLEX = 11,
    FI_LONG_DOUBLE = 12,
    FI_LONG_DOUBLE_COMPLEX = 13,
    FI_INT128 = 14,
    FI_UINT128 = 15,
} }

c_enum! { fi_op {
    FI_MIN = 0,
    FI_MAX = 1,
    FI_SUM = 2,
    FI_PROD = 3,
    FI_LOR = 4,
    FI_LAND = 5,
    FI_BOR = 6,
    FI_BAND = 7,
    FI_LXOR = 8,
    FI_BXOR = 9,
    FI_ATOMIC_READ = 10,
    FI_ATOMIC_WRITE = 11,
    FI_CSWAP = 12,
    FI_CSWAP_NE = 13,
    FI_CSWAP_LE = 14,
    FI_CSWAP_LT = 15,
    FI_CSWAP_GE = 16,
    FI_CSWAP_GT = 17,
    FI_MSWAP = 18,
} }

// What fi_tostr prints.
c_enum! { fi_type {
    FI_TYPE_INFO = 0,
    FI_TYPE_EP_TYPE = 1,
    FI_TYPE_CAPS = 2,
    FI_TYPE_OP_FLAGS = 3,
    FI_TYPE_ADDR_FORMAT = 4,
    FI_TYPE_TX_ATTR = 5,
    FI_TYPE_RX_ATTR = 6,
    FI_TYPE_EP_ATTR = 7,
    FI_TYPE_DOMAIN_ATTR = 8,
    FI_TYPE_FABRIC_ATTR = 9,
    FI_TYPE_THREADING = 10,
    FI_TYPE_PROGRESS = 11,
    FI_TYPE_PROTOCOL = 12,
    FI_TYPE_MSG_ORDER = 13,
    FI_TYPE_MODE = 14,
    FI_TYPE_AV_TYPE = 15,
    FI_TYPE_ATOMIC_TYPE = 16,
    FI_TYPE_ATOMIC_OP = 17,
    FI_TYPE_VERSION = 18,
    FI_TYPE_EQ_EVENT = 19,
    FI_TYPE_CQ_EVENT_FLAGS = 20,
    FI_TYPE_MR_MODE = 21,
    FI_TYPE_OP_TYPE = 22,
    FI_TYPE_FID = 23,
    FI_TYPE_COLLECTIVE_OP = 24,
    FI_TYPE_HMEM_IFACE = 25,
    FI_TYPE_CQ_FORMAT = 26,
    FI_TYPE_LOG_LEVEL = 27,
    FI_TYPE_LOG_SUBSYS = 28,
} }
