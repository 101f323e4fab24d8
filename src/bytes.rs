//! Bytes that others may change while they are copied: NICs, peers, and other threads of the program use the callers'
//! memory when they please.
//!
//! An ordinary copy tells the compiler that nobody else does: if it coincides with a write, that is a data race, which
//! is undefined, though any mixture of old and new bytes would do. So what copies for transfers is code that the
//! compiler cannot see into, just as it does not see what a NIC does. Only the processor's rules hold for it, and by these
//! a byte that changes meanwhile is read as it was or as it is.

/// Copies bytes. The ranges may overlap: two endpoints of one process may have the same memory.
///
/// # Safety
/// `from` must be readable and `to` writable for `len` bytes. Others may read and write both meanwhile.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    #[cfg(not(miri))]
    // SAFETY: `memmove` touches these bytes alone, and the caller has made sure that they can be read and written.
    unsafe {
        hidden_memmove()(to.cast(), from.cast(), len)
    };
    // Miri sees into everything, and reports each copy that nothing orders with other accesses but such atomics.
    #[cfg(miri)]
    // SAFETY: the caller has made sure that these bytes can be read and written.
    unsafe {
        copy_by_atomics(to, from, len)
    };
}

/// What a copy is to Miri: words as those of `api::words`, and single bytes around them.
///
/// # Safety
/// As for `copy`.
#[cfg(miri)]
unsafe fn copy_by_atomics(to: *mut u8, from: *const u8, len: usize) {
    use std::sync::atomic::{AtomicU64, AtomicU8, Ordering::Relaxed};
    let parts = |base: *const u8| {
        let head = base.align_offset(8).min(len);
        let tail = head + (len - head) / 8 * 8;
        (0..head)
            .map(|at| (at, 1))
            .chain((head..tail).step_by(8).map(|at| (at, 8)))
            .chain((tail..len).map(|at| (at, 1)))
    };
    // All of them first: the ranges may overlap.
    let mut bytes = vec![0; len];
    for (at, size) in parts(from) {
        // SAFETY: the part is inside the range, which can be read, and aligned.
        unsafe {
            let from = from.add(at).cast_mut();
            match size {
                1 => bytes[at] = AtomicU8::from_ptr(from).load(Relaxed),
                _ => bytes[at..at + 8]
                    .copy_from_slice(&AtomicU64::from_ptr(from.cast()).load(Relaxed).to_ne_bytes()),
            }
        }
    }
    for (at, size) in parts(to) {
        // SAFETY: the part is inside the range, which can be written, and aligned.
        unsafe {
            let to = to.add(at);
            match size {
                1 => AtomicU8::from_ptr(to).store(bytes[at], Relaxed),
                _ => {
                    let mut word = [0; 8];
                    word.copy_from_slice(&bytes[at..at + 8]);
                    AtomicU64::from_ptr(to.cast()).store(u64::from_ne_bytes(word), Relaxed);
                }
            }
        }
    }
}

#[cfg(not(miri))]
type Memmove = unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void;

/// `memmove`, by an address about which the compiler knows nothing.
#[cfg(not(miri))]
#[inline(always)]
fn hidden_memmove() -> Memmove {
    let mut address: Memmove = libc::memmove;
    // SAFETY: there is no instruction: the register keeps its value.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) address, options(pure, readonly, nostack, preserves_flags))
    };
    address
}
