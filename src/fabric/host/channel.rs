//! The memory that two NICs share: requests and bytes in one direction, answers and bytes in the
//! other.
//!
//! The initiator makes the channel and passes it over a socket. Requests are cells of a ring; a
//! cell is valid once it carries the stamp of its turn. The area `forward` holds the bytes of
//! writes, messages and long lists of segments; `back` holds the bytes of reads. Both sides step
//! through these areas in the same way, so neither trusts a position from the other. The target
//! answers with one number: how many requests are done. It keeps a list of failed requests. Nothing
//! here is locked, and each value that the other side wrote is read once and checked.

use crate::descriptor::Descriptor;
use crate::device::{driver, Device};
use crate::fabric::GONE;
use crate::failing::step;
use crate::status::{Error, Result, Status};
use std::cell::OnceCell;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::OnceLock;

/// The most requests in flight in one direction.
pub const CELLS: u64 = 256;
/// Bytes of `forward`, and of `back`. With 256 KiB, 64 KiB pages are 10 % slower.
pub const AREA: u64 = 1 << 20;

// Offsets in the channel. Words that one side writes and the other polls have cache lines of their
// own.
const ANSWERS: usize = 0;
const RETURNED: usize = 128;
const TARGET_SLEEPS: usize = 256;
const INITIATOR_SLEEPS: usize = 384;
const FAILURES: usize = 4096;
const REQUESTS: usize = FAILURES + CELLS as usize * 8 + 2048;
const FORWARD: usize = REQUESTS + CELLS as usize * 64 + 4096;
const BACK: usize = FORWARD + AREA as usize;
const WHOLE: usize = BACK + AREA as usize;
const _: () = assert!(REQUESTS % 4096 == 0 && FORWARD % 4096 == 0);

/// The size of a huge page, to which addresses are aligned.
pub const HUGE: usize = 2 << 20;
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Eight words on a cache line.
pub type Cell = [AtomicU64; 8];

/// Mapped memory of a file; unmapped when dropped.
pub struct Mapping {
    base: *mut u8,
    len: usize,
}

// SAFETY: the mapping owns its address range.
unsafe impl Send for Mapping {}
// SAFETY: the mapping only hands out addresses; its users synchronise access to the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the channel that another process made: an ordinary file in memory, which cannot shrink.
    /// The process that made it may punch holes into it; pages touched there read as zeros, and
    /// cost at most the size of a channel.
    fn of_channel(fd: BorrowedFd) -> Result<Mapping> {
        let file = File::new(fd)?;
        if file.kind != Kind::Memory || file.seals & SEALS != SEALS || file.len < WHOLE as u64 {
            return Err(refused("a channel"));
        }
        Self::new(fd, WHOLE, true)
    }

    /// Maps another process's memory for reading: a file in memory that is fully allocated, and can
    /// neither shrink nor lose pages. So no access to it faults, or allocates memory for this
    /// process.
    pub fn of_area(fd: BorrowedFd, len: u64) -> Result<Mapping> {
        let file = File::new(fd)?;
        let seals = area_seals();
        // The kernel maps whole pages of the file's own page size.
        let whole = file.page > 0 && file.len % file.page == 0 && len % file.page == 0;
        if file.seals & seals != seals
            || !(1..=file.len).contains(&len)
            || !whole
            || !file.is_allocated(fd, len)
        {
            return Err(refused("memory to read"));
        }
        let len = usize::try_from(len).map_err(|_| refused("memory to read"))?;
        // The kernel aligns pages of its pool itself.
        if file.kind == Kind::Memory && len >= HUGE {
            return Self::aligned(fd, len, false);
        }
        Self::new(fd, len, false)
    }

    /// Makes a mapping at any free address.
    pub fn new(fd: BorrowedFd, len: usize, writable: bool) -> Result<Mapping> {
        if step("a mapping") {
            return Err(Error::system("mapping memory shared with another process"));
        }
        // SAFETY: the call makes a new mapping, and replaces none.
        let base = unsafe {
            let fd = fd.as_raw_fd();
            libc::mmap(std::ptr::null_mut(), len, protection(writable), libc::MAP_SHARED, fd, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(Error::system("mapping memory shared with another process"));
        }
        Ok(Mapping { base: base.cast(), len })
    }

    /// Makes a mapping of ordinary memory at an address where huge pages are possible.
    pub fn aligned(fd: BorrowedFd, len: usize, writable: bool) -> Result<Mapping> {
        if step("a mapping") {
            return Err(Error::system("mapping shared memory"));
        }
        let len = len.next_multiple_of(page_len());
        let room = len + HUGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let shared = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: `room` bytes, in whole pages, are reserved from `reserved` on. The file replaces
        // `len` of them, also whole pages, from the first multiple of `HUGE` on, which is less than
        // `HUGE` away. The rest is given back.
        unsafe {
            let reserved = libc::mmap(std::ptr::null_mut(), room, libc::PROT_NONE, flags, -1, 0);
            if reserved == libc::MAP_FAILED {
                return Err(Error::system("reserving addresses for shared memory"));
            }
            let start = reserved as usize;
            let base = start.next_multiple_of(HUGE);
            debug_assert!(base + len <= start + room);
            let mapped = libc::mmap(base as *mut _, len, protection(writable), shared, fd.as_raw_fd(), 0);
            let failed = (mapped == libc::MAP_FAILED).then(|| Error::system("mapping shared memory"));
            unmap(start, base - start);
            unmap(base + len, start + room - base - len);
            match failed {
                // The kernel may have dropped the reservation, and another thread may use the
                // addresses by now.
                Some(error) => Err(error),
                None => Ok(Mapping { base: base as *mut u8, len }),
            }
        }
    }

    pub fn base(&self) -> *mut u8 {
        self.base
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

fn protection(writable: bool) -> i32 {
    if writable {
        libc::PROT_READ | libc::PROT_WRITE
    } else {
        libc::PROT_READ
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is our own, and unmapped only here.
        unsafe { unmap(self.base as usize, self.len) };
    }
}

/// Unmaps addresses. Addresses that the kernel does not unmap stay reserved.
///
/// # Safety
/// The addresses belong to the caller, and nothing uses them.
unsafe fn unmap(base: usize, len: usize) {
    // SAFETY: it is a mapping of ours, which nothing uses after this.
    if len > 0 && unsafe { libc::munmap(base as *mut _, len) } != 0 {
        let why = std::io::Error::last_os_error();
        log::warn!("unmapping {len} bytes of shared memory at {base:#x}: {why}: their addresses stay in use");
    }
}

pub fn page_len() -> usize {
    // SAFETY: the call has no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(1)
}

/// The kind of a file that a peer passed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    /// From the system's pool of huge pages.
    Pool,
    /// Any other file, whose pages other processes may control.
    Other,
}

struct File {
    kind: Kind,
    seals: i32,
    len: u64,
    /// Bytes that are allocated, wherever.
    allocated: u64,
    /// Bytes in one page of the file's mappings.
    page: u64,
}

impl File {
    fn new(fd: BorrowedFd) -> Result<File> {
        let raw = fd.as_raw_fd();
        // SAFETY: the descriptor is open, and the buffers hold the answers, which are integers.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            let mut system: libc::statfs = std::mem::zeroed();
            if libc::fstat(raw, &mut stat) != 0 || libc::fstatfs(raw, &mut system) != 0 {
                return Err(Error::system("asking about memory that another process passed"));
            }
            let kind = match system.f_type {
                libc::TMPFS_MAGIC => Kind::Memory,
                libc::HUGETLBFS_MAGIC => Kind::Pool,
                _ => Kind::Other,
            };
            let page = if kind == Kind::Pool { stat.st_blksize as u64 } else { page_len() as u64 };
            Ok(File {
                kind,
                seals: libc::fcntl(raw, libc::F_GET_SEALS).max(0),
                len: u64::try_from(stat.st_size).unwrap_or(0),
                allocated: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512),
                page,
            })
        }
    }
}

impl File {
    /// Whether its first `len` bytes are allocated. Blocks of ordinary memory may lie behind them, even
    /// behind the file's end, so the file is searched for holes.
    fn is_allocated(&self, fd: BorrowedFd, len: u64) -> bool {
        match self.kind {
            // SAFETY: the descriptor is open, and the call takes no pointers. The position is of no use.
            Kind::Memory => unsafe {
                u64::try_from(libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_HOLE)).is_ok_and(|hole| hole >= len)
            },
            // A mapping reserves what it lacks, or fails.
            Kind::Pool => self.allocated >= len,
            Kind::Other => false,
        }
    }
}

fn refused(what: &str) -> Error {
    let text = format!("{what}, passed by a process of this host, is no sealed memory file of that size");
    Error::new(Status::Fabric, text)
}

/// The seals that an area has on this system, whose kernel all of its processes share: the area
/// cannot shrink, and a process that cannot write to it now cannot write later, or punch pages out.
/// (Linux before 5.1 lacks the latter seal.)
pub fn area_seals() -> i32 {
    const F_SEAL_FUTURE_WRITE: i32 = 0x10;
    static SEALS_OF_AREAS: OnceLock<i32> = OnceLock::new();
    *SEALS_OF_AREAS.get_or_init(|| {
        let all = SEALS | libc::F_SEAL_SEAL;
        let knows = memfd(c"weft-seals", 0).is_ok_and(|file| {
            // SAFETY: the descriptor is open during the call.
            unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, all | F_SEAL_FUTURE_WRITE) == 0 }
        });
        if knows {
            all | F_SEAL_FUTURE_WRITE
        } else {
            all
        }
    })
}

pub struct Channel {
    mapping: Mapping,
    /// The device through which the channel was pinned. Once pinned, every device can access it.
    pinned: OnceCell<Device>,
}

impl Channel {
    /// Makes a channel, and the file to pass to the target.
    pub fn create() -> Result<(Channel, Descriptor)> {
        let fd = memfd(c"weft-channel", 0)?;
        // SAFETY: the descriptor is open during the call.
        let made = unsafe {
            libc::ftruncate(fd.as_raw_fd(), WHOLE as libc::off_t) == 0
                && libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS | libc::F_SEAL_SEAL) == 0
        };
        if !made {
            return Err(Error::system("making memory to share with another process"));
        }
        use std::os::fd::AsFd;
        Ok((Channel::over(Mapping::new(fd.as_fd(), WHOLE, true)?), fd))
    }

    /// Attaches to a channel that a peer made.
    pub fn attach(fd: BorrowedFd) -> Result<Channel> {
        Ok(Channel::over(Mapping::of_channel(fd)?))
    }

    fn over(mapping: Mapping) -> Channel {
        Channel { mapping, pinned: OnceCell::new() }
    }

    /// Pins the channel so that devices reach it. An error number if they cannot.
    pub fn pin(&self, device: Device) -> std::result::Result<(), i32> {
        if self.pinned.get().is_none() {
            let base = self.mapping.base() as u64;
            let pinned = driver(device).and_then(|driver| driver.pin(device, base, WHOLE as u64));
            pinned.map_err(|error| {
                log::warn!("{error}");
                GONE
            })?;
            let _ = self.pinned.set(device);
        }
        Ok(())
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at + 8 <= WHOLE && at % 8 == 0);
        // SAFETY: the address lies inside the mapping, is aligned, and is valid in every state.
        unsafe { &*self.mapping.base().add(at).cast() }
    }

    fn flag(&self, at: usize) -> &AtomicU32 {
        // SAFETY: the flag lies inside the mapping, aligned, and both sides access it as an atomic.
        unsafe { &*self.mapping.base().add(at).cast() }
    }

    /// The number of requests done; the target writes it.
    pub fn done(&self) -> &AtomicU64 {
        self.word(ANSWERS)
    }

    /// How many requests failed; the target stores it before `done`.
    pub fn failed(&self) -> &AtomicU64 {
        self.word(ANSWERS + 8)
    }

    /// The most bytes of a request for a disk, if the target takes longer ones than `BYTES`: it stores this before its first
    /// answer.
    pub fn longest(&self) -> &AtomicU64 {
        self.word(ANSWERS + 16)
    }

    /// A failure's request (low 32 bits) and error number (high 32 bits); the target writes it.
    pub fn failure(&self, n: u64) -> &AtomicU64 {
        self.word(FAILURES + (n % CELLS) as usize * 8)
    }

    /// The position up to which `back` is free again; the initiator writes it.
    pub fn returned(&self) -> &AtomicU64 {
        self.word(RETURNED)
    }

    /// Not 0: the target, which waits for requests or for space in `back`, sleeps.
    pub fn target_sleeps(&self) -> &AtomicU32 {
        self.flag(TARGET_SLEEPS)
    }

    /// Not 0: the initiator, which waits for answers, sleeps.
    pub fn initiator_sleeps(&self) -> &AtomicU32 {
        self.flag(INITIATOR_SLEEPS)
    }

    /// The cell of request `n`.
    pub fn cell(&self, n: u64) -> &Cell {
        // SAFETY: the address lies inside the mapping, is aligned, and is valid in every state.
        unsafe { &*self.mapping.base().add(REQUESTS + (n % CELLS) as usize * 64).cast() }
    }

    /// The address of a block of `forward` that `Block::after` has placed.
    pub fn forward(&self, block: &Block) -> *mut u8 {
        // SAFETY: `Block::after` keeps a block within its area.
        unsafe { self.mapping.base().add(FORWARD + (block.start % AREA) as usize) }
    }

    pub fn back(&self, block: &Block) -> *mut u8 {
        // SAFETY: `Block::after` keeps a block within its area.
        unsafe { self.mapping.base().add(BACK + (block.start % AREA) as usize) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let pinned = self.pinned.get().and_then(|device| Some((*device, driver(*device).ok()?)));
        if let Some((device, driver)) = pinned {
            driver.unpin(device, self.mapping.base() as u64);
        }
    }
}

/// The stamp of request `n`, which differs from the stamp of the turn before in the same cell.
pub fn stamp(n: u64) -> u32 {
    (n / CELLS) as u32 + 1
}

/// A contiguous piece of an area; positions count bytes since the channel was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub start: u64,
    pub end: u64,
}

impl Block {
    /// The next piece of `len` bytes after `position`; `len` is at most half of `AREA`, so it fits
    /// into an empty area at any position.
    #[inline]
    pub fn after(position: u64, len: u64) -> Block {
        debug_assert!(len <= AREA / 2 && position % 64 == 0);
        let at = position % AREA;
        let len = len.next_multiple_of(64);
        let start = if at + len > AREA { position + (AREA - at) } else { position };
        Block { start, end: start + len }
    }

    /// Whether the block overlaps nothing that is still in use.
    #[inline]
    pub fn fits(&self, free: u64) -> bool {
        self.end - free <= AREA
    }
}

/// An anonymous file in memory.
pub fn memfd(name: &std::ffi::CStr, flags: u32) -> Result<Descriptor> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | flags;
    // SAFETY: the call has no preconditions; it returns a new descriptor or an error.
    Descriptor::opened(|| unsafe { libc::memfd_create(name.as_ptr(), flags) })
        .ok_or_else(|| Error::system("making memory that can be shared"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn channel_blocks_never_wrap_or_overlap() {
        let (mut at, mut free, mut seed) = (0u64, 0u64, 1u64);
        let mut open: std::collections::VecDeque<Block> = Default::default();
        for _ in 0..10_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let len = (seed >> 33) % (AREA / 2 + 1);
            let block = Block::after(at, len);
            while !block.fits(free) {
                free = open.pop_front().expect("an empty area has room").end;
            }
            assert!(block.start % AREA + (block.end - block.start) <= AREA);
            assert!(block.end - block.start >= len && block.start >= at && block.start % 64 == 0);
            open.push_back(block);
            at = block.end;
        }
    }

    #[test]
    fn channel_attaches_only_sealed_files_of_its_size() {
        let (_channel, fd) = Channel::create().unwrap();
        assert!(Channel::attach(fd.as_fd()).is_ok());
        let open = memfd(c"test", 0).unwrap();
        // SAFETY: the descriptor is open during the call.
        unsafe { libc::ftruncate(open.as_raw_fd(), WHOLE as libc::off_t) };
        assert!(Channel::attach(open.as_fd()).is_err());
        let short = memfd(c"test", 0).unwrap();
        // SAFETY: the descriptor is open during the call.
        unsafe { libc::fcntl(short.as_raw_fd(), libc::F_ADD_SEALS, SEALS) };
        assert!(Channel::attach(short.as_fd()).is_err());
    }

    fn sealed(name: &std::ffi::CStr, flags: u32, len: u64, seals: i32) -> Option<Descriptor> {
        let file = memfd(name, flags).ok()?;
        // SAFETY: the descriptor is open during the call.
        unsafe {
            (libc::ftruncate(file.as_raw_fd(), len as libc::off_t) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) == 0)
                .then_some(file)
        }
    }

    /// The kernel would map whole huge pages, which are more than was reserved.
    #[test]
    fn channel_of_huge_pages_is_rejected() {
        let flags = libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
        let Some(file) = sealed(c"test", flags, 2 * HUGE as u64, SEALS) else { return };
        assert!(Channel::attach(file.as_fd()).is_err());
        for len in [HUGE as u64 + 1, 4096, 2 * HUGE as u64] {
            assert!(Mapping::of_area(file.as_fd(), len).is_err(), "{len}");
        }
    }

    /// Reading the holes would allocate memory here, or fault.
    #[test]
    fn area_with_holes_is_rejected() {
        let len = 2 * HUGE as u64;
        for seals in [area_seals(), SEALS] {
            let file = sealed(c"test", 0, len, seals).unwrap();
            assert!(Mapping::of_area(file.as_fd(), len).is_err());
        }
        let write = |file: &Descriptor, at: u64, len: u64| {
            let bytes = vec![1u8; len as usize];
            // SAFETY: reads from `bytes`.
            let rc = unsafe {
                libc::pwrite(file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), at as libc::off_t)
            };
            assert_eq!(rc, len as isize);
        };
        // As many blocks as a whole area has, behind a hole; and behind the file's end.
        for (at, end) in [(4096, 2 * len), (0, len)] {
            let file = memfd(c"test", 0).unwrap();
            write(&file, at, len - 4096);
            // SAFETY: the descriptor is open during the calls.
            unsafe {
                assert_eq!(libc::ftruncate(file.as_raw_fd(), end as libc::off_t), 0);
                let keep = libc::FALLOC_FL_KEEP_SIZE;
                assert_eq!(libc::fallocate(file.as_raw_fd(), keep, end as libc::off_t, 1 << 20), 0);
                assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, area_seals()), 0);
            }
            assert!(Mapping::of_area(file.as_fd(), len).is_err(), "written from {at}, {end} bytes");
        }
        let file = memfd(c"test", 0).unwrap();
        write(&file, 0, len);
        // SAFETY: the descriptor is open during the call.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, area_seals()) }, 0);
        assert!(Mapping::of_area(file.as_fd(), len).is_ok());
        assert!(Mapping::of_area(file.as_fd(), len + 4096).is_err());
        assert!(Mapping::of_area(file.as_fd(), 100).is_err());
        // Neither side can punch out the pages again.
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the descriptor is open during the call.
        let rc = unsafe { libc::fallocate(file.as_raw_fd(), hole, 0, 4096) };
        assert!(rc != 0 || area_seals() == (SEALS | libc::F_SEAL_SEAL));
    }
}
