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
    // Miri sees into everything, and reports each copy that nothing orders with other accesses.
    #[cfg(miri)]
    // SAFETY: the caller has made sure that these bytes can be read and written.
    unsafe {
        std::ptr::copy(from, to, len)
    };
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
