//! Reads lists, and what is kept and used again.

use super::config::{no_flags, read, zero_reserved};
use super::device::weft_watch;
use super::handle::{self, Owned, Ref};
use super::kept::{weft_kept, weft_kept_args};
use super::list::{weft_list_args, weft_list_entry, WEFT_COMPLETE_EACH_PEER, WEFT_LIST_ENTRIES_MAX};
use super::terms::{count, marks, notify, pages, submit, Said};
use super::transfer::{weft_pages_args, WEFT_CLASS_LATENCY, WEFT_COUNT_PAGES, WEFT_NOTIFY};
use super::{completion::weft_queue, completion::weft_transfer};
use crate::endpoint::lists::Kept;
use crate::endpoint::Endpoint;
use crate::ids::PeerId;
use crate::room;
use crate::status::{Error, Result};
use crate::transfer::list::{Asked, Builder, List};
use crate::transfer::{Count, Direction};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

/// Handles that were looked up before, and the numbers they got.
#[derive(Default)]
struct Seen {
    numbers: HashMap<usize, u32>,
    /// The last one: lists often name one memory many times in a row.
    last: Option<(usize, u32)>,
}

impl Seen {
    /// The number of a handle; `None` for NULL.
    fn number<T>(&mut self, handle: *const T, look_up: impl FnOnce() -> Result<u32>) -> Result<Option<u32>> {
        let at = handle as usize;
        if at == 0 {
            return Ok(None);
        }
        if let Some((_, number)) = self.last.filter(|(last, _)| *last == at) {
            return Ok(Some(number));
        }
        let number = match self.numbers.get(&at) {
            Some(number) => *number,
            None => {
                let number = look_up()?;
                room::insert(&mut self.numbers, at, number, "a list")?;
                number
            }
        };
        self.last = Some((at, number));
        Ok(Some(number))
    }
}

/// Adds an entry to a list.
fn add(
    ep: &Ref<Endpoint>,
    list: &mut Builder,
    (locals, remotes): (&mut Seen, &mut Seen),
    entry: &weft_list_entry,
) -> Result<()> {
    let local = locals.number(entry.local, || list.add_local(handle::local(entry.local, ep)?.of(ep)?))?;
    let remote =
        remotes.number(entry.remote, || list.add_remote(handle::remote_side(entry.remote, ep)?.of(ep)?))?;
    let asked = Asked {
        local,
        remote,
        peer: PeerId::new(entry.peer),
        local_range: entry.local_range,
        remote_range: entry.remote_range,
        local_offset: entry.local_offset,
        remote_offset: entry.remote_offset,
        len: entry.len,
        counter: entry.counter,
    };
    list.add(&asked, |peer| ep.raises(peer))
}

/// # Safety
/// `args` must be as the header asks.
unsafe fn list(ep: &Ref<Endpoint>, args: &weft_list_args) -> Result<List> {
    zero_reserved(args.reserved)?;
    if args.count == 0 {
        return Err(Error::invalid("count is 0: a list without entries has no peer"));
    }
    if args.count > WEFT_LIST_ENTRIES_MAX.into() {
        return Err(Error::limit(format!(
            "{} entries: at most {WEFT_LIST_ENTRIES_MAX} are allowed",
            args.count
        )));
    }
    if args.entries.is_null() {
        return Err(Error::invalid(format!("entries is NULL, but count is {}", args.count)));
    }
    if !args.entries.is_aligned() {
        return Err(Error::invalid("entries is not aligned as a weft_list_entry must be"));
    }
    let (mut list, mut locals, mut remotes) = (Builder::default(), Seen::default(), Seen::default());
    for i in 0..args.count as usize {
        // Copied first: the caller's entries may change while they are checked.
        // SAFETY: `count` entries are valid, as the header asks.
        let entry = unsafe { args.entries.add(i).read() };
        add(ep, &mut list, (&mut locals, &mut remotes), &entry)
            .map_err(|error| error.about(&format!("entry {i}")))?;
    }
    list.finish(args.flags & WEFT_CLASS_LATENCY != 0)
}

/// # Safety
/// `args` must be valid as the header asks.
pub unsafe fn submit_list(
    ep: &Ref<Endpoint>,
    direction: Direction,
    args: *const weft_list_args,
    transfer: *mut weft_transfer,
) -> Result<()> {
    // SAFETY: passed on.
    unsafe {
        let args = read(args)?;
        let flags = args.flags & !WEFT_COMPLETE_EACH_PEER;
        let said = Said {
            direction,
            flags: args.flags,
            notify: notify(flags, args.notify, args.notify_data, args.notify_data_len)?,
            count: no_count(args.flags)?,
            timeout_ns: args.timeout_ns,
            user_data: args.user_data,
            queue: args.queue,
            marks: marks(ep, (args.start_watch, args.start_value), (args.done_watch, args.done_value))?,
        };
        let list = Arc::new(list(ep, &args)?);
        submit(ep, &said, transfer, |terms| ep.submit_list(&list, terms))
    }
}

/// # Safety
/// `args` must be valid as the header asks.
pub unsafe fn submit_kept(
    ep: &Ref<Endpoint>,
    direction: Direction,
    kept: *const weft_kept,
    args: *const weft_kept_args,
    transfer: *mut weft_transfer,
) -> Result<()> {
    let kept: Ref<Owned<Kept>> = handle::kept(kept)?;
    let kept = kept.of(ep)?;
    // SAFETY: passed on.
    unsafe {
        let args = read(args)?;
        zero_reserved(args.reserved)?;
        let flags = if kept.is_list() { args.flags & !WEFT_COMPLETE_EACH_PEER } else { args.flags };
        let said = Said {
            direction,
            flags: args.flags,
            notify: notify(flags, args.notify, args.notify_data, args.notify_data_len)?,
            count: match kept.is_list() {
                true if args.counter != 0 => {
                    return Err(Error::invalid(
                        "counter is set, but a list was kept: its entries name counters",
                    ))
                }
                true => no_count(args.flags)?,
                false => count(args.flags, args.counter)?,
            },
            timeout_ns: args.timeout_ns,
            user_data: args.user_data,
            queue: args.queue,
            marks: marks(ep, (args.start_watch, args.start_value), (args.done_watch, args.done_value))?,
        };
        submit(ep, &said, transfer, |terms| ep.submit_kept(kept, terms))
    }
}

/// Of lists.
fn no_count(flags: u32) -> Result<Option<Count>> {
    if flags & WEFT_COUNT_PAGES != 0 {
        return Err(Error::invalid("WEFT_COUNT_PAGES is set, but this is a list: its entries name counters"));
    }
    Ok(None)
}

/// What belongs to a single transfer, and not to what is kept.
fn no_terms(
    flags: u32,
    (notify, data, data_len): (u64, *const c_void, u32),
    timeout: u64,
    user_data: *mut c_void,
    q: *const weft_queue,
) -> Result<()> {
    let wrong = [
        (flags & WEFT_NOTIFY != 0, "WEFT_NOTIFY in flags"),
        (flags & WEFT_COMPLETE_EACH_PEER != 0, "WEFT_COMPLETE_EACH_PEER in flags"),
        (notify != 0, "notify"),
        (!data.is_null(), "notify_data"),
        (data_len != 0, "notify_data_len"),
        (timeout != 0, "timeout_ns"),
        (!user_data.is_null(), "user_data"),
        (!q.is_null(), "queue"),
    ];
    if let Some((_, name)) = wrong.iter().find(|(set, _)| *set) {
        return Err(Error::invalid(format!("{name} is set: it belongs to weft_kept_args, of each transfer")));
    }
    no_flags(flags, WEFT_CLASS_LATENCY | WEFT_COUNT_PAGES)
}

/// # Safety
/// `args` must be valid as the header asks.
pub unsafe fn keep_pages(ep: &Ref<Endpoint>, args: *const weft_pages_args) -> Result<Arc<Kept>> {
    // SAFETY: passed on.
    let args = unsafe { read(args)? };
    let notify = (args.notify, args.notify_data, args.notify_data_len);
    no_terms(args.flags, notify, args.timeout_ns, args.user_data, args.queue)?;
    let (local, remote) = (handle::local(args.local, ep)?, handle::remote_side(args.remote, ep)?);
    // SAFETY: passed on.
    let pages = unsafe { pages(&args)? };
    if args.counter != 0 {
        return Err(Error::invalid("counter is set: it belongs to weft_kept_args, of each transfer"));
    }
    no_watches(args.start_watch, args.done_watch)?;
    let cut = (args.flags & WEFT_CLASS_LATENCY != 0, args.flags & WEFT_COUNT_PAGES != 0);
    ep.keep_pages(&pages, local.of(ep)?, remote.of(ep)?, cut)
}

/// What is kept does not wait: its transfers do.
fn no_watches(start: *const weft_watch, done: *const weft_watch) -> Result<()> {
    for (name, watch) in [("start_watch", start), ("done_watch", done)] {
        if !watch.is_null() {
            let text = format!("{name} is set: it belongs to weft_kept_args, of each transfer");
            return Err(Error::invalid(text));
        }
    }
    Ok(())
}

/// # Safety
/// `args` must be valid as the header asks.
pub unsafe fn keep_list(ep: &Ref<Endpoint>, args: *const weft_list_args) -> Result<Arc<Kept>> {
    // SAFETY: passed on.
    unsafe {
        let args = read(args)?;
        let notify = (args.notify, args.notify_data, args.notify_data_len);
        no_terms(args.flags, notify, args.timeout_ns, args.user_data, args.queue)?;
        no_watches(args.start_watch, args.done_watch)?;
        no_count(args.flags)?;
        ep.keep_list(list(ep, &args)?)
    }
}
