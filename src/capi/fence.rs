//! Fences: that nothing earlier of a peer can land any more.

use super::endpoint::weft_endpoint;
use super::guard::{guard, with_endpoint};
use super::op::{weft_op, weft_op_options};
use super::options::{options, Takes};
use super::peer::weft_peer;
use super::status::weft_status;
use crate::transfer::FenceSpec;

/// Waits until nothing can land here any more that a peer has posted so far: not of
/// its writes that failed, were canceled or passed their deadlines either. For memory
/// that is to be used again after the peer has said that a write to it did not
/// succeed. (After a write that succeeded none is needed; nor after the peer's
/// PEER_DOWN, nor after `weft_memory_deregister` of the memory.)
///
/// Ends in exactly one `WEFT_COMPLETION_FENCE`. `WEFT_OK`: it is so. Anything else
/// promises nothing. The peer lets what it has under way to this endpoint come to
/// rest before it goes on: some round trips in which it posts nothing more here. What
/// it submits later is not waited for. Up to 64 fences of one peer may be under way.
///
/// `peer`: it may still be connecting. `options`: NULL for defaults. `op`:
/// receives the id; NULL if it is not wanted.
/// Any thread; does not block. Errors: `WEFT_ERR_AGAIN`, `WEFT_ERR_INVALID`,
/// `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`. In the completion also
/// `WEFT_ERR_TIMED_OUT` (the peer does not poll, or has stopped), `WEFT_ERR_LIMIT`
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
