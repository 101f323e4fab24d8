//! Tells the processor what will be written soon.

/// Has all of a value brought near, to be written to.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn to_write<T>(value: &T) {
    use std::arch::x86_64::{_mm_prefetch, _MM_HINT_ET0};
    const LINE: usize = 64;
    let at = std::ptr::from_ref(value).cast::<i8>();
    for line in (0..size_of::<T>()).step_by(LINE) {
        // SAFETY: a hint, about an address inside the value.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.add(line)) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub fn to_write<T>(_value: &T) {}
