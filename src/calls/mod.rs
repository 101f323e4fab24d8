//! Endpoints: opening, closing, and the callers' requests.
//!
//! An `Endpoint` is the caller's object; all of its threads share `core`, and a `worker` drives
//! rails. With manual progress there is one worker and no thread: the polling caller holds the
//! worker briefly.

mod atomics;
#[cfg(test)]
mod closing_tests;
mod counters;
#[cfg(test)]
mod failing_tests;
mod fence;
mod files;
pub mod grants;
#[cfg(feature = "sim")]
mod held;
#[cfg(test)]
mod hostile_tests;
mod inline;
pub mod lane_info;
#[cfg(test)]
mod late_tests;
pub mod lists;
mod memories;
mod metrics;
mod near;
mod offer;
mod open;
mod peers;
pub mod preview;
mod submit;
mod unowned;

use crate::clock::Clock;
use crate::fabric::select::readable;
use crate::failing::step;
use crate::ids::RailIndex;
use crate::peer::PeerState;
use crate::status::{Error, Result, Status};
use crate::topology::Machine;
use crate::transfer::completion::Completion;
use crate::transfer::queue::{Arm, Queue};
use crate::transfer::{tally, Outcome};
use crate::worker::chores::Reply;
pub use crate::worker::config::{EndpointConfig, Idle, Secret, LIVENESS_OFF, MESSAGE_MAX};
use crate::worker::core::{Core, RailInfo};
use crate::worker::driver::Driver;
use crate::worker::inbox::Inbox;
use crate::worker::Worker;
use parking_lot::Mutex;
use std::mem::MaybeUninit;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// With manual progress, a wait spins this long without work before it sleeps.
const MANUAL_SPIN_NS: u64 = 200_000;
/// A worker that takes longer is stuck inside a provider.
const UNRESPONSIVE: Duration = Duration::from_secs(20);

pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}

fn silent() -> Error {
    Error::new(Status::TimedOut, "a worker does not answer: its provider does not return")
}

fn destroyed() -> Error {
    Error::handle("the weft_queue was destroyed during the call")
}

/// A worker, and whether callers may make its passes.
struct Driven {
    driver: Arc<Driver<Worker>>,
    open_to_callers: bool,
}

pub struct Endpoint {
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Threads that have ended, or will never start.
    ended: Arc<AtomicUsize>,
    /// With manual progress there is one, which the polling thread takes.
    workers: Box<[Driven]>,
    waits: inline::Waits,
    libfabric: String,
    /// The machine when the endpoint was opened.
    machine: Machine,
    files: files::Files,
    /// Metrics that others may read.
    offer: Mutex<Option<offer::Offer>>,
    /// Queues in addition to the endpoint's own.
    queues: Mutex<Vec<Weak<Queue>>>,
    /// Everything has ended: no rails or workers remain.
    down: AtomicBool,
    closed: AtomicBool,
    /// Dropped last, for `alive`.
    core: Arc<Core>,
}

impl Endpoint {
    pub fn address(&self) -> &[u8] {
        self.core.address.bytes()
    }

    /// The address of a rail, in readable form.
    pub fn rail_address(&self, index: u32) -> String {
        let rail = self.core.address.rail(RailIndex::at(index as usize));
        rail.map_or_else(String::new, |rail| readable(&rail.address))
    }

    pub fn incarnation(&self) -> u64 {
        self.core.incarnation
    }

    pub fn rails(&self) -> &[RailInfo] {
        &self.core.rails
    }

    pub fn rail(&self, index: u32) -> Result<&RailInfo> {
        let rails = self.rails();
        rails.get(index as usize).ok_or_else(|| {
            let text = format!("rail {index} does not exist: the endpoint has {}", rails.len());
            Error::new(Status::Range, text)
        })
    }

    /// The statistics of its operations.
    pub fn tally(&self) -> tally::Sum {
        self.core.table.tally.sum()
    }

    pub fn malformed(&self) -> u64 {
        self.core.malformed()
    }

    /// The longest pass of a worker, and the longest call into a driver, in nanoseconds.
    pub fn longest_pass(&self) -> (u64, u64) {
        self.core.longest.get()
    }

    pub fn handshakes_rejected(&self) -> u64 {
        self.core.unauthenticated.refused()
    }

    #[cfg(any(test, fuzzing))]
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Whether progress is manual.
    #[cfg(any(test, fuzzing))]
    pub fn worker(&self) -> Option<&Driver<Worker>> {
        self.manual()
    }

    pub fn worker_threads(&self) -> u32 {
        if self.core.config.manual {
            0
        } else {
            self.core.inboxes.len() as u32
        }
    }

    pub fn connected_peers(&self) -> u32 {
        self.core.peers.all().iter().filter(|peer| peer.state() == PeerState::Up).count() as u32
    }

    pub fn libfabric(&self) -> &str {
        &self.libfabric
    }

    pub fn queue(&self) -> &Arc<Queue> {
        &self.core.queue
    }

    pub fn poison(&self, message: &str) {
        self.core.phase.poison(message);
    }

    pub fn check_poison(&self) -> Result<()> {
        self.core.phase.check_poison()
    }

    /// Runs a caller's request. A panic is an internal error: it stops the endpoint.
    pub fn guarded<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check_poison()?;
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(outcome) => outcome,
            Err(panic) => {
                self.poison(panic_text(&*panic));
                Err(self.check_poison().err().unwrap_or_else(Error::closed))
            }
        }
    }

    // Progress.

    /// The one worker, with manual progress.
    fn manual(&self) -> Option<&Driver<Worker>> {
        self.workers.first().filter(|_| self.core.config.manual).map(|shared| &*shared.driver)
    }

    /// With manual progress: one pass, unless another thread makes one. In virtual time it is a
    /// pass of the whole world.
    fn progress(&self) -> bool {
        self.progress_until(u64::MAX)
    }

    /// Like `progress`, but virtual time stops at `horizon`.
    fn progress_until(&self, horizon: u64) -> bool {
        match (self.manual(), &self.core.clock) {
            (Some(_), Clock::Virtual(time)) => time.step(horizon),
            (Some(driver), _) => driver.try_lock().is_some_and(|mut worker| worker.step()),
            (None, _) => false,
        }
    }

    /// Waits for a worker's answer, and drives the worker where no other thread does. `at_most`:
    /// without any change of `left`.
    fn answer<T>(&self, reply: &Reply<T>, at_most: Duration, left: impl Fn() -> u64) -> Result<T> {
        if step("an answer in time") {
            return Err(silent());
        }
        let (mut before, mut since) = (left(), self.core.clock.now());
        loop {
            if self.core.config.manual {
                self.progress();
            }
            let nap = if self.core.config.manual { Duration::ZERO } else { Duration::from_millis(50) };
            if let Some(answer) = if nap.is_zero() { reply.take() } else { reply.wait(nap) } {
                return Ok(answer);
            }
            self.check_poison()?;
            let (left, now) = (left(), self.core.clock.now());
            if left != before {
                (before, since) = (left, now);
            }
            if now.saturating_sub(since) > at_most.as_nanos() as u64 {
                return Err(silent());
            }
        }
    }

    // Completions.

    pub fn poll(&self, queue: &Queue, out: &mut [MaybeUninit<Completion>]) -> Result<i32> {
        if self.core.config.manual {
            self.progress();
        } else if queue.is_empty() {
            self.glance(queue);
        }
        match queue.poll(out) {
            0 if !out.is_empty() => self.check_over(queue).map(|()| 0),
            taken => Ok(taken as i32),
        }
    }

    /// Whether nothing will be published to this queue any longer.
    fn check_over(&self, queue: &Queue) -> Result<()> {
        self.check_poison()?;
        if queue.is_retired() {
            return Err(destroyed());
        }
        if self.down.load(Ordering::Acquire) && queue.is_empty() {
            return Err(Error::closed());
        }
        Ok(())
    }

    pub fn wait(&self, queue: &Queue, out: &mut [MaybeUninit<Completion>], timeout_ns: u64) -> Result<i32> {
        let begun = self.core.clock.now();
        let until = begun.saturating_add(timeout_ns);
        let (mut idle_since, mut attended, mut slept) = (0, false, false);
        loop {
            let busy = self.progress_until(until);
            let taken = queue.poll(out);
            if taken > 0 || out.is_empty() {
                if attended {
                    let now = self.core.clock.now();
                    if let Some(first) = out.first().filter(|_| slept && taken > 0) {
                        // SAFETY: the poll has written it.
                        self.waits.woke(now.saturating_sub(unsafe { first.assume_init_ref() }.done_ns));
                    }
                    self.waits.ended(now - begun);
                }
                return Ok(taken as i32);
            }
            self.check_over(queue)?;
            let now = self.core.clock.now();
            if now >= until {
                self.waits.ended(now - begun);
                return Ok(0);
            }
            let left = Duration::from_nanos(until - now);
            if !self.core.config.manual {
                if !std::mem::replace(&mut attended, true) {
                    self.attend(queue, until);
                } else {
                    queue.sleep(left);
                    slept = true;
                }
            } else if busy || idle_since == 0 || matches!(self.core.clock, Clock::Virtual(_)) {
                idle_since = now;
            } else if now - idle_since > MANUAL_SPIN_NS {
                // Latency comes first, but a wait of milliseconds should not cost a core.
                self.rest(now, left);
            }
        }
    }

    /// With manual progress: sleeps until the rails have work.
    fn rest(&self, now: u64, at_most: Duration) {
        match self.manual().and_then(Driver::try_lock) {
            Some(mut worker) => worker.rest(now, at_most),
            // Another thread drives the rails.
            None => std::thread::sleep(at_most.min(Duration::from_micros(50))),
        }
    }

    fn needs_threads(&self) -> Result<()> {
        if self.core.config.manual {
            return Err(Error::new(
                Status::Unsupported,
                "an event fd needs worker threads: with manual progress nothing happens while the caller sleeps",
            ));
        }
        Ok(())
    }

    pub fn arm(&self, queue: &Queue) -> Result<Arm> {
        self.needs_threads()?;
        self.check_over(queue)?;
        queue.arm()
    }

    pub fn event_fd(&self, queue: &Queue) -> Result<i32> {
        self.needs_threads()?;
        queue.event_fd()
    }

    pub fn create_queue(&self, depth: u32) -> Result<Arc<Queue>> {
        self.core.phase.check_open()?;
        let depth = match depth {
            0 => self.core.config.queue_depth as usize,
            16..=1_048_576 => depth as usize,
            _ => return Err(Error::limit(format!("depth is {depth}: it must be 16 to 1048576, or 0"))),
        };
        let queue = Arc::new(Queue::new(depth)?);
        let mut queues = self.queues.lock();
        if queues.len() == queues.capacity() {
            queues.retain(|queue| queue.strong_count() > 0);
        }
        queues.push(Arc::downgrade(&queue));
        Ok(queue)
    }

    /// No operation can name the queue from here on, and threads that wait for it return.
    pub fn retire_queue(&self, queue: &Queue) -> Result<()> {
        if !queue.retire() {
            return Err(Error::new(
                Status::Busy,
                "the queue has outstanding operations or completions: poll it until they are gone",
            ));
        }
        queue.interrupt(true);
        if self.core.config.manual {
            self.core.inboxes.iter().for_each(Inbox::wake);
        }
        Ok(())
    }

    // Shutdown.

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub fn shutdown(&self, drain_timeout_ns: u64) -> Result<()> {
        let core = &self.core;
        if self.down.load(Ordering::Acquire) {
            return Ok(());
        }
        log::trace!("shutdown: {} operations are outstanding", core.table.active());
        core.phase.begin_closing();
        let until = core.clock.now().saturating_add(drain_timeout_ns);
        while core.table.active() > 0 && core.clock.now() < until {
            if !self.progress() {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        core.table.end_all(Outcome::new(Status::Canceled), core.clock.now());
        core.phase.end();
        core.inboxes.iter().for_each(Inbox::wake);
        let stopped = match self.manual() {
            Some(driver) => self.stop_manual(driver),
            None => self.join_threads(),
        };
        let ended = stopped.and_then(|()| self.close_rails()).and_then(|()| self.settle_files());
        if ended.is_ok() {
            // Submissions that raced with the shutdown.
            core.table.end_all(Outcome::new(Status::Canceled), core.clock.now());
            // A caller's thread may be about to publish the end of an operation.
            core.table.await_publication();
            core.memories.all().iter().for_each(|memory| memory.let_go());
            self.files.end();
            if !self.down.swap(true, Ordering::AcqRel) {
                if let Some(trace) = &core.config.traced {
                    trace.end();
                }
                drop(self.offer.lock().take());
            }
        }
        // Wakes all waiting threads: no further completions come.
        self.each_queue(|queue| queue.interrupt(ended.is_ok()));
        ended
    }

    fn each_queue(&self, body: impl Fn(&Queue)) {
        let queues = self.queues.lock();
        queues.iter().filter_map(Weak::upgrade).for_each(|queue| body(&queue));
        body(&self.core.queue);
    }

    /// Dropped once nothing of the endpoint is open.
    pub fn alive(&self) -> Arc<()> {
        self.core.phase.alive()
    }

    /// Closes the rails, unless their workers' threads have closed them.
    fn close_rails(&self) -> Result<()> {
        let each = self.workers.iter().map(|shared| shared.driver.lock().close());
        let closed = each.fold(Ok(()), Result::and);
        closed.map_err(|error| Error {
            status: Status::TimedOut,
            message: format!(
                "a NIC does not close: keep the endpoint and its memory, they may still be in use, and try again: {}",
                error.message
            )
            .into(),
            ..error
        })
    }

    fn stop_manual(&self, worker: &Driver<Worker>) -> Result<()> {
        let until = self.core.clock.now() + UNRESPONSIVE.as_nanos() as u64;
        while !worker.lock().may_close() && self.core.clock.now() < until {
            self.progress();
        }
        Ok(())
    }

    fn join_threads(&self) -> Result<()> {
        let mut threads = self.threads.lock();
        let until = self.core.clock.now() + UNRESPONSIVE.as_nanos() as u64;
        while self.ended.load(Ordering::Acquire) < threads.len() {
            if self.core.clock.now() > until {
                return Err(Error::new(
                    Status::TimedOut,
                    "a provider does not return: keep the endpoint and its memory, they may still be in use",
                ));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        // What a thread could not close is closed by `close_rails`.
        threads.drain(..).for_each(|thread| _ = thread.join());
        Ok(())
    }

    pub fn close(&self) -> Result<()> {
        let down = self.down.load(Ordering::Acquire);
        if !down && self.core.table.active() > 0 {
            return Err(Error::new(
                Status::Busy,
                format!(
                    "operations are outstanding ({}): poll until they have completed, or call weft_endpoint_shutdown first",
                    self.core.table.active()
                ),
            ));
        }
        if !down {
            self.shutdown(0)?;
        }
        self.closed.store(true, Ordering::Release);
        // A waiting thread may hold the queue a moment longer, but its descriptor closes now.
        self.each_queue(Queue::close_event);
        Ok(())
    }
}
