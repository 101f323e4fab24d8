//! What a peer's owner knows of the lanes between two rails, one after the other: whether one is up, until nothing
//! of those that failed moves on either side, and when the next one begins.
//!
//! A lane that is reset may start its handshake again once the peer has reset its end, too; without
//! another lane to report that, the handshake itself does. Each failure lengthens the pause before
//! the next handshake. It grows further after lanes that come up and carry nothing: a path may carry small frames, and
//! drop packets of full size.

use super::Carried;
use crate::fabric::Cause;
use crate::ids::Plan;

/// The shortest and the longest pause: each pause doubles the last.
const PAUSE_LEAST_NS: u64 = 100_000_000;
const PAUSE_MOST_NS: u64 = 2_000_000_000;
/// The longest one after lanes that carried nothing before they failed: each of them delays what it takes.
const PAUSE_FUTILE_NS: u64 = 60_000_000_000;
/// This many of those in a row are more than an accident.
const FUTILE: u32 = 2;
/// A lane that is up again within this time has a path for small frames.
const BACK_NS: u64 = 1_000_000_000;
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
    /// How many lanes in a row came up, carried nothing, and were closed.
    futile: u32,
    /// The last one had something to carry, of which nothing moved in time.
    stuck: bool,
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
            futile: 0,
            stuck: false,
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

    fn was_steady(&self, now: u64) -> bool {
        self.up_ns.is_some_and(|up| now.saturating_sub(up) > STEADY_NS)
    }

    fn is_futile(&self) -> bool {
        self.futile >= FUTILE
    }

    /// How many lanes in a row have carried nothing, if the last failed because only small frames pass.
    pub fn stuck(&self) -> Option<u32> {
        Some(self.futile).filter(|_| self.stuck && self.is_futile())
    }

    /// Whether that is seen already as one comes up, this long after the first of them failed: a peer that was stopped
    /// would not answer.
    pub fn was_stuck(&self, failed_for: u64) -> bool {
        self.stuck && self.futile == 1 && failed_for < BACK_NS
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
    pub fn is_reset(&mut self, epoch: u64, why: Why, cause: Cause, carried: Carried, now: u64) {
        self.fails(why);
        self.erred = false;
        let futile = match carried {
            Carried::All => false,
            Carried::Stuck => true,
            Carried::Frames => !self.was_steady(now),
        };
        let is_path = matches!(cause, Cause::Silence | Cause::Closed);
        self.futile = if futile && is_path { self.futile.saturating_add(1) } else { 0 };
        self.stuck = cause == Cause::Silence && carried == Carried::Stuck;
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
        self.due_ns = self.due_ns.map(|due| due.min(now + PAUSE_MOST_NS));
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
        let (steady, futile) = (self.was_steady(now), self.is_futile());
        self.up_ns = None;
        let most = if futile { PAUSE_FUTILE_NS } else { PAUSE_MOST_NS };
        self.pause_ns = if soon || steady && !futile { PAUSE_LEAST_NS } else { self.pause_ns.min(most) };
        self.due_ns = Some(now + self.pause_ns);
        self.pause_ns = (2 * self.pause_ns).min(most);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RailIndex;

    const MS: u64 = 1_000_000;

    fn pair() -> Pair {
        let rail = RailIndex::new(0);
        Pair::new(Plan { rail, remote_rail: rail })
    }

    /// A lane comes up, and fails after this time; returns the pause before the next one.
    fn fails(pair: &mut Pair, cause: Cause, carried: Carried, after: u64, now: &mut u64) -> u64 {
        pair.comes_up(*now);
        *now += after;
        pair.is_reset(1, Why { at: String::new(), text: String::new() }, cause, carried, *now);
        pair.quiesced(1, *now);
        let pause = pair.next_ns().map_or(0, |due| due - *now);
        *now += pause;
        assert!(pair.take_due(*now));
        pause
    }

    #[test]
    fn lane_that_only_small_frames_pass_is_named_the_second_time_or_as_it_is_up_again_at_once() {
        let (mut one, mut now) = (pair(), 1);
        let mut said = |cause, carried| {
            fails(&mut one, cause, carried, 700 * MS, &mut now);
            (one.was_stuck(BACK_NS - 1), one.stuck())
        };
        assert_eq!(said(Cause::Silence, Carried::Stuck), (true, None));
        assert_eq!(said(Cause::Silence, Carried::Stuck), (false, Some(2)));
        assert_eq!(said(Cause::Closed, Carried::Stuck), (false, None));
        assert_eq!(said(Cause::Silence, Carried::Frames), (false, None));
        assert_eq!(said(Cause::Silence, Carried::Stuck), (false, Some(5)));
        assert_eq!(said(Cause::Silence, Carried::All), (false, None));
        assert_eq!(said(Cause::Network, Carried::Stuck), (false, None));
        assert_eq!(said(Cause::Silence, Carried::Stuck), (true, None));
        assert!(!one.was_stuck(BACK_NS));
    }

    #[test]
    fn lanes_that_carry_nothing_return_later_and_later_and_others_as_before() {
        let causes = [Cause::Silence, Cause::Closed, Cause::Ended, Cause::Network];
        let all = [Carried::Frames, Carried::Stuck, Carried::Stuck, Carried::All];
        for seed in 0..2000 {
            let mut state: u64 = seed;
            let mut below = |n: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % n
            };
            let (mut one, mut now, mut futile, mut last) = (pair(), 1, 0, 0);
            let usual = below(all.len() as u64) as usize;
            for _ in 0..40 {
                let which = if below(10) == 0 { below(4) as usize } else { usual };
                let (cause, carried) = (causes[below(2 + seed % 3) as usize], all[which]);
                let after = below(2000) * 10 * MS;
                let pause = fails(&mut one, cause, carried, after, &mut now);
                let idle = carried == Carried::Frames && after > STEADY_NS;
                let path = matches!(cause, Cause::Silence | Cause::Closed);
                futile = if path && carried != Carried::All && !idle { futile + 1 } else { 0 };
                let (least, most) = match futile {
                    0 | 1 => (PAUSE_LEAST_NS, PAUSE_MOST_NS),
                    _ => {
                        let next = (2 * last).min(if futile == 2 { PAUSE_MOST_NS } else { PAUSE_FUTILE_NS });
                        (next, next)
                    }
                };
                assert!(
                    (least..=most).contains(&pause),
                    "seed {seed}: {pause} ns after {futile}, {cause:?}, {carried:?}"
                );
                last = pause;
            }
        }
    }

    #[test]
    fn peer_without_lanes_waits_for_none_as_long_as_for_one_that_carries_nothing() {
        let (mut one, mut now) = (pair(), 1);
        for _ in 0..14 {
            fails(&mut one, Cause::Silence, Carried::Stuck, 700 * MS, &mut now);
        }
        one.let_return(false, now);
        assert_eq!(one.next_ns(), Some(now + PAUSE_FUTILE_NS));
        one.handshake_anyway(now);
        assert_eq!(one.next_ns(), Some(now + PAUSE_MOST_NS));
    }
}
