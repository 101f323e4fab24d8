//! Statuses as C sees them, and the last message of a thread.

use crate::status::{Category, Error, Status};
use std::cell::UnsafeCell;
use std::ffi::c_char;

/// `WEFT_OK` (0) or a negative `WEFT_ERR_*`. The numbers never change. A newer
/// library may return others: `weft_status_name` and `weft_status_category`
/// answer for them, too.
pub type weft_status = i32;

pub const WEFT_OK: weft_status = 0;

/* Retry: nothing is wrong, and nothing was started. */

/// No room (operations, completions, bytes of messages in flight), or nothing
/// there yet. Poll, then try again.
pub const WEFT_ERR_AGAIN: weft_status = -1;
/// The object is in use, by operations or still by a fabric. Poll until they
/// have completed, then try again: until `WEFT_OK`, do not free what it names.
pub const WEFT_ERR_BUSY: weft_status = -2;

/* Peer: how an operation with a peer ended. */

pub const WEFT_ERR_TIMED_OUT: weft_status = -20;
/// Ended by `weft_op_cancel`, `weft_peer_disconnect` or this endpoint's
/// shutdown.
pub const WEFT_ERR_CANCELED: weft_status = -21;
/// The peer died or can no longer be reached.
pub const WEFT_ERR_PEER_LOST: weft_status = -22;
/// The address or descriptor names an endpoint that no longer exists, and
/// another one answers there; where none does: `WEFT_ERR_UNREACHABLE`.
pub const WEFT_ERR_PEER_GONE: weft_status = -23;
/// The peer disconnected or shut its endpoint down.
pub const WEFT_ERR_PEER_CLOSED: weft_status = -24;
/// No answer from the address within the connect timeout, or it refused.
pub const WEFT_ERR_UNREACHABLE: weft_status = -25;
/// The two libraries have no wire version in common; the message names both
/// ranges.
pub const WEFT_ERR_VERSION: weft_status = -26;
/// The two endpoints have no fabric in common; the
/// message names both sides'.
pub const WEFT_ERR_NO_COMMON_FABRIC: weft_status = -27;
/// The remote memory was deregistered by its owner, or pages of one side's
/// memory are gone: a mapped file became shorter.
pub const WEFT_ERR_MEMORY_GONE: weft_status = -28;
/// The target refused the access (wrong key, or not the allowed direction).
pub const WEFT_ERR_REMOTE_ACCESS: weft_status = -29;
/// The two sides do not have the same `secret`, or only one has one.
pub const WEFT_ERR_DENIED: weft_status = -30;
/// The peer broke the protocol or exceeded a bound, and was dropped; the log
/// says how.
pub const WEFT_ERR_PROTOCOL: weft_status = -31;
/// A rail failed after this operation may already have raised a counter or sent
/// its notification there, so that it cannot be retried safely. All other
/// operations are retried on the remaining rails (over efa and libfabric's
/// tcp the peer is lost instead: docs/failures.md). Also the status of
/// `WEFT_COMPLETION_RAIL_DOWN`.
pub const WEFT_ERR_RAIL_LOST: weft_status = -32;
/// The target refused the operation's grant: it was revoked, its time is over,
/// it is not this peer's, or it does not cover the bytes or the direction. Bytes
/// may have arrived before.
pub const WEFT_ERR_REVOKED: weft_status = -33;
/// A file of one side failed a read or write, or its disk does not answer:
/// `provider_errno` of the completion is the system's error number, like EIO,
/// ENOSPC, ENODATA (past the end of the file), ETIMEDOUT.
pub const WEFT_ERR_FILE: weft_status = -34;

/* Usage: the call was wrong; nothing was started. */

/// An argument is wrong; the message says which and why.
pub const WEFT_ERR_INVALID: weft_status = -40;
/// The handle or id is NULL, stale, of another kind or of another endpoint.
pub const WEFT_ERR_HANDLE: weft_status = -41;
/// An access lies outside the memory.
pub const WEFT_ERR_RANGE: weft_status = -42;
/// This fabric, build or version cannot do that.
pub const WEFT_ERR_UNSUPPORTED: weft_status = -43;
/// A documented limit is exceeded.
pub const WEFT_ERR_LIMIT: weft_status = -44;
/// An address or descriptor is damaged, truncated or something else.
pub const WEFT_ERR_FORMAT: weft_status = -45;
/// The buffer is too small; the length it needs was stored.
pub const WEFT_ERR_TOO_SMALL: weft_status = -46;
pub const WEFT_ERR_CLOSED: weft_status = -47;
/// A forked child of a process that uses Weft: nothing of Weft works in it, new
/// endpoints neither.
pub const WEFT_ERR_FORKED: weft_status = -48;

/* System: the machine lacks something. */

pub const WEFT_ERR_NO_LIBFABRIC: weft_status = -70;
/// No rail could be opened, or fewer than `min_rails`.
pub const WEFT_ERR_NO_RAILS: weft_status = -71;
/// libfabric reported an error: see the message, or `provider_errno`.
pub const WEFT_ERR_FABRIC: weft_status = -72;
/// Out of memory, registrations or another resource of the system. (Without the
/// few KiB that everything needs a process ends by abort(): docs/details.md.)
pub const WEFT_ERR_NO_MEMORY: weft_status = -73;
pub const WEFT_ERR_SYSTEM: weft_status = -74;

/* Internal. */

/// A defect of Weft. Every later call on the endpoint returns this, too.
pub const WEFT_ERR_INTERNAL: weft_status = -90;

/// What a caller can do about a status.
pub type weft_category = i32;
pub const WEFT_CATEGORY_OK: weft_category = 0;
/// Poll, then try again.
pub const WEFT_CATEGORY_RETRY: weft_category = 1;
/// The peer, or the path to it: reconnect, or use another peer.
pub const WEFT_CATEGORY_PEER: weft_category = 2;
/// The call is wrong: mend the program.
pub const WEFT_CATEGORY_USAGE: weft_category = 3;
/// The machine: install, free or configure something.
pub const WEFT_CATEGORY_SYSTEM: weft_category = 4;
/// A defect of Weft: report it.
pub const WEFT_CATEGORY_INTERNAL: weft_category = 5;

/// The name of a status, as "WEFT_ERR_TIMED_OUT"; "WEFT_ERR_UNKNOWN" for an
/// unknown negative number, "WEFT_OK" for a count. Static text.
#[no_mangle]
pub extern "C" fn weft_status_name(status: weft_status) -> *const c_char {
    Status::name_of(status).as_ptr()
}

/// One sentence on what a status means. Static text.
#[no_mangle]
pub extern "C" fn weft_status_text(status: weft_status) -> *const c_char {
    Status::text_of(status).as_ptr()
}

/// The `WEFT_CATEGORY_*` of a status: of unknown negative numbers
/// `WEFT_CATEGORY_INTERNAL`, of counts `WEFT_CATEGORY_OK`.
#[no_mangle]
pub extern "C" fn weft_status_category(status: weft_status) -> weft_category {
    Category::from_code(status) as weft_category
}

/// The message of the last failed call of this thread. "" before the first
/// failure, never NULL; a call that succeeds leaves it alone. The pointer stays
/// valid while the thread lives; the thread's next failure overwrites the text
/// (at most 1,023 bytes).
#[no_mangle]
pub extern "C" fn weft_last_error() -> *const c_char {
    LAST_ERROR.with(|last| last.get().cast())
}

/// Bytes of a thread's last message, with its NUL.
const MESSAGE: usize = 1024;

thread_local! {
    /// One place for as long as the thread lives, so a pointer to it always reads the last message.
    static LAST_ERROR: UnsafeCell<[u8; MESSAGE]> = const { UnsafeCell::new([0; MESSAGE]) };
}

/// Keeps the message of an error for `weft_last_error`; returns its status.
#[cold]
pub(super) fn fail(error: Error) -> i32 {
    let message = error.message.as_bytes();
    let end = boundary(&error.message, MESSAGE - 1);
    LAST_ERROR.with(|last| {
        // SAFETY: the buffer is thread-local, and no other reference to it exists.
        let last = unsafe { &mut *last.get() };
        for (to, from) in last.iter_mut().zip(&message[..end]) {
            *to = if *from == 0 { b'?' } else { *from };
        }
        last[end] = 0;
    });
    error.status as i32
}

/// The longest prefix of a text that ends between two of its characters, and by `most`.
pub(super) fn boundary(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}
