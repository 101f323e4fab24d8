//! Memory of a peer.

use super::Revoked;
use crate::ids::{GrantToken, Hold, MemoryId, PeerId, RailIndex};
use crate::prefetch;
use crate::range::Range;
use crate::wire::descriptor::Descriptor;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};
use std::sync::Arc;

/// The parts of `holds`: 32 bits of keepers, 31 of users, and the released flag.
const KEEPER: u64 = 1;
const KEEPERS: u64 = (1 << 32) - 1;
const USER: u64 = 1 << 32;
const RELEASED: u64 = 1 << 63;

/// Whether transfers to it can start.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteState {
    /// Its owner has not answered the import.
    Asking,
    Ready,
    /// Its owner deregistered it.
    Gone,
    /// The peer ended.
    PeerLost,
    PeerClosed,
    Disconnected,
    /// Its owner has revoked the grant under which it is used.
    Revoked,
}

impl RemoteState {
    fn from_u8(v: u8) -> RemoteState {
        match v {
            0 => RemoteState::Asking,
            1 => RemoteState::Ready,
            2 => RemoteState::Gone,
            3 => RemoteState::PeerLost,
            4 => RemoteState::PeerClosed,
            _ => RemoteState::Disconnected,
        }
    }
}

/// How one of the owner's rails names the ranges.
struct Rail {
    virtual_addresses: bool,
    /// None: the rail does not know the memory. The owner may replace them.
    keys: Box<[AtomicU64]>,
}

pub struct RemoteMemory {
    pub peer: PeerId,
    revoked: Arc<Revoked>,
    pub id: MemoryId,
    pub secret: u64,
    ranges: Box<[Range]>,
    rails: Box<[Rail]>,
    /// The owner's rails that registered it, one bit each.
    known: u64,
    pub writable: bool,
    pub readable: bool,
    /// Accessible only under grants.
    pub granted_only: bool,
    /// The owner's device that holds it; `None`: the owner's CPU can access it.
    pub device: Option<u8>,
    /// The number of the import, by which the owner's answer refers to it; assigned by the peer's
    /// link.
    pub number: AtomicU64,
    /// Workers that have lanes to the peer, one bit each.
    pub workers: AtomicU64,
    /// Lanes to the peer.
    pub lanes: AtomicU64,
    /// Keepers: geometries that name it, prepared or of a transfer, and atomics. Users: transfers,
    /// for which its owner's deregistration waits; users are also keepers. (Apart from the
    /// read-only fields.)
    holds: CachePadded<AtomicU64>,
    /// Prepared geometries, which `holds` includes.
    pub prepared: AtomicU64,
    /// SeqCst, with slots' states (`transfer::table::Slot::state`) and with `holds`: a new user
    /// counts itself and then reads this; ending the memory sets this and then counts users.
    state: AtomicU8,
    /// Transfers that wait for the owner to answer the import.
    waiting: Mutex<Vec<Hold>>,
}

impl RemoteMemory {
    /// `revoked`: the grants that the peer has revoked.
    pub fn new(peer: PeerId, revoked: Arc<Revoked>, from: Descriptor) -> RemoteMemory {
        let Descriptor {
            incarnation: _,
            id,
            secret,
            writable,
            readable,
            granted_only,
            device,
            ranges,
            rails,
        } = from;
        RemoteMemory {
            peer,
            revoked,
            id,
            secret,
            ranges: ranges.into(),
            known: super::bits(rails.iter().map(|rail| !rail.keys.is_empty())),
            rails: rails
                .into_iter()
                .map(|rail| Rail {
                    virtual_addresses: rail.virtual_addresses,
                    keys: rail.keys.iter().map(|key| AtomicU64::new(*key)).collect(),
                })
                .collect(),
            writable,
            readable,
            granted_only,
            device,
            number: AtomicU64::new(0),
            workers: AtomicU64::new(0),
            lanes: AtomicU64::new(1),
            holds: CachePadded::default(),
            prepared: AtomicU64::new(0),
            state: AtomicU8::new(RemoteState::Asking as u8),
            waiting: Mutex::default(),
        }
    }

    pub fn lanes(&self) -> u64 {
        self.lanes.load(Ordering::Relaxed)
    }

    pub fn range_len(&self, range: u64) -> Option<u64> {
        self.ranges.get(usize::try_from(range).ok()?).map(|r| r.len)
    }

    pub fn range_count(&self) -> usize {
        self.ranges.len()
    }

    pub fn range(&self, range: u64) -> Option<Range> {
        self.ranges.get(usize::try_from(range).ok()?).copied()
    }

    #[inline]
    pub fn knows(&self, rail: RailIndex) -> bool {
        rail.is_in(self.known)
    }

    pub fn known(&self) -> u64 {
        self.known
    }

    /// Whether all of the owner's rails registered it.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.known.count_ones() as usize == self.rails.len()
    }

    pub fn rail_count(&self) -> usize {
        self.rails.len()
    }

    /// The address and key for an offset in a range, through one of the owner's rails. Under a grant,
    /// check after this call that it was not revoked, or that the operation has not ended: a new key
    /// is stored after both.
    #[inline]
    pub fn locate(&self, rail: RailIndex, range: usize, offset: u64) -> (u64, u64) {
        let through = &self.rails[rail.place()];
        let base = if through.virtual_addresses { self.ranges[range].base } else { 0 };
        (base.wrapping_add(offset), through.keys[range].load(Ordering::Acquire))
    }

    /// The owner has replaced the keys of some ranges, for one of its rails. False: there are no
    /// such ranges.
    pub fn replace_keys(&self, rail: u64, first: u64, keys: impl ExactSizeIterator<Item = u64>) -> bool {
        let known = usize::try_from(rail).ok().and_then(|rail| self.rails.get(rail));
        let from = usize::try_from(first).ok();
        let places = known.zip(from).and_then(|(known, first)| known.keys.get(first..));
        let Some(places) = places.filter(|places| keys.len() <= places.len()) else { return false };
        places.iter().zip(keys).for_each(|(place, key)| place.store(key, Ordering::Release));
        true
    }

    pub fn state(&self) -> RemoteState {
        RemoteState::from_u8(self.state.load(Ordering::SeqCst))
    }

    /// The state for a transfer under this grant.
    #[inline]
    pub fn state_under(&self, grant: Option<GrantToken>) -> RemoteState {
        // Before the grant: once the owner has answered, the session is known.
        let state = self.state();
        match grant {
            Some(grant) if self.revoked.contains(grant) => RemoteState::Revoked,
            _ => state,
        }
    }

    /// Sets the state, unless it has ended already, and returns the transfers that waited.
    pub fn settle(&self, state: RemoteState) -> Vec<Hold> {
        let mut waiting = self.waiting.lock();
        if matches!(self.state(), RemoteState::Asking | RemoteState::Ready) {
            self.state.store(state as u8, Ordering::SeqCst);
        }
        std::mem::take(&mut *waiting)
    }

    /// Queues a transfer until the owner has answered; if it has, returns the state. The caller has the
    /// memory by a reference of its own: the transfer may have ended before this returns, and its reference with it.
    pub fn wait(&self, transfer: Hold, grant: Option<GrantToken>) -> Result<(), (Hold, RemoteState)> {
        if self.state() == RemoteState::Asking {
            let mut waiting = self.waiting.lock();
            if self.state() == RemoteState::Asking {
                waiting.push(transfer);
                return Ok(());
            }
        }
        Err((transfer, self.state_under(grant)))
    }

    /// Prefetches its counts, which other processors wrote last.
    #[inline]
    pub fn prefetch(&self) {
        prefetch::to_write(&*self.holds);
    }

    /// Counts a user, which is a keeper already.
    pub fn enter(&self) {
        self.holds.fetch_add(USER, Ordering::SeqCst);
    }

    pub fn exit(&self) {
        self.holds.fetch_sub(USER, Ordering::SeqCst);
    }

    /// Counts a keeper; false once the memory was released.
    pub fn keep(&self) -> bool {
        self.hold(KEEPER)
    }

    pub fn unkeep(&self) {
        self.holds.fetch_sub(KEEPER, Ordering::SeqCst);
    }

    /// `keep` and `enter` in one step.
    #[inline]
    pub fn keep_and_enter(&self) -> bool {
        self.hold(KEEPER + USER)
    }

    #[inline]
    pub fn exit_and_unkeep(&self) {
        self.holds.fetch_sub(KEEPER + USER, Ordering::SeqCst);
    }

    #[inline]
    fn hold(&self, as_what: u64) -> bool {
        if self.holds.fetch_add(as_what, Ordering::SeqCst) & RELEASED != 0 {
            self.holds.fetch_sub(as_what, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// Releases it. `Err`: the number of keepers; 0: it was released before.
    pub fn release(&self) -> Result<(), u64> {
        let released = self.holds.compare_exchange(0, RELEASED, Ordering::SeqCst, Ordering::SeqCst);
        released.map(drop).map_err(|holds| holds & KEEPERS)
    }

    /// Operations and prepared geometries that keep it.
    pub fn keepers(&self) -> u64 {
        self.holds.load(Ordering::SeqCst) & KEEPERS
    }

    pub fn is_released(&self) -> bool {
        self.holds.load(Ordering::SeqCst) & RELEASED != 0
    }

    pub fn users(&self) -> u64 {
        (self.holds.load(Ordering::SeqCst) & !RELEASED) / USER
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::descriptor;

    #[test]
    fn keys_are_replaced_where_there_are_such_ranges() {
        let range = Range { base: 100, len: 10 };
        let keys = |keys: [u64; 2]| descriptor::Rail { virtual_addresses: true, keys: keys.into() };
        let descriptor = Descriptor {
            ranges: vec![range; 2],
            rails: vec![keys([1, 2]), keys([3, 4])],
            ..Default::default()
        };
        let remote = RemoteMemory::new(PeerId::numbered(1), Arc::default(), descriptor);
        let key = |rail, range| remote.locate(RailIndex::new(rail), range, 0).1;
        assert!(remote.replace_keys(1, 0, [7, 8].into_iter()) && remote.replace_keys(0, 1, [9].into_iter()));
        for (rail, first, count) in
            [(2, 0, 1), (0, 2, 1), (0, 3, 0), (0, 1, 2), (u64::MAX, 0, 1), (0, u64::MAX, 1)]
        {
            assert!(!remote.replace_keys(rail, first, vec![5; count].into_iter()), "{rail} {first} {count}");
        }
        assert_eq!([key(0, 0), key(0, 1), key(1, 0), key(1, 1)], [1, 9, 7, 8]);
    }

    #[test]
    fn remote_memory_in_use_is_not_released() {
        let remote = RemoteMemory::new(PeerId::numbered(1), Arc::default(), Descriptor::default());
        assert!(remote.keep() && remote.keep());
        assert_eq!(remote.release(), Err(2));
        remote.unkeep();
        remote.unkeep();
        assert!(remote.keep_and_enter());
        assert_eq!((remote.users(), remote.release()), (1, Err(1)));
        remote.exit_and_unkeep();
        assert_eq!(remote.release(), Ok(()));
        assert!(!remote.keep() && !remote.keep_and_enter());
        assert_eq!(remote.users(), 0);
        assert_eq!(remote.release(), Err(0));
    }
}
