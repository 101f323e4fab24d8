//! Properties and statistics of an endpoint, its rails, peers and memories.

use super::endpoint::Endpoint;
use super::ids::Peer;
use super::memory::Memory;
use super::names::in_rust;
use crate::calls::lane_info::LaneInfo;
use crate::calls::preview::preview;
use crate::fork;
use crate::status::{Result, Status};
use crate::wire::address::{DOES_ATOMICS, DOES_DURABLE};
use std::net::SocketAddr;

/// The properties of an endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EndpointInfo {
    /// Rails, from 0.
    pub rails: u32,
    /// Worker threads; 0 with manual progress.
    pub workers: u32,
    /// Peers that are up.
    pub peers: u32,
    /// Random, and different for every endpoint ever opened.
    pub incarnation: u64,
    /// Version and path of libfabric; empty if it was not needed or is not there.
    pub libfabric: String,
}

/// The statistics of an endpoint since it was opened. All but `peers`, `active` and `grants` only grow; an
/// operation counts before its completion can be polled. The values are not from one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EndpointStatistics {
    /// Peers that are up.
    pub peers: u32,
    /// Operations that have not ended. It is summed up while others begin and end, so it may be some too high: count
    /// completions to know.
    pub active: u64,
    /// Writes that were accepted; a list counts once per completion.
    pub writes: u64,
    /// Reads that were accepted.
    pub reads: u64,
    /// Sends that were accepted.
    pub sends: u64,
    /// Atomics that were accepted.
    pub atomics: u64,
    /// Waits for counters that were accepted.
    pub expects: u64,
    /// Fences and revokes that were accepted.
    pub fences: u64,
    /// Bytes of writes that succeeded.
    pub bytes_written: u64,
    /// Bytes of reads that succeeded.
    pub bytes_read: u64,
    /// Bytes of sends that succeeded.
    pub bytes_sent: u64,
    /// Sends that succeeded.
    pub messages_sent: u64,
    /// Notifications that arrived with transfers of ours.
    pub notifications_sent: u64,
    /// Messages that arrived here.
    pub messages_received: u64,
    /// Bytes of these.
    pub bytes_received: u64,
    /// Notifications that arrived here.
    pub notifications_received: u64,
    /// Frames dropped as malformed, or of peers that have ended.
    pub frames_dropped: u64,
    /// Operations that have ended, by status: `completions[-code]`.
    pub completions: Vec<u64>,
    /// Times of writes and reads that succeeded, from submission: `[i]` counts 2^i to 2^(i + 1) ns, the last all
    /// longer ones.
    pub latency: Vec<u64>,
    /// The sum of these times.
    pub latency_sum_ns: u64,
    /// Handshakes and connections that were rejected.
    pub handshakes_rejected: u64,
    /// Grants of this endpoint's memory that peers may use now.
    pub grants: u64,
}

/// The properties of a rail.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RailInfo {
    /// The worker that drives it, from 0.
    pub worker: u32,
    /// `host`, `tcp`, or the libfabric provider, as `verbs`.
    pub fabric: String,
    /// The network interface, or libfabric's domain, as `eth0`.
    pub name: String,
    /// Such as `10.0.0.7:4711`; empty if it has none.
    pub address: String,
    /// Its NUMA node, if known.
    pub numa_node: Option<u32>,
    /// PCI address, as `0000:53:00.0`, if it has one.
    pub pci: Option<String>,
}

/// The statistics of a rail since it was opened, for this endpoint's own writes and reads. "Now" is
/// up to some ms ago.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RailStatistics {
    /// Whether it is open, and its NIC has a link.
    pub up: bool,
    /// Rails of peers that it reaches now.
    pub lanes: u32,
    /// Lanes with bytes in flight that have taken none for 20 ms.
    pub lanes_stalled: u32,
    /// Bytes delivered by writes.
    pub bytes_written: u64,
    /// Bytes delivered by reads.
    pub bytes_read: u64,
    /// Slices of writes: pages, or pieces of large ones.
    pub slices_written: u64,
    /// Slices of reads.
    pub slices_read: u64,
    /// Posts to the NIC.
    pub posts: u64,
    /// Posts that the NIC refused because it was full; each was retried.
    pub posts_refused: u64,
    /// Errors that the NIC reported.
    pub errors: u64,
    /// Handshakes sent again for lack of an answer.
    pub retries: u64,
    /// Control frames sent.
    pub frames_sent: u64,
    /// Control frames received.
    pub frames_received: u64,
    /// Bytes in flight now.
    pub inflight_bytes: u64,
    /// Posts in flight now.
    pub inflight_posts: u64,
    /// Recent rate of its fastest lane while it had work; 0: not measured.
    pub bytes_per_s: u64,
    /// The shortest time from post to delivery; 0: not measured.
    pub round_trip_ns: u64,
    /// Lanes that served a peer and were reset.
    pub lane_resets: u64,
    /// Lanes that came up again.
    pub lane_reconnects: u64,
    /// The NIC's link, as the kernel reports it: "up", "down" or "removed" (its device is gone, or was
    /// reset, until one of its name is open).
    pub link: &'static str,
}

/// A lane: one of our rails and one of a peer's, and what it has done since the peer was connected,
/// also before it was reset.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LaneStatistics {
    /// Our rail, for [`rail_info`](Endpoint::rail_info).
    pub rail: u32,
    /// The peer's rail, by its own count.
    pub remote_rail: u32,
    /// Whether it carries operations.
    pub up: bool,
    /// `handshake`, `probe` (its first write is in flight), `up`, `stalled` (up, and bytes in flight that
    /// have not moved for 20 ms) or `down` (reset, or not reached; it may return).
    pub state: &'static str,
    /// The peer's rail, as `10.1.0.7:4711`; empty if it has none.
    pub remote_address: String,
    /// Bytes of this endpoint's own writes that were delivered. What the peer writes and reads here is
    /// in neither of the two: NICs with RDMA do that without the CPU.
    pub bytes_written: u64,
    /// Bytes of this endpoint's own reads that were delivered.
    pub bytes_read: u64,
    /// tcp: all bytes that the system has sent and got acknowledged: both sides' writes, reads and
    /// messages, with their headers. 0 on other fabrics, where nobody counts them.
    pub bytes_sent: u64,
    /// tcp: all bytes that the system has received; otherwise as `bytes_sent`.
    pub bytes_received: u64,
    /// tcp: segments that the system has sent again. 0 on other fabrics.
    pub retransmits: u64,
    /// tcp: the system's present estimate, from what this side sends: where it only answers, that says little,
    /// and the side that writes has the better one. On other fabrics, the shortest time from post to
    /// delivery. 0: not measured, or not up.
    pub round_trip_ns: u64,
    /// Recent rate of `bytes_written` and `bytes_read` while it had work; 0: not measured, or not up. A rate
    /// over time is the difference of two looks.
    pub bytes_per_s: u64,
    /// Bytes of `bytes_written` and `bytes_read` that are in flight now.
    pub inflight_bytes: u64,
    /// How often it served and was reset.
    pub resets: u64,
    /// How often it came up again.
    pub reconnects: u64,
    /// tcp: the two ends of the connection that carries what this endpoint writes and reads, ours first, as
    /// `ss -ti` shows them. `None`: not up, or another fabric.
    pub connection: Option<(SocketAddr, SocketAddr)>,
}

/// The properties of a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PeerInfo {
    /// Whether it is up.
    pub up: bool,
    /// Lanes that are up: pairs of one of our rails and one of theirs.
    pub lanes: u32,
    /// Rails of ours that have a lane, by the NICs that carry: one in whose place another NIC carries does not count.
    pub local_rails: u32,
    /// Rails of theirs that have a lane.
    pub remote_rails: u32,
    /// Whether it supports [`fetch_add`](Endpoint::fetch_add) and
    /// [`compare_swap`](Endpoint::compare_swap).
    pub atomics: bool,
    /// Whether it does [`durable`](crate::OpOptions::durable) writes.
    pub durable: bool,
    /// The same as in the peer's [`EndpointInfo`].
    pub incarnation: u64,
    /// The fabric in use for this peer; empty until it is up.
    pub fabric: String,
    /// Why this fabric; of better ones, why not.
    pub reason: String,
    /// Of its first rail over this fabric, as `10.0.0.7:4711`.
    pub address: String,
}

/// The properties of a memory, and how its bytes move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemoryInfo {
    /// CUDA's number of the device, as this process sees it; `None`: host memory.
    pub device: Option<u64>,
    /// The rails that registered it, one bit each.
    pub rails: u64,
    /// NICs reach it by themselves.
    pub direct: bool,
    /// For device memory: its bytes go through host buffers of Weft's.
    pub staged: bool,
    /// For device memory: a GPU copies to and from GPU memory of peers on this host.
    pub shared: bool,
    /// In addition to `direct`: NICs know the memory by a DMA-BUF.
    pub dmabuf: bool,
}

impl Endpoint {
    /// The endpoint's properties.
    ///
    /// # Errors
    /// [`Internal`](crate::Status::Internal), [`Forked`](crate::Status::Forked).
    pub fn info(&self) -> Result<EndpointInfo> {
        self.shared().call(|ep| {
            Ok(EndpointInfo {
                rails: ep.rails().len() as u32,
                workers: ep.worker_threads(),
                peers: ep.connected_peers(),
                incarnation: ep.incarnation(),
                libfabric: ep.libfabric().to_owned(),
            })
        })
    }

    /// The endpoint's statistics.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// use libweft::OpOptions;
    /// let op = world.a.write(&world.local, 0, &world.remote, 0, 4096, &OpOptions::new())?;
    /// world.wait_a(op)?;
    /// let done = world.a.statistics()?;
    /// assert_eq!((done.writes, done.bytes_written, done.active), (1, 4096, 0));
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`info`](Endpoint::info).
    pub fn statistics(&self) -> Result<EndpointStatistics> {
        self.shared().call(|ep| {
            let sum = ep.tally();
            Ok(EndpointStatistics {
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
                completions: sum.completions.to_vec(),
                latency: sum.latency.to_vec(),
                latency_sum_ns: sum.latency_sum_ns,
                handshakes_rejected: ep.handshakes_rejected(),
                grants: ep.live_grants(),
            })
        })
    }

    /// All metrics, as text for Prometheus (text format 0.0.4).
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// assert!(world.a.metrics()?.contains("\nweft_peers 1\n"));
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`info`](Endpoint::info).
    pub fn metrics(&self) -> Result<String> {
        self.shared().call(|ep| Ok(ep.metrics()))
    }

    /// The properties of rail `index`.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// assert_eq!(world.a.rail_info(0)?.fabric, "host");
    /// assert!(world.a.rail_statistics(0)?.up);
    /// assert!(world.a.rail_info(1).is_err()); // It has no other.
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Range`](crate::Status::Range) (no such rail).
    pub fn rail_info(&self, index: u32) -> Result<RailInfo> {
        self.shared().call(|ep| {
            let rail = ep.rail(index)?;
            Ok(RailInfo {
                worker: rail.worker as u32,
                fabric: rail.fabric.clone(),
                name: rail.name.clone(),
                address: ep.rail_address(index),
                numa_node: rail.node,
                pci: rail.pci.map(|pci| pci.to_string()),
            })
        })
    }

    /// The statistics of rail `index`.
    ///
    /// # Errors
    /// The same as [`rail_info`](Endpoint::rail_info).
    pub fn rail_statistics(&self, index: u32) -> Result<RailStatistics> {
        self.shared().call(|ep| {
            let traffic = &ep.rail(index)?.traffic;
            let (lanes, lanes_stalled) = traffic.lanes();
            Ok(RailStatistics {
                up: traffic.is_up(),
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
                link: traffic.link(),
            })
        })
    }

    /// Why a peer ended or could not be reached, as text: the addresses that were tried, and what each answered. Known
    /// of the last 256 peers that ended, from the completion that says so; of one that is there, why its fabric serves
    /// it.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// assert!(world.a.peer_reason(world.a_to_b)?.contains("host"));
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Handle`](crate::Status::Handle) (no such peer).
    pub fn peer_reason(&self, peer: Peer) -> Result<String> {
        self.shared().call(|ep| ep.peer_reason(peer.id()))
    }

    /// The properties of a peer that has not ended.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// let peer = world.a.peer_info(world.a_to_b)?;
    /// assert!(peer.up && peer.atomics && peer.fabric == "host");
    /// assert_eq!(peer.incarnation, world.b.info()?.incarnation);
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Handle`](crate::Status::Handle) (its PEER_DOWN has been polled).
    pub fn peer_info(&self, peer: Peer) -> Result<PeerInfo> {
        let info = self.shared().call(|ep| ep.peer_info(peer.id()))?;
        Ok(PeerInfo {
            up: info.up,
            lanes: info.lanes,
            local_rails: info.local_rails,
            remote_rails: info.remote_rails,
            atomics: info.capabilities & DOES_ATOMICS != 0,
            durable: info.capabilities & DOES_DURABLE != 0,
            incarnation: info.incarnation,
            fabric: info.fabric,
            reason: info.reason,
            address: info.address,
        })
    }

    /// The lanes of a peer: only those over the fabric that serves it; until one does, over all. A peer that has ended
    /// keeps the last counts until its PEER_DOWN was polled.
    ///
    /// Does not wait for a worker: the system is asked on this thread, and state, rate and bytes in flight are up to
    /// some ms old. A lane's place in the list stays while the peer is up.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// use libweft::OpOptions;
    /// let op = world.a.write(&world.local, 0, &world.remote, 0, 4096, &OpOptions::new())?;
    /// world.wait_a(op)?;
    /// let lanes = world.a.lanes(world.a_to_b)?;
    /// assert!(lanes.len() == 1 && lanes[0].up && lanes[0].bytes_written == 4096);
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`peer_info`](Endpoint::peer_info).
    pub fn lanes(&self, peer: Peer) -> Result<Vec<LaneStatistics>> {
        self.shared().call(|ep| {
            let mut lanes = Vec::new();
            loop {
                match ep.lane(peer.id(), lanes.len() as u32) {
                    Err(error) if error.status == Status::Range => return Ok(lanes),
                    lane => lanes.push(of_lane(&lane?)),
                }
            }
        })
    }
}

fn of_lane(lane: &LaneInfo) -> LaneStatistics {
    let LaneInfo { plan, address, traffic, seen, ends } = lane;
    let (state, up) = traffic.state();
    LaneStatistics {
        connection: *ends,
        rail: plan.rail.get().into(),
        remote_rail: plan.remote_rail.get().into(),
        up,
        state,
        remote_address: address.clone(),
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
    }
}

impl Memory {
    /// The memory's properties, and how its bytes move.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// let info = world.local.info()?;
    /// assert!(info.direct && info.device.is_none());
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`Endpoint::info`].
    pub fn info(&self) -> Result<MemoryInfo> {
        self.shared.call(|_| {
            let memory = self.internal()?;
            let on_device = memory.place().is_some();
            Ok(MemoryInfo {
                device: memory.device().map(u64::from),
                rails: memory.known(),
                direct: !on_device || memory.is_direct(),
                staged: memory.is_staged(),
                shared: memory.is_shared(),
                dmabuf: memory.is_exported(),
            })
        })
    }
}

/// This machine's topology, and the rails that an endpoint with all defaults would open, as JSON.
///
/// Blocks for 10 ms to some seconds (libfabric looks at the hardware). Where there are RDMA devices, no other thread
/// should use the environment meanwhile.
///
/// # Errors
/// The same as [`Endpoint::open`].
pub fn topology() -> Result<String> {
    fork::check().and_then(|()| preview()).map_err(in_rust)
}
