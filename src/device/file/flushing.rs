//! Flushes of files. One that begins is for all that have asked so far; what asks meanwhile waits for
//! the next, since the one under way may have passed its bytes.

use super::jobs::{Disk, Flush, Io, What};
use super::opened::Opened;
use super::places::Places;
use crate::logging::seldom::warn_seldom;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Instant;

/// Tokens of flushes have this bit.
pub const FLUSH: u32 = 1 << 31;

/// A file with flushes.
struct Flushing {
    file: Arc<Opened>,
    /// Those that the flush under way is for, and the others.
    now: Vec<Flush>,
    next: Vec<Flush>,
    busy: bool,
    /// All that it is for have given up.
    hung: bool,
}

#[derive(Default)]
pub struct Flushes {
    files: Places<Flushing>,
    /// The file whose turn it is.
    turn: usize,
    busy: usize,
}

impl Flushing {
    fn end_all(&mut self, errno: i32) {
        end(self.now.drain(..).chain(self.next.drain(..)), Err(errno));
    }
}

fn end(these: impl Iterator<Item = Flush>, how: Result<(), i32>) {
    these.for_each(|flush| (flush.done)(how));
}

impl Flushes {
    pub fn receive(&mut self, flush: Flush) {
        let same = |flushing: &Flushing| Arc::ptr_eq(&flushing.file, &flush.file);
        let (spoiled, known) = (flush.file.spoiled(), self.files.find(same));
        let hung = known.as_ref().is_some_and(|flushing| flushing.hung);
        match known {
            _ if spoiled != 0 => (flush.done)(Err(spoiled)),
            _ if hung => (flush.done)(Err(libc::ETIMEDOUT)),
            Some(flushing) => flushing.next.push(flush),
            None => {
                let (file, now, next) = (flush.file.clone(), Vec::new(), vec![flush]);
                self.files.add(Flushing { file, now, next, busy: false, hung: false });
            }
        }
    }

    /// Flushes that the disk has.
    pub fn busy(&self) -> usize {
        self.busy
    }

    /// Whether a flush of the file has not begun: it needs a place beside reads and writes.
    pub fn waits(&self, file: &Arc<Opened>) -> bool {
        self.files.each().any(|flushing| Arc::ptr_eq(&flushing.file, file) && !flushing.busy)
    }

    /// Those of a disk's files.
    pub fn of_disk(&self, disk: u64) -> usize {
        self.files.each().filter(|flushing| flushing.busy && flushing.file.disk() == disk).count()
    }

    /// Begins those that have a place: `room` for all, and at `most` I/Os of one file, and of one disk, whose files have
    /// `others`.
    pub fn begin(
        &mut self,
        disk: &mut impl Disk,
        mut room: usize,
        most: (usize, usize),
        others: impl Fn(u64) -> usize,
        count: &AtomicU64,
    ) {
        let (first, places) = (self.turn, self.files.len());
        for at in (0..places).map(|n| (first + n) % places) {
            let Some(flushing) = self.files.get(at).filter(|flushing| !flushing.busy) else { continue };
            let device = flushing.file.disk();
            let taken_up = others(device) + self.of_disk(device) >= most.1;
            let Some(flushing) = self.files.get(at) else { continue };
            if !flushing.file.begin() {
                flushing.end_all(libc::ESTALE);
                self.files.take(at);
            } else if flushing.file.busy() > most.0 || taken_up || room == 0 {
                flushing.file.end();
            } else {
                flushing.now.append(&mut flushing.next);
                flushing.busy = true;
                (self.busy, self.turn, room) = (self.busy + 1, at + 1, room - 1);
                count.fetch_add(1, Relaxed);
                let (fd, token) = (flushing.file.descriptor(false), at as u32 | FLUSH);
                // SAFETY: the file is open until its flush has ended, and there is no memory.
                unsafe {
                    disk.begin(Io { token, fd, waits: true, what: What::Flush, memory: 0, len: 0, offset: 0 })
                };
            }
        }
    }

    pub fn ended(&mut self, token: u32, result: i32) {
        let at = (token & !FLUSH) as usize;
        let Some(flushing) = self.files.get(at).filter(|flushing| flushing.busy) else { return };
        flushing.file.end();
        (flushing.busy, flushing.hung) = (false, false);
        self.busy -= 1;
        match -result {
            // A flush of another registration has failed meanwhile, and took this one's bytes with it.
            ..=0 if flushing.file.spoiled() != 0 => flushing.end_all(flushing.file.spoiled()),
            ..=0 => end(flushing.now.drain(..), Ok(())),
            // Nothing was tried.
            libc::EINTR | libc::EAGAIN => flushing.next.append(&mut flushing.now),
            // There is no such thing here, and nothing is lost.
            errno @ (libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS) => flushing.end_all(errno),
            errno => {
                flushing.file.spoil(errno);
                flushing.end_all(errno);
            }
        }
        if flushing.next.is_empty() {
            self.files.take(at);
        }
    }

    /// Ends those whose time has passed. Returns the next deadline.
    pub fn expire(&mut self, now: Instant) -> Option<Instant> {
        let mut next = None;
        for at in 0..self.files.len() {
            let Some(flushing) = self.files.get(at) else { continue };
            for waiting in [&mut flushing.now, &mut flushing.next] {
                let (late, left) =
                    std::mem::take(waiting).into_iter().partition(|flush| flush.deadline <= now);
                *waiting = left;
                end(Vec::into_iter(late), Err(libc::ETIMEDOUT));
            }
            if flushing.busy && flushing.now.is_empty() && !flushing.hung {
                flushing.hung = true;
                flushing.end_all(libc::ETIMEDOUT);
                warn_seldom!("{}: the disk does not answer; a flush", flushing.file.name);
            }
            let of_file = flushing.now.iter().chain(&flushing.next).map(|flush| flush.deadline).min();
            next = next.into_iter().chain(of_file).min();
            if !flushing.busy && flushing.next.is_empty() {
                self.files.take(at);
            }
        }
        next
    }

    /// Whether all that are left hang.
    pub fn hang(&self) -> bool {
        self.files.each().all(|flushing| flushing.hung)
    }
}
