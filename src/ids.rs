//! What names things inside an endpoint. Numbers of callers and of the wire become one of these where they
//! come in, so that one kind is not taken for another; "none" is `None`.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};

/// A remote endpoint of this one: its generation, and its place in tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct PeerId(NonZeroU64);

impl PeerId {
    /// `None`: 0, by which callers name no peer.
    pub const fn new(number: u64) -> Option<PeerId> {
        match NonZeroU64::new(number) {
            Some(number) => Some(PeerId(number)),
            None => None,
        }
    }

    pub fn of(generation: NonZeroU32, place: u32) -> PeerId {
        PeerId(NonZeroU64::MIN.saturating_add(((generation.get() as u64) << 32 | place as u64) - 1))
    }

    #[cfg(any(test, fuzzing))]
    pub const fn numbered(number: u64) -> PeerId {
        PeerId::new(number).expect("it is not 0")
    }

    /// As callers know it.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// Its place in tables.
    pub const fn place(self) -> usize {
        (self.get() & 0xffff_ffff) as usize
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
