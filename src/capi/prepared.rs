//! Prepared transfers: geometry, checked once, used many times.

use super::endpoint::weft_endpoint;
use super::guard::{guard, output, with_endpoint};
use super::handle::{self, Handle, Owned, Ref};
use super::list::{list, weft_list_entry, Entries};
use super::memory::{weft_memory, weft_remote_memory};
use super::op::{weft_op, weft_op_options};
use super::options;
use super::status::weft_status;
use super::transfer::{read_pages, weft_pages};
use crate::calls::lists::Prepared;
use crate::calls::Endpoint;
use crate::status::Result;
use crate::transfer::options::{check_flags, Takes, LATENCY};
use crate::transfer::Direction;
use std::sync::Arc;

/// The geometry of a transfer, checked.
pub struct weft_prepared {
    _opaque: [u8; 0],
}

impl Handle for weft_prepared {
    type Object = Owned<Prepared>;
}

/// Checks pages as `weft_write_pages` does, and keeps a copy (4 bytes per page
/// index) for any number of transfers in either direction.
///
/// `flags`: `WEFT_CLASS_LATENCY` cuts large pages finer; pages can be counted
/// only if prepared with `WEFT_COUNT_PAGES`. `prepared`: receives the handle;
/// the memories are in use until `weft_prepared_destroy`.
///
/// Errors: as `weft_write_pages`, but for the access, which each transfer
/// checks.
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
            let make = || prepare_pages(ep, local, remote, pages, flags);
            out.store(handle::insert_owned(ep, make)?);
            Ok(())
        })
    })
}

/// As `weft_pages_prepare`, for a list: about 72 bytes per entry. `flags`: 0 or
/// `WEFT_CLASS_LATENCY`.
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
            let make = || prepare_list(ep, (entries, count), flags);
            out.store(handle::insert_owned(ep, make)?);
            Ok(())
        })
    })
}

/// Writes what was prepared, as `weft_write_pages` or `weft_write_list`.
/// Several transfers may use it at once. The cost does not grow with pages,
/// layers or entries, only (of a list) with memories and peers.
///
/// `options`: `WEFT_COUNT_PAGES` only of pages prepared with it,
/// `WEFT_COMPLETE_EACH_PEER` of lists. Errors: those of `weft_write`; after
/// `WEFT_ERR_MEMORY_GONE`, `WEFT_ERR_PEER_LOST` and `WEFT_ERR_PEER_CLOSED` it
/// is of no more use: destroy it.
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
    guard(|| with_endpoint(endpoint, |ep| submit_prepared(ep, Direction::Write, prepared, options, op)))
}

/// Reads what was prepared; otherwise as `weft_write_prepared`.
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
    guard(|| with_endpoint(endpoint, |ep| submit_prepared(ep, Direction::Read, prepared, options, op)))
}

/// Destroys a prepared geometry. Transfers that use it go on; its memories stay
/// in use until the last has ended.
///
/// # Safety
/// `prepared` must be NULL or a handle from `weft_pages_prepare` or `weft_list_prepare`.
#[no_mangle]
pub unsafe extern "C" fn weft_prepared_destroy(prepared: *mut weft_prepared) -> weft_status {
    guard(|| {
        if prepared.is_null() {
            return Ok(());
        }
        let owned = handle::get(prepared)?;
        handle::remove(prepared)?;
        owned.object.release();
        Ok(())
    })
}

/// # Safety
/// All must be as the header asks.
unsafe fn submit_prepared(
    ep: &Ref<Endpoint>,
    direction: Direction,
    prepared: *const weft_prepared,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> Result<()> {
    let prepared: Ref<Owned<Prepared>> = handle::get(prepared)?;
    let prepared = prepared.belonging_to(ep)?;
    let takes = if prepared.is_list() { Takes::LIST } else { Takes::TRANSFER };
    // SAFETY: options and `op` are NULL or valid, which is what this function takes.
    unsafe {
        let options = options::options(ep, options, takes)?;
        options.transfer(ep, direction, op, |terms| ep.submit_prepared(prepared, terms))
    }
}

/// # Safety
/// `pages` must be as the header asks.
unsafe fn prepare_pages(
    ep: &Ref<Endpoint>,
    local: *const weft_memory,
    remote: *const weft_remote_memory,
    pages: *const weft_pages,
    flags: u32,
) -> Result<Arc<Prepared>> {
    let (local, remote) = (handle::beside(local, ep, "local")?, handle::beside(remote, ep, "remote")?);
    // SAFETY: `pages` is a struct with its size, and its indexes are as many as it says.
    let pages = unsafe { read_pages(pages)? };
    ep.prepare_pages(&pages, local.as_argument(ep, "local")?, remote.as_argument(ep, "remote")?, flags)
}

/// # Safety
/// The entries must be as the header asks.
unsafe fn prepare_list(ep: &Ref<Endpoint>, entries: Entries, flags: u32) -> Result<Arc<Prepared>> {
    check_flags(flags, LATENCY)?;
    // SAFETY: the entries are as many as `entries` says.
    ep.prepare_list(unsafe { list(ep, entries, flags & LATENCY != 0)? })
}
