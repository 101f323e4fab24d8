//! The machine: what is near what.

use super::guard::{guard, output, text_out};
use super::status::weft_status;
use crate::calls::preview::preview;
use std::ffi::c_char;

/// Writes this machine's topology, and the rails that an endpoint with all
/// defaults would open, as JSON: docs/topology.md has its schema.
///
/// `buffer`, `capacity`, `len`, errors: as in `weft_endpoint_address`; the text
/// may grow between two calls. A NUL follows it where `capacity` is larger than
/// `*len`, which does not count it. Blocks for 10 ms to some seconds. Where there
/// are RDMA devices, no other thread should use the environment meanwhile.
///
/// # Safety
/// `buffer` must be valid for `capacity` bytes, `len` valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_topology(buffer: *mut c_char, capacity: usize, len: *mut usize) -> weft_status {
    guard(|| {
        let len = output(len, "len")?;
        text_out(&preview()?, buffer, capacity, &len)
    })
}
