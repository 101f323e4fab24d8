//! Grants: the memory that one peer may reach under a token, until it is revoked.
//!
//! NICs whose own worker serves the peers' requests (`Limits::grants`) share this table. A request
//! names a grant by its key, as it names a registration. A NIC that does not know the key looks it
//! up here, and keeps the result. A NIC holds a `Use` of the grant while it touches memory under
//! it. A revoke removes the grant from the table and closes it: no new use can begin, and each NIC
//! stops its own (`Nic::revoke`). Without uses, a revoke waits for nothing.
//!
//! What a NIC keeps of a grant is thus never trusted without a use, and a revoke cannot complete
//! during one. A use may span several requests (`Registry::check_in_pass`): it ends with the pass,
//! and the command that has the worker drop the grant is served between passes.

use super::copying::Copying;
use super::{Access, HostRange};
use crate::device::{is_there, Device};
use crate::failing::step;
use crate::ids::{GrantToken, MemoryId, PeerId};
use crate::range::one_contains;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

pub struct Grant {
    pub token: GrantToken,
    /// The only peer that may use the grant.
    pub peer: PeerId,
    /// The worker that owns the peer.
    pub worker: usize,
    pub memory: MemoryId,
    pub access: Access,
    /// Disjoint ranges, ordered by address; never empty.
    ranges: Box<[HostRange]>,
    /// Set for device memory.
    on: Option<OnDevice>,
    /// When the grant expires.
    deadline: u64,
    /// The value of the one notification to the owner, if the grant ends with its peer or expires.
    notify: Option<u64>,
    notified: AtomicBool,
    /// Set when a request under the grant carried an immediate, which is counted after the use.
    counted: AtomicBool,
    /// The number of uses, and a flag that forbids new ones.
    users: AtomicU32,
}

/// The device of a memory, and its ranges, ordered by address, with the identities of their memory.
pub struct OnDevice {
    pub device: Device,
    pub ranges: Box<[(HostRange, u64)]>,
}

const CLOSED: u32 = 1 << 31;

/// Held while memory is touched under a grant, or an operation under it is announced.
pub struct Use(Arc<Grant>);

impl Use {
    pub fn grant(&self) -> &Grant {
        &self.0
    }
}

impl Drop for Use {
    #[inline]
    fn drop(&mut self) {
        self.0.end_use();
    }
}

impl Grant {
    /// A grant of ranges of registered memory, in any order.
    pub fn new(
        token: GrantToken,
        peer: PeerId,
        worker: usize,
        memory: MemoryId,
        access: Access,
        mut ranges: Vec<HostRange>,
    ) -> Grant {
        ranges.sort_unstable_by_key(|range| range.base);
        let mut merged: Vec<HostRange> = Vec::new();
        for range in ranges {
            match merged.last_mut().filter(|last| range.base <= last.base.saturating_add(last.len)) {
                Some(last) => last.len = last.len.max(range.base - last.base + range.len),
                None => merged.push(range),
            }
        }
        Grant {
            token,
            peer,
            worker,
            memory,
            access,
            ranges: merged.into(),
            on: None,
            deadline: u64::MAX,
            notify: None,
            notified: AtomicBool::new(false),
            counted: AtomicBool::new(false),
            users: AtomicU32::new(0),
        }
    }

    pub fn until(self, deadline: u64, notify: Option<u64>) -> Grant {
        Grant { deadline, notify, ..self }
    }

    pub fn on_device(self, on: Option<OnDevice>) -> Grant {
        Grant { on, ..self }
    }

    /// The device that holds the memory.
    pub fn device(&self) -> Option<Device> {
        self.on.as_ref().map(|on| on.device)
    }

    /// Whether the registered memory still exists: device memory may have been freed. `seen`: the
    /// key and the identity that were found last.
    #[inline]
    pub fn holds(&self, address: u64, seen: &mut Option<(u64, u64)>) -> bool {
        self.on.as_ref().is_none_or(|on| on.holds(address, self.token.key(), seen))
    }

    /// The notification that the owner is still to get; returned once.
    pub fn take_notify(&self) -> Option<u64> {
        self.notify.filter(|_| !self.notified.swap(true, Ordering::AcqRel))
    }

    /// Begins a use; `None` if the grant is closed.
    #[inline]
    pub fn enter(self: &Arc<Grant>) -> Option<Use> {
        self.begin_use().then(|| Use(self.clone()))
    }

    /// Begins a use that `end_use` ends; false if the grant is closed.
    #[inline]
    pub fn begin_use(&self) -> bool {
        let open = self.users.fetch_add(1, Ordering::AcqRel) & CLOSED == 0;
        if !open {
            self.end_use();
        }
        open
    }

    #[inline]
    pub fn end_use(&self) {
        self.users.fetch_sub(1, Ordering::Release);
    }

    /// Records, during a use, that a request carries an immediate, which the worker counts when it
    /// reaps it.
    #[inline]
    pub fn counts(&self) {
        self.counted.store(true, Ordering::Relaxed);
    }

    /// Forbids new uses. Returns true if none remain and no immediate is still to be counted.
    pub fn close(&self) -> bool {
        let unused = self.users.fetch_or(CLOSED, Ordering::AcqRel) & !CLOSED == 0;
        unused && !self.counted.load(Ordering::Relaxed)
    }

    pub fn first(&self) -> HostRange {
        self.ranges.first().copied().unwrap_or(HostRange { base: 0, len: 0 })
    }

    pub fn range_count(&self) -> usize {
        self.ranges.len()
    }

    /// Whether one of the ranges contains these bytes.
    pub fn covers(&self, address: u64, len: u64) -> bool {
        one_contains(&self.ranges, address, len)
    }

    pub fn ranges(&self) -> &[HostRange] {
        &self.ranges
    }
}

impl OnDevice {
    fn holds(&self, address: u64, key: u64, seen: &mut Option<(u64, u64)>) -> bool {
        let after = self.ranges.partition_point(|(range, _)| range.base <= address);
        let Some((range, identity)) = after.checked_sub(1).and_then(|at| self.ranges.get(at)) else {
            return false;
        };
        let known = *seen == Some((key, range.base));
        let holds = known || is_there(self.device, range.base, *identity);
        if holds {
            *seen = Some((key, range.base));
        }
        holds
    }
}

pub struct Grants {
    all: Mutex<All>,
    /// What devices copy now of memory that peers reach.
    pub copying: Arc<Copying>,
    /// The earliest deadline; u64::MAX: none.
    next_deadline: AtomicU64,
    /// Places in the endpoint's queue that grants reserve, each for the one notification of a
    /// grant.
    places: AtomicU64,
}

#[derive(Default)]
struct All {
    by_key: HashMap<u64, Arc<Grant>>,
    /// Grants with a deadline, by deadline and key.
    ending: BTreeMap<(u64, u64), GrantToken>,
}

impl Default for Grants {
    fn default() -> Grants {
        let copying = Arc::default();
        Grants {
            all: Mutex::default(),
            copying,
            next_deadline: AtomicU64::new(u64::MAX),
            places: AtomicU64::new(0),
        }
    }
}

impl Grants {
    /// Reserves a place for a grant's notification; false if grants hold `most` already.
    pub fn hold_place(&self, most: u64) -> bool {
        let one_more = |held| (held < most).then_some(held + 1);
        !step("a grant's place")
            && self.places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    pub fn places(&self) -> u64 {
        self.places.load(Ordering::Relaxed)
    }

    /// Releases a grant's place.
    pub fn yield_place(&self) {
        self.places.fetch_sub(1, Ordering::Relaxed);
    }

    /// Adds a grant; false if its key is taken.
    pub fn add(&self, grant: Grant) -> bool {
        let mut all = self.all.lock();
        let (key, deadline) = (grant.token.key(), grant.deadline);
        if all.by_key.contains_key(&key) {
            return false;
        }
        if deadline != u64::MAX {
            all.ending.insert((deadline, key), grant.token);
            self.next_deadline.fetch_min(deadline, Ordering::SeqCst);
        }
        all.by_key.insert(key, Arc::new(grant)).is_none()
    }

    pub fn next_deadline(&self) -> u64 {
        self.next_deadline.load(Ordering::SeqCst)
    }

    /// The grants whose deadline has passed.
    pub fn due(&self, now: u64) -> Vec<GrantToken> {
        if now < self.next_deadline() {
            return Vec::new();
        }
        let mut all = self.all.lock();
        let later = all.ending.split_off(&(now.saturating_add(1), 0));
        let due = std::mem::replace(&mut all.ending, later);
        let next = all.ending.keys().next().map_or(u64::MAX, |(deadline, _)| *deadline);
        self.next_deadline.store(next, Ordering::SeqCst);
        due.into_values().collect()
    }

    /// How many can be used.
    pub fn live(&self) -> usize {
        self.all.lock().by_key.len()
    }

    pub fn find(&self, key: u64) -> Option<Arc<Grant>> {
        self.all.lock().by_key.get(&key).cloned()
    }

    pub fn of_peer(&self, peer: PeerId) -> Vec<Arc<Grant>> {
        self.all.lock().by_key.values().filter(|grant| grant.peer == peer).cloned().collect()
    }

    /// The grant of a token; its key alone does not suffice.
    pub fn named(&self, token: GrantToken) -> Option<Arc<Grant>> {
        self.find(token.key()).filter(|grant| grant.token == token)
    }

    pub fn take_all(&self) -> Vec<Arc<Grant>> {
        std::mem::take(&mut *self.all.lock()).by_key.into_values().collect()
    }

    pub fn take(&self, token: GrantToken) -> Option<Arc<Grant>> {
        let mut all = self.all.lock();
        let key = token.key();
        let deadline = all.by_key.get(&key).filter(|grant| grant.token == token)?.deadline;
        all.ending.remove(&(deadline, key));
        all.by_key.remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(base: u64, len: u64) -> HostRange {
        HostRange { base, len }
    }

    #[test]
    fn grant_covers_its_ranges_but_not_the_gaps_between_them() {
        let token = GrantToken::from_parts(u64::MAX, 1, 3).unwrap();
        assert_eq!((token.number(), token.key()), (3, u64::MAX));
        let ranges = vec![range(500, 10), range(100, 50), range(150, 50), range(120, 10)];
        let grant = Grant::new(token, PeerId::numbered(9), 0, MemoryId::new(1), Access::ALL, ranges);
        assert_eq!(grant.first(), range(100, 100));
        for (address, len, expected) in [
            (100, 100, true),
            (140, 20, true),
            (100, 101, false),
            (99, 1, false),
            (200, 0, true),
            (201, 0, false),
            (499, 2, false),
            (500, 10, true),
            (500, 11, false),
            (505, u64::MAX, false),
            (u64::MAX, 1, false),
        ] {
            assert_eq!(grant.covers(address, len), expected, "{address} {len}");
        }
        let grants = Grants::default();
        assert!(grants.add(grant));
        let other = GrantToken::new(u64::MAX as u128).unwrap();
        assert!(
            grants.find(u64::MAX).is_some() && grants.named(other).is_none() && grants.take(other).is_none()
        );
        assert!(grants.take(token).is_some() && grants.find(u64::MAX).is_none());
    }

    #[test]
    fn closed_grant_admits_no_use() {
        let token = GrantToken::new(7).unwrap();
        let grant = || {
            Arc::new(Grant::new(
                token,
                PeerId::numbered(9),
                0,
                MemoryId::new(1),
                Access::ALL,
                vec![range(1, 1)],
            ))
        };
        let (used, idle) = (grant(), grant());
        let within = used.enter();
        assert!(within.is_some() && !used.close() && used.enter().is_none());
        drop(within);
        assert!(used.close() && used.enter().is_none());
        drop(idle.enter());
        assert!(idle.close() && idle.enter().is_none());
        let counted = grant();
        if let Some(within) = counted.enter() {
            within.grant().counts();
        }
        assert!(!counted.close() && counted.enter().is_none());
    }
}
