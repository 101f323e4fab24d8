//! The boundary: panics are caught, errors become statuses and messages, and a forked child is
//! rejected before it touches a lock.

use super::handle::{self, Handle, Ref};
use super::status::{fail, weft_status};
use crate::calls::{panic_text, Endpoint};
use crate::fork;
use crate::room::Theirs;
use crate::status::{Error, Result, Status};
use std::ffi::{c_char, c_int, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Holds back a `pthread_cancel` of this thread: it unwinds the stack, which Rust does not allow.
struct Uncancelled(c_int);

impl Uncancelled {
    fn new() -> Uncancelled {
        const PTHREAD_CANCEL_DISABLE: c_int = 1;
        let mut before = PTHREAD_CANCEL_DISABLE;
        // SAFETY: the state is a valid one, and `before` outlives the call.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
        Uncancelled(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state is the thread's own from before. Setting it is no cancellation point.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

/// Runs the body of an entry point that returns a status.
pub fn guard(body: impl FnOnce() -> Result<()>) -> weft_status {
    guard_count(|| body().map(|()| 0))
}

/// Runs the body of an entry point that returns a count or a negative status.
pub fn guard_count(body: impl FnOnce() -> Result<i32>) -> i32 {
    let _uncancelled = Uncancelled::new();
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

/// The caller's place for a result, which may be uninitialised.
pub struct Output<T>(*mut T);

impl<T> Output<T> {
    pub fn store(&self, value: T) {
        // SAFETY: `output` checked alignment and NULL, and its caller keeps the place valid.
        unsafe { self.0.write(value) }
    }
}

/// Checks a place for a result, which must not be NULL.
///
/// # Safety
/// `place` must be NULL or valid for writes of `T`, until the `Output` is gone.
pub unsafe fn output<T>(place: *mut T, name: &str) -> Result<Output<T>> {
    if !place.is_aligned() {
        return Err(Error::invalid(format!("{name} is not aligned as its type must be")));
    }
    if place.is_null() {
        return Err(Error::invalid(format!("{name} is NULL: pass where to store the result")));
    }
    Ok(Output(place))
}

/// Checks an array of the caller.
///
/// # Safety
/// `array` must be NULL or valid for reads of `len` elements for `'a`, of which any bytes are a value.
pub unsafe fn array<'a, T: Copy>(array: *const T, len: usize, name: &str) -> Result<Theirs<'a, T>> {
    if len == 0 {
        return Ok(Theirs::from(&[][..]));
    }
    if array.is_null() {
        return Err(Error::invalid(format!("{name} is NULL, but its length is {len}")));
    }
    if !array.is_aligned() {
        let align = align_of::<T>();
        return Err(Error::invalid(format!(
            "{name} is not aligned to {align} bytes, as its elements must be"
        )));
    }
    let most = isize::MAX as usize / size_of::<T>();
    if len > most {
        return Err(Error::invalid(format!(
            "{name} has a length of {len}: memory holds at most {most} of these"
        )));
    }
    // SAFETY: checked for NULL and alignment; the caller keeps `len` elements valid.
    Ok(unsafe { Theirs::new(array, len) })
}

/// Checks bytes of the caller.
///
/// # Safety
/// `data` must be NULL or valid for `len` bytes for `'a`.
pub unsafe fn bytes<'a>(data: *const c_void, len: usize, name: &str) -> Result<Theirs<'a, u8>> {
    // SAFETY: `data` has `len` bytes, or `len` is refused beside NULL.
    unsafe { array(data.cast(), len, name) }
}

/// Copies a blob into the caller's buffer; always stores the length needed.
///
/// # Safety
/// `buffer` must be valid for `capacity` bytes.
pub unsafe fn copy_out(blob: &[u8], buffer: *mut c_void, capacity: usize, len: &Output<usize>) -> Result<()> {
    len.store(blob.len());
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
    // SAFETY: the buffer is large enough for the blob, and the two do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(blob.as_ptr(), buffer.cast(), blob.len()) };
    Ok(())
}

/// The same of text: a NUL follows it where the buffer has room for one, which does not count.
///
/// # Safety
/// `buffer` must be valid for `capacity` bytes.
pub unsafe fn text_out(text: &str, buffer: *mut c_char, capacity: usize, len: &Output<usize>) -> Result<()> {
    // SAFETY: the buffer has `capacity` bytes.
    unsafe { copy_out(text.as_bytes(), buffer.cast(), capacity, len)? };
    if capacity > text.len() {
        // SAFETY: `copy_out` has refused NULL with a capacity, and this is within the capacity.
        unsafe { *buffer.add(text.len()) = 0 };
    }
    Ok(())
}

/// Runs `body` with the endpoint of a handle, unless an earlier panic stopped it.
pub fn with_endpoint<H: Handle<Object = Endpoint>, T>(
    endpoint: *const H,
    body: impl FnOnce(&Ref<Endpoint>) -> Result<T>,
) -> Result<T> {
    let endpoint = handle::get(endpoint)?;
    guarded(&endpoint, || body(&endpoint))
}

/// The same for a body that may take long: it runs without a pinned epoch, in which no endpoint's
/// destruction ends.
pub fn with_endpoint_unpinned<H: Handle<Object = Endpoint>, T>(
    endpoint: *const H,
    body: impl FnOnce(&Arc<Endpoint>) -> Result<T>,
) -> Result<T> {
    let endpoint = Arc::clone(&*handle::get(endpoint)?);
    guarded(&endpoint, || body(&endpoint))
}

/// Runs a call on an endpoint: a panic in the call stops the endpoint.
pub fn guarded<T>(endpoint: &Endpoint, body: impl FnOnce() -> Result<T>) -> Result<T> {
    endpoint.guarded(body)
}
