//! The posts and polls of a drive, straight to the simulated NICs: what of a
//! drive's time is theirs.

use super::{Drive, Took};
use crate::engines::port::{contexts, entries, Port, Remote};
use crate::memory::Pool;
use crate::pages::Lists;
use anyhow::{ensure, Result};
use libfabric_sys::{fi_context2, FI_DELIVERY_COMPLETE, FI_MORE};
use std::time::Instant;

/// Posts before the doorbell, and entries of one read: as Weft's.
const BATCH: usize = 32;
const WINDOW: usize = 128;

struct Bare {
    from: Port,
    to: Port,
    base: *const u8,
    remote: Remote,
    contexts: Vec<fi_context2>,
    flags: u64,
}

pub fn run(drive: &Drive) -> Result<Took> {
    let pool = || Pool::untouched(drive.page, drive.pages * 2);
    let (source, target) = (pool()?, pool()?);
    let (from, to) = (Port::simulated(&drive.fabric, &source)?, Port::simulated(&drive.fabric, &target)?);
    let remote = from.join(&to.offer()?)?;
    let flags = if drive.fabric.contains("efa-direct") { 0 } else { FI_DELIVERY_COMPLETE };
    let (base, contexts) = (source.base().cast_const(), contexts(WINDOW + BATCH));
    let mut bare = Bare { from, to, base, remote, contexts, flags };
    bare.write(&Lists { source: vec![0], target: vec![0] }, drive.page)?;
    let lists = Lists::random(0, drive.pages, drive.pages * 2);
    let (begun, before) = (Instant::now(), processor_ns());
    for _ in 0..drive.transfers {
        bare.write(&lists, drive.page)?;
    }
    let worker_ns = processor_ns() - before;
    Ok(Took { wall_ns: begun.elapsed().as_nanos() as u64, worker_ns })
}

/// Of this thread.
fn processor_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills in `t`; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

impl Bare {
    fn write(&mut self, lists: &Lists, page: usize) -> Result<()> {
        let (mut posted, mut done) = (0, 0);
        while done < lists.len() {
            let batch = BATCH.min(lists.len() - posted).min(WINDOW - (posted - done));
            for i in posted..posted + batch {
                let more = if i + 1 < posted + batch { FI_MORE } else { 0 };
                let from = self.base.wrapping_add(lists.source[i] as usize * page);
                let there = lists.target[i] as usize * page;
                let context = &raw mut self.contexts[i % (WINDOW + BATCH)];
                let taken = self.from.write(&self.remote, (from, there), page, self.flags | more, context)?;
                ensure!(taken, "a NIC without limit has no room");
            }
            posted += batch;
            let reaped = self.from.reap(&mut entries::<BATCH>())?;
            done += reaped;
            if reaped == 0 {
                self.to.reap(&mut entries::<1>())?; // It may have a handshake to answer.
            }
        }
        Ok(())
    }
}
