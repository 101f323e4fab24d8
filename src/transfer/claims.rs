//! Runs that a stripe has claimed and that may not have arrived: others repost them if its lane
//! fails.
//!
//! Claims belong to two generations. Posts are tagged with the newer one's parity; once everything
//! posted for the older one has come back, its claims are settled, and the newer one takes its
//! place. So there are never more claims to remember than two windows hold.

/// Slices from the first to before the second.
pub type Run = (u64, u64);

/// Bit of a stripe's number, in the tags of its posts.
const PARITY: u32 = 1 << 31;

/// The stripe's number and the generation in a tag.
#[inline]
pub fn split(tagged: u32) -> (u32, usize) {
    (tagged & !PARITY, (tagged >> 31) as usize)
}

#[derive(Default)]
pub struct Claims {
    runs: [Vec<Run>; 2],
    /// Posts that are under way.
    inflight: [u32; 2],
    /// The generation of what is posted now.
    newer: usize,
    /// Slices that are known to have arrived.
    settled: u64,
}

impl Claims {
    /// Empties the claims, and keeps their capacity.
    pub fn cleared(mut self) -> Claims {
        self.runs.iter_mut().for_each(Vec::clear);
        Claims { runs: self.runs, ..Claims::default() }
    }

    /// The tag of the stripe's posts.
    #[inline]
    pub fn tag(&self, stripe: u32) -> u32 {
        stripe | (self.newer as u32) << 31
    }

    #[inline]
    pub fn claim(&mut self, run: Run) {
        self.runs[self.newer].push(run);
    }

    #[inline]
    pub fn posted(&mut self, posts: u32) {
        self.inflight[self.newer] += posts;
    }

    /// Counts finished posts. `rest`: the part of the last claim that is not posted.
    #[inline]
    pub fn finished(&mut self, generation: usize, posts: u32, rest: Run) {
        self.inflight[generation] -= posts;
        if self.inflight[1 - self.newer] == 0 {
            self.turn(rest);
        }
    }

    /// Settles all that was posted, unless some of it is under way. `rest`: as for `finished`.
    pub fn settle(&mut self, rest: Run) {
        if self.inflight() == 0 {
            self.turn(rest);
            self.turn(rest);
        }
    }

    fn turn(&mut self, rest: Run) {
        let older = 1 - self.newer;
        self.settled += self.runs[older].drain(..).map(|(start, end)| end - start).sum::<u64>();
        if self.runs[self.newer].is_empty() {
            return;
        }
        if rest.0 < rest.1 {
            // Later posts belong to the next generation.
            if let Some(last) = self.runs[self.newer].last_mut() {
                last.1 = rest.0;
            }
            self.runs[older].push(rest);
        }
        self.newer = older;
    }

    /// Counts posts returned by a failed lane: they settle nothing.
    pub fn came_back(&mut self, generation: usize, posts: u32) {
        self.inflight[generation] -= posts;
    }

    #[inline]
    pub fn inflight(&self) -> u32 {
        self.inflight[0] + self.inflight[1]
    }

    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// Takes the runs that are not known to have arrived.
    pub fn take_unsettled(&mut self) -> Vec<Run> {
        let [mut all, more] = std::mem::take(&mut self.runs);
        all.extend(more);
        all.retain(|(start, end)| start < end);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The older of two generations is settled when its posts have come back.
    #[test]
    fn claims_are_settled_generation_by_generation() {
        let mut claims = Claims::default();
        claims.claim((0, 4));
        claims.posted(2);
        let (_, first) = split(claims.tag(7));
        claims.finished(first, 1, (2, 4));
        assert_eq!(claims.settled(), 0);
        let (stripe, second) = split(claims.tag(7));
        assert!(stripe == 7 && first != second, "later posts have the newer generation");
        claims.posted(2);
        claims.finished(second, 1, (4, 4));
        assert_eq!(claims.settled(), 0, "a post of the older generation is in flight");
        claims.finished(first, 1, (4, 4));
        assert_eq!(claims.settled(), 2);
        claims.finished(second, 1, (4, 4));
        assert_eq!((claims.settled(), claims.inflight()), (4, 0));
        assert!(claims.take_unsettled().is_empty());
    }

    #[test]
    fn slices_returned_by_a_failed_lane_are_not_settled() {
        let mut claims = Claims::default();
        claims.claim((0, 4));
        claims.posted(4);
        claims.came_back(0, 4);
        assert_eq!((claims.settled(), claims.inflight()), (0, 0));
        assert_eq!(claims.take_unsettled(), [(0, 4)]);
    }

    #[test]
    fn what_was_posted_is_settled_where_nothing_is_under_way() {
        let mut claims = Claims::default();
        claims.claim((0, 4));
        claims.posted(2);
        claims.finished(0, 1, (2, 4));
        claims.settle((2, 4));
        assert_eq!(claims.settled(), 0, "a post is under way");
        claims.finished(0, 1, (2, 4));
        claims.settle((2, 4));
        assert_eq!((claims.settled(), claims.take_unsettled()), (2, vec![(2, 4)]));
    }

    #[test]
    fn unsettled_slices_are_posted_again() {
        let mut claims = Claims::default();
        claims.claim((0, 4));
        claims.posted(1);
        claims.finished(0, 1, (1, 4));
        claims.claim((8, 12));
        claims.posted(1);
        let mut again = claims.take_unsettled();
        again.sort();
        assert_eq!(again, [(0, 1), (1, 4), (8, 12)]);
        assert_eq!(claims.settled(), 0);
    }
}
