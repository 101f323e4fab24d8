//! What all that throw have in common.

use super::bare::{Bare, Way};
use super::weft::Weft;
use crate::engines::Rail;
use crate::memory::Pool;
use anyhow::Result;
use serde_json::Value;

/// Throws a number into the memory of its counterpart, which is one of the same
/// kind in the other process.
pub trait Hand {
    fn name(&self) -> String;

    /// Whether its completions mean that the bytes have arrived.
    fn promises(&self) -> bool;

    /// What the counterpart needs.
    fn offer(&self) -> Result<Value>;

    /// Learns where the counterpart is; `first`: it is for this side to connect.
    fn join(&mut self, offer: &Value, first: bool) -> Result<()>;

    fn throw(&mut self, number: u64) -> Result<()>;

    /// Makes progress, and looks at what was thrown here last.
    fn look(&mut self) -> Result<u64>;
}

/// The bare ones first: all ways that may be the fastest.
pub fn open(rail: &Rail) -> Result<Vec<Box<dyn Hand>>> {
    let mut hands: Vec<Box<dyn Hand>> = Vec::new();
    for wait_fd in [false, true] {
        for way in [Way::Write, Way::Inject, Way::Delivered] {
            // Not every provider has a descriptor to wait on.
            match Bare::open(rail, wait_fd, way) {
                Ok(bare) => hands.push(Box::new(bare)),
                Err(error) if !wait_fd => return Err(error),
                Err(_) => {}
            }
        }
    }
    hands.push(Box::new(Weft::open()?));
    Ok(hands)
}

/// A page: what comes lies at its begin, what goes on another cache line.
pub struct Words(Pool);

impl Words {
    const GOING: usize = 16;

    pub fn new() -> Result<Words> {
        Ok(Words(Pool::new(4096, 1)?))
    }

    pub fn pool(&self) -> &Pool {
        &self.0
    }

    #[inline]
    pub fn came(&self) -> u64 {
        // SAFETY: the page's first word, which the counterpart writes.
        unsafe { self.0.base().cast::<u64>().read_volatile() }
    }

    /// Where what goes lies in the page, in bytes.
    pub const fn going() -> usize {
        Self::GOING * size_of::<u64>()
    }

    #[inline]
    pub fn set(&self, number: u64) -> *const u64 {
        // SAFETY: inside the page, and the last throw from here has arrived: it was answered.
        unsafe {
            let word = self.0.base().cast::<u64>().add(Self::GOING);
            word.write_volatile(number);
            word
        }
    }
}
