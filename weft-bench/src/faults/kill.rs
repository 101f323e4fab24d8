//! A peer that is killed under a load: when the last of its transfers ends.

use super::far::{wait, write, Far};
use ::weft::capi::completion::*;
use ::weft::capi::status::WEFT_OK;
use anyhow::{bail, Result};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

const LEN: usize = 1 << 20;
const IN_FLIGHT: usize = 64;
const BEFORE: Duration = Duration::from_millis(500);
const DEADLINE: Duration = Duration::from_secs(5);
const GRACE: Duration = Duration::from_secs(1);

/// A load over loopback tcp, whose target is killed.
#[derive(clap::Args)]
pub struct Spec {}

#[derive(Serialize, Deserialize)]
pub struct Report {
    /// From the signal to the last completion.
    pub ms: f64,
    /// Transfers that were under way.
    pub outstanding: usize,
    pub failed: usize,
}

pub fn run(_: &Spec) -> Result<Report> {
    let far = Far::start(1, LEN)?;
    let joined = far.join(LEN)?;
    for _ in 0..IN_FLIGHT {
        write(&far.side, &joined, LEN as u64, DEADLINE)?;
    }
    let begun = Instant::now();
    while begun.elapsed() < BEFORE {
        for one in wait(&far.side)?.iter().filter(|one| one.kind == WEFT_COMPLETION_WRITE) {
            if one.status != WEFT_OK {
                bail!("a transfer failed before the peer was killed: {}", one.status);
            }
            write(&far.side, &joined, LEN as u64, DEADLINE)?;
        }
    }
    let killed = Instant::now();
    far.signal(libc::SIGKILL)?;
    let (mut left, mut failed, mut last) = (IN_FLIGHT, 0, killed);
    while left > 0 && killed.elapsed() < DEADLINE + GRACE {
        for one in wait(&far.side)?.iter().filter(|one| one.kind == WEFT_COMPLETION_WRITE) {
            left -= 1;
            failed += usize::from(one.status != WEFT_OK);
            last = Instant::now();
        }
    }
    if left > 0 {
        bail!("{left} transfers have not ended");
    }
    Ok(Report { ms: (last - killed).as_secs_f64() * 1000.0, outstanding: IN_FLIGHT, failed })
}
