//! Everything fails at once, between three hosts: what the ledger says in the end.
//! It is made by programs that know only weft.h (tools/chaos.sh of the source tree).

use super::{figure, Bench, Figure};
use anyhow::{anyhow, bail, Context, Result};
use serde::Deserialize;
use std::path::Path;
use std::process::{Command, Stdio};

/// What all figures are taken from.
pub type Run = Option<Result<Ledger, String>>;

#[derive(Clone, Copy, Deserialize)]
pub struct Ledger {
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
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tools/chaos.sh");
const MINUTES: f64 = 10.0;
const MINUTES_QUICK: f64 = 0.5;

pub const ALL: &[Figure] = &[
    figure!(
        "chaos_operations",
        "operations of all kinds between 3 hosts of 4 rails, while links and processes fail for 10 minutes",
        "100,000",
        "",
        |bench| of(bench, |ledger| ledger.operations)
    ),
    figure!(
        "chaos_faults",
        "links down, lossy or slow, hosts cut off, processes killed, stopped, restarted",
        "200",
        "",
        |bench| { of(bench, |ledger| ledger.faults) }
    ),
    figure!(
        "chaos_late",
        "completions more than 0.2 s after their deadline, stalls of the machine subtracted",
        "0",
        "0",
        |bench| { of(bench, |ledger| ledger.late) }
    ),
    figure!("chaos_wrong_bytes", "transfers and messages with a wrong byte", "0", "0", |bench| {
        of(bench, |ledger| ledger.wrong_bytes)
    }),
    figure!(
        "chaos_ghost_writes",
        "memory that changed after a completion, at either end",
        "0",
        "0",
        |bench| { of(bench, |ledger| ledger.ghost_writes) }
    ),
    figure!(
        "chaos_lost_notifications",
        "notifications, messages and counts that did not arrive",
        "0",
        "0",
        |bench| { of(bench, |ledger| ledger.lost_notifications) }
    ),
    figure!(
        "chaos_doubled_notifications",
        "notifications, messages and counts that arrived twice",
        "0",
        "0",
        |bench| { of(bench, |ledger| ledger.doubled_notifications) }
    ),
    figure!(
        "chaos_needless_errors",
        "errors though both ends lived, one rail pair was up throughout, and the deadline was ample",
        "0",
        "0",
        |bench| of(bench, |ledger| ledger.needless_errors)
    ),
];

fn of(bench: &mut Bench, figure: impl Fn(&Ledger) -> f64) -> Result<f64> {
    if bench.chaos.is_none() {
        bench.chaos = Some(play(bench).map_err(|error| format!("{error:#}")));
    }
    let ledger = bench.chaos.clone().context("nothing was played")?;
    Ok(figure(&ledger.map_err(|error| anyhow!(error))?))
}

fn play(bench: &mut Bench) -> Result<Ledger> {
    let minutes = if bench.quick { MINUTES_QUICK } else { MINUTES };
    bench.progress.begin(&format!("{minutes} minutes of chaos between three hosts"));
    let program = std::env::current_exe().context("finding this program")?;
    let folder = program.parent().context("this program is nowhere")?;
    let json = std::env::temp_dir().join(format!("weft-chaos-{}.json", std::process::id()));
    if !Path::new(SCRIPT).exists() {
        bail!("{SCRIPT} is not there: this needs the source tree");
    }
    let output = Command::new(SCRIPT)
        .arg(folder)
        .args([&minutes.to_string(), ""])
        .arg(&json)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {SCRIPT}"))?;
    // It fails, too, where the ledger is not as it should be: that is for the figures to say.
    let text = std::fs::read_to_string(&json);
    let _ = std::fs::remove_file(&json);
    let Ok(text) = text else {
        bail!("no ledger: {}", String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default());
    };
    let ledger: Ledger = serde_json::from_str(&text).context("the ledger")?;
    bench.notes.push(format!(
        "chaos of {minutes} minutes, seed {}: {} operations, {} faults, {} completions missing; the processes stalled \
         for {} ms in all",
        ledger.seed, ledger.operations, ledger.faults, ledger.missing_completions, ledger.stall_ms
    ));
    Ok(ledger)
}
