//! A measurement: two processes, an initiator and a target, and their work together. The command's
//! own process only watches.
//!
//! | | |
//! | --- | --- |
//! | [`initiator`] | starts the target, tunes the engines, takes the time |
//! | [`target`] | offers its pool through every engine, and polls one |
//! | [`control`] | the page by which the target is told which |

mod control;
mod initiator;
mod target;

pub use initiator::initiate;
pub use target::{serve, Spec};

use crate::engines::throw::Game;
use crate::engines::Kind;
use crate::machine::Facts;
use crate::process::{Part, Process};
use crate::processors;
use crate::show::{self, Progress};
use crate::stats::Spread;
use anyhow::{bail, Context, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Fabric {
    Tcp,
    Host,
}

/// What is measured besides the bare loop.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Rival {
    Weft,
    /// A second bare loop: the ratio must be 1.
    Itself,
    /// A plain socket, and Weft.
    Socket,
    /// Weft's writes, and its reads.
    Reads,
    /// Weft, unencrypted and encrypted.
    Encrypted,
    /// Weft with one stream, and with several.
    Streams,
    /// memcpy, and Weft.
    Memcpy,
    /// A few bytes in both directions, by bare libfabric in every way, and by Weft.
    Throw(Game),
}

/// The parameters of a measurement.
#[derive(Clone, Serialize, Deserialize)]
pub struct Case {
    pub fabric: Fabric,
    pub rival: Rival,
    pub page_len: usize,
    /// Pages per transfer, out of twice as many.
    pub pages: usize,
    pub pairs: usize,
    /// How often processes and connections are made again: their placement changes what all engines
    /// reach.
    pub sessions: usize,
    /// Transfers that are submitted at once, and timed together.
    pub at_once: usize,
    /// Pages are in memory of `weft_memory_alloc`.
    pub shared: bool,
    /// Weft with worker threads.
    pub threads: bool,
    /// The figure is the CPU time of both processes, which sleep where they can.
    pub cpu: bool,
    /// The loopback loses and delays packets (netem).
    pub lossy: bool,
    /// The processors of the initiator and of the target.
    pub processors: Option<(usize, usize)>,
}

impl Case {
    pub fn new(fabric: Fabric, page_len: usize, rival: Rival) -> Case {
        let pages = ((32 << 20) / page_len).clamp(1, 4096);
        Case {
            fabric,
            rival,
            page_len,
            pages,
            pairs: 400,
            sessions: 4,
            at_once: 1,
            shared: false,
            threads: false,
            cpu: false,
            lossy: false,
            processors: None,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let fabric = match self.fabric {
            Fabric::Tcp => "tcp",
            Fabric::Host => "host",
        };
        let what = match self.rival {
            Rival::Weft => "weft beside the bare loop",
            Rival::Itself => "the bare loop beside itself",
            Rival::Socket if self.cpu => "CPU time of weft beside a plain socket",
            Rival::Socket if self.lossy => {
                "weft beside a plain socket, 1 % of packets lost, 10 ms there and back"
            }
            Rival::Socket => "weft beside a plain socket",
            Rival::Reads => "reads beside writes",
            Rival::Streams => "4 streams beside one",
            Rival::Encrypted => "encrypted beside in the clear",
            Rival::Memcpy if self.shared => "weft beside memcpy, in memory of weft_memory_alloc",
            Rival::Memcpy => "weft beside memcpy, in ordinary memory",
            Rival::Throw(_) => return write!(f, "{fabric}, a few bytes there and back"),
        };
        write!(f, "{fabric}, {} pages, {what}", show::size(self.page_len))
    }
}

/// The results.
#[derive(Serialize, Deserialize)]
pub struct Outcome {
    pub facts: Facts,
    pub provider: String,
    pub tuning: String,
    pub kinds: Vec<Kind>,
    /// Bytes per transfer.
    bytes: usize,
    /// For each round, nanoseconds of each engine's transfer.
    times: Vec<Vec<u64>>,
    /// The best tunings, best first.
    tuned: Vec<Tuned>,
    /// Where both sides are pinned to the processors nearest to each other: for each session, the
    /// nanoseconds of a bare cache line between them.
    pub lines: Vec<f64>,
}

/// A tuning of an engine.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Tuned {
    engine: usize,
    tuning: usize,
}

/// The initiator's task.
#[derive(Serialize, Deserialize)]
pub struct Session {
    case: Case,
    number: usize,
    /// The tunings to choose from; empty: all.
    tuned: Vec<Tuned>,
}

impl Outcome {
    /// GB/s of an engine's transfers.
    pub fn rates(&self, engine: usize) -> Vec<f64> {
        self.times.iter().map(|round| self.bytes as f64 / round[engine] as f64).collect()
    }

    /// Nanoseconds of the engine's transfers.
    pub fn median_ns(&self, engine: usize) -> f64 {
        Spread::new(self.times.iter().map(|round| round[engine] as f64).collect()).median
    }

    /// For each round: the last engine's time relative to that of the other engine which is fastest
    /// overall.
    pub fn ratios_to_fastest(&self) -> Result<Spread> {
        let last = self.kinds.len().saturating_sub(1);
        let fastest = (0..last).min_by(|a, b| self.median_ns(*a).total_cmp(&self.median_ns(*b)));
        let fastest = fastest.context("nothing to compare with")?;
        Ok(Spread::new(self.times.iter().map(|round| round[last] as f64 / round[fastest] as f64).collect()))
    }

    /// For each pair: the second's throughput relative to the first's.
    pub fn ratios(&self) -> Vec<f64> {
        self.times.iter().map(|round| round[0] as f64 / round[1] as f64).collect()
    }
}

/// What the initiator reports to the watching process, one line each.
#[derive(Serialize, Deserialize)]
enum Event {
    At(u64),
    Done(Outcome),
}

/// Measures a case in separate processes.
pub fn measure(case: &Case, progress: &Progress) -> Result<Outcome> {
    if case.pages == 0 || case.pairs == 0 || case.sessions == 0 {
        bail!("at least one page, one pair and one session are needed");
    }
    progress.begin(&case.to_string());
    let sessions = case.sessions.min(case.pairs);
    let (mut whole, mut lines): (Option<Outcome>, _) = (None, Vec::new());
    let near = matches!(case.rival, Rival::Throw(_)) && case.fabric == Fabric::Host;
    for number in 0..sessions {
        let done = case.pairs * number / sessions;
        let pairs = case.pairs * (number + 1) / sessions - done;
        let tuned = whole.as_ref().map_or(Vec::new(), |whole| whole.tuned.clone());
        let nearest = near.then(processors::nearest).flatten();
        lines.extend(nearest.map(|(.., ns)| ns));
        let processors = nearest.map(|(one, other, _)| (one, other));
        let session = Session { case: Case { pairs, processors, ..case.clone() }, number, tuned };
        let outcome = run_session(session, &|at| progress.at(done as u64 + at, case.pairs as u64))?;
        match &mut whole {
            None => whole = Some(outcome),
            Some(whole) => whole.times.extend(outcome.times),
        }
    }
    whole.map(|whole| Outcome { lines, ..whole }).context("no session")
}

fn run_session(session: Session, at: &dyn Fn(u64)) -> Result<Outcome> {
    let mut initiator = Process::start(&mut Part::Pair(session).command()?)?;
    loop {
        match initiator.lines.hear()? {
            Event::At(done) => at(done),
            Event::Done(outcome) => return initiator.end().map(|()| outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_ratios_compare_throughput() {
        let outcome = Outcome {
            facts: Facts::default(),
            provider: String::new(),
            tuning: String::new(),
            kinds: vec![Kind::Socket, Kind::Memcpy, Kind::Weft],
            bytes: 1000,
            times: vec![vec![500, 1000, 2000], vec![1000, 500, 2000], vec![1000, 500, 2000]],
            tuned: Vec::new(),
            lines: Vec::new(),
        };
        assert_eq!(outcome.rates(0), [2.0, 1.0, 1.0]);
        assert_eq!(outcome.ratios(), [0.5, 2.0, 2.0]);
        assert_eq!(outcome.ratios_to_fastest().unwrap().median, 4.0);
    }
}
