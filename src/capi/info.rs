//! What an endpoint and its rails are, and what they have done.

use super::config;
use super::endpoint::weft_endpoint;
use super::guard::{guard, with_endpoint};
use super::status::weft_status;
use crate::endpoint::core::RailInfo;
use crate::endpoint::Endpoint;
use crate::transfer::tally;
use std::ffi::c_char;

/// What an endpoint has. Filled by `weft_endpoint_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_endpoint_properties {
    /// `sizeof(weft_endpoint_properties)`, set by the caller.
    pub size: u32,
    /// Rails that are open.
    pub rails: u32,
    /// Worker threads; 0 with manual progress.
    pub workers: u32,
    /// Connected peers.
    pub peers: u32,
    /// Random, and different for every endpoint that was ever opened.
    pub incarnation: u64,
    /// Version and path of libfabric, as "1.17 /usr/lib/.../libfabric.so.1"; ""
    /// where it was not needed ("host" and "tcp" alone), or is not there.
    pub libfabric: [c_char; 256],
}

/// What a rail is. Filled by `weft_rail_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_rail_properties {
    /// `sizeof(weft_rail_properties)`, set by the caller.
    pub size: u32,
    /// The worker that drives it, from 0.
    pub worker: u32,
    /// "host", "tcp", or the libfabric provider, as "verbs;ofi_rxm".
    pub fabric: [c_char; 64],
    /// The NIC: the network interface, or libfabric's domain, as "eth0" or "rdmap16s27-rdm".
    pub name: [c_char; 64],
    /// The NIC's address in readable form, as "10.0.0.7:4711"; "" if it has none.
    pub address: [c_char; 128],
    /// The NUMA node that the NIC is on; -1 if that is not known.
    pub numa_node: i32,
    /// The NIC's PCI address, as "0000:53:00.0"; "" if it has none or that is not
    /// known.
    pub pci: [c_char; 32],
}

/// Places of `completions` in `weft_endpoint_statistics`.
pub const WEFT_STATISTICS_STATUSES: usize = 96;
/// Places of `latency` in `weft_endpoint_statistics`.
pub const WEFT_STATISTICS_BUCKETS: usize = 40;

const _: () = assert!(WEFT_STATISTICS_STATUSES == tally::STATUSES);
const _: () = assert!(WEFT_STATISTICS_BUCKETS == tally::BUCKETS);

/// What an endpoint has done since it was opened. Filled by
/// `weft_endpoint_info`. All but `peers` and `active` only grow (an operation that
/// is refused while its peer ends may count for a moment). An operation counts
/// before its completion can be polled; a list counts as often as it has completions.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_endpoint_statistics {
    /// `sizeof(weft_endpoint_statistics)`, set by the caller.
    pub size: u32,
    /// Peers that are connected now.
    pub peers: u32,
    /// Operations that are outstanding now.
    pub active: u64,
    /// Operations that were accepted: writes, reads, sends, atomics,
    /// `weft_counter_expect`s and `weft_peer_fence`s. A list counts once for each completion that it has:
    /// with `WEFT_COMPLETE_EACH_PEER` once for each peer.
    pub writes: u64,
    pub reads: u64,
    pub sends: u64,
    pub atomics: u64,
    pub expects: u64,
    pub fences: u64,
    /// Bytes of those that ended with `WEFT_OK`.
    pub bytes_written: u64,
    pub bytes_read: u64,
    pub bytes_sent: u64,
    /// Sends that ended with `WEFT_OK`, and notifications that arrived with
    /// transfers, of a list one for each peer.
    pub messages_sent: u64,
    pub notifications_sent: u64,
    /// Messages of peers that came into the endpoint's queue, and their bytes.
    pub messages_received: u64,
    pub bytes_received: u64,
    /// Notifications of peers that came into the endpoint's queue.
    pub notifications_received: u64,
    /// Frames that were dropped because they made no sense: of a program that is
    /// not Weft, or of peers that have ended.
    pub frames_dropped: u64,
    /// Operations that have ended, by their status: `completions[-status]`, so
    /// [0] counts `WEFT_OK`, [20] `WEFT_ERR_TIMED_OUT`. With `active`, they add up
    /// to `writes`, `reads`, `sends`, `atomics`, `expects` and `fences`.
    pub completions: [u64; WEFT_STATISTICS_STATUSES],
    /// How long writes and reads that ended with `WEFT_OK` took from submission to
    /// completion, as a histogram: [i] counts those of 2^i ns up to but not including
    /// 2^(i + 1) ns; [0] also those of 0 ns, the last all longer ones.
    pub latency: [u64; WEFT_STATISTICS_BUCKETS],
    /// Nanoseconds that all of these took together.
    pub latency_sum_ns: u64,
    /// Handshakes that were rejected: meant for another endpoint, of another wire
    /// version, without proof of the `secret`, or from more unauthenticated endpoints at
    /// once than are admitted (256, and at most half of `max_peers`); and those that
    /// began one and did not go on in time. Over tcp also connections that name no NIC
    /// of this endpoint, or prove no secret to encrypt by.
    pub strangers_refused: u64,
    /// The longest pass of a worker thread, of what it does at one go before it looks at
    /// deadlines again, in nanoseconds of its thread's own time; 0: none has taken 0.5 ms,
    /// or progress is manual. Without calls into drivers that take long by themselves
    /// (registering memory, opening other processes' device memory).
    pub pass_longest_ns: u64,
    /// The longest of these calls, in nanoseconds.
    pub driver_call_longest_ns: u64,
}

/// What a rail has done since it was opened. Filled by `weft_rail_info`. It is
/// about this endpoint's own writes and reads: what peers write here or read from
/// here counts at the peer.
///
/// Counters only grow, and count before the operation's completion can be polled.
/// What says "now" is how it was when the rail's worker last looked, up to some
/// milliseconds ago (with manual progress: when somebody polled last).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_rail_statistics {
    /// `sizeof(weft_rail_statistics)`, set by the caller.
    pub size: u32,
    /// 1 while it is open, 0 once the endpoint has shut down.
    pub up: u32,
    /// Rails of peers that it reaches now, and of these the ones that have bytes in
    /// flight and have not taken any for 20 ms.
    pub lanes: u32,
    pub lanes_stalled: u32,
    /// Bytes that it has carried: delivered, or (of device memory that goes through
    /// the host) written to the peer's staging memory.
    pub bytes_written: u64,
    pub bytes_read: u64,
    /// Slices of these: pages, or pieces of large ones.
    pub slices_written: u64,
    pub slices_read: u64,
    /// The posts that carried them.
    pub posts: u64,
    /// Posts for which the NIC, or the peer's connection, had no room (EAGAIN);
    /// each was tried again later.
    pub posts_refused: u64,
    /// Posts and receives that failed.
    pub errors: u64,
    /// What was sent again because nobody answered: greetings of peers.
    pub retries: u64,
    /// Control frames: greetings, messages, notifications, acknowledgements.
    pub frames_sent: u64,
    pub frames_received: u64,
    /// Bytes and posts that are in flight now.
    pub inflight_bytes: u64,
    pub inflight_posts: u64,
    /// Bytes per second that were delivered of late while there was something to
    /// carry, by its fastest lane; 0: not measured yet.
    pub bytes_per_s: u64,
    /// The shortest time from a post to its delivery that its lanes have seen, in
    /// nanoseconds; 0: not measured yet.
    pub round_trip_ns: u64,
}

/// Fills in what an endpoint is, and what it has done.
///
/// `properties`, `statistics`: NULL for what is not wanted, but not both; `size`
/// of each is set by the caller. The figures are not of one moment: others work
/// meanwhile.
///
/// Any thread; does not block. Errors: `WEFT_ERR_INVALID`, `WEFT_ERR_HANDLE`.
/// Since 0.1.
///
/// # Safety
/// The structs must be NULL or valid for their `size` bytes.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_endpoint_info(
    endpoint: *const weft_endpoint,
    properties: *mut weft_endpoint_properties,
    statistics: *mut weft_endpoint_statistics,
) -> weft_status {
    guard(|| {
        with_endpoint(endpoint, |ep| {
            config::fill_both(
                (properties, statistics),
                || {
                    let mut filled: weft_endpoint_properties = config::zeroed();
                    filled.rails = ep.rails().len() as u32;
                    filled.workers = ep.worker_threads();
                    filled.peers = ep.connected_peers();
                    filled.incarnation = ep.incarnation();
                    config::text(&mut filled.libfabric, ep.libfabric());
                    filled
                },
                || of_endpoint(ep),
            )
        })
    })
}

/// Fills in what rail `index` is, and what it has done: from 0 to `rails - 1` of
/// `weft_endpoint_properties`.
///
/// `properties`, `statistics`: as in `weft_endpoint_info`. Any thread; does not
/// block. Errors: `WEFT_ERR_RANGE` (no such rail), `WEFT_ERR_INVALID`,
/// `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// The structs must be NULL or valid for their `size` bytes.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_rail_info(
    endpoint: *const weft_endpoint,
    index: u32,
    properties: *mut weft_rail_properties,
    statistics: *mut weft_rail_statistics,
) -> weft_status {
    guard(|| {
        with_endpoint(endpoint, |ep| {
            let rail = ep.rail(index)?;
            config::fill_both(
                (properties, statistics),
                || {
                    let mut filled: weft_rail_properties = config::zeroed();
                    filled.worker = rail.worker as u32;
                    config::text(&mut filled.fabric, &rail.fabric);
                    config::text(&mut filled.name, &rail.name);
                    config::text(&mut filled.address, &rail.address);
                    filled.numa_node = rail.node.and_then(|node| node.try_into().ok()).unwrap_or(-1);
                    let pci = rail.pci.map(|pci| pci.to_string());
                    config::text(&mut filled.pci, &pci.unwrap_or_default());
                    filled
                },
                || of_rail(rail),
            )
        })
    })
}

fn of_endpoint(ep: &Endpoint) -> weft_endpoint_statistics {
    let sum = ep.tally();
    let (pass_longest_ns, driver_call_longest_ns) = ep.longest_pass();
    weft_endpoint_statistics {
        size: 0,
        peers: ep.connected_peers(),
        active: sum.active(),
        writes: sum.writes,
        reads: sum.reads,
        sends: sum.sends,
        atomics: sum.atomics,
        expects: sum.expects,
        fences: sum.fences,
        bytes_written: sum.bytes_written,
        bytes_read: sum.bytes_read,
        bytes_sent: sum.bytes_sent,
        messages_sent: sum.messages_sent,
        notifications_sent: sum.notifications_sent,
        messages_received: sum.messages_received,
        bytes_received: sum.bytes_received,
        notifications_received: sum.notifications_received,
        frames_dropped: ep.rubbish(),
        completions: sum.completions,
        latency: sum.latency,
        latency_sum_ns: sum.latency_sum_ns,
        strangers_refused: ep.strangers_refused(),
        pass_longest_ns,
        driver_call_longest_ns,
    }
}

fn of_rail(rail: &RailInfo) -> weft_rail_statistics {
    let traffic = &rail.traffic;
    let (lanes, lanes_stalled) = traffic.lanes();
    weft_rail_statistics {
        size: 0,
        up: u32::from(!traffic.is_closed()),
        lanes,
        lanes_stalled,
        bytes_written: traffic.written.bytes.get(),
        bytes_read: traffic.read.bytes.get(),
        slices_written: traffic.written.slices.get(),
        slices_read: traffic.read.slices.get(),
        posts: traffic.posts.get(),
        posts_refused: traffic.refused.get(),
        errors: traffic.errors.get(),
        retries: traffic.retries.get(),
        frames_sent: traffic.frames_sent.get(),
        frames_received: traffic.frames_received.get(),
        inflight_bytes: traffic.inflight_bytes.get(),
        inflight_posts: traffic.inflight_ops.get(),
        bytes_per_s: traffic.bytes_per_s.get(),
        round_trip_ns: traffic.round_trip_ns.get(),
    }
}
