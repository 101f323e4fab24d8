//! What a submission costs the calling thread: over simulated NICs, so that nothing else adds to
//! it.

use super::ends::Ends;
use crate::endpoint::{check, Endpoint, PagesRequest};
use crate::memory::untouched;
use crate::pages::Lists;
use crate::processors;
use crate::stats::Spread;
use ::weft::capi::completion::*;
use ::weft::capi::prepared::*;
use ::weft::capi::transfer::*;
use anyhow::Result;
use libc::cpu_set_t;
use std::ptr;
use std::time::Instant;

const FABRIC: &str = "sim:like=efa:nocopy:rails=4";
const PAGE: usize = 4096;

/// A transfer that a spinning thread submits again and again to a spinning worker, on the
/// processors nearest to each other.
pub struct Calls {
    ends: Ends,
    args: PagesRequest,
    /// The thread's earlier processors.
    all: cpu_set_t,
    /// The data that `args` points to.
    _lists: Lists,
}

/// Nanoseconds of single calls, without the time for reading the clock.
pub struct Times {
    pub clock: f64,
    pub all: Spread,
    /// Nanoseconds of submissions after waiting for a batch.
    pub first: Spread,
}

impl Calls {
    pub fn open(pages: usize, layers: usize) -> Result<Calls> {
        let (all, nearest) = (processors::all(), processors::nearest());
        nearest.iter().for_each(|(_, other, _)| processors::keep_on_only(*other));
        let mut ends = Ends::open(FABRIC, 1, 0, true)?;
        nearest.iter().for_each(|(one, ..)| processors::keep_on_only(*one));
        let layer = PAGE * pages * 2;
        let local = ends.sender.register(untouched(layer * layers)?, layer * layers)?;
        let given = ends.receiver.register(untouched(layer * layers)?, layer * layers)?;
        ends.connect()?;
        ends.spin();
        let remote = ends.import(given)?;
        let lists = Lists::random(1, pages, pages * 2);
        let mut args = Endpoint::pages(local, remote, &lists, PAGE);
        args.pages.layer_count = layers as u32;
        (args.pages.local.layer_stride, args.pages.remote.layer_stride) = (layer as u64, layer as u64);
        Ok(Calls { ends, args, all, _lists: lists })
    }

    /// Nanoseconds of submissions, in this many batches.
    pub fn pages(&self, batches: usize, batch: usize) -> Result<Times> {
        let (endpoint, args) = (self.ends.sender.raw, &self.args);
        // SAFETY: the arguments name open objects.
        self.measure(batches, batch, || unsafe {
            weft_write_pages(endpoint, args.local, args.remote, &args.pages, &args.options, ptr::null_mut())
        })
    }

    /// The same with prepared geometry.
    pub fn prepared(&self, batches: usize, batch: usize) -> Result<Times> {
        let (endpoint, args, mut prepared) = (self.ends.sender.raw, &self.args, ptr::null_mut());
        // SAFETY: the arguments name open objects.
        check("weft_pages_prepare", unsafe {
            weft_pages_prepare(endpoint, args.local, args.remote, &args.pages, 0, &mut prepared)
        })?;
        // SAFETY: endpoint and prepared pages are open, and the options outlive the call.
        let ns = self.measure(batches, batch, || unsafe {
            weft_write_prepared(endpoint, prepared, &args.options, ptr::null_mut())
        })?;
        // SAFETY: the handle is our own, and is released only here.
        check("weft_prepared_destroy", unsafe { weft_prepared_destroy(prepared) })?;
        Ok(ns)
    }

    fn measure(&self, batches: usize, batch: usize, submit: impl Fn() -> i32) -> Result<Times> {
        let clock = clock_ns();
        let (mut all, mut first) = (Vec::new(), Vec::new());
        for _ in 0..batches {
            for call in 0..batch {
                let begun = Instant::now();
                let status = submit();
                let ns = begun.elapsed().as_nanos() as f64 - clock;
                check("the submission", status)?;
                all.push(ns);
                if call == 0 {
                    first.push(ns);
                }
            }
            let mut done = 0;
            while done < batch {
                done += self.ends.until(WEFT_COMPLETION_WRITE, 1)?;
            }
        }
        Ok(Times { clock, all: Spread::new(all), first: Spread::new(first) })
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        processors::keep_on(&self.all);
    }
}

/// From one reading of the clock to the next.
fn clock_ns() -> f64 {
    Spread::new((0..10_000).map(|_| Instant::now().elapsed().as_nanos() as f64).collect()).median
}
