//! Device memory, and the interface of a driver.
//!
//! Only a `Driver` accesses device memory: `cuda`, loaded at run time, or `fake`, in a library
//! built for tests, chosen by WEFT_DEVICES=fake. A `Copier` moves bytes asynchronously; its caller
//! polls for completion.

mod cuda;
#[cfg(any(test, feature = "sim"))]
pub mod fake;
pub mod file;
pub mod staging;

use crate::descriptor::Descriptor;
use crate::range::Range;
use crate::status::{Error, Result, Status};
use crate::topology::pci::PciAddress;
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

/// A device's number. GPUs are numbered by their driver.
pub type Device = u32;

/// The number of all files: memory of this device is ranges of files, which only jobs move.
pub const FILE: Device = 254;

/// The kind and device of memory that a caller names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// Not named: the driver detects it.
    Unsaid,
    Host,
    Device,
    /// Ranges of the file of a descriptor.
    File(RawFd),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    pub device: Device,
    /// Whether other processes can open it.
    pub shareable: bool,
    /// Changes once the memory is freed, or other memory is at its address.
    pub identity: u64,
}

/// A handle by which another process opens device memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle {
    /// The owning process, which uses its memory without opening the handle.
    pub process: u64,
    pub device: Device,
    /// The address of the allocation in the owning process.
    pub base: u64,
    pub len: u64,
    /// Another process opens the memory by files of its parts, not by the token.
    pub in_parts: bool,
    pub token: [u8; 64],
}

/// A part of another process's memory, imported and not yet mapped.
#[derive(Debug)]
pub struct ImportedPart {
    pub len: u64,
    /// The driver's name for it.
    pub memory: u64,
}

impl Drop for ImportedPart {
    fn drop(&mut self) {
        if let Some(driver) = present() {
            driver.release(self);
        }
    }
}

/// Device memory as a file that NICs can register.
pub struct Export {
    pub dmabuf: Descriptor,
    /// The address of the file's beginning, at or before the requested address.
    pub base: u64,
}

/// How the copies of a launch are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copied {
    Pending,
    /// All are done, and visible to all threads and NICs.
    Done,
    /// The device's memory is gone, or the device failed.
    Gone,
    /// Not all are done, for this error number of the system's: EIO, ENOSPC, ENODATA (past the end
    /// of a file), ETIMEDOUT.
    Failed(i32),
    /// They have taken too long: the requester gets ETIMEDOUT. They may still touch their memory at
    /// any time: it must neither be used nor freed until a later call says something else.
    Hung,
}

/// Copies of one device. Those of one launch are in order where devices keep one (`Driver::waits`).
pub trait Copier: Send {
    /// Adds a copy: `from` and `to` are pinned host memory, memory of this device, or memory opened
    /// for it.
    ///
    /// # Safety
    /// Both must be valid for `len` bytes until the copy is done.
    unsafe fn add(&mut self, from: u64, to: u64, len: u64);
    /// Launches the added copies; returns their ticket.
    fn launch(&mut self) -> u64;
    /// How a launch is; each has an answer of its own. Where devices keep an order, `Done` and `Gone`
    /// hold for all launches before it, too. After anything but `Pending` and `Hung` the launch is
    /// forgotten: do not ask again.
    fn poll(&mut self, ticket: u64) -> Copied;
    /// A descriptor that is readable once a launch is no longer `Pending` or `Hung`, and until
    /// `heard`; `None`: poll.
    fn wakes(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// The descriptor of `wakes` is readable: poll each pending launch after this.
    fn heard(&mut self) {}
    /// Drops the launches that have not begun, and waits for the others, at most until they are
    /// `Hung`. False: some still touch their memory, which must never be freed.
    fn wait(&mut self) -> bool;
}

pub trait Driver: Send + Sync {
    /// Whether copies wait for a disk: for milliseconds, or for ever. Their launches are independent of each
    /// other, and end in any order, so each needs its own; `Copier::wakes` says when to poll.
    fn waits(&self) -> bool {
        false
    }
    /// The PCI address of a device, if known.
    fn place(&self, device: Device) -> Option<PciAddress>;
    /// The device that holds a range; `None`: host memory.
    fn find(&self, range: &Range) -> Result<Option<Found>>;
    /// The identity of the memory at an address; `None`: no device memory.
    fn identity(&self, address: u64) -> Option<u64>;
    fn copier(&self, device: Device) -> Result<Box<dyn Copier>>;
    /// Pins host memory, so that copies can use it.
    fn pin(&self, device: Device, base: u64, len: u64) -> Result<()>;
    fn unpin(&self, device: Device, base: u64);
    /// A handle to the allocations that hold a range, for other processes.
    fn share(&self, device: Device, range: &Range) -> Result<Handle>;
    /// The part of a handle's memory at an offset: a file by which another process imports the part,
    /// and the part's length.
    fn part(&self, handle: &Handle, offset: u64) -> Result<(Descriptor, u64)>;
    /// Imports a part of another process's memory.
    fn import(&self, file: BorrowedFd, len: u64) -> Result<ImportedPart>;
    fn release(&self, part: &ImportedPart);
    /// Opens another process's memory for a device of this one, from all its parts if it is in parts.
    /// Returns its address and its real length, whatever the handle claims.
    fn open(&self, device: Device, handle: &Handle, parts: &[ImportedPart]) -> Result<(u64, u64)>;
    /// Closes memory that `open` opened at an address.
    fn close(&self, device: Device, handle: &Handle, base: u64);
    /// Exports a range for NICs; once a NIC has registered it, the file may be closed.
    fn export(&self, device: Device, range: &Range) -> Result<Export>;
    /// Host memory in which devices can write words.
    fn words(&self, len: u64) -> Result<u64>;
    fn free_words(&self, base: u64);
}

/// The number of this process in handles, which no other process has.
pub use cuda::this_process;

static DRIVER: OnceCell<Result<&'static dyn Driver>> = OnceCell::new();

/// The driver of this process's GPUs. It is loaded only if the program has loaded it or if `needed`, so
/// that processes without devices do not pay for it.
fn find_driver(needed: bool) -> Option<&'static Result<&'static dyn Driver>> {
    if DRIVER.get().is_none() && !needed && fake().is_none() && !cuda::is_loaded() {
        return None;
    }
    Some(DRIVER.get_or_init(|| fake().map_or_else(cuda::driver, Ok)))
}

/// The fake devices, if a test enabled them.
#[cfg(any(test, feature = "sim"))]
fn fake() -> Option<&'static dyn Driver> {
    let choice = libfabric_sys::variable("WEFT_DEVICES")?;
    choice.as_encoded_bytes().starts_with(b"fake").then(fake::driver)
}

/// The shipped library has no fake devices.
#[cfg(not(any(test, feature = "sim")))]
fn fake() -> Option<&'static dyn Driver> {
    None
}

/// Whether copies of a device, of this process or another, wait for a disk (`Driver::waits`).
pub fn is_slow(device: Device) -> bool {
    device == FILE || present().is_some_and(|driver| driver.waits())
}

/// The driver of GPUs, if this process has one.
pub fn present() -> Option<&'static dyn Driver> {
    find_driver(false)?.as_ref().ok().copied()
}

/// The driver of a device.
pub fn driver(device: Device) -> Result<&'static dyn Driver> {
    match device {
        FILE => Ok(file::driver()),
        _ => of_gpus(),
    }
}

fn of_gpus() -> Result<&'static dyn Driver> {
    find_driver(true).cloned().unwrap_or_else(|| Err(Error::closed()))
}

/// The device that holds a memory.
#[derive(Debug)]
pub struct Place {
    pub device: Device,
    pub shareable: bool,
    /// Identities, by range.
    identities: Box<[u64]>,
    /// The addresses of a file's ranges, until it is deregistered.
    file: Mutex<Option<file::Reserved>>,
}

impl Place {
    pub fn of_file(file: file::Reserved, ranges: usize) -> Place {
        let identities = vec![file::IDENTITY; ranges].into();
        Place { device: FILE, shareable: false, identities, file: Mutex::new(Some(file)) }
    }

    /// Whether this process may write to it.
    pub fn is_writable(&self) -> bool {
        self.file.lock().as_ref().is_none_or(|file| file.is_writable())
    }

    /// Whether it is a file that is read and written through the page cache.
    pub fn is_cached(&self) -> bool {
        self.file.lock().as_ref().is_some_and(|file| file.is_cached())
    }

    /// From here on no read or write of a file begins; waits for those that have begun.
    pub fn settle(&self, at_most: Duration) -> Result<()> {
        self.file.lock().as_ref().map_or(Ok(()), |file| file.settle(at_most))
    }

    /// Has what was written to a file survive a power cut, then calls `done`. False: it is no file that is registered.
    pub fn flush(&self, done: file::Done) -> bool {
        self.file.lock().as_ref().is_some_and(|file| {
            file.flush(done);
            true
        })
    }

    /// It is no longer registered.
    pub fn let_go(&self) {
        self.file.lock().take();
    }

    /// The identities of what was registered, by range.
    pub fn identities(&self) -> impl Iterator<Item = u64> + '_ {
        self.identities.iter().copied()
    }

    /// Whether a range is still the memory that was registered.
    pub fn holds(&self, index: usize, range: &Range) -> bool {
        self.identities.get(index).is_some_and(|identity| is_there(self.device, range.base, *identity))
    }
}

/// Whether a device's memory at an address still has this identity.
pub fn is_there(device: Device, address: u64, identity: u64) -> bool {
    driver(device).ok().and_then(|driver| driver.identity(address)) == Some(identity)
}

/// Detects the device of ranges; `None`: on the host.
pub fn locate(ranges: &[Range], claim: Claim) -> Result<Option<Place>> {
    let driver = match claim {
        Claim::Host | Claim::File(_) => return Ok(None),
        Claim::Unsaid => match present() {
            Some(driver) => driver,
            None => return Ok(None),
        },
        Claim::Device => of_gpus()?,
    };
    let mut all = Vec::with_capacity(ranges.len());
    for (index, range) in ranges.iter().enumerate() {
        all.push(driver.find(range).map_err(|error| error.of_range(index, range))?);
    }
    one_place(ranges, &all, claim)
}

/// Checks that all ranges of a memory are on one device or the host, as the caller claims.
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
        file: Mutex::default(),
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
