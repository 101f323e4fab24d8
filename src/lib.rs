// Weft moves memory between processes over every NIC of a machine, and tells
// the caller, by polling, when the bytes have arrived. Its interface is the C
// header `include/weft.h`, made from `capi`.
//
// Each floor knows only those under it:
//
// | | |
// | --- | --- |
// | `capi` | the only `extern "C"`: guards, handles, sized structs |
// | `api` | the crate's public interface, in safe Rust |
// | `endpoint` | opening and closing, workers and their passes |
// | `peer` | handshake, pairing, control channels |
// | `transfer` | the life of a transfer: read its top comment first |
// | `memory` | registered ranges, descriptors |
// | `rail` | one NIC: op slots, windows, lanes |
// | `fabric` | the seam to NICs, and behind it libfabric, and our own between processes of one host |
// | `device` | memory of devices: CUDA, staging |
// | `topology` | the machine: what is near what |
// | `wire` | formats: bytes in, values out |

#![cfg_attr(feature = "api", doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")))]
#![cfg_attr(feature = "api", deny(missing_docs))]

#[cfg(feature = "api")]
mod api;
#[cfg(feature = "api")]
pub use api::*;
#[cfg(any(not(feature = "api"), feature = "capi"))]
#[cfg_attr(feature = "api", doc(hidden), allow(missing_docs))]
pub mod capi;
// Virtual time begins with simulated NICs.
#[cfg_attr(not(any(test, feature = "sim")), allow(dead_code))]
mod clock;
mod codec;
mod device;
mod endpoint;
mod event;
mod fabric;
mod fork;
#[cfg(fuzzing)]
pub mod fuzzing;
#[cfg(all(test, not(fuzzing)))]
mod fuzzing;
mod ids;
mod logging;
mod memory;
mod pass;
mod peer;
mod prefetch;
mod rail;
mod range;
mod ring;
mod room;
mod status;
mod sync;
mod topology;
mod transfer;
mod wire;

/// The simulated NICs without Weft: to measure what they cost by themselves.
#[cfg(feature = "sim")]
#[doc(hidden)]
#[allow(missing_docs)]
pub mod simulated {
    pub use crate::fabric::sim::{free, nics, open_fabric};
}
