//! The names of `src/sync.rs`, from loom.

use crate::status::Result;
use loom::cell::Cell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

pub use loom::cell::UnsafeCell;
pub use loom::sync::atomic;

/// Lets other threads run.
pub struct Backoff;

impl Backoff {
    pub fn new() -> Backoff {
        Backoff
    }

    pub fn snooze(&self) {
        loom::thread::yield_now();
    }
}

/// Each of two threads has its own.
pub const PARTS: usize = 2;

pub fn part() -> usize {
    loom::lazy_static! {
        static ref NEXT: AtomicUsize = AtomicUsize::new(0);
    }
    loom::thread_local! {
        static PART: Cell<Option<usize>> = Cell::new(None);
    }
    PART.with(|part| {
        let chosen = part.get().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed) % PARTS);
        part.set(Some(chosen));
        chosen
    })
}

#[derive(Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

pub struct Guard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> Guard<'_, T> {
        Guard(self.0.lock().ok())
    }

    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.0.try_lock().ok().map(|held| Guard(Some(held)))
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is held")
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("it is held")
    }
}

/// Time does not pass: a thread that is not woken waits for ever, which loom reports.
pub struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub fn new() -> Condvar {
        Condvar(loom::sync::Condvar::new())
    }

    pub fn wait_for<T>(&self, guard: &mut Guard<'_, T>, _: Duration) {
        guard.0 = guard.0.take().and_then(|held| self.0.wait(held).ok());
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

loom::lazy_static! {
    static ref EVENT: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
}

/// A model has one, shared by all its structures.
pub struct Event;

impl Event {
    pub fn new() -> Result<Event> {
        Ok(Event)
    }

    pub fn descriptor(&self) -> i32 {
        0
    }

    pub fn set(&self) {
        *EVENT.0.lock() = true;
        EVENT.1.notify_all();
    }

    pub fn clear(&self) {
        *EVENT.0.lock() = false;
    }

    pub fn wait(&self, _: &mut Vec<libc::pollfd>, at_most: Duration) {
        let mut set = EVENT.0.lock();
        while !*set {
            EVENT.1.wait_for(&mut set, at_most);
        }
        *set = false;
    }
}
