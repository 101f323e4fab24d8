//! Performs the actions of sessions (`session`): makes, drains and drops lanes, brings peers up,
//! ends them, and posts frames.

use super::links::warn_of_failure;
use crate::ids::PeerId;
use crate::logging::seldom::warn_seldom;
use crate::memory::RemoteMemory;
use crate::peer::link::Link;
use crate::peer::{Peer, Service};
use crate::session::{reset_reason, Action, LaneEvent, Plan, Session, Sight};
use crate::status::Status;
use crate::transfer::completion::{self, Completion};
use crate::transfer::Outcome;
use crate::wire::frame::{Kind, REQUESTS, USER};
use crate::worker::core::Core;
use crate::worker::inbox::AcceptedHandshake;
use crate::worker::inbox::Command;
use crate::worker::later::ENDS_NS;
use crate::worker::Worker;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Asks the workers to make lanes.
pub(crate) fn add_lanes(core: &Core, peer: &Arc<Peer>, plans: &[Plan], reply: Option<&AcceptedHandshake>) {
    for (worker, inbox) in core.inboxes.iter().enumerate() {
        if plans.iter().any(|plan| core.rails[plan.rail.place()].worker == worker) {
            inbox.command(Command::AddLanes {
                peer: peer.clone(),
                plans: plans.to_vec(),
                reply: reply.cloned(),
            });
        }
    }
}

/// The serving fabric is selected: drops the lanes over others.
fn serve(core: &Core, link: &mut Link) {
    let Some(serving) = link.session.serving() else { return };
    let rails = serving.plans().fold(0, |rails, plan| rails | plan.rail.bit());
    let service = Service { fabric: serving.fabric.clone(), reason: link.session.reason() };
    log::debug!("{}: {}", link.peer, service.reason);
    link.peer.serve(service, rails);
    count_lanes(core, link);
    if link.session.has_others() {
        let command = || Command::DropLanes { peer: link.peer.id, keep: rails };
        core.workers_of_peer(&link.peer).for_each(|inbox| inbox.command(command()));
    }
}

pub(crate) fn count_lanes(core: &Core, link: &Link) {
    let up: Vec<Plan> = link.lanes_up().collect();
    show_lanes(core, link, link.remotes.values());
    let remote = up.iter().map(|plan| plan.remote_rail).collect::<HashSet<_>>().len() as u32;
    let local = {
        let mut lanes = link.peer.lanes.lock();
        lanes.set(up.clone());
        lanes.carriers().len() as u32
    };
    link.peer.lanes_up.store(up.len() as u32, Ordering::Relaxed);
    link.peer.local_rails.store(local, Ordering::Relaxed);
    link.peer.remote_rails.store(remote, Ordering::Relaxed);
}

/// Which workers have transfers to memories of the peer, and over how many lanes. With none up,
/// transfers wait at any worker.
pub(crate) fn show_lanes<'a>(
    core: &Core,
    link: &Link,
    memories: impl IntoIterator<Item = &'a Arc<RemoteMemory>>,
) {
    let worker = |plan: Plan| 1u64 << core.rails[plan.rail.place()].worker;
    let workers = link.lanes_up().fold(0, |workers, plan| workers | worker(plan));
    let workers = if workers == 0 { link.peer.workers } else { workers };
    let lanes = link.lanes_up().count().max(1) as u64;
    for memory in memories {
        memory.lanes.store(lanes, Ordering::Relaxed);
        memory.workers.store(workers, Ordering::Release);
    }
}

fn warn_of_reset(core: &Core, link: &Link, plan: Plan, errno: i32) {
    // A peer that closes may be gone before its last frame arrives.
    let (level, then) = match (link.session.closing().is_some(), link.lanes_up().count()) {
        (true, _) => (log::Level::Debug, "the peer is closing".to_owned()),
        (_, 0) => (log::Level::Info, "it has no other, so operations wait for a new connection".to_owned()),
        (_, left) => {
            let rails = link.peer.lanes.lock().carriers();
            let mut nics: Vec<&str> = rails.iter().map(|rail| &*core.rails[rail.place()].name).collect();
            nics.dedup();
            let by = if nics.is_empty() { String::new() } else { format!(" by {}", nics.join(", ")) };
            (log::Level::Warn, format!("its other lanes ({left}) carry on{by}"))
        }
    };
    let (peer, rail, to) = (&link.peer, plan.rail, plan.remote_rail);
    let name = &core.rails[rail.place()].name;
    let stuck = link.session.stuck(plan).filter(|_| level != log::Level::Debug);
    if stuck.is_some_and(u32::is_power_of_two) {
        return warn_seldom!(
            "{peer}: the lane from rail {rail} ({name}) to its rail {to} was closed{}; {then}",
            only_frames(core, link, plan)
        );
    }
    let level = if stuck.is_some() { log::Level::Info } else { level };
    let why = reset_reason(errno);
    log::log!(level, "{peer}: the lane from rail {rail} ({name}) to its rail {to} was closed: {why}; {then}");
}

/// What is said of a lane that only small frames pass.
fn only_frames(core: &Core, link: &Link, plan: Plan) -> String {
    let ping = core.try_ping(&link.peer, plan);
    format!(": small frames pass, and nothing larger moved over it in time: {ping}")
}

fn tell_of_return(core: &Core, link: &Link, plan: Plan, ns: u64, again: bool, warned: bool, then: &str) {
    log::log!(
        if warned { log::Level::Warn } else { log::Level::Info },
        "{}: the lane from rail {} ({}) to its rail {} is up{} after {} ms{then}",
        link.peer,
        plan.rail,
        core.rails[plan.rail.place()].name,
        plan.remote_rail,
        if again { " again" } else { "" },
        ns / 1_000_000
    );
}

impl Worker {
    /// Takes ownership of a new peer; `accepted` if its handshake reached us first.
    pub fn add_link(
        &mut self,
        peer: Arc<Peer>,
        session: Session,
        accepted: Option<&AcceptedHandshake>,
        now: u64,
    ) {
        let (id, core) = (peer.id, self.core.clone());
        let link = self.links.insert(Link::new(peer, session, accepted.is_some()));
        let over = accepted.map(|accepted| core.rails[accepted.plan.rail.place()].fabric.as_str());
        link.session.begin(over, now);
        self.carry_out(id, accepted, now);
    }

    /// The peer sent a handshake for a lane that does not exist.
    pub fn link_accepted(&mut self, peer: PeerId, accepted: &AcceptedHandshake, now: u64) {
        let plan = accepted.plan;
        let core = self.core.clone();
        let Some(link) = self.links.get_mut(peer) else { return };
        let ours = core.rails[plan.rail.place()].fabric.as_str();
        let theirs = link.peer.address.rails.get(plan.remote_rail.place()).map(|rail| rail.fabric.as_str());
        if !link.session.handle_request(plan, theirs.filter(|theirs| *theirs == ours), now) {
            return core.reject("a peer has all the lanes that it may have");
        }
        self.carry_out(peer, Some(accepted), now);
    }

    /// Performs the actions of a peer's session. `accepted`: the handshake request that new lanes
    /// answer.
    pub(crate) fn carry_out(&mut self, peer: PeerId, accepted: Option<&AcceptedHandshake>, now: u64) {
        let core = self.core.clone();
        while let Some(link) = self.links.get_mut(peer) {
            let Some(action) = link.session.poll_action() else {
                let Some((kind, body)) = link.session.poll_transmit() else { return };
                let posted = match kind {
                    Kind::Ack => self.data.beat(link, now),
                    _ => self.data.send_plain(link, kind, &body),
                };
                link.session.transmitted(kind, posted, now);
                continue;
            };
            match action {
                Action::AddLanes(plans) => add_lanes(&core, &link.peer, &plans, accepted),
                Action::Serve => serve(&core, link),
                Action::ShowLanes => count_lanes(&core, link),
                Action::LaneBack { plan, ns, again, warned, stuck } => {
                    let then = if stuck { only_frames(&core, link, plan) } else { String::new() };
                    tell_of_return(&core, link, plan, ns, again, warned || stuck, &then)
                }
                Action::LanesMissing(reasons) => {
                    let up = link.lanes_up().count();
                    log::warn!("{}: no lane so far to {reasons}; its other lanes ({up}) carry on", link.peer);
                }
                Action::Flush => self.links.mark(peer),
                Action::Up => self.came_up(peer, now),
                Action::TryAnother => log::info!("{}: another fabric is tried, too", link.peer),
                Action::GiveUp(why) => {
                    warn_of_failure(&core, link, &why);
                    let outcome = link.session.not_reached();
                    self.end_peer(peer, outcome, now);
                }
                Action::EndOutstanding(outcome) => {
                    // Operations that came back earlier complete normally.
                    self.settle(now);
                    let Some(link) = self.links.get_mut(peer) else { return };
                    link.peer.set_ending(outcome.status);
                    link.ending = Some(link.take_outstanding(outcome));
                    self.end_outstanding(peer, now);
                }
                Action::Quiesce => {
                    link.quiesce_to_close(&core);
                    self.links.await_rest(peer);
                }
                Action::End(outcome) => self.end_peer(peer, outcome, now),
                Action::ResetLane { plan, epoch, asks, address } => match core.rails.get(plan.rail.place()) {
                    Some(rail) => {
                        if !address.is_empty() {
                            link.peer.rail_has_moved_to(plan.remote_rail, address);
                        }
                        core.inboxes[rail.worker].command(Command::ResetLane { peer, plan, epoch, asks })
                    }
                    None => core.count_malformed(),
                },
                Action::Unknown(ids, outcome) => ids.into_iter().for_each(|id| {
                    core.table.end(id, Outcome { status: Status::RailLost, ..outcome }, now);
                }),
                Action::Refused(ids) => ids.into_iter().for_each(|id| {
                    core.table.end(id, Outcome::new(Status::Revoked), now);
                }),
                Action::Acknowledged(channel, frames) => {
                    let news = core.frames_taken(&link.peer, &mut link.notified, frames, now);
                    self.go_on_after(peer, channel, news, now);
                }
                Action::Retract(ids) => ids.into_iter().for_each(|id| self.retract(peer, id, now)),
                Action::Away(outcome) => {
                    link.peer.note_failure(outcome);
                    link.peer.set_behind(true);
                }
                Action::Behind => link.peer.set_behind(true),
                Action::CaughtUp => link.peer.set_behind(false),
                Action::Back(ns) => {
                    let ms = ns / 1_000_000;
                    log::info!("{}: a new connection is up after {ms} ms, and operations go on", link.peer);
                    link.peer.forget_failure();
                    self.links.mark(peer);
                }
            }
        }
    }

    /// Handles a link's due timers.
    pub(crate) fn tend(&mut self, peer: PeerId, now: u64) {
        self.end_outstanding(peer, now);
        let busy = self.core.table.active() > 0;
        if let Some(link) = self.links.get_mut(peer).filter(|link| link.is_due(now)) {
            let alive_ns = link.peer.alive_ns();
            link.session.handle_timeout(Sight { alive_ns, busy }, now);
        }
        self.carry_out(peer, None, now);
    }

    /// Ends the outstanding operations of a closing peer, as time allows.
    fn end_outstanding(&mut self, peer: PeerId, now: u64) {
        let core = self.core.clone();
        let over = || core.clock.now().saturating_sub(now) > ENDS_NS;
        let Some(link) = self.links.get_mut(peer) else { return };
        if link.ending.as_mut().is_some_and(|ending| core.go_on_ending(ending, now, over)) {
            link.ending = None;
            link.session.outstanding_ended(now);
        }
    }

    /// The caller disconnects a peer: outstanding operations end at once.
    pub fn link_disconnect(&mut self, peer: PeerId, now: u64) {
        let Some(link) = self.links.get_mut(peer) else { return };
        link.session.disconnect(now);
        self.carry_out(peer, None, now);
    }

    /// The endpoint shuts down: it closes every peer.
    pub fn close_all(&mut self, now: u64) {
        self.shutting_down = true;
        let peers = self.links.iter().map(|link| link.peer.id);
        self.commands.extend(peers.map(|peer| Command::EndPeer { peer, outcome: Outcome::OK }));
        self.tend_links(now);
    }

    /// A frame without a number that concerns the session itself.
    pub(crate) fn session_frame(&mut self, peer: PeerId, kind: Kind, body: &[u8], now: u64) {
        let Some(link) = self.links.get_mut(peer) else { return };
        if link.session.handle_frame(kind, body, now).is_err() {
            self.core.count_malformed();
        }
        self.carry_out(peer, None, now);
    }

    /// Handles a lane's new state at the peer's owner.
    pub fn link_lane(&mut self, peer: PeerId, plan: Plan, event: LaneEvent, now: u64) {
        let core = self.core.clone();
        let Some(link) = self.links.get_mut(peer) else { return };
        let reset =
            if let LaneEvent::Reset { outcome, .. } = &event { Some(outcome.provider_errno) } else { None };
        link.session.handle_lane(plan, event, now);
        if let Some(errno) = reset {
            warn_of_reset(&core, link, plan, errno);
        }
        self.links.mark(peer);
        self.carry_out(peer, None, now);
        if let Some(link) = self.links.get_mut(peer) {
            link.go_on_joining(&core, now);
        }
    }

    fn came_up(&mut self, peer: PeerId, now: u64) {
        let core = self.core.clone();
        let Some(link) = self.links.get_mut(peer) else { return };
        core.unauthenticated.settled(peer);
        let mut connects = link.peer.connects.lock();
        link.peer.set_up();
        let mut completion = Completion::new(completion::KIND_PEER_UP, Outcome::OK, peer, now);
        if connects.is_empty() {
            completion.accepted = 1;
            core.queue.publish(completion);
        } else {
            if link.accepted {
                // The place reserved for the peer's own PEER_UP is not needed: each connect has
                // one.
                core.queue.unreserve(1);
            }
            for user_data in connects.drain(..) {
                core.queue.publish(Completion { user_data, ..completion });
            }
        }
        drop(connects);
        self.links.mark(peer);
        self.deliver(peer, USER, now);
        self.deliver(peer, REQUESTS, now);
    }

    /// A further connect to a peer that may already be up.
    pub fn link_connected(&mut self, peer: PeerId, now: u64) {
        let core = self.core.clone();
        let Some(link) = self.links.get_mut(peer).filter(|link| link.session.is_up()) else { return };
        if link.session.closing().is_some() {
            return; // Its end answers.
        }
        for user_data in link.peer.connects.lock().drain(..) {
            let completion = Completion::new(completion::KIND_PEER_UP, Outcome::OK, peer, now);
            core.queue.publish(Completion { user_data, ..completion });
        }
    }

    // Lanes.
}
