//! How a session ends while both sides are alive.
//!
//! The closing side sends Closing, and both sides drain their lanes: stripes stop, and operations
//! in flight come back. A side that has drained sends Close; the other side answers with CloseAck
//! once it has drained, too. So PEER_DOWN comes on each side when nothing of the other side can
//! land any longer. A side that does not drain or answer in time is abandoned.

use crate::transfer::Outcome;
use crate::wire::frame::Kind;

/// Lanes that have not drained after this time are not waited for.
const DRAIN_NS: u64 = 500_000_000;
/// A lane that takes no frame for this long has no reader.
const UNSENT_NS: u64 = 1_000_000_000;
/// How long a side that got Closing waits for the peer's Close.
const CLOSE_NS: u64 = 2_000_000_000;
/// Within this time the other side has drained and answered, or will not.
const ANSWER_NS: u64 = 700_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Outstanding operations are ending.
    Ending,
    Draining,
    Sending,
    Waiting,
    Over,
}

#[derive(Debug)]
pub struct Closing {
    stage: Stage,
    /// When this stage began.
    since: u64,
    /// The lanes have drained.
    drained: bool,
    /// The peer closes: the frame to send is CloseAck.
    answers: bool,
    /// Close has arrived.
    peer_drained: bool,
    /// Both sides have drained, and reported it.
    pub agreed: bool,
    /// The outcome that PEER_DOWN reports.
    pub outcome: Outcome,
    /// Whether the session was up.
    pub was_up: bool,
}

/// The next step of a closing.
pub enum Next {
    /// Nothing now; ask again at this time.
    Wait(Option<u64>),
    /// Send Close or CloseAck.
    Send(Kind),
    End,
}

impl Closing {
    pub fn new(outcome: Outcome, answers: bool, was_up: bool, now: u64) -> Closing {
        Closing {
            stage: Stage::Ending,
            since: now,
            drained: false,
            answers,
            peer_drained: false,
            agreed: false,
            outcome,
            was_up,
        }
    }

    fn enter(&mut self, stage: Stage, now: u64) {
        (self.stage, self.since) = (stage, now);
    }

    /// Whether the lanes may drain: operations that a draining lane leaves undone would otherwise
    /// look like failures.
    pub fn outstanding_ended(&mut self, now: u64) -> bool {
        let ends = self.stage == Stage::Ending;
        if ends {
            self.enter(Stage::Draining, now);
        }
        ends
    }

    pub fn has_drained(&mut self) {
        self.drained = true;
    }

    /// CloseAck arrived: if both sides have drained, nothing in flight can land.
    pub fn acknowledged(&mut self) {
        self.agreed = self.drained;
    }

    /// Close arrived.
    pub fn peer_has_drained(&mut self) {
        // If both sides close, no answer will come; this side still owes one.
        self.answers = true;
        self.peer_drained = true;
        if self.stage == Stage::Waiting {
            self.stage = Stage::Sending;
        }
    }

    fn most_ns(&self) -> Option<u64> {
        match self.stage {
            Stage::Draining if self.answers && !self.peer_drained => Some(CLOSE_NS),
            Stage::Draining => Some(DRAIN_NS),
            Stage::Sending => Some(UNSENT_NS),
            Stage::Waiting => Some(ANSWER_NS),
            Stage::Ending | Stage::Over => None,
        }
    }

    pub fn next(&mut self, now: u64) -> Next {
        let late = self.most_ns().is_some_and(|most| now.saturating_sub(self.since) > most);
        let waits = self.answers && !self.peer_drained;
        match self.stage {
            Stage::Draining if !waits && (late || self.drained) => self.enter(Stage::Sending, now),
            Stage::Draining | Stage::Sending | Stage::Waiting if late => self.enter(Stage::Over, now),
            _ => {}
        }
        match self.stage {
            Stage::Sending => Next::Send(if self.answers { Kind::CloseAck } else { Kind::Close }),
            Stage::Over => Next::End,
            _ => Next::Wait(self.most_ns().map(|most| self.since + most + 1)),
        }
    }

    /// The queued frame was sent. True: the closing is finished.
    pub fn sent(&mut self, now: u64) -> bool {
        self.agreed = self.answers && self.drained;
        self.enter(Stage::Waiting, now);
        self.answers
    }
}
