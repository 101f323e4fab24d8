//! Peers over loopback tcp that connect at once, beside transfers to another process that are under way.

use super::far::{write, Far, Joined, WAIT};
use crate::endpoint::{check, Endpoint};
use ::weft::capi::completion::*;
use anyhow::{ensure, Result};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

const LEN: usize = 1 << 20;
const UNDER_WAY: usize = 4;
const WINDOW: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Serialize, Deserialize)]
pub struct Spec {
    pub count: usize,
    /// They connect to another endpoint of this process: what they cost whoever shares processors
    /// with them.
    pub elsewhere: bool,
}

#[derive(Serialize, Deserialize)]
pub struct Report {
    /// Until the last one is up.
    pub ms: f64,
    /// Of writes in the 2 s from the connects on, over those in the 2 s before.
    pub share: f64,
}

pub fn run(spec: &Spec) -> Result<Report> {
    let (crowd, far) = (Far::start(spec.count, LEN)?, Far::start(1, LEN)?);
    let joined = far.join(LEN)?;
    for _ in 0..UNDER_WAY {
        write(&far.here, &joined, LEN, TIMEOUT)?;
    }
    let host = if spec.elsewhere { &crowd.here } else { &far.here };
    stream(&far, &joined, host, 0)?;
    let before = stream(&far, &joined, host, 0)?.0;
    for address in &crowd.addresses {
        host.begin_connect(address)?;
    }
    let (during, ms) = stream(&far, &joined, host, spec.count)?;
    ensure!(before > 0, "no write ended in {WINDOW:?}");
    Ok(Report { ms, share: during as f64 / before as f64 })
}

/// Keeps writes under way for a while, and until so many peers of `host` are up: how many ended
/// in that while, and the time until the last peer was up.
fn stream(far: &Far, joined: &Joined, host: &Endpoint, mut connecting: usize) -> Result<(usize, f64)> {
    let (begun, mut ended, mut ms) = (Instant::now(), 0, 0.0);
    while begun.elapsed() < WINDOW || connecting > 0 {
        ensure!(begun.elapsed() < TIMEOUT, "{connecting} peers are not up after {TIMEOUT:?}");
        for one in far.here.wait(WAIT)?.into_iter().chain(host.wait(Duration::ZERO)?) {
            check("a completion", one.status)?;
            match one.kind {
                WEFT_COMPLETION_WRITE => {
                    ended += (begun.elapsed() < WINDOW) as usize;
                    write(&far.here, joined, LEN, TIMEOUT)?;
                }
                WEFT_COMPLETION_PEER_UP => {
                    connecting -= 1;
                    ms = begun.elapsed().as_secs_f64() * 1e3;
                }
                _ => {}
            }
        }
    }
    Ok((ended, ms))
}
