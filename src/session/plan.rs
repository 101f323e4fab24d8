//! Planned lanes: the pairs of our rails and the peer's.

use crate::ids::{Plan, RailIndex};

/// Pairs our rails of a fabric with the peer's: every rail of the side that has more gets a lane.
/// Rails on the same network are paired where possible.
pub fn pair(ours: &[(RailIndex, &str)], theirs: &[(RailIndex, &str)]) -> Vec<Plan> {
    if ours.is_empty() || theirs.is_empty() {
        return Vec::new();
    }
    // Order both sides by network, keep each network's rails in order, and put the networks that
    // both have first: then partners have equal indexes.
    let order = |rails: &[(RailIndex, &str)], others: &[(RailIndex, &str)]| {
        let mut sorted: Vec<(bool, String, RailIndex)> = rails
            .iter()
            .map(|(index, network)| {
                let shared = others.iter().any(|(_, other)| other == network);
                (!shared, if shared { network.to_string() } else { String::new() }, *index)
            })
            .collect();
        sorted.sort();
        sorted.into_iter().map(|(_, _, index)| index).collect::<Vec<_>>()
    };
    let (left, right) = (order(ours, theirs), order(theirs, ours));
    (0..left.len().max(right.len()))
        .map(|i| Plan { rail: left[i % left.len()], remote_rail: right[i % right.len()] })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(pair: (u16, u16)) -> Plan {
        let (rail, remote_rail) = pair;
        Plan { rail: RailIndex::new(rail), remote_rail: RailIndex::new(remote_rail) }
    }

    #[test]
    fn both_sides_plan_the_same_pairs_and_use_every_rail() {
        let at = |(rail, network)| (RailIndex::new(rail), network);
        let ours = [(0, "a"), (1, "b"), (2, "x")].map(at);
        let theirs = [(5, "b"), (6, "a")].map(at);
        let plans = pair(&ours, &theirs);
        let expected = [(0, 6), (1, 5), (2, 6)].map(plan);
        assert_eq!(plans, expected);
        let mirror = |p: &Plan| Plan { rail: p.remote_rail, remote_rail: p.rail };
        let mut mirrored: Vec<_> = pair(&theirs, &ours).iter().map(mirror).collect();
        mirrored.sort_by_key(|plan| plan.rail);
        assert_eq!(mirrored, expected);
        // Of peers without the rail of "a", the others keep their networks.
        let four = [(0, "a"), (1, "b"), (2, "c"), (3, "d")].map(at);
        let three = [(0, "b"), (1, "c"), (2, "d")].map(at);
        assert_eq!(pair(&four, &three), [(1, 0), (2, 1), (3, 2), (0, 0)].map(plan));
        let unknown = [(0, "IB-0xfe80000000000000"), (1, "IB-0xfe80000000000000")].map(at);
        assert_eq!(pair(&four[..2], &unknown), [(0, 0), (1, 1)].map(plan));
        assert_eq!(pair(&ours[..1], &[0, 1, 2, 3].map(|rail| at((rail, "a")))).len(), 4);
        assert!(pair(&ours, &[]).is_empty());
    }
}
