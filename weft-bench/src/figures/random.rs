//! What random input does: seeds of the simulated chaos, and the targets of fuzz/.
//! Both are played by scripts of the source tree, which say the figure in a line.

use super::{figure, figure_in, root, said_by, Bench, Figure};
use anyhow::{Context, Result};
use std::process::Command;

const SECONDS: u32 = 120;
const SECONDS_QUICK: u32 = 10;

pub const ALL: &[Figure] = &[
    figure!(
        "sim_seeds_passed",
        "simulated worlds of random operations and faults, one for each seed from 1 on, whose ledgers are right: those \
         of two minutes",
        "1,000",
        "",
        seeds
    ),
    figure!(
        "fuzz_mexecutions",
        "million executions of all fuzz targets in two minutes, none of which failed",
        "",
        "",
        fuzz
    ),
];

fn seconds(bench: &Bench) -> String {
    if bench.quick { SECONDS_QUICK } else { SECONDS }.to_string()
}

fn seeds(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("seeds of simulated chaos");
    let program = std::env::current_exe().context("finding this program")?;
    let folder = program.parent().context("this program is nowhere")?;
    let mut script = Command::new(root().join("tools/seeds.sh"));
    let said = said_by(script.arg(folder).arg(seconds(bench)))?;
    figure_in(&said, "sim_seeds_passed")
}

fn fuzz(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("all targets of fuzz/");
    let mut script = Command::new(root().join("tools/fuzz.sh"));
    // A measurement installs nothing.
    let said = said_by(script.arg(seconds(bench)).env("WEFT_NO_INSTALL", "1"))?;
    let targets: Vec<&str> = said.lines().filter(|line| line.ends_with(" executions")).collect();
    bench.notes.push(format!(
        "fuzz_mexecutions: {} targets in {} s: {}",
        targets.len(),
        seconds(bench),
        targets.join(", ")
    ));
    figure_in(&said, "fuzz_mexecutions")
}
