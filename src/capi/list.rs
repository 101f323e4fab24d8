//! Lists: writes and reads between many memories and many peers.

use super::endpoint::weft_endpoint;
use super::guard::{array, guard, with_endpoint};
use super::handle::{self, Ref};
use super::memory::{weft_memory, weft_remote_memory};
use super::op::{weft_counter, weft_op, weft_op_options};
use super::options;
use super::peer::weft_peer;
use super::status::weft_status;
use crate::calls::Endpoint;
use crate::ids::PeerId;
use crate::status::Result;
use crate::transfer::list::{Asked, Builder, List, ENTRIES_MAX};
use crate::transfer::options::Takes;
use crate::transfer::Direction;
use std::sync::Arc;

pub const WEFT_LIST_ENTRIES_MAX: u32 = 1048576;
const _: () = assert!(WEFT_LIST_ENTRIES_MAX as u64 == ENTRIES_MAX);

/// One entry of a list: bytes between a local and a remote range. With a `len`
/// of 0 it needs only a peer, to notify it or to raise its counter.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_list_entry {
    /// Source of a write, destination of a read; NULL
    /// only with a `len` of 0.
    pub local: *const weft_memory,
    /// Destination of a write, source of a read; NULL
    /// only with a `len` of 0.
    pub remote: *const weft_remote_memory,
    /// 0: the peer of `remote`; anything else must be that peer.
    pub peer: weft_peer,
    pub local_range: u32,
    pub remote_range: u32,
    pub local_offset: u64,
    pub remote_offset: u64,
    /// 0 moves nothing; ranges and offsets are not read then.
    pub len: u64,
    /// A counter of the peer, raised by 1 when the bytes of this entry have
    /// arrived, or (an empty entry, a read) when all bytes of the list for this
    /// peer have. 0: none. With one, `len` is at most 1 GiB.
    pub counter: weft_counter,
}

/// Writes the entries of a list, between any memories of this endpoint and its
/// peers; otherwise as `weft_write`.
///
/// Every entry is checked before any starts; `weft_last_error` names the entry,
/// from 0. Entries have no order; where destinations overlap, it is not defined
/// which bytes win.
///
/// Ends in one `WEFT_COMPLETION_WRITE`, when all peers have everything or have
/// failed; a peer that fails does not stop the others. `bytes` is the sum;
/// `peer` is the only peer, or 0. After a failure `status` and `peer` are those
/// of the peer that failed first, and `entry` is its first entry (any of that
/// peer may have failed; with `WEFT_ERR_MEMORY_GONE`: the first of that
/// memory). With `WEFT_COMPLETE_EACH_PEER` each peer has a completion, with its
/// bytes and the same `op` and `user_data`. A cancel is for all peers.
///
/// `entries`: `count` of them, 1 to `WEFT_LIST_ENTRIES_MAX`. With `WEFT_NOTIFY`
/// every peer gets one notification, after its own last byte; watches are of
/// the whole list. N peers take N + 1 of `max_transfers` (one: 1), and a queue
/// place for each completion.
///
/// Errors: those of `weft_write`; `WEFT_ERR_LIMIT` also beyond `max_transfers`
/// or the queue. In the completion `WEFT_ERR_NO_RAILS` (no rail knows all
/// memories of a peer's entries).
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

/// Reads the entries of a list; otherwise as
/// `weft_read` and `weft_write_list`.
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

/// Entries, and how many there are.
pub(super) type Entries = (*const weft_list_entry, u64);

/// # Safety
/// The entries must be as the header asks.
pub(super) unsafe fn list(ep: &Ref<Endpoint>, (entries, count): Entries, urgent: bool) -> Result<List> {
    let mut list = Builder::new(count)?;
    // SAFETY: the header requires `count` valid entries, which are copied one by one.
    for entry in unsafe { array(entries, count as usize, "entries")? }.iter() {
        let local = || Ok(handle::beside(entry.local, ep, "local")?.belonging_to(ep)?.clone());
        let remote = || Ok(handle::beside(entry.remote, ep, "remote")?.belonging_to(ep)?.clone());
        let asked = |list: &mut Builder| {
            Ok(Asked {
                local: list.local(entry.local as usize, local)?,
                remote: list.remote(entry.remote as usize, remote)?,
                peer: PeerId::new(entry.peer),
                local_range: entry.local_range,
                remote_range: entry.remote_range,
                local_offset: entry.local_offset,
                remote_offset: entry.remote_offset,
                len: entry.len,
                counter: entry.counter,
            })
        };
        list.add(asked, |peer| ep.raises(peer))?;
    }
    list.finish(urgent)
}

/// # Safety
/// All must be as the header asks.
unsafe fn submit_list(
    ep: &Ref<Endpoint>,
    direction: Direction,
    entries: Entries,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> Result<()> {
    // SAFETY: options and `op` are NULL or valid, which is what this function takes.
    unsafe {
        let options = options::options(ep, options, Takes::LIST)?;
        let list = Arc::new(list(ep, entries, options.checked.is_urgent())?);
        options.transfer(ep, direction, op, |terms| ep.submit_list(&list, terms))
    }
}
