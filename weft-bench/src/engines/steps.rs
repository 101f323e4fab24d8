//! The way from a simple loop to a fast one, over bare libfabric with several
//! endpoints: each step adds one thing to the one before.

use super::port::{contexts, entries, Offer, Patience, Port, Rail, Remote};
use super::{Place, Receiver, Sender};
use crate::memory::Pool;
use crate::pages::Lists;
use crate::processors;
use anyhow::{anyhow, bail, Context, Result};
use libfabric_sys::{fi_context2, FI_DELIVERY_COMPLETE, FI_MORE};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Mutex;
use std::thread;

const BATCH: usize = 16;
const WINDOW: usize = 32;
const REAP: usize = 64;

/// In the order in which they were taken; each includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Debug)]
pub enum Step {
    /// Connections are made in the transfer, by one thread, which takes pages and counts
    /// completions under a lock, looks at its queue after every post, and posts until the
    /// provider has no room.
    Simple,
    WarmUp,
    Threads,
    Pinning,
    ShardedState,
    BatchedPosting,
    /// No more than a window on each rail.
    LazyPosting,
}

impl Step {
    pub const ALL: [(Step, &str); 7] = [
        (Step::Simple, "one thread"),
        (Step::WarmUp, "warm-up"),
        (Step::Threads, "threads"),
        (Step::Pinning, "pinning"),
        (Step::ShardedState, "sharded state"),
        (Step::BatchedPosting, "batched posting"),
        (Step::LazyPosting, "lazy posting"),
    ];

    pub fn name(self) -> &'static str {
        Step::ALL[self as usize].1
    }
}

/// A rail and the places of its own operations.
struct Lane {
    port: Port,
    remote: Remote,
    contexts: Vec<fi_context2>,
    at: At,
}

/// Where a rail is in the transfer under way.
#[derive(Default)]
struct At {
    /// With sharded state: the number of its next page, and of all rails.
    next: usize,
    stride: usize,
    /// A page that found no room, and the last one.
    blocked: Option<usize>,
    last: Option<usize>,
    posted: usize,
    done: usize,
    flushed: bool,
}

// SAFETY: as its port; contexts are the provider's.
unsafe impl Send for Lane {}

impl Lane {
    fn open(rail: &Rail, pool: &Pool, offer: &Offer) -> Result<Lane> {
        let port = Port::open(rail, false, pool)?;
        if !port.ordered() {
            bail!("{} does not keep writes in order: the last one says nothing of the others", rail.provider);
        }
        let remote = port.join(offer)?;
        Ok(Lane { port, remote, contexts: contexts(pool.pages + 1), at: At::default() })
    }

    /// False if the provider has no room.
    #[inline]
    fn post(&mut self, job: &Job, page: usize, len: usize, flags: u64) -> Result<bool> {
        let source = job.source.wrapping_add(job.lists.source[page] as usize * job.page_len);
        let there = job.lists.target[page] as usize * job.page_len;
        let context = &raw mut self.contexts[self.at.posted];
        let posted = self.port.write(&self.remote, (source, there), len, flags, context)?;
        self.at.posted += posted as usize;
        Ok(posted)
    }

    /// The next page: a blocked one, one of this rail's share, or whichever comes next.
    fn take(&mut self, job: &Job) -> Option<usize> {
        if let Some(page) = self.at.blocked.take() {
            return Some(page);
        }
        let page = if job.step >= Step::ShardedState {
            self.at.next += self.at.stride;
            self.at.next - self.at.stride
        } else {
            job.shared(|state| {
                state.next += 1;
                state.next - 1
            })
        };
        (page < job.lists.len()).then_some(page)
    }

    /// A few posts; how many went out is for the rail to know.
    fn fill(&mut self, job: &Job) -> Result<()> {
        let batch = if job.step >= Step::BatchedPosting { BATCH } else { 1 };
        let room = match job.step >= Step::LazyPosting {
            true => WINDOW.saturating_sub(self.at.posted - self.at.done),
            false => batch,
        };
        for at in (0..batch.min(room)).rev() {
            let Some(page) = self.take(job) else { return self.flush(job) };
            let more = if at > 0 && self.at.next < job.lists.len() { FI_MORE } else { 0 };
            while !self.post(job, page, job.page_len, more)? {
                if job.step >= Step::LazyPosting {
                    self.at.blocked = Some(page);
                    return Ok(());
                }
                self.reap(job)?;
            }
            self.at.last = Some(page);
        }
        Ok(())
    }

    /// One byte more, whose delivery tells of all before it.
    fn flush(&mut self, job: &Job) -> Result<()> {
        match self.at.last {
            Some(page) if !self.at.flushed => {
                self.at.flushed = self.post(job, page, 1, FI_DELIVERY_COMPLETE)?
            }
            Some(_) => {}
            None => self.at.flushed = true,
        }
        Ok(())
    }

    fn reap(&mut self, job: &Job) -> Result<()> {
        let mut entries = entries::<REAP>();
        let most = if job.step >= Step::BatchedPosting { REAP } else { 1 };
        let reaped = self.port.reap(&mut entries[..most])?;
        self.at.done += reaped;
        if reaped > 0 && job.step < Step::ShardedState {
            job.shared(|state| *state.completed.entry(job.transfer).or_default() += reaped);
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.at.flushed && self.at.done == self.at.posted
    }
}

/// What all threads share, before it is sharded.
#[derive(Default)]
struct State {
    next: usize,
    completed: HashMap<u64, usize>,
}

/// A transfer, as each thread sees it.
struct Job<'a> {
    step: Step,
    lists: &'a Lists,
    source: *const u8,
    page_len: usize,
    transfer: u64,
    state: Mutex<State>,
}

// SAFETY: the pool that `source` points to is only read, and stays.
unsafe impl Sync for Job<'_> {}

impl Job<'_> {
    fn shared<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

/// One thread's part of a transfer.
fn drive(lanes: &mut [Lane], job: &Job, pin: Option<libc::cpu_set_t>) -> Result<()> {
    pin.iter().for_each(processors::keep_on);
    let mut patience = Patience::default();
    while !lanes.iter().all(Lane::is_done) {
        for lane in lanes.iter_mut().filter(|lane| !lane.is_done()) {
            lane.fill(job)?;
            lane.reap(job)?;
        }
        patience.turn(|| "a transfer does not end".to_owned())?;
    }
    Ok(())
}

pub struct StepSender {
    step: Step,
    rail: Rail,
    pool: Pool,
    offers: Vec<Offer>,
    lanes: Vec<Lane>,
    /// Lanes of a thread.
    share: usize,
    processors: libc::cpu_set_t,
    transfer: u64,
    used: bool,
}

impl StepSender {
    pub fn open(step: Step, place: &Place, pool: &Pool, offer: &Value) -> Result<StepSender> {
        let offers: Vec<Offer> = serde_json::from_value(offer.clone()).context("the target's offer")?;
        let threads = if step >= Step::Threads { place.case.step_threads } else { 1 };
        let (share, lanes) = (offers.len().div_ceil(threads), open_lanes(place.rail, pool, &offers)?);
        let (rail, pool, processors) = (place.rail.clone(), pool.clone(), processors::all());
        Ok(StepSender { step, rail, pool, offers, lanes, share, processors, transfer: 0, used: false })
    }
}

fn open_lanes(rail: &Rail, pool: &Pool, offers: &[Offer]) -> Result<Vec<Lane>> {
    offers.iter().map(|offer| Lane::open(rail, pool, offer)).collect()
}

impl Sender for StepSender {
    fn connect(&mut self) -> Result<()> {
        match self.step {
            Step::Simple => Ok(()),
            // As many pages as rails: each connects.
            _ => (0..4).try_for_each(|_| {
                let pages: Vec<u32> = (0..self.offers.len().min(self.pool.pages) as u32).collect();
                self.write(&Lists { source: pages.clone(), target: pages })
            }),
        }
    }

    /// Threads begin with the transfer: that takes less than a thousandth of its time.
    fn write(&mut self, lists: &Lists) -> Result<()> {
        self.used = true;
        self.transfer += 1;
        let (step, rails, all, transfer) = (self.step, self.lanes.len(), &self.processors, self.transfer);
        let (source, page_len) = (self.pool.base().cast_const(), self.pool.page_len);
        let job = Job { step, lists, source, page_len, transfer, state: Mutex::default() };
        self.lanes
            .iter_mut()
            .enumerate()
            .for_each(|(next, lane)| lane.at = At { next, stride: rails, ..At::default() });
        let pin = |number| (step >= Step::Pinning).then(|| processors::one_of(all, number));
        let result = thread::scope(|scope| {
            let mut groups = self.lanes.chunks_mut(self.share).enumerate();
            let own = groups.next();
            let others = groups.map(|(number, lanes)| {
                let (job, pin) = (&job, pin(number));
                scope.spawn(move || drive(lanes, job, pin))
            });
            let others: Vec<_> = others.collect();
            let mut result = own.map_or(Ok(()), |(_, lanes)| drive(lanes, &job, pin(0)));
            for thread in others {
                result = result.and(thread.join().map_err(|_| anyhow!("a thread panicked"))?);
            }
            result
        });
        processors::keep_on(all);
        result
    }

    /// Without warm-up each transfer has connections of its own.
    fn poll(&mut self) -> Result<()> {
        if self.step == Step::Simple && self.used {
            self.used = false;
            self.lanes.clear();
            self.lanes = open_lanes(&self.rail, &self.pool, &self.offers)?;
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let (rails, threads) = (self.offers.len(), self.offers.len().div_ceil(self.share));
        format!("{}: {rails} rails, {threads} threads", self.step.name())
    }
}

/// The target of every step: the same, so that only the sender differs.
pub struct StepReceiver(Vec<Port>);

impl StepReceiver {
    pub fn open(place: &Place, pool: &Pool) -> Result<StepReceiver> {
        let ports = (0..place.case.rails).map(|_| Port::open(place.rail, false, pool));
        Ok(StepReceiver(ports.collect::<Result<_>>()?))
    }
}

impl Receiver for StepReceiver {
    fn offer(&self) -> Result<Value> {
        Ok(serde_json::to_value(self.0.iter().map(Port::offer).collect::<Result<Vec<Offer>>>()?)?)
    }

    fn poll(&mut self) -> Result<()> {
        let mut entries = entries::<REAP>();
        self.0.iter().try_for_each(|port| port.reap(&mut entries).map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_one_processor_of_those_it_had() {
        let all = processors::all();
        // SAFETY: sets of bits.
        unsafe {
            for number in 0..5 {
                let one = processors::one_of(&all, number);
                assert_eq!(libc::CPU_COUNT(&one), 1);
                let is_within = |cpu| !libc::CPU_ISSET(cpu, &one) || libc::CPU_ISSET(cpu, &all);
                assert!((0..libc::CPU_SETSIZE as usize).all(is_within));
            }
        }
    }
}
