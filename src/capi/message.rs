//! Messages: small control data, in order.

use super::completion::{weft_queue, weft_transfer};
use super::config;
use super::endpoint::weft_endpoint;
use super::guard::{guard, with_endpoint};
use super::peer::weft_peer;
use super::status::weft_status;
use std::ffi::c_void;

/// Largest message, in bytes.
pub const WEFT_MESSAGE_MAX: u32 = 1048576;

/// A message to send. Start from `WEFT_SEND_ARGS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_send_args {
    /// `sizeof(weft_send_args)`.
    pub size: u32,
    /// None defined yet: 0.
    pub flags: u32,
    /// To whom; it may still be connecting.
    pub peer: weft_peer,
    /// The message, copied by the call, and its bytes: 0 to `WEFT_MESSAGE_MAX`.
    pub data: *const c_void,
    pub len: u64,
    /// Nanoseconds from now to the deadline, up to 24 hours. 0: the endpoint's
    /// `timeout_ns`.
    pub timeout_ns: u64,
    /// Returned in the completion.
    pub user_data: *mut c_void,
    /// Where the completion goes. NULL: the endpoint's own queue.
    pub queue: *const weft_queue,
}

/// Sends a message, for requests, descriptors and the like. Messages of one
/// peer arrive in the order of their calls, each exactly once, as
/// `WEFT_COMPLETION_MESSAGE` in the peer's own endpoint queue; they have no
/// order with transfers.
///
/// Ends in exactly one `WEFT_COMPLETION_SEND`: `WEFT_OK` means that the message
/// is in the peer's queue. Any number may be in flight, up to `message_bytes`
/// and `max_transfers`; a peer that does not poll or release its messages holds
/// back its senders, and nothing is dropped. After any status but `WEFT_OK` the
/// message may have arrived, or may still; later ones arrive all the same.
///
/// `transfer`: receives the id; NULL if it is not wanted.
/// Any thread; does not block. Errors: `WEFT_ERR_AGAIN`, `WEFT_ERR_LIMIT`,
/// `WEFT_ERR_INVALID`, `WEFT_ERR_PEER_LOST`, `WEFT_ERR_PEER_CLOSED`,
/// `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE` (also a peer that has ended). Since 0.1.
///
/// # Safety
/// `args` must be valid for `args->size` bytes, `data` for `len`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_send(
    endpoint: *mut weft_endpoint,
    args: *const weft_send_args,
    transfer: *mut weft_transfer,
) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| config::submit_send(ep, args, transfer)))
}

/// Gives back the data of a `WEFT_COMPLETION_MESSAGE` or
/// `WEFT_COMPLETION_NOTIFICATION`, named by the completion's `transfer`. Its
/// `data` is valid until then. 0 is fine: there was no data (a message of 0
/// bytes, or a notification without data). Data of notifications that is not
/// released counts in no limit.
///
/// Any thread; does not block. Errors: `WEFT_ERR_HANDLE` (released already, or
/// not a message of this endpoint). Since 0.1.
///
/// # Safety
/// `endpoint` must be a handle from `weft_endpoint_open`.
#[no_mangle]
pub unsafe extern "C" fn weft_message_release(
    endpoint: *mut weft_endpoint,
    message: weft_transfer,
) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| ep.release_message(message)))
}
