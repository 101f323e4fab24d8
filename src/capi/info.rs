//! What an endpoint and its rails are, and what they have done.

use super::args::{self, Sized32};
use super::endpoint::weft_endpoint;
use super::guard::{guard, output, text_out, with_endpoint};
use super::peer::weft_peer;
use super::status::weft_status;
use crate::calls::lane_info::LaneInfo;
use crate::calls::Endpoint;
use crate::transfer::tally;
use crate::worker::core::RailInfo;
use std::ffi::c_char;

/// What an endpoint is. Filled by `weft_endpoint_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_endpoint_properties {
    pub size: u32,
    pub rails: u32,
    /// Worker threads; 0 with manual progress.
    pub workers: u32,
    pub peers: u32,
    /// Random, and different for every endpoint ever opened.
    pub incarnation: u64,
    /// Version and path of libfabric; "" if it was not
    /// needed or is not there.
    pub libfabric: [c_char; 256],
}

// SAFETY: the struct has only integers and arrays of integers, for which zero is valid.
unsafe impl Sized32 for weft_endpoint_properties {}

/// What a rail is. Filled by `weft_rail_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_rail_properties {
    pub size: u32,
    /// The worker that drives it, from 0.
    pub worker: u32,
    /// "host", "tcp", or the libfabric provider, as "verbs".
    pub fabric: [c_char; 64],
    /// The network interface, or libfabric's domain, as "eth0".
    pub name: [c_char; 64],
    /// As "10.0.0.7:4711"; "" if it has none.
    pub address: [c_char; 128],
    /// -1 if not known.
    pub numa_node: i32,
    /// PCI address, as "0000:53:00.0"; "" if it has none.
    pub pci: [c_char; 32],
}

// SAFETY: the struct has only integers and arrays of integers, for which zero is valid.
unsafe impl Sized32 for weft_rail_properties {}

pub const WEFT_STATISTICS_STATUSES: usize = 96;
pub const WEFT_STATISTICS_BUCKETS: usize = 40;

const _: () = assert!(WEFT_STATISTICS_STATUSES == tally::STATUSES);
const _: () = assert!(WEFT_STATISTICS_BUCKETS == tally::BUCKETS);

/// What an endpoint has done since it was opened. All but `peers`, `active` and
/// `grants` only grow; an operation counts before its completion can be polled.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_endpoint_statistics {
    pub size: u32,
    pub peers: u32,
    /// Operations that have not ended. It is summed up while others begin and
    /// end, so it may be some too high: count completions to know.
    pub active: u64,
    /// Operations that were accepted; a list counts once per completion.
    pub writes: u64,
    pub reads: u64,
    pub sends: u64,
    pub atomics: u64,
    pub expects: u64,
    pub fences: u64,
    pub bytes_written: u64,
    pub bytes_read: u64,
    pub bytes_sent: u64,
    /// Sends that ended with `WEFT_OK`; notifications that arrived with
    /// transfers.
    pub messages_sent: u64,
    pub notifications_sent: u64,
    pub messages_received: u64,
    pub bytes_received: u64,
    pub notifications_received: u64,
    /// Frames dropped as malformed, or of peers that have ended.
    pub frames_dropped: u64,
    /// Operations that have ended, by status: `completions[-status]`; with
    /// `active`, all that were accepted.
    pub completions: [u64; WEFT_STATISTICS_STATUSES],
    /// Times of writes and reads that succeeded, from submission: [i] counts
    /// 2^i to 2^(i + 1) ns, the last all longer ones.
    pub latency: [u64; WEFT_STATISTICS_BUCKETS],
    pub latency_sum_ns: u64,
    /// Handshakes and connections that were rejected.
    pub handshakes_rejected: u64,
    /// The longest pass of a worker thread, in its own CPU time; 0: none has
    /// taken 0.5 ms, or progress is manual.
    pub pass_longest_ns: u64,
    /// The longest call into a driver, which passes leave out.
    pub driver_call_longest_ns: u64,
    /// Grants of this endpoint's memory that peers may use now. Since 0.3.
    pub grants: u64,
}

// SAFETY: the struct has only integers and arrays of integers, for which zero is valid.
unsafe impl Sized32 for weft_endpoint_statistics {}

/// What a rail has done since it was opened, by this endpoint's own writes and
/// reads. "Now" is up to some ms ago.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_rail_statistics {
    pub size: u32,
    /// 1 while it is open and its NIC has a link, 0 once the endpoint has shut down.
    pub up: u32,
    /// Rails of peers that it reaches now; those with bytes in flight that have
    /// taken none for 20 ms.
    pub lanes: u32,
    pub lanes_stalled: u32,
    /// Bytes delivered.
    pub bytes_written: u64,
    pub bytes_read: u64,
    /// Slices of these: pages, or pieces of large ones.
    pub slices_written: u64,
    pub slices_read: u64,
    pub posts: u64,
    /// Posts for which the NIC had no room (EAGAIN); each was retried.
    pub posts_refused: u64,
    pub errors: u64,
    /// Handshakes sent again for lack of an answer.
    pub retries: u64,
    /// Control frames: handshakes, messages,
    /// notifications, acknowledgements.
    pub frames_sent: u64,
    pub frames_received: u64,
    /// Bytes and posts that are in flight now.
    pub inflight_bytes: u64,
    pub inflight_posts: u64,
    /// Recent rate of its fastest lane while it had work; 0: not measured.
    pub bytes_per_s: u64,
    /// The shortest time from post to delivery; 0: not measured.
    pub round_trip_ns: u64,
    /// Lanes that served a peer and were reset, and lanes that came up again.
    /// Since 0.3.
    pub lane_resets: u64,
    pub lane_reconnects: u64,
    /// The NIC's link, as the kernel reports it: "up", "down" or "removed" (its
    /// device is gone, or was reset, until one of its name is open). Since 0.3.
    pub link: [c_char; 16],
}

// SAFETY: the struct has only integers and arrays of integers, for which zero is valid.
unsafe impl Sized32 for weft_rail_statistics {}

/// A lane: one of our rails and one of a peer's, and what it has done since the
/// peer was connected, also before it was reset. Filled by `weft_lane_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_lane_statistics {
    pub size: u32,
    /// Our rail, for `weft_rail_info`, and the peer's, by its own count.
    pub rail: u32,
    pub remote_rail: u32,
    /// 1 while it carries operations.
    pub up: u32,
    /// "handshake", "probe" (its first write is in flight), "up", "stalled" (up,
    /// and bytes in flight that have not moved for 20 ms) or "down" (reset, or not
    /// reached; it may return).
    pub state: [c_char; 16],
    /// The peer's rail, as "10.1.0.7:4711"; "" if it has none.
    pub remote_address: [c_char; 128],
    /// Bytes of this endpoint's own writes and reads that were delivered. What the
    /// peer writes and reads here is not in them: NICs with RDMA do that without
    /// the CPU.
    pub bytes_written: u64,
    pub bytes_read: u64,
    /// tcp: all bytes that the system has sent and got acknowledged, and received:
    /// both sides' writes, reads and messages, with their headers. 0 on other
    /// fabrics, where nobody counts them.
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// tcp: segments that the system has sent again. 0 on other fabrics.
    pub retransmits: u64,
    /// tcp: the system's present estimate, from what this side sends: where it only
    /// answers, that says little, and the side that writes has the better one. On
    /// other fabrics, the shortest time from post to delivery. 0: not measured, or
    /// not up.
    pub round_trip_ns: u64,
    /// Recent rate of `bytes_written` and `bytes_read` while it had work; 0: not
    /// measured, or not up. A rate over time is the difference of two looks.
    pub bytes_per_s: u64,
    /// Bytes of `bytes_written` and `bytes_read` that are in flight now.
    pub inflight_bytes: u64,
    /// How often it served and was reset, and how often it came up again.
    pub resets: u64,
    pub reconnects: u64,
    /// tcp: the two ends of the connection that carries what this endpoint writes
    /// and reads, as `ss -ti` shows them: "10.1.0.5:41234". "": not up, or another
    /// fabric.
    pub connection_local: [c_char; 64],
    pub connection_remote: [c_char; 64],
}

// SAFETY: the struct has only integers and arrays of integers, for which zero is valid.
unsafe impl Sized32 for weft_lane_statistics {}

/// Fills in what an endpoint is, and what it has done; `properties` or
/// `statistics` may be NULL. The figures are not of one moment.
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
            args::fill_both(
                properties,
                statistics,
                || {
                    let mut filled: weft_endpoint_properties = args::zeroed();
                    filled.rails = ep.rails().len() as u32;
                    filled.workers = ep.worker_threads();
                    filled.peers = ep.connected_peers();
                    filled.incarnation = ep.incarnation();
                    args::text(&mut filled.libfabric, ep.libfabric());
                    filled
                },
                || of_endpoint(ep),
            )
        })
    })
}

/// Fills in what rail `index` (0 to `rails - 1`) is, and what it has done;
/// otherwise as `weft_endpoint_info`. Errors: `WEFT_ERR_RANGE` (no such rail).
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
            args::fill_both(
                properties,
                statistics,
                || {
                    let mut filled: weft_rail_properties = args::zeroed();
                    filled.worker = rail.worker as u32;
                    args::text(&mut filled.fabric, &rail.fabric);
                    args::text(&mut filled.name, &rail.name);
                    args::text(&mut filled.address, &ep.rail_address(index));
                    filled.numa_node = rail.node.and_then(|node| node.try_into().ok()).unwrap_or(-1);
                    let pci = rail.pci.map(|pci| pci.to_string());
                    args::text(&mut filled.pci, &pci.unwrap_or_default());
                    filled
                },
                || of_rail(rail),
            )
        })
    })
}

/// Fills in lane `index` of a peer, from 0. Its index stays while the peer is up;
/// lanes are added when rails meet that had none. Only lanes over the fabric that
/// serves the peer; until one does, over all. Does not wait for a worker: the
/// system is asked on this thread, and state, rate and bytes in flight are up to
/// some ms old. A peer that has ended keeps its last counts until its PEER_DOWN
/// was polled. Errors: `WEFT_ERR_RANGE` (no such lane: the loop over them ends),
/// `WEFT_ERR_HANDLE` (no such peer). Since 0.3.
///
/// # Safety
/// The struct must be valid for its `size` bytes.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_lane_info(
    endpoint: *const weft_endpoint,
    peer: weft_peer,
    index: u32,
    statistics: *mut weft_lane_statistics,
) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| args::fill(statistics, of_lane(&ep.lane(peer, index)?))))
}

/// Writes all that is counted as text for Prometheus; docs/metrics.md has the
/// names. Meant for every second. `buffer`, `capacity`, `len`, errors: as in
/// `weft_topology`.
///
/// # Safety
/// `buffer` must be valid for `capacity` bytes, `len` valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_endpoint_metrics(
    endpoint: *const weft_endpoint,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> weft_status {
    guard(|| {
        let len = output(len, "len")?;
        with_endpoint(endpoint, |ep| text_out(&ep.metrics(), buffer, capacity, &len))
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
        frames_dropped: ep.malformed(),
        completions: sum.completions,
        latency: sum.latency,
        latency_sum_ns: sum.latency_sum_ns,
        handshakes_rejected: ep.handshakes_rejected(),
        pass_longest_ns,
        driver_call_longest_ns,
        grants: ep.live_grants(),
    }
}

fn of_rail(rail: &RailInfo) -> weft_rail_statistics {
    let traffic = &rail.traffic;
    let (lanes, lanes_stalled) = traffic.lanes();
    let mut filled: weft_rail_statistics = args::zeroed();
    args::text(&mut filled.link, traffic.link());
    weft_rail_statistics {
        up: u32::from(traffic.is_up()),
        lanes,
        lanes_stalled,
        bytes_written: traffic.carried(false).0,
        bytes_read: traffic.carried(true).0,
        slices_written: traffic.carried(false).1,
        slices_read: traffic.carried(true).1,
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
        lane_resets: traffic.lane_resets.get(),
        lane_reconnects: traffic.lane_reconnects.get(),
        ..filled
    }
}

fn of_lane(lane: &LaneInfo) -> weft_lane_statistics {
    let LaneInfo { plan, address, traffic, seen, ends } = lane;
    let (state, up) = traffic.state();
    let mut filled: weft_lane_statistics = args::zeroed();
    args::text(&mut filled.state, state);
    args::text(&mut filled.remote_address, address);
    if let Some((local, remote)) = ends {
        args::text(&mut filled.connection_local, &local.to_string());
        args::text(&mut filled.connection_remote, &remote.to_string());
    }
    weft_lane_statistics {
        rail: plan.rail.get().into(),
        remote_rail: plan.remote_rail.get().into(),
        up: u32::from(up),
        bytes_written: traffic.moved(false),
        bytes_read: traffic.moved(true),
        bytes_sent: seen.bytes_sent,
        bytes_received: seen.bytes_received,
        retransmits: seen.retransmits,
        round_trip_ns: seen.round_trip_ns,
        bytes_per_s: traffic.bytes_per_s.get(),
        inflight_bytes: traffic.inflight_bytes.get(),
        resets: traffic.resets.get(),
        reconnects: traffic.reconnects.get(),
        ..filled
    }
}
