//! The initiator's end of a channel: a route to one of a peer's NICs.
//!
//! Operations queue up in order. Each becomes one or several requests, as there
//! is room in the channel: bytes of writes are copied into it, unless they lie in
//! memory that the target can read by itself; bytes of reads are copied out. So
//! the memory of an operation is touched by this process alone, or read by the
//! target. Devices copy from and to the channel behind the worker's back: a request is made
//! known when its bytes are there, and those before it; and the room of a read's bytes is given
//! back when they are at their place.

use super::area::{device_of, Shared};
use super::channel::{self, Block, Channel, CELLS};
use super::copies::Copies;
use super::copy;
use super::device;
use super::op::Op;
use super::pull::Pulls;
use super::request::{Kind, Piece, Pieces, Request, AREA_BYTES, BYTES, DEVICE_BYTES, INLINE};
use super::socket::{self, Received};
use super::user;
use crate::fabric::{Reaped, Rma, Scratch, Segment};
use crate::status::{Error, Result, Status};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{fence, Ordering};

mod areas;

/// Messages of the socket that are read at once; and when one is awaited that was sent before its
/// request: no socket holds more.
const WORDS: u32 = 16;
const WORDS_MOST: u32 = 4096;

/// A probe that the target answers by passing its memory.
const PULL: usize = usize::MAX;
/// Keys of the peer's at most for which it is known whether devices reach each other: each grant has
/// one of its own, so the oldest are asked for again.
const PROBES: usize = 1024;

/// A request on its way.
#[derive(Clone, Copy)]
struct Flight {
    /// The operation of a message may have been reused meanwhile.
    op: u32,
    kind: Kind,
    len: u64,
    stream: bool,
    /// Where its block in `forward` ends.
    end: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Probe {
    number: u32,
    key: u64,
    /// None: not answered yet.
    reaches: Option<bool>,
}

pub struct Outgoing {
    /// None while the listener has no room.
    socket: Option<OwnedFd>,
    channel: Channel,
    /// The channel's, until it is passed.
    file: Option<OwnedFd>,
    ops: Vec<Op>,
    free: Vec<u32>,
    /// Operations that have requests to make.
    queue: VecDeque<u32>,
    flights: Box<[Flight; CELLS as usize]>,
    /// Requests that were made, known to the target, and answered.
    made: u64,
    sent: u64,
    done: u64,
    failures: u64,
    /// Those that wait for a device, or behind such.
    held: Copies<(u32, Request)>,
    /// How far `forward` is used, and up to where it is free again.
    forward: u64,
    forward_free: u64,
    /// How far `back` has been read, and up to where it was given back.
    back: u64,
    returned: u64,
    /// Up to where devices have copied what is in it.
    landed: u64,
    /// Bytes on their way out of it: of an operation, and up to where.
    landing: Copies<(u32, u64)>,
    /// Something was published, and the target may sleep.
    wake_due: bool,
    /// The numbers of passed areas, by place; 0: none.
    passed: Vec<u32>,
    /// Whether the target can copy from device memory to what a key of its names.
    probes: Vec<Probe>,
    last_probe: usize,
    next_probe: usize,
    /// Copies by our devices from the target's memory.
    pulls: Pulls,
    /// The peer is gone: how operations end.
    dead: Option<i32>,
    /// Removed by its user; it is dropped when everything is answered.
    pub removed: bool,
}

// SAFETY: the pointers are the caller's, which moves with it.
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
            probes: Vec::new(),
            last_probe: 0,
            next_probe: 0,
            pulls: Pulls::default(),
            dead: None,
            removed: false,
        })
    }

    /// Connects to the listener; false while it has no room for us.
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

    /// The peer is gone, or none of its business: operations end with this.
    pub fn die(&mut self, errno: i32) {
        self.dead.get_or_insert(errno);
    }

    pub fn dead(&self) -> Option<i32> {
        self.dead
    }

    /// Nothing is under way.
    #[inline]
    pub fn is_idle(&self) -> bool {
        let copied = self.pulls.is_empty() && self.landing.is_empty();
        self.made == self.done && self.queue.is_empty() && !self.wake_due && copied
    }

    /// Queues a write or read.
    #[inline]
    pub fn rma(&mut self, rma: &Rma<'_>, area: Option<&Shared>, scratch: *mut Scratch) {
        if let Some(device) = device_of(rma.descriptor as u64, area) {
            return self.rma_of_device(rma, (area, device), scratch);
        }
        if self.ask_inline(rma, scratch) {
            return;
        }
        let kind = if rma.read { Kind::Read } else { Kind::Write };
        let passed = area.filter(|area| !rma.read && self.pass(area));
        let area = passed.map_or((0, 0), |area| (area.number, area.base()));
        self.push(kind, rma.key, area, rma.segments, scratch).immediate = rma.immediate;
    }

    /// Asks at once for a write of a few bytes, which go in the request; false if there is more
    /// to it, or it has to wait.
    #[inline]
    fn ask_inline(&mut self, rma: &Rma<'_>, scratch: *mut Scratch) -> bool {
        let [segment] = rma.segments else { return false };
        let few = (1..=INLINE).contains(&segment.len) && !rma.read && rma.immediate.is_none();
        if !few || !self.queue.is_empty() || self.sent != self.made || self.sent - self.done == CELLS {
            return false;
        }
        let mut words = [0u64; 4];
        // SAFETY: no longer than the words; the operation's memory is valid until it is done.
        unsafe {
            let (from, to) = (segment.local as *const u8, words.as_mut_ptr().cast());
            copy::copy(to, from, segment.len as usize, false);
        }
        let kind = Kind::Write;
        let &Segment { remote, len, .. } = segment;
        let (inline, key) = (len, rma.key);
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

    /// Makes requests while there is room; messages are done when they are in
    /// the channel. Up to `budget` bytes are copied.
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

    /// Whether an operation has ended already: the rest of it is not requested.
    #[inline]
    fn is_spent(&mut self, index: u32) -> bool {
        let op = &mut self.ops[index as usize];
        op.all_asked |= !op.goes_on();
        op.all_asked
    }

    /// The memory of these operations is not to be touched any longer.
    pub fn disown(&mut self, scratches: &[*mut Scratch]) {
        let mut on_device = false;
        for op in &mut self.ops {
            op.disowned |= !op.scratch.is_null() && scratches.contains(&op.scratch);
            on_device |= op.disowned && (op.on_device || op.through.is_some());
        }
        if on_device {
            self.settle_devices();
        }
    }

    /// Makes an operation's next request; false if there is no room for it.
    #[inline]
    fn ask(&mut self, index: u32, budget: &mut u64) -> bool {
        let op = &mut self.ops[index as usize];
        let most = match op.area {
            0 => BYTES,
            _ if op.on_device => DEVICE_BYTES,
            _ => AREA_BYTES,
        };
        let mut pieces = Pieces::new();
        let (len, after) = op.take(most, &mut pieces);
        let count = pieces.len();
        let first = pieces.first().copied().unwrap_or_default();
        // The target does requests in order, and refuses all of a write or none: what comes
        // with the last one comes after all bytes.
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
            stream: copy::streams(len, self.made - self.done),
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
            // SAFETY: at most as long as the words; the operation's memory is valid until it is done.
            unsafe { op.gather(len, request.words.as_mut_ptr().cast(), false) };
        } else if block.start != block.end {
            let place = self.channel.forward(&block);
            if count > 1 {
                // SAFETY: the block has room for the pieces first.
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
                // SAFETY: the block has room for the list, and then for the bytes.
                let mut to = unsafe { place.add(request.list_len() as usize) } as u64;
                for piece in &pieces {
                    // SAFETY: the operation's memory is valid until it is done, or `disown` waits.
                    unsafe { self.held.add(piece.offset, to, piece.len) };
                    to += piece.len;
                }
                copied = true;
            } else if op.area == 0 && op.kind != Kind::Read {
                let stream = request.stream;
                // SAFETY: and then for the bytes, which are valid until the operation is done.
                unsafe { op.gather(len, place.add(request.list_len() as usize), stream) };
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

    /// Takes the target's answers; false if they make no sense.
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
        // The failure may already be that of a later request.
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

    /// Says how far the bytes of reads are out of the channel.
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
                // Any value is taken as an error.
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
        let op = &mut self.ops[index as usize];
        if op.probe == Some(PULL) && op.errno == 0 {
            // The handle of the memory came first.
            self.listen_to(WORDS_MOST);
        }
        let op = &mut self.ops[index as usize];
        match op.probe.take().map(|probe| self.probes.get_mut(probe)) {
            None => reaped.push(Reaped::of(op.scratch, op.errno)),
            Some(probe) => probe.into_iter().for_each(|probe| probe.reaches = Some(op.errno == 0)),
        }
        op.scratch = std::ptr::null_mut();
        self.free.push(index);
    }

    /// Wakes the target if it sleeps and there is something new for it.
    #[inline]
    pub fn wake_peer(&mut self) {
        if !self.wake_due {
            return;
        }
        let Some(socket) = &self.socket else { return };
        self.wake_due = false;
        // Pairs with the fence before a target sleeps: either it sees what we published, or we
        // see that it sleeps.
        fence(Ordering::SeqCst);
        let sleeps = self.channel.target_sleeps();
        if sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0 {
            socket::wake(socket.as_fd());
        }
    }

    /// Publishes whether we sleep.
    pub fn sleeps(&self, sleeps: bool) {
        if self.sent != self.done {
            self.channel.initiator_sleeps().store(sleeps as u32, Ordering::Relaxed);
        }
    }

    /// Whether `progress` or `pump` has something to do.
    pub fn has_work(&self) -> bool {
        let answered = self.sent != self.done && self.channel.done().load(Ordering::Acquire) != self.done;
        answered
            || self.wake_due
            || !self.pulls.is_empty()
            || !self.landing.is_empty()
            || self.sent != self.made
            || (self.sent == self.done && !self.queue.is_empty())
            || self.socket.is_none()
    }

    /// Reads what the socket has, some words; false when the peer is gone.
    pub fn listen(&mut self) -> bool {
        self.listen_to(WORDS)
    }

    fn listen_to(&mut self, words: u32) -> bool {
        for _ in 0..words {
            let Some(socket) = self.socket() else { break };
            match socket::receive(socket) {
                Received::Control(socket::Control::Wake) => {}
                Received::Control(socket::Control::Device(number, handle)) => {
                    self.pulls.passed(number, handle)
                }
                Received::Control(socket::Control::Forget(gone)) => {
                    self.pulls.forget(|number, _| number == gone);
                }
                Received::Nothing => return true,
                _ => return false,
            }
        }
        true
    }

    /// Ends everything that is under way.
    pub fn fail_all(&mut self, errno: i32, reaped: &mut Vec<Reaped>) {
        self.queue.clear();
        self.settle_devices();
        self.pulls.end();
        self.held.clear();
        self.landing.clear();
        for op in &mut self.ops {
            if !op.scratch.is_null() {
                let scratch = std::mem::replace(&mut op.scratch, std::ptr::null_mut());
                reaped.push(Reaped::of(scratch, errno));
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
        self.settle_devices(); // Before its channel.
        self.socket().into_iter().for_each(socket::shut);
    }
}
