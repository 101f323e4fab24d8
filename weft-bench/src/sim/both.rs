//! Two endpoints of this process, and transfers from one to the other.

use super::ends::Ends;
use super::{Drive, Took};
use crate::endpoint::{Endpoint, Memory, Remote};
use crate::memory::untouched;
use crate::pages::Lists;
use ::weft::capi::completion::*;
use anyhow::{Context, Result};
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::hint::black_box;
use std::time::Instant;

/// Pages to choose from, per page of a transfer.
const POOL: usize = 2;

/// The threads of this process.
fn threads() -> Result<HashSet<OsString>> {
    let entries = fs::read_dir("/proc/self/task").context("listing the threads")?;
    Ok(entries.flatten().map(|entry| entry.file_name()).collect())
}

/// Nanoseconds that threads ran on a processor.
fn time_of(threads: &HashSet<OsString>) -> u64 {
    let of_one = |thread: &OsString| {
        let path = std::path::Path::new("/proc/self/task").join(thread).join("schedstat");
        fs::read_to_string(path).ok()?.split(' ').next()?.parse::<u64>().ok()
    };
    threads.iter().filter_map(of_one).sum()
}

/// Two ends, and what is sent between them.
struct Both<'a> {
    drive: &'a Drive,
    ends: Ends,
    local: Memory,
    remote: Remote,
    lists: Vec<Lists>,
}

pub fn run(drive: &Drive) -> Result<Took> {
    let before = threads()?;
    let mut ends = Ends::open(&drive.fabric, drive.workers, 0, false)?;
    let workers: HashSet<OsString> = threads()?.difference(&before).cloned().collect();
    let len = drive.page * drive.pages * POOL;
    let local = ends.sender.register(untouched(len)?, len)?;
    let given = ends.receiver.register(untouched(len)?, len)?;
    let lists = (0..2).map(|seed| Lists::random(seed, drive.pages, drive.pages * POOL)).collect();
    ends.connect()?;
    let remote = ends.import(given)?;
    let both = Both { drive, ends, local, remote, lists };
    both.write(1)?;
    let (begun, before) = (Instant::now(), time_of(&workers));
    both.counted()?;
    let wall_ns = begun.elapsed().as_nanos() as u64;
    Ok(Took { wall_ns, worker_ns: time_of(&workers).saturating_sub(before) })
}

impl Both<'_> {
    /// callgrind finds the counted part by this name. (If a jump left the function, counting would
    /// not end.)
    #[inline(never)]
    fn counted(&self) -> Result<()> {
        black_box(self.write(self.drive.transfers))
    }

    fn write(&self, transfers: usize) -> Result<()> {
        let mut done = 0;
        for submitted in 0..transfers {
            while submitted - done >= self.drive.inflight {
                done += self.ends.until(WEFT_COMPLETION_WRITE, 1)?;
            }
            let lists = &self.lists[submitted % self.lists.len()];
            let args = Endpoint::pages(self.local, self.remote, lists, self.drive.page);
            self.ends.sender.write_pages(&args)?;
        }
        self.ends.until(WEFT_COMPLETION_WRITE, transfers - done).map(|_| ())
    }
}
