//! Transfers: writes and reads of ranges and pages.

use super::endpoint::weft_endpoint;
use super::entries::{move_bytes, move_pages, read_pages};
use super::guard::{guard, with_endpoint};
use super::memory::{weft_memory, weft_remote_memory};
use super::op::{weft_op, weft_op_options};
use super::status::weft_status;
use crate::transfer::Direction;

/// Where the pages of a transfer lie on one side.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_page_side {
    /// `page_count` page indexes, copied by the call. NULL: 0, 1, 2, ...
    pub pages: *const u32,
    /// Bytes from one page to the next. 0: `page_len`.
    pub page_stride: u64,
    /// Bytes from the start of the range to page 0 of layer 0.
    pub offset: u64,
    /// Bytes from one layer to the next, within a range.
    pub layer_stride: u64,
    /// The range of layer 0.
    pub first_range: u32,
    /// Ranges from one layer to the next. With 0, and a `layer_stride` of 0, all
    /// layers lie at the same place: fine where they are read from, but several
    /// layers are not written to one place (`WEFT_ERR_INVALID`).
    pub range_step: u32,
}

/// The geometry of pages x layers, of both sides. Start from `WEFT_PAGES_INIT`.
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
pub struct weft_pages {
    /// `sizeof(weft_pages)`.
    pub size: u32,
    /// Layers, up to 65,536. 0: 1.
    pub layer_count: u32,
    /// Bytes of a page: 1 to 2^47; 0 only with a `page_count` of 0.
    pub page_len: u64,
    /// Pages in each layer, up to 2^32 - 1. 0 moves nothing and completes (and
    /// notifies) all the same.
    pub page_count: u64,
    pub local: weft_page_side,
    pub remote: weft_page_side,
}

// SAFETY: integers and pointers only.
unsafe impl super::config::Sized32 for weft_pages {}

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
/// `local`: the source of a write, the destination of a read. `remote`: the other one.
/// `local_offset`, `remote_offset`: bytes from the memory's start; the ranges of a memory
/// of several count as if one lay behind the other, and the bytes must lie in one range.
/// `len`: bytes to move; 0 moves nothing and completes (and notifies) all the same.
/// `options`: NULL for defaults. `op`: receives the id; NULL if it is not wanted.
///
/// Any thread; does not block. Errors: `WEFT_ERR_RANGE`, `WEFT_ERR_INVALID`,
/// `WEFT_ERR_REMOTE_ACCESS` (registered without this direction),
/// `WEFT_ERR_UNSUPPORTED`, `WEFT_ERR_LIMIT`, `WEFT_ERR_AGAIN` (`max_transfers` or `queue_depth` are in
/// use: poll), `WEFT_ERR_MEMORY_GONE`, `WEFT_ERR_PEER_LOST`,
/// `WEFT_ERR_PEER_CLOSED`, `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`. Since 0.1.
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
    let sides = (local, local_offset, remote, remote_offset);
    guard(|| with_endpoint(endpoint, |ep| move_bytes(ep, Direction::Write, sides, len, options, op)))
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
    local: *const weft_memory,
    local_offset: u64,
    remote: *const weft_remote_memory,
    remote_offset: u64,
    len: u64,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> weft_status {
    let sides = (local, local_offset, remote, remote_offset);
    guard(|| with_endpoint(endpoint, |ep| move_bytes(ep, Direction::Read, sides, len, options, op)))
}

/// Writes pages of local memory into pages of remote memory; otherwise as
/// `weft_write`. The cost of the call grows with `page_count` (the indexes are
/// checked and copied), not with layers or bytes. Since 0.1.
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
            move_pages(ep, Direction::Write, (local, remote), &pages, options, op)
        })
    })
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
    local: *const weft_memory,
    remote: *const weft_remote_memory,
    pages: *const weft_pages,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> weft_status {
    guard(|| {
        with_endpoint(endpoint, |ep| {
            let pages = read_pages(pages)?;
            move_pages(ep, Direction::Read, (local, remote), &pages, options, op)
        })
    })
}
