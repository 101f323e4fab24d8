//! Formats: bytes in, values out; and the secret that keys are derived from. Nothing here depends
//! on peers, rails or time.

pub mod address;
pub mod descriptor;
pub mod frame;
pub mod seal;
pub mod secret;
pub mod tcp;

use crate::ids::RailIndex;
use std::num::NonZeroU32;

/// The immediate data of a write. (Non-zero, so `Option<Immediate>` fits in 32 bits.)
pub type Immediate = NonZeroU32;

/// The kinds of requests between Weft's own NICs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RequestKind {
    Write = 1,
    Read = 2,
    Message = 3,
}

/// Bytes of a control frame's header (drawn in `frame`). The lane fills in the sender's rail and
/// the receiver's token, at these offsets.
pub const HEADER: usize = 32;
pub const RAIL: usize = 4;
pub const TO: usize = 8;

pub fn stamp(frame: &mut [u8], rail: RailIndex, to: u128) {
    if let Some(header) = frame.get_mut(..HEADER) {
        header[RAIL..RAIL + 2].copy_from_slice(&rail.get().to_le_bytes());
        header[TO..TO + 16].copy_from_slice(&to.to_le_bytes());
    }
}

/// The magic numbers of addresses and descriptors.
const ADDRESS: u32 = u32::from_le_bytes(*b"WFTA");
const DESCRIPTOR: u32 = u32::from_le_bytes(*b"WFTM");
/// The error for a blob with the right magic number.
const DAMAGED: &str = "is damaged or truncated (it has zero bytes in it: pass its length on, not strlen)";
