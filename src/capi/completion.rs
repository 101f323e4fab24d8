//! Completions, and the queues that hand them out.

use super::endpoint::weft_endpoint;
use super::guard::{guard, guard_count, guarded, output, with_endpoint_unpinned};
use super::handle;
use super::op::{weft_op, weft_queue};
use super::peer::weft_peer;
use super::status::weft_status;
use crate::status::{Error, Result, Status};
use crate::transfer::completion::Completion;
use crate::transfer::queue::Arm;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

pub type weft_completion_kind = i32;
/// A `weft_write`, `weft_write_pages`, `_list` or `_prepared` ended.
pub const WEFT_COMPLETION_WRITE: weft_completion_kind = 1;
/// A `weft_read`, `weft_read_pages`, `_list` or `_prepared` ended.
pub const WEFT_COMPLETION_READ: weft_completion_kind = 2;
pub const WEFT_COMPLETION_SEND: weft_completion_kind = 3;
/// A message of a peer arrived: `data`, `bytes`; to be released.
pub const WEFT_COMPLETION_MESSAGE: weft_completion_kind = 4;
/// A notification of a peer arrived: `notify`, and `data` and `bytes` if it has
/// data (then release it). All bytes of its transfer arrived before it.
pub const WEFT_COMPLETION_NOTIFICATION: weft_completion_kind = 5;
/// A connect ended, or a peer connected (`accepted` 1).
pub const WEFT_COMPLETION_PEER_UP: weft_completion_kind = 6;
/// A peer that was up has ended: `WEFT_OK` (we disconnected),
/// `WEFT_ERR_PEER_CLOSED`, `WEFT_ERR_PEER_LOST`. All operations with it have
/// completed; its id is stale.
pub const WEFT_COMPLETION_PEER_DOWN: weft_completion_kind = 7;
pub const WEFT_COMPLETION_COUNTER: weft_completion_kind = 8;
/// A `weft_fetch_add` or `weft_compare_swap` ended: `previous`.
pub const WEFT_COMPLETION_ATOMIC: weft_completion_kind = 9;
/// `rail` has no lane up to any peer, though others serve one of them (for 0.3
/// s; at once without a link): `WEFT_ERR_RAIL_LOST`, `provider_errno`. Its work
/// moves to the others. (A rail that is the only one of its peers is not
/// reported: they wait for it, or end.)
pub const WEFT_COMPLETION_RAIL_DOWN: weft_completion_kind = 10;
/// `rail` reaches a peer again, and is used.
pub const WEFT_COMPLETION_RAIL_UP: weft_completion_kind = 11;
/// A `weft_peer_fence` or `weft_grant_revoke` ended.
pub const WEFT_COMPLETION_FENCE: weft_completion_kind = 12;

/// One completion, of 128 bytes. Fields that a kind does not name are 0; `rail`
/// and `entry` all ones.
///
/// In the endpoint's own queue a peer's PEER_UP comes before anything else of
/// that peer, and nothing of it after its PEER_DOWN, as one polling thread sees
/// it. (A list over several peers may name one that has ended.)
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_completion {
    pub kind: weft_completion_kind,
    /// `WEFT_OK`, or how it failed.
    pub status: weft_status,
    /// Id of the operation; of a message or of a notification with data, the id
    /// for `weft_message_release`.
    pub op: weft_op,
    pub user_data: *mut c_void,
    /// The other side; 0 of a wait for counters and of a revoke. Of a
    /// NOTIFICATION, its sender: any peer can send any `notify`, so compare
    /// this. Lists: `weft_write_list`.
    pub peer: weft_peer,
    /// NOTIFICATION: the `notify` of the peer's transfer.
    pub notify: u64,
    /// WRITE, READ, SEND: bytes moved, all or (failed) 0. MESSAGE,
    /// NOTIFICATION: bytes of `data`.
    pub bytes: u64,
    /// MESSAGE, NOTIFICATION: the data, until it is released.
    pub data: *const c_void,
    /// The error number of the system, or of libfabric (fi_errno.h); 0: none.
    /// The log has its text.
    pub provider_errno: i32,
    /// The rail that failed, or 0xffffffff.
    pub rail: u32,
    /// WRITE, READ of a list that failed: the first entry of what failed.
    pub entry: u64,
    /// When it was submitted, first posted to a NIC, and done: nanoseconds of
    /// CLOCK_MONOTONIC. 0: never.
    pub submit_ns: u64,
    pub first_post_ns: u64,
    pub done_ns: u64,
    /// ATOMIC: what the word was before.
    pub previous: u64,
    /// PEER_UP: 1 if the peer connected to us; 0 if it
    /// answers our own connect.
    pub accepted: u32,
    pub reserved: [u32; 5],
}

/// The endpoint's own queue: it gets messages, notifications, events of peers
/// and rails, and completions of operations that name no other queue. It is not
/// destroyed by the caller. NULL if the handle is not that of an open endpoint
/// (`weft_last_error`).
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

/// Makes a further queue, for operations that name it. `depth`: completions it
/// holds, 16 to 1,048,576; 0: the endpoint's `queue_depth`. Errors:
/// `WEFT_ERR_LIMIT`, `WEFT_ERR_NO_MEMORY`.
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
        with_endpoint_unpinned(endpoint, |ep| {
            out.store(handle::insert_owned(ep, || ep.create_queue(depth))?);
            Ok(())
        })
    })
}

/// Takes up to `max` completions from a queue, in the order in which they were
/// published, and waits up to `timeout_ns` for the first (0: does not block;
/// UINT64_MAX: for ever). Several threads may poll one queue. With manual
/// progress this drives the rails.
///
/// Returns how many were stored, 0 to `max` (a count, not a status; 0: the time
/// passed), or a negative `weft_status`: `WEFT_ERR_CLOSED` once the endpoint is
/// shut down and the queue is empty.
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
        let room = slots(completions, max)?;
        if timeout_ns == 0 {
            return guarded(named.endpoint(), || named.endpoint().poll(named.queue(), room));
        }
        // It waits without a pinned epoch.
        let (ep, queue) = (Arc::clone(named.endpoint()), Arc::clone(named.queue()));
        drop(named);
        ep.wait(&queue, room, timeout_ns)
    })
}

/// Arms the event fd of a queue: the next completion makes it readable
/// (POLLIN), once. For epoll, poll(2), asyncio: poll until 0, arm, and sleep
/// only if arming returned `WEFT_OK`.
///
/// `fd`: receives the event fd, always the same one; NULL if not wanted. It
/// belongs to the queue: do not read, write or close it. It stays readable
/// until the next arm; edge-triggered epoll is fine.
///
/// Returns `WEFT_OK` (the queue is empty) or `WEFT_ERR_AGAIN` (`fd` is stored,
/// but there are completions: poll first). Errors: `WEFT_ERR_CLOSED` once the
/// endpoint is shut down and the queue is empty; `WEFT_ERR_UNSUPPORTED` with
/// manual progress; `WEFT_ERR_SYSTEM` (no descriptor is left).
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

/// Destroys a queue. A thread that waits in `weft_queue_poll` for it returns
/// `WEFT_ERR_HANDLE`. Errors: `WEFT_ERR_BUSY` (operations that name it are
/// outstanding, or completions were not polled), `WEFT_ERR_INVALID` (an
/// endpoint's own queue).
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
        named.endpoint().retire_queue(named.queue())?;
        handle::remove(queue)
    })
}

/// The caller's array of completions.
///
/// # Safety
/// `completions` must be NULL or valid for `max` elements.
unsafe fn slots<'a>(
    completions: *mut weft_completion,
    max: u32,
) -> Result<&'a mut [MaybeUninit<Completion>]> {
    if max == 0 {
        return Ok(&mut []);
    }
    if completions.is_null() {
        return Err(Error::new(Status::Invalid, format!("completions is NULL, but max is {max}")));
    }
    if !completions.is_aligned() {
        return Err(Error::invalid("completions is not aligned as a weft_completion must be"));
    }
    // SAFETY: the caller keeps `max` elements valid; both types have the same layout, asserted
    // below.
    Ok(unsafe { std::slice::from_raw_parts_mut(completions.cast(), max as usize) })
}

const _: () = {
    use std::mem::{align_of, offset_of, size_of};
    assert!(size_of::<weft_completion>() == 128 && size_of::<Completion>() == 128);
    assert!(align_of::<weft_completion>() == align_of::<Completion>());
    assert!(offset_of!(weft_completion, notify) == offset_of!(Completion, notify));
    assert!(offset_of!(weft_completion, data) == offset_of!(Completion, data));
    assert!(offset_of!(weft_completion, rail) == offset_of!(Completion, rail));
    assert!(offset_of!(weft_completion, done_ns) == offset_of!(Completion, done_ns));
    assert!(offset_of!(weft_completion, previous) == offset_of!(Completion, previous));
    assert!(offset_of!(weft_completion, accepted) == offset_of!(Completion, accepted));
};
