//! A connection between two NICs. Both ends send requests and serve the other's.
//!
//! As an initiator, an end queues its operations in order. Each becomes one or several requests,
//! whose bytes are sent from where they lie; what is read is received where it belongs.
//!
//! As a target it believes nothing: a request is checked against our own registrations before its
//! first byte is accepted. One that may not be is answered with an error, and its bytes go nowhere;
//! one that makes no sense ends the connection.

use super::sealed::Sealed;
use super::socket;
use super::staged::{Next, Run, Staged};
use super::stream::{chunks, Batch, Got, Inbox, Owner, Spare, INBOX};
use crate::device::Device;
use crate::fabric::grants::Use;
use crate::fabric::host::registry::{Allowed, Registry, Wish};
use crate::fabric::{Buffer, Connection as Number, Immediate, Reaped, Rma, Scratch, Segment, GONE};
use crate::fork::Descriptor;
use crate::ids::PeerId;
use crate::wire::tcp::{
    is_answer, Answer, Handshake, Kind, Name, Piece, Request, ANSWER, HANDSHAKE, HEAD_MAX, MESSAGE, PIECE,
    PIECES, REQUEST, RUN,
};
use arrayvec::ArrayVec;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// Nothing is added to what one call sends beyond this many bytes. Together with the last run this
/// is what has to be copied when memory is taken back.
const BATCH: u64 = 64 << 10;
/// Requests ask for so much until `QUIET` bytes have gone without a message: with `BATCH`, a
/// message finds at most 256 KiB in front of it. (Throughput would lose 3 % by short runs alone.)
pub const SHORT_RUN: u64 = 192 << 10;
const QUIET: u64 = 64 << 20;
/// Payloads that are copied behind their header, instead of having a vector of their own.
const SHORT: u64 = 512;
/// Requests without an answer, and reads among them.
const FLIGHTS: usize = 4096;
const READS: usize = 256;
/// Operations that a connection at rest keeps room for.
const FEW: usize = 8;
/// An acknowledgement waits for a request if one followed this many before it.
const RIDES: u8 = 4;

/// How an end fails: an error number.
type Outcome<T> = std::result::Result<T, i32>;

/// A place in an operation's segments.
#[derive(Clone, Copy, Default)]
struct Cursor {
    segment: usize,
    offset: u64,
}

/// An operation whose requests are not all answered.
struct Op {
    scratch: *mut Scratch,
    kind: Kind,
    key: u64,
    /// Goes with the last request.
    immediate: Option<Immediate>,
    segments: Vec<Segment>,
    /// The one that its memory is on.
    device: Option<Device>,
    /// Up to where bytes of a device were gathered, and up to where requests were made.
    gathered: Cursor,
    asked: Cursor,
    /// Requests without an answer.
    open: u32,
    all_asked: bool,
    errno: i32,
    /// Its caller is gone: its memory is not touched.
    disowned: bool,
}

/// A request without an answer; of a read, where its bytes go.
#[derive(Clone, Copy)]
struct Flight {
    /// `NO_OP` for a message, which is done when it was copied.
    op: u32,
    len: u32,
    from: Cursor,
}

const NO_OP: u32 = u32::MAX;

/// The segments of a request.
type Segments = ArrayVec<Segment, PIECES>;

/// Answers to be sent, in this order.
pub enum Pending {
    /// `device` has the bytes, and `slot` gets them.
    Read {
        number: u64,
        key: u64,
        len: u32,
        pieces: Vec<Piece>,
        device: Option<Device>,
        slot: Option<u32>,
    },
    Failed {
        number: u64,
        errno: u32,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// We connect.
    Dialing,
    /// Our handshake is sent.
    Handshaking,
    /// Accepted; the other side has not sent its handshake.
    Unauthenticated,
    Up,
    /// How operations end.
    Dead(i32),
}

/// How the other end's writes and reads are handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// They wait until a peer has authenticated over the connection.
    Waits,
    Memory,
    /// They fail, since the peer has ended.
    Refused,
}

/// The part that is being received.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Coming {
    /// A frame's header.
    Head,
    /// The bytes of this write, and what it ends with.
    Payload(Request, i32),
    /// The data of the first flight.
    Data,
}

/// How a step went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Done,
    /// More has to come first, or a receive.
    Waits,
    /// A handshake has come: the NIC decides.
    Met,
}

/// What the progress of a connection needs of its NIC.
pub struct Moving<'a> {
    pub registry: &'a mut Registry,
    pub receives: &'a mut VecDeque<(Buffer, *mut Scratch)>,
    pub reaped: &'a mut Vec<Reaped>,
    pub spare: &'a mut Spare,
    pub sink: &'a mut [u8],
    /// Number of the NIC's pass.
    pub pass: u32,
    pub budget: u64,
}

pub struct Connection {
    socket: Option<Descriptor>,
    /// Its encryption.
    sealed: Option<Box<Sealed>>,
    pub state: State,
    /// The number by which its messages name it.
    pub number: Number,
    /// The NIC that we dialled, or that the other end claims to be, without proof.
    pub name: Name,
    pub dialed: bool,
    /// The peer whose address we dialled, or that authenticated over a connection that we accepted.
    pub owner: Option<PeerId>,
    pub reach: Reach,
    /// Where it connected from.
    pub host: Option<IpAddr>,
    /// The handshake of a connection that was accepted.
    pub handshake: Option<Handshake>,
    pub since_ns: u64,
    /// `first` and `settled` at the last check.
    looked: (u64, u64),

    ops: Vec<Op>,
    free: Vec<u32>,
    /// Operations that have requests to make; and messages, which overtake those.
    queue: VecDeque<u32>,
    messages: VecDeque<u32>,
    /// Bytes that were asked for since a message went or came.
    quiet: u64,
    flights: VecDeque<Flight>,
    /// The number of the first of them, and how many are reads.
    first: u64,
    reads: usize,

    pieces: Vec<Piece>,
    /// Requests of the peer that were settled, and those that were acknowledged.
    settled: u64,
    acknowledged: u64,
    pending: VecDeque<Pending>,
    /// How often of late a request followed an acknowledgement in the same pass.
    rides: u8,
    /// The pass in which one was sent alone.
    alone: u32,
    /// An acknowledgement waits for the next pass, or for a request.
    held: bool,

    /// The first bytes to send: the handshake or the acceptance.
    opening: ArrayVec<u8, HANDSHAKE>,
    batch: Batch,
    inbox: Inbox,
    /// Of devices' memory, once there was some.
    staged: Option<Box<Staged>>,
    coming: Coming,
    /// The use of the grant that an incoming payload is under.
    entered: Option<Use>,
    /// Bytes of the last frame's header, as a guess for the next one's.
    ahead: usize,
    readable: bool,
    writable: bool,
    /// The other side has closed: there is an end to be read.
    closing: bool,
    /// A message waits for a receive, or a request waits until a peer has authenticated.
    starved: bool,
    /// Unused here: it is closed when everything is answered.
    pub leaving: bool,
    pub listed: bool,
}

// SAFETY: the pointers are the caller's, which moves with it.
unsafe impl Send for Connection {}

impl Connection {
    fn new(
        socket: Descriptor,
        sealed: Option<Box<Sealed>>,
        state: State,
        name: Name,
        now: u64,
    ) -> Connection {
        Connection {
            socket: Some(socket),
            sealed,
            state,
            number: 0,
            name,
            dialed: state != State::Unauthenticated,
            owner: None,
            reach: Reach::Waits,
            host: None,
            handshake: None,
            since_ns: now,
            looked: (0, 0),
            ops: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            messages: VecDeque::new(),
            quiet: 0,
            flights: VecDeque::new(),
            first: 0,
            reads: 0,
            pieces: Vec::new(),
            settled: 0,
            acknowledged: 0,
            rides: 0,
            alone: 0,
            held: false,
            pending: VecDeque::new(),
            opening: ArrayVec::new(),
            batch: Batch::default(),
            inbox: Inbox::default(),
            staged: None,
            coming: Coming::Head,
            entered: None,
            ahead: REQUEST,
            readable: state == State::Unauthenticated,
            writable: state == State::Unauthenticated,
            closing: false,
            starved: false,
            leaving: false,
            listed: false,
        }
    }

    /// Over a socket that has begun to connect.
    pub fn dialed(
        socket: Descriptor,
        sealed: Option<Box<Sealed>>,
        handshake: Handshake,
        owner: Option<PeerId>,
        now: u64,
    ) -> Connection {
        let mut connection = Connection::new(socket, sealed, State::Dialing, handshake.target, now);
        connection.owner = owner;
        connection.opening = handshake.bytes().into();
        connection
    }

    pub fn accepted(
        socket: Descriptor,
        sealed: Option<Box<Sealed>>,
        host: Option<IpAddr>,
        now: u64,
    ) -> Connection {
        let mut connection = Connection::new(socket, sealed, State::Unauthenticated, Name::default(), now);
        connection.host = host;
        connection
    }

    /// Accepts the handshake.
    pub fn accept(&mut self) {
        let Some(handshake) = self.handshake.take() else { return };
        (self.state, self.name) = (State::Up, handshake.initiator);
        self.opening.extend(Answer::Accepted.bytes());
    }

    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    pub fn dead(&self) -> Option<i32> {
        match self.state {
            State::Dead(errno) => Some(errno),
            _ => None,
        }
    }

    /// Whether nothing of ours is in flight.
    pub fn is_idle(&self) -> bool {
        let staged = self.staged.as_ref().is_some_and(|staged| staged.is_landing());
        let queued = !self.flights.is_empty() || !self.queue.is_empty() || !self.messages.is_empty();
        !queued && !staged && !self.is_sending()
    }

    /// Gives back what operations took, if nothing has been asked since the last look.
    pub fn rest(&mut self) {
        let now = (self.first, self.settled);
        let rests = std::mem::replace(&mut self.looked, now) == now && self.is_idle() && !self.has_answers();
        if rests && self.ops.len() > FEW {
            (self.ops, self.free) = (Vec::new(), Vec::new());
            (self.queue, self.messages) = (VecDeque::new(), VecDeque::new());
        }
        if rests && self.flights.capacity().max(self.pending.capacity()) > FEW {
            (self.flights, self.pending, self.pieces) = (VecDeque::new(), VecDeque::new(), Vec::new());
        }
        if rests {
            self.staged.take_if(|staged| staged.is_idle());
        }
    }

    /// Bytes of what it has room for.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        let segments = self.ops.iter().map(|op| op.segments.capacity() * size_of::<Segment>());
        let lists = self.ops.capacity() * size_of::<Op>()
            + self.flights.capacity() * size_of::<Flight>()
            + self.pending.capacity() * size_of::<Pending>()
            + (self.queue.capacity() + self.free.capacity()) * size_of::<u32>()
            + self.pieces.capacity() * size_of::<Piece>();
        lists + segments.sum::<usize>() + self.batch.held() + self.inbox.held()
    }

    /// Something was begun that is not sent yet.
    #[inline]
    fn is_sending(&self) -> bool {
        !self.opening.is_empty()
            || !self.batch.is_empty()
            || self.sealed.as_ref().is_some_and(|sealed| sealed.is_sending())
    }

    fn has_answers(&self) -> bool {
        !self.pending.is_empty() || self.acknowledged != self.settled
    }

    fn may_ask(&self) -> bool {
        self.state == State::Up
            && self.flights.len() < FLIGHTS
            && (!self.messages.is_empty() || !self.queue.is_empty() && self.reads < READS)
    }

    /// Whether `progress` has something to do.
    pub fn has_work(&self) -> bool {
        let sends = self.is_sending() || self.has_answers() || self.may_ask();
        let lands = self.staged.as_ref().is_some_and(|staged| staged.is_landing());
        self.dead().is_none() && (self.readable && !self.starved || self.writable && sends || lands)
    }

    /// Takes the socket's events from epoll.
    pub fn heed(&mut self, readable: bool, writable: bool, ends: bool) {
        self.readable |= readable || ends;
        self.writable |= writable || ends;
        self.closing |= ends;
    }

    // Ownership.

    /// It was accepted, and no peer has authenticated over it.
    pub fn is_unauthenticated(&self) -> bool {
        !self.dialed && self.owner.is_none()
    }

    pub fn is_accepted_of(&self, peer: PeerId, name: Name) -> bool {
        !self.dialed && self.owner == Some(peer) && self.name == name
    }

    /// Whether a peer may authenticate over it: a connection that we dialled already has its peer,
    /// and a peer that has ended comes back as another peer.
    pub fn may_be_of(&self, peer: PeerId) -> bool {
        match self.owner == Some(peer) {
            true => self.reach == Reach::Waits,
            false => !self.dialed,
        }
    }

    /// A peer has authenticated over it.
    pub fn authenticate(&mut self, peer: PeerId) {
        (self.owner, self.reach, self.starved) = (Some(peer), Reach::Memory, false);
    }

    /// Its peer has ended: its writes and reads are refused from here on.
    pub fn refuse(&mut self, now: u64, sink: &mut [u8]) {
        (self.reach, self.starved, self.since_ns) = (Reach::Refused, false, now);
        self.withdraw(|_| true, libc::EACCES, sink);
    }

    /// There is a receive again; true if a message waited for one.
    pub fn feed(&mut self) -> bool {
        std::mem::take(&mut self.starved)
    }

    /// Ends the connection, and all operations with it.
    pub fn die(&mut self, errno: i32, reaped: &mut Vec<Reaped>) {
        if self.dead().is_some() {
            return;
        }
        self.state = State::Dead(errno);
        self.entered = None;
        if let Some(socket) = self.socket.take() {
            socket::shut(socket.as_fd());
        }
        self.opening.clear();
        self.batch = Batch::default();
        self.pending.clear();
        // What devices are at is over, and nothing follows it.
        self.staged = None;
        for flight in std::mem::take(&mut self.flights) {
            self.answered(flight.op, errno, reaped);
        }
        let messages = std::mem::take(&mut self.messages);
        for index in std::mem::take(&mut self.queue).into_iter().chain(messages) {
            let op = &mut self.ops[index as usize];
            (op.errno, op.all_asked) = (errno, true);
            self.finish(index, reaped);
        }
        // And those whose last bytes were with a device.
        for index in 0..self.ops.len() {
            self.ops[index].errno = errno;
            self.finish(index as u32, reaped);
        }
    }

    // Operations.

    #[inline]
    fn vacancy(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.ops.push(Op {
                scratch: std::ptr::null_mut(),
                kind: Kind::Message,
                key: 0,
                immediate: None,
                segments: Vec::new(),
                device: None,
                gathered: Cursor::default(),
                asked: Cursor::default(),
                open: 0,
                all_asked: true,
                errno: 0,
                disowned: false,
            });
            self.ops.len() as u32 - 1
        })
    }

    /// Queues an operation.
    #[inline]
    pub fn push(&mut self, kind: Kind, rma: &Rma, scratch: *mut Scratch) {
        let index = self.fill(kind, rma, scratch);
        self.queue.push_back(index);
    }

    /// Queues a message.
    pub fn push_message(&mut self, rma: &Rma, follows: bool, scratch: *mut Scratch) {
        let index = self.fill(Kind::Message, rma, scratch);
        self.quiet = 0;
        if follows { &mut self.queue } else { &mut self.messages }.push_back(index);
    }

    #[inline]
    fn fill(&mut self, kind: Kind, rma: &Rma, scratch: *mut Scratch) -> u32 {
        let index = self.vacancy();
        let op = &mut self.ops[index as usize];
        op.segments.clear();
        op.segments.extend_from_slice(rma.segments);
        (op.scratch, op.kind, op.key, op.immediate) = (scratch, kind, rma.key, rma.immediate);
        (op.asked, op.open, op.all_asked, op.errno, op.disowned) = (Cursor::default(), 0, false, 0, false);
        op.device = device_of(rma.descriptor);
        if op.device.is_some() {
            op.gathered = Cursor::default();
            let errno = self.stage().err().unwrap_or(0);
            self.ops[index as usize].errno = errno;
        }
        index
    }

    /// Makes room for devices' memory.
    #[cold]
    fn stage(&mut self) -> Outcome<&mut Staged> {
        if self.staged.is_none() {
            self.staged = Some(Staged::new().map_err(|error| {
                log::warn!("{error}");
                libc::ENOMEM
            })?);
        }
        self.staged.as_deref_mut().ok_or(libc::ENOMEM)
    }

    /// Waits until no device touches memory for it.
    fn settle_devices(&mut self) {
        self.staged.iter_mut().for_each(|staged| staged.settle());
    }

    /// Stops touching the memory of these operations.
    pub fn disown(&mut self, scratches: &[*mut Scratch], sink: &mut [u8]) {
        let mut staged = false;
        for op in &mut self.ops {
            op.disowned |= !op.scratch.is_null() && scratches.contains(&op.scratch);
            staged |= op.disowned && op.device.is_some();
        }
        if staged {
            self.settle_devices();
        }
        let ops = &self.ops;
        let disowned = |op: u32| ops.get(op as usize).is_some_and(|op| op.disowned);
        // (What comes for a device comes to a slot, and stays there.)
        self.batch.take_back(|owner| matches!(owner, Owner::Op(op) if disowned(op)));
        if self.coming == Coming::Data && self.flights.front().is_some_and(|flight| disowned(flight.op)) {
            self.inbox.discard(sink);
        }
    }

    /// A registration, or a grant, ends: its memory is no longer touched.
    pub fn forget(&mut self, key: u64, sink: &mut [u8]) {
        self.withdraw(|of| of == key, GONE, sink);
    }

    /// The peer's operations in flight stop touching registrations of these keys.
    fn withdraw(&mut self, is_of: impl Fn(u64) -> bool, ends: i32, sink: &mut [u8]) {
        self.settle_devices();
        self.batch.take_back(|owner| matches!(owner, Owner::Key(key) if is_of(key)));
        if let Coming::Payload(request, errno) = &mut self.coming {
            if is_of(request.key) && *errno == 0 {
                *errno = ends;
                self.inbox.discard(sink);
                self.entered = None;
            }
        }
    }

    #[inline]
    fn answered(&mut self, index: u32, errno: i32, reaped: &mut Vec<Reaped>) {
        let Some(op) = self.ops.get_mut(index as usize) else { return };
        op.open -= 1;
        if errno != 0 && op.errno == 0 {
            op.errno = errno;
        }
        // An operation that waits in the queue ends there.
        if op.open == 0 && op.all_asked && self.queue.front() != Some(&index) {
            self.finish(index, reaped);
        }
    }

    #[inline]
    fn finish(&mut self, index: u32, reaped: &mut Vec<Reaped>) {
        let op = &mut self.ops[index as usize];
        let scratch = std::mem::replace(&mut op.scratch, std::ptr::null_mut());
        if !scratch.is_null() {
            reaped.push(Reaped::of(scratch, op.errno));
            self.free.push(index);
        }
    }

    // Sending.

    /// Moves everything on; false when the connection has ended. `state` shows when a new
    /// connection has sent its handshake.
    pub fn progress(&mut self, with: &mut Moving) -> Outcome<()> {
        if self.state == State::Dialing && self.writable {
            match self.socket.as_ref().map_or(libc::ENOTCONN, |socket| socket::outcome(socket.as_fd())) {
                0 => self.state = State::Handshaking,
                errno => return Err(errno),
            }
        }
        self.take(with)?;
        if self.staged.is_some() {
            self.land(with.reaped);
        }
        match self.holds_acknowledgement() {
            true => Ok(()),
            false => self.pump(with),
        }
    }

    /// A lone acknowledgement waits for one pass if of late a request followed each: the answering
    /// side then sends both in one call.
    #[inline]
    fn holds_acknowledgement(&mut self) -> bool {
        let alone = self.acknowledged != self.settled && self.pending.is_empty() && !self.is_sending();
        if !alone || self.rides < RIDES || self.leaving || !self.queue.is_empty() || !self.messages.is_empty()
        {
            return false;
        }
        if std::mem::replace(&mut self.held, true) {
            (self.rides, self.held) = (0, false);
        }
        self.held
    }

    /// Requests are about to be made, or an acknowledgement sent without any.
    #[inline]
    fn watch_acknowledgement(&mut self, pass: u32) {
        let (owes, asks) = (self.acknowledged != self.settled, self.may_ask());
        if asks && (owes || self.alone == pass) {
            self.rides = (self.rides + 1).min(RIDES);
            self.alone = pass.wrapping_sub(1);
        } else if owes {
            self.alone = pass;
        }
        self.held &= !owes;
    }

    /// Sends what there is, as far as the socket takes it.
    #[inline]
    pub fn pump(&mut self, with: &mut Moving) -> Outcome<()> {
        while self.writable && with.budget > 0 && self.state != State::Dialing {
            if self.batch.is_empty() {
                self.batch.begin(with.spare);
                if !self.opening.is_empty() {
                    self.batch.copy(&self.opening);
                    self.opening.clear();
                }
                self.watch_acknowledgement(with.pass);
                if self.staged.is_some() {
                    self.gather(with.registry);
                }
                self.answer(with.registry);
                self.ask(with.reaped);
            }
            let Some(socket) = self.socket.as_ref().filter(|_| self.is_sending()) else { break };
            let sealed = self.sealed.as_deref_mut();
            self.writable = self.batch.send(socket.as_fd(), sealed, &mut with.budget)?;
            if let Some(staged) = self.staged.as_mut().filter(|_| self.writable) {
                staged.sent();
            }
        }
        self.batch.end(with.spare);
        Ok(())
    }

    /// Makes requests, as many as one call takes.
    #[inline]
    fn ask(&mut self, reaped: &mut Vec<Reaped>) {
        while let Some(&index) = self.messages.front() {
            if !self.may_ask() || !self.batch.has_room(1, HEAD_MAX + MESSAGE, BATCH) {
                return;
            }
            self.messages.pop_front();
            self.request(index);
            self.finish(index, reaped);
        }
        while let Some(&index) = self.queue.front() {
            let op = &mut self.ops[index as usize];
            // Operations that are over are not requested.
            op.all_asked |= op.disowned || op.errno != 0;
            let (spent, open, message) = (op.all_asked, op.open, op.kind == Kind::Message);
            if spent {
                self.queue.pop_front();
                self.staged.iter_mut().for_each(|staged| staged.drop_ahead(index));
                if open == 0 {
                    self.finish(index, reaped);
                }
                continue;
            }
            if op.device.is_some() && op.kind == Kind::Write {
                match self.staged.as_mut().map_or(Err(GONE), |staged| staged.is_ahead(index)) {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(errno) => {
                        op.errno = errno;
                        continue;
                    }
                }
            }
            let copied = HEAD_MAX + if message { MESSAGE } else { SHORT as usize };
            if !self.may_ask() || !self.batch.has_room(1 + PIECES, copied, BATCH) {
                return;
            }
            self.request(index);
            if message {
                // It was copied.
                self.queue.pop_front();
                self.finish(index, reaped);
            }
        }
    }

    /// Has devices gather what is asked of them, and what our next writes are to carry.
    #[cold]
    fn gather(&mut self, registry: &mut Registry) {
        if !self.staged.as_ref().is_some_and(|staged| staged.gathers()) {
            return;
        }
        for at in 0..self.pending.len() {
            let Pending::Read { key, pieces, device: Some(device), slot: None, .. } = &self.pending[at]
            else {
                continue;
            };
            if self.check(*key, pieces, Wish::Read, registry).is_err() {
                continue; // It is answered so.
            }
            let Some(staged) = &mut self.staged else { return };
            let places = pieces.iter().map(|piece| (piece.address, u64::from(piece.len)));
            // SAFETY: registered memory, which stays so until `forget` waits for the device.
            match unsafe { staged.gather(*device, places) } {
                Ok(None) => return,
                Ok(gathered) => {
                    if let Pending::Read { slot, .. } = &mut self.pending[at] {
                        *slot = gathered;
                    }
                }
                Err(errno) => {
                    let Pending::Read { number, .. } = self.pending[at] else { continue };
                    self.pending[at] = Pending::Failed { number, errno: errno as u32 };
                }
            }
        }
        let Some(staged) = &mut self.staged else { return };
        let most = if self.quiet < QUIET { SHORT_RUN } else { RUN };
        for index in &self.queue {
            let op = &mut self.ops[*index as usize];
            let Some(device) = op.device.filter(|_| op.kind == Kind::Write) else { continue };
            while op.errno == 0 && !op.disowned && op.gathered.segment < op.segments.len() {
                let mut list = Segments::new();
                let (len, after) = op.take(op.gathered, most, &mut list);
                let places = list.iter().map(|part| (part.local, part.len));
                // SAFETY: the operation's memory is valid until it is reaped; `disown` waits.
                let slot = match unsafe { staged.gather(device, places) } {
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

    /// Makes an operation's next request.
    #[inline]
    fn request(&mut self, index: u32) {
        let op = &mut self.ops[index as usize];
        let from = op.asked;
        let ahead = match &mut self.staged {
            Some(staged) if op.device.is_some() && op.kind == Kind::Write => staged.ahead.pop_front(),
            _ => None,
        };
        let most = if self.quiet < QUIET { SHORT_RUN } else { RUN };
        let mut list = Segments::new();
        let (len, after) = op.take(from, ahead.as_ref().map_or(most, |run| run.len), &mut list);
        op.asked = after;
        self.quiet = self.quiet.saturating_add(len);
        op.all_asked = after.segment == op.segments.len();
        let header = Request {
            kind: op.kind,
            pieces: list.len() as u16,
            len: len as u32,
            key: op.key,
            immediate: op.immediate.filter(|_| op.all_asked),
            address: list.first().map_or(0, |part| part.remote),
        };
        self.batch.copy(&header.bytes());
        if list.len() > 1 {
            let mut bytes = ArrayVec::<u8, { PIECES * PIECE }>::new();
            for part in &list {
                bytes.extend(Piece { address: part.remote, len: part.len as u32 }.bytes());
            }
            self.batch.copy(&bytes);
        }
        let copies = op.kind == Kind::Message || len <= SHORT;
        let owner = if ahead.is_some() { Owner::Batch } else { Owner::Op(index) };
        if let (Some(slot), Some(staged)) = (ahead.and_then(|run| run.slot), &mut self.staged) {
            staged.lent.push(slot);
            list.clear();
            list.push(Segment { local: staged.out.base(slot), remote: 0, len });
        }
        for part in list.iter().filter(|part| op.kind != Kind::Read && part.len > 0) {
            if copies {
                // SAFETY: the operation's memory is valid until it is reaped.
                unsafe { self.batch.copy_from(part.local as *const u8, part.len as usize) };
            } else {
                // SAFETY: as above; `disown` takes it back.
                unsafe { self.batch.lend(owner, part.local, part.len as usize) };
            }
        }
        let of = if op.kind == Kind::Message { NO_OP } else { index };
        op.open += u32::from(of != NO_OP);
        self.reads += usize::from(op.kind == Kind::Read);
        self.flights.push_back(Flight { op: of, len: len as u32, from });
    }

    /// Answers the peer's requests.
    #[inline]
    fn answer(&mut self, registry: &mut Registry) {
        while let Some(first) = self.pending.front() {
            let mut lost = None;
            if let (Pending::Read { slot: Some(slot), .. }, Some(staged)) = (first, &mut self.staged) {
                match staged.is_gathered(*slot) {
                    Ok(false) => return,
                    gathered => lost = gathered.err(),
                }
            }
            let vectors = if let Pending::Read { pieces, .. } = first { 1 + pieces.len() } else { 1 };
            if !self.batch.has_room(vectors, ANSWER, BATCH) {
                return;
            }
            let Some(first) = self.pending.pop_front() else { return };
            match first {
                Pending::Read { number, key, len, pieces, device, slot } => {
                    let checked = self.check(key, &pieces, Wish::Read, registry);
                    let errno = checked.as_ref().err().copied().or(lost);
                    let staged = slot.zip(self.staged.as_deref_mut());
                    if errno.is_none() && device.is_some() && slot.is_none() {
                        let read = Pending::Read { number, key, len, pieces, device, slot };
                        return self.pending.push_front(read);
                    }
                    if let Some((slot, staged)) = staged {
                        staged.lent.push(slot);
                    }
                    self.acknowledged = number + 1;
                    if let Some(errno) = errno {
                        self.batch.copy(&Answer::Failed { number, errno: errno as u32 }.bytes());
                        continue;
                    }
                    let entered = checked.ok().and_then(|allowed| allowed.entered);
                    entered.into_iter().for_each(|entered| self.batch.enter(entered));
                    self.batch.copy(&Answer::Data { number, len }.bytes());
                    if let Some((slot, staged)) = slot.zip(self.staged.as_ref()) {
                        // SAFETY: a slot of ours, which stays until the batch is sent.
                        unsafe { self.batch.lend(Owner::Batch, staged.out.base(slot), len as usize) };
                        continue;
                    }
                    for piece in pieces.iter().filter(|piece| piece.len > 0) {
                        // SAFETY: registered memory, which stays so until `forget` takes it back.
                        unsafe { self.batch.lend(Owner::Key(key), piece.address, piece.len as usize) };
                    }
                }
                Pending::Failed { number, errno } => {
                    self.batch.copy(&Answer::Failed { number, errno }.bytes());
                    self.acknowledged = number + 1;
                }
            }
        }
        if self.acknowledged != self.settled {
            self.batch.copy(&Answer::Done(self.settled).bytes());
            self.acknowledged = self.settled;
        }
    }

    // Receiving.

    /// Does what is there, and receives more.
    fn take(&mut self, with: &mut Moving) -> Outcome<()> {
        self.take_all(with)?;
        self.inbox.end(with.spare);
        Ok(())
    }

    fn take_all(&mut self, with: &mut Moving) -> Outcome<()> {
        loop {
            loop {
                match self.step(with)? {
                    Step::Done => {}
                    Step::Waits => break,
                    Step::Met => return Ok(()),
                }
            }
            if !self.readable || self.starved || with.budget == 0 {
                return Ok(());
            }
            let ahead = if self.state == State::Unauthenticated { HANDSHAKE } else { self.ahead };
            let Some(socket) = &self.socket else { return Ok(()) };
            let sealed = self.sealed.as_deref_mut();
            self.inbox.begin(with.spare);
            match self.inbox.receive(socket.as_fd(), sealed, ahead, &mut with.budget)? {
                Got::Some => {}
                Got::All => self.readable = self.closing,
                Got::End => return Err(libc::ECONNRESET),
            }
        }
    }

    /// Handles one frame or payload of what was received; an error if it is malformed.
    #[inline]
    fn step(&mut self, with: &mut Moving) -> Outcome<Step> {
        match self.coming {
            Coming::Head if self.state == State::Unauthenticated => self.meet(),
            Coming::Head => self.head(with),
            _ if self.inbox.left() > 0 => Ok(Step::Waits),
            Coming::Payload(request, errno) => {
                (self.coming, self.entered) = (Coming::Head, None);
                let (mut errno, mut slot) = (errno, None);
                if let Some(staged) = &mut self.staged {
                    let places = self.pieces.iter().map(|piece| (piece.address, piece.len.into()));
                    if errno != 0 {
                        staged.refuse();
                    }
                    // SAFETY: registered memory, as nothing has taken back; `forget` waits.
                    match unsafe { staged.arrived(places) } {
                        Ok(copied) => slot = copied,
                        Err(failed) => errno = failed,
                    }
                }
                self.follow(Next::Settled(errno, request.immediate), slot, with.reaped);
                Ok(Step::Done)
            }
            Coming::Data => {
                self.coming = Coming::Head;
                let flight = self.next_flight()?;
                let (mut errno, mut slot) = (0, None);
                if let (Some(staged), Some(op)) = (&mut self.staged, self.ops.get(flight.op as usize)) {
                    if op.disowned {
                        staged.refuse();
                    }
                    let mut list = Segments::new();
                    op.take(flight.from, flight.len.into(), &mut list);
                    // SAFETY: the operation's memory is valid until it is reaped; `disown` waits.
                    match unsafe { staged.arrived(list.iter().map(|part| (part.local, part.len))) } {
                        Ok(copied) => slot = copied,
                        Err(failed) => errno = failed,
                    }
                }
                match (errno, slot) {
                    (0, Some(slot)) => self.follow(Next::Data(flight.op), Some(slot), with.reaped),
                    _ => self.answered(flight.op, errno, with.reaped),
                }
                Ok(Step::Done)
            }
        }
    }

    /// What comes after what devices are at, or now.
    #[inline]
    fn follow(&mut self, next: Next, slot: Option<u32>, reaped: &mut Vec<Reaped>) {
        match &mut self.staged {
            Some(staged) if slot.is_some() || staged.is_landing() => staged.push(next, slot),
            _ => self.proceed(next, 0, reaped),
        }
    }

    #[inline]
    fn proceed(&mut self, next: Next, failed: i32, reaped: &mut Vec<Reaped>) {
        match next {
            Next::Settled(errno, immediate) => {
                let errno = if failed != 0 { failed } else { errno };
                reaped.extend(immediate.filter(|_| errno == 0).map(Reaped::arrival));
                if errno != 0 {
                    let failed = Pending::Failed { number: self.settled, errno: errno as u32 };
                    self.pending.push_back(failed);
                }
                self.settled += 1;
            }
            Next::Answer(mut pending) => {
                if let Pending::Read { number, .. } = &mut pending {
                    *number = self.settled;
                }
                self.pending.push_back(pending);
                self.settled += 1;
            }
            Next::Data(op) => self.answered(op, failed, reaped),
        }
    }

    /// Goes on with what devices have done.
    #[cold]
    fn land(&mut self, reaped: &mut Vec<Reaped>) {
        while let Some((next, failed)) = self.staged.as_mut().and_then(|staged| staged.take()) {
            self.starved = false;
            self.proceed(next, failed, reaped);
        }
    }

    fn meet(&mut self) -> Outcome<Step> {
        let Some(bytes) = self.inbox.ready().first_chunk::<HANDSHAKE>() else { return Ok(Step::Waits) };
        self.handshake = Some(Handshake::read(bytes).ok_or(libc::EPROTO)?);
        self.inbox.consume(HANDSHAKE);
        Ok(Step::Met)
    }

    #[inline]
    fn head(&mut self, with: &mut Moving) -> Outcome<Step> {
        let ready = self.inbox.ready();
        let Some(&first) = ready.first() else { return Ok(Step::Waits) };
        if is_answer(first) {
            let Some(bytes) = ready.first_chunk::<ANSWER>() else { return Ok(Step::Waits) };
            let answer = Answer::read(bytes).ok_or(libc::EPROTO)?;
            if matches!(answer, Answer::Data { .. }) && self.staged.as_ref().is_some_and(|of| !of.has_room())
            {
                self.starved = true;
                return Ok(Step::Waits);
            }
            self.inbox.consume(ANSWER);
            return self.heed_answer(answer, with).map(|()| Step::Done);
        }
        if self.state != State::Up {
            return Err(libc::EPROTO);
        }
        let Some(bytes) = ready.first_chunk::<REQUEST>() else { return Ok(Step::Waits) };
        let request = Request::read(bytes).ok_or(libc::EPROTO)?;
        if self.reach == Reach::Waits && request.kind != Kind::Message {
            self.starved = true;
            return Ok(Step::Waits);
        }
        // An honest peer has no more requests under way; one that takes no answers would pile them up here.
        let landing = self.staged.as_ref().map_or(0, |staged| staged.landing());
        if self.pending.len() + landing >= FLIGHTS {
            return Err(libc::EPROTO);
        }
        let head = REQUEST + request.list_len();
        let Some(list) = ready.get(REQUEST..head) else { return Ok(Step::Waits) };
        if !request.read_pieces(list, &mut self.pieces) {
            return Err(libc::EPROTO);
        }
        match request.kind {
            Kind::Write => self.begin_write(request, head, with),
            Kind::Read => self.read(request, head, with),
            Kind::Message => self.message(request, head, with),
        }
    }

    /// Whether all pieces may be touched so, or an error number.
    #[inline]
    fn check(&self, key: u64, pieces: &[Piece], wish: Wish, registry: &mut Registry) -> Outcome<Allowed> {
        if self.reach != Reach::Memory {
            return Err(libc::EACCES);
        }
        let bytes = pieces.iter().map(|piece| (piece.address, piece.len.into()));
        registry.check((self.owner, key), bytes, wish)
    }

    #[inline]
    fn begin_write(&mut self, request: Request, head: usize, with: &mut Moving) -> Outcome<Step> {
        let checked = self.check(request.key, &self.pieces, Wish::Write, with.registry);
        let mut slot = None;
        let device = checked.as_ref().ok().and_then(|allowed| allowed.device);
        if let Some(device) = device {
            let staged = self.stage()?;
            slot = staged.expect(device);
            if slot.is_none() {
                self.starved = true;
                return Ok(Step::Waits);
            }
        }
        self.inbox.consume(head);
        self.ahead = head;
        match (&checked, slot) {
            (Err(_), _) => self.expect_nothing(request.len, with.sink),
            // SAFETY: a slot of ours.
            (Ok(_), Some(slot)) => unsafe { self.inbox.expect([(slot, request.len as usize)].into_iter()) },
            (Ok(_), None) => {
                let ranges = self.pieces.iter().map(|piece| (piece.address, piece.len as usize));
                // SAFETY: registered memory, which stays so until `forget` says otherwise.
                unsafe { self.inbox.expect(ranges) };
            }
        }
        let errno = checked.as_ref().err().copied().unwrap_or(0);
        self.entered = checked.ok().and_then(|allowed| allowed.entered);
        self.coming = Coming::Payload(request, errno);
        Ok(Step::Done)
    }

    /// Discards the payload.
    fn expect_nothing(&mut self, len: u32, sink: &mut [u8]) {
        // SAFETY: the sink outlives the NIC's connections.
        unsafe { self.inbox.expect(chunks(sink, len as usize)) };
    }

    fn read(&mut self, request: Request, head: usize, with: &mut Moving) -> Outcome<Step> {
        // A grant's use begins when the bytes are sent.
        let checked = self.check(request.key, &self.pieces, Wish::Read, with.registry);
        self.inbox.consume(head);
        self.ahead = head;
        let next = match checked {
            Err(errno) => Next::Settled(errno, None),
            Ok(Allowed { device, .. }) => {
                if device.is_some() {
                    self.stage()?;
                }
                let (key, len, pieces) = (request.key, request.len, std::mem::take(&mut self.pieces));
                Next::Answer(Pending::Read { number: 0, key, len, pieces, device, slot: None })
            }
        };
        self.follow(next, None, with.reaped);
        Ok(Step::Done)
    }

    fn message(&mut self, request: Request, head: usize, with: &mut Moving) -> Outcome<Step> {
        let len = request.len as usize;
        let Some(message) = self.inbox.ready().get(head..head + len) else { return Ok(Step::Waits) };
        let Some((buffer, scratch)) = with.receives.front().copied() else {
            self.starved = true;
            return Ok(Step::Waits);
        };
        if len > buffer.len {
            return Err(libc::EPROTO);
        }
        self.quiet = 0;
        // SAFETY: the buffer is ours until it is reaped, and has room for it.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), buffer.address.cast(), len) };
        with.receives.pop_front();
        with.reaped.push(Reaped { len: request.len, connection: self.number, ..Reaped::of(scratch, 0) });
        self.inbox.consume(head + len);
        self.follow(Next::Settled(0, None), None, with.reaped);
        Ok(Step::Done)
    }

    // Answers to us.

    fn heed_answer(&mut self, answer: Answer, with: &mut Moving) -> Outcome<()> {
        self.ahead = ANSWER;
        match answer {
            Answer::Accepted if self.state == State::Handshaking => {
                self.state = State::Up;
                Ok(())
            }
            _ if self.state != State::Up => Err(libc::EPROTO),
            Answer::Accepted => Err(libc::EPROTO),
            Answer::Done(number) => self.settle_below(number, with.reaped),
            Answer::Failed { number, errno } => {
                self.settle_below(number, with.reaped)?;
                self.settle_next(errno as i32, with.reaped)
            }
            Answer::Data { number, len } => {
                self.settle_below(number, with.reaped)?;
                self.begin_data(len, with.sink)
            }
        }
    }

    fn begin_data(&mut self, len: u32, sink: &mut [u8]) -> Outcome<()> {
        let flight = self.flights.front().copied().ok_or(libc::EPROTO)?;
        let op = self.ops.get(flight.op as usize).filter(|op| op.kind == Kind::Read).ok_or(libc::EPROTO)?;
        if flight.len != len {
            return Err(libc::EPROTO);
        }
        self.coming = Coming::Data;
        if op.disowned {
            self.expect_nothing(len, sink);
            return Ok(());
        }
        if let (Some(device), Some(staged)) = (op.device, &mut self.staged) {
            let slot = staged.expect(device).ok_or(libc::ENOBUFS)?;
            // SAFETY: a slot of ours.
            unsafe { self.inbox.expect([(slot, len as usize)].into_iter()) };
            return Ok(());
        }
        let mut list = Segments::new();
        op.take(flight.from, len.into(), &mut list);
        // SAFETY: the operation's memory is valid until it is reaped, or disowned.
        unsafe { self.inbox.expect(list.iter().map(|part| (part.local, part.len as usize))) };
        Ok(())
    }

    /// Requests below a number are done; none of them is a read, whose data has not come.
    #[inline]
    fn settle_below(&mut self, number: u64, reaped: &mut Vec<Reaped>) -> Outcome<()> {
        while self.first < number {
            let flight = self.flights.front().ok_or(libc::EPROTO)?;
            if self.ops.get(flight.op as usize).is_some_and(|op| op.kind == Kind::Read) {
                return Err(libc::EPROTO);
            }
            self.settle_next(0, reaped)?;
        }
        if self.first == number {
            Ok(())
        } else {
            Err(libc::EPROTO)
        }
    }

    #[inline]
    fn settle_next(&mut self, errno: i32, reaped: &mut Vec<Reaped>) -> Outcome<()> {
        let flight = self.next_flight()?;
        self.answered(flight.op, errno, reaped);
        Ok(())
    }

    #[inline]
    fn next_flight(&mut self) -> Outcome<Flight> {
        let flight = self.flights.pop_front().ok_or(libc::EPROTO)?;
        self.first += 1;
        self.reads -= usize::from(self.ops.get(flight.op as usize).is_some_and(|op| op.kind == Kind::Read));
        Ok(flight)
    }
}

/// What local memory's descriptor says of it.
pub fn descriptor_of(device: Device) -> *mut c_void {
    (device as usize + 1) as *mut c_void
}

#[inline]
fn device_of(descriptor: *mut c_void) -> Option<Device> {
    (descriptor as usize).checked_sub(1).map(|device| device as Device)
}

impl Op {
    /// The next parts of its segments, of `most` bytes in all and as many as a request has: their
    /// bytes, and where they end.
    #[inline]
    fn take(&self, from: Cursor, most: u64, list: &mut Segments) -> (u64, Cursor) {
        let (mut at, mut len) = (from, 0u64);
        while let Some(segment) = self.segments.get(at.segment) {
            if list.is_full() || len == most && segment.len > 0 {
                break;
            }
            let part = (segment.len - at.offset).min(most - len);
            list.push(Segment {
                local: segment.local.wrapping_add(at.offset),
                remote: segment.remote.wrapping_add(at.offset),
                len: part,
            });
            len += part;
            at.offset += part;
            if at.offset == segment.len {
                at = Cursor { segment: at.segment + 1, offset: 0 };
            }
        }
        (len, at)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            socket::shut(socket.as_fd());
        }
    }
}

const _: () = assert!(HEAD_MAX + MESSAGE <= INBOX && HEAD_MAX == REQUEST + PIECES * PIECE);
