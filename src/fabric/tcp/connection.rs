//! A connection between two NICs. Both ends send requests and serve the other's.
//!
//! As an initiator, an end queues its operations in order. Each becomes one or several requests.
//! Written bytes are sent from their own memory, and read bytes are received into theirs, without a
//! copy.
//!
//! As a target, an end trusts nothing: a request is checked against our own registrations before
//! its first byte is accepted. A request that is not allowed is answered with an error, and its
//! bytes are discarded; a malformed one ends the connection.

use super::incoming::{Incoming, Reach};
use super::outgoing::Outgoing;
use super::paths::Carriers;
use super::sealed::Sealed;
use super::socket::{self, Outcome};
use super::staged::{Staged, Whose};
use super::stream::{Batch, Inbox, Owner, Spare, INBOX};
use crate::descriptor::Descriptor;
use crate::fabric::grants::Use;
use crate::fabric::own::pool::Pool;
use crate::fabric::registry::Registry;
use crate::fabric::{Buffer, Connection as Number, Reaped, Rma, Scratch, Socket, ANOTHER, GONE};
use crate::ids::PeerId;
use crate::wire::tcp::{
    Answer, Handshake, Kind, Name, Request, HANDSHAKE, HEAD_MAX, MESSAGE, PIECE, PIECES, REQUEST,
};
use arrayvec::ArrayVec;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

mod receive;

/// The most sockets without an answer that are kept, the last ones: those before have waited for seconds.
const UNANSWERED: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// This side connects.
    Dialing,
    /// This side has sent its handshake.
    Handshaking,
    /// Accepted; the other side has not yet sent its handshake.
    Unauthenticated,
    Up,
    /// The error with which operations end.
    Dead(i32),
}

/// Where a connection has its requests for disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Beside {
    /// None were made yet.
    #[default]
    Unused,
    /// Over the connection in this slot.
    At(u32),
    /// Over itself: no other one could be made.
    Itself,
}

/// The part that is being received.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Coming {
    /// A frame's header.
    Head,
    /// The bytes of this write, and the error that it ends with.
    Payload(Request, i32),
    /// The data of the first request in flight, and the error that it ends with.
    Data(i32),
}

/// The result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Done,
    /// More bytes, or a posted receive, must come first.
    Waits,
    /// A handshake was received: the NIC decides about it.
    Met,
}

/// The parts of its NIC that a connection's progress uses.
pub struct Moving<'a> {
    pub registry: &'a mut Registry,
    pub receives: &'a mut VecDeque<(Buffer, *mut Scratch)>,
    pub reaped: &'a mut Vec<Reaped>,
    pub spare: &'a mut Spare,
    pub pool: &'a mut Pool,
    pub sink: &'a mut [u8],
    /// Number of the NIC's pass.
    pub pass: u32,
    pub budget: u64,
}

pub struct Connection {
    /// Shared with callers' threads, which ask the system about it.
    socket: Option<Arc<Socket>>,
    /// Its encryption, if any.
    sealed: Option<Box<Sealed>>,
    pub state: State,
    /// The number that the connection's messages carry.
    pub number: Number,
    /// The dialled NIC; or the NIC that the other end claims to be, without proof.
    pub name: Name,
    pub dialed: bool,
    /// The other end's address.
    pub far: Option<SocketAddr>,
    /// Where else its NIC may answer, how often it was dialed at another address than before, and whether
    /// the first one has refused.
    pub elsewhere: Option<SocketAddr>,
    pub turned: u32,
    pub refused: bool,
    /// The NICs of this host that carry it.
    pub carriers: Carriers,
    /// When its socket began to connect.
    pub tried_ns: u64,
    /// Sockets that got no answer. They keep their ports until another one has: the peer's answers to
    /// them would otherwise end a connection that has got the same port.
    unanswered: Vec<Arc<Socket>>,
    /// Where its requests for disks go; the connection that it lies beside itself (0: none); and the name of one that
    /// the other end has announced.
    pub beside: Beside,
    pub lies_beside: Number,
    pub announced: Option<Name>,
    /// The handshake over an accepted connection.
    pub handshake: Option<Handshake>,
    pub since_ns: u64,
    /// How many requests each side had settled at the last check.
    looked: (u64, u64),

    pub outgoing: Outgoing,
    incoming: Incoming,
    /// The first bytes to send: the handshake or the acceptance. Later, the announcement of another connection.
    opening: ArrayVec<u8, HANDSHAKE>,
    batch: Batch,
    inbox: Inbox,
    /// What it has in slots, once it has moved device memory.
    staged: Option<Box<Staged>>,
    coming: Coming,
    /// The use of the grant for an incoming payload.
    entered: Option<Use>,
    /// Length of the last frame's header, as a guess for the next one's.
    ahead: usize,
    readable: bool,
    writable: bool,
    /// The other side has closed: the end remains to be read.
    closing: bool,
    /// A message waits for a receive, a request until a peer has authenticated, or either direction for slots.
    starved: bool,
    /// What is to be sent waits for devices.
    stalled: bool,
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
        let dialed = state != State::Unauthenticated;
        Connection {
            socket: Some(Arc::new(Socket { descriptor: socket, dialed })),
            sealed,
            state,
            number: 0,
            name,
            dialed,
            far: None,
            elsewhere: None,
            turned: 0,
            refused: false,
            carriers: Carriers::default(),
            tried_ns: now,
            unanswered: Vec::new(),
            beside: Beside::Unused,
            lies_beside: 0,
            announced: None,
            handshake: None,
            since_ns: now,
            looked: (0, 0),
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
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
            stalled: false,
            leaving: false,
            listed: false,
        }
    }

    /// Over a socket that has started to connect.
    pub fn dialed(
        socket: Descriptor,
        sealed: Option<Box<Sealed>>,
        handshake: Handshake,
        owner: Option<PeerId>,
        now: u64,
    ) -> Connection {
        let mut connection = Connection::new(socket, sealed, State::Dialing, handshake.target, now);
        connection.incoming.owner = owner;
        connection.opening = handshake.bytes().into();
        connection
    }

    pub fn accepted(socket: Descriptor, sealed: Option<Box<Sealed>>, now: u64) -> Connection {
        Connection::new(socket, sealed, State::Unauthenticated, Name::default(), now)
    }

    pub fn host(&self) -> Option<IpAddr> {
        self.far.map(|far| far.ip())
    }

    /// Accepts the handshake.
    pub fn accept(&mut self) {
        let Some(handshake) = self.handshake.take() else { return };
        (self.state, self.name) = (State::Up, handshake.initiator);
        self.opening.extend(Answer::Accepted.bytes());
    }

    /// Connects anew, by another NIC or to another address; nothing was sent yet.
    pub fn try_again(&mut self, socket: Descriptor, carriers: Carriers, now: u64) {
        let socket = Socket { descriptor: socket, dialed: true };
        self.unanswered.extend(self.socket.replace(Arc::new(socket)));
        self.unanswered.drain(..self.unanswered.len().saturating_sub(UNANSWERED));
        (self.carriers, self.tried_ns) = (carriers, now);
        // What was heard of the socket before does not hold for this one.
        (self.readable, self.writable, self.closing) = (false, false, false);
    }

    /// The other end calls a NIC that is not here: says so, and ends once that is sent.
    pub fn turn_away(&mut self) {
        (self.handshake, self.state, self.leaving) = (None, State::Up, true);
        self.incoming.reach = Reach::Refused;
        self.opening.extend(Answer::Failed { number: 0, errno: ANOTHER as u32 }.bytes());
    }

    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(|socket| socket.as_fd())
    }

    pub fn shared_socket(&self) -> Option<Arc<Socket>> {
        self.socket.clone()
    }

    pub fn dead(&self) -> Option<i32> {
        match self.state {
            State::Dead(errno) => Some(errno),
            _ => None,
        }
    }

    /// Whether nothing of ours is in flight.
    pub fn is_idle(&self) -> bool {
        let lands = self.staged.as_ref().is_some_and(|staged| staged.is_landing());
        self.outgoing.is_empty() && !lands && !self.is_sending()
    }

    /// Devices have copied, or slots are free. False: it moves no device memory.
    pub fn look_at_slots(&mut self) -> bool {
        if self.staged.is_some() {
            (self.starved, self.stalled) = (false, false);
        }
        self.staged.is_some()
    }

    fn whose(&self) -> Whose {
        Whose { connection: self.number, peer: self.owner() }
    }

    /// Frees the buffers of operations, if none was posted since the last check.
    pub fn rest(&mut self) {
        let now = (self.outgoing.first(), self.incoming.settled());
        let same = std::mem::replace(&mut self.looked, now) == now;
        // What is arriving goes where its request's pieces say.
        let receives = !matches!(self.coming, Coming::Head);
        if same && self.is_idle() && !receives && !self.incoming.has_answers() {
            self.outgoing.shrink();
            self.incoming.shrink();
            let starved = self.starved; // It may be for a slot.
            self.staged.take_if(|staged| staged.is_idle() && !starved);
        }
    }

    /// The pieces of the request whose bytes are arriving.
    #[cfg(test)]
    pub fn pieces(&self) -> usize {
        self.incoming.pieces.len()
    }

    /// Bytes of its buffers.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.outgoing.held() + self.incoming.held() + self.batch.held() + self.inbox.held()
    }

    /// Whether something was started and is not sent yet.
    #[inline]
    fn is_sending(&self) -> bool {
        !self.opening.is_empty()
            || !self.batch.is_empty()
            || self.sealed.as_ref().is_some_and(|sealed| sealed.is_sending())
    }

    fn may_ask(&self) -> bool {
        self.state == State::Up && self.outgoing.may_ask()
    }

    /// Whether `progress` would find work.
    pub fn has_work(&self) -> bool {
        let sends = self.is_sending() || !self.stalled && (self.incoming.has_answers() || self.may_ask());
        let receives = self.readable && !self.starved;
        self.dead().is_none() && (receives || self.writable && sends)
    }

    /// Records the events that epoll reported for the socket.
    pub fn heed(&mut self, readable: bool, writable: bool, ends: bool) {
        self.readable |= readable || ends;
        self.writable |= writable || ends;
        self.closing |= ends;
    }

    /// Whether the other side has closed it, and that has arrived.
    pub fn has_closed(&self) -> bool {
        self.closing
    }

    // Ownership.

    /// The peer whose address was dialled, or that authenticated over an accepted connection.
    pub fn owner(&self) -> Option<PeerId> {
        self.incoming.owner
    }

    /// Whether it was accepted, and no peer has authenticated over it.
    pub fn is_unauthenticated(&self) -> bool {
        !self.dialed && self.owner().is_none()
    }

    pub fn is_accepted_of(&self, peer: PeerId, name: Name) -> bool {
        !self.dialed && self.owner() == Some(peer) && self.name == name
    }

    /// Whether a route to its peer may use it.
    pub fn serves(&self) -> bool {
        self.state == State::Up && self.incoming.reach == Reach::Memory && !self.leaving && !self.is_beside()
    }

    /// Whether it lies beside this peer's connection, for disks.
    pub fn is_beside(&self) -> bool {
        self.lies_beside != 0
    }

    /// Announces a connection beside this one; false if that cannot be sent yet.
    pub fn announce(&mut self, name: Name) -> bool {
        let may = self.state == State::Up && self.opening.is_empty();
        if may {
            self.opening.extend(Request::beside(&name).bytes());
        }
        may
    }

    /// Sends its first bytes, or what was announced.
    #[cold]
    fn open(&mut self) {
        let announces = self.opening.first() == Some(&(Kind::Beside as u8));
        self.batch.begin_frame();
        self.batch.copy(&self.opening);
        self.opening.clear();
        if announces {
            self.batch.end_request(false);
            self.outgoing.announced();
        }
    }

    /// Whether a peer may authenticate over it: a dialled connection already has its peer, and a
    /// peer that has ended returns as another peer.
    pub fn may_be_of(&self, peer: PeerId) -> bool {
        match self.owner() == Some(peer) {
            true => self.incoming.reach == Reach::Waits,
            false => !self.dialed,
        }
    }

    /// Assigns it to the peer that has authenticated over it.
    pub fn authenticate(&mut self, peer: PeerId) {
        self.incoming.tells_disks = self.is_beside();
        (self.incoming.owner, self.incoming.reach, self.starved) = (Some(peer), Reach::Memory, false);
    }

    /// The peer has ended: refuses its writes and reads from here on.
    pub fn refuse(&mut self, now: u64, sink: &mut [u8]) {
        (self.incoming.reach, self.starved, self.since_ns) = (Reach::Refused, false, now);
        self.withdraw(|_| true, libc::EACCES, sink);
    }

    /// A receive was posted; true if a message waited for one.
    pub fn feed(&mut self) -> bool {
        std::mem::take(&mut self.starved)
    }

    /// Ends the writes whose memory can no longer be read.
    #[cold]
    pub fn end_unreadable(&mut self, reaped: &mut Vec<Reaped>) {
        self.outgoing.end_unreadable(reaped);
    }

    /// Ends the connection, and every operation over it but those whose memory devices still copy
    /// (`end_copied`).
    pub fn die(&mut self, errno: i32, pool: &mut Pool, reaped: &mut Vec<Reaped>) {
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
        self.incoming.end(pool);
        let mut copied = Vec::new();
        if let Some(staged) = &mut self.staged {
            staged.end(pool);
            copied = staged.copied(pool, |op| self.outgoing.is_disowned(op));
        }
        self.outgoing.end(errno, &copied, reaped);
    }

    /// The connection has ended: ends the operations whose memory devices have copied. True: all of them.
    pub fn end_copied(&mut self, pool: &mut Pool, reaped: &mut Vec<Reaped>) -> bool {
        let (Some(staged), State::Dead(errno)) = (&mut self.staged, self.state) else { return true };
        let copied = staged.copied(pool, |op| self.outgoing.is_disowned(op));
        self.outgoing.end_copied(errno, &copied, reaped);
        copied.is_empty()
    }

    // Operations.

    /// Queues an operation.
    #[inline]
    pub fn push(&mut self, kind: Kind, rma: &Rma, scratch: *mut Scratch) {
        if self.outgoing.push(kind, rma, scratch) {
            self.stage();
        }
    }

    /// Begins to move device memory.
    #[cold]
    fn stage(&mut self) -> &mut Staged {
        self.staged.get_or_insert_default()
    }

    /// Stops touching the memory of these operations. (A disk may be late with it.)
    pub fn disown(&mut self, scratches: &[*mut Scratch], pool: &mut Pool, sink: &mut [u8]) {
        let staged = self.outgoing.disown(scratches);
        let outgoing = &self.outgoing;
        if let Some(slots) = self.staged.as_mut().filter(|_| staged) {
            slots.settle(pool, |op| outgoing.is_disowned(op));
        }
        // (Bytes for a device are received into a slot, and stay there.)
        self.batch.take_back(|owner| matches!(owner, Owner::Op(op) if outgoing.is_disowned(op)));
        if matches!(self.coming, Coming::Data(_)) && outgoing.is_first_disowned() {
            self.inbox.discard(sink);
        }
    }

    /// A registration or a grant ends: its memory is no longer touched, but by devices (`Copying`).
    pub fn forget(&mut self, key: u64, sink: &mut [u8]) {
        self.withdraw(|gone| gone == key, GONE, sink);
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

    // Sending.

    /// Progresses both directions; false when the connection has ended. `state` shows when a new
    /// connection has sent its handshake.
    pub fn progress(&mut self, with: &mut Moving) -> Outcome<()> {
        if self.state == State::Dialing && self.writable {
            match self.socket.as_ref().map_or(libc::ENOTCONN, |socket| socket::outcome(socket.as_fd())) {
                0 => {
                    self.state = State::Handshaking;
                    self.unanswered.clear();
                }
                errno => return Err(errno),
            }
        }
        self.take(with)?;
        if self.staged.is_some() {
            self.land(with.pool, with.reaped);
        }
        self.stalled = false; // What has come may be answered, if not in this pass.
        let alone = !self.is_sending() && !self.leaving && !self.outgoing.is_waiting();
        match alone && self.incoming.holds() {
            true => Ok(()),
            false => self.pump(with),
        }
    }

    /// Lets devices fill slots with what is to be sent next.
    #[cold]
    fn gather(&mut self, with: &mut Moving) {
        let whose = self.whose();
        if let Some(staged) = self.staged.as_mut().filter(|_| Staged::gathers(whose, with.pool)) {
            self.incoming.gather(whose, with.pool, with.registry);
            self.outgoing.gather(whose, with.pool, staged);
        }
    }

    /// Sends queued bytes, as many as the socket accepts.
    #[inline]
    pub fn pump(&mut self, with: &mut Moving) -> Outcome<()> {
        self.stalled = false;
        while self.writable && with.budget > 0 && self.state != State::Dialing {
            if self.batch.is_empty() {
                self.batch.begin(with.spare);
                if !self.opening.is_empty() {
                    self.open();
                }
                let asks = self.may_ask();
                self.incoming.watch(asks, with.pass);
                if self.staged.is_some() {
                    self.gather(with);
                }
                let up = self.state == State::Up;
                if self.outgoing.has_messages() {
                    // They follow what was done before, and wait for the data of no read.
                    self.incoming.acknowledge(&mut self.batch);
                    self.outgoing.speak(up, &mut self.batch, with.pool, with.reaped);
                }
                let asks = up && self.outgoing.may_ask();
                self.incoming.answer(&mut self.batch, &mut self.staged, with.pool, with.registry, asks);
                self.outgoing.ask(up, &mut self.batch, &mut self.staged, with.pool, with.reaped);
            } else if self.outgoing.has_messages() && self.state == State::Up {
                self.outgoing.interject(&mut self.batch, with.reaped);
            }
            let Some(socket) = self.socket.as_ref().filter(|_| self.is_sending()) else {
                self.stalled = self.staged.is_some();
                break;
            };
            let sealed = self.sealed.as_deref_mut();
            self.writable = self.batch.send(socket.as_fd(), sealed, &mut with.budget)?;
            if let Some(staged) = self.staged.as_mut().filter(|_| self.writable) {
                staged.sent(with.pool);
            }
        }
        self.batch.end(with.spare);
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

#[cfg(test)]
mod tests {
    use super::super::stand::{handshake, sockets};
    use super::*;

    #[test]
    fn a_peer_that_never_answers_does_not_use_up_descriptors() {
        let mut connection = Connection::dialed(sockets().0, None, handshake(), None, 0);
        let others: Vec<_> = (0..10 * UNANSWERED)
            .map(|_| {
                let (near, far) = sockets();
                connection.try_again(near, Carriers::default(), 0);
                far
            })
            .collect();
        // Reading shows whether the other end is open.
        let is_open =
            |far: &&std::os::unix::net::UnixStream| std::io::Read::read(&mut &**far, &mut [0]).is_err();
        assert_eq!(others.iter().filter(is_open).count(), UNANSWERED + 1);
        assert!(others.iter().rev().take(UNANSWERED + 1).all(|far| is_open(&far)), "the last ones");
    }
}
