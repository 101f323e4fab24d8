//! Memory made for transfers: processes of this host can read it straight from
//! where it is (see `fabric::host::area`).

use super::Range;
use crate::fabric::host::area::{self, Area};
use crate::status::{Error, Result};
use std::sync::Arc;

/// Most bytes of one allocation.
const MOST: u64 = 1 << 47;

/// Makes memory on a NUMA node, or wherever the system likes; its address.
pub fn allocate(len: u64, node: Option<u32>) -> Result<u64> {
    if len == 0 || len > MOST {
        return Err(Error::limit(format!("len is {len}: it must be 1 to 2^47 bytes")));
    }
    area::allocate(len, node)
}

/// Gives memory back that nothing holds.
pub fn free(address: u64) -> Result<()> {
    area::free(address)
}

/// Holds what `allocate` made of these ranges: it cannot be freed meanwhile.
pub fn hold(ranges: &[Range]) -> Vec<Arc<Area>> {
    let mut held: Vec<Arc<Area>> = Vec::new();
    for range in ranges {
        // Ranges of one area usually follow each other.
        let inside = |area: &Arc<Area>| range.base.wrapping_sub(area.base()) < area.len();
        if !held.last().is_some_and(inside) {
            held.extend(area::find(range.base, range.len));
        }
    }
    held
}
