//! The machine with its workers and peers, in one thread. A seed says what happens, and when; a failure names it.
//!
//! Peers post under grants, by the keys that they have. An honest one ends that when it learns of a revoke, and a
//! silent one learns of nothing; a liar goes on by what it had. Workers take their commands when they like. What is
//! posted lands as long as a NIC lets it in; nothing lands under a grant whose revoke is done.

use super::asking::{Asking, Waits};
use super::keys::{self, Step};
use super::withdrawals::Withdrawals;
use super::*;
use crate::fabric::{Access, HostRange};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const MS: u64 = 1_000_000;
const WORKERS: usize = 3;
const PEERS: u64 = 4;
const MEMORIES: u64 = 2;
const SEEDS: u64 = 2000;
/// By this time every revoke is done, whatever peers do: `asking` gives up after a second at most.
const DONE_NS: u64 = 1400 * MS;

thread_local! {
    static MOVES_SEEN: RefCell<BTreeSet<(String, String)>> = RefCell::default();
}

fn each_peer() -> impl Iterator<Item = PeerId> {
    (1..=PEERS).map(PeerId::numbered)
}

fn name(state: &dyn std::fmt::Debug) -> String {
    format!("{state:?}").split('(').next().unwrap_or_default().to_owned()
}

fn note(from: &dyn std::fmt::Debug, to: &dyn std::fmt::Debug) {
    note_names(&name(from), &name(to));
}

pub(super) fn note_names(from: &str, to: &str) {
    if from != to {
        MOVES_SEEN.with_borrow_mut(|seen| _ = seen.insert((from.to_owned(), to.to_owned())));
    }
}

/// Whether seeds have made the moves that are listed, and no others.
pub(super) fn check_moves<'a>(listed: impl Iterator<Item = &'a (&'a str, &'a str, &'a str)>) {
    let seen = MOVES_SEEN.with_borrow(BTreeSet::clone);
    let listed: BTreeSet<(String, String)> =
        listed.map(|(from, to, _)| (from.to_string(), to.to_string())).collect();
    assert_eq!(seen, listed, "the moves that seeds made, and those that are listed");
}

pub(super) fn note_move(from: End, to: End) {
    note(&from, &to);
}

pub(super) fn note_step(from: Step, to: Step) {
    note(&from, &to);
}

/// Random numbers from a seed (splitmix64).
pub(super) struct Draw(pub u64);

impl Draw {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    fn token(&mut self, known: &BTreeMap<u128, Truth>) -> Option<u128> {
        known.keys().nth(self.below(known.len().max(1) as u64) as usize).copied()
    }
}

/// What is so of a grant, whatever the machine believes.
struct Truth {
    grant: Arc<Grant>,
    /// Whether NICs check it.
    checked: bool,
    live: bool,
    /// Nothing reaches the memory under it; the memory is let go; and when its revoke began.
    revoked: bool,
    released: bool,
    began_ns: Option<u64>,
    /// Workers that touch memory under it, and those that have arrivals to count.
    uses: BTreeMap<usize, crate::fabric::grants::Use>,
    uncounted: BTreeSet<usize>,
    /// Operations that wait, and whether the owner knows that it is done.
    waiting: BTreeSet<u64>,
    claimed: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Mood {
    Honest,
    /// It reads and sends nothing.
    Silent,
    /// It sends other frames, and does not quiesce.
    Chatty,
    /// It goes on under revoked grants, by the keys that it had.
    Liar,
}

#[derive(Clone, Copy)]
enum Frame {
    Withdraw(u128),
    Request(u64),
    Keys(MemoryId, u64),
}

/// Ends a peer's operations under grants, in steps.
struct Sweep {
    tokens: Vec<u128>,
    steps: u64,
    left: u64,
}

impl Sweep {
    fn step(&mut self, ended: &mut BTreeSet<u128>) -> bool {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            ended.extend(&self.tokens);
        }
        self.left == 0
    }

    fn join(&mut self, token: u128) -> bool {
        let joins = self.left == self.steps;
        self.tokens.extend(joins.then_some(token));
        joins
    }
}

struct Peer {
    mood: Mood,
    /// It has ended; and nothing of it can arrive.
    gone: bool,
    left: bool,
    asking: Asking,
    received_ns: u64,
    frames: VecDeque<Frame>,
    /// The grants that it knows to be revoked, those of which no operation goes on, and the newest keys that it has of
    /// each memory.
    withdrawn: BTreeSet<u128>,
    ended: BTreeSet<u128>,
    withdrawals: Withdrawals<Sweep>,
    /// Requests that it has not answered.
    requests: Vec<u64>,
    keys: BTreeMap<MemoryId, u64>,
    /// What it has posted: a grant, and the keys.
    posts: Vec<(u128, u64)>,
}

struct World {
    draw: Draw,
    now: u64,
    all: Revocations,
    workers: [VecDeque<(Scope, Then)>; WORKERS],
    /// Memories to register, by worker.
    registering: [VecDeque<MemoryId>; WORKERS],
    peers: Vec<Peer>,
    grants: BTreeMap<u128, Truth>,
    /// The newest keys of each memory, the oldest that each worker's NICs let in, and its users for replacements.
    newest: BTreeMap<MemoryId, u64>,
    oldest: BTreeMap<(usize, MemoryId), u64>,
    rekeyings: BTreeMap<MemoryId, i64>,
    /// Importers of replaced keys that have neither quiesced, nor ended, nor had their time.
    importing: BTreeSet<(MemoryId, PeerId)>,
    /// Grants whose memories threads are about to let go.
    releasing: Vec<Arc<Grant>>,
    next: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut draw = Draw(seed);
        let memories = || (1..=MEMORIES).map(MemoryId::new);
        let peers = (0..PEERS).map(|_| Peer {
            mood: [Mood::Honest, Mood::Honest, Mood::Silent, Mood::Chatty, Mood::Liar]
                [draw.below(5) as usize],
            gone: false,
            left: false,
            asking: Asking::default(),
            received_ns: 1,
            frames: VecDeque::new(),
            withdrawn: BTreeSet::new(),
            ended: BTreeSet::new(),
            withdrawals: Withdrawals::default(),
            requests: Vec::new(),
            keys: memories().map(|memory| (memory, 0)).collect(),
            posts: Vec::new(),
        });
        let peers = peers.collect();
        World {
            draw,
            now: 1,
            all: Revocations::new(WORKERS),
            workers: Default::default(),
            registering: Default::default(),
            peers,
            grants: BTreeMap::new(),
            newest: memories().map(|memory| (memory, 0)).collect(),
            oldest: (0..WORKERS).flat_map(|at| memories().map(move |memory| ((at, memory), 0))).collect(),
            rekeyings: BTreeMap::new(),
            importing: BTreeSet::new(),
            releasing: Vec::new(),
            next: 1,
        }
    }

    fn peer(&mut self, peer: PeerId) -> &mut Peer {
        &mut self.peers[peer.place() - 1]
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Carries out what follows, as `owner/revoke.rs` does.
    fn carry_out(&mut self) {
        for action in self.all.poll_actions() {
            match action {
                Action::Quiesce { grant, workers, then } => {
                    for worker in (0..WORKERS).filter(|at| workers >> at & 1 != 0) {
                        self.workers[worker].push_back((Scope::Grant(grant.clone()), then));
                    }
                }
                Action::Revoked { grant, expired: _ } => {
                    let truth = self.grants.get_mut(&grant.token.get()).expect("a grant");
                    assert!(!truth.revoked, "revoked twice");
                    assert!(truth.uses.is_empty(), "a worker still touches memory under it");
                    assert!(truth.uncounted.is_empty(), "arrivals uncounted");
                    truth.revoked = true;
                    // The thread that found this may be slow.
                    self.releasing.push(grant);
                }
                Action::Register(memory) => {
                    for queue in &mut self.registering {
                        queue.push_back(memory);
                    }
                }
                Action::Replace { memory, failed: _ } => {
                    *self.newest.entry(memory).or_default() += 1;
                    let importers = each_peer();
                    let importers = importers.filter(|peer| !self.peers[peer.place() - 1].gone).collect();
                    self.all.handle_replaced(memory, importers);
                    self.carry_out();
                }
                Action::GiveKeys { memory, peer, waits } => {
                    let keys = self.newest[&memory];
                    let end = self.peer(peer);
                    end.frames.push_back(Frame::Keys(memory, keys));
                    match waits && !end.gone {
                        true => {
                            self.importing.insert((memory, peer));
                            self.ask(peer, Waits::Keys { memory, waited_ns: 0 });
                        }
                        false => self.all.handle_keys_known(memory),
                    }
                    self.carry_out();
                }
                Action::CloseKeys(memory) => {
                    let importer = self.importing.iter().find(|(truth, _)| *truth == memory);
                    assert_eq!(importer, None, "keys are closed by which an importer still posts");
                    self.workers
                        .iter_mut()
                        .for_each(|queue| queue.push_back((Scope::Keys(memory), Then::Count)));
                }
                Action::Rekeyed(memory) => *self.rekeyings.entry(memory).or_default() -= 1,
            }
        }
    }

    /// One of the threads that let memories go does so.
    fn release(&mut self) {
        if self.releasing.is_empty() {
            return;
        }
        let grant = self.releasing.swap_remove(self.draw.below(self.releasing.len() as u64) as usize);
        let truth = self.grants.get_mut(&grant.token.get()).expect("a grant");
        assert!(!truth.released && !truth.claimed, "a revoke is done before its memory is let go");
        truth.released = true;
        let waiting = &mut truth.waiting;
        let mut any = false;
        self.all.handle_released(grant.token, |id| {
            let ended = waiting.remove(&id.get());
            any |= ended;
            ended
        });
        assert!(waiting.is_empty(), "an operation waits for a revoke that is done");
        truth.claimed = any;
    }

    fn ask(&mut self, peer: PeerId, waits: Waits) {
        self.peer(peer).asking.handle_wait(waits);
        self.request(peer);
    }

    fn request(&mut self, peer: PeerId) {
        let now = self.now;
        let end = self.peer(peer);
        if let Some(number) = end.asking.poll_request(now) {
            end.frames.push_back(Frame::Request(number));
        }
    }

    fn grant(&mut self) {
        let (number, peer) = (self.number(), PeerId::numbered(1 + self.draw.below(PEERS)));
        if self.peer(peer).gone {
            return;
        }
        let token = GrantToken::from_parts(number, 7, number).expect("a token");
        let memory = MemoryId::new(1 + self.draw.below(MEMORIES));
        let ranges = vec![HostRange { base: 4096, len: 4096 }];
        let worker = peer.place() % WORKERS;
        let grant = Arc::new(Grant::new(token, peer, worker, memory, Access::ALL, ranges));
        let checked = self.draw.percent(40);
        let truth = Truth {
            grant,
            checked,
            live: true,
            revoked: false,
            released: false,
            began_ns: None,
            uses: BTreeMap::new(),
            uncounted: BTreeSet::new(),
            waiting: BTreeSet::new(),
            claimed: false,
        };
        self.grants.insert(token.get(), truth);
    }

    /// The owner revokes a grant, or it expires.
    fn revoke(&mut self, token: u128, expired: bool) {
        let (now, id) = (self.now, self.number());
        let Some(truth) = self.grants.get_mut(&token) else { return };
        let live = std::mem::take(&mut truth.live);
        let (grant, claimed) = (truth.grant.clone(), truth.claimed && truth.waiting.is_empty());
        let unheard = truth.released && !truth.claimed;
        truth.began_ns = truth.began_ns.or(Some(now));
        let begun = live.then(|| Begun {
            grant: grant.clone(),
            workers: 1 << grant.worker | self.draw.below(1 << WORKERS),
            asks: !truth.checked,
        });
        // A worker that has no part in it touches nothing under it.
        if let Some(begun) = &begun {
            truth.uses.retain(|at, _| begun.workers >> at & 1 != 0);
            if truth.checked {
                truth.uncounted.retain(|at| begun.workers >> at & 1 != 0);
            }
        }
        let found = self.all.handle_revoke(grant.token, expired, || begun);
        self.carry_out();
        if expired {
            return;
        }
        let released = self.grants[&token].released;
        assert!(found || released && claimed, "a revoke that nobody has heard of is not found");
        assert!(!unheard || found, "the owner has not heard that a revoke is done");
        assert!(!(found && claimed), "a revoke that its owner knows to be done is found");
        if !found {
            return;
        }
        let mut ended = false;
        self.all.handle_wait(grant.token, OpId::numbered(id), |_| {
            ended = true;
            true
        });
        let truth = self.grants.get_mut(&token).expect("a grant");
        assert_eq!(
            ended, truth.released,
            "an operation waits for a revoke that is done, or ends before it is"
        );
        if ended {
            truth.claimed = true;
        } else {
            truth.waiting.insert(id);
        }
        self.carry_out();
    }

    /// A worker takes its next command, or registers something.
    fn work(&mut self, worker: usize) {
        if let Some(memory) = self.registering[worker].pop_front() {
            let failed = self.draw.percent(5);
            self.all.handle_registered(memory, failed);
            return self.carry_out();
        }
        // A use ends with its pass, and what NICs have is reaped.
        self.grants.values_mut().for_each(|truth| _ = truth.uses.remove(&worker));
        let Some((scope, then)) = self.workers[worker].pop_front() else { return };
        match scope {
            Scope::Grant(grant) => {
                let truth = self.grants.get_mut(&grant.token.get()).expect("a grant");
                if then == Then::Count || truth.checked {
                    truth.uncounted.remove(&worker);
                }
                let (peer, token) = (grant.peer, grant.token);
                if let (Then::Revoke { asks }, true) = (then, grant.worker == worker) {
                    let end = self.peer(peer);
                    if end.left {
                        self.all.handle_gone(peer);
                    } else if !end.gone {
                        end.frames.push_back(Frame::Withdraw(token.get()));
                        if asks {
                            self.ask(peer, Waits::Grant { token, memory: grant.memory });
                        }
                    }
                }
                self.all.handle_quiesced(token);
            }
            Scope::Keys(memory) => {
                self.oldest.insert((worker, memory), self.newest[&memory]);
                self.all.handle_keys_closed(memory);
            }
            Scope::Lanes(_) | Scope::Peer(_) | Scope::Arrivals(_) => {}
        }
        self.carry_out();
    }

    /// A peer reads its next frame, or posts something.
    fn act(&mut self, peer: PeerId) {
        let now = self.now;
        let end = &mut self.peers[peer.place() - 1];
        if end.gone || end.mood == Mood::Silent {
            return;
        }
        end.received_ns = now;
        if self.draw.percent(60) {
            match end.frames.pop_front() {
                Some(Frame::Withdraw(token)) => {
                    end.withdrawn.insert(token);
                    let steps = 1 + self.draw.below(6);
                    let begin = || Sweep { tokens: vec![token], steps, left: steps };
                    end.withdrawals.handle_revoked(|sweep| sweep.join(token), begin);
                }
                Some(Frame::Keys(memory, keys)) if end.mood != Mood::Liar => {
                    let ended = &mut end.ended;
                    end.withdrawals.handle_keys(|sweep| while !sweep.step(ended) {});
                    end.keys.insert(memory, keys);
                }
                Some(Frame::Request(number)) if end.mood == Mood::Honest => end.requests.push(number),
                _ => {}
            }
            return self.known(peer);
        }
        if self.draw.percent(40) {
            let (ended, mut over) = (&mut end.ended, false);
            end.withdrawals.poll(|sweep| !std::mem::replace(&mut over, true) && sweep.step(ended));
            if end.withdrawals.is_empty() {
                for number in std::mem::take(&mut end.requests) {
                    self.answer(peer, number);
                }
            }
            return;
        }
        let of_peer = |truth: &&Truth| truth.grant.peer == peer;
        let granted: Vec<(u128, MemoryId)> = self
            .grants
            .iter()
            .filter(|(_, truth)| of_peer(truth))
            .map(|(token, truth)| (*token, truth.grant.memory))
            .collect();
        if granted.is_empty() {
            return;
        }
        let (token, memory) = granted[self.draw.below(granted.len() as u64) as usize];
        let end = &mut self.peers[peer.place() - 1];
        if end.mood == Mood::Liar || !end.ended.contains(&token) {
            end.posts.push((token, end.keys[&memory]));
        }
    }

    /// A peer answers that it is at rest: what it had posted has arrived.
    fn answer(&mut self, peer: PeerId, number: u64) {
        let posts = std::mem::take(&mut self.peer(peer).posts);
        posts.into_iter().for_each(|(token, keys)| self.land(token, keys));
        let (_, answered) = self.peer(peer).asking.handle_answer(number);
        for waits in answered {
            match waits {
                Waits::Grant { token, .. } => self.all.handle_answer(token),
                Waits::Keys { memory, .. } => self.imported(memory, peer),
            }
            self.carry_out();
        }
        self.request(peer);
    }

    /// The peer has acknowledged what it has read.
    fn known(&mut self, peer: PeerId) {
        let known: Vec<u128> = self.peer(peer).withdrawn.iter().copied().collect();
        for token in known {
            self.all.handle_known(self.grants[&token].grant.token);
        }
    }

    /// An importer no longer posts by the old keys.
    fn imported(&mut self, memory: MemoryId, peer: PeerId) {
        self.importing.remove(&(memory, peer));
        self.all.handle_keys_known(memory);
    }

    /// A post arrives at a NIC.
    fn land(&mut self, token: u128, keys: u64) {
        let worker = self.draw.below(WORKERS as u64) as usize;
        let truth = self.grants.get_mut(&token).expect("a grant");
        let left = self.peers[truth.grant.peer.place() - 1].left;
        if truth.checked {
            // The use lasts until the worker's pass ends.
            if let Some(within) = truth.live.then(|| truth.grant.enter()).flatten() {
                if self.draw.percent(50) {
                    within.grant().counts();
                    truth.uncounted.insert(worker);
                }
                truth.uses.insert(worker, within);
            }
        } else if keys >= self.oldest[&(worker, truth.grant.memory)] {
            assert!(!truth.revoked, "bytes land after the revoke is done");
            assert!(!left, "bytes of a peer land that is reported gone");
            truth.uncounted.insert(worker);
        }
    }

    fn tend(&mut self, peer: PeerId) {
        let (now, end) = (self.now, &mut self.peers[peer.place() - 1]);
        if end.gone {
            return;
        }
        if end.mood == Mood::Chatty {
            end.received_ns = now;
        }
        let (all, rekeyings, importing) = (&mut self.all, &mut self.rekeyings, &mut self.importing);
        end.asking.handle_time(end.received_ns, now, |waits| {
            match waits {
                Waits::Grant { token, memory } => {
                    *rekeyings.entry(memory).or_default() += i64::from(all.handle_silence(token));
                }
                Waits::Keys { memory, .. } => {
                    importing.remove(&(memory, peer));
                    all.handle_keys_known(memory);
                }
            }
            true
        });
        self.carry_out();
    }

    /// A peer ends. Its lanes are dropped; what a NIC without connections has may land as long as its keys are good.
    fn end_peer(&mut self, peer: PeerId) {
        let end = self.peer(peer);
        if std::mem::replace(&mut end.gone, true) {
            return;
        }
        let waits: Vec<Waits> = end.asking.close().collect();
        for waits in waits {
            if let Waits::Keys { memory, .. } = waits {
                self.imported(memory, peer);
            }
        }
        self.carry_out();
        let mut memories: BTreeSet<MemoryId> = self.all.memories_of(peer).collect();
        let live = self.grants.values().filter(|truth| truth.live && truth.grant.peer == peer);
        memories.extend(live.map(|truth| truth.grant.memory));
        for memory in memories {
            *self.rekeyings.entry(memory).or_default() +=
                i64::from(self.all.handle_rekey(memory, peer, None));
        }
        self.carry_out();
    }

    /// Peers that have ended are gone once keys are replaced.
    fn leave(&mut self) {
        for peer in each_peer() {
            if self.peer(peer).gone && !self.all.is_rekeying_for(peer) {
                self.peer(peer).left = true;
                self.all.handle_gone(peer);
                self.carry_out();
            }
        }
    }

    fn step(&mut self, busy: bool) {
        self.now += if self.draw.percent(70) { MS / 10 } else { self.draw.below(5) * MS };
        let peer = PeerId::numbered(1 + self.draw.below(PEERS));
        let worker = self.draw.below(WORKERS as u64) as usize;
        match self.draw.below(24) {
            0 | 1 if busy => self.grant(),
            2 if busy => {
                let expired = self.draw.percent(20);
                let token = self.draw.token(&self.grants);
                if let Some(token) = token {
                    self.revoke(token, expired);
                }
            }
            // The operation of a revoke ends at its deadline.
            3 if busy => {
                let token = self.draw.token(&self.grants);
                if let Some(token) = token {
                    self.grants.get_mut(&token).expect("it").waiting.clear();
                }
            }
            4 if busy && self.draw.percent(3) => self.end_peer(peer),
            5 if self.draw.percent(10) => {
                let end = self.peer(peer);
                end.mood = if end.mood == Mood::Silent { Mood::Honest } else { end.mood };
            }
            6..=9 => self.act(peer),
            10 => {
                let posts = self.peer(peer).posts.len() as u64;
                if posts > 0 {
                    let at = self.draw.below(posts) as usize;
                    let (token, keys) = self.peer(peer).posts.swap_remove(at);
                    self.land(token, keys);
                }
            }
            11..=18 => self.work(worker),
            19 => self.leave(),
            20 | 21 => self.release(),
            _ => each_peer().for_each(|peer| self.tend(peer)),
        }
    }

    fn run(mut self) {
        for _ in 0..600 {
            self.step(true);
        }
        let (began, mut steps) = (self.now, 0);
        while self.grants.values().any(|truth| truth.began_ns.is_some() && !truth.released)
            || self.all.count().1 > 0
        {
            self.step(false);
            steps += 1;
            assert!(self.now - began < DONE_NS * 2 || steps < 20_000, "a revoke hangs");
        }
        assert!(
            self.rekeyings.values().all(|users| *users == 0),
            "a memory is held for replacements that are done"
        );
        let tokens: Vec<u128> =
            self.grants.iter().filter(|(_, truth)| truth.released).map(|(token, _)| *token).collect();
        for token in tokens {
            assert!(self.grants[&token].waiting.is_empty(), "an operation waits for a revoke that is done");
            if !self.grants[&token].claimed {
                self.revoke(token, false); // It says so once.
            }
        }
        for peer in each_peer() {
            self.end_peer(peer);
        }
        while self.all.count().1 > 0 {
            self.step(false);
        }
        self.leave();
        while !self.releasing.is_empty() {
            self.release();
        }
        for peer in each_peer() {
            let posts = std::mem::take(&mut self.peer(peer).posts);
            posts.into_iter().for_each(|(token, keys)| self.land(token, keys));
        }
        assert_eq!(self.all.count(), (0, 0), "something is held of revokes that everybody knows");
    }
}

#[test]
fn nothing_lands_after_a_revoke_whatever_its_peer_does() {
    let began = crate::pass::thread_ns();
    for seed in 0..SEEDS {
        let run = std::panic::catch_unwind(|| World::new(seed).run());
        assert!(run.is_ok(), "seed {seed}");
    }
    println!("played {SEEDS} seeds in {:.3} s", (crate::pass::thread_ns() - began) as f64 / 1e9);
    check_moves(MOVES.iter().chain(keys::MOVES));
}

/// The states and moves, as listed in ARCHITECTURE.
fn diagram(moves: &[(&str, &str, &str)]) -> String {
    let width = moves.iter().map(|(from, ..)| from.len()).max().unwrap_or(0);
    let to_width = moves.iter().map(|(_, to, _)| to.len()).max().unwrap_or(0);
    moves.iter().map(|(from, to, why)| format!("{from:width$} -> {to:to_width$}  {why}\n")).collect()
}

#[test]
fn architecture_has_the_moves_of_revocations() {
    let folder = env!("CARGO_MANIFEST_DIR");
    let read = |at: &str| std::fs::read_to_string(format!("{folder}/{at}ARCHITECTURE.md"));
    let text = read("").or_else(|_| read("../")).expect("ARCHITECTURE.md");
    for diagram in [MOVES, keys::MOVES, quiescing::MOVES].map(diagram) {
        assert!(text.contains(&diagram), "put this into ARCHITECTURE.md:\n{diagram}");
    }
}

#[test]
fn frames_that_do_not_answer_extend_no_wait() {
    const ASKED: u64 = 30_000 * MS;
    let memory = MemoryId::new(1);
    let token = GrantToken::new(9).expect("a token");
    // This process rarely runs: between two looks it counts an eighth of the time allowed, at most.
    for pause in [MS, 40 * MS, 400 * MS, 1000 * MS] {
        let mut asking = Asking::default();
        asking.handle_wait(Waits::Grant { token, memory });
        assert_eq!((asking.poll_request(1), asking.poll_request(1)), (Some(1), None));
        let mut looks = 0;
        let mut given_up = false;
        while !given_up {
            looks += 1;
            let now = 1 + looks * pause;
            assert!(now < ASKED, "after {looks} looks");
            asking.handle_time(now, now, |_| {
                given_up = true;
                true
            });
        }
        assert!(
            looks * pause >= 1000 * MS && looks <= (1000 * MS / pause).max(8) + 1,
            "{looks} looks, {pause}"
        );
    }
}
