//! Counters: raised by what peers write, expected and read here.

use super::endpoint::weft_endpoint;
use super::guard::{array, guard, output, with_endpoint};
use super::op::{weft_counter, weft_op, weft_op_options};
use super::options::{options, Takes};
use super::status::weft_status;
use crate::transfer::ExpectSpec;

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
/// `WEFT_ERR_CANCELED` (`weft_op_cancel`, or one of them was destroyed). Any
/// number may wait for one counter, and none of them uses it up.
///
/// Weft does not know who is to raise a counter: if that peer dies, this ends at
/// its deadline. Cancel it on PEER_DOWN. Counters only grow: expect totals (round k
/// of N peers: k x (N - 1)).
///
/// `counters`: `count` counters of this endpoint, 1 to 65,536; one may be listed more
/// than once. `values`: what each is to reach, 0 to 2^48 - 1. Both are copied by the
/// call. `options`: NULL for defaults; its `done_watch` lets a stream wait for counters.
/// `op`: receives the id; NULL if it is not wanted. It is one of
/// `max_transfers`. Any thread; does not block. Errors: `WEFT_ERR_HANDLE` (a counter
/// of another endpoint, or destroyed), `WEFT_ERR_LIMIT`, `WEFT_ERR_INVALID`,
/// `WEFT_ERR_UNSUPPORTED`, `WEFT_ERR_AGAIN` (`max_transfers` or `queue_depth` are in
/// use: poll), `WEFT_ERR_CLOSED`. Since 0.1.
///
/// # Safety
/// `counters` and `values` must be valid for `count` elements, `options` NULL or valid for
/// `options->size` bytes.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_counter_expect(
    endpoint: *mut weft_endpoint,
    counters: *const weft_counter,
    values: *const u64,
    count: u32,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> weft_status {
    guard(|| {
        with_endpoint(endpoint, |ep| {
            let options = self::options(ep, options, Takes { done: true, ..Takes::NOTHING })?;
            options.submit(ep, op, |common| {
                ep.expect(ExpectSpec {
                    counters: array(counters, count as usize, "counters")?,
                    values: array(values, count as usize, "values")?,
                    timeout_ns: common.timeout_ns,
                    user_data: common.user_data,
                    queue: common.queue,
                    done: common.marks.done.clone(),
                })
            })
        })
    })
}

/// Gives a counter back; 0 is fine. Who waits for a value that it has not reached gets
/// `WEFT_ERR_CANCELED`; what is on its way to it counts for nobody. Any thread; does not
/// block. Errors: `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// `endpoint` must be a handle from `weft_endpoint_create`.
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
