//! What happens when something fails: rails, peers, time; and what it costs to be
//! ready for that. Each measurement is a process of its own.
//!
//! | | |
//! | --- | --- |
//! | [`rails`] | a rail goes down under a load, and comes back |
//! | [`overload`] | more is submitted than the line carries |
//! | [`reconnect`] | a peer that goes and comes, again and again |
//! | [`far`] | peers in another process: one is killed, many connect at once, memory for each |

pub mod far;
pub mod overload;
pub mod rails;
pub mod reconnect;

use anyhow::{Context, Result};
use serde::Serialize;

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
        // SAFETY: the system call takes no pointers.
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
