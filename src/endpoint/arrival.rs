//! How a link comes up: approaches begin, lanes come up or fail, one fabric is
//! taken, both sides are ready.

use super::core::Core;
use super::inbox::AcceptedHandshake;
use super::inbox::Command;
use super::links::warn_of_failure;
use super::worker::Worker;
use crate::ids::{PeerId, RailIndex};
use crate::memory::RemoteMemory;
use crate::peer::approach::Approaches;
use crate::peer::channel::Out;
use crate::peer::link::Link;
use crate::peer::{Peer, PeerState, Plan, Service};
use crate::status::Status;
use crate::transfer::completion::{self, Completion};
use crate::transfer::Outcome;
use crate::wire::frame::{self, Kind, REQUESTS, SYSTEM, USER};
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Has the workers make lanes.
pub(super) fn add_lanes(core: &Core, peer: &Arc<Peer>, plans: &[Plan], reply: Option<&AcceptedHandshake>) {
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

/// Whether this side selects the fabric. Both sides compute the same answer, whichever connected.
fn decides(core: &Core, peer: &Peer) -> bool {
    core.incarnation < peer.address.incarnation
}

/// Takes a fabric: the lanes over others go.
fn take(core: &Core, link: &mut Link, at: usize) {
    link.approaches.take(at);
    let Some(serving) = link.approaches.serving() else { return };
    let rails = serving.plans.iter().fold(0, |rails, plan| rails | plan.rail.bit());
    let service = Service { fabric: serving.fabric.clone(), reason: link.approaches.reason() };
    let reason = service.reason.clone();
    link.peer.serve(service, rails);
    log::debug!("{}: {reason}", link.peer);
    count_lanes(core, link);
    if link.approaches.has_others() {
        for worker in (0..core.inboxes.len()).filter(|worker| link.peer.workers & 1 << worker != 0) {
            core.inboxes[worker].command(Command::DropLanes { peer: link.peer.id, keep: rails, ended: None });
        }
    }
}

pub(super) fn count_lanes(core: &Core, link: &Link) {
    let up = link.lanes_up();
    show_lanes(core, link, link.remotes.values());
    let count = |rail: fn(&Plan) -> RailIndex| up.iter().map(rail).collect::<HashSet<_>>().len() as u32;
    link.peer.lanes.lock().set(up);
    link.peer.lanes_up.store(up.len() as u32, Ordering::Relaxed);
    link.peer.local_rails.store(count(|plan| plan.rail), Ordering::Relaxed);
    link.peer.remote_rails.store(count(|plan| plan.remote_rail), Ordering::Relaxed);
}

/// Which workers have transfers to memories of the peer's, and over how many lanes. With none up,
/// they wait at any.
pub(super) fn show_lanes<'a>(
    core: &Core,
    link: &Link,
    memories: impl IntoIterator<Item = &'a Arc<RemoteMemory>>,
) {
    let up = link.lanes_up();
    let of = |plan: &Plan| 1u64 << core.rails[plan.rail.place()].worker;
    let workers = up.iter().fold(0, |workers, plan| workers | of(plan));
    let workers = if workers == 0 { link.peer.workers } else { workers };
    for memory in memories {
        memory.lanes.store(up.len().max(1) as u64, Ordering::Relaxed);
        memory.workers.store(workers, Ordering::Release);
    }
}

/// The deciding side is ready: we take the fabric that it names. Or it answers so
/// to our own word.
pub(super) fn ready(core: &Core, link: &mut Link, body: &[u8]) {
    let Some(fabric) = frame::read_ready(body) else { return core.count_malformed() };
    if link.approaches.serving().is_none() && !decides(core, &link.peer) {
        match link.approaches.find(&fabric) {
            Some(at) => take(core, link, at),
            None => core.count_malformed(),
        }
    }
    link.ready_seen |= link.approaches.serving().is_some_and(|serving| serving.fabric == fabric);
}

impl Worker {
    /// Takes ownership of a new peer; `accepted` if its handshake reached us first.
    pub fn add_link(
        &mut self,
        peer: Arc<Peer>,
        mut approaches: Approaches,
        accepted: Option<&AcceptedHandshake>,
        now: u64,
    ) {
        let fabric = accepted.map(|accepted| self.core.rails[accepted.plan.rail.place()].fabric.as_str());
        let plans = match fabric.and_then(|fabric| approaches.follow(fabric, now)) {
            Some(plans) => plans,
            None => approaches.begin(1, now),
        };
        add_lanes(&self.core, &peer, &plans, accepted);
        let at = peer.id.place();
        if self.links.len() <= at {
            self.links.resize_with(at + 1, || None);
        }
        self.links[at] = Some(Box::new(Link::new(peer, approaches, accepted.is_some())));
    }

    /// The peer sent a handshake over a fabric that we may not have tried yet.
    pub fn link_accepted(&mut self, peer: PeerId, accepted: &AcceptedHandshake, now: u64) {
        let plan = accepted.plan;
        let core = self.core.clone();
        let Some(link) = self.link(peer).filter(|link| link.closing.is_none()) else { return };
        if link.holds_off(plan) {
            return; // It handshaking again.
        }
        if link.up {
            // A lane for memory that not all rails know, or one that comes back.
            let ours = &core.rails[plan.rail.place()].fabric;
            let theirs = link.peer.address.rails.get(plan.remote_rail.place()).map(|rail| &rail.fabric);
            let serving = link.approaches.serving().map(|serving| &serving.fabric);
            // How many lanes a peer may have: enough to join all rails of either side, twice.
            let rails = core.rails.len().max(link.peer.address.rails.len());
            let plans = link.approaches.serving().map_or(&[][..], |serving| &serving.plans);
            if plans.len() >= 2 * rails && !plans.contains(&plan) {
                return core.reject("a peer has all the lanes that it may have");
            }
            if serving == Some(ours) && serving == theirs {
                let new = link.approaches.extend(&[plan]);
                add_lanes(&core, &link.peer, &new, Some(accepted));
            }
            return;
        }
        // Otherwise its lane is on its way, or not wanted: the peer repeats its handshake.
        if let Some(plans) = link.approaches.follow(&core.rails[plan.rail.place()].fabric, now) {
            add_lanes(&core, &link.peer, &plans, Some(accepted));
        }
    }

    pub fn link_lane_up(&mut self, peer: PeerId, plan: Plan, now: u64) {
        let core = self.core.clone();
        let Some(link) = self.link(peer) else { return };
        link.approaches.lane_up(plan, now);
        link.has_returned(plan, now);
        count_lanes(&core, link);
        self.mark(peer);
        self.come_closer(peer, now);
        self.go_on_resuming(peer, now);
        self.go_on_joining(peer, now);
    }

    pub fn link_lane_failed(&mut self, peer: PeerId, plan: Plan, errno: i32, why: String, now: u64) {
        let core = self.core.clone();
        let Some(link) = self.link(peer) else { return };
        link.approaches.lane_failed(plan, why);
        if link.up && link.approaches.serving().is_some_and(|serving| serving.plans.contains(&plan)) {
            link.let_return(plan, now);
        }
        link.last_errno = errno;
        count_lanes(&core, link);
        let away = link.resuming.as_ref().filter(|_| link.lanes_up().is_empty());
        if let Some(outcome) = away.map(|of| of.outcome).filter(|_| errno == libc::ECONNREFUSED) {
            return self.end_peer(peer, outcome, now);
        }
        if link.up && link.lanes_up().is_empty() && link.resuming.is_none() {
            // The lane failed while this side was coming up.
            let outcome = Outcome { provider_errno: errno, ..Outcome::of(Status::PeerLost) };
            return self.end_peer(peer, outcome, now);
        }
        self.come_closer(peer, now);
        self.go_on_joining(peer, now);
    }

    /// Does what is next for a link that is not up.
    pub(super) fn come_closer(&mut self, peer: PeerId, now: u64) {
        let core = self.core.clone();
        let Some(link) = self.link(peer).filter(|link| !link.up) else { return };
        if link.approaches.is_hopeless() {
            warn_of_failure(&core, link, &link.approaches.failures());
            let outcome = link.not_reached();
            return self.end_peer(peer, outcome, now);
        }
        if let Some(plans) = link.approaches.begin_next(now) {
            log::info!("{}: another fabric is tried, too", link.peer);
            add_lanes(&core, &link.peer, &plans, None);
        }
        if link.approaches.serving().is_none() && decides(&core, &link.peer) {
            if let Some(at) = link.approaches.best(now) {
                take(&core, link, at);
            }
        }
        self.send_ready(peer, now);
    }

    /// When the lanes are up that will be.
    fn send_ready(&mut self, peer: PeerId, now: u64) {
        let Some(link) = self.link(peer) else { return };
        if !link.ready_sent && link.approaches.is_ready(now) {
            let fabric = link.approaches.serving().map_or("", |serving| &serving.fabric);
            link.ready_sent = true;
            // Imports may wait already.
            link.channels[SYSTEM].push_first(Out::new(Kind::Ready, frame::ready(fabric)));
            self.mark(peer);
        }
        self.come_up(peer, now);
    }

    fn come_up(&mut self, peer: PeerId, now: u64) {
        let core = self.core.clone();
        let Some(link) = self.link(peer).filter(|l| l.ready_sent && l.ready_seen && !l.up) else { return };
        link.up = true;
        core.unauthenticated.settled(peer);
        let mut connects = link.peer.connects.lock();
        link.peer.set_state(PeerState::Up);
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
        self.mark(peer);
        self.deliver(peer, USER, now);
        self.deliver(peer, REQUESTS, now);
    }

    /// A further connect to a peer that may be up already.
    pub fn link_connected(&mut self, peer: PeerId, now: u64) {
        let core = self.core.clone();
        let Some(link) = self.link(peer).filter(|link| link.up) else { return };
        for user_data in link.peer.connects.lock().drain(..) {
            let completion = Completion::new(completion::KIND_PEER_UP, Outcome::OK, peer, now);
            core.queue.publish(Completion { user_data, ..completion });
        }
    }
}
