//! Frames about credits (see `rail::credits`): a sender asks for a half anew, the
//! target gives it. What finds no room is said in a later pass.

use super::later::{Owed, What};
use super::worker::{LaneWork, RailWork, Worker};
use crate::fabric::Posted;
use crate::ids::{LaneId, RailIndex};
use crate::peer::Peer;
use crate::rail::{Half, LaneState};
use crate::wire::frame::{Header, Kind};

impl Worker {
    /// Writes that took credits are done.
    pub(super) fn credits_done(&mut self, lane: LaneId, half: Half, posts: u32) {
        let due = self.rails.lane_mut(lane).is_some_and(|(_, of)| of.lane.credits.done(half, posts));
        if due {
            self.words.push(Owed { lane, half, what: What::Ask });
        }
    }

    /// A sender asks: its writes of this half were found in the queue before the frame.
    pub(super) fn credits_asked(&mut self, rail: RailIndex, peer: &Peer, header: &Header) {
        let of = self.lane_about(rail, peer, header).zip(Half::named(header.sequence));
        let Some((lane, half)) = of else { return self.core.count_malformed() };
        let owed = |word: &Owed| (word.lane, word.half) == (lane, half) && word.what != What::Ask;
        if self.words.iter().any(owed) {
            return self.core.count_malformed();
        }
        let RailWork { rail, lanes, .. } = &mut self.rails[rail];
        if let Some(size) = rail.grant(lanes, lane.slot, half) {
            self.words.push(Owed { lane, half, what: What::Grant(size) });
        }
    }

    /// A target gives a half of our credits anew.
    pub(super) fn credits_granted(&mut self, rail: RailIndex, peer: &Peer, header: &Header, rest: &[u8]) {
        let of = self.lane_about(rail, peer, header).zip(Half::named(header.sequence));
        let Some((lane, half)) = of else { return self.core.count_malformed() };
        let size = rest.first_chunk::<4>().map_or(0, |size| u32::from_le_bytes(*size));
        let renewed = self.rails.lane_mut(lane).is_some_and(|(_, of)| of.lane.credits.renew(half, size));
        if !renewed {
            self.core.count_malformed();
        }
    }

    /// Says what there is to say about credits.
    pub(super) fn tell_of_credits(&mut self, now: u64) {
        if self.words.is_empty() {
            return;
        }
        let mut words = std::mem::take(&mut self.words);
        words.retain(|word| match self.tell_word(word) {
            Posted::Yes => false,
            Posted::Again => true,
            Posted::Failed(errno) => {
                self.lane_failed(word.lane, errno, 0, now);
                false
            }
        });
        self.words = words;
    }

    fn tell_word(&mut self, word: &Owed) -> Posted {
        let &Owed { lane, half, what } = word;
        // A lane that takes nothing new needs none.
        let serves = |of: &LaneWork| of.lane.state != LaneState::Down && of.closing.is_none();
        let of = self.rails.lane_mut(lane).filter(|(_, of)| serves(of));
        let Some((rail, LaneWork { lane, .. })) = of else { return Posted::Yes };
        let (kind, size) = match what {
            What::Ask => (Kind::Spent, 0),
            What::Grant(size) => (Kind::Credits, size),
        };
        let header = Header::numbered(kind, half.number());
        let posted = rail.send_frame(lane, |frame| header.write(frame, &size.to_le_bytes(), &[]));
        if (posted, what) == (Posted::Yes, What::Ask) {
            lane.credits.asked(half);
        }
        posted
    }
}
