//! The pages that a transfer moves: both processes derive the same from a seed.

/// Page indexes of both sides: distinct, random, out of a pool.
#[derive(Clone, PartialEq, Debug)]
pub struct Lists {
    pub source: Vec<u32>,
    pub target: Vec<u32>,
}

impl Lists {
    pub fn random(seed: u64, count: usize, pool: usize) -> Lists {
        let mut random = Random(mix(seed));
        Lists { source: draw(&mut random, count, pool), target: draw(&mut random, count, pool) }
    }

    pub fn len(&self) -> usize {
        self.source.len()
    }
}

fn draw(random: &mut Random, count: usize, pool: usize) -> Vec<u32> {
    let mut all: Vec<u32> = (0..pool as u32).collect();
    for i in 0..count {
        let other = i + (random.next() % (pool - i) as u64) as usize;
        all.swap(i, other);
    }
    all.truncate(count);
    all
}

/// Splitmix64: fast, and good enough to spread pages and fill them.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
}

pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_lists_are_distinct_and_determined_by_the_seed() {
        let lists = Lists::random(7, 50, 100);
        assert_eq!(lists, Lists::random(7, 50, 100));
        assert_ne!(lists, Lists::random(8, 50, 100));
        for list in [lists.source, lists.target] {
            let mut sorted = list.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), 50);
            assert!(sorted.iter().all(|page| *page < 100));
        }
    }
}
