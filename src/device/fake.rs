//! Fake devices for tests: two of them. Their memory is mapped without access rights (PROT_NONE,
//! private and anonymous), so any access except by this driver faults. Copies complete late on
//! purpose, to expose a use of bytes before they were copied.
//!
//! WEFT_DEVICES: "fake", then optionally ":late=N" (microseconds until a copy is done; 20),
//! ":fail=N" (the Nth launch fails), ":private" (memory that other processes cannot open), ":parts"
//! (memory that they open in parts), ":hmem"
//! (simulated NICs access the memory directly, where the real NICs could), ":dmabuf" (it can be
//! exported as a DMA-BUF), ":at=N" (the memory's address, if the default is in use, as under
//! ThreadSanitizer).

use super::{unsupported, Copier, Device, Driver, Export, Found, Handle, ImportedPart};
use crate::descriptor::Descriptor;
use crate::range::Range;
use crate::status::{Error, Result, Status};
use crate::topology::pci::PciAddress;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The default address of the devices' memory, 64 GiB each.
const DEFAULT_BASE: u64 = 0x2a00_0000_0000;
const DEVICE_BYTES: u64 = 64 << 30;
const DEVICES: u32 = 2;
/// Bytes of a part of memory in parts.
const PART: u64 = 8 << 10;
/// The devices' PCI domain, which no machine has; they are on buses 1 and 2.
const DOMAIN: u32 = 0xfa4e;

struct Fake {
    late: Duration,
    fail: u64,
    private: bool,
    parts: bool,
    dmabuf: bool,
    launches: AtomicU64,
}

fn choice() -> String {
    std::env::var("WEFT_DEVICES").unwrap_or_default()
}

fn option(name: &str) -> Option<u64> {
    choice().split(':').find_map(|part| part.strip_prefix(name)?.parse().ok())
}

fn base() -> u64 {
    static BASE: OnceLock<u64> = OnceLock::new();
    *BASE.get_or_init(|| option("at=").unwrap_or(DEFAULT_BASE))
}

pub fn driver() -> &'static dyn Driver {
    Box::leak(Box::new(Fake {
        late: Duration::from_micros(option("late=").unwrap_or(20)),
        fail: option("fail=").unwrap_or(0),
        private: choice().split(':').any(|part| part == "private"),
        parts: choice().split(':').any(|part| part == "parts"),
        dmabuf: choice().split(':').any(|part| part == "dmabuf"),
        launches: AtomicU64::new(0),
    }))
}

fn device_of(address: u64) -> Option<Device> {
    let device = address.checked_sub(base())? / DEVICE_BYTES;
    (device < DEVICES.into()).then_some(device as Device)
}

/// Whether simulated NICs access the memory directly.
pub fn has_hmem() -> bool {
    let choice = choice();
    choice.starts_with("fake") && choice.contains(":hmem")
}

/// Copies the bytes that such a NIC moves; false if neither end is on a device.
pub fn move_bytes(from: u64, to: u64, len: usize) -> bool {
    let on_device = device_of(from).is_some() || device_of(to).is_some();
    if on_device {
        let mut bytes = vec![0; len];
        // Freed memory is skipped.
        let _ = open_memory().map(|memory| {
            memory.read_exact_at(&mut bytes, from).and_then(|()| memory.write_all_at(&bytes, to))
        });
    }
    on_device
}

/// Stands in for a DMA-BUF, or for the file of a part: a file that names the memory.
fn dmabuf_of(base: u64, len: u64) -> Result<Descriptor> {
    // SAFETY: the name is a constant, and nothing else owns the descriptor.
    let file = unsafe {
        let fd = libc::memfd_create(c"weft-dmabuf".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(unsupported("no file for a DMA-BUF"));
        }
        File::from_raw_fd(fd)
    };
    let said = file.write_all_at(&[base.to_le_bytes(), len.to_le_bytes()].concat(), 0);
    said.map_err(|error| unsupported(format!("a DMA-BUF: {error}")))?;
    Descriptor::opened(|| file.into_raw_fd()).ok_or_else(|| unsupported("no file for a DMA-BUF"))
}

/// The base and length of a DMA-BUF's memory.
pub fn memory_of(dmabuf: BorrowedFd) -> Option<(u64, u64)> {
    let file = File::from(dmabuf.try_clone_to_owned().ok()?);
    let mut said = [0; 16];
    file.read_exact_at(&mut said, 0).ok()?;
    let number = |at: usize| said[at..at + 8].try_into().map(u64::from_le_bytes).ok();
    Some((number(0)?, number(8)?))
}

/// This process's memory, whatever its rights.
fn open_memory() -> Result<File> {
    let opened = OpenOptions::new().read(true).write(true).open("/proc/self/mem");
    opened.map_err(|error| unsupported(format!("/proc/self/mem: {error}")))
}

fn is_there(address: u64) -> bool {
    open_memory().is_ok_and(|memory| memory.read_exact_at(&mut [0], address).is_ok())
}

impl Driver for Fake {
    fn place(&self, device: Device) -> Option<PciAddress> {
        Some(PciAddress { domain: DOMAIN, bus: device as u8 + 1, device: 0, function: 0 })
    }

    fn find(&self, range: &Range) -> Result<Option<Found>> {
        let Some(device) = device_of(range.base) else { return Ok(None) };
        if !is_there(range.base) || !is_there(range.base + range.len - 1) {
            return Err(Error::invalid(format!("not all memory of device {device}: freed, or too long")));
        }
        Ok(Some(Found { device, shareable: !self.private, identity: 1 }))
    }

    fn identity(&self, address: u64) -> Option<u64> {
        is_there(address).then_some(1)
    }

    fn copier(&self, _device: Device) -> Result<Box<dyn Copier>> {
        let queue = VecDeque::new();
        let (late, fail) = (self.late, self.fail);
        let failed = false;
        let launches = &raw const self.launches;
        // SAFETY: the driver is leaked, so `launches` lives forever.
        let launches = unsafe { &*launches };
        Ok(Box::new(Late {
            memory: open_memory()?,
            queue,
            added: Vec::new(),
            next: 0,
            late,
            fail,
            launches,
            failed,
        }))
    }

    fn pin(&self, _device: Device, _base: u64, _len: u64) -> Result<()> {
        Ok(())
    }

    fn unpin(&self, _device: Device, _base: u64) {}

    fn share(&self, device: Device, range: &Range) -> Result<Handle> {
        if self.private {
            return Err(unsupported("memory that no process can open"));
        }
        let (base, len) = if self.parts {
            let base = range.base - range.base % PART;
            (base, (range.base + range.len).next_multiple_of(PART) - base)
        } else {
            (base() + DEVICE_BYTES * u64::from(device), DEVICE_BYTES)
        };
        let process = super::cuda::this_process();
        Ok(Handle { process, device, base, len, in_parts: self.parts, token: [0; 64] })
    }

    fn part(&self, handle: &Handle, offset: u64) -> Result<(Descriptor, u64)> {
        Ok((dmabuf_of(handle.base + offset, PART)?, PART))
    }

    fn import(&self, file: BorrowedFd, len: u64) -> Result<ImportedPart> {
        match memory_of(file) {
            Some((base, real)) if real == len => Ok(ImportedPart { len, memory: base }),
            _ => Err(Error::invalid("the file received for memory of a fake device is not one of its parts")),
        }
    }

    fn release(&self, _part: &ImportedPart) {}

    fn open(&self, _device: Device, handle: &Handle, parts: &[ImportedPart]) -> Result<(u64, u64)> {
        if handle.process != super::cuda::this_process() {
            return Err(unsupported("another process's memory of a fake device"));
        }
        if !handle.in_parts {
            return Ok((handle.base, DEVICE_BYTES));
        }
        let mut end = handle.base;
        for part in parts {
            if part.memory != end {
                return Err(Error::invalid("parts of a fake device's memory in another order"));
            }
            end += part.len;
        }
        match end - handle.base == handle.len {
            true => Ok((handle.base, handle.len)),
            false => Err(Error::invalid("parts of a fake device's memory that do not add up to its length")),
        }
    }

    fn close(&self, _device: Device, _handle: &Handle, _base: u64) {}

    fn export(&self, _device: Device, range: &Range) -> Result<Export> {
        if !self.dmabuf {
            return Err(unsupported("memory without DMA-BUFs"));
        }
        let base = range.base & !0xfff;
        Ok(Export { dmabuf: dmabuf_of(base, range.base + range.len - base)?, base })
    }

    fn words(&self, len: u64) -> Result<u64> {
        Ok(Box::leak(vec![0u64; len as usize / 8].into_boxed_slice()).as_ptr() as u64)
    }

    fn free_words(&self, _base: u64) {} // Leaked: tests end soon.
}

/// From, to, bytes.
type Piece = (u64, u64, u64);

/// A copier whose copies are done some time after their launch.
struct Late {
    memory: File,
    added: Vec<Piece>,
    /// The launched copies, with the times at which they are done.
    queue: VecDeque<(Vec<Piece>, Instant)>,
    /// Tickets so far.
    next: u64,
    late: Duration,
    fail: u64,
    launches: &'static AtomicU64,
    failed: bool,
}

impl Late {
    fn copy(&mut self) {
        let Some((copies, _)) = self.queue.pop_front() else { return };
        for (from, to, len) in copies {
            let mut bytes = vec![0; len as usize];
            let read = self.memory.read_exact_at(&mut bytes, from);
            self.failed |= read.and_then(|()| self.memory.write_all_at(&bytes, to)).is_err();
        }
    }
}

impl Copier for Late {
    unsafe fn add(&mut self, from: u64, to: u64, len: u64) {
        self.added.push((from, to, len));
    }

    fn launch(&mut self) -> u64 {
        self.failed |= self.launches.fetch_add(1, Ordering::Relaxed) + 1 == self.fail;
        let due = Instant::now() + self.late;
        self.queue.push_back((std::mem::take(&mut self.added), due));
        self.next += 1;
        self.next
    }

    fn is_done(&mut self, ticket: u64) -> Result<bool> {
        while self.next - (self.queue.len() as u64) < ticket {
            if self.queue.front().is_some_and(|(_, due)| Instant::now() < *due) {
                return Ok(false);
            }
            self.copy();
        }
        if self.failed {
            return Err(Error::new(Status::Internal, "a copy of the fake device failed"));
        }
        Ok(true)
    }

    fn wait(&mut self) {
        while !self.queue.is_empty() {
            self.copy();
        }
    }
}
