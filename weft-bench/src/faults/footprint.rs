//! Memory that a process takes for each peer, and for each transfer under way.

use super::far::{write, Far};
use super::Holds;
use ::weft::capi::completion::*;
use anyhow::{bail, Result};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

const LEN: usize = 64 << 10;
const TIMEOUT: Duration = Duration::from_secs(60);
/// The workers take up what was submitted.
const SETTLE: Duration = Duration::from_millis(500);

#[derive(Serialize, Deserialize)]
pub struct Report {
    pub bytes_each: f64,
    /// Of the process, before them.
    pub before: Holds,
}

fn report(before: Holds, count: usize) -> Result<Report> {
    let grown = Holds::now()?.resident.saturating_sub(before.resident);
    Ok(Report { bytes_each: grown as f64 / count.max(1) as f64, before })
}

/// Peers over loopback tcp, with one rail.
pub fn peers(count: usize) -> Result<Report> {
    let far = Far::start(count + 1, LEN)?;
    // What the first one needs, all have.
    far.here.connect(&far.addresses[0])?;
    let before = Holds::now()?;
    for address in &far.addresses[1..] {
        far.here.connect(address)?;
    }
    report(before, count)
}

/// Transfers of one page to a peer that has stopped.
pub fn transfers(count: usize) -> Result<Report> {
    let far = Far::start(1, LEN)?;
    let joined = far.join(LEN)?;
    write(&far.here, &joined, LEN, TIMEOUT)?;
    far.here.take(WEFT_COMPLETION_WRITE, 1)?;
    far.process.signal(libc::SIGSTOP)?;
    let before = Holds::now()?;
    for _ in 0..count {
        write(&far.here, &joined, LEN, TIMEOUT)?;
    }
    std::thread::sleep(SETTLE);
    let report = report(before, count)?;
    far.process.signal(libc::SIGKILL)?;
    let (mut left, begun) = (count, Instant::now());
    while left > 0 && begun.elapsed() < TIMEOUT {
        left -= far.ended()?.len();
    }
    if left > 0 {
        bail!("{left} of {count} transfers have not ended");
    }
    Ok(report)
}
