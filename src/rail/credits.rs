//! How many writes with immediates a lane may post.
//!
//! Each takes an entry of the target's completion queue without being asked for,
//! and a NIC's queue that runs over is lost. So each needs a credit. Credits come
//! in two halves. When the writes of a half are done, their entries lie in the
//! target's queue, and a frame that is sent then is found there behind them: a
//! target that answers it has taken them out, and gives the half anew. Meanwhile
//! the other half is in use.

/// Credits of a half before the target has granted any: both sides assume this.
pub const FIRST: u32 = 8;
/// Credits of a half at most.
pub const MOST: u32 = 1024;
/// A rail with fewer lanes keeps something for those to come.
const LANES_LEAST: u32 = 8;

/// Which half of a lane's credits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    A,
    B,
}

impl Half {
    pub const BOTH: [Half; 2] = [Half::A, Half::B];

    /// The half that a frame names.
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
    /// Credits spent and not done.
    pending: u32,
    /// The target was asked for it anew.
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
    fn of(&mut self, half: Half) -> &mut Credit {
        &mut self.halves[half as usize]
    }

    /// The half that is in use, and what is left of it.
    #[inline]
    pub fn room(&self) -> (Half, u32) {
        (self.in_use, self.halves[self.in_use as usize].left())
    }

    /// Counts writes that were posted with credits of the half in use.
    pub fn spend(&mut self, posts: u32) {
        let half = self.of(self.in_use);
        half.posted += posts;
        half.pending += posts;
        if half.left() == 0 {
            self.in_use = self.in_use.other();
        }
    }

    /// Some of them are done; true if the half is to be asked for.
    pub fn done(&mut self, half: Half, posts: u32) -> bool {
        self.of(half).pending -= posts;
        self.is_due(half)
    }

    fn is_due(&self, half: Half) -> bool {
        let half = &self.halves[half as usize];
        half.left() == 0 && half.pending == 0 && !half.asked
    }

    pub fn asked(&mut self, half: Half) {
        self.of(half).asked = true;
    }

    /// The target grants a half anew; false if it was not requested.
    pub fn renew(&mut self, half: Half, size: u32) -> bool {
        if !self.of(half).asked {
            return false;
        }
        *self.of(half) = Credit { size: size.clamp(1, MOST), ..Credit::FIRST };
        if self.room().1 == 0 {
            self.in_use = half;
        }
        true
    }
}

/// The target's end, of one lane: what it gave beyond the first credits.
#[derive(Default)]
pub struct Granted([u32; 2]);

/// Credits that a rail may grant beyond the first ones of each lane.
pub struct Budget {
    all: u32,
    free: u32,
    /// Arrivals do not run over.
    unbounded: bool,
}

impl Budget {
    /// `room`: entries of the completion queue for arrivals. Half of them are for the
    /// first credits of lanes.
    pub fn new(room: Option<u32>) -> Budget {
        let all = room.unwrap_or(0) / 2;
        Budget { all, free: all, unbounded: room.is_none() }
    }

    /// The size of a half that is given anew: a lane's share, whatever others have and
    /// do not use.
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

    /// A lane is no more.
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
        assert!(!credits.done(Half::A, FIRST - 1), "it is not used up");
        assert_eq!(credits.room(), (Half::A, 1));
        credits.spend(1);
        assert_eq!(credits.room(), (Half::B, FIRST));
        assert!(!credits.renew(Half::A, 9), "nobody has asked");
        assert!(credits.done(Half::A, 1));
        credits.asked(Half::A);
        assert!(!credits.is_due(Half::A));
        credits.spend(FIRST);
        assert_eq!(credits.room().1, 0);
        assert!(credits.renew(Half::A, 100));
        assert_eq!(credits.room(), (Half::A, 100));
        assert!(!credits.renew(Half::A, 100), "once");
    }

    #[test]
    fn credits_never_exceed_the_queue() {
        const ROOM: u32 = 32768;
        let lanes = ROOM / 2 / (2 * FIRST);
        let mut budget = Budget::new(Some(ROOM));
        let mut all: Vec<(Granted, [u32; 2])> =
            (0..lanes).map(|_| (Granted::default(), [FIRST; 2])).collect();
        // More and more of them are there, and in use.
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
