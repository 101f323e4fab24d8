//! A side's bytes. Ranges of memories lie in it, and may overlap.

use std::ffi::c_void;

pub const LEN: usize = 512 << 10;

/// Mapped, and not a `Vec`: NICs and other threads write here behind our back.
pub struct Arena(*mut u8);

impl Arena {
    pub fn new(content: &[u8]) -> Arena {
        assert_eq!(content.len(), LEN);
        // SAFETY: a fresh private mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                LEN,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED, "no memory for a test");
        // SAFETY: it holds LEN bytes.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), base.cast(), LEN) };
        Arena(base.cast())
    }

    pub fn at(&self, offset: usize) -> *mut c_void {
        assert!(offset <= LEN);
        // SAFETY: within the mapping, or one past it.
        unsafe { self.0.add(offset).cast() }
    }

    /// What is there now.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= LEN);
        let mut bytes = vec![0; len];
        // SAFETY: within the mapping; what is written meanwhile may be seen or not.
        unsafe { std::ptr::copy_nonoverlapping(self.0.add(offset), bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Gives the mapping back: nothing may use it any more.
    pub fn unmap(&mut self) {
        // SAFETY: our own mapping; the caller has closed what used it.
        unsafe { libc::munmap(self.0.cast(), LEN) };
        self.0 = std::ptr::null_mut();
    }
}
