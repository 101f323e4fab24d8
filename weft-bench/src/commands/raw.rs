//! `weft-bench raw`: pages through bare libfabric and through Weft, in turns.

use crate::pair::{self, Case, Fabric, Outcome, Rival};
use crate::show::{self, Progress};
use crate::stats::Spread;
use anyhow::Result;

/// Moves random pages between two processes, by the bare loop (one fi_writemsg
/// for each page, a tuned window, nothing else) and by Weft in turns: same
/// processes, buffers and pages. The ratio is the median over the pairs.
#[derive(clap::Args)]
pub struct Args {
    /// Which fabric.
    #[arg(long, value_enum, default_value_t = Fabric::Tcp)]
    fabric: Fabric,
    /// Bytes of a page, as 65536 or 64K.
    #[arg(long, default_value = "64K", value_parser = show::parse_size)]
    page: usize,
    /// Pages of a transfer. Default: 32 MiB of them, but at most 4096.
    #[arg(long)]
    pages: Option<usize>,
    /// Pairs of transfers.
    #[arg(long, default_value_t = 400)]
    pairs: usize,
    /// Divided among so many sessions, each with processes and connections of its own.
    #[arg(long, default_value_t = 4)]
    sessions: usize,
    /// What is measured beside the bare loop: Weft, or the bare loop itself, which must give 1.
    /// "socket" measures a socket's writev alone.
    #[arg(long, value_enum, default_value_t = Rival::Weft)]
    rival: Rival,
    /// Weft with its worker threads, instead of progress in the polling thread.
    #[arg(long)]
    threads: bool,
    /// Weft may pack small pages, instead of one write for each.
    #[arg(long)]
    packing: bool,
    /// The bare loop's window: writes in flight. Default: the fastest of several.
    #[arg(long, value_name = "WRITES")]
    window: Option<usize>,
}

pub fn run(args: &Args) -> Result<()> {
    let mut case = Case::new(args.fabric, args.page, args.rival);
    case.pages = args.pages.unwrap_or(case.pages);
    case.pairs = args.pairs;
    case.sessions = args.sessions;
    case.threads = args.threads;
    case.packing = args.packing;
    case.window = args.window;
    let progress = Progress::new();
    let outcome = pair::measure(&case, &progress)?;
    progress.finish();
    print(&case, &outcome);
    Ok(())
}

fn print(case: &Case, outcome: &Outcome) {
    show::facts(&outcome.facts);
    println!(
        "{} pages of {} bytes a transfer, {} pairs over {}",
        case.pages, case.page_len, case.pairs, outcome.provider
    );
    println!("tuning: {}", outcome.tuning);
    for (i, name) in outcome.names.iter().enumerate() {
        let rates = Spread::of(outcome.rates(i));
        println!("{name:>8}: {:.3} GB/s   (10 % {:.3}, 90 % {:.3})", rates.median, rates.low, rates.high);
    }
    if outcome.names.len() > 1 {
        let ratios = Spread::of(outcome.ratios());
        println!(
            "{:>8}: {:.4}   (10 % {:.3}, 90 % {:.3}; standard error about {:.4})",
            "ratio", ratios.median, ratios.low, ratios.high, ratios.error
        );
    }
}
