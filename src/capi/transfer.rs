//! Transfers: writes and reads of ranges and pages.

use super::completion::{weft_queue, weft_transfer};
use super::counter::weft_counter;
use super::device::weft_watch;
use super::endpoint::weft_endpoint;
use super::guard::{guard, with_endpoint};
use super::memory::{weft_memory, weft_remote_memory};
use super::status::weft_status;
use super::terms;
use crate::transfer::Direction;
use std::ffi::c_void;

/// Flag: when the last byte has arrived, the peer gets a
/// `WEFT_COMPLETION_NOTIFICATION` with `notify` as its value, exactly once. The
/// transfer's own completion then also says that the notification arrived.
pub const WEFT_NOTIFY: u32 = 1;
/// In `flags`: the transfer is of the latency class. What it has to post goes
/// before what other transfers have, and a little of it past a full window: for
/// small transfers that somebody waits for. Without it, transfers are of the bulk
/// class and share the rails alike.
pub const WEFT_CLASS_LATENCY: u32 = 2;
/// In `flags` of a write that names a `counter`: it is raised by 1 for each page (of
/// each layer), when that page's bytes have arrived, and not again after the last
/// one (so not at all without pages). A range is one page. Such a page goes in one piece over one
/// rail, up to 1 GiB (or the fabric's longest message, if that is less:
/// `WEFT_ERR_LIMIT`). Reads: `WEFT_ERR_UNSUPPORTED`. Over verbs and libfabric's tcp,
/// the counter is raised by the number of pages when the last one has arrived (libfabric would
/// crash the target if the sender died in the middle of a page that it counts by itself, or take
/// the page's arrival for a message).
///
/// Each such page takes an entry of the target's completion queue. On NICs whose queue can
/// run over (EFA's), a rail has no more than 16 to 2,048 of them on their way to a
/// rail of the peer and waits until the peer has taken them: while a peer with
/// manual progress does not poll, the rest waits, up to its deadline; transfers that count no
/// pages go past.
pub const WEFT_COUNT_PAGES: u32 = 4;

/// Largest data of a notification, in bytes.
pub const WEFT_NOTIFY_DATA_MAX: u32 = 256;

/// A write or read of one range. Start from `WEFT_RANGE_ARGS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_range_args {
    /// `sizeof(weft_range_args)`.
    pub size: u32,
    /// 0, or `WEFT_NOTIFY`, `WEFT_CLASS_LATENCY` and `WEFT_COUNT_PAGES` added up.
    pub flags: u32,
    /// The local memory: source of a write, destination of a read.
    pub local: *const weft_memory,
    /// The remote memory: destination of a write, source of a read.
    pub remote: *const weft_remote_memory,
    /// Index of the range in each memory.
    pub local_range: u32,
    pub remote_range: u32,
    /// Bytes from the start of that range.
    pub local_offset: u64,
    pub remote_offset: u64,
    /// Bytes to move; 0 moves nothing and completes (and notifies) all the same.
    pub len: u64,
    /// The notification's value, with `WEFT_NOTIFY`; else 0.
    pub notify: u64,
    /// The notification's data, copied by the call; NULL for none.
    pub notify_data: *const c_void,
    /// Its bytes, up to `WEFT_NOTIFY_DATA_MAX`.
    pub notify_data_len: u32,
    /// 0.
    pub reserved: u32,
    /// Nanoseconds from now to the deadline, up to 24 hours. 0: the endpoint's
    /// `timeout_ns`.
    pub timeout_ns: u64,
    /// Returned in the completion.
    pub user_data: *mut c_void,
    /// Where the completion goes. NULL: the endpoint's own queue.
    pub queue: *const weft_queue,
    /// A counter of the peer to raise: by 1, exactly once, after the last byte, also
    /// when there are no bytes (the transfer's own completion then also says that it
    /// was raised), or with `WEFT_COUNT_PAGES` by 1 for each page. 0: none. One that
    /// is not the peer's is `WEFT_ERR_HANDLE`; one that the peer has destroyed is
    /// raised in vain, which the transfer does not learn.
    pub counter: weft_counter,
    /// The transfer starts when this watch has reached `start_value` (its deadline
    /// counts from the call all the same); see `weft_watch_alloc`. NULL: at once.
    pub start_watch: *const weft_watch,
    pub start_value: u64,
    /// Set to `done_value` when the transfer has ended, whatever its status, just before
    /// its completion. NULL: none.
    pub done_watch: *const weft_watch,
    pub done_value: u64,
}

/// A write or read of pages x layers. Start from `WEFT_PAGES_ARGS_INIT`.
///
/// Page `i` of layer `l` occupies, on each side,
///
///     range   first_range + l * range_step
///     offset  offset + pages[i] * page_stride + l * layer_stride
///     len     page_len
///
/// so that layers can be ranges of their own (`range_step` 1), lie behind each
/// other in one range (`range_step` 0 and a `layer_stride`), and a page can be
/// a part of the other side's page (stride and offset). Nothing is moved but
/// these bytes. Pages may repeat; if destinations overlap, which bytes win is
/// not defined.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_pages_args {
    /// `sizeof(weft_pages_args)`.
    pub size: u32,
    /// 0, or `WEFT_NOTIFY`, `WEFT_CLASS_LATENCY` and `WEFT_COUNT_PAGES` added up.
    pub flags: u32,
    /// The local memory: source of a write, destination of a read.
    pub local: *const weft_memory,
    /// The remote memory: destination of a write, source of a read.
    pub remote: *const weft_remote_memory,
    /// `page_count` page indexes for each side, copied by the call.
    /// NULL: 0, 1, 2, ...
    pub local_pages: *const u32,
    pub remote_pages: *const u32,
    /// Bytes from one page to the next. 0: `page_len`.
    pub local_page_stride: u64,
    pub remote_page_stride: u64,
    /// Bytes from the start of the range to page 0 of layer 0.
    pub local_offset: u64,
    pub remote_offset: u64,
    /// Bytes from one layer to the next, within a range.
    pub local_layer_stride: u64,
    pub remote_layer_stride: u64,
    /// The range of layer 0.
    pub local_first_range: u32,
    pub remote_first_range: u32,
    /// Ranges from one layer to the next. With 0, and a `layer_stride` of 0, all
    /// layers lie at the same place: fine where they are read from, but several
    /// layers are not written to one place (`WEFT_ERR_INVALID`).
    pub local_range_step: u32,
    pub remote_range_step: u32,
    /// Bytes of a page: 1 to 2^47; 0 only with a `page_count` of 0.
    pub page_len: u64,
    /// Pages in each layer, up to 2^32 - 1. 0 moves nothing and completes (and
    /// notifies) all the same.
    pub page_count: u64,
    /// Layers, up to 65,536. 0: 1.
    pub layer_count: u32,
    /// Bytes of `notify_data`, up to `WEFT_NOTIFY_DATA_MAX`.
    pub notify_data_len: u32,
    /// The notification's value, with `WEFT_NOTIFY`; else 0.
    pub notify: u64,
    /// The notification's data, copied by the call; NULL for none.
    pub notify_data: *const c_void,
    /// Nanoseconds from now to the deadline, up to 24 hours. 0: the endpoint's
    /// `timeout_ns`.
    pub timeout_ns: u64,
    /// Returned in the completion.
    pub user_data: *mut c_void,
    /// Where the completion goes. NULL: the endpoint's own queue.
    pub queue: *const weft_queue,
    /// A counter of the peer to raise: by 1, exactly once, after the last byte, also
    /// when there are no bytes (the transfer's own completion then also says that it
    /// was raised), or with `WEFT_COUNT_PAGES` by 1 for each page. 0: none. One that
    /// is not the peer's is `WEFT_ERR_HANDLE`; one that the peer has destroyed is
    /// raised in vain, which the transfer does not learn.
    pub counter: weft_counter,
    /// As in `weft_range_args`.
    pub start_watch: *const weft_watch,
    pub start_value: u64,
    pub done_watch: *const weft_watch,
    pub done_value: u64,
}

/// Writes one range of local memory into remote memory.
///
/// Ends in exactly one `WEFT_COMPLETION_WRITE`. `WEFT_OK` means that every byte
/// is visible at the target, and that none of this transfer arrives later.
/// Until the completion the local bytes must not change. Operations have no
/// order among each other.
///
/// A `len` of 0 still needs both memories; entries of lists do not.
///
/// After any other status, the notification may have arrived and the counter may have
/// been raised, each once, or may yet. Bytes may have arrived, too, and may still, until the target
/// has a `weft_peer_fence` of this peer, has polled its PEER_DOWN or has
/// deregistered the memory. The local memory is left alone: such a completion waits
/// until the NICs have given back what they had. Only where one does not within
/// 160 ms, and its lane cannot be closed alone, does the completion come all the
/// same: then local memory may still be read (by a read: written to) until
/// PEER_DOWN of the peer or until `weft_memory_deregister` has returned `WEFT_OK`
/// here. See docs/failures.md.
///
/// `transfer`: receives the id; NULL if it is not wanted. `args` is not needed
/// after the call.
///
/// Any thread; does not block. Errors: `WEFT_ERR_RANGE`, `WEFT_ERR_INVALID`,
/// `WEFT_ERR_REMOTE_ACCESS` (registered without this direction),
/// `WEFT_ERR_UNSUPPORTED`, `WEFT_ERR_LIMIT`, `WEFT_ERR_AGAIN` (`max_transfers` or `queue_depth` are in
/// use: poll), `WEFT_ERR_MEMORY_GONE`, `WEFT_ERR_PEER_LOST`,
/// `WEFT_ERR_PEER_CLOSED`, `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// `args` must be valid for `args->size` bytes, with valid pointers in it.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_write(
    endpoint: *mut weft_endpoint,
    args: *const weft_range_args,
    transfer: *mut weft_transfer,
) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| terms::submit_range(ep, Direction::Write, args, transfer)))
}

/// Reads one range of remote memory into local memory. As `weft_write`, in the
/// other direction: `WEFT_COMPLETION_READ` with `WEFT_OK` means that every byte
/// is in local memory. A notification goes to the peer, after the last byte
/// was read. Since 0.1.
///
/// # Safety
/// As for `weft_write`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_read(
    endpoint: *mut weft_endpoint,
    args: *const weft_range_args,
    transfer: *mut weft_transfer,
) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| terms::submit_range(ep, Direction::Read, args, transfer)))
}

/// Writes pages of local memory into pages of remote memory; otherwise as
/// `weft_write`. The cost of the call grows with `page_count` (the indexes are
/// checked and copied), not with layers or bytes. Since 0.1.
///
/// # Safety
/// As for `weft_write`; the page lists must hold `page_count` indexes.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_write_pages(
    endpoint: *mut weft_endpoint,
    args: *const weft_pages_args,
    transfer: *mut weft_transfer,
) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| terms::submit_pages(ep, Direction::Write, args, transfer)))
}

/// Reads pages of remote memory into pages of local memory; otherwise as
/// `weft_read` and `weft_write_pages`. Over tcp each page that has no neighbour in
/// the lists is a request of its own, which takes about 10 us: where pages are small
/// and many, let the peer write them. Since 0.1.
///
/// # Safety
/// As for `weft_write_pages`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_read_pages(
    endpoint: *mut weft_endpoint,
    args: *const weft_pages_args,
    transfer: *mut weft_transfer,
) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| terms::submit_pages(ep, Direction::Read, args, transfer)))
}

/// Ends a transfer, a send, an atomic or a wait for counters early: its completion
/// comes with `WEFT_ERR_CANCELED`, unless it has completed already. Bytes may have
/// arrived; the peer may have been notified, and its counter raised, or may be yet: who waits
/// for a total counts such a transfer with those of which it cannot be sure. Of a transfer it comes when its NICs have given back what is under way (as
/// after a deadline, and mostly at once; after 80 ms lanes are cut for it, where that
/// can be): nothing touches the local memory any more. On the target, bytes may arrive
/// until a `weft_peer_fence` there.
///
/// Any thread; does not block. Errors: `WEFT_ERR_HANDLE` (not an operation of
/// this endpoint, or completed already: normal when the two race). Since 0.1.
///
/// # Safety
/// `endpoint` must be a handle from `weft_endpoint_open`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_transfer_cancel(
    endpoint: *mut weft_endpoint,
    transfer: weft_transfer,
) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| ep.cancel(transfer)))
}
