//! How bytes are copied.
//!
//! A probe on 4 cores of an EPYC (Zen 4) between two processes measured this: random pages out of
//! 128 MiB on huge pages, relative to a plain memcpy of the same pages by one thread (GB/s in
//! brackets):
//!
//! | | 4 KiB | 64 KiB |
//! | --- | --- | --- |
//! | `process_vm_readv`, 64 pages a call | 0.42 (2.9) | 0.42 (5.1) |
//! | through a ring of 1 MiB, stored past the caches by both sides | 1.26 (8.8) | 0.90 (11.1) |
//! | the same, through the caches | 1.32 (9.2), or 0.3 | 1.07 (13.2), or 0.18 |
//! | by one side, out of shared memory, past the caches | 1.21 (8.4) | 1.27 (15.6) |
//!
//! Cache lines in another core's cache come slowly where the two cores share no cache (the second
//! numbers), while memory costs the same for all cores. So large copies bypass the caches: single 4
//! KiB writes then reach 0.65 of memcpy instead of 0.25 between such cores. Cross-memory reads
//! never win: they pin each page. `weft-bench figures --only 'host_*'` measures the whole.

use crate::bytes;
use crate::fabric::FAULT;
use crate::kernel_copy;

/// Whether a request's bytes bypass the caches: large requests do, and smaller ones under load.
/// Other bytes are probably awaited, and arrive sooner in a cache.
#[inline]
pub fn streams(len: u64, under_way: u64) -> bool {
    len >= 32 << 10 || len >= 2048 && under_way >= 8
}

/// Copies `len` bytes, which others may change meanwhile (`bytes`).
///
/// # Safety
/// `from` must be readable and `to` writable for `len` bytes. Others may read and write both meanwhile.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize, stream: bool) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if stream && len >= 1024 {
        // SAFETY: the contract is the same.
        return unsafe { x86::stream(to, from, len) };
    }
    let _ = stream;
    // SAFETY: the contract is the same.
    unsafe { bytes::copy(to, from, len) };
}

/// The same for memory that may fault: an error number if some of it could not be reached.
///
/// # Safety
/// As `copy`, except for pages that have become unreachable.
#[inline]
pub unsafe fn copy_or_fail(
    to: *mut u8,
    from: *const u8,
    len: usize,
    stream: bool,
    may_fault: bool,
) -> Result<(), i32> {
    // SAFETY: neither copy goes beyond `len` bytes, and only the kernel's meets pages that are gone.
    unsafe {
        if may_fault {
            return if kernel_copy::copy(to, from, len) { Ok(()) } else { Err(FAULT) };
        }
        copy(to, from, len, stream);
    }
    Ok(())
}

/// Makes stores that bypass the caches visible before later stores.
#[inline]
pub fn settle(stream: bool) {
    #[cfg(target_arch = "x86_64")]
    if stream {
        // SAFETY: the instruction has no preconditions.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }
    let _ = stream;
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use crate::bytes;
    use std::arch::asm;

    /// Whole cache lines bypass the caches; the ends do not. In assembly for the reason that `bytes` gives.
    ///
    /// # Safety
    /// The same contract as `copy`.
    pub unsafe fn stream(to: *mut u8, from: *const u8, len: usize) {
        let head = to.align_offset(64).min(len);
        let lines = (len - head) / 64;
        let tail = head + lines * 64;
        // SAFETY: the three parts make up `len` bytes. The middle one has whole lines, at least one, and begins on a line
        // of `to`.
        unsafe {
            bytes::copy(to, from, head);
            asm!(
                "2:",
                "movdqu {a}, xmmword ptr [{from}]",
                "movdqu {b}, xmmword ptr [{from} + 16]",
                "movdqu {c}, xmmword ptr [{from} + 32]",
                "movdqu {d}, xmmword ptr [{from} + 48]",
                "movntdq xmmword ptr [{to}], {a}",
                "movntdq xmmword ptr [{to} + 16], {b}",
                "movntdq xmmword ptr [{to} + 32], {c}",
                "movntdq xmmword ptr [{to} + 48], {d}",
                "add {from}, 64",
                "add {to}, 64",
                "dec {lines}",
                "jnz 2b",
                from = inout(reg) from.add(head) => _,
                to = inout(reg) to.add(head) => _,
                lines = inout(reg) lines => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack),
            );
            bytes::copy(to.add(tail), from.add(tail), len - tail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_writes_exactly_the_range_at_every_length_and_alignment() {
        let source: Vec<u8> = (0..3000u32).map(|i| (i * 7 + 1) as u8).collect();
        for len in [0, 1, 63, 64, 1023, 1024, 1025, 1500, 2048, 2900] {
            for at in [0, 1, 8, 63] {
                let mut target = vec![0u8; 3100];
                // SAFETY: both vectors are longer than the offset plus the length.
                unsafe { copy(target.as_mut_ptr().add(at), source.as_ptr().add(at), len, true) };
                settle(true);
                assert_eq!(target[at..at + len], source[at..at + len], "{len} bytes at {at}");
                assert!(target[..at].iter().chain(&target[at + len..]).all(|byte| *byte == 0));
            }
        }
    }
}
