//! A failed rail's unfinished slices move to other rails.
//!
//! 1. **Detect.** An operation of a lane fails, its NIC's link does, or the lane stalls: while other
//!    lanes to the same peer move, or for long, where a NIC is to move its bytes (`watch_lanes`).
//! 2. **Reset.** The lane is closed here in both directions (`Rail::reset_lane`), and its
//!    operations come back from the NIC.
//! 3. **Remote reset.** A Reset frame goes to the peer over another lane; the peer resets its own
//!    end and answers. Once this side knows that the other end is reset, nothing that it posted can
//!    land any longer, not even when the link comes back.
//! 4. **Repost.** Other lanes take over what the lane had claimed and is not known to have arrived
//!    (`transfer::claims`). Control frames keep their numbers and are sent again, so that each is
//!    delivered once.
//! 5. **Return.** The lane repeats its handshake after a pause, which grows each time; once the
//!    lane is up, transfers in progress use it, too.
//!
//! Without another lane, the peer is resumed over a new one (`resume`). If a NIC on either side
//! cannot reset a lane, the peer is lost. Where a NIC resets all of its lanes or none, 2 and 3 are as
//! `lane::reopening` says.

use super::inbox::{Command, Inbox};
use super::lanes::{DataPath, LaneWork, PeerEnd, RailWork, Rails};
use super::later::LOOK;
use crate::fabric::{error_text, meaning, Limits, LinkState, Resets};
use crate::ids::{LaneId, PeerId, RailIndex};
use crate::lane::{Asked, Consequence, Failure, Life, Load, Request, Verdict};
use crate::peer::{Peer, PeerState};
use crate::session::{LaneEvent, Plan};
use crate::status::Status;
use crate::transfer::claims::split;
use crate::transfer::completion::{self, Completion};
use crate::transfer::stripe::Stripe;
use crate::transfer::Outcome;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// After an operation has ended, its lane gets this long to return its posts, and is then reset.
const LATE_NS: u64 = 80_000_000;
/// The longest delay of a completion for that: it is due 200 ms after the deadline.
const LATEST_NS: u64 = 160_000_000;
/// A rail that has a link, and reaches no peer for this long, is down: a lane that was reset for another reason
/// is back by then.
const DOWN_NS: u64 = 300_000_000;

impl DataPath {
    // Detection.

    /// Detects lanes that stall, and lanes whose link or connection ends while nothing uses them. (Where the peer
    /// closes, its connections end just before it is known to.)
    pub(crate) fn watch_lanes(&mut self, mut suspects: Vec<Arc<Peer>>, now: u64) {
        let (mut failed, mut ended, mut changed) = (Vec::new(), Vec::new(), Vec::new());
        for work in self.rails.iter_mut() {
            let (looks, rail) = (work.health.looks(now), &mut work.rail);
            if looks {
                let link = rail.link();
                let before = std::mem::replace(&mut work.health.link, link);
                changed.extend((before != link).then_some((rail.index, link)));
            }
            let resets = rail.limits().resets != Resets::Never;
            if resets && looks && work.health.link == LinkState::Removed {
                work.reopening.handle_removed(); // Its endpoint closes, and all lanes.
            }
            // (In software, where arrivals have no limit, a stopped process stalls its lanes.)
            let by_nic = rail.limits().arrival_room.is_some();
            let link_fails = work.health.link != LinkState::Up;
            for lane in work.lanes.iter_mut().filter(|one| one.lane.life.is_up()) {
                let watched = &mut lane.lane;
                if resets && looks && work.health.link == LinkState::Down && watched.serves_its_rail() {
                    failed.push((watched.id, work.health.link.errno(), false));
                    continue;
                }
                if looks {
                    let errno = rail.has_ended(watched.route);
                    if watched.life.has_ended_again(errno.is_some()) && lane.peer.ended().is_none() {
                        ended.extend(errno.map(|errno| (watched.id, errno)));
                    }
                }
                if !resets {
                    continue;
                }
                lane.peer.moved_ns.fetch_max(watched.delivered_ns, Ordering::Relaxed);
                let load = Load {
                    inflight_bytes: watched.inflight_bytes,
                    bytes_per_s: watched.window.bytes_per_s(),
                    progress_ns: watched.progress_ns,
                    moved_ns: lane.peer.moved_ns.load(Ordering::Relaxed),
                    by_nic,
                    link_fails,
                };
                match watched.life.watch(load, now) {
                    Verdict::Wait => {}
                    Verdict::Suspect => suspects.push(lane.peer.clone()),
                    verdict => failed.push((watched.id, libc::ETIMEDOUT, verdict == Verdict::Lost)),
                }
            }
        }
        for (rail, link) in changed {
            self.link_changed(rail, link);
        }
        for (lane, errno, last) in failed {
            self.give_up(lane, errno, last);
        }
        for (lane, errno) in ended {
            self.lane_failed(lane, errno, errno, now);
        }
        for peer in suspects {
            let probe = |inbox: &Inbox| inbox.command(Command::Probe { peer: peer.id });
            self.core.workers_of_peer(&peer).for_each(probe);
        }
    }

    /// The kernel reports another state of a rail's link. Lanes that return do so at once: handshakes that began
    /// meanwhile may wait for connections that were never to come.
    pub(crate) fn link_changed(&mut self, rail: RailIndex, link: LinkState) {
        let name = self.core.rails.get(rail.place()).map_or("", |rail| &rail.name);
        match link {
            LinkState::Up => log::warn!("rail {rail} ({name}): its link is up again"),
            LinkState::Down => {
                log::warn!("rail {rail} ({name}): its link is down: its work goes over the others")
            }
            LinkState::Removed => {
                log::warn!("rail {rail} ({name}): its device was removed: its work goes over the others")
            }
        }
        let work = &self.rails[rail];
        if link != LinkState::Up || work.rail.limits().resets == Resets::Never {
            return;
        }
        // (A peer that connects goes on with the attempts that it has: it has no others.)
        let returns = |one: &LaneWork| one.peer.state() == PeerState::Up && !one.lane.life.is_up();
        let begun = |one: &&LaneWork| one.lane.life.is_open() && returns(one);
        let begun: Vec<LaneId> = work.lanes.iter().filter(begun).map(|one| one.lane.id).collect();
        for lane in begun {
            self.give_up_lane(lane);
        }
        self.core.inboxes.iter().for_each(|inbox| inbox.command(Command::LinkUp { rail }));
    }

    /// Publishes completions that were delayed. Completions of operations that ended early wait
    /// until the NICs have returned their posts, so that nothing touches the caller's memory
    /// afterwards. A lane that does not return them in time is reset; where a lane cannot be reset,
    /// the completion is published in time regardless. During shutdown a lane that still moves is
    /// left to the closing: a reset lane cannot carry the close messages.
    pub(crate) fn release_late(&mut self, now: u64) {
        if self.core.table.late() == 0 {
            return;
        }
        let core = self.core.clone();
        let closing = !core.phase.is_open();
        let mut stuck = Vec::new();
        for work in self.rails.iter_mut() {
            for lane in work.lanes.iter_mut() {
                let resets = work.rail.limits().resets == Resets::Lane && !lane.lane.life.is_ending();
                let patience = if resets { LATE_NS } else { LATEST_NS };
                lane.stripes.let_go(&core.table, &mut self.left);
                let overdue = lane.stripes.overdue(now, patience);
                // A NIC that resets lanes needs none for posts that wait for a disk: it can take their memory back.
                let (overdue, failing): (HashMap<u32, &mut Stripe>, HashMap<_, _>) =
                    overdue.partition(|(_, stripe)| !resets || stripe.is_slow());
                if !closing || now.saturating_sub(lane.lane.progress_ns) > LATE_NS {
                    let mut failing = failing.values().filter(|stripe| stripe.is_posted());
                    stuck.extend(failing.next().map(|_| lane.lane.id));
                }
                if !overdue.is_empty() {
                    work.rail.disown(lane.lane.id.slot, |tagged| overdue.contains_key(&split(tagged).0));
                    // Other lanes, which may be of other workers, have posts for disks until they look at them, too.
                    overdue.into_values().for_each(|stripe| match stripe.is_slow() {
                        true => stripe.put_down(&core.table),
                        false => core.table.publish_late(stripe.slot()),
                    });
                }
            }
        }
        for lane in stuck {
            self.give_up(lane, libc::ETIMEDOUT, true);
        }
    }

    /// Resets a lane that carries nothing if the peer has others. `last`: even if it has none.
    fn give_up(&mut self, lane: LaneId, errno: i32, last: bool) {
        let Some((rail, lane_work)) = self.rails.lane_mut(lane) else { return };
        let plan = lane_work.plan();
        if lane_work.peer.lose(plan, last && rail.limits().resets == Resets::Lane) {
            let rail = Some(plan.rail);
            let outcome = Outcome { provider_errno: errno, rail, ..Outcome::new(Status::PeerLost) };
            self.begin_reset(lane, outcome, PeerEnd::Open);
        }
    }

    /// Writes a few bytes over each idle lane of a peer, to see whether they arrive.
    pub fn probe_lanes(&mut self, peer: PeerId, now: u64) {
        for lane in self.lanes_of.get(peer.place()).into_iter().flatten() {
            let Some((rail, LaneWork { lane: idle, .. })) = self.rails.lane_mut(*lane) else { continue };
            if idle.peer == peer && idle.life.is_up() && idle.is_idle() {
                rail.post_probe(idle, now);
            }
        }
    }

    // Failure.

    /// An operation of a lane failed. A lane in its handshake retries for some time where that can
    /// help; one that is up leaves its peer to the other lanes, or ends it.
    pub fn lane_failed(&mut self, lane: LaneId, errno: i32, provider_errno: i32, now: u64) {
        let Some((rail, work)) = self.rails.lane_mut(lane) else { return };
        let (state, peer, plan) = (work.lane.life.state(), work.peer.clone(), work.plan());
        log::debug!(
            "{peer}: the lane to {}, which was {state}, failed: {} (error {errno}, the provider's {provider_errno})",
            self.core.why_not(&peer, plan, String::new()).at,
            error_text(errno)
        );
        let outcome =
            Outcome { provider_errno: errno, rail: Some(plan.rail), ..Outcome::new(Status::PeerLost) };
        let &Limits { resets, reconnects, .. } = rail.limits();
        let (serves, connecting) = (peer.is_served_by(plan.rail), peer.state() == PeerState::Connecting);
        let failure = Failure { errno, serves, connecting, resets, reconnects };
        let consequence = work.lane.life.failed(failure, |last| peer.lose(plan, last), now);
        if let Consequence::Broken { .. } = consequence {
            work.stripes.fail(&self.core.table, &mut self.left);
        }
        match consequence {
            Consequence::Nothing => {}
            Consequence::GivenUp => {
                self.close_lane(lane);
                self.core.lane_not_up(&peer, plan, errno)
            }
            Consequence::NotUp | Consequence::Broken { ends_peer: false } => {
                self.core.lane_not_up(&peer, plan, errno)
            }
            Consequence::Reset => self.begin_reset(lane, outcome, PeerEnd::Open),
            Consequence::Noted => peer.note_failure(outcome),
            Consequence::Pointless if !peer.is_away() => {}
            Consequence::Pointless | Consequence::Broken { ends_peer: true } => {
                peer.note_failure(outcome);
                self.core.command_owner(&peer, Command::EndPeer { peer: peer.id, outcome });
            }
        }
    }

    /// A lane to a peer that is up got no answer: it starts again later.
    pub(crate) fn give_up_lane(&mut self, lane: LaneId) {
        let Some(work) = self.rails.lane(lane) else { return };
        let (peer, plan, waited_for) = (work.peer.clone(), work.plan(), work.handshake.waits_for);
        self.close_lane(lane);
        let errno = libc::ETIMEDOUT;
        let text = if waited_for.is_empty() { meaning(errno) } else { waited_for.to_owned() };
        let why = self.core.why_not(&peer, plan, text);
        self.core.tell_of_lane(&peer, plan, LaneEvent::Failed { errno, why });
    }

    fn close_lane(&mut self, lane: LaneId) {
        let Some((rail, work)) = self.rails.lane_mut(lane) else { return };
        work.lane.drain(true, self.core.clock.now());
        rail.reset_lane(&work.lane);
        if let Some(lanes) = self.lanes_of.get_mut(work.peer.id.place()) {
            lanes.retain(|other| *other != lane);
        }
    }

    // Reset.

    /// A lane has failed: other lanes take over, or a new one will.
    pub(crate) fn begin_reset(&mut self, lane: LaneId, outcome: Outcome, theirs: PeerEnd) {
        let Some((rail, work)) = self.rails.lane_mut(lane) else { return };
        if !work.lane.life.begin_reset(outcome.provider_errno, theirs != PeerEnd::Open) {
            return;
        }
        work.stripes.suspend();
        let carried = work.lane.carried;
        rail.count_reset(&work.lane);
        rail.reset_lane(&work.lane);
        let (found, epoch, peer_epoch) =
            (work.peer.clone(), work.lane.life.epoch(), work.lane.life.peer_epoch());
        let (peer, plan) = (found.id, work.plan());
        if let Some(lanes) = self.lanes_of.get_mut(peer.place()) {
            lanes.retain(|other| *other != lane);
        }
        // Only now: frames that the peer's end sends before its reset need ours unchanged.
        let asks = theirs == PeerEnd::Open;
        self.core.command_owner(
            &found,
            Command::Lane { peer, plan, event: LaneEvent::Reset { epoch, outcome, asks, carried } },
        );
        if let (PeerEnd::Asks, Some(epoch)) = (theirs, peer_epoch) {
            self.confirm_reset(found, plan, epoch);
        }
    }

    /// Says that our end of a lane is reset, once devices no longer copy what came over it.
    pub(crate) fn confirm_reset(&mut self, peer: Arc<Peer>, plan: Plan, epoch: u64) {
        self.touched.push((peer, plan, epoch));
        self.confirm_resets();
    }

    pub(crate) fn confirm_resets(&mut self) {
        let DataPath { touched, rails, core, .. } = self;
        touched.retain(|(found, plan, epoch)| {
            let (peer, plan, rail) = (found.id, *plan, &mut rails[plan.rail].rail);
            let touches = rail.touches(peer);
            if !touches {
                let moves = rail.limits().resets == Resets::Rail;
                let address = if moves { rail.address().to_vec() } else { Vec::new() };
                let event = LaneEvent::ResetHere { epoch: *epoch, address };
                core.command_owner(found, Command::Lane { peer, plan, event });
            }
            touches
        });
    }

    // Reset there.

    /// The peer has reset its end of a lane. It requests (`asks`) the reset of ours, or confirms
    /// its own.
    pub fn reset_as_asked(&mut self, peer: PeerId, plan: Plan, epoch: u64, asks: bool) {
        let Ok(found) = self.core.peers.get(peer) else { return };
        let Some(work) = self.rails.get_mut(plan.rail) else { return };
        let resets = work.rail.limits().resets;
        let is_it = |work: &&mut LaneWork| {
            work.peer.id == peer && work.plan() == plan && work.lane.life.is_meant(epoch, asks)
        };
        let lane = work.lanes.iter_mut().find(is_it);
        let id = lane.as_ref().map(|work| work.lane.id);
        let attempts = lane.as_ref().is_some_and(|work| work.lane.life.is_open() && !work.lane.life.is_up());
        let outcome = Outcome {
            provider_errno: libc::ECONNRESET,
            rail: Some(plan.rail),
            ..Outcome::new(Status::PeerLost)
        };
        let asked = Life::peer_reset(lane.map(|work| &mut work.lane.life), asks, resets);
        match (asked, id) {
            (Asked::Confirm, _) => self.confirm_reset(found, plan, epoch),
            (Asked::EndPeer, _) => self.core.command_owner(&found, Command::EndPeer { peer, outcome }),
            (Asked::Reset, _) if resets == Resets::Rail => self.close_as_asked((peer, plan, epoch)),
            (Asked::Reset, Some(lane)) => {
                found.lose(plan, true);
                self.begin_reset(lane, outcome, PeerEnd::Asks)
            }
            (Asked::Gone, Some(lane)) if attempts => self.give_up_lane(lane),
            (Asked::Gone, Some(lane)) => {
                found.lose(plan, true);
                self.begin_reset(lane, outcome, PeerEnd::Reset)
            }
            (Asked::Reset | Asked::Gone, None) | (Asked::Nothing, _) => {}
        }
        self.reap_closing();
    }

    // Handshake.

    /// A lane of the peer sent a request: an older lane of ours to it is reset. False if the peer
    /// has to repeat the request later. `theirs`: the address that it came from.
    pub(crate) fn meets(&mut self, peer: &Peer, plan: Plan, epoch: u64, theirs: &[u8]) -> bool {
        self.meet(peer, plan, epoch, theirs) && !self.rails[plan.rail].rail.touches(peer.id)
    }

    fn meet(&mut self, peer: &Peer, plan: Plan, epoch: u64, theirs: &[u8]) -> bool {
        if !self.note_peer_reset(peer.id, plan, epoch, theirs) {
            return false;
        }
        let lane = self.find_lane(peer, plan);
        let Some((rail, work)) = lane.and_then(|lane| self.rails.lane_mut(lane)) else { return true };
        let how = rail.limits().resets;
        let (lane, resets) = (work.lane.id, peer.state() == PeerState::Up && how != Resets::Never);
        let moved = work.theirs != theirs;
        let leads_nowhere = moved && work.lane.life.is_open() && !work.lane.life.is_up();
        match work.lane.life.meets(epoch, resets) {
            Request::Answer if leads_nowhere => {
                self.give_up_lane(lane);
                return true;
            }
            Request::Answer => return true,
            Request::Ignore => return false,
            Request::Reset => {
                let (errno, rail) = (libc::ECONNRESET, Some(plan.rail));
                let outcome = Outcome { provider_errno: errno, rail, ..Outcome::new(Status::PeerLost) };
                let proven = moved || how == Resets::Lane;
                peer.lose(plan, true);
                self.begin_reset(lane, outcome, if proven { PeerEnd::Reset } else { PeerEnd::Open });
            }
            Request::GiveUp => self.give_up_lane(lane),
        }
        self.reap_closing();
        self.note_peer_reset(peer.id, plan, epoch, theirs)
    }

    /// The peer has a lane of this epoch from this address, so it has reset its ends of older ones: where NICs' endpoints
    /// are closed for that, of those that led to another address. False if an older lane is not reset here yet.
    pub(crate) fn note_peer_reset(&mut self, peer: PeerId, plan: Plan, epoch: u64, theirs: &[u8]) -> bool {
        let RailWork { rail, lanes, .. } = &mut self.rails[plan.rail];
        let by_rail = rail.limits().resets == Resets::Rail;
        let ends = lanes.iter_mut().filter(|work| work.peer.id == peer && work.plan() == plan);
        let ends = ends.filter(|work| !by_rail || work.theirs != theirs);
        Life::peer_has(ends.map(|work| &mut work.lane.life), epoch)
    }

    // Repost.

    /// Moves the work of lanes whose operations have come back, and whose remote ends are reset, to
    /// other lanes, within the time.
    pub(crate) fn finish_resets(&mut self, over: impl Fn() -> bool) {
        self.finishing = true;
        let next = |rails: &Rails| {
            let work = rails.lanes().find(|work| work.is_reset())?;
            Some((work.lane.id, work.plan(), work.lane.life.errno()))
        };
        while let Some((lane, plan, errno)) = next(&self.rails) {
            for n in 1.. {
                let work = self.rails.lane_mut(lane).map(|(_, work)| work);
                let Some(stripe) = work.and_then(|work| work.stripes.take_suspended(&self.core.table)) else {
                    break;
                };
                self.redistribute(stripe, plan, errno);
                if n % LOOK == 0 && over() {
                    return;
                }
            }
            let RailWork { rail, lanes, .. } = &mut self.rails[plan.rail];
            let Some(gone) = lanes.remove(lane.slot) else { continue };
            let epoch = gone.lane.life.epoch();
            rail.drop_lane(gone.lane, lanes);
            let peer = gone.peer;
            let event = LaneEvent::Quiesced { epoch };
            self.core.command_owner(&peer, Command::Lane { peer: peer.id, plan, event });
            self.note_health(plan.rail, errno);
        }
        self.finishing = false;
    }

    // Closing.

    /// A peer has ended, or only the rails in `keep` serve it: the other lanes accept nothing new,
    /// and are removed when the fabric has returned their operations. `cut`: of an ended peer, whether
    /// they are reset.
    pub fn drop_lanes(&mut self, peer: PeerId, keep: u64, cut: Option<bool>) {
        let now = self.core.clock.now();
        for work in self.rails.lanes_mut() {
            if work.peer.id == peer && !work.lane.id.rail.is_in(keep) && work.lane.life.is_resetting() {
                work.lane.life.drain(false, now);
            }
        }
        self.drop_all_but(peer, keep, cut == Some(true));
        if let Some(cut) = cut {
            self.rails.iter_mut().for_each(|work| work.rail.end_peer(peer, cut));
        }
    }

    fn drop_all_but(&mut self, peer: PeerId, keep: u64, cut: bool) {
        let now = self.core.clock.now();
        let Some(lanes) = self.lanes_of.get_mut(peer.place()) else { return };
        // A successor in the same table slot may already have lanes here.
        let of_peer = |lane: &LaneId| {
            !lane.rail.is_in(keep) && self.rails.lane(*lane).is_none_or(|work| work.lane.peer == peer)
        };
        let (gone, others): (Vec<_>, Vec<_>) = lanes.drain(..).partition(of_peer);
        *lanes = others;
        for lane in gone {
            let Some((rail, work)) = self.rails.lane_mut(lane) else { continue };
            let closes = cut && rail.limits().resets == Resets::Lane;
            work.lane.drain(closes, now);
            if closes {
                rail.reset_lane(&work.lane);
            }
            work.stripes.stop(&self.core.table, &mut self.left);
        }
        self.reap_closing();
    }

    /// Removes lanes that have nothing in flight.
    pub fn reap_closing(&mut self) {
        let now = self.core.clock.now();
        let mut reset = false;
        for RailWork { rail, lanes, .. } in self.rails.iter_mut() {
            for place in 0..lanes.places() {
                let rests = |work: &&mut LaneWork| work.lane.life.is_ending() && work.lane.inflight_ops == 0;
                let Some(lane) = lanes.at(place).filter(rests) else { continue };
                if lane.lane.life.is_resetting() {
                    lane.stripes.put_down(&self.core.table, &mut self.left);
                    reset |= lane.is_reset();
                } else if !lane.is_saying(now) {
                    let slot = lane.lane.id.slot;
                    let Some(mut gone) = lanes.remove(slot) else { continue };
                    self.removed.push(std::mem::take(&mut gone.stripes));
                    rail.drop_lane(gone.lane, lanes);
                }
            }
        }
        if reset && !self.finishing {
            self.finish_resets(|| true);
        }
    }

    // Completions about rails.

    /// A lane of a rail came or went: the rail may now be down, or up again.
    pub(crate) fn note_health(&mut self, rail: RailIndex, errno: i32) {
        let now = self.core.clock.now();
        let work = &mut self.rails[rail];
        let up = work.lanes.iter().any(|one| one.lane.serves_its_rail());
        let health = &mut work.health;
        if up {
            health.since = None;
        } else if health.since.is_none() {
            (health.since, health.errno) = (Some(now), errno);
        }
    }

    /// Publishes changes of rails, if the queue has space.
    pub(crate) fn report_health(&mut self, now: u64) {
        for work in self.rails.iter_mut() {
            let health = &mut work.health;
            let linkless = health.link != LinkState::Up;
            let long = |since| health.said || linkless || now.saturating_sub(since) > DOWN_NS;
            let down = health.since.is_some_and(long);
            if down == health.said || !self.core.queue.reserve(1) {
                continue;
            }
            health.said = down;
            let (kind, status, errno) = match down {
                true => (completion::KIND_RAIL_DOWN, Status::RailLost, health.errno),
                false => (completion::KIND_RAIL_UP, Status::Ok, 0),
            };
            let rail = Some(work.rail.index);
            let outcome = Outcome { provider_errno: errno, rail, ..Outcome::new(status) };
            let completion = Completion::new(kind, outcome, None::<PeerId>, now);
            self.core.queue.publish(completion);
        }
    }
}
