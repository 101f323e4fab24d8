//! The lanes that serve a peer, as all of its workers and its owner know them.

use crate::ids::{Plan, RailIndex};
use std::collections::BTreeSet;

#[derive(Default)]
pub struct Serving {
    /// Lanes that are up, by the owner's knowledge.
    up: Vec<Plan>,
    /// The lanes among `up` that workers found failed, which the owner handles next.
    failed: Vec<Plan>,
    /// The rails whose NICs carry a lane in its own rail's place.
    elsewhere: Vec<(Plan, RailIndex)>,
    /// The epochs of the peer's newest lanes, by pair of rails.
    newest: Vec<(Plan, u64)>,
    /// The newest epochs of the peer's lanes whose ends here were closed with their NICs' endpoints.
    closed: Vec<(Plan, u64)>,
}

impl Serving {
    pub fn up(&self) -> &[Plan] {
        &self.up
    }

    pub fn set(&mut self, up: Vec<Plan>) {
        self.failed.retain(|plan| up.contains(plan));
        self.up = up;
    }

    /// A lane has come up, and the NIC of this rail carries it.
    pub fn is_carried_by(&mut self, plan: Plan, rail: RailIndex) {
        self.elsewhere.retain(|(known, _)| *known != plan);
        if rail != plan.rail {
            self.elsewhere.push((plan, rail));
        }
    }

    /// Our rails whose NICs carry the lanes that are up.
    pub fn carriers(&self) -> BTreeSet<RailIndex> {
        let by = |plan: &Plan| self.elsewhere.iter().find(|(known, _)| known == plan).map(|(_, rail)| *rail);
        self.left().map(|plan| by(plan).unwrap_or(plan.rail)).collect()
    }

    fn left(&self) -> impl Iterator<Item = &Plan> {
        self.up.iter().filter(|plan| !self.failed.contains(plan))
    }

    /// Lanes that workers have not found failed.
    pub fn working(&self) -> Vec<Plan> {
        self.left().copied().collect()
    }

    /// Removes a lane, if others are left, or even if it is the `last`.
    pub fn lose(&mut self, plan: Plan, last: bool) -> bool {
        let goes_on = last || self.left().any(|other| *other != plan);
        if goes_on && !self.failed.contains(&plan) {
            self.failed.push(plan);
        }
        goes_on
    }

    /// Whether the owner has yet to handle that a lane has failed.
    pub fn is_losing(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Whether a lane of the peer is the newest between two rails; `most`: the limit of pairs.
    pub fn is_newest(&mut self, plan: Plan, epoch: u64, most: usize) -> bool {
        let count = self.newest.len();
        match self.newest.iter_mut().find(|(known, _)| *known == plan) {
            Some((_, newest)) if epoch < *newest => return false,
            Some((_, newest)) => *newest = epoch,
            None if count >= most => return false,
            None => self.newest.push((plan, epoch)),
        }
        true
    }

    /// Whether the peer may have a lane of an epoch between two rails that is up there.
    pub fn has_had(&self, plan: Plan, epoch: u64) -> bool {
        self.newest.iter().any(|(known, newest)| *known == plan && epoch <= *newest)
    }

    /// The NIC of one of our rails has closed its endpoint, and so this end of all lanes that the peer has had: the
    /// newest ones.
    pub fn close(&mut self, rail: RailIndex) -> Vec<(Plan, u64)> {
        self.closed.retain(|(plan, _)| plan.rail != rail);
        let newest: Vec<_> = self.newest.iter().copied().filter(|(plan, _)| plan.rail == rail).collect();
        self.closed.extend(&newest);
        newest
    }

    /// Whether this end of the peer's lane of an epoch is closed.
    pub fn is_closed(&self, plan: Plan, epoch: u64) -> bool {
        self.closed.iter().any(|(known, newest)| *known == plan && epoch <= *newest)
    }

    /// Whether no lane over another of our rails is left.
    pub fn has_only(&self, rail: RailIndex) -> bool {
        self.left().all(|plan| plan.rail == rail)
    }

    /// Whether no lane is left.
    pub fn is_empty(&self) -> bool {
        self.left().next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(rail: u16, remote_rail: u16) -> Plan {
        Plan { rail: RailIndex::new(rail), remote_rail: RailIndex::new(remote_rail) }
    }

    #[test]
    fn lanes_count_for_the_nics_that_carry_them() {
        let mut lanes = Serving::default();
        let set = |rails: &[u16]| rails.iter().map(|rail| RailIndex::new(*rail)).collect::<BTreeSet<_>>();
        lanes.set(vec![plan(0, 0), plan(1, 1)]);
        assert_eq!(lanes.carriers(), set(&[0, 1]));
        lanes.is_carried_by(plan(1, 1), RailIndex::new(0));
        assert_eq!(lanes.carriers(), set(&[0]));
        lanes.is_carried_by(plan(1, 1), RailIndex::new(1));
        assert_eq!(lanes.carriers(), set(&[0, 1]));
    }

    #[test]
    fn peer_has_had_no_lanes_but_those_it_began() {
        let mut lanes = Serving::default();
        assert!(!lanes.has_had(plan(0, 0), 0));
        assert!(lanes.is_newest(plan(0, 0), 5, 2));
        assert!(lanes.has_had(plan(0, 0), 5) && lanes.has_had(plan(0, 0), 4));
        assert!(!lanes.has_had(plan(0, 0), 6) && !lanes.has_had(plan(0, 1), 5));
        lanes.close(RailIndex::new(0));
        assert!(lanes.is_closed(plan(0, 0), 5) && !lanes.is_closed(plan(0, 0), 6));
    }

    #[test]
    fn last_lane_stays_unless_it_must_close() {
        let mut lanes = Serving::default();
        assert!(!lanes.lose(plan(0, 0), false), "none serves yet");
        lanes.set(vec![plan(0, 0), plan(1, 1)]);
        assert!(lanes.lose(plan(0, 0), false));
        assert!(!lanes.lose(plan(1, 1), false) && !lanes.is_empty());
        assert_eq!((lanes.up().len(), lanes.working()), (2, vec![plan(1, 1)]));
        assert!(lanes.lose(plan(1, 1), true));
        assert!(lanes.is_empty());
        lanes.set(vec![]);
        lanes.set(vec![plan(1, 1)]);
        assert!(!lanes.is_empty());
        lanes.set(vec![plan(1, 1), plan(0, 0)]);
        assert!(lanes.lose(plan(1, 1), false), "the first has come back");
    }
}
