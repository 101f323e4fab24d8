//! The memory that peers may reach: a NIC's registrations, and the grants that it knows, by key.

use crate::device::{is_there, Device};
use crate::fabric::grants::{Grant, Grants, Use};
use crate::fabric::{Access, HostRange, GONE};
use crate::ids::PeerId;
use crate::logging::seldom::warn_seldom;
use crate::range::Range;
use std::collections::{hash_map, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// The access that a peer requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    Write,
    Read,
}

/// The result of `check` for bytes that may be touched.
#[derive(Default)]
pub struct Allowed {
    /// The use of a grant, held while the bytes are touched.
    pub entered: Option<Use>,
    /// The device that holds the bytes: the CPU must not touch them.
    pub device: Option<Device>,
}

#[derive(Clone)]
struct Entry {
    key: u64,
    /// The base; for a grant, that of its first range.
    base: u64,
    len: u64,
    access: Access,
    /// The device of device memory, which the CPU must not touch, and the memory's identity.
    device: Option<(Device, u64)>,
    granted: Option<Arc<Grant>>,
}

/// Keys are random, so a key is its own hash.
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

/// Enough parts that moving one part's table when it grows is fast: no registration waits long for
/// it.
const PARTS: usize = 256;

pub struct Registry {
    /// Partitioned by bits of the key that hash tables do not use.
    parts: Box<[Part]>,
    /// The entry that was found last.
    last: Option<Entry>,
    /// The key and the range of device memory that this pass found still allocated.
    there: Option<(u64, u64)>,
    /// The endpoint's grants.
    grants: Arc<Grants>,
}

fn part_of(key: u64) -> usize {
    (key >> 40) as usize % PARTS
}

impl Default for Registry {
    fn default() -> Registry {
        let parts = (0..PARTS).map(|_| Part::default()).collect();
        Registry { parts, last: None, there: None, grants: Arc::default() }
    }
}

impl Registry {
    pub fn use_grants(&mut self, grants: Arc<Grants>) {
        self.grants = grants;
    }

    /// Adds a registration; false if the key is taken.
    pub fn add(&mut self, key: u64, range: HostRange, access: Access, device: Option<(Device, u64)>) -> bool {
        let entry = Entry { key, base: range.base, len: range.len, access, device, granted: None };
        match self.parts[part_of(key)].entry(key) {
            hash_map::Entry::Occupied(_) => false,
            hash_map::Entry::Vacant(place) => {
                place.insert(entry);
                true
            }
        }
    }

    /// Removes a registration; false if there is no such key.
    pub fn remove(&mut self, key: u64) -> bool {
        self.last = None;
        self.parts[part_of(key)].remove(&key).is_some()
    }

    pub fn clear(&mut self) {
        self.last = None;
        self.parts.iter_mut().for_each(Part::clear);
    }

    /// Checks a peer's request with `key` for these bytes. Returns the device that holds them, and
    /// the use of a grant, during which the bytes may be touched; else the error number for the
    /// request.
    #[inline]
    pub fn check(
        &mut self,
        (peer, key): (Option<PeerId>, u64),
        bytes: impl IntoIterator<Item = (u64, u64), IntoIter: Clone>,
        wish: Wish,
    ) -> Result<Allowed, i32> {
        // Connections without a peer, or of an ended peer, do not get here.
        let mut there = self.there;
        let Some(entry) = self.find(key) else { return Err(peer.map_or(libc::EACCES, |_| GONE)) };
        let mut bytes = bytes.into_iter();
        let allowed = bytes.clone().all(|(address, len)| entry.allows(address, len, wish));
        if let Some(grant) = &entry.granted {
            // Most requests are in its first range, and for host memory.
            let mut outside = None;
            if !allowed || entry.device.is_some() {
                let mut covers =
                    |(address, len)| grant.covers(address, len) && grant.holds(address, &mut there);
                outside = bytes.find(|piece| !covers(*piece));
            }
            let theirs = peer == Some(grant.peer) && entry.access.has(wish);
            let entered = if theirs && outside.is_none() { grant.enter() } else { None };
            if entered.is_none() {
                explain(peer, grant, wish, outside);
            }
            let device = entry.device.map(|(device, _)| device);
            self.there = there;
            return entered.map(|entered| Allowed { entered: Some(entered), device }).ok_or(GONE);
        }
        if !allowed {
            return Err(libc::EACCES);
        }
        let Some((device, identity)) = entry.device else { return Ok(Allowed::default()) };
        let base = entry.base;
        if there != Some((key, base)) && !is_there(base, identity) {
            return Err(GONE);
        }
        self.there = Some((key, base));
        Ok(Allowed { entered: None, device: Some(device) })
    }

    /// Forgets the last check: device memory may have been freed since.
    pub fn begin_pass(&mut self) {
        self.there = None;
    }

    /// The registered range of a key.
    pub fn range_of(&mut self, key: u64) -> Option<Range> {
        self.find(key).map(|entry| Range { base: entry.base, len: entry.len })
    }

    /// Whether a key's memory is on a device.
    pub fn is_device(&mut self, key: u64) -> bool {
        self.find(key).is_some_and(|entry| entry.device.is_some())
    }

    #[inline]
    fn find(&mut self, key: u64) -> Option<&Entry> {
        if self.last.as_ref().is_none_or(|entry| entry.key != key) {
            let entry = self.parts[part_of(key)].get(&key).cloned();
            self.last = Some(entry.or_else(|| self.find_grant(key))?);
        }
        self.last.as_ref()
    }

    /// Looks up a key that this NIC has not seen before.
    #[cold]
    fn find_grant(&mut self, key: u64) -> Option<Entry> {
        let grant = self.grants.find(key)?;
        let first = grant.first();
        let entry = Entry {
            key,
            base: first.base,
            len: first.len,
            access: grant.access,
            device: grant.device().map(|device| (device, 0)),
            granted: Some(grant),
        };
        self.parts[part_of(key)].insert(key, entry.clone());
        Some(entry)
    }
}

/// Logs why a grant does not allow a request. `outside`: the first bytes that the grant does not
/// cover.
#[cold]
fn explain(peer: Option<PeerId>, grant: &Grant, wish: Wish, outside: Option<(u64, u64)>) {
    let (peer, token) = (peer.map_or(0, PeerId::get), grant.token);
    let what = match wish {
        Wish::Write => "write",
        Wish::Read => "read",
    };
    if peer != grant.peer.get() {
        warn_seldom!(
            "peer {peer:#x}: a {what} under grant {token}, which is peer {:#x}'s, was refused",
            grant.peer
        );
    } else if !grant.access.has(wish) {
        warn_seldom!("peer {peer:#x}: a {what} was refused: grant {token} does not allow one");
    } else if let Some((address, len)) = outside {
        let HostRange { base, .. } = grant.first();
        warn_seldom!(
            "peer {peer:#x}: a {what} of {len} bytes at {address:#x} was refused: outside of the pages of grant {token} \
             (ranges: {}, the first at {base:#x})",
            grant.range_count()
        );
    } else {
        log::debug!("peer {peer:#x}: a {what} under grant {token} was refused: revoked");
    }
}

impl Access {
    #[inline]
    fn has(&self, wish: Wish) -> bool {
        let has = match wish {
            Wish::Write => self.remote_write,
            Wish::Read => self.remote_read,
        };
        has && !self.granted_only
    }
}

impl Entry {
    #[inline]
    fn allows(&self, address: u64, len: u64, wish: Wish) -> bool {
        // Comparing offsets cannot overflow.
        let offset = address.wrapping_sub(self.base);
        self.access.has(wish) && offset <= self.len && len <= self.len - offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{GrantToken, MemoryId};

    #[test]
    fn registry_allows_only_registered_ranges_and_access() {
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
            let allowed = registry.check((None, key), [(address, len)], wish);
            assert_eq!(allowed.is_ok(), expected, "{key} {address} {len} {wish:?}");
        }
        // No device of this process has this identity.
        assert!(registry.add(9, HostRange { base: 9000, len: 100 }, both, Some((3, 77))));
        assert!(registry.is_device(9) && !registry.is_device(7));
        assert_eq!(registry.check((None, 9), [(9000, 101)], Wish::Write).err(), Some(libc::EACCES));
        assert_eq!(registry.check((None, 9), [(9000, 100)], Wish::Write).err(), Some(GONE));
        assert!(registry.check((None, 7), [(1000, 1)], Wish::Write).is_ok());
        assert!(registry.remove(7) && !registry.remove(7));
        assert_eq!(registry.check((None, 7), [(1000, 1)], Wish::Write).err(), Some(libc::EACCES));
        assert_eq!(registry.check((PeerId::new(1), 7), [(1000, 1)], Wish::Write).err(), Some(GONE));
    }

    #[test]
    fn grant_serves_only_its_peer_until_it_is_closed() {
        let (ours, theirs) = (PeerId::new(1), PeerId::numbered(2));
        let (grants, mut registry) = (Arc::new(Grants::default()), Registry::default());
        registry.use_grants(grants.clone());
        let token = GrantToken::new(77).unwrap();
        let writes = Access { remote_read: false, ..Access::ALL };
        let ranges = [(1000, 100), (3000, 100)].map(|(base, len)| HostRange { base, len });
        assert!(grants.add(Grant::new(token, (theirs, 0), (MemoryId::new(1), writes), ranges.to_vec())));
        let mut check =
            |peer, address, wish| registry.check((peer, 77), [(1000, 50), (address, 50)], wish).map(drop);
        assert_eq!(check(Some(theirs), 3050, Wish::Write), Ok(()));
        assert_eq!(check(Some(theirs), 3051, Wish::Write), Err(GONE));
        assert_eq!(check(Some(theirs), 3050, Wish::Read), Err(GONE));
        assert_eq!(check(ours, 3050, Wish::Write).or(check(None, 3050, Wish::Write)), Err(GONE));
        assert!(grants.take(token).is_some_and(|grant| grant.close()));
        assert_eq!(check(Some(theirs), 1000, Wish::Write), Err(GONE));
        assert!(registry.remove(77));
        assert_eq!(registry.check((Some(theirs), 77), [(1000, 50)], Wish::Write).err(), Some(GONE));
    }
}
