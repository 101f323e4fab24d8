//! Prefetches memory that will be written soon.

/// Prefetches all of a value for writing, from other processors' caches.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub fn to_write<T>(value: &T) {
    const LINE: usize = 64;
    let at = std::ptr::from_ref(value).cast::<u8>();
    for line in (0..size_of::<T>()).step_by(LINE) {
        // SAFETY: the instruction is a hint, which older processors ignore. (`_mm_prefetch` requests a line for
        // reading only, unless the program is compiled for newer processors.)
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) at.add(line), options(nostack, preserves_flags, readonly));
        }
    }
}

#[cfg(any(not(target_arch = "x86_64"), miri))]
#[inline]
pub fn to_write<T>(_value: &T) {}
