//! A peer in another process over loopback tcp, and one here to talk with it.

use crate::endpoint::{Endpoint, Memory, Offer, Opening, Remote};
use crate::memory::untouched;
use crate::process::{say, Part, Process};
use ::weft::capi::completion::*;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::time::Duration;

/// How long a wait for completions is.
pub const WAIT: Duration = Duration::from_millis(5);

/// What the other process opens.
#[derive(Serialize, Deserialize)]
pub struct Spec {
    pub endpoints: usize,
    /// Bytes of memory of the first.
    pub bytes: usize,
}

#[derive(Serialize, Deserialize)]
struct Offered {
    addresses: Vec<Vec<u8>>,
    first: Offer,
}

/// The life of that process.
pub fn run(spec: &Spec) -> Result<()> {
    let endpoints = (0..spec.endpoints).map(|_| open()).collect::<Result<Vec<_>>>()?;
    let first = endpoints.first().context("no endpoint")?;
    let first = first.offer(first.register(untouched(spec.bytes)?, spec.bytes)?)?;
    let addresses = endpoints.iter().map(Endpoint::address).collect::<Result<_>>()?;
    say(&Offered { addresses, first })?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

pub fn open() -> Result<Endpoint> {
    Endpoint::open(&Opening { workers: 1, ..Opening::of("tcp") })
}

/// An endpoint of this process, and its peers in another one.
pub struct Far {
    pub here: Endpoint,
    pub process: Process,
    pub addresses: Vec<Vec<u8>>,
    first: Offer,
}

/// Memory on both sides.
pub struct Joined {
    pub local: Memory,
    pub remote: Remote,
}

impl Far {
    pub fn start(endpoints: usize, bytes: usize) -> Result<Far> {
        let mut process = Process::start(&mut Part::Far(Spec { endpoints, bytes }).command()?)?;
        let Offered { addresses, first } = process.hear()?;
        Ok(Far { here: open()?, process, addresses, first })
    }

    /// Connects to its first endpoint, with memory of so many bytes.
    pub fn join(&self, bytes: usize) -> Result<Joined> {
        let local = self.here.register(untouched(bytes)?, bytes)?;
        let peer = self.here.connect(&self.first.address)?;
        Ok(Joined { local, remote: self.here.import(peer, &self.first)? })
    }

    /// Writes that have ended, after a wait for the first.
    pub fn ended(&self) -> Result<Vec<weft_completion>> {
        let mut done = self.here.wait(WAIT)?;
        done.retain(|one| one.kind == WEFT_COMPLETION_WRITE);
        Ok(done)
    }
}

/// Writes from the start of one memory to the start of another.
pub fn write(endpoint: &Endpoint, joined: &Joined, len: usize, timeout: Duration) -> Result<()> {
    let mut args = Endpoint::range(joined.local, joined.remote, len);
    args.timeout_ns = timeout.as_nanos() as u64;
    endpoint.write(&args)
}
