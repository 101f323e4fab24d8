//! Peers: remote endpoints that come and go.
//!
//! A `Peer` is what all threads know of one remote endpoint; its `Link` belongs to one worker, the
//! peer's owner, and contains the connection's state:
//!
//! 1. **Handshake.** Every lane sends a handshake request with a nonce until a reply with the same
//!    nonce arrives over the same pair of rails: only a reply proves a pair. A request from an
//!    unauthenticated endpoint makes a peer of it, whose lanes send requests in turn, so both sides
//!    verify every lane, and two endpoints that connect at once become one peer.
//! 2. **Probe.** An answered lane writes a few bytes to the peer's probe buffer: the first write
//!    pays for connections and handshakes below.
//! 3. **Ready.** Of the fabrics over which lanes are up, one of the two sides selects the best
//!    (`approach`) and sends Ready; the other side follows and sends Ready when its own lanes are
//!    up, and the lanes over other fabrics are closed. A peer is up once it has sent and received
//!    Ready.
//! 4. **Talk** over three sequenced channels: memory and answers on one, messages and notifications
//!    on another, requests for atomics on the third.
//! 5. **End**, by Close, a lost lane or a disconnect: everything outstanding ends, then PEER_DOWN
//!    is published.

pub mod ends;
pub mod gone;
pub mod link;
pub mod links;
pub mod staged;
pub mod table;

use crate::codec::Text;
use crate::fabric::host;
use crate::fabric::select::readable;
use crate::ids::{PeerId, RailIndex};
use crate::lane::Serving;
use crate::memory::{Known, Revoked};
use crate::rail::LaneTraffic;
use crate::session::Plan;
use crate::status::{Error, Status};
use crate::transfer::Outcome;
use crate::wire::address::{Address, RailAddress};
use crate::wire::frame::Token;
use crate::wire::seal::Root;
use gone::Gone;
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use std::cmp::Ordering as Cmp;
use std::fmt;
use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, AtomicU8, Ordering};
use std::sync::Arc;

#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerState {
    Connecting,
    Up,
    Down,
}

/// The contents of a peer's handshakes.
#[derive(Default)]
struct Theirs {
    /// The peer's token for us: the `to` of our frames. 0 until it is received.
    token: Token,
    /// The peer's number for this connection with us; until it is received, the number of the last
    /// connection.
    begun: u64,
    /// The secret that the peer proved last.
    root: Option<Root>,
}

/// How a handshake message relates to the known peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meeting {
    /// It belongs to the current connection, or is its first message.
    Same,
    /// It belongs to a newer connection: the peer has ended the current one.
    Other,
    /// A repeated message of an earlier connection.
    Stale,
}

/// Handshakes of returning lanes that took too long are counted up to this number.
const UNFINISHED_MOST: u32 = 2;
/// The resolution of the time of the last frame from a peer.
const RECEIVED_EVERY_NS: u64 = 10_000_000;

pub struct Peer {
    pub id: PeerId,
    /// As it was given first.
    pub address: Address,
    /// Its rails, where those have moved since.
    moved: Mutex<Vec<RailAddress>>,
    /// The worker that owns its link.
    pub owner: usize,
    /// Workers that may have lanes to it, one bit each.
    pub workers: u64,
    service: Mutex<Service>,
    /// Our rails that serve the peer, one bit each, all of one fabric; 0 until the fabric is
    /// selected.
    rails: AtomicU64,
    /// The token that the peer puts into its frames to us: random, and known only to it.
    pub token: Token,
    /// Our number for this connection, counted over all peers.
    pub begun: u64,
    theirs: Mutex<Theirs>,
    /// SeqCst, together with the states of slots (`transfer::table::Slot::state`).
    state: AtomicU8,
    /// How it ended.
    how: OnceCell<Status>,
    /// Connects that wait for their PEER_UP: their user data.
    pub connects: Mutex<Vec<u64>>,
    /// Bytes of messages that the peer has not acknowledged.
    pub outgoing: AtomicU64,
    /// Bytes of the peer's messages that the caller has not released.
    pub held: AtomicU64,
    /// The peer's next message waits for space.
    pub stalled: AtomicBool,
    /// Memories that the peer has reported deregistered.
    pub gone: Mutex<Gone>,
    /// Grants of the peer that are of no use any longer; and how many grants name the peer.
    pub revoked: Arc<Revoked>,
    pub grants: AtomicU64,
    /// What grants of the peer cover.
    pub covered: Known,
    /// Frames from the peer that its owner has not handled yet.
    pub awaiting: AtomicU32,
    /// The peer exceeded a limit and is dropped.
    pub breached: AtomicBool,
    /// Lanes of the fabric that serves the peer.
    pub lanes: Mutex<Serving>,
    pub lanes_up: AtomicU32,
    /// What the lanes have done, by their pair of rails.
    traffic: Mutex<Vec<(Plan, Arc<LaneTraffic>)>>,
    /// Handshakes of returning lanes that took too long, less those that were finished.
    unfinished: AtomicU32,
    /// When the last frame from the peer arrived, accurate to some ms.
    received_ns: AtomicU64,
    /// When something was last delivered over any lane to the peer, by its workers' ticks.
    pub moved_ns: AtomicU64,
    /// Frames that the peer had no lane for have not arrived (`session::resuming`).
    behind: AtomicBool,
    /// The fabric's error when a serving lane failed.
    failure: Mutex<Option<Outcome>>,
    pub local_rails: AtomicU32,
    pub remote_rails: AtomicU32,
}

/// The random numbers for a new peer.
pub struct Tokens {
    pub token: Token,
    pub begun: u64,
    /// The peer's own number of its last connection.
    pub before: u64,
}

/// The fabric that serves the peer, and the reason, for messages.
#[derive(Clone, Default)]
pub struct Service {
    pub fabric: String,
    pub reason: String,
}

/// The peer's properties, for the caller.
pub struct PeerInfo {
    pub up: bool,
    pub lanes: u32,
    pub local_rails: u32,
    pub remote_rails: u32,
    pub incarnation: u64,
    /// 0 until the peer is up.
    pub capabilities: u32,
    pub fabric: String,
    pub reason: String,
    /// Of its first rail that serves it, in readable form.
    pub address: String,
}

/// Bytes of a message that is not sent yet: no longer counted if this is dropped.
pub struct Allowed<'a>(&'a AtomicU64, u64);

impl Allowed<'_> {
    /// The message is sent.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Allowed<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Peer {
    /// Counts the bytes of a further message, of which at most `most` may wait, or one. `Err`: this
    /// many wait already.
    pub fn allow(&self, bytes: u64, most: u64) -> std::result::Result<Allowed<'_>, u64> {
        let more = |before: u64| (before == 0 || before + bytes <= most).then_some(before + bytes);
        self.outgoing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)?;
        Ok(Allowed(&self.outgoing, bytes))
    }

    pub fn new(
        id: PeerId,
        address: Address,
        owner: usize,
        workers: u64,
        reason: String,
        tokens: Tokens,
    ) -> Peer {
        Peer {
            id,
            token: tokens.token,
            begun: tokens.begun,
            theirs: Mutex::new(Theirs { begun: tokens.before, ..Theirs::default() }),
            address,
            moved: Mutex::default(),
            owner,
            workers,
            service: Mutex::new(Service { fabric: String::new(), reason }),
            rails: AtomicU64::new(0),
            state: AtomicU8::new(PeerState::Connecting as u8),
            how: OnceCell::new(),
            connects: Mutex::default(),
            outgoing: AtomicU64::new(0),
            held: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
            gone: Mutex::default(),
            revoked: Arc::default(),
            grants: AtomicU64::new(0),
            covered: Known::default(),
            awaiting: AtomicU32::new(0),
            breached: AtomicBool::new(false),
            lanes: Mutex::default(),
            lanes_up: AtomicU32::new(0),
            traffic: Mutex::default(),
            unfinished: AtomicU32::new(0),
            received_ns: AtomicU64::new(0),
            moved_ns: AtomicU64::new(0),
            behind: AtomicBool::new(false),
            failure: Mutex::default(),
            local_rails: AtomicU32::new(0),
            remote_rails: AtomicU32::new(0),
        }
    }

    pub fn state(&self) -> PeerState {
        match self.state.load(Ordering::SeqCst) {
            0 => PeerState::Connecting,
            1 => PeerState::Up,
            _ => PeerState::Down,
        }
    }

    pub fn set_up(&self) {
        self.state.store(PeerState::Up as u8, Ordering::SeqCst);
    }

    /// Calls that name it are refused from here on. `how`: the status of its PEER_DOWN, of which the first counts.
    pub fn set_ending(&self, how: Status) {
        let _ = self.how.set(how);
        fence(Ordering::SeqCst); // Of this and an operation that begins, one sees the other.
    }

    /// `how`: the status of its PEER_DOWN.
    pub fn set_down(&self, how: Status) {
        self.set_ending(how);
        self.state.store(PeerState::Down as u8, Ordering::SeqCst);
    }

    /// The error of calls that name it, once its operations have been ended.
    pub fn ended(&self) -> Option<Error> {
        fence(Ordering::SeqCst);
        self.how.get().map(|how| error_of_end(*how))
    }

    /// A frame from the peer arrived. Workers share this word, so not every frame writes it.
    #[inline]
    pub fn note_received(&self, now: u64) {
        if now.saturating_sub(self.received_ns.load(Ordering::Relaxed)) > RECEIVED_EVERY_NS {
            self.received_ns.store(now, Ordering::Relaxed);
        }
    }

    /// When the last frame from the peer arrived.
    pub fn received_ns(&self) -> u64 {
        self.received_ns.load(Ordering::Relaxed)
    }

    /// When the peer last proved to be alive.
    pub fn alive_ns(&self) -> u64 {
        self.received_ns.load(Ordering::Relaxed).max(self.moved_ns.load(Ordering::Relaxed))
    }

    /// Takes the peer's token for us and its connection number from a handshake message.
    pub fn meet(&self, token: Token, begun: u64) -> Meeting {
        let mut theirs = self.theirs.lock();
        match (theirs.token, begun.cmp(&theirs.begun)) {
            (0, Cmp::Greater) => {
                (theirs.token, theirs.begun) = (token, begun);
                self.revoked.set_session(begun);
                Meeting::Same
            }
            (known, Cmp::Equal) if known == token && known != 0 => Meeting::Same,
            (_, Cmp::Greater) => Meeting::Other,
            _ => Meeting::Stale,
        }
    }

    /// Records the secret that authenticated the peer's handshake.
    pub fn authenticate_by(&self, root: &Option<Root>) {
        self.theirs.lock().root.clone_from(root);
    }

    /// The secret that the peer has proved to know.
    pub fn root(&self) -> Option<Root> {
        self.theirs.lock().root.clone()
    }

    /// The peer's token for us (0: not received yet), and its connection number.
    pub fn named_by(&self) -> (Token, u64) {
        let theirs = self.theirs.lock();
        (theirs.token, theirs.begun)
    }

    /// Sets the rails that serve the peer.
    pub fn serve(&self, service: Service, rails: u64) {
        *self.service.lock() = service;
        self.rails.store(rails, Ordering::Release);
    }

    /// Whether this fabric serves the peer.
    pub fn is_over(&self, fabric: &str) -> bool {
        self.service.lock().fabric == fabric
    }

    /// The fabric that serves the peer; "" until it is selected.
    pub fn fabric(&self) -> String {
        self.service.lock().fabric.clone()
    }

    pub fn has_service(&self) -> bool {
        self.rails.load(Ordering::Acquire) != 0
    }

    #[inline]
    pub fn is_served_by(&self, rail: RailIndex) -> bool {
        rail.is_in(self.rails.load(Ordering::Acquire))
    }

    /// A lane that serves the peer failed. The first error counts, unless it belongs to operations
    /// that only failed along with others.
    pub fn note_failure(&self, outcome: Outcome) {
        let mut known = self.failure.lock();
        if known.is_none_or(|known| known.provider_errno == libc::ECANCELED) {
            *known = Some(outcome);
        }
    }

    /// Clears the last failure once lanes are back: it does not cause later ones.
    pub fn forget_failure(&self) {
        *self.failure.lock() = None;
    }

    /// How the operations of a failed lane end.
    pub fn failure(&self) -> Option<Outcome> {
        *self.failure.lock()
    }

    /// The figures of the lanes between two rails.
    pub fn traffic_of(&self, plan: Plan) -> Arc<LaneTraffic> {
        let mut all = self.traffic.lock();
        if let Some((_, known)) = all.iter().find(|(known, _)| *known == plan) {
            return known.clone();
        }
        let new = Arc::new(LaneTraffic::default());
        all.push((plan, new.clone()));
        new
    }

    /// The figures of all lanes over the fabric that serves the peer; until one does, over all.
    pub fn traffic(&self) -> Vec<(Plan, Arc<LaneTraffic>)> {
        let all = self.traffic.lock();
        let serves = |plan: &Plan| !self.has_service() || self.is_served_by(plan.rail);
        all.iter().filter(|(plan, _)| serves(plan)).cloned().collect()
    }

    /// Removes a lane of a peer that is up, if others can take over its operations, or even if it is the `last`.
    pub fn lose(&self, plan: Plan, last: bool) -> bool {
        self.state() == PeerState::Up && self.lanes.lock().lose(plan, last)
    }

    /// Whether the peer is up without lanes, which may return (`worker::failover`).
    pub fn is_away(&self) -> bool {
        self.state() == PeerState::Up && self.lanes.lock().is_empty()
    }

    /// How many handshakes of returning lanes took too long, less those that were finished.
    pub fn unfinished(&self) -> u32 {
        self.unfinished.load(Ordering::Relaxed)
    }

    pub fn count_unfinished(&self) {
        let more = |count| Some(count + 1).filter(|count| *count <= UNFINISHED_MOST);
        let _ = self.unfinished.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    pub fn count_finished(&self) {
        let less = |count: u32| count.checked_sub(1);
        let _ = self.unfinished.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Whether operations under the peer's grants wait: it may have replaced keys, or revoked.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Acquire)
    }

    /// The address of one of its rails.
    pub fn rail_address(&self, rail: RailIndex) -> Option<RailAddress> {
        let moved = self.moved.lock();
        moved.get(rail.place()).or(self.address.rails.get(rail.place())).cloned()
    }

    /// It is the same endpoint, and its rails may have other addresses than before.
    pub fn has_moved_to(&self, rails: Vec<RailAddress>) {
        let fabrics =
            |rails: &[RailAddress]| rails.iter().map(|rail| rail.fabric.clone()).collect::<Vec<_>>();
        let mut moved = self.moved.lock();
        let known = if moved.is_empty() { &self.address.rails } else { &*moved };
        if rails != *known && fabrics(&rails) == fabrics(known) {
            *moved = rails;
        }
    }

    /// One of its rails has another address.
    pub fn rail_has_moved_to(&self, rail: RailIndex, address: Vec<u8>) {
        let mut moved = self.moved.lock();
        if moved.is_empty() {
            moved.clone_from(&self.address.rails);
        }
        if let Some(known) = moved.get_mut(rail.place()) {
            known.address = address;
        }
    }

    pub fn set_behind(&self, behind: bool) {
        self.behind.store(behind, Ordering::Release);
    }

    pub fn info(&self) -> PeerInfo {
        let up = self.state() == PeerState::Up;
        let service = self.service.lock().clone();
        let address = self.rail_over(&service.fabric).map(|rail| readable_rail(&rail)).unwrap_or_default();
        PeerInfo {
            up,
            lanes: self.lanes_up.load(Ordering::Relaxed),
            local_rails: self.local_rails.load(Ordering::Relaxed),
            remote_rails: self.remote_rails.load(Ordering::Relaxed),
            incarnation: self.address.incarnation,
            capabilities: if up { self.address.capabilities() } else { 0 },
            fabric: if up { service.fabric } else { String::new() },
            reason: service.reason,
            address,
        }
    }

    /// The first rail of a fabric; while none serves the peer, the first with an address of the network.
    fn rail_over(&self, fabric: &str) -> Option<RailAddress> {
        let moved = self.moved.lock();
        let rails = if moved.is_empty() { &self.address.rails } else { &*moved };
        let of_network = || rails.iter().find(|rail| rail.fabric != host::NAME);
        let rail = rails.iter().find(|rail| rail.fabric == fabric).or_else(of_network);
        rail.or(rails.first()).cloned()
    }
}

/// A rail's address, for messages. "boot id/namespace/weft-id" is shortened to the id's first digits.
pub fn readable_rail(rail: &RailAddress) -> String {
    let text = readable(&rail.address);
    match text.rsplit_once("/weft-") {
        Some((_, id)) => format!("weft-{}", id.get(..8).unwrap_or(id)),
        None => text,
    }
}

/// For the log: the peer's id, and its address.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fabric = self.service.lock().fabric.clone();
        let name = |rail: RailAddress| (readable_rail(&rail), Text::escaped(rail.fabric.as_bytes()));
        let (at, over) = self.rail_over(&fabric).map(name).unwrap_or_default();
        write!(f, "peer {:#x} ({at}, {over})", self.id)
    }
}

/// The error of calls that name an ended peer, until its PEER_DOWN is polled: one status, also that of
/// transfers with its memories (`link::remote_state_of_end`).
pub fn error_of_end(how: Status) -> Error {
    let (status, text) = match how {
        Status::Ok | Status::Canceled => (Status::PeerClosed, "the peer was disconnected here"),
        Status::PeerClosed => (Status::PeerClosed, "the peer has disconnected"),
        _ => (Status::PeerLost, "the peer is lost: connect again"),
    };
    Error::new(status, format!("{text} (its PEER_DOWN is in the endpoint's queue, or comes)"))
}

/// How the operations of an ended peer end.
pub fn status_of_end(how: Status) -> Status {
    match how {
        Status::Ok => Status::Canceled,
        other => other,
    }
}
