//! Memory of a peer that this process may read, by the numbers under which the peer passed it.
//! Limits keep mappings for the rest of the process.

use super::channel::Mapping;
use crate::status::{Error, Result};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most areas of one connection, and of all of this process: the system allows a process 65,530
/// mappings by default.
const AREAS: usize = 8192;
const AREAS_IN_ALL: u64 = 24 << 10;
/// The most bytes of all areas together, out of 128 TiB of addresses.
const BYTES_IN_ALL: u64 = 16 << 40;

static COUNT: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

struct Area {
    number: u32,
    mapping: Mapping,
    _share: Share,
}

/// An area's share of the process's address space.
struct Share(u64);

impl Share {
    fn take(len: u64) -> Result<Share> {
        // Count first, so that dropping the share undoes it on every way out.
        COUNT.fetch_add(1, Ordering::Relaxed);
        let before = BYTES.fetch_add(len, Ordering::Relaxed);
        let share = Share(len);
        let count = COUNT.load(Ordering::Relaxed);
        if count > AREAS_IN_ALL || len > BYTES_IN_ALL || before.saturating_add(len) > BYTES_IN_ALL {
            return Err(Error::limit(format!(
                "{len} bytes that a peer shares are not mapped: this process maps {} areas of {before} bytes of \
                 its peers, of {AREAS_IN_ALL} and {BYTES_IN_ALL}",
                count - 1
            )));
        }
        Ok(share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        BYTES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Areas of one connection.
#[derive(Default)]
pub struct Areas {
    /// In the order of their numbers.
    all: Vec<Area>,
    /// The index of the area that was used last.
    last: usize,
}

impl Areas {
    #[inline]
    fn find(&mut self, number: u32) -> Option<usize> {
        if self.all.get(self.last).is_none_or(|area| area.number != number) {
            self.last = self.all.binary_search_by_key(&number, |area| area.number).ok()?;
        }
        Some(self.last)
    }

    #[inline]
    pub fn has(&mut self, number: u32) -> bool {
        self.find(number).is_some()
    }

    #[inline]
    pub fn get(&mut self, number: u32) -> Option<&Mapping> {
        let at = self.find(number)?;
        Some(&self.all[at].mapping)
    }

    /// Maps memory that a peer passed. A known number keeps its area.
    pub fn add(&mut self, number: u32, len: u64, file: BorrowedFd) -> Result<()> {
        let Err(at) = self.all.binary_search_by_key(&number, |area| area.number) else { return Ok(()) };
        if self.all.len() >= AREAS {
            return Err(Error::limit(format!("it shares more than {AREAS} areas over one connection")));
        }
        let share = Share::take(len)?;
        let mapping = Mapping::of_area(file, len)?;
        self.all.insert(at, Area { number, mapping, _share: share });
        Ok(())
    }

    pub fn remove(&mut self, number: u32) {
        if let Ok(at) = self.all.binary_search_by_key(&number, |area| area.number) {
            self.all.remove(at);
        }
    }

    pub fn clear(&mut self) {
        self.all.clear();
    }
}
