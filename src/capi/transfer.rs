//! Transfers: writes and reads of ranges and pages.

use super::args::{read, Sized32};
use super::endpoint::weft_endpoint;
use super::guard::{array, guard, with_endpoint};
use super::handle::{self, Ref};
use super::memory::{weft_memory, weft_remote_memory};
use super::op::{weft_op, weft_op_options};
use super::options;
use super::status::weft_status;
use crate::calls::Endpoint;
use crate::memory::{Memory, RemoteMemory};
use crate::status::Result;
use crate::transfer::geometry::{Pages, Side};
use crate::transfer::options::Takes;
use crate::transfer::Direction;

/// Where the pages of a transfer are on one side.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_page_side {
    /// `page_count` page indexes. NULL: 0, 1, 2, ...
    pub pages: *const u32,
    /// Bytes from one page to the next. 0: `page_len`.
    pub page_stride: u64,
    /// Bytes from the start of the range to page 0 of layer 0.
    pub offset: u64,
    /// Bytes from one layer to the next, within a range.
    pub layer_stride: u64,
    /// The range of layer 0.
    pub first_range: u32,
    /// Ranges from one layer to the next. Several layers are not written to one
    /// place (both 0: `WEFT_ERR_INVALID`), but may be read from one. Of one
    /// layer, both may be 0.
    pub range_step: u32,
}

/// The geometry of pages x layers. Start from `WEFT_PAGES_INIT`. On each side,
/// page `i` of layer `l` is at
///
///     range   first_range + l * range_step
///     offset  offset + pages[i] * page_stride + l * layer_stride
///     len     page_len
///
/// so that layers can be ranges of their own (`range_step` 1) or lie behind
/// each other in one (`layer_stride`), and a page can be a part of the other
/// side's page. Nothing else is moved. Pages may repeat; where destinations
/// overlap, it is not defined which bytes win.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_pages {
    pub size: u32,
    /// Layers, up to 65,536. 0: 1.
    pub layer_count: u32,
    /// Bytes of a page: 1 to 2^47; 0 only with a `page_count` of 0.
    pub page_len: u64,
    /// Pages in each layer, up to 2^32 - 1. 0 moves nothing, and completes and
    /// notifies all the same.
    pub page_count: u64,
    pub local: weft_page_side,
    pub remote: weft_page_side,
}

// SAFETY: the struct has only integers and pointers, for which zero is valid.
unsafe impl Sized32 for weft_pages {
    const FIRST: usize = 104;
}

/// Writes one range of local memory into remote memory.
///
/// Ends in one `WEFT_COMPLETION_WRITE`. `WEFT_OK`: every byte is visible at the
/// target, and none arrives later. The local bytes must not change before.
/// Operations have no order among each other.
///
/// After any other status, bytes (any of them: a page may be cut at any byte),
/// notification and counter may have arrived, each once, or may still arrive
/// until the target has a `weft_peer_fence` or `weft_grant_revoke`, has polled
/// this peer's PEER_DOWN or has deregistered the memory: docs/pages-back.md.
/// Local memory is left alone after the completion, with one exception (a NIC
/// that does not return it within 160 ms): docs/failures.md.
///
/// `local`, `remote`: needed also with a `len` of 0, which moves nothing, and
/// completes and notifies all the same. `local_offset`, `remote_offset`: from
/// the memory's start, all ranges counted through; the bytes must be in one
/// range.
///
/// Errors: `WEFT_ERR_RANGE`, `WEFT_ERR_REMOTE_ACCESS` (registered without this
/// direction), `WEFT_ERR_INVALID` (also: the memory needs a grant),
/// `WEFT_ERR_REVOKED`, `WEFT_ERR_MEMORY_GONE`, `WEFT_ERR_PEER_LOST`,
/// `WEFT_ERR_PEER_CLOSED`.
///
/// # Safety
/// `options` must be NULL or valid for `options->size` bytes, with valid pointers in it.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_write(
    endpoint: *mut weft_endpoint,
    local: *const weft_memory,
    local_offset: u64,
    remote: *const weft_remote_memory,
    remote_offset: u64,
    len: u64,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> weft_status {
    guard(|| {
        with_endpoint(endpoint, |ep| {
            let pages =
                |local: &_, remote: &_| Pages::one((local, local_offset), (remote, remote_offset), len);
            move_pages(ep, Direction::Write, local, remote, pages, options, op)
        })
    })
}

/// Reads one range of remote memory into local memory: as `weft_write`, in the
/// other direction. `WEFT_COMPLETION_READ` with `WEFT_OK`: every byte is in
/// local memory. A notification goes to the peer after the last byte was read.
///
/// # Safety
/// As for `weft_write`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_read(
    endpoint: *mut weft_endpoint,
    local: *const weft_memory,
    local_offset: u64,
    remote: *const weft_remote_memory,
    remote_offset: u64,
    len: u64,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> weft_status {
    guard(|| {
        with_endpoint(endpoint, |ep| {
            let pages =
                |local: &_, remote: &_| Pages::one((local, local_offset), (remote, remote_offset), len);
            move_pages(ep, Direction::Read, local, remote, pages, options, op)
        })
    })
}

/// Writes pages; otherwise as `weft_write`. The cost of the call grows with
/// `page_count`, not with layers or bytes.
///
/// # Safety
/// As for `weft_write`; `pages` must be valid for `pages->size` bytes, and its page lists must
/// hold `page_count` indexes.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_write_pages(
    endpoint: *mut weft_endpoint,
    local: *const weft_memory,
    remote: *const weft_remote_memory,
    pages: *const weft_pages,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> weft_status {
    guard(|| {
        with_endpoint(endpoint, |ep| {
            let pages = read_pages(pages)?;
            move_pages(ep, Direction::Write, local, remote, |_, _| pages, options, op)
        })
    })
}

/// Reads pages; otherwise as `weft_read` and `weft_write_pages`. Many small
/// pages are faster written by the peer.
///
/// # Safety
/// As for `weft_write_pages`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_read_pages(
    endpoint: *mut weft_endpoint,
    local: *const weft_memory,
    remote: *const weft_remote_memory,
    pages: *const weft_pages,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> weft_status {
    guard(|| {
        with_endpoint(endpoint, |ep| {
            let pages = read_pages(pages)?;
            move_pages(ep, Direction::Read, local, remote, |_, _| pages, options, op)
        })
    })
}

/// # Safety
/// `options` and `op` must be as the header asks.
#[inline]
unsafe fn move_pages<'a>(
    ep: &Ref<Endpoint>,
    direction: Direction,
    local: *const weft_memory,
    remote: *const weft_remote_memory,
    pages: impl FnOnce(&Memory, &RemoteMemory) -> Pages<'a>,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> Result<()> {
    let (local, remote) = (handle::beside(local, ep, "local")?, handle::beside(remote, ep, "remote")?);
    let (local, remote) = (local.as_argument(ep, "local")?, remote.as_argument(ep, "remote")?);
    let pages = pages(local, remote);
    // SAFETY: options and `op` are NULL or valid, which is what this function takes.
    unsafe {
        let options = options::options(ep, options, Takes::TRANSFER)?;
        options.transfer(ep, direction, op, |terms| ep.submit(local, remote, &pages, terms))
    }
}

/// The pages of a transfer, in the caller's own lists.
///
/// # Safety
/// `theirs` must be as the header asks, for as long as the pages are used.
pub(super) unsafe fn read_pages<'a>(theirs: *const weft_pages) -> Result<Pages<'a>> {
    // SAFETY: it is NULL, which `read` refuses, or a struct with its size.
    let theirs = unsafe { read(theirs)? };
    let count = theirs.page_count;
    Pages::new(theirs.page_len, count, theirs.layer_count, || {
        // SAFETY: each side has `count` indexes, or none.
        unsafe {
            Ok((
                read_side(&theirs.local, count, "local.pages")?,
                read_side(&theirs.remote, count, "remote.pages")?,
            ))
        }
    })
}

/// One side of pages, this many of this length.
///
/// # Safety
/// Its pages must be as the header asks.
pub(super) unsafe fn read_side<'a>(side: &weft_page_side, count: u64, name: &str) -> Result<Side<'a>> {
    let pages = match side.pages.is_null() {
        true => None,
        // SAFETY: the header requires `count` valid indexes.
        false => Some(unsafe { array(side.pages, count as usize, name)? }),
    };
    Ok(Side {
        pages,
        page_stride: side.page_stride,
        offset: side.offset,
        layer_stride: side.layer_stride,
        first_range: side.first_range,
        range_step: side.range_step,
    })
}
