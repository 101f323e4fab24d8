//! Peers: connecting, disconnecting, and what is known of them.

use super::config;
use super::endpoint::weft_endpoint;
use super::guard::{bytes, guard, output, with_endpoint};
use super::op::weft_op_options;
use super::status::weft_status;
use std::ffi::{c_char, c_void};

/// A remote endpoint, as an id that is checked: one that is stale or of another
/// endpoint is answered with `WEFT_ERR_HANDLE`. 0 is never a peer.
pub type weft_peer = u64;

/// In `capabilities` of a peer: it does `weft_fetch_add` and `weft_compare_swap`.
pub const WEFT_CAPABILITY_ATOMICS: u32 = 1;

/// What is known of a peer. Filled by `weft_peer_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_peer_properties {
    /// `sizeof(weft_peer_properties)`, set by the caller.
    pub size: u32,
    /// 1 when the peer is up, else 0.
    pub up: u32,
    /// Lanes that are up: pairs of one of our rails and one of theirs, each
    /// proven by an answer over it. A connect makes as many as the side with more
    /// rails has, so that every rail has one (rails of one network together where
    /// that is so); more come when memory of some rails needs them.
    pub lanes: u32,
    /// Rails of ours, and of theirs, that have a lane.
    pub local_rails: u32,
    pub remote_rails: u32,
    /// What the peer does beside transfers and messages: `WEFT_CAPABILITY_*` added
    /// up. 0 until it is up.
    pub capabilities: u32,
    /// The peer's incarnation, as in its `weft_endpoint_properties`.
    pub incarnation: u64,
    /// The fabric that serves this peer, as "tcp"; "" until it is up.
    pub fabric: [c_char; 64],
    /// Why this fabric, in a sentence; of better ones, why they do not serve.
    pub reason: [c_char; 256],
}

/// Starts to connect to the endpoint that wrote `address`. The call is answered
/// by exactly one `WEFT_COMPLETION_PEER_UP` in the endpoint's own queue, whose
/// status tells how it went: `WEFT_OK`, `WEFT_ERR_UNREACHABLE` (no answer by
/// the timeout, or refused), `WEFT_ERR_PEER_GONE` (another endpoint lives
/// there now), `WEFT_ERR_VERSION`, `WEFT_ERR_DENIED` (the two do not have the same
/// `secret`). The other side gets a
/// `WEFT_COMPLETION_PEER_UP`, too, with `accepted` 1: it needs to do nothing to
/// accept. A peer that was up ends in exactly one `WEFT_COMPLETION_PEER_DOWN`. Once
/// that was polled, nothing of the peer lands here: no byte, message or count, also
/// when the peer was only stopped and goes on. (Over efa and shm, which
/// cannot close one peer's lanes, its writes may land until the memory is deregistered.)
/// That a peer died is told by its fabric when something is sent to it (every
/// second, at least): over tcp within half a second while operations are under
/// way, and else within some 2 seconds; later, if a program that the peer had started
/// inherited its sockets (libfabric's are not closed by exec). A peer that only stopped,
/// or whose host is cut off, is lost after `liveness_ns` of `weft_endpoint_config`;
/// operations with it end at their deadlines.
///
/// The fabrics that both sides have are tried best first: the next one when the
/// better ones have failed, or when none of their lanes has come up for a while
/// (0.3 s for `host`, 1.5 s for others, and at most a quarter of the timeout). The
/// best that came up serves the peer until it ends, and `weft_peer_info` says which
/// that is. `WEFT_ERR_UNREACHABLE` comes at once when all have failed.
///
/// Up means: every lane that the connect makes was proven by an answer over it,
/// and is warm.
///
/// `address`, `address_len`: from `weft_endpoint_address`; not needed after the
/// call. `options`: `timeout_ns` and
/// `user_data`; NULL for defaults. `peer`: receives the id. It can be used at
/// once: operations wait until the peer is up. Two endpoints that connect to
/// each other at once become one peer, and connecting to an endpoint that is a
/// peer already gives the same id, answered by one more PEER_UP.
///
/// Where both sides connect, each polls its own PEER_UP (`accepted` 0, its
/// `user_data`), and may poll one with `accepted` 1 of the same peer before it: wait
/// for the one with `accepted` 0. Who connected to you: compare `incarnation` of
/// `weft_peer_properties` with one sent beside the address, or have it send a
/// message first.
///
/// Any thread; does not block. Errors: `WEFT_ERR_FORMAT`,
/// `WEFT_ERR_NO_COMMON_FABRIC`, `WEFT_ERR_VERSION`, `WEFT_ERR_INVALID` (also
/// one's own address), `WEFT_ERR_LIMIT` (`max_peers`), `WEFT_ERR_AGAIN` (the
/// queue is full), `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`. Since 0.1.
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
        let options = config::connect(options)?;
        let address = bytes(address, address_len, "address")?.copied("the address")?;
        with_endpoint(endpoint, |ep| {
            out.store(ep.connect(&address, options.timeout_ns, options.user_data as u64)?);
            Ok(())
        })
    })
}

/// Ends the connection with a peer. Its outstanding operations end with
/// `WEFT_ERR_CANCELED` at once. Both sides then drain what is in flight, and a
/// `WEFT_COMPLETION_PEER_DOWN` with `WEFT_OK` follows, after which none of the
/// peer's writes lands here any more; until then the id stays valid. The peer
/// gets a PEER_DOWN with `WEFT_ERR_PEER_CLOSED`. A peer that does not answer is
/// not waited for longer than 3 seconds, and then that cannot be promised.
/// Remote memory of that peer stays to be released.
///
/// Any thread; does not block. Errors: `WEFT_ERR_HANDLE`, `WEFT_ERR_CLOSED`.
/// Since 0.1.
///
/// # Safety
/// `endpoint` must be a handle from `weft_endpoint_create`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_peer_disconnect(endpoint: *mut weft_endpoint, peer: weft_peer) -> weft_status {
    guard(|| with_endpoint(endpoint, |ep| ep.disconnect(peer)))
}

/// Fills in what is known of a peer, until its PEER_DOWN has been polled.
/// `properties->size` must be set.
/// Any thread; does not block. Errors: `WEFT_ERR_HANDLE`. Since 0.1.
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
            let mut filled: weft_peer_properties = config::zeroed();
            filled.up = info.up as u32;
            filled.lanes = info.lanes;
            filled.local_rails = info.local_rails;
            filled.remote_rails = info.remote_rails;
            filled.capabilities = info.capabilities;
            filled.incarnation = info.incarnation;
            config::text(&mut filled.fabric, &info.fabric);
            config::text(&mut filled.reason, &info.reason);
            config::fill(properties, filled)
        })
    })
}
