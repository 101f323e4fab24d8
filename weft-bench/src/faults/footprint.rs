//! Memory that a process takes for each peer, and for each transfer under way.

use super::far::{connect, take, wait, write, Far};
use super::Holds;
use crate::engines::check;
use ::weft::capi::completion::*;
use anyhow::{bail, Result};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

const LEN: usize = 64 << 10;
const TIMEOUT: Duration = Duration::from_secs(60);
/// The workers take up what was submitted.
const SETTLE: Duration = Duration::from_millis(500);

/// Peers over loopback tcp, with one rail.
#[derive(clap::Args)]
pub struct Peers {
    #[arg(long)]
    count: usize,
}

/// Transfers of one page to a peer that has stopped.
#[derive(clap::Args)]
pub struct Transfers {
    #[arg(long)]
    count: usize,
}

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

pub fn peers(spec: &Peers) -> Result<Report> {
    let far = Far::start(spec.count + 1, LEN)?;
    // What the first one needs, all have.
    connect(&far.side, &far.addresses[0])?;
    let before = Holds::now()?;
    for address in &far.addresses[1..] {
        connect(&far.side, address)?;
    }
    report(before, spec.count)
}

pub fn transfers(spec: &Transfers) -> Result<Report> {
    let far = Far::start(1, LEN)?;
    let joined = far.join(LEN)?;
    write(&far.side, &joined, LEN as u64, TIMEOUT)?;
    check("a write", take(&far.side, WEFT_COMPLETION_WRITE)?.status)?;
    far.signal(libc::SIGSTOP)?;
    let before = Holds::now()?;
    for _ in 0..spec.count {
        write(&far.side, &joined, LEN as u64, TIMEOUT)?;
    }
    std::thread::sleep(SETTLE);
    let report = report(before, spec.count)?;
    far.signal(libc::SIGKILL)?;
    let (mut left, begun) = (spec.count, Instant::now());
    while left > 0 && begun.elapsed() < TIMEOUT {
        left -= wait(&far.side)?.iter().filter(|one| one.kind == WEFT_COMPLETION_WRITE).count();
    }
    if left > 0 {
        bail!("{left} of {} transfers have not ended", spec.count);
    }
    Ok(report)
}
