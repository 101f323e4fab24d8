//! Reads what is to be moved: bytes, pages, lists, and what was prepared.

use super::config::{no_flags, read};
use super::guard::array;
use super::handle::{self, Owned, Ref};
use super::list::{weft_list_entry, WEFT_LIST_ENTRIES_MAX};
use super::memory::{weft_memory, weft_remote_memory};
use super::op::{weft_op, weft_op_options, WEFT_CLASS_LATENCY, WEFT_COUNT_PAGES};
use super::options::{options, Takes};
use super::prepared::weft_prepared;
use super::transfer::{weft_page_side, weft_pages};
use crate::endpoint::lists::Kept;
use crate::endpoint::Endpoint;
use crate::ids::PeerId;
use crate::room;
use crate::status::{Error, Result};
use crate::transfer::geometry::{Pages, Side};
use crate::transfer::list::{Asked, Builder, List};
use crate::transfer::Direction;
use std::collections::HashMap;
use std::sync::Arc;

/// Where an offset into a memory lies whose ranges count as if one lay behind the other: range and
/// offset in it. What is beyond the end lies in the last range, which refuses it.
#[inline(always)]
pub(super) fn place(range_len: impl Fn(u64) -> Option<u64>, mut offset: u64) -> (u32, u64) {
    let mut range = 0;
    while let Some(len) = range_len(range).filter(|len| offset >= *len) {
        if range_len(range + 1).is_none() {
            break;
        }
        (range, offset) = (range + 1, offset - len);
    }
    (range as u32, offset)
}

/// # Safety
/// `options` and `op` must be as the header asks.
#[inline]
pub unsafe fn move_bytes(
    ep: &Ref<Endpoint>,
    direction: Direction,
    (local, local_offset, remote, remote_offset): (*const weft_memory, u64, *const weft_remote_memory, u64),
    len: u64,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> Result<()> {
    let (local, remote) = (handle::local(local, ep)?, handle::remote_side(remote, ep)?);
    let (local, remote) = (local.of(ep)?, remote.of(ep)?);
    let side = |(first_range, offset)| Side { first_range, offset, ..Side::default() };
    let pages = Pages {
        local: side(place(|range| local.range_len(range), local_offset)),
        remote: side(place(|range| remote.range_len(range), remote_offset)),
        page_len: len,
        page_count: (len > 0) as u64,
        layer_count: 1,
    };
    // SAFETY: passed on.
    unsafe {
        let options = self::options(ep, options, Takes::TRANSFER)?;
        options.transfer(ep, direction, op, |terms| ep.submit(local, remote, &pages, terms))
    }
}

/// # Safety
/// As `move_bytes`.
pub unsafe fn move_pages(
    ep: &Ref<Endpoint>,
    direction: Direction,
    (local, remote): (*const weft_memory, *const weft_remote_memory),
    pages: &Pages,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> Result<()> {
    let (local, remote) = (handle::local(local, ep)?, handle::remote_side(remote, ep)?);
    let (local, remote) = (local.of(ep)?, remote.of(ep)?);
    // SAFETY: passed on.
    unsafe {
        let options = self::options(ep, options, Takes::TRANSFER)?;
        options.transfer(ep, direction, op, |terms| ep.submit(local, remote, pages, terms))
    }
}

/// The pages of a transfer, in the caller's own lists.
///
/// # Safety
/// `theirs` must be as the header asks, for as long as the pages are used.
pub unsafe fn read_pages<'a>(theirs: *const weft_pages) -> Result<Pages<'a>> {
    // SAFETY: passed on.
    let theirs = unsafe { read(theirs)? };
    let (len, count) = (theirs.page_len, theirs.page_count);
    if len > 1 << 47 {
        return Err(Error::limit(format!("page_len is {len}: at most 2^47 bytes are allowed")));
    }
    if count > u32::MAX as u64 {
        return Err(Error::limit(format!("{count} pages: at most 2^32 - 1 are allowed")));
    }
    let each = (len, count);
    Ok(Pages {
        // SAFETY: passed on.
        local: unsafe { read_side(&theirs.local, each, "local.pages")? },
        // SAFETY: passed on.
        remote: unsafe { read_side(&theirs.remote, each, "remote.pages")? },
        page_len: len,
        page_count: count,
        layer_count: theirs.layer_count.max(1),
    })
}

/// One side of pages, this many of this length.
///
/// # Safety
/// Its pages must be as the header asks.
pub unsafe fn read_side<'a>(side: &weft_page_side, (len, count): (u64, u64), name: &str) -> Result<Side<'a>> {
    let pages = match side.pages.is_null() {
        true => None,
        // SAFETY: the header asks for `count` indexes.
        false => Some(unsafe { array(side.pages, count as usize, name)? }),
    };
    Ok(Side {
        pages,
        page_stride: if side.page_stride == 0 { len } else { side.page_stride },
        offset: side.offset,
        layer_stride: side.layer_stride,
        first_range: side.first_range,
        range_step: side.range_step,
    })
}

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

/// Entries, and how many there are.
type Entries = (*const weft_list_entry, u64);

/// # Safety
/// The entries must be as the header asks.
unsafe fn list(ep: &Ref<Endpoint>, (entries, count): Entries, urgent: bool) -> Result<List> {
    if count == 0 {
        return Err(Error::invalid("count is 0: a list without entries has no peer"));
    }
    if count > WEFT_LIST_ENTRIES_MAX.into() {
        return Err(Error::limit(format!("{count} entries: at most {WEFT_LIST_ENTRIES_MAX} are allowed")));
    }
    if entries.is_null() {
        return Err(Error::invalid(format!("entries is NULL, but count is {count}")));
    }
    if !entries.is_aligned() {
        return Err(Error::invalid("entries is not aligned as a weft_list_entry must be"));
    }
    let (mut list, mut locals, mut remotes) = (Builder::default(), Seen::default(), Seen::default());
    for i in 0..count as usize {
        // Copied first: the caller's entries may change while they are checked.
        // SAFETY: `count` entries are valid, as the header asks.
        let entry = unsafe { entries.add(i).read() };
        add(ep, &mut list, (&mut locals, &mut remotes), &entry)
            .map_err(|error| error.about(&format!("entry {i}")))?;
    }
    list.finish(urgent)
}

/// # Safety
/// All must be as the header asks.
pub unsafe fn submit_list(
    ep: &Ref<Endpoint>,
    direction: Direction,
    entries: Entries,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> Result<()> {
    // SAFETY: passed on.
    unsafe {
        let options = self::options(ep, options, Takes::LIST)?;
        let list = Arc::new(list(ep, entries, options.urgent())?);
        options.transfer(ep, direction, op, |terms| ep.submit_list(&list, terms))
    }
}

/// # Safety
/// All must be as the header asks.
pub unsafe fn submit_prepared(
    ep: &Ref<Endpoint>,
    direction: Direction,
    prepared: *const weft_prepared,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> Result<()> {
    let prepared: Ref<Owned<Kept>> = handle::prepared(prepared)?;
    let prepared = prepared.of(ep)?;
    let takes = if prepared.is_list() { Takes::LIST } else { Takes::TRANSFER };
    // SAFETY: passed on.
    unsafe {
        let options = self::options(ep, options, takes)?;
        options.transfer(ep, direction, op, |terms| ep.submit_kept(prepared, terms))
    }
}

/// # Safety
/// `pages` must be as the header asks.
pub unsafe fn prepare_pages(
    ep: &Ref<Endpoint>,
    (local, remote): (*const weft_memory, *const weft_remote_memory),
    pages: *const weft_pages,
    flags: u32,
) -> Result<Arc<Kept>> {
    no_flags(flags, WEFT_CLASS_LATENCY | WEFT_COUNT_PAGES)?;
    let (local, remote) = (handle::local(local, ep)?, handle::remote_side(remote, ep)?);
    // SAFETY: passed on.
    let pages = unsafe { read_pages(pages)? };
    let cut = (flags & WEFT_CLASS_LATENCY != 0, flags & WEFT_COUNT_PAGES != 0);
    ep.keep_pages(&pages, local.of(ep)?, remote.of(ep)?, cut)
}

/// # Safety
/// The entries must be as the header asks.
pub unsafe fn prepare_list(ep: &Ref<Endpoint>, entries: Entries, flags: u32) -> Result<Arc<Kept>> {
    no_flags(flags, WEFT_CLASS_LATENCY)?;
    // SAFETY: passed on.
    ep.keep_list(unsafe { list(ep, entries, flags & WEFT_CLASS_LATENCY != 0)? })
}
