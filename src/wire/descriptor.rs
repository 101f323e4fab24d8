//! The descriptor of a memory, with which a peer accesses it.
//!
//! ```text
//! u32 "WFTM"  u16 format  u64 incarnation  u64 memory  u64 secret  u8 access
//! u8 device, plus 1 (0: host)  u16 rails   u32 ranges  ranges x (u64 base, u64 len)
//! rails x (u8 flags: 1 virtual addresses, 2 not registered on the rail; if registered,
//! ranges x u64 key)   u32 crc32 of all that
//! ```
//!
//! Format 1. All little-endian.

use super::address::RAILS_MAX;
use super::DESCRIPTOR;
use crate::codec::{Reader, Writer};
use crate::ids::MemoryId;
use crate::range::Range;
use crate::status::Result;

const WRITE: u8 = 1;
const READ: u8 = 2;
const GRANTED: u8 = 4;
const VIRTUAL: u8 = 1;
const ABSENT: u8 = 2;

/// The ranges' addressing through one of the owner's rails.
#[derive(PartialEq, Eq, Debug)]
pub struct Rail {
    /// Addresses are virtual, else offsets into each range.
    pub virtual_addresses: bool,
    /// Keys by range; empty if this rail has not registered the memory.
    pub keys: Box<[u64]>,
}

#[derive(Default, PartialEq, Eq, Debug)]
pub struct Descriptor {
    pub incarnation: u64,
    pub id: MemoryId,
    pub secret: u64,
    pub writable: bool,
    pub readable: bool,
    /// Accessible only under grants.
    pub granted_only: bool,
    /// The owner's device that holds it; `None`: the owner's CPU can access it.
    pub device: Option<u8>,
    pub ranges: Vec<Range>,
    pub rails: Vec<Rail>,
}

impl Descriptor {
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u32(DESCRIPTOR.magic)
            .u16(DESCRIPTOR.format)
            .u64(self.incarnation)
            .u64(self.id.get())
            .u64(self.secret);
        let granted = self.granted_only as u8 * GRANTED;
        w.u8((self.writable as u8 * WRITE) | (self.readable as u8 * READ) | granted);
        w.u8(self.device.map_or(0, |device| device.saturating_add(1)));
        w.u16(self.rails.len() as u16).u32(self.ranges.len() as u32);
        for range in &self.ranges {
            w.u64(range.base).u64(range.len);
        }
        for rail in &self.rails {
            w.u8((rail.virtual_addresses as u8 * VIRTUAL) | (rail.keys.is_empty() as u8 * ABSENT));
            for key in &rail.keys {
                w.u64(*key);
            }
        }
        w.sealed()
    }

    pub fn decode(blob: &[u8]) -> Result<Descriptor> {
        DESCRIPTOR.decode(blob, Self::body)
    }

    fn body(r: &mut Reader) -> Option<Descriptor> {
        let (incarnation, id, secret, access, device) =
            (r.u64()?, MemoryId::new(r.u64()?), r.u64()?, r.u8()?, r.u8()?);
        let (rails, ranges) = (r.u16()? as usize, r.u32()? as usize);
        // Before allocating, check that the blob is long enough for the counts.
        if ranges == 0 || rails == 0 || rails > RAILS_MAX || ranges.checked_mul(16)? > r.remaining() {
            return None;
        }
        let range = |r: &mut Reader| {
            let range = Range { base: r.u64()?, len: r.u64()? };
            range.base.checked_add(range.len)?;
            Some(range)
        };
        let ranges: Vec<Range> = (0..ranges).map(|_| range(r)).collect::<Option<_>>()?;
        let rail = |r: &mut Reader| {
            let flags = r.u8()?;
            let keys = if flags & ABSENT == 0 { ranges.len() } else { 0 };
            if keys * 8 > r.remaining() {
                return None;
            }
            let keys = (0..keys).map(|_| r.u64()).collect::<Option<_>>()?;
            Some(Rail { virtual_addresses: flags & VIRTUAL != 0, keys })
        };
        let rails = (0..rails).map(|_| rail(r)).collect::<Option<_>>()?;
        let (writable, readable, device) = (access & WRITE != 0, access & READ != 0, device.checked_sub(1));
        let granted_only = access & GRANTED != 0;
        Some(Descriptor { incarnation, id, secret, writable, readable, granted_only, device, ranges, rails })
    }
}
