//! Our operations on a connection. Each becomes one or several requests, which the other end
//! settles in order. Without I/O: requests go into a `Batch`, and calls report the answers.

use super::socket::Outcome;
use super::staged::{Run, Staged, Whose};
use super::stream::{Batch, Owner, FEW, STEP};
use crate::bytes::copy;
use crate::device::Device;
use crate::fabric::own::pool::Pool;
use crate::fabric::segments::{Cursor, Parts};
use crate::fabric::{Immediate, Reaped, Rma, Scratch, Segment, FAULT, GONE, MAY_FAULT};
use crate::kernel_copy;
use crate::wire::tcp::{Kind, Piece, Request, FLIGHTS, HEAD_MAX, MESSAGE, PIECE, PIECES, RUN};
use arrayvec::ArrayVec;
use std::collections::VecDeque;
use std::ffi::c_void;

/// Payloads up to this length are copied behind their header, instead of using a vector of their
/// own.
const SHORT: u64 = 512;
/// The most reads without an answer.
const READS: usize = 256;

/// An operation that has requests without an answer.
struct Op {
    scratch: *mut Scratch,
    kind: Kind,
    key: u64,
    /// The immediate that the last request carries.
    immediate: Option<Immediate>,
    segments: Vec<Segment>,
    /// The device that holds its memory.
    device: Option<Device>,
    /// Pages of its memory may become unreachable.
    may_fault: bool,
    /// The positions up to which a device's bytes were gathered, and up to which requests were
    /// made.
    gathered: Cursor,
    asked: Cursor,
    /// Requests without an answer.
    open: u32,
    all_asked: bool,
    errno: i32,
    /// The caller has abandoned the operation: its memory is not touched.
    disowned: bool,
}

/// A request without an answer; for a read, with the destination of its bytes.
#[derive(Clone, Copy)]
pub struct Flight {
    /// `NO_OP` for a message, which is done when it is copied.
    pub op: u32,
    pub len: u32,
    from: Cursor,
}

const NO_OP: u32 = u32::MAX;

/// The segments of a request.
pub type Segments = ArrayVec<Segment, PIECES>;

#[derive(Default)]
pub struct Outgoing {
    ops: Vec<Op>,
    free: Vec<u32>,
    /// Operations that have requests left to make; and messages, which overtake those.
    queue: VecDeque<u32>,
    messages: VecDeque<u32>,
    flights: VecDeque<Flight>,
    /// The number of the first request without an answer, and how many of them are reads.
    first: u64,
    reads: usize,
}

/// The properties of local memory, by descriptor.
pub fn descriptor_of(device: Device) -> *mut c_void {
    (device as usize + 1) as *mut c_void
}

#[inline]
fn device_of(descriptor: *mut c_void) -> Option<Device> {
    let may_be = descriptor as u64 != MAY_FAULT;
    (descriptor as usize).checked_sub(1).filter(|_| may_be).map(|device| device as Device)
}

impl Op {
    /// Of the next request.
    #[inline]
    fn header(&self, list: &[Segment], len: u64) -> Request {
        Request {
            kind: self.kind,
            pieces: list.len() as u16,
            len: len as u32,
            key: self.key,
            immediate: self.immediate.filter(|_| self.all_asked),
            address: list.first().map_or(0, |part| part.remote),
        }
    }

    /// Whether the next bytes can still be read: a file that became shorter lacks the last of a part.
    #[cold]
    fn is_there(&self, most: u64) -> bool {
        let mut list = Segments::new();
        self.take(self.asked, most, &mut list);
        kernel_copy::can_read(list.iter().filter(|part| part.len > 0).map(|part| part.local + part.len - 1))
    }

    /// The next parts of its segments, at most `most` bytes and as many as a request holds: their
    /// bytes, and where they end.
    #[inline]
    fn take(&self, from: Cursor, most: u64, list: &mut Segments) -> (u64, Cursor) {
        let mut parts = Parts::new(&self.segments, from, most);
        list.extend(parts.by_ref().take(PIECES));
        let (left, after) = parts.rest();
        (most - left, after)
    }
}

impl Outgoing {
    pub fn is_empty(&self) -> bool {
        self.flights.is_empty() && !self.is_waiting()
    }

    /// Whether requests are left to make.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        !self.queue.is_empty() || !self.messages.is_empty()
    }

    #[inline]
    pub fn has_messages(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Whether a request can be made now.
    #[inline]
    pub fn may_ask(&self) -> bool {
        self.flights.len() < FLIGHTS
            && (!self.messages.is_empty() || !self.queue.is_empty() && self.reads < READS)
    }

    /// The number of the first request without an answer.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Frees the buffers of operations, only while it is empty.
    pub fn shrink(&mut self) {
        if self.ops.len() > FEW || self.flights.capacity() > FEW {
            *self = Outgoing { first: self.first, ..Outgoing::default() };
        }
    }

    /// Bytes of its buffers.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        let segments = self.ops.iter().map(|op| op.segments.capacity() * size_of::<Segment>());
        self.ops.capacity() * size_of::<Op>()
            + self.flights.capacity() * size_of::<Flight>()
            + (self.queue.capacity() + self.messages.capacity() + self.free.capacity()) * size_of::<u32>()
            + segments.sum::<usize>()
    }

    // Operations begin.

    /// Queues a write or read; true if its memory is on a device.
    #[inline]
    pub fn push(&mut self, kind: Kind, rma: &Rma, scratch: *mut Scratch) -> bool {
        let index = self.fill(kind, rma, scratch);
        self.queue.push_back(index);
        self.ops[index as usize].device.is_some()
    }

    /// Queues a message.
    pub fn push_message(&mut self, rma: &Rma, follows: bool, scratch: *mut Scratch) {
        let index = self.fill(Kind::Message, rma, scratch);
        if follows { &mut self.queue } else { &mut self.messages }.push_back(index);
    }

    #[inline]
    fn fill(&mut self, kind: Kind, rma: &Rma, scratch: *mut Scratch) -> u32 {
        let index = self.free.pop().unwrap_or(self.ops.len() as u32);
        let place = self.ops.get_mut(index as usize);
        let mut segments = place.map_or_else(Vec::new, |op| std::mem::take(&mut op.segments));
        segments.clear();
        segments.extend_from_slice(rma.segments);
        let op = Op {
            scratch,
            kind,
            key: rma.key,
            immediate: rma.immediate,
            segments,
            device: device_of(rma.descriptor),
            may_fault: rma.descriptor as u64 == MAY_FAULT,
            gathered: Cursor::default(),
            asked: Cursor::default(),
            open: 0,
            all_asked: false,
            errno: 0,
            disowned: false,
        };
        match self.ops.get_mut(index as usize) {
            Some(place) => *place = op,
            None => self.ops.push(op),
        }
        index
    }

    // Operations end.

    /// The operations' callers are gone; true if a device may be copying their memory.
    pub fn disown(&mut self, scratches: &[*mut Scratch]) -> bool {
        let mut staged = false;
        for op in &mut self.ops {
            op.disowned |= !op.scratch.is_null() && scratches.contains(&op.scratch);
            staged |= op.disowned && op.device.is_some();
        }
        staged
    }

    pub fn is_disowned(&self, op: u32) -> bool {
        self.ops.get(op as usize).is_some_and(|op| op.disowned)
    }

    /// Whether incoming data belongs to an abandoned operation.
    pub fn is_first_disowned(&self) -> bool {
        self.flights.front().is_some_and(|flight| self.is_disowned(flight.op))
    }

    /// An operation's request was answered.
    #[inline]
    pub fn answered(&mut self, index: u32, errno: i32, reaped: &mut Vec<Reaped>) {
        let Some(op) = self.ops.get_mut(index as usize) else { return };
        op.open -= 1;
        if errno != 0 && op.errno == 0 {
            op.errno = errno;
        }
        // An operation that waits in the queue ends in the queue.
        if op.open == 0 && op.all_asked && self.queue.front() != Some(&index) {
            self.finish(index, reaped);
        }
    }

    #[inline]
    fn finish(&mut self, index: u32, reaped: &mut Vec<Reaped>) {
        let op = &mut self.ops[index as usize];
        let scratch = std::mem::replace(&mut op.scratch, std::ptr::null_mut());
        if !scratch.is_null() {
            reaped.push(Reaped::new(scratch, op.errno));
            self.free.push(index);
        }
    }

    /// Ends the writes whose memory cannot be read.
    pub fn end_unreadable(&mut self, reaped: &mut Vec<Reaped>) {
        for index in 0..self.ops.len() {
            let op = &mut self.ops[index];
            let sends =
                op.kind == Kind::Write && op.device.is_none() && !op.scratch.is_null() && !op.disowned;
            if sends && !op.segments.iter().all(|part| kernel_copy::can_read_all(part.local, part.len)) {
                op.errno = FAULT;
                self.finish(index as u32, reaped);
            }
        }
    }

    /// Ends all operations: first those whose requests were sent, then those that wait, in order. What devices copy
    /// ends once they have (`copied`).
    pub fn end(&mut self, errno: i32, copied: &[u32], reaped: &mut Vec<Reaped>) {
        for op in copied {
            self.ops[*op as usize].open += 1;
        }
        for flight in std::mem::take(&mut self.flights) {
            self.answered(flight.op, errno, reaped);
        }
        let messages = std::mem::take(&mut self.messages);
        for index in std::mem::take(&mut self.queue).into_iter().chain(messages) {
            let op = &mut self.ops[index as usize];
            (op.errno, op.all_asked) = (errno, true);
            if !copied.contains(&index) {
                self.finish(index, reaped);
            }
        }
        self.end_copied(errno, copied, reaped);
    }

    /// The connection has ended, and devices copy for these operations only.
    pub fn end_copied(&mut self, errno: i32, copied: &[u32], reaped: &mut Vec<Reaped>) {
        for index in (0..self.ops.len() as u32).filter(|index| !copied.contains(index)) {
            self.ops[index as usize].errno = errno;
            self.finish(index, reaped);
        }
    }

    // Requests.

    /// Sends messages, as many as one call takes, if the connection is up.
    #[inline]
    pub fn speak(&mut self, up: bool, batch: &mut Batch, pool: &Pool, reaped: &mut Vec<Reaped>) {
        while let Some(&index) = self.messages.front() {
            if !up || !self.may_ask() || !batch.has_room(1, HEAD_MAX + MESSAGE, 0) {
                return;
            }
            self.messages.pop_front();
            self.request(index, RUN, batch, &mut None, pool);
            self.finish(index, reaped);
        }
    }

    /// Puts messages into a batch that is being sent.
    #[cold]
    pub fn interject(&mut self, batch: &mut Batch, reaped: &mut Vec<Reaped>) {
        while let Some(&index) = self.messages.front().filter(|_| self.flights.len() < FLIGHTS) {
            let op = &self.ops[index as usize];
            let Some(&Segment { local, len, .. }) = op.segments.first() else { return };
            let mut bytes = op.header(&op.segments, len).bytes().to_vec();
            let head = bytes.len();
            bytes.resize(head + len as usize, 0);
            // SAFETY: the operation's memory is readable until it is reaped, and `bytes` has `len` more from `head` on.
            unsafe { copy(bytes[head..].as_mut_ptr(), local as *const u8, len as usize) };
            let Some(behind) = batch.put_between(bytes, self.flights.len()) else { return };
            self.messages.pop_front();
            let flight = Flight { op: NO_OP, len: len as u32, from: Cursor::default() };
            self.flights.insert(self.flights.len() - behind, flight);
            self.finish(index, reaped);
        }
    }

    /// Makes as many requests as one call sends, if the connection is up.
    #[inline]
    pub fn ask(
        &mut self,
        up: bool,
        batch: &mut Batch,
        staged: &mut Option<Box<Staged>>,
        pool: &mut Pool,
        reaped: &mut Vec<Reaped>,
    ) {
        while let Some(&index) = self.queue.front() {
            let op = &mut self.ops[index as usize];
            // Finished operations are not requested.
            op.all_asked |= op.disowned || op.errno != 0;
            let (spent, open, message) = (op.all_asked, op.open, op.kind == Kind::Message);
            let (lends, may_fault) = (op.kind == Kind::Write, op.may_fault);
            if spent {
                self.queue.pop_front();
                if let Some(staged) = staged {
                    staged.drop_ahead(pool, index);
                }
                if open == 0 {
                    self.finish(index, reaped);
                }
                continue;
            }
            if op.device.is_some() && lends {
                match staged.as_mut().map_or(Err(GONE), |staged| staged.is_ahead(pool, index, batch.room())) {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(errno) => {
                        op.errno = errno;
                        continue;
                    }
                }
            }
            let copied = HEAD_MAX + if message { MESSAGE } else { SHORT as usize };
            if !up || !self.may_ask() || !batch.has_room(1 + PIECES, copied, if lends { STEP } else { 0 }) {
                return;
            }
            if may_fault && lends {
                let op = &mut self.ops[index as usize];
                if !op.is_there(batch.room()) {
                    op.errno = FAULT;
                    continue;
                }
            }
            self.request(index, if lends { batch.room() } else { RUN }, batch, staged, pool);
            if message {
                // The message is copied.
                self.queue.pop_front();
                self.finish(index, reaped);
            }
        }
    }

    /// Lets devices gather the bytes of the next writes.
    #[cold]
    pub fn gather(&mut self, whose: Whose, pool: &mut Pool, staged: &mut Staged) {
        for index in &self.queue {
            let op = &mut self.ops[*index as usize];
            let Some(device) = op.device.filter(|_| op.kind == Kind::Write) else { continue };
            while op.errno == 0 && !op.disowned && !op.gathered.is_at_end(&op.segments) {
                let mut list = Segments::new();
                let (len, after) = op.take(op.gathered, RUN, &mut list);
                let places = list.iter().map(|part| (part.local, part.len));
                // SAFETY: the operation's memory is valid until it is reaped; `disown` waits.
                let slot = match unsafe { Staged::gather(whose, pool, device, None, places, None) } {
                    Ok(None) => return,
                    Ok(slot) => slot,
                    Err(errno) => {
                        op.errno = errno;
                        break;
                    }
                };
                op.gathered = after;
                staged.ahead.push_back(Run { op: *index, len, slot });
            }
        }
    }

    /// The announcement of another connection was sent, a request of no operation.
    pub fn announced(&mut self) {
        self.flights.push_back(Flight { op: NO_OP, len: 0, from: Cursor::default() });
    }

    /// Makes an operation's next request, of `most` bytes.
    #[inline]
    fn request(
        &mut self,
        index: u32,
        most: u64,
        batch: &mut Batch,
        staged: &mut Option<Box<Staged>>,
        pool: &Pool,
    ) {
        let op = &mut self.ops[index as usize];
        let (from, may_fault) = (op.asked, op.may_fault);
        let ahead = match staged {
            Some(staged) if op.device.is_some() && op.kind == Kind::Write => staged.ahead.pop_front(),
            _ => None,
        };
        let mut list = Segments::new();
        let (len, after) = op.take(from, ahead.as_ref().map_or(most, |run| run.len), &mut list);
        op.asked = after;
        op.all_asked = after.is_at_end(&op.segments);
        batch.begin_frame();
        batch.copy(&op.header(&list, len).bytes());
        if list.len() > 1 {
            let mut bytes = ArrayVec::<u8, { PIECES * PIECE }>::new();
            for part in &list {
                bytes.extend(Piece { address: part.remote, len: part.len as u32 }.bytes());
            }
            batch.copy(&bytes);
        }
        let copies = op.kind == Kind::Message || len <= SHORT;
        let owner = if ahead.is_some() { Owner::Batch } else { Owner::Op(index) };
        if let (Some(slot), Some(staged)) = (ahead.and_then(|run| run.slot), staged) {
            staged.lent.push(slot);
            list.clear();
            list.push(Segment { local: pool.base(slot), remote: 0, len });
        }
        for part in list.iter().filter(|part| op.kind != Kind::Read && part.len > 0) {
            if copies {
                // SAFETY: the operation's memory is valid until it is reaped.
                let copied =
                    unsafe { batch.copy_from(part.local as *const u8, part.len as usize, may_fault) };
                if let Err(errno) = copied {
                    op.errno = errno;
                }
            } else {
                // SAFETY: the operation's memory is valid until it is reaped; `disown` takes it
                // back.
                unsafe { batch.lend(owner, part.local, part.len as usize) };
            }
        }
        if may_fault {
            batch.may_fault();
        }
        batch.end_request(op.kind == Kind::Write && !copies && len > 0);
        let counted = if op.kind == Kind::Message { NO_OP } else { index };
        op.open += u32::from(counted != NO_OP);
        self.reads += usize::from(op.kind == Kind::Read);
        self.flights.push_back(Flight { op: counted, len: len as u32, from });
    }

    // Answers.

    /// Requests below a number are done; none of them is a read whose data is missing.
    #[inline]
    pub fn settle_below(&mut self, number: u64, batch: &Batch, reaped: &mut Vec<Reaped>) -> Outcome<()> {
        while self.first < number {
            let flight = self.flights.front().ok_or(libc::EPROTO)?;
            if self.is_read(flight.op) {
                return Err(libc::EPROTO);
            }
            self.settle_next(0, batch, reaped)?;
        }
        if self.first == number {
            Ok(())
        } else {
            Err(libc::EPROTO)
        }
    }

    #[inline]
    pub fn settle_next(&mut self, errno: i32, batch: &Batch, reaped: &mut Vec<Reaped>) -> Outcome<()> {
        let flight = self.next_flight(batch)?;
        self.answered(flight.op, errno, reaped);
        Ok(())
    }

    /// The first request is over. Only one that was sent can be: else the batch would go on with
    /// memory that the caller has back.
    #[inline]
    pub fn next_flight(&mut self, batch: &Batch) -> Outcome<Flight> {
        if !batch.is_sent(self.flights.len()) {
            return Err(libc::EPROTO);
        }
        let flight = self.flights.pop_front().ok_or(libc::EPROTO)?;
        self.first += 1;
        self.reads -= usize::from(self.is_read(flight.op));
        Ok(flight)
    }

    #[inline]
    fn is_read(&self, op: u32) -> bool {
        self.ops.get(op as usize).is_some_and(|op| op.kind == Kind::Read)
    }

    /// The read of `len` bytes whose data follows.
    pub fn next_read(&self, len: u32) -> Outcome<Flight> {
        let flight = self.flights.front().filter(|flight| flight.len == len && self.is_read(flight.op));
        flight.copied().ok_or(libc::EPROTO)
    }

    /// The destination of a read's data.
    pub fn parts(&self, flight: &Flight) -> Segments {
        let mut parts = Segments::new();
        if let Some(op) = self.ops.get(flight.op as usize) {
            op.take(flight.from, flight.len.into(), &mut parts);
        }
        parts
    }

    /// Whether pages of an operation's memory may become unreachable.
    pub fn may_fault(&self, op: u32) -> bool {
        self.ops.get(op as usize).is_some_and(|op| op.may_fault)
    }

    /// The device that holds an operation's memory.
    pub fn device(&self, op: u32) -> Option<Device> {
        self.ops.get(op as usize)?.device
    }
}
