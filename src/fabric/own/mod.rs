//! What NICs that have connections of our own do alike: `tcp`, `host`, and `ofi` where libfabric connects endpoints
//! (verbs).

pub mod admission;
pub mod epoll;
pub mod pool;
pub mod routes;

use super::{Delivery, Limits, Resets};

/// The limits of NICs that our own workers serve, beside those of each.
pub const LIMITS: Limits = Limits {
    delivery: Delivery::Native,
    tx_depth: 512,
    rx_depth: 256,
    vector: 1,
    failures_reset: false,
    reconnects: false,
    resets: Resets::Never,
    message_max: 0,
    virtual_addresses: true,
    grants: true,
    revokes: true,
    local_registration: false,
    immediate_max: u64::MAX,
    arrival_room: None,
    lane_window: 4 << 20,
    rail_window: 64 << 20,
};
