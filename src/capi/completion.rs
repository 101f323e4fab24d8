//! Completions, and the queues that hand them out.

use super::endpoint::weft_endpoint;
use super::guard::{guard, guard_count, guarded, output, with_endpoint};
use super::handle;
use super::op::{weft_op, weft_queue};
use super::peer::weft_peer;
use super::status::weft_status;
use crate::transfer::queue::Arm;
use std::ffi::c_void;
use std::sync::Arc;

/// What a completion tells of.
pub type weft_completion_kind = i32;
/// A `weft_write`, `weft_write_pages`, `weft_write_list` or `weft_write_prepared` ended.
pub const WEFT_COMPLETION_WRITE: weft_completion_kind = 1;
/// A `weft_read`, `weft_read_pages`, `weft_read_list` or `weft_read_prepared` ended.
pub const WEFT_COMPLETION_READ: weft_completion_kind = 2;
/// A `weft_send` ended.
pub const WEFT_COMPLETION_SEND: weft_completion_kind = 3;
/// A message of a peer arrived: `data`, `bytes`; to be released.
pub const WEFT_COMPLETION_MESSAGE: weft_completion_kind = 4;
/// A notification of a peer arrived: `notify`, and `data` and `bytes` if it has
/// data; to be released. All bytes of its transfer arrived before it.
pub const WEFT_COMPLETION_NOTIFICATION: weft_completion_kind = 5;
/// A connect ended, or a peer connected to us (`accepted` 1).
pub const WEFT_COMPLETION_PEER_UP: weft_completion_kind = 6;
/// A peer that was up is no more: `WEFT_OK` (we disconnected),
/// `WEFT_ERR_PEER_CLOSED`, `WEFT_ERR_PEER_LOST`. All operations with it have
/// completed; its id is stale from now on.
pub const WEFT_COMPLETION_PEER_DOWN: weft_completion_kind = 7;
/// A `weft_counter_expect` ended.
pub const WEFT_COMPLETION_COUNTER: weft_completion_kind = 8;
/// A `weft_fetch_add` or `weft_compare_swap` ended: `previous`.
pub const WEFT_COMPLETION_ATOMIC: weft_completion_kind = 9;
/// A rail of this endpoint (`rail`) has lost its way to a peer that other
/// rails still reach, and has reached no peer for 0.3 s: `status` is `WEFT_ERR_RAIL_LOST`. What it
/// carried goes over the others; nothing is to be done. `provider_errno` says why.
pub const WEFT_COMPLETION_RAIL_DOWN: weft_completion_kind = 10;
/// A rail that was down (`rail`) reaches a peer again, and is used.
pub const WEFT_COMPLETION_RAIL_UP: weft_completion_kind = 11;
/// A `weft_peer_fence` ended.
pub const WEFT_COMPLETION_FENCE: weft_completion_kind = 12;

/// What polling hands out: always 128 bytes. Fields that a kind does not name
/// are 0, but for `rail` and `entry`, whose "none" is all ones.
///
/// In the endpoint's own queue, a peer's PEER_UP comes before anything else of
/// that peer, and nothing of it comes after its PEER_DOWN, also where another
/// thread cancels at that moment. (A list over several peers without
/// `WEFT_COMPLETE_EACH_PEER` goes on to the others, and its one completion may name
/// a peer that has ended.) Data of messages stays valid after that, until it is
/// released.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_completion {
    pub kind: weft_completion_kind,
    /// `WEFT_OK`, or how it failed.
    pub status: weft_status,
    /// The operation's id; for a message or notification with data, the id to
    /// release it with.
    pub op: weft_op,
    /// As given at submission or connect.
    pub user_data: *mut c_void,
    /// The other side; 0 of a wait for counters. (Of lists, see `weft_write_list`.)
    pub peer: weft_peer,
    /// NOTIFICATION: the `notify` of the transfer that it tells of.
    pub notify: u64,
    /// WRITE, READ, SEND: bytes moved, all or (failed) 0. MESSAGE,
    /// NOTIFICATION: bytes of `data`.
    pub bytes: u64,
    /// MESSAGE, NOTIFICATION: the data, until it is released.
    pub data: *const c_void,
    /// The provider's error number behind a failure, as in libfabric's
    /// fi_errno.h; 0 if there is none. The log says more: at `WEFT_LOG_INFO` a line
    /// for each such operation, with its id, peer, rail and the provider's text, and
    /// at `WEFT_LOG_DEBUG` one for every operation that failed.
    pub provider_errno: i32,
    /// The rail that failed, or 0xffffffff.
    pub rail: u32,
    /// WRITE, READ of a list that failed: the first entry of what failed; else all
    /// ones.
    pub entry: u64,
    /// When it was submitted, when its first byte was posted to a NIC, and when
    /// it was done: nanoseconds of CLOCK_MONOTONIC. 0 if it never happened.
    pub submit_ns: u64,
    pub first_post_ns: u64,
    pub done_ns: u64,
    /// ATOMIC: what the word was before.
    pub previous: u64,
    /// PEER_UP: 1 if the peer connected to us; 0 if it answers our own connect.
    pub accepted: u32,
    pub reserved: [u32; 5],
}

/// The endpoint's own queue, in which everything completes that names no other,
/// and which messages, notifications and events of peers and rails come to.
///
/// It belongs to the endpoint, lives as long, and is not given back. Any thread;
/// does not block. NULL if the handle is not one of an open endpoint
/// (`weft_last_error` says why). Since 0.1.
///
/// # Safety
/// `endpoint` must be a handle from `weft_endpoint_create`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_endpoint_queue(endpoint: *const weft_endpoint) -> *mut weft_queue {
    let mut queue = std::ptr::null_mut();
    let _refused = guard(|| {
        queue = handle::own_queue(endpoint)?;
        Ok(())
    });
    queue
}

/// Makes a further completion queue. `depth`: completions it holds, 16 to
/// 1,048,576; 0: the endpoint's `queue_depth`. `queue`: receives the handle;
/// the caller owns it and gives it back with `weft_queue_destroy`. Operations
/// that name it complete there; messages, notifications and peer events go to
/// the endpoint's own queue.
///
/// Any thread; does not block. Errors: `WEFT_ERR_LIMIT`, `WEFT_ERR_NO_MEMORY`,
/// `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// `queue` must be NULL or valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_queue_create(
    endpoint: *mut weft_endpoint,
    depth: u32,
    queue: *mut *mut weft_queue,
) -> weft_status {
    guard(|| {
        let out = output(queue, "queue")?;
        with_endpoint(endpoint, |ep| {
            out.store(handle::insert_queue(ep, || ep.create_queue(depth))?);
            Ok(())
        })
    })
}

/// Takes up to `max` completions from a queue, in the order in which they were
/// published, and waits up to `timeout_ns` for the first of them: 0 does not
/// block, UINT64_MAX waits for ever. With manual progress this drives the rails.
///
/// Returns how many were stored, 0 to `max` (a count, not a status; 0: the time
/// passed), or a negative `weft_status`: `WEFT_ERR_CLOSED` once the endpoint is
/// shut down and the queue is empty, `WEFT_ERR_INVALID`, `WEFT_ERR_HANDLE`. Any
/// thread; several may poll one queue. Since 0.1.
///
/// # Safety
/// `completions` must be valid for `max` elements.
#[no_mangle]
pub unsafe extern "C" fn weft_queue_poll(
    queue: *mut weft_queue,
    completions: *mut weft_completion,
    max: u32,
    timeout_ns: u64,
) -> i32 {
    guard_count(|| {
        let named = handle::queue(queue)?;
        let room = handle::slots(completions, max)?;
        if timeout_ns == 0 {
            return guarded(named.endpoint(), || named.endpoint().poll(named.queue(), room));
        }
        // No epoch is pinned while it waits.
        let (ep, queue) = (Arc::clone(named.endpoint()), Arc::clone(named.queue()));
        drop(named);
        ep.wait(&queue, room, timeout_ns)
    })
}

/// Arms the event fd of a queue: the next completion makes it readable (POLLIN),
/// once. For epoll, poll(2), asyncio: poll until 0, arm, and sleep only if arming
/// returned `WEFT_OK`.
///
/// `fd`: receives the event fd, the same for as long as the queue lives, also with
/// `WEFT_ERR_AGAIN`; NULL if it is known already. It belongs to the queue: do not
/// read, write or close it. It stays readable until the next arm; edge-triggered
/// epoll is fine, too.
///
/// Returns `WEFT_OK` (armed, the queue is empty) or `WEFT_ERR_AGAIN` (there are
/// completions already: poll first). Any thread; does not block. Errors:
/// `WEFT_ERR_CLOSED` once the endpoint is shut down and the queue is empty;
/// `WEFT_ERR_UNSUPPORTED` with manual progress, where nothing happens while the
/// caller sleeps; `WEFT_ERR_INVALID`, `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// `fd` must be NULL or valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_queue_arm(queue: *mut weft_queue, fd: *mut i32) -> weft_status {
    guard(|| {
        let queue = handle::queue(queue)?;
        guarded(queue.endpoint(), || {
            if !fd.is_null() {
                output(fd, "fd")?.store(queue.endpoint().event_fd(queue.queue())?);
            }
            queue.endpoint().arm(queue.queue()).and_then(Arm::into_result)
        })
    })
}

/// Gives a queue back. `queue`: NULL is fine; the handle is invalid after
/// `WEFT_OK`. Errors: `WEFT_ERR_BUSY` (operations that name it are outstanding,
/// or completions were not polled), `WEFT_ERR_INVALID` (an endpoint's own queue),
/// `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// `queue` must be NULL or a handle from `weft_queue_create`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_queue_destroy(queue: *mut weft_queue) -> weft_status {
    guard(|| {
        if queue.is_null() {
            return Ok(());
        }
        let named = handle::queue(queue)?;
        if let handle::AnyQueue::Own(_) = named {
            return Err(crate::status::Error::invalid(
                "this is an endpoint's own queue: it is destroyed with the endpoint",
            ));
        }
        if named.queue().in_use() {
            return Err(crate::status::Error::new(
                crate::status::Status::Busy,
                "the queue has outstanding operations or completions: poll it until they are gone",
            ));
        }
        handle::remove_queue(queue)
    })
}
