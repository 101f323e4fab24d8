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
/// What is wrong with a blob that has the right magic number and a wrong checksum. `behind`: the bytes behind what
/// can be read as one, its checksum among them; `None`: it ends before.
fn damage(blob: &[u8], behind: Option<usize>) -> String {
    match behind.map(|behind| behind as i64 - 4) {
        Some(0) => "has a wrong checksum: bytes of it were changed on the way".into(),
        Some(more @ 1..) => format!(
            "is followed by {more} bytes that are not its own: pass the length that was stored with it"
        ),
        _ if !blob.contains(&0) => {
            "is cut off at its first zero byte: pass the length that was stored with it, not strlen".into()
        }
        _ => "is cut off, or bytes of it were changed: pass it as it was stored, with its length".into(),
    }
}
