//! A worker's passes are made by its thread, or, while the thread sleeps, by a caller that submits
//! or waits.
//!
//! A lock protects the worker. Its thread holds the lock while it is awake; callers only try it,
//! and hold it briefly. Before the thread sleeps, and whenever a caller leaves, the rails are armed
//! (an arrival makes their descriptors readable) and the mailbox wakes the thread for any push, so
//! no work waits for a caller to come back. While a caller holds the worker, no wake-up is needed:
//! the caller's passes handle arrivals, or the thread is woken when the caller leaves.
//!
//! The thread never blocks on the lock. The lock's holder may be a caller that lost its processor:
//! until it leaves, the thread sleeps for short turns, and between them does the work that needs no
//! rail.

use super::mailbox::Mailbox;
use crate::sync::atomic::{fence, AtomicBool, Ordering};
use crate::sync::{Guard, Mutex};
use std::time::Duration;

/// A turn of the thread's sleep while a caller holds the worker.
const TURN: Duration = Duration::from_millis(1);

pub struct Driver<W> {
    worker: Mutex<W>,
    /// The thread wants the worker, and sleeps until the caller leaves.
    wanted: AtomicBool,
    /// A waiting caller is ready to make the passes.
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

    /// The worker, unless another thread has it. Where the worker has a thread, a caller ends with
    /// `leave` or `sleep`.
    #[inline]
    pub fn enter<C>(&self, mailbox: &Mailbox<C>) -> Option<Guard<'_, W>> {
        let worker = self.worker.try_lock()?;
        mailbox.attend();
        Some(worker)
    }

    /// The worker with manual progress, where only callers make passes.
    pub fn try_lock(&self) -> Option<Guard<'_, W>> {
        self.worker.try_lock()
    }

    /// Like `try_lock`, but waits for other threads.
    pub fn lock(&self) -> Guard<'_, W> {
        self.worker.lock()
    }

    /// A caller leaves. `rest` arms the rails, and returns whether the thread may go on sleeping.
    #[inline]
    pub fn leave<C>(
        &self,
        mut worker: Guard<'_, W>,
        mailbox: &Mailbox<C>,
        rest: impl FnOnce(&mut W) -> bool,
    ) {
        let sleeps = mailbox.unattend() && rest(&mut worker);
        drop(worker);
        // Pairs with the fence in `take`: either the thread gets the lock, or this caller sees that
        // it waits.
        fence(Ordering::SeqCst);
        if !sleeps || self.wanted.load(Ordering::Relaxed) {
            mailbox.ring();
        }
    }

    /// The thread takes the worker back; it calls `meanwhile` after each turn of its sleep.
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

    /// The thread sleeps without the worker, whose rails are armed, until something is pushed, a
    /// descriptor is readable, or the time has passed, which is computed last.
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

    /// The one caller that waits and makes passes; `None`: there is one already.
    pub fn attend(&self) -> Option<Attending<'_>> {
        let first = !self.attended.load(Ordering::Relaxed) && !self.attended.swap(true, Ordering::Relaxed);
        first.then_some(Attending(&self.attended))
    }

    /// Whether the thread may sleep although a caller waits.
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
