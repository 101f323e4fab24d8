//! Messages: small control data, in order.

use super::endpoint::weft_endpoint;
use super::guard::{bytes, guard, with_endpoint};
use super::op::{weft_op, weft_op_options};
use super::options::options;
use super::peer::weft_peer;
use super::status::weft_status;
use crate::calls::MESSAGE_MAX;
use crate::transfer::options::Takes;
use std::ffi::c_void;

pub const WEFT_MESSAGE_MAX: u32 = 1048576;
const _: () = assert!(WEFT_MESSAGE_MAX as usize == MESSAGE_MAX);

/// Sends a message. Messages of one peer arrive in the order of their calls,
/// each once, as `WEFT_COMPLETION_MESSAGE` in the peer's own endpoint queue;
/// they have no order with transfers.
///
/// Ends in one `WEFT_COMPLETION_SEND`; `WEFT_OK`: it is in the peer's queue. A
/// peer that does not poll or release holds back its senders, within
/// `message_bytes`; nothing is dropped. After any other status it may have
/// arrived, or may still; later ones arrive all the same.
///
/// `peer`: it may still be connecting. `data`: copied, `len` bytes, 0 to
/// `WEFT_MESSAGE_MAX`. Errors: `WEFT_ERR_PEER_LOST`, `WEFT_ERR_PEER_CLOSED`.
///
/// # Safety
/// `options` must be NULL or valid for `options->size` bytes, `data` for `len`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_send(
    endpoint: *mut weft_endpoint,
    peer: weft_peer,
    data: *const c_void,
    len: u64,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> weft_status {
    guard(|| {
        with_endpoint(endpoint, |ep| {
            let options = self::options(ep, options, Takes::NOTHING)?;
            options.submit(ep, op, |common| ep.send(peer, bytes(data, len as usize, "data")?, &common))
        })
    })
}

/// Gives back the data of a `WEFT_COMPLETION_MESSAGE` or
/// `WEFT_COMPLETION_NOTIFICATION`, named by its `op`; `data` is valid until
/// then. 0 is fine (there was no data).
///
/// # Safety
/// `endpoint` must be a handle from `weft_endpoint_create`.
#[no_mangle]
pub unsafe extern "C" fn weft_message_release(endpoint: *mut weft_endpoint, message: weft_op) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| ep.release_message(message)))
}
