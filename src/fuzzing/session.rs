//! Two sessions, each with anything that its owner may report, and a link between them that loses,
//! duplicates, delays, reorders and forges.

use super::Input;
use crate::ids::{OpId, RailIndex};
use crate::lane::{Carried, Why};
use crate::session::approach::{Approach, Approaches};
use crate::session::channel::Out;
use crate::session::{Action, LaneEvent, Plan, Session, Sight, Terms};
use crate::status::Status;
use crate::transfer::Outcome;
use crate::wire::frame::{numbers, read_numbers, Kind, CHANNELS, SYSTEM, USER};

const MS: u64 = 1_000_000;
/// The most frames on the link: others are lost.
const LINK: usize = 256;
/// More of one call than a session can need.
const ACTIONS: usize = 10_000;

enum Sent {
    Numbered { kind: Kind, number: u32, acknowledged: u32, body: Vec<u8> },
    Plain(Kind, Vec<u8>),
    Acknowledged([u32; CHANNELS]),
}

struct Side {
    session: Session,
    /// Whether its peer has ended, once.
    ended: bool,
    /// Notifications that were submitted, acknowledged and received.
    submitted: u64,
    done: u64,
    received: u64,
}

struct Pair<'a> {
    input: Input<'a>,
    sides: [Side; 2],
    /// Frames to each side.
    link: [Vec<Sent>; 2],
    /// A frame was forged: received data may be wrong.
    forged: bool,
    now: u64,
}

pub fn session(data: &[u8]) {
    let mut input = Input(data);
    let fabrics = 1 + usize::from(input.u8() % 2);
    let begin = |decides: bool, over: Option<&str>| {
        let all = (0..fabrics).map(|fabric| {
            let plans = (0..3).map(|lane| plan((fabric * 3 + lane) as u8)).collect();
            Approach::new(format!("fabric{fabric}"), plans)
        });
        let approaches = Approaches::new(all.collect(), 10_000 * MS);
        let terms = Terms { decides, deadline: 10_000 * MS, lanes: 6, liveness_ns: Some(5_000 * MS) };
        let mut session = Session::new(terms, approaches);
        session.begin(over, 1);
        Side { session, ended: false, submitted: 0, done: 0, received: 0 }
    };
    let sides = [begin(true, None), begin(false, Some("fabric0"))];
    let mut pair = Pair { input, sides, link: Default::default(), forged: false, now: 1 };
    while !pair.input.is_empty() {
        pair.step();
        (0..2).for_each(|side| pair.carry_out(side));
    }
}

fn plan(lane: u8) -> Plan {
    let rail = RailIndex::new(u16::from(lane % 6));
    Plan { rail, remote_rail: rail }
}

impl Pair<'_> {
    fn step(&mut self) {
        let (what, which) = (self.input.u8(), self.input.u8());
        let (side, now, plan) = (usize::from(what >> 7), self.now, plan(which));
        let epoch = u64::from(which >> 4);
        let here = &mut self.sides[side];
        if here.ended {
            self.now += MS;
            return;
        }
        let session = &mut here.session;
        match what % 16 {
            0 | 1 => session.handle_lane(plan, LaneEvent::Up, now),
            2 => {
                let errno = if which & 128 != 0 { libc::ECONNREFUSED } else { libc::ETIMEDOUT };
                session.handle_lane(
                    plan,
                    LaneEvent::Failed { errno, why: Why { at: "there".into(), text: "it failed".into() } },
                    now,
                )
            }
            3 => {
                let provider_errno = if which & 128 != 0 { libc::ECONNRESET } else { libc::ETIMEDOUT };
                let outcome = Outcome { provider_errno, ..Outcome::new(Status::PeerLost) };
                let carried = [Carried::Frames, Carried::Stuck, Carried::All][epoch as usize % 3];
                let asks = which & 64 != 0;
                session.handle_lane(plan, LaneEvent::Reset { epoch, outcome, asks, carried }, now)
            }
            4 => session.handle_lane(plan, LaneEvent::ResetHere { epoch, address: Vec::new() }, now),
            5 => session.handle_lane(plan, LaneEvent::Quiesced { epoch }, now),
            6 => session.disconnect(now),
            7 => session.outstanding_ended(now),
            8 => session.lanes_quiesced(now),
            9 => _ = session.handle_request(plan, Some("fabric0"), now),
            10 => {
                here.submitted += 1;
                let id = here.submitted;
                let out = Out { done: OpId::new(id), ..Out::new(Kind::Notify, numbers(&[id])) };
                session.channels[USER].push(out);
            }
            11 => self.forge(side, which),
            12 => {
                self.now += u64::from(which) * 10 * MS;
                let sight =
                    Sight { alive_ns: if which & 1 != 0 { self.now } else { 1 }, busy: which & 2 != 0 };
                session.handle_timeout(sight, self.now);
                let due = session.poll_timeout();
                assert!(due.is_none_or(|due| due > self.now), "a due timer is still set");
            }
            _ if self.link[side].is_empty() => self.now += 1,
            _ => {
                let at = usize::from(which >> 1) % self.link[side].len();
                let sent = self.link[side].remove(at);
                self.arrives(side, &sent);
                if which & 1 != 0 {
                    self.link[side].push(sent); // It arrives again.
                }
            }
        }
    }

    /// A frame that the other side has not sent.
    fn forge(&mut self, side: usize, which: u8) {
        self.forged = true;
        let Some(kind) = Kind::from_u8(self.input.u8()) else { return };
        let body = self.input.take(usize::from(which % 64)).to_vec();
        let (number, acknowledged) = (u32::from(self.input.u8()), u32::from(self.input.u8()));
        let sent = match kind.channel() {
            Some(_) => Sent::Numbered { kind, number, acknowledged, body },
            None => Sent::Plain(kind, body),
        };
        self.arrives(side, &sent);
    }

    fn arrives(&mut self, side: usize, sent: &Sent) {
        let now = self.now;
        match sent {
            Sent::Plain(kind, body) => _ = self.sides[side].session.handle_frame(*kind, body, now),
            Sent::Acknowledged(all) => (0..CHANNELS).for_each(|at| self.acknowledged(side, at, all[at])),
            Sent::Numbered { kind, number, acknowledged, body } => {
                let Some(at) = kind.channel() else { return };
                self.acknowledged(side, at, *acknowledged);
                self.sides[side].session.channels[at].receive(*number, *kind, body, now);
                self.deliver(side, at);
            }
        }
        self.deliver(side, USER);
    }

    fn acknowledged(&mut self, side: usize, at: usize, number: u32) {
        let frames: Vec<Out> = self.sides[side].session.channels[at].acknowledge(number).collect();
        self.taken(side, frames);
    }

    fn taken(&mut self, side: usize, frames: Vec<Out>) {
        for id in frames.into_iter().filter_map(|out| out.done) {
            let there = self.sides[1 - side].received;
            self.sides[side].done += 1;
            assert_eq!(id.get(), self.sides[side].done, "acknowledged twice, or out of order");
            assert!(self.forged || id.get() <= there, "acknowledged, and not received");
        }
    }

    fn deliver(&mut self, side: usize, at: usize) {
        let now = self.now;
        let Side { session, received, .. } = &mut self.sides[side];
        while at == SYSTEM || session.is_up() {
            let Some((kind, body)) = session.channels[at].take_deliverable() else { return };
            if kind == Kind::Notify {
                *received += 1;
                let right = read_numbers::<1>(&body) == Some([*received]);
                assert!(self.forged || right, "received twice, or out of order");
            } else {
                _ = session.handle_frame(kind, &body, now);
            }
            session.channels[at].deliver(now, true);
            session.catch_up();
        }
    }

    /// Performs what a worker does for a session.
    fn carry_out(&mut self, side: usize) {
        for _ in 0..ACTIONS {
            if self.sides[side].ended {
                return;
            }
            let Some(action) = self.sides[side].session.poll_action() else {
                let Some((kind, body)) = self.sides[side].session.poll_transmit() else {
                    return self.flush(side);
                };
                let posted = self.input.u8() % 4 != 0;
                if posted {
                    self.post(side, Sent::Plain(kind, body));
                }
                let now = self.now;
                self.sides[side].session.transmitted(kind, posted, now);
                continue;
            };
            let here = &mut self.sides[side];
            match action {
                Action::End(outcome) => {
                    here.session.end(outcome);
                    here.ended = true;
                }
                Action::GiveUp(_) => {
                    let outcome = here.session.not_reached();
                    here.session.end(outcome);
                    here.ended = true;
                }
                Action::Acknowledged(_, frames) => self.taken(side, frames),
                Action::Unknown(ids, _) | Action::Retract(ids) => {
                    assert!(ids.is_empty(), "no notification was speculative")
                }
                _ => {}
            }
        }
        panic!("it never has enough");
    }

    fn flush(&mut self, side: usize) {
        let now = self.now;
        if self.sides[side].session.is_away() || self.sides[side].session.lanes_up().next().is_none() {
            return;
        }
        for at in 0..CHANNELS {
            loop {
                let session = &mut self.sides[side].session;
                let up = session.is_up();
                let Some((number, out)) = session.channels[at].next() else { break };
                if !up && out.kind != Kind::Ready {
                    break;
                }
                let (kind, body, acknowledged) =
                    (out.kind, out.body.clone(), session.channels[at].delivered());
                session.channels[at].sent(now);
                session.note_sent(now);
                self.post(side, Sent::Numbered { kind, number, acknowledged, body });
            }
        }
        let all = self.sides[side].session.channels.each_ref().map(|channel| channel.delivered());
        if self.sides[side].session.channels.iter().any(|channel| channel.owes()) {
            let channels = &mut self.sides[side].session.channels;
            channels.iter_mut().for_each(|channel| channel.acknowledgement_sent_alone(now));
            self.post(side, Sent::Acknowledged(all));
        }
    }

    fn post(&mut self, from: usize, sent: Sent) {
        if self.link[1 - from].len() < LINK {
            self.link[1 - from].push(sent);
        }
    }
}
