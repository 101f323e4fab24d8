//! Admission of connections that belong to no peer yet.

use std::collections::HashMap;
use std::hash::Hash;

/// A connection without a peer: its name here, where it comes from, and its age.
pub type Waiting<K, O> = (K, O, u64);

/// Whether one more is admitted where `most` may wait: `Ok(Some(key))` in place of this one, the oldest of the origin that
/// has the most. `Err`: that one has not had its time for a handshake yet.
pub fn admit<K: Copy, O: Eq + Hash>(
    waiting: &[Waiting<K, O>],
    most: usize,
    time_ns: u64,
) -> Result<Option<K>, ()> {
    if waiting.len() < most {
        return Ok(None);
    }
    let mut counts = HashMap::new();
    for (_, origin, _) in waiting {
        *counts.entry(origin).or_insert(0usize) += 1;
    }
    let worst = waiting.iter().max_by_key(|(_, origin, age_ns)| (counts.get(origin), *age_ns));
    worst.filter(|(.., age_ns)| *age_ns >= time_ns).map(|(key, ..)| Some(*key)).ok_or(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_connection_of_the_busiest_origin_makes_room() {
        let mut waiting = vec![('a', 1, 90), ('b', 2, 50), ('c', 2, 60)];
        assert_eq!(admit(&waiting, 4, 0), Ok(None));
        assert_eq!(admit(&waiting, 3, 60), Ok(Some('c')));
        assert_eq!(admit(&waiting, 3, 61), Err(()), "it has not had its time");
        waiting.push(('d', 1, 10));
        assert_eq!(admit(&waiting, 3, 60), Ok(Some('a')), "the older one of two origins with as many");
    }
}
