//! The state that all threads of an endpoint share.

use super::config::EndpointConfig;
use super::exported::Exported;
use super::inbox::{Command, Inbox};
use super::later::LOOK;
use super::messages::Messages;
use super::phase::Phase;
use super::unauthenticated::Unauthenticated;
use super::whereabouts::Whereabouts;
use crate::clock::{Clock, Random};
use crate::fabric::grants::Grants;
use crate::ids::{Hold, OpId, PeerId, RailIndex};
use crate::memory::{RemoteMemory, RemoteState};
use crate::pass::Longest;
use crate::peer::ends::Ends;
use crate::peer::link::Outstanding;
use crate::peer::table::PeerTable;
use crate::peer::Peer;
use crate::rail::{Elsewhere, Traffic};
use crate::revocation::Revocations;
use crate::status::{Error, Result, Status};
use crate::topology::pci::PciAddress;
use crate::transfer::counters::Counters;
use crate::transfer::operation::Notice;
use crate::transfer::queue::Queue;
use crate::transfer::table::{Left, Table};
use crate::transfer::Outcome;
use crate::wire::address::Address;
use crate::wire::frame::HEADER;
use crate::wire::seal::SEAL;
use parking_lot::Mutex;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

/// Transfers that one step starts after the owner of their remote memory has answered.
const GO_ON: usize = 256;

/// A rail's properties, for all threads.
#[derive(Clone)]
pub struct RailInfo {
    pub worker: usize,
    pub fabric: String,
    pub network: String,
    pub name: String,
    pub node: Option<u32>,
    pub pci: Option<PciAddress>,
    pub virtual_addresses: bool,
    /// Whether its NIC checks grants.
    pub grants: bool,
    /// Whether what peers may reach over it can be taken from one that does not answer.
    pub revokes: bool,
    /// The most bytes of one control frame.
    pub message_max: usize,
    /// The most bytes of one write with an immediate; 0 if the NIC has no such writes.
    pub immediate_max: u64,
    pub traffic: Arc<Traffic>,
}

/// What an operation needs its peer's owner for.
pub(crate) enum Needs {
    /// To send the request of an atomic.
    Request,
    /// To ask what its grant covers.
    Cover,
    /// A lane between rails that have none.
    Lane,
    /// To send its message.
    Message,
}

pub struct Core {
    pub config: EndpointConfig,
    pub clock: Clock,
    pub random: Random,
    pub incarnation: u64,
    pub address: Whereabouts,
    pub rails: Vec<RailInfo>,
    /// Whether the NICs of all rails check grants.
    pub(crate) rails_check: bool,
    /// The fabrics in use, best first.
    pub fabrics: Vec<String>,
    pub table: Table,
    pub peers: PeerTable,
    pub queue: Arc<Queue>,
    pub messages: Messages,
    pub counters: Arc<Counters>,
    /// Rails whose devices were removed and are back, one bit each, and how often one was.
    pub returned: AtomicU64,
    pub returns: AtomicU64,
    pub memories: Exported,
    /// Live grants, and those that are being revoked.
    pub grants: Arc<Grants>,
    pub(crate) revocations: Mutex<Revocations>,
    pub inboxes: Arc<[Inbox]>,
    pub(crate) ends: Ends,
    turn: AtomicU64,
    /// The worker that got the last transfer of one slice.
    pub(crate) last_worker: AtomicUsize,
    /// The longest passes of the workers.
    pub longest: Longest,
    pub(crate) unauthenticated: Unauthenticated,
    /// The number of the last peer connection that this endpoint has begun. The first is random, so
    /// that another endpoint's grants are not taken for this one's (`memory::Revoked`).
    pub(crate) begun: AtomicU64,
    /// Dropped last: by then, nothing of the endpoint is open.
    pub phase: Phase,
}

impl Core {
    pub fn new(
        config: EndpointConfig,
        clock: Clock,
        random: Random,
        address: Address,
        rails: Vec<RailInfo>,
        fabrics: Vec<String>,
        workers: usize,
    ) -> Result<Core> {
        let inboxes: Arc<[Inbox]> =
            (0..workers).map(|_| Inbox::new(config.max_transfers as usize + 1)).collect::<Result<_>>()?;
        let (first, incarnation) = (random.u64()?, address.incarnation);
        let queue = Arc::new(Queue::new(config.queue_depth as usize)?);
        let table =
            Table::new(config.max_transfers as usize, config.max_peers as usize, first, queue.clone());
        let of_deadlines = inboxes.clone();
        table.woken_by(move || {
            if let Some(inbox) = of_deadlines.first() {
                inbox.wake();
            }
        });
        let of_failures = inboxes.clone();
        table.failing_to(move |notice| {
            if let Some(inbox) = of_failures.first() {
                inbox.command(Command::Notify(notice));
            }
        });
        Ok(Core {
            clock,
            random,
            incarnation,
            address: Whereabouts::new(address),
            rails_check: rails.iter().all(|rail| rail.grants),
            rails,
            fabrics,
            table,
            peers: PeerTable::new(config.max_peers as usize, (first >> 32) as u32),
            queue,
            messages: Messages::default(),
            counters: Arc::new(Counters::new(config.max_counters as usize, incarnation)),
            returned: AtomicU64::new(0),
            returns: AtomicU64::new(0),
            memories: Exported::default(),
            grants: Arc::default(),
            revocations: Mutex::new(Revocations::new(workers)),
            inboxes,
            ends: Ends::default(),
            turn: AtomicU64::new(0),
            last_worker: AtomicUsize::new(0),
            longest: Longest::default(),
            unauthenticated: Unauthenticated::new(config.max_peers as usize, config.queue_depth as usize),
            begun: AtomicU64::new(first & u64::from(u32::MAX)),
            config,
            phase: Phase::new(workers),
        })
    }

    /// The rail of the interface that carries what a rail writes, if that is another one.
    pub fn carrier(&self, rail: RailIndex, name: Option<&str>) -> RailIndex {
        let Some(own) = self.rails.get(rail.place()) else { return rail };
        let is_it = |one: &RailInfo| Some(&*one.name) == name && one.fabric == own.fabric;
        self.rails.iter().position(is_it).map_or(rail, RailIndex::at)
    }

    /// The rails of these interfaces, which carry what a rail writes and reads in its place.
    pub fn elsewhere(&self, rail: RailIndex, names: [Option<String>; 2]) -> Option<Box<Elsewhere>> {
        let fabric = &self.rails.get(rail.place())?.fabric;
        let named = |name: String| self.rails.iter().find(|one| one.name == name && one.fabric == *fabric);
        let [written, read] = names.map(|name| Some(named(name?)?.traffic.clone()));
        (written.is_some() || read.is_some()).then(|| Box::new(Elsewhere::new(written, read)))
    }

    /// Passes a command about an operation to a worker.
    pub(crate) fn hand_over(&self, worker: usize, command: Command, now: u64) {
        if let Some(refused) = self.inboxes[worker].try_command(command) {
            self.end_command(refused, now);
        }
    }

    /// Ends the operation of a command whose worker has ended.
    pub(crate) fn end_command(&self, command: Command, now: u64) {
        let canceled = |hold| self.abandon(hold, Outcome::new(Status::Canceled), now);
        match command {
            Command::Remote { remote } => self.answered(&remote, RemoteState::Disconnected, now),
            Command::Again { hold, .. } | Command::GoOn { hold, .. } => canceled(hold),
            Command::Quiesce { scope, then } => self.quiesced(&scope, then),
            Command::Chore(chore) => chore.refuse(),
            _ => {}
        }
    }

    // Transfers.

    /// The deadline of an operation with this timeout, or with the endpoint's.
    #[inline]
    pub fn deadline(&self, now: u64, timeout_ns: Option<NonZeroU64>) -> u64 {
        now.saturating_add(timeout_ns.map_or(self.config.timeout_ns, NonZeroU64::get))
    }

    /// Passes a transfer that may start to workers that have lanes for it, to at most as many as it
    /// has slices.
    pub fn dispatch(&self, hold: Hold, workers: u64, slices: u64, now: u64) {
        let wanted = (workers.count_ones() as u64).min(slices).max(1);
        if workers == 0 {
            return self.abandon(hold, Outcome::new(Status::PeerLost), now);
        }
        let slot = self.table.held_slot(&hold);
        Table::send_off(slot);
        if wanted > 1 {
            self.table.add_stripes(slot, wanted - 1);
        }
        let (mut before, mut after, mut given) = (0, workers, 0u64);
        if wanted < workers.count_ones() as u64 {
            let first = self.turn.fetch_add(1, Ordering::Relaxed) as usize % self.inboxes.len();
            before = workers & ((1 << first) - 1);
            after = workers & !before;
        }
        for _ in 0..wanted {
            if after == 0 {
                (before, after) = (0, before);
            }
            let worker = after.trailing_zeros() as usize;
            after &= after - 1;
            given |= 1 << worker;
            if wanted == 1 && self.last_worker.load(Ordering::Relaxed) != worker {
                self.last_worker.store(worker, Ordering::Relaxed);
            }
            if let Err(hold) = self.inboxes[worker].transfer(hold.another()) {
                self.abandon(hold, Outcome::new(Status::Internal), now);
            }
        }
        hold.give(); // The last worker takes the hold.
        while given != 0 {
            let inbox = &self.inboxes[given.trailing_zeros() as usize];
            given &= given - 1;
            if inbox.is_closed() {
                self.drain(inbox, now);
            }
        }
    }

    /// Ends the transfers in the inbox of a worker that has ended.
    pub(crate) fn drain(&self, inbox: &Inbox, now: u64) {
        while let Some(hold) = inbox.next_transfer() {
            self.abandon(hold, Outcome::new(Status::Canceled), now);
        }
    }

    /// Ends an operation that no worker accepted.
    pub fn abandon(&self, hold: Hold, outcome: Outcome, now: u64) {
        let id = hold.id();
        // Release first: the poller of the completion may deregister the memory at once.
        let _ = self.table.leave(hold);
        self.table.end(id, outcome, now);
    }

    /// The outcome of an operation whose lanes failed.
    pub fn failure_of(&self, id: OpId) -> Outcome {
        let peer = self.table.peer_of(id).and_then(|peer| self.peers.get(peer).ok());
        peer.and_then(|peer| peer.failure()).unwrap_or(Outcome::new(Status::PeerLost))
    }

    /// The peer that a caller names, unless it has ended.
    pub fn named_peer(&self, number: u64) -> Result<Arc<Peer>> {
        self.peers.living(number, self.queue.polled())
    }

    /// The worker that owns a peer's link.
    pub fn owner_of(&self, peer: PeerId) -> Option<usize> {
        self.peers.get(peer).ok().map(|peer| peer.owner)
    }

    pub(crate) fn command_owner(&self, peer: &Peer, command: Command) {
        self.inboxes[peer.owner].command(command);
    }

    /// The workers that may have lanes to a peer.
    pub(crate) fn workers_of_peer<'a>(&'a self, peer: &Peer) -> impl Iterator<Item = &'a Inbox> + use<'a> {
        let workers = peer.workers;
        let serves = move |(worker, _): &(usize, &Inbox)| workers & 1 << worker != 0;
        self.inboxes.iter().enumerate().filter(serves).map(|(_, inbox)| inbox)
    }

    /// The most bytes of a frame that every lane can carry.
    pub(crate) fn frame_bytes(&self) -> usize {
        let smallest = self.rails.iter().map(|rail| rail.message_max).min();
        smallest.unwrap_or(HEADER + SEAL + 1024) - SEAL
    }

    /// Every byte of a transfer has arrived, and its peer is to be notified.
    pub fn notify(&self, id: OpId, peer: PeerId, now: u64) {
        match self.peers.get(peer) {
            Ok(found) => self.command_owner(&found, Command::Notify(Notice { peer, id, failed: None })),
            Err(_) => {
                self.table.end(id, Outcome::new(Status::PeerLost), now);
            }
        }
    }

    /// Ends the outstanding operations of a peer. True: all have ended; false: the time for this
    /// step has passed (`over`).
    pub fn go_on_ending(&self, ending: &mut Outstanding, now: u64, over: impl Fn() -> bool) -> bool {
        while let Some(hold) = ending.waited.pop() {
            self.abandon(hold, ending.outcome, now);
            if ending.waited.len() % LOOK == 0 && over() {
                return false;
            }
        }
        self.table.go_on(&mut ending.all, now, over)
    }

    /// The owner of a remote memory has answered: operations that waited for the answer continue.
    pub fn answered(&self, remote: &Arc<RemoteMemory>, state: RemoteState, now: u64) {
        self.go_on_all(remote.peer, remote.settle(state), now);
    }

    /// Operations of a peer that have waited continue: some at once, the others as commands.
    pub(crate) fn go_on_all(&self, peer: PeerId, mut waited: Vec<Hold>, now: u64) {
        let later = waited.split_off(waited.len().min(GO_ON));
        for hold in waited {
            self.go_on(hold, now);
        }
        let owner = self.owner_of(peer).unwrap_or(0);
        for hold in later {
            self.hand_over(owner, Command::GoOn { hold, start: None }, now);
        }
    }

    /// Starts an operation once the owners of all its remote memories, and of its grant, have answered.
    pub fn go_on(&self, hold: Hold, now: u64) {
        self.go_on_or(hold, now, |peer, hold, _| {
            self.hand_over(peer.owner, Command::GoOn { hold, start: None }, now)
        });
    }

    /// The same; `ask`: called if the peer's owner has to do something for it first.
    pub(crate) fn go_on_or(&self, mut hold: Hold, now: u64, ask: impl FnOnce(&Peer, Hold, Needs)) {
        loop {
            let Some(transfer) = self.held(&hold) else { return self.go_on_without(hold, now, ask) };
            let (view, grant) = (transfer.view(), transfer.grant);
            let state = |remote: &Arc<RemoteMemory>| (remote.clone(), remote.state_under(grant));
            let unready = |remote: &&Arc<RemoteMemory>| remote.state_under(grant) != RemoteState::Ready;
            let Some((remote, state)) = view.remotes().find(unready).map(state) else {
                let peer = view.peer();
                return match self.covers(transfer) {
                    Ok(true) => self.send_off(hold, now, ask),
                    Ok(false) => self.ask_owner(peer, hold, now, |peer, hold| ask(peer, hold, Needs::Cover)),
                    Err(error) => self.abandon(hold, Outcome::new(error.status), now),
                };
            };
            match Error::of_remote(state) {
                Some(error) => {
                    let entry = view.entry_of(&remote);
                    return self.abandon(hold, Outcome { entry, ..Outcome::new(error.status) }, now);
                }
                None => match remote.wait(hold, grant) {
                    // The worker that delivers the answer releases the hold.
                    Ok(()) => return,
                    Err((back, _)) => hold = back,
                },
            }
        }
    }

    /// `ask`, unless the peer has ended.
    pub(crate) fn ask_owner(&self, peer: PeerId, hold: Hold, now: u64, ask: impl FnOnce(&Peer, Hold)) {
        match self.peers.get(peer) {
            Ok(peer) => ask(&peer, hold),
            Err(_) => self.abandon(hold, Outcome::new(Status::PeerLost), now),
        }
    }

    /// Starts an accepted transfer of `slices` slices.
    #[inline]
    pub fn start(&self, hold: Hold, slices: u64, now: u64) {
        if slices > 0 {
            return self.go_on(hold, now);
        }
        let id = hold.id();
        match self.table.leave(hold) {
            Left::ToNotify(id, peer) => self.notify(id, peer, now),
            _ => {
                self.table.end(id, Outcome::OK, now);
            }
        }
    }
}

impl Error {
    /// The error with which transfers to a remote memory end, if they cannot start.
    pub(crate) fn of_remote(state: RemoteState) -> Option<Error> {
        let (status, text) = match state {
            RemoteState::Asking | RemoteState::Ready => return None,
            RemoteState::Gone => (Status::MemoryGone, "the remote memory was deregistered by its owner"),
            RemoteState::PeerLost => (
                Status::PeerLost,
                "the peer of this remote memory is lost: connect again and import its new descriptor",
            ),
            RemoteState::PeerClosed => {
                (Status::PeerClosed, "the peer of this remote memory has disconnected")
            }
            RemoteState::Disconnected => {
                (Status::PeerClosed, "the peer of this remote memory was disconnected here")
            }
            RemoteState::Revoked => (
                Status::Revoked,
                "the grant was revoked, or was never one of this peer's: ask the peer for another",
            ),
        };
        Some(Error::new(status, text))
    }
}
