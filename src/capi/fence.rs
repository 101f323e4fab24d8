//! Fences: that nothing earlier of a peer can land any more.

use super::completion::{weft_queue, weft_transfer};
use super::config;
use super::endpoint::weft_endpoint;
use super::guard::{guard, with_endpoint};
use super::peer::weft_peer;
use super::status::weft_status;
use std::ffi::c_void;

/// A fence to be asked for. Start from `WEFT_FENCE_ARGS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_fence_args {
    /// `sizeof(weft_fence_args)`.
    pub size: u32,
    /// None defined yet: 0.
    pub flags: u32,
    /// Of whom; it may still be connecting.
    pub peer: weft_peer,
    /// Nanoseconds from now to the deadline, up to 24 hours. 0: the endpoint's
    /// `timeout_ns`.
    pub timeout_ns: u64,
    /// Returned in the completion.
    pub user_data: *mut c_void,
    /// Where the completion goes. NULL: the endpoint's own queue.
    pub queue: *const weft_queue,
}

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
/// `transfer`: receives the id; NULL if it is not wanted.
/// Any thread; does not block. Errors: `WEFT_ERR_AGAIN`, `WEFT_ERR_INVALID`,
/// `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`. In the completion also
/// `WEFT_ERR_TIMED_OUT` (the peer does not poll, or has stopped), `WEFT_ERR_LIMIT`
/// (64), `WEFT_ERR_PEER_LOST`, `WEFT_ERR_PEER_CLOSED`. Since 0.1.
///
/// # Safety
/// `args` must be valid for `args->size` bytes.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_peer_fence(
    endpoint: *mut weft_endpoint,
    args: *const weft_fence_args,
    transfer: *mut weft_transfer,
) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| config::submit_fence(ep, args, transfer)))
}
