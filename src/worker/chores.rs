//! Work that callers wait for, and the answers.

use crate::device::Device;
use crate::fabric::grants::Grant;
use crate::fabric::{Access, HostRange, Registration};
use crate::ids::RailIndex;
use crate::memory::alloc::Areas;
use crate::memory::Memory;
use crate::revocation::Then;
use crate::status::{Error, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The ranges' registrations, by rail.
pub type RailRegistrations = Vec<(RailIndex, Box<[Registration]>)>;
/// Registrations to be closed.
pub type Unwanted = Vec<(RailIndex, Registration)>;

/// What one worker's rails have registered.
#[derive(Default)]
pub struct Registrations {
    pub of_rails: RailRegistrations,
    /// Those that could not be closed, of rails that cannot register all of the memory.
    pub left: Unwanted,
    /// Why it is not all; the last rail's may be incomplete then.
    pub error: Option<Error>,
}

impl Registrations {
    pub fn flat(self) -> Unwanted {
        let each = |(rail, registrations): (RailIndex, Box<[Registration]>)| {
            registrations.into_vec().into_iter().map(move |one| (rail, one))
        };
        self.of_rails.into_iter().flat_map(each).chain(self.left).collect()
    }
}

/// An answer for a waiting caller.
pub struct Reply<T> {
    place: Arc<(Mutex<Answer<T>>, Condvar)>,
}

enum Answer<T> {
    Awaited,
    Here(T),
    /// The caller no longer waits, and has left what the worker may still need.
    Abandoned(Areas),
}

impl<T> Clone for Reply<T> {
    fn clone(&self) -> Self {
        Reply { place: self.place.clone() }
    }
}

impl<T> Reply<T> {
    pub fn new() -> Reply<T> {
        Reply { place: Arc::new((Mutex::new(Answer::Awaited), Condvar::new())) }
    }

    /// `Err`: nobody waits for the answer any longer.
    pub fn put(&self, value: T) -> std::result::Result<(), (T, Areas)> {
        let mut place = self.place.0.lock();
        if let Answer::Abandoned(areas) = &mut *place {
            return Err((value, std::mem::take(areas)));
        }
        *place = Answer::Here(value);
        self.place.1.notify_all();
        Ok(())
    }

    pub fn take(&self) -> Option<T> {
        Self::take_from(&mut self.place.0.lock())
    }

    fn take_from(place: &mut Answer<T>) -> Option<T> {
        match std::mem::replace(place, Answer::Awaited) {
            Answer::Here(value) => Some(value),
            other => {
                *place = other;
                None
            }
        }
    }

    /// Waits for the answer, for a limited time.
    pub fn wait(&self, at_most: Duration) -> Option<T> {
        let mut place = self.place.0.lock();
        if matches!(*place, Answer::Awaited) {
            self.place.1.wait_for(&mut place, at_most);
        }
        Self::take_from(&mut place)
    }

    /// Waits no longer, unless the answer has come. The worker keeps the areas until it is done.
    pub fn abandon(&self, areas: &Areas) -> Option<T> {
        let mut place = self.place.0.lock();
        let answer = Self::take_from(&mut place);
        if answer.is_none() {
            *place = Answer::Abandoned(areas.clone());
        }
        answer
    }
}

/// Queued work that callers wait for, in order.
#[derive(Default)]
pub(crate) struct Chores {
    pub queue: VecDeque<Chore>,
    /// What could not be closed yet.
    pub unclosed: Vec<Chore>,
    /// When a pass last worked on them, while there are some.
    pub last_ns: Option<u64>,
}

pub enum Chore {
    Register(Registering),
    Close(Closing),
    /// These rails, one bit each, have registered everything again: a memory, and its importers, get the keys.
    Refresh(Arc<Memory>, u64),
    /// All memories have: the lanes of this rail return.
    Back(RailIndex),
    /// A grant was dropped, but for what devices copy under it: answer once they have.
    Dropped(Arc<Grant>, Then),
}

/// Registrations to be closed, and where the answer goes.
pub struct Closing {
    pub what: Closable,
    pub reply: Option<Reply<Result<()>>>,
    /// Since when devices copy for peers.
    pub since_ns: Option<u64>,
}

pub enum Closable {
    /// All of a memory's.
    Memory(Arc<Memory>),
    /// The replaced keys of a memory.
    Keys(Arc<Memory>),
    /// Those that no memory has.
    These(Unwanted),
}

/// The receiver of registrations.
pub enum Registered {
    Caller(Reply<Registrations>),
    /// They replace other registrations of a memory.
    Keys(Arc<Memory>),
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

pub struct Registering {
    pub wanted: Wanted,
    pub reply: Registered,
    /// The rail that is being registered with, and its registrations so far.
    pub at: Option<RailIndex>,
    pub done: Vec<Registration>,
    /// The rail cannot register all of the memory: its registrations are being closed.
    pub skips: bool,
    /// What there is so far.
    pub all: Registrations,
}

impl Chore {
    pub fn register(wanted: Wanted, reply: Registered) -> Chore {
        let (at, done, all) = (None, Vec::new(), Registrations::default());
        Chore::Register(Registering { wanted, reply, at, done, skips: false, all })
    }

    /// Closes registrations; `reply` has the outcome.
    pub fn close(what: Closable, reply: &Reply<Result<()>>) -> Chore {
        Chore::Close(Closing { what, reply: Some(reply.clone()), since_ns: None })
    }

    /// The rails are closed, and with them all registrations.
    pub fn refuse(self) {
        match self {
            Chore::Register(Registering { reply: Registered::Caller(reply), .. }) => {
                _ = reply.put(Registrations { error: Some(Error::closed()), ..Registrations::default() })
            }
            Chore::Close(Closing { reply: Some(reply), .. }) => _ = reply.put(Ok(())),
            _ => {}
        }
    }
}

impl Chores {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn close(&mut self) {
        self.queue.drain(..).chain(self.unclosed.drain(..)).for_each(Chore::refuse);
    }
}
