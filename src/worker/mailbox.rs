//! The mailbox of a worker: ids of transfers in a bounded queue, everything rarer as commands.

use crate::ids::{Hold, OpId};
use crate::ring::Ring;
use crate::status::Result;
use crate::sync::atomic::{fence, AtomicBool, Ordering};
use crate::sync::{Event, Mutex};
use std::collections::VecDeque;
use std::time::Duration;

pub struct Mailbox<C> {
    transfers: Ring<OpId>,
    commands: Mutex<VecDeque<C>>,
    has_commands: AtomicBool,
    /// Changed under the commands' lock. A submitter pushes a transfer and then reads this.
    closed: AtomicBool,
    sleeping: AtomicBool,
    event: Event,
}

impl<C> Mailbox<C> {
    /// It has space for every possible transfer, so a push cannot fail.
    pub fn new(transfers: usize) -> Result<Mailbox<C>> {
        Ok(Mailbox {
            transfers: Ring::new(transfers, "the operations of a worker")?,
            commands: Mutex::default(),
            has_commands: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            event: Event::new()?,
        })
    }

    pub fn transfer(&self, hold: Hold) -> std::result::Result<(), Hold> {
        self.transfers.push(hold.give()).map_err(Hold::on)?;
        self.wake();
        Ok(())
    }

    /// Returns the command if the worker has ended.
    pub fn try_command(&self, command: C) -> Option<C> {
        let mut commands = self.commands.lock();
        if self.closed.load(Ordering::Relaxed) {
            return Some(command);
        }
        commands.push_back(command);
        drop(commands);
        self.has_commands.store(true, Ordering::Release);
        self.wake();
        None
    }

    /// The number of commands: reading it costs less than locking an empty queue.
    #[inline]
    pub fn transfers(&self) -> usize {
        self.transfers.len()
    }

    #[inline]
    pub fn next_transfer(&self) -> Option<Hold> {
        self.transfers.pop().map(Hold::on)
    }

    /// Takes the queued commands; later ones are refused. Then the worker takes the transfers: either it
    /// sees a concurrent one, or the submitter sees `is_closed`. (The fence of a `pop` that finds nothing
    /// pairs with the one in `wake`.)
    pub fn close(&self) -> VecDeque<C> {
        let mut commands = self.commands.lock();
        self.closed.store(true, Ordering::Relaxed);
        std::mem::take(&mut *commands)
    }

    /// Whether the worker has ended: the thread that pushed a transfer takes what is there.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub fn take_commands(&self) -> VecDeque<C> {
        if !self.has_commands.load(Ordering::Acquire) {
            return VecDeque::new();
        }
        let mut commands = self.commands.lock();
        self.has_commands.store(false, Ordering::Relaxed);
        std::mem::take(&mut *commands)
    }

    /// Without a fence: a concurrent push is seen the next time.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.transfers.is_empty() && !self.has_commands.load(Ordering::Relaxed)
    }

    pub fn wake(&self) {
        // Pairs with the fence in `sleep`: either the worker sees the push, or this thread sees
        // that the worker sleeps.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::AcqRel) {
            self.event.set();
        }
    }

    /// Sleeps until something is pushed, a descriptor is readable, or the time has passed, which is
    /// computed last.
    pub fn sleep(&self, fds: &mut Vec<libc::pollfd>, at_most: impl FnOnce() -> Duration) {
        if self.unattend() {
            self.wait(fds, at_most());
        }
        self.attend();
    }

    /// From here on, a push rings the bell. False if something was pushed before.
    #[inline]
    pub fn unattend(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.is_empty()
    }

    /// From here on, the worker polls again.
    #[inline]
    pub fn attend(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Ends a `wait` of the thread, or its next one.
    pub fn ring(&self) {
        self.event.set();
    }

    /// Waits until the bell rings, a descriptor is readable, or the time has passed.
    pub fn wait(&self, fds: &mut Vec<libc::pollfd>, at_most: Duration) {
        self.event.wait(fds, at_most);
    }

    #[inline]
    pub fn has_commands(&self) -> bool {
        self.has_commands.load(Ordering::Relaxed)
    }
}
