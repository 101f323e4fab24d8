//! The fabric between processes of one host.

use super::{figure, Bench, Figure};
use crate::host::{self, Case};
use crate::stats::Spread;
use anyhow::Result;

const LARGE: (usize, usize) = (65536, 1000);
const SMALL: (usize, usize) = (4096, 20_000);

pub const ALL: &[Figure] = &[
    figure!(
        "host_64k_of_memcpy",
        "host, ordinary memory, 1000 random 64 KiB pages: throughput over one thread's memcpy of the same pages",
        "0.55",
        "0.90",
        |bench| of_memcpy(bench, LARGE, false)
    ),
    figure!(
        "host_4k_of_memcpy",
        "the same with 20,000 random 4 KiB pages",
        "0.35",
        "0.70",
        |bench| of_memcpy(bench, SMALL, false)
    ),
    figure!(
        "host_shared_64k_of_memcpy",
        "host, memory of weft_memory_alloc, 1000 random 64 KiB pages: throughput over memcpy's",
        "0.85",
        "0.97",
        |bench| of_memcpy(bench, LARGE, true)
    ),
    figure!(
        "host_shared_4k_of_memcpy",
        "the same with 20,000 random 4 KiB pages",
        "0.60",
        "0.90",
        |bench| of_memcpy(bench, SMALL, true)
    ),
    figure!(
        "pingpong_host_ns",
        "ns of 8 bytes there and back over host, manual progress, both sides polling the bytes",
        "under 1000",
        "under 400",
        pingpong
    ),
];

fn of_memcpy(bench: &mut Bench, (page_len, pages): (usize, usize), shared: bool) -> Result<f64> {
    let kind = if shared { "memory of weft_memory_alloc" } else { "ordinary memory" };
    let what = format!("host, {pages} pages of {} KiB, {kind}", page_len >> 10);
    bench.progress.begin(&what);
    let (rounds, sessions) = if bench.quick { (20, 2) } else { (120, 4) };
    let outcome = host::measure(Case::Pages { page_len, pages, shared }, rounds, sessions)?;
    let rate = |time: fn(&(f64, f64)) -> f64| {
        Spread::of(outcome.rounds.iter().map(|round| outcome.bytes as f64 / time(round)).collect()).median
    };
    let ratios = Spread::of(outcome.rounds.iter().map(|(copied, moved)| copied / moved).collect());
    bench.notes.push(format!(
        "{what}: memcpy {:.2} GB/s, weft {:.2} GB/s, ratio {:.3} (10 % {:.3}, 90 % {:.3})",
        rate(|round| round.0),
        rate(|round| round.1),
        ratios.median,
        ratios.low,
        ratios.high
    ));
    Ok(ratios.median)
}

fn pingpong(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("host, 8 bytes there and back");
    let (rounds, sessions) = if bench.quick { (50, 2) } else { (400, 8) };
    let outcome = host::measure(Case::PingPong, rounds, sessions)?;
    let times = Spread::of(outcome.rounds.iter().map(|round| round.0).collect());
    bench.notes.push(format!(
        "host, there and back: {:.0} ns (10 % {:.0}, 90 % {:.0}); a bare cache line between the same two \
         processors, the nearest of this machine: {:.0} ns",
        times.median,
        times.low,
        times.high,
        Spread::of(outcome.lines).median
    ));
    Ok(times.median)
}
