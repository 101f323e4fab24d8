//! Prepared transfers: a geometry, checked and copied once, used any number of times.

use super::endpoint::weft_endpoint;
use super::guard::{guard, output, with_endpoint};
use super::list::weft_list_entry;
use super::memory::{weft_memory, weft_remote_memory};
use super::op::{weft_op, weft_op_options};
use super::status::weft_status;
use super::transfer::weft_pages;
use super::{entries, handle};
use crate::transfer::Direction;

/// The geometry of a transfer, checked. Opaque; made by `weft_pages_prepare` and
/// `weft_list_prepare`.
pub struct weft_prepared {
    _opaque: [u8; 0],
}

/// Checks pages as `weft_write_pages` does, and keeps a copy of them, for any
/// number of transfers in either direction.
///
/// `flags`: `WEFT_CLASS_LATENCY` cuts large pages finer (the options of a transfer say
/// anew of which class it is); `WEFT_COUNT_PAGES` keeps each page in one post: only such
/// pages can be counted. 0: neither.
///
/// `prepared`: receives the handle; the caller owns it and gives it back with
/// `weft_prepared_destroy`. `pages` and its lists are not needed after the call. The
/// memories are in use until then: giving them back says `WEFT_ERR_BUSY`. It takes
/// 4 bytes for each page index.
///
/// Any thread; does not block. Errors: as `weft_write_pages`, but for the access
/// that the memories were registered with, which is checked when it is used.
/// Since 0.1.
///
/// # Safety
/// As for `weft_write_pages`; `prepared` must be valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_pages_prepare(
    endpoint: *mut weft_endpoint,
    local: *const weft_memory,
    remote: *const weft_remote_memory,
    pages: *const weft_pages,
    flags: u32,
    prepared: *mut *mut weft_prepared,
) -> weft_status {
    guard(|| {
        let out = output(prepared, "prepared")?;
        with_endpoint(endpoint, |ep| {
            let make = || entries::prepare_pages(ep, (local, remote), pages, flags);
            out.store(handle::insert_prepared(ep, make)?);
            Ok(())
        })
    })
}

/// As `weft_pages_prepare`, for a list: checks it as `weft_write_list` does, and
/// keeps a copy, of about 72 bytes for each entry. `flags`: 0 or `WEFT_CLASS_LATENCY`.
/// Since 0.1.
///
/// # Safety
/// As for `weft_write_list`; `prepared` must be valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_list_prepare(
    endpoint: *mut weft_endpoint,
    entries: *const weft_list_entry,
    count: u64,
    flags: u32,
    prepared: *mut *mut weft_prepared,
) -> weft_status {
    guard(|| {
        let out = output(prepared, "prepared")?;
        with_endpoint(endpoint, |ep| {
            let make = || self::entries::prepare_list(ep, (entries, count), flags);
            out.store(handle::insert_prepared(ep, make)?);
            Ok(())
        })
    })
}

/// Writes what was prepared, as `weft_write_pages` or `weft_write_list`. Any number
/// of transfers may use it at the same time.
///
/// The cost of the call does not grow with pages, layers or entries, only (of a
/// list) with remote memories and peers.
///
/// `options`: NULL for defaults; `WEFT_COUNT_PAGES` only of pages that were prepared with
/// it, `WEFT_COMPLETE_EACH_PEER` of lists. `op`: receives the id; NULL if it is not
/// wanted.
///
/// Any thread; does not block. Errors: `WEFT_ERR_REMOTE_ACCESS` (registered
/// without this direction), `WEFT_ERR_INVALID`, `WEFT_ERR_LIMIT`,
/// `WEFT_ERR_UNSUPPORTED`, `WEFT_ERR_AGAIN` (`max_transfers` or `queue_depth`
/// are in use: poll), `WEFT_ERR_MEMORY_GONE`, `WEFT_ERR_PEER_LOST` and
/// `WEFT_ERR_PEER_CLOSED` (for good: release it), `WEFT_ERR_CLOSED`,
/// `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// `options` must be NULL or valid for `options->size` bytes, with valid pointers in it.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_write_prepared(
    endpoint: *mut weft_endpoint,
    prepared: *const weft_prepared,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> weft_status {
    guard(|| {
        with_endpoint(endpoint, |ep| entries::submit_prepared(ep, Direction::Write, prepared, options, op))
    })
}

/// Reads what was prepared, as `weft_read_pages` or `weft_read_list`; otherwise as
/// `weft_write_prepared`. Since 0.1.
///
/// # Safety
/// As for `weft_write_prepared`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_read_prepared(
    endpoint: *mut weft_endpoint,
    prepared: *const weft_prepared,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> weft_status {
    guard(|| {
        with_endpoint(endpoint, |ep| entries::submit_prepared(ep, Direction::Read, prepared, options, op))
    })
}

/// Gives a prepared geometry back. Transfers that use it go on; its memories stay in
/// use until the last of them has ended. `prepared`: NULL is fine; the handle is
/// invalid after `WEFT_OK`. Any thread; does not block. Errors:
/// `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// `prepared` must be NULL or a handle from `weft_pages_prepare` or `weft_list_prepare`.
#[no_mangle]
pub unsafe extern "C" fn weft_prepared_destroy(prepared: *mut weft_prepared) -> weft_status {
    guard(|| {
        if prepared.is_null() {
            return Ok(());
        }
        let owned = handle::prepared(prepared)?;
        handle::remove_prepared(prepared)?;
        owned.object.release();
        Ok(())
    })
}
