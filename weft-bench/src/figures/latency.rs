//! How soon a byte arrives, and the cost of being ready for it.

use super::{figures, Bench, Figure};
use crate::engines::throw::{Game, TIMED};
use crate::lab;
use crate::load::idle::{Report, Spec};
use crate::pair::{self, Case, Fabric, Rival};
use crate::process::Part;
use crate::stats::Spread;
use anyhow::{bail, Result};
use std::rc::Rc;

const RAILS: usize = 32;

figures! {
    pingpong_tcp_ratio ["under 1.50", "under 1.20"] |bench| there_and_back(bench, Game::Words) =>
        "8 bytes there and back over loopback tcp, both sides spinning: Weft's time over that of a plain \
         socket";
    message_ratio_tcp ["under 1.25", "1.05"] |bench| there_and_back(bench, Game::Messages) =>
        "a message of 64 bytes there and back over loopback tcp, both sides spinning: Weft's time over that \
         of the fastest bare loop";
    notify_ratio_tcp ["under 2.5", ""] |bench| there_and_back(bench, Game::Notifications) =>
        "from the submission of a write of 8 bytes to its notification at the target: over the time that a \
         message of 64 bytes of the fastest bare loop takes one way";
    idle_core_share ["under 0.02", "under 0.005"] |bench| Ok(idle(bench)?.share) =>
        "CPU time over time of a process with 32 tcp rails and one peer, while nothing is moved";
    idle_wake_us ["under 1000", "under 100"] |bench| Ok(Spread::new(idle(bench)?.wake_us.clone()).median) =>
        "us from submission to completion of a 4 KiB write on these rails, after a pause";
}

/// Both directions take equally long, so the ratio also holds for one direction.
fn there_and_back(bench: &mut Bench, game: Game) -> Result<f64> {
    let mut case = Case::new(Fabric::Tcp, 4096, Rival::Throw(game));
    case.pages = 1;
    (case.pairs, case.sessions) = bench.full_or((240, 4), (40, 2));
    let outcome = pair::measure(&case, &bench.progress)?;
    bench.facts.learn(&outcome.facts);
    let ratios = outcome.ratios_to_fastest()?;
    let kinds = outcome.kinds.iter().enumerate();
    let ns = |engine| outcome.median_ns(engine) / TIMED as f64;
    let each: Vec<String> = kinds.map(|(i, kind)| format!("{} {:.0} ns", kind.name(), ns(i))).collect();
    bench.notes.push(format!(
        "{}, there and back: {}; ratio {:.3} (10 % {:.3}, 90 % {:.3})",
        outcome.provider,
        each.join("; "),
        ratios.median,
        ratios.low,
        ratios.high
    ));
    Ok(ratios.median)
}

fn idle(bench: &mut Bench) -> Result<Rc<Report>> {
    bench.once("idle", measure_idle)
}

fn measure_idle(bench: &mut Bench) -> Result<Report> {
    bench.progress.begin("32 tcp rails between two namespaces, idle");
    let (seconds, wakes) = bench.full_or((10.0, 50), (3.0, 20));
    let right = Part::Idle(Spec { connect: lab::PLACE.into(), rails: RAILS as u32, seconds, wakes });
    let report: Report = lab::measure(&["--rails", &RAILS.to_string()], None, &right)?;
    if report.rails < RAILS || (report.remote_rails as usize) < RAILS {
        bail!("{} rails came up here and {} there, of {RAILS}", report.rails, report.remote_rails);
    }
    let (wake, awake) = (Spread::new(report.wake_us.clone()), Spread::new(report.awake_us.clone()));
    bench.notes.push(format!(
        "{RAILS} idle tcp rails for {seconds} s: {:.4} of a core here, {:.4} there; a write of 4 KiB after a pause \
         {:.0} us (10 % {:.0}, 90 % {:.0}), right after another one {:.0} us",
        report.share, report.remote_share, wake.median, wake.low, wake.high, awake.median
    ));
    Ok(report)
}
