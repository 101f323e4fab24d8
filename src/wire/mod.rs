//! Formats: bytes in, values out; and the secret that keys are derived from. Nothing here depends
//! on peers, rails or time.

pub mod address;
pub mod descriptor;
pub mod frame;
pub mod seal;
pub mod secret;
pub mod tcp;

use crate::codec::Reader;
use crate::ids::RailIndex;
use crate::status::{Error, Result, Status};
use std::num::NonZeroU32;

/// The immediate data of a write. (Non-zero, so `Option<Immediate>` fits in 32 bits.)
pub type Immediate = NonZeroU32;

/// The kinds of requests between Weft's own NICs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RequestKind {
    /// Over tcp only: names a connection for disks.
    Beside = 0,
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

/// What callers carry from one process to another.
struct Blob {
    magic: u32,
    format: u16,
    /// Its name in messages, with an article; what it belongs to; the function that writes it.
    name: (&'static str, &'static str),
    owner: &'static str,
    writer: &'static str,
}

const ADDRESS: Blob = Blob {
    magic: u32::from_le_bytes(*b"WFTA"),
    format: 1,
    name: ("an", "address"),
    owner: "an endpoint",
    writer: "weft_endpoint_address",
};
const DESCRIPTOR: Blob = Blob {
    magic: u32::from_le_bytes(*b"WFTM"),
    format: 1,
    name: ("a", "descriptor"),
    owner: "a memory",
    writer: "weft_memory_export",
};

impl Blob {
    /// Reads one, whose content `body` reads.
    fn decode<T>(&self, blob: &[u8], body: impl Fn(&mut Reader) -> Option<T>) -> Result<T> {
        let (article, name) = self.name;
        let damaged =
            |what: String| Error::new(Status::Format, format!("the {name} ({} bytes) {what}", blob.len()));
        let begins = |known: &&Blob| blob.starts_with(&known.magic.to_le_bytes());
        match [&ADDRESS, &DESCRIPTOR].into_iter().find(begins) {
            Some(known) if known.magic == self.magic => {}
            Some(Blob { name: (_, name), owner, writer, .. }) => {
                return Err(damaged(format!(
                    "is the {name} of {owner}, from {writer}: the two were mixed up"
                )))
            }
            None if blob.is_empty() => {
                return Err(damaged(format!("is NULL or empty: {} writes one", self.writer)))
            }
            None => {
                return Err(damaged(format!(
                    "is not {article} {name} of Weft, which comes from {}",
                    self.writer
                )))
            }
        }
        let Some(mut r) = Reader::unseal(blob) else {
            let mut r = Reader::new(blob.get(6..).unwrap_or_default());
            let behind = body(&mut r).map(|_| r.remaining());
            return Err(damaged(damage(blob, behind)));
        };
        r.u32();
        match r.u16() {
            Some(format) if format == self.format => {}
            Some(format) => {
                let ours = self.format;
                return Err(damaged(format!("has format {format}, this Weft reads format {ours}")));
            }
            None => return Err(damaged("is truncated".into())),
        }
        let read = body(&mut r).filter(|_| r.remaining() == 0);
        read.ok_or_else(|| damaged("does not add up".into()))
    }
}

/// What is wrong with a blob that has the right magic number and a wrong checksum. `behind`: the
/// bytes behind what can be read as one, its checksum among them; `None`: it ends before.
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
