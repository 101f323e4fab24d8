//! The state that two endpoints agree on, as one of them sees it: a state machine without I/O.
//!
//! A session takes frames, lane events, calls and the time (`handle_*`), and gives back frames,
//! actions and the time when it wants to be asked again (`channels`, `poll_action`,
//! `poll_timeout`). It reads no clock and knows no worker; the peer's owner carries out what it
//! decides (`owner::sessions`).
//!
//! 1. **Connect.** Lanes are made over the best fabric that both sides have, and over the next one
//!    when that takes too long (`approach`). One of the two sides selects the fabric that serves.
//! 2. **Ready.** Each side sends Ready when its lanes over that fabric are up. A session is up once
//!    it has sent and received Ready.
//! 3. **Up.** A side that has sent nothing for some time sends a keep-alive; a peer that is silent
//!    is probed, and then lost (`liveness`).
//! 4. **Reset.** A serving lane that fails is reset at both ends, and returns later (`lane::Pair`). If
//!    it was the last, the session resumes over a new one (`resuming`).
//! 5. **Close.** Both sides drain their lanes, and confirm it to each other (`closing`).

pub mod approach;
pub mod channel;
mod closing;
mod events;
pub mod liveness;
mod plan;
mod reset;
mod resuming;
#[cfg(test)]
mod tests;
mod timers;

use crate::fabric::Cause;
pub use crate::ids::Plan;
use crate::lane::Pair;
use crate::status::Status;
use crate::transfer::Outcome;
use crate::wire::frame::{self, numbers, read_numbers, Kind, CHANNELS, SYSTEM};
use approach::{Approach, Approaches};
use channel::{Channel, Out};
use closing::{Closing, Next};
use events::MOVES;
pub use events::{Action, LaneEvent, State};
use liveness::{Silence, Verdict};
pub use plan::pair;
pub use reset::reset_reason;
use resuming::{Behind, Resumes};
use std::collections::VecDeque;
use std::fmt;
use timers::{Timer, Timers};

/// The terms of a session, fixed before it begins.
pub struct Terms {
    /// This side selects the fabric. Both sides compute the same answer.
    pub decides: bool,
    /// The time at which the connect fails.
    pub deadline: u64,
    /// The most lanes that the peer may have.
    pub lanes: usize,
    /// A peer that is silent for this long is lost.
    pub liveness_ns: Option<u64>,
}

/// A session that has sent nothing for this long sends a keep-alive: a fabric that reports a dead
/// peer reports it only to a sender.
const KEEP_ALIVE_NS: u64 = 1_000_000_000;
/// The same while operations are in flight, which a dead peer would delay.
const BUSY_KEEP_ALIVE_NS: u64 = 300_000_000;
/// The time between attempts to send what a lane refused.
const RETRY_NS: u64 = 1_000_000;

/// The owner's observations of the peer and of its own work, for `handle_timeout`.
#[derive(Clone, Copy, Default)]
pub struct Sight {
    /// When something from the peer last arrived, or was delivered to it.
    pub alive_ns: u64,
    /// Whether operations are in flight.
    pub busy: bool,
}

/// A frame that is malformed, or not allowed from this peer or at this time.
#[derive(Debug)]
pub struct Malformed;

pub struct Session {
    terms: Terms,
    state: State,
    approaches: Approaches,
    pub channels: [Channel; CHANNELS],
    /// The last error number of a lane.
    last_errno: i32,
    resumes: Resumes,
    behind: Option<Behind>,
    silence: Silence,
    /// When a frame was last sent.
    sent_ns: u64,
    timers: Timers,
    /// Frames without a sequence number that wait to be sent, with their bodies.
    frames: VecDeque<(Kind, Vec<u8>)>,
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
            resumes: Resumes::default(),
            behind: None,
            silence: Silence::default(),
            sent_ns: 0,
            timers,
            frames: VecDeque::new(),
            actions: VecDeque::new(),
        }
    }

    // Input.

    /// Begins to connect. `over`: the fabric of the peer's handshake, if that arrived first.
    pub fn begin(&mut self, over: Option<&str>, now: u64) {
        let plans = match over.and_then(|fabric| self.approaches.follow(fabric, now)) {
            Some(plans) => plans,
            None => self.approaches.begin(1, now),
        };
        self.act(Action::AddLanes(plans));
        self.advance(now);
    }

    /// The peer requests a lane that this side does not have; `over`: the fabric of both its rails,
    /// if they share one. False: the peer has the maximum number of lanes already.
    pub fn handle_request(&mut self, plan: Plan, over: Option<&str>, now: u64) -> bool {
        let Some(fabric) = over.filter(|_| !self.approaches.pair(plan).is_some_and(Pair::holds_off)) else {
            return true;
        };
        match self.state {
            // The peer repeats a handshake that is not followed.
            State::Connecting { .. } => {
                if let Some(plans) = self.approaches.follow(fabric, now) {
                    self.act(Action::AddLanes(plans));
                    self.advance(now);
                }
            }
            // The lane is for memory that not all rails can reach, or returns after a failure.
            State::Up | State::Resuming(_) => {
                let serving = self.approaches.serving().filter(|serving| serving.fabric == fabric);
                let Some(serving) = serving else { return true };
                if serving.plans().len() >= self.terms.lanes && !serving.has(plan) {
                    return false;
                }
                self.add_lanes(&[plan]);
            }
            State::Closing(_) | State::Ended { .. } => {}
        }
        true
    }

    /// A frame from the peer about the session itself.
    pub fn handle_frame(&mut self, kind: Kind, body: &[u8], now: u64) -> Result<(), Malformed> {
        match kind {
            Kind::Ready => self.on_ready(&frame::read_ready(body).ok_or(Malformed)?, now)?,
            Kind::Closing => self.close(Outcome::new(Status::PeerClosed), true, now),
            Kind::Close => {
                self.close(Outcome::new(Status::PeerClosed), true, now);
                if let State::Closing(closing) = &mut self.state {
                    closing.peer_has_drained();
                }
                self.go_on_closing(now);
            }
            Kind::CloseAck => {
                if let State::Closing(closing) = &mut self.state {
                    closing.acknowledged();
                    let outcome = closing.outcome;
                    self.act(Action::End(outcome));
                }
            }
            // The peer has received nothing from us for some time.
            Kind::Ask => self.keep_alive_soon(now),
            Kind::Reset | Kind::ResetDone => self.on_reset(kind, body)?,
            // Everything that arrived over reset lanes has been handled: it arrived before this
            // frame.
            Kind::Resume => {
                let [number] = read_numbers(body).ok_or(Malformed)?;
                let delivered = self.channels.each_ref().map(|channel| channel.delivered().into());
                let last = self.channels[SYSTEM].last().into();
                let channels = &self.channels;
                let others: Vec<u64> = channel::refusals(channels).chain(channel::held(channels)).collect();
                let answer = numbers(&[&[number][..], &delivered, &[last], &others].concat());
                self.frames.push_back((Kind::Resumed, answer));
            }
            Kind::Resumed => {
                let [number, delivered @ .., last] =
                    read_numbers::<{ 2 + CHANNELS }>(body).ok_or(Malformed)?;
                let others = body.chunks_exact(8).skip(2 + CHANNELS).filter_map(read_numbers::<1>);
                let others: Vec<u64> = others.map(|[entry]| entry).collect();
                self.on_resumed(number, delivered, &others, last as u32, now);
            }
            _ => return Err(Malformed),
        }
        Ok(())
    }

    /// The caller disconnects the peer.
    pub fn disconnect(&mut self, now: u64) {
        // The peer may consider itself up, but no lane leads to it.
        if !self.has_lanes() {
            return self.act(Action::End(Outcome::OK));
        }
        self.close(Outcome::OK, false, now);
    }

    /// The operations of `Action::EndOutstanding` have ended.
    pub fn outstanding_ended(&mut self, now: u64) {
        if let State::Closing(closing) = &mut self.state {
            if closing.outstanding_ended(now) {
                self.act(Action::Quiesce);
            }
        }
        self.go_on_closing(now);
    }

    /// The lanes of `Action::Quiesce` are idle.
    pub fn lanes_quiesced(&mut self, now: u64) {
        if let State::Closing(closing) = &mut self.state {
            closing.has_drained();
        }
        self.go_on_closing(now);
    }

    /// Frames were sent.
    pub fn note_sent(&mut self, now: u64) {
        self.sent_ns = now;
        if matches!(self.state, State::Up | State::Resuming(_)) {
            self.timers.set(Timer::KeepAlive, now + BUSY_KEEP_ALIVE_NS);
        }
    }

    /// The next keep-alive is sent at once.
    pub fn keep_alive_soon(&mut self, now: u64) {
        self.sent_ns = 0;
        if matches!(self.state, State::Up | State::Resuming(_)) {
            self.timers.set(Timer::KeepAlive, now);
        }
    }

    /// This side has sent new keys of a memory, or got some: posts by the old ones may have ended lanes.
    pub fn keys_replaced(&mut self) {
        self.resumes.keys_replaced();
    }

    pub fn handle_timeout(&mut self, sight: Sight, now: u64) {
        while let Some(timer) = self.timers.take_due(now) {
            match timer {
                Timer::Connect => {
                    let why = match self.approaches.failures() {
                        failures if failures.is_empty() => "the peer was reached, but has not agreed".into(),
                        failures => failures,
                    };
                    self.give_up(format!("no connection within the connect timeout: {why}"));
                }
                Timer::Approach => self.advance(now),
                Timer::Close => self.go_on_closing(now),
                Timer::KeepAlive => {
                    let silent = now.saturating_sub(self.sent_ns);
                    if silent >= KEEP_ALIVE_NS || sight.busy && silent >= BUSY_KEEP_ALIVE_NS {
                        self.frames.push_back((Kind::Ack, Vec::new()));
                        self.note_sent(now);
                    } else {
                        let due = (self.sent_ns + KEEP_ALIVE_NS).min(now + BUSY_KEEP_ALIVE_NS);
                        self.timers.set(Timer::KeepAlive, due);
                    }
                }
                Timer::Silence => self.look(sight.alive_ns, now),
                Timer::Return => {
                    self.go_on_returning(now);
                    let due = self
                        .approaches
                        .pairs_mut()
                        .filter_map(|pair| pair.take_due(now).then_some(pair.plan));
                    let due: Vec<Plan> = due.collect();
                    self.add_lanes(&due);
                    self.set_return();
                }
                Timer::Missing if matches!(self.state, State::Up) => self.report_missing(now),
                Timer::Missing => {} // Each lane's next event starts it again.
                Timer::Resume => {
                    self.go_on_resuming(now);
                    self.ask_how_far(now);
                }
            }
        }
    }

    /// Requests lanes over the serving fabric, in addition to the existing ones.
    pub fn add_lanes(&mut self, plans: &[Plan]) {
        let new = self.approaches.extend(plans);
        self.act(Action::AddLanes(new));
    }

    /// The peer ends, with this outcome for PEER_DOWN.
    pub fn end(&mut self, outcome: Outcome) -> Outcome {
        let (was_up, known) = (self.is_up(), self.is_known());
        let (outcome, agreed) = match &self.state {
            // A closing peer whose lanes fail before its last frame arrived is closed, not lost.
            State::Closing(closing) => (closing.outcome, closing.agreed),
            _ => (outcome, false),
        };
        self.enter(State::Ended { was_up, known, agreed });
        outcome
    }

    // Output.

    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next frame to send, apart from those of channels, and its body (for an acknowledgement:
    /// the channels' state); `transmitted` follows.
    pub fn poll_transmit(&mut self) -> Option<(Kind, Vec<u8>)> {
        self.frames.pop_front()
    }

    /// A frame was posted, or the lane was full. Most frames are repeated in time, or another frame
    /// is being sent.
    pub fn transmitted(&mut self, kind: Kind, posted: bool, now: u64) {
        let State::Closing(closing) = &mut self.state else { return };
        match kind {
            Kind::Close | Kind::CloseAck if !posted => self.timers.set(Timer::Close, now + RETRY_NS),
            Kind::Close | Kind::CloseAck if closing.sent(now) => {
                let outcome = closing.outcome;
                self.act(Action::End(outcome));
            }
            Kind::Close | Kind::CloseAck => self.go_on_closing(now),
            _ => {}
        }
    }

    /// When `handle_timeout` is due.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.timers.next()
    }

    // The session's state.

    /// Whether an action waits to be performed.
    #[inline]
    pub fn has_news(&self) -> bool {
        !(self.actions.is_empty() && self.frames.is_empty())
    }

    /// Whether the session came up, so that completions may follow PEER_UP.
    #[inline]
    pub fn is_up(&self) -> bool {
        match &self.state {
            State::Up | State::Resuming(_) => true,
            State::Connecting { .. } => false,
            State::Closing(closing) => closing.was_up,
            State::Ended { was_up, .. } => *was_up,
        }
    }

    /// Whether the peer may know of this session.
    pub fn is_known(&self) -> bool {
        match self.state {
            State::Connecting { ready_sent, .. } => ready_sent,
            State::Up | State::Resuming(_) | State::Closing(_) => true,
            State::Ended { known, .. } => known,
        }
    }

    /// Whether the session is up without lanes, or does not yet know what the peer has received.
    #[inline]
    pub fn is_away(&self) -> bool {
        matches!(self.state, State::Resuming(_))
    }

    /// The outcome for which the session closes.
    pub fn closing(&self) -> Option<Outcome> {
        match &self.state {
            State::Closing(closing) => Some(closing.outcome),
            _ => None,
        }
    }

    /// Both sides have drained: nothing in flight can land.
    pub fn is_agreed(&self) -> bool {
        matches!(self.state, State::Ended { agreed: true, .. })
    }

    /// The lanes that serve.
    pub fn lanes_up(&self) -> impl Iterator<Item = Plan> + '_ {
        self.approaches.serving().into_iter().flat_map(Approach::up)
    }

    /// The serving fabric, once it is selected, and its lanes.
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

    /// How many lanes there in a row have carried nothing, if the last one failed because only small frames pass.
    pub fn stuck(&self, plan: Plan) -> Option<u32> {
        self.approaches.pair(plan).and_then(Pair::stuck)
    }

    pub fn is_failed(&self, plan: Plan) -> bool {
        self.approaches.pair(plan).is_some_and(Pair::has_failed)
    }

    /// The outcome of a connect that reached no endpoint.
    pub fn not_reached(&self) -> Outcome {
        let status = match Cause::from_errno(self.last_errno) {
            Cause::Denied => Status::Denied,
            Cause::Another => Status::PeerGone,
            Cause::Local => Status::System,
            _ => Status::Unreachable,
        };
        Outcome { provider_errno: self.last_errno, ..Outcome::new(status) }
    }

    // Internals.

    fn push(&mut self, kind: Kind, body: Vec<u8>) {
        self.channels[SYSTEM].push(Out::new(kind, body));
        self.act(Action::Flush);
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn enter(&mut self, state: State) {
        let (from, to) = (self.state.name(), state.name());
        debug_assert!(from == to || MOVES.iter().any(|one| (one.0, one.1) == (from, to)), "{from} to {to}");
        #[cfg(test)]
        tests::note_move(from, to);
        match state {
            State::Resuming(_) => {}
            State::Up => {
                for timer in [Timer::Connect, Timer::Approach, Timer::Resume] {
                    self.timers.set(timer, None);
                }
            }
            _ => self.timers.stop_all(),
        }
        self.state = state;
    }

    /// The peer is ready over this fabric, which it or this side selected.
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

    /// Performs the next step of a session that is not up.
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
            // Imports may already wait.
            let out = Out::new(Kind::Ready, frame::ready(&serving.fabric));
            self.channels[SYSTEM].push_first(out);
            self.act(Action::Flush);
        }
        if ready_sent && ready_seen {
            self.enter(State::Up);
            // (The link of one may have come back meanwhile.)
            let failed = self.approaches.serving_pairs_mut().filter(|pair| pair.has_failed());
            failed.for_each(|pair| pair.let_return(true, now));
            self.set_return();
            self.watch_missing(now);
            self.timers.set(Timer::KeepAlive, now + BUSY_KEEP_ALIVE_NS);
            self.look(0, now);
            return self.act(Action::Up);
        }
        self.state = State::Connecting { ready_sent, ready_seen };
        self.timers.set(Timer::Approach, self.approaches.next_ns(now));
    }

    /// Checks how long the peer has been silent.
    fn look(&mut self, alive_ns: u64, now: u64) {
        let Some(allowed) = self.terms.liveness_ns else { return };
        match self.silence.look(alive_ns, now, allowed) {
            Verdict::Lost => return self.act(Action::End(Outcome::new(Status::PeerLost))),
            Verdict::Ask => self.frames.push_back((Kind::Ask, Vec::new())),
            Verdict::Alive => {}
        }
        self.timers.set(Timer::Silence, self.silence.next_ns(allowed));
    }

    /// Begins to close, unless that has begun. `answers`: the peer closes.
    fn close(&mut self, outcome: Outcome, answers: bool, now: u64) {
        if matches!(self.state, State::Closing(_) | State::Ended { .. }) {
            return;
        }
        let closing = Closing::new(outcome, answers, self.is_up(), now);
        self.enter(State::Closing(closing));
        self.act(Action::EndOutstanding(outcome));
        if !answers {
            // Acknowledge what was delivered here; if the lane is full now, Close will do.
            self.frames.extend([Kind::Ack, Kind::Closing].map(|kind| (kind, Vec::new())));
        }
    }

    fn go_on_closing(&mut self, now: u64) {
        let State::Closing(closing) = &mut self.state else { return };
        match closing.next(now) {
            Next::Wait(due) => self.timers.set(Timer::Close, due),
            Next::Send(kind) => {
                self.frames.retain(|(queued, _)| !matches!(queued, Kind::Close | Kind::CloseAck));
                self.frames.push_back((kind, Vec::new()));
            }
            Next::End => {
                let outcome = closing.outcome;
                self.act(Action::End(outcome));
            }
        }
    }
}

/// Shows the session in the log.
impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (state, up) = (&self.state, list(self.lanes_up()));
        let resets = list(self.resets().map(|(plan, _)| plan));
        let lanes = format!("lanes that are up, by rail here and there: {up}; being reset: {resets}");
        write!(f, "{state:?}; {}; {lanes};{}", self.reason(), self.timers)
    }
}

/// "0-0, 1-1", or "none".
fn list(plans: impl IntoIterator<Item = Plan>) -> String {
    let all: Vec<String> = plans.into_iter().map(|plan| plan.to_string()).collect();
    if all.is_empty() {
        return "none".into();
    }
    all.join(", ")
}
