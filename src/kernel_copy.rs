//! Copies within this process that the kernel makes. Where a page cannot be had, as behind the end
//! of a file that was truncated, the kernel says so; an access by the CPU would end the process.

use crate::bytes;
use crate::descriptor;
use arrayvec::ArrayVec;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

/// Bytes probed by one call.
const PROBES: usize = 64;

/// The smallest page of the machines that Linux runs on.
const PAGE: u64 = 4096;

/// Copies `len` bytes; false if not all of them could be read or written.
///
/// # Safety
/// The addresses belong to memory that the caller may read, and write, for `len` bytes, except for
/// pages that have become unreachable. Nothing in Rust borrows the bytes at `to`.
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> bool {
    let (mut done, all) = (0, len);
    while done < all {
        // SAFETY: both stay inside the caller's ranges.
        let copied = unsafe { step(to.add(done), from.add(done), all - done) };
        match copied {
            Ok(0) => return false,
            Ok(bytes) => done += bytes,
            Err(Failed::Unreachable) => return false,
            Err(Failed::Unavailable) => {
                // SAFETY: the rest of both ranges lies in memory that the caller may access; whether all
                // pages are there, nothing says here.
                unsafe { bytes::copy(to.add(done), from.add(done), all - done) };
                return true;
            }
        }
    }
    true
}

/// Whether a byte can be read at each of these addresses, for which the kernel makes the pages that
/// are not there yet. True where the kernel does not say.
pub fn can_read(addresses: impl Iterator<Item = u64>) -> bool {
    let mut addresses = addresses.peekable();
    while addresses.peek().is_some() {
        let mut bytes = [0u8; PROBES];
        let one = |address| libc::iovec { iov_base: address as *mut _, iov_len: 1 };
        let from: ArrayVec<libc::iovec, PROBES> = addresses.by_ref().take(PROBES).map(one).collect();
        let to = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: from.len() };
        // SAFETY: the call writes to `bytes` only, and reports addresses that cannot be read.
        let got = unsafe {
            libc::process_vm_readv(libc::getpid(), &to, 1, from.as_ptr(), from.len() as libc::c_ulong, 0)
        };
        let all = match failed(got) {
            Ok(read) => read == from.len(),
            Err(Failed::Unreachable) => false,
            Err(Failed::Unavailable) => memory().is_none_or(|memory| {
                from.iter().all(|at| memory.read_exact_at(&mut [0], at.iov_base as u64).is_ok())
            }),
        };
        if !all {
            return false;
        }
    }
    true
}

/// Whether each page of a range can be read.
pub fn can_read_all(address: u64, len: u64) -> bool {
    let end = address + len;
    can_read((address & !(PAGE - 1)..end).step_by(PAGE as usize).map(|page| page.max(address)))
}

enum Failed {
    Unreachable,
    /// This process may not make the call.
    Unavailable,
}

fn failed(rc: isize) -> Result<usize, Failed> {
    usize::try_from(rc).map_err(|_| match io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM) => Failed::Unavailable,
        _ => Failed::Unreachable,
    })
}

/// # Safety
/// As for `copy`.
unsafe fn step(to: *mut u8, from: *const u8, len: usize) -> Result<usize, Failed> {
    let (to_part, from_part) = (
        libc::iovec { iov_base: to.cast(), iov_len: len },
        libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len },
    );
    // SAFETY: the kernel writes at most `len` bytes at `to`, which nothing borrows, and reports pages
    // that it cannot reach.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &to_part, 1, &from_part, 1, 0) };
    match failed(copied) {
        Err(Failed::Unavailable) => {
            let memory = memory().ok_or(Failed::Unavailable)?;
            use std::os::fd::AsRawFd;
            // SAFETY: this call writes at most `len` bytes at `to`, too, and reports such pages.
            let read =
                unsafe { libc::pread(memory.as_raw_fd(), to.cast(), len, from as usize as libc::off_t) };
            usize::try_from(read).map_err(|_| Failed::Unreachable)
        }
        copied => copied,
    }
}

/// This process's memory as a file, for where it may not call `process_vm_readv`; `None` without
/// /proc. It stays open.
fn memory() -> Option<&'static File> {
    static MEMORY: OnceLock<Option<File>> = OnceLock::new();
    MEMORY.get_or_init(|| descriptor::open(OpenOptions::new().read(true), "/proc/self/mem").ok()).as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn pages_behind_the_end_of_a_file_are_reported() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(8192).expect("two pages");
        // SAFETY: makes a mapping that nothing else has, and which stays.
        let base = unsafe {
            let (rights, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
            libc::mmap(std::ptr::null_mut(), 8192, rights, libc::MAP_SHARED, fd, 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        let base = base.cast::<u8>();
        file.set_len(4096).expect("one page");
        let (ones, mut got) = ([1u8; 8192], [0u8; 8192]);
        // SAFETY: the mapping has 8192 bytes, as both arrays.
        unsafe {
            assert!(copy(base, ones.as_ptr(), 4096) && copy(got.as_mut_ptr(), base, 4096));
            assert!(!copy(base, ones.as_ptr(), 8192) && !copy(got.as_mut_ptr(), base, 8192));
        }
        assert_eq!(got[..4096], ones[..4096]);
        let at = base as u64;
        assert!(can_read([at, at + 4095].into_iter()) && !can_read([at, at + 4096].into_iter()));
        assert!(memory().is_some_and(|memory| memory.read_exact_at(&mut [0], at + 4096).is_err()));
    }
}
