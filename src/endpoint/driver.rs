//! Who makes a worker's passes: its thread, or, while that sleeps, a caller who submits or waits.
//!
//! The worker lies behind a lock. Its thread holds the lock as long as it is awake; callers only try it, and hold it
//! for a moment. Before the thread sleeps, and whenever a caller leaves, the rails are armed (what comes makes their
//! descriptors readable) and the mailbox wakes the thread for whatever is pushed: so nothing waits for a caller to
//! come back. While a caller is there, nobody needs to be woken: what comes is seen by the caller's passes, or wakes
//! the thread when the caller leaves.
//!
//! The thread never blocks on the lock. It may find a caller there that lost its processor: until that one leaves, the
//! thread sleeps in short turns, between which it does what needs no rail.

use super::mailbox::Mailbox;
use crate::sync::atomic::{fence, AtomicBool, Ordering};
use crate::sync::{Guard, Mutex};
use std::time::Duration;

/// A turn of the thread's sleep while a caller holds the worker.
const TURN: Duration = Duration::from_millis(1);

pub struct Driver<W> {
    worker: Mutex<W>,
    /// The thread sleeps until a caller leaves.
    wanted: AtomicBool,
    /// A caller waits who would make the passes.
    attended: AtomicBool,
}

impl<W> Driver<W> {
    pub fn new(worker: W) -> Driver<W> {
        Driver {
            worker: Mutex::new(worker),
            wanted: AtomicBool::new(false),
            attended: AtomicBool::new(false),
        }
    }

    /// The worker, unless another thread has it. A caller beside a worker's thread ends with `leave` or `sleep`.
    #[inline]
    pub fn enter<C>(&self, mailbox: &Mailbox<C>) -> Option<Guard<'_, W>> {
        let worker = self.worker.try_lock()?;
        mailbox.attend();
        Some(worker)
    }

    /// With manual progress, where nobody is beside the callers.
    pub fn try_lock(&self) -> Option<Guard<'_, W>> {
        self.worker.try_lock()
    }

    /// As `try_lock`, for a thread that may wait for the others.
    pub fn lock(&self) -> Guard<'_, W> {
        self.worker.lock()
    }

    /// A caller leaves. `rest` arms the rails, and says whether the thread may sleep on.
    #[inline]
    pub fn leave<C>(
        &self,
        mut worker: Guard<'_, W>,
        mailbox: &Mailbox<C>,
        rest: impl FnOnce(&mut W) -> bool,
    ) {
        let sleeps = mailbox.unattend() && rest(&mut worker);
        drop(worker);
        // Pairs with the fence in `take`: either the thread gets the lock, or this sees that it waits.
        fence(Ordering::SeqCst);
        if !sleeps || self.wanted.load(Ordering::Relaxed) {
            mailbox.ring();
        }
    }

    /// The thread takes the worker back; `meanwhile` is done after each turn of its sleep.
    pub fn take<C>(&self, mailbox: &Mailbox<C>, mut meanwhile: impl FnMut()) -> Guard<'_, W> {
        if let Some(worker) = self.enter(mailbox) {
            return worker;
        }
        loop {
            self.wanted.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let worker = self.enter(mailbox);
            if worker.is_none() {
                mailbox.wait(&mut Vec::new(), TURN);
            }
            self.wanted.store(false, Ordering::Relaxed);
            if let Some(worker) = worker {
                return worker;
            }
            meanwhile();
        }
    }

    /// The thread sleeps without the worker, whose rails are armed, until something is pushed, one of the descriptors
    /// is readable, or the time has passed, which is asked for last of all.
    pub fn sleep<C>(
        &self,
        mut worker: Guard<'_, W>,
        mailbox: &Mailbox<C>,
        fds: &mut Vec<libc::pollfd>,
        at_most: impl FnOnce(&mut W) -> Duration,
    ) {
        let at_most = mailbox.unattend().then(|| at_most(&mut worker));
        drop(worker);
        if let Some(at_most) = at_most {
            mailbox.wait(fds, at_most);
        }
    }

    /// The one caller who waits to make passes; `None`: there is one already.
    pub fn attend(&self) -> Option<Attending<'_>> {
        let first = !self.attended.load(Ordering::Relaxed) && !self.attended.swap(true, Ordering::Relaxed);
        first.then_some(Attending(&self.attended))
    }

    /// The thread need not stay awake for what a caller waits for.
    #[inline]
    pub fn is_attended(&self) -> bool {
        self.attended.load(Ordering::Relaxed)
    }
}

/// A caller waits, and makes passes when it can.
pub struct Attending<'a>(&'a AtomicBool);

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
