//! Two sessions, a clock, and a link between them that loses, doubles, delays and reorders what is
//! sent, in one thread. A seed says what happens; a failure names it.
//!
//! A run ends in one of four ways: nobody disconnects, one side does or both, or one side stops.

use super::approach::{Approach, Approaches};
use super::channel::Out;
use super::*;
use crate::ids::RailIndex;
use crate::wire::frame::{numbers, read_numbers, USER};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::panic::{catch_unwind, AssertUnwindSafe};

const MS: u64 = 1_000_000;
/// Between requests of a lane that are not answered, as its worker sends them.
const AGAIN: u64 = 20 * MS;
/// How long the connects of a test may take, and how long silence may.
const TIMEOUT: u64 = 20_000 * MS;
const SILENCE: u64 = 15_000 * MS;
/// Runs of the random test, in some seconds of a development build.
const SEEDS: u64 = 2000;
/// Messages that each side sends once it is up.
const MESSAGES: u64 = 3;

thread_local! {
    static MOVES_SEEN: RefCell<BTreeSet<(String, String)>> = RefCell::default();
}

pub(super) fn note_move(from: &str, to: &str) {
    if from != to {
        // A world that is closed as its thread ends may find the set gone.
        let _ = MOVES_SEEN.try_with(|seen| seen.borrow_mut().insert((from.into(), to.into())));
    }
}

/// Numbers that follow from a seed (splitmix64).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// What handshakes over a pair of rails come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Works,
    Fails,
    Silent,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lane {
    Handshaking,
    Probing,
    Up,
    Failed,
}

enum Event {
    /// A side connects, if it does not know the other yet.
    Connect,
    /// A lane repeats its handshake request.
    Again(Plan),
    Request(Plan),
    Reply(Plan),
    Probed(Plan),
    Fails(Plan),
    Frame {
        kind: Kind,
        number: u32,
        acknowledged: u32,
        body: Vec<u8>,
    },
    Acknowledge([u64; CHANNELS]),
    Plain(Kind),
    Disconnect,
    /// What was outstanding has ended.
    Ended,
    Drained(Plan),
    /// The side stops for ever.
    Stop,
    /// A timer of the session, or of its channels.
    Timeout,
}

#[derive(Default)]
struct Side {
    session: Option<Session>,
    lanes: Vec<(Plan, Lane)>,
    ups: usize,
    given_up: Vec<String>,
    /// Each end, with what was agreed then.
    downs: Vec<(Outcome, bool)>,
    received: Vec<u64>,
    alive_ns: u64,
    stopped: bool,
    disconnects: bool,
    /// When its next `Timeout` is queued.
    asked: Option<u64>,
}

impl Side {
    fn has_path(&self) -> bool {
        let lanes = self.session.as_ref().map_or(&[][..], Session::lanes_up);
        self.lanes.iter().any(|(plan, lane)| *lane == Lane::Up && lanes.contains(plan))
    }

    fn lane(&mut self, plan: Plan) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|(of, _)| *of == plan).map(|(_, lane)| lane)
    }
}

/// Times and numbers of what was queued: what is due first comes first.
type Queue = BinaryHeap<Reverse<(u64, u64, usize)>>;

struct Pair {
    draw: Draw,
    now: u64,
    sides: [Side; 2],
    queue: Queue,
    events: Vec<Option<(usize, Event)>>,
    /// The fabrics, best first, and what becomes of each pair of rails of theirs.
    fabrics: Vec<(String, Vec<(Plan, Fate)>)>,
    decider: usize,
    loses: u64,
    doubles: u64,
    latest: u64,
}

fn plan(rail: u16, remote_rail: u16) -> Plan {
    Plan { rail: RailIndex::new(rail), remote_rail: RailIndex::new(remote_rail) }
}

/// The plan as the other side names it.
fn mirrored(of: Plan) -> Plan {
    Plan { rail: of.remote_rail, remote_rail: of.rail }
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let mut draw = Draw(seed);
        let count = 1 + draw.below(3);
        let fabrics = (0..count).map(|fabric| {
            let rails = 1 + draw.below(3) as u16;
            let all = [Fate::Works, Fate::Works, Fate::Fails, Fate::Silent];
            let lanes = (0..rails).map(|rail| {
                let rail = fabric as u16 * 8 + rail;
                (plan(rail, rail + 32), all[draw.below(4) as usize])
            });
            (format!("fabric{fabric}"), lanes.collect())
        });
        let fabrics = fabrics.collect();
        let (loses, doubles) = (draw.below(40), draw.below(40));
        let (decider, latest) = (draw.below(2) as usize, MS * (1 + draw.below(30)));
        let mut pair = Pair {
            draw,
            now: 1,
            sides: Default::default(),
            queue: Queue::new(),
            events: Vec::new(),
            fabrics,
            decider,
            loses,
            doubles,
            latest,
        };
        pair.put(0, MS, Event::Connect);
        if pair.draw.percent(50) {
            let at = MS * pair.draw.below(100);
            pair.put(1, at, Event::Connect);
        }
        if pair.draw.percent(15) {
            let at = MS * pair.draw.below(2000);
            pair.put(0, at, Event::Disconnect);
        }
        pair
    }

    /// Queues an event of a side, after some time.
    fn put(&mut self, side: usize, after: u64, event: Event) {
        self.queue.push(Reverse((self.now + after, self.events.len() as u64, self.events.len())));
        self.events.push(Some((side, event)));
    }

    /// Sends what may get lost or doubled.
    fn send(&mut self, from: usize, event: impl Fn() -> Event) {
        for _ in 0..1 + usize::from(self.draw.percent(self.doubles)) {
            if !self.draw.percent(self.loses) {
                self.send_surely(from, event());
            }
        }
    }

    fn send_surely(&mut self, from: usize, event: Event) {
        let after = 1 + self.draw.below(self.latest);
        self.put(1 - from, after, event);
    }

    fn fate(&self, side: usize, of: Plan) -> Fate {
        let of = if side == 0 { of } else { mirrored(of) };
        let found = self.fabrics.iter().flat_map(|(_, lanes)| lanes).find(|(plan, _)| *plan == of);
        found.expect("a pair of rails of the test").1
    }

    fn fabric(&self, side: usize, of: Plan) -> String {
        let of = if side == 0 { of } else { mirrored(of) };
        let has = |lanes: &Vec<(Plan, Fate)>| lanes.iter().any(|(plan, _)| *plan == of);
        self.fabrics.iter().find(|(_, lanes)| has(lanes)).expect("a fabric of the test").0.clone()
    }

    fn begin(&mut self, side: usize, over: Option<&str>) {
        let of = |plan: Plan| if side == 0 { plan } else { mirrored(plan) };
        let all = self.fabrics.iter().map(|(name, lanes)| {
            Approach::new(name.clone(), lanes.iter().map(|(plan, _)| of(*plan)).collect())
        });
        let approaches = Approaches::new(all.collect(), TIMEOUT);
        let terms = Terms {
            decides: side == self.decider,
            deadline: self.now + TIMEOUT,
            lanes: 64,
            liveness_ns: Some(SILENCE),
        };
        let mut session = Session::new(terms, approaches);
        session.begin(over, self.now);
        self.sides[side].session = Some(session);
        self.carry_out(side);
    }

    /// Does what a session wants, as its worker would.
    fn carry_out(&mut self, side: usize) {
        let now = self.now;
        while let Some(action) = self.sides[side].session.as_mut().and_then(Session::poll_action) {
            let here = &mut self.sides[side];
            match action {
                Action::AddLanes(plans) => {
                    for plan in plans {
                        match here.lane(plan) {
                            Some(lane @ Lane::Failed) => *lane = Lane::Handshaking,
                            Some(_) => continue,
                            None => here.lanes.push((plan, Lane::Handshaking)),
                        }
                    }
                    let lanes = here.lanes.iter().filter(|(_, lane)| *lane == Lane::Handshaking);
                    let new: Vec<Plan> = lanes.map(|(plan, _)| *plan).collect();
                    new.into_iter().for_each(|plan| self.put(side, 0, Event::Again(plan)));
                }
                Action::Serve => {
                    let session = here.session.as_ref().expect("a session that acts");
                    let serving = session.serving().expect("what serves").plans.clone();
                    here.lanes.retain(|(plan, _)| serving.contains(plan));
                }
                Action::Up => {
                    here.ups += 1;
                    let session = here.session.as_mut().expect("a session that acts");
                    for n in 0..MESSAGES {
                        session.channels[USER].push(Out::new(Kind::Message, numbers(&[n])));
                    }
                }
                Action::GiveUp(why) => {
                    here.given_up.push(why);
                    let session = here.session.as_mut().expect("a session that acts");
                    session.end(session.not_reached());
                }
                Action::EndOutstanding(_) => {
                    let after = self.draw.below(5 * MS);
                    self.put(side, after, Event::Ended);
                }
                Action::Drain => {
                    let up = here.lanes.iter().filter(|(_, lane)| *lane == Lane::Up);
                    for plan in up.map(|(plan, _)| *plan).collect::<Vec<_>>() {
                        // Some do not drain in time.
                        let after = if self.draw.percent(10) { 3000 } else { self.draw.below(200) };
                        self.put(side, after * MS, Event::Drained(plan));
                    }
                }
                Action::End(outcome) => {
                    let session = here.session.as_mut().expect("a session that acts");
                    let outcome = session.end(outcome);
                    here.downs.push((outcome, session.is_agreed()));
                }
                Action::ShowLanes | Action::Flush | Action::TryAnother => {}
            }
        }
        if self.has_ended(side) {
            return;
        }
        self.flush(side);
        while let Some(kind) = self.sides[side].session.as_ref().and_then(Session::poll_transmit) {
            let posted = self.sides[side].has_path() && self.draw.percent(90);
            if posted {
                self.send(side, || Event::Plain(kind));
            }
            let session = self.sides[side].session.as_mut().expect("a session that sends");
            session.transmitted(posted, now);
            if session.has_news() {
                return self.carry_out(side);
            }
        }
        let here = &mut self.sides[side];
        let Some(due) = here.session.as_ref().and_then(Session::poll_timeout) else { return };
        if here.asked.is_none_or(|asked| due < asked || asked < now) {
            here.asked = Some(due);
            self.put(side, due.saturating_sub(now), Event::Timeout);
        }
    }

    /// Sends the frames and acknowledgements that channels have, as workers do.
    fn flush(&mut self, side: usize) {
        let has_path = self.sides[side].has_path();
        let Some(mut session) = self.sides[side].session.take() else { return };
        if has_path {
            let up = session.is_up();
            for at in 0..CHANNELS {
                while let Some((number, out)) = session.channels[at].next() {
                    if !up && out.kind != Kind::Ready {
                        break;
                    }
                    let (kind, body) = (out.kind, out.body.clone());
                    let acknowledged = session.channels[at].delivered();
                    session.channels[at].sent(self.now);
                    session.note_sent(self.now);
                    for _ in 0..1 + usize::from(self.draw.percent(self.doubles)) {
                        self.send_surely(
                            side,
                            Event::Frame { kind, number, acknowledged, body: body.clone() },
                        );
                    }
                }
            }
            if session.channels.iter().any(|channel| channel.acknowledgement_due(u64::MAX)) {
                let all = session.channels.each_ref().map(|channel| channel.delivered().into());
                session.channels.iter_mut().for_each(|channel| channel.acknowledgement_sent_alone(self.now));
                self.send(side, || Event::Acknowledge(all));
            }
        }
        self.sides[side].session = Some(session);
    }

    fn receive(&mut self, side: usize, frame: (Kind, u32, u32, Vec<u8>)) {
        let (kind, number, acknowledged, body) = frame;
        let here = &mut self.sides[side];
        let session = here.session.as_mut().expect("a session that knows the peer's lanes");
        let at = kind.channel().expect("a frame of a channel");
        session.channels[at].acknowledge(acknowledged).for_each(drop);
        session.channels[at].receive(number, kind, &body, self.now);
        for at in [SYSTEM, USER] {
            while let Some((kind, body)) =
                (at == SYSTEM || session.is_up()).then(|| session.channels[at].take_deliverable()).flatten()
            {
                match kind {
                    Kind::Message => here.received.extend(read_numbers::<1>(&body).map(|[n]| n)),
                    _ => session.handle_frame(kind, &body, self.now).expect("a frame that can be"),
                }
                session.channels[at].deliver(self.now, true);
            }
        }
    }

    /// A frame for a peer that has ended here: the other side gets Close. True: there is none.
    fn is_answered_as_ended(&mut self, side: usize, kind: Option<Kind>) -> bool {
        let ended = self.has_ended(side);
        if ended && !matches!(kind, Some(Kind::Closing | Kind::Close | Kind::CloseAck)) {
            self.send(side, || Event::Plain(Kind::Close));
        }
        ended
    }

    fn has_ended(&self, side: usize) -> bool {
        matches!(self.sides[side].session.as_ref().map(|session| &session.state), Some(State::Ended { .. }))
    }

    fn happen(&mut self, side: usize, event: Event) {
        let now = self.now;
        if self.sides[side].stopped {
            return;
        }
        match &event {
            Event::Frame { kind, .. } | Event::Plain(kind)
                if self.is_answered_as_ended(side, Some(*kind)) =>
            {
                return
            }
            Event::Acknowledge(_) if self.is_answered_as_ended(side, None) => return,
            Event::Frame { .. } | Event::Plain(_) | Event::Acknowledge(_) => self.sides[side].alive_ns = now,
            _ if self.has_ended(side) => return,
            _ => {}
        }
        match event {
            Event::Connect if self.sides[side].session.is_none() => self.begin(side, None),
            Event::Connect => {}
            Event::Again(plan) => {
                if self.sides[side].lane(plan).copied() != Some(Lane::Handshaking) {
                    return;
                }
                match self.fate(side, plan) {
                    Fate::Works => self.send(side, || Event::Request(mirrored(plan))),
                    Fate::Fails => self.put(side, 2 * MS, Event::Fails(plan)),
                    Fate::Silent => {}
                }
                self.put(side, AGAIN, Event::Again(plan));
            }
            Event::Request(plan) => {
                let fabric = self.fabric(side, plan);
                let has_lane = self.sides[side].lane(plan).is_some();
                match self.sides[side].session.as_mut() {
                    None => self.begin(side, Some(&fabric)),
                    Some(_) if has_lane => {}
                    Some(session) => assert!(session.handle_request(plan, Some(&fabric), now)),
                }
                self.carry_out(side);
                if self.sides[side].lane(plan).is_some() {
                    self.send(side, || Event::Reply(mirrored(plan)));
                }
            }
            Event::Reply(plan) => {
                if let Some(lane @ Lane::Handshaking) = self.sides[side].lane(plan) {
                    *lane = Lane::Probing;
                    self.put(side, MS, Event::Probed(plan));
                }
            }
            Event::Probed(plan) => {
                if let Some(lane @ Lane::Probing) = self.sides[side].lane(plan) {
                    *lane = Lane::Up;
                    self.tell(side, plan, LaneEvent::Up);
                }
            }
            Event::Fails(plan) => {
                if let Some(lane @ Lane::Handshaking) = self.sides[side].lane(plan) {
                    *lane = Lane::Failed;
                    let why = "nothing listens there".to_owned();
                    self.tell(side, plan, LaneEvent::Failed { errno: libc::ECONNREFUSED, why });
                }
            }
            Event::Frame { kind, number, acknowledged, body } => {
                self.receive(side, (kind, number, acknowledged, body));
            }
            Event::Acknowledge(all) => {
                let Some(session) = self.sides[side].session.as_mut() else { return };
                for (channel, number) in session.channels.iter_mut().zip(all) {
                    channel.acknowledge(number as u32).for_each(drop);
                }
            }
            Event::Plain(Kind::Ack) => {}
            Event::Plain(kind) => {
                let session = self.sides[side].session.as_mut().expect("a session that the peer knows");
                session.handle_frame(kind, &[], now).expect("a frame that can be");
            }
            Event::Disconnect => {
                self.sides[side].disconnects = true;
                if let Some(session) = self.sides[side].session.as_mut() {
                    session.disconnect(now);
                }
            }
            Event::Ended => self.sides[side].session.as_mut().expect("a session").outstanding_ended(now),
            Event::Drained(plan) => self.tell(side, plan, LaneEvent::Drained),
            Event::Stop => self.sides[side].stopped = true,
            Event::Timeout => {
                let sight = Sight { alive_ns: self.sides[side].alive_ns, busy: self.draw.percent(20) };
                if let Some(session) = self.sides[side].session.as_mut() {
                    session.handle_timeout(sight, now);
                    assert!(session.poll_timeout().is_none_or(|due| due > now), "a due timer is still set");
                }
                self.sides[side].asked = None;
            }
        }
        self.carry_out(side);
    }

    fn tell(&mut self, side: usize, plan: Plan, event: LaneEvent) {
        let now = self.now;
        self.sides[side].session.as_mut().expect("a session with lanes").handle_lane(plan, event, now);
    }

    /// Plays until nothing is left to happen, or for `most` of virtual time.
    fn play(&mut self, most: u64) {
        while self.queue.peek().is_some_and(|Reverse((at, ..))| *at <= most) {
            let Some(Reverse((at, _, index))) = self.queue.pop() else { return };
            self.now = self.now.max(at);
            let (side, event) = self.events[index].take().expect("an event that has not happened");
            self.happen(side, event);
        }
    }

    /// After all has been quiet for long: one side ends, or both, or nobody.
    fn part(&mut self) {
        let (way, side) = (self.draw.below(4), self.draw.below(2) as usize);
        match way {
            1 => self.put(side, MS, Event::Disconnect),
            2 => {
                let after = self.draw.below(100 * MS);
                self.put(side, MS, Event::Disconnect);
                self.put(1 - side, after, Event::Disconnect);
            }
            3 => self.put(side, MS, Event::Stop),
            _ => {}
        }
        self.play(self.now + 4 * TIMEOUT);
        let ends = |side: &Side| side.downs.len() + side.given_up.len();
        let over = |side: &&Side| side.session.is_some() && side.ups == 0 && !side.stopped;
        assert!(
            self.sides.iter().filter(over).all(|side| ends(side) == 1),
            "what does not come up ends once"
        );
        let stopped = self.sides.iter().any(|side| side.stopped);
        let disconnects = self.sides.iter().any(|side| side.disconnects);
        for side in self.sides.iter().filter(|side| side.ups > 0 && !side.stopped) {
            let outcomes: Vec<Status> = side.downs.iter().map(|(outcome, _)| outcome.status).collect();
            match (stopped, disconnects) {
                (true, _) => assert_eq!(outcomes, [Status::PeerLost], "a peer that stops is lost"),
                (_, false) => assert!(outcomes.is_empty(), "a live peer is kept: {outcomes:?}"),
                _ if side.disconnects => assert!(matches!(outcomes[..], [Status::Ok | Status::PeerClosed])),
                _ => assert!(matches!(outcomes[..], [Status::PeerClosed | Status::PeerLost]), "{outcomes:?}"),
            }
        }
    }

    fn check(&self) {
        if self.sides.iter().any(|side| side.disconnects) {
            return;
        }
        let works = self.fabrics.iter().flat_map(|(_, lanes)| lanes).any(|(_, fate)| *fate == Fate::Works);
        if !works {
            for side in self.sides.iter().filter(|side| side.session.is_some()) {
                assert_eq!((side.ups, side.given_up.len()), (0, 1), "a side gives up once");
            }
            return;
        }
        let fabrics = self.sides.each_ref().map(|side| {
            assert_eq!((side.ups, side.given_up.len()), (1, 0), "a side comes up once");
            assert_eq!(side.received, (0..MESSAGES).collect::<Vec<_>>(), "messages arrive once and in order");
            let session = side.session.as_ref().expect("a session that is up");
            session.serving().map(|serving| serving.fabric.clone())
        });
        assert_eq!(fabrics[0], fabrics[1], "both sides use one fabric");
    }
}

/// Plays these seeds: how many events happened.
fn play(seeds: std::ops::Range<u64>) -> usize {
    let mut events = 0;
    for seed in seeds {
        let mut pair = Pair::new(seed);
        let played = catch_unwind(AssertUnwindSafe(|| {
            pair.play(2 * TIMEOUT);
            pair.check();
            pair.part();
        }));
        if let Err(panic) = played {
            let said =
                |side: &Side| side.session.as_ref().map_or("none".into(), |session| session.to_string());
            eprintln!("seed {seed}, at {} ms, {:?}", pair.now / MS, pair.fabrics);
            pair.sides.iter().for_each(|side| eprintln!("  {} (lanes {:?})", said(side), side.lanes));
            std::panic::resume_unwind(panic);
        }
        events += pair.events.len();
    }
    events
}

/// The states and moves, as ARCHITECTURE.md has them.
fn diagram() -> String {
    let width = MOVES.iter().map(|(from, ..)| from.len()).max().unwrap_or(0);
    let line = |(from, to, why): &(&str, &str, &str)| format!("{from:width$} -> {to:width$}  {why}\n");
    MOVES.iter().map(line).collect()
}

#[test]
fn sessions_agree_on_a_fabric_and_on_the_end() {
    let began = std::time::Instant::now();
    let events = play(0..SEEDS);
    println!("session_seeds_per_s {:.0} ({events} events)", SEEDS as f64 / began.elapsed().as_secs_f64());
    MOVES_SEEN.with_borrow(|seen| {
        for (from, to, why) in MOVES {
            assert!(
                seen.contains(&(from.to_string(), to.to_string())),
                "{from} to {to} was never seen: {why}"
            );
        }
    });
}

#[test]
fn the_diagram_of_the_architecture_is_what_the_code_has() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/ARCHITECTURE.md");
    let text = std::fs::read_to_string(path).expect("ARCHITECTURE.md");
    assert!(text.contains(&diagram()), "put this into ARCHITECTURE.md:\n{}", diagram());
}
