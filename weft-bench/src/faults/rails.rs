//! A rail goes down under load, and comes back.

use crate::lab::{set_link, set_port};
use crate::load::client::{meet, Met};
use crate::load::Load;
use anyhow::{bail, Context, Result};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

const WAIT: Duration = Duration::from_millis(1);
const EVERY: Duration = Duration::from_millis(5);
const BEFORE: Duration = Duration::from_secs(2);
const AWAY: Duration = Duration::from_secs(4);
const AFTER: Duration = Duration::from_secs(5);
/// The rate is averaged over this many milliseconds.
const WINDOW_MS: f64 = 200.0;
/// The share of the remaining rails' final rate that counts as full rate.
const FULL: f64 = 0.9;
/// After this time any change has other causes, and the share of the line is counted.
const SETTLED_MS: f64 = 1500.0;
/// The rail counts as used when it has carried this much.
const USED: u64 = 256 << 10;

#[derive(Serialize, Deserialize)]
pub struct Spec {
    pub connect: String,
    pub rails: u32,
    /// Bits per second of one rail.
    pub line: f64,
    /// The interface that goes down.
    pub interface: String,
    /// The port of the lab's switch that goes down in its place: a cable is cut.
    pub port: Option<String>,
    pub read: bool,
}

#[derive(Serialize, Deserialize)]
pub struct Report {
    /// From the link's failure until the others carry all they can.
    pub failover_ms: f64,
    /// What they carry, relative to their line rate.
    pub share: f64,
    /// From the link's return until the rail is used.
    pub rejoin_ms: f64,
    /// The longest time without a byte on any rail.
    pub silence_ms: f64,
}

/// Bytes of all rails, and of the failing rail, at a time.
#[derive(Clone, Copy)]
struct Sample {
    ms: f64,
    all: u64,
    of_rail: u64,
}

pub fn run(spec: &Spec) -> Result<Report> {
    let load = Load { read: spec.read, ..Load::over_tcp(spec.rails, 64 << 10, 1000, 4) };
    let lists: Vec<_> = (0..load.in_flight).map(|place| load.lists(place)).collect();
    let Met { side, talk: _lives, .. } = meet(&spec.connect, &load)?;
    let rail = side.rails()?.iter().position(|rail| rail.name == spec.interface).context("no such rail")?;
    for (place, lists) in lists.iter().enumerate() {
        side.submit(&load, place, lists)?;
    }
    let set = |to: &str| match &spec.port {
        Some(port) => set_port(port, to),
        None => set_link(&spec.interface, &[to]),
    };
    let begun = Instant::now();
    let ms = || begun.elapsed().as_secs_f64() * 1000.0;
    let (mut samples, mut sampled) = (Vec::new(), begun);
    let (mut down, mut up) = (None, None);
    while begun.elapsed() < BEFORE + AWAY + AFTER {
        for one in side.done(WAIT)? {
            let place = one.user_data as usize;
            side.submit(&load, place, &lists[place])?;
        }
        if down.is_none() && begun.elapsed() > BEFORE {
            down = Some(ms());
            set("down")?;
        }
        if up.is_none() && begun.elapsed() > BEFORE + AWAY {
            set("up")?;
            up = Some(ms());
        }
        if sampled.elapsed() > EVERY {
            sampled = Instant::now();
            let rails = side.rails()?;
            let all = rails.iter().map(|rail| rail.bytes).sum();
            samples.push(Sample { ms: ms(), all, of_rail: rails[rail].bytes });
        }
    }
    let (down, up) = down.zip(up).context("the time was too short")?;
    let line = f64::from(spec.rails - 1) * spec.line / 8.0 / 1000.0;
    judge(&samples, down, up, line)
}

/// `line`: bytes per millisecond that the remaining rails carry.
fn judge(samples: &[Sample], down: f64, up: f64, line: f64) -> Result<Report> {
    let away: Vec<Sample> = samples.iter().copied().filter(|one| one.ms >= down && one.ms <= up).collect();
    let settled = away.iter().find(|one| one.ms > down + SETTLED_MS).context("no samples")?;
    let last = away.last().context("no samples")?;
    let rate = (last.all - settled.all) as f64 / (last.ms - settled.ms);
    // The last time after which the rate was below full.
    let mut slow = down;
    let mut silence_ms: f64 = 0.0;
    let mut moved = down;
    for (i, one) in away.iter().enumerate() {
        let Some(end) = away[i..].iter().find(|later| later.ms >= one.ms + WINDOW_MS) else { break };
        if one.ms < settled.ms && ((end.all - one.all) as f64) < FULL * rate * (end.ms - one.ms) {
            slow = one.ms;
        }
    }
    for pair in away.windows(2) {
        if pair[1].all > pair[0].all {
            moved = pair[1].ms;
        }
        silence_ms = silence_ms.max(pair[1].ms - moved);
    }
    let used = samples.iter().find(|one| one.ms > up && one.of_rail > last.of_rail + USED);
    let Some(used) = used else { bail!("the rail is not used {AFTER:?} after its link is up") };
    Ok(Report { failover_ms: slow - down, share: rate / line, rejoin_ms: used.ms - up, silence_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failover_times_are_derived_from_the_rate() {
        // 100 bytes per millisecond; none for 300 ms after the link's failure.
        let at = |ms: f64| {
            let all = if ms < 1000.0 { ms } else { 1000.0 + (ms - 1300.0).max(0.0) };
            let of_rail = if ms < 5400.0 { 0 } else { USED + 1 };
            Sample { ms, all: (all * 100.0) as u64, of_rail }
        };
        let samples: Vec<Sample> = (0..1200).map(|i| at(f64::from(i) * 5.0)).collect();
        let report = judge(&samples, 1000.0, 5000.0, 100.0).unwrap();
        assert!((report.failover_ms - 280.0).abs() <= 20.0, "{}", report.failover_ms);
        assert!((report.share - 1.0).abs() < 0.01, "{}", report.share);
        assert!((report.rejoin_ms - 400.0).abs() <= 5.0, "{}", report.rejoin_ms);
        assert!((report.silence_ms - 300.0).abs() <= 10.0, "{}", report.silence_ms);
    }
}
