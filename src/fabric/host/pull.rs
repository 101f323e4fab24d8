//! Reads between devices' memory at the initiator. The target checks each request, and passes a
//! handle to open its memory; the initiator's own device copies the bytes. So only this process
//! touches the memory of an operation, and nothing arrives once it has ended, whatever the target
//! does.

use super::copies::Copies;
use super::parts::{Foreign, Parts, Reached};
use crate::descriptor::Descriptor;
use crate::device::{Device, Handle};

/// Memory of the target that our device may reach.
struct Source {
    /// The number that we gave the memory, once it is requested.
    number: u32,
    /// Our device that reads, and the target's key.
    device: Device,
    key: u64,
    /// The target has passed a handle; the memory, if that could be opened.
    passed: bool,
    open: Option<Foreign>,
}

/// The most memories of the target that are requested: each grant has a key of its own, and memory
/// under a grant is never opened.
const SOURCES: usize = 1024;

/// Pulls of one route.
#[derive(Default)]
pub struct Pulls {
    sources: Vec<Source>,
    parts: Parts,
    last: usize,
    /// The last number; none is reused.
    numbers: u32,
    /// Requests whose bytes are being copied, by operation.
    copies: Copies<u32>,
}

impl Pulls {
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// The number of a key's memory, if our device can read from it. `Err`: not requested yet.
    pub fn find(&mut self, device: Device, key: u64) -> Result<Option<u32>, ()> {
        let is_it = |source: &Source| source.device == device && source.key == key;
        if !self.sources.get(self.last).is_some_and(is_it) {
            self.last = self.sources.iter().position(is_it).ok_or(())?;
        }
        let source = &self.sources[self.last];
        Ok(source.open.as_ref().map(|_| source.number))
    }

    /// Records a request to the target for memory, and returns the memory's number.
    pub fn ask(&mut self, device: Device, key: u64) -> u32 {
        self.numbers = self.numbers.wrapping_add(1).max(1);
        let unopened = |source: &Source| !source.passed;
        if let Some(at) = self.sources.iter().position(unopened).filter(|_| self.sources.len() >= SOURCES) {
            self.parts.forget(self.sources.swap_remove(at).number);
        }
        self.sources.push(Source { number: self.numbers, device, key, passed: false, open: None });
        self.numbers
    }

    /// Imports a part that the target passed; false if there are too many.
    pub fn add_part(&mut self, number: u32, len: u64, file: Descriptor) -> bool {
        let asked = |source: &Source| source.number == number && !source.passed;
        !self.sources.iter().any(asked) || self.parts.add(number, len, file)
    }

    /// Records the handle that the target passed.
    pub fn passed(&mut self, number: u32, handle: Handle) {
        let asked = |source: &&mut Source| source.number == number && !source.passed;
        let Some(source) = self.sources.iter_mut().find(asked) else { return };
        source.passed = true;
        source.open = self.parts.open(number, source.device, handle).ok();
        if source.open.is_some() {
            // Copiers are made now, not in the first read; what they cannot do shows there.
            let _ = self.copies.choose(source.device);
        }
    }

    /// The target does not allow a source to be read: bytes are staged.
    pub fn refused(&mut self, number: u32) {
        self.parts.forget(number);
    }

    /// Closes memory that the target has deregistered.
    pub fn forget(&mut self, number: u32) {
        let Some(at) = self.sources.iter().position(|source| source.number == number) else { return };
        self.settle();
        self.parts.forget(number);
        self.sources.swap_remove(at);
    }

    pub fn place_of(&self, number: u32) -> Option<Reached> {
        self.sources.iter().find(|source| source.number == number)?.open.as_ref().map(|opened| opened.place)
    }

    /// Copies a requested part: local and remote address, and length.
    ///
    /// # Safety
    /// The local memory stays valid until the operation is done.
    #[inline]
    pub unsafe fn copy(&mut self, place: Option<Reached>, part: (u64, u64, u64)) -> Result<(), i32> {
        let (place, (local, remote, bytes)) = (place.ok_or(crate::fabric::GONE)?, part);
        let from = place.device_address(remote, bytes).ok_or(libc::EACCES)?;
        self.copies.choose(place.device)?;
        // SAFETY: the source lies inside memory that the target passed, and the local end inside the
        // operation's memory.
        unsafe { self.copies.add(from, local, bytes) };
        Ok(())
    }

    /// An operation's request was answered. `copied`: its bytes are being copied.
    pub fn push(&mut self, op: u32, copied: bool) {
        self.copies.push(op, copied);
    }

    pub fn pump(&mut self) {
        self.copies.pump();
    }

    /// The next request whose bytes have arrived: its operation, and an error number.
    pub fn take(&mut self) -> Option<(u32, i32)> {
        self.copies.take()
    }

    /// Waits until no device touches memory for these reads.
    pub fn settle(&mut self) {
        self.copies.settle();
    }

    /// Drops every copy in flight.
    pub fn end(&mut self) {
        self.settle();
        self.copies.clear();
    }
}

impl Drop for Pulls {
    fn drop(&mut self) {
        self.end(); // Before its sources.
    }
}
