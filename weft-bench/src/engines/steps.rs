//! The way from a simple loop to a fast one, over bare libfabric with several
//! endpoints: each step adds one thing to the one before.

use super::port::{Port, Remote};
use super::{Place, Rail, Receiver, Sender};
use crate::memory::Pool;
use crate::pages::Lists;
use crate::processors;
use anyhow::{anyhow, bail, Context, Result};
use libfabric_sys::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::mem::zeroed;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const BATCH: usize = 16;
const WINDOW: usize = 32;
const REAP: usize = 64;
const PATIENCE: Duration = Duration::from_secs(10);
/// Turns of a target's thread without a sign of its engine's turn, and then its nap.
const RESTLESS: u32 = 20_000;
const NAP: Duration = Duration::from_micros(50);

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
    pub const ALL: [Step; 7] = [
        Step::Simple,
        Step::WarmUp,
        Step::Threads,
        Step::Pinning,
        Step::ShardedState,
        Step::BatchedPosting,
        Step::LazyPosting,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Step::Simple => "one thread",
            Step::WarmUp => "warm-up",
            Step::Threads => "threads",
            Step::Pinning => "pinning",
            Step::ShardedState => "sharded state",
            Step::BatchedPosting => "batched posting",
            Step::LazyPosting => "lazy posting",
        }
    }

    fn threads(self, wanted: usize) -> usize {
        if self >= Step::Threads {
            wanted
        } else {
            1
        }
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Offer {
    address: Vec<u8>,
    base: u64,
    key: u64,
}

/// A rail and the places of its own operations.
struct Lane {
    port: Port,
    route: fi_addr_t,
    remote: Remote,
    contexts: Vec<fi_context2>,
    /// Of the transfer under way: the number of the rail's next page and of all rails, for
    /// sharded state; a page that found no room; the last one; posts and completions.
    next: usize,
    stride: usize,
    blocked: Option<usize>,
    last: Option<usize>,
    posted: usize,
    done: usize,
    flushed: bool,
}

// SAFETY: its objects are its domain's, and one thread at a time uses them (FI_THREAD_DOMAIN).
unsafe impl Send for Lane {}

impl Lane {
    fn open(rail: &Rail, pool: &Pool, offer: &Offer) -> Result<Lane> {
        let port = Port::open(rail, false, pool)?;
        if !port.ordered() {
            bail!("{} does not keep writes in order: the last one says nothing of the others", rail.provider);
        }
        let route = port.insert(&offer.address)?;
        // SAFETY: pointers, for the provider to use.
        let contexts = (0..pool.pages + 1).map(|_| unsafe { zeroed() }).collect();
        let remote = Remote { base: offer.base, key: offer.key };
        let (next, stride, blocked, last, posted, done, flushed) = (0, 1, None, None, 0, 0, false);
        Ok(Lane { port, route, remote, contexts, next, stride, blocked, last, posted, done, flushed })
    }

    fn begin(&mut self, number: usize, stride: usize) {
        (self.next, self.stride) = (number, stride);
        (self.blocked, self.last, self.posted, self.done, self.flushed) = (None, None, 0, 0, false);
    }

    /// False if the provider has no room.
    #[inline]
    fn post(&mut self, job: &Job, page: usize, len: usize, flags: u64) -> Result<bool> {
        let source = job.source.wrapping_add(job.lists.source[page] as usize * job.page_len);
        let iov = libc::iovec { iov_base: source as *mut _, iov_len: len };
        let addr = self.remote.base + job.lists.target[page] as u64 * job.page_len as u64;
        let remote = fi_rma_iov { addr, len, key: self.remote.key };
        let message = fi_msg_rma {
            msg_iov: &iov,
            desc: &mut self.port.descriptor,
            iov_count: 1,
            addr: self.route,
            rma_iov: &remote,
            rma_iov_count: 1,
            context: (&raw mut self.contexts[self.posted]).cast(),
            data: 0,
        };
        // SAFETY: the message lives through the call, the pool longer than the endpoint.
        match unsafe { fi_writemsg(self.port.ep, &message, FI_COMPLETION | flags) } {
            0 => {
                self.posted += 1;
                Ok(true)
            }
            rc if rc == -(FI_EAGAIN as isize) => Ok(false),
            rc => bail!("posting a write: libfabric error {}", -rc),
        }
    }

    /// The next page: a blocked one, one of this rail's share, or whichever comes next.
    fn take(&mut self, job: &Job) -> Option<usize> {
        if let Some(page) = self.blocked.take() {
            return Some(page);
        }
        let page = if job.step >= Step::ShardedState {
            self.next += self.stride;
            self.next - self.stride
        } else {
            job.state().take()
        };
        (page < job.lists.len()).then_some(page)
    }

    /// A few posts; how many went out is for the rail to know.
    fn fill(&mut self, job: &Job) -> Result<()> {
        let batch = if job.step >= Step::BatchedPosting { BATCH } else { 1 };
        let room = match job.step >= Step::LazyPosting {
            true => WINDOW.saturating_sub(self.posted - self.done),
            false => batch,
        };
        for at in (0..batch.min(room)).rev() {
            let Some(page) = self.take(job) else { return self.flush(job) };
            let more = if at > 0 && self.next < job.lists.len() { FI_MORE } else { 0 };
            while !self.post(job, page, job.page_len, more)? {
                if job.step >= Step::LazyPosting {
                    self.blocked = Some(page);
                    return Ok(());
                }
                self.reap(job)?;
            }
            self.last = Some(page);
        }
        Ok(())
    }

    /// One byte more, whose delivery tells of all before it.
    fn flush(&mut self, job: &Job) -> Result<()> {
        match self.last {
            Some(page) if !self.flushed => self.flushed = self.post(job, page, 1, FI_DELIVERY_COMPLETE)?,
            Some(_) => {}
            None => self.flushed = true,
        }
        Ok(())
    }

    fn reap(&mut self, job: &Job) -> Result<()> {
        // SAFETY: integers and pointers.
        let mut entries: [fi_cq_data_entry; REAP] = unsafe { zeroed() };
        let most = if job.step >= Step::BatchedPosting { REAP } else { 1 };
        let reaped = self.port.reap(&mut entries[..most])?;
        self.done += reaped;
        if reaped > 0 && job.step < Step::ShardedState {
            job.state().count(job.transfer, reaped);
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.flushed && self.done == self.posted
    }
}

/// What all threads share, before it is sharded.
#[derive(Default)]
struct State {
    next: usize,
    completed: HashMap<u64, usize>,
}

impl State {
    fn take(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    fn count(&mut self, transfer: u64, completed: usize) {
        *self.completed.entry(transfer).or_default() += completed;
    }
}

/// A transfer, as each thread gets it.
#[derive(Clone)]
struct Job {
    step: Step,
    lists: Arc<Lists>,
    source: *const u8,
    page_len: usize,
    transfer: u64,
    state: Arc<Mutex<State>>,
}

// SAFETY: the pool that `source` points to is only read, and stays.
unsafe impl Send for Job {}

impl Job {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// One thread's part of a transfer.
fn drive(lanes: &mut [Lane], job: &Job) -> Result<()> {
    let since = Instant::now();
    let mut turns = 0u32;
    while !lanes.iter().all(Lane::is_done) {
        for lane in lanes.iter_mut().filter(|lane| !lane.is_done()) {
            lane.fill(job)?;
            lane.reap(job)?;
        }
        turns = turns.wrapping_add(1);
        if turns % (1 << 20) == 0 && since.elapsed() > PATIENCE {
            bail!("a transfer does not end within {PATIENCE:?}");
        }
    }
    Ok(())
}

/// A further thread of a sender, and its ways.
struct Helper {
    jobs: Option<mpsc::Sender<Job>>,
    results: mpsc::Receiver<Result<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    fn start(mut lanes: Vec<Lane>, first: usize, rails: usize, pin: Option<libc::cpu_set_t>) -> Helper {
        let (jobs, orders) = mpsc::channel::<Job>();
        let (answers, results) = mpsc::channel();
        let thread = thread::spawn(move || {
            if let Some(set) = pin {
                processors::keep_on(&set);
            }
            for job in orders {
                begin(&mut lanes, first, rails);
                if answers.send(drive(&mut lanes, &job)).is_err() {
                    return;
                }
            }
        });
        Helper { jobs: Some(jobs), results, thread: Some(thread) }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been printed already.
            let _ = thread.join();
        }
    }
}

fn begin(lanes: &mut [Lane], first: usize, rails: usize) {
    for (at, lane) in lanes.iter_mut().enumerate() {
        lane.begin(first + at, rails);
    }
}

pub struct StepSender {
    step: Step,
    rail: Rail,
    pool: Pool,
    offers: Vec<Offer>,
    /// The calling thread's.
    lanes: Vec<Lane>,
    helpers: Vec<Helper>,
    processors: libc::cpu_set_t,
    transfer: u64,
    used: bool,
}

impl StepSender {
    pub fn open(step: Step, place: &Place, pool: &Pool, offer: &Value) -> Result<StepSender> {
        let offers: Vec<Offer> = serde_json::from_value(offer.clone()).context("the target's offer")?;
        let rails = offers.len();
        let threads = step.threads(place.case.step_threads).min(rails);
        let mut lanes = open_lanes(place.rail, pool, &offers)?;
        let processors = processors::all();
        let mut helpers = Vec::new();
        for thread in (1..threads).rev() {
            let first = rails * thread / threads;
            let pin = (step >= Step::Pinning).then(|| processors::one_of(&processors, thread));
            helpers.push(Helper::start(lanes.split_off(first), first, rails, pin));
        }
        let (rail, pool, transfer, used) = (place.rail.clone(), pool.clone(), 0, false);
        Ok(StepSender { step, rail, pool, offers, lanes, helpers, processors, transfer, used })
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

    fn write(&mut self, lists: &Lists) -> Result<()> {
        self.used = true;
        self.transfer += 1;
        let job = Job {
            step: self.step,
            lists: Arc::new(lists.clone()),
            source: self.pool.base(),
            page_len: self.pool.page_len,
            transfer: self.transfer,
            state: Arc::default(),
        };
        for helper in &self.helpers {
            let jobs = helper.jobs.as_ref().context("a thread that has ended")?;
            jobs.send(job.clone()).map_err(|_| anyhow!("a thread has ended"))?;
        }
        let pins = self.step >= Step::Pinning;
        if pins {
            processors::keep_on(&processors::one_of(&self.processors, 0));
        }
        begin(&mut self.lanes, 0, self.offers.len());
        let mut result = drive(&mut self.lanes, &job);
        for helper in &self.helpers {
            result = result.and(helper.results.recv().context("a thread has ended")?);
        }
        if pins {
            processors::keep_on(&self.processors);
        }
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
        format!("{}: {} rails, {} threads", self.step.name(), self.offers.len(), self.helpers.len() + 1)
    }
}

/// The target of every step: the same, so that only the sender differs.
pub struct StepReceiver {
    offers: Vec<Offer>,
    ports: Group,
    beat: Arc<AtomicU64>,
    helpers: Vec<JoinHandle<()>>,
}

/// Rails that one thread polls.
struct Group(Vec<Port>);

// SAFETY: as a lane.
unsafe impl Send for Group {}

impl Group {
    fn poll(&self) -> Result<()> {
        // SAFETY: integers and pointers.
        let mut entries: [fi_cq_data_entry; REAP] = unsafe { zeroed() };
        self.0.iter().try_for_each(|port| port.reap(&mut entries).map(|_| ()))
    }

    /// Polls while its engine's turn lasts, until the engine is gone.
    fn follow(self, beat: &AtomicU64) {
        let (mut last, mut quiet) = (0, 0u32);
        loop {
            let now = beat.load(Ordering::Relaxed);
            if now == ENDED {
                return;
            }
            quiet = if now == last { quiet + 1 } else { 0 };
            last = now;
            if quiet > RESTLESS {
                quiet = RESTLESS;
                thread::sleep(NAP);
            } else if let Err(error) = self.poll() {
                // The sender's transfer does not end, and says so.
                eprintln!("weft-bench: the target: {error:#}");
                return;
            }
        }
    }
}

const ENDED: u64 = u64::MAX;

impl StepReceiver {
    pub fn open(place: &Place, pool: &Pool) -> Result<StepReceiver> {
        let (rails, threads) = (place.case.rails, place.case.step_threads.min(place.case.rails));
        let ports: Vec<Port> =
            (0..rails).map(|_| Port::open(place.rail, false, pool)).collect::<Result<_>>()?;
        let offer = |port: &Port| {
            let Remote { base, key } = port.remote(pool);
            Offer { address: port.address.clone(), base, key }
        };
        let offers = ports.iter().map(offer).collect();
        let mut ports = Group(ports);
        let beat = Arc::new(AtomicU64::new(0));
        let mut helpers = Vec::new();
        for thread in (1..threads).rev() {
            let (group, beat) = (Group(ports.0.split_off(rails * thread / threads)), Arc::clone(&beat));
            helpers.push(thread::spawn(move || group.follow(&beat)));
        }
        Ok(StepReceiver { offers, ports, beat, helpers })
    }
}

impl Receiver for StepReceiver {
    fn offer(&self) -> Result<Value> {
        Ok(serde_json::to_value(&self.offers)?)
    }

    fn accept(&mut self, _answer: &Value) -> Result<()> {
        Ok(())
    }

    fn poll(&mut self) -> Result<()> {
        self.beat.fetch_add(1, Ordering::Relaxed);
        self.ports.poll()
    }
}

impl Drop for StepReceiver {
    fn drop(&mut self) {
        self.beat.store(ENDED, Ordering::Relaxed);
        for helper in self.helpers.drain(..) {
            // A panic has been printed already.
            let _ = helper.join();
        }
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

    #[test]
    fn shared_state_gives_each_page_once_and_counts_by_transfer() {
        let mut state = State::default();
        assert_eq!([state.take(), state.take(), state.take()], [0, 1, 2]);
        state.count(7, 2);
        state.count(8, 1);
        state.count(7, 3);
        assert_eq!((state.completed[&7], state.completed[&8]), (5, 1));
    }
}
