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
        let heap = heap();
        Ok(Holds {
            resident: pages * page,
            allocated: heap.map_or(0, |heap| (heap.uordblks + heap.hblkhd) as u64),
            descriptors: count("/proc/self/fd")?,
            threads: count("/proc/self/task")?,
        })
    }
}

/// What glibc counts from 2.33 on; a weft-bench that is packed runs with older ones, too.
fn heap() -> Option<libc::mallinfo2> {
    // SAFETY: the name ends with a NUL; the function of this name has this type, takes nothing and only reads.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"mallinfo2".as_ptr());
        let counted: Option<unsafe extern "C" fn() -> libc::mallinfo2> = std::mem::transmute(found);
        counted.map(|count| count())
    }
}
