//! libfabric's C types, constants and calls, written by hand, and a loader that finds
//! libfabric at run time. Building needs neither libfabric nor its headers.
//!
//! Names are those of the C headers; what a call does is in its man page (`man fi_cq`, ...).
//! Where C has a keyword of Rust's, the name ends in `_` (`type_`); where C has an anonymous
//! union, it is a named one (`fi_mr_attr.iov`).
//!
//! The layouts are those of libfabric 1.17 (ABI FABRIC_1.3), which newer versions only extend
//! at the end:
//! - Structs and tables that the *library* allocates (`fi_info` and its parts, objects, ops
//!   tables) end where 1.17's end, so that nothing here reads past an older library's.
//!   Therefore never copy one by value to hand it back: allocate `fi_info` with
//!   [`Library::dupinfo`].
//! - Structs that the *caller* allocates (`fi_mr_attr`, `fi_cq_attr`, `fi_cq_err_entry`) have
//!   the newest ends: a longer one is always right, a shorter one would be read or written
//!   past its end by a newer library. Zero the fields that you do not use.

#![cfg(target_os = "linux")]
#![allow(non_camel_case_types)]

mod calls;
mod constants;
mod enums;
mod info;
mod library;
mod messages;
mod objects;
mod ops;

pub use calls::*;
pub use constants::*;
pub use enums::*;
pub use info::*;
pub use library::*;
pub use messages::*;
pub use objects::*;
pub use ops::*;

pub use libc::iovec;

/// `Default` for structs that the caller fills in: all zero, as C programs start them.
macro_rules! zero_default {
    ($($name:ident),* $(,)?) => {
        $(impl Default for $name {
            fn default() -> Self {
                // SAFETY: the struct has only integers, pointers, enums that may have any value,
                // and unions of those, for all of which zero is valid.
                unsafe { std::mem::zeroed() }
            }
        })*
    };
}
use zero_default;
