//! Reads the header's sized structs from callers, and fills those that the library returns.
//!
//! A shorter struct comes from an older program: the rest is zero, which means default. A longer
//! one comes from a newer program: its unknown rest must be zero, since this library would ignore
//! it.

use super::guard::bytes;
use super::status::boundary;
use crate::room::Theirs;
use crate::status::{Error, Result, Status};
use std::ffi::c_char;
use std::mem::size_of;

/// Every struct is far smaller; a larger size is malformed.
const SIZE_MAX: usize = 4096;

/// Structs of integers and pointers: all zero bytes are a value, and the first field is the size.
///
/// # Safety
/// Implementors must be `repr(C)`, start with a `u32` size, and accept any bytes.
pub unsafe trait Sized32: Copy {
    /// The smallest accepted `size`: that of the struct's first release.
    const FIRST: usize = size_of::<u32>();
}

pub fn zeroed<T: Sized32>() -> T {
    // SAFETY: all zero bytes are a value of these types.
    unsafe { std::mem::zeroed() }
}

fn name_of<T>() -> &'static str {
    std::any::type_name::<T>().rsplit("::").next().unwrap_or("struct")
}

/// # Safety
/// `source` must be NULL or valid for the size that it begins with.
unsafe fn size_of_theirs<T: Sized32>(source: *const T) -> Result<usize> {
    if source.is_null() {
        return Err(Error::invalid(format!("the {} is NULL", name_of::<T>())));
    }
    // SAFETY: not NULL, so at least the size can be read.
    let size = unsafe { source.cast::<u32>().read_unaligned() } as usize;
    if !(T::FIRST..=SIZE_MAX).contains(&size) {
        return Err(Error::invalid(format!(
            "size is {size}, but that of a {} is {} or more: start from its _INIT macro",
            name_of::<T>(),
            T::FIRST
        )));
    }
    Ok(size)
}

/// # Safety
/// `source` must be NULL or valid for the size that it begins with.
pub(super) unsafe fn read<T: Sized32>(source: *const T) -> Result<T> {
    // SAFETY: `source` is not NULL here, and begins with a size, as all of the caller's structs do.
    let size = unsafe { size_of_theirs(source)? };
    if size == size_of::<T>() {
        // SAFETY: this many bytes are readable.
        return Ok(unsafe { source.read_unaligned() });
    }
    let mut value: T = zeroed();
    // SAFETY: `size` bytes are readable, and at most `size_of::<T>()` are written.
    unsafe {
        let known = size.min(size_of::<T>());
        std::ptr::copy_nonoverlapping(source.cast::<u8>(), (&raw mut value).cast::<u8>(), known);
        let tail = Theirs::new(source.cast::<u8>().add(known), size - known);
        if let Some(at) = tail.iter().position(|byte| byte != 0) {
            return Err(Error::new(
                Status::Unsupported,
                format!(
                    "byte {} of a {} is set, but Weft {} knows {} bytes of it: start from its _INIT macro, or use a newer library",
                    known + at,
                    name_of::<T>(),
                    env!("CARGO_PKG_VERSION"),
                    size_of::<T>()
                ),
            ));
        }
    }
    Ok(value)
}

/// # Safety
/// Like `read`.
pub(super) unsafe fn read_or_default<T: Sized32>(source: *const T) -> Result<T> {
    if source.is_null() {
        return Ok(zeroed());
    }
    // SAFETY: `source` is NULL, which `read` refuses before it reads, or such a struct.
    unsafe { read(source) }
}

/// Stores as much of a value as the caller's struct holds, and keeps the caller's `size`.
///
/// # Safety
/// `target` must be NULL or valid for the size that it begins with.
pub unsafe fn fill<T: Sized32>(target: *mut T, value: T) -> Result<()> {
    // SAFETY: same contract; the field `size` is not written.
    unsafe {
        let size = size_of_theirs(target)?;
        let known = size.min(size_of::<T>());
        let skip = size_of::<u32>();
        std::ptr::copy_nonoverlapping(
            (&raw const value).cast::<u8>().add(skip),
            target.cast::<u8>().add(skip),
            known - skip,
        );
        std::ptr::write_bytes(target.cast::<u8>().add(known), 0, size - known);
    }
    Ok(())
}

/// Stores each of two values whose pointer is not NULL. If it fails, it stores neither.
///
/// # Safety
/// Like `fill`.
pub unsafe fn fill_both<P: Sized32, S: Sized32>(
    properties: *mut P,
    statistics: *mut S,
    answer: impl FnOnce() -> P,
    counted: impl FnOnce() -> S,
) -> Result<()> {
    if properties.is_null() && statistics.is_null() {
        return Err(Error::invalid(
            "properties and statistics are both NULL: pass where to store one of them",
        ));
    }
    // SAFETY: each is NULL, or a struct that begins with its size and has room for as much.
    unsafe {
        if !statistics.is_null() {
            size_of_theirs(statistics)?;
        }
        if !properties.is_null() {
            fill(properties, answer())?;
        }
        if !statistics.is_null() {
            fill(statistics, counted())?;
        }
    }
    Ok(())
}

/// Stores text in a fixed field: truncated to fit, and always ended by NUL.
pub fn text(field: &mut [c_char], text: &str) {
    let end = boundary(text, field.len() - 1);
    for (to, from) in field.iter_mut().zip(&text.as_bytes()[..end]) {
        *to = *from as c_char;
    }
}

/// Rejects a reserved field that is set.
pub(super) fn zero_reserved(reserved: u32) -> Result<()> {
    if reserved != 0 {
        return Err(Error::new(
            Status::Unsupported,
            "a reserved field is not 0: start from the struct's _INIT macro",
        ));
    }
    Ok(())
}

/// # Safety
/// `text` must be NULL or a C string.
pub(super) unsafe fn string(name: &str, text: *const c_char) -> Result<Option<String>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, so it is a C string.
    let copy = unsafe { bytes(text.cast(), libc::strlen(text), name)? }.copied(name)?;
    match String::from_utf8(copy) {
        Ok(text) => Ok(Some(text).filter(|t| !t.trim().is_empty())),
        Err(_) => Err(Error::invalid(format!("{name} is not UTF-8"))),
    }
}
