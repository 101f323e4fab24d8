// Weft moves memory between processes over every NIC of a machine. The caller
// polls for completions. Its interface is the C header `include/weft.h`, made
// from `capi`.
//
// Each floor uses only the floors below it:
//
// | | |
// | --- | --- |
// | `capi` | the only `extern "C"`: guards, handles, sized structs |
// | `api` | the crate's public interface, in safe Rust |
// | `calls` | what callers' threads do: opening, submitting, closing |
// | `owner` | what a peer's owner does: its session, its frames, its end |
// | `worker` | the thread of some NICs: passes, commands, lanes |
// | `peer` | handshake, pairing, control channels |
// | `session`, `revocation` | what two endpoints agree on, how access ends: state machines |
// | `transfer` | the life of a transfer: read its top comment first |
// | `memory` | registered ranges, descriptors |
// | `rail` | one NIC: op slots, windows, lanes |
// | `lane` | the life of one end of a lane, as a state machine |
// | `fabric` | the interface to NICs; behind it libfabric, and Weft's own fabrics |
// | `device` | memory of devices: CUDA, staging |
// | `topology` | the machine: distances of CPUs, GPUs and NICs |
// | `wire` | formats: bytes in, values out |

#![cfg_attr(feature = "api", doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")))]
#![cfg_attr(feature = "api", deny(missing_docs))]

#[cfg(feature = "api")]
mod api;
#[cfg(feature = "api")]
pub use api::*;
mod bytes;
mod calls;
#[cfg(any(not(feature = "api"), feature = "capi"))]
#[cfg_attr(feature = "api", doc(hidden), allow(missing_docs))]
pub mod capi;
// Virtual time begins with simulated NICs.
#[cfg_attr(not(any(test, feature = "sim")), allow(dead_code))]
mod clock;
mod codec;
mod descriptor;
mod device;
mod event;
mod fabric;
#[cfg_attr(test, allow(dead_code))]
mod failing;
mod fork;
#[cfg(fuzzing)]
#[allow(missing_docs)]
pub mod fuzzing;
#[cfg(all(test, not(fuzzing)))]
mod fuzzing;
mod ids;
mod kernel_copy;
mod lane;
mod logging;
mod mappings;
mod memory;
mod owner;
mod pass;
mod peer;
mod prefetch;
mod rail;
mod range;
mod revocation;
mod ring;
mod room;
mod session;
mod status;
mod sync;
mod topology;
mod trace;
mod transfer;
mod wire;
mod without;
mod worker;

/// The simulated NICs without Weft, to measure their own cost.
#[cfg(feature = "sim")]
#[doc(hidden)]
#[allow(missing_docs)]
pub mod simulated {
    pub use crate::fabric::sim::{free, nics, open_fabric};
    /// Steps of calls that can fail, one after the other.
    pub mod failing {
        #[cfg(any(not(feature = "api"), feature = "capi"))]
        pub use crate::capi::held::held;
        pub use crate::failing::{begin, end};
    }
}
