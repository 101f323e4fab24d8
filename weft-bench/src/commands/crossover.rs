//! `weft-bench crossover`: from which page size on a page of its own is no longer
//! dearer than a copy.

use super::Args;
use crate::chart::{self, Line};
use crate::pair::{self, Case, Fabric, Outcome, Rival};
use crate::show::{self, Progress};
use crate::stats::Spread;
use anyhow::{bail, Result};
use std::path::PathBuf;

pub const HELP: &str = "\
Moves random pages of 512 bytes to 1 MiB between two processes over bare libfabric, in three ways in turns: one write
for each page; several pages a write, by the provider's vectors; and packed: gathered into a slot, written as one,
scattered by the target. Of each way the fastest tuning at that size counts.

  --fabric FABRIC  tcp (default) or shm
  --rounds N       rounds at each size, a transfer of each way (60)
  --svg FILE       draw the chart here (target/crossover.svg)
";

const SIZES: std::ops::RangeInclusive<u32> = 9..=20;
/// Bytes of a transfer, at most.
const BYTES: usize = 16 << 20;
const PAGES: usize = 4096;

pub fn run(mut args: Args) -> Result<()> {
    let fabric = match args.or("--fabric", "tcp".to_owned())?.as_str() {
        "tcp" => Fabric::Tcp,
        "shm" => Fabric::Shm,
        other => bail!("--fabric {other}: tcp or shm"),
    };
    let rounds = args.or("--rounds", 60)?;
    let svg = args.or("--svg", PathBuf::from("target/crossover.svg"))?;
    args.end()?;
    let progress = Progress::default();
    let mut all: Vec<(usize, Outcome)> = Vec::new();
    for page_len in SIZES.map(|bits| 1usize << bits) {
        let mut case = Case::new(fabric, page_len, Rival::Packing);
        case.pages = (BYTES / page_len).clamp(1, PAGES);
        (case.pairs, case.sessions) = (rounds, 2);
        all.push((page_len, pair::measure(&case, &progress)?));
    }
    progress.finish();
    let (_, Outcome { facts, provider, names, .. }) = &all[0];
    show::facts(facts);
    println!("{provider}; GB/s, medians of {rounds} rounds with the tenth below and above");
    println!("{}", table(&all, names));
    for (page_len, outcome) in &all {
        println!("{:>10}: {}", show::size(*page_len), outcome.tuning);
    }
    let line = |(way, name): (usize, &String)| Line {
        name: name.clone(),
        points: all.iter().map(|(len, out)| (*len as f64, Spread::of(out.rates(way)).median)).collect(),
    };
    let lines: Vec<Line> = names.iter().enumerate().map(line).collect();
    chart::lines(&svg, "GB/s by page size", &lines, &|page| show::size(page.round() as usize))?;
    println!("chart: {}", svg.display());
    Ok(())
}

fn table(all: &[(usize, Outcome)], names: &[String]) -> String {
    let mut head = vec!["page".to_owned()];
    names.iter().for_each(|name| head.extend([name.clone(), String::new()]));
    head.extend(names.iter().skip(1).map(|name| format!("{name} / {}", names[0])));
    let mut rows = vec![head];
    for (page_len, outcome) in all {
        let mut row = vec![show::size(*page_len)];
        let rates: Vec<Spread> = (0..names.len()).map(|way| Spread::of(outcome.rates(way))).collect();
        for rate in &rates {
            row.extend([format!("{:.3}", rate.median), format!("{:.3} to {:.3}", rate.low, rate.high)]);
        }
        row.extend(rates.iter().skip(1).map(|rate| format!("{:.2}", rate.median / rates[0].median)));
        rows.push(row);
    }
    show::table(&rows, 0..usize::MAX)
}
