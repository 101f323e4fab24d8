//! Device memory, and the interface of a driver.
//!
//! Only a `Driver` touches device memory: `cuda`, loaded at run time, or `fake`, in a library built
//! for tests, chosen by WEFT_DEVICES=fake. A `Copier` moves bytes asynchronously, in submission
//! order; its caller polls for completion.

mod cuda;
#[cfg(any(test, feature = "sim"))]
pub mod fake;
pub mod staging;

use crate::range::Range;
use crate::status::{Error, Result, Status};
use crate::topology::pci::PciAddress;
use once_cell::sync::OnceCell;
use std::os::fd::OwnedFd;

/// Which device, as its driver counts them.
pub type Device = u32;

/// The kind and device of memory that a caller names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// Nowhere: it is found out.
    Unsaid,
    Host,
    Device,
}

/// A driver's view of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    pub device: Device,
    /// Other processes can open it.
    pub shareable: bool,
    /// Another number once it is freed, or something else is there.
    pub identity: u64,
}

/// A handle by which another process opens device memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle {
    /// The owning process, which needs to open nothing.
    pub process: u64,
    pub device: Device,
    /// Where the allocation is, there.
    pub base: u64,
    pub len: u64,
    pub token: [u8; 64],
}

/// A device's memory as a file, which NICs take.
pub struct Export {
    pub dmabuf: OwnedFd,
    /// The address of its beginning; the requested address lies behind it.
    pub base: u64,
}

/// Copies of one device, one after the other.
pub trait Copier: Send {
    /// Adds a copy: `from` and `to` are host memory that was pinned, memory of this
    /// device, or what was opened for it.
    ///
    /// # Safety
    /// Both are valid for `len` bytes until it is done.
    unsafe fn add(&mut self, from: u64, to: u64, len: u64);
    /// Begins what was added; its ticket.
    fn launch(&mut self) -> u64;
    /// Whether everything up to a ticket is done, and visible to everybody.
    fn is_done(&mut self, ticket: u64) -> Result<bool>;
    /// Waits for all that was begun.
    fn wait(&mut self);
}

pub trait Driver: Send + Sync {
    /// Where a device is, if that is known.
    fn place(&self, device: Device) -> Option<PciAddress>;
    /// Where a range is; `None`: in memory that the host reads and writes itself.
    fn find(&self, range: &Range) -> Result<Option<Found>>;
    /// The identity of what is at an address; `None`: nothing.
    fn identity(&self, address: u64) -> Option<u64>;
    fn copier(&self, device: Device) -> Result<Box<dyn Copier>>;
    /// Makes host memory one that copies reach.
    fn pin(&self, device: Device, base: u64, len: u64) -> Result<()>;
    fn unpin(&self, device: Device, base: u64);
    /// For other processes, what a range is in.
    fn share(&self, device: Device, address: u64) -> Result<Handle>;
    /// Where another process's memory is for a device of ours, and how long it is, whatever
    /// the handle claims.
    fn open(&self, device: Device, handle: &Handle) -> Result<(u64, u64)>;
    fn close(&self, device: Device, handle: &Handle);
    /// A range, for NICs; once one knows it, the file need not be kept.
    fn export(&self, device: Device, range: &Range) -> Result<Export>;
    /// Memory of the host that devices write words to.
    fn words(&self, len: u64) -> Result<u64>;
    fn free_words(&self, base: u64);
}

static DRIVER: OnceCell<Result<&'static dyn Driver>> = OnceCell::new();

/// The driver of this process. It is loaded if the program has loaded it, or if `needed`: a process
/// that uses no device does not pay for one.
fn find_driver(needed: bool) -> Option<&'static Result<&'static dyn Driver>> {
    if DRIVER.get().is_none() && !needed && fake().is_none() && !cuda::is_loaded() {
        return None;
    }
    Some(DRIVER.get_or_init(|| fake().map_or_else(cuda::driver, Ok)))
}

/// The fake devices, if a test asked for them.
#[cfg(any(test, feature = "sim"))]
fn fake() -> Option<&'static dyn Driver> {
    let choice = libfabric_sys::variable("WEFT_DEVICES")?;
    choice.as_encoded_bytes().starts_with(b"fake").then(fake::driver)
}

/// The library that ships has none.
#[cfg(not(any(test, feature = "sim")))]
fn fake() -> Option<&'static dyn Driver> {
    None
}

/// The driver, if this process has one.
pub fn present() -> Option<&'static dyn Driver> {
    find_driver(false)?.as_ref().ok().copied()
}

/// The driver, which device memory was found by.
pub fn driver() -> Result<&'static dyn Driver> {
    find_driver(true).cloned().unwrap_or_else(|| Err(Error::closed()))
}

/// Where a memory is that is a device's.
#[derive(Debug)]
pub struct Place {
    pub device: Device,
    pub shareable: bool,
    /// Identities, by range.
    identities: Box<[u64]>,
}

impl Place {
    /// Whether a range is still what was registered.
    pub fn holds(&self, index: usize, range: &Range) -> bool {
        self.identities.get(index).is_some_and(|identity| is_there(range.base, *identity))
    }
}

/// Whether what is at an address is what was there.
pub fn is_there(address: u64, identity: u64) -> bool {
    present().and_then(|driver| driver.identity(address)) == Some(identity)
}

/// Finds out where ranges are: `None` on the host.
pub fn locate(ranges: &[Range], claim: Claim) -> Result<Option<Place>> {
    let driver = match claim {
        Claim::Host => return Ok(None),
        Claim::Unsaid => match present() {
            Some(driver) => driver,
            None => return Ok(None),
        },
        Claim::Device => driver()?,
    };
    let mut all = Vec::with_capacity(ranges.len());
    for (index, range) in ranges.iter().enumerate() {
        all.push(driver.find(range).map_err(|error| error.of_range(index, range))?);
    }
    one_place(ranges, &all, claim)
}

/// Checks that all ranges of a memory are at one place, and at the one that the caller names.
fn one_place(ranges: &[Range], all: &[Option<Found>], claim: Claim) -> Result<Option<Place>> {
    let text = |found: &Option<Found>| match found {
        None => "host memory".to_owned(),
        Some(found) => format!("on device {}", found.device),
    };
    let device = |found: &Option<Found>| found.map(|found| found.device);
    let first = all.first().copied().flatten();
    if let Some(index) = all.iter().position(|found| device(found) != device(&first)) {
        return Err(Error::invalid(format!(
            "range {index} is {}, range 0 is {}: register them apart",
            text(&all[index]),
            text(&first)
        )));
    }
    let Some(first) = first else {
        return match claim {
            Claim::Device => Err(Error::invalid(format!(
                "range 0 at {:#x} is host memory, not a device's: register it with kind WEFT_MEMORY_HOST or \
                 WEFT_MEMORY_ANY",
                ranges.first().map_or(0, |range| range.base)
            ))),
            _ => Ok(None),
        };
    };
    Ok(Some(Place {
        device: first.device,
        shareable: all.iter().flatten().all(|found| found.shareable),
        identities: all.iter().flatten().map(|found| found.identity).collect(),
    }))
}

impl Error {
    fn of_range(self, index: usize, range: &Range) -> Error {
        let text = format!("range {index} ({} bytes at {:#x}): {}", range.len, range.base, self.message);
        Error { message: text.into(), ..self }
    }
}

/// The error for what a driver does not support.
pub(super) fn unsupported(text: impl Into<String>) -> Error {
    Error::new(Status::Unsupported, text.into())
}
