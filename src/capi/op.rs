//! Operations: their ids, and the options that all of them take.

use super::args::Sized32;
use super::endpoint::weft_endpoint;
use super::guard::{guard, with_endpoint};
use super::handle::{Handle, Owned};
use super::status::weft_status;
use crate::ids::GrantToken;
use crate::transfer::options;
use crate::transfer::queue::Queue;
use crate::transfer::watch::Watch;
use std::ffi::c_void;

/// A submitted operation, as an id that is not reused within 2^42 operations. 0
/// is never an operation.
pub type weft_op = u64;

/// A completion queue: the endpoint's own (`weft_endpoint_queue`), or one more.
pub struct weft_queue {
    _opaque: [u8; 0],
}

impl Handle for weft_queue {
    type Object = Owned<Queue>;
}

/// A word that starts an operation, or that is set when one has ended.
pub struct weft_watch {
    _opaque: [u8; 0],
}

impl Handle for weft_watch {
    type Object = Owned<Watch>;
}

/// A counter, as an id that its owner sends to peers and that they name in
/// operations that raise it. 0 is no counter. A peer that knows or guesses an
/// id can raise the counter.
pub type weft_counter = u64;

/// Names a grant: 16 bytes, 64 random bits among them, that never repeat. The
/// owner sends them to the peer, for the options of its operations.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub struct weft_grant_token {
    pub bytes: [u8; 16],
}

impl weft_grant_token {
    pub(super) fn read(&self) -> Option<GrantToken> {
        GrantToken::new(u128::from_le_bytes(self.bytes))
    }
}

/// Of transfers: when the last byte has arrived, the peer gets one
/// `WEFT_COMPLETION_NOTIFICATION` with `notify`; the transfer completes when
/// that has arrived, too.
pub const WEFT_NOTIFY: u32 = 1;
/// Of transfers and atomics: latency class, posted before bulk transfers, a
/// little past a full window. For small transfers that somebody waits for.
pub const WEFT_CLASS_LATENCY: u32 = 2;
/// Of writes with a `counter`: raises it by 1 for each page that has arrived
/// (of each layer; a `weft_write` is one page), not once at the end. A page is
/// at most 1 GiB, or the fabric's longest message (`WEFT_ERR_LIMIT`). Over
/// libfabric's tcp the counter rises by all pages after the last. A peer that
/// does not poll (manual progress) may hold such pages up. Not of reads
/// (`WEFT_ERR_UNSUPPORTED`).
pub const WEFT_COUNT_PAGES: u32 = 4;
/// Of lists: one completion for each peer instead of one for all.
pub const WEFT_COMPLETE_EACH_PEER: u32 = 8;
/// With `WEFT_NOTIFY`: of a failure, too, with its status instead of the data.
pub const WEFT_NOTIFY_FAILURE: u32 = 16;
/// Of writes into files (`WEFT_MEMORY_FILE`) of a peer with
/// `WEFT_CAPABILITY_DURABLE`: the bytes, and all that was written to these files
/// before, survive a power cut of the peer before completion, notification and
/// counter. One flush serves all writes that wait for it. Where it fails, they
/// end with `WEFT_ERR_FILE`, and so does all that uses the memory later, until
/// the file is registered anew. Not of reads, nor of other memory
/// (`WEFT_ERR_UNSUPPORTED`), nor with `WEFT_COUNT_PAGES`. Since 0.3.
pub const WEFT_DURABLE: u32 = 32;

pub const WEFT_NOTIFY_DATA_MAX: u32 = 256;

const _: () = {
    assert!(WEFT_NOTIFY == options::NOTIFY && WEFT_NOTIFY_FAILURE == options::NOTIFY_FAILURE);
    assert!(WEFT_CLASS_LATENCY == options::LATENCY && WEFT_COUNT_PAGES == options::COUNT_PAGES);
    assert!(WEFT_COMPLETE_EACH_PEER == options::EACH_PEER && WEFT_DURABLE == options::DURABLE);
    assert!(WEFT_NOTIFY_DATA_MAX as usize == options::NOTIFY_DATA_MAX);
};

/// Options of an operation: start from `WEFT_OP_OPTIONS_INIT`, or pass NULL for
/// all defaults. Every operation has `timeout_ns`, `user_data` and `queue` (a
/// connect no `queue`); transfers have all but what their functions except;
/// `weft_counter_expect` has `done_watch`. An option that an operation does not
/// have is refused (`WEFT_ERR_INVALID`, flags: `WEFT_ERR_UNSUPPORTED`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub struct weft_op_options {
    pub size: u32,
    /// Such flags added up; 0: none.
    pub flags: u32,
    /// Nanoseconds from the call to the deadline, up to 24 hours. 0: the
    /// endpoint's `timeout_ns` (of a connect: `connect_timeout_ns`).
    pub timeout_ns: u64,
    /// Returned in the completion.
    pub user_data: *mut c_void,
    /// The queue that gets the completion. NULL: the endpoint's own.
    pub queue: *const weft_queue,
    /// With `WEFT_NOTIFY`: the notification's value; else 0.
    pub notify: u64,
    /// With `WEFT_NOTIFY`: data of the notification; NULL: none.
    pub notify_data: *const c_void,
    /// Bytes of `notify_data`, up to `WEFT_NOTIFY_DATA_MAX`.
    pub notify_data_len: u32,
    pub reserved: u32,
    /// A counter of the peer, raised by 1, exactly once, after the last byte,
    /// also where there are no bytes; the transfer completes when it was
    /// raised. With `WEFT_COUNT_PAGES`: by 1 for each page. 0: none. Increments
    /// to a counter that the peer has destroyed are discarded silently; another
    /// endpoint's is `WEFT_ERR_HANDLE`. Not of lists, whose entries name
    /// counters.
    pub counter: weft_counter,
    /// The transfer starts when this watch has reached `start_value`; its
    /// deadline counts from the call. NULL: at once.
    pub start_watch: *const weft_watch,
    pub start_value: u64,
    /// Set to `done_value` when the operation has ended, with whatever status,
    /// just before its completion. NULL: none.
    pub done_watch: *const weft_watch,
    pub done_value: u64,
    /// Of transfers and atomics: the peer's grant; all bytes 0: none.
    /// What it does not cover, and all after its revoke, ends with
    /// `WEFT_ERR_REVOKED`.
    pub grant: weft_grant_token,
}

// SAFETY: the struct has only integers and pointers, for which zero is valid.
unsafe impl Sized32 for weft_op_options {
    const FIRST: usize = 112;
}

/// Ends a transfer, send, atomic or wait for counters early: it completes with
/// `WEFT_ERR_CANCELED`, unless it has completed already. A transfer completes
/// when its NICs have stopped using the local memory, in most cases at once.
/// Bytes, notification and counter may have arrived, or may still until a fence
/// or (also if the sender lies) a revoke at the target: treat its contribution
/// to a counter as unknown.
///
/// Errors: `WEFT_ERR_HANDLE` (completed already).
///
/// # Safety
/// `endpoint` must be a handle from `weft_endpoint_create`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_op_cancel(endpoint: *mut weft_endpoint, op: weft_op) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| ep.cancel(op)))
}
