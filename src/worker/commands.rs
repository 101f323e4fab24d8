//! What a worker does for callers and other workers: it starts the transfers in its inbox, and carries
//! out the commands there.

use super::core::{Core, Needs};
use super::inbox::Command;
use super::lanes::Which;
use super::later::{Awaiting, HOPS};
use super::Worker;
use crate::ids::{Hold, LaneId, PeerId};
use crate::memory::{RemoteMemory, RemoteState};
use crate::peer::link::{remote_state_of_end, Link};
use crate::revocation::Then;
use crate::status::Status;
use crate::transfer::operation::{Move, Notice, Work};
use crate::transfer::table::Table;
use crate::transfer::{Direction, Outcome};
use crate::wire::frame::USER;
use std::sync::Arc;

/// A pass starts at most this many transfers, and handles commands only this long: deadlines pass
/// meanwhile.
const STARTS: usize = 1024;
const DISPATCH_NS: u64 = 1_000_000;

/// Queues a message: its place in the peer's channel ends the operation, which has no stripes.
fn push_message(core: &Core, link: &mut Link, hold: Hold) {
    if let Work::Send(message) = &core.table.held(&hold).1.work {
        link.push_message(hold.id(), message, core.frame_bytes());
    }
    let _ = core.table.leave(hold);
}

impl Worker {
    pub(crate) fn take_inbox(&mut self, now: u64) -> bool {
        if !self.has_mail() {
            return false;
        }
        let busy = self.start_submitted();
        let mut new = self.core.inboxes[self.index].take_commands();
        self.commands.append(&mut new);
        self.dispatch_some(now) || busy
    }

    /// Whether pushed work has not begun.
    pub(crate) fn has_mail(&self) -> bool {
        !self.commands.is_empty() || !self.core.inboxes[self.index].is_empty()
    }

    /// Like `has_mail`, for work that may take long.
    pub(crate) fn has_commands(&self) -> bool {
        !self.commands.is_empty() || self.core.inboxes[self.index].has_commands()
    }

    fn dispatch_some(&mut self, now: u64) -> bool {
        let mut busy = false;
        while let Some(command) = self.commands.pop_front() {
            self.dispatch(command, now);
            busy = true;
            if self.core.clock.now().saturating_sub(now) > DISPATCH_NS {
                break;
            }
        }
        busy
    }

    fn start_submitted(&mut self) -> bool {
        let count = self.core.inboxes[self.index].transfers().min(STARTS);
        for _ in 0..count {
            let Some(hold) = self.core.inboxes[self.index].next_transfer() else { break };
            self.start(hold);
        }
        count > 0
    }

    /// Begins a transfer's stripes on the peer's lanes here.
    fn start(&mut self, hold: Hold) {
        let speculative = self.speculative_lane(&hold);
        let core = self.core.clone();
        let (slot, body) = core.table.held(&hold);
        let announced = body.transfer().is_some_and(Move::is_announced);
        let speculative = speculative.filter(|_| Table::takes_part(slot, true));
        if speculative.is_none() && announced && !Table::takes_part(slot, false) {
            return self.data.left.push(core.table.leave(hold)); // One lane carries all of it.
        }
        let to = speculative.map_or(Which::All, Which::Speculative);
        if let Err((hold, runs)) = self.data.begin(hold, to, Vec::new()) {
            // The lanes went meanwhile: other workers may have some.
            self.data.pass_on(hold, runs, HOPS);
        }
    }

    /// The lane that may carry all of a transfer and its notification right behind it, without
    /// waiting for arrival. The frame must not take another path: control frames take the first
    /// lane that is up.
    fn speculative_lane(&self, hold: &Hold) -> Option<LaneId> {
        let transfer = self.core.held(hold)?;
        // The target may revoke a grant between the two.
        let write = transfer.direction == Direction::Write && !transfer.durable;
        if !transfer.is_announced() || !write || transfer.grant.is_some() {
            return None;
        }
        // If the transfer failed, it would be unknown whether the notification had arrived.
        if transfer.notifies_failure {
            return None;
        }
        let peer = transfer.view().peer();
        let lanes = self.data.lanes_of.get(peer.place())?;
        // With several lanes, another one may have to repeat what this one lost.
        let alone = |link: &Link| link.lanes_up().count() == 1 && !link.session.is_away();
        let alone = self.links.get(peer).is_some_and(alone);
        if !alone {
            return None;
        }
        let first = lanes.first().copied().filter(|lane| self.data.control_lane(peer) == Some(*lane))?;
        self.data.rails[first.rail].rail.limits().failures_reset.then_some(first)
    }

    fn dispatch(&mut self, command: Command, now: u64) {
        match command {
            Command::Chore(chore) => self.chores.push(chore, &self.data.rails),
            Command::AddLanes { peer, plans, reply } => {
                self.data.add_lanes(&peer, &plans, reply.as_ref(), now)
            }
            Command::DropLanes { peer, keep } => self.data.drop_lanes(peer, keep, None),
            Command::Lane { peer, plan, event } => self.link_lane(peer, plan, event, now),
            Command::ResetLane { peer, plan, epoch, asks } => {
                self.data.reset_as_asked(peer, plan, epoch, asks)
            }
            Command::Again { hold, runs, hops } => self.data.again(hold, runs, hops),
            Command::Quiesce { scope, then } => self.quiesce(&scope, then, now),
            Command::Quiesced { peer, then: Then::Leave { .. } } => self.lanes_have_left(peer),
            Command::Quiesced { peer, then: Then::Fence(id) } => {
                self.with_link(peer, |link, core| link.arrivals_are_counted(core, id, now))
            }
            Command::Quiesced { peer, then } => {
                self.with_link(peer, |link, _| link.lanes_have_quiesced(then))
            }
            Command::Probe { peer } => self.data.probe_lanes(peer, now),
            Command::LinkUp { rail } => {
                self.links.iter_mut().for_each(|link| link.session.handle_link_up(rail, now))
            }
            Command::GiveKeys { peer, memory } => {
                self.with_link(peer, |link, core| link.give_keys(core, &memory))
            }
            Command::Relay { peer, bytes } => self.data.relay(peer, bytes, now),
            Command::AddLink { peer, session, accepted } => {
                let id = peer.id;
                self.add_link(peer, *session, accepted.as_ref(), now);
                if self.shutting_down {
                    self.link_disconnect(id, now); // It came too late for `close_all`.
                }
            }
            Command::HandshakeAccepted { peer, accepted } => {
                self.with_link(peer, |link, _| link.handed());
                self.link_accepted(peer, &accepted, now)
            }
            Command::EndPeer { peer, outcome } => match outcome.status {
                Status::Ok => self.link_disconnect(peer, now),
                Status::Unreachable => self.evict(peer, now),
                _ => self.end_peer(peer, outcome, now),
            },
            Command::Frame { peer, bytes } => {
                self.with_link(peer, |link, _| link.handed());
                self.link_frame(peer, &bytes, now)
            }
            Command::Notify(notice) => self.link_notice(notice, now),
            Command::Remote { remote } => self.link_remote(remote, now),
            Command::GoOn { hold, start: Some(start) } => self.watching.push(Awaiting { hold, start }),
            Command::GoOn { hold, start: None } => self.link_go_on(hold, now),
            Command::Flushed { peer, number, index, flushed } => {
                self.with_link(peer, |link, core| link.has_flushed(core, number, index, flushed))
            }
            Command::Resume { peer } => {
                self.link_connected(peer, now);
                self.deliver(peer, USER, now);
                self.links.mark(peer);
            }
        }
    }

    // For the links of peers.

    /// Lets a peer's link do something, unless the peer has ended, and send what it then has.
    fn with_link(&mut self, peer: PeerId, act: impl FnOnce(&mut Link, &Core)) {
        if let Some(link) = self.links.get_mut(peer) {
            act(link, &self.core);
            self.links.mark(peer);
        }
    }

    /// An operation goes on; what it needs the owner for, this does.
    pub(crate) fn link_go_on(&mut self, hold: Hold, now: u64) {
        let core = self.core.clone();
        let mut asked = None;
        core.go_on_or(hold, now, |peer, hold, needs| asked = Some((peer.id, hold, needs)));
        let Some((peer, hold, needs)) = asked else { return };
        let Some(link) = self.links.get_mut(peer).filter(|link| link.session.closing().is_none()) else {
            return core.abandon(hold, Outcome::new(Status::PeerClosed), now);
        };
        match needs {
            Needs::Message => push_message(&core, link, hold),
            Needs::Request => link.push_atomic(&core, hold, now),
            Needs::Cover => link.ask_grant(&core, hold, now),
            Needs::Lane => {
                link.join(&core, hold, now);
                self.carry_out(peer, None, now);
                if let Some(link) = self.links.get_mut(peer) {
                    link.go_on_joining(&core, now);
                }
                self.stage(peer);
            }
        }
        self.links.mark(peer);
    }

    /// With manual progress: sends at once, unless other frames precede it or the worker has ended.
    pub fn send_now(&mut self, peer: PeerId, hold: Hold, now: u64) -> std::result::Result<(), Hold> {
        if self.is_closed() || self.has_mail() {
            return Err(hold);
        }
        let Some(link) = self.links.get_mut(peer) else { return Err(hold) };
        push_message(&self.core, link, hold);
        self.links.mark(peer);
        self.talk(now);
        self.data.fail_lanes(now);
        Ok(())
    }

    /// Notifies a peer of the end of a transfer.
    fn link_notice(&mut self, notice: Notice, now: u64) {
        let Notice { id, peer, failed: Some(failed) } = &notice else {
            return self.link_notify(notice.peer, notice.id, false, now);
        };
        // A peer that has ended is not notified.
        match self.core.owner_of(*peer) {
            Some(owner) if owner != self.index => self.core.inboxes[owner].command(Command::Notify(notice)),
            _ => self.with_link(*peer, |link, _| link.push_failed(*id, failed)),
        }
    }

    /// A memory of a peer was imported, or released.
    fn link_remote(&mut self, remote: Arc<RemoteMemory>, now: u64) {
        let core = self.core.clone();
        let peer = remote.peer;
        if remote.is_released() {
            return self.with_link(peer, |link, _| link.forget(&remote));
        }
        if remote.device.is_some() {
            self.data.reach(&remote);
        }
        if core.owner_of(peer).is_some_and(|owner| owner != self.index) {
            return;
        }
        match self.links.get_mut(peer) {
            Some(link) => match link.session.closing() {
                Some(outcome) => core.answered(&remote, remote_state_of_end(outcome.status), now),
                None => {
                    link.push_import(remote);
                    self.links.mark(peer);
                }
            },
            None => core.answered(&remote, RemoteState::PeerLost, now),
        }
    }
}
