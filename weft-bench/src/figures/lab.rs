//! Two hosts in network namespaces, joined by rails of a known rate, and the share
//! of the line that the library fills as a user would run it. At MTU 9000 the
//! headers of Ethernet, IP and TCP leave 0.9927 of the line for payload.

use super::{figure, Bench, Figure};
use crate::hosts;
use crate::load::tally::Report;
use crate::stats::Spread;
use anyhow::{bail, Context, Result};
use std::collections::HashMap;

/// Of each network that was tried: its share of the line with plain sockets.
pub type Checked = HashMap<String, f64>;

/// A network on which plain sockets reach less says nothing about Weft.
const LEAST: f64 = 0.95;
/// Bytes that a rail's token bucket holds, beyond its rate.
const BUCKET: f64 = 262_144.0;

struct Network {
    rails: usize,
    rates: &'static str,
    line_gbps: f64,
}

const FOUR: Network = Network { rails: 4, rates: "1gbit,1gbit,1gbit,1gbit", line_gbps: 4.0 };
const UNEQUAL: Network = Network { rails: 4, rates: "1gbit,1gbit,1gbit,250mbit", line_gbps: 3.25 };
const MANY: Network = Network { rails: 32, rates: "100mbit", line_gbps: 3.2 };

const LARGE: &str = "--page 64K --pages 1000 --in-flight 4";
const SMALL: &str = "--page 4K --pages 20000 --in-flight 4";

pub const ALL: &[Figure] = &[
    figure!(
        "lab4_line_share",
        "payload over the line of 4 rails of 1 Gbit between two namespaces: random 64 KiB pages",
        "0.971",
        "0.989",
        |bench| share(bench, &FOUR, LARGE)
    ),
    figure!(
        "lab4_line_share_4k",
        "the same with transfers of 20,000 random 4 KiB pages",
        "0.90",
        "0.97",
        |bench| share(bench, &FOUR, SMALL)
    ),
    figure!(
        "lab32_line_share",
        "payload over the line of 32 rails of 100 Mbit: random 64 KiB pages",
        "0.971",
        "0.985",
        |bench| share(bench, &MANY, LARGE)
    ),
    figure!(
        "lab_unequal_share",
        "payload over the line of 3 rails of 1 Gbit and one of 250 Mbit: random 64 KiB pages",
        "0.960",
        "0.985",
        |bench| share(bench, &UNEQUAL, LARGE)
    ),
    figure!(
        "lab_fairness",
        "two transfers of 1000 pages of 64 KiB at once over 4 rails of 1 Gbit: the slower one's rate over the faster one's",
        "0.90",
        "0.98",
        fairness
    ),
    figure!(
        "small_behind_big",
        "time of 64 KiB submitted behind 1 GB on 4 rails of 1 Gbit, over its time alone",
        "under 8",
        "under 3",
        small_behind_big
    ),
];

fn share(bench: &mut Bench, network: &Network, load: &str) -> Result<f64> {
    let reports = reports(bench, network, load)?;
    let shares = reports.iter().map(|report| report.gbps / network.line_gbps).collect();
    let bytes = Spread::of(reports.iter().map(|report| report.bytes as f64).collect()).median;
    let extra = BUCKET * network.rails as f64 / bytes;
    let share = tell(bench, network, load, "share of the line", shares);
    if let Some(note) = bench.notes.last_mut() {
        *note += &format!("; full token buckets gave {extra:.4} of it at most");
    }
    Ok(share)
}

fn fairness(bench: &mut Bench) -> Result<f64> {
    let load = "--page 64K --pages 1000 --in-flight 2 --together";
    let reports = reports(bench, &FOUR, load)?;
    let values: Option<Vec<f64>> = reports.iter().map(|report| report.evenness).collect();
    Ok(tell(bench, &FOUR, load, "slowest over fastest", values.context("no two transfers ended")?))
}

fn small_behind_big(bench: &mut Bench) -> Result<f64> {
    let load = "--page 64K --pages 16384 --in-flight 1 --small 64K";
    let reports = reports(bench, &FOUR, load)?;
    let mut ratios = Vec::new();
    for report in &reports {
        let small = report.small.as_ref().context("no small transfer ended")?;
        bench.notes.push(format!(
            "64 KiB: {:.0} us behind 1 GB, {:.0} us alone (the median of {}, and the mean)",
            small.beside_us, small.alone_us, small.count
        ));
        ratios.push(small.beside_us / small.alone_us);
    }
    Ok(tell(bench, &FOUR, load, "ratio", ratios))
}

/// The median, and a note that tells all of them.
fn tell(bench: &mut Bench, network: &Network, load: &str, what: &str, values: Vec<f64>) -> f64 {
    let each: Vec<String> = values.iter().map(|value| format!("{value:.4}")).collect();
    let sockets = bench.lab.get(network.rates).copied().unwrap_or(f64::NAN);
    bench.notes.push(format!(
        "{} rails of {}, {load}: {what} {}; plain sockets reach {sockets:.4} of the line",
        network.rails,
        network.rates,
        each.join(", ")
    ));
    Spread::of(values).median
}

fn reports(bench: &mut Bench, network: &Network, load: &str) -> Result<Vec<Report>> {
    check(bench, network)?;
    let (runs, seconds) = if bench.quick { (1, 2) } else { (3, 5) };
    bench.progress.begin(&format!("{} rails of {}, {load}", network.rails, network.rates));
    let mut reports = Vec::new();
    for run in 0..runs {
        bench.progress.at(run, runs);
        let rails = network.rails;
        let right = format!(
            "run --connect 10.77.0.1:4711 --provider tcp --rails {rails} --seconds {seconds} --json - {load}"
        );
        let report = network.run("serve --once --listen 10.77.0.1:4711", &right)?;
        let report: Report = serde_json::from_str(&report).context("the report")?;
        if report.rails.len() < rails || (report.remote_rails as usize) < rails {
            bail!("{} rails came up here and {} there, of {rails}", report.rails.len(), report.remote_rails);
        }
        reports.push(report);
    }
    Ok(reports)
}

/// Looks once whether the links carry what they should.
fn check(bench: &mut Bench, network: &Network) -> Result<()> {
    if !bench.lab.contains_key(network.rates) {
        bench.progress.begin(&format!("{} rails of {}, plain sockets", network.rails, network.rates));
        let all = |port| {
            let each: Vec<String> = (0..network.rails).map(|rail| format!("10.77.{rail}.2:{port}")).collect();
            each.join(",")
        };
        let gbps =
            network.run(&format!("wire send {}", all(4712)), &format!("wire receive {}", all(4712)))?;
        let gbps: f64 = gbps.trim().parse().context("the sockets' rate")?;
        bench.lab.insert(network.rates.to_owned(), gbps / network.line_gbps);
    }
    let reached = bench.lab[network.rates];
    if reached < LEAST {
        bail!("plain sockets reach only {reached:.3} of the line: the machine is too slow or too busy");
    }
    Ok(())
}

impl Network {
    fn run(&self, left: &str, right: &str) -> Result<String> {
        let rates = match self.rates.contains(',') {
            true => "--rates",
            false => "--rate",
        };
        hosts::run(&["--rails", &self.rails.to_string(), rates, self.rates], left, right)
    }
}
