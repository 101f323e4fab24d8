//! The target's end of a channel, which serves the requests of one of a peer's NICs.
//!
//! Requests are served in order, one at a time: each is checked against our own registrations, its
//! bytes are copied, and it is answered. Data from the peer is hostile until checked: a request
//! that is not allowed is answered with an error, and a malformed one ends the channel.

use super::channel::{self, Block, Channel, AREA, CELLS};
use super::copy;
use super::device::{self, Answer, Devices, Slot};
use super::mapped::Areas;
use super::request::{Kind, Piece, Pieces, Request, BYTES};
use super::socket;
use crate::descriptor::Descriptor;
use crate::device::is_slow;
use crate::fabric::grants::Use;
use crate::fabric::own::pool::Pool;
use crate::fabric::registry::{Allowed, Registry, Wish};
use crate::fabric::{Buffer, Connection, Reaped, Scratch, GONE};
use crate::ids::PeerId;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{fence, Ordering};

mod listen;
mod slow;

/// The cost of a request in the byte budget of a pass, in addition to its bytes: an empty request
/// takes time, too.
const REQUEST: u64 = 128;
/// Messages read from a socket at once: one message may cost a mapping.
pub const WORDS: u32 = 16;

/// The resources for serving requests.
pub struct Serving<'a> {
    pub registry: &'a mut Registry,
    /// Posted receives, oldest first.
    pub receives: &'a mut VecDeque<(Buffer, *mut Scratch)>,
    pub reaped: &'a mut Vec<Reaped>,
    /// The slots of disks.
    pub pool: &'a mut Pool,
    /// Bytes that may still be copied, and messages that may still be read from sockets.
    pub budget: u64,
    pub words: u32,
}

/// The result of reading a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listened {
    All,
    /// More messages remain.
    Part,
    /// The peer is gone, or violates the protocol.
    End,
}

/// Why serving stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Blocked {
    No,
    /// A message found no posted receive.
    Receive,
    /// A read waits until `back` is free up to this position.
    Room(u64),
    /// The area that a request names may still be in the socket.
    Socket,
    /// A disk has to copy first, or no slot is free.
    Disk,
}

/// The outcome of a request.
enum Outcome {
    Done,
    /// The bytes of a write are in their place.
    Written(Option<Use>),
    /// A device serves it.
    Begun(Option<Use>),
    /// A disk copies the slot.
    Slow(Slot),
    Refused(i32),
    Later(Blocked),
    /// The peer violated the protocol.
    Senseless,
}

use Outcome::{Begun, Done, Later, Refused, Senseless, Slow, Written};

pub struct Incoming {
    socket: Descriptor,
    number: Connection,
    /// The connection's peer. Without one, it carries only messages.
    peer: Option<PeerId>,
    /// It has requests for disks, beside another channel with the same socket.
    beside: bool,
    /// The channel beside this one, when the peer has just passed it.
    passed: Option<Descriptor>,
    channel: Channel,
    areas: Areas,
    devices: Devices,
    /// The next request to be served, and the next to be settled: devices may work on those
    /// between.
    next: u64,
    settled: u64,
    failures: u64,
    forward: u64,
    back: u64,
    back_free: u64,
    /// The place of a failed read, from which `back` goes on once the reads behind it are answered.
    rewind: Option<u64>,
    /// The number of requests that was published last.
    answered: u64,
    /// An answer was published, and the initiator may sleep.
    wake_due: bool,
    blocked: Blocked,
    /// Why settling stopped, other than for a device.
    unsettled: Blocked,
    /// The peer is gone: only the requests left in the channel remain.
    ended: bool,
    /// The peer violated the protocol.
    refused: bool,
    /// The log has a line about memory that this connection passed.
    warned: bool,
}

impl Incoming {
    pub fn new(socket: Descriptor, number: Connection, channel: Channel) -> Incoming {
        Incoming {
            socket,
            number,
            peer: None,
            beside: false,
            passed: None,
            channel,
            areas: Areas::default(),
            devices: Devices::default(),
            next: 0,
            settled: 0,
            failures: 0,
            forward: 0,
            back: 0,
            back_free: 0,
            rewind: None,
            answered: 0,
            wake_due: false,
            blocked: Blocked::No,
            unsettled: Blocked::No,
            ended: false,
            refused: false,
            warned: false,
        }
    }

    /// Whether the peer has passed a channel beside this one.
    #[inline]
    pub fn has_passed(&self) -> bool {
        self.passed.is_some()
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    #[inline]
    pub fn peer(&self) -> Option<PeerId> {
        self.peer
    }

    pub fn assign(&mut self, peer: PeerId) {
        self.peer = Some(peer);
    }

    /// The connection's peer has ended: refuses its writes and reads from here on.
    pub fn withdraw(&mut self) {
        self.peer = None;
        self.areas.clear();
        self.devices.end();
    }

    /// The other side is gone: no requests follow those in the channel.
    pub fn end(&mut self) {
        self.ended = true;
        self.areas.clear();
        self.devices.end();
    }

    /// Stops serving the peer, which sees the socket's hangup.
    pub fn refuse(&mut self, pool: &mut Pool) {
        self.devices.give_up(pool);
        self.end();
        self.refused = true;
    }

    /// No further requests will arrive.
    pub fn is_over(&self) -> bool {
        self.refused || self.ended && self.rests()
    }

    /// Whether every request is done.
    pub fn rests(&self) -> bool {
        !self.is_there() && self.devices.is_empty()
    }

    #[inline]
    fn is_there(&self) -> bool {
        Request::is_there(self.channel.cell(self.next), channel::stamp(self.next))
    }

    /// Serves requests within the budget; false if the peer violates the protocol.
    #[inline]
    pub fn serve(&mut self, with: &mut Serving) -> bool {
        if !self.devices.is_empty() && !self.settle(with) {
            return false;
        }
        if !self.is_there() {
            self.answer();
            self.wake_peer();
            return true;
        }
        self.blocked = Blocked::No;
        let sane = self.serve_all(with);
        self.devices.pump();
        self.answer();
        // Wake an initiator that already sleeps at once. Detecting one that is about to sleep takes
        // a fence, which would delay requests: a pass without work does that.
        if self.channel.initiator_sleeps().load(Ordering::Relaxed) != 0 || self.blocked != Blocked::No {
            self.wake_peer();
        }
        sane
    }

    fn serve_all(&mut self, with: &mut Serving) -> bool {
        while with.budget > 0 && self.next - self.settled < CELLS && self.is_there() {
            let Some(request) = Request::read(self.channel.cell(self.next)) else { return false };
            if request.area == 0 && request.len > BYTES && !self.beside {
                return false;
            }
            let block = Block::after(self.forward, request.block_len());
            let place = self.back;
            let (errno, begun, _entered, slot) = match self.perform(&request, &block, with) {
                Done => (0, false, None, None),
                Written(entered) => (0, false, entered, None),
                Begun(entered) => (0, true, entered, None),
                Slow(slot) => (0, false, None, Some(slot)),
                Refused(errno) => (errno, false, None, None),
                Later(blocked) => {
                    self.blocked = blocked;
                    return true;
                }
                Senseless => return false,
            };
            self.forward = block.end;
            self.next += 1;
            if slot.is_some() || begun || !self.devices.is_empty() {
                // Of what a GPU copies alone, a revoke waits for the GPU.
                let waits = !begun || self.devices.waits_for_disks();
                let until = || waits.then(|| with.pool.begin(self.peer, request.key));
                let immediate = request.immediate.filter(|_| errno == 0).map(|one| (one, until()));
                let placed = (self.back != place).then_some(place);
                self.devices.push(Answer { errno, immediate, _entered, placed, slot }, begun);
            } else {
                with.reaped.extend(request.immediate.filter(|_| errno == 0).map(Reaped::arrival));
                self.count(errno);
            }
            let ours = !begun && (request.kind != Kind::Read || request.area == 0);
            let cost = if ours { request.len } else { request.pieces as u64 * device::COST };
            with.budget = with.budget.saturating_sub(cost + REQUEST);
            // The initiator can reuse this part of the channel sooner.
            if request.stream || self.settled - self.answered >= CELLS / 4 {
                self.answer();
            }
        }
        true
    }

    /// Counts the next request as settled; requests settle in order.
    #[inline]
    fn count(&mut self, errno: i32) {
        if errno != 0 {
            let failure = self.settled & 0xffff_ffff | (errno as u64) << 32;
            self.channel.failure(self.failures).store(failure, Ordering::Relaxed);
            self.failures += 1;
            self.channel.failed().store(self.failures, Ordering::Release);
        }
        self.settled += 1;
    }

    /// Space for the bytes of a read.
    #[inline]
    fn room_for(&mut self, len: u64) -> std::result::Result<Block, Outcome> {
        let place = Block::after(self.back, len);
        if !place.fits(self.back_free) {
            let free = self.channel.returned().load(Ordering::Acquire);
            if free < self.back_free || free > self.back {
                return Err(Senseless);
            }
            self.back_free = free;
            if !place.fits(free) {
                return Err(Later(Blocked::Room(place.end)));
            }
        }
        Ok(place)
    }

    /// A registration ends.
    pub fn hide_device(&mut self, key: u64) {
        self.devices.hide(key, self.socket.as_fd());
    }

    pub fn send_forgotten(&mut self) {
        self.devices.send_forgotten(self.socket.as_fd());
    }

    /// Waits until no device touches our memory for this peer.
    pub fn settle_devices(&mut self) {
        self.devices.settle();
    }

    /// Publishes the number of finished requests.
    #[inline]
    fn answer(&mut self) {
        if self.answered != self.settled {
            self.answered = self.settled;
            self.channel.done().store(self.settled, Ordering::Release);
            self.wake_due = true;
        }
    }

    #[inline]
    fn perform(&mut self, request: &Request, block: &Block, with: &mut Serving) -> Outcome {
        match request.kind {
            Kind::Write if request.inline > 0 => self.write_inline(request, with),
            Kind::Write => self.write(request, block, with),
            Kind::Read => self.read(request, block, with),
            Kind::Message if self.beside => Senseless,
            Kind::Message => self.message(request, block, with),
            Kind::Beside => Senseless,
        }
    }

    fn write(&mut self, request: &Request, block: &Block, with: &mut Serving) -> Outcome {
        let Some(pieces) = self.pieces(request, block) else { return Senseless };
        let known = self.areas.has(request.area) || self.devices.has(request.area) || self.beside;
        if request.area != 0 && !known && self.listen(&mut with.words) == Listened::Part {
            return Later(Blocked::Socket);
        }
        let bytes = pieces.iter().map(|p| (p.remote, p.len));
        let checked = with.registry.check_in_pass(self.peer, request.key, bytes.clone(), Wish::Write);
        let Allowed { entered, device, may_fault } = match checked {
            Err(errno) => return Refused(errno),
            Ok(allowed) => allowed,
        };
        if request.immediate.is_some() {
            with.registry.counts();
        }
        if let Some(device) = device {
            if is_slow(device) {
                // SAFETY: the block holds the list, followed by the request's bytes.
                let run = unsafe { self.channel.forward(block).add(request.list_len() as usize) };
                return self.serve_slow(request, Some(run), device, entered, bytes, with.pool);
            }
            let begun = match request.area {
                0 => self.channel.pin(device).and_then(|()| {
                    // SAFETY: the block holds the list, followed by the request's bytes.
                    let run = unsafe { self.channel.forward(block).add(request.list_len() as usize) } as u64;
                    // SAFETY: the initiator does not reuse the block before the request is
                    // answered.
                    unsafe { self.devices.stage(device, run, false, bytes) }
                }),
                area => self.devices.copy(area, device, &pieces),
            };
            return begun.map_or_else(Refused, |()| Begun(entered));
        }
        if self.devices.has(request.area) {
            return Refused(libc::EACCES);
        }
        let (stream, mut outcome) = (request.stream, Ok(()));
        if request.area == 0 {
            // SAFETY: the block holds the list, followed by the request's bytes.
            let mut from = unsafe { self.channel.forward(block).add(request.list_len() as usize) };
            for piece in &pieces {
                // SAFETY: the pieces' lengths add up to the request's; `check` found that the
                // target is registered memory, which stays valid while registered.
                unsafe {
                    let (to, len) = (piece.remote as *mut u8, piece.len as usize);
                    outcome = outcome.and(copy::copy_or_fail(to, from, len, stream, may_fault));
                    from = from.add(len);
                }
            }
        } else {
            let Some(area) = self.areas.get(request.area) else { return Refused(libc::EIO) };
            let within = |p: &Piece| {
                let len = area.len() as u64;
                p.offset <= len && p.len <= len - p.offset
            };
            if !pieces.iter().all(within) {
                return Senseless;
            }
            for piece in &pieces {
                // SAFETY: the source lies inside the area, which keeps its pages
                // (`Mapping::of_area`); `check` found the target registered.
                unsafe {
                    let from = area.base().add(piece.offset as usize);
                    let (to, len) = (piece.remote as *mut u8, piece.len as usize);
                    outcome = outcome.and(copy::copy_or_fail(to, from, len, stream, may_fault));
                }
            }
        }
        copy::settle(stream);
        outcome.map_or(Refused(GONE), |()| Written(entered))
    }

    fn read(&mut self, request: &Request, block: &Block, with: &mut Serving) -> Outcome {
        let registry = &mut *with.registry;
        let Some(pieces) = self.pieces(request, block) else { return Senseless };
        if self.ended {
            return Refused(libc::ENOTCONN); // The initiator no longer frees space.
        }
        let bytes = pieces.iter().map(|p| (p.remote, p.len));
        let checked = registry.check_in_pass(self.peer, request.key, bytes.clone(), Wish::Read);
        let Allowed { entered, device, may_fault } = match checked {
            Ok(allowed) => allowed,
            Err(errno) => return Refused(errno),
        };
        if let Some(device) = device.filter(|device| is_slow(*device)) {
            return self.serve_slow(request, None, device, entered, bytes, with.pool);
        }
        if self.devices.is_filling() {
            return Later(Blocked::Disk); // The bytes of reads are in order.
        }
        if request.area != 0 {
            // A peer could go on reading opened memory after its grant has ended.
            let Some(device) = device.filter(|_| !registry.is_granted()) else {
                return Refused(libc::EACCES);
            };
            let Some(range) = registry.range_of(request.key) else { return Refused(libc::EACCES) };
            return match self.devices.show(request.area, request.key, device, &range, self.socket.as_fd()) {
                Ok(()) => Done,
                Err(libc::EAGAIN) => Later(Blocked::Socket),
                Err(errno) => Refused(errno),
            };
        }
        if self.rewind.is_some() {
            return Later(Blocked::No);
        }
        let place = match self.room_for(request.len) {
            Ok(place) => place,
            Err(outcome) => return outcome,
        };
        if let Some(device) = device {
            let run = self.channel.back(&place) as u64;
            // SAFETY: the block has space for all pieces, and the initiator does not touch it
            // before the answer.
            let begun = self
                .channel
                .pin(device)
                .and_then(|()| unsafe { self.devices.stage(device, run, true, bytes) });
            return match begun {
                Ok(()) => {
                    self.back = place.end;
                    Begun(entered)
                }
                Err(errno) => Refused(errno),
            };
        }
        let (stream, mut outcome) = (request.stream, Ok(()));
        let mut to = self.channel.back(&place);
        for piece in &pieces {
            // SAFETY: `check` found the source registered; the block has space for all pieces.
            unsafe {
                let (from, len) = (piece.remote as *const u8, piece.len as usize);
                outcome = outcome.and(copy::copy_or_fail(to, from, len, stream, may_fault));
                to = to.add(len);
            }
        }
        copy::settle(stream);
        // A refused request takes no space.
        outcome.map_or(Refused(GONE), |()| {
            self.back = place.end;
            Done
        })
    }

    fn message(&mut self, request: &Request, block: &Block, with: &mut Serving) -> Outcome {
        let Some((buffer, scratch)) = with.receives.front().copied() else {
            return Later(Blocked::Receive);
        };
        let len = request.len as usize;
        if len > buffer.len {
            return Senseless;
        }
        // SAFETY: the block holds the message, and the buffer, which is ours until it is reaped, is
        // large enough.
        unsafe { copy::copy(buffer.address.cast(), self.channel.forward(block), len, false) };
        with.receives.pop_front();
        with.reaped.push(Reaped { len: len as u32, connection: self.number, ..Reaped::new(scratch, 0) });
        Done
    }

    fn write_inline(&mut self, request: &Request, with: &mut Serving) -> Outcome {
        let bytes = [(request.remote, request.len)];
        let checked = with.registry.check_in_pass(self.peer, request.key, bytes, Wish::Write);
        let Allowed { entered, device, may_fault } = match checked {
            Ok(allowed) => allowed,
            Err(errno) => return Refused(errno),
        };
        if let Some(device) = device {
            let run = &raw const self.channel.cell(self.next)[4];
            if is_slow(device) {
                let (run, bytes) = (run.cast(), bytes.into_iter());
                return self.serve_slow(request, Some(run), device, entered, bytes, with.pool);
            }
            let run = run as u64;
            // SAFETY: the cell has space for the bytes, and the initiator does not touch it before
            // the answer.
            let begun = self
                .channel
                .pin(device)
                .and_then(|()| unsafe { self.devices.stage(device, run, false, bytes.into_iter()) });
            return begun.map_or_else(Refused, |()| Begun(entered));
        }
        let bytes = request.inline_bytes();
        let (to, from) = (request.remote as *mut u8, bytes.as_ptr());
        // SAFETY: `check` found the target registered, and the length is at most that of the inline
        // bytes.
        let copied = unsafe { copy::copy_or_fail(to, from, request.len as usize, false, may_fault) };
        copied.map_or(Refused(GONE), |()| Written(entered))
    }

    /// The request's pieces, read once; `None` if they do not add up to it.
    #[inline(always)] // The result is large, and this builds it in its place.
    fn pieces(&self, request: &Request, block: &Block) -> Option<Pieces> {
        let mut pieces = Pieces::new();
        if request.pieces == 1 {
            pieces.push(Piece { remote: request.remote, len: request.len, offset: request.words[0] });
            return Some(pieces);
        }
        if request.pieces > pieces.capacity() {
            return None;
        }
        // SAFETY: the block begins with this many pieces, which consist of integers.
        unsafe {
            let list = self.channel.forward(block).cast_const();
            let len = request.pieces * size_of::<Piece>();
            std::ptr::copy_nonoverlapping(list, pieces.as_mut_ptr().cast(), len);
            pieces.set_len(request.pieces);
        }
        let sum = pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.len))?;
        (sum == request.len).then_some(pieces)
    }

    /// Wakes the initiator if it sleeps and an answer is new.
    #[inline]
    fn wake_peer(&mut self) {
        if !self.wake_due {
            return;
        }
        self.wake_due = false;
        // Pairs with the fence that an initiator executes before it sleeps.
        fence(Ordering::SeqCst);
        let sleeps = self.channel.initiator_sleeps();
        if sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0 {
            socket::wake(self.socket.as_fd());
        }
    }

    /// Publishes whether this worker sleeps.
    pub fn sleeps(&self, sleeps: bool) {
        self.channel.target_sleeps().store(sleeps as u32, Ordering::Relaxed);
    }

    /// Whether `serve` would find work.
    pub fn has_work(&self, receives: bool) -> bool {
        let goes_on = |blocked| match blocked {
            Blocked::No | Blocked::Socket => true,
            Blocked::Receive => receives,
            Blocked::Room(end) => end.wrapping_sub(self.channel.returned().load(Ordering::Acquire)) <= AREA,
            Blocked::Disk => false,
        };
        self.wake_due
            || self.passed.is_some()
            || !self.devices.is_empty() && goes_on(self.unsettled)
            || self.is_there() && goes_on(self.blocked)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.devices.end(); // The copies end before their channel.
        socket::shut(self.socket.as_fd());
    }
}
