//! `weft-bench crossover`: from which page size on a page of its own is no longer
//! dearer than a copy.

use crate::chart::{self, Line};
use crate::pair::{self, Case, Fabric, Outcome, Rival};
use crate::show::{self, Progress};
use crate::stats::Spread;
use anyhow::{bail, Context, Result};
use comfy_table::{CellAlignment, Table};
use serde_json::json;
use std::path::PathBuf;

/// Bytes of a transfer, at most.
const BYTES: usize = 16 << 20;
const PAGES: usize = 4096;

/// Moves random pages of growing size between two processes over bare libfabric,
/// in three ways in turns: one write for each page; several pages a write, by the
/// provider's vectors; and packed: gathered into a slot, written as one, scattered
/// by the target. Of each way the fastest tuning at that size counts.
#[derive(clap::Args)]
pub struct Args {
    /// Which fabric.
    #[arg(long, value_enum, default_value_t = Fabric::Tcp)]
    fabric: Fabric,
    /// The smallest page, as 512 or 4K.
    #[arg(long, default_value = "512", value_parser = show::parse_size)]
    from: usize,
    /// The largest page: sizes double up to it.
    #[arg(long, default_value = "1M", value_parser = show::parse_size)]
    to: usize,
    /// Rounds at each size: a transfer of each way.
    #[arg(long, default_value_t = 60)]
    rounds: usize,
    /// Divided among so many sessions, each with processes and connections of its own.
    #[arg(long, default_value_t = 2)]
    sessions: usize,
    /// Write the figures as JSON, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the chart here.
    #[arg(long, value_name = "FILE", default_value = "target/crossover.svg")]
    svg: PathBuf,
}

/// What was measured at one page size.
struct Row {
    page_len: usize,
    rates: Vec<Spread>,
    tuning: String,
}

pub fn run(args: &Args) -> Result<()> {
    let sizes: Vec<usize> =
        std::iter::successors(Some(args.from), |size| size.checked_mul(2).filter(|size| *size <= args.to))
            .collect();
    if args.from > args.to || args.from % 8 != 0 {
        bail!("--from must be a multiple of 8, and at most --to");
    }
    let progress = Progress::new();
    let (mut rows, mut names, mut facts) = (Vec::new(), Vec::new(), None);
    for page_len in sizes {
        let outcome = pair::measure(&case_of(args, page_len), &progress)?;
        rows.push(row(page_len, &outcome));
        names.clone_from(&outcome.names);
        facts = facts.or(Some((outcome.facts, outcome.provider)));
    }
    progress.finish();
    if let Some((facts, provider)) = facts {
        show::facts(&facts);
        println!("{provider}; GB/s, medians of {} rounds with the tenth below and above", args.rounds);
    }
    println!("{}", table(&rows, &names));
    for row in &rows {
        println!("{:>10}: {}", show::size(row.page_len), row.tuning);
    }
    if let Some(path) = &args.json {
        let rows: Vec<_> = rows.iter().map(|row| to_json(row, &names)).collect();
        std::fs::write(path, serde_json::to_string_pretty(&rows)? + "\n")
            .with_context(|| format!("writing {}", path.display()))?;
    }
    draw(args, &rows, &names)
}

fn case_of(args: &Args, page_len: usize) -> Case {
    let mut case = Case::new(args.fabric, page_len, Rival::Packing);
    case.pages = (BYTES / page_len).clamp(1, PAGES);
    (case.pairs, case.sessions) = (args.rounds, args.sessions);
    case
}

fn row(page_len: usize, outcome: &Outcome) -> Row {
    let rates = (0..outcome.names.len()).map(|way| Spread::of(outcome.rates(way))).collect();
    Row { page_len, rates, tuning: outcome.tuning.clone() }
}

fn to_json(row: &Row, names: &[String]) -> serde_json::Value {
    let ways = names.iter().zip(&row.rates).map(|(name, rate)| {
        (name.clone(), json!({ "gbs": rate.median, "low": rate.low, "high": rate.high }))
    });
    let ways: serde_json::Map<_, _> = ways.collect();
    json!({ "page": row.page_len, "ways": ways, "tuning": row.tuning })
}

fn table(rows: &[Row], names: &[String]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    let mut header = vec!["page".to_owned()];
    for name in names {
        header.extend([name.clone(), String::new()]);
    }
    header.extend(names.iter().skip(1).map(|name| format!("{name} / {}", names[0])));
    table.set_header(header);
    for row in rows {
        let mut cells = vec![show::size(row.page_len)];
        for rate in &row.rates {
            cells.extend([format!("{:.3}", rate.median), format!("{:.3} to {:.3}", rate.low, rate.high)]);
        }
        let over = |rate: &Spread| format!("{:.2}", rate.median / row.rates[0].median);
        cells.extend(row.rates.iter().skip(1).map(over));
        table.add_row(cells);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn draw(args: &Args, rows: &[Row], names: &[String]) -> Result<()> {
    let line = |(way, name): (usize, &String)| Line {
        name: name.clone(),
        points: rows.iter().map(|row| (row.page_len as f64, row.rates[way].median)).collect(),
    };
    let lines: Vec<Line> = names.iter().enumerate().map(line).collect();
    chart::lines(&args.svg, "GB/s by page size", &lines, &|page| show::size(page.round() as usize))?;
    println!("chart: {}", args.svg.display());
    Ok(())
}
