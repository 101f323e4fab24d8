//! Reads what a transfer says: its pages, and the terms that all transfers have in
//! common. `entries` reads lists, and what is kept.

use super::completion::{weft_queue, weft_transfer};
use super::config::{no_flags, read, submitted, timeout, zero_reserved};
use super::device::weft_watch;
use super::guard::{array, bytes};
use super::handle::{self, Ref};
use super::list::WEFT_COMPLETE_EACH_PEER;
use super::memory::{weft_memory, weft_remote_memory};
use super::transfer::{
    weft_pages_args, weft_range_args, WEFT_CLASS_LATENCY, WEFT_COUNT_PAGES, WEFT_NOTIFY, WEFT_NOTIFY_DATA_MAX,
};
use crate::endpoint::Endpoint;
use crate::ids::OpId;
use crate::status::{Error, Result};
use crate::transfer::geometry::{Pages, Side};
use crate::transfer::watch::{Mark, Marks};
use crate::transfer::{Count, Direction, Notify, Terms};
use std::ffi::c_void;
use std::sync::Arc;

/// # Safety
/// `data` must be NULL or valid for `len` bytes.
pub(super) unsafe fn notify<'a>(
    flags: u32,
    value: u64,
    data: *const c_void,
    len: u32,
) -> Result<Option<Notify<'a>>> {
    no_flags(flags, WEFT_NOTIFY | WEFT_CLASS_LATENCY | WEFT_COUNT_PAGES)?;
    if len > WEFT_NOTIFY_DATA_MAX {
        return Err(Error::limit(format!(
            "notify_data has {len} bytes: at most {WEFT_NOTIFY_DATA_MAX} are allowed"
        )));
    }
    if flags & WEFT_NOTIFY == 0 {
        if len > 0 || value != 0 {
            let what = if len > 0 { "notify_data is given".into() } else { format!("notify is {value}") };
            return Err(Error::invalid(format!("{what}, but WEFT_NOTIFY is not set in flags")));
        }
        return Ok(None);
    }
    // SAFETY: passed on.
    Ok(Some(Notify { value, data: unsafe { bytes(data, len as usize, "notify_data")? } }))
}

pub(super) fn count(flags: u32, counter: u64) -> Result<Option<Count>> {
    let pages = flags & WEFT_COUNT_PAGES != 0;
    if pages && counter == 0 {
        return Err(Error::invalid("WEFT_COUNT_PAGES is set in flags, but counter is 0"));
    }
    Ok((counter != 0).then_some(Count { counter, pages }))
}

/// What a transfer says beside its geometry.
pub(super) struct Said<'a> {
    pub direction: Direction,
    pub flags: u32,
    pub notify: Option<Notify<'a>>,
    pub count: Option<Count>,
    pub timeout_ns: u64,
    pub user_data: *mut c_void,
    pub queue: *const weft_queue,
    pub marks: Marks,
}

/// A watch that an operation names, if it names one.
#[inline(always)]
pub(super) fn mark(ep: &Arc<Endpoint>, named: Named, name: &str) -> Result<Option<Mark>> {
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
    let watch = handle::watch(watch).map_err(|error| error.about(&format!("{name}_watch")))?;
    Ok((watch.of(ep)?.clone(), value))
}

type Named = (*const weft_watch, u64);

#[inline(always)]
pub(super) fn marks(ep: &Arc<Endpoint>, start: Named, done: Named) -> Result<Marks> {
    Ok(Marks { start: mark(ep, start, "start")?, done: mark(ep, done, "done")? })
}

/// Runs `submit` with the terms, and stores the id.
///
/// # Safety
/// `transfer` must be NULL or valid.
pub(super) unsafe fn submit(
    ep: &Arc<Endpoint>,
    said: &Said,
    transfer: *mut weft_transfer,
    submit: impl FnOnce(&Terms) -> Result<OpId>,
) -> Result<()> {
    let submit = |queue: &_| {
        submit(&Terms {
            direction: said.direction,
            notify: said.notify,
            count: said.count,
            each_peer: said.flags & WEFT_COMPLETE_EACH_PEER != 0,
            urgent: said.flags & WEFT_CLASS_LATENCY != 0,
            timeout_ns: timeout("timeout_ns", said.timeout_ns)?,
            user_data: said.user_data as u64,
            queue,
            marks: &said.marks,
        })
    };
    // SAFETY: as the header asks.
    unsafe { submitted(ep, said.queue, transfer, submit) }
}

/// # Safety
/// `transfer` must be NULL or valid.
unsafe fn move_pages(
    ep: &Ref<Endpoint>,
    said: &Said,
    (local, remote): (*const weft_memory, *const weft_remote_memory),
    pages: &Pages,
    transfer: *mut weft_transfer,
) -> Result<()> {
    let (local, remote) = (handle::local(local, ep)?, handle::remote_side(remote, ep)?);
    let (local, remote) = (local.of(ep)?, remote.of(ep)?);
    // SAFETY: passed on.
    unsafe { submit(ep, said, transfer, |terms| ep.submit(local, remote, pages, terms)) }
}

/// # Safety
/// `args` must be valid as the header asks.
pub unsafe fn submit_range(
    ep: &Ref<Endpoint>,
    direction: Direction,
    args: *const weft_range_args,
    transfer: *mut weft_transfer,
) -> Result<()> {
    // SAFETY: passed on.
    let args = unsafe { read(args)? };
    zero_reserved(args.reserved)?;
    let side = |range, offset| Side { first_range: range, offset, ..Side::default() };
    let pages = Pages {
        local: side(args.local_range, args.local_offset),
        remote: side(args.remote_range, args.remote_offset),
        page_len: args.len,
        page_count: (args.len > 0) as u64,
        layer_count: 1,
    };
    // SAFETY: valid as the header asks.
    unsafe {
        let said = Said {
            direction,
            flags: args.flags,
            notify: notify(args.flags, args.notify, args.notify_data, args.notify_data_len)?,
            count: count(args.flags, args.counter)?,
            timeout_ns: args.timeout_ns,
            user_data: args.user_data,
            queue: args.queue,
            marks: marks(ep, (args.start_watch, args.start_value), (args.done_watch, args.done_value))?,
        };
        move_pages(ep, &said, (args.local, args.remote), &pages, transfer)
    }
}

/// # Safety
/// `args` must be valid as the header asks.
pub unsafe fn submit_pages(
    ep: &Ref<Endpoint>,
    direction: Direction,
    args: *const weft_pages_args,
    transfer: *mut weft_transfer,
) -> Result<()> {
    // SAFETY: passed on.
    let args = unsafe { read(args)? };
    // SAFETY: valid as the header asks.
    unsafe {
        let pages = pages(&args)?;
        let said = Said {
            direction,
            flags: args.flags,
            notify: notify(args.flags, args.notify, args.notify_data, args.notify_data_len)?,
            count: count(args.flags, args.counter)?,
            timeout_ns: args.timeout_ns,
            user_data: args.user_data,
            queue: args.queue,
            marks: marks(ep, (args.start_watch, args.start_value), (args.done_watch, args.done_value))?,
        };
        move_pages(ep, &said, (args.local, args.remote), &pages, transfer)
    }
}

/// The pages that are asked for, in the caller's own lists.
///
/// # Safety
/// `args` must be as the header asks, for as long as the pages are used.
pub(super) unsafe fn pages<'a>(args: &weft_pages_args) -> Result<Pages<'a>> {
    if args.page_len > 1 << 47 {
        return Err(Error::limit(format!("page_len is {}: at most 2^47 bytes are allowed", args.page_len)));
    }
    if args.page_count > u32::MAX as u64 {
        return Err(Error::limit(format!("{} pages: at most 2^32 - 1 are allowed", args.page_count)));
    }
    let list = |pages: *const u32, name: &str| match pages.is_null() {
        true => Ok(None),
        // SAFETY: the header asks for `page_count` indexes.
        false => unsafe { array(pages, args.page_count as usize, name) }.map(Some),
    };
    let or_page_len = |stride: u64| if stride == 0 { args.page_len } else { stride };
    Ok(Pages {
        local: Side {
            pages: list(args.local_pages, "local_pages")?,
            page_stride: or_page_len(args.local_page_stride),
            offset: args.local_offset,
            layer_stride: args.local_layer_stride,
            first_range: args.local_first_range,
            range_step: args.local_range_step,
        },
        remote: Side {
            pages: list(args.remote_pages, "remote_pages")?,
            page_stride: or_page_len(args.remote_page_stride),
            offset: args.remote_offset,
            layer_stride: args.remote_layer_stride,
            first_range: args.remote_first_range,
            range_step: args.remote_range_step,
        },
        page_len: args.page_len,
        page_count: args.page_count,
        layer_count: args.layer_count.max(1),
    })
}
