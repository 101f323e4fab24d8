//! Random input: seeds of the simulated chaos, and the targets of fuzz/; and what fails one by one. Scripts and
//! tests of the source tree run them, and print each figure on one line.

use super::{figure_in, figures, folder, root, said_by, Bench, Figure};
use anyhow::Result;
use std::process::Command;

figures! {
    sim_seeds_passed ["1,000", ""] seeds =>
        "simulated worlds of random operations and faults, one for each seed from 1 on, whose ledgers are \
         right: those of two minutes";
    fuzz_mexecutions ["", ""] fuzz =>
        "million executions of all fuzz targets in two minutes, none of which failed";
    sweep_points ["300", ""] |bench| sweep(bench, "sweep_points") =>
        "steps below the calls of the header that were made to fail, one by one: over host, tcp, and simulated NICs";
    sweep_leaks ["0", ""] |bench| sweep(bench, "sweep_leaks") =>
        "things that were held after one of them, or calls that did not succeed then";
}

/// The test prints both, before it fails for a leak.
fn sweep(bench: &mut Bench, figure: &str) -> Result<f64> {
    let said = bench.once("sweep", |bench| {
        bench.progress.begin("the sweep of failing steps");
        let mut run = Command::new("cargo");
        run.current_dir(root()).args([
            "test",
            "-q",
            "-p",
            "weft-simulated",
            "--test",
            "sweep",
            "--",
            "--nocapture",
        ]);
        let output = run.output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    })?;
    figure_in(&said, figure)
}

fn seconds(bench: &Bench) -> String {
    bench.full_or(120, 10).to_string()
}

fn seeds(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("seeds of simulated chaos");
    let mut script = Command::new(root().join("tools/seeds.sh"));
    let said = said_by(script.arg(folder()?).arg(seconds(bench)))?;
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
