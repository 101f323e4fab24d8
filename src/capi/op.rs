//! Operations: their ids, and the options that all of them take.

use super::config::Sized32;
use super::endpoint::weft_endpoint;
use super::guard::{guard, with_endpoint};
use super::status::weft_status;
use crate::ids::GrantToken;
use std::ffi::c_void;

/// A submitted operation, as an id that is not used again within 2^42 operations:
/// 50 days of one each microsecond. 0 is never an operation.
pub type weft_op = u64;

/// A completion queue beside the endpoint's own, so that threads need not share
/// one. Opaque; made by `weft_queue_create`.
pub struct weft_queue {
    _opaque: [u8; 0],
}

/// A word that starts an operation, or that an operation sets when it has ended.
/// Opaque; made by `weft_watch_create`.
pub struct weft_watch {
    _opaque: [u8; 0],
}

/// A counter of an endpoint: a number that the owner sends to its peers, by a
/// message or in any other way, and that they name in operations that raise it.
/// 0 is no counter.
///
/// The high half is the owner's (so that a peer cannot raise another endpoint's
/// counter by mistake), the low half a place below `max_counters` and that place's
/// generation. The generation ensures that late increments to a destroyed counter are
/// discarded: it has 16 bits, or with more than 65,536 counters as many of 32 as the
/// place leaves (12 at 1,048,576). So an id comes again after its place was used 65,535
/// (4,095) times more; places rest before they are used again. Every connected peer
/// that knows or guesses an id can raise it.
pub type weft_counter = u64;

/// What names a grant: 16 bytes that nobody can guess, and that no other grant has. The owner sends
/// them to the peer with its request; the peer names them in the options of its operations.
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

/// Flag of transfers: when the last byte has arrived, the peer gets a
/// `WEFT_COMPLETION_NOTIFICATION` with that `notify`, exactly once. The
/// transfer's own completion then also says that the notification arrived.
pub const WEFT_NOTIFY: u32 = 1;
/// Flag of transfers and atomics: the operation is of the latency class. What it has to
/// post goes before what other transfers have, and a little of it past a full window: for
/// small transfers that a caller waits for. Without it, transfers are of the bulk
/// class and share the rails alike. (Atomics always go first.)
pub const WEFT_CLASS_LATENCY: u32 = 2;
/// Flag of writes that name a `counter`: it is raised by 1 for each page (of
/// each layer), when that page's bytes have arrived, and not again after the last
/// one (so not at all without pages). A `weft_write` is one page. Such a page goes in one piece over one
/// rail, up to 1 GiB (or the fabric's longest message, if that is less:
/// `WEFT_ERR_LIMIT`). Reads: `WEFT_ERR_UNSUPPORTED`. Over verbs and libfabric's tcp,
/// the counter is raised by the number of pages when the last one has arrived (libfabric would
/// crash the target if the sender died in the middle of a page that it counts by itself, or take
/// the page's arrival for a message).
///
/// Each such page takes an entry of the target's completion queue. On NICs whose queue can
/// run over (EFA's), a rail has no more than 16 to 2,048 of them on their way to a
/// rail of the peer and waits until the peer has taken them: while a peer with
/// manual progress does not poll, the rest waits, up to its deadline; transfers that count no
/// pages go past.
pub const WEFT_COUNT_PAGES: u32 = 4;
/// Flag of lists and prepared lists: one completion for each peer instead of
/// one for all.
pub const WEFT_COMPLETE_EACH_PEER: u32 = 8;

/// Largest data of a notification, in bytes.
pub const WEFT_NOTIFY_DATA_MAX: u32 = 256;

/// The options of an operation. NULL in their place: defaults. Start from
/// `WEFT_OP_OPTIONS_INIT`. An option that an operation does not have is refused
/// (`WEFT_ERR_INVALID`, flags `WEFT_ERR_UNSUPPORTED`): all have `timeout_ns`, `user_data`
/// and `queue`; transfers all but what their functions except; connects no `queue`;
/// `weft_counter_expect` `done_watch`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub struct weft_op_options {
    /// `sizeof(weft_op_options)`.
    pub size: u32,
    /// `WEFT_NOTIFY`, `WEFT_CLASS_LATENCY`, `WEFT_COUNT_PAGES` and
    /// `WEFT_COMPLETE_EACH_PEER` added up; 0: none.
    pub flags: u32,
    /// Nanoseconds from now to the deadline, up to 24 hours. 0: the endpoint's
    /// `timeout_ns` (of a connect: its `connect_timeout_ns`).
    pub timeout_ns: u64,
    /// Returned in the completion.
    pub user_data: *mut c_void,
    /// The queue that gets the completion. NULL: the endpoint's own.
    pub queue: *const weft_queue,
    /// With `WEFT_NOTIFY`: the notification's value; else 0.
    pub notify: u64,
    /// With `WEFT_NOTIFY`: the notification's data, copied by the call; NULL for none.
    pub notify_data: *const c_void,
    /// Bytes of `notify_data`, up to `WEFT_NOTIFY_DATA_MAX`.
    pub notify_data_len: u32,
    /// 0.
    pub reserved: u32,
    /// A counter of the peer to raise: by 1, exactly once, after the last byte, also
    /// when there are no bytes (the transfer's own completion then also says that it
    /// was raised), or with `WEFT_COUNT_PAGES` by 1 for each page. 0: none. One that
    /// is not the peer's is `WEFT_ERR_HANDLE`; increments to one that the peer has
    /// destroyed are discarded, which the transfer does not learn. Not of lists, whose
    /// entries name counters.
    pub counter: weft_counter,
    /// The transfer starts when this watch has reached `start_value` (its deadline
    /// counts from the call all the same); see `weft_watch_create`. NULL: at once.
    pub start_watch: *const weft_watch,
    pub start_value: u64,
    /// Set to `done_value` when the operation has ended, whatever its status, just before
    /// its completion. NULL: none.
    pub done_watch: *const weft_watch,
    pub done_value: u64,
    /// Of transfers: the grant of the peer that it is under; all bytes 0: none. What the grant
    /// does not cover, or no more, ends with `WEFT_ERR_REVOKED`.
    pub grant: weft_grant_token,
}

// SAFETY: integers and pointers only.
unsafe impl Sized32 for weft_op_options {}

/// Ends a transfer, a send, an atomic or a wait for counters early: its completion
/// comes with `WEFT_ERR_CANCELED`, unless it has completed already. Bytes may have
/// arrived; the peer may have been notified, and its counter raised, or may be yet: who waits
/// for a total counts such a transfer with those of which it cannot be sure. Of a transfer it comes when its NICs have given back what is under way (as
/// after a deadline, and mostly at once; after 80 ms lanes are cut for it, where that
/// can be): nothing touches the local memory any more. On the target, bytes may arrive
/// until a `weft_peer_fence` there.
///
/// Any thread; does not block. Errors: `WEFT_ERR_HANDLE` (not an operation of
/// this endpoint, or completed already: normal when the two race). Since 0.1.
///
/// # Safety
/// `endpoint` must be a handle from `weft_endpoint_create`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_op_cancel(endpoint: *mut weft_endpoint, op: weft_op) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| ep.cancel(op)))
}
