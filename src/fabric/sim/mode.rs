//! The providers that sim imitates: what each offers, requires and does.

use libfabric_sys::*;
use std::ffi::c_int;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Like {
    Tcp,
    Efa,
    EfaDirect,
    Verbs,
}

/// The properties in which providers differ.
pub struct Mode {
    pub name: &'static str,
    /// Writes of one route land in the order of posting.
    pub ordered: bool,
    /// Messages arrive in order.
    pub ordered_messages: bool,
    /// The target's own progress serves writes and reads.
    pub target_serves: bool,
    pub delivery_complete: bool,
    pub mr_mode: c_int,
    /// Mode bits required of the caller: `FI_CONTEXT2`, `FI_RX_CQ_DATA`.
    pub mode: u64,
    pub cq_data: usize,
    pub auto_progress: bool,
    /// The NIC reaches device memory, and also registers it by DMA-BUF. (efa does not: as with an
    /// old rdma-core or kernel.)
    pub hmem: bool,
    pub dmabuf: bool,
    /// The most operations that wait for a peer's first answer.
    pub before_handshake: Option<usize>,
    /// Errors of the completion queue name the operation.
    pub errors_have_flags: bool,
    /// Two NICs share a connection, which ends when one of them removes the other's address;
    /// otherwise removal ends nothing.
    pub connects: bool,
    /// NICs have connections that separate calls make and end (`connect`).
    pub connections: bool,
    /// Errors that belong to no operation go to an event queue, without which the provider ends the process.
    pub needs_events: bool,
    /// The errors for a peer that is gone, and for a refused key or range.
    pub gone: c_int,
    pub refused: c_int,
    /// How the latter is reported, with the provider's own number, if it differs.
    pub refused_as: Option<(c_int, c_int)>,
    /// The error for a peer that never existed.
    pub never_there: c_int,
}

const DEVICE: c_int = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

static TCP: Mode = Mode {
    name: "tcp",
    ordered: true,
    ordered_messages: true,
    target_serves: true,
    delivery_complete: false,
    mr_mode: 0,
    mode: 0,
    cq_data: 8,
    auto_progress: false,
    hmem: false,
    dmabuf: false,
    before_handshake: None,
    errors_have_flags: true,
    connects: true,
    connections: false,
    needs_events: false,
    gone: FI_ECONNRESET,
    refused: FI_ECANCELED,
    refused_as: None,
    never_there: FI_ECONNREFUSED,
};

static EFA: Mode = Mode {
    name: "efa",
    ordered: false,
    ordered_messages: true,
    target_serves: false,
    delivery_complete: true,
    mr_mode: DEVICE,
    mode: 0,
    cq_data: 4,
    auto_progress: false,
    hmem: true,
    dmabuf: false,
    before_handshake: Some(16),
    errors_have_flags: true,
    connects: false,
    connections: false,
    needs_events: true,
    gone: FI_ENOTCONN,
    refused: FI_EREMOTEIO,
    refused_as: Some((FI_EINVAL, 7)),
    never_there: FI_EHOSTUNREACH,
};

static EFA_DIRECT: Mode = Mode {
    name: "efa-direct",
    ordered: false,
    ordered_messages: false,
    target_serves: false,
    delivery_complete: false,
    mr_mode: DEVICE | FI_MR_LOCAL,
    mode: FI_CONTEXT2 | FI_RX_CQ_DATA,
    cq_data: 4,
    auto_progress: true,
    hmem: true,
    dmabuf: true,
    before_handshake: None,
    errors_have_flags: true,
    connects: false,
    connections: false,
    needs_events: false,
    gone: FI_ENOTCONN,
    refused: FI_EREMOTEIO,
    refused_as: Some((FI_EINVAL, 7)),
    never_there: FI_EHOSTUNREACH,
};

static VERBS: Mode = Mode {
    name: "verbs",
    ordered: true,
    ordered_messages: true,
    target_serves: false,
    delivery_complete: true,
    mr_mode: DEVICE | FI_MR_LOCAL,
    mode: FI_RX_CQ_DATA,
    cq_data: 4,
    auto_progress: false,
    hmem: true,
    dmabuf: true,
    before_handshake: None,
    errors_have_flags: false,
    connects: false,
    connections: true,
    needs_events: false,
    gone: FI_ECANCELED,
    refused: FI_EIO,
    refused_as: None,
    never_there: FI_ECONNREFUSED,
};

impl Like {
    pub fn mode(self) -> &'static Mode {
        match self {
            Like::Tcp => &TCP,
            Like::Efa => &EFA,
            Like::EfaDirect => &EFA_DIRECT,
            Like::Verbs => &VERBS,
        }
    }

    pub fn name(self) -> &'static str {
        self.mode().name
    }

    pub fn named(name: &str) -> Option<Like> {
        [Like::Tcp, Like::Efa, Like::EfaDirect, Like::Verbs].into_iter().find(|like| like.name() == name)
    }
}

impl Mode {
    pub fn has(&self, mr_mode: c_int) -> bool {
        self.mr_mode & mr_mode != 0
    }

    /// How an error is reported: its number, and the provider's own.
    pub fn reported(&self, errno: c_int) -> (c_int, c_int) {
        self.refused_as.filter(|_| errno == self.refused).unwrap_or((errno, errno))
    }

    pub fn msg_order(&self) -> u64 {
        let sas = if self.ordered_messages { FI_ORDER_SAS } else { 0 };
        let waw = if self.ordered { FI_ORDER_WAW | FI_ORDER_RMA_WAW } else { 0 };
        let saw = if self.ordered && self.ordered_messages { FI_ORDER_SAW } else { 0 };
        sas | waw | saw
    }
}
