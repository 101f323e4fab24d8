//! `weft-bench topo`: the machine as a tree, and the rails that Weft would open.

use super::Args;
use crate::endpoint::check;
use crate::tree::{self, Machine};
use anyhow::{bail, Context, Result};
use std::path::PathBuf;
use weft::capi::status::WEFT_ERR_TOO_SMALL;
use weft::capi::topology::weft_topology;

pub const HELP: &str = "\
Shows the machine as Weft sees it: NUMA nodes, PCI switches, GPUs and NICs, which rails an endpoint opens by default,
and where its workers run. CUDA_VISIBLE_DEVICES, WEFT_RAILS and the affinity mask (taskset) count.

  --sysfs DIR  a folder that stands for /, with another machine's sys/ and proc/ in it
  --json       print it as JSON: docs/topology.md
";

pub fn run(mut args: Args) -> Result<()> {
    let (sysfs, as_json) = (args.maybe::<PathBuf>("--sysfs")?, args.has("--json"));
    args.end()?;
    if let Some(folder) = &sysfs {
        if !folder.join("sys").is_dir() && !folder.join("proc").is_dir() {
            bail!("{} has neither sys/ nor proc/ in it: name the folder that stands for /", folder.display());
        }
        std::env::set_var("WEFT_SYSFS_ROOT", folder);
    }
    let json = topology()?;
    if as_json {
        println!("{json}");
        return Ok(());
    }
    let machine: Machine = serde_json::from_str(&json).context("what weft_topology wrote")?;
    print!("{}", tree::draw(&machine));
    Ok(())
}

fn topology() -> Result<String> {
    let mut bytes = vec![0u8; 64 << 10];
    loop {
        let mut len = 0;
        // SAFETY: the caller passes a buffer with its size, and space for the length.
        let status = unsafe { weft_topology(bytes.as_mut_ptr().cast(), bytes.len(), &mut len) };
        if status == WEFT_ERR_TOO_SMALL {
            bytes.resize(2 * len, 0);
            continue;
        }
        check("weft_topology", status)?;
        bytes.truncate(len);
        return String::from_utf8(bytes).context("weft_topology's text");
    }
}
