//! Endpoints, and how they are opened.

use super::names::in_rust;
use super::parked::Shared;
use super::queue::Queue;
use super::time::{ns, ns_not_0};
use super::watch::Watch;
use crate::calls::{self, Idle, Secret, LIVENESS_OFF};
use crate::fork;
use crate::status::{Error, Result};
use crate::transfer::watch;
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How to open an endpoint: a builder, whose methods are the fields of `weft_endpoint_config`.
///
/// Unset options have their defaults. [`Endpoint::open`] refuses values beyond the limits.
///
/// ```
/// use libweft::{Endpoint, EndpointConfig};
/// use std::time::Duration;
///
/// let config = EndpointConfig::new().fabric("host").queue_depth(1024).timeout(Duration::from_secs(5));
/// let endpoint = Endpoint::open(&config)?;
/// assert_eq!(endpoint.info()?.rails, 1);
/// # Ok::<(), libweft::Error>(())
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct EndpointConfig {
    settings: calls::EndpointConfig,
}

impl fmt::Debug for EndpointConfig {
    /// Without the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls::EndpointConfig { fabric, rails, manual, encrypt, .. } = &self.settings;
        let mut f = f.debug_struct("EndpointConfig");
        f.field("fabric", fabric).field("rails", rails).field("manual", manual).field("encrypt", encrypt);
        f.finish_non_exhaustive()
    }
}

impl EndpointConfig {
    /// All defaults: `host` and the best network fabric of this machine, with worker threads. What is not set takes its
    /// variable in the environment first (`WEFT_FABRIC` for [`fabric`](EndpointConfig::fabric); docs/configuration.md
    /// lists them).
    pub fn new() -> EndpointConfig {
        EndpointConfig::default()
    }

    /// Fabrics to open, separated by commas: `host` (between processes of one user on one host), `tcp` (plain
    /// sockets), `efa`, `verbs`, or a libfabric provider's exact name. A named fabric is never replaced by
    /// another. Default: `host` and the best network fabric of this machine.
    ///
    /// ```
    /// use libweft::{Endpoint, EndpointConfig, Status};
    /// let error = Endpoint::open(&EndpointConfig::new().fabric("no_such_fabric")).unwrap_err();
    /// assert_ne!(error.status, Status::Ok);
    /// ```
    pub fn fabric(mut self, fabric: &str) -> Self {
        self.settings.fabric = Some(fabric.to_owned());
        self
    }

    /// NICs to use: patterns of their names, separated by commas; `*` matches any text, a leading `!` excludes
    /// (`eth*,!eth3`). Default: the NICs near the GPUs or CPUs that this process may use.
    pub fn rails(mut self, patterns: &str) -> Self {
        self.settings.rails = Some(patterns.to_owned());
        self
    }

    /// Rails to open, 1 to 64, not counting that of `host`. Default: one for each NIC.
    pub fn rail_count(mut self, count: u32) -> Self {
        self.settings.rail_count = count.into();
        self
    }

    /// With fewer rails than this, 1 to 64, the open fails with [`Status::NoRails`](crate::Status::NoRails).
    /// Default: one is enough.
    pub fn min_rails(mut self, count: u32) -> Self {
        self.settings.min_rails = count.into();
        self
    }

    /// Connections between a NIC of tcp and one of a peer, 1 to 16; each is a rail. Not used with `rail_count`.
    /// Default: by the NIC's rate and the CPUs.
    pub fn tcp_streams(mut self, count: u32) -> Self {
        self.settings.tcp_streams = count.into();
        self
    }

    /// No thread is started: polling a [`Queue`] drives the rails in the caller's thread. A program that does not
    /// poll makes no progress, and its peers' operations time out. Default: worker threads.
    ///
    /// ```
    /// use libweft::{Endpoint, EndpointConfig};
    /// let endpoint = Endpoint::open(&EndpointConfig::new().fabric("host").manual_progress())?;
    /// assert_eq!(endpoint.info()?.workers, 0);
    /// assert!(endpoint.queue().poll()?.is_none());
    /// # Ok::<(), libweft::Error>(())
    /// ```
    pub fn manual_progress(mut self) -> Self {
        self.settings.manual = true;
        self
    }

    /// Worker threads, 1 to 64; never more than rails. Default: one for up to four rails of a NUMA node, fewer than
    /// CPUs. Ignored with manual progress.
    pub fn workers(mut self, count: u32) -> Self {
        self.settings.workers = count.into();
        self
    }

    /// Operations outstanding at once, 1 to 1,048,576. Default: 16,384.
    pub fn max_transfers(mut self, count: u32) -> Self {
        self.settings.max_transfers = count.into();
        self
    }

    /// Completions that a queue holds, 16 to 1,048,576; an accepted operation has its place reserved. Default:
    /// 16,384.
    pub fn queue_depth(mut self, completions: u32) -> Self {
        self.settings.queue_depth = completions.into();
        self
    }

    /// Peers at once, 1 to 65,536. Default: 4,096.
    pub fn max_peers(mut self, count: u32) -> Self {
        self.settings.max_peers = count.into();
        self
    }

    /// Counters at once, 1 to 1,048,576. Default: 65,536.
    pub fn max_counters(mut self, count: u32) -> Self {
        self.settings.max_counters = count.into();
        self
    }

    /// What idle workers do; with manual progress, what a waiting poll does. Default: [`Idle::Adaptive`].
    pub fn idle(mut self, idle: Idle) -> Self {
        self.settings.idle = idle;
        self
    }

    /// Deadline of operations that name none, up to 24 hours. Default: 30 seconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout_ns = ns_not_0(timeout);
        self
    }

    /// Time that a connect may take, up to 24 hours. Default: 10 seconds.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout_ns = ns_not_0(timeout);
        self
    }

    /// Bytes of messages that may wait for one peer, and that one peer may have waiting here unreleased, 1 MiB to
    /// 1 GiB. Default: 16 MiB.
    pub fn message_bytes(mut self, bytes: u64) -> Self {
        self.settings.message_bytes = bytes;
        self
    }

    /// A peer that is silent for this long is lost: 1 second to 24 hours; `None`: never. Endpoints send each peer a
    /// keep-alive every second (manual progress: while they poll). Default: 120 seconds.
    pub fn liveness(mut self, silence: Option<Duration>) -> Self {
        self.settings.liveness_ns = silence.map_or(LIVENESS_OFF, ns_not_0);
        self
    }

    /// A secret that all endpoints share: 16 to 1,024 bytes, best 32 random ones. Peers prove it to connect, and it
    /// authenticates control frames; bytes of transfers need [`encrypt`](EndpointConfig::encrypt). Default: all who
    /// know the address may connect.
    ///
    /// ```
    /// use libweft::{Endpoint, EndpointConfig, Status};
    /// // Too short.
    /// let error = Endpoint::open(&EndpointConfig::new().fabric("host").secret(b"abc")).unwrap_err();
    /// assert_eq!(error.status, Status::Limit);
    /// ```
    pub fn secret(mut self, secret: &[u8]) -> Self {
        self.settings.secret = Some(Secret(secret.to_vec()));
        self
    }

    /// Another secret that peers may prove instead, while one is replaced by the other.
    pub fn other_secret(mut self, secret: &[u8]) -> Self {
        self.settings.other_secret = Some(Secret(secret.to_vec()));
        self
    }

    /// A file with one or two secrets, one per line, in place of `secret` and `other_secret`; it is read again when
    /// it changes. Default: none.
    pub fn secret_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.secret_file = Some(path.into());
        self
    }

    /// Encrypts and authenticates everything that crosses the network. Needs a secret, fabric `tcp`, and the same on
    /// both sides.
    pub fn encrypt(mut self) -> Self {
        self.settings.encrypt = true;
        self
    }

    /// DSCP class of everything over tcp, 1 to 63. Default: the system's.
    pub fn tcp_dscp(mut self, class: u8) -> Self {
        self.settings.tcp_dscp = class.into();
        self
    }

    /// Ports on which tcp listens, as `7000` or `7000-7099`; each rail takes one. Default: the system picks them.
    pub fn tcp_ports(mut self, ports: &str) -> Self {
        self.settings.tcp_ports = Some(ports.to_owned());
        self
    }

    /// The address at which peers reach the rails of tcp, where addresses are translated; with `tcp_ports` it may
    /// have a port. Default: the interface's.
    pub fn tcp_address(mut self, address: &str) -> Self {
        self.settings.tcp_address = Some(address.to_owned());
        self
    }

    /// A file for a trace of this process, which the shutdown writes for Perfetto; `%p` in its name becomes the
    /// process id. Default: none.
    ///
    /// ```
    /// use libweft::{Endpoint, EndpointConfig};
    /// use std::time::Duration;
    /// let file = std::env::temp_dir().join("libweft-%p.json");
    /// let endpoint = Endpoint::open(&EndpointConfig::new().fabric("host").trace(&file))?;
    /// endpoint.shutdown(Duration::ZERO)?;
    /// let file = file.to_str().expect("UTF-8").replace("%p", &std::process::id().to_string());
    /// assert!(std::fs::read_to_string(&file).expect("a trace").contains("traceEvents"));
    /// # std::fs::remove_file(file).expect("it is there");
    /// # Ok::<(), libweft::Error>(())
    /// ```
    pub fn trace(mut self, file: impl Into<PathBuf>) -> Self {
        self.settings.trace = Some(file.into());
        self
    }
}

/// An endpoint: the rails (opened NICs) of a process, the worker threads that drive them, and an address that peers
/// connect to. Usually one for each GPU or rank.
///
/// Clones are the same endpoint. When the last clone is dropped, the endpoint is shut down without draining, as by
/// [`shutdown`](Endpoint::shutdown): the drop blocks for some milliseconds. Other objects ([`Memory`](crate::Memory),
/// [`Queue`], ...) do not keep the endpoint open; their calls then fail with
/// [`Status::Closed`](crate::Status::Closed), and their bytes stay valid.
///
/// Any thread may call any method at any time. In a forked child they fail with
/// [`Status::Forked`](crate::Status::Forked).
///
/// ```
/// use libweft::{Endpoint, EndpointConfig};
///
/// let a = Endpoint::open(&EndpointConfig::new().fabric("host"))?;
/// let b = Endpoint::open(&EndpointConfig::new().fabric("host"))?;
/// let peer = a.connect(b.address())?; // The address may travel by any means.
/// # let _ = peer;
/// # Ok::<(), libweft::Error>(())
/// ```
#[derive(Clone)]
pub struct Endpoint(Arc<Handle>);

struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        // After a panic, or where a provider does not return, NICs may still use the memory: all of it is kept.
        let shared = &self.0;
        if !matches!(catch_unwind(AssertUnwindSafe(|| shared.shutdown(0))), Ok(Ok(()))) {
            std::mem::forget(shared.clone());
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({:#x})", self.shared().endpoint().incarnation())
    }
}

impl Endpoint {
    /// Opens an endpoint: opens the rails, starts the workers.
    ///
    /// Blocks for some ms (`host`, `tcp`) to some seconds (libfabric looks at the hardware). libfabric is
    /// `libfabric.so.1`, or what the environment variable `WEFT_LIBFABRIC` names; where it is used (not for `host`
    /// and `tcp`), other threads should not use the environment meanwhile.
    ///
    /// # Errors
    /// [`NoLibfabric`](crate::Status::NoLibfabric), [`NoRails`](crate::Status::NoRails) (the message lists what was
    /// found), [`Limit`](crate::Status::Limit), [`Unsupported`](crate::Status::Unsupported) (an unknown fabric),
    /// [`Fabric`](crate::Status::Fabric), [`NoMemory`](crate::Status::NoMemory), [`System`](crate::Status::System).
    pub fn open(config: &EndpointConfig) -> Result<Endpoint> {
        fork::check().map_err(in_rust)?;
        let opened = catch_unwind(AssertUnwindSafe(|| calls::Endpoint::open(config.settings.clone())));
        let opened = opened.unwrap_or_else(|panic| Err(Error::defect(calls::panic_text(&*panic))));
        let opened = opened.map_err(in_rust)?;
        Ok(Endpoint(Arc::new(Handle(Shared::new(opened)))))
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0 .0
    }

    /// The address that peers pass to [`connect`](Endpoint::connect): some hundred bytes, not text, that may travel
    /// by any means. It is valid while the endpoint is open. If an interface gets other IP addresses meanwhile, tcp uses
    /// those, and so does what this function returns from then on; peers that are up return by themselves. An address
    /// that was returned before reaches the endpoint over rails that still have one of their IP addresses in it.
    pub fn address(&self) -> &[u8] {
        self.shared().endpoint().address()
    }

    /// The endpoint's own queue: it gets messages, notifications, events of peers and rails, and completions of
    /// operations that name no other queue.
    pub fn queue(&self) -> Queue {
        Queue::new(self.shared().clone(), self.shared().endpoint().queue().clone())
    }

    /// Makes a further queue, for operations that name it. `depth`: completions it holds, 16 to 1,048,576; 0: the
    /// endpoint's `queue_depth`.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let (a, peer) = (&world.a, world.a_to_b);
    /// use libweft::OpOptions;
    /// use std::time::Duration;
    ///
    /// let replies = a.create_queue(64)?;
    /// let op = a.send(peer, b"hello", &OpOptions::new().queue(&replies))?;
    /// let done = replies.wait(Duration::from_secs(10))?.expect("it completes");
    /// assert_eq!(done.op(), Some(op));
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Limit`](crate::Status::Limit), [`NoMemory`](crate::Status::NoMemory).
    pub fn create_queue(&self, depth: u32) -> Result<Queue> {
        self.shared().call(|ep| Ok(Queue::new(self.shared().clone(), ep.create_queue(depth)?)))
    }

    /// Ends all work: refuses new operations, lets running ones go on for `drain`, cancels the rest, notifies the
    /// peers ([`PeerClosed`](crate::Status::PeerClosed)), closes the rails and stops the workers. After a success no NIC
    /// and no thread touches any memory, and every completion (each peer's PEER_DOWN, too) can be polled: poll until
    /// [`Closed`](crate::Status::Closed).
    ///
    /// Blocks for the drain time and some milliseconds; up to 1.2 s more while a peer does not answer. Again is
    /// harmless.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let a = &world.a;
    /// use libweft::{OpOptions, Status};
    /// use std::time::Duration;
    ///
    /// a.shutdown(Duration::from_secs(1))?;
    /// let error = a.send(world.a_to_b, b"late", &OpOptions::new()).unwrap_err();
    /// assert_eq!(error.status, Status::Closed);
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`TimedOut`](crate::Status::TimedOut): a provider does not return, or does not close: call again. Then the memory of the endpoint is kept
    /// for as long as the process lives.
    pub fn shutdown(&self, drain: Duration) -> Result<()> {
        self.shared().shutdown(ns(drain))
    }

    /// Releases objects that were dropped while in use: deregisters memory, and frees it. Returns
    /// how many objects are still in use. [`register`](Endpoint::register) and
    /// [`alloc`](Endpoint::alloc) do the same first.
    ///
    /// Blocks as [`Memory::deregister`](crate::Memory::deregister) does, if there is something to
    /// release.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let a = &world.a;
    /// let memory = a.register(vec![0; 4096])?;
    /// drop(memory); // Never blocks: peers may still reach the bytes, which are kept.
    /// assert_eq!(a.reclaim()?, 0); // Now they do not, and the bytes are freed.
    /// # Ok::<(), libweft::Error>(())
    /// ```
    pub fn reclaim(&self) -> Result<usize> {
        self.shared().reclaim()
    }

    /// Makes a watch. Blocks as long as CUDA takes. No stream may still wait for it when its last clone is dropped.
    ///
    /// # Errors
    /// [`NoMemory`](crate::Status::NoMemory), [`System`](crate::Status::System).
    pub fn create_watch(&self) -> Result<Watch> {
        let watch = self.shared().call(|_| watch::Watch::new())?;
        Ok(Watch { shared: self.shared().clone(), watch: Arc::new(watch) })
    }
}
