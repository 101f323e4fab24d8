//! What two endpoints agree on, as one of them sees it: a state machine without I/O.
//!
//! A session takes frames, lane events, calls and the time (`handle_*`), and gives back frames,
//! actions and the time when it wants to be asked again (`channels`, `poll_action`,
//! `poll_timeout`). It reads no clock and knows no worker; the peer's owner carries out what it
//! decides (`endpoint::sessions`).
//!
//! 1. **Connect.** Lanes are made over the best fabric that both sides have, and over the next one
//!    when that takes too long (`approach`). One of the two sides selects the fabric that serves.
//! 2. **Ready.** Each side sends Ready when its lanes over that fabric are up. A session is up once
//!    it has sent and received Ready.

pub mod approach;
pub mod channel;
pub mod liveness;
mod plan;
#[cfg(test)]
mod tests;
mod timers;

use crate::status::Status;
use crate::transfer::Outcome;
use crate::wire::frame::{self, Kind, CHANNELS, SYSTEM};
use approach::{Approach, Approaches};
use channel::{Channel, Out};
pub use plan::{pair, Plan};
use std::collections::VecDeque;
use std::fmt;
use timers::{Timer, Timers};

/// What is settled before a session begins.
pub struct Terms {
    /// This side selects the fabric. Both sides compute the same answer.
    pub decides: bool,
    /// The connect has failed by then.
    pub deadline: u64,
    /// The most lanes that the peer may have.
    pub lanes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Connecting { ready_sent: bool, ready_seen: bool },
    Up,
    Ended,
}

/// The moves between states, for `Session::enter` and for the diagram of ARCHITECTURE.
const MOVES: &[(&str, &str, &str)] = &[
    ("Connecting", "Up", "Ready sent and received"),
    ("Connecting", "Ended", "no fabric came up, the caller disconnects, or the peer refuses"),
    ("Up", "Ended", "the peer is lost or disconnected"),
];

impl State {
    fn name(&self) -> &'static str {
        match self {
            State::Connecting { .. } => "Connecting",
            State::Up => "Up",
            State::Ended => "Ended",
        }
    }
}

/// What became of a lane.
pub enum LaneEvent {
    /// Its handshake and its probe were answered.
    Up,
    Failed {
        errno: i32,
        why: String,
    },
    /// It served, and is reset.
    Lost {
        errno: i32,
        why: String,
    },
}

/// What the owner carries out.
#[derive(PartialEq, Eq, Debug)]
pub enum Action {
    /// Make these lanes.
    AddLanes(Vec<Plan>),
    /// The fabric that serves is selected: lanes over others are dropped.
    Serve,
    /// The lanes that are up have changed.
    ShowLanes,
    /// A channel has a frame to send.
    Flush,
    /// The peer is up.
    Up,
    /// Another fabric is tried, for the log.
    TryAnother,
    /// No endpoint was reached, and why: end the peer.
    GiveUp(String),
}

/// A frame that cannot be, from this peer or now.
#[derive(Debug)]
pub struct Malformed;

pub struct Session {
    terms: Terms,
    state: State,
    approaches: Approaches,
    pub channels: [Channel; CHANNELS],
    /// The last error of a lane.
    last_errno: i32,
    timers: Timers,
    actions: VecDeque<Action>,
}

impl Session {
    pub fn new(terms: Terms, approaches: Approaches) -> Session {
        let mut timers = Timers::default();
        timers.set(Timer::Connect, terms.deadline);
        Session {
            terms,
            state: State::Connecting { ready_sent: false, ready_seen: false },
            approaches,
            channels: Default::default(),
            last_errno: 0,
            timers,
            actions: VecDeque::new(),
        }
    }

    // In.

    /// Begins to connect. `over`: the fabric of the peer's handshake, if that came first.
    pub fn begin(&mut self, over: Option<&str>, now: u64) {
        let plans = match over.and_then(|fabric| self.approaches.follow(fabric, now)) {
            Some(plans) => plans,
            None => self.approaches.begin(1, now),
        };
        self.act(Action::AddLanes(plans));
        self.advance(now);
    }

    /// The peer asks for a lane that this side has not; `over`: the fabric of both its rails, if
    /// that is one. False: the peer has all the lanes that it may have.
    pub fn handle_request(&mut self, plan: Plan, over: Option<&str>, now: u64) -> bool {
        let Some(fabric) = over else { return true };
        match self.state {
            // The peer repeats a handshake that is not followed.
            State::Connecting { .. } => {
                if let Some(plans) = self.approaches.follow(fabric, now) {
                    self.act(Action::AddLanes(plans));
                    self.advance(now);
                }
            }
            // For memory that not all rails know; or it comes back.
            State::Up => {
                let serving = self.approaches.serving().filter(|serving| serving.fabric == fabric);
                let Some(serving) = serving else { return true };
                if serving.plans.len() >= self.terms.lanes && !serving.plans.contains(&plan) {
                    return false;
                }
                self.add_lanes(&[plan]);
            }
            State::Ended => {}
        }
        true
    }

    pub fn handle_lane(&mut self, plan: Plan, event: LaneEvent, now: u64) {
        let lost = matches!(event, LaneEvent::Lost { .. });
        match event {
            LaneEvent::Up => self.approaches.lane_up(plan, now),
            LaneEvent::Failed { errno, why } | LaneEvent::Lost { errno, why } => {
                self.approaches.lane_failed(plan, why);
                self.last_errno = errno;
            }
        }
        self.act(Action::ShowLanes);
        if !lost {
            self.advance(now);
        }
    }

    /// A frame of the peer about the session itself.
    pub fn handle_frame(&mut self, kind: Kind, body: &[u8], now: u64) -> Result<(), Malformed> {
        match kind {
            Kind::Ready => self.on_ready(&frame::read_ready(body).ok_or(Malformed)?, now),
            _ => Err(Malformed),
        }
    }

    pub fn handle_timeout(&mut self, now: u64) {
        while let Some(timer) = self.timers.take_due(now) {
            match timer {
                Timer::Connect => {
                    let failures = self.approaches.failures();
                    self.give_up(format!("no connection within the connect timeout: {failures}"));
                }
                Timer::Approach => self.advance(now),
            }
        }
    }

    /// Wants lanes over the fabric that serves, beside those that there are.
    pub fn add_lanes(&mut self, plans: &[Plan]) {
        let new = self.approaches.extend(plans);
        self.act(Action::AddLanes(new));
    }

    /// The peer has ended.
    pub fn end(&mut self) {
        self.enter(State::Ended);
    }

    // Out.

    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When `handle_timeout` is due.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.timers.next()
    }

    // What it is like.

    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// The peer may know of this session.
    pub fn is_known(&self) -> bool {
        !matches!(self.state, State::Connecting { ready_sent: false, .. })
    }

    /// The lanes that serve.
    pub fn lanes_up(&self) -> &[Plan] {
        self.approaches.serving().map_or(&[], Approach::up)
    }

    /// The fabric that serves, once it is selected, and its lanes.
    pub fn serving(&self) -> Option<&Approach> {
        self.approaches.serving()
    }

    /// Why that fabric serves, in a sentence.
    pub fn reason(&self) -> String {
        self.approaches.reason()
    }

    /// Lanes over other fabrics may exist.
    pub fn has_others(&self) -> bool {
        self.approaches.has_others()
    }

    pub fn is_failed(&self, plan: Plan) -> bool {
        self.approaches.is_failed(plan)
    }

    /// The outcome of a connect that reached no endpoint.
    pub fn not_reached(&self) -> Outcome {
        let status = match self.last_errno {
            // A fabric that encrypts reports a missing or wrong secret by this error.
            libc::EKEYREJECTED => Status::Denied,
            _ => Status::Unreachable,
        };
        Outcome { provider_errno: self.last_errno, ..Outcome::of(status) }
    }

    // Inside.

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn enter(&mut self, state: State) {
        let (from, to) = (self.state.name(), state.name());
        debug_assert!(from == to || MOVES.iter().any(|of| (of.0, of.1) == (from, to)), "{from} to {to}");
        #[cfg(test)]
        tests::note_move(from, to);
        if state == State::Up || state == State::Ended {
            self.timers.stop_all();
        }
        self.state = state;
    }

    /// The peer is ready over this fabric: the one that it selected, or that we did.
    fn on_ready(&mut self, fabric: &str, now: u64) -> Result<(), Malformed> {
        if self.approaches.serving().is_none() && !self.terms.decides {
            let at = self.approaches.find(fabric).ok_or(Malformed)?;
            self.serve(at);
        }
        let same = self.approaches.serving().is_some_and(|serving| serving.fabric == fabric);
        if let State::Connecting { ready_seen, .. } = &mut self.state {
            *ready_seen |= same;
        }
        self.advance(now);
        Ok(())
    }

    fn serve(&mut self, at: usize) {
        self.approaches.take(at);
        self.act(Action::Serve);
    }

    fn give_up(&mut self, why: String) {
        self.timers.stop_all();
        self.act(Action::GiveUp(why));
    }

    /// Does what is next in a session that is not up.
    fn advance(&mut self, now: u64) {
        let State::Connecting { mut ready_sent, ready_seen } = self.state else { return };
        if self.approaches.is_hopeless() {
            return self.give_up(self.approaches.failures());
        }
        if let Some(plans) = self.approaches.begin_next(now) {
            self.act(Action::TryAnother);
            self.act(Action::AddLanes(plans));
        }
        if self.terms.decides && self.approaches.serving().is_none() {
            if let Some(at) = self.approaches.best(now) {
                self.serve(at);
            }
        }
        if let Some(serving) = self.approaches.ready(now).filter(|_| !ready_sent) {
            ready_sent = true;
            // Imports may wait already.
            let out = Out::new(Kind::Ready, frame::ready(&serving.fabric));
            self.channels[SYSTEM].push_first(out);
            self.act(Action::Flush);
        }
        if ready_sent && ready_seen {
            self.enter(State::Up);
            return self.act(Action::Up);
        }
        self.state = State::Connecting { ready_sent, ready_seen };
        self.timers.set(Timer::Approach, self.approaches.next_ns(now));
    }
}

/// For the log.
impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}; {}; lanes up {:?};{}", self.state, self.reason(), self.lanes_up(), self.timers)
    }
}
