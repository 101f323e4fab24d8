//! The buffers that pages are moved between: the same for every engine.

use crate::pages::{mix, Lists};
use ::weft::capi::memory::weft_memory_range;
use anyhow::{bail, Result};
use std::ops::{Deref, DerefMut};
use std::ptr;

const HUGE: usize = 2 << 20;
/// The contents of a target's pages before a verified transfer.
const WIPED: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// Anonymous memory for the life of the process, which takes no memory until it is touched.
pub fn untouched(len: usize) -> Result<*mut u8> {
    map(len, libc::MAP_NORESERVE)
}

fn map(len: usize, flags: i32) -> Result<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: the call makes a new mapping, and replaces none.
    let base = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        bail!("mapping {len} bytes: {}", std::io::Error::last_os_error());
    }
    Ok(base.cast())
}

/// A pool of pages in anonymous memory, on huge pages where the system allows it. A clone names the
/// same pages.
#[derive(Clone)]
pub struct Pool {
    base: *mut u8,
    pub page_len: usize,
    pub pages: usize,
}

impl Pool {
    pub fn new(page_len: usize, pages: usize) -> Result<Pool> {
        if page_len == 0 || page_len % 8 != 0 || pages == 0 || pages > u32::MAX as usize {
            bail!("{pages} pages of {page_len} bytes: pages must be multiples of 8 bytes");
        }
        let len = (page_len * pages).next_multiple_of(HUGE) + HUGE;
        let base = (map(len, 0)? as usize).next_multiple_of(HUGE) as *mut u8;
        // SAFETY: the range lies inside the mapping. It is advice only: without huge pages all
        // engines are slower alike.
        unsafe { libc::madvise(base.cast(), len - HUGE, libc::MADV_HUGEPAGE) };
        let mut pool = Pool { base, page_len, pages };
        pool.wipe();
        Ok(pool)
    }

    /// A pool in memory that takes nothing until it is touched.
    pub fn untouched(page_len: usize, pages: usize) -> Result<Pool> {
        Ok(Pool { base: untouched(page_len * pages)?, page_len, pages })
    }

    /// A pool in memory from elsewhere.
    ///
    /// # Safety
    /// The memory must be long enough, aligned to words, exclusively ours, and never freed.
    pub unsafe fn at(base: *mut u8, page_len: usize, pages: usize) -> Pool {
        let mut pool = Pool { base, page_len, pages };
        pool.wipe();
        pool
    }

    pub fn base(&self) -> *mut u8 {
        self.base
    }

    pub fn len(&self) -> usize {
        self.page_len * self.pages
    }

    pub fn range(&self) -> weft_memory_range {
        weft_memory_range { address: self.base.cast(), len: self.len() as u64 }
    }

    /// Reads are volatile: fabrics write here, though not during verification.
    fn words(&mut self) -> &mut [u64] {
        // SAFETY: the mapping is ours and aligned, and no transfer is in flight.
        unsafe { std::slice::from_raw_parts_mut(self.base.cast(), self.len() / 8) }
    }

    /// The source's pages: all words differ.
    pub fn fill(&mut self) {
        for (i, word) in self.words().iter_mut().enumerate() {
            *word = mix(i as u64 + 1);
        }
    }

    pub fn wipe(&mut self) {
        self.words().fill(WIPED);
    }

    /// Checks that a wiped target's pages now have the source's contents, and that no other page
    /// was touched. Returns the first mismatch.
    pub fn verify(&mut self, lists: &Lists) -> std::result::Result<(), String> {
        let per_page = self.page_len / 8;
        let mut from: Vec<Option<u32>> = vec![None; self.pages];
        for (source, target) in lists.source.iter().zip(&lists.target) {
            from[*target as usize] = Some(*source);
        }
        for (page, words) in self.words().chunks_exact(per_page).enumerate() {
            for (i, word) in words.iter().enumerate() {
                let wanted = match from[page] {
                    Some(source) => mix((source as usize * per_page + i) as u64 + 1),
                    None => WIPED,
                };
                if *word != wanted {
                    return Err(format!(
                        "page {page}, byte {}: {word:#018x} instead of {wanted:#018x}",
                        i * 8
                    ));
                }
            }
        }
        Ok(())
    }
}

/// A pool whose pages the system gets back when it is dropped. The range stays mapped: an endpoint that could not be closed
/// may still use it.
pub struct Lent(Pool);

impl Lent {
    pub fn new(page_len: usize, pages: usize) -> Result<Lent> {
        Pool::new(page_len, pages).map(Lent)
    }
}

impl Deref for Lent {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.0
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Pool {
        &mut self.0
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Whole huge pages: one that is given back in part stays in memory. `Pool::new` has mapped them.
        let len = self.len().next_multiple_of(HUGE);
        // SAFETY: the range is our own mapping, and stays one.
        if unsafe { libc::madvise(self.base().cast(), len, libc::MADV_DONTNEED) } != 0 {
            eprintln!("weft-bench: giving {len} bytes back: {}", std::io::Error::last_os_error());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(pool: &Pool, page: u32) -> *mut u8 {
        pool.base().wrapping_add(page as usize * pool.page_len)
    }

    #[test]
    fn verification_finds_missing_and_stray_bytes() {
        let (mut source, mut target) = (Pool::new(64, 8).unwrap(), Pool::new(64, 8).unwrap());
        source.fill();
        let lists = Lists::random(1, 4, 8);
        for (from, to) in lists.source.iter().zip(&lists.target) {
            // SAFETY: the pages belong to two different pools.
            unsafe { ptr::copy_nonoverlapping(page(&source, *from), page(&target, *to), 64) };
        }
        assert_eq!(target.verify(&lists), Ok(()));
        // SAFETY: the byte lies in the pool.
        unsafe { *page(&target, lists.target[2]).add(9) ^= 1 };
        assert!(target.verify(&lists).is_err());
        target.wipe();
        assert!(target.verify(&lists).is_err());
    }
}
