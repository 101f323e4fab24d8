//! Peers: connecting, disconnecting, and what is known of them.

use super::args::{self, Sized32};
use super::endpoint::weft_endpoint;
use super::guard::{bytes, guard, output, text_out, with_endpoint};
use super::op::weft_op_options;
use super::options::options;
use super::status::weft_status;
use crate::status::Status;
use crate::transfer::options::{absent, Takes};
use crate::wire::address;
use std::ffi::{c_char, c_void};

/// A remote endpoint, as a checked id. 0 is never a peer. Calls that name one
/// which has ended return `WEFT_ERR_PEER_LOST` or `WEFT_ERR_PEER_CLOSED` until its
/// PEER_DOWN was polled, then `WEFT_ERR_HANDLE`: also while you handle what came
/// before the PEER_DOWN in the same poll. Treat it as `WEFT_ERR_PEER_CLOSED`. Calls
/// that name the peer's memory (`weft_write`) keep the first two.
pub type weft_peer = u64;

/// Of a peer: it does `weft_fetch_add` and `weft_compare_swap`.
pub const WEFT_CAPABILITY_ATOMICS: u32 = 1;
/// Of a peer: it does `WEFT_DURABLE`. Since 0.3.
pub const WEFT_CAPABILITY_DURABLE: u32 = 2;

const _: () = assert!(
    WEFT_CAPABILITY_ATOMICS == address::DOES_ATOMICS && WEFT_CAPABILITY_DURABLE == address::DOES_DURABLE
);

/// Filled by `weft_peer_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_peer_properties {
    pub size: u32,
    pub up: u32,
    /// Lanes that are up: pairs of one of our rails and one of theirs.
    pub lanes: u32,
    /// Rails of ours, and of theirs, that have a lane. Ours count by the NICs
    /// that carry: one in whose place another NIC carries does not count.
    pub local_rails: u32,
    pub remote_rails: u32,
    /// `WEFT_CAPABILITY_*` added up; 0 until it is up.
    pub capabilities: u32,
    /// As in the peer's `weft_endpoint_properties`.
    pub incarnation: u64,
    /// The fabric in use for this peer; "" until it is up.
    pub fabric: [c_char; 64],
    /// Why this fabric; of better ones, why not.
    pub reason: [c_char; 256],
    /// Of its first rail over this fabric, as "10.0.0.7:4711". Since 0.3.
    pub address: [c_char; 128],
}

// SAFETY: the struct has only integers and arrays of integers, for which zero is valid.
unsafe impl Sized32 for weft_peer_properties {}

/// Starts to connect to the endpoint that wrote `address`. One
/// `WEFT_COMPLETION_PEER_UP` in the endpoint's own queue answers: `WEFT_OK`,
/// `WEFT_ERR_UNREACHABLE`, `WEFT_ERR_PEER_GONE`, `WEFT_ERR_VERSION`,
/// `WEFT_ERR_DENIED`, `WEFT_ERR_CANCELED` or `WEFT_ERR_SYSTEM` (this side has no
/// port or descriptor left). The other side gets one with
/// `accepted` 1, and needs to do nothing. A peer that was up ends in exactly
/// one `WEFT_COMPLETION_PEER_DOWN`; once that is polled, nothing of the peer
/// arrives here any longer (over efa its writes may, in memory without
/// `WEFT_ACCESS_GRANTED`, until that is deregistered).
///
/// `options`: `timeout_ns` and `user_data`. `peer`: receives the id, for use at
/// once: operations wait until the peer is up. Endpoints that connect to each
/// other become one peer, and one may connect to itself; connecting to a peer
/// gives the same id and one more PEER_UP, with `accepted` 0: one that is ending
/// answers `WEFT_ERR_CANCELED`, `WEFT_ERR_PEER_CLOSED` or `WEFT_ERR_PEER_LOST`. To
/// identify a peer that connected, compare `incarnation` of
/// `weft_peer_properties`.
/// docs/details.md: choice of the fabric. docs/failures.md: how soon a death is
/// noticed.
///
/// Errors: `WEFT_ERR_FORMAT`, `WEFT_ERR_NO_COMMON_FABRIC`, `WEFT_ERR_VERSION`,
/// `WEFT_ERR_INVALID`, `WEFT_ERR_LIMIT` (`max_peers`), `WEFT_ERR_AGAIN` (the
/// queue is full).
///
/// # Safety
/// `address` must be valid for `address_len` bytes; the others NULL or valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_peer_connect(
    endpoint: *mut weft_endpoint,
    address: *const c_void,
    address_len: usize,
    options: *const weft_op_options,
    peer: *mut weft_peer,
) -> weft_status {
    guard(|| {
        let out = output(peer, "peer")?;
        let address = bytes(address, address_len, "address")?.copied("the address")?;
        with_endpoint(endpoint, |ep| {
            let options = self::options(ep, options, Takes::NOTHING).and_then(|options| {
                absent(!options.queue.is_null(), "queue")?;
                Ok(options)
            });
            let options = options.map_err(|error| match error.status {
                Status::Invalid => error.about("a connect has the options timeout_ns and user_data alone"),
                _ => error,
            })?;
            out.store(ep.connect(&address, options.checked.timeout_ns, options.checked.user_data)?);
            Ok(())
        })
    })
}

/// Ends the connection with a peer: its operations end at once with
/// `WEFT_ERR_CANCELED`; both sides drain what is in flight; a
/// `WEFT_COMPLETION_PEER_DOWN` with `WEFT_OK` follows, within 3 seconds also if
/// the peer does not answer, unless a provider does not return. The id is valid until then. The peer gets a
/// PEER_DOWN with `WEFT_ERR_PEER_CLOSED`. Its remote memory remains to be
/// released.
///
/// # Safety
/// `endpoint` must be a handle from `weft_endpoint_create`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_peer_disconnect(endpoint: *mut weft_endpoint, peer: weft_peer) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| ep.disconnect(peer)))
}

/// Writes why a peer ended or could not be reached, as text: the addresses that
/// were tried, and what each answered. Known of the last 256 peers that ended,
/// from the completion that says so; of one that is there, why its fabric
/// serves it. Since 0.3.
///
/// `buffer`, `capacity`, `len`: as in `weft_topology`: `*len` does not count the
/// NUL, for which `capacity` needs a byte more. Errors: `WEFT_ERR_HANDLE` (no such
/// peer), `WEFT_ERR_TOO_SMALL`.
///
/// # Safety
/// `buffer` must be valid for `capacity` bytes, `len` valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_peer_reason(
    endpoint: *const weft_endpoint,
    peer: weft_peer,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> weft_status {
    guard(|| {
        let len = output(len, "len")?;
        with_endpoint(endpoint, |ep| text_out(&ep.peer_reason(peer)?, buffer, capacity, &len))
    })
}

/// Fills in what is known of a peer that has not ended.
///
/// # Safety
/// `properties` must be NULL or valid for `properties->size` bytes.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_peer_info(
    endpoint: *const weft_endpoint,
    peer: weft_peer,
    properties: *mut weft_peer_properties,
) -> weft_status {
    guard(|| {
        with_endpoint(endpoint, |ep| {
            let info = ep.peer_info(peer)?;
            let mut filled: weft_peer_properties = args::zeroed();
            filled.up = info.up as u32;
            filled.lanes = info.lanes;
            filled.local_rails = info.local_rails;
            filled.remote_rails = info.remote_rails;
            filled.capabilities = info.capabilities;
            filled.incarnation = info.incarnation;
            args::text(&mut filled.fabric, &info.fabric);
            args::text(&mut filled.reason, &info.reason);
            args::text(&mut filled.address, &info.address);
            args::fill(properties, filled)
        })
    })
}
