//! Closing: how a peer ends while both sides are alive.
//!
//! The closing side sends Closing, and both sides drain their lanes: stripes stop, and operations
//! in flight come back. A side that has drained sends Close; the other side answers with CloseAck
//! once it has drained, too. So PEER_DOWN comes on each side when nothing of the other side can
//! land any longer. A side that does not drain or answer in time is abandoned.

use super::inbox::Command;
use super::later::Drain;
use super::later::ENDS_NS;
use super::worker::Worker;
use crate::fabric::Posted;
use crate::ids::PeerId;
use crate::peer::link::{Closing, Stage};
use crate::session::Plan;
use crate::status::Status;
use crate::transfer::Outcome;
use crate::wire::frame::{Header, Kind};

/// Lanes that have not drained by then are not waited for.
const DRAIN_NS: u64 = 500_000_000;
/// A lane that takes no frame for this long has no reader.
const UNSENT_NS: u64 = 1_000_000_000;
/// How long a side that got Closing waits for the peer's Close.
const CLOSE_NS: u64 = 2_000_000_000;
/// Within this time the other side has drained and answered, or will not.
const ANSWER_NS: u64 = 700_000_000;

impl Worker {
    /// The caller disconnects a peer: outstanding operations end at once.
    pub fn link_disconnect(&mut self, peer: PeerId, now: u64) {
        let Some(link) = self.link(peer) else { return };
        // The peer may consider itself up, but no lane leads to it.
        if link.lanes_up().is_empty() {
            return self.end_peer(peer, Outcome::OK, now);
        }
        self.begin_closing(peer, Outcome::OK, false, now);
    }

    /// The endpoint shuts down: it closes every peer.
    pub fn close_all(&mut self, now: u64) {
        self.shutting_down = true;
        let peers = self.links.iter().flatten().map(|link| link.peer.id);
        self.commands.extend(peers.map(|peer| Command::Disconnect { peer }));
        self.tend_links(now);
    }

    /// The peer closes.
    pub(super) fn on_closing(&mut self, peer: PeerId, now: u64) {
        self.begin_closing(peer, Outcome::of(Status::PeerClosed), true, now);
    }

    /// The peer has drained.
    pub(super) fn on_close(&mut self, peer: PeerId, now: u64) {
        self.on_closing(peer, now);
        let Some(closing) = self.link(peer).and_then(|link| link.closing.as_mut()) else { return };
        // If both sides close, no answer will come; one is still owed.
        closing.answers = true;
        closing.peer_drained = true;
        if closing.stage == Stage::Waiting {
            closing.stage = Stage::Sending;
        }
        self.advance_closing(peer, now);
    }

    /// The peer has drained, too.
    pub(super) fn on_close_ack(&mut self, peer: PeerId, now: u64) {
        if let Some(closing) = self.link(peer).and_then(|link| link.closing.as_mut()) {
            closing.agreed = true;
            let outcome = closing.outcome;
            self.end_peer(peer, outcome, now);
        }
    }

    fn begin_closing(&mut self, peer: PeerId, outcome: Outcome, answers: bool, now: u64) {
        // Operations that came back earlier complete normally.
        self.settle(now);
        let Some(link) = self.link(peer).filter(|link| link.closing.is_none()) else { return };
        let draining = link.lanes_up().to_vec();
        let outstanding = link.take_outstanding(outcome);
        link.closing = Some(Closing {
            stage: Stage::Ending,
            since: now,
            outstanding,
            draining,
            answers,
            peer_drained: false,
            agreed: false,
            outcome,
        });
        self.end_outstanding(peer, now);
        if !answers {
            // Acknowledges what was delivered here and not yet acknowledged.
            self.beat(peer, now);
            // If the lane takes no frame now, Close will do.
            self.send_plain(peer, Kind::Closing);
        }
    }

    /// Ends outstanding operations as time allows, then drains the lanes. In this order, because
    /// what the lanes leave undone would otherwise look like failures.
    fn end_outstanding(&mut self, peer: PeerId, now: u64) {
        let core = self.core.clone();
        let over = || core.clock.now().saturating_sub(now) > ENDS_NS;
        let Some(link) = self.link(peer) else { return };
        let workers = link.peer.workers;
        let Some(closing) = link.closing.as_mut().filter(|closing| closing.stage == Stage::Ending) else {
            return;
        };
        if core.go_on_ending(&mut closing.outstanding, now, over) {
            (closing.stage, closing.since) = (Stage::Draining, now);
            for worker in (0..core.inboxes.len()).filter(|worker| workers & 1 << worker != 0) {
                core.inboxes[worker].command(Command::DrainLanes { peer });
            }
        }
    }

    /// Advances a closing: end what is outstanding, drain, send Close, wait for the answer.
    pub(super) fn advance_closing(&mut self, peer: PeerId, now: u64) {
        self.end_outstanding(peer, now);
        let Some(closing) = self.link(peer).and_then(|link| link.closing.as_mut()) else { return };
        let took = now.saturating_sub(closing.since);
        let next = match closing.stage {
            Stage::Draining if closing.answers && !closing.peer_drained => {
                if took > CLOSE_NS {
                    Stage::Over
                } else {
                    Stage::Draining
                }
            }
            Stage::Draining if closing.draining.is_empty() || took > DRAIN_NS => Stage::Sending,
            Stage::Waiting if took > ANSWER_NS => Stage::Over,
            Stage::Sending if took > UNSENT_NS => Stage::Over,
            same => same,
        };
        if next != closing.stage {
            (closing.stage, closing.since) = (next, now);
        }
        let (stage, answers, outcome) = (closing.stage, closing.answers, closing.outcome);
        match stage {
            Stage::Sending if self.send_plain(peer, if answers { Kind::CloseAck } else { Kind::Close }) => {
                if let Some(closing) = self.link(peer).and_then(|link| link.closing.as_mut()) {
                    closing.agreed = answers && closing.draining.is_empty();
                    (closing.stage, closing.since) = (Stage::Waiting, now);
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
    pub(super) fn send_plain(&mut self, peer: PeerId, kind: Kind) -> bool {
        let Some(link) = self.link_here(peer) else { return false };
        let Some(path) = self.path_to(link) else { return false };
        let header = Header::plain(kind);
        self.send_by(path, peer, &header, &[], &[]) == Posted::Yes
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
            self.command_owner(&peer, Command::LaneDrained { peer: peer.id, plan });
        }
    }

    pub fn link_lane_drained(&mut self, peer: PeerId, plan: Plan, now: u64) {
        if let Some(closing) = self.link(peer).and_then(|link| link.closing.as_mut()) {
            closing.draining.retain(|other| *other != plan);
            self.advance_closing(peer, now);
        }
    }
}
