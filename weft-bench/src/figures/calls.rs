//! What calls cost the thread that makes them.

use super::{figure, Bench, Figure};
use crate::sim::calls::Calls;
use anyhow::Result;

pub const ALL: &[Figure] = &[
    figure!(
        "submit_ns_1page",
        "ns of a call of weft_write_pages with one page, while a worker spins",
        "under 300",
        "",
        |bench| pages(bench, 1)
    ),
    figure!("submit_ns_1000pages", "the same with 1000 random pages", "", "", |bench| pages(bench, 1000)),
];

fn pages(bench: &mut Bench, pages: usize) -> Result<f64> {
    bench.progress.begin("submissions");
    let calls = Calls::open(pages, 1)?;
    let batches = if bench.quick { 200 } else { 2000 };
    let ns = calls.pages(batches, 32)?;
    calls.close()?;
    Ok(ns)
}
