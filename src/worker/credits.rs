//! Frames about credits (see `rail::credits`): a sender requests a new half, the target grants it.
//! Frames that a full lane refuses are sent in a later pass.

use super::lanes::{DataPath, LaneWork, Owed, RailWork};
use crate::fabric::Posted;
use crate::ids::{LaneId, RailIndex};
use crate::peer::Peer;
use crate::rail::Half;
use crate::wire::frame::{Header, Kind};

impl DataPath {
    /// Writes that used credits are done.
    pub(crate) fn credits_done(&mut self, lane: LaneId, half: Half, posts: u32) {
        let Some((_, work)) = self.rails.lane_mut(lane) else { return };
        if work.lane.credits.done(half, posts) {
            work.owed.push((half, Owed::Ask));
            self.owing.push(lane);
        }
    }

    /// A sender requests credits: its writes of this half left the queue before the frame did.
    pub(crate) fn credits_asked(&mut self, rail: RailIndex, peer: &Peer, header: &Header) {
        let lane_and_half = self.lane_about(rail, peer, header).zip(Half::named(header.sequence));
        let Some((lane, half)) = lane_and_half else { return self.core.count_malformed() };
        let RailWork { rail, lanes, .. } = &mut self.rails[rail];
        let owes = |(other, what): &(Half, Owed)| *other == half && *what != Owed::Ask;
        if lanes.get(lane.slot).is_some_and(|work| work.owed.iter().any(owes)) {
            return self.core.count_malformed();
        }
        if let Some(size) = rail.grant(lanes, lane.slot, half) {
            if let Some(work) = lanes.get_mut(lane.slot) {
                work.owed.push((half, Owed::Grant(size)));
            }
            self.owing.push(lane);
        }
    }

    /// A target grants one half of our credits again.
    pub(crate) fn credits_granted(&mut self, rail: RailIndex, peer: &Peer, header: &Header, rest: &[u8]) {
        let lane_and_half = self.lane_about(rail, peer, header).zip(Half::named(header.sequence));
        let Some((lane, half)) = lane_and_half else { return self.core.count_malformed() };
        let size = rest.first_chunk::<4>().map_or(0, |size| u32::from_le_bytes(*size));
        let renewed = self.rails.lane_mut(lane).is_some_and(|(_, work)| work.lane.credits.renew(half, size));
        if !renewed {
            self.core.count_malformed();
        }
    }

    /// Sends the pending frames about credits.
    pub(crate) fn send_credits(&mut self) {
        let mut owing = std::mem::take(&mut self.owing);
        owing.retain(|lane| match self.send_owed(*lane) {
            Posted::Yes => false,
            Posted::Again => true,
            Posted::Failed(errno) => {
                self.post_failed(*lane, errno);
                false
            }
        });
        self.owing = owing;
    }

    fn send_owed(&mut self, lane: LaneId) -> Posted {
        let Some((rail, LaneWork { lane, owed, .. })) = self.rails.lane_mut(lane) else {
            return Posted::Yes;
        };
        if !lane.life.is_open() {
            owed.clear(); // It needs no credits.
        }
        while let Some(&(half, what)) = owed.first() {
            if !lane.life.is_up() {
                return Posted::Again; // Its frames have no seal before.
            }
            let (kind, size) = match what {
                Owed::Ask => (Kind::Spent, 0),
                Owed::Grant(size) => (Kind::Credits, size),
            };
            let header = Header::numbered(kind, half.number());
            match rail.send_frame(lane, false, |frame| header.write(frame, &size.to_le_bytes(), &[])) {
                Posted::Yes => _ = owed.remove(0),
                refused => return refused,
            }
            if what == Owed::Ask {
                lane.credits.asked(half);
            }
        }
        Posted::Yes
    }
}
