//! How soon a byte is there, and what it costs to be ready for one.

use super::{figure, Bench, Figure};
use crate::hosts;
use crate::load::idle::Report;
use crate::stats::Spread;
use crate::throw::{self, Game};
use anyhow::{anyhow, bail, Context, Result};
use std::rc::Rc;

const RAILS: usize = 32;

/// What two figures are taken from.
pub type Idle = Option<Result<Rc<Report>, String>>;

pub const ALL: &[Figure] = &[
    figure!(
        "pingpong_ratio_tcp",
        "8 bytes there and back over loopback tcp, both sides spinning: Weft's time over that of the fastest bare loop \
         whose writes are known to be delivered",
        "under 1.10",
        "under 1.02",
        |bench| there_and_back(bench, Game::Words)
    ),
    figure!(
        "message_ratio_tcp",
        "a message of 64 bytes there and back over loopback tcp, both sides spinning: Weft's time over that of the \
         fastest bare loop",
        "under 1.25",
        "1.05",
        |bench| there_and_back(bench, Game::Messages)
    ),
    figure!(
        "notify_ratio_tcp",
        "from the submission of a write of 8 bytes to its notification at the target: over the time that a message \
         of 64 bytes of the fastest bare loop takes one way",
        "under 2.5",
        "",
        |bench| there_and_back(bench, Game::Notifications)
    ),
    figure!(
        "idle_core_share",
        "CPU time over time of a process with 32 tcp rails and one peer, while nothing is moved",
        "under 0.02",
        "under 0.005",
        idle_share
    ),
    figure!(
        "idle_wake_us",
        "us from submission to completion of a 4 KiB write on these rails, after a pause",
        "under 1000",
        "under 100",
        idle_wake
    ),
];

/// Both ways take as long, so the ratio is that of one way, too.
fn there_and_back(bench: &mut Bench, game: Game) -> Result<f64> {
    bench.progress.begin("tcp, a few bytes there and back, Weft beside bare loops");
    let (rounds, sessions) = if bench.quick { (40, 2) } else { (240, 4) };
    let outcome = throw::measure(game, rounds, sessions, &bench.progress)?;
    bench.facts.learn(&outcome.facts);
    let ratios = outcome.ratios(|hand| outcome.promises[hand])?;
    let names = outcome.names.iter().enumerate();
    let each: Vec<String> = names.map(|(i, name)| format!("{name} {:.0} ns", outcome.median(i))).collect();
    let mut note = format!(
        "{}, there and back: {}; ratio {:.3} (10 % {:.3}, 90 % {:.3})",
        outcome.provider,
        each.join("; "),
        ratios.median,
        ratios.low,
        ratios.high
    );
    if game == Game::Words {
        let any = outcome.ratios(|_| true)?.median;
        note +=
            &format!(", to the fastest loop that does not ask whether its writes were delivered {any:.3}");
    }
    bench.notes.push(note);
    Ok(ratios.median)
}

fn idle_share(bench: &mut Bench) -> Result<f64> {
    Ok(idle(bench)?.share)
}

fn idle_wake(bench: &mut Bench) -> Result<f64> {
    Ok(Spread::of(idle(bench)?.wake_us.clone()).median)
}

fn idle(bench: &mut Bench) -> Result<Rc<Report>> {
    if bench.idle.is_none() {
        let report = measure_idle(bench).map(Rc::new).map_err(|error| format!("{error:#}"));
        bench.idle = Some(report);
    }
    let report = bench.idle.clone().context("nothing was measured")?;
    report.map_err(|error| anyhow!(error))
}

fn measure_idle(bench: &mut Bench) -> Result<Report> {
    bench.progress.begin("32 tcp rails between two namespaces, idle");
    let (seconds, wakes) = if bench.quick { (3, 20) } else { (10, 50) };
    let left = "serve --once --listen 10.77.0.1:4711";
    let right = format!("idle --connect 10.77.0.1:4711 --rails {RAILS} --seconds {seconds} --wakes {wakes}");
    let report = hosts::run(&["--rails", &RAILS.to_string()], left, &right)?;
    let report: Report = serde_json::from_str(&report).context("the report")?;
    if report.rails < RAILS || (report.remote_rails as usize) < RAILS {
        bail!("{} rails came up here and {} there, of {RAILS}", report.rails, report.remote_rails);
    }
    let (wake, awake) = (Spread::of(report.wake_us.clone()), Spread::of(report.awake_us.clone()));
    bench.notes.push(format!(
        "{RAILS} idle tcp rails for {seconds} s: {:.4} of a core here, {:.4} there; a write of 4 KiB after a pause \
         {:.0} us (10 % {:.0}, 90 % {:.0}), right after another one {:.0} us",
        report.share, report.remote_share, wake.median, wake.low, wake.high, awake.median
    ));
    Ok(report)
}
