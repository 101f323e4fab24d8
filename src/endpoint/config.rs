//! The configuration of an endpoint.

use super::environment;
use crate::fabric::tcp;
use crate::status::{Error, Result};
use crate::trace::Trace;
use crate::wire::secret::{check_len, Secrets};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;

const SECOND_NS: u64 = 1_000_000_000;
const DAY_NS: u64 = 24 * 3600 * SECOND_NS;
/// The value of `Settings::liveness_ns` with which silence never ends a peer.
pub const LIVENESS_OFF: u64 = u64::MAX;

/// The configuration from the caller: 0 and `None` mean the default.
#[derive(Clone, Default)]
pub struct Settings {
    pub fabric: Option<String>,
    pub rails: Option<String>,
    pub rail_count: u64,
    pub min_rails: u64,
    pub tcp_streams: u64,
    pub manual: bool,
    pub idle: Idle,
    pub workers: u64,
    pub max_transfers: u64,
    pub queue_depth: u64,
    pub max_peers: u64,
    pub max_counters: u64,
    pub timeout_ns: u64,
    pub connect_timeout_ns: u64,
    pub message_bytes: u64,
    pub liveness_ns: u64,
    pub secret: Option<Vec<u8>>,
    pub other_secret: Option<Vec<u8>>,
    pub secret_file: Option<PathBuf>,
    pub encrypt: bool,
    pub tcp_dscp: u64,
    pub tcp_ports: Option<String>,
    pub tcp_address: Option<String>,
    pub trace: Option<PathBuf>,
}

impl Drop for Settings {
    fn drop(&mut self) {
        for secret in [&mut self.secret, &mut self.other_secret].into_iter().flatten() {
            secret.fill(0);
            std::hint::black_box(secret); // Keeps the compiler from removing the erasure.
        }
    }
}

fn within(name: &str, value: u64, (low, high): (u64, u64), default: u64) -> Result<u64> {
    match value {
        0 => Ok(default),
        v if (low..=high).contains(&v) => Ok(v),
        v => {
            let default = if default == 0 { "the default".to_owned() } else { default.to_string() };
            Err(Error::limit(format!("{name} is {v}: it must be {low} to {high}, or 0 for {default}")))
        }
    }
}

/// The timeout of one operation; 0: the endpoint's default.
#[inline]
pub fn timeout(name: &str, ns: u64) -> Result<Option<NonZeroU64>> {
    if ns > DAY_NS {
        return Err(Error::limit(format!("{name} is {ns} ns: at most 24 hours ({DAY_NS} ns) are allowed")));
    }
    Ok(NonZeroU64::new(ns))
}

impl Settings {
    /// Takes what the environment sets, and checks all of it.
    pub fn check(mut self) -> Result<EndpointConfig> {
        let taken = environment::fill(&mut self, libfabric_sys::variable)?.join(", ");
        if taken.is_empty() {
            return self.checked();
        }
        log::info!("the environment sets {taken}");
        self.checked().map_err(|error| error.about(&format!("with {taken}")))
    }

    fn checked(&self) -> Result<EndpointConfig> {
        let secrets = self.secrets()?;
        if self.encrypt && secrets.is_none() {
            return Err(Error::invalid("encrypt is 1, but there is no secret: set secret or secret_file"));
        }
        let d = EndpointConfig::default();
        let size = |name, value, bounds, default: usize| {
            within(name, value, bounds, default as u64).map(|value| value as usize)
        };
        Ok(EndpointConfig {
            fabric: self.fabric.clone(),
            rails: self.rails.clone(),
            rail_count: size("rail_count", self.rail_count, (1, 64), 0)?,
            min_rails: size("min_rails", self.min_rails, (1, 64), 1)?,
            manual: self.manual,
            idle: self.idle,
            workers: size("workers", self.workers, (1, 64), d.workers)?,
            max_transfers: size("max_transfers", self.max_transfers, (1, 1 << 20), d.max_transfers)?,
            queue_depth: size("queue_depth", self.queue_depth, (16, 1 << 20), d.queue_depth)?,
            max_peers: size("max_peers", self.max_peers, (1, 65_536), d.max_peers)?,
            max_counters: size("max_counters", self.max_counters, (1, 1 << 20), d.max_counters)?,
            timeout_ns: within("timeout_ns", self.timeout_ns, (1, DAY_NS), d.timeout_ns)?,
            connect_timeout_ns: within(
                "connect_timeout_ns",
                self.connect_timeout_ns,
                (1, DAY_NS),
                d.connect_timeout_ns,
            )?,
            message_bytes: within("message_bytes", self.message_bytes, (1 << 20, 1 << 30), d.message_bytes)?,
            liveness_ns: match self.liveness_ns {
                LIVENESS_OFF => None,
                0 => d.liveness_ns,
                ns => Some(within("liveness_ns", ns, (SECOND_NS, DAY_NS), 0)?),
            },
            secrets,
            encrypt: self.encrypt,
            tcp_at: tcp::At::new(self.tcp_ports.as_deref(), self.tcp_address.as_deref())?,
            tcp_streams: size("tcp_streams", self.tcp_streams, (1, 16), 0)?,
            tcp_dscp: within("tcp_dscp", self.tcp_dscp, (1, 63), 0)? as u8,
            // After the other checks: this makes the file.
            trace: self.trace.as_deref().map(Trace::new).transpose()?,
        })
    }

    /// The configured secrets.
    fn secrets(&self) -> Result<Option<Arc<Secrets>>> {
        let of = [(&self.secret, "secret"), (&self.other_secret, "other_secret")];
        let given: Vec<(&[u8], &str)> =
            of.into_iter().filter_map(|(secret, name)| Some((secret.as_deref()?, name))).collect();
        for (secret, name) in &given {
            check_len(secret.len() as u64, name)?;
        }
        if self.other_secret.is_some() && self.secret.is_none() {
            return Err(Error::invalid("other_secret is set, but secret is not: set the one for connecting"));
        }
        let file = match (&self.secret, &self.secret_file) {
            (Some(_), Some(_)) => {
                return Err(Error::invalid("secret and secret_file are both set: secrets are of one of them"))
            }
            (_, file) => file.clone(),
        };
        let secrets = match file {
            Some(file) => Some(Secrets::of_file(file)?),
            None if given.is_empty() => None,
            None => Some(Secrets::new(&given)?),
        };
        Ok(secrets.map(Arc::new))
    }
}

/// How idle worker threads wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Idle {
    /// Spin for 0.3 ms, then sleep until there is work.
    #[default]
    Adaptive,
    /// Never sleep: lowest latency, at the cost of one core per worker.
    Spin,
    /// Sleep at once, for machines where all cores are needed.
    Sleep,
}

#[derive(Clone, Debug)]
pub struct EndpointConfig {
    pub fabric: Option<String>,
    pub rails: Option<String>,
    /// Number of rails; 0: one per NIC.
    pub rail_count: usize,
    pub min_rails: usize,
    pub manual: bool,
    pub idle: Idle,
    /// Number of workers; 0: one per group of rails.
    pub workers: usize,
    pub max_transfers: usize,
    pub queue_depth: usize,
    pub max_peers: usize,
    pub max_counters: usize,
    pub timeout_ns: u64,
    pub connect_timeout_ns: u64,
    pub message_bytes: u64,
    /// A peer that is silent for this long is lost; `None`: never.
    pub liveness_ns: Option<u64>,
    /// The secrets, which peers must share.
    pub secrets: Option<Arc<Secrets>>,
    /// Nothing is sent over a network unencrypted.
    pub encrypt: bool,
    /// The addresses at which peers find tcp's listeners.
    pub tcp_at: tcp::At,
    /// tcp rails per NIC; 0: chosen from link rate and CPU count.
    pub tcp_streams: usize,
    /// DSCP class of tcp's packets; 0: the system's default.
    pub tcp_dscp: u8,
    pub trace: Option<Trace>,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        EndpointConfig {
            fabric: None,
            rails: None,
            rail_count: 0,
            min_rails: 1,
            manual: false,
            idle: Idle::Adaptive,
            workers: 0,
            max_transfers: 16_384,
            queue_depth: 16_384,
            max_peers: 4096,
            max_counters: 65_536,
            timeout_ns: 30_000_000_000,
            connect_timeout_ns: 10_000_000_000,
            message_bytes: 16 << 20,
            liveness_ns: Some(120_000_000_000),
            secrets: None,
            encrypt: false,
            tcp_at: tcp::At::default(),
            tcp_streams: 0,
            tcp_dscp: 0,
            trace: None,
        }
    }
}

impl EndpointConfig {
    /// Whether a thread sleeps until a rail has work. (A completion queue that supports sleeping
    /// costs libfabric's tcp some 4 % of its rate: measured.)
    pub fn sleeps(&self) -> bool {
        self.idle != Idle::Spin
    }

    /// The largest message length that is accepted.
    pub fn message_max(&self) -> usize {
        1 << 20
    }
}
