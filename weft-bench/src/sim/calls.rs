//! What a submission costs the thread that calls: over simulated NICs, so that
//! nothing else does.

use super::ends::Ends;
use crate::endpoint::{check, sized, Endpoint};
use crate::memory::untouched;
use crate::pages::Lists;
use crate::processors;
use crate::stats::Spread;
use ::weft::capi::completion::*;
use ::weft::capi::kept::*;
use ::weft::capi::transfer::*;
use anyhow::Result;
use libc::cpu_set_t;
use std::ptr;
use std::time::Instant;

const FABRIC: &str = "sim:like=efa:nocopy:rails=4";
const PAGE: usize = 4096;

/// A transfer that is submitted again and again by a thread that spins, to a worker that does: on
/// the processors that are nearest to each other.
pub struct Calls {
    ends: Ends,
    args: weft_pages_args,
    /// The thread's processors before.
    all: cpu_set_t,
    /// What `args` points to.
    _lists: Lists,
}

/// Nanoseconds of single calls, without what it takes to read the clock.
pub struct Times {
    pub clock: f64,
    pub all: Spread,
    /// Of those after a batch was waited for.
    pub first: Spread,
}

impl Calls {
    pub fn open(pages: usize, layers: usize) -> Result<Calls> {
        let (all, nearest) = (processors::all(), processors::nearest());
        nearest.iter().for_each(|(_, other, _)| processors::keep_on_only(*other));
        let mut ends = Ends::open(FABRIC, (1, 0), true)?;
        nearest.iter().for_each(|(one, ..)| processors::keep_on_only(*one));
        let layer = PAGE * pages * 2;
        let local = ends.sender.register(untouched(layer * layers)?, layer * layers)?;
        let given = ends.receiver.register(untouched(layer * layers)?, layer * layers)?;
        ends.connect()?;
        ends.spin();
        let remote = ends.import(given)?;
        let lists = Lists::random(1, pages, pages * 2);
        let mut args = Endpoint::pages(local, remote, &lists, PAGE);
        args.layer_count = layers as u32;
        (args.local_layer_stride, args.remote_layer_stride) = (layer as u64, layer as u64);
        Ok(Calls { ends, args, all, _lists: lists })
    }

    /// Of submissions, in so many batches.
    pub fn pages(&self, batches: usize, batch: usize) -> Result<Times> {
        let endpoint = self.ends.sender.raw;
        // SAFETY: the arguments name what is open.
        self.measure(batches, batch, || unsafe { weft_write_pages(endpoint, &self.args, ptr::null_mut()) })
    }

    /// The same of geometry that is kept.
    pub fn kept(&self, batches: usize, batch: usize) -> Result<Times> {
        let (endpoint, mut kept) = (self.ends.sender.raw, ptr::null_mut());
        // SAFETY: the arguments name what is open.
        check("weft_pages_keep", unsafe { weft_pages_keep(endpoint, &self.args, &mut kept) })?;
        let again: weft_kept_args = sized();
        // SAFETY: as above.
        let ns = self.measure(batches, batch, || unsafe {
            weft_write_kept(endpoint, kept, &again, ptr::null_mut())
        })?;
        // SAFETY: our own handle, released once.
        check("weft_kept_release", unsafe { weft_kept_release(kept) })?;
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
        Ok(Times { clock, all: Spread::of(all), first: Spread::of(first) })
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        processors::keep_on(&self.all);
    }
}

/// From one look at the clock to the next.
fn clock_ns() -> f64 {
    Spread::of((0..10_000).map(|_| Instant::now().elapsed().as_nanos() as f64).collect()).median
}
