//! A worker: the thread (or the polling caller) that alone touches its rails.
//!
//! One pass takes what others pushed, reaps and pumps each rail, lets links send, and checks the
//! clock now and then. `handshake` has the life of lanes, `talk` that of links.

use super::chores::Chores;
use super::config::Idle;
use super::core::{Core, STOPPING};
use super::driver::Driver;
use super::inbox::Command;
use super::lanes::{LaneWork, Rails, Which};
use super::later::{
    Awaiting, FenceWaits, Leaving, Owed, Parked, QuiescingLanes, Relayed, Remains, ENDS_NS, HOPS,
};
use super::pause::Pause;
use crate::event;
use crate::fabric::{GONE, REFUSED};
use crate::ids::{Hold, LaneId, OpId, PeerId, RailIndex};
use crate::pass::Passes;
use crate::peer::link::Link;
use crate::peer::Replacing;
use crate::rail::{Done, LaneState, Rail, Work};
use crate::status::{Result, Status};
use crate::sync::Guard;
use crate::trace::{self, Event};
use crate::transfer::claims::Run;
use crate::transfer::counters::Unsettled;
use crate::transfer::ending::Sweep;
use crate::transfer::operation::Move;
use crate::transfer::stripe::NewStripe;
use crate::transfer::table::{Left, Table};
use crate::transfer::{Direction, Outcome};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// Between looks at deadlines, handshakes and the like.
const TICK_NS: u64 = 1_000_000;
/// An idle worker looks at its rails after this long.
const REST_NS: u64 = 100_000_000;
/// Without work for this long, a worker waits for its rails.
const AWAKE_NS: u64 = 300_000;
/// For this long after a caller made passes, the thread looks at every tick: a caller who comes again need not wake it.
const DRIVEN_NS: u64 = 100_000_000;

/// Further passes of a caller for what it leaves behind.
const LAST_PASSES: usize = 4;

/// A rail's descriptor that rings so often for nothing may ring for want of descriptors: then
/// nobody listens to it for a while.
const ALARMS: u32 = 64;
const DEAF: Duration = Duration::from_millis(2);

/// Operations that arrivals end in one pass, about.
pub(super) const ENDS: usize = 512;
/// A pass begins no more transfers, and obeys commands for no longer: deadlines pass meanwhile.
const STARTS: usize = 1024;
const DISPATCH_NS: u64 = 1_000_000;
/// As often a completion queue is read that is to be empty once; more is of later.
const REAPS: usize = 256;

pub struct Worker {
    pub index: usize,
    pub core: Arc<Core>,
    pub rails: Rails,
    /// Peers that this worker owns, by their place.
    pub links: Vec<Option<Box<Link>>>,
    /// Lanes of each peer, by its place.
    pub lanes_of: Vec<Vec<LaneId>>,
    /// Places of links that have something to send.
    pub dirty: Vec<usize>,
    /// Registering and deregistering.
    pub(super) chores: Chores,
    /// Keys that were replaced, and could not be closed yet.
    pub(super) unclosed: Vec<Arc<Replacing>>,
    done: Vec<Done>,
    pub left: Vec<Left>,
    /// Counters whose values were reached, and operations that this pass has ended for that.
    pub(super) unsettled: Unsettled,
    pub(super) counted: usize,
    /// What there is to say of credits.
    pub owed_credits: Vec<Owed>,
    /// Peers that have ended here, whose PEER_DOWN waits for what was under way.
    pub leaving: VecDeque<Leaving>,
    pub(super) remains: Remains,
    /// Transfers of remote memories that are gone.
    pub(super) sweeps: VecDeque<Sweep>,
    /// Lanes that failed, and whose stripes go to others.
    pub(super) resetting: VecDeque<LaneWork>,
    pub fence_waits: Vec<FenceWaits>,
    pub quiescing_lanes: Vec<QuiescingLanes>,
    /// Transfers that wait for words.
    pub awaiting: Vec<Awaiting>,
    /// Transfers whose peers have no lane now.
    pub parked: VecDeque<Parked>,
    /// Numbers lanes.
    pub epochs: u64,
    /// Frames of peers that another worker owns.
    pub relayed: VecDeque<Relayed>,
    scratch: Vec<u8>,
    fds: Vec<libc::pollfd>,
    /// Commands that were taken in, and not obeyed yet.
    pub(super) commands: VecDeque<Command>,
    /// Rests in a row that ended by a rail's descriptor, and there was nothing to do.
    alarms: u32,
    /// Until when its thread sleeps at most.
    sleeps_until: u64,
    /// When a caller made passes last.
    pub(super) driven_ns: u64,
    /// A pass panicked.
    pub(super) broken: bool,
    passes: Passes,
    next_tick: u64,
    /// When stalls are reported next.
    pub stalls_reported_ns: u64,
    pub(super) turn: usize,
    pub shutting_down: bool,
    /// There was no time for all that is to end.
    ends_more: bool,
    pub(super) closed: bool,
}

/// Whether the rails' descriptors say what comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Armed {
    Yes,
    /// There is something to do.
    Busy,
    /// A rail with lanes has no descriptor.
    Waitless,
}

impl Worker {
    /// Every peer knows that the endpoint ends: the rails may close.
    pub fn may_close(&self) -> bool {
        self.shutting_down && self.core.phase.load(Ordering::Acquire) == STOPPING
    }

    pub fn new(index: usize, core: Arc<Core>, mut rails: Vec<Rail>) -> Worker {
        rails.iter_mut().for_each(|rail| rail.use_grants(core.grants.clone()));
        Worker {
            index,
            core,
            rails: Rails::new(rails),
            links: Vec::new(),
            lanes_of: Vec::new(),
            dirty: Vec::new(),
            chores: Chores::default(),
            unclosed: Vec::new(),
            done: Vec::new(),
            left: Vec::new(),
            unsettled: Unsettled::default(),
            counted: 0,
            leaving: VecDeque::new(),
            remains: Default::default(),
            sweeps: VecDeque::new(),
            resetting: VecDeque::new(),
            fence_waits: Vec::new(),
            quiescing_lanes: Vec::new(),
            awaiting: Vec::new(),
            parked: Default::default(),
            epochs: 0,
            owed_credits: Vec::new(),
            relayed: Default::default(),
            scratch: Vec::new(),
            fds: Vec::new(),
            commands: VecDeque::new(),
            alarms: 0,
            sleeps_until: 0,
            driven_ns: 0,
            broken: false,
            passes: Passes::default(),
            next_tick: 0,
            stalls_reported_ns: 0,
            turn: 0,
            shutting_down: false,
            ends_more: false,
            closed: false,
        }
    }

    /// One pass; true if there was anything to do.
    pub fn step(&mut self) -> bool {
        if self.is_closed() {
            return false;
        }
        // What a panic leaves behind goes no further.
        self.broken = true;
        let busy = self.pass();
        self.broken = false;
        busy
    }

    fn pass(&mut self) -> bool {
        let now = self.core.clock.now();
        self.passes.begin(now, &self.core.longest);
        let ticks = now >= self.next_tick;
        if ticks {
            self.passes.tick(now); // Before the work: that counts.
        }
        let mut busy = self.look_at_watches(now);
        busy |= self.take_inbox(now);
        for rail in self.rails.each() {
            busy |= self.reap(rail, now);
            busy |= self.pump(rail, now);
        }
        busy |= self.go_on_counting(now, ENDS, || false);
        self.counted = 0;
        busy |= self.settle(now);
        self.send_credits(now);
        self.advance_fences(now);
        self.advance_quiescing();
        busy |= self.talk(now);
        busy |= self.do_chores(now);
        if ticks {
            self.next_tick = now + TICK_NS;
            self.core.clock.wake_at(self.next_tick);
            self.tick(now);
        } else if self.ends_more {
            self.end_more();
        }
        busy |= self.ends_more;
        if busy {
            self.alarms = 0;
        }
        busy
    }

    /// The life of a worker thread.
    pub fn run(driver: &Driver<Worker>, core: &Core, index: usize) {
        let inbox = &core.inboxes[index];
        let (mut worker, pause) = (driver.take(inbox, || ()), Pause::default());
        let mut idle_since = None;
        worker.passes.read(core.clock.now());
        while !worker.may_close() && !worker.broken {
            if worker.step() {
                idle_since = None;
                continue;
            }
            let now = core.clock.now();
            let idle = now - *idle_since.get_or_insert(now);
            match core.config.idle {
                Idle::Spin => std::hint::spin_loop(),
                Idle::Adaptive if idle < AWAKE_NS && !driver.is_attended() => {
                    pause.between(&core.clock, now, idle)
                }
                _ => worker = Worker::sleep(driver, worker, now),
            }
        }
        // Another worker may have given its last word to be carried.
        worker.step();
    }

    /// Its thread sleeps until the rails or the inbox have something to do.
    fn sleep<'a>(driver: &'a Driver<Worker>, mut worker: Guard<'a, Worker>, now: u64) -> Guard<'a, Worker> {
        match worker.arm() {
            Armed::Yes => {}
            Armed::Busy => return worker,
            Armed::Waitless => {
                std::thread::yield_now();
                return worker;
            }
        }
        let (core, index) = (worker.core.clone(), worker.index);
        worker.passes.end(now, &core.longest);
        let mut fds = std::mem::take(&mut worker.fds);
        let deaf = worker.is_deaf();
        if deaf {
            fds.clear();
        }
        driver.sleep(worker, &core.inboxes[index], &mut fds, |worker| {
            let patience = worker.patience(now).min(if deaf { DEAF } else { Duration::MAX });
            let at_most = worker.until_a_deadline(now, patience);
            worker.sleeps_until = now.saturating_add(at_most.as_nanos() as u64);
            at_most
        });
        // Deadlines hold although a caller may have lost its processor with the worker in its hands.
        let late = || core.table.expire(core.clock.now(), || false);
        let mut worker = driver.take(&core.inboxes[index], || {
            if index == 0 {
                late()
            }
        });
        if !deaf {
            worker.alarms = if worker.woken(&fds) { worker.alarms + 1 } else { 0 };
        }
        worker.passes.read(core.clock.now());
        worker.fds = fds;
        worker
    }

    /// With manual progress: waits for the rails and the inbox.
    pub fn rest(&mut self, now: u64, at_most: Duration) {
        if self.is_closed() {
            return;
        }
        match self.arm() {
            Armed::Yes => {}
            Armed::Busy => return,
            Armed::Waitless => return std::thread::yield_now(),
        }
        let mut fds = std::mem::take(&mut self.fds);
        let patience = self.patience(now).min(at_most);
        self.core.inboxes[self.index].sleep(&mut fds, || self.until_a_deadline(now, patience));
        self.woken(&fds);
        self.fds = fds;
    }

    /// Has the rails make their descriptors readable for whatever comes. A rail that has no descriptor and has
    /// lanes must be driven all the time: a peer may be writing through it.
    fn arm(&mut self) -> Armed {
        if !self.core.config.sleeps() {
            return Armed::Waitless;
        }
        self.fds.clear();
        let (mut waitless, mut busy) = (false, false);
        for work in self.rails.iter_mut() {
            match work.rail.wait_fd() {
                Some((fd, ready)) => {
                    busy |= !ready;
                    self.fds.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
                }
                None => waitless |= !work.lanes.is_empty(),
            }
            work.rail.publish_changes(&work.lanes);
        }
        match (waitless, busy) {
            (true, _) => Armed::Waitless,
            (_, true) => Armed::Busy,
            _ => Armed::Yes,
        }
    }

    /// Rails look at what their descriptors have become readable for.
    fn woken(&mut self, fds: &[libc::pollfd]) -> bool {
        // The last is the inbox's.
        let rung = fds.iter().rev().skip(1).any(|fd| fd.revents != 0);
        if rung {
            self.rails.iter_mut().for_each(|work| work.rail.woken());
        }
        rung
    }

    /// A caller leaves: whether the thread may sleep on.
    pub(super) fn settles(&mut self) -> bool {
        let more = |worker: &Worker| worker.ends_more || worker.rails.lanes().any(LaneWork::has_work);
        if (0..LAST_PASSES).all(|_| more(self) && self.step_for_caller()) || self.is_closed() {
            return false;
        }
        if self.arm() != Armed::Yes {
            return false;
        }
        let now = self.core.clock.now();
        self.driven_ns = now;
        // The thread looks again in time for whatever comes with the next tick.
        let soon = self.sleeps_until <= now + TICK_NS + TICK_NS / 8;
        let rests = !self.is_behind() && !self.is_pressed();
        rests
            && (soon
                || now + self.until_a_deadline(now, self.patience(now)).as_nanos() as u64
                    >= self.sleeps_until)
    }

    /// A connection that cannot be accepted without a descriptor would wake us on and on.
    fn is_deaf(&mut self) -> bool {
        let deaf = self.alarms >= ALARMS && event::is_out_of_descriptors();
        if self.alarms >= ALARMS && !deaf {
            self.alarms = 0;
        }
        deaf
    }

    /// A caller's pass: its thread's time is not the worker's.
    pub(super) fn step_for_caller(&mut self) -> bool {
        self.passes = Passes::default();
        self.step()
    }

    /// The first worker looks after all deadlines.
    fn until_a_deadline(&self, now: u64, patience: Duration) -> Duration {
        if self.index != 0 {
            return patience;
        }
        let until = now.saturating_add(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
        let until = self.core.table.may_sleep_until(until).min(self.core.grants.next_deadline());
        patience.min(Duration::from_nanos(until.saturating_sub(now)))
    }

    /// Something waits for the next pass.
    fn is_pressed(&self) -> bool {
        !self.awaiting.is_empty() || !self.commands.is_empty() || !self.chores.is_empty()
    }

    /// Something waits for room, or for others of its kind.
    fn is_behind(&self) -> bool {
        !self.dirty.is_empty()
            || !self.owed_credits.is_empty()
            || !self.relayed.is_empty()
            || !self.unsettled.is_empty()
            || self.core.counters.has_unsettled()
    }

    /// How long this worker may sleep: until something could be due.
    fn patience(&self, now: u64) -> Duration {
        if self.is_pressed() {
            Duration::ZERO
        } else if self.is_behind() {
            Duration::from_micros(50)
        } else if self.rails.lanes().any(LaneWork::is_waiting)
            || self.links.iter().flatten().any(|link| link.is_waiting())
            || !self.leaving.is_empty()
            || self.has_remains()
            || !self.quiescing_lanes.is_empty()
            || !self.fence_waits.is_empty()
            || !self.unclosed.is_empty()
            || self.rails.iter().any(|work| work.health.is_waiting())
            || now.saturating_sub(self.driven_ns) < DRIVEN_NS
            || self.core.table.active() > 0
            || self.shutting_down
        {
            Duration::from_nanos(self.next_tick.saturating_sub(now).max(1000))
        } else {
            let due = self.links.iter().flatten().filter_map(|link| link.session.poll_timeout()).min();
            let due = due.unwrap_or(u64::MAX).max(self.next_tick);
            Duration::from_nanos(due.saturating_sub(now).clamp(1000, REST_NS))
        }
    }

    fn take_inbox(&mut self, now: u64) -> bool {
        if !self.has_mail() {
            return false;
        }
        let busy = self.start_submitted();
        let mut new = self.core.inboxes[self.index].take_commands();
        self.commands.append(&mut new);
        self.dispatch_some(now) || busy
    }

    /// Something was pushed that has not begun.
    pub(super) fn has_mail(&self) -> bool {
        !self.commands.is_empty() || !self.core.inboxes[self.index].is_empty()
    }

    /// As `has_mail`, of what may take long.
    pub(super) fn has_commands(&self) -> bool {
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

    /// With manual progress: posts what was just submitted, ahead of the next pass.
    pub fn kick(&mut self, now: u64) {
        if !self.is_closed() && self.take_inbox(now) {
            for rail in self.rails.each() {
                self.pump(rail, now);
            }
            self.settle(now);
            self.talk(now);
        }
    }

    /// The lane that may carry all of a transfer and, right behind it, without waiting for its
    /// arrival, its notification. The frame must not take another path: control frames take the
    /// first lane that is up.
    fn speculative_lane(&self, hold: &Hold) -> Option<LaneId> {
        let transfer = self.core.held(hold)?;
        // The target may take a grant back between the two.
        if !transfer.is_announced() || transfer.direction != Direction::Write || transfer.grant.is_some() {
            return None;
        }
        // If the transfer failed, it would be unknown whether the notification had arrived.
        if transfer.notifies_failure {
            return None;
        }
        let peer = transfer.view().peer();
        let lanes = self.lanes_of.get(peer.place())?;
        // With others, another one may have to do again what this one lost.
        let alone = |link: &Link| link.lanes_up().len() == 1 && !link.session.is_away();
        let alone = self.link_here(peer).is_some_and(alone);
        if !alone {
            return None;
        }
        let first = lanes.first().copied().filter(|lane| self.control_lane(peer) == Some(*lane))?;
        self.rails[first.rail].rail.limits().failures_reset.then_some(first)
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.closed || self.broken
    }

    /// Begins a transfer's stripes on the peer's lanes here.
    fn start(&mut self, hold: Hold) {
        let speculative = self.speculative_lane(&hold);
        let core = self.core.clone();
        let (slot, body) = core.table.held(&hold);
        let announced = body.transfer().is_some_and(Move::is_announced);
        let speculative = speculative.filter(|_| Table::takes_part(slot, true));
        if speculative.is_none() && announced && !Table::takes_part(slot, false) {
            return self.left.push(core.table.leave(hold)); // One lane does it all.
        }
        let to = speculative.map_or(Which::All, Which::Speculative);
        if let Err((hold, runs)) = self.begin(hold, to, Vec::new()) {
            // The lanes went meanwhile: others may have some.
            self.pass_on(hold, runs, HOPS);
        }
    }

    /// Begins stripes on those of the peer's lanes here that can carry a transfer; the
    /// first one does these runs before anything else. Where there are none, hold and runs are the
    /// caller's again.
    pub(super) fn begin(
        &mut self,
        hold: Hold,
        to: Which,
        mut runs: Vec<Run>,
    ) -> std::result::Result<(), (Hold, Vec<Run>)> {
        let Worker { core, rails, lanes_of, turn, .. } = self;
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
            let Some(of) = lane.and_then(|(_, lane)| lane.stripes_for(peer, view)) else { continue };
            // They are no more than two windows: the first one does them.
            let again = std::mem::take(&mut runs);
            of.begin(hold.another(), (slot, transfer), NewStripe { parts, speculative, again }, &core.table);
            chosen += 1;
        }
        match chosen {
            0 => return Err((hold, runs)),
            1 => {}
            more => core.table.add_stripes(slot, more as u64 - 1),
        }
        hold.give(); // The first stripe's.
        Ok(())
    }

    fn reap(&mut self, rail: RailIndex, now: u64) -> bool {
        let mut done = std::mem::take(&mut self.done);
        let work = &mut self.rails[rail];
        let busy = work.rail.reap(&mut work.lanes, &mut done, now) | !done.is_empty();
        for one in done.drain(..) {
            self.finish(rail, &one, now);
        }
        self.done = done;
        busy
    }

    /// Reaps what the NICs had reported by now.
    pub(super) fn reap_all(&mut self, now: u64) {
        for rail in self.rails.each() {
            for _ in 0..REAPS {
                if !self.reap(rail, now) {
                    break;
                }
            }
        }
    }

    #[inline]
    fn finish(&mut self, rail: RailIndex, done: &Done, now: u64) {
        let id = LaneId { rail, slot: done.lane };
        match done.work {
            Work::Slice | Work::Counted(_) => {
                if let Work::Counted(half) = done.work {
                    self.credits_done(id, half, done.posts);
                }
                let gone = done.errno == GONE;
                let refused = done.errno == REFUSED && self.is_refused(id, done.index);
                if done.errno != 0 && !gone && !refused {
                    // First: what the stripe has counted does not stand.
                    self.lane_failed(id, done.errno, done.provider_errno, now);
                }
                let Some((_, lane)) = self.rails.lane_mut(id) else { return };
                if gone {
                    lane.stripes.end_gone(done.index, &self.core.table, &mut self.left);
                }
                let slices = if done.errno == 0 { done.slices } else { 0 };
                let arrived = (done.posts, slices);
                lane.stripes.reaped(done.index, arrived, &self.core.table, &mut self.left);
            }
            Work::Receive => self.received(rail, done, now),
            Work::Arrival => self.arrived(rail, done, now),
            Work::Probe if done.errno == 0 => self.lane_is_probed(id, now),
            Work::Answer | Work::Nothing => {}
            Work::Frame | Work::Handshake if done.errno == 0 => {}
            _ => self.lane_failed(id, done.errno, done.provider_errno, now),
        }
    }

    fn received(&mut self, rail: RailIndex, done: &Done, now: u64) {
        if done.errno == 0 {
            let mut frame = std::mem::take(&mut self.scratch);
            frame.clear();
            frame.extend_from_slice(self.rails[rail].rail.received(done));
            self.give_back(rail, done);
            self.frame((rail, done.connection), &frame, now);
            self.scratch = frame;
        } else if !self.shutting_down {
            self.give_back(rail, done);
        }
    }

    pub(super) fn give_back(&mut self, rail: RailIndex, done: &Done) {
        if let Err(error) = self.rails[rail].rail.give_back(done) {
            log::warn!("rail {rail}: a receive buffer was not posted again, so it takes fewer frames at once: {error}");
        }
    }

    /// Lets each lane with stripes post, beginning with another one each time; those
    /// with something of the latency class first.
    fn pump(&mut self, rail: RailIndex, now: u64) -> bool {
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
            // With something urgent there are two rounds: the first for lanes that have it.
            let of_round = !urgent || lane.stripes.is_urgent() == (pass < lanes);
            if !of_round || !lane.has_work() || lane.lane.state == LaneState::Down {
                continue;
            }
            let from = trace::is_on().then(|| self.core.clock.now());
            match Self::pump_lane(&self.core, &mut work.rail, lane, now, &mut self.left) {
                Ok(posted) => {
                    busy |= posted;
                    if let (Some(from), true) = (from, posted) {
                        let (rail, to) = (rail.get(), self.core.clock.now());
                        trace::add(|| Event::Posted { rail, from, to });
                    }
                }
                Err(errno) => failed = Some((lane.lane.id, errno)),
            }
        }
        work.rail.flush(&mut work.lanes, now);
        if let Some((lane, errno)) = failed {
            self.lane_failed(lane, errno, 0, now);
        }
        busy
    }

    fn pump_lane(
        core: &Core,
        rail: &mut Rail,
        lane: &mut LaneWork,
        now: u64,
        left: &mut Vec<Left>,
    ) -> std::result::Result<bool, i32> {
        let held = lane.held > 0;
        let posted = !held && lane.stripes.pump(rail, &mut lane.lane, now, &core.table, left)?;
        Ok(posted)
    }

    /// What the stripes that left have to say.
    pub(super) fn settle(&mut self, now: u64) -> bool {
        let busy = !self.left.is_empty();
        while !self.left.is_empty() {
            let mut left = std::mem::take(&mut self.left);
            left.drain(..).for_each(|one| self.settle_one(one, now));
            left.append(&mut self.left);
            self.left = left;
        }
        busy
    }

    fn settle_one(&mut self, left: Left, now: u64) {
        let table = &self.core.table;
        match left {
            Left::Done => {}
            Left::Arrived(id) => {
                table.end(id, Outcome::OK, now);
            }
            Left::Posted(id, peer) => self.link_notify(peer, id, true, now),
            Left::ToNotify(id, peer) => self.notify(id, peer, now),
            Left::Ended(id, status) => {
                table.end(id, Outcome::of(status), now);
            }
            Left::Short(id) => {
                table.end(id, self.core.failure_of(id), now);
            }
        }
    }

    /// A transfer has arrived, and its peer wants to know.
    fn notify(&mut self, id: OpId, peer: PeerId, now: u64) {
        if self.core.table.arrives(id) {
            return;
        }
        match self.core.owner_of(peer) {
            Some(owner) if owner == self.index => self.link_notify(peer, id, false, now),
            _ => self.core.notify(id, peer, now),
        }
    }

    /// In every pass, not only in the next tick: on a busy machine that may be long after.
    fn end_more(&mut self) {
        let core = self.core.clone();
        let began = core.clock.now();
        self.ends_more = self.go_on_ending(began, || core.clock.now().saturating_sub(began) > ENDS_NS);
    }

    fn tick(&mut self, now: u64) {
        // All that may be much work ends by then.
        let core = self.core.clone();
        let began = core.clock.now();
        let over = || core.clock.now().saturating_sub(began) > ENDS_NS;
        if self.index == 0 {
            core.table.expire(now, over);
            core.expire_grants(now);
        }
        self.ends_more = self.go_on_ending(now, over);
        self.advance_handshakes(now);
        self.tend_links(now);
        self.tend_resting(now);
        self.close_again();
        self.redo_refused();
        self.advance_drains();
        self.watch_lanes(now);
        self.release_late(now);
        self.report_health(now);
        let rejected: u64 = self.rails.iter_mut().map(|work| work.rail.park(&mut work.lanes, now)).sum();
        (0..rejected)
            .for_each(|_| self.core.reject("it names no NIC here, or proves no secret to encrypt by"));
        self.reap_closing();
        self.report_stalls(now);
        self.unpark();
    }

    fn dispatch(&mut self, command: Command, now: u64) {
        match command {
            Command::Register { wanted, reply } => self.register(wanted, reply),
            Command::Deregister { memory, reply } => self.deregister(memory, reply),
            Command::AddLanes { peer, plans, reply } => self.add_lanes(&peer, &plans, reply.as_ref(), now),
            Command::DropLanes { peer, keep, ended } => self.drop_lanes(peer, keep, ended),
            Command::DrainLanes { peer } => self.drain_lanes(peer),
            Command::Lane { peer, plan, event } => self.link_lane(peer, plan, event, now),
            Command::ResetLane { peer, plan, epoch, asks } => self.reset_as_asked(peer, plan, epoch, asks),
            Command::Again { hold, runs, hops } => self.again(hold, runs, hops),
            Command::Fence { peer, id } => self.link_fence(peer, id, now),
            Command::QuiesceLanes { peer, number } => self.quiesce_lanes(peer, number),
            Command::LanesQuiet { peer, number } => self.link_lanes_quiet(peer, number),
            Command::Probe { peer } => self.probe_lanes(peer, now),
            Command::Relay { peer, bytes } => self.relay(peer, bytes, now),
            Command::AddLink { peer, session, accepted } => {
                self.add_link(peer, *session, accepted.as_ref(), now)
            }
            Command::HandshakeAccepted { peer, accepted } => {
                self.handed(peer);
                self.link_accepted(peer, &accepted, now)
            }
            Command::EndPeer { peer, outcome } => self.end_peer(peer, outcome, now),
            Command::Evict { peer } => self.evict(peer, now),
            Command::Frame { peer, bytes } => {
                self.handed(peer);
                self.link_frame(peer, &bytes, now)
            }
            Command::Send { peer, id, data, allowance } => self.link_send(peer, id, data, allowance),
            Command::Notify { peer, id } => self.link_notify(peer, id, false, now),
            Command::Failed(failed) => self.link_failed(failed),
            Command::Atomic { peer, hold } => self.link_atomic(peer, hold, now),
            Command::Import { remote } => self.link_import(remote, now),
            Command::GoOn { remote, state, holds } => self.core.let_go_on(&remote, state, holds, now),
            Command::Release { remote } => self.link_release(&remote),
            Command::Revoke { peer, memory } => self.link_revoke(peer, memory),
            Command::RevokeGrant(of) => self.revoke_grant(&of, now),
            Command::CountArrivals(of) => {
                self.reap_all(now);
                self.core.revoked_by_one(&of, now);
            }
            Command::GiveKeys { peer, of, waits } => self.link_give_keys(peer, &of, waits),
            Command::CloseKeys(of) => self.close_keys(of),
            Command::Resume { peer } => self.link_resume(peer, now),
            Command::Connected { peer } => self.link_connected(peer, now),
            Command::Join { peer, hold } => self.link_join(peer, hold, now),
            Command::Disconnect { peer } => self.link_disconnect(peer, now),
            Command::Await(awaiting) => self.awaiting.push(awaiting),
            Command::Shutdown => self.close_all(now),
        }
    }

    /// Closes the rails: nothing touches memory afterwards.
    pub fn close(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        for work in self.rails.iter_mut() {
            if let Err(error) = work.rail.close() {
                outcome = Err(error);
            }
        }
        for work in self.rails.iter_mut() {
            for mut lane in work.lanes.drain() {
                self.remains.stripes.push(std::mem::take(&mut lane.stripes));
            }
        }
        self.drop_resets();
        self.drop_remains(|| false);
        self.closed = true;
        self.chores.close();
        let now = self.core.clock.now();
        self.stop_watching(Outcome::of(Status::Canceled), now);
        self.leave_parked();
        self.close_inbox(now);
        self.settle(now);
        self.finish_all_leaving(now);
        outcome
    }

    /// Answers what others pushed while the rails closed.
    fn close_inbox(&mut self, now: u64) {
        let core = self.core.clone();
        let inbox = &core.inboxes[self.index];
        let mut commands = std::mem::take(&mut self.commands);
        commands.append(&mut inbox.close());
        while let Some(hold) = inbox.next_transfer() {
            core.abandon(hold, Outcome::of(Status::Canceled), now);
        }
        for command in commands {
            match command {
                Command::AddLink { peer, session, accepted } => {
                    self.add_link(peer, *session, accepted.as_ref(), now)
                }
                other => core.end_command(other, now),
            }
        }
        let links: Vec<PeerId> = self.links.iter().flatten().map(|link| link.peer.id).collect();
        for peer in links {
            self.end_peer(peer, Outcome::OK, now);
        }
    }

    /// The worker panicked: everything that it had under way ends.
    pub fn failed(&mut self, message: &str) {
        self.core.poison(message);
        self.core.table.end_all(Outcome::of(Status::Internal), self.core.clock.now());
        self.core.count_closed(self.index);
        self.core.queue.interrupt(false);
    }
}
