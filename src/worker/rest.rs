//! How a worker's thread, or the caller in its place, waits: spinning for a while, then asleep until its
//! rails or its inbox have something to do, or something is due.

use super::config::Idle;
use super::core::Core;
use super::driver::Driver;
use super::lanes::LaneWork;
use super::pause::Pause;
use super::{Worker, TICK_NS};
use crate::event;
use crate::pass::Passes;
use crate::sync::Guard;
use std::time::Duration;

/// An idle worker checks its rails after this time.
const REST_NS: u64 = 100_000_000;
/// After this time without work, a worker waits for its rails.
const AWAKE_NS: u64 = 300_000;
/// For this long after a caller made passes, the thread checks every tick: a returning caller need
/// not wake it.
const DRIVEN_NS: u64 = 100_000_000;

/// Further passes that a caller makes before it leaves the worker.
const LAST_PASSES: usize = 4;

/// A rail's descriptor that wakes the thread this often without work may do so for lack of
/// descriptors: it is then ignored for some time.
const ALARMS: u32 = 64;
const DEAF: Duration = Duration::from_millis(2);

/// Whether arrivals make the rails' descriptors readable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Armed {
    Yes,
    /// There is work.
    Busy,
    /// A rail with lanes has no descriptor.
    Waitless,
}

impl Worker {
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
        // Another worker may have queued its last frame here for relaying.
        worker.step();
    }

    /// Its thread sleeps until the rails or the inbox have work.
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
        // Deadlines hold although a caller may have lost its processor while it holds the worker.
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

    /// Arms the rails, so that arrivals make their descriptors readable. A rail that has lanes and
    /// no descriptor must be driven all the time: a peer may be writing through it.
    fn arm(&mut self) -> Armed {
        if !self.core.config.sleeps() {
            return Armed::Waitless;
        }
        self.fds.clear();
        let (mut waitless, mut busy) = (false, self.staging.pool.is_busy());
        for work in self.data.rails.iter_mut() {
            match work.rail.wait_fd() {
                Some((fd, ready)) => {
                    busy |= !ready;
                    self.fds.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
                }
                None => waitless |= !work.lanes.is_empty() && !work.reopening.is_away(),
            }
            work.rail.publish_changes(&work.lanes);
        }
        let disks = self.staging.wait_fd();
        self.fds.extend(disks.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }));
        match (waitless, busy) {
            (true, _) => Armed::Waitless,
            (_, true) => Armed::Busy,
            _ => Armed::Yes,
        }
    }

    /// Rails handle what their descriptors have become readable for.
    fn woken(&mut self, fds: &[libc::pollfd]) -> bool {
        // The last descriptor belongs to the inbox.
        let rung = fds.iter().rev().skip(1).any(|fd| fd.revents != 0);
        if rung {
            self.data.rails.iter_mut().for_each(|work| work.rail.woken());
        }
        rung
    }

    /// A caller leaves: whether the thread may go on sleeping.
    pub(crate) fn settles(&mut self) -> bool {
        let more = |worker: &Worker| worker.ends_more || worker.data.rails.lanes().any(LaneWork::has_work);
        if (0..LAST_PASSES).all(|_| more(self) && self.step_for_caller()) || self.is_closed() {
            return false;
        }
        if self.arm() != Armed::Yes {
            return false;
        }
        let now = self.core.clock.now();
        self.driven_ns = now;
        // The thread wakes in time for the work of the next tick.
        let soon = self.sleeps_until <= now + TICK_NS + TICK_NS / 8;
        let rests = !self.is_behind() && !self.is_pressed();
        rests
            && (soon
                || now + self.until_a_deadline(now, self.patience(now)).as_nanos() as u64
                    >= self.sleeps_until)
    }

    /// A connection that cannot be accepted for lack of descriptors would wake the thread without
    /// end.
    fn is_deaf(&mut self) -> bool {
        let deaf = self.alarms >= ALARMS && event::is_out_of_descriptors();
        if self.alarms >= ALARMS && !deaf {
            self.alarms = 0;
        }
        deaf
    }

    /// A caller's pass: its thread's time is not the worker's.
    pub(crate) fn step_for_caller(&mut self) -> bool {
        self.passes = Passes::default();
        self.step()
    }

    /// The first worker checks all deadlines.
    fn until_a_deadline(&self, now: u64, patience: Duration) -> Duration {
        if self.index != 0 {
            return patience;
        }
        let until = now.saturating_add(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
        let until = self.core.table.may_sleep_until(until).min(self.core.grants.next_deadline());
        patience.min(Duration::from_nanos(until.saturating_sub(now)))
    }

    /// Whether work waits for the next pass.
    fn is_pressed(&self) -> bool {
        !self.watching.is_empty() || !self.commands.is_empty() || !self.chores.is_empty()
    }

    /// Whether work waits for space, or for other work of its kind.
    fn is_behind(&self) -> bool {
        !self.links.dirty.is_empty()
            || !self.data.owing.is_empty()
            || !self.data.relayed.is_empty()
            || !self.counting.unsettled.is_empty()
            || self.core.counters.has_unsettled()
    }

    /// How long this worker may sleep: until the next deadline.
    fn patience(&self, now: u64) -> Duration {
        if self.is_pressed() {
            Duration::ZERO
        } else if self.is_behind() {
            Duration::from_micros(50)
        } else if self.data.rails.lanes().any(|work| work.lane.life.is_waiting())
            || self.links.iter().any(|link| link.is_waiting())
            || !self.leaving.is_empty()
            || self.data.has_remains()
            || !self.shedding.is_empty()
            || !self.data.quiescing.is_empty()
            || !self.data.touched.is_empty()
            || !self.links.quiescing.is_empty()
            || !self.chores.unclosed.is_empty()
            || !self.staging.is_idle()
            || self.data.rails.iter().any(|work| work.health.is_waiting() || work.reopening.is_waiting())
            || now.saturating_sub(self.driven_ns) < DRIVEN_NS
            || self.core.table.active() > 0
            || self.shutting_down
        {
            Duration::from_nanos(self.next_tick.saturating_sub(now).max(1000))
        } else {
            let due = self.links.iter().filter_map(|link| link.session.poll_timeout()).min();
            let due = due.unwrap_or(u64::MAX).max(self.next_tick);
            Duration::from_nanos(due.saturating_sub(now).clamp(1000, REST_NS))
        }
    }
}
