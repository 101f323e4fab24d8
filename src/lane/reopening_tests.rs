//! Hosts whose NICs can only be reset as a whole, each writing to all others over all rails, in one thread. A seed says
//! when packets land, operations fail, NICs die and heal; a failure names it. What workers carry out (`worker::reopening`,
//! `failover`) is played by `World`; what they decide is `Life` and `Reopening`.

use super::reopening::{self, Reopening, Step};
use super::{Asked, Consequence, Failure, Life, Load, Serving};
use crate::fabric::Resets;
use crate::ids::{PeerId, Plan, RailIndex};
use std::collections::{BTreeMap, VecDeque};

const HOSTS: usize = 4;
const RAILS: usize = 3;
const PLACES: usize = 4;
const MS: u64 = 1_000_000;
const SEEDS: u64 = 40;

struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }
}

/// A host, its peer, and the rail between them.
type End = (usize, usize, usize);

fn other((host, peer, rail): End) -> End {
    (peer, host, rail)
}

struct Lane {
    life: Life,
    theirs: u64,
    /// What was posted and is not back: packets by number.
    posted: BTreeMap<u64, Write>,
    /// Of those that came back as failed.
    failed: Vec<Write>,
}

/// The place at the peer, and how often it was written to.
#[derive(Clone, Copy)]
struct Write {
    place: usize,
    version: u64,
}

/// On the network: it lands whenever both NICs live and have these addresses, or never.
struct Packet {
    number: u64,
    from: End,
    addresses: [u64; 2],
    write: Write,
}

#[derive(Clone, Copy)]
struct Frame {
    rail: usize,
    epoch: u64,
    asks: bool,
    address: u64,
}

struct Nic {
    address: u64,
    dead: bool,
    /// It is dead because the kernel has removed its device.
    removed: bool,
    reopening: Reopening,
    closes: usize,
}

struct World {
    draw: Draw,
    now: u64,
    last: u64,
    nics: Vec<Vec<Nic>>,
    lanes: BTreeMap<End, Lane>,
    /// What a host knows of another: the addresses of its rails, and of its own lanes those that serve and were closed.
    known: BTreeMap<(usize, usize), (Vec<u64>, Serving)>,
    frames: BTreeMap<(usize, usize), VecDeque<Frame>>,
    packets: Vec<Packet>,
    /// What each place of a host holds by writer, what was written there last, and what waits for a lane.
    held: BTreeMap<(usize, usize, usize), u64>,
    waiting: BTreeMap<(usize, usize), Vec<Write>>,
    under_way: BTreeMap<(usize, usize, usize), u64>,
    most_closes: usize,
    lost: Vec<(usize, usize)>,
}

fn plan(rail: usize) -> Plan {
    let rail = RailIndex::new(rail as u16);
    Plan { rail, remote_rail: rail }
}

fn pairs() -> impl Iterator<Item = (usize, usize)> {
    (0..HOSTS).flat_map(|host| (0..HOSTS).filter(move |peer| *peer != host).map(move |peer| (host, peer)))
}

impl World {
    fn new(seed: u64) -> World {
        let nic = |n: usize| Nic {
            address: 1 + n as u64,
            dead: false,
            removed: false,
            reopening: Reopening::default(),
            closes: 0,
        };
        let nics: Vec<Vec<Nic>> =
            (0..HOSTS).map(|host| (0..RAILS).map(|rail| nic(host * RAILS + rail)).collect()).collect();
        let addresses = |host: usize| nics[host].iter().map(|nic| nic.address).collect::<Vec<_>>();
        let known =
            pairs().map(|(host, peer)| ((host, peer), (addresses(peer), Serving::default()))).collect();
        let (lanes, frames, held, waiting, under_way) = Default::default();
        let mut world = World {
            draw: Draw(seed),
            now: 1_000 * MS,
            last: (HOSTS * RAILS) as u64,
            nics,
            lanes,
            known,
            frames,
            packets: Vec::new(),
            held,
            waiting,
            under_way,
            most_closes: 0,
            lost: Vec::new(),
        };
        world.return_lanes();
        world
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Where neither end has a lane and one knows where the other is, a handshake succeeds.
    fn return_lanes(&mut self) {
        for end in pairs().flat_map(|(host, peer)| (0..RAILS).map(move |rail| (host, peer, rail))) {
            let (host, peer, rail) = end;
            let knows = |a: usize, b: usize| self.known[&(a, b)].0[rail] == self.nics[b][rail].address;
            let alive = !self.nics[host][rail].dead && !self.nics[peer][rail].dead;
            let free = !self.lanes.contains_key(&end) && !self.lanes.contains_key(&other(end));
            // A request has the address that it comes from.
            if host < peer && alive && free && (knows(host, peer) || knows(peer, host)) {
                let epochs = [self.number(), self.number()];
                for (at, end) in [end, other(end)].into_iter().enumerate() {
                    let mut life = Life::new(epochs[at], self.now);
                    life.answered(epochs[1 - at]);
                    life.probed();
                    self.serving(end).is_newest(plan(rail), epochs[1 - at], RAILS);
                    let theirs = self.nics[end.1][rail].address;
                    self.known.get_mut(&(end.0, end.1)).expect("a pair").0[rail] = theirs;
                    self.lanes
                        .insert(end, Lane { life, theirs, posted: BTreeMap::new(), failed: Vec::new() });
                    self.show(end);
                }
            }
        }
    }

    fn show(&mut self, (host, peer, _): End) {
        let is_up = |rail: &usize| self.lanes.get(&(host, peer, *rail)).is_some_and(|lane| lane.life.is_up());
        let up = (0..RAILS).filter(is_up).map(plan).collect();
        if let Some((_, serving)) = self.known.get_mut(&(host, peer)) {
            serving.set(up);
        }
    }

    fn serving(&mut self, (host, peer, _): End) -> &mut Serving {
        &mut self.known.get_mut(&(host, peer)).expect("a pair").1
    }

    fn post(&mut self, end: End, write: Write) {
        let number = self.number();
        let from = self.nics[end.0][end.2].address;
        let Some(lane) = self.lanes.get_mut(&end) else { return };
        lane.posted.insert(number, write);
        self.packets.push(Packet { number, from: end, addresses: [from, lane.theirs], write });
    }

    /// A packet lands, and is acknowledged.
    fn land(&mut self, at: usize) {
        let Packet { number, from, addresses, write } = self.packets.swap_remove(at);
        let (host, peer, rail) = from;
        if self.nics[peer][rail].address != addresses[1] {
            return;
        }
        let held = self.held.entry((peer, host, write.place)).or_default();
        assert!(write.version >= *held, "{write_version} landed after {held}", write_version = write.version);
        *held = write.version;
        if self.nics[host][rail].address == addresses[0] {
            self.done(from, number);
        }
    }

    fn done(&mut self, end: End, number: u64) {
        let Some(lane) = self.lanes.get_mut(&end) else { return };
        if let Some(write) = lane.posted.remove(&number) {
            self.completes((end.0, end.1, write.place), write.version);
        }
    }

    fn completes(&mut self, place: (usize, usize, usize), version: u64) {
        if self.under_way.get(&place) == Some(&version) {
            self.under_way.remove(&place);
        }
    }

    /// An operation of a lane fails here, whether or not its packet lands.
    fn fail(&mut self, end: End) {
        let Some(lane) = self.lanes.get_mut(&end) else { return };
        if let Some((_, write)) = lane.posted.pop_first() {
            lane.failed.push(write);
        }
        let failure = Failure {
            errno: libc::ETIMEDOUT,
            serves: true,
            connecting: false,
            resets: Resets::Rail,
            reconnects: true,
        };
        let serving = &mut self.known.get_mut(&(end.0, end.1)).expect("a pair").1;
        match lane.life.failed(failure, |last| serving.lose(plan(end.2), last), self.now) {
            Consequence::Reset => self.begin_reset(end, false),
            Consequence::Broken { .. } => self.lost.push((end.0, end.1)),
            _ => {}
        }
    }

    fn begin_reset(&mut self, end: End, peer_reset: bool) {
        let Some(lane) = self.lanes.get_mut(&end) else { return };
        let begins = lane.life.begin_reset(libc::ETIMEDOUT, peer_reset);
        let epoch = lane.life.epoch();
        self.show(end);
        if begins && !peer_reset {
            self.say(end, Frame { rail: end.2, epoch, asks: true, address: 0 });
        }
    }

    fn say(&mut self, (host, peer, _): End, frame: Frame) {
        self.frames.entry((host, peer)).or_default().push_back(frame);
    }

    fn confirm(&mut self, end: End, epoch: u64) {
        let address = self.nics[end.0][end.2].address;
        self.say(end, Frame { rail: end.2, epoch, asks: false, address });
    }

    /// Frames pass over any lane that works.
    fn hear(&mut self, from: usize, to: usize) {
        let works = |rail: usize| {
            let up = |end: End| self.lanes.get(&end).is_some_and(|lane| lane.life.is_up());
            let alive = !self.nics[from][rail].dead && !self.nics[to][rail].dead;
            alive && up((from, to, rail)) && up((to, from, rail))
        };
        if !(0..RAILS).any(works) {
            return;
        }
        let Some(frame) = self.frames.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return };
        let (end, now) = ((to, from, frame.rail), self.now);
        if !frame.asks {
            self.known.get_mut(&(to, from)).expect("a pair").0[frame.rail] = frame.address;
        }
        let lane = self.lanes.get_mut(&end).filter(|lane| lane.life.is_meant(frame.epoch, frame.asks));
        match Life::peer_reset(lane.map(|lane| &mut lane.life), frame.asks, Resets::Rail) {
            Asked::Reset if self.serving(end).is_closed(plan(frame.rail), frame.epoch) => {
                self.confirm(end, frame.epoch)
            }
            Asked::Reset => {
                assert!(self.serving(end).has_had(plan(frame.rail), frame.epoch), "a lane of the peer");
                let asked = (PeerId::numbered(1 + from as u64), plan(frame.rail), frame.epoch);
                self.nics[to][frame.rail].reopening.handle_asked(asked);
            }
            Asked::Gone => {
                self.serving(end).lose(plan(frame.rail), true);
                self.begin_reset(end, true);
            }
            Asked::Nothing => {}
            asked => panic!("{asked:?} at {now}"),
        }
    }

    fn ends_of(&self, host: usize, rail: usize) -> Vec<End> {
        self.lanes.keys().copied().filter(|(at, _, over)| (*at, *over) == (host, rail)).collect()
    }

    fn reopen(&mut self, host: usize, rail: usize) {
        let ends = self.ends_of(host, rail);
        let lane_at = |end: &End| &self.lanes[end];
        let up: Vec<End> = ends.iter().copied().filter(|end| lane_at(end).life.is_up()).collect();
        let seen = reopening::Rail {
            stuck: self.nics[host][rail].dead
                && ends.iter().any(|end| lane_at(end).life.is_reset(0) && !lane_at(end).posted.is_empty()),
            alone: up.iter().any(|(_, peer, _)| self.known[&(host, *peer)].1.has_only(plan(rail).rail)),
            moves: up.iter().any(|end| !lane_at(end).posted.is_empty()),
        };
        match self.nics[host][rail].reopening.poll(seen, self.now) {
            None => {}
            Some(Step::Hold) => {
                for end in &up {
                    self.lanes.get_mut(end).expect("a lane").life.hold();
                }
            }
            Some(Step::GiveUp) => {
                let asked = self.nics[host][rail].reopening.over(self.now);
                self.lost.extend(asked.iter().map(|(peer, ..)| (host, peer.get() as usize - 1)));
                for end in &up {
                    self.lanes.get_mut(end).expect("a lane").life.goes_on();
                }
            }
            Some(Step::ComeBack) if self.nics[host][rail].removed => {
                self.nics[host][rail].reopening.handle_absent(self.now)
            }
            Some(Step::ComeBack) => {
                self.nics[host][rail].address = self.number();
                self.nics[host][rail].dead = false;
                self.nics[host][rail].reopening.handle_ready();
                assert_eq!(self.nics[host][rail].reopening.poll(seen, self.now), None, "its keys are given");
                self.nics[host][rail].reopening.handle_known();
            }
            Some(Step::Open) => self.nics[host][rail].reopening.handle_back(),
            Some(Step::Close) => {
                let asked = self.nics[host][rail].reopening.over(self.now);
                let address = self.number();
                let nic = &mut self.nics[host][rail];
                nic.closes += 1;
                // A removed device has its next address when it is back.
                nic.address = if nic.reopening.is_away() { nic.address } else { address };
                for (peer, _, epoch) in asked {
                    self.confirm((host, peer.get() as usize - 1, rail), epoch);
                }
                for peer in (0..HOSTS).filter(|peer| *peer != host) {
                    let end = (host, peer, rail);
                    for (plan, epoch) in self.serving(end).close(plan(rail).rail) {
                        self.confirm((host, peer, plan.rail.place()), epoch);
                    }
                }
                for end in ends {
                    let lane = self.lanes.get_mut(&end).expect("a lane");
                    let clean = lane.posted.is_empty();
                    lane.failed.extend(std::mem::take(&mut lane.posted).into_values());
                    if lane.life.is_up() {
                        self.serving(end).lose(plan(rail), true);
                        self.begin_reset(end, clean);
                    }
                }
            }
        }
    }

    /// What lanes that are reset at both ends have left goes over others.
    fn finish_resets(&mut self) {
        let over = |lane: &Lane| lane.life.is_reset(lane.posted.len() as u32);
        let gone: Vec<End> = self.lanes.iter().filter(|(_, lane)| over(lane)).map(|(end, _)| *end).collect();
        for end in gone {
            let lane = self.lanes.remove(&end).expect("a lane");
            self.waiting.entry((end.0, end.1)).or_default().extend(lane.failed);
        }
    }

    fn lane_for(&mut self, host: usize, peer: usize) -> Option<End> {
        let first = self.draw.below(RAILS);
        let all = (0..RAILS).map(|at| (host, peer, (first + at) % RAILS));
        let takes = |end: &End| {
            let lane = self.lanes.get(end);
            lane.is_some_and(|lane| lane.life.takes_transfers() && !lane.life.is_held())
        };
        all.into_iter().find(takes)
    }

    fn step(&mut self, busy: bool) {
        self.now += MS;
        for pair in pairs() {
            if let Some(end) = self.lane_for(pair.0, pair.1) {
                if let Some(write) = self.waiting.get_mut(&pair).and_then(Vec::pop) {
                    self.post(end, write);
                } else if busy && self.draw.percent(30) {
                    let place = (pair.0, pair.1, self.draw.below(PLACES));
                    let version = self.number();
                    if *self.under_way.entry(place).or_insert(version) == version {
                        self.post(end, Write { place: place.2, version });
                    }
                }
            }
            self.hear(pair.0, pair.1);
        }
        for at in (0..self.packets.len()).rev() {
            let (host, peer, rail) = self.packets[at].from;
            let stays = self.nics[host][rail].dead || self.nics[peer][rail].dead;
            if !stays && self.draw.percent(20) {
                self.land(at);
            }
        }
        // What a dead NIC carries stalls.
        let load = |lane: &Lane| Load { inflight_bytes: lane.posted.len() as u64, ..Load::default() };
        let dead = |end: &End| self.nics[end.0][end.2].dead || self.nics[end.1][end.2].dead;
        let stalled: Vec<End> = self
            .lanes
            .iter()
            .filter(|(end, lane)| dead(end) && lane.life.is_up() && load(lane).inflight_bytes > 0)
            .map(|(end, _)| *end)
            .collect();
        for end in stalled {
            if self.draw.below(200) == 0 {
                self.fail(end);
            }
        }
        // Posts to an address that is gone fail.
        for end in self.lanes.keys().copied().collect::<Vec<_>>() {
            let gone = self.lanes[&end].theirs != self.nics[end.1][end.2].address;
            if gone
                && !self.lanes[&end].posted.is_empty()
                && !self.nics[end.0][end.2].dead
                && self.draw.percent(10)
            {
                self.fail(end);
            }
        }
        for (host, rail) in (0..HOSTS).flat_map(|host| (0..RAILS).map(move |rail| (host, rail))) {
            self.reopen(host, rail);
        }
        self.finish_resets();
        if self.draw.percent(2) {
            self.return_lanes();
        }
    }

    fn run(&mut self) {
        for _ in 0..1 + self.draw.below(3) {
            let at = (self.draw.below(HOSTS), self.draw.below(RAILS));
            let (single, removed) = (self.draw.percent(40), self.draw.percent(50));
            // A failure goes no further than to both ends of the lanes that have failed.
            self.most_closes += if single { 2 } else { HOSTS };
            let steps = self.draw.below(100);
            (0..steps).for_each(|_| self.step(true));
            if single {
                let peer = (at.0 + 1) % HOSTS;
                self.fail((at.0, peer, at.1));
            } else {
                let nic = &mut self.nics[at.0][at.1];
                (nic.dead, nic.removed) = (true, removed);
                if removed {
                    nic.reopening.handle_removed();
                }
            }
            let steps = 200 + self.draw.below(600);
            (0..steps).for_each(|_| self.step(true));
            let nic = &mut self.nics[at.0][at.1];
            (nic.dead, nic.removed) = (nic.removed, false); // A removed one lives once it is opened.
            (0..600).for_each(|_| self.step(true));
        }
        (0..2_800).for_each(|_| self.step(false)); // (A removed device is looked for every 2 s.)
        assert_eq!(self.lost, [], "no peer is lost");
        assert_eq!(self.under_way, BTreeMap::new(), "each write is done");
        assert!(
            self.lanes.values().all(|lane| lane.life.is_up())
                && self.lanes.len() == RAILS * HOSTS * (HOSTS - 1)
        );
        let closes: usize = self.nics.iter().flatten().map(|nic| nic.closes).sum();
        assert!(closes <= self.most_closes, "{closes} endpoints closed");
    }
}

#[test]
fn peer_that_asks_without_end_takes_no_memory() {
    let mut reopening = Reopening::default();
    (0..1_000).for_each(|epoch| reopening.handle_asked((PeerId::numbered(1), plan(0), epoch)));
    reopening.handle_asked((PeerId::numbered(2), plan(0), 1));
    let asked = reopening.over(0);
    assert!(asked.len() < 10 && asked.contains(&(PeerId::numbered(2), plan(0), 1)));
}

#[test]
fn endpoint_stays_where_what_was_stuck_comes_back() {
    let stuck = |stuck, alone| reopening::Rail { stuck, alone, moves: true };
    let mut reopening = Reopening::default();
    assert_eq!(reopening.poll(stuck(true, true), MS), None);
    assert_eq!(reopening.poll(stuck(false, true), 2 * MS), None);
    assert!(!reopening.is_waiting());
    assert_eq!(reopening.poll(stuck(false, false), 9_000 * MS), None);
    assert_eq!(reopening.poll(stuck(true, false), 9_001 * MS), Some(Step::Hold));
    assert_eq!(reopening.poll(stuck(false, false), 9_002 * MS), Some(Step::GiveUp), "its lanes go on");
    reopening.over(9_002 * MS);
    assert_eq!(reopening.poll(stuck(false, false), 10_000 * MS), None);
}

#[test]
fn nothing_lands_late_where_only_whole_rails_can_be_reset() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
        if let Err(panic) = played {
            eprintln!("seed {seed}, at {} ms", world.now / MS);
            std::panic::resume_unwind(panic);
        }
    }
}
