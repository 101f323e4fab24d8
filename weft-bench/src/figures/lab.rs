//! Two hosts in network namespaces, joined by rails of a known rate, and the share of the line that
//! the library fills with default settings. At MTU 9000 the headers of Ethernet, IP and TCP leave
//! 0.9927 of the line for payload.

use super::{figures, Bench, Figure};
use crate::lab;
use crate::load::tally::Report;
use crate::process::Part;
use crate::stats::Spread;
use crate::wire::Spec;
use anyhow::{bail, Context, Result};
use std::net::SocketAddr;

/// A network on which plain sockets reach less is unsuitable for measuring Weft.
const LEAST: f64 = 0.95;
/// Bytes that a rail's token bucket holds, in addition to its rate.
const BUCKET: f64 = 262_144.0;

struct Network {
    rails: usize,
    rates: &'static str,
    line_gbps: f64,
    /// All rails are in one subnet, and hosts have this `arp_ignore`.
    subnet: Option<&'static str>,
}

const FOUR: Network = Network { rails: 4, rates: "1gbit,1gbit,1gbit,1gbit", line_gbps: 4.0, subnet: None };
const UNEQUAL: Network =
    Network { rails: 4, rates: "1gbit,1gbit,1gbit,250mbit", line_gbps: 3.25, subnet: None };
const MANY: Network = Network { rails: 32, rates: "100mbit", line_gbps: 3.2, subnet: None };
const SAME: Network = Network { subnet: Some("1"), ..FOUR };
/// Any NIC of a host answers for all.
const SAME_ANY: Network = Network { subnet: Some("0"), ..FOUR };

const LARGE: &str = "--page 64K --pages 1000 --in-flight 4";
const SMALL: &str = "--page 4K --pages 20000 --in-flight 4";
const SMALL_8K: &str = "--page 8K --pages 10000 --in-flight 4";
const SMALL_16K: &str = "--page 16K --pages 5000 --in-flight 4";
const READ: &str = "--page 64K --pages 1000 --in-flight 4 --read";
const READ_4K: &str = "--page 4K --pages 20000 --in-flight 4 --read";
const READ_8K: &str = "--page 8K --pages 10000 --in-flight 4 --read";
const READ_16K: &str = "--page 16K --pages 5000 --in-flight 4 --read";

figures! {
    lab4_line_share ["0.971", "0.989"] |bench| share(bench, &FOUR, LARGE) =>
        "payload over the line of 4 rails of 1 Gbit between two namespaces: random 64 KiB pages";
    lab4_line_share_4k ["0.90", "0.97"] |bench| share(bench, &FOUR, SMALL) =>
        "the same with transfers of 20,000 random 4 KiB pages";
    lab4_line_share_8k ["0.90", "0.97"] |bench| share(bench, &FOUR, SMALL_8K) =>
        "the same with transfers of 10,000 random 8 KiB pages";
    lab4_line_share_16k ["0.90", "0.97"] |bench| share(bench, &FOUR, SMALL_16K) =>
        "the same with transfers of 5,000 random 16 KiB pages";
    lab4_read_share ["0.971", "0.989"] |bench| share(bench, &FOUR, READ) =>
        "payload over the line of 4 rails of 1 Gbit, of reads: random 64 KiB pages";
    lab4_read_share_4k ["0.90", "0.97"] |bench| share(bench, &FOUR, READ_4K) =>
        "the same with transfers of 20,000 random 4 KiB pages";
    lab4_read_share_8k ["0.90", "0.97"] |bench| share(bench, &FOUR, READ_8K) =>
        "the same with transfers of 10,000 random 8 KiB pages";
    lab4_read_share_16k ["0.90", "0.97"] |bench| share(bench, &FOUR, READ_16K) =>
        "the same with transfers of 5,000 random 16 KiB pages";
    lab32_line_share ["0.971", "0.985"] |bench| share(bench, &MANY, LARGE) =>
        "payload over the line of 32 rails of 100 Mbit: random 64 KiB pages";
    lab32_read_share ["0.971", "0.985"] |bench| share(bench, &MANY, READ) =>
        "the same with reads";
    same_subnet_line_share ["0.97", "0.985"] |bench| same_subnet(bench, LARGE) =>
        "payload over the line of 4 rails of 1 Gbit, all in one subnet, with arp_ignore=1: random 64 KiB pages";
    same_subnet_read_share ["0.97", "0.985"] |bench| same_subnet(bench, READ) =>
        "the same with reads";
    lab_unequal_share ["0.960", "0.985"] |bench| share(bench, &UNEQUAL, LARGE) =>
        "payload over the line of 3 rails of 1 Gbit and one of 250 Mbit: random 64 KiB pages";
    lab_unequal_read_share ["0.960", "0.985"] |bench| share(bench, &UNEQUAL, READ) =>
        "the same with reads";
    lab_fairness ["0.90", "0.98"] fairness =>
        "two transfers of 1000 pages of 64 KiB at once over 4 rails of 1 Gbit: the slower one's rate over \
         the faster one's";
    small_behind_big ["under 8", "under 3"] small_behind_big =>
        "time of 64 KiB submitted behind 1 GB on 4 rails of 1 Gbit, over its time alone";
}

fn share(bench: &mut Bench, network: &Network, load: &str) -> Result<f64> {
    let reports = reports(bench, network, load)?;
    let shares = reports.iter().map(|report| report.gbps / network.line_gbps).collect();
    let bytes = Spread::new(reports.iter().map(|report| report.bytes as f64).collect()).median;
    let extra = BUCKET * network.rails as f64 / bytes;
    let share = tell(bench, network, load, "share of the line", shares);
    if let Some(note) = bench.notes.last_mut() {
        *note += &format!("; full token buckets gave {extra:.4} of it at most");
    }
    Ok(share)
}

/// A note has the share with `arp_ignore=0`, where hosts may learn from ARP that one NIC has all addresses.
fn same_subnet(bench: &mut Bench, load: &str) -> Result<f64> {
    share(bench, &SAME_ANY, load)?;
    share(bench, &SAME, load)
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

/// The median, and a note with all values.
fn tell(bench: &mut Bench, network: &Network, load: &str, what: &str, values: Vec<f64>) -> f64 {
    let each: Vec<String> = values.iter().map(|value| format!("{value:.4}")).collect();
    let sockets = sockets(bench, network).unwrap_or(f64::NAN);
    let place = network.subnet.map_or_else(String::new, |arp| format!(" in one subnet, arp_ignore={arp}"));
    bench.notes.push(format!(
        "{} rails of {}{place}, {load}: {what} {}; plain sockets reach {sockets:.4} of the line",
        network.rails,
        network.rates,
        each.join(", ")
    ));
    Spread::new(values).median
}

fn reports(bench: &mut Bench, network: &Network, load: &str) -> Result<Vec<Report>> {
    let reached = sockets(bench, network)?;
    if reached < LEAST {
        bail!("plain sockets reach only {reached:.3} of the line: the machine is too slow or too busy");
    }
    let (runs, seconds) = bench.full_or((3, 5), (1, 2));
    bench.progress.begin(&format!("{} rails of {}, {load}", network.rails, network.rates));
    let mut reports = Vec::new();
    for run in 0..runs {
        bench.progress.at(run, runs);
        let rails = network.rails;
        let options = format!("--provider tcp --rails {rails} --seconds {seconds} {load}");
        let report: Report = network.with(|shape| lab::load(shape, &options))?;
        if report.rails.len() < rails || (report.remote_rails as usize) < rails {
            bail!("{} rails came up here and {} there, of {rails}", report.rails.len(), report.remote_rails);
        }
        reports.push(report);
    }
    Ok(reports)
}

/// The share of the line that plain sockets reach, measured once: whether the links carry their
/// rate. (In one subnet, plain sockets would all use one link: those of others count.)
fn sockets(bench: &mut Bench, network: &Network) -> Result<f64> {
    let share = bench.once(network.rates, |bench| {
        bench.progress.begin(&format!("{} rails of {}, plain sockets", network.rails, network.rates));
        let address = |rail| SocketAddr::from(([10, 77, rail as u8, 2], 4712));
        let addresses: Vec<SocketAddr> = (0..network.rails).map(address).collect();
        let part = |receives| Part::Wire(Spec { receives, addresses: addresses.clone() });
        let apart = Network { subnet: None, ..*network };
        let gbps: f64 = apart.with(|shape| lab::measure(shape, Some(&part(false)), &part(true)))?;
        Ok(gbps / network.line_gbps)
    })?;
    Ok(*share)
}

impl Network {
    fn with<T>(&self, run: impl FnOnce(&[&str]) -> Result<T>) -> Result<T> {
        let rates = if self.rates.contains(',') { "--rates" } else { "--rate" };
        let rails = self.rails.to_string();
        let mut shape = vec!["--rails", &rails, rates, self.rates];
        if let Some(arp_ignore) = self.subnet {
            shape.extend(["--subnet", "--arp-ignore", arp_ignore]);
        }
        run(&shape)
    }
}
