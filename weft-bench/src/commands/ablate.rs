//! `weft-bench ablate`: what each step from a simple loop to Weft is worth.

use super::Args;
use crate::chart::{self, Bars};
use crate::engines::Kind;
use crate::pair::{self, Case, Fabric, Outcome, Rival};
use crate::show::{self, Progress};
use crate::stats::Spread;
use anyhow::{ensure, Result};
use std::path::PathBuf;

pub const HELP: &str = "\
Runs the steps that made the original of this library fast, one after the other and in turns: a simple loop over
several endpoints, then warm-up, threads, pinning, sharded state, batched posting, lazy posting, each on top of those
before; and Weft itself. Beside them stand the original's figures.

All endpoints share this machine's loopback and its cores: the kernel's copies are what costs here, and a step may be
worth nothing that was worth much on 32 NICs. Weft opens that one NIC as one rail, with its worker threads.

  --rails N    endpoints of the bare steps (4)
  --threads N  threads that drive them, from the step \"threads\" on (2)
  --seconds N  about how long the transfers take, all together; connecting comes on top (60)
  --svg FILE   draw the chart here (target/ablation.svg)
";

/// Gbps that the original reached, a tutorial in fifteen programs on AWS p5 (64 KiB
/// pages, 32 NICs of 100 Gbps): the same steps in the same order, without Weft.
const ORIGINAL: [f64; 7] = [287.0, 293.0, 355.0, 1238.0, 1523.0, 2589.0, 3108.0];
const ORIGINAL_LINE: f64 = 3200.0;
const PAGES: usize = 1000;
/// Rounds that tell how long a round takes.
const TRIAL: usize = 8;

/// One step's figures: GB/s here, and the original's Gbps.
struct Row {
    name: String,
    rate: Spread,
    original: Option<f64>,
}

pub fn run(mut args: Args) -> Result<()> {
    let mut case = Case::new(Fabric::Tcp, 65536, Rival::Steps);
    (case.rails, case.step_threads) = (args.or("--rails", 4)?, args.or("--threads", 2)?);
    let seconds: f64 = args.or("--seconds", 60.0)?;
    let svg = args.or("--svg", PathBuf::from("target/ablation.svg"))?;
    args.end()?;
    ensure!(case.rails > 0 && case.step_threads > 0, "at least one rail and one thread are needed");
    (case.pages, case.threads) = (PAGES, true);
    let progress = Progress::default();
    (case.pairs, case.sessions) = (TRIAL, 1);
    let round = pair::measure(&case, &progress)?.round_seconds();
    case.pairs = ((seconds / round) as usize).max(TRIAL);
    case.sessions = 4;
    let outcome = pair::measure(&case, &progress)?;
    progress.finish();
    let rows = rows(&outcome);
    show::facts(&outcome.facts);
    println!(
        "{PAGES} random pages of 64 KiB, {} rails over {}, {} threads, {} rounds; medians of GB/s and their tenths",
        case.rails, outcome.provider, case.step_threads, case.pairs
    );
    println!("{}", table(&rows));
    println!(
        "All rails share one NIC and these cores: what a step is worth here is not what it is on 32 NICs."
    );
    let here = rows.iter().map(|row| (row.rate.median, format!("{:.2} GB/s", row.rate.median)));
    let most = rows.iter().map(|row| row.rate.median).fold(0.0, f64::max);
    let original = rows.iter().map(|row| {
        let says = row.original.map_or(String::new(), |gbps| format!("{gbps:.0} Gbps"));
        (row.original.unwrap_or(0.0), says)
    });
    let bars = |title, most, bars: &mut dyn Iterator<Item = (f64, String)>| Bars {
        title,
        most,
        bars: rows.iter().zip(bars).map(|(row, (value, says))| (row.name.clone(), value, says)).collect(),
    };
    let here = bars(format!("This machine: GB/s over {}", outcome.provider), most, &mut { here });
    let line = format!("The original on AWS p5: Gbps of {ORIGINAL_LINE:.0}");
    chart::bars(&svg, &[here, bars(line, ORIGINAL_LINE, &mut { original })])?;
    println!("chart: {}", svg.display());
    Ok(())
}

fn rows(outcome: &Outcome) -> Vec<Row> {
    let row = |(at, kind): (usize, &Kind)| Row {
        name: match at {
            0 => kind.name(),
            at if at == ORIGINAL.len() => "Weft".to_owned(),
            _ => format!("+ {}", kind.name()),
        },
        rate: Spread::of(outcome.rates(at)),
        original: ORIGINAL.get(at).copied(),
    };
    outcome.kinds.iter().enumerate().map(row).collect()
}

fn table(rows: &[Row]) -> String {
    let head = ["step", "GB/s", "", "over the one before", "original, Gbps", "over the one before"];
    let mut lines = vec![head.map(String::from).to_vec()];
    let over = |now: f64, before: Option<f64>| {
        before.map_or(String::new(), |before| format!("{:+.0} %", (now / before - 1.0) * 100.0))
    };
    for (at, row) in rows.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| &rows[before]);
        let rate = &row.rate;
        lines.push(vec![
            row.name.clone(),
            format!("{:.3}", rate.median),
            format!("{:.3} to {:.3}", rate.low, rate.high),
            over(rate.median, before.map(|before| before.rate.median)),
            row.original.map_or(String::new(), |gbps| format!("{gbps:.0}")),
            row.original.map_or(String::new(), |now| over(now, before.and_then(|before| before.original))),
        ]);
    }
    show::table(&lines, 1..6)
}
