//! Credits, which limit the writes with immediates that a lane may post.
//!
//! Each takes an unsolicited entry in the target's completion queue, and a NIC's overrun queue is
//! lost. So each write needs a credit. Credits come in two halves. When the writes of a half are
//! done, their entries are in the target's queue, and a frame sent then arrives behind them: a
//! target that answers the frame has reaped the entries, and grants the half again. Meanwhile the
//! other half is in use.

/// Credits per half before the target has granted any: both sides assume this number.
pub const FIRST: u32 = 8;
/// Maximum credits per half.
pub const MOST: u32 = 1024;
/// A rail with fewer lanes reserves credits for later ones.
const LANES_LEAST: u32 = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    A,
    B,
}

impl Half {
    pub const BOTH: [Half; 2] = [Half::A, Half::B];

    /// The half with this number, as in a frame.
    pub fn named(number: u32) -> Option<Half> {
        Half::BOTH.into_iter().find(|half| half.number() == number)
    }

    pub fn number(self) -> u32 {
        self as u32
    }

    fn other(self) -> Half {
        match self {
            Half::A => Half::B,
            Half::B => Half::A,
        }
    }
}

#[derive(Clone, Copy)]
struct Credit {
    size: u32,
    posted: u32,
    /// Credits of writes that are not done.
    pending: u32,
    /// The half was requested from the target again.
    asked: bool,
}

impl Credit {
    const FIRST: Credit = Credit { size: FIRST, posted: 0, pending: 0, asked: false };

    fn left(&self) -> u32 {
        self.size - self.posted
    }
}

/// The sender's end, of one lane.
pub struct Credits {
    halves: [Credit; 2],
    in_use: Half,
}

impl Default for Credits {
    fn default() -> Credits {
        Credits { halves: [Credit::FIRST; 2], in_use: Half::A }
    }
}

impl Credits {
    fn half(&mut self, half: Half) -> &mut Credit {
        &mut self.halves[half as usize]
    }

    /// The half in use, and its remaining credits.
    #[inline]
    pub fn remaining(&self) -> (Half, u32) {
        (self.in_use, self.halves[self.in_use as usize].left())
    }

    /// Counts writes that were posted with credits of the half in use.
    pub fn spend(&mut self, posts: u32) {
        let half = self.half(self.in_use);
        half.posted += posts;
        half.pending += posts;
        if half.left() == 0 {
            self.in_use = self.in_use.other();
        }
    }

    /// Counts writes that are done; true if the half is to be requested again.
    pub fn done(&mut self, half: Half, posts: u32) -> bool {
        self.half(half).pending -= posts;
        self.is_due(half)
    }

    fn is_due(&self, half: Half) -> bool {
        let half = &self.halves[half as usize];
        half.left() == 0 && half.pending == 0 && !half.asked
    }

    pub fn asked(&mut self, half: Half) {
        self.half(half).asked = true;
    }

    /// The target has granted a half again; false if it was not requested.
    pub fn renew(&mut self, half: Half, size: u32) -> bool {
        if !self.half(half).asked {
            return false;
        }
        *self.half(half) = Credit { size: size.clamp(1, MOST), ..Credit::FIRST };
        if self.remaining().1 == 0 {
            self.in_use = half;
        }
        true
    }
}

/// The target's end, of one lane: credits granted per half beyond the first ones.
#[derive(Default)]
pub struct Granted([u32; 2]);

/// Credits that a rail may grant beyond the first ones of each lane.
pub struct Budget {
    all: u32,
    free: u32,
    /// Arrivals cannot overrun the queue.
    unbounded: bool,
}

impl Budget {
    /// `entries`: the completion queue's entries for arrivals. Half of them are for the first
    /// credits of lanes.
    pub fn new(entries: Option<u32>) -> Budget {
        let all = entries.unwrap_or(0) / 2;
        Budget { all, free: all, unbounded: entries.is_none() }
    }

    /// The size of a half that is granted again: the lane's share, regardless of what other lanes
    /// leave unused.
    pub fn renew(&mut self, granted: &mut Granted, half: Half, lanes: u32) -> u32 {
        if self.unbounded {
            return MOST;
        }
        let extra = &mut granted.0[half as usize];
        self.free += *extra;
        let share = self.all / 2 / lanes.max(LANES_LEAST);
        *extra = share.min(self.free).min(MOST - FIRST);
        self.free -= *extra;
        FIRST + *extra
    }

    /// Reclaims the credits of a closed lane.
    pub fn take_back(&mut self, granted: Granted) {
        if !self.unbounded {
            self.free += granted.0.into_iter().sum::<u32>();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_requested_once_a_full_half_has_completed() {
        let mut credits = Credits::default();
        credits.spend(FIRST - 1);
        assert!(!credits.done(Half::A, FIRST - 1), "one credit is left");
        assert_eq!(credits.remaining(), (Half::A, 1));
        credits.spend(1);
        assert_eq!(credits.remaining(), (Half::B, FIRST));
        assert!(!credits.renew(Half::A, 9), "it was not requested");
        assert!(credits.done(Half::A, 1));
        credits.asked(Half::A);
        assert!(!credits.is_due(Half::A));
        credits.spend(FIRST);
        assert_eq!(credits.remaining().1, 0);
        assert!(credits.renew(Half::A, 100));
        assert_eq!(credits.remaining(), (Half::A, 100));
        assert!(!credits.renew(Half::A, 100), "granted once only");
    }

    #[test]
    fn credits_never_exceed_the_queue() {
        const ROOM: u32 = 32768;
        let lanes = ROOM / 2 / (2 * FIRST);
        let mut budget = Budget::new(Some(ROOM));
        let mut all: Vec<(Granted, [u32; 2])> =
            (0..lanes).map(|_| (Granted::default(), [FIRST; 2])).collect();
        // More and more lanes are in use.
        for count in [1, 8, 100, lanes] {
            for (granted, sizes) in &mut all[..count as usize] {
                for half in Half::BOTH {
                    sizes[half as usize] = budget.renew(granted, half, count);
                }
            }
            let sum: u32 = all.iter().flat_map(|(_, sizes)| sizes).sum();
            assert!(sum <= ROOM, "{count} lanes: {sum}");
        }
        all.into_iter().for_each(|(granted, _)| budget.take_back(granted));
        assert_eq!(budget.free, ROOM / 2);
    }

    #[test]
    fn lane_gets_its_share_of_credits_while_others_hold_theirs() {
        let mut budget = Budget::new(Some(32768));
        let mut lanes: Vec<Granted> = (0..64).map(|_| Granted::default()).collect();
        let mut sizes = Vec::new();
        for granted in &mut lanes {
            sizes.extend(Half::BOTH.map(|half| budget.renew(granted, half, 64)));
        }
        assert!(sizes.iter().all(|size| *size == sizes[0] && *size > 100), "{sizes:?}");
        assert_eq!(Budget::new(Some(32768)).renew(&mut Granted::default(), Half::A, 1), MOST);
    }
}
