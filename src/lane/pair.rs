//! What a peer's owner knows of the lanes between two rails, one after the other: whether one is up, until nothing
//! of those that failed moves on either side, and when the next one begins.
//!
//! A lane that is reset may start its handshake again once the peer has reset its end, too; without
//! another lane to report that, the handshake itself does. Each failure lengthens the pause before
//! the next handshake.

use crate::ids::Plan;

/// The shortest and the longest pause: each pause doubles the last.
const PAUSE_LEAST_NS: u64 = 100_000_000;
const PAUSE_MOST_NS: u64 = 2_000_000_000;
/// How often a lane that waits for keys looks whether the peer has them.
const LOOK_NS: u64 = 10_000_000;
/// A lane that was up for this long starts again with the shortest pause.
const STEADY_NS: u64 = 10_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PairState {
    /// No lane was up, or its handshake is repeated.
    Trying,
    Up,
    Failed,
}

/// Why a lane is not up, for messages: the addresses, and what was answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Why {
    pub at: String,
    pub text: String,
}

/// A failed lane whose peer has not confirmed the reset of its end.
#[derive(Clone, Copy, Debug)]
struct Reset {
    epoch: u64,
    /// A new lane may start its handshake: its reply will report the reset, too.
    handshaking: bool,
}

#[derive(Debug)]
pub struct Pair {
    pub plan: Plan,
    state: PairState,
    /// Why it failed, or what its handshake waits for.
    why: Option<Why>,
    /// That is an error, which says more than silence afterwards.
    erred: bool,
    resets: Vec<Reset>,
    /// When to start the handshake of a lane that has failed.
    due_ns: Option<u64>,
    /// Not before the peer has this frame: it has the keys of the rail's new device then. And when to look.
    after: Option<(u32, u64)>,
    /// The pause after the next failure.
    pause_ns: u64,
    /// When a lane came up that has not failed since.
    up_ns: Option<u64>,
    /// Since when no lane is up, if one was.
    failed_ns: Option<u64>,
    /// A lane was up once: somebody listened there.
    served: bool,
    /// The log warns that there is no lane.
    warned: bool,
    /// It says why no new one came up, too.
    explained: bool,
}

impl Pair {
    pub fn new(plan: Plan) -> Pair {
        Pair {
            plan,
            state: PairState::Trying,
            why: None,
            erred: false,
            resets: Vec::new(),
            due_ns: None,
            after: None,
            pause_ns: PAUSE_LEAST_NS,
            up_ns: None,
            failed_ns: None,
            served: false,
            warned: false,
            explained: false,
        }
    }

    pub fn is_up(&self) -> bool {
        self.state == PairState::Up
    }

    pub fn has_failed(&self) -> bool {
        self.state == PairState::Failed
    }

    /// Whether one that failed had been up before.
    pub fn has_served(&self) -> bool {
        self.served
    }

    /// Whether no lane is up, for a known reason that the log does not have.
    pub fn is_missing(&self) -> bool {
        !self.is_up() && !self.explained && self.why.is_some()
    }

    /// The same, and one that served was lost by then.
    pub fn is_missing_since(&self, then: u64) -> bool {
        self.is_missing() && (!self.served || self.failed_ns.is_some_and(|failed| failed <= then))
    }

    /// The log says why there is no lane, since then.
    pub fn note_reason(&mut self, since: u64) {
        self.explained = true;
        self.note_warning(since);
    }

    /// The log warns that there is no lane, since then.
    pub fn note_warning(&mut self, since: u64) {
        self.warned = true;
        self.failed_ns.get_or_insert(since);
    }

    /// Whether the log has warned since a lane was up.
    pub fn take_warned(&mut self) -> bool {
        std::mem::take(&mut self.warned)
    }

    /// Why there is no lane, as far as that is known.
    pub fn why(&self) -> Option<&Why> {
        self.why.as_ref().filter(|_| !self.is_up())
    }

    /// A lane is still without an answer.
    pub fn waits(&mut self, why: Why) {
        if !self.erred {
            self.why = Some(why);
        }
    }

    /// Returns how long no lane was up, if one had failed.
    pub fn comes_up(&mut self, now: u64) -> Option<u64> {
        (self.state, self.erred, self.explained) = (PairState::Up, false, false);
        (self.due_ns, self.up_ns, self.served) = (None, Some(now), true);
        self.failed_ns.take().map(|failed| now.saturating_sub(failed))
    }

    pub fn fails(&mut self, why: Why) {
        (self.state, self.why, self.erred) = (PairState::Failed, Some(why), true);
    }

    /// It is given up without an answer.
    pub fn stays_silent(&mut self, why: Why) {
        self.waits(why);
        self.state = PairState::Failed;
    }

    /// One that had failed is tried again; false if it had not.
    pub fn tries_again(&mut self) -> bool {
        let failed = self.has_failed();
        if failed {
            self.state = PairState::Trying;
        }
        failed
    }

    /// A serving lane is being reset here.
    pub fn is_reset(&mut self, epoch: u64, why: Why) {
        self.fails(why);
        self.erred = false;
        self.resets.push(Reset { epoch, handshaking: false });
    }

    /// The reset of a lane is done: nothing of it moves any longer.
    pub fn quiesced(&mut self, epoch: u64, now: u64) {
        let Some(at) = self.resets.iter().position(|reset| reset.epoch == epoch) else { return };
        if !self.resets.swap_remove(at).handshaking {
            self.served = true;
            self.let_return(false, now);
        }
    }

    /// No lane of the peer is left: the next handshake may start without the peer's report.
    pub fn handshake_anyway(&mut self, now: u64) {
        for at in 0..self.resets.len() {
            if !std::mem::replace(&mut self.resets[at].handshaking, true) {
                self.served = true;
                self.let_return(true, now);
            }
        }
    }

    /// The epochs of lanes whose reset the peer has not confirmed.
    pub fn resets(&self) -> impl Iterator<Item = u64> + '_ {
        self.resets.iter().map(|reset| reset.epoch)
    }

    /// Whether the next lane has to wait for a reset, or for keys, before its handshake, whoever begins that.
    pub fn holds_off(&self) -> bool {
        self.after.is_some() || self.resets.iter().any(|reset| !reset.handshaking)
    }

    /// A serving lane has failed: schedules its return. `soon`: it returns without delaying any
    /// other lane.
    pub fn let_return(&mut self, soon: bool, now: u64) {
        let steady = self.up_ns.take().is_some_and(|up| now.saturating_sub(up) > STEADY_NS);
        if soon || steady {
            self.pause_ns = PAUSE_LEAST_NS;
        }
        self.due_ns = Some(now + self.pause_ns);
        self.pause_ns = (2 * self.pause_ns).min(PAUSE_MOST_NS);
        self.failed_ns.get_or_insert(now);
    }

    /// Ends the pause; the next is the shortest.
    pub fn end_pause(&mut self, now: u64) {
        if self.failed_ns.is_some() || self.has_failed() {
            (self.due_ns, self.pause_ns) = (Some(now), PAUSE_LEAST_NS);
        }
    }

    /// The NIC has its link again: the next lane starts its handshake as soon as the peer has a frame.
    pub fn return_after(&mut self, frame: u32, now: u64) {
        if !self.is_up() {
            self.after = Some((frame, now));
        }
    }

    /// The peer has some frames.
    pub fn go_on(&mut self, has: impl Fn(u32) -> bool, now: u64) {
        if self.after.take_if(|(frame, _)| has(*frame)).is_some() {
            self.end_pause(now);
        } else if let Some((_, look_ns)) = &mut self.after {
            *look_ns = now + LOOK_NS;
        }
    }

    /// When the next lane may start its handshake, or to look whether it may.
    pub fn next_ns(&self) -> Option<u64> {
        match self.after {
            Some((_, look_ns)) => Some(look_ns),
            None => self.due_ns.filter(|_| !self.holds_off()),
        }
    }

    /// Whether the next lane starts its handshake now.
    pub fn take_due(&mut self, now: u64) -> bool {
        let due = self.after.is_none() && self.next_ns().is_some_and(|due| due <= now);
        if due {
            self.due_ns = None;
        }
        due
    }
}
