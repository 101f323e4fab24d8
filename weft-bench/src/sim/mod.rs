//! Both sides in one process, over simulated NICs: the cost of Weft's own code. The process is
//! separate, so that tools can run it.

mod bare;
mod both;
pub mod calls;
pub mod counts;
mod ends;
pub mod lists;
pub mod metrics;
pub mod profile;

use crate::process::Part;
use anyhow::Result;
use serde::{Deserialize, Serialize};

/// Transfers of random pages, whose bytes are not copied.
#[derive(Clone, Serialize, Deserialize)]
pub struct Drive {
    /// The simulated fabric.
    pub fabric: String,
    /// Worker threads of the sender; 0: manual progress on both sides.
    pub workers: u32,
    pub page: usize,
    /// Pages per transfer.
    pub pages: usize,
    pub transfers: usize,
    /// Transfers in flight.
    pub inflight: usize,
    /// The same posts without Weft.
    pub bare: bool,
}

/// What a drive cost, without what preceded its first transfer.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Took {
    pub wall_ns: u64,
    /// Processor time of all the sender's worker threads.
    pub worker_ns: u64,
}

pub fn run(drive: &Drive) -> Result<Took> {
    if drive.bare {
        bare::run(drive)
    } else {
        both::run(drive)
    }
}

impl Drive {
    pub fn slices(&self) -> f64 {
        (self.pages * self.transfers) as f64
    }

    /// The same number of transfers, with this many times the pages.
    pub fn larger(&self, times: usize) -> Drive {
        Drive { pages: self.pages * times, ..self.clone() }
    }

    pub fn part(&self) -> Part {
        Part::Simulated(self.clone())
    }
}
