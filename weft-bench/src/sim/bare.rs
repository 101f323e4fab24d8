//! The posts and polls of a drive, sent directly to the simulated NICs: their part of a drive's
//! time.

use super::{Drive, Took};
use crate::engines::bare::BareSender;
use crate::engines::port::{entries, Port};
use crate::memory::Pool;
use crate::pages::Lists;
use anyhow::Result;
use std::time::Instant;

pub fn run(drive: &Drive) -> Result<Took> {
    let pool = || Pool::untouched(drive.page, drive.pages * 2);
    let (source, target) = (pool()?, pool()?);
    let (from, to) = (Port::simulated(&drive.fabric, &source)?, Port::simulated(&drive.fabric, &target)?);
    let mut bare = BareSender::over(from, false, &source, &to.offer()?)?;
    bare.tune_for_unordered();
    // The target may have a handshake to answer.
    let mut write = |lists: &Lists| bare.transfer(lists, || to.reap(&mut entries::<1>()).map(drop));
    write(&Lists { source: vec![0], target: vec![0] })?;
    let lists = Lists::random(0, drive.pages, drive.pages * 2);
    let (begun, before) = (Instant::now(), processor_ns());
    for _ in 0..drive.transfers {
        write(&lists)?;
    }
    let worker_ns = processor_ns() - before;
    Ok(Took { wall_ns: begun.elapsed().as_nanos() as u64, worker_ns })
}

/// Processor time of this thread.
fn processor_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills in `t`; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
