//! Carries out what `lane::reopening` decides: NICs whose endpoint is closed and opened anew to take back what was
//! posted.

use super::inbox::Command;
use super::lanes::{DataPath, LaneWork, PeerEnd, RailWork};
use crate::fabric::Resets;
use crate::ids::{LaneId, PeerId, RailIndex};
use crate::lane::reopening::{self, Asked, Step};
use crate::status::Status;
use crate::transfer::Outcome;

/// A NIC that gives nothing back for this long is stuck.
const STUCK_NS: u64 = 100_000_000;

impl RailWork {
    /// What of the rail decides whether its NIC's endpoint is closed.
    fn look(&self, now: u64) -> reopening::Rail {
        let up = || self.lanes.iter().filter(|work| work.lane.life.is_up());
        reopening::Rail {
            stuck: self.stuck(now).next().is_some(),
            alone: up().any(|LaneWork { peer, .. }| {
                !peer.address.follows() || peer.lanes.lock().has_only(self.rail.index)
            }),
            moves: up().any(|work| work.lane.inflight_ops > 0),
        }
    }

    /// The peers of lanes that only wait for this side's NIC.
    fn stuck(&self, now: u64) -> impl Iterator<Item = PeerId> + '_ {
        let waits = move |lane: &crate::rail::Lane| {
            lane.life.is_reset(0) && lane.inflight_ops > 0 && now.saturating_sub(lane.progress_ns) > STUCK_NS
        };
        self.lanes.iter().filter(move |work| waits(&work.lane)).map(|work| work.peer.id)
    }
}

impl DataPath {
    /// A peer has asked for the reset of our end of its lane of an epoch.
    pub(crate) fn close_as_asked(&mut self, asked: Asked) {
        let (peer, plan, epoch) = asked;
        let Ok(found) = self.core.peers.get(peer) else { return };
        let (closed, known) = {
            let lanes = found.lanes.lock();
            (lanes.is_closed(plan, epoch), lanes.has_had(plan, epoch))
        };
        if closed {
            self.confirm_reset(found, plan, epoch);
        } else if known {
            self.rails[plan.rail].reopening.handle_asked(asked);
        }
    }

    /// Closes the endpoints of NICs that wait for it.
    pub(crate) fn reopen_rails(&mut self, now: u64) {
        for rail in self.rails.each() {
            let work = &mut self.rails[rail];
            if work.rail.limits().resets != Resets::Rail {
                continue;
            }
            let seen = work.look(now);
            match work.reopening.poll(seen, now) {
                None => {}
                Some(Step::Hold) => {
                    let up = work.lanes.iter_mut().filter(|work| work.lane.life.is_up());
                    up.for_each(|work| work.lane.life.hold());
                }
                Some(Step::Close) => self.reopen(rail, now),
                Some(Step::GiveUp) => self.end_those_who_wait(rail, now),
            }
        }
    }

    /// The endpoint stays: the peers that wait for its end are lost.
    fn end_those_who_wait(&mut self, rail: RailIndex, now: u64) {
        let work = &mut self.rails[rail];
        work.lanes.iter_mut().for_each(|work| work.lane.life.goes_on());
        let asked = work.reopening.over(now);
        let waiting = asked.iter().map(|(peer, ..)| *peer).chain(work.stuck(now)).collect::<Vec<_>>();
        let outcome = Outcome { rail: Some(rail), ..self.outcome(rail) };
        for peer in waiting {
            if let Ok(found) = self.core.peers.get(peer) {
                self.core.command_owner(&found, Command::EndPeer { peer, outcome });
            }
        }
    }

    fn outcome(&self, rail: RailIndex) -> Outcome {
        let (provider_errno, rail) = (libc::ECONNABORTED, Some(rail));
        Outcome { provider_errno, rail, ..Outcome::new(Status::PeerLost) }
    }

    fn reopen(&mut self, rail: RailIndex, now: u64) {
        let work = &mut self.rails[rail];
        if let Err(error) = work.rail.close_endpoint(&mut work.lanes) {
            log::warn!("rail {rail}: its endpoint does not close: {error}");
            return self.end_those_who_wait(rail, now);
        }
        let mut closed = work.reopening.over(now);
        for peer in self.core.peers.all() {
            let ends = peer.lanes.lock().close(rail).into_iter().map(|(plan, epoch)| (peer.id, plan, epoch));
            closed.extend(ends.collect::<Vec<_>>());
        }
        closed.sort_unstable_by_key(|(peer, plan, epoch)| (peer.get(), plan.remote_rail, *epoch));
        closed.dedup();
        let (mut up, mut open) = (Vec::new(), Vec::new());
        for work in work.lanes.iter() {
            let life = &work.lane.life;
            if life.is_up() {
                // What is not back may land at the peer.
                let theirs = if work.lane.inflight_ops == 0 { PeerEnd::Reset } else { PeerEnd::Open };
                up.push((work.lane.id, theirs));
            } else if life.is_open() {
                open.push(work.lane.id);
            }
        }
        match work.rail.open_endpoint() {
            Ok(()) => self.note_moved(rail),
            Err(error) => log::warn!("rail {rail}: its endpoint is not opened anew: {error}"),
        }
        let outcome = self.outcome(rail);
        for (lane, theirs) in up {
            self.lose_lane(lane);
            self.begin_reset(lane, outcome, theirs);
        }
        for lane in open {
            self.give_up_lane(lane);
        }
        for (peer, plan, epoch) in closed {
            if let Ok(found) = self.core.peers.get(peer) {
                self.confirm_reset(found, plan, epoch);
            }
        }
        self.reap_closing();
    }

    /// Others take over, if there are any.
    pub(crate) fn lose_lane(&mut self, lane: LaneId) {
        if let Some(work) = self.rails.lane(lane) {
            work.peer.lose(work.plan(), true);
        }
    }

    /// A rail's NIC may have another address.
    pub(crate) fn note_moved(&mut self, rail: RailIndex) {
        let RailWork { rail, .. } = &mut self.rails[rail];
        if let Some(network) = rail.take_moved() {
            self.core.address.has_moved(rail, network);
        }
    }
}
