//! The life of one end of a lane, as a state machine without I/O.
//!
//! It takes what the peer says of its end, what the NIC reports, and the time, and decides what becomes of the
//! lane; the worker that has the lane carries it out (`worker/handshake.rs`, `failover.rs`). What the session
//! makes of its lanes is in `session`.
//!
//! Both ends of a lane have an epoch, which increases with each lane between the same rails. A request from a
//! newer one says that the peer has reset its older ends. A lane that failed is reset at both ends: only then can
//! nothing that was posted over it land any longer.

mod pair;
pub mod reopening;
#[cfg(test)]
mod reopening_tests;
mod serving;
mod stall;
#[cfg(test)]
pub mod tests;

pub use pair::{Pair, Why};
pub use serving::Serving;
pub use stall::{Load, Verdict, SUSPECT_NS};

use crate::fabric::{Cause, Resets};
use stall::Watch;
use std::fmt;

/// The time between handshake requests without an answer.
pub const AGAIN_NS: u64 = 20_000_000;
/// Failed attempts, each a handshake and its probe, before a lane gives up: a fabric's connection may
/// fail once because both sides opened it at the same time.
const PATIENCE: u32 = 5;
/// A lane to a peer that is up gives up after this time, and starts again later. The time doubles
/// with each handshake that was not finished (`Sight::unfinished`): where connecting takes longer, no
/// lane would ever return.
const RETURN_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneState {
    /// The peer has not answered over the lane.
    Handshaking(Attempt),
    /// The peer has answered; the lane's first write is in flight.
    Probing(Attempt),
    Up,
    /// An operation over it failed where it cannot be reset, or no other lane is left: its peer ends.
    Broken,
    /// It is closed here, and its operations come back; `peer_reset`: at the peer's end, too. `errno` is what it
    /// failed with.
    Resetting {
        errno: i32,
        peer_reset: bool,
    },
    /// It is given up or dropped, and goes once the fabric has returned its operations; `closed`: its path is closed
    /// as for a reset.
    Draining {
        since_ns: u64,
        closed: bool,
    },
}

/// What a lane comes to rest for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rest {
    /// The answer to this request of the peer: afterwards it continues.
    Answer(u64),
    /// The end of the session: it takes nothing new.
    Close,
    /// Its NIC's endpoint is about to close (`reopening`).
    Reopening,
}

/// The progress of a handshake and its probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempt {
    since_ns: u64,
    /// When to try again; 0: at once. `None`: never, or the probe is under way.
    next_ns: Option<u64>,
    failures: u32,
    /// When the last failure was counted.
    failed_ns: Option<u64>,
}

/// What the worker knows when it asks a lane for its next step.
#[derive(Clone, Copy, Default)]
pub struct Sight {
    pub peer_up: bool,
    /// The NIC can take back what was posted.
    pub resets: bool,
    /// No lane of the peer is left, and nothing listens where this one leads.
    pub gone: bool,
    /// Handshakes with the peer that were not finished.
    pub unfinished: u32,
}

/// The next step of a lane that is not up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Send a handshake request, due since then; 0: the first one. `requested` follows.
    Request { due_ns: u64 },
    /// Post the probe. `probe_posted` follows.
    Probe,
    /// Nobody is there: it is not tried again by itself.
    Gone,
    /// It got no answer in time: give it up.
    Unanswered,
}

/// Bytes that fit into one packet of every network, beside headers.
const SMALL: u64 = 1024;

/// What a lane has carried since it came up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Carried {
    /// Nothing but small frames, as there was nothing else.
    #[default]
    Frames,
    /// It has more than small frames to carry, and nothing of that has arrived.
    Stuck,
    All,
}

impl Carried {
    /// This many bytes were posted.
    #[inline]
    pub fn post(&mut self, bytes: u64) {
        if *self == Carried::Frames && bytes > SMALL {
            *self = Carried::Stuck;
        }
    }

    /// This many bytes have arrived.
    #[inline]
    pub fn arrive(&mut self, bytes: u64) {
        if bytes > SMALL {
            *self = Carried::All;
        }
    }
}

/// What follows from an operation that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Consequence {
    /// The handshake is repeated, or the lane ends anyway.
    Nothing,
    /// It does not come up.
    NotUp,
    /// Close it: a new one is made once its peer is up.
    GivenUp,
    /// Reset it: other lanes take over, or a new one will.
    Reset,
    /// Its operations fail; `ends_peer`: it served the peer, which ends.
    Broken { ends_peer: bool },
    /// The peer ends already: this is another reason.
    Noted,
    /// It is being reset, and this would fail on any lane: a peer that has no other ends.
    Pointless,
}

/// An operation that failed.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    pub errno: i32,
    /// The lane's rail serves the peer.
    pub serves: bool,
    /// The peer is not up yet.
    pub connecting: bool,
    /// How the NIC can reset a lane, and whether it connects again.
    pub resets: Resets,
    pub reconnects: bool,
}

/// What a request from the peer's lane of an epoch means for this end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// It belongs to this lane.
    Answer,
    /// It is outdated, or the peer has to repeat it later.
    Ignore,
    /// The peer has reset the end that this lane had: reset it.
    Reset,
    /// The peer has begun anew: give this one up.
    GiveUp,
}

/// What the peer's frame about a reset means for this end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    Nothing,
    /// This end is reset: say so.
    Confirm,
    /// Reset this end.
    Reset,
    /// The peer's end is gone: ours follows.
    Gone,
    /// It cannot be reset, and posts of the peer may still land: the peer ends.
    EndPeer,
}

/// The moves between states, for the diagram of ARCHITECTURE.
pub(crate) const MOVES: &[(&str, &str, &str)] = &[
    ("Handshaking", "Probing", "the peer has answered"),
    ("Handshaking", "Draining", "no answer in time, the peer has a newer lane, or nobody needs it"),
    ("Handshaking", "Resetting", "the peer has reset its end"),
    ("Probing", "Handshaking", "the probe failed"),
    ("Probing", "Up", "the probe has arrived"),
    ("Probing", "Draining", "no answer in time, the peer has a newer lane, or nobody needs it"),
    ("Probing", "Resetting", "the peer has reset its end"),
    ("Up", "Resetting", "it failed or stalled, or the peer's end did"),
    ("Up", "Broken", "an operation failed, and a reset is impossible or helps nobody"),
    ("Up", "Draining", "nobody needs it, or it failed before its peer was up"),
    ("Broken", "Resetting", "the peer has reset its end"),
    ("Broken", "Draining", "its peer has ended"),
    ("Resetting", "Draining", "its peer has ended"),
];

impl LaneState {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            LaneState::Handshaking(_) => "Handshaking",
            LaneState::Probing(_) => "Probing",
            LaneState::Up => "Up",
            LaneState::Broken => "Broken",
            LaneState::Resetting { .. } => "Resetting",
            LaneState::Draining { .. } => "Draining",
        }
    }
}

/// For the log.
impl fmt::Display for LaneState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LaneState::Handshaking(_) => "in its handshake",
            LaneState::Probing(_) => "in its probe",
            LaneState::Up => "up",
            LaneState::Broken => "broken",
            LaneState::Resetting { peer_reset: false, .. } => "reset here, and not by its peer",
            LaneState::Resetting { .. } => "reset at both ends",
            LaneState::Draining { .. } => "draining",
        })
    }
}

impl Attempt {
    /// Counts a failure; true if another attempt is pointless. A connection that ends fails all
    /// requests and the probe on it at once: that is one attempt.
    fn failed(&mut self, for_good: bool, now: u64) -> bool {
        if self.failed_ns.is_none_or(|last| now.saturating_sub(last) >= AGAIN_NS) {
            (self.failures, self.failed_ns) = (self.failures + 1, Some(now));
        }
        let gives_up = for_good || self.failures >= PATIENCE;
        self.next_ns = (!gives_up).then_some(now + AGAIN_NS);
        gives_up
    }
}

#[derive(Debug)]
pub struct Life {
    epoch: u64,
    /// The epoch of the peer's end, once known.
    peer_epoch: Option<u64>,
    state: LaneState,
    /// It takes no new transfers.
    stopped: bool,
    /// What waits until it is at rest; until then it posts nothing.
    held_for: Vec<Rest>,
    /// Why a post failed at once, which the worker has not handled: of several, the first.
    failed_post: Option<i32>,
    watch: Watch,
}

impl Life {
    pub fn new(epoch: u64, now: u64) -> Life {
        let attempt = Attempt { since_ns: now, next_ns: Some(0), failures: 0, failed_ns: None };
        let (state, watch) = (LaneState::Handshaking(attempt), Watch::default());
        Life {
            epoch,
            peer_epoch: None,
            state,
            stopped: false,
            held_for: Vec::new(),
            failed_post: None,
            watch,
        }
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn peer_epoch(&self) -> Option<u64> {
        self.peer_epoch
    }

    pub fn state(&self) -> LaneState {
        self.state
    }

    #[inline]
    pub fn is_up(&self) -> bool {
        matches!(self.state, LaneState::Up)
    }

    /// Whether it may carry something, now or later.
    #[inline]
    pub fn is_open(&self) -> bool {
        matches!(self.state, LaneState::Up | LaneState::Handshaking(_) | LaneState::Probing(_))
    }

    pub fn is_handshaking(&self) -> bool {
        matches!(self.state, LaneState::Handshaking(_))
    }

    pub fn is_resetting(&self) -> bool {
        matches!(self.state, LaneState::Resetting { .. })
    }

    /// Whether it only waits for what is in flight.
    pub fn is_ending(&self) -> bool {
        matches!(self.state, LaneState::Resetting { .. } | LaneState::Draining { .. })
    }

    /// Since when it drains.
    pub fn draining_since(&self) -> Option<u64> {
        match self.state {
            LaneState::Draining { since_ns, .. } => Some(since_ns),
            _ => None,
        }
    }

    /// Whether its path to the peer is closed: nothing is posted over it.
    #[inline]
    pub fn is_closed(&self) -> bool {
        matches!(self.state, LaneState::Resetting { .. } | LaneState::Draining { closed: true, .. })
    }

    /// Whether new transfers may use it, now or once it is at rest.
    #[inline]
    pub fn takes_transfers(&self) -> bool {
        self.is_up() && !self.stopped
    }

    /// Whether it posts nothing until it is at rest.
    #[inline]
    pub fn is_held(&self) -> bool {
        !self.held_for.is_empty()
    }

    /// Whether nothing of a failed lane moves on either side: its work may move to other lanes.
    pub fn is_reset(&self, ops_in_flight: u32) -> bool {
        ops_in_flight == 0 && matches!(self.state, LaneState::Resetting { peer_reset: true, .. })
    }

    /// What a lane that is being reset failed with; else 0.
    pub fn errno(&self) -> i32 {
        match self.state {
            LaneState::Resetting { errno, .. } => errno,
            _ => 0,
        }
    }

    /// Whether a deadline of the lane is near.
    pub fn is_waiting(&self) -> bool {
        self.is_ending() || self.attempt().is_some_and(|attempt| attempt.next_ns.is_some())
    }

    fn attempt(&self) -> Option<&Attempt> {
        match &self.state {
            LaneState::Handshaking(attempt) | LaneState::Probing(attempt) => Some(attempt),
            _ => None,
        }
    }

    fn attempt_mut(&mut self) -> Option<&mut Attempt> {
        match &mut self.state {
            LaneState::Handshaking(attempt) | LaneState::Probing(attempt) => Some(attempt),
            _ => None,
        }
    }

    fn enter(&mut self, state: LaneState) {
        let (from, to) = (self.state.name(), state.name());
        debug_assert!(from == to || MOVES.iter().any(|(a, b, _)| (*a, *b) == (from, to)), "{from} to {to}");
        #[cfg(test)]
        tests::note_move(from, to);
        self.state = state;
    }

    // Handshake and probe.

    /// A lane that has given up starts its handshake again.
    pub fn restart(&mut self) {
        if let LaneState::Handshaking(attempt) = &mut self.state {
            if attempt.next_ns.is_none() {
                (attempt.next_ns, attempt.failures) = (Some(0), 0);
            }
        }
    }

    /// The step that is due.
    pub fn poll(&mut self, sight: Sight, now: u64) -> Option<Step> {
        let handshaking = self.is_handshaking();
        let attempt = self.attempt_mut()?;
        if handshaking && sight.gone && attempt.next_ns.take().is_some() {
            return Some(Step::Gone);
        }
        let late = now.saturating_sub(attempt.since_ns) > RETURN_NS << sight.unfinished;
        if late && sight.peer_up && sight.resets {
            return Some(Step::Unanswered);
        }
        let due_ns = attempt.next_ns.filter(|due| *due <= now)?;
        Some(if handshaking { Step::Request { due_ns } } else { Step::Probe })
    }

    /// A request was sent, or could not be: it is repeated.
    pub fn requested(&mut self, now: u64) {
        if let LaneState::Handshaking(attempt) = &mut self.state {
            attempt.next_ns = Some(now + AGAIN_NS);
        }
    }

    /// The probe was posted, or (`later`) the lane was full. One probe suffices.
    pub fn probe_posted(&mut self, later: bool, now: u64) {
        if let LaneState::Probing(attempt) = &mut self.state {
            attempt.next_ns = later.then_some(now);
        }
    }

    /// Whether the answer of the peer's end of this epoch is awaited. (If the peer has a newer lane than that, its
    /// request follows.)
    pub fn awaits(&self, epoch: u64) -> bool {
        self.is_handshaking() && self.peer_epoch.is_none_or(|known| known == epoch)
    }

    /// The peer's end of this epoch has answered.
    pub fn answered(&mut self, epoch: u64) {
        let LaneState::Handshaking(attempt) = self.state else { return };
        self.peer_epoch = Some(epoch);
        self.enter(LaneState::Probing(Attempt { next_ns: Some(0), ..attempt }));
    }

    /// The probe has arrived; false if none was awaited.
    pub fn probed(&mut self) -> bool {
        let probing = matches!(self.state, LaneState::Probing(_));
        if probing {
            self.enter(LaneState::Up);
        }
        probing
    }

    /// A handshake or probe failed; true if another attempt is pointless. A probe is not tried again by itself: where
    /// its connection has ended, only a handshake makes a new one.
    pub fn attempt_failed(&mut self, errno: i32, reconnects: bool, now: u64) -> bool {
        let Some(mut attempt) = self.attempt().copied() else { return false };
        let for_good = !reconnects || Cause::from_errno(errno).is_final();
        let gives_up = attempt.failed(for_good, now);
        self.enter(LaneState::Handshaking(attempt));
        gives_up
    }

    // Failure and reset.

    pub fn note_failed_post(&mut self, errno: i32) {
        self.failed_post.get_or_insert(errno);
    }

    /// `failed` follows.
    pub fn take_failed_post(&mut self) -> Option<i32> {
        self.failed_post.take()
    }

    /// An operation of the lane failed. `lose`: takes it from those that serve (`Serving::lose`).
    pub fn failed(&mut self, failure: Failure, lose: impl FnOnce(bool) -> bool, now: u64) -> Consequence {
        let Failure { errno, serves, connecting, resets, reconnects } = failure;
        match self.state {
            LaneState::Handshaking(_) | LaneState::Probing(_) => {
                match self.attempt_failed(errno, reconnects, now) {
                    true => Consequence::NotUp,
                    false => Consequence::Nothing,
                }
            }
            LaneState::Up if connecting && resets == Resets::Lane => Consequence::GivenUp,
            LaneState::Up
                if serves
                    && resets != Resets::Never
                    && lose(resets == Resets::Lane && Cause::from_errno(errno).may_pass()) =>
            {
                Consequence::Reset
            }
            LaneState::Up => {
                self.enter(LaneState::Broken);
                Consequence::Broken { ends_peer: serves }
            }
            LaneState::Broken if serves => Consequence::Noted,
            LaneState::Resetting { .. } if errno != 0 && !Cause::from_errno(errno).may_pass() => {
                Consequence::Pointless
            }
            _ => Consequence::Nothing,
        }
    }

    /// Begins the reset of this end; false if the lane ends already.
    pub fn begin_reset(&mut self, errno: i32, peer_reset: bool) -> bool {
        let begins = !self.is_ending();
        if begins {
            self.goes_on();
            self.enter(LaneState::Resetting { errno, peer_reset });
        }
        begins
    }

    /// The lane takes nothing new, and goes; `closed`: its path is closed, too.
    pub fn drain(&mut self, closed: bool, now: u64) {
        if self.draining_since().is_none() {
            let closed = closed || self.is_closed();
            self.enter(LaneState::Draining { since_ns: now, closed });
        }
    }

    /// The peer has a lane of this epoch between the rails of all these, so it has reset its ends of older ones. False
    /// if it may not have reset its end of one that is being reset here.
    pub fn peer_has<'a>(ends: impl Iterator<Item = &'a mut Life>, epoch: u64) -> bool {
        let mut all = true;
        for end in ends {
            let older = end.peer_epoch < Some(epoch);
            if let LaneState::Resetting { peer_reset, .. } = &mut end.state {
                *peer_reset |= older;
                all &= *peer_reset;
            }
        }
        all
    }

    /// The peer's lane of this epoch sent a request. `resets`: the peer is up, and the NIC can reset a lane.
    pub fn meets(&mut self, epoch: u64, resets: bool) -> Request {
        if self.peer_epoch.is_none_or(|known| known == epoch) || !resets {
            self.peer_epoch = Some(epoch);
            return Request::Answer;
        }
        match self.state {
            _ if Some(epoch) < self.peer_epoch => Request::Ignore,
            LaneState::Up => Request::Reset,
            LaneState::Handshaking(_) | LaneState::Probing(_) => Request::GiveUp,
            LaneState::Broken | LaneState::Resetting { .. } | LaneState::Draining { .. } => Request::Ignore,
        }
    }

    /// Whether a frame about a reset means this end: one that asks has the epoch of the peer's end, one that
    /// confirms that of this one.
    pub fn is_meant(&self, epoch: u64, asks: bool) -> bool {
        let meant = if asks { self.peer_epoch == Some(epoch) } else { self.epoch == epoch };
        meant && self.draining_since().is_none()
    }

    /// The peer has reset its end of the lane that it means; `lane`: if it is here. It asks for ours (`asks`), or
    /// confirms its own.
    pub fn peer_reset(lane: Option<&mut Life>, asks: bool, resets: Resets) -> Asked {
        if asks && resets == Resets::Rail {
            return Asked::Reset; // The peer has closed nothing yet.
        }
        let resetting = lane.map(|lane| match &mut lane.state {
            LaneState::Resetting { peer_reset, .. } => {
                *peer_reset = true;
                true
            }
            _ => false,
        });
        match resetting {
            Some(false) if !asks && resets == Resets::Rail => Asked::Gone,
            _ if !asks => Asked::Nothing,
            Some(true) | None => Asked::Confirm,
            Some(false) if resets == Resets::Lane => Asked::Reset,
            Some(false) => Asked::EndPeer,
        }
    }

    // Rest.

    /// The lane is to come to rest. False: to close, which it does anyway.
    pub fn quiesce(&mut self, until: Rest) -> bool {
        if until == Rest::Close {
            if self.is_ending() {
                return false;
            }
            self.stopped = true;
        }
        self.held_for.push(until);
        true
    }

    /// What the lane is still held for. One that is being reset is at rest for a fence only once the peer's end is
    /// reset, too: then it is gone.
    pub fn held_for(&mut self, ops_in_flight: u32) -> impl Iterator<Item = Rest> + '_ {
        if ops_in_flight == 0 {
            let resetting = self.is_resetting();
            self.held_for.retain(|until| match until {
                Rest::Answer(_) => resetting,
                Rest::Close => false,
                Rest::Reopening => true,
            });
        }
        self.held_for.iter().copied()
    }

    /// It posts nothing more until its NIC's endpoint is closed, or `goes_on`.
    pub fn hold(&mut self) {
        if !self.held_for.contains(&Rest::Reopening) {
            self.held_for.push(Rest::Reopening);
        }
    }

    pub fn goes_on(&mut self) {
        self.held_for.retain(|until| *until != Rest::Reopening);
    }

    // Stalls, and ends of connections that nothing uses.

    /// Whether a lane that is up still moves.
    pub fn watch(&mut self, load: Load, now: u64) -> Verdict {
        self.watch.look(load, now)
    }

    /// Whether the connection of a lane that is up had ended at the last look, too; `ended`: it has ended.
    pub fn has_ended_again(&mut self, ended: bool) -> bool {
        self.watch.ended(ended)
    }
}
