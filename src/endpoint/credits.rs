//! Frames about credits (see `rail::credits`): a sender requests a new half, the target grants it.
//! Frames that a full lane refuses are sent in a later pass.

use super::lanes::{DataPath, LaneWork, RailWork};
use super::later::{Owed, What};
use crate::fabric::Posted;
use crate::ids::{LaneId, RailIndex};
use crate::peer::Peer;
use crate::rail::{Half, LaneState};
use crate::wire::frame::{Header, Kind};

impl DataPath {
    /// Writes that used credits are done.
    pub(super) fn credits_done(&mut self, lane: LaneId, half: Half, posts: u32) {
        let due = self.rails.lane_mut(lane).is_some_and(|(_, of)| of.lane.credits.done(half, posts));
        if due {
            self.owed_credits.push(Owed { lane, half, what: What::Ask });
        }
    }

    /// A sender requests credits: its writes of this half left the queue before the frame did.
    pub(super) fn credits_asked(&mut self, rail: RailIndex, peer: &Peer, header: &Header) {
        let of = self.lane_about(rail, peer, header).zip(Half::named(header.sequence));
        let Some((lane, half)) = of else { return self.core.count_malformed() };
        let owed = |credit: &Owed| (credit.lane, credit.half) == (lane, half) && credit.what != What::Ask;
        if self.owed_credits.iter().any(owed) {
            return self.core.count_malformed();
        }
        let RailWork { rail, lanes, .. } = &mut self.rails[rail];
        if let Some(size) = rail.grant(lanes, lane.slot, half) {
            self.owed_credits.push(Owed { lane, half, what: What::Grant(size) });
        }
    }

    /// A target grants one half of our credits again.
    pub(super) fn credits_granted(&mut self, rail: RailIndex, peer: &Peer, header: &Header, rest: &[u8]) {
        let of = self.lane_about(rail, peer, header).zip(Half::named(header.sequence));
        let Some((lane, half)) = of else { return self.core.count_malformed() };
        let size = rest.first_chunk::<4>().map_or(0, |size| u32::from_le_bytes(*size));
        let renewed = self.rails.lane_mut(lane).is_some_and(|(_, of)| of.lane.credits.renew(half, size));
        if !renewed {
            self.core.count_malformed();
        }
    }

    /// Sends the pending frames about credits.
    pub(super) fn send_credits(&mut self, now: u64) {
        if self.owed_credits.is_empty() {
            return;
        }
        let mut owed = std::mem::take(&mut self.owed_credits);
        owed.retain(|credit| match self.send_credit(credit) {
            Posted::Yes => false,
            Posted::Again => true,
            Posted::Failed(errno) => {
                self.lane_failed(credit.lane, errno, 0, now);
                false
            }
        });
        self.owed_credits = owed;
    }

    fn send_credit(&mut self, credit: &Owed) -> Posted {
        let &Owed { lane, half, what } = credit;
        // A lane that is closing needs no credits.
        let serves = |of: &LaneWork| of.lane.state != LaneState::Down && of.closing.is_none();
        let of = self.rails.lane_mut(lane).filter(|(_, of)| serves(of));
        let Some((rail, LaneWork { lane, .. })) = of else { return Posted::Yes };
        let (kind, size) = match what {
            What::Ask => (Kind::Spent, 0),
            What::Grant(size) => (Kind::Credits, size),
        };
        let header = Header::numbered(kind, half.number());
        let posted = rail.send_frame(lane, false, |frame| header.write(frame, &size.to_le_bytes(), &[]));
        if (posted, what) == (Posted::Yes, What::Ask) {
            lane.credits.asked(half);
        }
        posted
    }
}
