//! Parting: how a peer ends while both sides are alive.
//!
//! Whoever leaves says so, and both sides drain their lanes: stripes stop, and
//! what is in flight comes back. Who has drained says bye,
//! the other side answers when it has, too. So each side's PEER_DOWN comes when
//! nothing of the other's can land any more. A side that does not drain or answer
//! in time is left without.

use super::inbox::Command;
use super::later::Drain;
use super::worker::{Worker, ENDS_NS};
use crate::fabric::Posted;
use crate::ids::PeerId;
use crate::peer::link::{Parting, Stage};
use crate::peer::Plan;
use crate::status::Status;
use crate::transfer::Outcome;
use crate::wire::frame::{Header, Kind};

/// Lanes that have not drained by then are not waited for.
const DRAIN_NS: u64 = 500_000_000;
/// A lane that has no room for a word of parting for so long has no reader.
const UNSAID_NS: u64 = 1_000_000_000;
/// A side that was told that the other leaves waits so long for its bye.
const UNHEARD_NS: u64 = 2_000_000_000;
/// Within so long the other side has drained and answered, or will not.
const ANSWER_NS: u64 = 700_000_000;

impl Worker {
    /// The caller leaves a peer: what is outstanding ends at once.
    pub fn link_disconnect(&mut self, peer: PeerId, now: u64) {
        let Some(link) = self.link(peer) else { return };
        // It may be up over there, but there is nobody to tell.
        if link.lanes_up().is_empty() {
            return self.end_peer(peer, Outcome::OK, now);
        }
        self.begin_parting(peer, Outcome::OK, false, now);
    }

    /// The endpoint shuts down: it leaves every peer.
    pub fn leave_all(&mut self, now: u64) {
        self.shutting_down = true;
        let peers = self.links.iter().flatten().map(|link| link.peer.id);
        self.commands.extend(peers.map(|peer| Command::Disconnect { peer }));
        self.tend_links(now);
    }

    /// The peer leaves.
    pub(super) fn left(&mut self, peer: PeerId, now: u64) {
        self.begin_parting(peer, Outcome::of(Status::PeerClosed), true, now);
    }

    /// The peer says bye: it has drained.
    pub(super) fn bye(&mut self, peer: PeerId, now: u64) {
        self.left(peer, now);
        let Some(parting) = self.link(peer).and_then(|link| link.parting.as_mut()) else { return };
        // If both leave, there is no answer to wait for, only one to give.
        parting.answers = true;
        parting.heard = true;
        if parting.stage == Stage::Waiting {
            parting.stage = Stage::Saying;
        }
        self.go_on_parting(peer, now);
    }

    /// The peer answers our bye: it has drained, too.
    pub(super) fn bye_ack(&mut self, peer: PeerId, now: u64) {
        if let Some(parting) = self.link(peer).and_then(|link| link.parting.as_mut()) {
            parting.agreed = true;
            let outcome = parting.outcome;
            self.end_peer(peer, outcome, now);
        }
    }

    fn begin_parting(&mut self, peer: PeerId, outcome: Outcome, answers: bool, now: u64) {
        // What came back before this has not been ended by it.
        self.settle(now);
        let Some(link) = self.link(peer).filter(|link| link.parting.is_none()) else { return };
        let draining = link.lanes_up().to_vec();
        let outstanding = link.take_outstanding(outcome);
        link.parting = Some(Parting {
            stage: Stage::Ending,
            since: now,
            outstanding,
            draining,
            answers,
            heard: false,
            agreed: false,
            outcome,
        });
        self.end_outstanding(peer, now);
        if !answers {
            // What was delivered here has arrived, also where its acknowledgement still waited.
            self.beat(peer, now);
            // Without room, the bye will say it.
            self.say(peer, Kind::Leave);
        }
    }

    /// What is outstanding ends, as far as there is time; then the lanes drain: what they leave
    /// undone would say that they had failed.
    fn end_outstanding(&mut self, peer: PeerId, now: u64) {
        let core = self.core.clone();
        let over = || core.clock.now().saturating_sub(now) > ENDS_NS;
        let Some(link) = self.link(peer) else { return };
        let workers = link.peer.workers;
        let Some(parting) = link.parting.as_mut().filter(|parting| parting.stage == Stage::Ending) else {
            return;
        };
        if core.go_on_ending(&mut parting.outstanding, now, over) {
            (parting.stage, parting.since) = (Stage::Draining, now);
            for worker in (0..core.inboxes.len()).filter(|worker| workers & 1 << worker != 0) {
                core.inboxes[worker].command(Command::DrainLanes { peer });
            }
        }
    }

    /// Moves a parting on: ended, then drained, then said, then answered.
    pub(super) fn go_on_parting(&mut self, peer: PeerId, now: u64) {
        self.end_outstanding(peer, now);
        let Some(parting) = self.link(peer).and_then(|link| link.parting.as_mut()) else { return };
        let took = now.saturating_sub(parting.since);
        let next = match parting.stage {
            Stage::Draining if parting.answers && !parting.heard => {
                if took > UNHEARD_NS {
                    Stage::Over
                } else {
                    Stage::Draining
                }
            }
            Stage::Draining if parting.draining.is_empty() || took > DRAIN_NS => Stage::Saying,
            Stage::Waiting if took > ANSWER_NS => Stage::Over,
            Stage::Saying if took > UNSAID_NS => Stage::Over,
            same => same,
        };
        if next != parting.stage {
            (parting.stage, parting.since) = (next, now);
        }
        let (stage, answers, outcome) = (parting.stage, parting.answers, parting.outcome);
        match stage {
            Stage::Saying if self.say(peer, if answers { Kind::ByeAck } else { Kind::Bye }) => {
                if let Some(parting) = self.link(peer).and_then(|link| link.parting.as_mut()) {
                    parting.agreed = answers && parting.draining.is_empty();
                    (parting.stage, parting.since) = (Stage::Waiting, now);
                }
                if answers {
                    self.end_peer(peer, outcome, now);
                }
            }
            Stage::Over => self.end_peer(peer, outcome, now),
            _ => {}
        }
    }

    /// Posts a frame without a body; false if there was no room.
    pub(super) fn say(&mut self, peer: PeerId, kind: Kind) -> bool {
        let Some(link) = self.link_here(peer) else { return false };
        let Some(way) = self.way_to(link) else { return false };
        let header = Header::plain(kind);
        self.send_by(way, peer, &header, &[], &[]) == Posted::Yes
    }

    // Lanes.

    /// Stops a peer's stripes here, and waits for what is in flight.
    pub fn drain_lanes(&mut self, peer: PeerId) {
        for lane in self.lanes_of.get(peer.place()).into_iter().flatten() {
            let of = self.rails.lane_mut(*lane).map(|(_, of)| of);
            if let Some(of) = of.filter(|of| of.peer.id == peer && of.drain == Drain::No) {
                of.stripes.stop(&self.core.table, &mut self.left);
                of.drain = Drain::Begun;
            }
        }
        self.advance_drains();
    }

    pub(super) fn advance_drains(&mut self) {
        let mut drained = Vec::new();
        for lane in self.rails.lanes_mut() {
            if lane.drain == Drain::Begun && lane.lane.inflight_ops == 0 {
                lane.drain = Drain::Done;
                drained.push((lane.peer.clone(), lane.plan()));
            }
        }
        for (peer, plan) in drained {
            self.tell_home(&peer, Command::LaneDrained { peer: peer.id, plan });
        }
    }

    pub fn link_lane_drained(&mut self, peer: PeerId, plan: Plan, now: u64) {
        if let Some(parting) = self.link(peer).and_then(|link| link.parting.as_mut()) {
            parting.draining.retain(|other| *other != plan);
            self.go_on_parting(peer, now);
        }
    }
}
