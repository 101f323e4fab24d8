//! Ids of things inside an endpoint. Numbers from callers and the wire are converted where they
//! enter, so that one kind cannot be used as another; "none" is `None`.

use std::fmt;
use std::num::{NonZeroU128, NonZeroU32, NonZeroU64};

/// A peer: its generation, and its index in tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct PeerId(NonZeroU64);

impl PeerId {
    /// `None` for 0, which is no peer.
    pub const fn new(number: u64) -> Option<PeerId> {
        match NonZeroU64::new(number) {
            Some(number) => Some(PeerId(number)),
            None => None,
        }
    }

    pub fn from_parts(generation: NonZeroU32, place: u32) -> PeerId {
        PeerId(NonZeroU64::MIN.saturating_add(((generation.get() as u64) << 32 | place as u64) - 1))
    }

    #[cfg(any(test, fuzzing))]
    pub const fn numbered(number: u64) -> PeerId {
        PeerId::new(number).expect("it is not 0")
    }

    /// The id that callers see.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// Its index in tables.
    pub const fn place(self) -> usize {
        (self.get() & 0xffff_ffff) as usize
    }
}

/// Identifies a grant: 64 random bits, above them the session's tag and the grant's number in its endpoint, so that
/// tokens never repeat. Requests use only the low half (`key`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct GrantToken(NonZeroU128);

impl GrantToken {
    const SESSION: u32 = 64;
    const NUMBER: u32 = 88;

    /// `None` for 0, which is no grant.
    pub const fn new(token: u128) -> Option<GrantToken> {
        match NonZeroU128::new(token) {
            Some(token) => Some(GrantToken(token)),
            None => None,
        }
    }

    /// `session`: the owner's number of the peer session, whose low bits the token has. `None`: the
    /// bits are all 0.
    pub const fn from_parts(random: u64, session: u64, number: u64) -> Option<GrantToken> {
        let session = GrantToken::session_tag(session) as u128;
        let number = (number as u128) << GrantToken::NUMBER;
        GrantToken::new(random as u128 | session << GrantToken::SESSION | number)
    }

    /// The bits of a peer session's number that tokens have.
    pub const fn session_tag(session: u64) -> u32 {
        session as u32 & ((1 << (GrantToken::NUMBER - GrantToken::SESSION)) - 1)
    }

    #[inline]
    pub const fn session(self) -> u32 {
        GrantToken::session_tag((self.get() >> GrantToken::SESSION) as u64)
    }

    pub const fn get(self) -> u128 {
        self.0.get()
    }

    #[inline]
    pub const fn key(self) -> u64 {
        self.get() as u64
    }

    pub const fn number(self) -> u64 {
        (self.get() >> GrantToken::NUMBER) as u64
    }
}

/// For the log: the first of its bytes, as callers have them. (All of them would let a reader of the log in.)
impl fmt::Display for GrantToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}...", (self.get() as u32).swap_bytes())
    }
}

/// A rail of this endpoint or a peer: its index in the endpoint's address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct RailIndex(u16);

impl RailIndex {
    /// An index from the wire; the caller checks that the rail exists.
    pub const fn new(index: u16) -> RailIndex {
        RailIndex(index)
    }

    /// The index in a list of at most `RAILS_MAX` rails.
    pub const fn at(place: usize) -> RailIndex {
        RailIndex(place as u16)
    }

    pub const fn get(self) -> u16 {
        self.0
    }

    /// Pairs each element of a list of rails with its index.
    pub fn each<T>(rails: impl IntoIterator<Item = T>) -> impl Iterator<Item = (RailIndex, T)> {
        (0..).map(RailIndex).zip(rails)
    }

    /// The rails of a set.
    pub fn each_in(mut rails: u64) -> impl Iterator<Item = RailIndex> {
        std::iter::from_fn(move || {
            let next = (rails != 0).then(|| RailIndex(rails.trailing_zeros() as u16));
            rails &= rails.wrapping_sub(1);
            next
        })
    }

    /// Its index in lists of rails.
    #[inline]
    pub const fn place(self) -> usize {
        self.0 as usize
    }

    /// Its bit in sets of rails.
    #[inline]
    pub const fn bit(self) -> u64 {
        1 << self.0
    }

    #[inline]
    pub const fn is_in(self, rails: u64) -> bool {
        rails >> self.0 & 1 != 0
    }
}

impl fmt::Display for RailIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A hold on an operation: its slot is not recycled. The holder passes it on with the operation, or
/// releases it (`Table::leave`); if it were dropped, the slot would leak.
#[must_use]
#[derive(Debug)]
pub struct Hold(OpId);

impl Hold {
    pub const fn id(&self) -> OpId {
        self.0
    }

    /// Makes a hold from an id that stands for it: in a ring, or for a count just taken.
    pub const fn on(id: OpId) -> Hold {
        Hold(id)
    }

    /// Another hold on the same operation, which the caller must count.
    pub const fn another(&self) -> Hold {
        Hold(self.0)
    }

    /// Turns the hold into its id, which stands for it (`of`), or passes it to a stripe.
    #[inline]
    pub const fn give(self) -> OpId {
        let id = self.0;
        std::mem::forget(self);
        id
    }
}

#[cfg(debug_assertions)]
impl Drop for Hold {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "a hold on operation {:?} is lost", self.0);
    }
}

/// A lane of a rail: its slot and the slot's generation, so that operations of a removed lane are
/// not taken for its successor's. (`NONE` has generation 0, which no slot has, so a lookup finds no
/// lane. An `Option` would enlarge each NIC operation by a word.)
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct LaneSlot(u32);

impl LaneSlot {
    const INDEX_BITS: u32 = 18;
    const GENERATIONS: u32 = u32::MAX >> Self::INDEX_BITS;
    pub const NONE: LaneSlot = LaneSlot(0);

    /// The first generation of a slot.
    pub const fn first(index: usize) -> LaneSlot {
        LaneSlot(1 << Self::INDEX_BITS | index as u32)
    }

    /// The same slot with the next generation.
    pub const fn next(self) -> LaneSlot {
        let generation = (self.0 >> Self::INDEX_BITS) % Self::GENERATIONS + 1;
        LaneSlot(generation << Self::INDEX_BITS | self.index() as u32)
    }

    #[inline]
    pub const fn index(self) -> usize {
        (self.0 & ((1 << Self::INDEX_BITS) - 1)) as usize
    }
}

/// A planned lane of a peer: a pair of rails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    pub rail: RailIndex,
    pub remote_rail: RailIndex,
}

/// For the log: the rail here, and the rail there.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.rail, self.remote_rail)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LaneId {
    pub rail: RailIndex,
    pub slot: LaneSlot,
}

/// The owner's random number of a memory. Peers send it, so it may be any number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[repr(transparent)]
pub struct MemoryId(u64);

impl MemoryId {
    pub const fn new(number: u64) -> MemoryId {
        MemoryId(number)
    }

    pub const fn get(self) -> u64 {
        self.0
    }
}

/// An operation: its slot in the table, and the slot's generation. (The highest bit is never set:
/// it marks messages.)
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct OpId(NonZeroU64);

impl OpId {
    /// The low bits are the slot's index; above them is its generation. At one operation per
    /// microsecond, one slot's generations wrap after 101 days.
    pub const INDEX_BITS: u32 = 20;
    pub const GENERATIONS: u64 = (1 << (63 - Self::INDEX_BITS)) - 1;

    /// `None` for 0, which is no operation.
    pub const fn new(number: u64) -> Option<OpId> {
        match NonZeroU64::new(number) {
            Some(number) => Some(OpId(number)),
            None => None,
        }
    }

    /// (Generations begin at 1.)
    #[inline]
    pub fn from_parts(generation: u64, index: u32) -> OpId {
        let number = generation << Self::INDEX_BITS | u64::from(index);
        OpId(NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN))
    }

    #[cfg(test)]
    pub const fn numbered(number: u64) -> OpId {
        OpId::new(number).expect("it is not 0")
    }

    /// The id that callers see.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    #[inline]
    pub const fn index(self) -> usize {
        (self.get() & ((1 << Self::INDEX_BITS) - 1)) as usize
    }

    #[inline]
    pub const fn generation(self) -> u64 {
        self.get() >> Self::INDEX_BITS
    }
}

impl fmt::LowerHex for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

impl fmt::Debug for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::LowerHex for MemoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

impl fmt::LowerHex for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
