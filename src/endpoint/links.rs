//! The life of links: what is due, and the end of a peer.

use super::core::Core;
use super::inbox::Command;
use super::worker::Worker;
use crate::fabric::error_text;
use crate::peer::link::{remote_state_of_end, Link};
use crate::peer::table::place;
use crate::peer::wire::{Kind, REQUESTS, USER};
use crate::peer::{status_of_end, Peer, PeerState};
use crate::status::Status;
use crate::transfer::completion::{self, Completion};
use crate::transfer::Outcome;

/// A link that has been silent for so long says something: where a fabric tells
/// of a dead peer, it tells only who sends to it.
const HEARTBEAT_NS: u64 = 1_000_000_000;

fn warn_of_loss(peer: &Peer, outcome: Outcome) {
    match (outcome.rail, outcome.provider_errno) {
        (_, 0) => log::warn!("{peer} is lost: it does not answer"),
        (Some(rail), errno) => log::warn!("{peer} is lost: rail {rail}: {} ({errno})", error_text(errno)),
        (None, errno) => log::warn!("{peer} is lost: {} ({errno})", error_text(errno)),
    }
}

/// No connection came about. Of who only greeted us, the log does not hear each time.
pub(super) fn warn_of_failure(core: &Core, link: &Link, why: &str) {
    if link.accepted && link.peer.connects.lock().is_empty() {
        core.turn_away(&format!("{}: {why}", link.peer));
    } else {
        log::warn!("{}: {why}", link.peer);
    }
}

impl Worker {
    pub(super) fn link(&mut self, peer: u64) -> Option<&mut Link> {
        self.links.get_mut(place(peer))?.as_deref_mut().filter(|link| link.peer.id == peer)
    }

    pub(super) fn link_here(&self, peer: u64) -> Option<&Link> {
        self.links.get(place(peer))?.as_deref().filter(|link| link.peer.id == peer)
    }

    pub(super) fn mark(&mut self, peer: u64) {
        if let Some(link) = self.link(peer).filter(|link| !link.dirty) {
            link.dirty = true;
            self.dirty.push(place(peer));
        }
    }

    /// Ends a peer: what is outstanding, then what is known of it, then
    /// PEER_DOWN.
    pub fn end_peer(&mut self, peer: u64, outcome: Outcome, now: u64) {
        let core = self.core.clone();
        let at = place(peer);
        let Some(link) = self.link(peer) else { return };
        // One that was leaving is no more lost when its lanes go before its last word came.
        let outcome = link.parting.as_ref().map_or(outcome, |parting| parting.outcome);
        let outcome = match link.peer.failure() {
            Some(failure) if outcome.status == Status::PeerLost => failure,
            _ => outcome,
        };
        if outcome.status == Status::PeerLost {
            warn_of_loss(&link.peer, outcome);
        }
        if matches!(outcome.status, Status::PeerLost | Status::Protocol) {
            // It may only have been stopped: when it goes on it should know.
            self.say(peer, Kind::Bye);
        }
        let Some(link) = self.links[at].take() else { return };
        // What is outstanding was canceled if we ended it ourselves.
        let ended = Outcome { status: status_of_end(outcome.status), ..outcome };
        self.dirty.retain(|dirty| *dirty != at);
        let state = remote_state_of_end(outcome.status);
        link.peer.set_state(PeerState::Down);
        if link.accepted && !link.up {
            core.strangers.settled(peer);
        }
        for remote in link.remotes.values() {
            for id in remote.settle(state) {
                core.abandon(id, ended, now);
            }
        }
        link.joining.iter().chain(&link.atomics).for_each(|id| core.abandon(*id, ended, now));
        core.table.end_of_peer(peer, ended, now);
        if link.assembly.is_some() {
            core.queue.unreserve(1);
        }
        core.forget_importer(peer);
        core.peers.remove(&link.peer);
        for worker in 0..core.inboxes.len() {
            if link.peer.workers & 1 << worker != 0 && worker != self.index {
                core.inboxes[worker].command(Command::DropLanes { peer, keep: 0 });
            }
        }
        self.drop_lanes(peer, 0);
        let connects = std::mem::take(&mut *link.peer.connects.lock());
        let completion = |kind| Completion::new(kind, outcome, peer, now);
        if link.up {
            core.table.await_publication();
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
        let mut coming = Vec::new();
        let (mut marked, mut joining) = (Vec::new(), Vec::new());
        let (mut partings, mut beats) = (Vec::new(), Vec::new());
        let refusals: Vec<(u64, usize, u32)> = self.refusals();
        let core = self.core.clone();
        for link in self.links.iter_mut().flatten() {
            let peer = link.peer.id;
            if !link.up && now >= link.peer.connect_deadline {
                let failures = link.approaches.failures();
                warn_of_failure(&core, link, &format!("no connection in time: {failures}"));
                let outcome = Outcome { provider_errno: link.last_errno, ..Outcome::of(Status::Unreachable) };
                ended.push((peer, outcome));
            } else if link.parting.is_some() {
                partings.push(peer);
            } else if link.up && now.saturating_sub(link.sent_ns) > HEARTBEAT_NS {
                beats.push(peer);
            } else if !link.up {
                coming.push(peer);
            }
            if !link.joining.is_empty() {
                joining.push(peer);
            }
            if !link.revoking.is_empty() || link.is_held_back() {
                marked.push(peer);
            }
        }
        for (peer, outcome) in ended {
            self.end_peer(peer, outcome, now);
        }
        for peer in coming {
            self.come_closer(peer, now);
        }
        for peer in joining {
            self.go_on_joining(peer, now);
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
            self.deliver(peer, REQUESTS, now);
            self.mark(peer);
        }
        if self.shutting_down && self.links.iter().all(Option::is_none) {
            self.core.said_bye(self.index);
        }
    }
}
