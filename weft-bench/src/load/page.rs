//! One page at a time: a caller submits a write, waits for it, and submits the next, with default
//! settings on both sides.

use crate::endpoint::{Endpoint, Offer, Opening};
use crate::memory::Pool;
use crate::process::{self, Part, Process};
use crate::processors;
use crate::stats::Spread;
use ::weft::capi::completion::WEFT_COMPLETION_WRITE;
use anyhow::{anyhow, Context, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Pages of each side; each write uses the next one.
const PAGES: usize = 64;
/// Writes before the measured ones.
const WARM_UP: usize = 500;

#[derive(Clone, Serialize, Deserialize)]
pub struct Spec {
    pub fabric: String,
    pub page_len: usize,
    pub writes: usize,
    /// Before each write: both sides sleep meanwhile.
    pub pause_ms: u64,
    /// Both processes share the first two processors; otherwise they have all of them.
    pub two: bool,
}

#[derive(Serialize, Deserialize)]
pub struct Report {
    pub us: Spread,
    /// The same pages by memcpy, in this process.
    pub memcpy_us: f64,
    /// From waking a thread that slept as long as a pause, until it runs.
    pub wake_us: f64,
}

impl Spec {
    fn open(&self) -> Result<(Endpoint, Pool)> {
        if self.two {
            processors::keep_on_first(2);
        }
        let mut pool = Pool::new(self.page_len, PAGES)?;
        pool.fill();
        Ok((Endpoint::open(&Opening::over(&self.fabric))?, pool))
    }

    fn target(&self) -> Result<(Process, Offer)> {
        let mut target = Process::start(&mut Part::PageTarget(self.clone()).command()?)?;
        let offer = target.lines.hear().context("the target's offer")?;
        Ok((target, offer))
    }

    /// From C, in separate processes.
    pub fn measure(&self) -> Result<Report> {
        Part::Page(self.clone()).measure()
    }

    /// Microseconds of the median write from Python, by the package's blocking call.
    pub fn measure_python(&self, script: &Path, package: &Path, library: &Path) -> Result<f64> {
        let (target, offer) = self.target()?;
        let mut python = Command::new("python3");
        python.arg(script).env("PYTHONPATH", package).env("WEFT_LIBRARY", library);
        python.env("PYTHONDONTWRITEBYTECODE", "1").env("PAGE_OFFER", serde_json::to_string(&offer)?);
        python.env("PAGE_SPEC", serde_json::to_string(self)?);
        let mut python = Process::start(&mut python)?;
        let us = python.lines.hear()?;
        python.end()?;
        target.end()?;
        Ok(us)
    }
}

/// The target sleeps: its workers do all the work.
pub fn serve(spec: &Spec) -> Result<()> {
    let (endpoint, pool) = spec.open()?;
    let memory = endpoint.register(pool.base(), pool.len())?;
    process::say(&endpoint.offer(memory)?)?;
    let mut end = String::new();
    std::io::stdin().read_line(&mut end)?;
    Ok(())
}

pub fn run(spec: &Spec) -> Result<Report> {
    let (target, offer) = spec.target()?;
    let (endpoint, pool) = spec.open()?;
    let memory = endpoint.register(pool.base(), pool.len())?;
    let peer = endpoint.connect(&offer.address)?;
    let remote = endpoint.import(peer, &offer)?;
    let mut args = Endpoint::range(memory, remote, spec.page_len);
    let (mut us, mut wakes) = (Vec::with_capacity(spec.writes), Vec::new());
    let warm_up = if spec.pause_ms > 0 { 20 } else { WARM_UP };
    for i in 0..warm_up + spec.writes {
        let page = i % PAGES * spec.page_len;
        (args.local_offset, args.remote_offset) = (page as u64, page as u64);
        if spec.pause_ms > 0 {
            wakes.push(wake_us(spec)?);
            thread::sleep(Duration::from_millis(spec.pause_ms));
        }
        let begun = Instant::now();
        endpoint.write(&args)?;
        endpoint.take(WEFT_COMPLETION_WRITE, 1)?;
        if i >= warm_up {
            us.push(begun.elapsed().as_nanos() as f64 / 1e3);
        }
    }
    let memcpy_us = memcpy(spec, &pool)?;
    drop(endpoint);
    target.end()?;
    let wake_us = if wakes.is_empty() { 0.0 } else { Spread::new(wakes).median };
    Ok(Report { us: Spread::new(us), memcpy_us, wake_us })
}

/// Wakes a thread that sleeps on a futex.
fn wake_us(spec: &Spec) -> Result<f64> {
    let (word, pause) = (AtomicU32::new(0), Duration::from_millis(spec.pause_ms));
    let futex = |operation: i32, value: u32| {
        // SAFETY: the word outlives the call, which takes no time limit.
        unsafe { libc::syscall(libc::SYS_futex, &word, operation | libc::FUTEX_PRIVATE_FLAG, value, 0usize) }
    };
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            while word.load(Ordering::Acquire) == 0 {
                futex(libc::FUTEX_WAIT, 0);
            }
            Instant::now()
        });
        thread::sleep(pause);
        let begun = Instant::now();
        word.store(1, Ordering::Release);
        futex(libc::FUTEX_WAKE, 1);
        let woken = sleeper.join().map_err(|_| anyhow!("the woken thread ended"))?;
        Ok(woken.saturating_duration_since(begun).as_nanos() as f64 / 1e3)
    })
}

fn memcpy(spec: &Spec, from: &Pool) -> Result<f64> {
    let to = Pool::new(spec.page_len, PAGES)?;
    let copy = |i: usize| {
        let (page, begun) = (i % PAGES * spec.page_len, Instant::now());
        // SAFETY: the page belongs to its pool.
        unsafe {
            let (from, to) = (from.base().add(page), to.base().add(page));
            std::ptr::copy_nonoverlapping(from, to, spec.page_len);
        }
        begun.elapsed().as_nanos() as f64 / 1e3
    };
    Ok(Spread::new((0..spec.writes).map(copy).collect()).median)
}
