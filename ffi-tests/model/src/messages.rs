//! Which messages may arrive, and in what order: those that ended well, each
//! once, in the order of their calls; of the others some, or none.

/// A message as far as it can be told from others.
pub type Mark = (usize, u64);

pub fn mark(bytes: &[u8]) -> Mark {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    (bytes.len(), bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold))
}

/// Whether `arrived` is `sent` without some of those that need not arrive.
pub fn explained(sent: &[(Mark, bool)], arrived: &[Mark]) -> bool {
    // `can[n]`: the messages so far explain the first n arrivals.
    let mut can = vec![false; arrived.len() + 1];
    can[0] = true;
    for (mark, must) in sent {
        for n in (0..=arrived.len()).rev() {
            let came = n > 0 && can[n - 1] && arrived[n - 1] == *mark;
            can[n] = came || (can[n] && !must);
        }
    }
    can[arrived.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_come_comes_once_and_in_order() {
        let (a, b, c) = (mark(b"a"), mark(b"b"), mark(b"c"));
        let sent = [(a, true), (b, false), (c, true)];
        assert!(explained(&sent, &[a, c]) && explained(&sent, &[a, b, c]));
        for wrong in [&[a][..], &[c, a], &[a, c, c], &[a, c, b], &[]] {
            assert!(!explained(&sent, wrong), "{wrong:?}");
        }
        let twins = [(a, false), (a, true)];
        assert!(explained(&twins, &[a]) && explained(&twins, &[a, a]) && !explained(&twins, &[]));
    }
}
