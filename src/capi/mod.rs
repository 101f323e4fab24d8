//! The only `extern "C"` of the library. Each file is one section of `include/weft.h`, which is
//! made from it (see `build.rs`); `guard` is the boundary, `handle` turns pointers into objects,
//! `args` and `options` read arguments. There is no logic here.

#![allow(non_camel_case_types)]

mod args;
pub mod atomic;
pub mod completion;
pub mod counter;
pub mod device;
pub mod endpoint;
pub mod fence;
pub mod grant;
mod guard;
mod handle;
#[cfg(feature = "sim")]
pub mod held;
pub mod info;
pub mod list;
pub mod log;
pub mod memory;
pub mod message;
pub mod op;
mod options;
pub mod peer;
pub mod prepared;
pub mod status;
pub mod topology;
pub mod transfer;
pub mod version;
