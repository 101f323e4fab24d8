//! The thread of an endpoint's files: it takes jobs from the inbox, plans their I/O, has it carried
//! out, goes on with what ended short, and says how each job ended.

use super::flushing::{Flushes, FLUSH};
use super::jobs::{Disk, Ended, Inbox, Io, Job, Moved, What, Work};
use super::opened::Opened;
use super::places::Places;
use super::plan::{plan, How, Piece, Step, BOUNCE};
use super::ring::Ring;
use super::threads::Threads;
use crate::device::Copied;
use crate::logging::seldom::warn_seldom;
use crate::status::{Error, Result, Status};
use memmap2::MmapMut;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Aligned buffers at most, those of one file, and those of the files of one disk.
const BOUNCES: usize = 32;
const BOUNCES_OF_ONE: usize = BOUNCES / 4;
const BOUNCES_OF_DISK: usize = BOUNCES / 2;
/// Direct and cached writes of one file wait for each other where they are in one of these parts: a
/// page of the page cache, which may be this large, must not come between.
const APART: u64 = 2 << 20;
/// One I/O is no longer.
const IO_MAX: u64 = 1 << 30;

struct Todo {
    file: Arc<Opened>,
    write: bool,
    step: Step,
}

struct Running {
    job: Job,
    todo: Vec<Todo>,
    /// The next step to begin.
    next: usize,
    /// I/Os that have begun and not ended.
    busy: usize,
    /// 0, or the first error.
    errno: i32,
    hung: bool,
}

/// An I/O in progress: `len` bytes, of which `need` suffice.
struct Op {
    job: usize,
    file: Arc<Opened>,
    write: bool,
    direct: bool,
    memory: u64,
    offset: u64,
    len: u64,
    need: u64,
    done: u64,
    /// The aligned buffer, and what is read into it for whom.
    bounce: Option<usize>,
    piece: Piece,
}

struct Engine<D> {
    disk: D,
    jobs: Places<Running>,
    /// Jobs with steps to begin, in order.
    queue: VecDeque<usize>,
    ops: Places<Op>,
    flushes: Flushes,
    bounces: Vec<MmapMut>,
    free_bounces: Vec<usize>,
    /// No job's deadline is before this.
    next_deadline: Option<Instant>,
}

/// Runs until the queue is dropped. Says first whether it can.
pub fn serve(inbox: Arc<Inbox>, name: &str, ready: Sender<Result<()>>) {
    #[cfg(any(test, feature = "sim"))]
    if let Some(disk) = super::fake::Fake::chosen() {
        let _ = ready.send(Ok(()));
        return run(disk, &inbox);
    }
    let ring = if threads_are_chosen() { Err(std::io::ErrorKind::Unsupported.into()) } else { Ring::new() };
    let why = match ring {
        Ok(ring) => {
            let _ = ready.send(Ok(()));
            return run(ring, &inbox);
        }
        Err(why) => why,
    };
    log::info!("files are read and written by threads: no io_uring ({why})");
    match Threads::new(name, &inbox.event) {
        Ok(threads) => {
            let _ = ready.send(Ok(()));
            run(threads, &inbox);
        }
        Err(error) => {
            let error = Error::new(Status::System, format!("starting threads for files: {error}"));
            let _ = ready.send(Err(error));
        }
    }
}

#[cfg(any(test, feature = "sim"))]
fn threads_are_chosen() -> bool {
    libfabric_sys::variable("WEFT_FILES").is_some_and(|choice| choice == "threads")
}

#[cfg(not(any(test, feature = "sim")))]
fn threads_are_chosen() -> bool {
    false
}

/// Reads and writes of a disk's files.
fn of_disk(ops: &Places<Op>, disk: u64) -> usize {
    ops.each().filter(|op| op.file.disk() == disk).count()
}

/// Carries out jobs until the queue is dropped.
pub fn run(disk: impl Disk, inbox: &Inbox) {
    Engine::new(disk).run(inbox);
}

impl<D: Disk> Engine<D> {
    fn new(disk: D) -> Engine<D> {
        Engine {
            disk,
            jobs: Places::default(),
            queue: VecDeque::new(),
            ops: Places::default(),
            flushes: Flushes::default(),
            bounces: Vec::new(),
            free_bounces: Vec::new(),
            next_deadline: None,
        }
    }

    /// The most I/Os of one file: a disk that hangs leaves places for others.
    fn most_of_one(&self) -> usize {
        (self.disk.depth() / 4).max(2)
    }

    /// The same of the files of one disk, which hang together.
    fn most_of_disk(&self) -> usize {
        (self.disk.depth() / 2).max(1)
    }

    /// Whether a file's disk has its part of all I/Os.
    fn is_taken_up(&self, file: &Opened) -> bool {
        let most = self.most_of_disk();
        self.busy() >= most && of_disk(&self.ops, file.disk()) + self.flushes.of_disk(file.disk()) >= most
    }

    fn run(mut self, inbox: &Inbox) {
        let (mut taken, mut ended): (Vec<Work>, Vec<Ended>) = (Vec::new(), Vec::new());
        loop {
            // Asked first: what is pushed before the queue ends is taken.
            let closing = inbox.is_closing();
            inbox.take(&mut taken);
            taken.drain(..).for_each(|work| match work {
                Work::Job(job) => self.receive(job),
                Work::Flush(flush) => {
                    self.wakes_by(flush.deadline);
                    self.flushes.receive(flush);
                }
            });
            let room = self.disk.depth().saturating_sub(self.busy());
            let most = (self.most_of_one(), self.most_of_disk());
            let others = |disk| of_disk(&self.ops, disk);
            self.flushes.begin(&mut self.disk, room, most, others, &inbox.flushes);
            self.begin();
            let hangs = self.jobs.each().all(|running| running.hung) && self.flushes.hang();
            if closing && hangs {
                break;
            }
            let now = Instant::now();
            let sleeps = inbox.may_sleep();
            let until = self.next_deadline.map(|at| at.saturating_duration_since(now));
            self.disk.wait(&inbox.event, if sleeps { until } else { Some(Duration::ZERO) }, &mut ended);
            ended.drain(..).for_each(|(token, result)| match token & FLUSH {
                0 => self.ended(token as usize, result),
                _ => self.flushes.ended(token, result),
            });
            if self.next_deadline.is_some_and(|at| at <= Instant::now()) {
                self.expire(Instant::now());
            }
        }
        if self.jobs.taken() + self.flushes.busy() > 0 {
            // The kernel may still write to its buffers, and their ends belong to the ring.
            std::mem::forget(self);
        }
    }

    /// I/Os that the disk has.
    fn busy(&self) -> usize {
        self.ops.taken() + self.flushes.busy()
    }

    fn wakes_by(&mut self, deadline: Instant) {
        self.next_deadline = Some(self.next_deadline.map_or(deadline, |next| next.min(deadline)));
    }

    fn receive(&mut self, job: Job) {
        let mut todo = Vec::new();
        let mut steps = Vec::new();
        let (most, mut errno) = (self.most_of_one(), 0);
        for Moved { file, write, piece } in &job.parts {
            if file.spoiled() != 0 {
                errno = file.spoiled();
            } else if file.overdue.load(Relaxed) >= most.min(2 * BOUNCES_OF_ONE) / 2 {
                errno = libc::ETIMEDOUT;
            }
            plan(piece, *write, file.geometry(), &mut steps);
            todo.extend(steps.drain(..).map(|step| Todo { file: file.clone(), write: *write, step }));
        }
        self.wakes_by(job.deadline);
        let at = self.jobs.add(Running { job, todo, next: 0, busy: 0, errno, hung: false });
        self.queue.push_back(at);
    }

    // Beginning.

    /// Begins all that has place.
    fn begin(&mut self) {
        // Files of which a write waits for another: later ones wait, too, or it would wait for ever.
        let mut waiting = Vec::new();
        for _ in 0..self.queue.len() {
            let Some(at) = self.queue.pop_front() else { return };
            // In order, as far as their files have place.
            while self.begin_next(at, &mut waiting) {}
            let waits = self.jobs.get(at).is_some_and(|running| running.next < running.todo.len());
            if waits {
                self.queue.push_back(at);
            } else {
                self.end_job(at);
            }
        }
    }

    /// Begins the next step of a job; false if there is none, or no place for it.
    fn begin_next(&mut self, at: usize, waiting: &mut Vec<(u64, u64)>) -> bool {
        let (most, full) = (self.most_of_one(), self.busy() >= self.disk.depth());
        let Some(running) = self.jobs.get(at) else { return false };
        if running.errno == 0 {
            let spoiled = running.todo.get(running.next).map_or(0, |todo| todo.file.spoiled());
            running.errno = if running.job.is_dropped() { libc::ECANCELED } else { spoiled };
        }
        if running.errno != 0 {
            running.next = running.todo.len();
        }
        let Some(Todo { file, write, step }) = running.todo.get(running.next) else { return false };
        let (file, write, step) = (file.clone(), *write, *step);
        if full || file.busy() + usize::from(self.flushes.waits(&file)) >= most || self.is_taken_up(&file) {
            return false;
        }
        let how = file.geometry().map_or(How::Cached, |_| step.how);
        let conflicts = |op: &Op| {
            write
                && op.write
                && op.file.inode == file.inode
                && op.direct == (how == How::Cached)
                && step.piece.offset / APART * APART < (op.offset + op.len).next_multiple_of(APART)
                && op.offset / APART * APART < (step.piece.offset + step.piece.len).next_multiple_of(APART)
        };
        if write && (waiting.contains(&file.inode) || self.ops.each().any(conflicts)) {
            waiting.push(file.inode);
            return false;
        }
        let bounce = match how {
            How::Bounced { .. } => match self.take_bounce(&file) {
                Some(bounce) => Some(bounce),
                None => return false,
            },
            _ => None,
        };
        let begins = file.begin();
        let op = self.op(at, file, write, step.piece, how, bounce);
        let Some(running) = self.jobs.get(at) else { return false };
        running.next += 1;
        if !begins {
            running.errno = libc::ESTALE;
            self.free_bounces.extend(bounce);
            return true;
        }
        running.busy += 1;
        let token = self.ops.add(op);
        self.submit(token);
        true
    }

    fn op(
        &mut self,
        job: usize,
        file: Arc<Opened>,
        write: bool,
        piece: Piece,
        how: How,
        bounce: Option<usize>,
    ) -> Op {
        let direct = how != How::Cached;
        let (mut memory, mut offset, mut len, mut need) = (piece.memory, piece.offset, piece.len, piece.len);
        if let (How::Bounced { lead }, Some(bounce), Some(geometry)) = (how, bounce, file.geometry()) {
            let buffer = &mut self.bounces[bounce];
            memory = buffer.as_mut_ptr() as u64;
            let (first, last) = geometry.around(&piece);
            (offset, len, need) = (first, last - first, lead + piece.len);
            if write {
                // SAFETY: the job's memory is valid until the job ends, and the buffer, which nobody
                // else has, is longer than a planned piece.
                unsafe { copy(memory, piece.memory, piece.len) };
            }
        }
        Op { job, file, write, direct, memory, offset, len, need, done: 0, bounce, piece }
    }

    fn take_bounce(&mut self, file: &Arc<Opened>) -> Option<usize> {
        let bounced = || self.ops.each().filter(|op| op.bounce.is_some());
        if bounced().filter(|op| Arc::ptr_eq(&op.file, file)).count() >= BOUNCES_OF_ONE
            || bounced().filter(|op| op.file.disk() == file.disk()).count() >= BOUNCES_OF_DISK
        {
            return None;
        }
        if self.free_bounces.is_empty() && self.bounces.len() < BOUNCES {
            self.bounces.push(MmapMut::map_anon(BOUNCE as usize).ok()?);
            self.free_bounces.push(self.bounces.len() - 1);
        }
        self.free_bounces.pop()
    }

    /// Has the disk go on with what is left of an I/O.
    fn submit(&mut self, token: usize) {
        let Some(op) = self.ops.get(token) else { return };
        let rest = Piece { memory: op.memory + op.done, offset: op.offset + op.done, len: op.len - op.done };
        op.direct &= op.file.geometry().is_some_and(|geometry| geometry.suits(&rest));
        let len = if op.direct { rest.len } else { op.need - op.done };
        let io = Io {
            token: token as u32,
            fd: op.file.descriptor(op.direct),
            waits: op.file.waits,
            what: if op.write { What::Write } else { What::Read },
            memory: rest.memory,
            len: len.min(IO_MAX) as u32,
            offset: rest.offset,
        };
        // SAFETY: the op keeps the file and the buffer, and its job's memory stays until the job has
        // ended, which is after this.
        unsafe { self.disk.begin(io) };
    }

    // Ending.

    fn ended(&mut self, token: usize, result: i32) {
        let Some(op) = self.ops.get(token) else { return };
        let over = match -result {
            libc::EINTR | libc::EAGAIN => None,
            libc::EINVAL | libc::EOPNOTSUPP if op.direct => {
                op.file.refuse_direct();
                None
            }
            errno @ 1.. => Some(errno),
            // A read at the end of the file, or a disk that takes nothing.
            0 => Some(if op.write { libc::EIO } else { libc::ENODATA }),
            _ => {
                op.done = (op.done + result as u64).min(op.len);
                (op.done >= op.need).then_some(0)
            }
        };
        let goes_on = self.jobs.get(op.job).is_some_and(|job| job.errno == 0);
        match over {
            None if goes_on => self.submit(token),
            over => self.end_op(token, over.unwrap_or(libc::ECANCELED)),
        }
    }

    fn end_op(&mut self, token: usize, errno: i32) {
        let Some(op) = self.ops.take(token) else { return };
        op.file.end();
        if let Some(bounce) = op.bounce {
            if errno == 0 && !op.write {
                let from = op.memory + (op.piece.offset - op.offset);
                // SAFETY: the job's memory is valid until the job ends, and the buffer has these bytes.
                unsafe { copy(op.piece.memory, from, op.piece.len) };
            }
            self.free_bounces.push(bounce);
        }
        if errno != 0 && errno != libc::ECANCELED {
            warn_seldom!(
                "{}: a {} of {} bytes at {} failed: {}",
                op.file.name,
                if op.write { "write" } else { "read" },
                op.piece.len,
                op.piece.offset,
                std::io::Error::from_raw_os_error(errno)
            );
        }
        let Some(running) = self.jobs.get(op.job) else { return };
        running.busy -= 1;
        if running.errno == 0 {
            running.errno = errno;
        }
        if running.hung {
            op.file.overdue.fetch_sub(1, Relaxed);
        }
        self.end_job(op.job);
    }

    /// Ends a job that has nothing left.
    fn end_job(&mut self, at: usize) {
        let Some(running) = self.jobs.get(at) else { return };
        if running.errno != 0 {
            running.next = running.todo.len();
        }
        if running.busy > 0 || running.next < running.todo.len() {
            return;
        }
        let how = match running.errno {
            0 => Copied::Done,
            libc::ESTALE | libc::ECANCELED => Copied::Gone,
            errno => Copied::Failed(errno),
        };
        if let Some(Running { job, .. }) = self.jobs.take(at) {
            job.ends.put(job.ticket, how);
        }
    }

    /// Ends the jobs whose time has passed, or says that they hang.
    fn expire(&mut self, now: Instant) {
        let mut next = self.flushes.expire(now);
        for at in 0..self.jobs.len() {
            let Some(running) = self.jobs.get(at).filter(|running| !running.hung) else { continue };
            if running.job.deadline > now {
                next = Some(next.map_or(running.job.deadline, |next| next.min(running.job.deadline)));
                continue;
            }
            if running.errno == 0 {
                running.errno = libc::ETIMEDOUT;
            }
            running.hung = running.busy > 0;
            if running.hung {
                running.next = running.todo.len();
                running.job.ends.put(running.job.ticket, Copied::Hung);
                for op in self.ops.each().filter(|op| op.job == at) {
                    op.file.overdue.fetch_add(1, Relaxed);
                    warn_seldom!("{}: the disk does not answer; at {}", op.file.name, op.piece.offset);
                }
            } else {
                self.queue.retain(|waiting| *waiting != at);
                self.end_job(at);
            }
        }
        self.next_deadline = next;
    }
}

/// # Safety
/// Both are valid for `len` bytes, and do not overlap.
unsafe fn copy(to: u64, from: u64, len: u64) {
    // SAFETY: the caller says so.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len as usize) };
}
