//! Atomics: single words of peers' memory, changed by many at once.

use super::endpoint::weft_endpoint;
use super::entries::place;
use super::guard::{guard, with_endpoint};
use super::handle::{self, Ref};
use super::memory::weft_remote_memory;
use super::op::{weft_op, weft_op_options, WEFT_CLASS_LATENCY};
use super::options::{options, Takes};
use super::status::weft_status;

use crate::endpoint::Endpoint;
use crate::status::Result;
use crate::transfer::atomic::{AtomicSpec, Operation};

/// Adds `operand` to a word of remote memory (around 2^64), and tells what it
/// was before.
///
/// The word is 8 bytes in the owner's byte order. The owner's Weft does it, with
/// its CPU and sequentially consistent: it is atomic with what all peers ask for,
/// over whatever fabric, and with what the owner's own program does by atomic
/// instructions (`_Atomic uint64_t`, `std::atomic`), but not with writes of peers
/// to the same bytes. (The owner itself uses `std::atomic_ref` or the `__atomic`
/// builtins; reading a word is an addition of 0, and who polls one should back
/// off.) With manual progress it is done while the owner polls.
///
/// Ends in exactly one `WEFT_COMPLETION_ATOMIC`, whose `previous` is the word as it
/// was before. `WEFT_OK` means that it was done, once. After
/// `WEFT_ERR_TIMED_OUT`, `WEFT_ERR_CANCELED`, `WEFT_ERR_PEER_LOST` or
/// `WEFT_ERR_PEER_CLOSED` it may have been done (once) or not, or may still be,
/// until `weft_memory_deregister` has returned `WEFT_OK` or PEER_DOWN of this peer
/// was polled at the owner; after `WEFT_ERR_MEMORY_GONE` it may have been done.
/// After any other status it was not. Until the owner has answered, what was
/// canceled or timed out still counts in `max_transfers` and uses the remote
/// memory.
///
/// There is no order with other operations, atomics included: submit what must
/// come later when this has completed.
///
/// A ticket is one `weft_fetch_add` of 1. A lock on a word that begins as 0:
///
///     take   do weft_compare_swap(ep, remote, offset, 0, my_id, ...)   // not 0
///            until a completion has previous 0, pausing longer each time
///     use    what it guards, and wait for the completions
///     give   weft_compare_swap(ep, remote, offset, my_id, 0, ...)
///
/// A holder that dies keeps it: who guards against that writes into `my_id` who
/// holds it, and takes it from the dead.
///
/// Costs a message there and one back: for coordination, not for data.
///
/// `remote`: the memory that the word is in, registered by its owner with
/// `WEFT_ACCESS_REMOTE_WRITE` and `WEFT_ACCESS_REMOTE_READ`. `offset`: bytes from the
/// memory's start to the word, as in `weft_write`; the word's *address* at the owner must
/// be a multiple of 8. `operand`: what is added. `options`: NULL for defaults.
/// `op`: receives the id, for `weft_op_cancel`; NULL if it is not wanted.
///
/// Any thread; does not block. Errors: `WEFT_ERR_UNSUPPORTED` (the peer does no
/// atomics: see `weft_peer_properties`), `WEFT_ERR_REMOTE_ACCESS` (registered
/// without one of the accesses), `WEFT_ERR_RANGE`, `WEFT_ERR_INVALID` (not aligned),
/// `WEFT_ERR_LIMIT`, `WEFT_ERR_AGAIN` (`max_transfers` or `queue_depth` are in use:
/// poll), `WEFT_ERR_MEMORY_GONE`, `WEFT_ERR_PEER_LOST`, `WEFT_ERR_PEER_CLOSED`,
/// `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// `options` must be NULL or valid for `options->size` bytes, `op` NULL or valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_fetch_add(
    endpoint: *mut weft_endpoint,
    remote: *const weft_remote_memory,
    offset: u64,
    operand: u64,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> weft_status {
    let what = (Operation::FetchAdd, operand, 0);
    guard(|| with_endpoint(endpoint, |ep| submit(ep, what, (remote, offset), options, op)))
}

/// Replaces a word of remote memory by `desired` if it is `expected`; otherwise
/// as `weft_fetch_add`. It did if the completion's `previous` is `expected`: that is
/// what the word was. Since 0.1.
///
/// # Safety
/// As for `weft_fetch_add`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_compare_swap(
    endpoint: *mut weft_endpoint,
    remote: *const weft_remote_memory,
    offset: u64,
    expected: u64,
    desired: u64,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> weft_status {
    let what = (Operation::CompareSwap, desired, expected);
    guard(|| with_endpoint(endpoint, |ep| submit(ep, what, (remote, offset), options, op)))
}

/// # Safety
/// `options` and `op` must be valid as the header asks.
unsafe fn submit(
    ep: &Ref<Endpoint>,
    (operation, operand, compare): (Operation, u64, u64),
    (remote, offset): (*const weft_remote_memory, u64),
    options: *const weft_op_options,
    op: *mut weft_op,
) -> Result<()> {
    let takes = Takes { flags: WEFT_CLASS_LATENCY, ..Takes::NOTHING };
    // SAFETY: passed on.
    let options = unsafe { self::options(ep, options, takes)? };
    let remote = handle::remote_side(remote, ep)?;
    let remote = remote.of(ep)?;
    let (range, offset) = place(|range| remote.range_len(range), offset);
    // SAFETY: as the header asks.
    unsafe {
        options.submit(ep, op, |common| {
            ep.atomic(AtomicSpec {
                operation,
                remote,
                range: range.into(),
                offset,
                operand,
                compare,
                timeout_ns: common.timeout_ns,
                user_data: common.user_data,
                queue: common.queue,
            })
        })
    }
}
