//! Memory allocated for transfers: processes of this host can read it in place (see
//! `fabric::host::area`).

use super::Range;
use crate::fabric::host::area::{self, Area};
use crate::status::{Error, Result};
use std::sync::Arc;

/// Maximum bytes of one allocation.
const ALLOCATION_MAX: u64 = 1 << 47;

/// Allocates memory on a NUMA node, or where the system chooses; returns its address.
pub fn allocate(len: u64, node: Option<u32>) -> Result<u64> {
    if len == 0 || len > ALLOCATION_MAX {
        return Err(Error::limit(format!("len is {len}: it must be 1 to 2^47 bytes")));
    }
    area::allocate(len, node)
}

/// Frees memory that is not held.
pub fn free(address: u64) -> Result<()> {
    area::free(address)
}

/// Whether a range lies in an allocation, which has all its pages for as long as it lives.
pub fn has(range: &Range) -> bool {
    area::find(range.base, range.len).is_some()
}

/// Allocations that cannot be freed meanwhile.
pub type Areas = Vec<Arc<Area>>;

/// Holds the allocations that contain these ranges.
pub fn hold(ranges: &[Range]) -> Areas {
    let mut held = Areas::new();
    for range in ranges {
        // Ranges of one area usually come in a row.
        let inside = |area: &Arc<Area>| range.base.wrapping_sub(area.base()) < area.len();
        if !held.last().is_some_and(inside) {
            held.extend(area::find(range.base, range.len));
        }
    }
    held
}
