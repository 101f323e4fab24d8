//! The life of links: deadlines, and the end of a peer.

use crate::fabric::{error_text, host, Cause};
use crate::ids::{OpId, PeerId, RailIndex};
use crate::lane::SUSPECT_NS;
use crate::peer::link::Link;
use crate::peer::{status_of_end, Peer};
use crate::revocation::{Scope, Then};
use crate::status::Status;
use crate::transfer::completion::{self, Completion};
use crate::transfer::operation::Move;
use crate::transfer::Outcome;
use crate::wire::frame::{Kind, REQUESTS, USER};
use crate::worker::core::{Core, RailInfo};
use crate::worker::later::{Leaving, LeavingStage, ENDS_NS};
use crate::worker::Worker;
use std::sync::Arc;

/// Frames of an ended link that are freed in one step.
const SHED: usize = 64;

/// How long one pass checks the operations that fences wait for.
const FENCE_LOOK_NS: u64 = 500_000;
/// How long a PEER_DOWN waits for a NIC that still has operations of the peer, once its lanes are
/// dropped.
const OFF_NS: u64 = 300_000_000;

fn warn_of_loss(core: &Core, link: &Link, outcome: Outcome) {
    let peer = &link.peer;
    let errno = outcome.provider_errno;
    let cause = match Cause::from_errno(errno) {
        cause if cause.is_closed() => "its connections were closed, so its process has probably ended",
        cause if errno != 0 && cause != Cause::Silence => "its fabric reports an error",
        _ if peer.is_over(host::NAME) => "it does not answer: its process is stopped, or gets no CPU",
        _ => "it does not answer: it is stopped, or the network to it fails",
    };
    let said = match (outcome.rail, errno) {
        (_, 0) => String::new(),
        (Some(rail), _) => format!(" (rail {rail}: {} ({errno}))", error_text(errno)),
        (None, _) => format!(" ({} ({errno}))", error_text(errno)),
    };
    core.note_end(link, &format!("it is lost: {cause}{said}"));
    log::warn!("{peer} is lost: {cause}{said}; its operations end with WEFT_ERR_PEER_LOST");
}

/// Frees some of the frames that a link had queued. True: none are left.
fn shed(link: &mut Link) -> bool {
    link.session.channels.iter_mut().all(|channel| channel.shed(SHED))
}

/// Logs that connecting failed, rate-limited for peers that only sent us a handshake request.
pub(crate) fn warn_of_failure(core: &Core, link: &Link, why: &str) {
    core.note_end(link, why);
    if link.accepted && link.peer.connects.lock().is_empty() {
        core.reject(&format!("{}: {why}", link.peer));
    } else {
        log::warn!("{}: {why}", link.peer);
    }
}

impl Worker {
    /// Ends an unauthenticated endpoint, unless it is a peer by now.
    pub fn evict(&mut self, peer: PeerId, now: u64) {
        let Some(link) = self.links.get_mut(peer).filter(|link| !link.session.is_up()) else { return };
        if link.peer.connects.lock().is_empty() {
            self.end_peer(peer, Outcome::new(Status::Unreachable), now);
        } else {
            self.core.unauthenticated.settled(peer); // The caller connects to it.
        }
    }

    /// Ends a peer: first its outstanding operations, then its state, then PEER_DOWN.
    pub fn end_peer(&mut self, peer: PeerId, outcome: Outcome, now: u64) {
        let core = self.core.clone();
        let Some(link) = self.links.get_mut(peer) else { return };
        let outcome = link.session.end(outcome);
        let outcome = match link.peer.failure() {
            Some(failure) if outcome.status == Status::PeerLost => failure,
            _ => outcome,
        };
        match outcome.status {
            Status::PeerLost => warn_of_loss(&core, link, outcome),
            Status::Ok => core.note_end(link, "this endpoint has disconnected it"),
            status => core.note_end(link, &Status::text_of(status as i32).to_string_lossy()),
        }
        if matches!(outcome.status, Status::PeerLost | Status::Protocol) {
            // The peer may only have been stopped: once it continues it receives this.
            self.data.send_plain(link, Kind::Close, &[]);
        }
        let Some(mut link) = self.links.remove(peer) else { return };
        link.peer.set_down(outcome.status);
        let mut outstanding = link.take_outstanding(outcome);
        outstanding.waited.extend(link.ending.take().into_iter().flat_map(|ending| ending.waited));
        outstanding.waited.extend(std::mem::take(&mut link.atomics).into_values());
        outstanding.waited.extend(link.end_staged(&core, &mut self.staging.pool));
        link.stop_quiesces(&core);
        let stage = LeavingStage::Ending(link, outstanding);
        self.leaving.push_back(Leaving { peer, outcome, stage });
        self.finish_leaving(now, || core.clock.now().saturating_sub(now) > ENDS_NS);
    }

    /// All outstanding operations of a peer have ended: removes its lanes and its state.
    fn drop_peer(&mut self, mut link: Box<Link>, outcome: Outcome, now: u64) -> LeavingStage {
        let core = self.core.clone();
        let peer = link.peer.id;
        if link.assembly.is_some() {
            core.queue.unreserve(1);
        }
        core.memories.forget_importer(peer, &link.imports);
        let was_up = link.session.is_up();
        core.peers.remove(&link.peer, link.session.is_known());
        // Notify after that, so that a later grant finds the peer gone.
        core.notify_of_end(peer, Outcome { status: status_of_end(outcome.status), ..outcome });
        if link.accepted && !was_up {
            core.unauthenticated.settled(peer);
        }
        // Where both sides have drained, nothing in flight could land. A peer that was never up has
        // nothing in flight, and its last frame should arrive.
        let reset = was_up && !link.session.is_agreed();
        let others = self.drop_peers_lanes(&link.peer, reset);
        // Its posts may still arrive, where lanes cannot be closed, or a post opens a new
        // connection.
        let lets_in = |(index, rail): (RailIndex, &RailInfo)| !rail.grants && link.peer.is_served_by(index);
        let lands = reset && RailIndex::each(&core.rails).any(lets_in);
        if lands {
            core.replace_keys_of_end(peer);
        }
        let down = was_up.then(|| Completion::new(completion::KIND_PEER_DOWN, outcome, peer, now));
        if !was_up {
            core.queue.unreserve(1 + link.accepted as u64);
        }
        // Outstanding operations are canceled if this side ended the peer.
        let ended = Outcome { status: status_of_end(outcome.status), ..outcome };
        let connects = std::mem::take(&mut *link.peer.connects.lock());
        let answer = || {
            let completion = Completion::new(completion::KIND_PEER_UP, ended, peer, now);
            let publish = |user_data| core.queue.publish_as(Completion { user_data, ..completion });
            connects.into_iter().map(publish).fold(0, |_, number| number)
        };
        match was_up {
            true => _ = answer(),
            false => core.peers.publish_end(peer, core.queue.polled(), answer),
        }
        if !shed(&mut link) {
            self.shedding.push(*link);
        }
        LeavingStage::Dropping { down, others, dropped_ns: None, lands, ended: None }
    }

    /// Has all workers drop a peer's lanes; returns how many have not yet.
    fn drop_peers_lanes(&mut self, peer: &Peer, cut: bool) -> usize {
        let (core, here) = (&self.core, self.index);
        self.data.drop_lanes(peer.id, 0, Some(cut));
        // This one, too, counts what has arrived: not here, perhaps in the middle of that.
        let all = (0..core.inboxes.len()).filter(|at| peer.workers >> at & 1 != 0 || *at == here);
        let then = Then::Leave { cut, owner: here };
        all.map(|worker| core.quiesce(worker, Scope::Lanes(peer.id), then)).count()
    }

    /// A worker has dropped the lanes of a peer that has ended.
    pub(crate) fn lanes_have_left(&mut self, peer: PeerId) {
        if let Some(leaving) = self.leaving.iter_mut().find(|leaving| leaving.peer == peer) {
            if let LeavingStage::Dropping { others, .. } = &mut leaving.stage {
                *others = others.saturating_sub(1);
            }
        }
    }

    /// Advances peers that have ended. PEER_DOWN is published when none of their lanes works and
    /// every outstanding operation has its completion.
    pub(crate) fn finish_leaving(&mut self, now: u64, over: impl Fn() -> bool) {
        for _ in 0..self.leaving.len() {
            let Some(mut leaving) = self.leaving.pop_front() else { return };
            if let LeavingStage::Ending(_, outstanding) = &mut leaving.stage {
                if !self.core.go_on_ending(outstanding, now, &over) {
                    return self.leaving.push_front(leaving); // It is the first in the next tick.
                }
            }
            leaving.stage = match leaving.stage {
                LeavingStage::Ending(link, _) => self.drop_peer(link, leaving.outcome, now),
                stage => stage,
            };
            if !self.has_left(&mut leaving, now) {
                self.leaving.push_back(leaving);
            }
            if over() {
                return;
            }
        }
    }

    /// Whether a peer is gone, and its PEER_DOWN, if it has one, was published.
    fn has_left(&self, leaving: &mut Leaving, now: u64) -> bool {
        let core = &self.core;
        let LeavingStage::Dropping { down, others, dropped_ns, lands, ended } = &mut leaving.stage else {
            return false;
        };
        // A worker may be inside a call into a provider, for however long: until it has dropped the
        // peer's lanes, bytes of the peer may land.
        let held = *others != 0;
        let dropped_ns = if held { now } else { *dropped_ns.get_or_insert(now) };
        let late = core.table.has_late(leaving.peer) && now.saturating_sub(dropped_ns) < OFF_NS;
        let rekeying = *lands && core.is_rekeying_for(leaving.peer);
        let copied = core.grants.copying.has_peer(leaving.peer, u64::MAX);
        if (held || late || rekeying || copied) && !self.closed {
            return false;
        }
        core.revoking(|all| all.handle_gone(leaving.peer));
        let Some(down) = *down else { return true };
        let ended = *ended.get_or_insert_with(|| core.table.ended_so_far());
        if self.closed {
            core.table.await_publication();
        } else if !core.table.are_published(ended) {
            return false;
        }
        core.peers.publish_end(leaving.peer, core.queue.polled(), || core.queue.publish_as(down));
        true
    }

    /// The rails are closed: finishes all peers that have ended.
    pub(crate) fn finish_all_leaving(&mut self, now: u64) {
        for _ in 0..2 {
            self.data.free_removed(|| false);
            self.settle(now);
            self.finish_leaving(now, || false);
        }
        self.shed(|| false);
    }

    /// Frees the frames of ended links, in steps.
    fn shed(&mut self, over: impl Fn() -> bool) {
        while let Some(link) = self.shedding.last_mut() {
            if shed(link) {
                self.shedding.pop();
            }
            if over() {
                return;
            }
        }
    }

    /// Advances all work that ends in steps, until the time has passed (`over`). True: more
    /// remains.
    pub(crate) fn go_on_ending(&mut self, now: u64, over: impl Fn() -> bool) -> bool {
        let mut sweeping = false;
        for link in self.links.iter_mut() {
            sweeping |= !link.go_on_sweeping(&self.core, now, &over);
        }
        self.counting.go_on(&self.core, now, usize::MAX, &over);
        let stopping = self.data.go_on_ending(&over);
        self.shed(&over);
        self.settle(now);
        self.finish_leaving(now, &over);
        let ending = |leaving: &Leaving| matches!(leaving.stage, LeavingStage::Ending(..));
        stopping || sweeping || !self.shedding.is_empty() || self.leaving.front().is_some_and(ending)
    }

    /// Handles deadlines: connects that timed out, late lanes, close messages without an answer.
    pub fn tend_links(&mut self, now: u64) {
        let mut due = Vec::new();
        let (mut marked, mut joining) = (Vec::new(), Vec::new());
        let core = self.core.clone();
        for link in self.links.iter_mut() {
            let peer = link.peer.id;
            if link.is_due(now) || link.ending.is_some() {
                due.push(peer);
            }
            if !link.joining.is_empty() {
                joining.push(peer);
            }
            if !link.revoking.is_empty() || link.is_held_back() {
                marked.push(peer);
            }
        }
        for peer in due {
            self.tend(peer, now);
            if core.clock.now().saturating_sub(now) > ENDS_NS {
                break; // The others are late in the next tick, too.
            }
        }
        for peer in joining {
            if let Some(link) = self.links.get_mut(peer) {
                link.go_on_joining(&core, now);
            }
            self.stage(peer);
        }
        self.links.iter_mut().for_each(|link| self.data.watch_control_lane(link, now));
        for peer in marked {
            self.deliver(peer, USER, now);
            self.deliver(peer, REQUESTS, now);
            self.links.mark(peer);
        }
        let none_left = self.links.iter().next().is_none() && self.leaving.is_empty();
        if self.shutting_down && none_left && !self.data.rails.lanes().any(|lane| lane.is_saying(now)) {
            self.core.phase.count_closed(self.index);
        }
    }

    /// The peer has not received a speculative notification.
    pub(crate) fn retract(&mut self, peer: PeerId, id: OpId, now: u64) {
        let core = self.core.clone();
        let one_frame = core.table.read(id).map(|slot| {
            // SAFETY: a reader hold keeps the slot alive until it is released.
            let one_frame = unsafe { core.table.body(slot) }.transfer().is_some_and(Move::is_one_frame);
            core.table.release(slot);
            one_frame
        });
        match one_frame {
            // It may have received a part.
            Some(false) => _ = core.table.end(id, Outcome::new(Status::RailLost), now),
            Some(true) if core.table.retract(id) == Some(true) => self.link_notify(peer, id, false, now),
            _ => {}
        }
    }

    /// Probes peers that have acknowledged nothing for some time: a lane may have lost the frames,
    /// or the peer's lane the answer, and nothing else may reveal it.
    pub(crate) fn unanswered(&mut self, now: u64) -> Vec<Arc<Peer>> {
        let links =
            self.links.iter_mut().filter(|link| link.session.is_up() && link.lanes_up().nth(1).is_some());
        let late =
            links.filter(|link| link.asked_ns.is_some_and(|asked| now.saturating_sub(asked) > SUSPECT_NS));
        late.map(|link| {
            link.asked_ns = Some(now - SUSPECT_NS / 2);
            link.peer.clone()
        })
        .collect()
    }

    /// Goes on with what is to come to rest.
    pub(crate) fn advance_quiescing(&mut self, now: u64) {
        if self.links.quiescing.is_empty() {
            return;
        }
        let core = self.core.clone();
        let over = || core.clock.now().saturating_sub(now) > FENCE_LOOK_NS;
        for peer in std::mem::take(&mut self.links.quiescing) {
            let Some(link) = self.links.get_mut(peer) else { continue };
            let before = link.quiescing.len();
            let waits = link.advance_quiescing(&core, now, over);
            if link.quiescing.len() < before {
                self.links.mark(peer);
            }
            self.links.quiescing.extend(waits.then_some(peer));
            self.carry_out(peer, None, now);
        }
    }
}
