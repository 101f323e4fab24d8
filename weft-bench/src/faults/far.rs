//! Peers in another process over loopback tcp: the process is killed, many peers connect at once,
//! and the memory that this process holds for each is measured.

use super::Holds;
use crate::endpoint::{check, Endpoint, Memory, Offer, Opening, RangeRequest, Remote};
use crate::memory::untouched;
use crate::process::{say, Part, Process};
use ::weft::capi::completion::*;
use ::weft::capi::status::WEFT_OK;
use anyhow::{ensure, Context, Result};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::time::{Duration, Instant};

/// The length of a wait for completions.
const WAIT: Duration = Duration::from_millis(5);

const LARGE: usize = 1 << 20;
const SMALL: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(60);

/// What is measured; or the other process's own role, with this many endpoints.
#[derive(Serialize, Deserialize)]
pub enum Spec {
    /// The process is killed while its memory is written to, or read from.
    Killed {
        read: bool,
    },
    /// This many peers connect at once; `elsewhere`: to another endpoint of this process, where
    /// they only cost processor time.
    Crowd {
        count: usize,
        elsewhere: bool,
    },
    Peers(usize),
    Transfers(usize),
    Other(usize),
}

/// A figure, and a note on it.
pub type Report = (f64, f64);

pub fn run(spec: &Spec) -> Result<()> {
    let report = match *spec {
        Spec::Killed { read } => killed(read)?,
        Spec::Crowd { count, elsewhere } => crowd(count, elsewhere)?,
        Spec::Peers(count) => (peers(count)?, 0.0),
        Spec::Transfers(count) => (transfers(count)?, 0.0),
        Spec::Other(count) => return other(count),
    };
    say(&report)
}

#[derive(Serialize, Deserialize)]
struct Offered {
    addresses: Vec<Vec<u8>>,
    first: Offer,
}

fn other(endpoints: usize) -> Result<()> {
    let endpoints = (0..endpoints).map(|_| open()).collect::<Result<Vec<_>>>()?;
    let first = endpoints.first().context("no endpoint")?;
    let first = first.offer(first.register(untouched(LARGE)?, LARGE)?)?;
    let addresses = endpoints.iter().map(Endpoint::address).collect::<Result<_>>()?;
    say(&Offered { addresses, first })?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn open() -> Result<Endpoint> {
    Endpoint::open(&Opening { workers: 1, ..Opening::over("tcp") })
}

/// An endpoint of this process, and its peers in another one.
struct Far {
    here: Endpoint,
    process: Process,
    addresses: Vec<Vec<u8>>,
    first: Offer,
    /// Bytes of its transfers.
    timeout: Duration,
    /// The transfers are reads.
    read: bool,
}

/// Memory on both sides.
pub struct Joined {
    pub local: Memory,
    pub remote: Remote,
}

impl Far {
    fn start(endpoints: usize) -> Result<Far> {
        let mut process = Process::start(&mut Part::Far(Spec::Other(endpoints)).command()?)?;
        let Offered { addresses, first } = process.lines.hear()?;
        Ok(Far { here: open()?, process, addresses, first, timeout: PATIENCE, read: false })
    }

    /// A connected pair.
    fn joined() -> Result<(Far, Joined)> {
        let far = Far::start(1)?;
        let local = far.here.register(untouched(LARGE)?, LARGE)?;
        let peer = far.here.connect(&far.first.address)?;
        let remote = far.here.import(peer, &far.first)?;
        Ok((far, Joined { local, remote }))
    }

    fn submit(&self, joined: &Joined, count: usize, len: usize) -> Result<()> {
        let begin = if self.read { read } else { write };
        (0..count).try_for_each(|_| begin(&self.here, joined, len, self.timeout))
    }

    /// Waits until this many writes have ended; returns how many failed, and when the last one
    /// ended.
    fn wait_for(&self, count: usize, time: Duration) -> Result<(usize, Instant)> {
        let (begun, mut left, mut failed) = (Instant::now(), count, 0);
        while left > 0 {
            ensure!(begun.elapsed() < time, "{left} of {count} transfers have not ended after {time:?}");
            for one in self.here.wait(WAIT)?.iter().filter(|one| is_transfer(one.kind)) {
                left -= 1;
                failed += usize::from(one.status != WEFT_OK);
            }
        }
        Ok((failed, Instant::now()))
    }

    /// Goes on writing for `time`, and until this many peers of `host` are up; returns how many
    /// writes ended in that time, and the milliseconds until the last peer was up.
    fn stream(
        &self,
        joined: &Joined,
        time: Duration,
        host: &Endpoint,
        mut connecting: usize,
    ) -> Result<(usize, f64)> {
        let (begun, mut ended, mut ms) = (Instant::now(), 0, 0.0);
        while begun.elapsed() < time || connecting > 0 {
            ensure!(begun.elapsed() < PATIENCE, "{connecting} peers are not up after {PATIENCE:?}");
            for one in self.here.wait(WAIT)?.into_iter().chain(host.wait(Duration::ZERO)?) {
                check("a completion", one.status)?;
                match one.kind {
                    kind if is_transfer(kind) => {
                        ended += (begun.elapsed() < time) as usize;
                        self.submit(joined, 1, LARGE)?;
                    }
                    WEFT_COMPLETION_PEER_UP => {
                        connecting -= 1;
                        ms = begun.elapsed().as_secs_f64() * 1e3;
                    }
                    _ => {}
                }
            }
        }
        Ok((ended, ms))
    }
}

fn is_transfer(kind: weft_completion_kind) -> bool {
    matches!(kind, WEFT_COMPLETION_WRITE | WEFT_COMPLETION_READ)
}

/// Moves bytes from the start of one memory to the start of another.
fn range(joined: &Joined, len: usize, timeout: Duration) -> RangeRequest {
    let mut args = Endpoint::range(joined.local, joined.remote, len);
    args.options.timeout_ns = timeout.as_nanos() as u64;
    args
}

pub fn write(endpoint: &Endpoint, joined: &Joined, len: usize, timeout: Duration) -> Result<()> {
    endpoint.write(&range(joined, len, timeout))
}

fn read(endpoint: &Endpoint, joined: &Joined, len: usize, timeout: Duration) -> Result<()> {
    endpoint.read(&range(joined, len, timeout))
}

/// Transfers in flight when the peer is killed.
pub const IN_FLIGHT: usize = 64;
const DEADLINE: Duration = Duration::from_secs(5);

/// Milliseconds from the end of the peer to the end of the last transfer in flight, and how many of
/// these failed.
fn killed(read: bool) -> Result<Report> {
    let (mut far, joined) = Far::joined()?;
    (far.timeout, far.read) = (DEADLINE, read);
    far.submit(&joined, IN_FLIGHT, LARGE)?;
    far.stream(&joined, Duration::from_millis(500), &far.here, 0)?;
    let killed = Instant::now();
    far.process.signal(libc::SIGKILL)?;
    let (failed, last) = far.wait_for(IN_FLIGHT, DEADLINE + Duration::from_secs(1))?;
    Ok(((last - killed).as_secs_f64() * 1e3, failed as f64))
}

/// Milliseconds until the last of these peers is up; and the writes to another peer that ended in
/// the 2 s after the connects began, relative to the 2 s before.
fn crowd(count: usize, elsewhere: bool) -> Result<Report> {
    const WINDOW: Duration = Duration::from_secs(2);
    let (crowd, (far, joined)) = (Far::start(count)?, Far::joined()?);
    far.submit(&joined, 4, LARGE)?;
    let host = if elsewhere { &crowd.here } else { &far.here };
    far.stream(&joined, WINDOW, host, 0)?;
    let (before, _) = far.stream(&joined, WINDOW, host, 0)?;
    crowd.addresses.iter().try_for_each(|address| host.begin_connect(address).map(drop))?;
    let (during, ms) = far.stream(&joined, WINDOW, host, count)?;
    ensure!(before > 0, "no write ended in {WINDOW:?}");
    Ok((ms, during as f64 / before as f64))
}

/// Resident bytes for each of `count` objects, relative to `before`.
fn grown(before: Holds, count: usize) -> Result<f64> {
    let grown = Holds::now()?.resident.saturating_sub(before.resident);
    Ok(grown as f64 / count.max(1) as f64)
}

/// For each peer, with one rail.
fn peers(count: usize) -> Result<f64> {
    let far = Far::start(count + 1)?;
    // The first one also allocates what all share.
    far.here.connect(&far.addresses[0])?;
    let before = Holds::now()?;
    far.addresses[1..].iter().try_for_each(|address| far.here.connect(address).map(drop))?;
    grown(before, count)
}

/// For each transfer of one page to a stopped peer.
fn transfers(count: usize) -> Result<f64> {
    let (far, joined) = Far::joined()?;
    far.submit(&joined, 1, SMALL)?;
    far.wait_for(1, PATIENCE)?;
    far.process.signal(libc::SIGSTOP)?;
    let before = Holds::now()?;
    far.submit(&joined, count, SMALL)?;
    // The worker receives what was submitted.
    std::thread::sleep(Duration::from_millis(500));
    let each = grown(before, count)?;
    far.process.signal(libc::SIGKILL)?;
    far.wait_for(count, PATIENCE)?;
    Ok(each)
}
