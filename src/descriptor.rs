//! The descriptors that Weft opens.
//!
//! None of them is 0, 1 or 2: where the program has closed those, what anything writes to standard
//! output or error would go into a connection. And a forked child closes its copies, or peers would
//! not notice the parent's death while the child lives; close-on-exec covers only children that
//! exec.

use crate::failing::step;
use crate::fork;
use parking_lot::{RwLock, RwLockWriteGuard};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The first descriptor that is not one of the program's standard ones.
pub const FIRST: RawFd = 3;

/// Descriptors that a child closes, one bit each. Descriptors beyond this, which are rare, stay
/// open in the child.
const WORDS: usize = (1 << 20) / 64;
static OURS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// The number of words in use, from the first on.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Those who open and close share it, since a system call may wait. A fork has it alone, so that every open descriptor
/// has its bit set.
static CHANGES: RwLock<()> = RwLock::new(());

/// A descriptor that forked children close.
#[derive(Debug)]
pub struct Descriptor(RawFd);

impl Descriptor {
    /// Wraps the descriptor that `make` returns, which nothing else may own; `None`, with `errno`, if
    /// it is negative.
    pub fn opened(make: impl FnOnce() -> RawFd) -> Option<Descriptor> {
        let _changes = CHANGES.read();
        let fd = above_standard(make());
        let fd = if fd >= 0 && step("a descriptor") { lack_of(fd) } else { fd };
        mark(fd);
        (fd >= 0).then(|| Descriptor(fd))
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open until `self` is dropped.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if fork::is_child() {
            return; // The fork closed it, and its number may be reused.
        }
        let _changes = CHANGES.read();
        unmark(self.0);
        // SAFETY: nothing else owns the descriptor.
        unsafe { libc::close(self.0) };
    }
}

/// The descriptor of something that closes it by itself, which forked children close, too.
pub struct Shared(RawFd);

impl Shared {
    pub fn new(fd: RawFd) -> Shared {
        let _changes = CHANGES.read();
        mark(fd);
        Shared(fd)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !fork::is_child() {
            let _changes = CHANGES.read();
            unmark(self.0);
        }
    }
}

fn mark(fd: RawFd) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
        USED.fetch_max(fd as usize / 64 + 1, Ordering::Relaxed);
    }
}

fn unmark(fd: RawFd) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OURS.get(fd / 64)?, 1 << (fd % 64)))
}

/// As if all descriptors had been in use instead.
fn lack_of(fd: RawFd) -> RawFd {
    // SAFETY: the descriptor is new, so nothing else uses it; the number is the thread's last error.
    unsafe {
        libc::close(fd);
        *libc::__errno_location() = libc::EMFILE;
    }
    -1
}

/// A new descriptor, or its duplicate where it is a standard one; negative, with `errno`, if it is
/// negative or there is no duplicate.
fn above_standard(fd: RawFd) -> RawFd {
    if !(0..FIRST).contains(&fd) {
        return fd;
    }
    // SAFETY: the descriptor is new, so nothing else uses it, and it is closed once.
    unsafe {
        let moved = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, FIRST);
        let errno = *libc::__errno_location();
        libc::close(fd);
        *libc::__errno_location() = errno;
        moved
    }
}

/// Opens a file, for as long as a call needs it: children may keep it.
pub fn open(options: &OpenOptions, path: impl AsRef<Path>) -> io::Result<File> {
    let fd = above_standard(options.open(path)?.into_raw_fd());
    let fd = if fd >= 0 && step("a file") { lack_of(fd) } else { fd };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is the opened file's, which was given up, or its only duplicate.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(OpenOptions::new().read(true), path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    let mut text = String::new();
    open(OpenOptions::new().read(true), path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Waits for at most this long until no descriptor is being opened or closed, and prevents it until
/// the guard is dropped.
pub fn hold(at_most: Duration) -> Option<RwLockWriteGuard<'static, ()>> {
    CHANGES.try_write_for(at_most)
}

/// # Safety
/// This thread has forgotten a guard of `hold`.
pub unsafe fn release() {
    // SAFETY: this thread has the lock, whose guard will not unlock it.
    unsafe { CHANGES.force_unlock_write() };
}

/// Closes all of them in a forked child.
pub fn close_all() {
    for (at, word) in OURS.iter().enumerate().take(USED.load(Ordering::Relaxed)) {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            // SAFETY: the child's copy of a descriptor of the library, which nothing in the child
            // uses.
            unsafe { libc::close((at * 64) as RawFd + bits.trailing_zeros() as RawFd) };
            bits &= bits - 1;
        }
    }
}
