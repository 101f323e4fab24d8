//! The cost of failing rails and peers, and the memory held for them.

use super::{figures, Bench, Figure};
use crate::faults::far::{self, IN_FLIGHT};
use crate::faults::{overload, rails, reconnect};
use crate::lab;
use crate::process::Part;
use crate::stats::Spread;
use anyhow::{ensure, Result};

/// Four rails of 1 Gbit.
const FOUR: [&str; 4] = ["--rails", "4", "--rate", "1gbit"];
/// The same, all in one subnet.
const SAME: [&str; 5] = ["--rails", "4", "--rate", "1gbit", "--subnet"];
/// Endpoints of one process, limited by the peer's threads and memory.
const PEERS: usize = 100;
const TRANSFERS: usize = 10_000;
const RECONNECTS: usize = 1000;
/// Afterwards the allocators have warmed up.
const FIRST: usize = 100;

figures! {
    failover_ms ["under 1000", "200"] |bench| median_of(bench, false, |report| report.failover_ms) =>
        "ms from the end of one link of 4 of 1 Gbit between two namespaces until the other three carry all \
         they can";
    failover_read_ms ["under 1000", "200"] |bench| median_of(bench, true, |report| report.failover_ms) =>
        "the same with reads";
    rail3of4_share ["0.96", "0.985"] |bench| median_of(bench, false, |report| report.share) =>
        "payload over the line of the 3 rails that are left: random 64 KiB pages";
    rail3of4_read_share ["0.96", "0.985"] |bench| median_of(bench, true, |report| report.share) =>
        "the same with reads";
    rejoin_ms ["", ""] |bench| median_of(bench, false, |report| report.rejoin_ms) =>
        "ms from the link's return, 4 s later, until the rail is used";
    same_subnet_failover_ms ["under 1000", "200"] same_subnet =>
        "ms from the cut of one cable of 4 NICs of 1 Gbit in one subnet until the other three carry all they \
         can: the initiator's cable or the target's, the slower one";
    kill_to_last_completion_ms ["under 1000", ""] |bench| killed(bench, false) =>
        "ms from the SIGKILL of a peer over tcp until the last of 64 transfers with deadlines of 5 s has \
         ended";
    kill_to_last_read_ms ["under 1000", ""] |bench| killed(bench, true) =>
        "the same with reads";
    overload_goodput ["0.8", ""] overloaded =>
        "payload of transfers of 1 MiB that end within their deadline of 1 s, over the line of 4 rails of 1 \
         Gbit, when 1.5 times the line is submitted";
    reconnect_1000_rss_growth_kb ["0", ""] reconnected =>
        "KiB that a process has grown by after a peer over tcp went and came a thousand times; both are in \
         it";
    crowd_100_ms ["under 500", "200"] |bench| crowded(bench, "crowd_100_ms", |report| report.0) =>
        "ms until the last of 100 peers over tcp that connect at once, beside writes, is up";
    crowd_100_share ["0.9", ""] |bench| crowded(bench, "crowd_100_share", |report| report.1) =>
        "of the writes under way then: how many end in those 2 s, over the 2 s before";
    bytes_per_peer ["under 20000", ""] bytes_per_peer =>
        "resident bytes of a process for each of 100 peers over one rail of tcp";
    bytes_per_transfer ["", ""] bytes_per_transfer =>
        "resident bytes of a process for each of 10,000 transfers of 64 KiB that are under way";
}

fn bytes_per_peer(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("peers over tcp");
    Ok(beside_another(far::Spec::Peers(bench.full_or(PEERS, PEERS / 10)))?.0)
}

fn bytes_per_transfer(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("transfers to a peer that has stopped");
    Ok(beside_another(far::Spec::Transfers(TRANSFERS))?.0)
}

fn beside_another(spec: far::Spec) -> Result<far::Report> {
    Part::Far(spec).measure()
}

fn median_of(bench: &mut Bench, read: bool, value: impl Fn(&rails::Report) -> f64) -> Result<f64> {
    let name = if read { "rails, reads" } else { "rails" };
    let reports = bench.once(name, |bench| fail_rails(bench, read))?;
    Ok(Spread::new(reports.iter().map(value).collect()).median)
}

fn fail_rails(bench: &mut Bench, read: bool) -> Result<Vec<rails::Report>> {
    let runs = bench.full_or(5, 1);
    bench.progress.begin("4 rails of 1 Gbit, of which one goes down and comes back");
    let mut reports = Vec::new();
    for run in 0..runs {
        bench.progress.at(run, runs);
        let (connect, interface) = (lab::PLACE.into(), "rail1".into());
        let part = Part::Rails(rails::Spec { connect, rails: 4, line: 1e9, interface, port: None, read });
        let report: rails::Report = lab::measure(&FOUR, None, &part)?;
        bench.notes.push(format!(
            "one of 4 rails goes down for 4 s{}: the others at full rate after {:.0} ms, no byte at all for {:.0} ms, \
             share {:.4}; used again {:.0} ms after its return",
            if read { ", beside reads" } else { "" },
            report.failover_ms,
            report.silence_ms,
            report.share,
            report.rejoin_ms
        ));
        reports.push(report);
    }
    Ok(reports)
}

fn same_subnet(bench: &mut Bench) -> Result<f64> {
    let runs = bench.full_or(3, 1);
    bench.progress.begin("4 NICs of one subnet, of which one loses its cable");
    let mut worst: f64 = 0.0;
    for (port, whose) in [("right1", "the initiator's"), ("left1", "the target's")] {
        let mut times = Vec::new();
        for run in 0..runs {
            bench.progress.at(run, runs);
            let (connect, interface, port) = (lab::PLACE.into(), "rail1".into(), Some(port.to_owned()));
            let part =
                Part::Rails(rails::Spec { connect, rails: 4, line: 1e9, interface, port, read: false });
            let report: rails::Report = lab::measure(&SAME, None, &part)?;
            bench.notes.push(format!(
                "one of 4 NICs of one subnet loses its cable ({whose}): the others at full rate after {:.0} ms, \
                 share {:.4}; used again {:.0} ms after its return",
                report.failover_ms, report.share, report.rejoin_ms
            ));
            times.push(report.failover_ms);
        }
        worst = worst.max(Spread::new(times).median);
    }
    Ok(worst)
}

fn killed(bench: &mut Bench, read: bool) -> Result<f64> {
    let runs = bench.full_or(5, 1);
    bench.progress.begin("a peer that is killed");
    let mut times = Vec::new();
    for run in 0..runs {
        bench.progress.at(run, runs);
        let (ms, failed) = beside_another(far::Spec::Killed { read })?;
        bench.notes.push(format!(
            "a peer is killed: of {IN_FLIGHT} {} under way {failed} failed, the last after {ms:.1} ms",
            if read { "reads" } else { "writes" }
        ));
        times.push(ms);
    }
    Ok(Spread::new(times).high)
}

fn crowded(bench: &mut Bench, name: &str, value: impl Fn(far::Report) -> f64) -> Result<f64> {
    let runs = bench.full_or(5, 1);
    bench.progress.begin("a hundred peers that connect at once");
    let (mut here, mut elsewhere) = (Vec::new(), Vec::new());
    for run in 0..runs {
        bench.progress.at(run, runs);
        here.push(value(beside_another(far::Spec::Crowd { count: 100, elsewhere: false })?));
        elsewhere.push(value(beside_another(far::Spec::Crowd { count: 100, elsewhere: true })?));
    }
    let (here, elsewhere) = (Spread::new(here).median, Spread::new(elsewhere).median);
    bench.notes.push(format!(
        "{name}: {here:.3}; where the hundred connect to another endpoint, on the same processors: {elsewhere:.3}"
    ));
    Ok(here)
}

fn overloaded(bench: &mut Bench) -> Result<f64> {
    let seconds = bench.full_or(60.0, 10.0);
    bench.progress.begin("4 rails of 1 Gbit, and half as much again");
    let connect = lab::PLACE.into();
    let spec = overload::Spec { connect, rails: 4, line: 4e9, load: 1.5, seconds, pages: 16 };
    let report: overload::Report = lab::measure(&FOUR, None, &Part::Overload(spec))?;
    bench.notes.push(format!(
        "1.5 times the line for {seconds} s: goodput {:.3}; completions by status {:?}, {} submissions refused",
        report.goodput, report.ended, report.refused
    ));
    Ok(report.goodput)
}

fn reconnected(bench: &mut Bench) -> Result<f64> {
    bench.progress.begin("a peer that goes and comes");
    let times = bench.full_or(RECONNECTS, RECONNECTS / 10);
    let mut grown = 0.0;
    for anew in [true, false] {
        let (first, times) = if anew { (FIRST / 10, times / 10) } else { (FIRST, times) };
        let part = Part::Reconnect(reconnect::Spec { first, times, anew });
        let reconnect::Report { before, after } = part.measure()?;
        grown = (after.resident as f64 - before.resident as f64) / 1024.0;
        bench.notes.push(format!(
            "{times} {}: {} KiB resident before and {} after (allocated: {} and {}), {} descriptors and {}, {} threads and {}",
            if anew { "peers, each a new endpoint" } else { "reconnects" },
            before.resident >> 10,
            after.resident >> 10,
            before.allocated >> 10,
            after.allocated >> 10,
            before.descriptors,
            after.descriptors,
            before.threads,
            after.threads
        ));
        ensure!(after.descriptors <= before.descriptors, "descriptors leak: {}", after.descriptors);
        ensure!(after.threads <= before.threads, "threads leak: {}", after.threads);
    }
    Ok(grown)
}
