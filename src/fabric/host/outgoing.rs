//! The initiator's end of a channel: a route to one of a peer's NICs.
//!
//! Operations queue up in order. Each becomes one or several requests, as the channel has space.
//! Bytes of writes are copied into the channel, unless they lie in memory that the target can read
//! itself; bytes of reads are copied out. So only this process touches the memory of an operation,
//! or the target reads it. Devices copy to and from the channel without the worker: a request is
//! published when its bytes, and those before it, are in the channel; and the space of a read's
//! bytes is freed when they have reached their destination.

use super::area::{device_of, Shared};
use super::channel::{self, Block, Channel, CELLS};
use super::copies::Copies;
use super::copy;
use super::device;
use super::op::Op;
use super::parts::Passing;
use super::pull::Pulls;
use super::request::{Kind, Piece, Pieces, Request, INLINE};
use super::socket::{self, Forgotten};
use super::user;
use crate::descriptor::Descriptor;
use crate::fabric::{Reaped, Rma, Scratch, Segment, MAY_FAULT};
use crate::status::{Error, Result, Status};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{fence, Ordering};

mod areas;
mod beside;

/// Messages read from the socket at once; and while waiting for one that was sent before its
/// request, more than a socket holds.
const WORDS: u32 = 16;
const WORDS_MOST: u32 = 4096;

/// The probe that the target answers by passing its memory.
const PULL: usize = usize::MAX;
/// The most keys of the peer for which the reach of devices is remembered: each grant has a key of
/// its own, so the oldest are probed again.
const PROBES: usize = 1024;

/// A request in flight.
#[derive(Clone, Copy)]
struct Flight {
    /// A message's operation may have been reused meanwhile.
    op: u32,
    kind: Kind,
    len: u64,
    stream: bool,
    /// The end of its block in `forward`.
    end: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Probe {
    number: u32,
    key: u64,
    /// `None`: not answered yet.
    reaches: Option<bool>,
}

pub struct Outgoing {
    /// `None` while the listener's queue is full.
    socket: Option<Descriptor>,
    channel: Channel,
    /// The channel's file, until it is passed.
    file: Option<Descriptor>,
    ops: Vec<Op>,
    free: Vec<u32>,
    /// Operations with requests left to make.
    queue: VecDeque<u32>,
    flights: Box<[Flight; CELLS as usize]>,
    /// Requests that were made, published to the target, and answered.
    made: u64,
    sent: u64,
    done: u64,
    failures: u64,
    /// Requests that wait for a device, and those behind them.
    held: Copies<(u32, Request)>,
    /// The end of the used part of `forward`, and the position up to which it is free again.
    forward: u64,
    forward_free: u64,
    /// The position up to which `back` has been read, and up to which it was given back.
    back: u64,
    returned: u64,
    /// The position up to which devices have copied out of `back`.
    landed: u64,
    /// Bytes that devices copy out of `back`: the operation, and their end.
    landing: Copies<(u32, u64)>,
    /// A request was published, and the target may sleep.
    wake_due: bool,
    /// The numbers of passed areas, by index; 0: not passed.
    passed: Vec<u32>,
    passing: Passing,
    forgotten: Forgotten,
    /// Whether the target can copy from device memory to the memory of a key.
    probes: Vec<Probe>,
    last_probe: usize,
    next_probe: usize,
    /// Copies by our devices out of the target's memory.
    pulls: Pulls,
    /// It has requests for disks, beside another channel with the same socket.
    beside: bool,
    /// Set when the peer is gone: the error with which operations end.
    dead: Option<i32>,
    /// The user has removed the route; it is dropped when everything is answered.
    pub removed: bool,
}

// SAFETY: the pointers belong to the caller, which moves together with this route.
unsafe impl Send for Outgoing {}

impl Outgoing {
    pub fn new() -> Result<Outgoing> {
        let (channel, file) = Channel::create()?;
        let flight = Flight { op: 0, kind: Kind::Message, len: 0, stream: false, end: 0 };
        Ok(Outgoing {
            socket: None,
            channel,
            file: Some(file),
            ops: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            flights: Box::new([flight; CELLS as usize]),
            made: 0,
            sent: 0,
            done: 0,
            failures: 0,
            held: Copies::default(),
            forward: 0,
            forward_free: 0,
            back: 0,
            returned: 0,
            landed: 0,
            landing: Copies::default(),
            wake_due: false,
            passed: Vec::new(),
            passing: Passing::default(),
            forgotten: Forgotten::default(),
            probes: Vec::new(),
            last_probe: 0,
            next_probe: 0,
            pulls: Pulls::default(),
            beside: false,
            dead: None,
            removed: false,
        })
    }

    /// Connects to the listener; false while the listener's queue is full.
    pub fn connect(&mut self, name: &str) -> Result<bool> {
        let Some(socket) = socket::connect(name)? else { return Ok(false) };
        if user::process_of(socket.as_fd()).is_none() {
            return Err(Error {
                provider_errno: libc::EACCES,
                ..Error::new(Status::Fabric, "the peer on this host is another user's process")
            });
        }
        let file = self.file.take();
        if !file.is_some_and(|file| socket::pass_channel(socket.as_fd(), file.as_fd())) {
            return Err(Error {
                provider_errno: socket::errno(),
                ..Error::system("passing memory to a peer on this host")
            });
        }
        self.socket = Some(socket);
        Ok(true)
    }

    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    #[cfg(test)]
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// The peer is gone, or not of this user: operations end with this error.
    pub fn die(&mut self, errno: i32) {
        self.dead.get_or_insert(errno);
    }

    pub fn dead(&self) -> Option<i32> {
        self.dead
    }

    /// Whether nothing is in flight.
    #[inline]
    pub fn is_idle(&self) -> bool {
        let copied = self.pulls.is_empty() && self.landing.is_empty();
        self.made == self.done && self.queue.is_empty() && !self.wake_due && copied
    }

    /// Queues a write or read.
    #[inline]
    pub fn rma(&mut self, rma: &Rma<'_>, area: Option<&Shared>, scratch: *mut Scratch) {
        if let Some(device) = device_of(rma.descriptor as u64, area) {
            return self.rma_of_device(rma, area, device, scratch);
        }
        let may_fault = rma.descriptor as u64 == MAY_FAULT;
        if !may_fault && self.ask_inline(rma, scratch) {
            return;
        }
        let kind = if rma.read { Kind::Read } else { Kind::Write };
        let passed = area.filter(|area| !rma.read && self.pass(area));
        let area = passed.map_or((0, 0), |area| (area.number, area.base()));
        let op = self.push(kind, rma.key, area, rma.segments, scratch);
        (op.immediate, op.may_fault) = (rma.immediate, may_fault);
    }

    /// Makes an inline request for a write of a few bytes; false if the write is larger, or has to wait.
    #[inline]
    fn ask_inline(&mut self, rma: &Rma<'_>, scratch: *mut Scratch) -> bool {
        let [segment] = rma.segments else { return false };
        let few = (1..=INLINE).contains(&segment.len) && !rma.read && rma.immediate.is_none();
        if !few || !self.queue.is_empty() || self.sent != self.made || self.sent - self.done == CELLS {
            return false;
        }
        let mut words = [0u64; 4];
        // SAFETY: the length is at most that of the words; the operation's memory is valid until it is done.
        unsafe {
            let (from, to) = (segment.local as *const u8, words.as_mut_ptr().cast());
            copy::copy(to, from, segment.len as usize, false);
        }
        let &Segment { remote, len, .. } = segment;
        let (kind, inline, key) = (Kind::Write, len, rma.key);
        let request = Request {
            kind,
            inline,
            stream: false,
            pieces: 1,
            len,
            area: 0,
            key,
            remote,
            immediate: None,
            words,
        };
        request.publish(self.channel.cell(self.sent), channel::stamp(self.sent));
        let (op, end) = (self.vacancy(), self.forward);
        self.flights[(self.sent % CELLS) as usize] = Flight { op, kind, len, stream: false, end };
        let op = &mut self.ops[op as usize];
        (op.scratch, op.kind, op.open, op.all_asked) = (scratch, kind, 1, true);
        (op.errno, op.probe, op.on_device, op.disowned, op.through) = (0, None, false, false, None);
        op.may_fault = false;
        (self.made, self.sent) = (self.made + 1, self.sent + 1);
        self.wake_due = true;
        true
    }

    /// Queues a message.
    pub fn send(&mut self, local: u64, len: u64, scratch: *mut Scratch) {
        self.push(Kind::Message, 0, (0, 0), &[Segment { local, remote: 0, len }], scratch);
    }

    fn push(
        &mut self,
        kind: Kind,
        key: u64,
        area: (u32, u64),
        segments: &[Segment],
        scratch: *mut Scratch,
    ) -> &mut Op {
        let index = self.vacancy();
        let op = &mut self.ops[index as usize];
        let mut kept = std::mem::take(&mut op.segments);
        kept.clear();
        kept.extend_from_slice(segments);
        let (area, area_base) = area;
        *op = Op { scratch, kind, key, area, area_base, segments: kept, ..Op::default() };
        self.queue.push_back(index);
        op
    }

    #[inline]
    fn vacancy(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.ops.push(Op::default());
            self.ops.len() as u32 - 1
        })
    }

    /// Makes requests while the channel has space, and copies at most `budget` bytes. A message is
    /// done when it is in the channel.
    #[inline]
    pub fn pump(&mut self, budget: &mut u64, reaped: &mut Vec<Reaped>) {
        while let Some(&index) = self.queue.front() {
            if self.is_spent(index) {
                self.queue.pop_front();
                if self.ops[index as usize].open == 0 {
                    self.finish(index, reaped);
                }
                continue;
            }
            if self.made - self.done == CELLS || *budget == 0 || !self.ask(index, budget) {
                break;
            }
            if self.ops[index as usize].all_asked {
                self.queue.pop_front();
                if self.ops[index as usize].kind == Kind::Message {
                    self.finish(index, reaped);
                }
            }
        }
        if self.sent != self.made {
            self.publish_held();
        }
    }

    /// Whether an operation has already failed: the rest of it is not requested.
    #[inline]
    fn is_spent(&mut self, index: u32) -> bool {
        let op = &mut self.ops[index as usize];
        op.all_asked |= !op.goes_on();
        op.all_asked
    }

    /// Makes an operation's next request; false without space for it.
    #[inline]
    fn ask(&mut self, index: u32, budget: &mut u64) -> bool {
        let op = &mut self.ops[index as usize];
        let under_way = self.made - self.done;
        let mut pieces = Pieces::new();
        let (len, after) = op.take(op.most(under_way), &mut pieces);
        let count = pieces.len();
        let first = pieces.first().copied().unwrap_or_default();
        // The target serves requests in order, and refuses all of a write or none: the immediate of
        // the last request arrives after all bytes.
        let immediate = op.immediate.filter(|_| after.is_at_end(&op.segments));
        let is_inline = op.kind == Kind::Write
            && count == 1
            && len <= INLINE
            && op.area == 0
            && op.through.is_none()
            && len > 0
            && immediate.is_none();
        let mut request = Request {
            kind: op.kind,
            inline: if is_inline { len } else { 0 },
            stream: copy::streams(len, under_way),
            pieces: count,
            len,
            area: op.area,
            key: op.key,
            remote: first.remote,
            immediate,
            words: [first.offset, 0, 0, 0],
        };
        let block = Block::after(self.forward, request.block_len());
        if !block.fits(self.forward_free) {
            return false;
        }
        let mut copied = false;
        if is_inline {
            // SAFETY: the length is at most that of the words; the operation's memory is valid
            // until it is done.
            if let Err(errno) = unsafe { op.gather(len, request.words.as_mut_ptr().cast(), false) } {
                op.errno = errno;
                return true;
            }
        } else if block.start != block.end {
            let place = self.channel.forward(&block);
            if count > 1 {
                // SAFETY: the block begins with space for the pieces.
                unsafe {
                    std::ptr::copy_nonoverlapping(pieces.as_ptr().cast(), place, count * size_of::<Piece>())
                };
            }
            if let Some(device) = op.through.filter(|_| op.kind == Kind::Write) {
                let pinned = self.channel.pin(device).and_then(|()| self.held.choose(device));
                if let Err(errno) = pinned {
                    op.errno = errno;
                    return true;
                }
                // SAFETY: the block has space for the list, followed by the bytes.
                let mut to = unsafe { place.add(request.list_len() as usize) } as u64;
                for piece in &pieces {
                    // SAFETY: the operation's memory is valid until it is done, or `disown` waits
                    // for the copy.
                    unsafe { self.held.add(piece.offset, to, piece.len) };
                    to += piece.len;
                }
                copied = true;
            } else if op.area == 0 && op.kind != Kind::Read {
                let stream = request.stream;
                // SAFETY: the bytes follow the list in the block, and the operation's memory is
                // valid until it is done.
                if let Err(errno) = unsafe { op.gather(len, place.add(request.list_len() as usize), stream) }
                {
                    op.errno = errno;
                    return true;
                }
                copy::settle(stream);
                *budget = budget.saturating_sub(len);
            }
        }
        if copied || self.sent != self.made {
            self.held.push((index, request), copied);
        } else {
            request.publish(self.channel.cell(self.sent), channel::stamp(self.sent));
            self.sent += 1;
            self.wake_due = true;
        }
        self.flights[(self.made % CELLS) as usize] =
            Flight { op: index, kind: op.kind, len, stream: request.stream, end: block.end };
        op.asked = after;
        op.open += 1;
        op.all_asked = after.is_at_end(&op.segments);
        self.made += 1;
        self.forward = block.end;
        true
    }

    /// Handles the target's answers; false if they are malformed.
    #[inline]
    pub fn progress(&mut self, budget: &mut u64, reaped: &mut Vec<Reaped>) -> bool {
        if !self.pulls.is_empty() || !self.landing.is_empty() {
            self.take_copied(reaped);
        }
        if self.sent == self.done {
            return true;
        }
        let done = self.channel.done().load(Ordering::Acquire);
        if done == self.done {
            return true;
        }
        if done.wrapping_sub(self.done) > self.sent - self.done {
            return false;
        }
        let failed = self.channel.failed().load(Ordering::Acquire);
        // The failure may belong to a later request.
        if failed.wrapping_sub(self.failures) > self.sent - self.done {
            return false;
        }
        while self.done != done && *budget > 0 {
            self.settle(failed, budget, reaped);
        }
        self.pulls.pump();
        self.landing.pump();
        self.give_back();
        true
    }

    /// Publishes up to where the bytes of reads have left the channel.
    #[inline]
    fn give_back(&mut self) {
        let free = if self.landing.is_empty() { self.back } else { self.landed };
        if self.returned != free {
            self.returned = free;
            self.channel.returned().store(free, Ordering::Release);
            self.wake_due = true;
        }
    }

    /// Handles the answer to one request.
    #[inline]
    fn settle(&mut self, failed: u64, budget: &mut u64, reaped: &mut Vec<Reaped>) {
        let n = self.done;
        let flight = self.flights[(n % CELLS) as usize];
        let mut errno = 0;
        if self.failures != failed {
            let failure = self.channel.failure(self.failures).load(Ordering::Relaxed);
            if failure as u32 == n as u32 {
                // Any value is treated as an error.
                errno = ((failure >> 32) as i32).clamp(1, 4095);
                self.failures += 1;
            }
        }
        self.done += 1;
        self.forward_free = flight.end;
        if flight.kind == Kind::Message {
            return;
        }
        let op = &mut self.ops[flight.op as usize];
        if flight.kind == Kind::Read && op.on_device {
            *budget = budget.saturating_sub(device::COST);
            return self.pull(flight, errno);
        }
        if flight.kind == Kind::Read && errno == 0 {
            let block = Block::after(self.back, flight.len);
            if op.through.is_some() || !self.landing.is_empty() {
                return self.land(flight, block);
            }
            if op.goes_on() {
                // SAFETY: the block holds as many bytes; the operation's memory is valid until it
                // is done.
                unsafe { op.scatter(flight.len, self.channel.back(&block), flight.stream) };
            }
            self.back = block.end;
            *budget = budget.saturating_sub(flight.len);
        }
        if op.errno == 0 {
            op.errno = errno;
        }
        op.open -= 1;
        if op.open == 0 && op.all_asked {
            self.finish(flight.op, reaped);
        }
    }

    fn finish(&mut self, index: u32, reaped: &mut Vec<Reaped>) {
        let op = &self.ops[index as usize];
        match (op.probe, op.errno) {
            // The target sent the memory's handle before this answer.
            (Some(PULL), 0) => _ = self.listen_to(WORDS_MOST),
            (Some(PULL), _) => self.pulls.refused(op.area),
            _ => {}
        }
        let op = &mut self.ops[index as usize];
        match op.probe.take().map(|probe| self.probes.get_mut(probe)) {
            None => reaped.push(Reaped::new(op.scratch, op.errno)),
            Some(Some(probe)) => probe.reaches = Some(op.errno == 0),
            Some(None) => {}
        }
        op.scratch = std::ptr::null_mut();
        self.free.push(index);
    }

    /// Wakes the target if it sleeps and a request is new.
    #[inline]
    pub fn wake_peer(&mut self) {
        if !self.wake_due {
            return;
        }
        if self.socket.is_none() {
            return;
        }
        self.wake_due = false;
        // Pairs with the fence that a target executes before it sleeps: either the target sees what
        // was published, or this worker sees that the target sleeps.
        fence(Ordering::SeqCst);
        self.rouse_peer();
    }

    /// Wakes the target if it is known to sleep.
    #[inline]
    pub fn rouse_peer(&self) {
        let (sleeps, Some(socket)) = (self.channel.target_sleeps(), &self.socket) else { return };
        if sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0 {
            socket::wake(socket.as_fd());
        }
    }

    /// Publishes whether this worker sleeps.
    pub fn sleeps(&self, sleeps: bool) {
        if self.sent != self.done {
            self.channel.initiator_sleeps().store(sleeps as u32, Ordering::Relaxed);
        }
    }

    /// Whether `progress` or `pump` would find work.
    pub fn has_work(&self) -> bool {
        let answered = self.sent != self.done && self.channel.done().load(Ordering::Acquire) != self.done;
        answered
            || self.wake_due
            || !self.pulls.is_empty()
            || !self.landing.is_empty()
            || self.sent != self.made
            || (self.sent == self.done && !self.queue.is_empty())
            || self.socket.is_none() && self.dead.is_none()
    }

    /// Reads some messages from the socket; false when the peer is gone.
    pub fn listen(&mut self) -> bool {
        self.listen_to(WORDS)
    }

    /// Fails every operation in flight.
    pub fn fail_all(&mut self, errno: i32, reaped: &mut Vec<Reaped>) {
        self.queue.clear();
        self.settle_devices();
        self.pulls.end();
        self.held.clear();
        self.landing.clear();
        for op in &mut self.ops {
            if !op.scratch.is_null() {
                let scratch = std::mem::replace(&mut op.scratch, std::ptr::null_mut());
                reaped.push(Reaped::new(scratch, errno));
            }
        }
        self.ops.clear();
        self.free.clear();
        (self.done, self.sent) = (self.made, self.made);
        self.wake_due = false;
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.settle_devices(); // The copies end before their channel.
        if let Some(socket) = self.socket().filter(|_| !self.beside) {
            socket::shut(socket);
        }
    }
}
