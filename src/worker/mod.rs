//! A worker: the thread (or the polling caller) that alone touches its rails.
//!
//! One pass takes what others pushed, reaps and pumps each rail, lets links send, and checks the
//! clock now and then. `lanes` has what it posts on and `links` the peers it owns; `commands` is what
//! others ask of it, `rest` how it waits.

pub(crate) mod arrivals;
pub(crate) mod assign;
pub(crate) mod authenticate;
pub(crate) mod chores;
pub(crate) mod commands;
pub(crate) mod config;
pub mod core;
pub(crate) mod credits;
pub(crate) mod driver;
pub(crate) mod environment;
pub mod exported;
pub(crate) mod failover;
pub(crate) mod handshake;
pub mod inbox;
pub(crate) mod lanes;
pub(crate) mod later;
pub(crate) mod mailbox;
pub(crate) mod messages;
pub(crate) mod pause;
pub mod phase;
pub(crate) mod registering;
pub(crate) mod relay;
pub(crate) mod reopening;
pub(crate) mod rest;
pub(crate) mod staging;
pub(crate) mod stalls;
pub(crate) mod unauthenticated;
pub(crate) mod watching;
pub(crate) mod whereabouts;

use crate::fabric::{Cause, Rejected, Resets};
use crate::ids::{LaneId, OpId, PeerId, RailIndex};
use crate::pass::Passes;
use crate::peer::link::Link;
use crate::peer::links::Links;
use crate::rail::{Done, Rail, Work};
use crate::status::{Result, Status};
use crate::transfer::table::Left;
use crate::transfer::Outcome;
use arrivals::Reached;
use chores::Chores;
use core::Core;
use inbox::Command;
use lanes::DataPath;
use later::{Leaving, ENDS_NS};
use staging::Staging;
use std::collections::VecDeque;
use std::sync::Arc;
use watching::Watching;

/// The time between checks of deadlines, handshakes and the like.
pub(crate) const TICK_NS: u64 = 1_000_000;
/// How often a completion queue is read before it counts as empty; later entries are newer.
const REAPS: usize = 256;

pub struct Worker {
    pub index: usize,
    pub core: Arc<Core>,
    pub(crate) data: DataPath,
    /// Peers that this worker owns.
    pub links: Links,
    /// What goes through slots of this worker.
    pub(crate) staging: Staging,
    /// Registering and deregistering.
    pub(crate) chores: Chores,
    pub(crate) counting: Reached,
    pub(crate) watching: Watching,
    /// Ended links whose frames are freed in steps.
    pub(crate) shedding: Vec<Link>,
    done: Vec<Done>,
    /// Ended peers, whose PEER_DOWN waits for operations in flight.
    pub leaving: VecDeque<Leaving>,
    scratch: Vec<u8>,
    pub(crate) fds: Vec<libc::pollfd>,
    /// Commands that were received, and not handled yet.
    pub(crate) commands: VecDeque<Command>,
    /// Sleeps in a row that a rail's descriptor ended although there was no work.
    pub(crate) alarms: u32,
    /// The latest time when its thread wakes up.
    pub(crate) sleeps_until: u64,
    /// When a caller last made passes.
    pub(crate) driven_ns: u64,
    /// A pass panicked.
    pub(crate) broken: bool,
    pub(crate) passes: Passes,
    pub(crate) next_tick: u64,
    /// When stalls are reported next.
    pub stalls_reported_ns: u64,
    pub shutting_down: bool,
    /// More operations remain to be ended than the last pass had time for.
    pub(crate) ends_more: bool,
    pub(crate) closed: bool,
}

impl Worker {
    /// Every peer knows that the endpoint ends: the rails may close.
    pub fn may_close(&self) -> bool {
        self.shutting_down && self.core.phase.is_stopping()
    }

    pub fn new(index: usize, core: Arc<Core>, rails: Vec<Rail>) -> Worker {
        Worker {
            index,
            data: DataPath::new(index, core.clone(), rails),
            links: Links::default(),
            staging: Staging::new(core.grants.copying.clone()),
            chores: Chores::default(),
            counting: Reached::default(),
            watching: Watching::default(),
            shedding: Vec::new(),
            core,
            done: Vec::new(),
            leaving: VecDeque::new(),
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
            shutting_down: false,
            ends_more: false,
            closed: false,
        }
    }

    /// One pass; true if there was work.
    pub fn step(&mut self) -> bool {
        if self.is_closed() {
            return false;
        }
        // The state after a panic is not used further.
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
            self.passes.tick(now); // Before the work, whose time must count.
        }
        let mut busy = self.watching.look(&self.core, now);
        busy |= self.take_inbox(now);
        if !self.shutting_down && self.core.phase.is_ending() {
            self.close_all(now);
            busy = true;
        }
        for rail in self.data.rails.each() {
            busy |= self.reap(rail, now);
            busy |= self.data.pump(rail, now);
        }
        busy |= self.counting.go_on_some(&self.core, now);
        busy |= self.go_on_staging(now);
        busy |= self.settle(now);
        self.data.send_credits();
        self.advance_quiescing(now);
        self.data.advance_quiescing();
        busy |= self.talk(now);
        busy |= self.chores.go_on(&self.core, &mut self.data.rails, now);
        if ticks {
            self.next_tick = now + TICK_NS;
            self.core.clock.wake_at(self.next_tick);
            self.tick(now);
        } else if self.ends_more {
            self.end_more();
        }
        busy |= self.data.fail_lanes(now) | self.ends_more;
        if busy {
            self.alarms = 0;
        }
        busy
    }

    /// With manual progress: posts what was just submitted, ahead of the next pass.
    pub fn kick(&mut self, now: u64) {
        if !self.is_closed() && self.take_inbox(now) {
            for rail in self.data.rails.each() {
                self.data.pump(rail, now);
            }
            self.settle(now);
            self.talk(now);
            self.data.fail_lanes(now);
        }
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed || self.broken
    }

    fn reap(&mut self, rail: RailIndex, now: u64) -> bool {
        let mut done = std::mem::take(&mut self.done);
        let work = &mut self.data.rails[rail];
        let busy = work.rail.reap(&mut work.lanes, &mut done, now) | !done.is_empty();
        for one in done.drain(..) {
            self.finish(rail, &one, now);
        }
        self.done = done;
        busy
    }

    /// Reaps what the NICs have reported so far, or (`own`: false) those that serve peers by themselves: the requests that
    /// our own NICs have served were counted in that pass.
    pub(crate) fn reap_all(&mut self, own: bool, now: u64) {
        for rail in self.data.rails.each() {
            if !own && self.data.rails[rail].rail.limits().grants {
                continue;
            }
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
            Work::Slice | Work::Counted(_) | Work::Slow => {
                if let Work::Counted(half) = done.work {
                    self.data.credits_done(id, half, done.posts);
                }
                let cause = (done.errno != 0).then(|| Cause::from_errno(done.errno));
                let gone = cause.filter(|cause| cause.is_of_memory());
                let refused = cause == Some(Cause::Key) && self.data.is_refused(id, done.index);
                if cause.is_some() && gone.is_none() && !refused {
                    // Fail the lane first: what the stripe has counted is void.
                    self.data.lane_failed(id, done.errno, done.provider_errno, now);
                }
                let Some((_, lane)) = self.data.rails.lane_mut(id) else { return };
                let table = &self.core.table;
                match gone {
                    Some(Cause::Disk) => lane.stripes.end_failed(done, table, &mut self.data.left),
                    Some(gone) => {
                        let ours = gone == Cause::Fault;
                        lane.stripes.end_gone(done.index, ours, table, &mut self.data.left);
                    }
                    None => {}
                }
                let slices = if done.errno == 0 { done.slices } else { 0 };
                let life = &lane.lane.life;
                lane.stripes.reaped(
                    done.index,
                    done.posts,
                    slices,
                    life,
                    &self.core.table,
                    &mut self.data.left,
                );
            }
            Work::Receive => self.received(rail, done, now),
            Work::Arrival => self.arrived(rail, done, now),
            Work::Probe if done.errno == 0 => self.data.lane_is_probed(id, now),
            Work::Answer | Work::Nothing => {}
            Work::Frame | Work::Handshake if done.errno == 0 => {}
            _ => self.data.lane_failed(id, done.errno, done.provider_errno, now),
        }
    }

    fn received(&mut self, rail: RailIndex, done: &Done, now: u64) {
        if done.errno == 0 {
            let mut frame = std::mem::take(&mut self.scratch);
            frame.clear();
            frame.extend_from_slice(self.data.rails[rail].rail.received(done));
            self.give_back(rail, done);
            self.frame((rail, done.connection), &frame, now);
            self.scratch = frame;
        } else if !self.shutting_down {
            let work = &mut self.data.rails[rail];
            if done.errno == libc::ECANCELED && work.rail.limits().resets == Resets::Rail {
                work.reopening.handle_broken();
            }
            self.give_back(rail, done);
        }
    }

    /// A peer's write with an immediate has arrived.
    #[inline]
    fn arrived(&mut self, rail: RailIndex, done: &Done, now: u64) {
        if self.data.rails[rail].rail.limits().immediate_max > 0 {
            self.core.count(done.immediate, 1, now, &mut self.counting.ended);
        } else {
            self.core.reject("an immediate, where peers send none"); // No counter is raised.
        }
        if done.took_receive() {
            self.give_back(rail, done);
        }
    }

    fn give_back(&mut self, rail: RailIndex, done: &Done) {
        if let Err(error) = self.data.rails[rail].rail.give_back(done) {
            log::warn!("rail {rail}: a receive buffer was not posted again, so it takes fewer frames at once: {error}");
        }
    }

    /// Settles the results of the stripes that have left.
    pub(crate) fn settle(&mut self, now: u64) -> bool {
        let busy = !self.data.left.is_empty();
        while !self.data.left.is_empty() {
            let mut left = std::mem::take(&mut self.data.left);
            left.drain(..).for_each(|one| self.settle_one(one, now));
            left.append(&mut self.data.left);
            self.data.left = left;
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
            Left::Ended(id, outcome) => {
                table.end(id, outcome, now);
            }
            Left::Short(id) => {
                table.end(id, self.core.failure_of(id), now);
            }
        }
    }

    /// A transfer has arrived, and its peer is to be notified.
    fn notify(&mut self, id: OpId, peer: PeerId, now: u64) {
        if self.core.table.arrives(id) {
            return;
        }
        match self.core.owner_of(peer) {
            Some(owner) if owner == self.index => self.link_notify(peer, id, false, now),
            _ => self.core.notify(id, peer, now),
        }
    }

    /// Do this in every pass, not only in the next tick: on a busy machine that may come much
    /// later.
    fn end_more(&mut self) {
        let core = self.core.clone();
        let began = core.clock.now();
        self.ends_more = self.go_on_ending(began, || core.clock.now().saturating_sub(began) > ENDS_NS);
    }

    fn tick(&mut self, now: u64) {
        // Deadline: potentially long work stops this long after the pass began.
        let core = self.core.clone();
        let began = core.clock.now();
        let over = || core.clock.now().saturating_sub(began) > ENDS_NS;
        if self.index == 0 {
            core.table.expire(now, over);
            core.expire_grants(now);
        }
        self.ends_more = self.go_on_ending(now, over);
        self.data.advance_handshakes(now);
        self.tend_links(now);
        self.links.iter_mut().for_each(|link| link.tend_quiesces(&core, now));
        self.chores.close_again();
        self.data.redo_refused();
        let unanswered = self.unanswered(now);
        self.data.watch_lanes(unanswered, now);
        self.data.release_late(now);
        self.data.report_health(now);
        let works = self.data.rails.iter_mut();
        let rejected: Vec<Rejected> = works.flat_map(|work| work.rail.park(&mut work.lanes, now)).collect();
        self.data.rails.each().for_each(|rail| self.data.note_moved(rail));
        for one in rejected {
            self.core.reject(&one.to_string());
        }
        self.data.reap_closing();
        self.data.reopen_rails(now);
        if log::log_enabled!(log::Level::Debug) && now >= self.stalls_reported_ns {
            self.stalls_reported_ns = now + stalls::STILL_NS;
            stalls::report(&self.data, &self.links, now);
        }
        self.data.unpark();
        self.staging.rest(now);
    }

    /// Closes the rails: nothing touches memory afterwards.
    pub fn close(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        for work in self.data.rails.iter_mut() {
            if let Err(error) = work.rail.close() {
                outcome = Err(error);
            }
        }
        for work in self.data.rails.iter_mut() {
            for mut lane in work.lanes.drain() {
                self.data.removed.push(std::mem::take(&mut lane.stripes));
            }
        }
        self.data.free_removed(|| false);
        self.staging.pool.settle_all();
        self.closed = true;
        self.core.phase.note_closed(self.index, outcome.is_ok());
        self.chores.close();
        let now = self.core.clock.now();
        self.watching.stop(&self.core, Outcome::new(Status::Canceled), now);
        self.data.leave_parked();
        self.close_inbox(now);
        self.settle(now);
        self.finish_all_leaving(now);
        outcome
    }

    /// Answers commands that other threads pushed while the rails closed.
    fn close_inbox(&mut self, now: u64) {
        let core = self.core.clone();
        let inbox = &core.inboxes[self.index];
        let mut commands = std::mem::take(&mut self.commands);
        commands.append(&mut inbox.close());
        core.drain(inbox, now);
        for command in commands {
            match command {
                Command::AddLink { peer, session, accepted } => {
                    self.add_link(peer, *session, accepted.as_ref(), now)
                }
                other => core.end_command(other, now),
            }
        }
        for peer in self.links.peers() {
            self.end_peer(peer, Outcome::OK, now);
        }
    }

    /// The worker panicked: every operation in flight ends.
    pub fn failed(&mut self, message: &str) {
        self.core.phase.poison(message);
        self.core.table.end_all(Outcome::new(Status::Internal), self.core.clock.now());
        self.core.phase.count_closed(self.index);
        self.core.queue.interrupt(false);
    }
}
