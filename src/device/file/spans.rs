//! The addresses of files' ranges: reserved without memory behind them.

use super::jobs::{Done, Flush, Queue, Work};
use super::opened::Opened;
use crate::range::Range;
use crate::status::{Error, Result, Status};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;

/// The addresses of a range of a file.
struct Span {
    end: u64,
    offset: u64,
    file: Arc<Opened>,
    queue: Weak<Queue>,
}

/// By their first addresses.
static SPANS: RwLock<BTreeMap<u64, Span>> = RwLock::new(BTreeMap::new());

pub struct Found {
    pub file: Arc<Opened>,
    pub offset: u64,
    /// Empty once the endpoint is shut down.
    pub queue: Weak<Queue>,
}

/// The file of these addresses, and where in it they begin.
pub fn find(address: u64, len: u64) -> Option<Found> {
    let spans = SPANS.read();
    let (base, span) = spans.range(..=address).next_back()?;
    let inside = address < span.end && len <= span.end - address;
    inside.then(|| Found {
        file: span.file.clone(),
        offset: span.offset + (address - base),
        queue: span.queue.clone(),
    })
}

/// Addresses reserved for ranges of a file, until it is dropped.
pub struct Reserved {
    file: Arc<Opened>,
    /// The thread lives as long as its files.
    queue: Arc<Queue>,
    base: u64,
    len: u64,
}

impl std::fmt::Debug for Reserved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {:#x}", self.file.name, self.base)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut spans = SPANS.write();
        let after = spans.split_off(&self.base);
        spans.extend(after.into_iter().filter(|(base, _)| *base >= self.base + self.len));
        drop(spans);
        // SAFETY: `reserve` mapped it, nobody else names it, and it has no memory.
        unsafe { libc::munmap(self.base as *mut _, self.len as usize) };
    }
}

impl Reserved {
    pub fn is_readable(&self) -> bool {
        self.file.readable
    }

    pub fn is_writable(&self) -> bool {
        self.file.writable
    }

    /// Whether transfers go through the page cache.
    pub fn is_cached(&self) -> bool {
        self.file.geometry().is_none()
    }

    /// Has all that was written so far survive a power cut, then calls `done`.
    pub fn flush(&self, done: Done) {
        let deadline = Instant::now() + self.file.patience;
        self.queue.push(Work::Flush(Flush { file: self.file.clone(), deadline, done }));
    }

    /// Begins nothing more, and waits until the kernel has nothing of it.
    pub fn settle(&self, at_most: Duration) -> Result<()> {
        self.file.close();
        let until = Instant::now() + at_most;
        while self.file.busy() > 0 {
            if Instant::now() > until {
                return Err(Error::new(
                    Status::TimedOut,
                    format!(
                        "{}: the disk does not answer {} reads, writes and flushes: call again",
                        self.file.name,
                        self.file.busy()
                    ),
                ));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }
}

/// Reserves addresses for ranges of a file: their `base` is an offset. Returns their addresses.
pub fn reserve(
    fd: RawFd,
    ranges: &[Range],
    queue: &Arc<Queue>,
    patience: Duration,
) -> Result<(Reserved, Vec<Range>)> {
    let file = Arc::new(Opened::new(fd, patience)?);
    // A page that belongs to none lies between two, or one access could span both.
    let room = |range: &Range| range.base % PAGE + range.len.next_multiple_of(PAGE) + 2 * PAGE;
    let total = ranges.iter().try_fold(0u64, |sum, range| sum.checked_add(room(range)));
    let total = total.filter(|total| *total < 1 << 47).ok_or_else(|| no_room(u64::MAX))?;
    let (rights, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: maps new addresses, without memory.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), total as usize, rights, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(no_room(total));
    }
    let reserved = Reserved { file: file.clone(), queue: queue.clone(), base: base as u64, len: total };
    let mut next = reserved.base;
    let mut places = Vec::with_capacity(ranges.len());
    let mut spans = SPANS.write();
    for range in ranges {
        // Offsets and addresses are aligned alike.
        let base = next + range.base % PAGE;
        next += room(range) / PAGE * PAGE;
        let (file, queue) = (file.clone(), Arc::downgrade(&reserved.queue));
        spans.insert(base, Span { end: base + range.len, offset: range.base, file, queue });
        places.push(Range { base, len: range.len });
    }
    Ok((reserved, places))
}

fn no_room(total: u64) -> Error {
    Error::new(
        Status::NoMemory,
        format!("no {total} bytes of address space for the ranges of a file: 2^47 at most, and RLIMIT_AS"),
    )
}
