//! Files as memory: the endpoint's thread that carries out their I/O, started by the first of them.

use super::{Endpoint, UNRESPONSIVE};
use crate::device::file::{self, Queue};
use crate::device::Place;
use crate::fabric::ofi::signals::Blocked;
use crate::failing::step;
use crate::memory::{Access, Memory, Range};
use crate::status::{Error, Result, Status};
use parking_lot::Mutex;
use std::os::fd::RawFd;
use std::sync::mpsc::channel;
use std::sync::Arc;
use std::time::Duration;

/// The files of an endpoint: they are in its thread's queue.
pub(super) struct Files {
    /// The endpoint's number in this process.
    endpoint: u32,
    queue: Mutex<Option<Arc<Queue>>>,
}

impl Files {
    pub fn new(endpoint: u32) -> Files {
        Files { endpoint, queue: Mutex::default() }
    }

    fn queue(&self) -> Result<Arc<Queue>> {
        let mut started = self.queue.lock();
        if let Some(queue) = &*started {
            return Ok(queue.clone());
        }
        if step("a thread") {
            return Err(Error::new(Status::System, "starting the thread for files"));
        }
        let (queue, inbox) = Queue::new()?;
        let (ready, is_ready) = channel();
        let name = format!("weft{}-files", self.endpoint);
        // The thread inherits the mask: signals are for the host program's threads.
        let blocked = Blocked::all();
        let named = std::thread::Builder::new().name(name.clone());
        let thread = named.spawn(move || file::serve(inbox, &name, ready));
        drop(blocked);
        let failed = |why: &str| Error::new(Status::System, format!("starting the thread for files: {why}"));
        thread.map_err(|error| failed(&error.to_string()))?;
        is_ready.recv().map_err(|_| failed("it ended"))??;
        Ok(started.insert(Arc::new(queue)).clone())
    }

    /// Flushes that have begun.
    pub fn flushes(&self) -> u64 {
        self.queue.lock().as_ref().map_or(0, |queue| queue.flushes())
    }

    /// From here on no file is registered: the thread ends after the last one.
    pub fn end(&self) {
        self.queue.lock().take();
    }
}

impl Endpoint {
    /// Reserves addresses for ranges of a file. Returns them, and their place.
    pub(super) fn place_file(
        &self,
        fd: RawFd,
        ranges: &[Range],
        access: &Access,
    ) -> Result<(Place, Vec<Range>)> {
        let patience = Duration::from_nanos(self.core.config.timeout_ns);
        let (reserved, places) = file::reserve(fd, ranges, &self.files.queue()?, patience)?;
        let lacks = match (access.remote_write, access.remote_read) {
            (true, _) if !reserved.is_writable() => Some(("write", "REMOTE_READ")),
            (_, true) if !reserved.is_readable() => Some(("read", "REMOTE_WRITE")),
            _ => None,
        };
        if let Some((what, other)) = lacks {
            return Err(Error::invalid(format!(
                "fd {fd} is not open to {what}, so peers may not {what} either: register it with WEFT_ACCESS_{other} or \
                 WEFT_ACCESS_LOCAL"
            )));
        }
        Ok((Place::of_file(reserved, ranges.len()), places))
    }

    /// Waits until no disk has anything of any memory: a flush needs no rail.
    pub(super) fn settle_files(&self) -> Result<()> {
        self.core.memories.all().iter().try_for_each(|memory| self.settle_file(memory))
    }

    /// Waits until no disk has a read, write or flush of a memory.
    pub(super) fn settle_file(&self, memory: &Memory) -> Result<()> {
        let at_most = Duration::from_nanos(self.core.config.timeout_ns).min(UNRESPONSIVE);
        memory.place().map_or(Ok(()), |place| place.settle(at_most))
    }
}
