//! Device memory in parts: NICs pass a file for each part, then the handle.

use super::socket;
use crate::descriptor::Descriptor;
use crate::device::{driver, present, Device, Handle, ImportedPart};
use crate::status::Result;
use std::os::fd::{AsFd, BorrowedFd};

/// Parts of one channel that were imported and are not mapped, at most.
const PARTS: usize = 1 << 16;

/// The result of passing device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passed {
    All,
    /// The socket is full: to be continued.
    Some,
    /// No process can open this memory any longer.
    Never,
}

/// Device memory on its way to a peer, by its number and the key by which the peer reads it (0: none),
/// with the offset of the next part; `None`: it cannot be passed.
#[derive(Default)]
pub struct Passing(Vec<((u32, u64), Option<u64>)>);

impl Passing {
    /// Passes device memory, as much as the socket takes.
    pub fn pass(&mut self, socket: BorrowedFd, part: (u32, u64), handle: &Handle) -> Passed {
        let known = self.0.iter().position(|(one, _)| *one == part);
        let begun = match known.map(|at| self.0[at].1) {
            None => 0,
            Some(Some(offset)) => offset,
            Some(None) => return Passed::Never,
        };
        let (passed, offset) = pass_from(begun, socket, part.0, handle);
        if let Some(at) = known {
            self.0.swap_remove(at);
        }
        match passed {
            Passed::All => {}
            Passed::Some => self.0.push((part, Some(offset))),
            Passed::Never => self.0.push((part, None)),
        }
        passed
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets memory that was not passed whole; returns the numbers, of which the peer has parts.
    pub fn forget(&mut self, is_it: impl Fn((u32, u64)) -> bool) -> Vec<u32> {
        let gone = self
            .0
            .iter()
            .map(|(part, _)| *part)
            .filter(|part| is_it(*part))
            .map(|(number, _)| number)
            .collect();
        self.0.retain(|(part, _)| !is_it(*part));
        gone
    }
}

/// Passes the parts from an offset on, then the handle. Returns the offset of the next part, too.
fn pass_from(mut offset: u64, socket: BorrowedFd, number: u32, handle: &Handle) -> (Passed, u64) {
    while handle.in_parts && offset < handle.len {
        let part = driver(handle.device).and_then(|driver| driver.part(handle, offset));
        let (file, len) = match part {
            Ok(part) => part,
            Err(error) => {
                log::info!("bytes go through the host: {error}");
                return (Passed::Never, offset);
            }
        };
        if !socket::pass_part(socket, number, len, file.as_fd()) {
            return (Passed::Some, offset);
        }
        offset += len;
    }
    let all = socket::pass_device(socket, number, handle);
    (if all { Passed::All } else { Passed::Some }, offset)
}

/// Parts that a peer has passed, by the number of their memory, until the memory is opened.
#[derive(Default)]
pub struct Parts {
    imported: Vec<(u32, Vec<ImportedPart>)>,
    count: usize,
}

impl Parts {
    /// Imports a part; false if there are too many. Memory of which a part cannot be imported cannot
    /// be opened later.
    pub fn add(&mut self, number: u32, len: u64, file: Descriptor) -> bool {
        if self.count == PARTS {
            return false;
        }
        let part = match present().map(|driver| driver.import(file.as_fd(), len)) {
            Some(Ok(part)) => part,
            Some(Err(error)) => {
                log::info!("bytes go through the host: {error}");
                return true;
            }
            None => return true,
        };
        self.count += 1;
        match self.imported.iter_mut().find(|(known, _)| *known == number) {
            Some((_, parts)) => parts.push(part),
            None => self.imported.push((number, vec![part])),
        }
        true
    }

    /// Forgets the parts of a memory; whether there were any.
    pub fn forget(&mut self, number: u32) -> bool {
        !self.take(number).is_empty()
    }

    /// The parts of a memory, in order.
    fn take(&mut self, number: u32) -> Vec<ImportedPart> {
        let Some(at) = self.imported.iter().position(|(known, _)| *known == number) else {
            return Vec::new();
        };
        let (_, parts) = self.imported.swap_remove(at);
        self.count -= parts.len();
        parts
    }

    /// Opens a memory for a device of ours.
    pub fn open(&mut self, number: u32, device: Device, handle: Handle) -> Result<Foreign> {
        let parts = self.take(number);
        let place = driver(device).and_then(|driver| driver.open(device, &handle, &parts));
        let (base, len) = place.inspect_err(|error| log::info!("bytes go through the host: {error}"))?;
        log::debug!("device memory of a peer is opened: {len} bytes, imported in {} parts", parts.len());
        Ok(Foreign { place: Reached { device, base, len, theirs: handle.base }, handle })
    }

    pub fn clear(&mut self) {
        self.imported.clear();
        self.count = 0;
    }
}

/// Device memory of a peer, open until it is dropped: no copy of it may be in progress then.
pub struct Foreign {
    pub place: Reached,
    handle: Handle,
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Ok(driver) = driver(self.place.device) {
            driver.close(self.place.device, &self.handle, self.place.base);
        }
    }
}

/// The place of a peer's device memory: our device that reaches it, its address there and at the peer,
/// and its length.
#[derive(Clone, Copy)]
pub struct Reached {
    pub device: Device,
    base: u64,
    theirs: u64,
    len: u64,
}

impl Reached {
    /// The address of bytes, by their offset.
    #[inline]
    pub fn within(&self, offset: u64, len: u64) -> Option<u64> {
        (offset <= self.len && len <= self.len - offset).then(|| self.base + offset)
    }

    /// The address of bytes, by their address at the peer.
    #[inline]
    pub fn device_address(&self, address: u64, len: u64) -> Option<u64> {
        self.within(address.wrapping_sub(self.theirs), len)
    }
}
