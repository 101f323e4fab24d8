//! A connection between two NICs. Both ends ask, and do what the other asks for.
//!
//! As an initiator, an end queues its operations in order. Each becomes one or several requests,
//! whose bytes are sent from where they lie; what is read is received where it belongs.
//!
//! As a target it believes nothing: a request is checked against our own registrations before its
//! first byte is accepted. One that may not be is answered with an error, and its bytes go
//! nowhere; one that makes no sense ends the connection.

use super::sealed::Sealed;
use super::socket;
use super::stream::{chunks, Batch, Got, Inbox, Owner, Spare, INBOX};
use crate::fabric::grants::Use;
use crate::fabric::host::registry::{Registry, Wish};
use crate::fabric::{Buffer, Connection as Number, Immediate, Reaped, Rma, Scratch, Segment, GONE};
use crate::fork::Descriptor;
use crate::ids::PeerId;
use crate::wire::tcp::{
    is_answer, Answer, Handshake, Kind, Name, Piece, Request, ANSWER, HANDSHAKE, HEAD_MAX, MESSAGE, PIECE,
    PIECES, REQUEST, RUN,
};
use arrayvec::ArrayVec;
use std::collections::VecDeque;
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
    /// `NO_OP` of a message, which is over when it was copied.
    op: u32,
    len: u32,
    from: Cursor,
}

const NO_OP: u32 = u32::MAX;

/// Answers to be sent, in this order.
enum Pending {
    Read { number: u64, key: u64, len: u32, pieces: Vec<Piece> },
    Failed { number: u64, errno: u32 },
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
    coming: Coming,
    /// The use of the grant that an incoming payload is under.
    entered: Option<Use>,
    /// Bytes of the last frame's header: the next one's are likely as many.
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
        self.flights.is_empty() && self.queue.is_empty() && self.messages.is_empty() && !self.is_sending()
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
        self.dead().is_none() && (self.readable && !self.starved || self.writable && sends)
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

    /// The connection is over: all operations end with it.
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
        for flight in std::mem::take(&mut self.flights) {
            self.answered(flight.op, errno, reaped);
        }
        let messages = std::mem::take(&mut self.messages);
        for index in std::mem::take(&mut self.queue).into_iter().chain(messages) {
            let op = &mut self.ops[index as usize];
            (op.errno, op.all_asked) = (errno, true);
            self.finish(index, reaped);
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
        index
    }

    /// Stops touching the memory of these operations.
    pub fn disown(&mut self, scratches: &[*mut Scratch], sink: &mut [u8]) {
        for op in &mut self.ops {
            op.disowned |= !op.scratch.is_null() && scratches.contains(&op.scratch);
        }
        let ops = &self.ops;
        let disowned = |op: u32| ops.get(op as usize).is_some_and(|op| op.disowned);
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
                self.answer(with.registry);
                self.ask(with.reaped);
            }
            let Some(socket) = self.socket.as_ref().filter(|_| self.is_sending()) else { break };
            let sealed = self.sealed.as_deref_mut();
            self.writable = self.batch.send(socket.as_fd(), sealed, &mut with.budget)?;
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
                if open == 0 {
                    self.finish(index, reaped);
                }
                continue;
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

    /// Makes an operation's next request.
    #[inline]
    fn request(&mut self, index: u32) {
        let op = &mut self.ops[index as usize];
        let from = op.asked;
        let (mut at, mut len) = (from, 0u64);
        let run = if self.quiet < QUIET { SHORT_RUN } else { RUN };
        let mut list = ArrayVec::<Piece, PIECES>::new();
        while let Some(segment) = op.segments.get(at.segment) {
            if list.is_full() || len == run && segment.len > 0 {
                break;
            }
            let part = (segment.len - at.offset).min(run - len);
            list.push(Piece { address: segment.remote.wrapping_add(at.offset), len: part as u32 });
            len += part;
            at.offset += part;
            if at.offset == segment.len {
                at = Cursor { segment: at.segment + 1, offset: 0 };
            }
        }
        op.asked = at;
        self.quiet = self.quiet.saturating_add(len);
        op.all_asked = at.segment == op.segments.len();
        let header = Request {
            kind: op.kind,
            pieces: list.len() as u16,
            len: len as u32,
            key: op.key,
            immediate: op.immediate.filter(|_| op.all_asked),
            address: list.first().map_or(0, |piece| piece.address),
        };
        self.batch.copy(&header.bytes());
        if list.len() > 1 {
            let mut bytes = ArrayVec::<u8, { PIECES * PIECE }>::new();
            list.iter().for_each(|piece| bytes.extend(piece.bytes()));
            self.batch.copy(&bytes);
        }
        let copies = op.kind == Kind::Message || len <= SHORT;
        let (mut at, mut left) = (from, if op.kind == Kind::Read { 0 } else { len });
        while left > 0 {
            let Some(segment) = op.segments.get(at.segment) else { break };
            let part = (segment.len - at.offset).min(left);
            let local = segment.local.wrapping_add(at.offset);
            if copies {
                // SAFETY: the operation's memory is valid until it is reaped.
                unsafe { self.batch.copy_from(local as *const u8, part as usize) };
            } else if part > 0 {
                // SAFETY: as above; `disown` takes it back.
                unsafe { self.batch.lend(Owner::Op(index), local, part as usize) };
            }
            left -= part;
            at = Cursor { segment: at.segment + 1, offset: 0 };
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
            let vectors = if let Pending::Read { pieces, .. } = first { 1 + pieces.len() } else { 1 };
            if !self.batch.has_room(vectors, ANSWER, BATCH) {
                return;
            }
            let Some(first) = self.pending.pop_front() else { return };
            match first {
                Pending::Read { number, key, len, pieces } => {
                    match self.check(key, &pieces, Wish::Read, registry) {
                        Ok(entered) => {
                            entered.into_iter().for_each(|entered| self.batch.enter(entered));
                            self.batch.copy(&Answer::Data { number, len }.bytes());
                            for piece in pieces.iter().filter(|piece| piece.len > 0) {
                                let owner = Owner::Key(key);
                                // SAFETY: registered memory, which stays so until `forget` takes it back.
                                unsafe { self.batch.lend(owner, piece.address, piece.len as usize) };
                            }
                        }
                        Err(errno) => {
                            self.batch.copy(&Answer::Failed { number, errno: errno as u32 }.bytes())
                        }
                    }
                    self.acknowledged = number + 1;
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

    /// Does one thing of what was received; an error if it makes no sense.
    #[inline]
    fn step(&mut self, with: &mut Moving) -> Outcome<Step> {
        match self.coming {
            Coming::Head if self.state == State::Unauthenticated => self.meet(),
            Coming::Head => self.head(with),
            _ if self.inbox.left() > 0 => Ok(Step::Waits),
            Coming::Payload(request, errno) => {
                (self.coming, self.entered) = (Coming::Head, None);
                with.reaped.extend(request.immediate.filter(|_| errno == 0).map(Reaped::arrival));
                self.settle(errno);
                Ok(Step::Done)
            }
            Coming::Data => {
                self.coming = Coming::Head;
                self.settle_next(0, with.reaped)?;
                Ok(Step::Done)
            }
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
        if self.pending.len() >= FLIGHTS {
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
    fn check(&self, key: u64, pieces: &[Piece], wish: Wish, registry: &mut Registry) -> Outcome<Option<Use>> {
        if self.reach != Reach::Memory {
            return Err(libc::EACCES);
        }
        let bytes = pieces.iter().map(|piece| (piece.address, piece.len.into()));
        registry.check((self.owner, key), bytes, wish)
    }

    #[inline]
    fn begin_write(&mut self, request: Request, head: usize, with: &mut Moving) -> Outcome<Step> {
        let entered = self.check(request.key, &self.pieces, Wish::Write, with.registry);
        self.inbox.consume(head);
        self.ahead = head;
        let errno = entered.as_ref().err().copied().unwrap_or(0);
        if errno == 0 {
            let ranges = self.pieces.iter().map(|piece| (piece.address, piece.len as usize));
            // SAFETY: registered memory, which stays so until `forget` says otherwise.
            unsafe { self.inbox.expect(ranges) };
        } else {
            self.expect_nothing(request.len, with.sink);
        }
        self.entered = entered.ok().flatten();
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
        let errno = checked.err().unwrap_or(0);
        self.inbox.consume(head);
        self.ahead = head;
        if errno == 0 {
            let (pieces, number) = (std::mem::take(&mut self.pieces), self.settled);
            self.pending.push_back(Pending::Read { number, key: request.key, len: request.len, pieces });
        }
        self.settle(errno);
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
        self.settle(0);
        Ok(Step::Done)
    }

    /// The peer's next request is over.
    #[inline]
    fn settle(&mut self, errno: i32) {
        if errno != 0 {
            self.pending.push_back(Pending::Failed { number: self.settled, errno: errno as u32 });
        }
        self.settled += 1;
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
        let mut left = u64::from(len);
        let segments = op.segments.get(flight.from.segment..).unwrap_or_default();
        let ranges = segments.iter().enumerate().map_while(|(i, segment)| {
            let offset = if i == 0 { flight.from.offset } else { 0 };
            let part = (segment.len - offset).min(left);
            let wanted = left > 0;
            left -= part;
            wanted.then_some((segment.local.wrapping_add(offset), part as usize))
        });
        // SAFETY: the operation's memory is valid until it is reaped, or disowned.
        unsafe { self.inbox.expect(ranges) };
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
        let flight = self.flights.pop_front().ok_or(libc::EPROTO)?;
        self.first += 1;
        self.reads -= usize::from(self.ops.get(flight.op as usize).is_some_and(|op| op.kind == Kind::Read));
        self.answered(flight.op, errno, reaped);
        Ok(())
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
