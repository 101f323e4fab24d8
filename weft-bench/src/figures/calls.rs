//! What calls cost the calling thread, and what counting costs.

use super::{figures, root, said_by, Bench, Figure};
use crate::endpoint::{check, Endpoint, Opening};
use crate::memory::Pool;
use crate::sim::calls::{Calls, Times};
use crate::sim::counts::Counts;
use crate::sim::{lists, metrics};
use crate::stats::Spread;
use ::weft::capi::memory::weft_memory_deregister;
use anyhow::{ensure, Context, Result};
use std::process::Command;
use std::time::Instant;

figures! {
    submit_ns_1page ["under 300", ""] |bench| pages(bench, 1) =>
        "ns of a call of weft_write_pages with one page, while a worker spins";
    submit_ns_1000pages ["", ""] |bench| pages(bench, 1000) =>
        "the same with 1000 random pages";
    submit_ns_1000pages_kept ["under 500", ""] |bench| kept(bench, 1) =>
        "ns of a call of weft_write_prepared with 1000 random pages";
    submit_ns_1000x80_kept ["under 500", ""] |bench| kept(bench, 80) =>
        "the same with 1000 random pages of each of 80 layers";
    submit_ns_1page_ctypes ["", ""] from_python =>
        "ns of a call of weft_write_pages with one page from Python, through ctypes";
    list_kentries_per_s ["", ""] list_entries =>
        "thousand entries of 64 bytes a second, by turns to 16 peers, 16,000 a list; simulated NICs without \
         limit";
    metrics_us ["under 500", ""] metrics_us =>
        "us of a call of weft_endpoint_metrics: 100 peers, 32 simulated rails";
    register_60000_maps_ratio ["at most 3", ""] maps_ratio =>
        "time of a registration of 1 MiB over host in a process with 60,000 mappings, over that with 100";
    counter_marrivals_per_s ["1", ""] arrivals =>
        "million counted pages a second that a receiver sees, over one simulated NIC without limit";
    counter_data_share ["0.95", ""] counted_share =>
        "throughput of counted pages over that of others: random 64 KiB pages over loopback tcp";
}

fn pages(bench: &mut Bench, pages: usize) -> Result<f64> {
    bench.progress.begin("submissions");
    let calls = Calls::open(pages, 1)?;
    let times = calls.pages(bench.full_or(2000, 200), 32)?;
    Ok(median(bench, &format!("weft_write_pages, {pages} pages"), &times))
}

fn kept(bench: &mut Bench, layers: usize) -> Result<f64> {
    bench.progress.begin("submissions of prepared geometry");
    let calls = Calls::open(1000, layers)?;
    let batches = if layers > 1 { 60 } else { 2000 };
    let times = calls.prepared(bench.full_or(batches, batches / 10), 32)?;
    Ok(median(bench, &format!("weft_write_prepared, 1000 pages x {layers} layers"), &times))
}

fn median(bench: &mut Bench, what: &str, Times { clock, all, first }: &Times) -> f64 {
    bench.notes.push(format!(
        "{what}: {:.0} ns (10 % {:.0}, 90 % {:.0}); the first after all before were waited for: {:.0} ns; without \
         the {clock:.0} ns of a look at the clock",
        all.median, all.low, all.high, first.median
    ));
    all.median
}

fn from_python(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("submissions from Python");
    let library = super::simulated()?;
    let mut python = Command::new("python3");
    python.arg(root().join("weft-bench/src/sim/submit.py")).arg(bench.full_or("2000", "200"));
    python.env("PYTHONPATH", root().join("ffi-tests/api/python")).env("PYTHONDONTWRITEBYTECODE", "1");
    let said = said_by(python.env("WEFT_TEST_LIBRARY", &library))?;
    said.trim().parse().context("what the program in Python said")
}

fn list_entries(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("lists to 16 peers");
    Ok(lists::entries_per_s(bench.full_or(200, 20))? / 1e3)
}

fn metrics_us(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("metrics of 100 peers");
    let (times, len) = metrics::call_us(bench.full_or(2000, 200))?;
    bench.notes.push(format!(
        "weft_endpoint_metrics: {:.0} us (10 % {:.0}, 90 % {:.0}), {len} bytes",
        times.median, times.low, times.high
    ));
    Ok(times.median)
}

fn maps_ratio(bench: &mut Bench) -> Result<f64> {
    const PAGE: usize = 4096;
    bench.progress.begin("registrations among many mappings");
    let (endpoint, memory) = (Endpoint::open(&Opening::over("host"))?, Pool::new(PAGE, 256)?);
    let mut us = Vec::new();
    for mappings in [100, 60_000] {
        let area = Pool::untouched(PAGE, mappings)?;
        for page in (0..mappings).step_by(2) {
            // SAFETY: the page is the area's, which nobody uses.
            let rc = unsafe { libc::mprotect(area.base().add(page * PAGE).cast(), PAGE, libc::PROT_READ) };
            ensure!(rc == 0, "a process may not have {mappings} mappings (sysctl vm.max_map_count)");
        }
        let mut times = Vec::new();
        for _ in 0..bench.full_or(1000, 100) {
            let begun = Instant::now();
            let registered = endpoint.register(memory.base(), memory.len())?;
            times.push(begun.elapsed().as_secs_f64() * 1e6);
            // SAFETY: the handle is that of a memory without operations.
            check("weft_memory_deregister", unsafe { weft_memory_deregister(registered) })?;
        }
        // SAFETY: the area is ours, and of this length.
        unsafe { libc::munmap(area.base().cast(), mappings * PAGE) };
        us.push(Spread::new(times).median);
    }
    bench.notes.push(format!("registering 1 MiB: {:.0} us; among 60,000 mappings {:.0} us", us[0], us[1]));
    Ok(us[1] / us[0])
}

fn arrivals(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("counted pages over one simulated NIC");
    let (pages, transfers) = (10_000, bench.full_or(200, 20));
    let mut counts = Counts::open("sim:like=efa:nocopy", 64, pages)?;
    counts.write(4, true)?;
    let ns = counts.write(transfers, true)?;
    Ok((pages * transfers) as f64 * 1e3 / ns)
}

fn counted_share(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("counted pages over tcp");
    let mut counts = Counts::open("tcp", 64 << 10, 512)?;
    let share = counts.share(bench.full_or(60, 10), 16)?;
    bench.notes.push(format!(
        "counted pages over tcp: {:.3} of the rate of others (10 % {:.3}, 90 % {:.3})",
        share.median, share.low, share.high
    ));
    Ok(share.median)
}
