//! `weft-bench ablate`: what each step from a simple loop to Weft is worth.

use crate::chart::{self, Bars};
use crate::pair::{self, Case, Fabric, Outcome, Rival};
use crate::show::{self, Progress};
use crate::stats::Spread;
use anyhow::{bail, Context, Result};
use clap::ValueEnum;
use comfy_table::{CellAlignment, Table};
use serde_json::json;
use std::path::PathBuf;

/// Gbps that the original reached, a tutorial in fifteen programs on AWS p5 (64 KiB
/// pages, 32 NICs of 100 Gbps): the same steps in the same order, without Weft.
const ORIGINAL: [f64; 7] = [287.0, 293.0, 355.0, 1238.0, 1523.0, 2589.0, 3108.0];
const ORIGINAL_LINE: f64 = 3200.0;
/// Rounds that tell how long a round takes.
const TRIAL: usize = 8;

/// Runs the steps that made the original of this library fast, one after the other
/// and in turns: a simple loop over several endpoints, then warm-up, threads, pinning,
/// sharded state, batched posting, lazy posting, each on top of those before; and Weft
/// itself. Beside them stand the original's figures.
///
/// All endpoints share this machine's loopback and its cores: the kernel's copies are
/// what costs here, and a step may be worth nothing that was worth much on 32 NICs.
/// Weft opens that one NIC as one rail, with its worker threads.
#[derive(clap::Args)]
pub struct Args {
    /// Which fabric. Only tcp can do without a warm-up as often as it is measured.
    #[arg(long, value_enum, default_value_t = Provider::Tcp)]
    provider: Provider,
    /// Endpoints of the bare steps.
    #[arg(long, default_value_t = 4)]
    rails: usize,
    /// Threads that drive them, from the step "threads" on.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Bytes of a page, as 65536 or 64K.
    #[arg(long, default_value = "64K", value_parser = show::parse_size)]
    page_size: usize,
    /// Pages of a transfer.
    #[arg(long, default_value_t = 1000)]
    pages: usize,
    /// About how long the transfers take, all together; connecting comes on top.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Write the figures as JSON, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the chart here.
    #[arg(long, value_name = "FILE", default_value = "target/ablation.svg")]
    svg: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Provider {
    Tcp,
}

/// One step's figures: GB/s here, and the original's Gbps.
struct Row {
    name: String,
    rate: Spread,
    original: Option<f64>,
}

pub fn run(args: &Args) -> Result<()> {
    if args.rails == 0 || args.threads == 0 {
        bail!("at least one rail and one thread are needed");
    }
    let Provider::Tcp = args.provider;
    let mut case = Case::new(Fabric::Tcp, args.page_size, Rival::Steps);
    (case.pages, case.rails, case.step_threads, case.threads) = (args.pages, args.rails, args.threads, true);
    case.packing = true;
    let progress = Progress::new();
    (case.pairs, case.sessions) = (TRIAL, 1);
    let round = pair::measure(&case, &progress)?.round_seconds();
    case.pairs = ((args.seconds as f64 / round) as usize).max(TRIAL);
    case.sessions = 4;
    let outcome = pair::measure(&case, &progress)?;
    progress.finish();
    let rows = rows(&outcome);
    show::facts(&outcome.facts);
    println!(
        "{} random pages of {}, {} rails over {}, {} threads, {} rounds; medians of GB/s and their tenths",
        args.pages,
        show::size(args.page_size),
        args.rails,
        outcome.provider,
        args.threads,
        case.pairs
    );
    println!("{}", table(&rows));
    println!(
        "All rails share one NIC and these cores: what a step is worth here is not what it is on 32 NICs."
    );
    if let Some(path) = &args.json {
        let rows: Vec<_> = rows.iter().map(to_json).collect();
        std::fs::write(path, serde_json::to_string_pretty(&rows)? + "\n")
            .with_context(|| format!("writing {}", path.display()))?;
    }
    draw(args, &outcome, &rows)
}

fn rows(outcome: &Outcome) -> Vec<Row> {
    let row = |(at, name): (usize, &String)| Row {
        name: if at == 0 { name.clone() } else { format!("+ {name}") },
        rate: Spread::of(outcome.rates(at)),
        original: ORIGINAL.get(at).copied(),
    };
    let mut rows: Vec<Row> = outcome.names.iter().enumerate().map(row).collect();
    if let Some(weft) = rows.get_mut(ORIGINAL.len()) {
        weft.name = "Weft".to_owned();
    }
    rows
}

fn to_json(row: &Row) -> serde_json::Value {
    let Spread { median, low, high, .. } = row.rate;
    json!({ "step": row.name, "gbs": median, "low": low, "high": high, "original_gbps": row.original })
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(["step", "GB/s", "", "over the one before", "original, Gbps", "over the one before"]);
    let over = |now: f64, before: Option<f64>| {
        before.map_or(String::new(), |before| format!("{:+.0} %", (now / before - 1.0) * 100.0))
    };
    for (at, row) in rows.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| &rows[before]);
        let rate = &row.rate;
        table.add_row([
            row.name.clone(),
            format!("{:.3}", rate.median),
            format!("{:.3} to {:.3}", rate.low, rate.high),
            over(rate.median, before.map(|before| before.rate.median)),
            row.original.map_or(String::new(), |gbps| format!("{gbps:.0}")),
            row.original.map_or(String::new(), |now| over(now, before.and_then(|before| before.original))),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn draw(args: &Args, outcome: &Outcome, rows: &[Row]) -> Result<()> {
    let most = rows.iter().map(|row| row.rate.median).fold(0.0, f64::max);
    let here = Bars {
        title: format!("This machine: GB/s over {}", outcome.provider),
        most,
        bars: rows
            .iter()
            .map(|row| (row.name.clone(), row.rate.median, format!("{:.2} GB/s", row.rate.median)))
            .collect(),
    };
    let original = Bars {
        title: format!("The original on AWS p5: Gbps of {ORIGINAL_LINE:.0}"),
        most: ORIGINAL_LINE,
        bars: rows
            .iter()
            .map(|row| {
                let says = row.original.map_or(String::new(), |gbps| format!("{gbps:.0} Gbps"));
                (row.name.clone(), row.original.unwrap_or(0.0), says)
            })
            .collect(),
    };
    chart::bars(&args.svg, &[here, original])?;
    println!("chart: {}", args.svg.display());
    Ok(())
}
