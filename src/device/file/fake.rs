//! A fake disk for tests, in front of the real file.
//!
//! WEFT_FILES: "fake", then optionally ":late=US" (microseconds until an I/O ends), ":short" (each moves at
//! most half of its bytes), ":errno=E" (I/Os of the byte ":at=N" and later ones fail by E; those before it end
//! short of it), ":hang=N" (an I/O of byte N ends only ":for=US" later; without it never), ":cached" (direct I/O is
//! refused), ":volatile" (it has what is not flushed in memory alone: the end of the process is a power cut),
//! ":flush-late=US" (a flush takes this long), ":flush-errno=E" (the first flush fails by E, and drops what it should
//! have written), ":flush-hang" (a flush never ends), ":flush-lies" (it ends, and does nothing). "threads": the threads
//! that serve where io_uring is refused.

use super::jobs::{Disk, Ended, Io, What};
use crate::event::Event;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// Offsets and bytes, in order.
type Unflushed = Vec<(u64, Vec<u8>)>;

#[derive(Clone, Default)]
pub struct Fake {
    pub late: Duration,
    pub short: bool,
    /// The error number, and the first byte that has it.
    pub errno: Option<(i32, u64)>,
    /// The byte of which an I/O hangs, and for how long.
    pub hang: Option<(u64, Option<Duration>)>,
    pub cached: bool,
    pub flush_late: Duration,
    pub flush_errno: Option<i32>,
    pub flush_hang: bool,
    pub flush_lies: bool,
    /// Writes that are not flushed, by file.
    pub volatile: Option<HashMap<(u64, u64), Unflushed>>,
    pub ended: Vec<(Ended, Option<Instant>)>,
}

fn inode(fd: RawFd) -> (u64, u64) {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel fills in `stat`, or leaves the zeros, which are valid.
    let stat = unsafe {
        libc::fstat(fd, stat.as_mut_ptr());
        stat.assume_init()
    };
    (stat.st_dev, stat.st_ino)
}

impl Fake {
    /// The disk that WEFT_FILES chooses.
    pub fn chosen() -> Option<Fake> {
        let choice = libfabric_sys::variable("WEFT_FILES")?.into_string().ok()?;
        let rest = choice.strip_prefix("fake")?;
        let has = |name: &str| rest.split(':').any(|part| part == name);
        let number =
            |name: &str| rest.split(':').find_map(|part| part.strip_prefix(name)?.parse::<u64>().ok());
        Some(Fake {
            late: Duration::from_micros(number("late=").unwrap_or(0)),
            short: has("short"),
            errno: number("errno=").map(|errno| (errno as i32, number("at=").unwrap_or(0))),
            hang: number("hang=").map(|at| (at, number("for=").map(Duration::from_micros))),
            cached: has("cached"),
            flush_late: Duration::from_micros(number("flush-late=").unwrap_or(0)),
            flush_errno: number("flush-errno=").map(|errno| errno as i32),
            flush_hang: has("flush-hang"),
            flush_lies: has("flush-lies"),
            volatile: has("volatile").then(HashMap::new),
            ended: Vec::new(),
        })
    }

    /// # Safety
    /// As `Io::carry_out`.
    unsafe fn play(&mut self, mut io: Io) -> i32 {
        // SAFETY: the call takes no pointers.
        let is_direct = unsafe { libc::fcntl(io.fd, libc::F_GETFL) } & libc::O_DIRECT != 0;
        if self.cached && is_direct {
            return -libc::EINVAL;
        }
        if self.short && io.len > 1 {
            // As disks do: whole blocks, where there are some.
            io.len = if io.len >= 1024 { io.len / 1024 * 512 } else { io.len / 2 };
        }
        if let Some((errno, from)) = self.errno.filter(|(_, from)| io.offset + u64::from(io.len) > *from) {
            let before = from.saturating_sub(io.offset) / 4096 * 4096;
            if before == 0 {
                return -errno;
            }
            io.len = before as u32;
        }
        // SAFETY: the I/O is valid, and now at most shorter.
        unsafe { self.carry_out(io) }
    }

    /// # Safety
    /// As `Io::carry_out`.
    unsafe fn carry_out(&mut self, io: Io) -> i32 {
        let Some(unflushed) = &mut self.volatile else {
            // SAFETY: the caller has a valid I/O.
            return unsafe { io.carry_out() };
        };
        let unflushed = unflushed.entry(inode(io.fd)).or_default();
        if io.what == What::Write {
            // SAFETY: the I/O is valid, so its memory has these bytes.
            let bytes = unsafe { std::slice::from_raw_parts(io.memory as *const u8, io.len as usize) };
            unflushed.push((io.offset, bytes.to_vec()));
            return io.len as i32;
        }
        // SAFETY: the caller has a valid I/O.
        let read = unsafe { io.carry_out() };
        let end = io.offset + read.max(0) as u64;
        for (offset, bytes) in unflushed.iter() {
            let (from, to) = ((*offset).max(io.offset), (offset + bytes.len() as u64).min(end));
            if from < to {
                let known = &bytes[(from - offset) as usize..(to - offset) as usize];
                let place = (io.memory + (from - io.offset)) as *mut u8;
                // SAFETY: what was read lies in the I/O's memory, and this is a part of it.
                unsafe { std::ptr::copy_nonoverlapping(known.as_ptr(), place, known.len()) };
            }
        }
        read
    }

    /// Writes what is not flushed to the file.
    fn flush(&mut self, io: Io) -> i32 {
        if self.flush_lies {
            return 0;
        }
        let unflushed = self.volatile.as_mut().and_then(|unflushed| unflushed.remove(&inode(io.fd)));
        if let Some(errno) = self.flush_errno.take() {
            return -errno;
        }
        for (offset, bytes) in unflushed.into_iter().flatten() {
            let (memory, len) = (bytes.as_ptr() as u64, bytes.len() as u32);
            // SAFETY: the bytes are there, and the caller has a valid descriptor.
            let written = unsafe { Io { what: What::Write, memory, len, offset, ..io }.carry_out() };
            if written != len as i32 {
                return written.min(-libc::EIO);
            }
        }
        // SAFETY: the caller has a valid descriptor.
        unsafe { io.carry_out() }
    }
}

impl Disk for Fake {
    fn depth(&self) -> usize {
        128
    }

    unsafe fn begin(&mut self, io: Io) {
        let inside = |at: u64| (io.offset..io.offset + u64::from(io.len)).contains(&at);
        let now = Instant::now();
        if io.what == What::Flush {
            let due = (!self.flush_hang).then(|| now + self.flush_late);
            let result = if self.flush_hang { -libc::EIO } else { self.flush(io) };
            return self.ended.push(((io.token, result), due));
        }
        match self.hang.filter(|(at, _)| inside(*at)) {
            // It does not touch its memory, which is less than a disk may.
            Some((_, time)) => self.ended.push(((io.token, -libc::EIO), time.map(|time| now + time))),
            None => {
                // SAFETY: the caller has a valid I/O.
                let result = unsafe { self.play(io) };
                self.ended.push(((io.token, result), Some(now + self.late)));
            }
        }
    }

    fn wait(&mut self, inbox: &Event, at_most: Option<Duration>, ended: &mut Vec<Ended>) {
        let now = Instant::now();
        let next =
            self.ended.iter().filter_map(|(_, due)| *due).min().map(|due| due.saturating_duration_since(now));
        if next != Some(Duration::ZERO) {
            let wait = [next, at_most].into_iter().flatten().min();
            inbox.wait(&mut Vec::new(), wait.unwrap_or(Duration::from_secs(3600)));
        }
        let now = Instant::now();
        self.ended.retain(|(end, due)| {
            let is_due = due.is_some_and(|due| due <= now);
            ended.extend(is_due.then_some(*end));
            !is_due
        });
    }
}
