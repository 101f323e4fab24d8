//! Fences: nothing that a peer has accepted so far can change memory here afterwards.

use super::endpoint::weft_endpoint;
use super::guard::{guard, with_endpoint};
use super::op::{weft_op, weft_op_options};
use super::options::{options, Takes};
use super::peer::weft_peer;
use super::status::weft_status;
use crate::transfer::FenceSpec;

/// Waits until no operation that the peer had accepted before it saw the fence can change
/// local memory, notify or raise counters here, whatever its outcome: operations that
/// were canceled, failed or passed their deadlines are covered like those that succeeded.
///
/// Call it before memory is used again that writes of the peer may still reach: your own
/// request timed out, its user hung up, or the peer says that a write did not succeed. Nothing
/// is needed after a notification of the write, after the peer's PEER_DOWN (but over efa and
/// shm, which cannot close a lane), or after `weft_memory_deregister` of the memory.
///
/// Ends in exactly one `WEFT_COMPLETION_FENCE`. With `WEFT_OK` it is so, and every
/// notification of those operations is in the queue already. Any other status promises
/// nothing. The fence ends no operation: the peer's transfers that were accepted before it
/// end first, by their own deadlines at the latest (to end them early, have the peer cancel
/// them), so give the fence a deadline that is longer, or fall back to
/// `weft_peer_disconnect` and its PEER_DOWN. What the peer accepts later is not waited for.
/// Up to 64 fences of one peer may be under way. docs/pages-back.md has the whole of it.
///
/// `peer`: it may still be connecting. `options`: NULL for defaults. `op`:
/// receives the id; NULL if it is not wanted.
/// Any thread; does not block. Errors: `WEFT_ERR_AGAIN`, `WEFT_ERR_INVALID`,
/// `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`. In the completion also
/// `WEFT_ERR_TIMED_OUT` (operations of the peer have not ended, or it does not poll), `WEFT_ERR_LIMIT`
/// (64), `WEFT_ERR_PEER_LOST`, `WEFT_ERR_PEER_CLOSED`. Since 0.1.
///
/// # Safety
/// `options` must be NULL or valid for `options->size` bytes.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_peer_fence(
    endpoint: *mut weft_endpoint,
    peer: weft_peer,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> weft_status {
    guard(|| {
        with_endpoint(endpoint, |ep| {
            let options = self::options(ep, options, Takes::NOTHING)?;
            options.submit(ep, op, |common| {
                let (timeout_ns, user_data, queue) = (common.timeout_ns, common.user_data, common.queue);
                ep.fence(FenceSpec { peer, timeout_ns, user_data, queue })
            })
        })
    })
}
