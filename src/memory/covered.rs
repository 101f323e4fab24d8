//! What grants of a peer cover, as their owner says: for NICs that check no grants.

use crate::ids::{GrantToken, Hold, MemoryId};
use crate::range::{self, Range};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The memory, the directions and the bytes of one grant. It does not change.
pub struct Covered {
    pub memory: MemoryId,
    pub write: bool,
    pub read: bool,
    /// In the order of their addresses, and disjoint.
    pub ranges: Vec<Range>,
}

impl Covered {
    pub fn contains(&self, address: u64, len: u64) -> bool {
        range::one_contains(&self.ranges, address, len)
    }
}

/// A grant whose owner is being asked.
pub struct Asking {
    /// What it has said so far.
    pub covered: Covered,
    /// Transfers that wait for all of it.
    pub waiting: Vec<Hold>,
}

/// The grants of one peer that operations here have named, until the peer revokes them.
#[derive(Default)]
pub struct Known(Mutex<HashMap<GrantToken, Arc<Covered>>>);

impl Known {
    pub fn get(&self, grant: GrantToken) -> Option<Arc<Covered>> {
        self.0.lock().get(&grant).cloned()
    }

    pub fn insert(&self, grant: GrantToken, covered: Covered) {
        self.0.lock().insert(grant, Arc::new(covered));
    }

    pub fn forget(&self, grant: GrantToken) {
        self.0.lock().remove(&grant);
    }
}
