//! Two sessions, a clock, and a link between them that loses, doubles, delays, reorders and cuts,
//! in one thread. A seed says what happens; a failure names it.
//!
//! A run connects, perhaps loses lanes again and again while both sides notify each other, and ends
//! in one of five ways: nobody disconnects, one side does, or both, one side stops, or one disconnects
//! and connects again as a new peer, whatever the other knows of that. What workers carry out for lanes
//! (`worker::handshake`, `failover`) is played by `Side`; what they decide is `lane::Life`.

use super::approach::{Approach, Approaches};
use super::channel::Out;
use super::*;
use crate::fabric::{Resets, ANOTHER};
use crate::ids::{OpId, RailIndex};
use crate::lane::tests::{are_drawn, moves_not_seen};
use crate::lane::{
    Asked, Carried, Consequence, Failure, Life, Request, Serving, Sight as LaneSight, Step, Why, AGAIN_NS,
};
use crate::pass::thread_ns;
use crate::wire::frame::USER;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::panic::{catch_unwind, AssertUnwindSafe};

const MS: u64 = 1_000_000;
/// The timeout of a test's connects, and how long silence is allowed.
const TIMEOUT: u64 = 20_000 * MS;
const SILENCE: u64 = 15_000 * MS;
/// Runs of the random test, which take some seconds in a development build.
const SEEDS: u64 = 10_000;

thread_local! {
    static MOVES_SEEN: RefCell<BTreeSet<(String, String)>> = RefCell::default();
}

pub(super) fn note_move(from: &str, to: &str) {
    if from != to {
        // A world that is closed as its thread ends may find the set freed.
        let _ = MOVES_SEEN.try_with(|seen| seen.borrow_mut().insert((from.into(), to.into())));
    }
}

/// Whether a notification under a grant is refused.
fn is_refused(id: u64) -> bool {
    id % 5 == 0
}

/// Random numbers from a seed (splitmix64).
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

/// The outcome of handshakes over a pair of rails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Works,
    Fails,
    Silent,
}

/// A side's end of a lane.
#[derive(Debug)]
struct Lane {
    plan: Plan,
    life: Life,
    /// Its operations have come back.
    rests: bool,
}

/// The lane that something is sent over: the sender's plan and epoch.
type Over = (Plan, u64);

/// The connection that an event is of: the side's own, or for what was sent the sender's, and the
/// receiver's as the sender knows it.
#[derive(Clone, Copy)]
enum Whose {
    Own(u64),
    Sent { from: u64, to: u64 },
}

#[derive(Clone)]
enum Sent {
    Frame { kind: Kind, number: u32, acknowledged: u32, body: Vec<u8> },
    Plain(Kind, Vec<u8>),
    Acknowledge(Vec<u64>),
}

enum Event {
    /// A side connects, unless it already has the other.
    Connect,
    /// A lane repeats its handshake request.
    Again(Over),
    Request(Over),
    /// The reply to a request of this epoch, from a lane of another epoch.
    Reply(Plan, u64, u64),
    /// A lane's probe has arrived, or failed.
    Probed(Over),
    ProbeFails(Over),
    Fails(Over),
    /// The owner ends the peer, since a lane that served it is broken.
    End,
    /// A side detects a failed lane; the lane's operations have come back.
    Cut(Plan),
    /// The other end of a lane is reset: what is posted over it fails.
    Closed(Over),
    Rests(Over),
    Arrives(Over, Sent),
    /// The side submits a notification.
    Notify,
    Disconnect,
    /// The outstanding operations have ended.
    Ended,
    LanesQuiesced,
    /// The side stops for ever.
    Stop,
    Timeout,
}

#[derive(Default)]
struct Side {
    session: Option<Session>,
    /// The numbers of this side's connection, and of the other side's; 0: not known yet.
    life: u64,
    theirs: u64,
    last: u64,
    lanes: Vec<Lane>,
    serving: Serving,
    /// A lane broke, so the peer ends.
    broken: bool,
    epochs: u64,
    /// The newest epochs of the peer's lanes.
    newest: BTreeMap<(u16, u16), u64>,
    ups: usize,
    given_up: Vec<String>,
    /// The outcome of each PEER_DOWN, and whether both sides had drained.
    downs: Vec<(Outcome, bool)>,
    /// Notifications: the number submitted; those of unknown outcome; those received.
    submitted: u64,
    unknown: BTreeSet<u64>,
    refused: BTreeSet<u64>,
    received: Vec<u64>,
    alive_ns: u64,
    stopped: bool,
    disconnects: bool,
    /// Operations under grants wait for what the peer has to say.
    behind: bool,
    /// When its next `Timeout` is queued.
    asked: Option<u64>,
}

impl Side {
    fn session(&mut self) -> &mut Session {
        self.session.as_mut().expect("a session")
    }

    /// The end of a lane, unless it ends.
    fn lane(&mut self, plan: Plan) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|lane| lane.plan == plan && !lane.life.is_ending())
    }

    fn lane_of(&mut self, (plan, epoch): Over) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|lane| (lane.plan, lane.life.epoch()) == (plan, epoch))
    }

    /// The lane that carries frames.
    fn path(&self) -> Option<Over> {
        let serving: Vec<Plan> = self.session.iter().flat_map(Session::lanes_up).collect();
        let up = |lane: &&Lane| lane.life.is_up() && serving.contains(&lane.plan);
        self.lanes.iter().find(up).map(|lane| (lane.plan, lane.life.epoch()))
    }

    fn show_lanes(&mut self) {
        let up = self.session().lanes_up().collect();
        self.serving.set(up);
    }

    fn has_ended(&self) -> bool {
        self.session.as_ref().is_some_and(|session| matches!(session.state, State::Ended { .. }))
    }

    /// The peer has a lane of this epoch, so it has reset older ones. False if an older lane is not
    /// reset here.
    fn note_peer_reset(&mut self, plan: Plan, epoch: u64) -> bool {
        let lanes = self.lanes.iter_mut().filter(|lane| lane.plan == plan);
        Life::peer_has(lanes.map(|lane| &mut lane.life), epoch)
    }
}

struct Pair {
    draw: Draw,
    now: u64,
    sides: [Side; 2],
    /// Times and numbers of queued events: the earliest comes first.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    events: Vec<Option<(usize, Whose, Event)>>,
    /// The fabrics, best first, and the outcome for each pair of their rails.
    fabrics: Vec<(String, Vec<(Plan, Fate)>)>,
    /// How each fabric's NICs can reset a lane.
    resets: Vec<Resets>,
    decider: usize,
    loses: u64,
    doubles: u64,
    latest: u64,
}

fn plan(rail: u16, remote_rail: u16) -> Plan {
    Plan { rail: RailIndex::new(rail), remote_rail: RailIndex::new(remote_rail) }
}

/// The plan from the other side's view.
fn mirrored(plan: Plan) -> Plan {
    Plan { rail: plan.remote_rail, remote_rail: plan.rail }
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let mut draw = Draw(seed);
        let fabrics = (0..1 + draw.below(3)).map(|fabric| {
            let all = [Fate::Works, Fate::Works, Fate::Fails, Fate::Silent];
            let lanes = (0..1 + draw.below(3)).map(|rail| {
                let rail = (fabric * 8 + rail) as u16;
                (plan(rail, rail + 32), all[draw.below(4) as usize])
            });
            (format!("fabric{fabric}"), lanes.collect())
        });
        let fabrics: Vec<_> = fabrics.collect();
        let resets =
            fabrics.iter().map(|_| if draw.percent(85) { Resets::Lane } else { Resets::Never }).collect();
        let (loses, doubles) = (draw.below(40), draw.below(40));
        let (decider, latest) = (draw.below(2) as usize, MS * (1 + draw.below(30)));
        let sides = [1, 1].map(|life| Side { life, ..Side::default() });
        let (queue, events) = Default::default();
        let mut pair =
            Pair { draw, now: 1, sides, queue, events, fabrics, resets, decider, loses, doubles, latest };
        pair.put(0, MS, Event::Connect);
        if pair.draw.percent(50) {
            pair.put_within(1, 100 * MS, Event::Connect);
        }
        if pair.draw.percent(15) {
            pair.put_within(0, 2000 * MS, Event::Disconnect);
        }
        if pair.draw.percent(25) {
            pair.cut_while_connecting();
        }
        pair
    }

    /// A lane that others can stand in for fails early: perhaps before the peers are up.
    fn cut_while_connecting(&mut self) {
        let works = |lanes: &[(Plan, Fate)]| -> Vec<Plan> {
            lanes.iter().filter(|(_, fate)| *fate == Fate::Works).map(|(plan, _)| *plan).collect()
        };
        let fabric = self.draw.below(self.fabrics.len() as u64) as usize;
        let plans = works(&self.fabrics[fabric].1);
        if plans.len() < 2 || self.resets[fabric] != Resets::Lane {
            return;
        }
        let plan = plans[self.draw.below(plans.len() as u64) as usize];
        let (side, most) = (self.draw.below(2) as usize, MS * (1 << self.draw.below(11)));
        self.put_within(side, most, Event::Cut(if side == 0 { plan } else { mirrored(plan) }));
    }

    /// Queues an event of a side, after some time.
    fn put(&mut self, side: usize, after: u64, event: Event) {
        self.put_of(side, after, Whose::Own(self.sides[side].life), event);
    }

    fn put_of(&mut self, side: usize, after: u64, life: Whose, event: Event) {
        self.queue.push(Reverse((self.now + after, self.events.len())));
        self.events.push(Some((side, life, event)));
    }

    fn put_within(&mut self, side: usize, most: u64, event: Event) {
        let after = self.draw.below(most);
        self.put(side, after, event);
    }

    /// Sends a frame that may be duplicated and, if `may_get_lost`, lost.
    fn send(&mut self, from: usize, may_get_lost: bool, event: impl Fn() -> Event) {
        for _ in 0..1 + usize::from(self.draw.percent(self.doubles)) {
            if !(may_get_lost && self.draw.percent(self.loses)) {
                let life = Whose::Sent { from: self.sides[from].life, to: self.sides[from].theirs };
                let after = self.draw.below(self.latest);
                self.put_of(1 - from, after, life, event());
            }
        }
    }

    fn found(&self, side: usize, wanted: Plan) -> (&str, Fate) {
        let wanted = if side == 0 { wanted } else { mirrored(wanted) };
        let lanes = self.fabrics.iter().flat_map(|(name, lanes)| lanes.iter().map(move |lane| (name, lane)));
        let mut found = lanes.filter(|(_, (plan, _))| *plan == wanted);
        found.next().map(|(name, (_, fate))| (name.as_str(), *fate)).expect("a pair of rails of the test")
    }

    /// How the NICs of a lane can reset it.
    fn resets(&self, side: usize, wanted: Plan) -> Resets {
        let wanted = if side == 0 { wanted } else { mirrored(wanted) };
        let has = |(_, lanes): &(String, Vec<(Plan, Fate)>)| lanes.iter().any(|(plan, _)| *plan == wanted);
        self.fabrics.iter().position(has).map_or(Resets::Never, |at| self.resets[at])
    }

    fn can_reset(&self, side: usize, wanted: Plan) -> bool {
        self.resets(side, wanted) != Resets::Never
    }

    fn begin(&mut self, side: usize, over: Option<&str>) {
        let seen = |plan: Plan| if side == 0 { plan } else { mirrored(plan) };
        let all = self.fabrics.iter().map(|(name, lanes)| {
            Approach::new(name.clone(), lanes.iter().map(|(plan, _)| seen(*plan)).collect())
        });
        let approaches = Approaches::new(all.collect(), TIMEOUT);
        let (decides, deadline) = (side == self.decider, self.now + TIMEOUT);
        let mut session =
            Session::new(Terms { decides, deadline, lanes: 64, liveness_ns: Some(SILENCE) }, approaches);
        session.begin(over, self.now);
        self.sides[side].session = Some(session);
        self.carry_out(side);
    }

    // Performs what workers do for a session.

    fn carry_out(&mut self, side: usize) {
        while let Some(action) = self.sides[side].session.as_mut().and_then(Session::poll_action) {
            self.act(side, action);
        }
        if self.sides[side].has_ended() {
            return;
        }
        self.flush(side);
        while let Some((kind, body)) = self.sides[side].session.as_mut().and_then(Session::poll_transmit) {
            let over = self.sides[side].path().filter(|_| self.draw.percent(90));
            if let Some(over) = over {
                let all = channel::acknowledgement(&self.sides[side].session().channels);
                let sent = match kind {
                    Kind::Ack => Sent::Acknowledge(all),
                    kind => Sent::Plain(kind, body),
                };
                self.send(side, true, || Event::Arrives(over, sent.clone()));
            }
            let now = self.now;
            self.sides[side].session().transmitted(kind, over.is_some(), now);
            if self.sides[side].session().has_news() {
                return self.carry_out(side);
            }
        }
        let (here, now) = (&mut self.sides[side], self.now);
        let Some(due) = here.session.as_ref().and_then(Session::poll_timeout) else { return };
        if here.asked.is_none_or(|asked| due < asked || asked < now) {
            here.asked = Some(due);
            self.put(side, due.saturating_sub(now), Event::Timeout);
        }
    }

    fn act(&mut self, side: usize, action: Action) {
        let now = self.now;
        let here = &mut self.sides[side];
        match action {
            Action::AddLanes(plans) => {
                let mut new = Vec::new();
                for plan in plans {
                    match here.lane(plan) {
                        Some(lane) if lane.life.is_handshaking() && !lane.life.is_waiting() => {
                            lane.life.restart()
                        }
                        Some(_) => continue,
                        None => {
                            here.epochs += 1;
                            let life = Life::new(here.epochs, now);
                            here.lanes.push(Lane { plan, life, rests: false });
                        }
                    }
                    let epoch = here.lane(plan).expect("a lane that was added").life.epoch();
                    new.push((plan, epoch));
                }
                for over in new {
                    self.put(side, 0, Event::Again(over));
                }
            }
            Action::Serve => {
                let serving: Vec<Plan> = here.session().serving().expect("what serves").plans().collect();
                here.show_lanes();
                self.drop_lanes(side, |lane| !serving.contains(&lane.plan));
            }
            Action::Up => here.ups += 1,
            Action::GiveUp(why) => {
                here.given_up.push(why);
                let outcome = here.session().not_reached();
                here.session().end(outcome);
            }
            Action::EndOutstanding(_) => self.put_within(side, 5 * MS, Event::Ended),
            Action::Quiesce => {
                // Some lanes do not drain in time.
                let after = if self.draw.percent(10) { 3000 } else { self.draw.below(200) };
                self.put(side, after * MS, Event::LanesQuiesced);
            }
            Action::End(outcome) => self.end(side, outcome),
            Action::ShowLanes => here.show_lanes(),
            Action::ResetLane { plan, epoch, asks, .. } => self.reset_as_asked(side, plan, epoch, asks),
            Action::Unknown(ids, _) => here.unknown.extend(ids.iter().map(|id| id.get())),
            Action::Acknowledged(_, frames) => self.taken(side, frames),
            Action::Refused(ids) => self.refused(side, ids),
            Action::Retract(ids) => {
                for id in ids {
                    assert!(!self.sides[1 - side].received.contains(&id.get()), "{id:?} was received");
                    self.notify(side, id.get(), false);
                }
            }
            Action::LaneBack { .. }
            | Action::LanesMissing(_)
            | Action::Flush
            | Action::TryAnother
            | Action::Back(_) => {}
            Action::Away(_) | Action::Behind => here.behind = true,
            Action::CaughtUp => here.behind = false,
        }
    }

    fn end(&mut self, side: usize, outcome: Outcome) {
        let here = &mut self.sides[side];
        let outcome = here.session().end(outcome);
        let agreed = here.session().is_agreed();
        here.downs.push((outcome, agreed));
        self.drop_lanes(side, |_| true);
    }

    /// Sends the channels' frames and acknowledgements, as workers do.
    fn flush(&mut self, side: usize) {
        let Some(over) = self.sides[side].path() else { return };
        let now = self.now;
        if self.sides[side].session().is_away() {
            return;
        }
        for at in 0..CHANNELS {
            loop {
                let session = self.sides[side].session();
                let up = session.is_up();
                let Some((number, out)) = session.channels[at].next() else { break };
                if !up && out.kind != Kind::Ready {
                    break;
                }
                let (kind, body) = (out.kind, out.body.clone());
                let acknowledged = session.channels[at].acknowledged_in_headers();
                session.channels[at].sent(now);
                session.note_sent(now);
                let frame = Sent::Frame { kind, number, acknowledged, body };
                self.send(side, false, || Event::Arrives(over, frame.clone()));
            }
        }
        let session = self.sides[side].session();
        if session.channels.iter().any(|channel| channel.acknowledgement_due(u64::MAX)) {
            let all = channel::acknowledgement(&session.channels);
            session.channels.iter_mut().for_each(|channel| channel.acknowledgement_sent_alone(now));
            self.send(side, true, || Event::Arrives(over, Sent::Acknowledge(all.clone())));
        }
    }

    /// The peer has acknowledged frames.
    fn taken(&mut self, side: usize, frames: impl IntoIterator<Item = Out>) {
        for id in frames.into_iter().filter_map(|out| out.done) {
            assert!(
                self.sides[1 - side].received.contains(&id.get()),
                "{id:?} was acknowledged, and did not come"
            );
        }
    }

    fn refused(&mut self, side: usize, ids: impl IntoIterator<Item = OpId>) {
        self.sides[side].refused.extend(ids.into_iter().map(OpId::get));
    }

    /// Those that are sent after their bytes may be under a grant. Some of these are refused.
    fn notify(&mut self, side: usize, id: u64, speculative: bool) {
        let done = OpId::new(id);
        let kind = if speculative { Kind::Notify } else { Kind::NotifyUnder };
        let out = Out { speculative, done, ..Out::new(kind, numbers(&[id])) };
        self.sides[side].session().channels[USER].push(out);
    }

    /// An operation of a lane that was up fails.
    fn fails(&mut self, side: usize, over: Over, errno: i32) {
        let (now, (plan, epoch), resets) = (self.now, over, self.resets(side, over.0));
        let Side { session, lanes, serving, broken, .. } = &mut self.sides[side];
        let Some(session) = session else { return };
        let serves = session.serving().is_some_and(|fabric| fabric.has(plan));
        let lane = lanes.iter_mut().find(|lane| (lane.plan, lane.life.epoch()) == (plan, epoch));
        let Some(lane) = lane.filter(|lane| lane.life.is_up()) else { return };
        let failure = Failure { errno, serves, connecting: !session.is_up(), resets, reconnects: true };
        match lane.life.failed(failure, |last| session.is_up() && serving.lose(plan, last), now) {
            Consequence::Reset => self.begin_reset(side, over, errno, false, false),
            Consequence::Broken { ends_peer: true } => {
                *broken = true;
                self.put_within(side, 400 * MS, Event::End);
            }
            consequence @ (Consequence::GivenUp | Consequence::Broken { .. }) => {
                if consequence == Consequence::GivenUp {
                    self.drop_lanes(side, |lane| (lane.plan, lane.life.epoch()) == over);
                }
                let why = Why { at: "there".into(), text: "it failed".into() };
                self.tell(side, plan, LaneEvent::Failed { errno, why });
            }
            other => panic!("{other:?}"),
        }
    }

    fn begin_reset(&mut self, side: usize, over: Over, errno: i32, peer_reset: bool, asked: bool) {
        let Some(lane) = self.sides[side].lane_of(over) else { return };
        assert!(lane.life.begin_reset(errno, peer_reset), "it does not end yet");
        let peer_epoch = lane.life.peer_epoch();
        let outcome = Outcome { provider_errno: errno, ..Outcome::new(Status::PeerLost) };
        let (plan, epoch) = over;
        let carried = [Carried::Frames, Carried::Stuck, Carried::All][epoch as usize % 3];
        self.tell(side, plan, LaneEvent::Reset { epoch, outcome, asks: !peer_reset, carried });
        let here = &mut self.sides[side];
        if errno == libc::EIO && matches!(here.session().state, State::Up) {
            assert!(here.session().behind.is_some(), "such an operation may end the next lane, too");
        }
        if let Some(epoch) = peer_epoch.filter(|_| asked) {
            self.tell(side, plan, LaneEvent::ResetHere { epoch, address: Vec::new() });
        }
        self.put_within(side, 20 * MS, Event::Rests(over));
    }

    /// The peer has reset its end of a lane.
    fn reset_as_asked(&mut self, side: usize, plan: Plan, epoch: u64, asks: bool) {
        let resets = self.resets(side, plan);
        let mut lanes = self.sides[side].lanes.iter_mut();
        let lane = lanes.find(|lane| lane.plan == plan && lane.life.is_meant(epoch, asks));
        let over = lane.as_ref().map(|lane| (plan, lane.life.epoch()));
        match (Life::peer_reset(lane.map(|lane| &mut lane.life), asks, resets), over) {
            (Asked::Confirm, _) => self.tell(side, plan, LaneEvent::ResetHere { epoch, address: Vec::new() }),
            (Asked::Reset, Some(over)) => {
                self.sides[side].serving.lose(plan, true);
                self.begin_reset(side, over, libc::ECONNRESET, true, true)
            }
            (Asked::Nothing, _) => {}
            asked => panic!("{asked:?}"),
        }
        self.reap(side);
    }

    /// Removes the lanes that have nothing left in flight.
    fn reap(&mut self, side: usize) {
        let over = |lane: &Lane| lane.life.is_reset(u32::from(!lane.rests));
        let gone: Vec<Over> = self.sides[side]
            .lanes
            .iter()
            .filter(|lane| over(lane))
            .map(|lane| (lane.plan, lane.life.epoch()))
            .collect();
        let drained = |lane: &Lane| lane.rests && lane.life.draining_since().is_some();
        self.sides[side].lanes.retain(|lane| !over(lane) && !drained(lane));
        for (plan, epoch) in gone {
            self.tell(side, plan, LaneEvent::Quiesced { epoch });
        }
    }

    fn drop_lanes(&mut self, side: usize, goes: impl Fn(&Lane) -> bool) {
        let now = self.now;
        let mut gone = Vec::new();
        for lane in self.sides[side].lanes.iter_mut().filter(|lane| goes(lane)) {
            lane.life.drain(false, now);
            gone.push((lane.plan, lane.life.epoch()));
        }
        gone.into_iter().for_each(|over| self.put_within(side, 20 * MS, Event::Rests(over)));
    }

    fn give_up_lane(&mut self, side: usize, plan: Plan) {
        self.drop_lanes(side, |lane| lane.plan == plan && !lane.life.is_ending());
        let why = Why { at: "there".into(), text: "it was not answered".into() };
        self.tell(side, plan, LaneEvent::Failed { errno: libc::ETIMEDOUT, why });
    }

    /// A request of the peer arrived: an older lane is reset here. False: the peer has to repeat
    /// it.
    fn meets(&mut self, side: usize, (plan, epoch): Over) -> bool {
        if !self.sides[side].note_peer_reset(plan, epoch) {
            return false;
        }
        let resets = self.sides[side].session().is_up() && self.can_reset(side, plan);
        let Some(lane) = self.sides[side].lane(plan) else { return true };
        let over = (plan, lane.life.epoch());
        match lane.life.meets(epoch, resets) {
            Request::Answer => return true,
            Request::Ignore => return false,
            Request::Reset => {
                self.sides[side].serving.lose(plan, true);
                self.begin_reset(side, over, libc::ECONNRESET, true, false)
            }
            Request::GiveUp => self.give_up_lane(side, plan),
        }
        self.reap(side);
        self.sides[side].note_peer_reset(plan, epoch)
    }

    fn request(&mut self, side: usize, over: Over) {
        let (now, (plan, epoch)) = (self.now, over);
        let fabric = self.found(side, plan).0.to_owned();
        let known = self.sides[side].session.is_some();
        let newest = self.sides[side].newest.entry((plan.rail.get(), plan.remote_rail.get())).or_default();
        if epoch < *newest {
            return;
        }
        *newest = epoch;
        if !known {
            self.begin(side, Some(&fabric));
            if let Some(lane) = self.sides[side].lane(plan) {
                _ = lane.life.meets(epoch, false);
            }
        } else if !self.meets(side, over) {
            return;
        }
        if self.sides[side].lane(plan).is_none() {
            assert!(self.sides[side].session().handle_request(plan, Some(&fabric), now));
            self.carry_out(side);
            // (Frames of a peer that connects may come before its reply; later, that says the epoch.)
            let connecting = !self.sides[side].session().is_up();
            if let Some(lane) = self.sides[side].lane(plan).filter(|_| connecting) {
                _ = lane.life.meets(epoch, false);
            }
        }
        if let Some(lane) = self.sides[side].lane(plan) {
            let own = lane.life.epoch();
            if lane.life.is_handshaking() && !lane.life.is_waiting() {
                lane.life.restart();
                self.put(side, 0, Event::Again((plan, own)));
            }
            self.send(side, true, || Event::Reply(mirrored(plan), epoch, own));
        }
    }

    fn receive(&mut self, side: usize, sent: Sent) {
        let now = self.now;
        match sent {
            Sent::Plain(kind, body) => {
                self.sides[side].session().handle_frame(kind, &body, now).expect("a frame that can be");
            }
            Sent::Acknowledge(all) => {
                for (at, number) in all.iter().filter_map(|entry| channel::read_refusal(*entry)) {
                    let refused = self.sides[side].session().channels[at].refused(number);
                    self.refused(side, refused);
                }
                for (at, number) in all.into_iter().take(CHANNELS).enumerate() {
                    let taken: Vec<Out> =
                        self.sides[side].session().channels[at].acknowledge(number as u32).collect();
                    self.taken(side, taken);
                }
            }
            Sent::Frame { kind, number, acknowledged, body } => {
                let at = kind.channel().expect("a frame of a channel");
                let channel = &mut self.sides[side].session().channels[at];
                let taken: Vec<Out> = channel.acknowledge(acknowledged).collect();
                channel.arrived(number);
                channel.receive(number, kind, &body, now);
                self.taken(side, taken);
                self.deliver(side, at);
            }
        }
        if self.sides[side].session().is_up() {
            self.deliver(side, USER);
        }
    }

    fn deliver(&mut self, side: usize, at: usize) {
        let now = self.now;
        let here = &mut self.sides[side];
        let session = here.session.as_mut().expect("a session");
        while at == SYSTEM || session.is_up() {
            let Some((kind, body)) = session.channels[at].take_deliverable() else { return };
            match kind {
                Kind::NotifyUnder if read_numbers::<1>(&body).is_some_and(|[id]| is_refused(id)) => {
                    session.channels[at].refuse(now);
                    continue;
                }
                Kind::Notify | Kind::NotifyUnder => {
                    here.received.extend(read_numbers::<1>(&body).map(|[n]| n))
                }
                Kind::Raise => {} // The frame replaces one that is not sent again.
                _ => session.handle_frame(kind, &body, now).expect("a frame that can be"),
            }
            session.channels[at].deliver(now, true);
            session.catch_up();
        }
    }

    fn tell(&mut self, side: usize, plan: Plan, event: LaneEvent) {
        let now = self.now;
        self.sides[side].session().handle_lane(plan, event, now);
    }

    /// Whether an event of this connection is handled. A request for a new connection ends the old
    /// one.
    fn is_of(&mut self, side: usize, life: Whose, request: bool) -> bool {
        let here = &mut self.sides[side];
        let (from, to) = match life {
            Whose::Own(own) => return own == here.life,
            Whose::Sent { from, to } => (from, to),
        };
        if from <= here.last || to != 0 && to != here.life {
            return false;
        }
        if here.theirs != 0 && from > here.theirs && request {
            if !self.sides[side].has_ended() {
                self.sides[side].session().end(Outcome::new(Status::PeerClosed));
            }
            self.renew(side);
        }
        let here = &mut self.sides[side];
        if here.theirs == 0 && (request || here.session.is_some()) {
            here.theirs = from;
        }
        here.theirs == from
    }

    /// Drops a connection that has ended.
    fn renew(&mut self, side: usize) {
        let Side { life, theirs, last, epochs, .. } = self.sides[side];
        self.sides[side] = Side { life: life + 1, last: last.max(theirs), epochs, ..Side::default() };
    }

    fn happen(&mut self, side: usize, life: Whose, event: Event) {
        let now = self.now;
        if self.sides[side].stopped || !self.is_of(side, life, matches!(event, Event::Request(_))) {
            return;
        }
        if self.sides[side].has_ended() {
            let closes = |kind: &Kind| matches!(kind, Kind::Closing | Kind::Close | Kind::CloseAck);
            // A frame for an ended peer: the other side gets Close.
            if let Event::Arrives(over, sent) = event {
                if !matches!(&sent, Sent::Plain(kind, _) if closes(kind)) {
                    let over = (mirrored(over.0), u64::MAX);
                    self.send(side, true, || Event::Arrives(over, Sent::Plain(Kind::Close, Vec::new())));
                }
            }
            return;
        }
        match event {
            Event::Connect if self.sides[side].session.is_none() => self.begin(side, None),
            Event::Connect => {}
            Event::Again(over) => self.again(side, over),
            Event::Request(over) => self.request(side, over),
            Event::Reply(plan, epoch, theirs) => {
                let Some(lane) = self.sides[side].lane_of((plan, epoch)) else { return };
                if !lane.life.awaits(theirs) {
                    return;
                }
                lane.life.answered(theirs);
                self.sides[side].note_peer_reset(plan, theirs);
                self.reap(side);
                self.put(side, 0, Event::Again((plan, epoch)));
            }
            Event::Probed(over) => {
                let Some(lane) = self.sides[side].lane_of(over) else { return };
                if lane.life.probed() {
                    self.tell(side, over.0, LaneEvent::Up);
                }
            }
            Event::ProbeFails(over) => {
                let Some(lane) = self.sides[side].lane_of(over).filter(|lane| !lane.life.is_ending()) else {
                    return;
                };
                if lane.life.attempt_failed(libc::ECONNRESET, true, now) {
                    let why = Why { at: "there".into(), text: "its probes fail".into() };
                    self.tell(side, over.0, LaneEvent::Failed { errno: libc::ECONNRESET, why });
                } else {
                    self.put(side, AGAIN_NS, Event::Again(over));
                }
            }
            Event::Fails(over) => {
                let Some(lane) = self.sides[side].lane_of(over) else { return };
                if lane.life.is_handshaking() && lane.life.attempt_failed(libc::ECONNREFUSED, false, now) {
                    let why = Why { at: "there".into(), text: "nothing listens".into() };
                    self.tell(side, over.0, LaneEvent::Failed { errno: libc::ECONNREFUSED, why });
                }
            }
            Event::Cut(plan) => {
                // The last would fail on a new lane, too.
                let errno =
                    [libc::ETIMEDOUT, libc::EIO, libc::EIO, libc::EINVAL][self.draw.below(4) as usize];
                if let Some(epoch) = self.sides[side].lane(plan).map(|lane| lane.life.epoch()) {
                    self.fails(side, (plan, epoch), errno);
                }
            }
            Event::Closed(over) => self.fails(side, over, libc::ECONNRESET),
            Event::End => self.end(side, Outcome::new(Status::PeerLost)),
            Event::Rests(over) => {
                if let Some(lane) = self.sides[side].lane_of(over) {
                    lane.rests = true;
                    self.reap(side);
                }
            }
            Event::Arrives((plan, epoch), sent) => {
                // The frames and actions of a session that has ended, or of a lane whose end here
                // is not reset.
                let theirs = mirrored(plan);
                let resets = self.can_reset(side, theirs);
                let here = self.sides[side]
                    .lane(theirs)
                    .is_some_and(|lane| !resets || lane.life.peer_epoch() == Some(epoch));
                let there =
                    self.sides[1 - side].lane_of((plan, epoch)).is_some_and(|lane| !lane.life.is_ending());
                if epoch != u64::MAX && !here && resets {
                    self.put(1 - side, MS, Event::Closed((plan, epoch)));
                }
                if epoch != u64::MAX && !(here && (there || self.draw.percent(50))) {
                    return;
                }
                self.sides[side].alive_ns = now;
                self.receive(side, sent);
            }
            Event::Notify => {
                let here = &mut self.sides[side];
                if !here.session().is_up() || here.session().closing().is_some() {
                    return;
                }
                here.submitted += 1;
                let (id, alone) = (here.submitted, here.session().lanes_up().count() == 1);
                let speculative = alone && !here.session().is_away() && self.draw.percent(50);
                self.notify(side, id, speculative);
            }
            Event::Disconnect => {
                if let Some(session) = self.sides[side].session.as_mut() {
                    session.disconnect(now);
                    self.sides[side].disconnects = true;
                }
            }
            Event::Ended => self.sides[side].session().outstanding_ended(now),
            Event::LanesQuiesced => self.sides[side].session().lanes_quiesced(now),
            Event::Stop => self.sides[side].stopped = true,
            Event::Timeout => {
                let sight = Sight { alive_ns: self.sides[side].alive_ns, busy: self.draw.percent(20) };
                let session = self.sides[side].session();
                session.handle_timeout(sight, now);
                assert!(session.poll_timeout().is_none_or(|due| due > now), "a due timer is still set");
                self.sides[side].asked = None;
            }
        }
        self.carry_out(side);
    }

    fn again(&mut self, side: usize, over: Over) {
        let now = self.now;
        let (peer_up, resets) = (self.sides[side].session().is_up(), self.can_reset(side, over.0));
        let Some(lane) = self.sides[side].lane_of(over) else { return };
        match lane.life.poll(LaneSight { peer_up, resets, ..LaneSight::default() }, now) {
            None => {}
            Some(Step::Unanswered) => return self.give_up_lane(side, over.0),
            Some(Step::Gone) => panic!("that was not seen"),
            Some(Step::Request { .. }) => {
                lane.life.requested(now);
                match self.found(side, over.0).1 {
                    Fate::Works => self.send(side, true, || Event::Request((mirrored(over.0), over.1))),
                    Fate::Fails => self.put(side, 2 * MS, Event::Fails(over)),
                    Fate::Silent => {}
                }
            }
            Some(Step::Probe) => {
                lane.life.probe_posted(false, now);
                let arrives = self.draw.percent(95);
                self.put_within(
                    side,
                    20 * MS,
                    if arrives { Event::Probed(over) } else { Event::ProbeFails(over) },
                );
            }
        }
        let lane = self.sides[side].lane_of(over).filter(|lane| lane.life.is_open() && !lane.life.is_up());
        if lane.is_some_and(|lane| lane.life.is_waiting() || peer_up) {
            self.put(side, AGAIN_NS, Event::Again(over));
        }
    }

    // A run.

    /// Plays until no event is left, or for this long.
    fn play(&mut self, time: u64) {
        let most = self.now + time;
        while self.queue.peek().is_some_and(|Reverse((at, ..))| *at <= most) {
            let Some(Reverse((at, index))) = self.queue.pop() else { return };
            self.now = self.now.max(at);
            let (side, life, event) = self.events[index].take().expect("an event that has not happened");
            self.happen(side, life, event);
        }
        self.now = most;
    }

    fn run(&mut self) {
        self.play(2 * TIMEOUT);
        if self.sides.iter().any(|side| side.disconnects) {
            return self.part();
        }
        let works = self.fabrics.iter().flat_map(|(_, lanes)| lanes).any(|(_, fate)| *fate == Fate::Works);
        for side in self.sides.iter().filter(|side| side.session.is_some()) {
            assert_eq!(
                (side.ups, side.given_up.len()),
                if works { (1, 0) } else { (0, 1) },
                "how it comes up"
            );
        }
        for side in 0..2 {
            let serving: Vec<Plan> = self.sides[side]
                .session
                .iter()
                .flat_map(Session::serving)
                .flat_map(Approach::plans)
                .collect();
            let up: Vec<Plan> = self.sides[side].session.iter().flat_map(Session::lanes_up).collect();
            let works = |plan: &Plan| self.found(side, *plan).1 == Fate::Works;
            let missing: Vec<Plan> =
                serving.into_iter().filter(|plan| works(plan) && !up.contains(plan)).collect();
            assert_eq!(missing, [], "each lane that can comes up");
        }
        if works && self.lose_lanes() {
            self.part();
        }
    }

    /// Lanes fail while both sides notify each other. False: one broke, so the peers have ended.
    fn lose_lanes(&mut self) -> bool {
        let names = self.sides.each_ref().map(|side| {
            side.session.as_ref().and_then(Session::serving).map(|serving| serving.fabric.clone())
        });
        assert_eq!(names[0], names[1], "both sides use one fabric");
        let plans: Vec<Plan> =
            self.sides[0].session().serving().into_iter().flat_map(Approach::plans).collect();
        for _ in 0..self.draw.below(7) {
            let side = self.draw.below(2) as usize;
            let plan = plans[self.draw.below(plans.len() as u64) as usize];
            self.put_within(side, 3000 * MS, Event::Cut(if side == 0 { plan } else { mirrored(plan) }));
        }
        for _ in 0..self.draw.below(60) {
            let side = self.draw.below(2) as usize;
            self.put_within(side, 4000 * MS, Event::Notify);
        }
        self.play(30_000 * MS);
        if self.sides.iter().any(|side| side.broken) {
            self.play(TIMEOUT);
            for side in &self.sides {
                let ends = side.downs.iter().map(|(outcome, _)| outcome.status).collect::<Vec<_>>();
                assert!(matches!(ends[..], [Status::PeerLost | Status::PeerClosed]), "{ends:?}");
            }
            return false;
        }
        for side in 0..2 {
            let (here, there) = (&self.sides[side], &self.sides[1 - side]);
            assert!(
                matches!(here.session.as_ref().map(|session| &session.state), Some(State::Up)),
                "it is up"
            );
            let once: BTreeSet<u64> = here.received.iter().copied().collect();
            assert_eq!(once.len(), here.received.len(), "a notification came twice");
            let known = |id: &u64| [&once, &there.unknown, &there.refused].iter().any(|ids| ids.contains(id));
            let missing = (1..=there.submitted).find(|id| !known(id));
            assert_eq!(missing, None, "a notification is missing");
            assert!(here.lanes.iter().all(|lane| !lane.life.is_resetting()), "a reset does not end");
            assert!(!here.behind, "operations under grants go on");
            let (up, theirs) = (here.path().is_some(), there.path().is_some());
            assert!(up && theirs, "a lane is up");
        }
        true
    }

    /// One side disconnects, and connects again as a new peer. False: it has not ended yet.
    fn reconnect(&mut self, side: usize) -> bool {
        let after = MS * self.draw.below(3000);
        self.put(side, 0, Event::Disconnect);
        self.play(after);
        if !self.sides[side].has_ended() {
            return false;
        }
        for side in 0..2 {
            if self.sides[side].has_ended() {
                self.renew(side);
            }
        }
        self.put(side, MS, Event::Connect);
        self.play(2 * TIMEOUT);
        for side in &self.sides {
            let up = side.session.as_ref().is_some_and(|session| matches!(session.state, State::Up));
            assert!(up && side.ups == 1, "the new connection is up");
        }
        true
    }

    /// One side ends, or both, or neither.
    fn part(&mut self) {
        let (way, side) = (self.draw.below(5), self.draw.below(2) as usize);
        if way == 4 && self.sides.iter().all(|side| side.ups > 0 && !side.disconnects) && self.reconnect(side)
        {
            return;
        }
        match way {
            1 => self.put_within(side, 400 * MS, Event::Disconnect),
            2 => {
                self.put_within(side, 400 * MS, Event::Disconnect);
                self.put_within(1 - side, 400 * MS, Event::Disconnect);
            }
            3 => self.put(side, MS, Event::Stop),
            _ => {}
        }
        if self.draw.percent(30) {
            if let Some((plan, _)) = self.sides[side].path() {
                self.put_within(side, 20 * MS, Event::Cut(plan));
            }
        }
        self.play(4 * TIMEOUT);
        let ends = |side: &Side| side.downs.len() + side.given_up.len();
        let over = |side: &&Side| side.session.is_some() && side.ups == 0 && !side.stopped;
        assert!(
            self.sides.iter().filter(over).all(|side| ends(side) == 1),
            "what does not come up ends once"
        );
        let stopped = self.sides.iter().any(|side| side.stopped);
        let disconnects = self.sides.iter().any(|side| side.disconnects);
        let broken = self.sides.iter().any(|side| side.broken);
        for side in self.sides.iter().filter(|side| side.ups > 0 && !side.stopped) {
            let outcomes: Vec<Status> = side.downs.iter().map(|(outcome, _)| outcome.status).collect();
            match (stopped, disconnects) {
                _ if broken => assert_eq!(outcomes.len(), 1, "{outcomes:?}"),
                (true, true) => assert_eq!(outcomes.len(), 1, "{outcomes:?}"),
                (true, false) => assert_eq!(outcomes, [Status::PeerLost], "a peer that stops is lost"),
                (_, false) => assert!(outcomes.is_empty(), "a live peer is kept: {outcomes:?}"),
                _ if side.disconnects => assert!(matches!(outcomes[..], [Status::Ok | Status::PeerClosed])),
                _ => assert!(matches!(outcomes[..], [Status::PeerClosed | Status::PeerLost]), "{outcomes:?}"),
            }
        }
    }
}

/// Plays these seeds; returns how many events occurred.
fn play(seeds: std::ops::Range<u64>) -> usize {
    let mut events = 0;
    for seed in seeds {
        let mut pair = Pair::new(seed);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| pair.run())) {
            let said =
                |side: &Side| side.session.as_ref().map_or("none".into(), |session| session.to_string());
            eprintln!("seed {seed}, at {} ms, {:?}", pair.now / MS, pair.fabrics);
            for side in &pair.sides {
                eprintln!("  {}\n    lanes {:?}; ends {:?}", said(side), side.lanes, side.downs);
            }
            std::panic::resume_unwind(panic);
        }
        events += pair.events.len();
    }
    events
}

fn connecting_by_two_lanes(second: LaneEvent) -> (Session, [Plan; 2]) {
    let plans = [plan(0, 32), plan(1, 33)];
    let approaches = Approaches::new(vec![Approach::new("fabric".into(), plans.to_vec())], TIMEOUT);
    let terms = Terms { decides: true, deadline: TIMEOUT, lanes: 64, liveness_ns: Some(SILENCE) };
    let mut session = Session::new(terms, approaches);
    session.begin(None, 1);
    session.handle_lane(plans[0], LaneEvent::Up, MS);
    session.handle_lane(plans[1], second, 2 * MS);
    (session, plans)
}

fn comes_up(session: &mut Session) {
    session.handle_frame(Kind::Ready, &frame::ready("fabric"), 3 * MS).expect("a frame");
    assert!(matches!(session.state, State::Up), "{session}");
}

fn of_two_lanes(second: LaneEvent) -> (Session, [Plan; 2]) {
    let (mut session, plans) = connecting_by_two_lanes(second);
    comes_up(&mut session);
    (session, plans)
}

fn failed(errno: i32) -> LaneEvent {
    LaneEvent::Failed { errno, why: Why { at: "there".into(), text: "nothing listens".into() } }
}

fn refused() -> LaneEvent {
    failed(libc::ECONNREFUSED)
}

/// Whether the session asks for this lane alone.
fn adds(session: &mut Session, plan: Plan) -> bool {
    std::iter::from_fn(|| session.poll_action())
        .any(|action| matches!(action, Action::AddLanes(added) if added == [plan]))
}

/// The peer has all frames of the system channel.
fn acknowledge_all(session: &mut Session, now: u64) {
    let system = &mut session.channels[SYSTEM];
    (0..system.waiting()).for_each(|_| system.sent(now));
    system.acknowledge(system.last()).for_each(drop);
}

/// Two lanes, of which the second is refused as the session resumes; whether the peer ends. `served`: the second was
/// up before.
fn ends_as_a_lane_is_refused(served: bool, errno: i32) -> bool {
    let (mut session, plans) = of_two_lanes(if served { LaneEvent::Up } else { refused() });
    let outcome = Outcome { provider_errno: libc::ETIMEDOUT, ..Outcome::new(Status::PeerLost) };
    for plan in plans.into_iter().rev().skip(usize::from(!served)) {
        session.handle_lane(
            plan,
            LaneEvent::Reset { epoch: 1, outcome, asks: true, carried: Carried::All },
            4 * MS,
        );
    }
    assert!(session.is_away());
    session.handle_lane(plans[1], failed(errno), 5 * MS);
    std::iter::from_fn(|| session.poll_action()).any(|action| matches!(action, Action::End(_)))
}

#[test]
fn refused_lane_ends_a_resuming_peer_only_where_it_was_up_before() {
    for errno in [libc::ECONNREFUSED, ANOTHER] {
        assert_eq!([true, false].map(|served| ends_as_a_lane_is_refused(served, errno)), [true, false]);
    }
}

#[test]
fn frames_of_a_lane_that_fails_before_the_session_is_up_are_sent_again() {
    let (mut session, plans) = connecting_by_two_lanes(LaneEvent::Up);
    session.channels[SYSTEM].sent(2 * MS);
    assert!(session.channels[SYSTEM].next().is_none(), "it said that it is ready");
    session.handle_lane(plans[0], failed(libc::ECONNRESET), 3 * MS);
    assert_eq!(
        session.channels[SYSTEM].next().map(|(number, out)| (number, out.kind)),
        Some((1, Kind::Ready))
    );
    comes_up(&mut session);
    while session.poll_action().is_some() {}
    session.handle_timeout(Sight { alive_ns: 0, busy: false }, 103 * MS);
    assert!(adds(&mut session, plans[0]), "the lane returns");
}

/// The peer may begin with it before it has the keys of the device.
#[test]
fn lane_of_a_returned_device_waits_until_the_peer_has_its_keys() {
    let (mut session, plans) = of_two_lanes(LaneEvent::Up);
    let outcome = Outcome { provider_errno: libc::ENODEV, ..Outcome::new(Status::PeerLost) };
    session.handle_lane(
        plans[1],
        LaneEvent::Reset { epoch: 1, outcome, asks: false, carried: Carried::All },
        4 * MS,
    );
    session.handle_lane(plans[1], LaneEvent::Quiesced { epoch: 1 }, 5 * MS);
    session.channels[SYSTEM].push(Out::new(Kind::Message, Vec::new()));
    session.handle_link_up(plans[1].rail, 6 * MS);
    while session.poll_action().is_some() {}
    assert!(session.handle_request(plans[1], Some("fabric"), 7 * MS) && !adds(&mut session, plans[1]));
    session.handle_timeout(Sight { alive_ns: 0, busy: false }, 1000 * MS);
    assert!(!adds(&mut session, plans[1]));
    acknowledge_all(&mut session, 1001 * MS);
    session.handle_timeout(Sight { alive_ns: 0, busy: false }, 1100 * MS);
    assert!(adds(&mut session, plans[1]));
}

#[test]
fn lane_whose_link_comes_back_just_before_the_session_is_up_begins() {
    let (mut session, plans) = connecting_by_two_lanes(refused());
    session.handle_link_up(plans[1].rail, 3 * MS);
    comes_up(&mut session);
    while session.poll_action().is_some() {}
    acknowledge_all(&mut session, 4 * MS);
    session.handle_timeout(Sight { alive_ns: 0, busy: false }, 100 * MS);
    assert!(adds(&mut session, plans[1]));
}

/// What the log says as this becomes of a lane.
fn lines(session: &mut Session, plan: Plan, event: LaneEvent, now: u64) -> Vec<String> {
    session.handle_timeout(Sight { alive_ns: now, busy: false }, now);
    session.handle_lane(plan, event, now);
    let actions = std::iter::from_fn(|| session.poll_action());
    let lines = actions.filter_map(|action| match action {
        Action::LanesMissing(reasons) => Some(reasons),
        Action::LaneBack { ns, again, warned: true, .. } => {
            Some(format!("up{} after {} ms", if again { " again" } else { "" }, ns / MS))
        }
        _ => None,
    });
    lines.collect()
}

#[test]
fn lane_that_was_never_up_is_reported_once_and_so_is_its_return() {
    let (mut session, plans) = of_two_lanes(refused());
    let mut said = |event, now| lines(&mut session, plans[1], event, now);
    assert!(said(refused(), 3000 * MS).is_empty());
    assert_eq!(said(refused(), 3003 * MS), ["there: nothing listens"]);
    assert!(said(refused(), 9000 * MS).is_empty());
    assert_eq!(said(LaneEvent::Up, 9003 * MS), ["up after 9000 ms"]);
}

#[test]
fn lane_that_is_lost_and_not_regained_is_reported_without_those_that_are_known() {
    let (mut session, plans) = of_two_lanes(LaneEvent::Up);
    let outcome = Outcome { provider_errno: libc::ETIMEDOUT, ..Outcome::new(Status::PeerLost) };
    let reset = |epoch| LaneEvent::Reset { epoch, outcome, asks: true, carried: Carried::All };
    assert!(lines(&mut session, plans[1], reset(1), 4 * MS).is_empty());
    assert!(lines(&mut session, plans[1], LaneEvent::Up, 1000 * MS).concat().starts_with("up again"));
    assert!(lines(&mut session, plans[1], reset(2), 2000 * MS).is_empty());
    assert!(lines(&mut session, plans[1], refused(), 4999 * MS).is_empty());
    assert!(lines(&mut session, plans[1], refused(), 8000 * MS) == ["there: nothing listens"]);
    assert!(lines(&mut session, plans[1], refused(), 20_000 * MS).is_empty());
}

/// The warning of the reset says it all.
#[test]
fn lane_that_only_small_frames_pass_is_not_reported_as_missing_or_back() {
    let (mut session, plans) = of_two_lanes(LaneEvent::Up);
    let outcome = Outcome { provider_errno: libc::ETIMEDOUT, ..Outcome::new(Status::PeerLost) };
    let stuck = Carried::Stuck;
    let said: Vec<_> = (0..9)
        .flat_map(|epoch| {
            let reset = LaneEvent::Reset { epoch, outcome, asks: true, carried: stuck };
            let mut said = lines(&mut session, plans[1], reset, (4 + 10_000 * epoch) * MS);
            said.extend(lines(&mut session, plans[1], LaneEvent::Up, (9000 + 10_000 * epoch) * MS));
            assert_eq!(session.stuck(plans[1]), (epoch > 0).then_some(epoch as u32 + 1));
            said
        })
        .collect();
    assert!(
        matches!(&said[..], [missing, back] if missing.contains("moved") && back.starts_with("up again")),
        "{said:?}"
    );
}

/// What is said as the only lane of a peer is up again, this long after it was stuck.
fn stuck_as_it_is_back(after: u64) -> Option<bool> {
    let (mut session, plans) = of_two_lanes(refused());
    let outcome = Outcome { provider_errno: libc::ETIMEDOUT, ..Outcome::new(Status::PeerLost) };
    let reset = LaneEvent::Reset { epoch: 1, outcome, asks: true, carried: Carried::Stuck };
    session.handle_lane(plans[0], reset, 4 * MS);
    session.handle_lane(plans[0], LaneEvent::Up, 4 * MS + after);
    std::iter::from_fn(|| session.poll_action()).find_map(|action| match action {
        Action::LaneBack { stuck, .. } => Some(stuck),
        _ => None,
    })
}

#[test]
fn only_lane_that_small_frames_pass_is_named_as_it_is_back_at_once() {
    assert_eq!([300 * MS, 3000 * MS].map(stuck_as_it_is_back), [Some(true), None]);
}

#[test]
fn sessions_agree_on_fabric_deliveries_and_close() {
    let began = thread_ns();
    let events = play(0..SEEDS);
    println!("played {SEEDS} seeds in {:.3} s, {events} events", (thread_ns() - began) as f64 / 1e9);
    MOVES_SEEN.with_borrow(|seen| {
        for (from, to, why) in MOVES {
            assert!(
                seen.contains(&(from.to_string(), to.to_string())),
                "{from} to {to} was never seen: {why}"
            );
        }
    });
    assert_eq!(moves_not_seen(), Vec::<String>::new(), "moves of lanes that were never seen");
}

#[test]
fn architecture_diagram_has_the_moves_of_sessions() {
    are_drawn(MOVES);
}
