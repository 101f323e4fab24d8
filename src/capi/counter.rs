//! Counters: raised by what peers write, expected and read here.

use super::completion::{weft_queue, weft_transfer};
use super::config;
use super::device::weft_watch;
use super::endpoint::weft_endpoint;
use super::guard::{guard, output, with_endpoint};
use super::status::weft_status;
use std::ffi::c_void;

/// A counter of an endpoint: a plain number, which its owner tells its peers by a
/// message or any other way, and which they name in transfers that are to raise it.
/// 0 is no counter.
///
/// The high half is the owner's (so that a peer cannot raise somebody else's by
/// mistake), the low half a place below `max_counters` and that place's generation.
/// The generation makes what arrives late for a destroyed counter count for nobody:
/// it has 16 bits, or with more than 65,536 counters as many of 32 as the place
/// leaves (12 at 1,048,576). So an id comes again after its place was used 65,535
/// (4,095) times more; places rest before they are used again. Whoever is connected
/// and knows or guesses an id can raise it.
pub type weft_counter = u64;

/// What to wait for. Start from `WEFT_EXPECT_ARGS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_expect_args {
    /// `sizeof(weft_expect_args)`.
    pub size: u32,
    /// None defined yet: 0.
    pub flags: u32,
    /// `count` counters of this endpoint, copied by the call. One may be listed more
    /// than once.
    pub counters: *const weft_counter,
    /// The value that each is to reach: 0 to 2^48 - 1, copied by the call.
    pub values: *const u64,
    /// 1 to 65,536.
    pub count: u32,
    /// 0.
    pub reserved: u32,
    /// Nanoseconds from now to the deadline, up to 24 hours. 0: the endpoint's
    /// `timeout_ns`.
    pub timeout_ns: u64,
    /// Returned in the completion.
    pub user_data: *mut c_void,
    /// Where the completion goes. NULL: the endpoint's own queue.
    pub queue: *const weft_queue,
    /// Set to `done_value` when the wait has ended, whatever its status, just before its
    /// completion: a stream waits for counters so (`weft_watch_alloc`). NULL: none.
    pub done_watch: *const weft_watch,
    pub done_value: u64,
}

/// Makes a counter, of value 0. It is raised by transfers of peers that name it, and
/// lives until it is destroyed or the endpoint is closed.
///
/// `counter`: receives the id. Any thread; does not block. Errors: `WEFT_ERR_LIMIT`
/// (`max_counters` exist), `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`, `WEFT_ERR_INVALID`.
/// Since 0.1.
///
/// # Safety
/// `counter` must be NULL or valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_counter_create(
    endpoint: *mut weft_endpoint,
    counter: *mut weft_counter,
) -> weft_status {
    guard(|| {
        let out = output(counter, "counter")?;
        with_endpoint(endpoint, |ep| {
            out.store(ep.create_counter()?);
            Ok(())
        })
    })
}

/// Reads a counter. All bytes that it counts are visible to whoever has read it. It
/// stays at 2^48 - 1 when it gets there.
///
/// With manual progress it changes only while somebody polls. Any thread, at any
/// time; does not block. Errors: `WEFT_ERR_HANDLE` (another endpoint's, or
/// destroyed), `WEFT_ERR_INVALID`. Since 0.1.
///
/// # Safety
/// `value` must be NULL or valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_counter_read(
    endpoint: *mut weft_endpoint,
    counter: weft_counter,
    value: *mut u64,
) -> weft_status {
    guard(|| {
        let out = output(value, "value")?;
        with_endpoint(endpoint, |ep| {
            out.store(ep.read_counter(counter)?);
            Ok(())
        })
    })
}

/// Waits for counters: ends in exactly one `WEFT_COMPLETION_COUNTER`, with `WEFT_OK`
/// when every one has reached its value (also if it had before), and all bytes that
/// they count are visible then; with `WEFT_ERR_TIMED_OUT`, or with
/// `WEFT_ERR_CANCELED` (`weft_transfer_cancel`, or one of them was destroyed). Any
/// number may wait for one counter, and none of them uses it up.
///
/// Weft does not know who is to raise a counter: if that peer dies, this ends at
/// its deadline. Cancel it on PEER_DOWN. Counters only grow: expect totals (round k
/// of N peers: k x (N - 1)).
///
/// `transfer`: receives the id; NULL if it is not wanted. It is one of
/// `max_transfers`. Any thread; does not block. Errors: `WEFT_ERR_HANDLE` (a counter
/// of another endpoint, or destroyed), `WEFT_ERR_LIMIT`, `WEFT_ERR_INVALID`,
/// `WEFT_ERR_UNSUPPORTED`, `WEFT_ERR_AGAIN` (`max_transfers` or `queue_depth` are in
/// use: poll), `WEFT_ERR_CLOSED`. Since 0.1.
///
/// # Safety
/// `args` must be valid for `args->size` bytes, with valid pointers in it.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_counter_expect(
    endpoint: *mut weft_endpoint,
    args: *const weft_expect_args,
    transfer: *mut weft_transfer,
) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| config::submit_expect(ep, args, transfer)))
}

/// Gives a counter back; 0 is fine. Who waits for a value that it has not reached gets
/// `WEFT_ERR_CANCELED`; what is on its way to it counts for nobody. Any thread; does not
/// block. Errors: `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// `endpoint` must be a handle from `weft_endpoint_open`.
#[no_mangle]
pub unsafe extern "C" fn weft_counter_destroy(
    endpoint: *mut weft_endpoint,
    counter: weft_counter,
) -> weft_status {
    guard(|| {
        with_endpoint(endpoint, |ep| match counter {
            0 => Ok(()),
            counter => ep.destroy_counter(counter),
        })
    })
}
