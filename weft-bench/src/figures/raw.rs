//! Weft beside bare libfabric and a plain socket, on this machine's loopback and
//! shared memory.

use super::{figure, Bench, Figure};
use crate::pair::{self, Case, Fabric, Outcome, Rival};
use crate::stats::Spread;
use anyhow::{anyhow, Result};
use std::rc::Rc;

/// Small pages of a transfer that Weft may pack.
const PACKED_PAGES: usize = 20_000;

/// A measurement that several figures may share.
pub type Key = (Fabric, usize, Rival);

use Fabric::{Shm, Tcp};
use Rival::{Itself, Socket, Weft};
const LARGE: usize = 65536;
const SMALL: usize = 4096;
const ITSELF: &[Key] =
    &[(Tcp, LARGE, Itself), (Tcp, SMALL, Itself), (Shm, LARGE, Itself), (Shm, SMALL, Itself)];

pub const ALL: &[Figure] = &[
    figure!(
        "raw_ratio_tcp_64k",
        "Weft's throughput over the bare loop's: random 64 KiB pages over loopback tcp",
        "0.97",
        "1.00",
        |bench| ratio(bench, Tcp, LARGE)
    ),
    figure!(
        "raw_ratio_shm_64k",
        "the same over shm, copied through the shared ring",
        "0.97",
        "1.00",
        |bench| ratio(bench, Shm, LARGE)
    ),
    figure!(
        "raw_ratio_tcp_4k",
        "Weft's throughput over the bare loop's: random 4 KiB pages over loopback tcp",
        "0.95",
        "1.00",
        |bench| ratio(bench, Tcp, SMALL)
    ),
    figure!(
        "raw_ratio_shm_4k",
        "the same over shm, copied through the shared ring",
        "0.95",
        "1.00",
        |bench| ratio(bench, Shm, SMALL)
    ),
    figure!(
        "packed_4k_tcp",
        "20,000 random 4 KiB pages a transfer over loopback tcp: Weft, which may pack, over the bare loop, which writes page by page",
        "2.0",
        "5.0",
        packed_ratio
    ),
    figure!(
        "raw_self_ratio",
        "the bare loop over a second one, by the same procedure: of the four cases, the one farthest from 1",
        "0.98 to 1.02",
        "1.00",
        self_ratio
    ),
    figure!("raw_tcp_64k_gbs", "GB/s of the bare loop: 64 KiB, tcp", "", "", |bench| {
        bare_gbs(bench, Tcp, LARGE)
    }),
    figure!("raw_tcp_4k_gbs", "GB/s of the bare loop: 4 KiB, tcp", "", "", |bench| bare_gbs(
        bench, Tcp, SMALL
    )),
    figure!("raw_shm_64k_gbs", "GB/s of the bare loop: 64 KiB, shm", "", "", |bench| {
        bare_gbs(bench, Shm, LARGE)
    }),
    figure!("raw_shm_4k_gbs", "GB/s of the bare loop: 4 KiB, shm", "", "", |bench| bare_gbs(
        bench, Shm, SMALL
    )),
    figure!("socket_64k_gbs", "GB/s of a plain TCP socket: 64 KiB pages", "", "", |bench| socket_gbs(
        bench, LARGE
    )),
    figure!("socket_4k_gbs", "GB/s of a plain TCP socket: 4 KiB pages", "", "", |bench| socket_gbs(
        bench, SMALL
    )),
];

fn outcome(bench: &mut Bench, key: Key) -> Result<Rc<Outcome>> {
    if !bench.raw.contains_key(&key) {
        let outcome = measure(bench, key).map(Rc::new).map_err(|error| format!("{error:#}"));
        bench.raw.insert(key, outcome);
    }
    bench.raw[&key].clone().map_err(|error| anyhow!(error))
}

fn measure(bench: &mut Bench, (fabric, page_len, rival): Key) -> Result<Outcome> {
    let mut case = Case::new(fabric, page_len, rival);
    if bench.quick {
        (case.pairs, case.sessions) = (60, 2);
    }
    measure_case(bench, &case)
}

fn measure_case(bench: &mut Bench, case: &Case) -> Result<Outcome> {
    let outcome = pair::measure(case, &bench.progress)?;
    bench.facts.learn(&outcome.facts);
    let rates: Vec<String> = (0..outcome.names.len())
        .map(|i| format!("{} {:.3} GB/s", outcome.names[i], Spread::of(outcome.rates(i)).median))
        .collect();
    let mut note = format!("{case}: {}", rates.join(", "));
    if outcome.names.len() > 1 {
        let ratios = Spread::of(outcome.ratios());
        note += &format!(", ratio {:.4} (10 % {:.3}, 90 % {:.3})", ratios.median, ratios.low, ratios.high);
    }
    bench.notes.push(format!("{note}; {}", outcome.tuning));
    Ok(outcome)
}

fn ratio(bench: &mut Bench, fabric: Fabric, page_len: usize) -> Result<f64> {
    Ok(Spread::of(outcome(bench, (fabric, page_len, Weft))?.ratios()).median)
}

fn packed_ratio(bench: &mut Bench) -> Result<f64> {
    let mut case = Case::new(Tcp, SMALL, Weft);
    (case.pages, case.packing) = (PACKED_PAGES, true);
    (case.pairs, case.sessions) = if bench.quick { (16, 1) } else { (80, 4) };
    Ok(Spread::of(measure_case(bench, &case)?.ratios()).median)
}

fn bare_gbs(bench: &mut Bench, fabric: Fabric, page_len: usize) -> Result<f64> {
    Ok(Spread::of(outcome(bench, (fabric, page_len, Weft))?.rates(0)).median)
}

fn socket_gbs(bench: &mut Bench, page_len: usize) -> Result<f64> {
    Ok(Spread::of(outcome(bench, (Tcp, page_len, Socket))?.rates(0)).median)
}

fn self_ratio(bench: &mut Bench) -> Result<f64> {
    let mut farthest: Option<f64> = None;
    for key in ITSELF {
        let ratio = Spread::of(outcome(bench, *key)?.ratios()).median;
        if farthest.is_none_or(|known: f64| (ratio - 1.0).abs() > (known - 1.0).abs()) {
            farthest = Some(ratio);
        }
    }
    farthest.ok_or_else(|| anyhow!("nothing was measured"))
}
