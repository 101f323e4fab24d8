//! An open file: what it may be, and Weft's own descriptors of it, reopened by their names in /proc.

use super::plan::Geometry;
use crate::descriptor::Descriptor;
use crate::device::unsupported;
use crate::status::{Error, Result, Status};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Whole pages, so that a page of the page cache never has both bytes that were written directly and
/// bytes that another writer has not yet written back.
const BLOCK: u64 = 4096;
/// The alignment of memory where the system does not say what a disk asks for.
const MEMORY: u64 = 4096;

pub struct Opened {
    pub name: String,
    pub readable: bool,
    pub writable: bool,
    /// Beginning an I/O may wait for the disk: a file system reads maps of blocks and writes to its journal,
    /// even where it was asked not to wait.
    pub waits: bool,
    /// Device and inode, or a block device: another registration may be of the same file.
    pub inode: (u64, u64),
    /// A job that takes longer hangs.
    pub patience: Duration,
    cached: Descriptor,
    direct: Option<(Descriptor, Geometry)>,
    /// Direct I/O was refused after all.
    refused: AtomicBool,
    /// It is being deregistered: nothing more begins.
    closing: AtomicBool,
    /// 0, or why it was not flushed: what was written to it may be lost, so it serves no longer.
    /// All registrations of a file share it: a disk that drops what it could not write says so to one of them.
    spoiled: Arc<AtomicI32>,
    /// I/Os that the kernel has.
    busy: AtomicUsize,
    /// Those of them whose jobs hang. Only the thread that carries out jobs changes it.
    pub overdue: AtomicUsize,
}

impl Opened {
    /// The device that its file is on.
    pub fn disk(&self) -> u64 {
        self.inode.0
    }

    /// Opens the file of a caller's descriptor again.
    pub fn new(theirs: RawFd, patience: Duration) -> Result<Opened> {
        let name = std::fs::read_link(format!("/proc/self/fd/{theirs}"));
        let name = name.map_or_else(|_| format!("descriptor {theirs}"), |name| name.display().to_string());
        let stat = stat(theirs)?;
        // SAFETY: the call takes no pointers.
        let flags = unsafe { libc::fcntl(theirs, libc::F_GETFL) };
        let is_disk = stat.st_mode & libc::S_IFMT == libc::S_IFBLK;
        if !is_disk && stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Error::invalid(format!("fd {theirs} ({name}) is neither a file nor a block device")));
        }
        if flags < 0 || flags & libc::O_PATH != 0 {
            return Err(Error::invalid(format!("fd {theirs} ({name}) is open neither to read nor to write")));
        }
        if flags & libc::O_APPEND != 0 {
            return Err(Error::invalid(format!(
                "fd {theirs} ({name}) is open with O_APPEND, with which writes go to the end: open it without"
            )));
        }
        let mode = flags & libc::O_ACCMODE;
        let kept = flags & (libc::O_ACCMODE | libc::O_SYNC); // O_DSYNC is a part of O_SYNC
        if is_disk && mode != libc::O_RDONLY {
            // Fails while a file system is mounted from it.
            reopen(theirs, mode | libc::O_EXCL).ok_or_else(|| {
                let why = std::io::Error::last_os_error();
                Error::invalid(format!(
                    "fd {theirs} ({name}) is a writable block device in use (mounted?): {why}"
                ))
            })?;
        }
        let cached = reopen(theirs, kept).ok_or_else(|| {
            let why = std::io::Error::last_os_error();
            unsupported(format!("fd {theirs} ({name}) cannot be opened again by its name in /proc: {why}"))
        })?;
        let inode = if is_disk { (stat.st_rdev, 0) } else { (stat.st_dev, stat.st_ino) };
        let geometry = geometry(theirs);
        let direct = geometry.and_then(|geometry| Some((reopen(theirs, kept | libc::O_DIRECT)?, geometry)));
        if direct.is_none() {
            log::warn!("{name}: its file system refuses O_DIRECT: transfers go through the page cache");
        }
        Ok(Opened {
            name,
            readable: mode != libc::O_WRONLY,
            writable: mode != libc::O_RDONLY,
            waits: !is_disk,
            inode,
            patience,
            cached,
            direct,
            refused: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            spoiled: shared(inode),
            busy: AtomicUsize::new(0),
            overdue: AtomicUsize::new(0),
        })
    }

    /// What direct I/O asks for; `None`: all goes through the page cache.
    pub fn geometry(&self) -> Option<&Geometry> {
        let refused = self.refused.load(Ordering::Relaxed);
        self.direct.as_ref().filter(|_| !refused).map(|(_, geometry)| geometry)
    }

    /// The descriptor for I/O; direct if it suits.
    pub fn descriptor(&self, direct: bool) -> RawFd {
        match &self.direct {
            Some((descriptor, _)) if direct => descriptor.as_raw_fd(),
            _ => self.cached.as_raw_fd(),
        }
    }

    /// The file system accepts O_DIRECT, but not the I/O.
    pub fn refuse_direct(&self) {
        if !self.refused.swap(true, Ordering::Relaxed) {
            log::warn!(
                "{}: direct I/O was refused: transfers go through the page cache from here on",
                self.name
            );
        }
    }

    /// A flush failed. The kernel forgets what it could not write, and the next one would succeed.
    pub fn spoil(&self, errno: i32) {
        if self.spoiled.swap(errno, Ordering::Relaxed) == 0 {
            let why = std::io::Error::from_raw_os_error(errno);
            log::error!(
                "{}: fdatasync failed ({why}), so what was written before may be lost: the memory refuses all transfers \
                 until the file is registered anew",
                self.name
            );
        }
    }

    /// 0, or the error number with which a flush failed.
    pub fn spoiled(&self) -> i32 {
        self.spoiled.load(Ordering::Relaxed)
    }

    // What the kernel has.

    /// Counts an I/O; false once nothing may begin.
    pub fn begin(&self) -> bool {
        self.busy.fetch_add(1, Ordering::SeqCst);
        let begins = !self.closing.load(Ordering::SeqCst);
        if !begins {
            self.end();
        }
        begins
    }

    pub fn end(&self) {
        self.busy.fetch_sub(1, Ordering::SeqCst);
    }

    pub fn busy(&self) -> usize {
        self.busy.load(Ordering::SeqCst)
    }

    /// From here on, nothing begins.
    pub fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }
}

/// What the registrations of a file in this process share, unless a flush of it has failed: 0.
fn shared(inode: (u64, u64)) -> Arc<AtomicI32> {
    static ALL: Mutex<BTreeMap<(u64, u64), Weak<AtomicI32>>> = Mutex::new(BTreeMap::new());
    let mut all = ALL.lock();
    all.retain(|_, known| known.strong_count() > 0);
    let known = all.get(&inode).and_then(Weak::upgrade).filter(|known| known.load(Ordering::Relaxed) == 0);
    known.unwrap_or_else(|| {
        let new = Arc::default();
        all.insert(inode, Arc::downgrade(&new));
        new
    })
}

fn stat(fd: RawFd) -> Result<libc::stat> {
    let mut stat = MaybeUninit::uninit();
    // SAFETY: the kernel fills in `stat`, or returns an error.
    match unsafe { libc::fstat(fd, stat.as_mut_ptr()) } {
        // SAFETY: the call succeeded, so it has filled in all of `stat`.
        0 => Ok(unsafe { stat.assume_init() }),
        _ => {
            let why = std::io::Error::last_os_error();
            Err(Error::new(Status::Invalid, format!("fd is {fd}, which is not open: {why}")))
        }
    }
}

fn reopen(fd: RawFd, flags: i32) -> Option<Descriptor> {
    let path = CString::new(format!("/proc/self/fd/{fd}")).ok()?;
    // SAFETY: the path is a string that ends.
    Descriptor::opened(|| unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) })
}

/// What direct I/O asks for; `None`: it is not supported. Before Linux 6.1 no file says so.
fn geometry(fd: RawFd) -> Option<Geometry> {
    let mut seen = MaybeUninit::<libc::statx>::zeroed();
    let (flags, mask) = (libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN);
    // SAFETY: the path is an empty string, and the kernel fills in `seen`.
    let rc = unsafe { libc::statx(fd, c"".as_ptr(), flags, mask, seen.as_mut_ptr()) };
    // SAFETY: zero is valid for all of it, and so is what the kernel filled in.
    let seen = unsafe { seen.assume_init() };
    if rc != 0 || seen.stx_mask & mask == 0 {
        return Some(Geometry { block: BLOCK, memory: MEMORY });
    }
    let (memory, offset) = (u64::from(seen.stx_dio_mem_align), u64::from(seen.stx_dio_offset_align));
    let usable = memory.is_power_of_two() && offset.is_power_of_two() && offset.max(memory) <= 1 << 16;
    usable.then(|| Geometry { block: offset.max(BLOCK), memory })
}
