//! Endpoint objects.

use super::config;
use super::guard::{guard, output, with_endpoint};
use super::handle;
use super::status::weft_status;
use crate::endpoint::{Endpoint, EndpointConfig};
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// An endpoint: the rails that a process opened, the worker threads that drive
/// them, and an address that others connect to. A process usually has one for
/// each GPU or rank. Opaque; made by `weft_endpoint_create`.
pub struct weft_endpoint {
    _opaque: [u8; 0],
}

/// Worker threads drive the rails (the default).
pub const WEFT_PROGRESS_THREADS: u32 = 0;
/// No thread is started: `weft_queue_poll` drives the rails in the
/// caller's thread. A program that does not poll makes no progress, and its
/// peers see their transfers time out.
pub const WEFT_PROGRESS_MANUAL: u32 = 1;

/// Spin for 0.3 ms, then sleep until a rail or a caller has something to do (the
/// default): an idle endpoint costs no core, and a transfer that comes after a
/// pause waits for a wake-up.
pub const WEFT_IDLE_ADAPTIVE: u32 = 0;
/// Never sleep: the shortest latency, for a core each.
pub const WEFT_IDLE_SPIN: u32 = 1;
/// Sleep at once, for machines whose cores are all needed.
pub const WEFT_IDLE_SLEEP: u32 = 2;

/// As `liveness_ns`: no peer is lost for its silence.
pub const WEFT_LIVENESS_OFF: u64 = u64::MAX;

/// How to open an endpoint. Start from `WEFT_ENDPOINT_CONFIG_INIT`; zero (NULL)
/// in a field means its default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_endpoint_config {
    /// `sizeof(weft_endpoint_config)`.
    pub size: u32,
    /// None defined yet: 0.
    pub flags: u32,
    /// Which fabrics to open, separated by commas: "host", "efa", "verbs",
    /// "tcp", "shm", or a libfabric provider's exact name ("tcp;ofi_rxm"). A
    /// named fabric is never replaced by another. "host" is Weft's own, between
    /// processes of one user and group on one host (and in one network namespace); "tcp"
    /// is Weft's own, over plain sockets. Both need no libfabric. "tcp" and
    /// "tcp;ofi_rxm" do not reach each other. NULL: "host", and the best network
    /// fabric that this machine has, if any: EFA, verbs or tcp; "shm" is used only when named.
    /// "sim", simulated NICs for tests, is only in a library that was built for
    /// tests (`make lib-simulated`). It is never opened unless named, and not
    /// beside others than its own kind; its NICs reach other endpoints of this
    /// process only. Parameters may follow
    /// ("sim:like=efa:rails=4:gbps=100:delay_us=10:clock=virtual"), and an error
    /// lists all of them.
    pub fabric: *const c_char,
    /// Which NICs to use, by the name of their domain or network interface:
    /// patterns separated by commas, "*" matches any text, a leading "!" leaves
    /// out ("eth*,!eth3"). NULL: the environment variable WEFT_RAILS if it is
    /// set. The patterns apply to every fabric; shm's only NIC is called "shm",
    /// that of host "host", which only "!host" leaves out. So tcp over loopback
    /// alone, also between processes of one host, is fabric "tcp" with rails "lo".
    ///
    /// Without patterns that name NICs, those near what this process may use. They are
    /// taken from all that no "!" leaves out, but loopback (unless nothing else is there), link-local
    /// addresses and the bridges of container engines:
    ///
    ///   1. If CUDA_VISIBLE_DEVICES, or its container, leaves the process some
    ///      but not all of the machine's NVIDIA GPUs: for each of these GPUs the
    ///      NICs nearest to it.
    ///   2. Else, if the calling thread's affinity mask has CPUs of some but not
    ///      all NUMA nodes: for each of these nodes the NICs nearest to it.
    ///   3. Else all.
    ///
    /// Nearest means, in this order: below the same PCI switch, at the same root
    /// complex, on the same NUMA node, on the nearest other node. A NIC whose
    /// place is not known (a virtual one, say) is near everything. GPUs are
    /// numbered in the order of their PCI addresses (as CUDA does with
    /// CUDA_DEVICE_ORDER=PCI_BUS_ID, or where all are of one model); a UUID counts
    /// where NVIDIA's driver tells it in /proc. `weft_topology` shows the outcome.
    pub rails: *const c_char,
    /// Number of rails to open, 1 to 64. More than there are NICs: the NICs are
    /// opened several times, in turn. 0: one for each NIC. A rail of "host"
    /// beside those of a network is not counted, here and in `min_rails`.
    pub rail_count: u32,
    /// With fewer rails than this the open fails with `WEFT_ERR_NO_RAILS`,
    /// 0 to 64. 0: one is enough.
    pub min_rails: u32,
    /// Connections between a NIC of tcp and one of a peer, 1 to 16: the NIC becomes as many
    /// rails, and workers as many as there are CPUs for (`workers`). One connection is
    /// driven by one CPU, and some networks limit each. Both sides should have equally many:
    /// a peer with fewer shares each of its rails among several of ours. 0: one for each 20
    /// Gbit/s of the line, at most 8, and at most a quarter of the CPUs that the calling
    /// thread may use, shared by the NICs; four where the line's rate is not known. So on
    /// few CPUs it is 1, and it is 1 with manual progress, with `tcp_ports` (each takes a
    /// port) and over loopback. Not used with `rail_count`, which says how many rails there are.
    pub tcp_streams: u32,
    /// `WEFT_PROGRESS_THREADS` or `WEFT_PROGRESS_MANUAL`.
    pub progress: u32,
    /// Number of worker threads, 1 to 64; never more than rails. 0: one for up to
    /// four rails of a NUMA node, but fewer than the CPUs that the calling thread
    /// may use (and at least one). Where there are several nodes, a worker's
    /// thread stays on those CPUs of its rails' nodes that the calling thread may
    /// use (if there are any). Ignored with manual progress, where no thread's
    /// affinity changes.
    pub workers: u32,
    /// Transfers, sends and atomics that can be outstanding at once, 1 to 1,048,576.
    /// 0: 16,384.
    pub max_transfers: u32,
    /// Completions that a queue holds, 16 to 1,048,576; an accepted operation
    /// has its place reserved. 0: 16,384.
    pub queue_depth: u32,
    /// Peers at once, 1 to 65,536. 0: 4,096.
    pub max_peers: u32,
    /// Counters at once, 1 to 1,048,576. 0: 65,536.
    pub max_counters: u32,
    /// What worker threads do without work: `WEFT_IDLE_*`. With manual progress
    /// it is what a waiting `weft_queue_poll` does: `WEFT_IDLE_SPIN` never sleeps, and the others
    /// do after a while.
    pub idle: u32,
    /// Deadline of operations that name none, in nanoseconds, up to 24 hours.
    /// 0: 30 seconds.
    pub timeout_ns: u64,
    /// Time that a connect may take, in nanoseconds, up to 24 hours.
    /// 0: 10 seconds.
    pub connect_timeout_ns: u64,
    /// Bytes of messages (`weft_send`) that may wait for one peer, and that one
    /// peer may have waiting here unreleased, 1 MiB to 1 GiB. 0: 16 MiB.
    pub message_bytes: u64,
    /// A secret that all endpoints have which may talk to each other: 16 to 1,024
    /// bytes, best 32 random ones (`head -c 32 /dev/urandom`); both sides must have
    /// the same. It is read during the open and not kept as such, and appears in no
    /// message and no log. NULL (and `secret_len` 0): none, and everybody who knows
    /// the address may connect.
    ///
    /// When two endpoints connect, each proves to the other that it knows the secret,
    /// without showing it. A handshake that does not is refused and counted
    /// (`strangers_refused` of `weft_endpoint_statistics`), and the connect ends with
    /// `WEFT_ERR_DENIED`. So does one between an endpoint that has a secret and one
    /// that has none. From the secret and random numbers of both sides follows a key
    /// for each lane, by which every control frame is authenticated (HMAC-SHA256):
    /// messages, notifications, counters by frame, imports, closing. A frame of a
    /// sender that does not know the secret, a changed frame and a replayed one are
    /// dropped and counted.
    ///
    /// It encrypts nothing: `encrypt` does. The fabric's own writes and reads are guarded
    /// by nothing but the keys of the memory, which travel in descriptors: on a network
    /// where others can read or forge packets, the bytes of transfers are not protected
    /// without it. See docs/security.md.
    ///
    /// Refused: a length out of range (`WEFT_ERR_LIMIT`); only one of `secret` and
    /// `secret_len` set, or a secret all of whose bytes are the same, as of a buffer
    /// that was never filled in (`WEFT_ERR_INVALID`).
    pub secret: *const c_void,
    /// Bytes of `secret`.
    pub secret_len: u64,
    /// A peer of which nothing is heard for so long is lost, with or without
    /// operations under way: nanoseconds, 1 second to 24 hours. 0: 120 seconds;
    /// `WEFT_LIVENESS_OFF`: never, and a host that is cut off while nothing is under
    /// way stays a peer.
    ///
    /// Whoever lives is heard: an endpoint says something to each peer every second
    /// (with manual progress: while it is polled), and what is delivered to a peer
    /// counts, too. After a third of the time it is also asked for a word. So a process
    /// that is stopped, starved or does not poll for a minute is not lost by default;
    /// allow as much as the peers may need. Time in which this process does not run,
    /// or (manual progress) does not poll, does not count.
    ///
    /// Over tcp, a connection whose path drops everything ends after the same time, by the
    /// system's own limits (TCP_USER_TIMEOUT and keep-alive): its operations continue on
    /// other rails. With `WEFT_LIVENESS_OFF` the system's defaults hold (some 15 minutes).
    pub liveness_ns: u64,
    /// Another secret that proves a peer as well as `secret`, of as many bytes: while
    /// one is replaced by another. `secret` is the one that this endpoint proves when
    /// it connects; a proof by either is accepted, and answered by the same. To replace a secret, give first all
    /// endpoints the old one as `secret` and the new one here, then all of them the
    /// two exchanged, then the new one alone. NULL (and `other_secret_len` 0): none.
    pub other_secret: *const c_void,
    /// Bytes of `other_secret`.
    pub other_secret_len: u64,
    /// A file with one or two secrets, one per line, in the place of `secret` (the
    /// first line) and `other_secret`; not with them (`WEFT_ERR_INVALID`). Empty lines
    /// and white space around a secret are skipped, so encode random bytes as text
    /// (`head -c 32 /dev/urandom | base64`). NULL, and no `secret`: the file that
    /// the environment variable `WEFT_SECRET_FILE` names, if it is set.
    ///
    /// The file is read during the open (`WEFT_ERR_INVALID` if it cannot be used), and
    /// again when it has changed: endpoints look when a handshake begins or arrives,
    /// at most once a second, so secrets can be replaced under load. Replace
    /// the file by renaming a new one over it, on a local file system: a worker reads
    /// it. A file that cannot be used changes nothing, and the log says so. Peers that
    /// are up stay up; each new or returning lane proves a secret that holds then.
    pub secret_file: *const c_char,
    /// 1: everything that goes over a network is encrypted and authenticated, bytes of
    /// transfers and control frames alike. It needs a secret, and a fabric that can:
    /// "tcp", which is chosen then if `fabric` is NULL; one that cannot is refused
    /// (`WEFT_ERR_UNSUPPORTED`). Both sides must ask for it: an endpoint that encrypts
    /// and one that does not have no network fabric in common, and the connect says
    /// so. `weft_peer_info` names the fabric "tcp-encrypted". 0: not encrypted.
    ///
    /// Each connection has keys of its own (Noise, `NNpsk0_25519_AESGCM_SHA256`), so who
    /// learns the secret later cannot read what was recorded before. "host" is not
    /// encrypted: what it moves does not leave the machine. See docs/security.md.
    pub encrypt: u32,
    /// The class that everything over tcp is marked with for the network (DSCP, RFC 2474):
    /// 1 to 63, as 46 for expedited forwarding; more is `WEFT_ERR_LIMIT`. 0: as the system
    /// has it. It is the endpoint's, since one connection carries all of a lane, whatever
    /// the class of a transfer; give transfers of another class an endpoint of their own.
    pub tcp_dscp: u32,
    /// The ports on which tcp listens, as "7000" or "7000-7099" (1 to 65535, both ends
    /// included), for firewalls and for networks that translate addresses. Each rail of
    /// tcp takes one, and no two the same: the next one that is free. A rail for which
    /// none is left does not come up, and the message names the range (`min_rails`). Other
    /// text is `WEFT_ERR_INVALID`. Best outside of the ports that the system gives to
    /// connections (net.ipv4.ip_local_port_range). NULL: the system picks ports.
    pub tcp_ports: *const c_char,
    /// The address at which peers reach the rails of tcp, where that is not the one of
    /// their interface: behind what translates addresses. It takes the interface's place
    /// in `weft_endpoint_address`, for all rails of tcp, so they must be found there by their
    /// ports. An IPv4 or IPv6 address, as "203.0.113.7" or "2001:db8::7": its ports are
    /// those that rails listen on. Or one with a port, as "203.0.113.7:30000" or
    /// "[2001:db8::7]:30000": the first of `tcp_ports` is found at that port, the second
    /// at the next, and so on. Names are not looked up; other text, a port without
    /// `tcp_ports`, or ports that would end above 65535 are `WEFT_ERR_INVALID`. NULL: the
    /// interface's address.
    ///
    /// Processes of one host use "host" with each other and do not need it. Others
    /// behind the same translator reach this endpoint only if it lets them back in.
    pub tcp_address: *const c_char,
}

/// Opens an endpoint: loads libfabric where that is needed, opens the rails, starts the workers.
///
/// libfabric is `libfabric.so.1`, or the file that the environment variable
/// WEFT_LIBFABRIC names. WEFT_LOG (error, warn, info, debug or trace) writes to
/// stderr what the library does; by default warnings. `weft_log_set` has them go
/// elsewhere.
///
/// `config`: NULL for all defaults. `endpoint`: receives the handle; the caller
/// owns it and gives it back with `weft_endpoint_destroy`. Nothing is left open
/// on failure.
///
/// Any thread. Blocks for some ms ("host", "tcp") to some seconds (libfabric looks
/// at the hardware). The process's signal handlers, signal mask, affinity and
/// environment are as before when it returns. "host" and "tcp" never touch libfabric
/// or the environment, and so does the default where there is no RDMA device. Other
/// fabrics put settings for libfabric into the environment while they open: other
/// threads should not use getenv or setenv then. What libfabric reads so when it
/// starts stays in force for its other users in the process (docs/tuning.md).
///
/// Errors: `WEFT_ERR_NO_LIBFABRIC`; `WEFT_ERR_NO_RAILS` (the message lists what
/// was found); `WEFT_ERR_INVALID`; `WEFT_ERR_LIMIT`; `WEFT_ERR_UNSUPPORTED`
/// (a config from a newer version, or an unknown fabric); `WEFT_ERR_FABRIC`;
/// `WEFT_ERR_NO_MEMORY`; `WEFT_ERR_SYSTEM`. Since 0.1.
///
/// # Safety
/// The pointers must be NULL or valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_endpoint_create(
    config: *const weft_endpoint_config,
    endpoint: *mut *mut weft_endpoint,
) -> weft_status {
    guard(|| {
        let out = output(endpoint, "endpoint")?;
        let config = if config.is_null() { EndpointConfig::default() } else { config::endpoint(config)? };
        out.store(handle::insert_endpoint(|| Endpoint::open(config))?);
        Ok(())
    })
}

/// Writes the address that peers pass to `weft_peer_connect`. It is a blob of
/// some hundred bytes that may travel by any means: a socket, a file, a
/// key-value store. It holds for as long as the endpoint is open.
///
/// `buffer`, `capacity`: where to, and its size in bytes; NULL and 0 ask for
/// the length only (`WEFT_OK`). `len`: receives the length of the address.
///
/// Any thread; does not block. Errors: `WEFT_ERR_TOO_SMALL` (`len` is stored,
/// nothing is written), `WEFT_ERR_INVALID`, `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// `buffer` must be valid for `capacity` bytes, `len` valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_endpoint_address(
    endpoint: *const weft_endpoint,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> weft_status {
    guard(|| {
        let len = output(len, "len")?;
        with_endpoint(endpoint, |ep| super::guard::copy_out(ep.address(), buffer, capacity, &len))
    })
}

/// Ends all work of an endpoint: refuses new operations, lets the running ones
/// go on for `drain_timeout_ns`, then cancels the rest, tells the peers
/// (they see `WEFT_ERR_PEER_CLOSED` at once), closes the rails and stops the
/// workers. When it has returned `WEFT_OK`, no NIC and no thread touches the
/// caller's memory any more, and every operation has left its completion to be
/// polled (each peer its PEER_DOWN, too): poll until `WEFT_ERR_CLOSED`. Memory
/// can be deregistered and messages released until the close. (With manual
/// progress keep polling until the peers have deregistered, too: they ask those
/// that imported their memory, and wait up to 2 s for the answer.)
///
/// `drain_timeout_ns`: nanoseconds, 0 to cancel at once.
///
/// Any thread, also while others poll, submit and wait: those submissions get
/// `WEFT_ERR_CLOSED`. Blocks for the drain time and some milliseconds; for up to 1.2 s
/// more while a peer does not answer (stopped, or cut off). Calling
/// it again is harmless. Errors: `WEFT_ERR_TIMED_OUT` (a provider does not
/// return: the endpoint and the memory must be kept), `WEFT_ERR_HANDLE`.
/// Since 0.1.
///
/// # Safety
/// `endpoint` must be a handle from `weft_endpoint_create`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_endpoint_shutdown(
    endpoint: *mut weft_endpoint,
    drain_timeout_ns: u64,
) -> weft_status {
    guard(|| {
        // Also of an endpoint that a defect stopped; and no epoch is pinned while it waits.
        let ep = Arc::clone(&*handle::endpoint(endpoint)?);
        ep.shutdown(drain_timeout_ns)
    })
}

/// Gives an endpoint back, after shutting it down (with no drain time) if that
/// was not done. Completions not polled yet, messages not released, memory and
/// remote memory of this endpoint are gone with it.
///
/// `endpoint`: NULL is fine; the handle is invalid afterwards.
/// Any thread. Errors: `WEFT_ERR_BUSY` (operations are outstanding: shut down
/// first, or poll until they have completed; the handle stays valid),
/// `WEFT_ERR_TIMED_OUT` as with shutdown, `WEFT_ERR_HANDLE` (closed before).
/// Since 0.1.
///
/// # Safety
/// `endpoint` must be NULL or a handle from `weft_endpoint_create`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_endpoint_destroy(endpoint: *mut weft_endpoint) -> weft_status {
    guard(|| {
        if endpoint.is_null() {
            return Ok(());
        }
        let ep = Arc::clone(&*handle::endpoint(endpoint)?);
        ep.close()?;
        handle::remove_endpoint(endpoint, &ep)?;
        let alive = ep.alive();
        drop(ep);
        handle::settle(&alive);
        Ok(())
    })
}
