//! Both sides in one process, over simulated NICs: what Weft's own code costs.
//! The process is its own, so that tools can be put around it.

mod bare;
mod both;
pub mod calls;
pub mod counts;
mod ends;
pub mod lists;
pub mod profile;

pub use ends::Side;

use anyhow::{bail, Context, Result};
use serde::{Deserialize, Serialize};
use std::process::Command;

/// Transfers of random pages that stay in place.
#[derive(clap::Args, Clone)]
pub struct Drive {
    /// The simulated fabric.
    #[arg(long)]
    pub fabric: String,
    /// Worker threads of the sender; 0: both sides progress as they are polled.
    #[arg(long, default_value_t = 0)]
    pub workers: u32,
    #[arg(long, default_value_t = 4096)]
    pub page: usize,
    /// Pages of a transfer.
    #[arg(long)]
    pub pages: usize,
    #[arg(long)]
    pub transfers: usize,
    /// Transfers under way at once.
    #[arg(long, default_value_t = 4)]
    pub inflight: usize,
    /// The same posts without Weft.
    #[arg(long)]
    pub bare: bool,
}

/// What a drive took, without what came before its first transfer.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Took {
    pub wall_ns: u64,
    /// On their processors, all of the sender's worker threads together.
    pub worker_ns: u64,
}

pub fn run(drive: &Drive) -> Result<()> {
    if drive.pages == 0 || drive.transfers == 0 || drive.inflight == 0 {
        bail!("at least one page, one transfer, one at a time");
    }
    let took = if drive.bare { bare::run(drive)? } else { both::run(drive)? };
    println!("{}", serde_json::to_string(&took)?);
    Ok(())
}

impl Drive {
    pub fn slices(&self) -> f64 {
        (self.pages * self.transfers) as f64
    }

    /// As many transfers of so many times the pages.
    pub fn larger(&self, times: usize) -> Drive {
        Drive { pages: self.pages * times, ..self.clone() }
    }

    /// This program, to run it.
    pub fn command(&self) -> Result<Vec<String>> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut words = vec![program.to_string_lossy().into_owned(), "simulated".into()];
        for (name, value) in [
            ("--fabric", self.fabric.clone()),
            ("--workers", self.workers.to_string()),
            ("--page", self.page.to_string()),
            ("--pages", self.pages.to_string()),
            ("--transfers", self.transfers.to_string()),
            ("--inflight", self.inflight.to_string()),
        ] {
            words.extend([name.to_owned(), value]);
        }
        if self.bare {
            words.push("--bare".into());
        }
        Ok(words)
    }

    /// Runs it in a process of its own.
    pub fn measure(&self) -> Result<Took> {
        let words = self.command()?;
        let output = Command::new(&words[0]).args(&words[1..]).output().context("starting the process")?;
        if !output.status.success() {
            bail!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).context("what the process said")
    }
}
