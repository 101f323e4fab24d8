//! Two endpoints of this process, and transfers from one to the other.

use super::{Drive, Took};
use crate::engines::weft::{blob, check};
use crate::memory::untouched;
use crate::pages::Lists;
use ::weft::capi::completion::*;
use ::weft::capi::endpoint::*;
use ::weft::capi::memory::*;
use ::weft::capi::peer::*;
use ::weft::capi::transfer::*;
use anyhow::{bail, Context, Result};
use std::collections::HashSet;
use std::ffi::{CString, OsString};
use std::fs;
use std::mem::{size_of, zeroed};
use std::ptr;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const WAIT_NS: u64 = 1_000_000;
/// Pages to draw from, for each page of a transfer.
const POOL: usize = 2;

struct Side {
    endpoint: *mut weft_endpoint,
}

impl Side {
    fn open(fabric: &str, workers: u32) -> Result<Side> {
        let fabric = CString::new(fabric)?;
        let mut endpoint = ptr::null_mut();
        // SAFETY: a config of zeros means defaults; the string outlives the call.
        unsafe {
            let mut config: weft_endpoint_config = zeroed();
            config.size = size_of::<weft_endpoint_config>() as u32;
            config.fabric = fabric.as_ptr();
            config.progress = if workers == 0 { WEFT_PROGRESS_MANUAL } else { WEFT_PROGRESS_THREADS };
            config.workers = workers;
            check("weft_endpoint_open", weft_endpoint_open(&config, &mut endpoint))?;
        }
        Ok(Side { endpoint })
    }

    fn register(&self, base: *mut u8, len: usize) -> Result<*mut weft_memory> {
        let range = weft_memory_range { address: base.cast(), len: len as u64 };
        let mut memory = ptr::null_mut();
        // SAFETY: mapped for the life of the process.
        let registered = unsafe { weft_memory_register(self.endpoint, &range, 1, ptr::null(), &mut memory) };
        check("weft_memory_register", registered)?;
        Ok(memory)
    }

    /// Counts completions of a kind, after a wait of up to `wait_ns` for the first;
    /// any that is none of success is an error.
    fn poll(&self, kind: weft_completion_kind, wait_ns: u64) -> Result<usize> {
        // SAFETY: integers and pointers; room for as many completions.
        unsafe {
            let mut done: [weft_completion; 16] = zeroed();
            let count = weft_wait(self.endpoint, done.as_mut_ptr(), done.len() as u32, wait_ns);
            check("weft_wait", count)?;
            for one in &done[..count as usize] {
                check("a completion", one.status)?;
            }
            Ok(done[..count as usize].iter().filter(|one| one.kind == kind).count())
        }
    }

    fn close(&self) -> Result<()> {
        // SAFETY: our own handle, closed once.
        unsafe {
            check("weft_endpoint_shutdown", weft_endpoint_shutdown(self.endpoint, 0))?;
            check("weft_endpoint_close", weft_endpoint_close(self.endpoint))
        }
    }
}

/// The threads of this process.
fn threads() -> Result<HashSet<OsString>> {
    let entries = fs::read_dir("/proc/self/task").context("listing the threads")?;
    Ok(entries.flatten().map(|entry| entry.file_name()).collect())
}

/// Nanoseconds that threads were on a processor.
fn time_of(threads: &HashSet<OsString>) -> u64 {
    let of_one = |thread: &OsString| {
        let path = std::path::Path::new("/proc/self/task").join(thread).join("schedstat");
        fs::read_to_string(path).ok()?.split(' ').next()?.parse::<u64>().ok()
    };
    threads.iter().filter_map(of_one).sum()
}

/// A sender, a receiver that is polled now and then, and what is sent.
struct Both<'a> {
    drive: &'a Drive,
    sender: Side,
    receiver: Side,
    local: *mut weft_memory,
    remote: *mut weft_remote_memory,
    lists: Vec<Lists>,
}

pub fn run(drive: &Drive) -> Result<Took> {
    let before = threads()?;
    let sender = Side::open(&drive.fabric, drive.workers)?;
    let workers: HashSet<OsString> = threads()?.difference(&before).cloned().collect();
    let receiver = Side::open(&drive.fabric, 0)?;
    let len = drive.page * drive.pages * POOL;
    let local = sender.register(untouched(len)?, len)?;
    let given = receiver.register(untouched(len)?, len)?;
    let lists = (0..2).map(|seed| Lists::random(seed, drive.pages, drive.pages * POOL)).collect();
    let mut both = Both { drive, sender, receiver, local, remote: ptr::null_mut(), lists };
    both.connect(given)?;
    both.write(1)?;
    let (begun, before) = (Instant::now(), time_of(&workers));
    both.counted()?;
    let took = Took {
        wall_ns: begun.elapsed().as_nanos() as u64,
        worker_ns: time_of(&workers).saturating_sub(before),
    };
    both.sender.close()?;
    both.receiver.close()?;
    Ok(took)
}

impl Both<'_> {
    fn connect(&mut self, given: *mut weft_memory) -> Result<()> {
        let receiver = self.receiver.endpoint;
        // SAFETY: `blob` passes buffers with their size.
        let address = blob("weft_endpoint_address", |buffer, capacity, len| unsafe {
            weft_endpoint_address(receiver, buffer, capacity, len)
        })?;
        // SAFETY: the same.
        let descriptor = blob("weft_memory_export", |buffer, capacity, len| unsafe {
            weft_memory_export(given, buffer, capacity, len)
        })?;
        let (sender, mut peer) = (self.sender.endpoint, 0);
        // SAFETY: both blobs outlive the calls.
        unsafe {
            let (data, len) = (address.as_ptr().cast(), address.len());
            check("weft_peer_connect", weft_peer_connect(sender, data, len, ptr::null(), &mut peer))?;
            self.until(WEFT_COMPLETION_PEER_UP, 1)?;
            let (data, len) = (descriptor.as_ptr().cast(), descriptor.len());
            let imported = weft_remote_memory_import(sender, peer, data, len, &mut self.remote);
            check("weft_remote_memory_import", imported)
        }
    }

    /// Polls until so many completions of a kind have come, or more: how many.
    fn until(&self, kind: weft_completion_kind, count: usize) -> Result<usize> {
        let (begun, mut done, mut polls) = (Instant::now(), 0, 0u32);
        // Beside workers this thread sleeps: the processors are theirs.
        let (seldom, wait_ns) = if self.drive.workers == 0 { (64, 0) } else { (1, WAIT_NS) };
        while done < count {
            done += self.sender.poll(kind, wait_ns)?;
            polls = polls.wrapping_add(1);
            // The receiver has little to say; NICs serve it.
            if polls % seldom == 0 {
                self.receiver.poll(WEFT_COMPLETION_MESSAGE, 0)?;
                if polls % (seldom << 10) == 0 && begun.elapsed() > PATIENCE {
                    bail!("no completion of kind {kind}: {done} of {count}");
                }
            }
        }
        Ok(done)
    }

    /// By its name callgrind finds where to count.
    #[inline(never)]
    fn counted(&self) -> Result<()> {
        self.write(self.drive.transfers)
    }

    fn write(&self, transfers: usize) -> Result<()> {
        let mut done = 0;
        for submitted in 0..transfers {
            while submitted - done >= self.drive.inflight {
                done += self.until(WEFT_COMPLETION_WRITE, 1)?;
            }
            self.submit(&self.lists[submitted % self.lists.len()])?;
        }
        self.until(WEFT_COMPLETION_WRITE, transfers - done).map(|_| ())
    }

    fn submit(&self, lists: &Lists) -> Result<()> {
        // SAFETY: arguments of zeros mean defaults; the lists outlive the call.
        unsafe {
            let mut args: weft_pages_args = zeroed();
            args.size = size_of::<weft_pages_args>() as u32;
            args.local = self.local;
            args.remote = self.remote;
            args.local_pages = lists.source.as_ptr();
            args.remote_pages = lists.target.as_ptr();
            args.page_len = self.drive.page as u64;
            args.page_count = lists.len() as u64;
            check("weft_write_pages", weft_write_pages(self.sender.endpoint, &args, ptr::null_mut()))
        }
    }
}
