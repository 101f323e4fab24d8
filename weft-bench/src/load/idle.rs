//! Two idle hosts: the CPU time that idling costs, and how soon an occasional write completes.

use super::client::{meet, Met};
use super::side::{cpu_ns, Side};
use super::talk::Ask;
use super::Load;
use crate::pages::Lists;
use anyhow::{bail, Context, Result};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Late lanes and connections that warm up are not idle.
const SETTLE: Duration = Duration::from_secs(2);
/// The time between the writes that wake workers: longer than any worker spins.
const PAUSE: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(20);

/// What is measured against `weft-bench serve`.
#[derive(Serialize, Deserialize)]
pub struct Spec {
    pub connect: String,
    pub rails: u32,
    pub seconds: f64,
    /// Writes, one after the other, each after a pause.
    pub wakes: usize,
}

#[derive(Serialize, Deserialize)]
pub struct Report {
    pub rails: usize,
    pub remote_rails: u32,
    /// CPU time of the process, relative to the elapsed time.
    pub share: f64,
    pub remote_share: f64,
    /// Microseconds of a write after a pause, and of one that follows the last at once.
    pub wake_us: Vec<f64>,
    pub awake_us: Vec<f64>,
}

pub fn run(spec: &Spec) -> Result<Report> {
    let load = Load::over_tcp(spec.rails, 4096, 1, 1);
    let lists = load.lists(0);
    let Met { side, mut talk, remote_rails } = meet(&spec.connect, &load)?;
    write(&side, &load, &lists)?;
    std::thread::sleep(SETTLE);
    let (before, remote_before, begun) = (cpu_ns(), talk.ask::<u64>(&Ask::Usage)?, Instant::now());
    std::thread::sleep(Duration::try_from_secs_f64(spec.seconds).context("the time to be idle")?);
    let passed = begun.elapsed().as_nanos() as f64;
    let share = (cpu_ns() - before) as f64 / passed;
    let remote_share = talk.ask::<u64>(&Ask::Usage)?.saturating_sub(remote_before) as f64 / passed;
    let mut wake_us = Vec::new();
    for _ in 0..spec.wakes {
        std::thread::sleep(PAUSE);
        wake_us.push(write(&side, &load, &lists)?);
    }
    let awake_us = (0..spec.wakes).map(|_| write(&side, &load, &lists)).collect::<Result<_>>()?;
    Ok(Report { rails: side.rails()?.len(), remote_rails, share, remote_share, wake_us, awake_us })
}

/// Microseconds until the sleeping caller sees the completion. A polling caller would take the
/// worker's core: a scheduler may wake threads where their waker runs.
fn write(side: &Side, load: &Load, lists: &Lists) -> Result<f64> {
    let begun = Instant::now();
    side.submit(load, 0, lists)?;
    while begun.elapsed() < PATIENCE {
        if !side.done(PATIENCE)?.is_empty() {
            return Ok(begun.elapsed().as_nanos() as f64 / 1000.0);
        }
    }
    bail!("a write of one page did not end for {PATIENCE:?}")
}
