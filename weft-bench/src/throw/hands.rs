//! What all that throw have in common.

use super::bare::{Bare, Way};
use super::messages::Messages;
use super::weft::Weft;
use crate::engines::Rail;
use crate::memory::Pool;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What is thrown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Game {
    /// A write of eight bytes, which the counterpart sees in its memory.
    Words,
    /// A message of 64 bytes.
    Messages,
    /// Weft: a write of eight bytes that notifies; the bare loops: a message.
    Notifications,
}

/// Throws a number to its counterpart, which is one of the same kind in the other
/// process.
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
pub fn open(rail: &Rail, game: Game) -> Result<Vec<Box<dyn Hand>>> {
    let mut hands: Vec<Box<dyn Hand>> = Vec::new();
    for wait_fd in [false, true] {
        match bare(rail, game, wait_fd) {
            Ok(bare) => hands.extend(bare),
            Err(error) if !wait_fd => return Err(error),
            // Not every provider has a descriptor to wait on.
            Err(_) => {}
        }
    }
    hands.push(Box::new(Weft::open(game)?));
    Ok(hands)
}

fn bare(rail: &Rail, game: Game, wait_fd: bool) -> Result<Vec<Box<dyn Hand>>> {
    let mut hands: Vec<Box<dyn Hand>> = Vec::new();
    if game == Game::Words {
        for way in [Way::Write, Way::Inject, Way::Delivered] {
            hands.push(Box::new(Bare::open(rail, wait_fd, way)?));
        }
    } else {
        for inject in [false, true] {
            hands.push(Box::new(Messages::open(rail, wait_fd, inject)?));
        }
    }
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
