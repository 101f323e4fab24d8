//! Tells the processor what will be written soon.

/// Has all of a value brought near, to be written to: other processors have it.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn to_write<T>(value: &T) {
    const LINE: usize = 64;
    let at = std::ptr::from_ref(value).cast::<u8>();
    for line in (0..size_of::<T>()).step_by(LINE) {
        // SAFETY: a hint, which every such processor at least ignores. (`_mm_prefetch` asks for
        // a line to be read only, unless the program is made for newer processors.)
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) at.add(line), options(nostack, preserves_flags, readonly));
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub fn to_write<T>(_value: &T) {}
