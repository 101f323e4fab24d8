//! The life of links: coming up, saying bye, and the end of a peer.

use super::inbox::Command;
use super::worker::Worker;
use crate::peer::channel::Out;
use crate::peer::link::{remote_state_of_end, Link};
use crate::peer::table::place;
use crate::peer::wire::{Kind, USER};
use crate::peer::{status_of_end, Peer, PeerState, Plan};
use crate::status::Status;
use crate::transfer::completion::{self, Completion};
use crate::transfer::Outcome;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Lanes that greet get so long after the first one is up.
const STRAGGLERS_NS: u64 = 1_000_000_000;
/// A link that has been silent for so long says something: where a fabric tells
/// of a dead peer, it tells only who sends to it.
const HEARTBEAT_NS: u64 = 1_000_000_000;

impl Worker {
    pub fn add_link(&mut self, peer: Arc<Peer>, plans: Vec<Plan>, accepted: bool) {
        let at = place(peer.id);
        if self.links.len() <= at {
            self.links.resize_with(at + 1, || None);
        }
        self.links[at] = Some(Box::new(Link::new(peer, plans, accepted)));
    }

    pub(super) fn link(&mut self, peer: u64) -> Option<&mut Link> {
        self.links.get_mut(place(peer))?.as_deref_mut().filter(|link| link.peer.id == peer)
    }

    pub(super) fn mark(&mut self, peer: u64) {
        if let Some(link) = self.link(peer).filter(|link| !link.dirty) {
            link.dirty = true;
            self.dirty.push(place(peer));
        }
    }

    pub fn link_lane_up(&mut self, peer: u64, plan: Plan, now: u64) {
        let Some(link) = self.link(peer) else { return };
        if !link.lanes_up.contains(&plan) {
            link.lanes_up.push(plan);
        }
        if link.first_up_ns == 0 {
            link.first_up_ns = now;
        }
        let count =
            |rail: fn(&Plan) -> usize| link.lanes_up.iter().map(rail).collect::<HashSet<_>>().len() as u32;
        link.peer.lanes_up.store(link.lanes_up.len() as u32, Ordering::Relaxed);
        link.peer.local_rails.store(count(|plan| plan.rail), Ordering::Relaxed);
        link.peer.remote_rails.store(count(|plan| plan.remote_rail), Ordering::Relaxed);
        self.mark(peer);
        self.say_ready(peer, now);
    }

    pub fn link_lane_failed(&mut self, peer: u64, plan: Plan, errno: i32, now: u64) {
        let Some(link) = self.link(peer) else { return };
        if !link.lanes_failed.contains(&plan) {
            link.lanes_failed.push(plan);
        }
        link.last_errno = errno;
        if link.lanes_up.is_empty() && link.lanes_failed.len() >= link.plans.len() {
            let outcome = Outcome { status: Status::Unreachable, provider_errno: errno, rail: None };
            return self.end_peer(peer, outcome, now);
        }
        self.say_ready(peer, now);
    }

    /// When all lanes are up, or those that are have waited long enough.
    pub(super) fn say_ready(&mut self, peer: u64, now: u64) {
        let Some(link) = self.link(peer) else { return };
        let waited = link.first_up_ns != 0 && now.saturating_sub(link.first_up_ns) > STRAGGLERS_NS;
        if link.ready_sent || link.lanes_up.is_empty() || !(link.settled() || waited) {
            return;
        }
        link.ready_sent = true;
        link.push(Out::new(Kind::Ready, Vec::new()));
        self.mark(peer);
        self.come_up(peer, now);
    }

    pub(super) fn come_up(&mut self, peer: u64, now: u64) {
        let core = self.core.clone();
        let Some(link) = self.link(peer).filter(|l| l.ready_sent && l.ready_seen && !l.up) else { return };
        link.up = true;
        let mut connects = link.peer.connects.lock();
        link.peer.set_state(PeerState::Up);
        let mut completion = Completion::new(completion::KIND_PEER_UP, Outcome::OK, peer, now);
        if connects.is_empty() {
            completion.value = 1;
            core.queue.publish(completion);
        } else {
            if link.accepted {
                // Its place is not needed: the connects have their own.
                core.queue.unreserve(1);
            }
            for user_data in connects.drain(..) {
                core.queue.publish(Completion { user_data, ..completion });
            }
        }
        drop(connects);
        self.mark(peer);
        self.deliver(peer, USER, now);
    }

    /// A further connect to a peer that may be up already.
    pub fn link_connected(&mut self, peer: u64, now: u64) {
        let core = self.core.clone();
        let Some(link) = self.link(peer).filter(|link| link.up) else { return };
        for user_data in link.peer.connects.lock().drain(..) {
            let completion = Completion::new(completion::KIND_PEER_UP, Outcome::OK, peer, now);
            core.queue.publish(Completion { user_data, ..completion });
        }
    }

    /// Ends a peer: what is outstanding, then what is known of it, then
    /// PEER_DOWN.
    pub fn end_peer(&mut self, peer: u64, outcome: Outcome, now: u64) {
        let core = self.core.clone();
        let at = place(peer);
        if self.link(peer).is_none() {
            return;
        }
        if outcome.status == Status::PeerLost {
            // It may only have been stopped: when it goes on it should know.
            self.say(peer, Kind::Bye);
        }
        let Some(link) = self.links[at].take() else { return };
        // What is outstanding was canceled if we ended it ourselves.
        let ended = Outcome { status: status_of_end(outcome.status), ..outcome };
        self.dirty.retain(|dirty| *dirty != at);
        let state = remote_state_of_end(outcome.status);
        link.peer.set_state(PeerState::Down);
        for remote in link.remotes.values() {
            for id in remote.settle(state) {
                core.abandon(id, ended, now);
            }
        }
        core.table.end_of_peer(peer, ended, now);
        if link.assembly.is_some() {
            core.queue.unreserve(1);
        }
        core.forget_importer(peer);
        core.peers.remove(&link.peer);
        for worker in 0..core.inboxes.len() {
            if link.peer.workers & 1 << worker != 0 && worker != self.index {
                core.inboxes[worker].command(Command::DropLanes { peer });
            }
        }
        self.drop_lanes(peer);
        let connects = std::mem::take(&mut *link.peer.connects.lock());
        let completion = |kind| Completion::new(kind, outcome, peer, now);
        if link.up {
            core.queue.publish(completion(completion::KIND_PEER_DOWN));
        } else {
            core.queue.unreserve(1 + link.accepted as u64);
        }
        for user_data in connects {
            let completion = Completion::new(completion::KIND_PEER_UP, ended, peer, now);
            core.queue.publish(Completion { user_data, ..completion });
        }
    }

    /// What is due: connects that took too long, stragglers, byes not answered.
    pub fn tend_links(&mut self, now: u64) {
        let mut ended = Vec::new();
        let mut ready = Vec::new();
        let mut marked = Vec::new();
        let (mut partings, mut beats) = (Vec::new(), Vec::new());
        let refusals: Vec<(u64, usize, u32)> = self.refusals();
        for link in self.links.iter_mut().flatten() {
            let peer = link.peer.id;
            if !link.up && now >= link.peer.connect_deadline {
                let outcome = Outcome { provider_errno: link.last_errno, ..Outcome::of(Status::Unreachable) };
                ended.push((peer, outcome));
            } else if link.parting.is_some() {
                partings.push(peer);
            } else if link.up && now.saturating_sub(link.sent_ns) > HEARTBEAT_NS {
                beats.push(peer);
            } else if !link.up && !link.ready_sent && link.first_up_ns != 0 {
                ready.push(peer);
            }
            if !link.revoking.is_empty() || link.channels[USER].deliverable().is_some() {
                marked.push(peer);
            }
        }
        for (peer, outcome) in ended {
            self.end_peer(peer, outcome, now);
        }
        for peer in ready {
            self.say_ready(peer, now);
        }
        for peer in partings {
            self.go_on_parting(peer, now);
        }
        for peer in beats {
            self.beat(peer, now);
        }
        for (peer, r, lane) in refusals {
            self.watch_refusal(peer, r, lane, now);
        }
        for peer in marked {
            self.deliver(peer, USER, now);
            self.mark(peer);
        }
        if self.shutting_down && self.links.iter().all(Option::is_none) {
            self.core.said_bye(self.index);
        }
    }
}
