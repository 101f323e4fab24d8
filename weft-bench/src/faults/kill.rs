//! A peer that is killed under a load: when the last of its transfers ends.

use super::far::{write, Far};
use ::weft::capi::status::WEFT_OK;
use anyhow::{bail, Result};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

const LEN: usize = 1 << 20;
const IN_FLIGHT: usize = 64;
const BEFORE: Duration = Duration::from_millis(500);
const DEADLINE: Duration = Duration::from_secs(5);
const GRACE: Duration = Duration::from_secs(1);

#[derive(Serialize, Deserialize)]
pub struct Report {
    /// From the signal to the last completion.
    pub ms: f64,
    /// Transfers that were under way.
    pub outstanding: usize,
    pub failed: usize,
}

pub fn run() -> Result<Report> {
    let far = Far::start(1, LEN)?;
    let joined = far.join(LEN)?;
    for _ in 0..IN_FLIGHT {
        write(&far.here, &joined, LEN, DEADLINE)?;
    }
    let begun = Instant::now();
    while begun.elapsed() < BEFORE {
        for one in far.ended()? {
            if one.status != WEFT_OK {
                bail!("a transfer failed before the peer was killed: {}", one.status);
            }
            write(&far.here, &joined, LEN, DEADLINE)?;
        }
    }
    let killed = Instant::now();
    far.process.signal(libc::SIGKILL)?;
    let (mut left, mut failed, mut last) = (IN_FLIGHT, 0, killed);
    while left > 0 && killed.elapsed() < DEADLINE + GRACE {
        for one in far.ended()? {
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
