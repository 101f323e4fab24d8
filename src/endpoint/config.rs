//! How an endpoint is opened.

use crate::fabric::tcp;
use crate::wire::secret::Secrets;
use std::sync::Arc;

/// Behaviour of idle worker threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// Spin for a while, then sleep.
    Adaptive,
    Spin,
    Sleep,
}

#[derive(Clone, Debug)]
pub struct EndpointConfig {
    pub fabric: Option<String>,
    pub rails: Option<String>,
    /// 0: one for each NIC.
    pub rail_count: usize,
    pub min_rails: usize,
    pub manual: bool,
    pub idle: Idle,
    /// 0: one for each group of rails.
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
    /// The secrets that peers must have, too.
    pub secrets: Option<Arc<Secrets>>,
    /// Nothing goes over a network in the clear.
    pub encrypt: bool,
    /// Where peers find what listens for tcp.
    pub tcp_at: tcp::At,
    /// Rails that a NIC of tcp becomes; 0: by its line and the CPUs.
    pub tcp_streams: usize,
    /// DSCP class of tcp's packets; 0: the system's.
    pub tcp_dscp: u8,
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
        }
    }
}

impl EndpointConfig {
    /// Whether a thread sleeps until a rail has something to do. (A completion queue that can be
    /// slept on costs tcp some 4 % of its rate: measured.)
    pub fn sleeps(&self) -> bool {
        self.idle != Idle::Spin
    }

    /// Largest message that is believed.
    pub fn message_max(&self) -> usize {
        1 << 20
    }
}
