//! Kept geometry: checked and copied once, used by any number of transfers.

use super::completion::{weft_queue, weft_transfer};
use super::counter::weft_counter;
use super::device::weft_watch;
use super::endpoint::weft_endpoint;
use super::guard::{guard, output, with_endpoint};
use super::list::weft_list_args;
use super::status::weft_status;
use super::transfer::weft_pages_args;
use super::{entries, handle};
use crate::transfer::Direction;
use std::ffi::c_void;

/// The geometry of a transfer, checked. Opaque; made by `weft_pages_keep` and
/// `weft_list_keep`.
pub struct weft_kept {
    _opaque: [u8; 0],
}

/// One transfer of a kept geometry. Start from `WEFT_KEPT_ARGS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_kept_args {
    /// `sizeof(weft_kept_args)`.
    pub size: u32,
    /// 0, or `WEFT_NOTIFY`, `WEFT_CLASS_LATENCY`, `WEFT_COUNT_PAGES` (of pages that
    /// were kept with it) and `WEFT_COMPLETE_EACH_PEER` (of a list) added up.
    pub flags: u32,
    /// The notification's value, with `WEFT_NOTIFY`.
    pub notify: u64,
    /// The notification's data, copied by the call; NULL for none.
    pub notify_data: *const c_void,
    /// Its bytes, up to `WEFT_NOTIFY_DATA_MAX`.
    pub notify_data_len: u32,
    /// 0.
    pub reserved: u32,
    /// Of pages: a counter of the peer, as in `weft_pages_args`; 0: none. Entries of
    /// lists name theirs.
    pub counter: weft_counter,
    /// Nanoseconds from now to the deadline, up to 24 hours. 0: the endpoint's
    /// `timeout_ns`.
    pub timeout_ns: u64,
    /// Returned in the completion.
    pub user_data: *mut c_void,
    /// Where the completion goes. NULL: the endpoint's own queue.
    pub queue: *const weft_queue,
    /// As in `weft_range_args`, or `weft_list_args`.
    pub start_watch: *const weft_watch,
    pub start_value: u64,
    pub done_watch: *const weft_watch,
    pub done_value: u64,
}

/// Checks pages as `weft_write_pages` does, and keeps a copy of them, for any
/// number of transfers in either direction.
///
/// Of `args`, the geometry counts, and `WEFT_CLASS_LATENCY` in `flags`, which
/// cuts large pages finer (`weft_kept_args` says anew of which class a transfer
/// is), or `WEFT_COUNT_PAGES`, which keeps each page in one post: only such
/// pages can be counted. What belongs to a single transfer must be 0:
/// `WEFT_NOTIFY`, `notify`, `notify_data`, `notify_data_len`, `counter`, `timeout_ns`, `user_data`, `queue`,
/// and the watches.
///
/// `kept`: receives the handle; the caller owns it and gives it back with
/// `weft_kept_release`. `args` and its lists are not needed after the call. The
/// memories are in use while they are kept: giving them back says
/// `WEFT_ERR_BUSY`. It takes 4 bytes for each page index.
///
/// Any thread; does not block. Errors: as `weft_write_pages`, but for the access
/// that the memories were registered with, which is checked when it is used.
/// Since 0.1.
///
/// # Safety
/// As for `weft_write_pages`; `kept` must be valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_pages_keep(
    endpoint: *mut weft_endpoint,
    args: *const weft_pages_args,
    kept: *mut *mut weft_kept,
) -> weft_status {
    guard(|| {
        let out = output(kept, "kept")?;
        with_endpoint(endpoint, |ep| {
            out.store(handle::insert_kept(ep, || entries::keep_pages(ep, args))?);
            Ok(())
        })
    })
}

/// As `weft_pages_keep`, for a list: checks it as `weft_write_list` does, and
/// keeps a copy, of about 72 bytes for each entry. `WEFT_COMPLETE_EACH_PEER`
/// belongs to `weft_kept_args`, too. Since 0.1.
///
/// # Safety
/// As for `weft_write_list`; `kept` must be valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_list_keep(
    endpoint: *mut weft_endpoint,
    args: *const weft_list_args,
    kept: *mut *mut weft_kept,
) -> weft_status {
    guard(|| {
        let out = output(kept, "kept")?;
        with_endpoint(endpoint, |ep| {
            out.store(handle::insert_kept(ep, || entries::keep_list(ep, args))?);
            Ok(())
        })
    })
}

/// Writes what was kept, as `weft_write_pages` or `weft_write_list`. Any number
/// of transfers may use one kept geometry at the same time.
///
/// The cost of the call does not grow with pages, layers or entries, only (of a
/// list) with remote memories and peers.
///
/// `transfer`: receives the id; NULL if it is not wanted. `args` is not needed
/// after the call.
///
/// Any thread; does not block. Errors: `WEFT_ERR_REMOTE_ACCESS` (registered
/// without this direction), `WEFT_ERR_INVALID`, `WEFT_ERR_LIMIT`,
/// `WEFT_ERR_UNSUPPORTED`, `WEFT_ERR_AGAIN` (`max_transfers` or `queue_depth`
/// are in use: poll), `WEFT_ERR_MEMORY_GONE`, `WEFT_ERR_PEER_LOST` and
/// `WEFT_ERR_PEER_CLOSED` (for good: release it), `WEFT_ERR_CLOSED`,
/// `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// `args` must be valid for `args->size` bytes, with valid pointers in it.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_write_kept(
    endpoint: *mut weft_endpoint,
    kept: *const weft_kept,
    args: *const weft_kept_args,
    transfer: *mut weft_transfer,
) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| entries::submit_kept(ep, Direction::Write, kept, args, transfer)))
}

/// Reads what was kept, as `weft_read_pages` or `weft_read_list`; otherwise as
/// `weft_write_kept`. Since 0.1.
///
/// # Safety
/// As for `weft_write_kept`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_read_kept(
    endpoint: *mut weft_endpoint,
    kept: *const weft_kept,
    args: *const weft_kept_args,
    transfer: *mut weft_transfer,
) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| entries::submit_kept(ep, Direction::Read, kept, args, transfer)))
}

/// Gives a kept geometry back. Transfers that use it go on; its memories stay in
/// use until the last of them has ended. `kept`: NULL is fine; the handle is
/// invalid after `WEFT_OK`. Any thread; does not block. Errors:
/// `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// `kept` must be NULL or a handle from `weft_pages_keep` or `weft_list_keep`.
#[no_mangle]
pub unsafe extern "C" fn weft_kept_release(kept: *mut weft_kept) -> weft_status {
    guard(|| {
        if kept.is_null() {
            return Ok(());
        }
        let owned = handle::kept(kept)?;
        handle::remove_kept(kept)?;
        owned.object.release();
        Ok(())
    })
}
