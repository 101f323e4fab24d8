//! Counters: raised by what peers write, expected and read here.

use super::endpoint::weft_endpoint;
use super::guard::{array, guard, output, with_endpoint};
use super::op::{weft_counter, weft_op, weft_op_options};
use super::options::options;
use super::status::weft_status;
use crate::transfer::options::Takes;

/// Makes a counter of value 0, which peers' transfers raise. `counter`:
/// receives the id. Errors: `WEFT_ERR_LIMIT` (`max_counters`).
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

/// Reads a counter: all bytes that it counts are visible then. It stops at 2^48
/// - 1. With manual progress it changes only while somebody polls.
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

/// Waits for counters: ends in one `WEFT_COMPLETION_COUNTER`, with `WEFT_OK`
/// once each has reached its value and all bytes they count are visible, with
/// `WEFT_ERR_TIMED_OUT`, or with `WEFT_ERR_CANCELED` (canceled, or one was
/// destroyed). Any number may wait for one counter.
///
/// A counter does not know its peers: cancel this on PEER_DOWN. Counters only
/// grow: expect totals (round k of N peers: k x (N - 1)).
///
/// `counters`, `values`: `count` of each, 1 to 65,536; values up to 2^48 - 1;
/// one counter may be listed twice.
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
            let options = self::options(ep, options, Takes::EXPECT)?;
            options.submit(ep, op, |common| {
                let counters = array(counters, count as usize, "counters")?;
                ep.expect(counters, array(values, count as usize, "values")?, &common)
            })
        })
    })
}

/// Destroys a counter; 0 is fine. Waits for values that it has not reached end
/// with `WEFT_ERR_CANCELED`.
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
