//! Weft's own cost, over cheap simulated NICs: it says nothing about a network. The NICs' cost is
//! subtracted where it can be counted; times include it, since noise hides it.

use super::{figures, Bench, Figure};
use crate::process::Process;
use crate::sim::profile::{self, Counts};
use crate::sim::{Drive, Took};
use crate::stats::Spread;
use anyhow::{ensure, Result};

figures! {
    sim_mslices_per_s ["10", "20"] mslices =>
        "million slices of 4 KiB a second of one worker's processor, over NICs without limit, whose own \
         cost is in";
    worker_scaling ["0.85", "0.97"] scaling =>
        "slices a second of processor, of each of min(4, cores) workers, over those of one";
    worker_scaling_8 ["0.85", "0.95"] scaling_in_wall_time =>
        "slices a second in wall time of 8 workers, over 8 times those of one; from 16 cores";
    sim32_line_share ["0.971", "0.990"] line_share =>
        "payload over the sum of the lines: 32 NICs of 100 Gbps, one in four at half speed, 64 KiB pages, \
         cores - 1 workers";
    instructions_per_slice ["under 300", "under 120"] |bench| per_slice(bench, |counts| counts.instructions) =>
        "instructions of both sides for each page of 4 KiB, without those of the simulated NICs";
    hot_path_allocs ["0", "0"] |bench| per_slice(bench, |counts| counts.allocations) =>
        "allocations for each slice";
    hot_path_locks ["0", "0"] locks =>
        "locks taken for each slice, with a worker";
    hot_path_syscalls ["0", "0"] system_calls =>
        "system calls for each slice";
}

/// NICs that, like efa's, work without the CPU, and without limit.
fn limitless(rails: u32, workers: u32, pages: usize, transfers: usize) -> Drive {
    let fabric = format!("sim:like=efa:nocopy:rails={rails}");
    Drive { fabric, workers, page: 4096, pages, transfers, inflight: 4, bare: false }
}

fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, usize::from) as u32
}

/// The median of this many rounds.
fn median(bench: &Bench, mut one: impl FnMut() -> Result<f64>) -> Result<f64> {
    let rounds = bench.full_or(9, 3);
    let values = (0..rounds).map(|_| one()).collect::<Result<Vec<f64>>>()?;
    Ok(Spread::new(values).median)
}

fn took(drive: &Drive) -> Result<Took> {
    drive.part().measure()
}

/// Nanoseconds of processor time per slice: those of 2N slices, less those of N.
fn ns_per_slice(drive: &Drive) -> Result<f64> {
    let less = took(drive)?.worker_ns as f64;
    Ok((took(&drive.larger(2))?.worker_ns as f64 - less) / drive.slices())
}

fn mslices(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("one worker over NICs without limit");
    let transfers = bench.full_or(400, 100);
    let whole = limitless(4, 1, 10_000, transfers);
    let bare = Drive { bare: true, ..whole.clone() };
    let of_both = median(bench, || ns_per_slice(&whole))?;
    let of_nics = median(bench, || ns_per_slice(&bare))?;
    bench.notes.push(format!(
        "sim_mslices_per_s: {of_both:.1} ns of the worker's processor a slice; a bare loop with the same posts and \
         polls takes {of_nics:.1}"
    ));
    Ok(1000.0 / of_both)
}

fn scaling(bench: &mut Bench) -> Result<f64> {
    let workers = cores().min(4);
    bench.progress.begin("several workers and one, over NICs without limit");
    let transfers = bench.full_or(400, 100);
    // The same number of NICs for each worker.
    let (one, several) = (limitless(1, 1, 10_000, transfers), limitless(workers, workers, 10_000, transfers));
    median(bench, || Ok(took(&one)?.worker_ns as f64 / took(&several)?.worker_ns as f64))
}

/// Wall time for each slice of these drives, at the same time.
fn wall_ns(drive: &Drive, processes: usize) -> Result<f64> {
    let start = |_| Process::start(&mut drive.part().command()?);
    let running = (0..processes).map(start).collect::<Result<Vec<_>>>()?;
    let mut sum = 0.0;
    for mut process in running {
        sum += process.lines.hear::<Took>()?.wall_ns as f64;
        process.end()?;
    }
    Ok(sum / processes as f64 / drive.slices())
}

fn scaling_in_wall_time(bench: &mut Bench) -> Result<f64> {
    const WORKERS: u32 = 8;
    ensure!(cores() >= 2 * WORKERS, "{} cores: this needs {}", cores(), 2 * WORKERS);
    bench.progress.begin("eight workers and one, over NICs without limit");
    // So large that the caller's thread does not limit them.
    let drive = |workers, transfers| limitless(workers, workers, 100_000, transfers);
    let transfers = bench.full_or(100, 30);
    let (one, eight) = (drive(1, transfers), drive(WORKERS, transfers * WORKERS as usize));
    let mut beside = Vec::new();
    let share = median(bench, || {
        let (alone, together) = (wall_ns(&one, 1)?, wall_ns(&eight, 1)?);
        beside.push(wall_ns(&one, WORKERS as usize)? / f64::from(WORKERS) / together);
        Ok(alone / f64::from(WORKERS) / together)
    })?;
    let beside = Spread::new(beside).median;
    bench.notes.push(format!(
        "worker_scaling_8: {beside:.2} of {WORKERS} processes with one worker each at the same time: what the \
         machine loses by itself when its cores are busy is in both"
    ));
    Ok(share)
}

fn line_share(bench: &mut Bench) -> Result<f64> {
    let workers = cores().saturating_sub(1).max(1);
    bench.progress.begin("32 NICs of 100 Gbps");
    let fabric = "sim:like=efa:rails=32:gbps=100:depth=256:delay_us=10:slow=1/4@0.5:nocopy".to_owned();
    let transfers = bench.full_or(400, 100);
    let drive = Drive { fabric, workers, page: 65536, pages: 20_000, transfers, inflight: 4, bare: false };
    let lines = (24.0 + 8.0 * 0.5) * 100.0;
    // From the first submission to the last completion, so that a slow tail counts.
    median(bench, || Ok(drive.slices() * 65536.0 * 8.0 / took(&drive)?.wall_ns as f64 / lines))
}

/// N slices, by manual progress: nothing spins, so every run executes the same instructions.
fn counted() -> Drive {
    limitless(4, 0, 4000, 8)
}

fn per_slice(bench: &mut Bench, value: fn(&Counts) -> f64) -> Result<f64> {
    let (less, more) = *bench.once("counts", |bench| {
        bench.progress.begin("both sides under callgrind");
        bench.notes.push(format!(
            "instructions, allocations: {}, with manual progress; locks: the same, with a worker",
            profile::CALLGRIND
        ));
        Ok((profile::counts(&counted())?, profile::counts(&counted().larger(2))?))
    })?;
    Ok((value(&more) - value(&less)) / counted().slices())
}

/// With a worker: manual progress would lock its worker at each poll.
fn locks(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("a worker under callgrind");
    let drive = limitless(4, 1, 4000, 16);
    let less = profile::counts(&drive)?;
    Ok((profile::counts(&drive.larger(2))?.locks - less.locks) / drive.slices())
}

fn system_calls(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("both sides under strace");
    let drive = counted();
    let less = profile::system_calls(&drive)?;
    bench.notes.push(format!("system calls: {}", profile::STRACE));
    Ok((profile::system_calls(&drive.larger(2))? - less) / drive.slices())
}
