//! More is submitted than the line carries, all of it with deadlines.

use crate::load::client::{meet, Met};
use crate::load::Load;
use ::weft::capi::status::WEFT_OK;
use anyhow::{bail, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(1);
/// Wait until the first submissions have passed their deadline.
const WARM_UP: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_millis(1);
const PAGE: usize = 64 << 10;
/// Slots in memory; several transfers may use the same.
const PLACES: usize = 32;

#[derive(Serialize, Deserialize)]
pub struct Spec {
    pub connect: String,
    pub rails: u32,
    /// Bits per second of all rails together.
    pub line: f64,
    /// How many times the line rate is submitted.
    pub load: f64,
    pub seconds: f64,
    /// 64 KiB pages per transfer.
    pub pages: usize,
}

#[derive(Serialize, Deserialize)]
pub struct Report {
    /// Bytes of transfers that were in time, relative to what the line carries.
    pub goodput: f64,
    /// Completions by status, and submissions that were refused.
    pub ended: BTreeMap<i32, u64>,
    pub refused: u64,
}

pub fn run(spec: &Spec) -> Result<Report> {
    let load = Load::over_tcp(spec.rails, PAGE, spec.pages, PLACES);
    let lists: Vec<_> = (0..PLACES).map(|place| load.lists(place)).collect();
    let Met { side, talk: _lives, remote_rails } = meet(&spec.connect, &load)?;
    if remote_rails < spec.rails {
        bail!("{remote_rails} rails came up there, of {}", spec.rails);
    }
    let bytes = load.bytes_of_transfer() as f64;
    let each_second = spec.load * spec.line / 8.0 / bytes;
    let measured = Duration::try_from_secs_f64(spec.seconds)?;
    let begun = Instant::now();
    let (mut submitted, mut ended_all, mut in_time) = (0u64, 0u64, 0u64);
    let mut report = Report { goodput: 0.0, ended: BTreeMap::new(), refused: 0 };
    loop {
        let passed = begun.elapsed();
        let over = passed > WARM_UP + measured;
        while !over && (submitted as f64) < passed.as_secs_f64() * each_second {
            let place = submitted as usize % PLACES;
            submitted += 1;
            if side.submit_within(&load, place, &lists[place], DEADLINE).is_err() {
                report.refused += 1;
            }
        }
        for one in side.ended(WAIT)? {
            ended_all += 1;
            *report.ended.entry(one.status).or_default() += 1;
            in_time += u64::from(one.status == WEFT_OK && passed > WARM_UP && !over);
        }
        if ended_all + report.refused == submitted && over {
            break;
        }
        if passed > WARM_UP + measured + 5 * DEADLINE {
            bail!("{} transfers have not ended", submitted - report.refused - ended_all);
        }
    }
    report.goodput = in_time as f64 * bytes * 8.0 / spec.seconds / spec.line;
    Ok(report)
}
