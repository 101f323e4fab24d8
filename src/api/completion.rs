//! Completions, by kind.

use super::ids::{Op, Peer};
use super::parked::Shared;
use crate::fabric::error_text;
use crate::status::{Error, Result, Status};
use crate::transfer::completion::{self as record, *};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// One completion, as polling a [`Queue`](crate::Queue) takes it.
///
/// In the endpoint's own queue a peer's [`PeerUp`](Completion::PeerUp) comes before anything else of that peer, and
/// nothing of it after its [`PeerDown`](Completion::PeerDown), as one polling thread sees it. (Over efa its writes may
/// arrive after that, in memory without [`Access::Granted`](crate::Access::Granted), until it is deregistered.)
///
/// ```
/// # let world = libweft::testing::world()?;
/// use libweft::{Completion, OpOptions};
///
/// let op = world.a.send(world.a_to_b, b"hello", &OpOptions::new().user_data(7))?;
/// match world.wait_a(op)? {
///     Completion::Send(done) => {
///         done.result()?;
///         assert_eq!((done.user_data, done.bytes), (7, 5));
///     }
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), libweft::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Completion {
    /// A write ended.
    Write(Done),
    /// A read ended.
    Read(Done),
    /// A send ended. Success: the message is in the peer's queue.
    Send(Done),
    /// A wait for counters ended.
    Counter(Done),
    /// A fetch-add or compare-swap ended.
    Atomic(Atomic),
    /// A fence or a revoke ended.
    Fence(Done),
    /// A message of a peer arrived.
    Message(Message),
    /// A notification of a peer arrived. If its status is a success, all bytes of its transfer arrived before it. Any
    /// peer can send any value, so compare the sender, too.
    Notification(Notification),
    /// A connect ended, or a peer connected.
    PeerUp(PeerUp),
    /// A peer that was up has ended.
    PeerDown(PeerDown),
    /// A rail has no lane up to any peer, though others serve one of them (for 0.3 s; at once without a link). Its work moves
    /// to the others; nothing is to be done. (A rail that is the only one of its peers is not reported: they wait for it, or
    /// end.)
    RailDown(RailEvent),
    /// A rail reaches a peer again, and is used.
    RailUp(RailEvent),
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Done {
    /// The operation.
    pub op: Op,
    /// [`Status::Ok`], or how it failed.
    pub status: Status,
    /// As in the options of the operation.
    pub user_data: u64,
    /// The other side. `None` of a wait for counters, a revoke, and of a list over several peers that succeeded; of one
    /// that failed, the peer that failed first.
    pub peer: Option<Peer>,
    /// Bytes moved, all or (failed) 0.
    pub bytes: u64,
    /// Of a list that failed: the first entry of what failed.
    pub entry: Option<u64>,
    /// The rail that failed.
    pub rail: Option<u32>,
    /// The error number of the system, or of libfabric (`fi_errno.h`); 0: none.
    pub provider_errno: i32,
    /// When it was submitted: nanoseconds of `CLOCK_MONOTONIC`.
    pub submit_ns: u64,
    /// When it was first posted to a NIC; 0: never.
    pub first_post_ns: u64,
    /// When it was done, in the same time.
    pub done_ns: u64,
}

impl Done {
    fn new(from: &record::Completion) -> Done {
        let none = |value: u64| (value != u64::MAX).then_some(value);
        Done {
            op: Op(from.transfer),
            status: Status::from_code(from.status),
            user_data: from.user_data,
            peer: from.peer.map(Peer),
            bytes: from.bytes,
            entry: none(from.entry),
            rail: (from.rail != u32::MAX).then_some(from.rail),
            provider_errno: from.provider_errno,
            submit_ns: from.submit_ns,
            first_post_ns: from.first_post_ns,
            done_ns: from.done_ns,
        }
    }

    /// Whether it succeeded, as a result for `?`.
    ///
    /// # Errors
    /// How it failed.
    pub fn result(&self) -> Result<()> {
        result(self.status, self.provider_errno)
    }
}

fn result(status: Status, provider_errno: i32) -> Result<()> {
    match status {
        Status::Ok => Ok(()),
        status => {
            let error = Error::new(status, status.text());
            Err(match provider_errno {
                0 => error,
                errno => {
                    let message = format!("{}: {} ({errno})", error.message, error_text(errno)).into();
                    Error { message, provider_errno, ..error }
                }
            })
        }
    }
}

/// How an atomic ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Atomic {
    /// The fields of any operation.
    pub done: Done,
    /// The word's previous value.
    pub previous: u64,
}

/// A message that arrived: its bytes. Dropping it releases them; until then they count towards the
/// bytes that a peer may have waiting here (`message_bytes`).
#[derive(Debug)]
#[non_exhaustive]
pub struct Message {
    /// Its sender.
    pub peer: Peer,
    data: Held,
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.data.bytes()
    }
}

/// A notification that arrived.
#[derive(Debug)]
#[non_exhaustive]
pub struct Notification {
    /// The peer whose transfer it is of.
    pub peer: Peer,
    /// The value of [`OpOptions::notify`](crate::OpOptions::notify).
    pub notify: u64,
    /// [`Status::Ok`], or how the transfer failed ([`OpOptions::notify_failure`](crate::OpOptions::notify_failure)), or
    /// the grant ended ([`GrantArgs::notify_failure`](crate::GrantArgs::notify_failure)).
    pub status: Status,
    data: Held,
}

impl Notification {
    /// The data of [`OpOptions::notify_data`](crate::OpOptions::notify_data).
    pub fn data(&self) -> &[u8] {
        self.data.bytes()
    }
}

/// A connect ended, or a peer connected.
///
/// To learn which endpoint it is that connected, compare [`PeerInfo::incarnation`](crate::PeerInfo::incarnation) of
/// [`Endpoint::peer_info`](crate::Endpoint::peer_info) with the [`EndpointInfo::incarnation`](crate::EndpointInfo::incarnation)
/// that the other side passed on with its address, or have the other side send a first message that says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PeerUp {
    /// The peer.
    pub peer: Peer,
    /// [`Status::Ok`], or why the connect failed: [`Status::Unreachable`], [`Status::PeerGone`] (another endpoint answers
    /// at the address), [`Status::Version`], [`Status::Denied`], [`Status::Canceled`] or [`Status::System`] (this side has
    /// no port or descriptor left). [`Endpoint::peer_reason`](crate::Endpoint::peer_reason) has what each address answered.
    pub status: Status,
    /// The peer connected to us; else this answers our own connect.
    pub accepted: bool,
    /// The value in the options of the connect.
    pub user_data: u64,
    /// The error number of the system or of libfabric; 0: none. 111 (`ECONNREFUSED`): nothing listens at the address.
    pub provider_errno: i32,
}

impl PeerUp {
    /// Whether the peer is up, as a result for `?`.
    ///
    /// # Errors
    /// Why the connect failed.
    pub fn result(&self) -> Result<()> {
        result(self.status, self.provider_errno)
    }
}

/// A peer that was up has ended. All operations with it have completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PeerDown {
    /// The peer, whose id is stale from here on.
    pub peer: Peer,
    /// [`Status::Ok`] (we disconnected), [`Status::PeerClosed`] or [`Status::PeerLost`].
    pub status: Status,
}

/// The new state of a rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RailEvent {
    /// Its number, as in [`Endpoint::rail_info`](crate::Endpoint::rail_info).
    pub rail: u32,
    /// The peer that it no longer reaches, or reaches again.
    pub peer: Option<Peer>,
    /// [`Status::RailLost`] of a rail that is down.
    pub status: Status,
    /// The error number of the system or of libfabric; 0: none.
    pub provider_errno: i32,
}

/// Data that arrived, until it is dropped.
struct Held {
    shared: Arc<Shared>,
    /// 0: there is no data.
    id: u64,
    data: *const u8,
    len: usize,
}

// SAFETY: the bytes are only read, and stay where they are until the drop.
unsafe impl Send for Held {}
// SAFETY: through `&Held` the bytes are only read, and nobody writes them.
unsafe impl Sync for Held {}

impl Held {
    fn new(shared: &Arc<Shared>, from: &record::Completion) -> Held {
        let (data, len) = match from.data.is_null() {
            true => (std::ptr::NonNull::dangling().as_ptr() as *const u8, 0),
            false => (from.data.cast(), from.bytes as usize),
        };
        Held { shared: shared.clone(), id: from.transfer, data, len }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the endpoint keeps this many bytes for us until they are released.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // In a forked child nothing is released; otherwise only a defect is a reason to fail.
        let _ = self.shared.call(|ep| ep.release_message(self.id));
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

impl Completion {
    pub(super) fn new(shared: &Arc<Shared>, from: &record::Completion) -> Completion {
        let status = Status::from_code(from.status);
        // Each of these kinds names its peer.
        let peer = from.peer.map_or(Peer::UNKNOWN, Peer);
        let held = || Held::new(shared, from);
        let (rail, provider_errno) = (from.rail, from.provider_errno);
        let rail = || RailEvent { rail, peer: from.peer.map(Peer), status, provider_errno };
        match from.kind {
            KIND_WRITE => Completion::Write(Done::new(from)),
            KIND_READ => Completion::Read(Done::new(from)),
            KIND_SEND => Completion::Send(Done::new(from)),
            KIND_COUNTER => Completion::Counter(Done::new(from)),
            KIND_ATOMIC => Completion::Atomic(Atomic { done: Done::new(from), previous: from.previous }),
            KIND_MESSAGE => Completion::Message(Message { peer, data: held() }),
            KIND_NOTIFICATION => {
                Completion::Notification(Notification { peer, notify: from.notify, status, data: held() })
            }
            KIND_PEER_UP => {
                let (accepted, user_data) = (from.accepted != 0, from.user_data);
                Completion::PeerUp(PeerUp { peer, status, accepted, user_data, provider_errno })
            }
            KIND_PEER_DOWN => Completion::PeerDown(PeerDown { peer, status }),
            KIND_RAIL_DOWN => Completion::RailDown(rail()),
            KIND_RAIL_UP => Completion::RailUp(rail()),
            _ => Completion::Fence(Done::new(from)),
        }
    }

    /// How an operation ended; `None` of what arrives, and of peers and rails.
    pub fn done(&self) -> Option<&Done> {
        match self {
            Completion::Write(done)
            | Completion::Read(done)
            | Completion::Send(done)
            | Completion::Counter(done)
            | Completion::Fence(done)
            | Completion::Atomic(Atomic { done, .. }) => Some(done),
            _ => None,
        }
    }

    /// The operation that ended, if it is one.
    pub fn op(&self) -> Option<Op> {
        self.done().map(|done| done.op)
    }
}
