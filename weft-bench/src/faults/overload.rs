//! More is submitted than the line carries, all of it with deadlines.

use crate::load::client::{meet, Met};
use crate::load::{Load, Opening};
use ::weft::capi::completion::*;
use ::weft::capi::status::WEFT_OK;
use anyhow::{bail, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(1);
/// Until what was submitted at first has had its deadline.
const WARM_UP: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_millis(1);
const PAGE: usize = 64 << 10;
/// Places in memory; several transfers may use the same.
const PLACES: usize = 32;

#[derive(clap::Args)]
pub struct Spec {
    #[arg(long)]
    connect: String,
    #[arg(long)]
    rails: u32,
    /// Bits per second of all rails.
    #[arg(long)]
    line: f64,
    /// How many times as much is submitted.
    #[arg(long)]
    load: f64,
    #[arg(long)]
    seconds: f64,
    /// Pages of 64 KiB of a transfer.
    #[arg(long)]
    pages: usize,
}

#[derive(Serialize, Deserialize)]
pub struct Report {
    /// Bytes of transfers that were in time, over what the line carries.
    pub goodput: f64,
    /// Completions by their status, and submissions that were refused.
    pub ended: BTreeMap<i32, u64>,
    pub refused: u64,
}

pub fn run(spec: &Spec) -> Result<Report> {
    let load = Load {
        page_len: PAGE,
        pages: spec.pages,
        in_flight: PLACES,
        ..Load::one_page(Opening {
            rails: Some(spec.rails),
            fabric: Some("tcp".into()),
            ..Opening::default()
        })
    };
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
        for one in side.wait(WAIT)?.iter().filter(|one| one.kind == WEFT_COMPLETION_WRITE) {
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
