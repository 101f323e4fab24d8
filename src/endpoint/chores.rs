//! Work that callers wait for, and how they get the answers.

use crate::device::Device;
use crate::fabric::{Access, HostRange, Registration};
use crate::ids::RailIndex;
use crate::memory::Memory;
use crate::peer::Replacing;
use crate::status::{Error, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The ranges' registrations, by rail.
pub type RailRegistrations = Vec<(RailIndex, Box<[Registration]>)>;

/// An answer that a caller waits for.
pub struct Reply<T> {
    place: Arc<(Mutex<Option<T>>, Condvar)>,
}

impl<T> Clone for Reply<T> {
    fn clone(&self) -> Self {
        Reply { place: self.place.clone() }
    }
}

impl<T> Reply<T> {
    pub fn new() -> Reply<T> {
        Reply { place: Arc::new((Mutex::new(None), Condvar::new())) }
    }

    pub fn put(&self, value: T) {
        *self.place.0.lock() = Some(value);
        self.place.1.notify_all();
    }

    pub fn take(&self) -> Option<T> {
        self.place.0.lock().take()
    }

    /// Waits a while for the answer.
    pub fn wait(&self, at_most: Duration) -> Option<T> {
        let mut place = self.place.0.lock();
        if place.is_none() {
            self.place.1.wait_for(&mut place, at_most);
        }
        place.take()
    }
}

/// Work that callers wait for, in order.
#[derive(Default)]
pub(super) struct Chores {
    pub queue: VecDeque<Chore>,
    /// Keys that were replaced, and could not be closed yet.
    pub unclosed: Vec<Arc<Replacing>>,
}

pub(super) enum Chore {
    Register(Registering),
    Deregister {
        memory: Arc<Memory>,
        reply: Reply<Result<()>>,
    },
    /// Keys that were replaced are closed.
    CloseKeys(Arc<Replacing>),
}

/// Who waits for registrations.
pub enum Registered {
    Caller(Reply<Result<RailRegistrations>>),
    /// They take the place of others.
    Keys(Arc<Replacing>),
}

/// How the ranges of a memory are to be registered.
#[derive(Clone)]
pub struct Wanted {
    pub ranges: Arc<[HostRange]>,
    pub access: Access,
    /// The rails that should know it, one bit each; 0: all.
    pub rails: u64,
    /// For device memory: the device, and whether other processes can open the memory.
    pub device: Option<(Device, bool)>,
}

pub(super) struct Registering {
    pub wanted: Wanted,
    pub reply: Registered,
    /// The worker's rail whose turn it is, and what that has learnt.
    pub at: Option<RailIndex>,
    pub done: Vec<Registration>,
    /// Registrations of the rails before this one.
    pub all: Vec<(RailIndex, Vec<Registration>)>,
    pub back: Back,
}

/// How much is taken back.
pub(super) enum Back {
    Nothing,
    /// The registrations of this rail, which cannot register all of the memory.
    Rail,
    /// The registrations of all rails: the memory cannot be registered.
    All(Error),
}

impl Registered {
    /// The rails are closed.
    pub fn refuse(self) {
        match self {
            Registered::Caller(reply) => reply.put(Err(Error::closed())),
            Registered::Keys(_) => {}
        }
    }
}

impl Chores {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The rails are closed, and all registrations with them.
    pub fn close(&mut self) {
        for chore in self.queue.drain(..) {
            match chore {
                Chore::Register(of) => of.reply.refuse(),
                Chore::Deregister { reply, .. } => reply.put(Ok(())),
                Chore::CloseKeys(_) => {}
            }
        }
    }
}
