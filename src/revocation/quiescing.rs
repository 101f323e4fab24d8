//! What a peer's owner brings to rest, in steps: for requests of the peer, or to close its session. Several are in
//! progress at once, each by itself.

use super::Then;

/// What it waits for; `W`: something that its owner can look at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step<W> {
    /// For operations to end. A closing session has none.
    Operations(W),
    /// For the lanes of this many workers.
    Lanes(usize),
    /// For the peer to have what these operations had to say. A closing session says nothing more.
    Frames(W),
}

/// The moves between steps, for the diagram of ARCHITECTURE.
#[cfg(test)]
pub(crate) const MOVES: &[(&str, &str, &str)] = &[
    ("Operations", "Lanes", "the operations that were accepted, or whose grants are revoked, have ended"),
    ("Lanes", "Frames", "nothing moves on any lane to the peer"),
];

/// What its owner does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// Ask workers for their lanes; then `handle_asked`.
    Lanes(Then),
    /// Find the last frames; then `handle_frames`.
    Frames(Then),
    /// It is at rest.
    Done(Then),
}

pub struct Quiescing<W> {
    pub then: Then,
    pub step: Step<W>,
}

impl<W> Quiescing<W> {
    fn enter(&mut self, step: Step<W>) {
        #[cfg(test)]
        super::tests::note_names(self.step.name(), step.name());
        self.step = step;
    }

    /// `is_over`: whether something has ended.
    pub fn poll(&mut self, is_over: impl FnOnce(&mut W) -> bool) -> Option<Due> {
        match &mut self.step {
            Step::Operations(operations) => is_over(operations).then_some(Due::Lanes(self.then)),
            Step::Lanes(0) if self.then == Then::Close => Some(Due::Done(self.then)),
            Step::Lanes(workers) => (*workers == 0).then_some(Due::Frames(self.then)),
            Step::Frames(frames) => is_over(frames).then_some(Due::Done(self.then)),
        }
    }

    /// This many workers were asked for their lanes.
    pub fn handle_asked(&mut self, workers: usize) {
        self.enter(Step::Lanes(workers));
    }

    /// The lanes of one worker are at rest.
    pub fn handle_quiesced(&mut self) {
        if let Step::Lanes(workers) = &mut self.step {
            *workers = workers.saturating_sub(1);
        }
    }

    pub fn handle_frames(&mut self, frames: W) {
        self.enter(Step::Frames(frames));
    }
}

#[cfg(test)]
impl<W> Step<W> {
    fn name(&self) -> &'static str {
        match self {
            Step::Operations(_) => "Operations",
            Step::Lanes(_) => "Lanes",
            Step::Frames(_) => "Frames",
        }
    }
}
