//! The configuration of an endpoint: one struct, which callers and variables of the environment fill, and which
//! opening checks (`environment` has the table of its fields).

use super::environment::{self, Field, FIELDS};
use crate::fabric::tcp;
use crate::status::{Error, Result};
use crate::trace::Trace;
use crate::wire::secret::{check_len, Secrets};
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) const SECOND_NS: u64 = 1_000_000_000;
/// The longest message.
pub const MESSAGE_MAX: usize = 1 << 20;
/// The value of `EndpointConfig::liveness_ns` with which silence never ends a peer.
pub const LIVENESS_OFF: u64 = u64::MAX;

/// Bytes that are overwritten when they are no longer needed.
#[derive(Clone)]
pub struct Secret(pub Vec<u8>);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        std::hint::black_box(&mut self.0); // Keeps the compiler from removing the erasure.
    }
}

/// From the caller, 0 and `None` mean the default; `check` replaces them.
#[derive(Clone, Default)]
pub struct EndpointConfig {
    pub fabric: Option<String>,
    pub rails: Option<String>,
    /// Number of rails; 0: one per NIC.
    pub rail_count: u64,
    pub min_rails: u64,
    /// tcp rails per NIC; 0: chosen from link rate and CPU count.
    pub tcp_streams: u64,
    pub manual: bool,
    pub idle: Idle,
    /// Number of workers; 0: one per group of rails.
    pub workers: u64,
    pub max_transfers: u64,
    pub queue_depth: u64,
    pub max_peers: u64,
    pub max_counters: u64,
    pub timeout_ns: u64,
    pub connect_timeout_ns: u64,
    pub message_bytes: u64,
    pub liveness_ns: u64,
    pub secret: Option<Secret>,
    pub other_secret: Option<Secret>,
    pub secret_file: Option<PathBuf>,
    /// Nothing is sent over a network unencrypted.
    pub encrypt: bool,
    /// DSCP class of tcp's packets; 0: the system's default.
    pub tcp_dscp: u64,
    pub tcp_ports: Option<String>,
    pub tcp_address: Option<String>,
    pub trace: Option<PathBuf>,
    /// What `check` makes: the secrets, which peers must share; the addresses at which peers find tcp's listeners; and
    /// the trace.
    pub secrets: Option<Arc<Secrets>>,
    pub tcp_at: tcp::At,
    pub traced: Option<Trace>,
}

fn within(name: &str, value: u64, low: u64, high: u64, default: u64) -> Result<u64> {
    match value {
        0 => Ok(default),
        v if (low..=high).contains(&v) => Ok(v),
        v => {
            let default = if default == 0 { "the default".to_owned() } else { default.to_string() };
            Err(Error::limit(format!("{name} is {v}: it must be {low} to {high}, or 0 for {default}")))
        }
    }
}

impl EndpointConfig {
    /// Fills what is unset, from the environment and then with defaults.
    pub fn check(mut self) -> Result<EndpointConfig> {
        let taken = environment::fill(&mut self, libfabric_sys::variable)?.join(", ");
        if taken.is_empty() {
            return self.checked();
        }
        log::info!("the environment sets {taken}");
        self.checked().map_err(|error| error.about(&format!("with {taken}")))
    }

    fn checked(mut self) -> Result<EndpointConfig> {
        if let Some(secrets) = self.read_secrets()? {
            self.secrets = Some(Arc::new(secrets));
        }
        (self.secret, self.other_secret) = (None, None);
        if self.encrypt && self.secrets.is_none() {
            return Err(Error::invalid("encrypt is 1, but there is no secret: set secret or secret_file"));
        }
        for (variable, field) in FIELDS {
            let (Field::Count(number, (low, high), default) | Field::Time(number, (low, high), default)) =
                field
            else {
                continue;
            };
            let value = number(&mut self);
            if *variable != environment::LIVENESS || *value != LIVENESS_OFF {
                *value = within(&environment::field_of(variable, field), *value, *low, *high, *default)?;
            }
        }
        self.tcp_at = tcp::At::new(self.tcp_ports.as_deref(), self.tcp_address.as_deref())?;
        // After the other checks: this makes the file.
        self.traced = self.trace.as_deref().map(Trace::new).transpose()?;
        Ok(self)
    }

    fn read_secrets(&self) -> Result<Option<Secrets>> {
        let secrets = [(&self.secret, "secret"), (&self.other_secret, "other_secret")];
        let given: Vec<(&[u8], &str)> =
            secrets.into_iter().filter_map(|(secret, name)| Some((&secret.as_ref()?.0[..], name))).collect();
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
        match file {
            Some(file) => Secrets::of_file(file).map(Some),
            None if given.is_empty() => Ok(None),
            None => Secrets::new(&given).map(Some),
        }
    }

    /// How long a peer may be silent; `None`: forever.
    pub fn silence_ns(&self) -> Option<u64> {
        (self.liveness_ns != LIVENESS_OFF).then_some(self.liveness_ns)
    }

    /// Whether a thread sleeps until a rail has work. (A completion queue that supports sleeping
    /// costs libfabric's tcp some 4 % of its rate: measured.)
    pub fn sleeps(&self) -> bool {
        self.idle != Idle::Spin
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
