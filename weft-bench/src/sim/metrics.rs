//! The cost of a call of `weft_endpoint_metrics`.

use super::ends::open;
use crate::stats::Spread;
use ::weft::capi::completion::*;
use anyhow::Result;
use std::time::Instant;

const RAILS: &str = "sim:like=efa:nocopy:rails=32";
const PEERS: usize = 100;

/// Microseconds per call, and the length of the text, for an endpoint with 32 rails and 100 peers.
pub fn call_us(calls: usize) -> Result<(Spread, usize)> {
    let endpoint = open(RAILS, 1, false)?;
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        let peer = open("sim:like=efa:nocopy", 0, false)?;
        endpoint.begin_connect(&peer.address()?)?;
        while endpoint.count(WEFT_COMPLETION_PEER_UP, 0)? == 0 {
            // The earlier ones, too: while they are silent, a connect may take longer than its timeout on one core.
            for peer in peers.iter().chain([&peer]) {
                peer.count(WEFT_COMPLETION_MESSAGE, 0)?;
            }
        }
        peers.push(peer);
    }
    let (mut times, mut len) = (Vec::new(), 0);
    let mut text = vec![0; 2 * endpoint.metrics()?.len()];
    for _ in 0..calls {
        let begun = Instant::now();
        len = endpoint.metrics_into(&mut text)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok((Spread::new(times), len))
}
