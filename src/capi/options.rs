//! Reads the options of operations.

use super::args::{read_or_default, zero_reserved};
use super::guard::bytes;
use super::handle;
use super::op::{weft_op, weft_op_options, weft_queue, weft_watch};
use crate::calls::Endpoint;
use crate::ids::OpId;
use crate::status::{Error, Result};
use crate::transfer::options::{self, Takes};
use crate::transfer::watch::{Mark, Marks};
use crate::transfer::{Common, Direction, Terms};
use std::sync::Arc;

/// Checked options, and the handles that they name.
pub(super) struct Options<'a> {
    pub checked: options::Options<'a>,
    pub queue: *const weft_queue,
    marks: Marks,
}

/// Reads options, and checks that the operation takes them.
///
/// # Safety
/// `options` is NULL or valid, and the data that it names stays valid for `'a`.
#[inline(always)]
pub(super) unsafe fn options<'a>(
    ep: &Arc<Endpoint>,
    options: *const weft_op_options,
    takes: Takes,
) -> Result<Options<'a>> {
    // SAFETY: `options` is NULL or a struct with its size.
    let theirs = unsafe { read_or_default(options)? };
    zero_reserved(theirs.reserved)?;
    let checked = options::Options {
        flags: theirs.flags,
        timeout_ns: theirs.timeout_ns,
        user_data: theirs.user_data as u64,
        notify: theirs.notify,
        // SAFETY: the data are the caller's, and have the length that is beside them.
        notify_data: unsafe { bytes(theirs.notify_data, theirs.notify_data_len as usize, "notify_data")? },
        counter: theirs.counter,
        grant: theirs.grant.read(),
    };
    let start = (theirs.start_watch, theirs.start_value);
    let done = (theirs.done_watch, theirs.done_value);
    let unset = (std::ptr::null(), 0);
    checked.check(takes, (start != unset, done != unset))?;
    let marks = Marks { start: mark(ep, start, "start")?, done: mark(ep, done, "done")? };
    Ok(Options { checked, queue: theirs.queue, marks })
}

/// A watch and its value.
type Named = (*const weft_watch, u64);

#[inline(always)]
fn mark(ep: &Arc<Endpoint>, named: Named, name: &str) -> Result<Option<Mark>> {
    match named {
        (watch, 0) if watch.is_null() => Ok(None),
        _ => some_mark(ep, named, name).map(Some),
    }
}

#[cold]
fn some_mark(ep: &Arc<Endpoint>, (watch, value): Named, name: &str) -> Result<Mark> {
    if watch.is_null() {
        return Err(Error::invalid(format!("{name}_value is {value}, but {name}_watch is NULL")));
    }
    let watch = handle::get(watch).map_err(|error| error.about(&format!("{name}_watch")))?;
    Ok((watch.belonging_to(ep)?.clone(), value))
}

impl Options<'_> {
    /// Submits an operation, and stores its id.
    ///
    /// # Safety
    /// `op` is NULL or valid.
    #[inline(always)]
    pub unsafe fn submit(
        &self,
        ep: &Arc<Endpoint>,
        op: *mut weft_op,
        submit: impl FnOnce(Common) -> Result<OpId>,
    ) -> Result<()> {
        let named = if self.queue.is_null() { None } else { Some(handle::queue(self.queue)?) };
        let queue = named.as_ref().map_or(Ok(ep.queue()), |queue| queue.belonging_to(ep))?;
        let id = submit(self.checked.common(queue, &self.marks))?;
        if !op.is_null() {
            // SAFETY: not NULL, so valid; may be unaligned.
            unsafe { op.write_unaligned(id.get()) };
        }
        Ok(())
    }

    /// The same for a transfer.
    ///
    /// # Safety
    /// `op` is NULL or valid.
    #[inline(always)]
    pub unsafe fn transfer(
        &self,
        ep: &Arc<Endpoint>,
        direction: Direction,
        op: *mut weft_op,
        submit: impl FnOnce(&Terms) -> Result<OpId>,
    ) -> Result<()> {
        // SAFETY: `op` is NULL or valid, which is what this function takes.
        unsafe { self.submit(ep, op, |common| submit(&self.checked.terms(direction, common))) }
    }
}
