//! The time for one page when the caller waits for it, with default settings.

use super::{figures, library, root, Bench, Figure};
use crate::load::page::{Report, Spec};
use crate::processors;
use crate::stats::Spread;
use anyhow::{ensure, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

figures! {
    one_page_host_4k_us ["under 5", "under 2.5"] |bench| one(bench, "host", 4 << 10, false) =>
        "us from submission until the waiting caller has the completion of a write of 4 KiB over host: default \
         settings on both sides, median, of all processors and of two that both sides share the worse";
    one_page_host_64k_us ["under 8", "under 4"] |bench| one(bench, "host", 64 << 10, true) =>
        "the same of 64 KiB, less the time of one memcpy";
    one_page_tcp_4k_us ["", ""] |bench| one(bench, "tcp", 4 << 10, false) =>
        "the same of 4 KiB over loopback tcp";
    idle_10ms_wakeups ["under 1.6", "under 1.2"] idle =>
        "the same of 4 KiB over host, 10 ms after the last, over the time of a futex wake-up after as long";
    one_page_python_us ["under 15", "under 8"] python =>
        "the same of 4 KiB over host from Python, by the package's blocking call";
    one_page_python_over_c ["under 1.6", "under 1.3"] python_over_c =>
        "the same over that from C, in turns";
}

fn one(bench: &mut Bench, fabric: &str, page_len: usize, beyond_memcpy: bool) -> Result<f64> {
    worse(bench, fabric, page_len, "us", |spec| {
        let report = spec.measure()?;
        Ok(report.us.median - if beyond_memcpy { report.memcpy_us } else { 0.0 })
    })
}

fn idle(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("one page over host after 10 ms, again and again");
    let (sessions, writes) = bench.full_or((5, 200), (3, 100));
    let spec = Spec { fabric: "host".to_owned(), page_len: 4 << 10, writes, pause_ms: 10, two: false };
    let reports = (0..sessions).map(|_| spec.measure()).collect::<Result<Vec<_>>>()?;
    let median = |value: fn(&Report) -> f64| Spread::new(reports.iter().map(value).collect()).median;
    let (write, wake) = (median(|report| report.us.median), median(|report| report.wake_us));
    bench.notes.push(format!("idle_10ms_wakeups: {write:.1} us a write, {wake:.1} us a wake-up"));
    Ok(write / wake)
}

fn python(bench: &mut Bench) -> Result<f64> {
    let library = for_python()?;
    worse(bench, "host", 4 << 10, "us from Python", |spec| from_python(spec, &library))
}

fn python_over_c(bench: &mut Bench) -> Result<f64> {
    let library = for_python()?;
    worse(bench, "host", 4 << 10, "times C's from Python", |spec| {
        Ok(from_python(spec, &library)? / spec.measure()?.us.median)
    })
}

/// The library, and the package's compiled module, without which ctypes does its calls.
fn for_python() -> Result<PathBuf> {
    let status = Command::new("python3").arg(root().join("python/build_native.py")).status()?;
    ensure!(status.success(), "python/build_native.py failed");
    library()
}

fn from_python(spec: &Spec, library: &Path) -> Result<f64> {
    spec.measure_python(&root().join("weft-bench/src/load/page.py"), &root().join("python/src"), library)
}

/// The worse of two results: with all processors, and with two.
fn worse(
    bench: &mut Bench,
    fabric: &str,
    page_len: usize,
    unit: &str,
    measure: impl Fn(&Spec) -> Result<f64>,
) -> Result<f64> {
    bench.progress.begin(&format!("one page of {page_len} bytes over {fabric}, again and again"));
    let (sessions, writes) = bench.full_or((9, 20_000), (3, 4000));
    let spread = |two: bool| {
        let spec = Spec { fabric: fabric.to_owned(), page_len, writes, pause_ms: 0, two };
        let medians = (0..sessions).map(|_| measure(&spec)).collect::<Result<_>>()?;
        Ok::<Spread, anyhow::Error>(Spread::new(medians))
    };
    let all = processors::count();
    let mut worst = f64::NAN;
    for (two, processors) in [(false, all), (true, 2)] {
        if two && all <= 2 {
            continue;
        }
        let value = spread(two)?;
        bench.notes.push(format!(
            "one page of {page_len} bytes over {fabric}, {processors} processors: {:.2} {unit} (of {sessions} pairs \
             of processes, 10 % {:.2}, 90 % {:.2})",
            value.median, value.low, value.high
        ));
        worst = value.median.max(worst);
    }
    Ok(worst)
}
