//! Gives transfers to lanes: when they start, when a lane that had a part of one fails, and when a lane
//! comes up while they are under way. What has no lane now waits here.
//!
//! A peer without lanes stays up (`session::resuming`). What its lanes had claimed waits in them until
//! the peer's end is known to be reset, too; then it is parked here, with what is submitted meanwhile.
//! Operations whose deadlines pass end as always. A transfer with a speculative notification
//! (`Worker::speculative_lane`) has arrived if that was delivered; otherwise the peer is notified again
//! after the last byte.

use super::inbox::Command;
use super::lanes::{DataPath, Which};
use super::later::{Parked, HOPS};
use crate::fabric::{Resets, REFUSED};
use crate::ids::{Hold, LaneId};
use crate::peer::{Peer, PeerState};
use crate::session::Plan;
use crate::status::Status;
use crate::transfer::claims::Run;
use crate::transfer::operation::Move;
use crate::transfer::stripe::Stripe;
use crate::transfer::stripes::NewStripe;
use crate::transfer::table::Table;
use crate::transfer::Outcome;
use std::sync::Arc;

/// Parked transfers that one tick checks.
const LOOKS: usize = 1024;

impl DataPath {
    /// Begins stripes on those of the peer's lanes here that can carry a transfer; the first one
    /// starts with these runs. Without such lanes, hold and runs are returned to the caller.
    pub(crate) fn begin(
        &mut self,
        hold: Hold,
        to: Which,
        mut runs: Vec<Run>,
    ) -> std::result::Result<(), (Hold, Vec<Run>)> {
        let DataPath { core, rails, lanes_of, turn, .. } = self;
        let (slot, body) = core.table.held(&hold);
        let Some(transfer) = body.transfer() else { return Err((hold, runs)) };
        let (view, slices) = (transfer.view(), transfer.slices);
        let peer = view.peer();
        let all = lanes_of.get(peer.place()).map_or(&[][..], Vec::as_slice);
        let (lanes, speculative) = match &to {
            Which::All => (all, false),
            Which::One(lane) => (std::slice::from_ref(lane), false),
            Which::Speculative(lane) => (std::slice::from_ref(lane), true),
        };
        let wanted = (lanes.len() as u64).min(slices) as usize;
        let parts = (all.len() as u64).min(slices) * core.inboxes.len() as u64;
        let mut chosen = 0;
        *turn = turn.wrapping_add(1);
        for i in 0..lanes.len() {
            let lane = rails.lane_mut(lanes[(*turn + i) % lanes.len()]).filter(|_| chosen < wanted);
            let lane = lane.filter(|(_, lane)| transfer.grant.is_none() || !lane.peer.is_behind());
            let Some(stripes) = lane.and_then(|(_, lane)| lane.stripes_for(peer, view)) else { continue };
            // They fill two windows at most: the first stripe carries them.
            let again = std::mem::take(&mut runs);
            stripes.begin(
                hold.another(),
                slot,
                transfer,
                NewStripe { parts, speculative, again },
                &core.table,
            );
            chosen += 1;
        }
        match chosen {
            0 => return Err((hold, runs)),
            1 => {}
            more => core.table.add_stripes(slot, more as u64 - 1),
        }
        hold.give(); // The first stripe takes the hold.
        Ok(())
    }

    /// Moves the unfinished part of a stripe to other lanes.
    pub(crate) fn redistribute(&mut self, mut stripe: Stripe, plan: Plan, errno: i32) {
        let core = self.core.clone();
        let (settled, runs, posted) = stripe.surrender();
        let hold = Hold::on(core.table.id_of(stripe.slot())); // The hold of the stripe, which ends here.
        let counted = core.held(&hold).is_some_and(|transfer| transfer.is_counted());
        if counted && posted {
            // Each page or entry may have raised its counter already.
            let rail = Some(plan.rail);
            let outcome = Outcome { provider_errno: errno, rail, ..Outcome::new(Status::RailLost) };
            core.table.end(hold.id(), outcome, core.clock.now());
        }
        if !Table::wanted(stripe.slot()) || runs.is_empty() && !stripe.has_unclaimed() {
            hold.give();
            return self.left.push(core.table.stripe_leaves(stripe.slot(), settled));
        }
        core.table.settle(stripe.slot(), settled);
        if Table::is_notified(stripe.slot()) {
            return self.park(hold, runs); // Its peer may have been notified: it answers first.
        }
        Table::join_all(stripe.slot());
        self.again(hold, runs, HOPS);
    }

    /// Assigns runs of a transfer to lanes, of this worker or another.
    pub fn again(&mut self, hold: Hold, runs: Vec<Run>, hops: u32) {
        let core = self.core.clone();
        let slot = core.table.held_slot(&hold);
        let takes_part = |transfer: &Move| !transfer.is_announced() || Table::takes_part(slot, false);
        if !Table::wanted(slot) || !core.held(&hold).is_some_and(takes_part) {
            return self.left.push(core.table.leave(hold));
        }
        if let Err((hold, runs)) = self.begin(hold, Which::All, runs) {
            self.pass_on(hold, runs, hops);
        }
    }

    /// No lane of this worker can take a transfer; another worker's may. If no worker is known to
    /// have one, or those workers' lanes have just failed, the transfer waits: its peer's owner is
    /// about to handle the failures.
    pub(crate) fn pass_on(&mut self, hold: Hold, runs: Vec<Run>, hops: u32) {
        let core = self.core.clone();
        let wanted = Table::wanted(core.table.held_slot(&hold));
        let peer = core.held(&hold).and_then(|transfer| core.peers.get(transfer.view().peer()).ok());
        let Some(peer) = peer.filter(|_| wanted) else {
            return self.left.push(core.table.leave(hold));
        };
        let working = peer.lanes.lock().working();
        let others = core.workers_for(&hold, &working) & !(1 << self.index);
        let waits = peer.is_behind() && core.held(&hold).is_some_and(|transfer| transfer.grant.is_some());
        if others == 0 || hops == 0 || waits {
            return self.park(hold, runs);
        }
        let next = others.trailing_zeros() as usize;
        let command = Command::Again { hold, runs, hops: hops - 1 };
        if let Some(Command::Again { hold, .. }) = core.inboxes[next].try_command(command) {
            self.left.push(core.table.leave(hold)); // The worker's rails are closed.
        }
    }

    /// The lane of a returning peer is up: transfers in progress use it, too.
    pub(crate) fn rejoin(&mut self, lane: LaneId, peer: &Arc<Peer>) {
        self.note_health(lane.rail, 0);
        if peer.state() != PeerState::Up {
            return;
        }
        let core = self.core.clone();
        core.table.join(peer.id, |hold| {
            let (slot, body) = core.table.held(&hold);
            // Another operation may have the slot by now.
            let is_theirs = body.peer == Some(peer.id) && Table::is_sent_off(slot);
            let takes_part = |transfer: &Move| !transfer.is_announced() || Table::takes_part(slot, false);
            let joins = is_theirs && body.transfer().is_some_and(takes_part);
            let alone =
                if joins { self.begin(hold, Which::One(lane), Vec::new()) } else { Err((hold, vec![])) };
            self.left.extend(alone.err().map(|(hold, _)| core.table.leave(hold)));
        });
    }

    /// Keeps a transfer until its peer has a lane for it.
    pub(crate) fn park(&mut self, hold: Hold, runs: Vec<Run>) {
        let peer = self.core.held(&hold).map(|transfer| transfer.view().peer());
        self.parked.push_back(Parked { hold, peer, runs });
    }

    /// Continues parked transfers that can, and releases those that have ended.
    pub(crate) fn unpark(&mut self) {
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
                || peer.is_behind() && core.held(&one.hold).is_some_and(|transfer| transfer.grant.is_some())
                || core.workers_for(&one.hold, &peer.lanes.lock().working()) == 0;
            if waits {
                self.parked.push_back(one);
            } else {
                self.again(one.hold, one.runs, HOPS);
            }
        }
    }

    /// The rails are closed.
    pub(crate) fn leave_parked(&mut self) {
        let core = self.core.clone();
        let parked = std::mem::take(&mut self.parked);
        self.left.extend(parked.into_iter().map(|one| core.table.leave(one.hold)));
    }

    /// A post of a lane was refused: whether only its stripe is affected, which is posted again
    /// later.
    pub(crate) fn is_refused(&mut self, lane: LaneId, tagged: u32) -> bool {
        let found = self.rails.lane_mut(lane).filter(|(rail, _)| rail.limits().resets != Resets::Lane);
        found.is_some_and(|(_, found)| found.stripes.refuse(tagged))
    }

    /// Posts refused work again, possibly with new keys.
    pub(crate) fn redo_refused(&mut self) {
        let mut refused = Vec::new();
        for work in self.rails.lanes_mut() {
            let plan = work.plan();
            refused
                .extend(work.stripes.take_refused(&self.core.table).into_iter().map(|stripe| (stripe, plan)));
        }
        refused.into_iter().for_each(|(stripe, plan)| self.redistribute(stripe, plan, REFUSED));
    }
}
