//! Failed lanes: until nothing of them moves on either side, and until they return.
//!
//! A lane that is reset may start its handshake again once the peer has reset its end, too; without
//! another lane to report that, the handshake itself does. Each failure lengthens the pause before
//! the next handshake.

use super::plan::Plan;

/// The shortest and the longest pause: each pause doubles the last.
const PAUSE_LEAST_NS: u64 = 100_000_000;
const PAUSE_MOST_NS: u64 = 2_000_000_000;
/// A lane that was up for this long starts again with the shortest pause.
const STEADY_NS: u64 = 10_000_000_000;

/// A failed lane whose peer has not confirmed the reset of its end.
#[derive(Clone, Copy, Debug)]
struct Reset {
    plan: Plan,
    epoch: u64,
    /// A new lane may start its handshake: its reply will report the reset, too.
    handshaking: bool,
}

/// A lane that has failed, and will return.
pub struct Returning {
    plan: Plan,
    /// When to start the handshake; `None` during the handshake, and while the lane is up.
    due_ns: Option<u64>,
    /// The pause after its next failure.
    pause_ns: u64,
    up_ns: Option<u64>,
    /// Since when it is not up, if it is not.
    failed_ns: Option<u64>,
    /// It was up once: somebody listened there.
    served: bool,
}

#[derive(Default)]
pub struct FailedLanes {
    resets: Vec<Reset>,
    returning: Vec<Returning>,
}

impl FailedLanes {
    /// A serving lane is being reset here.
    pub fn reset(&mut self, plan: Plan, epoch: u64) {
        self.resets.push(Reset { plan, epoch, handshaking: false });
    }

    /// The reset of a lane is done: nothing of it moves any longer.
    pub fn is_at_rest(&mut self, plan: Plan, epoch: u64, now: u64) {
        let Some(at) = self.resets.iter().position(|of| (of.plan, of.epoch) == (plan, epoch)) else { return };
        if !self.resets.swap_remove(at).handshaking {
            self.let_return(plan, false, now).served = true;
        }
    }

    /// No lane is left: lanes that are reset may start their handshakes without the peer's report.
    pub fn handshake_all(&mut self, now: u64) {
        for at in 0..self.resets.len() {
            if !std::mem::replace(&mut self.resets[at].handshaking, true) {
                self.let_return(self.resets[at].plan, true, now).served = true;
            }
        }
    }

    /// The lanes, and their epochs, whose reset the peer has not confirmed.
    pub fn pending(&self) -> impl Iterator<Item = (Plan, u64)> + '_ {
        self.resets.iter().map(|of| (of.plan, of.epoch))
    }

    /// Whether a failed lane has to wait for its reset before its handshake.
    pub fn holds_off(&self, plan: Plan) -> bool {
        self.resets.iter().any(|of| of.plan == plan && !of.handshaking)
    }

    /// A serving lane has failed: schedules its return. `soon`: it returns without delaying any
    /// other lane.
    pub fn let_return(&mut self, plan: Plan, soon: bool, now: u64) -> &mut Returning {
        let (due_ns, up_ns, failed_ns) = (None, None, None);
        let new = Returning { plan, due_ns, pause_ns: PAUSE_LEAST_NS, up_ns, failed_ns, served: false };
        let at = self.returning.iter().position(|known| known.plan == plan).unwrap_or_else(|| {
            self.returning.push(new);
            self.returning.len() - 1
        });
        let known = &mut self.returning[at];
        if soon || known.up_ns.is_some_and(|up| now.saturating_sub(up) > STEADY_NS) {
            known.pause_ns = PAUSE_LEAST_NS;
        }
        known.due_ns = Some(now + known.pause_ns);
        known.pause_ns = (2 * known.pause_ns).min(PAUSE_MOST_NS);
        known.up_ns = None;
        known.failed_ns.get_or_insert(now);
        known
    }

    /// Whether a lane that failed had been up before.
    pub fn has_served(&self, plan: Plan) -> bool {
        self.returning.iter().any(|known| known.plan == plan && known.served)
    }

    /// Ends the pause of a lane.
    pub fn end_pause(&mut self, plan: Plan, now: u64) {
        let known = self.returning.iter_mut().find(|known| known.plan == plan);
        known.into_iter().for_each(|known| known.due_ns = Some(now));
    }

    /// Returns how long the lane was not up, if it had failed.
    pub fn is_up(&mut self, plan: Plan, now: u64) -> Option<u64> {
        let known = self.returning.iter_mut().find(|known| known.plan == plan)?;
        (known.due_ns, known.up_ns, known.served) = (None, Some(now), true);
        known.failed_ns.take().map(|failed| now.saturating_sub(failed))
    }

    /// When the next lane may start its handshake.
    pub fn next_ns(&self) -> Option<u64> {
        let free = self.returning.iter().filter(|known| !self.holds_off(known.plan));
        free.filter_map(|known| known.due_ns).min()
    }

    /// The lanes that start their handshakes now.
    pub fn take_due(&mut self, now: u64) -> Vec<Plan> {
        let due =
            |known: &Returning| known.due_ns.is_some_and(|due| due <= now) && !self.holds_off(known.plan);
        let plans: Vec<Plan> =
            self.returning.iter().filter(|known| due(known)).map(|known| known.plan).collect();
        let taken = self.returning.iter_mut().filter(|known| plans.contains(&known.plan));
        taken.for_each(|known| known.due_ns = None);
        plans
    }
}
