//! The endpoint's own address, which changes when a NIC gets other addresses.

use crate::ids::RailIndex;
use crate::rail::Rail;
use crate::wire::address::{Address, RailAddress};
use once_cell::sync::OnceCell;
use parking_lot::Mutex;

/// The address, and those after it. Callers may still read an earlier one: all stay.
struct Version {
    bytes: Vec<u8>,
    next: OnceCell<Box<Version>>,
}

pub struct Whereabouts {
    now: Mutex<Address>,
    first: Version,
}

impl Version {
    fn new(address: &Address) -> Version {
        Version { bytes: address.encode(), next: OnceCell::new() }
    }
}

impl Whereabouts {
    pub fn new(address: Address) -> Whereabouts {
        Whereabouts { first: Version::new(&address), now: Mutex::new(address) }
    }

    /// What peers connect to.
    pub fn bytes(&self) -> &[u8] {
        &self.last().bytes
    }

    fn last(&self) -> &Version {
        let mut last = &self.first;
        while let Some(next) = last.next.get() {
            last = next;
        }
        last
    }

    /// A rail's own address.
    pub fn rail(&self, rail: RailIndex) -> Option<RailAddress> {
        self.now.lock().rails.get(rail.place()).cloned()
    }

    /// A rail's NIC has other addresses than before.
    pub fn has_moved(&self, rail: &Rail, network: String) {
        let mut now = self.now.lock();
        if let Some(known) = now.rails.get_mut(rail.index.place()) {
            (known.network, known.address, known.other) = (network, rail.address().to_vec(), rail.other_ip());
            // (Only whoever has locked it adds one.)
            let _ = self.last().next.set(Box::new(Version::new(&now)));
        }
    }
}

impl Drop for Version {
    /// One after the other: each in the drop of the one before could exhaust the stack.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(mut one) = next {
            next = one.next.take();
        }
    }
}
