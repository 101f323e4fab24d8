//! The figures by name: what each is, what it should be, and how it is measured.

use crate::machine::Facts;
use crate::pair::{self, Case, Fabric, Outcome, Rival};
use crate::show::Progress;
use crate::stats::Spread;
use anyhow::{anyhow, Result};
use std::collections::HashMap;
use std::rc::Rc;

pub struct Figure {
    pub id: &'static str,
    pub what: &'static str,
    /// The least that is hoped for, and the aim, in words for people; "" for a
    /// figure that is only shown.
    pub least: &'static str,
    pub aim: &'static str,
    /// Prints just this figure.
    pub command: &'static str,
    /// The measurements that it needs.
    cases: &'static [Key],
    pub run: fn(&mut Lab) -> Result<f64>,
}

/// A measurement that several figures may share.
type Key = (Fabric, usize, Rival);

use Fabric::{Shm, Tcp};
use Rival::{Itself, Socket, Weft};
const LARGE: usize = 65536;
const SMALL: usize = 4096;
const ITSELF: &[Key] =
    &[(Tcp, LARGE, Itself), (Tcp, SMALL, Itself), (Shm, LARGE, Itself), (Shm, SMALL, Itself)];

macro_rules! figure {
    ($id:literal, $what:literal, $least:literal, $aim:literal, $cases:expr, $run:expr) => {
        Figure {
            id: $id,
            what: $what,
            least: $least,
            aim: $aim,
            command: concat!("weft-bench figures --only ", $id),
            cases: $cases,
            run: $run,
        }
    };
}

pub const ALL: &[Figure] = &[
    figure!(
        "raw_ratio_tcp_64k",
        "Weft's throughput over the bare loop's: random 64 KiB pages over loopback tcp",
        "0.90",
        "1.00",
        &[(Tcp, LARGE, Weft)],
        |lab| lab.ratio(Tcp, LARGE)
    ),
    figure!(
        "raw_ratio_shm_64k",
        "the same over shm, copied through the shared ring",
        "0.90",
        "1.00",
        &[(Shm, LARGE, Weft)],
        |lab| lab.ratio(Shm, LARGE)
    ),
    figure!(
        "raw_ratio_tcp_4k",
        "Weft's throughput over the bare loop's: random 4 KiB pages over loopback tcp",
        "0.85",
        "1.00",
        &[(Tcp, SMALL, Weft)],
        |lab| lab.ratio(Tcp, SMALL)
    ),
    figure!(
        "raw_ratio_shm_4k",
        "the same over shm, copied through the shared ring",
        "0.85",
        "1.00",
        &[(Shm, SMALL, Weft)],
        |lab| lab.ratio(Shm, SMALL)
    ),
    figure!(
        "raw_self_ratio",
        "the bare loop over a second one, by the same procedure: of the four cases, the one farthest from 1",
        "0.98 to 1.02",
        "1.00",
        ITSELF,
        Lab::self_ratio
    ),
    figure!("raw_tcp_64k_gbs", "GB/s of the bare loop: 64 KiB, tcp", "", "", &[(Tcp, LARGE, Weft)], |lab| {
        lab.bare_gbs(Tcp, LARGE)
    }),
    figure!("raw_tcp_4k_gbs", "GB/s of the bare loop: 4 KiB, tcp", "", "", &[(Tcp, SMALL, Weft)], |lab| lab
        .bare_gbs(Tcp, SMALL)),
    figure!("raw_shm_64k_gbs", "GB/s of the bare loop: 64 KiB, shm", "", "", &[(Shm, LARGE, Weft)], |lab| {
        lab.bare_gbs(Shm, LARGE)
    }),
    figure!("raw_shm_4k_gbs", "GB/s of the bare loop: 4 KiB, shm", "", "", &[(Shm, SMALL, Weft)], |lab| lab
        .bare_gbs(Shm, SMALL)),
    figure!(
        "socket_64k_gbs",
        "GB/s of a plain TCP socket: 64 KiB pages",
        "",
        "",
        &[(Tcp, LARGE, Socket)],
        |lab| lab.socket_gbs(LARGE)
    ),
    figure!(
        "socket_4k_gbs",
        "GB/s of a plain TCP socket: 4 KiB pages",
        "",
        "",
        &[(Tcp, SMALL, Socket)],
        |lab| lab.socket_gbs(SMALL)
    ),
];

/// How many measurements these figures need.
pub fn cases_of(figures: &[&Figure]) -> usize {
    let mut keys: Vec<Key> = figures.iter().flat_map(|figure| figure.cases).copied().collect();
    keys.sort();
    keys.dedup();
    keys.len()
}

/// Measures each case once, for all figures that come from it.
pub struct Lab {
    quick: bool,
    pub progress: Progress,
    done: HashMap<Key, Result<Rc<Outcome>, String>>,
    pub facts: Facts,
    /// What a reader should know beside the numbers.
    pub notes: Vec<String>,
}

impl Lab {
    pub fn new(quick: bool, progress: Progress) -> Lab {
        Lab { quick, progress, done: HashMap::new(), facts: Facts::default(), notes: Vec::new() }
    }

    fn outcome(&mut self, key: Key) -> Result<Rc<Outcome>> {
        if !self.done.contains_key(&key) {
            let outcome = self.measure(key).map(Rc::new).map_err(|error| format!("{error:#}"));
            self.done.insert(key, outcome);
        }
        self.done[&key].clone().map_err(|error| anyhow!(error))
    }

    fn measure(&mut self, (fabric, page_len, rival): Key) -> Result<Outcome> {
        let mut case = Case::new(fabric, page_len, rival);
        if self.quick {
            (case.pairs, case.sessions) = (60, 2);
        }
        let outcome = pair::measure(&case, &self.progress)?;
        self.facts.learn(&outcome.facts);
        let rates: Vec<String> = (0..outcome.names.len())
            .map(|i| format!("{} {:.3} GB/s", outcome.names[i], Spread::of(outcome.rates(i)).median))
            .collect();
        let mut note = format!("{case}: {}", rates.join(", "));
        if outcome.names.len() > 1 {
            let ratios = Spread::of(outcome.ratios());
            note +=
                &format!(", ratio {:.4} (10 % {:.3}, 90 % {:.3})", ratios.median, ratios.low, ratios.high);
        }
        self.notes.push(format!("{note}; {}", outcome.tuning));
        Ok(outcome)
    }

    fn ratio(&mut self, fabric: Fabric, page_len: usize) -> Result<f64> {
        Ok(Spread::of(self.outcome((fabric, page_len, Weft))?.ratios()).median)
    }

    fn bare_gbs(&mut self, fabric: Fabric, page_len: usize) -> Result<f64> {
        Ok(Spread::of(self.outcome((fabric, page_len, Weft))?.rates(0)).median)
    }

    fn socket_gbs(&mut self, page_len: usize) -> Result<f64> {
        Ok(Spread::of(self.outcome((Tcp, page_len, Socket))?.rates(0)).median)
    }

    fn self_ratio(&mut self) -> Result<f64> {
        let mut farthest: Option<f64> = None;
        for key in ITSELF {
            let ratio = Spread::of(self.outcome(*key)?.ratios()).median;
            if farthest.is_none_or(|known: f64| (ratio - 1.0).abs() > (known - 1.0).abs()) {
                farthest = Some(ratio);
            }
        }
        farthest.ok_or_else(|| anyhow!("nothing was measured"))
    }
}
