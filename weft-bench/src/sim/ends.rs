//! Connected endpoints of this process.

use crate::endpoint::{Endpoint, Memory, Opening, Remote};
use ::weft::capi::completion::*;
use ::weft::capi::peer::weft_peer;
use anyhow::{bail, Result};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const WAIT_NS: u64 = 1_000_000;

/// A sender, and a receiver that is polled occasionally.
pub struct Ends {
    pub sender: Endpoint,
    pub receiver: Endpoint,
    pub peer: weft_peer,
    /// How long it sleeps between polls: beside workers, the processors are for them.
    wait_ns: u64,
}

/// With this many workers; 0: manual progress.
pub fn open(fabric: &str, workers: u32, spin: bool) -> Result<Endpoint> {
    Endpoint::open(&Opening { workers, manual: workers == 0, spin, ..Opening::over(fabric) })
}

impl Ends {
    /// With this many workers each.
    pub fn open(fabric: &str, workers: u32, of_receiver: u32, spin: bool) -> Result<Ends> {
        let (sender, receiver) = (open(fabric, workers, spin)?, open(fabric, of_receiver, spin)?);
        Ok(Ends { sender, receiver, peer: 0, wait_ns: if workers == 0 { 0 } else { WAIT_NS } })
    }

    /// From now on it does not sleep while waiting.
    pub fn spin(&mut self) {
        self.wait_ns = 0;
    }

    pub fn connect(&mut self) -> Result<()> {
        self.peer = self.sender.begin_connect(&self.receiver.address()?)?;
        self.until(WEFT_COMPLETION_PEER_UP, 1).map(drop)
    }

    /// The receiver's memory, as imported by the sender.
    pub fn import(&self, given: Memory) -> Result<Remote> {
        self.sender.import(self.peer, &self.receiver.offer(given)?)
    }

    /// Polls until this many completions of a kind have arrived, or more; returns how many.
    pub fn until(&self, kind: weft_completion_kind, count: usize) -> Result<usize> {
        let (begun, mut done, mut polls) = (Instant::now(), 0, 0u32);
        let seldom = if self.wait_ns == 0 { 64 } else { 1 };
        while done < count {
            done += self.sender.count(kind, self.wait_ns)?;
            polls = polls.wrapping_add(1);
            // The receiver rarely has work: NICs serve it.
            if polls % seldom == 0 {
                self.receiver.count(WEFT_COMPLETION_MESSAGE, 0)?;
                if polls % (seldom << 10) == 0 && begun.elapsed() > PATIENCE {
                    bail!("no completion of kind {kind}: {done} of {count}");
                }
            }
        }
        Ok(done)
    }
}
