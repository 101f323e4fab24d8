//! When a NIC's endpoint is closed and opened anew, where that is the only way to take back what was posted
//! (`Resets::Rail`: EFA).
//!
//! Such a NIC has one endpoint for all peers. What a peer has posted to it may land until it is closed; once it is
//! open again, it has another address, so nothing that was sent to the old one arrives. The side whose memory is at
//! risk closes its own endpoint. The other one need not be able to reset anything: it may be what has died.
//!
//! A lane that has failed is held back, and its peer asked (Reset) to close its endpoint on the other rail. The peer
//! confirms that (ResetDone) to all whose lanes the endpoint had, with the new address. Only then is what was posted
//! over a lane claimed again. What this side's NIC still has of it by then makes this side close its endpoint, too.
//!
//! An endpoint that closes interrupts healthy lanes. These post nothing more from some time before on: if what they had
//! posted is back by then, their peers are asked for nothing. So a failure closes the endpoints at both ends of the lanes
//! that failed, and goes no further. A rail that is the only one to some peer stays as it is: whoever asks ends.
//!
//! A device that was removed is closed at once. One of the same name is looked for from then on, after pauses; when all is
//! registered with it, and all memories and importers have the new keys, its rail's lanes return.
//!
//! (An endpoint for each lane would use up a NIC's queue pairs, of which an EFA has some hundreds. Replacing the keys of
//! all memory costs time in proportion to it, and leaves reads and what is sent as they are.)

use crate::ids::{PeerId, Plan};

/// How long healthy lanes get to have their posts back.
const DRAIN_NS: u64 = 250_000_000;
/// How long a rail waits until every peer has a lane over another one.
const ALONE_NS: u64 = 2_000_000_000;
/// The shortest time from one close to the next.
const APART_NS: u64 = 100_000_000;
/// The shortest and the longest pause before a removed device is looked for: each doubles the last.
const PAUSE_LEAST_NS: u64 = 100_000_000;
const PAUSE_MOST_NS: u64 = 2_000_000_000;

/// Lanes between two rails whose reset a peer awaits at a time. Those beyond wait for the next one's handshake.
const MOST_ASKED: usize = 4;

/// A lane that a peer has asked this side to reset: the peer, the lane as this side sees it, and the epoch of its end.
pub type Asked = (PeerId, Plan, u64);

/// What the worker sees of a rail.
#[derive(Clone, Copy, Default)]
pub struct Rail {
    /// Its NIC does not give back what was posted over a lane that has failed and that the peer has reset.
    pub stuck: bool,
    /// Some peer has lanes only over this rail, or would be lost for it (`Address::follows`).
    pub alone: bool,
    /// Some of its healthy lanes have posts that are not back.
    pub moves: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Its lanes are held (`Life::hold`).
    Hold,
    /// Close the endpoint. `closed` follows.
    Close,
    /// It cannot be closed, or need not be: the peers that wait for it end, and its lanes go on.
    GiveUp,
    /// Open the device, if it is there again, or go on with that.
    ComeBack,
    /// Open its endpoint, and say that its link is up: its lanes may begin.
    Open,
}

/// Where a removed device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Away {
    /// Not closed yet.
    Open,
    /// It is looked for.
    Sought,
    /// It is there again, and registers what it had registered.
    Opening,
    /// It has, and memories and importers get its keys.
    Ready,
    /// They were sent.
    Known,
}

#[derive(Default, Debug)]
pub struct Reopening {
    asked: Vec<Asked>,
    away: Option<Away>,
    /// The pause after it was not found.
    pause_ns: u64,
    broken: bool,
    since_ns: Option<u64>,
    held_ns: Option<u64>,
    /// No close before this time.
    next_ns: u64,
}

impl Reopening {
    pub fn handle_asked(&mut self, asked: Asked) {
        let is_its = |other: &&Asked| (other.0, other.1) == (asked.0, asked.1);
        if self.asked.iter().filter(is_its).count() < MOST_ASKED && !self.asked.contains(&asked) {
            self.asked.push(asked);
        }
    }

    /// The NIC gives back receives: its endpoint no longer takes messages, whatever peers ask for.
    pub fn handle_broken(&mut self) {
        self.broken = true;
    }

    /// The kernel has removed the device.
    pub fn handle_removed(&mut self) {
        self.away.get_or_insert(Away::Open);
    }

    /// There is none of its name, or it did not open.
    pub fn handle_absent(&mut self, now: u64) {
        self.pause_ns = (2 * self.pause_ns).clamp(PAUSE_LEAST_NS, PAUSE_MOST_NS);
        (self.away, self.next_ns) = (Some(Away::Sought), now + self.pause_ns);
    }

    /// Some of what it had registered is registered again.
    pub fn handle_opening(&mut self) {
        self.away = Some(Away::Opening);
    }

    /// All is registered with it again.
    pub fn handle_ready(&mut self) {
        self.away = Some(Away::Ready);
    }

    /// Its keys were sent to all importers.
    pub fn handle_known(&mut self) {
        self.away = Some(Away::Known);
    }

    /// Its endpoint is open.
    pub fn handle_back(&mut self) {
        self.away = None;
    }

    /// Whether no lane can begin.
    pub fn is_away(&self) -> bool {
        self.away.is_some()
    }

    /// Whether there may be a step soon.
    pub fn is_waiting(&self) -> bool {
        matches!(self.away, Some(Away::Open | Away::Opening | Away::Known))
            || self.broken
            || !self.asked.is_empty()
            || self.since_ns.is_some()
    }

    pub fn poll(&mut self, rail: Rail, now: u64) -> Option<Step> {
        match self.away {
            Some(Away::Open) => return Some(Step::Close),
            Some(Away::Opening) => return Some(Step::ComeBack),
            Some(Away::Sought) => return (now >= self.next_ns).then_some(Step::ComeBack),
            Some(Away::Ready) => return None,
            Some(Away::Known) => return Some(Step::Open),
            None if now < self.next_ns => return None,
            None => {}
        }
        if !rail.stuck && !self.broken && self.asked.is_empty() {
            self.since_ns = None;
            return self.held_ns.take().map(|_| Step::GiveUp); // What was stuck has come back.
        }
        let since = *self.since_ns.get_or_insert(now);
        let waits_to_be_one_of_many = rail.alone && self.held_ns.is_none();
        if waits_to_be_one_of_many {
            return (now - since > ALONE_NS).then_some(Step::GiveUp);
        }
        let held = *self.held_ns.get_or_insert(now);
        Some(if rail.moves && now - held <= DRAIN_NS { Step::Hold } else { Step::Close })
    }

    /// The endpoint was closed, or that was given up: those who asked.
    pub fn over(&mut self, now: u64) -> Vec<Asked> {
        let asked = std::mem::take(&mut self.asked);
        let away = self.away.map(|_| Away::Sought);
        *self = Reopening { away, next_ns: now + APART_NS, ..Reopening::default() };
        asked
    }
}
