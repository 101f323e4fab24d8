//! Statuses as C sees them, and the last message of a thread.

use crate::status::{Category, Status};
use std::ffi::c_char;

/// What a call, or a completion, has to say: `WEFT_OK` (0) or one of the
/// negative `WEFT_ERR_*`. Their numbers never change and are never reused; a
/// newer library may return ones that this header does not name:
/// `weft_status_name` and `weft_status_category` still answer for them.
pub type weft_status = i32;

/// Success.
pub const WEFT_OK: weft_status = 0;

/* Retry: nothing is wrong, and nothing was started. */

/// No room at the moment (transfers, completions, or bytes of messages in
/// flight), or nothing there yet. Poll, then try again.
pub const WEFT_ERR_AGAIN: weft_status = -1;
/// The object is in use: operations on it are outstanding, or the fabric still
/// holds its memory. Poll until they have completed, then try again.
pub const WEFT_ERR_BUSY: weft_status = -2;

/* Peer: how an operation with a peer ended. */

/// The deadline passed.
pub const WEFT_ERR_TIMED_OUT: weft_status = -20;
/// Ended by `weft_op_cancel`, `weft_peer_disconnect`, or the shutdown of
/// the own endpoint.
pub const WEFT_ERR_CANCELED: weft_status = -21;
/// The peer died or cannot be reached any more.
pub const WEFT_ERR_PEER_LOST: weft_status = -22;
/// The address or descriptor is of an endpoint that no longer exists; another
/// process may live at its place now.
pub const WEFT_ERR_PEER_GONE: weft_status = -23;
/// The peer disconnected or shut its endpoint down.
pub const WEFT_ERR_PEER_CLOSED: weft_status = -24;
/// Nobody answered at the address within the connect timeout.
pub const WEFT_ERR_UNREACHABLE: weft_status = -25;
/// The two libraries speak no common wire version; the message names both.
pub const WEFT_ERR_VERSION: weft_status = -26;
/// The two endpoints have no fabric in common; the message names both sides'.
pub const WEFT_ERR_NO_COMMON_FABRIC: weft_status = -27;
/// The remote memory was deregistered by its owner.
pub const WEFT_ERR_MEMORY_GONE: weft_status = -28;
/// The target refused the access (wrong key, or not the allowed direction).
pub const WEFT_ERR_REMOTE_ACCESS: weft_status = -29;
/// The two sides do not have the same `secret` (see `weft_endpoint_config`), or
/// only one of them has one.
pub const WEFT_ERR_DENIED: weft_status = -30;
/// The peer breaks the rules of Weft's protocol, or asks for more than a bound
/// allows: it was dropped. The log says what it did.
pub const WEFT_ERR_PROTOCOL: weft_status = -31;
/// A rail failed, others go on, and what this operation had on it cannot be done
/// again safely: pages that raise a counter each may have raised it already, or
/// a notification may have arrived. (All other operations go on without a word.)
/// Also the status of a `WEFT_COMPLETION_RAIL_DOWN`.
pub const WEFT_ERR_RAIL_LOST: weft_status = -32;
/// The grant that the operation names was revoked by its owner, or does not cover what the
/// operation reaches. Bytes may have arrived before.
pub const WEFT_ERR_REVOKED: weft_status = -33;

/* Usage: the call was wrong; nothing was started. */

/// An argument is wrong; the message says which and why.
pub const WEFT_ERR_INVALID: weft_status = -40;
/// The handle or id is NULL, stale, already closed, of another kind, or
/// belongs to another endpoint.
pub const WEFT_ERR_HANDLE: weft_status = -41;
/// An access lies outside the memory.
pub const WEFT_ERR_RANGE: weft_status = -42;
/// This fabric, build or library version cannot do that.
pub const WEFT_ERR_UNSUPPORTED: weft_status = -43;
/// A documented limit is exceeded.
pub const WEFT_ERR_LIMIT: weft_status = -44;
/// An address or descriptor is damaged, truncated, or not one at all.
pub const WEFT_ERR_FORMAT: weft_status = -45;
/// The caller's buffer is too small; the length it needs was stored.
pub const WEFT_ERR_TOO_SMALL: weft_status = -46;
/// The endpoint is shut down.
pub const WEFT_ERR_CLOSED: weft_status = -47;
/// The process forked after the object was made: only the parent can use it.
pub const WEFT_ERR_FORKED: weft_status = -48;

/* System: the machine lacks something. */

/// libfabric.so.1 could not be loaded.
pub const WEFT_ERR_NO_LIBFABRIC: weft_status = -70;
/// No rail could be opened, or fewer than `min_rails`.
pub const WEFT_ERR_NO_RAILS: weft_status = -71;
/// libfabric reported an error; see the message or `provider_errno`.
pub const WEFT_ERR_FABRIC: weft_status = -72;
/// Out of memory, of registrations, or of another resource of the system. Calls say so
/// whose memory grows with what the caller passes: depths, counts of pages, entries and
/// ranges, bytes of messages and descriptors; nothing was started then. Where a process
/// lacks the few KiB that everything else takes, it ends by abort().
pub const WEFT_ERR_NO_MEMORY: weft_status = -73;
/// A system call failed.
pub const WEFT_ERR_SYSTEM: weft_status = -74;

/* Internal. */

/// A defect of Weft. The endpoint answers every later call with this, too.
pub const WEFT_ERR_INTERNAL: weft_status = -90;

/// What a caller can do about a status.
pub type weft_category = i32;
pub const WEFT_CATEGORY_OK: weft_category = 0;
/// Try again after polling.
pub const WEFT_CATEGORY_RETRY: weft_category = 1;
/// The other side, or the way to it: reconnect, or use another peer.
pub const WEFT_CATEGORY_PEER: weft_category = 2;
/// The call is wrong: mend the program.
pub const WEFT_CATEGORY_USAGE: weft_category = 3;
/// The machine: install, free or configure something.
pub const WEFT_CATEGORY_SYSTEM: weft_category = 4;
/// A defect of Weft: report it.
pub const WEFT_CATEGORY_INTERNAL: weft_category = 5;

/// The name of a status, as "WEFT_ERR_TIMED_OUT"; "WEFT_ERR_UNKNOWN" for a
/// negative number that this library does not know. A positive number is a count,
/// as `weft_queue_poll` returns it: "WEFT_OK". Static: never free it. Any thread.
/// Since 0.1.
#[no_mangle]
pub extern "C" fn weft_status_name(status: weft_status) -> *const c_char {
    Status::name_of(status).as_ptr()
}

/// One sentence on what a status means, or that it is a count. Static: never free
/// it. Any thread. Since 0.1.
#[no_mangle]
pub extern "C" fn weft_status_text(status: weft_status) -> *const c_char {
    Status::text_of(status).as_ptr()
}

/// The `WEFT_CATEGORY_*` of a status; for negative numbers that this library does
/// not know, `WEFT_CATEGORY_INTERNAL`, for counts `WEFT_CATEGORY_OK`. Any thread.
/// Since 0.1.
#[no_mangle]
pub extern "C" fn weft_status_category(status: weft_status) -> weft_category {
    Category::of(status) as weft_category
}

/// The message of the last failed call of *this thread*: what was wrong, with
/// the values, and what to do about it. Never NULL; "" before the first
/// failure. A call that succeeds leaves it alone. The pointer is the same for as long as
/// the thread lives, and the next call of this thread that fails writes another text
/// there, of at most 1,023 bytes: copy it to keep it. Completions carry their own
/// status instead, since whoever polls may be another thread. Since 0.1.
#[no_mangle]
pub extern "C" fn weft_last_error() -> *const c_char {
    super::guard::last_error()
}
