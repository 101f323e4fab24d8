//! Fences: what a peer has accepted no longer changes memory here.

use super::endpoint::weft_endpoint;
use super::guard::{guard, with_endpoint};
use super::op::{weft_op, weft_op_options};
use super::options::options;
use super::peer::weft_peer;
use super::status::weft_status;
use crate::transfer::options::Takes;

/// Waits until no operation that the peer had accepted before it saw the fence
/// can change local memory, notify or raise counters here, whatever its
/// outcome.
///
/// Call it before memory is reused that writes of the peer may still reach:
/// your request timed out, or the peer says that a write failed. Without
/// grants, nothing is needed after the write's notification, PEER_DOWN (except
/// over efa) or `weft_memory_deregister`. docs/pages-back.md has the whole of
/// it.
///
/// Ends in one `WEFT_COMPLETION_FENCE`. With `WEFT_OK` it is so, and every
/// notification of those operations is in the queue already; any other status
/// promises nothing. The fence ends no operation, and waits for the peer's
/// until their deadlines: have the peer cancel them, give the fence a longer
/// deadline, or disconnect. What the peer accepts later is not waited for.
///
/// `peer`: it may still be connecting. In the completion: `WEFT_ERR_TIMED_OUT`,
/// `WEFT_ERR_LIMIT` (64 fences are under way), `WEFT_ERR_PEER_LOST`,
/// `WEFT_ERR_PEER_CLOSED`.
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
            options.submit(ep, op, |common| ep.fence(peer, &common))
        })
    })
}
