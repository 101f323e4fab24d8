//! The boundary: panics are caught, errors become statuses and messages, and a
//! forked child is turned away before it touches a lock.

use super::endpoint::weft_endpoint;
use super::handle::{self, Ref};
use super::status::weft_status;
use crate::endpoint::{fork, Endpoint};
use crate::status::{Error, Result, Status};
use std::cell::RefCell;
use std::ffi::{c_char, c_void, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs the body of an entry point that returns a status.
pub fn guard(body: impl FnOnce() -> Result<()>) -> weft_status {
    guard_count(|| body().map(|()| 0))
}

/// Runs the body of an entry point that returns a count or a negative status.
pub fn guard_count(body: impl FnOnce() -> Result<i32>) -> i32 {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        fork::check()?;
        body()
    }));
    match outcome {
        Ok(Ok(count)) => count,
        Ok(Err(error)) => fail(error),
        Err(panic) => {
            fail(Error::new(Status::Internal, format!("a defect of Weft: {}", panic_text(&*panic))))
        }
    }
}

pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}

#[cold]
fn fail(error: Error) -> i32 {
    let text = CString::new(error.message.replace('\0', "?")).unwrap_or_default();
    // A thread that is ending has no message any more; its status remains.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = text);
    error.status as i32
}

pub fn last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// A place for a result, which must not be NULL.
///
/// # Safety
/// `place` must be NULL or valid for writes of `T`.
pub unsafe fn output<'a, T>(place: *mut T, name: &str) -> Result<&'a mut T> {
    if !place.is_aligned() {
        return Err(Error::invalid(format!("{name} is not aligned as its type must be")));
    }
    // SAFETY: aligned, and valid or NULL, as the caller of the C function promised.
    unsafe { place.as_mut() }
        .ok_or_else(|| Error::invalid(format!("{name} is NULL: pass where to store the result")))
}

/// Bytes that the caller passed.
///
/// # Safety
/// `data` must be valid for `len` bytes.
pub unsafe fn bytes<'a>(data: *const c_void, len: usize, name: &str) -> Result<&'a [u8]> {
    if data.is_null() && len > 0 {
        return Err(Error::invalid(format!("{name} is NULL, but its length is {len}")));
    }
    if len == 0 {
        return Ok(&[]);
    }
    if len > isize::MAX as usize {
        return Err(Error::invalid(format!("a length of {len} bytes for {name} cannot be")));
    }
    // SAFETY: not NULL, and valid for `len` bytes as the caller promised.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

/// Copies a blob into the caller's buffer, or tells the length it needs.
///
/// # Safety
/// `buffer` must be valid for `capacity` bytes.
pub unsafe fn copy_out(blob: &[u8], buffer: *mut c_void, capacity: usize, len: &mut usize) -> Result<()> {
    *len = blob.len();
    if buffer.is_null() && capacity == 0 {
        return Ok(());
    }
    if buffer.is_null() {
        return Err(Error::invalid(format!("buffer is NULL, but its capacity is {capacity}")));
    }
    if capacity < blob.len() {
        return Err(Error::new(
            Status::TooSmall,
            format!("the buffer has {capacity} bytes, {} are needed", blob.len()),
        ));
    }
    // SAFETY: the buffer holds at least the blob, and the two do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(blob.as_ptr(), buffer.cast(), blob.len()) };
    Ok(())
}

/// Runs `body` with the endpoint behind a handle, unless a defect poisoned it.
/// A panic in `body` poisons it.
pub fn with_endpoint<T>(
    endpoint: *const weft_endpoint,
    body: impl FnOnce(&Ref<Endpoint>) -> Result<T>,
) -> Result<T> {
    let endpoint = handle::endpoint(endpoint)?;
    endpoint.check_poison()?;
    match catch_unwind(AssertUnwindSafe(|| body(&endpoint))) {
        Ok(outcome) => outcome,
        Err(panic) => {
            endpoint.poison(panic_text(&*panic));
            Err(endpoint.check_poison().err().unwrap_or_else(Error::closed))
        }
    }
}
