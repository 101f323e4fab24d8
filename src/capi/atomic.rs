//! Atomics: single words of peers' memory, changed by many at once.

use super::completion::{weft_queue, weft_transfer};
use super::config;
use super::endpoint::weft_endpoint;
use super::guard::{guard, with_endpoint};
use super::handle::{self, Ref};
use super::memory::weft_remote_memory;
use super::status::weft_status;
use super::transfer::WEFT_CLASS_LATENCY;
use crate::endpoint::Endpoint;
use crate::status::{Error, Result};
use crate::transfer::atomic::{AtomicSpec, Operation};
use std::ffi::c_void;

/// An atomic operation on 8 bytes of remote memory. Start from
/// `WEFT_ATOMIC_ARGS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_atomic_args {
    /// `sizeof(weft_atomic_args)`.
    pub size: u32,
    /// 0 or `WEFT_CLASS_LATENCY`, which changes nothing: atomics always go first.
    pub flags: u32,
    /// The memory that the word is in. Its owner must have registered it with
    /// `WEFT_ACCESS_REMOTE_WRITE` and `WEFT_ACCESS_REMOTE_READ`.
    pub remote: *const weft_remote_memory,
    /// Index of the range.
    pub remote_range: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes from the start of that range to the word, whose *address* at the
    /// owner must be a multiple of 8.
    pub remote_offset: u64,
    /// What is added, or what the word becomes.
    pub operand: u64,
    /// `weft_compare_swap`: what the word must be. Else 0.
    pub compare: u64,
    /// Nanoseconds from now to the deadline, up to 24 hours. 0: the endpoint's
    /// `timeout_ns`.
    pub timeout_ns: u64,
    /// Returned in the completion.
    pub user_data: *mut c_void,
    /// Where the completion goes. NULL: the endpoint's own queue.
    pub queue: *const weft_queue,
}

// SAFETY: integers and pointers only.
unsafe impl config::Sized32 for weft_atomic_args {}

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
/// Ends in exactly one `WEFT_COMPLETION_ATOMIC`, whose `value` is the word as it
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
///     take   do weft_compare_swap(compare = 0, operand = my_id)   // not 0
///            until a completion has value 0, pausing longer each time
///     use    what it guards, and wait for the completions
///     give   weft_compare_swap(compare = my_id, operand = 0)
///
/// A holder that dies keeps it: who guards against that writes into `my_id` who
/// holds it, and takes it from the dead.
///
/// Costs a message there and one back: for coordination, not for data.
///
/// `transfer`: receives the id, for `weft_transfer_cancel`; NULL if it is not
/// wanted. `args` is not needed after the call.
///
/// Any thread; does not block. Errors: `WEFT_ERR_UNSUPPORTED` (the peer does no
/// atomics: see `weft_peer_properties`), `WEFT_ERR_REMOTE_ACCESS` (registered
/// without one of the accesses), `WEFT_ERR_RANGE`, `WEFT_ERR_INVALID` (not aligned),
/// `WEFT_ERR_LIMIT`, `WEFT_ERR_AGAIN` (`max_transfers` or `queue_depth` are in use:
/// poll), `WEFT_ERR_MEMORY_GONE`, `WEFT_ERR_PEER_LOST`, `WEFT_ERR_PEER_CLOSED`,
/// `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// `args` must be valid for `args->size` bytes, `transfer` NULL or valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_fetch_add(
    endpoint: *mut weft_endpoint,
    args: *const weft_atomic_args,
    transfer: *mut weft_transfer,
) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| submit(ep, Operation::FetchAdd, args, transfer)))
}

/// Replaces a word of remote memory by `operand` if it is `compare`; otherwise
/// as `weft_fetch_add`. It did if the completion's `value` is `compare`: that is
/// what the word was. Since 0.1.
///
/// # Safety
/// As for `weft_fetch_add`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_compare_swap(
    endpoint: *mut weft_endpoint,
    args: *const weft_atomic_args,
    transfer: *mut weft_transfer,
) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| submit(ep, Operation::CompareSwap, args, transfer)))
}

/// # Safety
/// `args` and `transfer` must be valid as the header asks.
unsafe fn submit(
    ep: &Ref<Endpoint>,
    operation: Operation,
    args: *const weft_atomic_args,
    transfer: *mut weft_transfer,
) -> Result<()> {
    // SAFETY: passed on.
    let args = unsafe { config::read(args)? };
    config::no_flags(args.flags, WEFT_CLASS_LATENCY)?;
    config::zero_reserved(args.reserved)?;
    if operation == Operation::FetchAdd && args.compare != 0 {
        return Err(Error::invalid(format!(
            "compare is {}, but weft_fetch_add compares nothing: it must be 0",
            args.compare
        )));
    }
    let remote = handle::remote_side(args.remote, ep)?;
    let submit = |queue: &_| {
        ep.atomic(AtomicSpec {
            operation,
            remote: remote.of(ep)?,
            range: args.remote_range.into(),
            offset: args.remote_offset,
            operand: args.operand,
            compare: args.compare,
            timeout_ns: config::timeout("timeout_ns", args.timeout_ns)?,
            user_data: args.user_data as u64,
            queue,
        })
    };
    // SAFETY: as the header asks.
    unsafe { config::submitted(ep, args.queue, transfer, submit) }
}
