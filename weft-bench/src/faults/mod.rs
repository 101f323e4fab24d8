//! What happens when something fails: rails, peers, time; and what it costs to be
//! ready for that. Each measurement is a process of its own.
//!
//! | | |
//! | --- | --- |
//! | [`rails`] | a rail goes down under a load, and comes back |
//! | [`overload`] | more is submitted than the line carries |
//! | [`kill`] | a peer is killed under a load |
//! | [`reconnect`] | a peer that goes and comes, again and again |
//! | [`crowd`] | a hundred peers that connect at once |
//! | [`footprint`] | memory for each peer, and for each transfer |
//! | [`far`] | a peer in another process, and one to talk with it |

pub mod crowd;
mod far;
pub mod footprint;
pub mod kill;
pub mod overload;
pub mod rails;
pub mod reconnect;

use anyhow::{bail, Context, Result};
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::process::Command;

#[derive(clap::Subcommand)]
pub enum Fault {
    Rails(rails::Spec),
    Overload(overload::Spec),
    Kill(kill::Spec),
    Reconnect(reconnect::Spec),
    Crowd(crowd::Spec),
    Peers(footprint::Peers),
    Transfers(footprint::Transfers),
    /// The other side of some of these: lives until its input ends.
    Far(far::Spec),
}

/// Prints what was measured, as JSON.
pub fn run(fault: &Fault) -> Result<()> {
    match fault {
        Fault::Rails(spec) => tell(&rails::run(spec)?),
        Fault::Overload(spec) => tell(&overload::run(spec)?),
        Fault::Kill(spec) => tell(&kill::run(spec)?),
        Fault::Reconnect(spec) => tell(&reconnect::run(spec)?),
        Fault::Crowd(spec) => tell(&crowd::run(spec)?),
        Fault::Peers(spec) => tell(&footprint::peers(spec)?),
        Fault::Transfers(spec) => tell(&footprint::transfers(spec)?),
        Fault::Far(spec) => far::run(spec),
    }
}

fn tell(report: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(report)?);
    Ok(())
}

/// Measures in a process of its own, over loopback.
pub fn measure<T: DeserializeOwned>(words: &[&str]) -> Result<T> {
    let program = std::env::current_exe().context("finding this program")?;
    let output = Command::new(program).arg("fault").args(words).output().context("starting the process")?;
    if !output.status.success() {
        bail!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("what the process said")
}

/// What a process holds that must not grow.
#[derive(Clone, Copy, Serialize, serde::Deserialize)]
pub struct Holds {
    pub resident: u64,
    /// Bytes that are allocated, as glibc counts them.
    pub allocated: u64,
    pub descriptors: usize,
    pub threads: usize,
}

impl Holds {
    pub fn now() -> Result<Holds> {
        let pages = std::fs::read_to_string("/proc/self/statm").context("reading statm")?;
        let pages: u64 = pages.split(' ').nth(1).and_then(|n| n.parse().ok()).context("statm")?;
        let count = |path| std::fs::read_dir(path).map(Iterator::count);
        // SAFETY: a plain system call.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        // SAFETY: it only reads.
        let heap = unsafe { libc::mallinfo2() };
        Ok(Holds {
            resident: pages * page,
            allocated: (heap.uordblks + heap.hblkhd) as u64,
            descriptors: count("/proc/self/fd")?,
            threads: count("/proc/self/task")?,
        })
    }
}
