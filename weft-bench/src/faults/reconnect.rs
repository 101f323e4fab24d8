//! A peer that goes and comes, again and again: what is left of that.

use super::far::{address, connect, take, write, Joined};
use super::Holds;
use crate::engines::check;
use crate::memory::untouched;
use crate::sim::Side;
use ::weft::capi::completion::*;
use ::weft::capi::endpoint::WEFT_IDLE_ADAPTIVE;
use ::weft::capi::memory::weft_remote_memory_release;
use ::weft::capi::peer::weft_peer_disconnect;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::time::Duration;

const LEN: usize = 64 << 10;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Two endpoints of one process over loopback tcp, which connect and part.
#[derive(clap::Args)]
pub struct Spec {
    /// Before it is looked what the process holds.
    #[arg(long)]
    first: usize,
    #[arg(long)]
    times: usize,
    /// The one that connects is a new endpoint each time.
    #[arg(long)]
    anew: bool,
}

#[derive(Serialize, Deserialize)]
pub struct Report {
    pub before: Holds,
    pub after: Holds,
}

/// Its memory is all in use soon: a large one grows by what is used for the first time.
const QUEUE_DEPTH: u32 = 256;

fn open() -> Result<Side> {
    Side::with_queue("tcp", 1, WEFT_IDLE_ADAPTIVE, QUEUE_DEPTH)
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
            source.close()?;
            source = open()?;
            local = source.register(bytes, LEN)?;
        }
        once(&source, &target, local, memory)?;
    }
    let after = Holds::now()?;
    source.close()?;
    target.close()?;
    Ok(Report { before, after })
}

fn once(
    source: &Side,
    target: &Side,
    local: *mut ::weft::capi::memory::weft_memory,
    memory: *mut ::weft::capi::memory::weft_memory,
) -> Result<()> {
    let peer = connect(source, &address(target)?)?;
    let remote = source.import(peer, memory)?;
    write(source, &Joined { local, remote }, LEN as u64, TIMEOUT)?;
    check("a write", take(source, WEFT_COMPLETION_WRITE)?.status)?;
    // SAFETY: our own handles; nothing uses the remote memory any more.
    unsafe {
        check("weft_remote_memory_release", weft_remote_memory_release(remote))?;
        check("weft_peer_disconnect", weft_peer_disconnect(source.endpoint, peer))?;
    }
    take(source, WEFT_COMPLETION_PEER_DOWN)?;
    take(target, WEFT_COMPLETION_PEER_DOWN)?;
    Ok(())
}
