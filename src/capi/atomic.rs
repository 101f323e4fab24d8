//! Atomics: single words of peers' memory, changed by many at once.

use super::endpoint::weft_endpoint;
use super::guard::{guard, with_endpoint};
use super::handle::{self, Ref};
use super::memory::weft_remote_memory;
use super::op::{weft_op, weft_op_options};
use super::options::options;
use super::status::weft_status;
use crate::calls::Endpoint;
use crate::memory::RemoteMemory;
use crate::status::Result;
use crate::transfer::atomic::{AtomicSpec, Operation};
use crate::transfer::options::Takes;
use crate::transfer::Common;
use std::sync::Arc;

/// Adds `operand` to a word of remote memory (modulo 2^64), for coordination:
/// it costs a message there and one back.
///
/// The word is 8 bytes in the owner's byte order. The owner's CPU does it,
/// sequentially consistent: atomic with what all peers ask for and with the
/// owner's atomic instructions, but not with writes of peers to the same bytes.
/// With manual progress it is done while the owner polls.
///
/// Ends in one `WEFT_COMPLETION_ATOMIC` with `previous`. `WEFT_OK`: done, once.
/// After `WEFT_ERR_TIMED_OUT`, `WEFT_ERR_CANCELED`, `WEFT_ERR_PEER_LOST` or
/// `WEFT_ERR_PEER_CLOSED` it may have been done (once) or may still be, until
/// the owner has deregistered the memory or polled PEER_DOWN; after
/// `WEFT_ERR_MEMORY_GONE` it may have been; else not. No order with other
/// operations. docs/details.md has more, and a lock.
///
/// `remote`: registered for remote write and read. `offset`: as in
/// `weft_write`; the word's address at the owner must be a multiple of 8.
///
/// Errors: those of `weft_write`; `WEFT_ERR_UNSUPPORTED` (the peer does no
/// atomics), `WEFT_ERR_INVALID` (not aligned).
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
    guard(|| {
        with_endpoint(endpoint, |ep| {
            submit(ep, remote, options, op, |remote, common| {
                let operation = Operation::FetchAdd;
                AtomicSpec { operation, remote, offset, operand, compare: 0, common }
            })
        })
    })
}

/// Replaces a word of remote memory by `desired` if it is `expected`, which it
/// was if the completion's `previous` is `expected`; otherwise as
/// `weft_fetch_add`.
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
    guard(|| {
        with_endpoint(endpoint, |ep| {
            submit(ep, remote, options, op, |remote, common| {
                let operation = Operation::CompareSwap;
                AtomicSpec { operation, remote, offset, operand: desired, compare: expected, common }
            })
        })
    })
}

///
/// # Safety
/// `options` and `op` must be valid as the header asks.
unsafe fn submit(
    ep: &Ref<Endpoint>,
    remote: *const weft_remote_memory,
    options: *const weft_op_options,
    op: *mut weft_op,
    spec: impl for<'a> FnOnce(&'a Arc<RemoteMemory>, Common<'a>) -> AtomicSpec<'a>,
) -> Result<()> {
    // SAFETY: `options` is NULL or valid, which is what this function takes.
    let options = unsafe { self::options(ep, options, Takes::ATOMIC)? };
    let remote = handle::beside(remote, ep, "remote")?;
    let remote = remote.as_argument(ep, "remote")?;
    // SAFETY: `op` is NULL or valid, which is what this function takes.
    unsafe { options.submit(ep, op, |common| ep.atomic(spec(remote, common))) }
}
