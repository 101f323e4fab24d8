//! A peer that comes and goes, again and again: the memory that remains.

use super::far::{write, Joined};
use super::Holds;
use crate::endpoint::{check, Endpoint, Memory, Opening};
use crate::memory::untouched;
use ::weft::capi::completion::*;
use ::weft::capi::memory::weft_remote_memory_release;
use ::weft::capi::peer::weft_peer_disconnect;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::time::Duration;

const LEN: usize = 64 << 10;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Two endpoints of one process over loopback tcp, which connect and disconnect.
#[derive(Serialize, Deserialize)]
pub struct Spec {
    /// Rounds before the memory of the process is measured.
    pub first: usize,
    pub times: usize,
    /// The connecting endpoint is new each time.
    pub anew: bool,
}

#[derive(Serialize, Deserialize)]
pub struct Report {
    pub before: Holds,
    pub after: Holds,
}

/// A small memory is soon in use completely; a large one would grow by first touches.
const QUEUE_DEPTH: u32 = 256;

fn open() -> Result<Endpoint> {
    Endpoint::open(&Opening { workers: 1, queue_depth: QUEUE_DEPTH, ..Opening::over("tcp") })
}

pub fn run(spec: &Spec) -> Result<Report> {
    let (target, mut source) = (open()?, open()?);
    let memory = target.register(untouched(LEN)?, LEN)?;
    let bytes = untouched(LEN)?;
    let mut before = Holds::now()?;
    let mut local = source.register(bytes, LEN)?;
    for time in 0..spec.first + spec.times {
        if time == spec.first {
            before = Holds::now()?;
        }
        if spec.anew && time > 0 {
            drop(source);
            source = open()?;
            local = source.register(bytes, LEN)?;
        }
        once(&source, &target, local, memory)?;
    }
    Ok(Report { before, after: Holds::now()? })
}

fn once(source: &Endpoint, target: &Endpoint, local: Memory, memory: Memory) -> Result<()> {
    let offer = target.offer(memory)?;
    let peer = source.connect(&offer.address)?;
    let remote = source.import(peer, &offer)?;
    write(source, &Joined { local, remote }, LEN, TIMEOUT)?;
    source.take(WEFT_COMPLETION_WRITE, 1)?;
    // SAFETY: the handles are our own; nothing uses the remote memory any longer.
    unsafe {
        check("weft_remote_memory_release", weft_remote_memory_release(remote))?;
        check("weft_peer_disconnect", weft_peer_disconnect(source.raw, peer))?;
    }
    source.take(WEFT_COMPLETION_PEER_DOWN, 1)?;
    target.take(WEFT_COMPLETION_PEER_DOWN, 1)?;
    Ok(())
}
