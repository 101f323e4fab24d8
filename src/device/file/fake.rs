//! A fake disk for tests, in front of the real file.
//!
//! WEFT_FILES: "fake", then optionally ":late=US" (microseconds until an I/O ends), ":short" (each moves at
//! most half of its bytes), ":errno=E" (I/Os of the byte ":at=N" and later ones fail by E; those before it end
//! short of it), ":hang=N" (an I/O of byte N ends only ":for=US" later; without it never), ":cached" (direct I/O is
//! refused). "threads": the threads that serve where io_uring is refused.

use super::jobs::{Disk, Ended, Io};
use crate::event::Event;
use std::time::{Duration, Instant};

#[derive(Clone, Default)]
pub struct Fake {
    pub late: Duration,
    pub short: bool,
    /// The error number, and the first byte that has it.
    pub errno: Option<(i32, u64)>,
    /// The byte of which an I/O hangs, and for how long.
    pub hang: Option<(u64, Option<Duration>)>,
    pub cached: bool,
    pub ended: Vec<(Ended, Option<Instant>)>,
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
            ended: Vec::new(),
        })
    }

    /// # Safety
    /// As `Io::carry_out`.
    unsafe fn play(&self, mut io: Io) -> i32 {
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
        match self.hang.filter(|(at, _)| inside(*at)) {
            // It does not touch its memory, which is less than a disk may.
            Some((_, time)) => self.ended.push(((io.token, -libc::EIO), time.map(|time| now + time))),
            // SAFETY: the caller has a valid I/O.
            None => self.ended.push(((io.token, unsafe { self.play(io) }), Some(now + self.late))),
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
