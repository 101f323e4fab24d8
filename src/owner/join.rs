//! Lanes on demand: some memory is registered with certain rails only, on either side, and possibly
//! no lane joins two of those. The first such transfer requests a lane, and waits for it.

use crate::ids::{Hold, RailIndex};
use crate::peer::link::Link;
use crate::peer::Peer;
use crate::session::{pair, Plan};
use crate::status::Status;
use crate::transfer::operation::Move;
use crate::transfer::shape::View;
use crate::transfer::Outcome;
use crate::worker::core::{Core, Needs};
use std::sync::atomic::Ordering;

/// The workers with lanes that a transfer can use.
fn workers(core: &Core, lanes: &[Plan], view: View) -> u64 {
    let usable = lanes.iter().filter(|plan| view.reaches(plan.rail, plan.remote_rail));
    usable.fold(0, |workers, plan| workers | 1 << core.rails[plan.rail.place()].worker)
}

impl Core {
    /// The workers with lanes that a transfer can use, one bit each.
    pub(crate) fn workers_for(&self, hold: &Hold, lanes: &[Plan]) -> u64 {
        self.held(hold).map_or(0, |transfer| workers(self, lanes, transfer.view()))
    }

    pub(crate) fn held<'a>(&'a self, hold: &'a Hold) -> Option<&'a Move> {
        self.table.held(hold).1.transfer()
    }

    /// Starts a transfer: at the workers that have lanes for it, or at its peer's owner, which
    /// makes one.
    #[inline]
    pub(crate) fn send_off(&self, hold: Hold, now: u64, ask: impl FnOnce(&Peer, Hold, Needs)) {
        let Some(transfer) = self.held(&hold) else {
            return self.abandon(hold, Outcome::new(Status::Internal), now);
        };
        let (view, slices) = (transfer.view(), transfer.slices);
        let Some(remote) = view.remotes().next() else {
            return self.abandon(hold, Outcome::new(Status::Internal), now);
        };
        if view.is_whole() {
            let workers = remote.workers.load(Ordering::Acquire);
            return self.dispatch(hold, workers, slices, now);
        }
        let Ok(peer) = self.peers.get(remote.peer) else {
            return self.abandon(hold, Outcome::new(Status::PeerLost), now);
        };
        let usable = workers(self, peer.lanes.lock().up(), view);
        match usable {
            0 => ask(&peer, hold, Needs::Lane),
            workers => self.dispatch(hold, workers, slices, now),
        }
    }
}

impl Link {
    /// A transfer needs lanes that do not exist.
    pub(crate) fn join(&mut self, core: &Core, hold: Hold, now: u64) {
        if self.session.is_away() {
            return self.joining.push(hold);
        }
        let plans = core.held(&hold).map_or_else(Vec::new, |transfer| plans(core, self, transfer.view()));
        if plans.is_empty() && core.held(&hold).is_some_and(|transfer| self.stages(transfer)) {
            return self.stage_transfer(core, hold);
        }
        if plans.is_empty() {
            let fabric = self.session.serving().map_or("none", |serving| &serving.fabric);
            log::warn!(
                "{}: a transfer ends with WEFT_ERR_NO_RAILS: fabric {fabric} is in use, and no rail of it knows the \
                 local memory, or none there the remote: see rails in weft_memory_args",
                self.peer
            );
            return core.abandon(hold, Outcome::new(Status::NoRails), now);
        }
        self.joining.push(hold);
        self.session.add_lanes(&plans);
    }

    /// Starts transfers whose lanes are up, and those whose lanes have failed.
    pub(crate) fn go_on_joining(&mut self, core: &Core, now: u64) {
        let resuming = self.session.is_away();
        for hold in std::mem::take(&mut self.joining) {
            let Some(transfer) = core.held(&hold) else {
                core.abandon(hold, Outcome::new(Status::PeerLost), now);
                continue;
            };
            let (view, slices) = (transfer.view(), transfer.slices);
            let usable = workers(core, &self.lanes_up().collect::<Vec<_>>(), view);
            if usable != 0 || !core.table.is_active(hold.id()) {
                core.dispatch(hold, usable, slices, now);
            } else if !resuming && plans(core, self, view).is_empty() && self.stages(transfer) {
                self.stage_transfer(core, hold);
            } else if !resuming && plans(core, self, view).iter().all(|plan| self.session.is_failed(*plan)) {
                core.abandon(hold, Outcome::new(Status::Unreachable), now);
            } else {
                self.joining.push(hold);
            }
        }
    }
}

/// The lanes that should join the rails of both memories.
fn plans(core: &Core, link: &Link, view: View) -> Vec<Plan> {
    let Some(serving) = link.session.serving() else { return Vec::new() };
    let fabric = serving.fabric.as_str();
    let ours = RailIndex::each(core.rails.iter());
    let ours = ours.filter(|(rail, info)| info.fabric == fabric && view.knows(*rail));
    let theirs = RailIndex::each(link.peer.address.rails.iter());
    let theirs = theirs.filter(|(rail, address)| address.fabric == fabric && view.remote_knows(*rail));
    let ours: Vec<_> = ours.map(|(rail, info)| (rail, info.network.as_str())).collect();
    let theirs: Vec<_> = theirs.map(|(rail, address)| (rail, address.network.as_str())).collect();
    pair(&ours, &theirs)
}
