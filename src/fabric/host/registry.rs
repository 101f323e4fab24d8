//! What peers may reach: the registrations of one NIC, by key.

use crate::device::Device;
use crate::fabric::{Access, HostRange};
use std::collections::{hash_map, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// What a peer wants of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    Write,
    Read,
}

#[derive(Clone, Copy)]
struct Entry {
    key: u64,
    base: u64,
    len: u64,
    access: Access,
    /// It is memory of a device, which the CPU must not touch; and its identity.
    device: Option<(Device, u64)>,
}

/// Keys are random: they are their own hash.
#[derive(Default)]
struct Itself(u64);

impl Hasher for Itself {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 | *byte as u64);
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

/// Entries by key.
type Part = HashMap<u64, Entry, BuildHasherDefault<Itself>>;

/// Enough that the table of one is soon moved when it grows: no registration waits long for it.
const PARTS: usize = 256;

pub struct Registry {
    /// By some bits of the key that hash tables make no use of.
    parts: Box<[Part]>,
    /// The one that was asked for last.
    last: Option<Entry>,
}

fn part_of(key: u64) -> usize {
    (key >> 40) as usize % PARTS
}

impl Default for Registry {
    fn default() -> Registry {
        Registry { parts: (0..PARTS).map(|_| Part::default()).collect(), last: None }
    }
}

impl Registry {
    /// False if the key is taken.
    pub fn add(&mut self, key: u64, range: HostRange, access: Access, device: Option<(Device, u64)>) -> bool {
        let entry = Entry { key, base: range.base, len: range.len, access, device };
        match self.parts[part_of(key)].entry(key) {
            hash_map::Entry::Occupied(_) => false,
            hash_map::Entry::Vacant(place) => {
                place.insert(entry);
                true
            }
        }
    }

    /// False if there is no such key.
    pub fn remove(&mut self, key: u64) -> bool {
        self.last = None;
        self.parts[part_of(key)].remove(&key).is_some()
    }

    pub fn clear(&mut self) {
        self.last = None;
        self.parts.iter_mut().for_each(Part::clear);
    }

    /// Whether a peer that knows `key` may do this with these bytes.
    #[inline]
    pub fn allows(&mut self, key: u64, address: u64, len: u64, wish: Wish) -> bool {
        self.find(key).is_some_and(|entry| entry.device.is_none() && entry.allows(address, len, wish))
    }

    /// The device whose memory a peer that knows `key` may write to, or read, there.
    #[inline]
    pub fn allows_device(&mut self, key: u64, address: u64, len: u64, wish: Wish) -> Option<Device> {
        let entry = self.find(key).filter(|entry| entry.allows(address, len, wish))?;
        entry.device.map(|(device, _)| device)
    }

    /// Where device memory begins, and its identity when it was registered.
    pub fn identity_of(&mut self, key: u64) -> Option<(u64, u64)> {
        let entry = self.find(key)?;
        entry.device.map(|(_, identity)| (entry.base, identity))
    }

    #[inline]
    fn find(&mut self, key: u64) -> Option<Entry> {
        match self.last {
            Some(entry) if entry.key == key => Some(entry),
            _ => self.parts[part_of(key)].get(&key).map(|entry| *self.last.insert(*entry)),
        }
    }
}

impl Entry {
    #[inline]
    fn allows(&self, address: u64, len: u64, wish: Wish) -> bool {
        let granted = match wish {
            Wish::Write => self.access.remote_write,
            Wish::Read => self.access.remote_read,
        };
        // Offsets, so that nothing can wrap around.
        let offset = address.wrapping_sub(self.base);
        granted && offset <= self.len && len <= self.len - offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_registered_is_allowed() {
        let mut registry = Registry::default();
        let both = Access::ALL;
        assert!(registry.add(7, HostRange { base: 1000, len: 100 }, both, None));
        assert!(registry.add(
            8,
            HostRange { base: 5000, len: 1 },
            Access { remote_read: false, ..both },
            None
        ));
        assert!(!registry.add(7, HostRange { base: 0, len: 1 }, both, None));
        for (key, address, len, wish, expected) in [
            (7, 1000, 100, Wish::Write, true),
            (7, 1100, 0, Wish::Read, true),
            (7, 1099, 1, Wish::Read, true),
            (7, 999, 1, Wish::Write, false),
            (7, 1000, 101, Wish::Write, false),
            (7, 1101, 0, Wish::Write, false),
            (7, 1001, u64::MAX, Wish::Write, false),
            (7, u64::MAX, 2, Wish::Write, false),
            (8, 5000, 1, Wish::Write, true),
            (8, 5000, 1, Wish::Read, false),
            (9, 1000, 1, Wish::Write, false),
            (0, 0, 0, Wish::Write, false),
        ] {
            assert_eq!(registry.allows(key, address, len, wish), expected, "{key} {address} {len} {wish:?}");
        }
        assert!(registry.add(9, HostRange { base: 9000, len: 100 }, both, Some((3, 77))));
        assert!(!registry.allows(9, 9000, 1, Wish::Write) && !registry.allows(9, 9000, 1, Wish::Read));
        let mut device = |key, address, len| registry.allows_device(key, address, len, Wish::Write);
        assert_eq!(device(9, 9000, 100), Some(3));
        assert_eq!(device(9, 9000, 101).or(device(7, 1000, 1)), None);
        assert!(registry.allows(7, 1000, 1, Wish::Write));
        assert!(registry.remove(7) && !registry.remove(7));
        assert!(!registry.allows(7, 1000, 1, Wish::Write));
    }
}
