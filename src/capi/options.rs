//! Reads the options of operations.

use super::args::{read_or_default, timeout, zero_reserved};
use super::guard::bytes;
use super::handle;
use super::op::{
    no_flags, weft_op, weft_op_options, weft_queue, weft_watch, WEFT_CLASS_LATENCY, WEFT_COMPLETE_EACH_PEER,
    WEFT_COUNT_PAGES, WEFT_NOTIFY, WEFT_NOTIFY_DATA_MAX, WEFT_NOTIFY_FAILURE,
};
use crate::endpoint::Endpoint;
use crate::ids::{GrantToken, OpId};
use crate::status::{Error, Result};
use crate::transfer::queue::Queue;
use crate::transfer::watch::{Mark, Marks};
use crate::transfer::{Common, Count, Direction, Notify, Terms};
use std::num::NonZeroU64;
use std::sync::Arc;

/// The options that an operation accepts, beside those of all operations.
#[derive(Clone, Copy)]
pub(super) struct Takes {
    pub flags: u32,
    pub counter: bool,
    pub start: bool,
    pub done: bool,
    pub grant: bool,
}

impl Takes {
    /// For fences, messages and connects.
    pub const NOTHING: Takes = Takes { flags: 0, counter: false, start: false, done: false, grant: false };
    pub const TRANSFER: Takes = Takes {
        flags: WEFT_NOTIFY | WEFT_NOTIFY_FAILURE | WEFT_CLASS_LATENCY | WEFT_COUNT_PAGES,
        counter: true,
        start: true,
        done: true,
        grant: true,
    };
    pub const LIST: Takes = Takes {
        flags: WEFT_NOTIFY | WEFT_NOTIFY_FAILURE | WEFT_CLASS_LATENCY | WEFT_COMPLETE_EACH_PEER,
        counter: false,
        start: true,
        done: true,
        grant: true,
    };
}

/// The checked options of an operation.
pub(super) struct Options<'a> {
    flags: u32,
    notify: Option<Notify<'a>>,
    count: Option<Count>,
    timeout_ns: Option<NonZeroU64>,
    user_data: u64,
    queue: *const weft_queue,
    marks: Marks,
    grant: Option<GrantToken>,
}

/// Reads the options of an operation, and rejects those that it does not accept.
///
/// # Safety
/// `options` must be NULL or valid as the header asks.
#[inline(always)]
pub(super) unsafe fn options<'a>(
    ep: &Arc<Endpoint>,
    options: *const weft_op_options,
    takes: Takes,
) -> Result<Options<'a>> {
    // SAFETY: `options` is NULL or a struct with its size.
    let theirs = unsafe { read_or_default(options)? };
    no_flags(theirs.flags, takes.flags)?;
    zero_reserved(theirs.reserved)?;
    let start = (theirs.start_watch, theirs.start_value);
    let done = (theirs.done_watch, theirs.done_value);
    absent(!takes.counter && theirs.counter != 0, "counter")?;
    absent(!takes.start && start != (std::ptr::null(), 0), "start_watch")?;
    absent(!takes.done && done != (std::ptr::null(), 0), "done_watch")?;
    let grant = theirs.grant.read();
    absent(!takes.grant && grant.is_some(), "grant")?;
    Ok(Options {
        flags: theirs.flags,
        // SAFETY: the data of `theirs` are the caller's, and have the length that is beside them.
        notify: unsafe { notify(&theirs, takes)? },
        count: count(&theirs)?,
        timeout_ns: timeout("timeout_ns", theirs.timeout_ns)?,
        user_data: theirs.user_data as u64,
        queue: theirs.queue,
        marks: Marks { start: mark(ep, start, "start")?, done: mark(ep, done, "done")? },
        grant,
    })
}

#[inline(always)]
fn absent(set: bool, name: &str) -> Result<()> {
    match set {
        true => Err(Error::invalid(format!("{name} is set, but this operation does not have that option"))),
        false => Ok(()),
    }
}

/// # Safety
/// `notify_data` must be NULL or valid for its length.
unsafe fn notify<'a>(theirs: &weft_op_options, takes: Takes) -> Result<Option<Notify<'a>>> {
    let (value, data, len) = (theirs.notify, theirs.notify_data, theirs.notify_data_len);
    if len > WEFT_NOTIFY_DATA_MAX {
        return Err(Error::limit(format!(
            "notify_data has {len} bytes: at most {WEFT_NOTIFY_DATA_MAX} are allowed"
        )));
    }
    let of_failure = theirs.flags & WEFT_NOTIFY_FAILURE != 0;
    if theirs.flags & WEFT_NOTIFY == 0 {
        if of_failure {
            return Err(Error::invalid("WEFT_NOTIFY_FAILURE is set in flags, but WEFT_NOTIFY is not"));
        }
        if len > 0 || value != 0 {
            let what = if len > 0 { "notify_data is given".into() } else { format!("notify is {value}") };
            let why = match takes.flags & WEFT_NOTIFY {
                0 => "this operation does not notify",
                _ => "WEFT_NOTIFY is not set in flags",
            };
            return Err(Error::invalid(format!("{what}, but {why}")));
        }
        return Ok(None);
    }
    // SAFETY: `data` has `len` bytes until the call of the operation returns; they are copied in it.
    Ok(Some(Notify { value, data: unsafe { bytes(data, len as usize, "notify_data")? }, of_failure }))
}

fn count(theirs: &weft_op_options) -> Result<Option<Count>> {
    let (counter, pages) = (theirs.counter, theirs.flags & WEFT_COUNT_PAGES != 0);
    if pages && counter == 0 {
        return Err(Error::invalid("WEFT_COUNT_PAGES is set in flags, but counter is 0"));
    }
    Ok((counter != 0).then_some(Count { counter, pages }))
}

type Named = (*const weft_watch, u64);

/// The watch of an operation, if it has one.
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
    Ok((watch.of(ep)?.clone(), value))
}

impl Options<'_> {
    /// Submits an operation, and stores its id.
    ///
    /// # Safety
    /// `op` must be NULL or valid.
    pub unsafe fn submit(
        &self,
        ep: &Arc<Endpoint>,
        op: *mut weft_op,
        submit: impl FnOnce(Common) -> Result<OpId>,
    ) -> Result<()> {
        let common = |queue: &Arc<Queue>| {
            let (timeout_ns, user_data, marks, grant) =
                (self.timeout_ns, self.user_data, &self.marks, self.grant);
            submit(Common { timeout_ns, user_data, queue, marks, grant })
        };
        // SAFETY: `op` is NULL or valid, which is what this function takes.
        unsafe { submitted(ep, self.queue, op, common) }
    }

    /// Submits a transfer, and stores its id.
    ///
    /// # Safety
    /// `op` must be NULL or valid.
    #[inline(always)]
    pub unsafe fn transfer(
        &self,
        ep: &Arc<Endpoint>,
        direction: Direction,
        op: *mut weft_op,
        submit: impl FnOnce(&Terms) -> Result<OpId>,
    ) -> Result<()> {
        let terms = |common: Common| {
            submit(&Terms {
                direction,
                notify: self.notify,
                count: self.count,
                each_peer: self.flags & WEFT_COMPLETE_EACH_PEER != 0,
                urgent: self.urgent(),
                common,
            })
        };
        // SAFETY: `op` is NULL or valid, which is what this function takes.
        unsafe { self.submit(ep, op, terms) }
    }

    pub fn urgent(&self) -> bool {
        self.flags & WEFT_CLASS_LATENCY != 0
    }
}

/// Submits an operation that completes in a queue (NULL: the endpoint's own), and stores its id.
///
/// # Safety
/// `queue` must be NULL or a handle, `op` NULL or valid.
unsafe fn submitted(
    ep: &Arc<Endpoint>,
    queue: *const weft_queue,
    op: *mut weft_op,
    submit: impl FnOnce(&Arc<Queue>) -> Result<OpId>,
) -> Result<()> {
    let named = if queue.is_null() { None } else { Some(handle::queue(queue)?) };
    let id = submit(named.as_ref().map_or(Ok(ep.queue()), |queue| queue.of(ep))?)?;
    if !op.is_null() {
        // SAFETY: not NULL, so valid; may be unaligned.
        unsafe { op.write_unaligned(id.get()) };
    }
    Ok(())
}
