//! What calls cost the thread that makes them, and what counting costs.

use super::{figure, Bench, Figure};
use crate::sim::calls::{Calls, Times};
use crate::sim::counts::Counts;
use crate::sim::lists;
use anyhow::{bail, Context, Result};
use std::path::Path;
use std::process::Command;

pub const ALL: &[Figure] = &[
    figure!(
        "submit_ns_1page",
        "ns of a call of weft_write_pages with one page, while a worker spins",
        "under 300",
        "",
        |bench| pages(bench, 1)
    ),
    figure!("submit_ns_1000pages", "the same with 1000 random pages", "", "", |bench| pages(bench, 1000)),
    figure!(
        "submit_ns_1000pages_kept",
        "ns of a call of weft_write_kept with 1000 random pages",
        "under 500",
        "",
        |bench| kept(bench, 1)
    ),
    figure!(
        "submit_ns_1000x80_kept",
        "the same with 1000 random pages of each of 80 layers",
        "under 500",
        "",
        |bench| kept(bench, 80)
    ),
    figure!(
        "submit_ns_1page_ctypes",
        "ns of a call of weft_write_pages with one page from Python, through ctypes",
        "",
        "",
        from_python
    ),
    figure!(
        "list_kentries_per_s",
        "thousand entries of 64 bytes a second, by turns to 16 peers, 16,000 a list; simulated NICs without limit",
        "",
        "",
        list_entries
    ),
    figure!(
        "counter_marrivals_per_s",
        "million counted pages a second that a receiver sees, over one simulated NIC without limit",
        "1",
        "",
        arrivals
    ),
    figure!(
        "counter_data_share",
        "throughput of counted pages over that of others: random 64 KiB pages over loopback tcp",
        "0.95",
        "",
        counted_share
    ),
];

fn pages(bench: &mut Bench, pages: usize) -> Result<f64> {
    bench.progress.begin("submissions");
    let calls = Calls::open(pages, 1)?;
    let times = calls.pages(if bench.quick { 200 } else { 2000 }, 32)?;
    calls.close()?;
    Ok(median(bench, &format!("weft_write_pages, {pages} pages"), &times))
}

fn kept(bench: &mut Bench, layers: usize) -> Result<f64> {
    bench.progress.begin("submissions of kept geometry");
    let calls = Calls::open(1000, layers)?;
    let batches = if layers > 1 { 60 } else { 2000 };
    let times = calls.kept(if bench.quick { batches / 10 } else { batches }, 32)?;
    calls.close()?;
    Ok(median(bench, &format!("weft_write_kept, 1000 pages x {layers} layers"), &times))
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let library = std::env::current_exe()?.with_file_name("libweft.so");
    if !library.exists() {
        bail!("there is no {}: build it by `make lib`", library.display());
    }
    let output = Command::new("python3")
        .arg(root.join("weft-bench/src/sim/submit.py"))
        .arg(if bench.quick { "200" } else { "2000" })
        .env("PYTHONPATH", root.join("ffi-tests/api/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("WEFT_TEST_LIBRARY", &library)
        .output()
        .context("starting python3")?;
    if !output.status.success() {
        bail!("the program in Python: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8_lossy(&output.stdout).trim().parse().context("what the program in Python said")
}

fn list_entries(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("lists to 16 peers");
    Ok(lists::entries_per_s(if bench.quick { 20 } else { 200 })? / 1e3)
}

fn arrivals(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("counted pages over one simulated NIC");
    let (pages, transfers) = (10_000, if bench.quick { 20 } else { 200 });
    let mut counts = Counts::open("sim:like=efa:nocopy", 64, pages)?;
    counts.write(4, true)?;
    let ns = counts.write(transfers, true)?;
    counts.close()?;
    Ok((pages * transfers) as f64 * 1e3 / ns)
}

fn counted_share(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("counted pages over tcp");
    let mut counts = Counts::open("tcp", 64 << 10, 512)?;
    let share = counts.share(if bench.quick { 10 } else { 60 }, 16)?;
    counts.close()?;
    bench.notes.push(format!(
        "counted pages over tcp: {:.3} of the rate of others (10 % {:.3}, 90 % {:.3})",
        share.median, share.low, share.high
    ));
    Ok(share.median)
}
