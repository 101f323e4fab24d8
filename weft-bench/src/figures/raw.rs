//! Weft compared with bare libfabric and a plain socket, on this machine's loopback.

use super::{figures, left, Bench, Figure};
use crate::pair::{self, Case, Fabric, Outcome, Rival};
use crate::stats::Spread;
use anyhow::{ensure, Context, Result};
use std::rc::Rc;

/// A measurement that several figures may share.
type Key = (Fabric, usize, Rival);

use Fabric::Tcp;
use Rival::{Encrypted, Itself, Reads, Socket, Streams, Weft};
const LARGE: usize = 65536;
const SMALL: usize = 4096;
const ITSELF: [Key; 2] = [(Tcp, LARGE, Itself), (Tcp, SMALL, Itself)];

figures! {
    tcp_64k_of_socket ["0.95", "1.00"] |bench| ratio(bench, (Tcp, LARGE, Socket)) =>
        "throughput of writes over a plain socket's, which sends many pages a call: random 64 KiB pages, reno, \
         MTU 9000";
    tcp_4k_of_socket ["0.85", "1.00"] |bench| ratio(bench, (Tcp, SMALL, Socket)) =>
        "the same with pages of 4 KiB";
    tcp_read_64k_of_write ["0.95", "1.00"] |bench| ratio(bench, (Tcp, LARGE, Reads)) =>
        "throughput of reads over that of writes: random 64 KiB pages over tcp";
    tcp_read_4k_of_write ["0.95", "1.00"] |bench| ratio(bench, (Tcp, SMALL, Reads)) =>
        "the same with pages of 4 KiB";
    tcp_64k_of_libfabric ["1.15", "1.30"] |bench| ratio(bench, (Tcp, LARGE, Weft)) =>
        "throughput of writes over that of a bare loop over libfabric's tcp: random 64 KiB pages";
    tcp_4k_of_libfabric ["5.0", "8.0"] |bench| ratio(bench, (Tcp, SMALL, Weft)) =>
        "the same with pages of 4 KiB";
    tcp_streams ["1.6", "3.0"] tcp_streams =>
        "throughput of 4 streams over that of one, with worker threads: random 64 KiB pages over tcp, on 16 \
         processors or more";
    tcp_cpu_per_gb ["under 1.10", "1.00"] tcp_cpu =>
        "CPU time of both sides, with worker threads, for random 64 KiB pages: over that of a plain socket \
         that sleeps";
    tcp_sealed_share ["0.35", "0.60"] |bench| ratio(bench, (Tcp, LARGE, Encrypted)) =>
        "throughput of encrypted writes over those in the clear: random 64 KiB pages over tcp";
    tcp_netem_verified ["0.8", ""] lossy =>
        "throughput of writes over a plain socket's, 1 % of packets lost and 10 ms there and back, bytes verified: \
         median of 9 in turns; of the last make test-netem where this kernel has no netem";
    raw_self_ratio ["0.98 to 1.02", "1.00"] self_ratio =>
        "the bare loop over a second one, by the same procedure: of 64 KiB and 4 KiB pages, the one farther \
         from 1";
    raw_tcp_64k_gbs ["", ""] |bench| bare_gbs(bench, Tcp, LARGE) =>
        "GB/s of the bare loop: 64 KiB, tcp";
    raw_tcp_4k_gbs ["", ""] |bench| bare_gbs(bench, Tcp, SMALL) =>
        "GB/s of the bare loop: 4 KiB, tcp";
    socket_64k_gbs ["", ""] |bench| socket_gbs(bench, LARGE) =>
        "GB/s of a plain TCP socket: 64 KiB pages";
    socket_4k_gbs ["", ""] |bench| socket_gbs(bench, SMALL) =>
        "GB/s of a plain TCP socket: 4 KiB pages";
}

fn outcome(bench: &mut Bench, key: Key) -> Result<Rc<Outcome>> {
    let (fabric, page_len, rival) = key;
    let mut case = Case::new(fabric, page_len, rival);
    (case.pairs, case.sessions) = bench.full_or((case.pairs, case.sessions), (60, 2));
    bench.once(&case.to_string(), |bench| measure(bench, &case))
}

/// Measures a case, and notes it.
pub fn measure(bench: &mut Bench, case: &Case) -> Result<Outcome> {
    let outcome = pair::measure(case, &bench.progress)?;
    bench.facts.learn(&outcome.facts);
    let kinds = outcome.kinds.iter().enumerate();
    let rate = |i| Spread::new(outcome.rates(i)).median;
    let rates: Vec<String> = kinds.map(|(i, kind)| format!("{} {:.3} GB/s", kind.name(), rate(i))).collect();
    let Spread { median, low, high } = Spread::new(outcome.ratios());
    bench.notes.push(format!(
        "{case}: {}, ratio {median:.4} (10 % {low:.3}, 90 % {high:.3}); {}",
        rates.join(", "),
        outcome.tuning
    ));
    Ok(outcome)
}

fn ratio(bench: &mut Bench, key: Key) -> Result<f64> {
    Ok(Spread::new(outcome(bench, key)?.ratios()).median)
}

/// Each of the 4 has a worker on both sides, and others spin at the same time.
fn tcp_streams(bench: &mut Bench) -> Result<f64> {
    let processors = std::thread::available_parallelism()?.get();
    ensure!(processors >= 16, "4 streams are measured on 16 processors or more, and here are {processors}");
    let mut case = Case::new(Tcp, LARGE, Streams);
    (case.threads, case.at_once) = (true, 4);
    (case.pairs, case.sessions) = bench.full_or((case.pairs, case.sessions), (60, 2));
    Ok(Spread::new(measure(bench, &case)?.ratios()).median)
}

/// 9 transfers of 16 MiB.
fn lossy(bench: &mut Bench) -> Result<f64> {
    let mut case = Case::new(Tcp, LARGE, Socket);
    (case.lossy, case.pages, case.pairs, case.sessions) = (true, 256, 9, 1);
    match measure(bench, &case) {
        Ok(outcome) => Ok(Spread::new(outcome.ratios()).median),
        Err(error) => left::read(bench, "tcp_netem_verified").map_err(|_| error),
    }
}

fn tcp_cpu(bench: &mut Bench) -> Result<f64> {
    let mut case = Case::new(Tcp, LARGE, Socket);
    (case.threads, case.cpu) = (true, true);
    (case.pairs, case.sessions) = bench.full_or((case.pairs, case.sessions), (60, 2));
    Ok(1.0 / Spread::new(measure(bench, &case)?.ratios()).median)
}

fn bare_gbs(bench: &mut Bench, fabric: Fabric, page_len: usize) -> Result<f64> {
    Ok(Spread::new(outcome(bench, (fabric, page_len, Weft))?.rates(0)).median)
}

fn socket_gbs(bench: &mut Bench, page_len: usize) -> Result<f64> {
    Ok(Spread::new(outcome(bench, (Tcp, page_len, Socket))?.rates(0)).median)
}

fn self_ratio(bench: &mut Bench) -> Result<f64> {
    let mut ratios = Vec::new();
    for key in ITSELF {
        ratios.push(Spread::new(outcome(bench, key)?.ratios()).median);
    }
    let farthest = ratios.into_iter().max_by(|a, b| (a - 1.0).abs().total_cmp(&(b - 1.0).abs()));
    farthest.context("nothing was measured")
}
