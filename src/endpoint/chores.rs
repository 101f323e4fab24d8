//! Work that callers wait for, and the answers.

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

/// An answer for a waiting caller.
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

    /// Waits for the answer, for a limited time.
    pub fn wait(&self, at_most: Duration) -> Option<T> {
        let mut place = self.place.0.lock();
        if place.is_none() {
            self.place.1.wait_for(&mut place, at_most);
        }
        place.take()
    }
}

/// Queued work that callers wait for, in order.
#[derive(Default)]
pub(super) struct Chores {
    pub queue: VecDeque<Chore>,
    /// Replaced keys that could not be closed yet.
    pub unclosed: Vec<Arc<Replacing>>,
    /// When a pass last worked on them, while there are some.
    pub last_ns: Option<u64>,
}

pub(super) enum Chore {
    Register(Registering),
    Deregister {
        memory: Arc<Memory>,
        reply: Reply<Result<()>>,
    },
    /// Close the replaced keys.
    CloseKeys(Arc<Replacing>),
}

/// The receiver of registrations.
pub enum Registered {
    Caller(Reply<Result<RailRegistrations>>),
    /// They replace other registrations of a memory.
    Keys(Arc<Replacing>),
}

/// How to register a memory's ranges.
#[derive(Clone)]
pub struct Wanted {
    pub ranges: Arc<[HostRange]>,
    pub access: Access,
    /// The rails that should register the memory, one bit each; 0: all.
    pub rails: u64,
    /// For device memory: the device, and whether other processes can open the memory.
    pub device: Option<(Device, bool)>,
}

pub(super) struct Registering {
    pub wanted: Wanted,
    pub reply: Registered,
    /// The rail that is being registered with, and its registrations so far.
    pub at: Option<RailIndex>,
    pub done: Vec<Registration>,
    /// Registrations of earlier rails.
    pub all: Vec<(RailIndex, Vec<Registration>)>,
    pub back: Back,
}

/// The registrations to undo.
pub(super) enum Back {
    Nothing,
    /// Those of this rail, which cannot register all of the memory.
    Rail,
    /// Those of all rails: the memory cannot be registered.
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

    /// The rails are closed, and with them all registrations.
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
