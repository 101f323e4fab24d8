//! Lanes of a session: those that fail are reset on both sides and come back (`lane::Pair`); after the last
//! one the session resumes (`resuming`).

use super::channel;
use super::events::{Action, LaneEvent, State};
use super::resuming::{self, Behind, Resuming};
use super::timers::Timer;
use super::{Malformed, Session};
use crate::fabric::{error_text, Cause};
use crate::ids::{OpId, Plan, RailIndex};
use crate::lane::{Carried, Pair, Why};
use crate::status::Status;
use crate::transfer::Outcome;
use crate::wire::frame::{numbers, read_numbers, Kind, CHANNELS, SYSTEM};

/// Lanes that are not up this long after the session, or after they were lost, are reported.
pub(super) const MISSING_NS: u64 = 3_000_000_000;
/// The length of what `of_lane` writes.
const LANE_LEN: usize = 24;

impl Session {
    /// What became of a lane.
    pub fn handle_lane(&mut self, plan: Plan, event: LaneEvent, now: u64) {
        match event {
            LaneEvent::Up => {
                let again = self.approaches.pair(plan).is_some_and(Pair::has_served);
                let failed_for = self.approaches.lane_up(plan, now);
                let alone = matches!(self.state, State::Resuming(_));
                // (One that only small frames pass comes up each time.)
                let (warned, stuck) = self.approaches.pair_mut(plan).map_or((false, false), |pair| {
                    let stuck = alone && failed_for.is_some_and(|ns| pair.was_stuck(ns));
                    (pair.take_warned() && pair.stuck().is_none(), stuck)
                });
                let says = warned || stuck || matches!(self.state, State::Up);
                if let Some(ns) = failed_for.filter(|_| says) {
                    self.act(Action::LaneBack { plan, ns, again, warned, stuck });
                }
                self.act(Action::ShowLanes);
                self.advance(now);
                self.go_on_resuming(now);
            }
            LaneEvent::Failed { errno, why } => {
                self.last_errno = errno;
                self.act(Action::ShowLanes);
                self.lane_failed(plan, errno, why, now);
                self.advance(now);
            }
            LaneEvent::Waits(why) => {
                if let Some(pair) = self.approaches.pair_mut(plan) {
                    pair.waits(why);
                }
            }
            LaneEvent::Reset { epoch, outcome, asks, carried } => {
                self.lane_reset((plan, epoch), outcome, asks, carried, now)
            }
            LaneEvent::ResetHere { epoch, address } => {
                self.push(Kind::ResetDone, [of_lane(plan, epoch), address].concat())
            }
            LaneEvent::Quiesced { epoch } => {
                if let Some(pair) = self.approaches.pair_mut(plan) {
                    pair.quiesced(epoch, now);
                }
                self.go_on_resuming(now);
            }
        }
        self.set_return();
        self.watch_missing(now);
    }

    /// Lanes that are not up, or are not regained, are reported once others have served for some time.
    pub(super) fn watch_missing(&mut self, now: u64) {
        if matches!(self.state, State::Up)
            && self.approaches.serving_pairs_mut().any(|pair| pair.is_missing())
        {
            self.timers.start(Timer::Missing, now + MISSING_NS);
        }
    }

    pub(super) fn report_missing(&mut self, now: u64) {
        let since = now.saturating_sub(MISSING_NS);
        let missing = |pair: &Pair| pair.is_missing_since(since);
        let reasons = self.approaches.serving().map(|serving| serving.reasons(missing));
        self.actions.extend(reasons.filter(|reasons| !reasons.is_empty()).map(Action::LanesMissing));
        for pair in self.approaches.serving_pairs_mut().filter(|pair| missing(pair)) {
            pair.note_reason(since);
        }
        self.watch_missing(now);
    }

    /// A rail has its link again: its lanes return, once the peer has the keys that were queued before this.
    pub fn handle_link_up(&mut self, rail: RailIndex, now: u64) {
        let frame = self.channels[SYSTEM].last();
        let its = self.approaches.serving_pairs_mut().filter(|pair| pair.plan.rail == rail);
        its.for_each(|pair| pair.return_after(frame, now));
        self.go_on_returning(now);
        self.set_return();
    }

    pub(super) fn go_on_returning(&mut self, now: u64) {
        let (alone, keys) = (!self.has_lanes(), &self.channels[SYSTEM]);
        let has = |frame| alone || keys.has_acknowledged(frame);
        self.approaches.serving_pairs_mut().for_each(|pair| pair.go_on(has, now));
    }

    pub(super) fn has_lanes(&self) -> bool {
        self.lanes_up().next().is_some()
    }

    pub(super) fn set_return(&mut self) {
        if matches!(self.state, State::Up | State::Resuming(_)) {
            let due = self.approaches.pairs().filter_map(Pair::next_ns).min();
            self.timers.set(Timer::Return, due);
        }
    }

    /// The peer has reset its end of a lane.
    pub(super) fn on_reset(&mut self, kind: Kind, body: &[u8]) -> Result<(), Malformed> {
        let [rail, remote_rail, epoch] = read_numbers(body).ok_or(Malformed)?;
        let rail_of = |rail| u16::try_from(rail).map(RailIndex::new).map_err(|_| Malformed);
        let plan = Plan { rail: rail_of(remote_rail)?, remote_rail: rail_of(rail)? };
        let address = body[LANE_LEN..].to_vec();
        self.act(Action::ResetLane { plan, epoch, asks: kind == Kind::Reset, address });
        Ok(())
    }

    /// The lanes, and their epochs, whose reset the peer has not confirmed.
    pub(super) fn resets(&self) -> impl Iterator<Item = (Plan, u64)> + '_ {
        self.approaches.pairs().flat_map(|pair| pair.resets().map(|epoch| (pair.plan, epoch)))
    }

    /// The handshake of a lane failed, or (this side was coming up) a lane that was up.
    fn lane_failed(&mut self, plan: Plan, errno: i32, why: Why, now: u64) {
        let serves = self.approaches.serving().is_some_and(|serving| serving.has(plan));
        let (returns, soon) = (self.is_up() && serves, self.is_away());
        let outcome = Outcome { provider_errno: errno, ..Outcome::new(Status::PeerLost) };
        let (mut served, mut was_up) = (false, false);
        if let Some(pair) = self.approaches.pair_mut(plan) {
            was_up = pair.is_up();
            match Cause::from_errno(errno) {
                Cause::Silence => pair.stays_silent(why),
                _ => pair.fails(why),
            }
            if returns {
                pair.let_return(soon, now);
            }
            served = pair.has_served();
        }
        if was_up {
            let unknown = self.rewind();
            self.act(Action::Unknown(unknown, outcome));
            self.act(Action::Flush);
        }
        let none_up = !self.has_lanes();
        let leads_nowhere = matches!(Cause::from_errno(errno), Cause::Absent | Cause::Another);
        match &self.state {
            // Nothing listens any longer where the peer was, or another endpoint does.
            State::Resuming(resuming) if none_up && leads_nowhere && served => {
                let outcome = resuming.outcome;
                self.act(Action::End(outcome));
            }
            // The lane failed while this side was coming up.
            State::Up | State::Closing(_) if self.is_up() && none_up => self.act(Action::End(outcome)),
            _ => {}
        }
    }

    /// A serving lane is reset here: the others continue, or a new one will.
    fn lane_reset(&mut self, lane: (Plan, u64), outcome: Outcome, asks: bool, carried: Carried, now: u64) {
        let (plan, epoch) = lane;
        let errno = outcome.provider_errno;
        let why = Why { at: format!("rail {}", plan.rail), text: reset_reason(errno) };
        self.last_errno = errno;
        self.act(Action::ShowLanes);
        if let Some(pair) = self.approaches.pair_mut(plan) {
            pair.is_reset(epoch, why, Cause::from_errno(errno), carried, now);
        }
        if !self.has_lanes() {
            return self.begin_resuming(plan, outcome, now);
        }
        if let Some(pair) = self.approaches.pair_mut(plan) {
            match pair.stuck().is_some() {
                true => pair.note_reason(now), // The warning has it.
                false => pair.note_warning(now),
            }
        }
        let unknown = self.rewind();
        if asks {
            self.push(Kind::Reset, of_lane(plan, epoch));
        }
        self.act(Action::Unknown(unknown, outcome));
        self.act(Action::Flush);
        if Cause::from_errno(errno).may_be_an_operation() {
            // A post by a key that the peer has replaced may be the cause. Others by that key would end
            // the other lanes, over which the new key is to arrive.
            self.behind = Some(Behind::Unknown);
            self.act(Action::Behind);
            self.ask_how_far(now);
        }
    }

    /// Frames that lanes may have lost are sent again. Returns the operations whose speculative
    /// notifications are not.
    fn rewind(&mut self) -> Vec<OpId> {
        self.channels.iter_mut().flat_map(|channel| channel.rewind()).collect()
    }

    fn begin_resuming(&mut self, plan: Plan, outcome: Outcome, now: u64) {
        let errno = outcome.provider_errno;
        let lasted = self.resumes.begin(errno, now);
        self.act(Action::Away(outcome));
        let before = match &mut self.state {
            State::Up => None,
            State::Resuming(resuming) => Some(std::mem::replace(resuming, Resuming::new(None, outcome, now))),
            _ => return self.act(Action::End(outcome)),
        };
        let Some(lasted) = lasted else { return self.act(Action::End(outcome)) };
        self.behind = Some(Behind::Unknown);
        self.enter(State::Resuming(Resuming::new(before, outcome, now)));
        self.approaches.pairs_mut().for_each(|pair| pair.handshake_anyway(now));
        if lasted && Cause::from_errno(errno).is_closed() {
            // An endpoint that was up a moment ago is up again, or gone.
            self.approaches.pairs_mut().filter(|pair| pair.plan == plan).for_each(|pair| pair.end_pause(now));
        }
        self.go_on_resuming(now);
    }

    /// Advances a resume, once a lane is up, the old lane's reset is confirmed, and the peer has
    /// answered.
    pub(super) fn go_on_resuming(&mut self, now: u64) {
        let (up, forever) = (self.has_lanes(), self.terms.liveness_ns.is_none());
        let resets = self.resets().next().is_some();
        let State::Resuming(resuming) = &mut self.state else { return };
        let outcome = resuming.outcome;
        match resuming.next(up, resets, forever, &mut self.resumes, now) {
            resuming::Next::Wait(due) => self.timers.set(Timer::Resume, due),
            resuming::Next::Ask(again) => {
                self.frames.push_back((Kind::Resume, numbers(&[self.resumes.count])));
                self.timers.set(Timer::Resume, again);
            }
            // It is unknown whether speculative notifications were delivered.
            resuming::Next::Blindly => {
                let unknown = self.rewind();
                let resets: Vec<_> = self.resets().collect();
                for (plan, epoch) in resets {
                    self.push(Kind::Reset, of_lane(plan, epoch));
                }
                self.act(Action::Unknown(unknown, outcome));
                self.has_resumed(now);
            }
            resuming::Next::Lost => self.act(Action::End(outcome)),
        }
    }

    /// The peer's answer to Resume.
    pub(super) fn on_resumed(
        &mut self,
        number: u64,
        delivered: [u64; CHANNELS],
        others: &[u64],
        last: u32,
        now: u64,
    ) {
        if number != self.resumes.count {
            return;
        }
        if let Some(behind) = &mut self.behind {
            behind.goes_to(last);
            self.catch_up();
        }
        if !matches!(&self.state, State::Resuming(resuming) if resuming.has_asked()) {
            return;
        }
        let refused = others.iter().filter_map(|entry| channel::read_refusal(*entry));
        let refused = refused.filter_map(|(at, number)| self.channels[at].refused(number)).collect();
        self.act(Action::Refused(refused));
        for (at, delivered) in delivered.into_iter().enumerate() {
            let taken = self.channels[at].acknowledge(delivered as u32).collect();
            self.act(Action::Acknowledged(at, taken));
        }
        for (at, number) in others.iter().filter_map(|entry| channel::read_held(*entry)) {
            self.channels[at].is_held(number);
        }
        let unheard = self.rewind();
        self.act(Action::Retract(unheard));
        self.has_resumed(now);
    }

    fn has_resumed(&mut self, now: u64) {
        if let State::Resuming(resuming) = &self.state {
            let took = now.saturating_sub(resuming.since_ns);
            self.enter(State::Up);
            self.act(Action::Back(took));
            self.ask_how_far(now);
        }
    }

    /// Asks for the peer's last frame number, repeatedly until those frames have arrived: some may
    /// never be sent.
    pub(super) fn ask_how_far(&mut self, now: u64) {
        if matches!(self.state, State::Up) && self.behind.is_some() {
            self.frames.push_back((Kind::Resume, numbers(&[self.resumes.count])));
            self.timers.set(Timer::Resume, now + resuming::AGAIN_NS);
        }
    }

    /// Frames of the system channel were delivered here.
    #[inline]
    pub fn catch_up(&mut self) {
        let delivered = self.channels[SYSTEM].delivered();
        if self.behind.take_if(|behind| behind.is_over(delivered)).is_some() {
            self.act(Action::CaughtUp);
        }
    }
}

/// Why a lane was reset, for messages.
pub fn reset_reason(errno: i32) -> String {
    match Cause::from_errno(errno) {
        Cause::Silence => "nothing moved over it in time".to_owned(),
        Cause::Closed if errno != libc::ECANCELED => {
            format!("the other side closed it, and its log has the reason ({})", error_text(errno))
        }
        _ => error_text(errno),
    }
}

/// The body of Reset and ResetDone, behind which an address may follow.
pub(super) fn of_lane(plan: Plan, epoch: u64) -> Vec<u8> {
    numbers(&[plan.rail.get().into(), plan.remote_rail.get().into(), epoch])
}
