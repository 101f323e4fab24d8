//! Endpoint objects.

use super::args::{read, string, Sized32};
use super::guard::{bytes, copy_out, guard, output, with_endpoint};
use super::handle::{self, Handle};
use super::status::weft_status;
use crate::calls::{Endpoint, EndpointConfig, Idle, Secret, LIVENESS_OFF};
use crate::logging;
use crate::status::{Error, Result};
use crate::transfer::options::check_flags;
use crate::wire::secret::check_len;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// An endpoint: the rails (opened NICs) of a process, the worker threads that
/// drive them, and an address that peers connect to. Usually one for each GPU
/// or rank.
pub struct weft_endpoint {
    _opaque: [u8; 0],
}

impl Handle for weft_endpoint {
    type Object = Endpoint;
}

/// Worker threads drive the rails (the default).
pub const WEFT_PROGRESS_THREADS: u32 = 0;
/// No thread is started: `weft_queue_poll` drives the rails in the caller's
/// thread. A program that does not poll makes no progress, and its peers'
/// operations time out.
pub const WEFT_PROGRESS_MANUAL: u32 = 1;

/// Spin for 0.3 ms, then sleep until there is something to do (the default).
pub const WEFT_IDLE_ADAPTIVE: u32 = 0;
/// Never sleep: the shortest latency, for one core per worker.
pub const WEFT_IDLE_SPIN: u32 = 1;
/// Sleep at once, where all cores are needed.
pub const WEFT_IDLE_SLEEP: u32 = 2;

/// As `liveness_ns`: no peer is lost for its silence.
pub const WEFT_LIVENESS_OFF: u64 = u64::MAX;
const _: () = assert!(WEFT_LIVENESS_OFF == LIVENESS_OFF);

/// How to open an endpoint. Start from `WEFT_ENDPOINT_CONFIG_INIT`; 0 or NULL
/// in a field means its variable in the environment (WEFT_FABRIC for `fabric`),
/// else its default. docs/configuration.md has each in full.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_endpoint_config {
    pub size: u32,
    /// None defined yet: 0.
    pub flags: u32,
    /// Fabrics to open, separated by commas: "host" (between processes of one
    /// user on one host), "tcp" (plain sockets), "efa", "verbs", or a
    /// libfabric provider's exact name. A named fabric is never replaced by
    /// another. NULL or "": "host" and the best network fabric of this machine.
    pub fabric: *const c_char,
    /// NICs to use: patterns of their names, separated by commas; "*" matches
    /// any text, a leading "!" excludes ("eth*,!eth3"). NULL: the NICs near the
    /// GPUs or CPUs that this process may use.
    pub rails: *const c_char,
    /// Rails to open, 1 to 64, not counting that of "host". 0: one for each
    /// NIC.
    pub rail_count: u32,
    /// With fewer rails than this the open fails with `WEFT_ERR_NO_RAILS`, 0 to
    /// 64. 0: one is enough.
    pub min_rails: u32,
    /// Connections between a NIC of tcp and one of a peer, 1 to 16; each is a
    /// rail. Not used with `rail_count`. 0: by the NIC's rate and the CPUs.
    pub tcp_streams: u32,
    /// `WEFT_PROGRESS_THREADS` or `WEFT_PROGRESS_MANUAL`.
    pub progress: u32,
    /// Worker threads, 1 to 64; never more than rails. 0: one for up to four
    /// rails of a NUMA node, fewer than CPUs. Ignored with manual progress.
    pub workers: u32,
    /// Operations outstanding at once, 1 to 1,048,576. 0: 16,384.
    pub max_transfers: u32,
    /// Completions that a queue holds, 16 to 1,048,576; an accepted operation
    /// has its place reserved. 0: 16,384.
    pub queue_depth: u32,
    /// Peers at once, 1 to 65,536. 0: 4,096.
    pub max_peers: u32,
    /// Counters at once, 1 to 1,048,576. 0: 65,536.
    pub max_counters: u32,
    /// What idle workers do: `WEFT_IDLE_*`. With manual progress, what a
    /// waiting `weft_queue_poll` does.
    pub idle: u32,
    /// Deadline of operations that name none, up to 24 hours. 0: 30 seconds.
    pub timeout_ns: u64,
    /// Time that a connect may take, up to 24 hours. 0: 10 seconds.
    pub connect_timeout_ns: u64,
    /// Bytes of messages that may wait for one peer, and that one peer may have
    /// waiting here unreleased, 1 MiB to 1 GiB. 0: 16 MiB.
    pub message_bytes: u64,
    /// A secret that all endpoints share: 16 to 1,024 bytes, best 32 random
    /// ones. Peers prove it to connect, and it authenticates control frames;
    /// bytes of transfers need `encrypt`: docs/security.md. NULL: all who know
    /// the address may connect.
    pub secret: *const c_void,
    pub secret_len: u64,
    /// A peer that is silent for this long is lost: 1 second to 24 hours.
    /// Endpoints send each peer a keep-alive every second (manual progress:
    /// while they poll). 0: 120 seconds; `WEFT_LIVENESS_OFF`: never.
    pub liveness_ns: u64,
    /// Another secret that peers may prove instead, of as many bytes, while one
    /// is replaced by the other. NULL: none.
    pub other_secret: *const c_void,
    pub other_secret_len: u64,
    /// A file with one or two secrets, one per line, in place of `secret` and
    /// `other_secret`; it is read again when it changes. NULL: none.
    pub secret_file: *const c_char,
    /// 1: encrypts and authenticates everything that crosses the network. Needs
    /// a secret, fabric "tcp", and the same on both sides. 0: no.
    pub encrypt: u32,
    /// DSCP class of everything over tcp, 1 to 63. 0: the system's.
    pub tcp_dscp: u32,
    /// Ports on which tcp listens, as "7000" or "7000-7099"; each rail takes
    /// one. NULL: the system picks them.
    pub tcp_ports: *const c_char,
    /// The address at which peers reach the rails of tcp, where addresses are
    /// translated; with `tcp_ports` it may have a port. NULL: the interface's.
    pub tcp_address: *const c_char,
    /// A file for a trace of this process until the shutdown: docs/traces.md.
    /// NULL: none.
    pub trace: *const c_char,
}

// SAFETY: the struct has only integers and pointers, for which zero is valid.
unsafe impl Sized32 for weft_endpoint_config {
    const FIRST: usize = 168;
}

/// Opens an endpoint: opens the rails, starts the workers.
///
/// `config`: NULL for all defaults. `endpoint`: receives the handle. Blocks for
/// some ms ("host", "tcp") to some seconds (libfabric looks at the hardware).
/// libfabric is libfabric.so.1, or what the environment variable WEFT_LIBFABRIC
/// names; where it is used (not for "host" and "tcp"), other threads should not
/// call getenv or setenv meanwhile. Signal handlers and mask, affinity and
/// environment are as before on return.
///
/// Errors: `WEFT_ERR_NO_LIBFABRIC`, `WEFT_ERR_NO_RAILS` (the message lists what
/// was found), `WEFT_ERR_LIMIT`, `WEFT_ERR_UNSUPPORTED` (a newer config, or an
/// unknown fabric), `WEFT_ERR_FABRIC`, `WEFT_ERR_NO_MEMORY`, `WEFT_ERR_SYSTEM`.
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
        logging::start();
        let config = if config.is_null() { EndpointConfig::default() } else { self::config(config)? };
        out.store(handle::insert(|| Endpoint::open(config))?);
        Ok(())
    })
}

/// Writes the address that peers pass to `weft_peer_connect`: some hundred
/// bytes, not text, that may travel by any means. It is valid while the
/// endpoint is open. If an interface gets other IP addresses meanwhile, tcp
/// uses those, and so does what this function writes from then on; peers that
/// are up return by themselves. An address that was written before reaches
/// the endpoint over rails that still have one of their IP addresses in it.
///
/// `buffer`, `capacity`: where to, and its size; NULL and 0 ask for the length
/// only. `len`: receives the length.
///
/// Errors: `WEFT_ERR_TOO_SMALL` (`len` is stored, nothing is written).
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
        with_endpoint(endpoint, |ep| copy_out(ep.address(), buffer, capacity, &len))
    })
}

/// Ends all work: refuses new operations, lets running ones go on for
/// `drain_timeout_ns` (0: none), cancels the rest, notifies the peers
/// (`WEFT_ERR_PEER_CLOSED`), closes the rails and stops the workers. After
/// `WEFT_OK` no NIC and no thread touches the caller's memory, and every
/// completion (each peer's PEER_DOWN, too) can be polled: poll until
/// `WEFT_ERR_CLOSED`. Memory can be deregistered and messages released until
/// the destroy.
///
/// Blocks for the drain time and some milliseconds; up to 1.2 s more while a
/// peer does not answer. Again is harmless. Errors: `WEFT_ERR_TIMED_OUT` (a
/// provider does not return, or does not close: keep the endpoint and the
/// memory, and call again).
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
        // Not `guarded`, so that a stopped endpoint can be shut down too. It waits without a pinned
        // epoch.
        let ep = Arc::clone(&*handle::get(endpoint)?);
        ep.shutdown(drain_timeout_ns)
    })
}

/// Destroys an endpoint, after a shutdown without draining if there was none.
/// Completions not polled, messages not released, and memory, remote memory and
/// other objects of the endpoint go with it.
///
/// Errors: `WEFT_ERR_BUSY` (operations are outstanding: shut down first, or
/// poll until they have completed), `WEFT_ERR_TIMED_OUT` as with shutdown.
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
        let ep = Arc::clone(&*handle::get(endpoint)?);
        ep.close()?;
        handle::remove_endpoint(endpoint, &ep)?;
        let alive = Arc::downgrade(&ep.alive());
        drop(ep);
        handle::settle(&alive);
        Ok(())
    })
}

/// A secret of the config's: its bytes, if it is set.
///
/// # Safety
/// As the header asks of the config's secrets.
unsafe fn secret(text: *const c_void, len: u64, name: &str) -> Result<Option<Secret>> {
    match (text.is_null(), len) {
        (true, 0) => Ok(None),
        (false, 0) => {
            Err(Error::invalid(format!("{name} is set, but {name}_len is 0: pass its length in bytes")))
        }
        // SAFETY: the header requires this many valid bytes; the length is checked first.
        (_, len) => unsafe { Ok(Some(Secret(bytes(text, check_len(len, name)?, name)?.copied(name)?))) },
    }
}

/// # Safety
/// `config` must be valid as the header asks.
unsafe fn config(config: *const weft_endpoint_config) -> Result<EndpointConfig> {
    // SAFETY: `config` is NULL or a struct with its size, whose strings end.
    let theirs = unsafe { read(config)? };
    check_flags(theirs.flags, 0)?;
    let idle = match theirs.idle {
        WEFT_IDLE_ADAPTIVE => Idle::Adaptive,
        WEFT_IDLE_SPIN => Idle::Spin,
        WEFT_IDLE_SLEEP => Idle::Sleep,
        other => return Err(Error::invalid(format!("idle {other} is not known"))),
    };
    if theirs.progress > WEFT_PROGRESS_MANUAL {
        return Err(Error::invalid(format!("progress {} is not known", theirs.progress)));
    }
    if theirs.encrypt > 1 {
        return Err(Error::invalid(format!("encrypt is {}: it must be 0 or 1", theirs.encrypt)));
    }
    let mut settings = EndpointConfig::default();
    // Secrets first: they are then overwritten even if a later check fails.
    // SAFETY: the header requires valid secrets.
    unsafe {
        settings.secret = secret(theirs.secret, theirs.secret_len, "secret")?;
        settings.other_secret = secret(theirs.other_secret, theirs.other_secret_len, "other_secret")?;
    }
    // SAFETY: the header requires C strings or NULL.
    unsafe {
        settings.secret_file = string("secret_file", theirs.secret_file)?.map(Into::into);
        settings.trace = string("trace", theirs.trace)?.map(Into::into);
        settings.fabric = string("fabric", theirs.fabric)?;
        settings.rails = string("rails", theirs.rails)?;
        settings.tcp_ports = string("tcp_ports", theirs.tcp_ports)?;
        settings.tcp_address = string("tcp_address", theirs.tcp_address)?;
    }
    settings.rail_count = theirs.rail_count.into();
    settings.min_rails = theirs.min_rails.into();
    settings.tcp_streams = theirs.tcp_streams.into();
    settings.manual = theirs.progress == WEFT_PROGRESS_MANUAL;
    settings.idle = idle;
    settings.workers = theirs.workers.into();
    settings.max_transfers = theirs.max_transfers.into();
    settings.queue_depth = theirs.queue_depth.into();
    settings.max_peers = theirs.max_peers.into();
    settings.max_counters = theirs.max_counters.into();
    settings.timeout_ns = theirs.timeout_ns;
    settings.connect_timeout_ns = theirs.connect_timeout_ns;
    settings.message_bytes = theirs.message_bytes;
    settings.liveness_ns = theirs.liveness_ns;
    settings.encrypt = theirs.encrypt != 0;
    settings.tcp_dscp = theirs.tcp_dscp.into();
    Ok(settings)
}
