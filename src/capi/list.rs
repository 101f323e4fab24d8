//! Lists: writes and reads between many memories and many peers.

use super::endpoint::weft_endpoint;
use super::entries::submit_list;
use super::guard::{guard, with_endpoint};
use super::memory::{weft_memory, weft_remote_memory};
use super::op::{weft_counter, weft_op, weft_op_options};
use super::peer::weft_peer;
use super::status::weft_status;
use crate::transfer::Direction;

/// Most entries of a list.
pub const WEFT_LIST_ENTRIES_MAX: u32 = 1048576;

/// One entry of a list: bytes between one local and one remote range.
///
/// With a `len` of 0 it moves nothing and needs no memories, only a peer: that
/// is how a list notifies a peer that gets no bytes, or raises its counter. (A
/// barrier is a list of such entries, one for each peer. It has no order with
/// transfers before it: have their completions, or count them at the receiver,
/// first.)
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_list_entry {
    /// The local memory: source of a write, destination of a read. NULL only
    /// with a `len` of 0.
    pub local: *const weft_memory,
    /// The remote memory: destination of a write, source of a read. NULL only
    /// with a `len` of 0.
    pub remote: *const weft_remote_memory,
    /// The peer. 0: the one that `remote` is of; anything else must be that one.
    pub peer: weft_peer,
    /// Index of the range in each memory.
    pub local_range: u32,
    pub remote_range: u32,
    /// Bytes from the start of that range.
    pub local_offset: u64,
    pub remote_offset: u64,
    /// Bytes to move. 0 moves nothing; ranges and offsets do not count then.
    pub len: u64,
    /// A counter of the peer (see `weft_counter_create`), raised by 1 when the
    /// bytes of this entry have arrived, or (an empty entry, a read) when all bytes
    /// of the list for this peer have; 0: none. Then `len` is at most 1 GiB.
    pub counter: weft_counter,
}

/// Writes the entries of a list, between any memories of this endpoint and of
/// any of its peers; otherwise as `weft_write`.
///
/// Every entry is checked before any starts: if the call fails, nothing was
/// moved, and `weft_last_error()` names the entry, counted from 0. Entries have
/// no order among each other; where destinations overlap, which bytes win is
/// not defined.
///
/// Ends in exactly one `WEFT_COMPLETION_WRITE`, when all peers have everything
/// or have failed; a peer that fails does not stop what goes to the others.
/// `bytes` is the sum of all entries. `peer` is the list's only peer, or 0 if it
/// has several. After a failure, `status` is that of the peer that failed first,
/// `peer` is this peer, and `entry` is the first of its entries: any of that
/// peer's may have failed, too. (With `WEFT_ERR_MEMORY_GONE` it is the first
/// entry of the memory that is gone.)
///
/// With `WEFT_COMPLETE_EACH_PEER` there is one completion for each peer instead,
/// with its `peer` and the bytes of its entries; all have the same `op`
/// and `user_data`. `weft_op_cancel` cancels what goes to all peers.
///
/// A list over N peers takes N + 1 of `max_transfers` (of one peer: 1), and one
/// place in the queue for each completion. The rails that know the memories are
/// those that know all of one peer's entries (`weft_memory_args.rails`): without
/// a common one it ends with `WEFT_ERR_NO_RAILS`.
///
/// `entries`: `count` of them, 1 to `WEFT_LIST_ENTRIES_MAX`, copied by the call, whose
/// cost grows with `count`. `options`: NULL for defaults; with `WEFT_NOTIFY` every peer of
/// the list gets one notification, after its own last byte; `start_watch` starts all of
/// it, and `done_watch` is set when all of it has ended. `op`: receives the id; NULL
/// if it is not wanted.
///
/// Any thread; does not block. Errors: those of `weft_write`;
/// `WEFT_ERR_INVALID` also for a `count` of 0 and for an entry whose `peer` and
/// `remote` differ; `WEFT_ERR_LIMIT` also for a list that takes more than there
/// are of `max_transfers` or places in its queue. Since 0.1.
///
/// # Safety
/// `entries` must be valid for `count` elements, `options` NULL or valid for
/// `options->size` bytes.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_write_list(
    endpoint: *mut weft_endpoint,
    entries: *const weft_list_entry,
    count: u64,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> weft_status {
    let list = (entries, count);
    guard(|| with_endpoint(endpoint, |ep| submit_list(ep, Direction::Write, list, options, op)))
}

/// Reads the entries of a list; otherwise as `weft_read` and `weft_write_list`:
/// `WEFT_COMPLETION_READ`. Since 0.1.
///
/// # Safety
/// As for `weft_write_list`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_read_list(
    endpoint: *mut weft_endpoint,
    entries: *const weft_list_entry,
    count: u64,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> weft_status {
    let list = (entries, count);
    guard(|| with_endpoint(endpoint, |ep| submit_list(ep, Direction::Read, list, options, op)))
}
