//! Jobs: the copies of a launch, on their way to the thread that carries them out, and their ends on
//! their way back.

use super::opened::Opened;
use super::plan::Piece;
use crate::device::Copied;
use crate::event::Event;
use crate::status::Result;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    Read,
    Write,
    /// Without memory: what was written so far survives a power cut.
    Flush,
}

/// One read or write of a file, of memory that stays until it has ended, or a flush.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    pub token: u32,
    pub fd: RawFd,
    /// Beginning it may wait for the disk.
    pub waits: bool,
    pub what: What,
    pub memory: u64,
    pub len: u32,
    pub offset: u64,
}

/// The token of an I/O, and its bytes or its negative error number.
pub type Ended = (u32, i32);

/// What carries out I/O: io_uring, threads, or a fake disk.
pub trait Disk {
    /// The most I/Os that it has at once.
    fn depth(&self) -> usize;
    /// Begins an I/O.
    ///
    /// # Safety
    /// Its memory and its descriptor are valid until `wait` has returned its end.
    unsafe fn begin(&mut self, io: Io);
    /// Waits until I/Os have ended, the inbox is set, or the time has passed.
    fn wait(&mut self, inbox: &Event, at_most: Option<Duration>, ended: &mut Vec<Ended>);
}

impl Io {
    /// Reads, writes or flushes once; returns the bytes, or a negative error number.
    ///
    /// # Safety
    /// The memory and the descriptor are valid.
    pub unsafe fn carry_out(&self) -> i32 {
        let (memory, len, offset) = (self.memory as *mut libc::c_void, self.len as usize, self.offset as i64);
        // SAFETY: the caller has a descriptor and memory of this length.
        let done = unsafe {
            match self.what {
                What::Read => libc::pread(self.fd, memory, len, offset),
                What::Write => libc::pwrite(self.fd, memory, len, offset),
                What::Flush => libc::fdatasync(self.fd) as isize,
            }
        };
        match done {
            ..0 => -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
            done => done as i32,
        }
    }
}

/// Bytes of one file that move in one direction.
pub struct Moved {
    pub file: Arc<Opened>,
    pub write: bool,
    pub piece: Piece,
}

pub struct Job {
    pub parts: Vec<Moved>,
    pub ticket: u64,
    pub ends: Arc<Ends>,
    pub deadline: Instant,
}

impl Job {
    pub fn is_dropped(&self) -> bool {
        self.ticket <= self.ends.dropped.load(Ordering::Acquire)
    }
}

/// Called with the end of a flush: 0, or the system's error number.
pub type Done = Box<dyn FnOnce(std::result::Result<(), i32>) + Send>;

/// A wish that all that was written to a file so far survives a power cut.
pub struct Flush {
    pub file: Arc<Opened>,
    pub deadline: Instant,
    pub done: Done,
}

pub enum Work {
    Job(Job),
    Flush(Flush),
}

// The way there.

/// The inbox of an endpoint's thread.
pub struct Inbox {
    work: Mutex<Vec<Work>>,
    pub event: Arc<Event>,
    /// The thread sleeps, or is about to: the event wakes it.
    asleep: AtomicBool,
    closing: AtomicBool,
    /// Flushes that have begun.
    pub flushes: AtomicU64,
}

/// The end of the inbox that belongs to an endpoint and its files. The thread ends after it.
pub struct Queue(Arc<Inbox>);

impl Queue {
    pub fn new() -> Result<(Queue, Arc<Inbox>)> {
        let (work, asleep, closing) = (Mutex::default(), AtomicBool::new(false), AtomicBool::new(false));
        let inbox = Arc::new(Inbox {
            work,
            event: Arc::new(Event::new()?),
            asleep,
            closing,
            flushes: AtomicU64::new(0),
        });
        Ok((Queue(inbox.clone()), inbox))
    }

    pub fn push(&self, work: Work) {
        self.0.work.lock().push(work);
        self.wake();
    }

    /// Flushes that have begun.
    pub fn flushes(&self) -> u64 {
        self.0.flushes.load(Ordering::Relaxed)
    }

    /// The thread looks at its jobs again, whatever it has looked at.
    pub fn nudge(&self) {
        self.0.event.set();
    }

    fn wake(&self) {
        if self.0.asleep.swap(false, Ordering::SeqCst) {
            self.0.event.set();
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.0.closing.store(true, Ordering::Release);
        self.0.event.set();
    }
}

impl Inbox {
    pub fn take(&self, work: &mut Vec<Work>) {
        work.append(&mut self.work.lock());
    }

    /// Whether the thread may sleep: nothing has come since `take`.
    pub fn may_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let nothing = self.work.lock().is_empty();
        nothing || !self.asleep.swap(false, Ordering::SeqCst)
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}

// The way back.

/// How the launches of one copier have ended.
pub struct Ends {
    known: Mutex<Known>,
    /// Set when something has ended or hangs.
    event: Event,
    set: AtomicBool,
    changed: Condvar,
    /// Tickets up to this one are not begun any longer.
    dropped: AtomicU64,
}

#[derive(Default)]
struct Known {
    /// What has not been polled.
    ended: HashMap<u64, Copied>,
    /// Launches that have not ended, and those of them that hang.
    live: usize,
    hung: usize,
}

impl Ends {
    pub fn new() -> Result<Ends> {
        let (known, set, changed) = (Mutex::default(), AtomicBool::new(false), Condvar::new());
        Ok(Ends { known, event: Event::new()?, set, changed, dropped: AtomicU64::new(0) })
    }

    /// Counts a launch.
    pub fn expect(&self) {
        self.known.lock().live += 1;
    }

    /// How a launch is. Its end is forgotten.
    pub fn take(&self, ticket: u64) -> Copied {
        let mut known = self.known.lock();
        match known.ended.get(&ticket) {
            None => Copied::Pending,
            Some(Copied::Hung) => Copied::Hung,
            Some(_) => known.ended.remove(&ticket).unwrap_or(Copied::Pending),
        }
    }

    /// Launches up to this ticket are not begun any longer.
    pub fn drop_waiting(&self, ticket: u64) {
        self.dropped.store(ticket, Ordering::Release);
    }

    /// Waits until all have ended, or hang; false if some hang.
    pub fn wait(&self) -> bool {
        let mut known = self.known.lock();
        while known.live > known.hung {
            self.changed.wait(&mut known);
        }
        known.live == 0
    }

    pub fn wakes(&self) -> BorrowedFd<'_> {
        // SAFETY: the event is open as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.event.descriptor()) }
    }

    pub fn heard(&self) {
        self.event.clear();
        // What ends from here on sets it again; what has ended is polled after this.
        self.set.store(false, Ordering::Release);
    }

    /// A job has ended, or hangs.
    pub fn put(&self, ticket: u64, how: Copied) {
        let mut known = self.known.lock();
        let hung = known.ended.insert(ticket, how) == Some(Copied::Hung);
        match how {
            Copied::Hung => known.hung += 1,
            _ => (known.live, known.hung) = (known.live - 1, known.hung - usize::from(hung)),
        }
        drop(known);
        self.changed.notify_all();
        if !self.set.swap(true, Ordering::AcqRel) {
            self.event.set();
        }
    }
}
