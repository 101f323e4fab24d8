//! Endpoints: opening, closing, and the callers' requests.
//!
//! An `Endpoint` is the caller's object; all of its threads share `core`, and a `worker` drives
//! rails. With manual progress there is one worker and no thread: the polling caller holds the
//! worker briefly.

mod arrivals;
mod assign;
mod atomics;
mod authenticate;
mod bounds;
mod chores;
mod commands;
mod config;
pub mod core;
mod counters;
mod credits;
mod deliver;
mod driver;
mod failover;
mod fence;
pub mod grants;
mod handshake;
#[cfg(test)]
mod hostile_tests;
pub mod inbox;
mod inline;
mod join;
mod keys;
mod lanes;
mod later;
mod links;
pub mod lists;
mod mailbox;
mod messages;
mod metrics;
mod near;
mod open;
mod pause;
pub mod preview;
mod registering;
mod relay;
mod rest;
mod sessions;
mod stalls;
mod submit;
mod talk;
mod unauthenticated;
mod watching;
pub mod worker;

use crate::clock::Clock;
use crate::device::{self, Claim};
use crate::fabric::Registration;
use crate::ids::MemoryId;
use crate::memory::{self, Access, Memory, Range, RemoteMemory};
use crate::peer::{PeerInfo, PeerState};
use crate::room;
use crate::status::{Error, Result, Status};
use crate::topology::Machine;
use crate::trace;
use crate::transfer::completion::Completion;
use crate::transfer::queue::{Arm, Queue};
use crate::transfer::{tally, Outcome};
use crate::wire::address::Address;
use crate::wire::descriptor::Descriptor;
use chores::{RailRegistrations, Registered, Reply, Wanted};
pub use config::{timeout, EndpointConfig, Idle, Settings, LIVENESS_OFF};
use core::{Begin, Core, RailInfo, CLOSING, OPEN};
use driver::Driver;
use inbox::Command;
use parking_lot::Mutex;
use std::mem::MaybeUninit;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use worker::Worker;

/// Importers that do not answer a revocation within this time are disconnected.
const REVOKE: Duration = Duration::from_secs(2);
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

/// A worker, and whether callers may make its passes.
struct Driven {
    driver: Arc<Driver<Worker>>,
    open_to_callers: bool,
}

pub struct Endpoint {
    core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<Result<()>>>>,
    /// Threads that have ended, or will never start.
    ended: Arc<AtomicUsize>,
    /// With manual progress there is one, which the polling thread takes.
    workers: Box<[Driven]>,
    waits: inline::Waits,
    libfabric: String,
    /// The machine when the endpoint was opened.
    machine: Machine,
    /// Queues in addition to the endpoint's own.
    queues: Mutex<Vec<Weak<Queue>>>,
    /// Everything has ended: no rails or workers remain.
    down: AtomicBool,
    closed: AtomicBool,
}

impl Endpoint {
    pub fn address(&self) -> &[u8] {
        &self.core.address
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
        self.core.poison(message);
    }

    pub fn check_poison(&self) -> Result<()> {
        self.core.check_poison()
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
        self.workers.first().filter(|_| self.core.config.manual).map(|of| &*of.driver)
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
                return Err(Error::new(
                    Status::TimedOut,
                    "a worker does not answer: its provider does not return",
                ));
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
        if self.down.load(Ordering::Acquire) && queue.is_empty() {
            return Err(Error::closed());
        }
        Ok(())
    }

    pub fn wait(&self, queue: &Queue, out: &mut [MaybeUninit<Completion>], timeout_ns: u64) -> Result<i32> {
        let begun = self.core.clock.now();
        let until = begun.saturating_add(timeout_ns);
        let (mut idle_since, mut attended) = (0, false);
        loop {
            let busy = self.progress_until(until);
            let taken = queue.poll(out);
            if taken > 0 || out.is_empty() {
                if attended {
                    self.waits.ended(self.core.clock.now() - begun);
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
        self.core.check_open()?;
        let depth = match depth {
            0 => self.core.config.queue_depth,
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

    // Peers.

    pub fn connect(&self, blob: &[u8], timeout_ns: u64, user_data: u64) -> Result<u64> {
        let core = &self.core;
        core.check_open()?;
        let address = Address::decode(blob)?;
        address.common_wire()?;
        let timeout = if timeout_ns == 0 { core.config.connect_timeout_ns } else { timeout_ns };
        if !core.queue.reserve(2) {
            return Err(Error::new(
                Status::Again,
                format!(
                    "the endpoint's queue has no room for the peer's events: poll it (queue_depth is {})",
                    core.queue.capacity()
                ),
            ));
        }
        let made = core.make_peer(address, timeout, Begin::Connecting { user_data });
        let (peer, new) = made.inspect_err(|_| core.queue.unreserve(2))?;
        log::trace!("connect to {peer}: {}", if new { "it is new" } else { "it is known" });
        if !new {
            core.queue.unreserve(1);
            peer.connects.lock().push(user_data);
            core.inboxes[peer.owner].command(Command::Connected { peer: peer.id });
            if peer.state() == PeerState::Down {
                return self.connect_to_ended(&peer, user_data);
            }
        }
        Ok(peer.id.get())
    }

    /// The peer ended during the lookup: unless its end has answered this connect already, nothing
    /// will.
    fn connect_to_ended(&self, peer: &crate::peer::Peer, user_data: u64) -> Result<u64> {
        let mut connects = peer.connects.lock();
        match connects.iter().position(|waiting| *waiting == user_data) {
            Some(at) => {
                connects.remove(at);
                self.core.queue.unreserve(1);
                Err(Error::new(
                    Status::Again,
                    "the previous connection to this peer is just ending: try again",
                ))
            }
            None => Ok(peer.id.get()),
        }
    }

    pub fn disconnect(&self, peer: u64) -> Result<()> {
        self.core.check_open()?;
        let peer = self.core.peers.find(peer)?;
        log::trace!("disconnect from {peer}");
        self.core.inboxes[peer.owner].command(Command::Disconnect { peer: peer.id });
        Ok(())
    }

    pub fn peer_info(&self, peer: u64) -> Result<PeerInfo> {
        Ok(self.core.peers.find(peer)?.info())
    }

    // Memory.

    /// Allocates memory that is ready for transfers, near the rails by default.
    pub fn allocate(&self, len: u64, node: Option<u32>) -> Result<u64> {
        self.core.check_open()?;
        crate::memory::alloc::allocate(len, node.or_else(|| self.node_of_most_rails()))
    }

    /// The NUMA node of more than half of the rails whose node is known.
    fn node_of_most_rails(&self) -> Option<u32> {
        let nodes: Vec<u32> = self.rails().iter().filter_map(|rail| rail.node).collect();
        let on = |node: u32| nodes.iter().filter(|other| **other == node).count();
        nodes.iter().copied().find(|node| on(*node) * 2 > nodes.len())
    }

    /// `rails`: the rails that register it, one bit each; 0: all, or for device memory those near
    /// it. `claim`: the kind of memory that the caller names. Whether the process may write to it
    /// is detected.
    pub fn register(
        &self,
        ranges: Vec<Range>,
        mut access: Access,
        rails: u64,
        claim: Claim,
    ) -> Result<Arc<Memory>> {
        let core = &self.core;
        core.check_open()?;
        if (rails as u128) >> core.rails.len() != 0 {
            return Err(Error::invalid(format!(
                "rails is {rails:#x}, but this endpoint has {}: bit i stands for rail i",
                core.rails.len()
            )));
        }
        // The memory that workers and the descriptor will need, piece by piece.
        let each =
            2 * size_of::<Range>() + core.rails.len() * (size_of::<Registration>() + 2 * size_of::<u64>());
        room::probe::<u8>(ranges.len() * each, "the registrations of the ranges")?;
        let place = device::locate(&ranges, claim)?;
        let rails = match &place {
            Some(place) if rails == 0 => self.rails_near(place.device),
            _ => rails,
        };
        let fixed = if place.is_some() { None } else { crate::range::check(&ranges)? };
        access.local_write = fixed.is_none();
        if let Some(index) = fixed.filter(|_| access.remote_write) {
            let Range { base, len } = ranges[index];
            return Err(Error::invalid(format!(
                "range {index} ({len} bytes at {base:#x}) has pages that this process may not write to, so peers may \
                 not either: register it with WEFT_ACCESS_REMOTE_READ or WEFT_ACCESS_LOCAL"
            )));
        }
        let device = place.as_ref().map(|place| (place.device, place.shareable));
        let wanted = Wanted { ranges: ranges.clone().into(), access, rails, device };
        let mut by_rail: Vec<Box<[Registration]>> = core.rails.iter().map(|_| Box::default()).collect();
        let (registered, outcome) = self.register_on_rails(&wanted);
        registered.into_iter().for_each(|(rail, r)| by_rail[rail.place()] = r);
        let mut failed = outcome.err();
        if place.is_some() && by_rail.iter().all(|registered| registered.is_empty()) {
            failed.get_or_insert_with(|| {
                Error::new(
                    Status::Unsupported,
                    "no rail moves device memory: libfabric has no FI_HMEM for these NICs; open host or tcp, too",
                )
            });
        }
        let (id, secret) = (MemoryId::new(core.random.u64()?), core.random.u64()?);
        let memory = Arc::new(Memory::new((id, secret), ranges, (access, place), by_rail));
        if let Some(wanted) = core.wanted_apart(&memory).filter(|_| failed.is_none()) {
            let (registered, outcome) = self.register_on_rails(&wanted);
            let mut exports = memory.exports.lock();
            exports.add(registered);
            exports.replace();
            failed = outcome.err();
        }
        core.describe(&memory);
        if let Some(error) = failed {
            // Removes the registrations of other workers' rails.
            memory.exports.lock().lose();
            let _ = self.deregister_from_rails(&memory);
            memory.let_go();
            return Err(error);
        }
        core.memories.lock().insert(id, memory.clone());
        log::trace!("memory {id:#x} is registered: {} ranges", memory.ranges().len());
        Ok(memory)
    }

    /// Lets all workers register ranges; returns their rails' registrations, and whether all
    /// succeeded.
    fn register_on_rails(&self, wanted: &Wanted) -> (RailRegistrations, Result<()>) {
        let ask = |inbox: &inbox::Inbox| {
            let reply = Reply::new();
            inbox.command(Command::Register {
                wanted: wanted.clone(),
                reply: Registered::Caller(reply.clone()),
            });
            reply
        };
        let replies: Vec<Reply<Result<RailRegistrations>>> = self.core.inboxes.iter().map(ask).collect();
        let (mut all, mut outcome) = (Vec::new(), Ok(()));
        for reply in &replies {
            match self.answer(reply, UNRESPONSIVE * 30, || 0).and_then(|answer| answer) {
                Ok(registered) => all.extend(registered),
                Err(error) => outcome = Err(error),
            }
        }
        (all, outcome)
    }

    pub fn deregister(&self, memory: &Arc<Memory>) -> Result<()> {
        let core = &self.core;
        if self.down.load(Ordering::Acquire) {
            core.forget_grants();
        }
        if !memory.leave() {
            return Err(memory.in_use());
        }
        log::trace!("memory {:#x} is deregistered: {} importers", memory.id, memory.importers().len());
        for peer in memory.importers() {
            match core.peers.get(peer) {
                Ok(peer) => {
                    core.inboxes[peer.owner].command(Command::Revoke { peer: peer.id, memory: memory.id })
                }
                Err(_) => memory.forget(peer),
            }
        }
        self.await_importers(memory);
        memory.close();
        memory.exports.lock().lose();
        if !self.down.load(Ordering::Acquire) {
            // The rest can be tried again. Once the rails are closed, so are the registrations.
            self.deregister_from_rails(memory).inspect_err(|_| memory.stay_stuck())?;
        }
        core.memories.lock().remove(&memory.id);
        memory.let_go();
        Ok(())
    }

    /// Waits until no peer uses a memory, and disconnects those that do not answer.
    fn await_importers(&self, memory: &Arc<Memory>) {
        let core = &self.core;
        let mut until = core.clock.now() + REVOKE.as_nanos() as u64;
        let mut cut = false;
        while !memory.importers().is_empty() && !self.down.load(Ordering::Acquire) {
            if self.core.config.manual {
                self.progress();
            } else {
                core.wait_importers(memory, Duration::from_millis(5));
            }
            if core.clock.now() < until {
                continue;
            }
            if cut {
                break; // Their lanes are gone: none will answer any longer.
            }
            for peer in memory.importers() {
                if let Ok(peer) = core.peers.get(peer) {
                    let outcome = Outcome::of(Status::PeerLost);
                    core.inboxes[peer.owner].command(Command::EndPeer { peer: peer.id, outcome });
                }
            }
            cut = true;
            until = core.clock.now() + REVOKE.as_nanos() as u64;
        }
    }

    fn deregister_from_rails(&self, memory: &Arc<Memory>) -> Result<()> {
        let ask = |inbox: &inbox::Inbox| {
            let reply = Reply::new();
            inbox.command(Command::Deregister { memory: memory.clone(), reply: reply.clone() });
            reply
        };
        let replies: Vec<Reply<Result<()>>> = self.core.inboxes.iter().map(ask).collect();
        // Waits for all of them, so that a retry finds no worker still busy with the memory.
        let answers: Vec<Result<()>> =
            replies.iter().map(|reply| self.answer(reply, UNRESPONSIVE, || memory.open())?).collect();
        answers.into_iter().collect()
    }

    pub fn import(&self, peer: u64, blob: &[u8]) -> Result<Arc<RemoteMemory>> {
        self.core.check_open()?;
        let peer = self.core.peers.find(peer)?;
        room::probe::<u8>(blob.len().saturating_mul(4), "what the descriptor says")?;
        let descriptor = Descriptor::decode(blob)?;
        if descriptor.incarnation != peer.address.incarnation {
            return Err(Error::new(
                Status::PeerGone,
                format!(
                    "the descriptor is of endpoint {:#x}, but the peer is endpoint {:#x}: it was restarted, or the descriptor is another's",
                    descriptor.incarnation, peer.address.incarnation
                ),
            ));
        }
        let remote = Arc::new(RemoteMemory::new(peer.id, peer.revoked.clone(), descriptor));
        if peer.gone.lock().contains(remote.id) {
            return Err(Error::new(
                Status::MemoryGone,
                "the descriptor is of a memory that its owner has deregistered: get its new descriptor",
            ));
        }
        if remote.rail_count() < peer.address.rails.len() {
            return Err(Error::new(
                Status::Format,
                "the descriptor has fewer rails than its owner's address",
            ));
        }
        log::trace!("memory {:#x} of {peer} is imported", remote.id);
        self.core.inboxes[peer.owner].command(Command::Import { remote: remote.clone() });
        if remote.device.is_some() {
            let reach = |inbox: &inbox::Inbox| inbox.command(Command::Reach { remote: remote.clone() });
            self.core.inboxes.iter().for_each(reach);
        }
        Ok(remote)
    }

    pub fn release(&self, remote: &Arc<RemoteMemory>) -> Result<()> {
        remote.release().map_err(|keepers| match keepers {
            0 => Error::handle("the remote memory was released before"),
            _ => memory::in_use("remote memory", &remote.prepared, keepers),
        })?;
        if let Ok(peer) = self.core.peers.get(remote.peer) {
            self.core.inboxes[peer.owner].command(Command::Release { remote: remote.clone() });
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
        core.phase.compare_exchange(OPEN, CLOSING, Ordering::SeqCst, Ordering::SeqCst).ok();
        let until = core.clock.now().saturating_add(drain_timeout_ns);
        while core.table.active() > 0 && core.clock.now() < until {
            if !self.progress() {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        core.table.end_all(Outcome::of(Status::Canceled), core.clock.now());
        for inbox in core.inboxes.iter() {
            inbox.command(Command::Shutdown);
        }
        let ended = match self.manual() {
            Some(driver) => self.stop_manual(driver),
            None => self.join_threads(),
        };
        if ended.is_ok() {
            // Submissions that raced with the shutdown.
            core.table.end_all(Outcome::of(Status::Canceled), core.clock.now());
            core.memories.lock().values().for_each(|memory| memory.let_go());
            self.down.store(true, Ordering::Release);
            trace::write();
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
    pub fn alive(&self) -> Weak<()> {
        self.core.alive()
    }

    fn stop_manual(&self, worker: &Driver<Worker>) -> Result<()> {
        let until = self.core.clock.now() + UNRESPONSIVE.as_nanos() as u64;
        while !worker.lock().may_close() && self.core.clock.now() < until {
            self.progress();
        }
        worker.lock().close()
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
        let threads: Vec<JoinHandle<Result<()>>> = threads.drain(..).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
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
