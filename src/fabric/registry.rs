//! The memory that peers may reach: a NIC's registrations, and the grants that it knows, by key.

use crate::clock::Random;
use crate::device::{is_there, Device};
use crate::fabric::grants::{Grant, Grants, Use};
use crate::fabric::{Access, HostRange, GONE};
use crate::ids::PeerId;
use crate::logging::seldom::warn_seldom;
use crate::range::Range;
use crate::status::{self, Error, Status};
use std::collections::{hash_map, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// The access that a peer requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    Write,
    Read,
}

/// The result of a check for bytes that may be touched.
#[derive(Default)]
pub struct Allowed {
    /// The use of a grant, held while the bytes are touched. `None`: this pass's use suffices.
    pub entered: Option<Use>,
    /// The device that holds the bytes: the CPU must not touch them.
    pub device: Option<Device>,
    /// Only the kernel may copy the bytes (`Access::may_fault`).
    pub may_fault: bool,
}

#[derive(Clone)]
struct Registered {
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
type Shard = HashMap<u64, Registered, BuildHasherDefault<Itself>>;

/// Enough parts that moving one part's table when it grows is fast: no registration waits long for
/// it.
const PARTS: usize = 256;

pub struct Registry {
    /// Partitioned by bits of the key that hash tables do not use.
    parts: Box<[Shard]>,
    /// The entry that was found last.
    last: Option<Registered>,
    /// The peer whose requests to `last` need no check beside their range and direction (0: no
    /// peer), or `NOBODY`. If `last` is a grant, this pass uses it as long as this is its peer: a
    /// revoke waits for the worker's command, which comes between two passes.
    open_to: u64,
    /// The key and the range of device memory that this pass found still allocated.
    there: Option<(u64, u64)>,
    /// Host memory that had been steady when it was registered was not: all of it is looked at before it is used.
    doubts: bool,
    /// The endpoint's grants.
    grants: Arc<Grants>,
    /// Registrations that were closed while devices copied their memory.
    copied: Vec<u64>,
}

/// No peer has this id.
const NOBODY: u64 = u64::MAX;

fn part_of(key: u64) -> usize {
    (key >> 40) as usize % PARTS
}

impl Default for Registry {
    fn default() -> Registry {
        let parts = (0..PARTS).map(|_| Shard::default()).collect();
        let (grants, copied) = (Arc::default(), Vec::new());
        Registry { parts, last: None, open_to: NOBODY, there: None, doubts: false, grants, copied }
    }
}

impl Registry {
    pub fn use_grants(&mut self, grants: Arc<Grants>) {
        self.grants = grants;
    }

    /// Adds a registration; false if the key is taken.
    pub fn add(&mut self, key: u64, range: HostRange, access: Access, device: Option<(Device, u64)>) -> bool {
        let entry = Registered { key, base: range.base, len: range.len, access, device, granted: None };
        match self.parts[part_of(key)].entry(key) {
            hash_map::Entry::Occupied(_) => false,
            hash_map::Entry::Vacant(place) => {
                place.insert(entry);
                true
            }
        }
    }

    /// Adds a registration under a key that none can guess.
    pub fn add_new(
        &mut self,
        random: &Random,
        range: HostRange,
        access: Access,
        device: Option<(Device, u64)>,
    ) -> status::Result<u64> {
        loop {
            let key = random.u64()?;
            if self.add(key, range, access, device) {
                return Ok(key);
            }
        }
    }

    /// Removes a registration; false if there is no such key.
    pub fn remove(&mut self, key: u64) -> bool {
        self.forget_last();
        self.parts[part_of(key)].remove(&key).is_some()
    }

    /// Peers reach nothing by a registration's key any longer; `Status::Again` while a device copies for one.
    pub fn close(&mut self, key: u64) -> status::Result<()> {
        if self.remove(key) {
            self.copied.push(key);
        } else if !self.copied.contains(&key) {
            return Err(Error::new(Status::Internal, "a registration that this NIC does not have"));
        }
        if self.grants.copying.has_key(key) {
            return Err(Error::new(
                Status::Again,
                "a disk or device still copies this memory for a peer; call again",
            ));
        }
        self.copied.retain(|copied| *copied != key);
        Ok(())
    }

    pub fn clear(&mut self) {
        self.forget_last();
        self.parts.iter_mut().for_each(Shard::clear);
    }

    /// Checks a peer's request with `key` for these bytes. Returns the device that holds them, and
    /// the use of a grant, during which the bytes may be touched; else the error number for the
    /// request.
    #[inline]
    pub fn check(
        &mut self,
        peer: Option<PeerId>,
        key: u64,
        bytes: impl IntoIterator<Item = (u64, u64), IntoIter: Clone>,
        wish: Wish,
    ) -> Result<Allowed, i32> {
        self.check_until(peer, key, bytes.into_iter(), wish, true)
    }

    /// The same, for bytes that are touched before `end_pass` if they are in host memory: the
    /// requests of a pass under one grant share a use.
    #[inline]
    pub fn check_in_pass(
        &mut self,
        peer: Option<PeerId>,
        key: u64,
        bytes: impl IntoIterator<Item = (u64, u64), IntoIter: Clone>,
        wish: Wish,
    ) -> Result<Allowed, i32> {
        self.check_until(peer, key, bytes.into_iter(), wish, false)
    }

    /// `later`: the bytes are touched after this pass, too.
    #[inline]
    fn check_until(
        &mut self,
        peer: Option<PeerId>,
        key: u64,
        bytes: impl Iterator<Item = (u64, u64)> + Clone,
        wish: Wish,
        later: bool,
    ) -> Result<Allowed, i32> {
        // Connections without a peer, or of an ended peer, do not get here.
        let Some(entry) = self.find(key) else { return Err(peer.map_or(libc::EACCES, |_| GONE)) };
        let allowed = bytes.clone().all(|(address, len)| entry.allows(address, len, wish));
        if allowed && self.is_open_to(peer, later) {
            return Ok(Allowed::default());
        }
        self.check_rest(peer, key, bytes, allowed, wish, later)
    }

    /// Whether `last` is steady host memory that this peer may reach, until the pass ends or (`later`) without
    /// end.
    #[inline]
    fn is_open_to(&mut self, peer: Option<PeerId>, later: bool) -> bool {
        let peer = peer.map_or(0, PeerId::get);
        self.open_to == peer && !(later && self.is_granted()) || self.open(peer, later)
    }

    #[inline(never)]
    fn open(&mut self, peer: u64, later: bool) -> bool {
        let Some(Registered { granted, device: None, access, .. }) = &self.last else { return false };
        if access.may_fault || self.doubts {
            return false;
        }
        let opens =
            granted.as_ref().is_none_or(|grant| !later && grant.peer.get() == peer && grant.begin_use());
        if opens {
            self.open_to = peer;
        }
        opens
    }

    /// `allowed`: the bytes are in the first range, in a permitted direction.
    #[inline(never)]
    fn check_rest(
        &mut self,
        peer: Option<PeerId>,
        key: u64,
        mut bytes: impl Iterator<Item = (u64, u64)>,
        allowed: bool,
        wish: Wish,
        later: bool,
    ) -> Result<Allowed, i32> {
        let Some(entry) = &self.last else { return Err(GONE) };
        let may_fault = entry.device.is_none() && (entry.access.may_fault || self.doubts);
        let mut there = self.there;
        let Some(grant) = &entry.granted else {
            if !allowed {
                return Err(libc::EACCES);
            }
            let Some((device, identity)) = entry.device else {
                return Ok(Allowed { may_fault, ..Allowed::default() });
            };
            if there != Some((key, entry.base)) && !is_there(device, entry.base, identity) {
                return Err(GONE);
            }
            self.there = Some((key, entry.base));
            return Ok(Allowed { device: Some(device), ..Allowed::default() });
        };
        // Most requests are in its first range, and for host memory.
        let mut outside = None;
        if !allowed || entry.device.is_some() {
            let mut covers = |(address, len)| grant.covers(address, len) && grant.holds(address, &mut there);
            outside = bytes.find(|piece| !covers(*piece));
        }
        self.there = there;
        let theirs = peer == Some(grant.peer) && entry.access.has(wish) && outside.is_none();
        let device = entry.device.map(|(device, _)| device);
        let entered = match theirs {
            true if later || device.is_some() || may_fault => grant.enter().map(Some),
            true => self.is_open_to(peer, later).then_some(None),
            false => None,
        };
        let Some(entered) = entered else {
            self.last
                .iter()
                .filter_map(|entry| entry.granted.as_ref())
                .for_each(|grant| explain(peer, grant, wish, outside));
            return Err(GONE);
        };
        Ok(Allowed { entered, device, may_fault })
    }

    /// The request that was checked last carries an immediate, which is counted after the use.
    #[inline]
    pub fn counts(&self) {
        self.last.iter().filter_map(|entry| entry.granted.as_ref()).for_each(|grant| grant.counts());
    }

    /// Whether the key that was checked last is a grant's.
    pub fn is_granted(&self) -> bool {
        self.last.as_ref().is_some_and(|entry| entry.granted.is_some())
    }

    /// Ends this pass's use of a grant: no bytes are touched under it from here on.
    #[inline]
    pub fn end_pass(&mut self) {
        if let Some(Registered { granted: Some(grant), .. }) = &self.last {
            if std::mem::replace(&mut self.open_to, NOBODY) != NOBODY {
                grant.end_use();
            }
        }
    }

    /// Pages of registered memory were found missing: from here on, all of it may fault.
    pub fn doubt(&mut self) {
        self.doubts = true;
        self.forget_last();
    }

    /// Whether any page may be missing, and not just those behind the end of a file.
    pub fn doubts(&self) -> bool {
        self.doubts
    }

    fn forget_last(&mut self) {
        self.end_pass();
        (self.last, self.open_to) = (None, NOBODY);
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
    fn find(&mut self, key: u64) -> Option<&Registered> {
        if self.last.as_ref().is_none_or(|entry| entry.key != key) {
            let entry = self.parts[part_of(key)].get(&key).cloned();
            let entry = entry.or_else(|| self.find_grant(key))?;
            self.forget_last();
            self.last = Some(entry);
        }
        self.last.as_ref()
    }

    /// Looks up a key that this NIC has not seen before.
    #[cold]
    fn find_grant(&mut self, key: u64) -> Option<Registered> {
        let grant = self.grants.find(key)?;
        let first = grant.first();
        let entry = Registered {
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

impl Registered {
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
    use crate::fabric::grants::OnDevice;
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
            let allowed = registry.check(None, key, [(address, len)], wish);
            assert_eq!(allowed.is_ok(), expected, "{key} {address} {len} {wish:?}");
        }
        // No device of this process has this identity.
        assert!(registry.add(9, HostRange { base: 9000, len: 100 }, both, Some((3, 77))));
        assert!(registry.is_device(9) && !registry.is_device(7));
        assert_eq!(registry.check(None, 9, [(9000, 101)], Wish::Write).err(), Some(libc::EACCES));
        assert_eq!(registry.check(None, 9, [(9000, 100)], Wish::Write).err(), Some(GONE));
        assert!(registry.check(None, 7, [(1000, 1)], Wish::Write).is_ok());
        assert!(registry.remove(7) && !registry.remove(7));
        assert_eq!(registry.check(None, 7, [(1000, 1)], Wish::Write).err(), Some(libc::EACCES));
        assert_eq!(registry.check(PeerId::new(1), 7, [(1000, 1)], Wish::Write).err(), Some(GONE));
    }

    #[test]
    fn grant_serves_only_its_peer_until_it_is_closed() {
        let (ours, theirs) = (PeerId::new(1), PeerId::numbered(2));
        let (grants, mut registry) = (Arc::new(Grants::default()), Registry::default());
        registry.use_grants(grants.clone());
        let token = GrantToken::new(77).unwrap();
        let writes = Access { remote_read: false, ..Access::ALL };
        let ranges = [(1000, 100), (3000, 100)].map(|(base, len)| HostRange { base, len });
        assert!(grants.add(Grant::new(token, theirs, 0, MemoryId::new(1), writes, ranges.to_vec())));
        let mut check =
            |peer, address, wish| registry.check(peer, 77, [(1000, 50), (address, 50)], wish).map(drop);
        assert_eq!(check(Some(theirs), 3050, Wish::Write), Ok(()));
        assert_eq!(check(Some(theirs), 3051, Wish::Write), Err(GONE));
        assert_eq!(check(Some(theirs), 3050, Wish::Read), Err(GONE));
        assert_eq!(check(ours, 3050, Wish::Write).or(check(None, 3050, Wish::Write)), Err(GONE));
        assert!(grants.take(token).is_some_and(|grant| grant.close()));
        assert_eq!(check(Some(theirs), 1000, Wish::Write), Err(GONE));
        assert!(registry.remove(77));
        assert_eq!(registry.check(Some(theirs), 77, [(1000, 50)], Wish::Write).err(), Some(GONE));
    }

    #[test]
    fn doubts_are_of_host_memory_alone() {
        let peer = PeerId::numbered(1);
        let (grants, mut registry) = (Arc::new(Grants::default()), Registry::default());
        registry.use_grants(grants.clone());
        let range = HostRange { base: 1000, len: 100 };
        let on = OnDevice { device: 3, ranges: [(range, 5)].into() };
        let grant = |token: u128| {
            let token = GrantToken::new(token).unwrap();
            Grant::new(token, peer, 0, MemoryId::new(1), Access::ALL, vec![range])
        };
        assert!(grants.add(grant(77)) && grants.add(grant(78).on_device(Some(on))));
        registry.doubt();
        for (key, device, may_fault) in [(77, None, true), (78, Some(3), false)] {
            registry.there = Some((78, 1000)); // This pass has found the device's memory.
            let allowed = registry.check(Some(peer), key, [(1000, 50)], Wish::Read).ok();
            let found = allowed.as_ref().map(|allowed| (allowed.device, allowed.may_fault));
            assert_eq!(found, Some((device, may_fault)), "{key}");
        }
    }

    #[test]
    fn use_of_a_pass_delays_a_revoke_and_is_its_peers_alone() {
        let peers = [PeerId::numbered(1), PeerId::numbered(2)];
        let (grants, mut registry) = (Arc::new(Grants::default()), Registry::default());
        registry.use_grants(grants.clone());
        let grant = |key: u128, bases: &[u64]| {
            let ranges = bases.iter().map(|base| HostRange { base: *base, len: 100 }).collect();
            let token = GrantToken::new(key).unwrap();
            assert!(grants.add(Grant::new(token, peers[0], 0, MemoryId::new(1), Access::ALL, ranges)));
            token
        };
        let (one, two, parts) = (grant(77, &[1000]), grant(78, &[1000]), grant(79, &[1000, 3000]));
        let ask = |registry: &mut Registry, peer, key, address| {
            registry.check_in_pass(Some(peer), key, [(address, 50)], Wish::Write).map(|a| a.entered.is_some())
        };
        assert_eq!(ask(&mut registry, peers[0], 77, 1000), Ok(false));
        assert_eq!(ask(&mut registry, peers[1], 77, 1000), Err(GONE));
        assert_eq!(ask(&mut registry, peers[0], 77, 1051), Err(GONE));
        let revoked = grants.take(one).unwrap();
        assert!(!revoked.close(), "a pass uses it");
        assert_eq!(ask(&mut registry, peers[0], 77, 1000), Ok(false));
        registry.end_pass();
        assert!(revoked.close());
        assert_eq!(ask(&mut registry, peers[0], 77, 1000), Err(GONE));

        // Each of these ends the use, too.
        let ends: [fn(&mut Registry, PeerId); 3] = [
            |registry, peer| drop(registry.check_in_pass(Some(peer), 78, [(1000, 1)], Wish::Write)),
            |registry, _| assert!(!registry.remove(5)),
            |registry, _| registry.clear(),
        ];
        let ended = ends.iter().zip(100..).all(|(end, key)| {
            let token = grant(key, &[1000, 3000]);
            let begun = ask(&mut registry, peers[0], key as u64, 3000) == Ok(false);
            let taken = grants.take(token).unwrap();
            let within = !taken.close();
            end(&mut registry, peers[0]);
            begun && within && taken.close() && ask(&mut registry, peers[0], key as u64, 3000).is_err()
        });
        assert!(ended);

        // A use that outlasts the pass is the caller's.
        assert_eq!(ask(&mut registry, peers[0], 79, 1000), Ok(false));
        let check = registry.check(Some(peers[0]), 79, [(1000, 50)], Wish::Read);
        registry.end_pass();
        let taken = grants.take(parts).unwrap();
        assert!(!taken.close() && check.is_ok_and(|allowed| allowed.entered.is_some()) && taken.close());
        assert!(grants.take(two).unwrap().close());
    }
}
