//! A session whose last lane was reset resumes over a new one.
//!
//! A new lane between the same rails starts a handshake with a higher epoch. The receiver resets
//! any older lane before it replies, so the handshake has the effect of Reset and ResetDone. Then
//! a Resume frame asks which of our frames the peer has delivered; until the answer comes, nothing
//! is sent over the channels. A side that has another lane first sends Reset over that.
//!
//! The answer names the last frame that the peer has to send, too. Operations under grants wait for
//! that one: new keys may be among what the peer had no lane for, and a post by an old one would end
//! a connection (`Behind`).
//!
//! A peer that does not return is lost: at once if it is known to be gone; else when it has been
//! silent for longer than allowed.

use crate::fabric::Cause;
use crate::transfer::Outcome;

/// How long a session may be without lanes where silence is allowed forever (`liveness_ns`).
const AWAY_NS: u64 = 120_000_000_000;
/// A lane that fails sooner than this after its return was brief. After several in a row another is
/// pointless: an operation may be what makes them fail.
const BRIEF_NS: u64 = 1_000_000_000;
const BRIEF_MOST: u32 = 8;
/// The time between requests without an answer.
pub const AGAIN_NS: u64 = 100_000_000;
/// How long a new lane waits for confirmation that the old one is reset. Without it, the new lane
/// joins another pair of rails.
const RESET_NS: u64 = 50_000_000;

#[derive(Debug)]
pub struct Resuming {
    pub since_ns: u64,
    /// When a new lane came up.
    up_ns: Option<u64>,
    /// When the peer was last asked what it has received.
    asked_ns: Option<u64>,
    pub outcome: Outcome,
}

/// Frames that the peer had no lane for are still to arrive.
#[derive(Debug)]
pub enum Behind {
    /// The peer has not reported their numbers.
    Unknown,
    /// Up to this number of the system channel.
    Until(u32),
}

impl Behind {
    /// The peer has frames up to this number. It may have more than before, which need not be
    /// waited for, or fewer, as it drops some.
    pub fn goes_to(&mut self, last: u32) {
        match self {
            Behind::Until(before) if is_up_to(*before, last) => {}
            _ => *self = Behind::Until(last),
        }
    }

    pub fn is_over(&self, delivered: u32) -> bool {
        matches!(self, Behind::Until(last) if is_up_to(*last, delivered))
    }
}

fn is_up_to(number: u32, last: u32) -> bool {
    last.wrapping_sub(number) < u32::MAX / 2
}

/// How often a peer lost its last lane and was resumed.
#[derive(Default)]
pub struct Resumes {
    pub count: u64,
    last_ns: Option<u64>,
    /// How many of the last resumes in a row were brief.
    brief: u32,
}

/// The next step.
pub enum Next {
    Wait(Option<u64>),
    /// Ask the peer what it has received, and again at this time.
    Ask(u64),
    /// Continue without knowing what the peer has received.
    Blindly,
    Lost,
}

impl Resumes {
    /// The last lane was reset. `None`: another lane is pointless; else whether the last one had
    /// lasted.
    pub fn begin(&mut self, errno: i32, now: u64) -> Option<bool> {
        let lasted = self.last_ns.is_none_or(|last| now.saturating_sub(last) > BRIEF_NS);
        self.count += 1;
        self.brief =
            if lasted { 0 } else { self.brief + u32::from(Cause::from_errno(errno).may_be_an_operation()) };
        (self.brief <= BRIEF_MOST).then_some(lasted)
    }

    /// Keys were replaced: what failed by an old one may succeed now.
    pub fn keys_replaced(&mut self) {
        self.brief = 0;
    }
}

impl Resuming {
    /// `before`: the state that this resume continues from.
    pub fn new(before: Option<Resuming>, outcome: Outcome, now: u64) -> Resuming {
        let before = before.filter(|resuming| resuming.up_ns.is_none());
        Resuming {
            since_ns: before.map_or(now, |resuming| resuming.since_ns),
            up_ns: None,
            asked_ns: None,
            outcome,
        }
    }

    pub fn has_asked(&self) -> bool {
        self.asked_ns.is_some()
    }

    /// `up`: a lane is up; `resets`: some resets are pending; `forever`: silence is allowed for
    /// ever.
    pub fn next(&mut self, up: bool, resets: bool, forever: bool, resumes: &mut Resumes, now: u64) -> Next {
        if !up {
            let due = self.since_ns + AWAY_NS + 1;
            if !forever {
                return Next::Wait(None);
            }
            return if now >= due { Next::Lost } else { Next::Wait(Some(due)) };
        }
        let up = *self.up_ns.get_or_insert(now);
        if up == now {
            resumes.last_ns = Some(now);
        }
        let due = match (resets, self.asked_ns) {
            (true, _) => up + RESET_NS + 1,
            (false, None) => now,
            (false, Some(asked)) => asked + AGAIN_NS + 1,
        };
        match (now >= due, resets) {
            (false, _) => Next::Wait(Some(due)),
            (true, true) => Next::Blindly,
            (true, false) => {
                self.asked_ns = Some(now);
                Next::Ask(now + AGAIN_NS + 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the session goes on after a lane failed right after its return.
    fn fails_briefly(resumes: &mut Resumes, errno: i32) -> bool {
        resumes.last_ns = Some(1);
        resumes.begin(errno, 2).is_some()
    }

    #[test]
    fn brief_lanes_end_the_peer_only_if_an_operation_may_be_the_cause() {
        let mut resumes = Resumes::default();
        use libc::*;
        for errno in [ETIMEDOUT, ECONNRESET, ECANCELED, ENETDOWN, ENODEV, EHOSTUNREACH] {
            assert!((0..10 * BRIEF_MOST).all(|_| fails_briefly(&mut resumes, errno)), "{errno}");
        }
        for _ in 0..10 * BRIEF_MOST {
            assert!(fails_briefly(&mut resumes, libc::EIO));
            resumes.keys_replaced();
        }
        assert_eq!((0..).take_while(|_| fails_briefly(&mut resumes, libc::EIO)).count(), BRIEF_MOST as usize);
    }
}
