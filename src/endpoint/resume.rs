//! What workers do while a peer has no lane (`session::resuming`).
//!
//! The peer stays up. What its lanes had claimed waits in them until the peer's end is known to be
//! reset, too; then it is parked here, with what is submitted meanwhile. Operations whose deadlines
//! pass end as always. A transfer with a speculative notification (`Worker::speculative_lane`) has
//! arrived if that was delivered; otherwise the peer is notified again after the last byte.

use super::inbox::Command;
use super::lanes::PeerEnd;
use super::later::Parked;
use super::later::HOPS;
use super::worker::Worker;
use crate::fabric::is_closed;
use crate::ids::{Hold, LaneId, OpId, PeerId};
use crate::peer::{Peer, PeerState};
use crate::rail::LaneState;
use crate::session::Plan;
use crate::status::Status;
use crate::transfer::claims::Run;
use crate::transfer::operation::Move;
use crate::transfer::table::Table;
use crate::transfer::Outcome;

/// Parked transfers that a tick looks at.
const LOOKS: usize = 1024;

/// Whether an error is of a connection: a new one may not have it.
pub(super) fn helps(errno: i32) -> bool {
    use libc::*;
    is_closed(errno)
        || matches!(errno, ETIMEDOUT | EHOSTUNREACH | EHOSTDOWN | ENETUNREACH | ENETDOWN | ENETRESET)
}

impl Worker {
    // Park.

    /// Keeps a transfer until its peer has a lane for it.
    pub(super) fn park(&mut self, hold: Hold, runs: Vec<Run>) {
        let peer = self.core.held(&hold).map(|transfer| transfer.view().peer());
        self.parked.push_back(Parked { hold, peer, runs });
    }

    /// Lets parked transfers go on that can, and go that are over.
    pub(super) fn unpark(&mut self) {
        let core = self.core.clone();
        for _ in 0..self.parked.len().min(LOOKS) {
            let Some(one) = self.parked.pop_front() else { return };
            let slot = core.table.held_slot(&one.hold);
            let Some(peer) =
                one.peer.and_then(|peer| core.peers.get(peer).ok()).filter(|_| Table::wanted(slot))
            else {
                self.left.push(core.table.leave(one.hold));
                continue;
            };
            let waits = Table::is_notified(slot)
                || peer.is_away()
                || core.workers_for(&one.hold, &peer.lanes.lock().working()) == 0;
            if waits {
                self.parked.push_back(one);
            } else {
                self.again(one.hold, one.runs, HOPS);
            }
        }
    }

    /// The rails are closed.
    pub(super) fn leave_parked(&mut self) {
        let core = self.core.clone();
        let parked = std::mem::take(&mut self.parked);
        self.left.extend(parked.into_iter().map(|one| core.table.leave(one.hold)));
    }

    /// An operation of a lane that is being reset failed. If it would fail on any lane, new lanes
    /// are pointless.
    pub(super) fn reset_fails(&self, lane: LaneId, errno: i32) {
        let Some(of) = self.rails.lane(lane) else { return };
        if errno != 0 && !helps(errno) && of.resetting.is_some() && of.peer.is_away() {
            let rail = Some(lane.rail);
            let outcome = Outcome { provider_errno: errno, rail, ..Outcome::of(Status::PeerLost) };
            of.peer.note_failure(outcome);
            self.command_owner(&of.peer, Command::EndPeer { peer: of.peer.id, outcome });
        }
    }

    // Handshake.

    /// A lane of the peer sent a request: an older lane of ours to it is reset. False if the peer
    /// is to repeat the request later.
    pub(super) fn meets(&mut self, peer: &Peer, plan: Plan, epoch: u64) -> bool {
        if !self.note_peer_reset(peer.id, plan, epoch) {
            return false;
        }
        let lane = self.find_lane(peer, plan);
        let Some((rail, of)) = lane.and_then(|lane| self.rails.lane_mut(lane)) else { return true };
        let (lane, state) = (of.lane.id, of.lane.state);
        if of.peer_epoch.is_none_or(|epoch_seen| epoch_seen == epoch)
            || peer.state() != PeerState::Up
            || !rail.limits().resets
        {
            of.peer_epoch = Some(epoch);
            return true;
        }
        if Some(epoch) < of.peer_epoch {
            return false; // Of long ago.
        }
        match state {
            LaneState::Up => {
                let (errno, rail) = (libc::ECONNRESET, Some(plan.rail));
                let outcome = Outcome { provider_errno: errno, rail, ..Outcome::of(Status::PeerLost) };
                peer.take_out(plan);
                self.begin_reset(lane, outcome, PeerEnd::Reset);
            }
            LaneState::Handshaking | LaneState::Probing => self.give_up_lane(lane),
            LaneState::Down => return false,
        }
        self.reap_closing();
        self.note_peer_reset(peer.id, plan, epoch)
    }

    /// The peer has a lane of this epoch, so it has reset its ends of older ones. False if an older
    /// one is not reset here yet.
    pub(super) fn note_peer_reset(&mut self, peer: PeerId, plan: Plan, epoch: u64) -> bool {
        let mut both = true;
        let lanes = self.rails[plan.rail].lanes.iter_mut();
        for of in lanes.filter(|of| of.peer.id == peer && of.plan() == plan) {
            if let Some(resetting) = &mut of.resetting {
                resetting.peer_reset |= of.peer_epoch < Some(epoch);
                both &= resetting.peer_reset;
            }
        }
        both
    }

    // Continue.

    /// The peer has not received a speculative notification.
    pub(super) fn retract(&mut self, peer: PeerId, id: OpId, now: u64) {
        let core = self.core.clone();
        let one_frame = core.table.read(id).map(|slot| {
            // SAFETY: held as a reader until it is released.
            let one_frame = unsafe { core.table.body(slot) }.transfer().is_some_and(Move::is_one_frame);
            core.table.release(slot);
            one_frame
        });
        match one_frame {
            // It may have received a part.
            Some(false) => _ = core.table.end(id, Outcome::of(Status::RailLost), now),
            Some(true) if core.table.retract(id) == Some(true) => self.link_notify(peer, id, false, now),
            _ => {}
        }
    }
}
