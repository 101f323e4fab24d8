//! Files and block devices as memory of the device `FILE`.
//!
//! A range of a file has a range of this process's addresses, reserved without memory behind it, so
//! that keys, grants and descriptors name its bytes as they name any. Copies from and to these
//! addresses are jobs (`jobs`) for the thread of the file's endpoint (`engine`), which plans their
//! I/O (`plan`) and has io_uring (`ring`) or a few threads (`threads`) carry it out.

mod copier;
mod engine;
#[cfg(any(test, feature = "sim"))]
mod fake;
mod flushing;
mod jobs;
mod opened;
mod places;
mod plan;
mod ring;
mod spans;
#[cfg(test)]
mod tests;
mod threads;

use super::{unsupported, Copier, Device, Driver, Export, Found, Handle, ImportedPart, FILE};
use crate::descriptor::Descriptor;
use crate::range::Range;
use crate::status::{Error, Result};
use crate::topology::pci::PciAddress;
pub use engine::serve;
pub use jobs::{Done, Queue};
pub use spans::{reserve, Reserved};
use std::os::fd::BorrowedFd;

/// That of all files: their addresses are released only after their registrations.
pub const IDENTITY: u64 = 1;

struct Files;

pub fn driver() -> &'static dyn Driver {
    &Files
}

fn no(what: &str) -> Error {
    unsupported(format!("a file has no {what}"))
}

impl Driver for Files {
    fn waits(&self) -> bool {
        true
    }

    fn place(&self, _device: Device) -> Option<PciAddress> {
        None
    }

    fn find(&self, range: &Range) -> Result<Option<Found>> {
        let found = Found { device: FILE, shareable: false, identity: IDENTITY };
        Ok(spans::find(range.base, range.len).map(|_| found))
    }

    fn identity(&self, _address: u64) -> Option<u64> {
        Some(IDENTITY)
    }

    fn copier(&self, _device: Device) -> Result<Box<dyn Copier>> {
        Ok(Box::new(copier::Jobs::new()?))
    }

    fn pin(&self, _device: Device, _base: u64, _len: u64) -> Result<()> {
        Ok(())
    }

    fn unpin(&self, _device: Device, _base: u64) {}

    fn share(&self, _device: Device, _range: &Range) -> Result<Handle> {
        Err(no("handle for other processes"))
    }

    fn part(&self, _handle: &Handle, _offset: u64) -> Result<(Descriptor, u64)> {
        Err(no("parts for other processes"))
    }

    fn import(&self, _file: BorrowedFd, _len: u64) -> Result<ImportedPart> {
        Err(no("parts for other processes"))
    }

    fn release(&self, _part: &ImportedPart) {}

    fn open(&self, _device: Device, _handle: &Handle, _parts: &[ImportedPart]) -> Result<(u64, u64)> {
        Err(no("handle for other processes"))
    }

    fn close(&self, _device: Device, _handle: &Handle, _base: u64) {}

    fn export(&self, _device: Device, _range: &Range) -> Result<Export> {
        Err(no("DMA-BUF"))
    }

    fn words(&self, _len: u64) -> Result<u64> {
        Err(no("words for streams"))
    }

    fn free_words(&self, _base: u64) {}
}
