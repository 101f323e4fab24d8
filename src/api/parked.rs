//! The state that all objects of an endpoint share, and dropped objects that could not be released
//! yet.

use super::buffer::Registered;
use super::names::in_rust;
use crate::calls::Endpoint;
use crate::fork;
use crate::memory::RemoteMemory;
use crate::status::{Error, Result};
use crate::transfer::queue::Queue;
use parking_lot::Mutex;
use std::sync::Arc;

/// Dropped by the caller, and perhaps still in use.
pub(super) enum Parked {
    Memory(Registered),
    Remote(Arc<RemoteMemory>),
}

#[derive(Default)]
struct Lot {
    parked: Vec<Parked>,
    /// The endpoint is shut down: nothing uses any memory.
    over: bool,
}

/// An endpoint, for its objects. They may outlive the caller's `Endpoint`, which shuts it down.
pub(super) struct Shared {
    endpoint: Arc<Endpoint>,
    lot: Mutex<Lot>,
    /// Queues that have a dispatcher.
    pub dispatched: Mutex<Vec<Arc<Queue>>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.endpoint().incarnation())
    }
}

impl Shared {
    pub fn new(endpoint: Arc<Endpoint>) -> Arc<Shared> {
        Arc::new(Shared { endpoint, lot: Mutex::default(), dispatched: Mutex::default() })
    }

    /// Runs a request: not in a forked child, and not on an endpoint that a defect stopped.
    pub fn call<T>(&self, body: impl FnOnce(&Arc<Endpoint>) -> Result<T>) -> Result<T> {
        fork::check().map_err(in_rust)?;
        self.endpoint.guarded(|| body(&self.endpoint)).map_err(in_rust)
    }

    /// The endpoint, for calls that only read and cannot fail.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Checks that an object in an argument belongs to this endpoint.
    pub fn check(self: &Arc<Shared>, other: &Arc<Shared>, what: &str) -> Result<()> {
        match Arc::ptr_eq(self, other) {
            true => Ok(()),
            false => Err(Error::handle(format!(
                "the {what} belongs to another endpoint: each endpoint uses those that were made with it"
            ))),
        }
    }

    /// Keeps a dropped object until it can be released. Never blocks. A forked child keeps it for
    /// good: the parent's locks may stay locked there.
    pub fn park(&self, dropped: Parked) {
        if fork::check().is_err() {
            return std::mem::forget(dropped);
        }
        let mut lot = self.lot.lock();
        if lot.over {
            drop(lot);
            return dropped.free();
        }
        lot.parked.push(dropped);
    }

    /// Releases objects that are no longer in use; returns how many still are.
    pub fn reclaim(&self) -> Result<usize> {
        fork::check().map_err(in_rust)?;
        let parked = std::mem::take(&mut self.lot.lock().parked);
        for dropped in parked {
            let given = match &dropped {
                Parked::Memory(memory) => self.call(|ep| ep.deregister(&memory.memory)),
                Parked::Remote(remote) => self.call(|ep| ep.release(remote)),
            };
            match given {
                Ok(()) => dropped.free(),
                // It is in use, or the endpoint is stopped: keep it until the endpoint's shutdown.
                Err(_) => self.park(dropped),
            }
        }
        Ok(self.lot.lock().parked.len())
    }

    /// Holds the lock, as a thread may that does not exist in a forked child.
    #[cfg(test)]
    pub fn hold_lot(&self) -> impl Drop + '_ {
        self.lot.lock()
    }

    pub fn shutdown(&self, drain_ns: u64) -> Result<()> {
        fork::check().map_err(in_rust)?;
        self.endpoint.shutdown(drain_ns)?;
        let parked = {
            let mut lot = self.lot.lock();
            lot.over = true;
            std::mem::take(&mut lot.parked)
        };
        parked.into_iter().for_each(Parked::free);
        Ok(())
    }

    /// Whether nothing uses any memory, as far as this process can know.
    pub fn is_over(&self) -> bool {
        !fork::is_child() && self.lot.lock().over
    }
}

impl Parked {
    /// Nothing uses it any longer.
    fn free(self) {
        if let Parked::Memory(memory) = self {
            // SAFETY: it is deregistered, or its endpoint is shut down.
            drop(unsafe { memory.into_buffers() });
        }
    }
}
