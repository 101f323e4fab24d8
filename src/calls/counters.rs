//! Counters of an endpoint: calls about them, and arriving increments.

use super::Endpoint;
use crate::ids::{OpId, PeerId, RailIndex};
use crate::memory::RemoteMemory;
use crate::room::{self, Theirs};
use crate::status::{Error, Result, Status};
use crate::transfer::completion::KIND_COUNTER;
use crate::transfer::counters::{immediate_of, VALUE_MAX};
use crate::transfer::expect::{Abandoned, Expected, Expecting, Wanted};
use crate::transfer::list::Raises;
use crate::transfer::operation::{Counting, Work};
use crate::transfer::{Common, Direction, Outcome, Terms};
use std::num::NonZeroU64;
use std::sync::Arc;

/// The largest page that raises a counter: one post carries it.
const PAGE_MAX: u64 = 1 << 30;
/// The most counters that one operation may wait for.
const EXPECT_MAX: usize = 65_536;

impl Endpoint {
    pub fn create_counter(&self) -> Result<u64> {
        self.core.phase.check_open()?;
        self.core.counters.create()
    }

    pub fn read_counter(&self, id: u64) -> Result<u64> {
        self.core.counters.find(id).map(|(_, value)| value)
    }

    pub fn destroy_counter(&self, id: u64) -> Result<()> {
        let Abandoned { reached, canceled } = self.core.counters.destroy(id)?;
        let now = self.core.clock.now();
        self.core.end_all_of(reached, Status::Ok, now);
        self.core.end_all_of(canceled, Status::Canceled, now);
        Ok(())
    }

    /// As many counters as values.
    pub fn expect(&self, counters: Theirs<u64>, values: Theirs<u64>, common: &Common) -> Result<OpId> {
        let core = &self.core;
        core.phase.check_open()?;
        let wanted = self.wanted(counters, values)?;
        let expecting = Expecting::new(&core.counters, wanted.clone());
        let ticket = expecting.ticket();
        let work = Work::Expect { _until: expecting };
        let (hold, now) = self.begin(common, KIND_COUNTER, None, 0, work, || None)?;
        let id = hold.id();
        let _ = core.table.leave(hold);
        let mut ended = Vec::new();
        if !core.counters.watch(ticket, id, &wanted, &mut ended) {
            core.table.end(id, Outcome::new(Status::Canceled), now);
        }
        core.end_all_of(ended, Status::Ok, now);
        Ok(id)
    }

    fn wanted(&self, counters: Theirs<u64>, values: Theirs<u64>) -> Result<Arc<Wanted>> {
        let count = counters.len();
        if !(1..=EXPECT_MAX).contains(&count) {
            return Err(Error::limit(format!("count is {count}: it must be 1 to {EXPECT_MAX}")));
        }
        // Copy first: the caller's lists may change while they are checked.
        let mut entries = room::vec(count, "the counters that are waited for")?;
        for (i, (id, value)) in counters.iter().zip(values.iter()).enumerate() {
            if value > VALUE_MAX {
                return Err(Error::limit(format!("value {i} is {value}: a counter counts to {VALUE_MAX}")));
            }
            let (place, _) = self.core.counters.find(id).map_err(|error| {
                let message = format!("counter {i} of the list: {}", error.message).into();
                Error { message, ..error }
            })?;
            entries.push(Expected { place, value });
        }
        // The entries go into many small nodes, whose allocation cannot report failure.
        room::probe::<[u64; 16]>(count, "the counters that are waited for")?;
        Ok(Wanted::new(entries))
    }

    /// How a transfer of this many pages raises a counter of its peer.
    pub(crate) fn counting(
        &self,
        terms: &Terms,
        remote: &RemoteMemory,
        len: u64,
        pages: u64,
    ) -> Result<Option<Counting>> {
        let Some(count) = terms.count else { return Ok(None) };
        let Raises { incarnation, immediates, most } = self.raises(remote.peer)?;
        let immediate = immediate_of(count.counter, incarnation)?;
        if !count.pages {
            return Ok(Some(Counting { immediate, at_end: Some(NonZeroU64::MIN) }));
        }
        if terms.direction == Direction::Read {
            return Err(Error::new(
                Status::Unsupported,
                "WEFT_COUNT_PAGES with a read: its target does not learn when a page was read; without the flag the \
                 counter is raised once, after the last byte",
            ));
        }
        check_counted(len, most)?;
        // Where pages do not raise the counter by immediates, a frame raises it for all of them at
        // the end.
        Ok(Some(Counting { immediate, at_end: NonZeroU64::new(pages).filter(|_| !immediates) }))
    }

    /// Checks whether pages can be prepared that raise a counter of a peer.
    pub(crate) fn check_counted(&self, peer: PeerId, len: u64) -> Result<()> {
        check_counted(len, self.raises(peer)?.most)
    }

    /// The ways in which a peer may raise counters.
    pub fn raises(&self, peer: PeerId) -> Result<Raises> {
        let peer = self.core.named_peer(peer.get())?;
        // Before the fabric of a peer is selected, both ways are allowed.
        let serves = |(rail, _): &(RailIndex, _)| !peer.has_service() || peer.is_served_by(*rail);
        let rails = RailIndex::each(self.core.rails.iter()).filter(serves);
        let most = rails.map(|(_, rail)| rail.immediate_max).min().unwrap_or(0);
        let incarnation = peer.address.incarnation;
        Ok(match most {
            0 => Raises { incarnation, immediates: false, most: PAGE_MAX },
            most => Raises { incarnation, immediates: true, most: most.min(PAGE_MAX) },
        })
    }
}

fn check_counted(len: u64, most: u64) -> Result<()> {
    if len > most {
        return Err(Error::limit(format!(
            "a page of {len} bytes with WEFT_COUNT_PAGES: at most {most} are allowed, since one post carries it"
        )));
    }
    Ok(())
}
