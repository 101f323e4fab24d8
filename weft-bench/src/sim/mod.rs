//! Both sides in one process, over simulated NICs: what Weft's own code costs.
//! The process is its own, so that tools can be put around it.

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

/// Transfers of random pages that stay in place.
#[derive(Clone, Serialize, Deserialize)]
pub struct Drive {
    /// The simulated fabric.
    pub fabric: String,
    /// Worker threads of the sender; 0: both sides progress as they are polled.
    pub workers: u32,
    pub page: usize,
    /// Pages of a transfer.
    pub pages: usize,
    pub transfers: usize,
    /// Transfers under way at once.
    pub inflight: usize,
    /// The same posts without Weft.
    pub bare: bool,
}

/// What a drive took, without what came before its first transfer.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Took {
    pub wall_ns: u64,
    /// On their processors, all of the sender's worker threads together.
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

    /// As many transfers of so many times the pages.
    pub fn larger(&self, times: usize) -> Drive {
        Drive { pages: self.pages * times, ..self.clone() }
    }

    pub fn part(&self) -> Part {
        Part::Simulated(self.clone())
    }
}
