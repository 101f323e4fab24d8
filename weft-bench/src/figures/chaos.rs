//! Everything fails at once, between three hosts: the ledger's result. Programs that know only
//! weft.h do it (tools/chaos.sh of the source tree).

use super::{figures, folder, root, Bench, Figure};
use anyhow::{bail, Context, Result};
use serde::Deserialize;
use std::process::{Command, Stdio};

#[derive(Deserialize)]
struct Ledger {
    seed: u64,
    operations: f64,
    faults: f64,
    missing_completions: f64,
    late: f64,
    wrong_bytes: f64,
    ghost_writes: f64,
    lost_notifications: f64,
    doubled_notifications: f64,
    needless_errors: f64,
    stall_ms: f64,
    worker_pass_us_worst: f64,
    clock_jump_us_worst: f64,
    driver_call_us_worst: f64,
}

const SCRIPT: &str = "tools/chaos.sh";

figures! {
    chaos_operations ["100,000", ""] |bench| ledger(bench, |ledger| ledger.operations) =>
        "operations of all kinds between 3 hosts of 4 rails, while links and processes fail for 10 minutes";
    chaos_faults ["200", ""] |bench| ledger(bench, |ledger| ledger.faults) =>
        "links down, lossy or slow, hosts cut off, processes killed, stopped, restarted";
    chaos_late ["0", "0"] |bench| ledger(bench, |ledger| ledger.late) =>
        "completions more than 0.2 s after their deadline, stalls of the machine subtracted";
    chaos_wrong_bytes ["0", "0"] |bench| ledger(bench, |ledger| ledger.wrong_bytes) =>
        "transfers and messages with a wrong byte";
    chaos_ghost_writes ["0", "0"] |bench| ledger(bench, |ledger| ledger.ghost_writes) =>
        "memory that changed after a completion, at either end";
    chaos_lost_notifications ["0", "0"] |bench| ledger(bench, |ledger| ledger.lost_notifications) =>
        "notifications, messages and counts that did not arrive";
    chaos_doubled_notifications ["0", "0"] |bench| ledger(bench, |ledger| ledger.doubled_notifications) =>
        "notifications, messages and counts that arrived twice";
    chaos_needless_errors ["0", "0"] |bench| ledger(bench, |ledger| ledger.needless_errors) =>
        "errors though both ends lived, one rail pair was up throughout, and the deadline was ample";
    worker_pass_ms_worst ["5", ""] |bench| ledger(bench, |ledger| ledger.worker_pass_us_worst / 1e3) =>
        "the longest pass of a worker there, in ms of its thread's own time without long calls into drivers";
}

fn ledger(bench: &mut Bench, figure: impl Fn(&Ledger) -> f64) -> Result<f64> {
    Ok(figure(&*bench.once("chaos", play)?))
}

fn play(bench: &mut Bench) -> Result<Ledger> {
    let minutes = bench.full_or(10.0, 0.5);
    bench.progress.begin(&format!("{minutes} minutes of chaos between three hosts"));
    let script = root().join(SCRIPT);
    let json = std::env::temp_dir().join(format!("weft-chaos-{}.json", std::process::id()));
    if !script.exists() {
        bail!("{SCRIPT} is not there: this needs the source tree");
    }
    let output = Command::new(&script)
        .arg(folder()?)
        .args([&minutes.to_string(), ""])
        .arg(&json)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {SCRIPT}"))?;
    // The script also fails if the ledger is wrong, which the figures report.
    let text = std::fs::read_to_string(&json);
    let _ = std::fs::remove_file(&json);
    let Ok(text) = text else {
        bail!("no ledger: {}", String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default());
    };
    let ledger: Ledger = serde_json::from_str(&text).context("the ledger")?;
    bench.notes.push(format!(
        "chaos of {minutes} minutes, seed {}: {} operations, {} faults, {} completions missing; the processes stalled \
         for {} ms in all; the longest call of a worker into a driver took {} us; a thread that only \
         reads its own clock, for a twentieth of the time, saw steps of up to {} us",
        ledger.seed,
        ledger.operations,
        ledger.faults,
        ledger.missing_completions,
        ledger.stall_ms,
        ledger.driver_call_us_worst,
        ledger.clock_jump_us_worst
    ));
    Ok(ledger)
}
