//! A worker's rails and lanes: the worker's state for each, and each lane's progress with its
//! handshake, draining or failure.

use super::core::Core;
use super::later::{Parked, Relayed};
use crate::fabric::LinkState;
use crate::ids::{LaneId, PeerId, RailIndex};
use crate::lane::reopening::Reopening;
use crate::lane::Rest;
use crate::memory::RemoteMemory;
use crate::peer::Peer;
use crate::rail::{Half, HasLane, Lane, Lanes, Rail};
use crate::revocation::{Scope, Then};
use crate::session::Plan;
use crate::trace::{self, Event};
use crate::transfer::shape::View;
use crate::transfer::stripes::Stripes;
use crate::transfer::table::Left;
use crate::wire::seal::Root;
use std::collections::{HashSet, VecDeque};
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// Ranges of imported device memory for which rails prepare at once.
const REACHED: usize = 64;
/// A dropped lane waits this long for its last frame to be sent.
const LAST_FRAME_NS: u64 = 100_000_000;

/// A rail, and the worker's state for it.
pub struct RailWork {
    pub rail: Rail,
    pub lanes: Lanes<LaneWork>,
    pub health: Health,
    pub reopening: Reopening,
    pub turn: usize,
}

/// A worker's rails, by their indexes in the endpoint.
pub struct Rails {
    all: Vec<Option<RailWork>>,
    /// The indexes in use, one bit each.
    set: u64,
}

/// The lanes that take part in a transfer.
pub(crate) enum Which {
    All,
    One(LaneId),
    /// Only this one, which notifies the peer right behind the last post.
    Speculative(LaneId),
}

/// A lane, and the worker's state for it.
pub struct LaneWork {
    pub lane: Lane,
    pub peer: Arc<Peer>,
    /// The address that it leads to.
    pub theirs: Vec<u8>,
    pub stripes: Stripes,
    pub handshake: Handshake,
    /// Our nonce for the session of the peer's frames, and the nonce of the request that it
    /// answers.
    pub own: u128,
    pub accepted: Option<u128>,
    /// Frames about halves of its credits that remain to be sent.
    pub owed: Vec<(Half, Owed)>,
}

/// A frame about one half of a lane's credits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Owed {
    Ask,
    /// A grant of this many credits.
    Grant(u32),
}

/// What a lane's handshake proves, and by what.
pub struct Handshake {
    pub nonce: u128,
    /// The secret that authenticates it.
    pub root: Option<Root>,
    /// What the peer's owner knows of it: "" is nothing yet.
    pub waits_for: &'static str,
}

/// The state of the peer's end of a lane that is being reset.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PeerEnd {
    Open,
    Reset,
    /// It is reset, and the peer waits for our reset.
    Asks,
}

/// The interval between looks at links and connections that nothing uses.
const LOOK_NS: u64 = 60_000_000;

/// The health of a rail, derived from its lanes.
#[derive(Default)]
pub struct Health {
    /// Since when no lane is up, although others serve the peer.
    pub since: Option<u64>,
    pub errno: i32,
    /// RAIL_DOWN was published.
    pub said: bool,
    /// When the last look was, and the link then.
    looked_ns: u64,
    pub link: LinkState,
}

impl Health {
    /// Whether it is time for a look.
    pub fn looks(&mut self, now: u64) -> bool {
        let due = now.saturating_sub(self.looked_ns) >= LOOK_NS;
        if due {
            self.looked_ns = now;
        }
        due
    }

    /// Whether a change must be reported soon.
    pub fn is_waiting(&self) -> bool {
        self.since.is_some() != self.said
    }
}

impl Rails {
    pub fn new(rails: Vec<Rail>) -> Rails {
        let set = rails.iter().fold(0, |set, rail| set | rail.index.bit());
        let mut all = Vec::new();
        for rail in rails {
            let (place, lanes) = (rail.index.place(), Lanes::new(rail.index));
            all.resize_with(all.len().max(place + 1), || None);
            all[place] = Some(RailWork {
                rail,
                lanes,
                health: Health::default(),
                reopening: Reopening::default(),
                turn: 0,
            });
        }
        Rails { all, set }
    }

    /// The indexes of all rails.
    pub fn each(&self) -> impl Iterator<Item = RailIndex> + use<> {
        RailIndex::each_in(self.set)
    }

    /// The next rail.
    pub fn after(&self, rail: Option<RailIndex>) -> Option<RailIndex> {
        self.each().find(|next| Some(*next) > rail)
    }

    pub fn get_mut(&mut self, rail: RailIndex) -> Option<&mut RailWork> {
        self.all.get_mut(rail.place())?.as_mut()
    }

    /// A lane, if it exists.
    pub fn lane(&self, id: LaneId) -> Option<&LaneWork> {
        self.all.get(id.rail.place())?.as_ref()?.lanes.get(id.slot)
    }

    /// The lane, mutable, with its rail.
    pub fn lane_mut(&mut self, id: LaneId) -> Option<(&mut Rail, &mut LaneWork)> {
        let work = self.get_mut(id.rail)?;
        Some((&mut work.rail, work.lanes.get_mut(id.slot)?))
    }

    pub fn iter(&self) -> impl Iterator<Item = &RailWork> {
        self.all.iter().flatten()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut RailWork> {
        self.all.iter_mut().flatten()
    }

    pub fn lanes(&self) -> impl Iterator<Item = &LaneWork> {
        self.iter().flat_map(|work| work.lanes.iter())
    }

    pub fn lanes_mut(&mut self) -> impl Iterator<Item = &mut LaneWork> {
        self.iter_mut().flat_map(|work| work.lanes.iter_mut())
    }
}

impl Index<RailIndex> for Rails {
    type Output = RailWork;

    fn index(&self, rail: RailIndex) -> &RailWork {
        self.all[rail.place()].as_ref().expect("a rail of this worker's")
    }
}

impl IndexMut<RailIndex> for Rails {
    fn index_mut(&mut self, rail: RailIndex) -> &mut RailWork {
        self.all[rail.place()].as_mut().expect("a rail of this worker's")
    }
}

impl HasLane for LaneWork {
    fn lane(&self) -> &Lane {
        &self.lane
    }

    fn lane_mut(&mut self) -> &mut Lane {
        &mut self.lane
    }
}

impl LaneWork {
    /// The rails that the lane joins.
    pub fn plan(&self) -> Plan {
        Plan { rail: self.lane.id.rail, remote_rail: self.lane.remote_rail }
    }

    /// The lane's stripes, if the lane can take a transfer to that peer.
    pub fn stripes_for(&mut self, peer: PeerId, view: View) -> Option<&mut Stripes> {
        let (takes, plan) = (self.lane.life.takes_transfers() && self.lane.peer == peer, self.plan());
        (takes && self.peer.is_served_by(plan.rail) && view.reaches(plan.rail, plan.remote_rail))
            .then_some(&mut self.stripes)
    }

    /// Whether a dropped lane still sends its last frame (of closing, say): removing the route
    /// would also drop that frame.
    pub(crate) fn is_saying(&self, now: u64) -> bool {
        let recent =
            self.lane.life.draining_since().is_some_and(|since| now.saturating_sub(since) < LAST_FRAME_NS);
        recent && !self.lane.life.is_closed() && self.lane.inflight_frames > 0
    }

    /// Whether the lane can post, and has nothing queued.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        let life = &self.lane.life;
        let takes = life.takes_transfers() && !life.is_held() && self.peer.is_served_by(self.lane.id.rail);
        takes && !self.has_work()
    }

    #[inline]
    pub fn has_work(&self) -> bool {
        self.stripes.has_work()
    }

    fn pump(
        &mut self,
        rail: &mut Rail,
        core: &Core,
        left: &mut Vec<Left>,
        now: u64,
    ) -> std::result::Result<bool, i32> {
        let held = self.lane.life.is_held();
        Ok(!held && self.stripes.pump(rail, &mut self.lane, now, &core.table, left)?)
    }

    /// Whether nothing of a failed lane moves on either side: its stripes may move to other lanes.
    pub(crate) fn is_reset(&self) -> bool {
        self.lane.life.is_reset(self.lane.inflight_ops)
    }
}

/// A worker's data path: its rails, the lanes on them, and the transfers on those. It knows no links and
/// no sessions: a peer's owner learns what became of a lane by a `LaneEvent`.
pub struct DataPath {
    pub index: usize,
    pub core: Arc<Core>,
    pub rails: Rails,
    /// Lanes of each peer, by slot.
    pub lanes_of: Vec<Vec<LaneId>>,
    /// Stripes that have left.
    pub left: Vec<Left>,
    /// The last lane's number.
    pub(crate) epochs: u64,
    /// Stripes of lanes that are reset still have to move to others.
    pub(crate) finishing: bool,
    /// Stripes of lanes that were removed, freed in steps.
    pub(crate) removed: Vec<Stripes>,
    /// Peers whose lanes are to come to rest, and why.
    pub(crate) quiescing: Vec<(PeerId, Then)>,
    /// Lanes have failed posts.
    posts_fail: bool,
    /// Ends of lanes that are reset, but for what devices copy: peer, place, and the peer's epoch.
    pub(crate) touched: Vec<(Arc<Peer>, Plan, u64)>,
    /// Lanes that owe frames about credits.
    pub(crate) owing: Vec<LaneId>,
    /// Transfers whose peers have no lane now.
    pub(crate) parked: VecDeque<Parked>,
    /// Frames of peers that another worker owns.
    pub(crate) relayed: VecDeque<Relayed>,
    pub(crate) turn: usize,
}

impl DataPath {
    pub fn new(index: usize, core: Arc<Core>, mut rails: Vec<Rail>) -> DataPath {
        rails.iter_mut().for_each(|rail| rail.use_grants(core.grants.clone()));
        DataPath {
            index,
            core,
            rails: Rails::new(rails),
            lanes_of: Vec::new(),
            left: Vec::new(),
            epochs: 0,
            finishing: false,
            removed: Vec::new(),
            quiescing: Vec::new(),
            posts_fail: false,
            touched: Vec::new(),
            owing: Vec::new(),
            parked: VecDeque::new(),
            relayed: VecDeque::new(),
            turn: 0,
        }
    }

    /// Lets each lane with stripes post, beginning with another one each time; lanes with
    /// operations of the latency class come first.
    pub(crate) fn pump(&mut self, rail: RailIndex, now: u64) -> bool {
        let work = &mut self.rails[rail];
        if !work.lanes.iter().any(LaneWork::has_work) {
            work.rail.flush(&mut work.lanes, now);
            return false;
        }
        let lanes = work.lanes.places();
        let mut busy = false;
        let mut failed = None;
        work.turn = work.turn.wrapping_add(1);
        let urgent = work.lanes.iter().any(|lane| lane.stripes.is_urgent());
        for pass in 0..lanes * (1 + urgent as usize) {
            let Some(lane) = work.lanes.at((work.turn + pass) % lanes) else { continue };
            // With urgent operations there are two rounds: the first for lanes that have some.
            let of_round = !urgent || lane.stripes.is_urgent() == (pass < lanes);
            if !of_round || !lane.has_work() || !lane.lane.life.is_open() {
                continue;
            }
            let before = trace::is_on()
                .then(|| (self.core.clock.now(), lane.lane.inflight_ops, lane.lane.inflight_bytes));
            match lane.pump(&mut work.rail, &self.core, &mut self.left, now) {
                Ok(posted) => {
                    busy |= posted;
                    if let (Some((from, ops, bytes)), true) = (before, posted) {
                        trace::add(|| Event::Posted {
                            rail: rail.get(),
                            worker: self.index as u16,
                            posts: lane.lane.inflight_ops.saturating_sub(ops),
                            bytes: lane.lane.inflight_bytes.saturating_sub(bytes),
                            from,
                            to: self.core.clock.now(),
                        });
                    }
                }
                Err(errno) => failed = Some((lane.lane.id, errno)),
            }
        }
        work.rail.flush(&mut work.lanes, now);
        if let Some((lane, errno)) = failed {
            self.post_failed(lane, errno);
        }
        busy
    }

    /// A post of a lane failed at once.
    pub(crate) fn post_failed(&mut self, lane: LaneId, errno: i32) {
        if let Some((_, work)) = self.rails.lane_mut(lane) {
            work.lane.life.note_failed_post(errno);
            self.posts_fail = true;
        }
    }

    /// Fails the lanes whose posts failed in this pass; true if there are some.
    pub(crate) fn fail_lanes(&mut self, now: u64) -> bool {
        if !std::mem::take(&mut self.posts_fail) {
            return false;
        }
        let failed = |work: &mut LaneWork| Some((work.lane.id, work.lane.life.take_failed_post()?));
        let failed: Vec<(LaneId, i32)> = self.rails.lanes_mut().filter_map(failed).collect();
        failed.into_iter().for_each(|(lane, errno)| self.lane_failed(lane, errno, 0, now));
        true
    }

    /// Takes the next step of what ends in steps, until the time is up (`over`). True: there is more.
    pub(crate) fn go_on_ending(&mut self, over: impl Fn() -> bool) -> bool {
        if self.finishing {
            self.finish_resets(&over);
        }
        let (table, left) = (&self.core.table, &mut self.left);
        for lane in self.rails.lanes_mut().filter(|lane| lane.stripes.is_stopping()) {
            if !lane.stripes.go_on_stopping(table, left, &over) {
                break;
            }
        }
        self.free_removed(over);
        self.has_remains() || self.rails.lanes().any(|lane| lane.stripes.is_stopping())
    }

    pub(crate) fn has_remains(&self) -> bool {
        self.finishing || !self.removed.is_empty()
    }

    /// Frees stripes of removed lanes.
    pub(crate) fn free_removed(&mut self, over: impl Fn() -> bool) {
        while let Some(stripes) = self.removed.last_mut() {
            if !stripes.abandon(&self.core.table, &mut self.left, &over) {
                return;
            }
            self.removed.pop();
        }
    }

    // Lanes come to rest.

    /// Holds each of a peer's lanes until it is at rest, or stops them.
    pub fn quiesce_lanes(&mut self, peer: PeerId, then: Then) {
        for lane in self.rails.lanes_mut().filter(|lane| lane.peer.id == peer) {
            match (lane.lane.life.quiesce(rest_for(then)), then) {
                (false, _) => {}
                (true, Then::Close) => lane.stripes.stop(&self.core.table, &mut self.left),
                // Lanes that are being reset, too.
                (true, _) => lane.stripes.forget_keys(),
            }
        }
        self.quiescing.push((peer, then));
    }

    /// Prepares the rails for transfers of imported device memory.
    pub fn reach(&mut self, remote: &RemoteMemory) {
        for lane in self.lanes_of.get(remote.peer.place()).into_iter().flatten() {
            let Some((rail, work)) = self.rails.lane_mut(*lane) else { continue };
            let through = work.lane.remote_rail;
            if work.peer.id == remote.peer && remote.knows(through) {
                let ranges = 0..remote.range_count().min(REACHED);
                let remotes: Vec<_> = ranges.map(|range| remote.locate(through, range, 0)).collect();
                rail.reach(&work.lane, &remotes);
            }
        }
    }

    /// Checks which lanes have become idle.
    pub(crate) fn advance_quiescing(&mut self) {
        if !self.touched.is_empty() {
            self.confirm_resets();
        }
        if self.quiescing.is_empty() {
            return;
        }
        let mut held = HashSet::new();
        for LaneWork { lane, .. } in self.rails.lanes_mut().filter(|work| work.lane.life.is_held()) {
            let (peer, ops) = (lane.peer, lane.inflight_ops);
            held.extend(lane.life.held_for(ops).map(|rest| (peer, rest)));
        }
        let waits = |(peer, then): &(PeerId, Then)| held.contains(&(*peer, rest_for(*then)));
        let (waiting, quiet): (_, Vec<_>) = std::mem::take(&mut self.quiescing).into_iter().partition(waits);
        self.quiescing = waiting;
        for (peer, then) in quiet {
            self.core.quiesced(&Scope::Lanes(peer), then);
        }
    }
}

/// What lanes come to rest for.
fn rest_for(then: Then) -> Rest {
    match then {
        Then::Answer(number) => Rest::Answer(number),
        _ => Rest::Close,
    }
}
