//! What a provider's NICs can do, and the quirks of each.

use super::connections::has_connections;
use super::discover::{ListedNic, DMABUFS};
use crate::fabric::{Delivery, Limits, Resets};
use libfabric_sys::*;

/// A frame must fit into the largest message that every provider sends without a rendezvous.
const MESSAGE_MAX: usize = 8192;
/// The most operations in flight on a NIC.
const TX_DEPTH: usize = 512;
const RX_DEPTH: usize = 256;
/// Eight 64 KiB pages fill a loopback connection (measured); twice that, and two pieces of a large
/// page, cost nothing extra.
const LANE_WINDOW: u64 = 1 << 20;
const RAIL_WINDOW: u64 = 8 << 20;

/// # Safety
/// The entry's info must be valid.
pub unsafe fn limits(entry: &ListedNic) -> (Limits, i32) {
    // SAFETY: libfabric fills in every part of an info that it returns.
    unsafe {
        let info = entry.info();
        let (tx, rx, ep, domain) =
            (&*(*info).tx_attr, &*(*info).rx_attr, &*(*info).ep_attr, &*(*info).domain_attr);
        let order = tx.msg_order & rx.msg_order;
        let ordered = order & (FI_ORDER_WAW | FI_ORDER_RMA_WAW) != 0;
        // Completions of verbs are acknowledgements from the target's NIC.
        let connections = has_connections(info);
        let native = entry.delivers || connections;
        let delivery = if native { Delivery::Native } else { Delivery::Each };
        let is_sim_of_tcp = entry.provider.starts_with("sim:like=tcp:");
        let in_software = is_rxm(&entry.provider) || is_sim_of_tcp;
        let depth = |size: usize, ours: usize| if size == 0 { ours } else { size.min(ours) };
        let limits = Limits {
            delivery,
            tx_depth: depth(tx.size, TX_DEPTH),
            rx_depth: depth(rx.size, RX_DEPTH),
            // tcp closes the connection, and verbs' queue pair stops; simulated NICs continue.
            failures_reset: connections || ordered && !entry.provider.starts_with("sim"),
            reconnects: true,
            // (ofi_rxm over tcp would, but 1.17 crashes when a connection is closed over which it
            // receives the answer to a read. On EFA, removing an address ends nothing, and closing an endpoint of the
            // fabric `efa` may wait for peers.)
            resets: match entry.delivers {
                _ if connections || is_sim_of_tcp => Resets::Lane,
                true => Resets::Rail,
                false => Resets::Never,
            },
            vector: 1,
            message_max: ep.max_msg_size.min(MESSAGE_MAX),
            virtual_addresses: domain.mr_mode & FI_MR_VIRT_ADDR != 0,
            grants: false,
            revokes: true,
            local_registration: domain.mr_mode & FI_MR_LOCAL != 0,
            immediate_max: if is_rxm(&entry.provider) || domain.cq_data_size < size_of::<u32>() {
                0
            } else {
                ep.max_msg_size as u64
            },
            // ofi_rxm and a simulated tcp queue in software, without limit. Over connections
            // each arrival uses a receive: without one, everything on its connection waits.
            arrival_room: match connections {
                true => Some(depth(rx.size, RX_DEPTH) as u32 / 2),
                false => (!in_software).then_some(0),
            },
            lane_window: LANE_WINDOW,
            rail_window: RAIL_WINDOW,
        };
        (limits, domain.mr_mode)
    }
}

/// Whether ofi_rxm is above the NIC. Such writes carry no immediates: over tcp, a connection that
/// ends in the middle of a write with an immediate crashes the receiving process, because ofi_rxm
/// reads the context of tcp's error, which has none (1.17 to 2.1).
fn is_rxm(provider: &str) -> bool {
    provider.ends_with(";ofi_rxm")
}

/// Whether a provider understands FI_MR_DMABUF: others would take the struct for an address.
pub fn takes_dmabufs(entry: &ListedNic) -> bool {
    let reads = ["efa", "verbs", "sim:"].iter().any(|name| entry.provider.starts_with(name));
    reads && entry.source().version() >= DMABUFS
}
