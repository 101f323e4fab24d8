//! Connecting to a peer over the fabrics that both sides have, best first.
//!
//! The next fabric is tried when the better ones have failed, or none of their lanes has come up
//! within a head start. The better ones continue all the same, so a peer that was only busy does
//! not end up on a worse fabric. One of the two sides selects the serving fabric, and the other
//! follows.

use crate::fabric::host;
use crate::ids::Plan;
use crate::lane::{Pair, Why};

/// Head starts: without a lane by then, the next fabric is tried, too. On one host an answer takes
/// microseconds; networks need handshakes.
const HEAD_START_HOST_NS: u64 = 300_000_000;
const HEAD_START_NS: u64 = 1_500_000_000;
/// The longest head start, as a fraction of the connect's timeout.
const HEAD_STARTS: u64 = 4;
/// How long a better fabric gets after another one has answered: a peer that was busy answers over
/// all of them at about the same time.
const LAST_CALL_NS: u64 = 50_000_000;
/// How long other lanes get for their handshakes after the first one is up.
const STRAGGLERS_NS: u64 = 1_000_000_000;

/// The lanes over one fabric.
pub struct Approach {
    pub fabric: String,
    pairs: Vec<Pair>,
    first_up_ns: u64,
}

/// The most addresses that a message lists for one reason.
const LISTED: usize = 4;

impl Approach {
    pub fn new(fabric: String, plans: Vec<Plan>) -> Approach {
        Approach { fabric, pairs: plans.into_iter().map(Pair::new).collect(), first_up_ns: 0 }
    }

    /// All its lanes.
    pub fn plans(&self) -> impl ExactSizeIterator<Item = Plan> + '_ {
        self.pairs.iter().map(|pair| pair.plan)
    }

    /// Its lanes that are up.
    pub fn up(&self) -> impl Iterator<Item = Plan> + '_ {
        self.pairs.iter().filter(|pair| pair.is_up()).map(|pair| pair.plan)
    }

    pub fn has(&self, plan: Plan) -> bool {
        self.plans().any(|known| known == plan)
    }

    fn is_up(&self) -> bool {
        self.up().next().is_some()
    }

    fn has_failed(&self) -> bool {
        self.pairs.iter().all(Pair::has_failed)
    }

    /// Lanes are up, and the others have failed or used up their time.
    fn is_ready(&self, now: u64) -> bool {
        let settled = self.pairs.iter().all(|pair| pair.is_up() || pair.has_failed());
        self.is_up() && (settled || now.saturating_sub(self.first_up_ns) > STRAGGLERS_NS)
    }

    /// The addresses of these pairs that have no lane, with each reason once.
    pub fn reasons(&self, which: impl Fn(&Pair) -> bool) -> String {
        let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
        for Why { at, text } in self.pairs.iter().filter(|pair| which(pair)).filter_map(Pair::why) {
            match reasons.iter_mut().find(|(known, _)| known == text) {
                Some((_, places)) => places.push(at),
                None => reasons.push((text, vec![at])),
            }
        }
        let said = reasons.iter().map(|(text, places)| {
            let listed = places[..places.len().min(LISTED)].join(", ");
            match places.len().saturating_sub(LISTED) {
                0 => format!("{listed}: {text}"),
                more => format!("{listed} and {more} more: {text}"),
            }
        });
        said.collect::<Vec<_>>().join("; ")
    }

    fn head_start(&self) -> u64 {
        if self.fabric == host::NAME {
            HEAD_START_HOST_NS
        } else {
            HEAD_START_NS
        }
    }
}

pub struct Approaches {
    /// All approaches, best fabric first.
    all: Vec<Approach>,
    /// How many are being tried, and since when the last one is.
    tried: usize,
    since: u64,
    timeout_ns: u64,
    serving: Option<usize>,
}

impl Approaches {
    pub fn new(all: Vec<Approach>, timeout_ns: u64) -> Approaches {
        Approaches { all, tried: 0, since: 0, timeout_ns, serving: None }
    }

    /// Tries the first `count`; returns the plans that this adds.
    pub fn begin(&mut self, count: usize, now: u64) -> Vec<Plan> {
        let count = count.clamp(self.tried, self.all.len());
        let new = self.all[self.tried..count].iter().flat_map(Approach::plans).collect();
        (self.tried, self.since) = (count, now);
        new
    }

    /// Tries the next one, if its time has come.
    pub fn begin_next(&mut self, now: u64) -> Option<Vec<Plan>> {
        let tried = &self.all[..self.tried];
        let last = tried.last().filter(|_| self.serving.is_none() && self.tried < self.all.len())?;
        let silent = !tried.iter().any(Approach::is_up);
        let late = silent && now.saturating_sub(self.since) >= self.head_start(last);
        (late || tried.iter().all(Approach::has_failed)).then(|| self.begin(self.tried + 1, now))
    }

    /// The peer sent a handshake over this fabric: tries it, too, and all better ones. `None` if
    /// all are being tried already.
    pub fn follow(&mut self, fabric: &str, now: u64) -> Option<Vec<Plan>> {
        let at = self.all.iter().position(|approach| approach.fabric == fabric)?;
        (self.serving.is_none() && at >= self.tried).then(|| self.begin(at + 1, now))
    }

    /// Returns how long the lane was not up, if it had failed.
    pub fn lane_up(&mut self, plan: Plan, now: u64) -> Option<u64> {
        let approach = self.all.iter_mut().find(|approach| approach.has(plan))?;
        if approach.first_up_ns == 0 {
            approach.first_up_ns = now;
        }
        approach.pairs.iter_mut().find(|pair| pair.plan == plan)?.comes_up(now)
    }

    /// Adds lanes over the serving fabric: returns those that are new, or had failed.
    pub fn extend(&mut self, plans: &[Plan]) -> Vec<Plan> {
        let Some(serving) = self.serving.and_then(|at| self.all.get_mut(at)) else { return Vec::new() };
        let known = serving.pairs.len();
        let new: Vec<Plan> = plans.iter().copied().filter(|plan| !serving.has(*plan)).collect();
        serving.pairs.extend(new.iter().copied().map(Pair::new));
        let again = serving.pairs[..known].iter_mut().filter(|pair| plans.contains(&pair.plan));
        let again = again.filter_map(|pair| pair.tries_again().then_some(pair.plan));
        new.into_iter().chain(again).collect()
    }

    pub fn pairs(&self) -> impl Iterator<Item = &Pair> {
        self.all.iter().flat_map(|approach| &approach.pairs)
    }

    pub fn pairs_mut(&mut self) -> impl Iterator<Item = &mut Pair> {
        self.all.iter_mut().flat_map(|approach| &mut approach.pairs)
    }

    pub fn serving_pairs_mut(&mut self) -> impl Iterator<Item = &mut Pair> {
        self.serving.and_then(|at| self.all.get_mut(at)).into_iter().flat_map(|serving| &mut serving.pairs)
    }

    pub fn pair(&self, plan: Plan) -> Option<&Pair> {
        self.pairs().find(|pair| pair.plan == plan)
    }

    pub fn pair_mut(&mut self, plan: Plan) -> Option<&mut Pair> {
        self.pairs_mut().find(|pair| pair.plan == plan)
    }

    /// Whether no fabric is left that could come up.
    pub fn is_hopeless(&self) -> bool {
        match self.serving() {
            Some(approach) => approach.has_failed(),
            None => self.all.iter().all(Approach::has_failed),
        }
    }

    /// The fabric to select: the best ready one, unless a better one may still become ready.
    pub fn best(&self, now: u64) -> Option<usize> {
        let mut silent = false;
        for (at, approach) in self.all[..self.tried].iter().enumerate() {
            if approach.is_ready(now) {
                let called = now.saturating_sub(approach.first_up_ns) > LAST_CALL_NS;
                return (!silent || called).then_some(at);
            }
            if approach.is_up() {
                return None; // Its other lanes come up, or are abandoned.
            }
            silent |= !approach.has_failed();
        }
        None
    }

    /// The index of a fabric that is being tried.
    pub fn find(&self, fabric: &str) -> Option<usize> {
        self.all[..self.tried].iter().position(|approach| approach.fabric == fabric)
    }

    pub fn take(&mut self, at: usize) {
        self.serving = Some(at);
    }

    /// The serving fabric, once selected.
    pub fn serving(&self) -> Option<&Approach> {
        self.all.get(self.serving?)
    }

    /// The serving fabric, once no further lane is expected.
    pub fn ready(&self, now: u64) -> Option<&Approach> {
        self.serving().filter(|approach| approach.is_ready(now))
    }

    /// When the passing of time alone may change the next step.
    pub fn next_ns(&self, now: u64) -> Option<u64> {
        let tried = &self.all[..self.tried];
        let next_fabric = tried.last().map(|last| self.since + self.head_start(last));
        let up = tried.iter().filter(|approach| approach.is_up()).map(|approach| approach.first_up_ns);
        let missing = up.flat_map(|up| [up + LAST_CALL_NS + 1, up + STRAGGLERS_NS + 1]);
        next_fabric.into_iter().chain(missing).filter(|due| *due > now).min()
    }

    fn head_start(&self, approach: &Approach) -> u64 {
        approach.head_start().min(self.timeout_ns / HEAD_STARTS)
    }

    /// Whether fabrics other than the serving one were tried.
    pub fn has_others(&self) -> bool {
        self.tried > 1
    }

    /// Why none of the tried fabrics has a lane, for messages.
    pub fn failures(&self) -> String {
        self.failures_of(self.tried)
    }

    fn failures_of(&self, first: usize) -> String {
        let without = self.all[..first].iter().filter(|approach| !approach.is_up());
        let said = without.map(|approach| {
            let what =
                if approach.has_failed() { "could not be reached" } else { "was not answered in time" };
            match approach.reasons(|_| true) {
                reasons if reasons.is_empty() => format!("{} {what}", approach.fabric),
                reasons => format!("{} {what}: {reasons}", approach.fabric),
            }
        });
        said.collect::<Vec<_>>().join("; ")
    }

    /// Why this fabric serves, in a sentence.
    pub fn reason(&self) -> String {
        let names = || self.all.iter().map(|a| a.fabric.as_str()).collect::<Vec<_>>().join(", ");
        let Some((at, serving)) = self.serving.zip(self.serving()) else {
            return format!("not settled yet; both have {}", names());
        };
        let fabric = &serving.fabric;
        match (at, self.all.len()) {
            (_, 1) => format!("{fabric} is the only fabric that both have"),
            (0, _) => format!("{fabric} is the best of the fabrics that both have ({})", names()),
            _ => match self.failures_of(at) {
                failures if failures.is_empty() => format!("the peer chose {fabric}"),
                failures => format!("{failures}; using {fabric}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RailIndex;

    const MS: u64 = 1_000_000;

    fn plan(rail: u16) -> Plan {
        let rail = RailIndex::new(rail);
        Plan { rail, remote_rail: rail }
    }

    fn why(at: &str, text: &str) -> Why {
        Why { at: at.into(), text: text.into() }
    }

    fn fails(ways: &mut Approaches, plan: Plan, why: Why) {
        ways.pair_mut(plan).expect("a lane of the test").fails(why);
    }

    /// `host` with one lane, tcp with two.
    fn two(timeout_ns: u64) -> Approaches {
        let host = Approach::new(host::NAME.into(), vec![plan(0)]);
        let tcp = Approach::new("tcp".into(), vec![plan(1), plan(2)]);
        Approaches::new(vec![host, tcp], timeout_ns)
    }

    #[test]
    fn next_fabric_is_tried_at_once_after_a_failure_and_later_without_an_answer() {
        let mut ways = two(10_000 * MS);
        assert_eq!(ways.begin(1, 0), [plan(0)]);
        assert_eq!(ways.begin_next(299 * MS), None);
        fails(&mut ways, plan(0), why("a:1", "no"));
        assert_eq!(ways.begin_next(299 * MS), Some(vec![plan(1), plan(2)]));
        assert!(!ways.is_hopeless() && ways.begin_next(9000 * MS).is_none());
        let mut ways = two(10_000 * MS);
        ways.begin(1, 0);
        assert!(ways.begin_next(300 * MS).is_some());
        let mut hurried = two(400 * MS);
        hurried.begin(1, 0);
        assert!(hurried.begin_next(100 * MS).is_some());
        let mut answered = two(10_000 * MS);
        answered.begin(1, 0);
        answered.lane_up(plan(0), MS);
        assert!(answered.begin_next(5000 * MS).is_none());
    }

    #[test]
    fn best_ready_fabric_is_selected() {
        let mut ways = two(10_000 * MS);
        ways.begin(2, 0);
        ways.lane_up(plan(1), 400 * MS);
        assert_eq!(ways.best(400 * MS), None, "the other lane of tcp may come");
        ways.lane_up(plan(2), 401 * MS);
        assert_eq!(ways.best(402 * MS), None, "the last call for host");
        assert_eq!(ways.best(451 * MS), Some(1));
        ways.lane_up(plan(0), 402 * MS);
        assert_eq!(ways.best(402 * MS), Some(0));
        fails(&mut ways, plan(0), why("a:1", "no"));
        assert_eq!(ways.best(402 * MS), Some(1));
        ways.take(1);
        assert_eq!(ways.reason(), "host could not be reached: a:1: no; using tcp");
    }

    #[test]
    fn slow_fabrics_are_abandoned_and_failures_end_the_approach() {
        let mut ways = two(10_000 * MS);
        ways.begin(2, 0);
        fails(&mut ways, plan(0), why("a:1", "no"));
        ways.lane_up(plan(2), MS);
        assert_eq!((ways.best(900 * MS), ways.best(1002 * MS)), (None, Some(1)));
        fails(&mut ways, plan(2), why("b:2", "gone"));
        assert!(!ways.is_hopeless());
        fails(&mut ways, plan(1), why("a:1", "gone"));
        assert!(ways.is_hopeless());
    }

    #[test]
    fn failures_name_each_address_and_each_reason_once() {
        let plans: Vec<Plan> = (0..6).map(plan).collect();
        let mut ways = Approaches::new(vec![Approach::new("tcp".into(), plans.clone())], 10_000 * MS);
        ways.begin(1, 0);
        assert_eq!(ways.failures(), "tcp was not answered in time");
        ways.pairs_mut().for_each(|pair| pair.waits(why(&format!("h:{}", pair.plan.rail), "silent")));
        let silent = "tcp was not answered in time: h:0, h:1, h:2, h:3 and 2 more: silent";
        assert_eq!(ways.failures(), silent);
        plans[1..]
            .iter()
            .for_each(|plan| fails(&mut ways, *plan, why(&format!("h:{}", plan.rail), "refused")));
        let some = "tcp was not answered in time: h:0: silent; h:1, h:2, h:3, h:4 and 1 more: refused";
        assert_eq!(ways.failures(), some);
    }

    #[test]
    fn peer_handshake_also_starts_all_better_fabrics() {
        let mut ways = two(10_000 * MS);
        assert_eq!(ways.follow("tcp", 0).map(|plans| plans.len()), Some(3));
        assert!(ways.follow("tcp", 0).is_none() && ways.follow("efa", 0).is_none());
    }
}
