//! Carries out what `lane::reopening` decides: NICs whose endpoint is closed and opened anew to take back what was
//! posted, and those whose devices are removed and come back.

use super::chores::Chore;
use super::core::Core;
use super::inbox::Command;
use super::lanes::{DataPath, LaneWork, PeerEnd, RailWork, Rails};
use crate::fabric::{LinkState, Resets, Return};
use crate::ids::{LaneId, PeerId, RailIndex};
use crate::lane::reopening::{self, Asked, Step};
use crate::logging::seldom::warn_seldom;
use crate::memory::Memory;
use crate::status::Status;
use crate::transfer::Outcome;
use std::sync::atomic::Ordering;
use std::sync::Arc;

impl Core {
    /// All that a rail had registered is registered again, since its device is back.
    fn has_returned(&self, worker: usize, rail: RailIndex) {
        self.returned.fetch_or(rail.bit(), Ordering::SeqCst);
        self.returns.fetch_add(1, Ordering::SeqCst);
        for memory in self.memories.all() {
            self.inboxes[worker].command(Command::Chore(Chore::Refresh(memory, rail.bit())));
        }
        self.inboxes[worker].command(Command::Chore(Chore::Back(rail)));
    }

    /// A memory has the registrations that these rails have now, and so have its importers.
    pub(crate) fn refresh(&self, memory: &Arc<Memory>, set: u64, rails: &mut Rails) {
        for RailWork { rail, .. } in
            rails.iter_mut().filter(|work| work.rail.index.is_in(set & memory.known()))
        {
            memory.refresh(rail.index, |registration| rail.refreshed(registration));
        }
        self.describe(memory);
        for id in memory.importers() {
            if let Ok(peer) = self.peers.get(id) {
                self.command_owner(&peer, Command::GiveKeys { peer: id, memory: memory.clone() });
            }
        }
    }
}

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
            if work.rail.limits().resets != Resets::Rail && !work.reopening.is_away() {
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
                Some(Step::ComeBack) => self.come_back(rail, now),
                Some(Step::Open) => self.open_returned(rail, now),
            }
        }
    }

    /// Looks for a removed device, or goes on opening it.
    fn come_back(&mut self, rail: RailIndex, now: u64) {
        let work = &mut self.rails[rail];
        match work.rail.come_back() {
            Ok(Return::Absent) => work.reopening.handle_absent(now),
            Ok(Return::Partly) => work.reopening.handle_opening(),
            Ok(Return::Ready) => {
                work.reopening.handle_ready();
                self.core.has_returned(self.index, rail);
            }
            Err(error) => {
                warn_seldom!("rail {rail}: its device is there again, and does not open: {error}");
                work.reopening.handle_absent(now);
            }
        }
    }

    /// A device is back, and its keys were sent. Owners know that its link is up before the first handshake over it
    /// arrives, and let none begin before the importer has the keys.
    fn open_returned(&mut self, rail: RailIndex, now: u64) {
        let RailWork { rail: nic, lanes, reopening, health, .. } = &mut self.rails[rail];
        match nic.open_endpoint() {
            Ok(()) => {
                reopening.handle_back();
                let link = nic.link();
                health.link = link;
                self.link_changed(rail, link);
            }
            Err(error) => {
                log::warn!(
                    "rail {rail}: the endpoint of its device, which is there again, does not open: {error}"
                );
                let _ = nic.close_endpoint(lanes); // (It is removed, so this succeeds.)
                reopening.handle_absent(now);
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
        let removed = self.rails[rail].reopening.is_away();
        let provider_errno = if removed { LinkState::Removed.errno() } else { libc::ECONNABORTED };
        Outcome { provider_errno, rail: Some(rail), ..Outcome::new(Status::PeerLost) }
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
        let resets = work.rail.limits().resets;
        let (mut up, mut open) = (Vec::new(), Vec::new());
        for work in work.lanes.iter() {
            let life = &work.lane.life;
            if life.is_up() {
                // What is not back may land at the peer.
                let clean = resets == Resets::Rail && work.lane.inflight_ops == 0;
                let theirs = if clean { PeerEnd::Reset } else { PeerEnd::Open };
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
