//! Work that callers do in place of the worker's thread: all of it with manual progress, otherwise
//! what they can while the thread sleeps (`Driver`). A submitting caller posts; a waiting caller
//! makes passes for some time.
//!
//! A transfer that is one small post takes an even shorter path: the caller posts it on an idle
//! lane, and only then makes its operation, so nothing but posting delays its bytes. The caller
//! holds the worker meanwhile, so the peer cannot end, and nothing can come back, before the
//! operation exists. From then on its stripe is like any other.

use super::submit::body;
use super::{Endpoint, Idle};
use crate::clock::Clock;
use crate::fabric::{Rma, Segment};
use crate::ids::{GrantToken, Hold, OpId, PeerId};
use crate::memory::{Memory, RemoteMemory, RemoteState};
use crate::rail::Burst;
use crate::status::Status;
use crate::sync::Guard;
use crate::transfer::geometry::Single;
use crate::transfer::queue::Queue;
use crate::transfer::shape::Entered;
use crate::transfer::stripes::Stripes;
use crate::transfer::{Direction, Outcome, Terms};
use crate::worker::core::Core;
use crate::worker::driver::Driver;
use crate::worker::lanes::DataPath;
use crate::worker::pause::Pause;
use crate::worker::Worker;
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

/// Callers post at most this much themselves: larger transfers are left to the thread, and the
/// caller returns.
const INLINE_BYTES: u64 = 64 << 10;
/// A wait makes passes for at most this long before it sleeps; after waits that ended asleep, for
/// less. A peer that sleeps has to be woken, so the time is longer where that takes longer.
const SPIN_NS: u64 = 50_000;
const SPIN_MOST_NS: u64 = 250_000;
/// What a peer needs that was asleep, in wake-ups: its caches and ours are cold, too.
const WAKES: u64 = 4;
const LEAST_SPIN_NS: u64 = 2_000;
/// Passes made by a poll.
const PASSES: usize = 4;
/// How often a thread checks that it gets as much of the processor as a worker.
const LOOK_NS: u64 = 100_000_000;

/// The history of callers' waits.
pub(crate) struct Waits {
    /// The last submission was small: its wait is short.
    small: AtomicBool,
    spin_ns: AtomicU64,
    /// How long it takes to wake a caller, recently.
    wake_ns: AtomicU64,
    pause: Pause,
}

impl Default for Waits {
    fn default() -> Waits {
        let (spin_ns, wake_ns) = (AtomicU64::new(SPIN_NS), AtomicU64::new(0));
        Waits { small: AtomicBool::new(false), spin_ns, wake_ns, pause: Pause::default() }
    }
}

impl Waits {
    #[inline]
    fn submitted(&self, small: bool) {
        if self.small.load(Ordering::Relaxed) != small {
            self.small.store(small, Ordering::Relaxed);
        }
    }

    /// A wait ended after this time, or goes on asleep.
    pub(crate) fn ended(&self, took_ns: u64) {
        let before = self.spin_ns.load(Ordering::Relaxed);
        let most = (WAKES * self.wake_ns.load(Ordering::Relaxed)).clamp(SPIN_NS, SPIN_MOST_NS);
        // Sleeping and waking take time, too.
        let next = if took_ns < 2 * most { most } else { (before / 2).max(LEAST_SPIN_NS) };
        if next != before {
            self.spin_ns.store(next, Ordering::Relaxed);
        }
    }

    /// A caller that slept had a completion this long after its operation ended.
    pub(crate) fn woke(&self, after_ns: u64) {
        let before = self.wake_ns.load(Ordering::Relaxed);
        let next = if before == 0 { after_ns } else { before - before / 4 + after_ns / 4 };
        self.wake_ns.store(next.min(SPIN_MOST_NS), Ordering::Relaxed);
    }
}

/// A worker that a caller holds.
pub(crate) struct Turn<'a> {
    core: &'a Core,
    driver: &'a Driver<Worker>,
    worker: Option<Guard<'a, Worker>>,
    /// The thread was unwinding when it took the worker.
    panicking: bool,
}

impl Deref for Turn<'_> {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        self.worker.as_ref().expect("it is held until the drop")
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut Worker {
        self.worker.as_mut().expect("it is held until the drop")
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(mut worker) = self.worker.take() else { return };
        if self.core.config.manual {
            return;
        }
        worker.broken |= !self.panicking && std::thread::panicking();
        let inbox = &self.core.inboxes[worker.index];
        self.driver.leave(worker, inbox, Worker::settles);
    }
}

/// Whether this thread gets as much of the processor as a worker's: otherwise the worker would wait
/// for it.
fn has_its_share(now: u64) -> bool {
    thread_local! {
        static LOOKED: Cell<(u64, bool)> = const { Cell::new((0, false)) };
    }
    LOOKED
        .try_with(|looked| {
            let (at, has) = looked.get();
            if at != 0 && now.saturating_sub(at) < LOOK_NS {
                return has;
            }
            // SAFETY: the system calls take no pointers to memory of ours that is invalid.
            let (policy, nice) =
                unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0)) };
            let has = policy != libc::SCHED_IDLE && policy != libc::SCHED_BATCH && nice <= 0;
            looked.set((now.max(1), has));
            has
        })
        .unwrap_or(false)
}

/// The bytes of an inline transfer.
struct Parcel<'a> {
    local: &'a Arc<Memory>,
    remote: &'a Arc<RemoteMemory>,
    single: Single,
    terms: &'a Terms<'a>,
}

impl Endpoint {
    /// The worker, if a caller may use it now; `None`: its thread or another caller has it.
    #[inline]
    fn enter(&self) -> Option<Turn<'_>> {
        let core = &*self.core;
        let at = core.last_worker.load(Ordering::Relaxed);
        let shared = self.workers.get(at)?;
        if !shared.open_to_callers || !matches!(core.clock, Clock::System) {
            return None;
        }
        let worker = shared.driver.enter(&core.inboxes[at])?;
        let panicking = std::thread::panicking();
        Some(Turn { core, driver: &shared.driver, worker: Some(worker), panicking })
    }

    /// Like `enter`, for a transfer of this many bytes. If a caller waits on a descriptor, the
    /// thread posts: it is then awake and handles the completion at once.
    #[inline]
    fn enter_for(&self, queue: &Queue, bytes: u64, now: u64) -> Option<Turn<'_>> {
        if self.core.config.manual {
            return self.enter();
        }
        let small = bytes <= INLINE_BYTES && !queue.signals();
        self.waits.submitted(small);
        if !small || !has_its_share(now) {
            return None;
        }
        self.enter()
    }

    /// Starts an accepted transfer by `start`, and posts what it can in the caller's thread.
    #[inline]
    pub(crate) fn start_inline(&self, queue: &Queue, bytes: u64, now: u64, start: impl FnOnce()) {
        let turn = self.enter_for(queue, bytes, now);
        start();
        // Commands may take long: they are left to the thread.
        if let Some(mut turn) = turn.filter(|turn| self.core.config.manual || !turn.has_commands()) {
            turn.kick(now);
        }
    }

    /// With manual progress the caller is also the worker: unless another thread has the worker,
    /// submitted work starts at once.
    pub(crate) fn kick(&self, now: u64) {
        if self.core.config.manual {
            if let Some(mut turn) = self.enter() {
                turn.kick(now);
            }
        }
    }

    /// Sends a message of this many bytes at once, unless it must wait for its turn.
    pub(crate) fn send_now(
        &self,
        peer: PeerId,
        hold: Hold,
        bytes: u64,
        queue: &Queue,
        now: u64,
    ) -> Result<(), Hold> {
        match self.enter_for(queue, bytes, now) {
            Some(mut turn) => turn.send_now(peer, hold, now),
            None => Err(hold),
        }
    }

    /// Posts a transfer inline, if it is simple enough. `None`: nothing has happened, and the
    /// transfer takes the normal path, which reports any error.
    #[inline]
    pub(crate) fn post_inline(
        &self,
        local: &Arc<Memory>,
        remote: &Arc<RemoteMemory>,
        single: Single,
        terms: &Terms,
    ) -> Option<OpId> {
        let parcel = Parcel { local, remote, single, terms };
        if !parcel.is_plain() {
            return None;
        }
        let now = self.core.clock.now();
        let mut turn = self.enter_for(terms.common.queue, single.len, now)?;
        // A peer ends at the worker that owns its link, so not while this caller holds that worker.
        if turn.is_closed() || turn.has_mail() || turn.links.get(remote.peer).is_none() {
            return None;
        }
        turn.data.post_inline(&parcel, now)
    }

    /// With worker threads: a waiting caller makes passes until the queue has a completion, or its
    /// time has passed.
    pub(crate) fn attend(&self, queue: &Queue, until: u64) {
        let (core, waits) = (&*self.core, &self.waits);
        let Some(shared) = self.workers.get(core.last_worker.load(Ordering::Relaxed)) else { return };
        if !shared.open_to_callers || !waits.small.load(Ordering::Relaxed) {
            return;
        }
        let begun = core.clock.now();
        let Some(_attending) = shared.driver.attend().filter(|_| has_its_share(begun)) else { return };
        let spin_ns = if core.config.idle == Idle::Sleep { 0 } else { waits.spin_ns.load(Ordering::Relaxed) };
        let mut turn = None;
        loop {
            turn = turn.or_else(|| self.enter());
            if turn.as_mut().is_some_and(|turn| turn.has_commands()) {
                break; // Commands may take long: they are left to the thread.
            }
            turn.as_mut().map(|turn| turn.step_for_caller());
            let now = core.clock.now();
            if !queue.is_empty() || now - begun > spin_ns || now >= until {
                break;
            }
            waits.pause.between(&core.clock, now, now - begun);
        }
    }

    /// With worker threads: a poll makes some passes to find completions.
    pub(crate) fn glance(&self, queue: &Queue) {
        if !self.waits.small.load(Ordering::Relaxed)
            || !queue.in_use()
            || !has_its_share(self.core.clock.now())
        {
            return;
        }
        let Some(mut turn) = self.enter() else { return };
        for _ in 0..PASSES {
            turn.step_for_caller();
            if !queue.is_empty() {
                break;
            }
        }
    }
}

impl Parcel<'_> {
    #[inline]
    fn is_plain(&self) -> bool {
        let Parcel { local, remote, terms, .. } = self;
        let on_hosts = local.place().is_none() && remote.device.is_none();
        on_hosts && terms.notify.is_none() && terms.common.marks.are_none()
    }
}

impl DataPath {
    fn post_inline(&mut self, parcel: &Parcel, now: u64) -> Option<OpId> {
        let Parcel { local, remote, terms, .. } = parcel;
        let DataPath { core, rails, lanes_of, turn, .. } = self;
        let lanes = lanes_of.get(remote.peer.place()).filter(|lanes| !lanes.is_empty())?;
        *turn = turn.wrapping_add(1);
        let id = lanes[*turn % lanes.len()];
        let (rail, work) = rails.lane_mut(id).filter(|(_, work)| work.is_free())?;
        let mut burst = rail.burst(&mut work.lane, now)?;
        burst.rouse(); // Waking takes longer than what comes before the post.
        let (lane, there) = (&burst.lane, burst.lane.remote_rail);
        let up = lane.life.is_up() && lane.peer == remote.peer;
        if !up || !local.knows(id.rail) || !remote.knows(there) || !has_room(&mut burst, terms.urgent) {
            return None;
        }
        parcel.send(core, &mut work.stripes, &mut burst)
    }
}

/// Whether an idle lane can post a whole page now.
#[inline]
fn has_room(burst: &mut Burst, urgent: bool) -> bool {
    if urgent {
        burst.kick();
    }
    (urgent || !burst.is_brief()) && burst.room(urgent, false) > 0
}

impl Parcel<'_> {
    #[inline]
    fn send(&self, core: &Core, stripes: &mut Stripes, burst: &mut Burst) -> Option<OpId> {
        let Parcel { local, remote, single, terms } = self;
        let (table, now) = (&core.table, burst.now);
        let entered = Entered::new(local, remote).ok()?;
        let (to, offset) = single.remote;
        let (address, key) = remote.locate(burst.path().1, to as usize, offset);
        if terms.common.grant.is_some() && !burst.limits.grants {
            return None; // What it covers is to be known first.
        }
        let state = remote.state_under(terms.common.grant); // After the key (`locate`).
        if !core.phase.is_open() || state != RemoteState::Ready {
            return None;
        }
        let place = terms.common.queue.hold(1)?;
        let slot =
            table.take().filter(|slot| self.post(stripes, burst, address, key) || table.put_back(slot))?;
        place.keep();
        let body = || {
            body(|| entered.shape(single.geometry()), None, terms, table.to(terms.common.queue), None, now)
        };
        let hold = table.fill(slot, body, 1, core.deadline(now, terms.common.timeout_ns));
        let id = hold.id();
        // SAFETY: the hold keeps the slot alive.
        if let Some(transfer) = unsafe { table.body(slot) }.transfer() {
            stripes.posted(hold, slot, transfer, table, now);
        }
        if !core.phase.is_open() {
            // A thread that closes the endpoint may have missed this operation.
            table.end(id, Outcome::new(Status::Canceled), now);
        }
        Some(id)
    }

    #[inline]
    fn post(&self, stripes: &mut Stripes, burst: &mut Burst, remote: u64, base_key: u64) -> bool {
        let Single { len, local: (from, at), .. } = self.single;
        let from = from as usize;
        let (.., grants) = burst.path();
        let key = self.terms.common.grant.filter(|_| grants).map_or(base_key, GrantToken::key);
        let local = self.local.ranges()[from].base + at;
        let rma = Rma {
            read: self.terms.direction == Direction::Read,
            segments: &[Segment { local, remote, len }],
            descriptor: self.local.local_descriptor(burst.rail, from),
            key,
            immediate: None,
            more: false,
        };
        // SAFETY: both memories are in use, and stay so while the transfer's slot is held; the rail
        // keeps the op until the NIC returns it.
        unsafe { stripes.post_first(burst, rma, len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_priority_thread_makes_no_passes() {
        let look = |lower: fn() -> i32| {
            let thread = std::thread::spawn(move || (lower() == 0, has_its_share(1)));
            thread.join().expect("it does not panic")
        };
        let idle = || {
            let none = libc::sched_param { sched_priority: 0 };
            // SAFETY: the system call only affects this thread.
            unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &none) }
        };
        assert_eq!(look(idle), (true, false));
        // SAFETY: on Linux, 0 names this thread alone.
        assert_eq!(look(|| unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) }), (true, false));
    }
}
