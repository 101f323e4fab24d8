//! The cost of a counter of pages: arrivals per second, and the data rate relative to uncounted
//! pages.

use super::ends::Ends;
use crate::endpoint::{check, Endpoint, Memory, Remote};
use crate::memory::Pool;
use crate::pages::Lists;
use crate::stats::Spread;
use ::weft::capi::completion::*;
use ::weft::capi::counter::*;
use ::weft::capi::op::*;
use anyhow::{ensure, Result};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// Random pages that are written repeatedly, counted or not.
pub struct Counts {
    ends: Ends,
    local: Memory,
    remote: Remote,
    counter: weft_counter,
    expected: u64,
    page: usize,
    lists: Lists,
}

impl Counts {
    pub fn open(fabric: &str, page: usize, pages: usize) -> Result<Counts> {
        let mut ends = Ends::open(fabric, 1, 1, true)?;
        let (from, to) = (Pool::new(page, pages * 2)?, Pool::new(page, pages * 2)?);
        let local = ends.sender.register(from.base(), from.len())?;
        let given = ends.receiver.register(to.base(), to.len())?;
        ends.connect()?;
        let remote = ends.import(given)?;
        let mut counter = 0;
        // SAFETY: the caller passes space for the id.
        let created = unsafe { weft_counter_create(ends.receiver.raw, &mut counter) };
        check("weft_counter_create", created)?;
        let lists = Lists::random(3, pages, pages * 2);
        Ok(Counts { ends, local, remote, counter, expected: 0, page, lists })
    }

    /// Nanoseconds until this many transfers, four at a time, have completed, and (if counted) all
    /// their pages have been counted.
    pub fn write(&mut self, transfers: usize, counted: bool) -> Result<f64> {
        let begun = Instant::now();
        let (mut submitted, mut done) = (0, 0);
        while done < transfers {
            while submitted < transfers && submitted - done < 4 {
                self.submit(counted)?;
                submitted += 1;
            }
            done += self.ends.until(WEFT_COMPLETION_WRITE, 1)?;
        }
        while counted && self.value()? < self.expected {
            self.ends.receiver.count(WEFT_COMPLETION_MESSAGE, 0)?;
            ensure!(begun.elapsed() < PATIENCE, "{} of {} pages were counted", self.value()?, self.expected);
        }
        Ok(begun.elapsed().as_nanos() as f64)
    }

    fn value(&self) -> Result<u64> {
        let mut value = 0;
        // SAFETY: the caller passes space for the value.
        let read = unsafe { weft_counter_read(self.ends.receiver.raw, self.counter, &mut value) };
        check("weft_counter_read", read)?;
        Ok(value)
    }

    fn submit(&mut self, counted: bool) -> Result<()> {
        let mut args = Endpoint::pages(self.local, self.remote, &self.lists, self.page);
        if counted {
            (args.options.flags, args.options.counter) = (WEFT_COUNT_PAGES, self.counter);
            self.expected += args.pages.page_count;
        }
        self.ends.sender.write_pages(&args)
    }

    /// The rate with a counter relative to that without, in turns.
    pub fn share(&mut self, rounds: usize, transfers: usize) -> Result<Spread> {
        let mut ratios = Vec::new();
        self.write(transfers, true)?;
        for round in 0..rounds {
            let first = round % 2 == 0;
            let one = self.write(transfers, first)?;
            let other = self.write(transfers, !first)?;
            ratios.push(if first { other / one } else { one / other });
        }
        Ok(Spread::new(ratios))
    }
}
