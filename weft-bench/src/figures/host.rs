//! The fabric between processes of one host.

use super::{figures, raw, Bench, Figure};
use crate::engines::throw::{Game, TIMED};
use crate::pair::{self, Case, Fabric, Rival};
use crate::stats::Spread;
use anyhow::Result;

figures! {
    host_64k_of_memcpy ["0.55", "0.90"] |bench| of_memcpy(bench, 65536, 1000, false) =>
        "host, ordinary memory, 1000 random 64 KiB pages: throughput over one thread's memcpy of the same \
         pages";
    host_4k_of_memcpy ["0.35", "0.70"] |bench| of_memcpy(bench, 4096, 20_000, false) =>
        "the same with 20,000 random 4 KiB pages";
    host_shared_64k_of_memcpy ["0.85", "0.97"] |bench| of_memcpy(bench, 65536, 1000, true) =>
        "host, memory of weft_memory_alloc, 1000 random 64 KiB pages: throughput over memcpy's";
    host_shared_4k_of_memcpy ["0.60", "0.90"] |bench| of_memcpy(bench, 4096, 20_000, true) =>
        "the same with 20,000 random 4 KiB pages";
    pingpong_host_ns ["under 1000", "under 400"] pingpong =>
        "ns of 8 bytes there and back over host, manual progress, both sides polling the bytes";
}

fn of_memcpy(bench: &mut Bench, page_len: usize, pages: usize, shared: bool) -> Result<f64> {
    let mut case = Case::new(Fabric::Host, page_len, Rival::Memcpy);
    // Four transfers in a row.
    (case.pages, case.shared, case.at_once) = (pages, shared, 4);
    (case.pairs, case.sessions) = bench.full_or((120, 4), (20, 2));
    Ok(Spread::new(raw::measure(bench, &case)?.ratios()).median)
}

fn pingpong(bench: &mut Bench) -> Result<f64> {
    let mut case = Case::new(Fabric::Host, 4096, Rival::Throw(Game::Words));
    case.pages = 1;
    (case.pairs, case.sessions) = bench.full_or((2000, 8), (200, 2));
    let outcome = pair::measure(&case, &bench.progress)?;
    bench.notes.push(format!(
        "host, there and back: {:.0} ns; a bare cache line between the same two processors, the nearest of this \
         machine: {:.0} ns",
        outcome.median_ns(0) / TIMED as f64,
        Spread::new(outcome.lines.clone()).median
    ));
    Ok(outcome.median_ns(0) / TIMED as f64)
}
