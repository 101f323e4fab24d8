//! Fake devices for tests: two of them. Their memory is mapped without access rights (PROT_NONE,
//! private and anonymous), so any access except by this driver faults. Copies complete late on
//! purpose, to expose a use of bytes before they were copied.
//!
//! WEFT_DEVICES: "fake", then optionally ":late=N" (microseconds until a copy is done; 20),
//! ":fail=N" (the Nth launch fails, and the device with it), ":private" (memory that other processes
//! cannot open), ":parts"
//! (memory that they open in parts), ":hmem"
//! (simulated NICs access the memory directly, where the real NICs could), ":dmabuf" (it can be
//! exported as a DMA-BUF), ":at=N" (the memory's address, if the default is in use, as under
//! ThreadSanitizer). And as disks are: ":slow" (copies wait, and end in any order), ":errno=N" (the launch of
//! ":fail" fails by this, alone), ":hang=N" (the Nth launch hangs, from ":patience=N" on (microseconds;
//! 200,000), and ends when it is twice as old, or with ":ever" never; with ":all" those after it, too).

use super::{unsupported, Copied, Copier, Device, Driver, Export, Found, Handle, ImportedPart};
use crate::descriptor::Descriptor;
use crate::range::Range;
use crate::status::{Error, Result};
use crate::topology::pci::PciAddress;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd};
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
    disk: Disk,
    private: bool,
    parts: bool,
    dmabuf: bool,
    launches: AtomicU64,
}

/// How copies go.
#[derive(Clone, Copy)]
struct Disk {
    late: Duration,
    /// The launches that fail and hang; 0: none.
    fail: u64,
    hang: u64,
    /// 0: the launch that fails takes the device with it.
    errno: i32,
    patience: Duration,
    slow: bool,
    ever: bool,
    all: bool,
}

fn choice() -> String {
    std::env::var("WEFT_DEVICES").unwrap_or_default()
}

fn option(name: &str) -> Option<u64> {
    choice().split(':').find_map(|part| part.strip_prefix(name)?.parse().ok())
}

fn has(name: &str) -> bool {
    choice().split(':').any(|part| part == name)
}

fn base() -> u64 {
    static BASE: OnceLock<u64> = OnceLock::new();
    *BASE.get_or_init(|| option("at=").unwrap_or(DEFAULT_BASE))
}

pub fn driver() -> &'static dyn Driver {
    Box::leak(Box::new(Fake {
        disk: Disk {
            late: Duration::from_micros(option("late=").unwrap_or(20)),
            fail: option("fail=").unwrap_or(0),
            hang: option("hang=").unwrap_or(0),
            errno: option("errno=").unwrap_or(0) as i32,
            patience: Duration::from_micros(option("patience=").unwrap_or(200_000)),
            slow: has("slow"),
            ever: has("ever"),
            all: has("all"),
        },
        private: has("private"),
        parts: has("parts"),
        dmabuf: has("dmabuf"),
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
    fn waits(&self) -> bool {
        self.disk.slow
    }

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
        let launches = &raw const self.launches;
        // SAFETY: the driver is leaked, so `launches` lives forever.
        let launches = unsafe { &*launches };
        let (memory, disk) = (open_memory()?, self.disk);
        let timer = if disk.slow { Some(timer()?) } else { None };
        Ok(Box::new(Late {
            memory,
            timer,
            added: Vec::new(),
            queue: Vec::new(),
            ended: HashMap::new(),
            next: 0,
            disk,
            launches,
            failed: false,
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

struct Launched {
    ticket: u64,
    copies: Vec<Piece>,
    /// When it is done, and when it hangs; `None`: never.
    due: Option<Instant>,
    hangs: Option<Instant>,
    errno: i32,
    /// Its caller knows that it hangs.
    said: bool,
}

/// A copier whose copies are done some time after their launch.
struct Late {
    memory: File,
    /// Of a slow device: set to the next time at which a launch ends or hangs.
    timer: Option<Descriptor>,
    added: Vec<Piece>,
    queue: Vec<Launched>,
    /// How launches of a slow device ended, until their caller has asked.
    ended: HashMap<u64, Copied>,
    /// Tickets so far.
    next: u64,
    disk: Disk,
    launches: &'static AtomicU64,
    failed: bool,
}

fn timer() -> Result<Descriptor> {
    let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
    // SAFETY: the call takes no pointers.
    let timer = Descriptor::opened(|| unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) });
    timer.ok_or_else(|| Error::system("a timer for a fake disk"))
}

impl Late {
    fn copy(&mut self, launched: Launched) {
        let mut copied = true;
        for (from, to, len) in launched.copies.iter().take(if launched.errno == 0 { usize::MAX } else { 0 }) {
            let mut bytes = vec![0; *len as usize];
            let read = self.memory.read_exact_at(&mut bytes, *from);
            copied &= read.and_then(|()| self.memory.write_all_at(&bytes, *to)).is_ok();
        }
        self.failed |= !copied;
        let how = if launched.errno == 0 { Copied::Done } else { Copied::Failed(launched.errno) };
        if self.disk.slow {
            self.ended.insert(launched.ticket, how);
        }
    }

    /// Copies what is due.
    fn go_on(&mut self, now: Instant) {
        while let Some(at) = self.queue.iter().position(|one| one.due.is_some_and(|due| due <= now)) {
            // In order, unless the device keeps none.
            let launched = self.queue.remove(if self.disk.slow { at } else { 0 });
            self.copy(launched);
        }
    }

    fn set_timer(&self, now: Instant) {
        let Some(timer) = &self.timer else { return };
        let hangs = |one: &Launched| one.hangs.filter(|_| !one.said);
        let next =
            self.queue.iter().filter_map(|one| [hangs(one), one.due].into_iter().flatten().min()).min();
        let next = if self.ended.is_empty() { next } else { Some(now) };
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let after =
            next.map_or(Duration::ZERO, |at| at.saturating_duration_since(now).max(Duration::from_nanos(1)));
        let value = libc::timespec {
            tv_sec: after.as_secs() as libc::time_t,
            tv_nsec: after.subsec_nanos() as libc::c_long,
        };
        let when = libc::itimerspec { it_interval: zero, it_value: value };
        // SAFETY: the timer is open, and `when` is valid for the call.
        unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &when, std::ptr::null_mut()) };
    }
}

impl Copier for Late {
    unsafe fn add(&mut self, from: u64, to: u64, len: u64) {
        self.added.push((from, to, len));
    }

    fn launch(&mut self) -> u64 {
        let (number, disk) = (self.launches.fetch_add(1, Ordering::Relaxed) + 1, self.disk);
        let now = Instant::now();
        let (fails, hangs) = (number == disk.fail, number == disk.hang || disk.all && number > disk.hang);
        self.failed |= fails && disk.errno == 0;
        self.next += 1;
        let late = if hangs { disk.patience * 2 } else { disk.late };
        self.queue.push(Launched {
            ticket: self.next,
            copies: std::mem::take(&mut self.added),
            due: (!hangs || !disk.ever).then(|| now + late),
            hangs: hangs.then(|| now + disk.patience),
            errno: if fails { disk.errno } else { 0 },
            said: false,
        });
        self.set_timer(now);
        self.next
    }

    fn poll(&mut self, ticket: u64) -> Copied {
        let now = Instant::now();
        self.go_on(now);
        if self.failed {
            return Copied::Gone;
        }
        let how = match self.queue.iter_mut().find(|one| one.ticket == ticket) {
            Some(one) if one.hangs.is_some_and(|at| at <= now) => {
                one.said = true;
                Copied::Hung
            }
            Some(_) => Copied::Pending,
            None => self.ended.remove(&ticket).unwrap_or(Copied::Done),
        };
        self.set_timer(now);
        how
    }

    fn wakes(&self) -> Option<BorrowedFd<'_>> {
        self.timer.as_ref().map(Descriptor::as_fd)
    }

    fn heard(&mut self) {
        let now = Instant::now();
        self.go_on(now);
        self.set_timer(now);
    }

    fn wait(&mut self) -> bool {
        for launched in std::mem::take(&mut self.queue) {
            match launched.hangs {
                Some(_) => self.queue.push(launched),
                None => self.copy(launched),
            }
        }
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(disk: Disk) -> Box<dyn Copier> {
        let launches = AtomicU64::new(0);
        let fake = Fake { disk, private: false, parts: false, dmabuf: false, launches };
        let fake: &'static Fake = Box::leak(Box::new(fake));
        fake.copier(0).expect("a copier of a fake device")
    }

    fn wakes(copier: &dyn Copier) -> bool {
        let Some(fd) = copier.wakes() else { return false };
        let mut fd = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, valid for the call.
        unsafe { libc::poll(&mut fd, 1, 10_000) == 1 }
    }

    #[test]
    fn slow_device_fails_one_launch_and_hangs_with_another() {
        let (late, patience) = (Duration::from_millis(1), Duration::from_millis(20));
        let disk = Disk {
            late,
            fail: 2,
            hang: 1,
            errno: libc::ENOSPC,
            patience,
            slow: true,
            ever: false,
            all: false,
        };
        let mut copier = slow(disk);
        let (from, mut to) = (vec![7u8; 64], vec![0u8; 192]);
        let tickets = [0, 64, 128].map(|at| {
            // SAFETY: both live until the copier has ended.
            unsafe { copier.add(from.as_ptr() as u64, to[at..].as_mut_ptr() as u64, 64) };
            copier.launch()
        });
        let mut seen = [const { Vec::new() }; 3];
        let over = |how: &[Copied]| how.iter().any(|how| *how != Copied::Hung);
        while !seen.iter().all(|how| over(how)) {
            assert!(wakes(&*copier));
            copier.heard();
            for (i, seen) in seen.iter_mut().enumerate().filter(|(_, seen)| !over(seen)) {
                let how = copier.poll(tickets[i]);
                if how != Copied::Pending && seen.last() != Some(&how) {
                    seen.push(how);
                }
            }
        }
        let expected =
            [vec![Copied::Hung, Copied::Done], vec![Copied::Failed(libc::ENOSPC)], vec![Copied::Done]];
        assert_eq!(seen, expected);
        assert!(copier.wait());
        assert_eq!(to.iter().filter(|byte| **byte == 7).count(), 128);
    }
}
