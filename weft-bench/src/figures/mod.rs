//! The figures by name: what each is, what it should be, and how it is measured.
//! One file for each family.

mod calls;
mod chaos;
mod failures;
mod host;
mod lab;
mod latency;
mod package;
mod random;
mod raw;
mod sim;

use crate::machine::Facts;
use crate::pair::Outcome;
use crate::show::Progress;
use crate::sim::profile::Counts;
use anyhow::{ensure, Context, Result};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
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
    /// An error says why it cannot be measured here.
    pub run: fn(&mut Bench) -> Result<f64>,
}

macro_rules! figure {
    ($id:literal, $what:literal, $least:literal, $aim:literal, $run:expr) => {
        Figure {
            id: $id,
            what: $what,
            least: $least,
            aim: $aim,
            command: concat!("weft-bench figures --only ", $id),
            run: $run,
        }
    };
}
use figure;

const FAMILIES: &[&[Figure]] = &[
    raw::ALL,
    host::ALL,
    latency::ALL,
    calls::ALL,
    lab::ALL,
    failures::ALL,
    chaos::ALL,
    random::ALL,
    sim::ALL,
    package::ALL,
];

pub fn all() -> impl Iterator<Item = &'static Figure> {
    FAMILIES.iter().copied().flatten()
}

/// What the figures share while they are measured: each measurement is made
/// once, for all figures that come from it.
pub struct Bench {
    pub quick: bool,
    pub progress: Progress,
    pub facts: Facts,
    /// What a reader should know beside the numbers.
    pub notes: Vec<String>,
    raw: HashMap<raw::Key, Result<Rc<Outcome>, String>>,
    /// For each slice.
    counts: Option<Counts>,
    lab: lab::Checked,
    idle: latency::Idle,
    rails: failures::Rails,
    chaos: chaos::Run,
}

impl Bench {
    pub fn new(quick: bool, progress: Progress) -> Bench {
        Bench {
            quick,
            progress,
            facts: Facts::of_machine(),
            notes: Vec::new(),
            raw: HashMap::new(),
            counts: None,
            lab: HashMap::new(),
            idle: None,
            rails: None,
            chaos: None,
        }
    }
}

/// The source tree.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What a program prints; of one that fails, the last word.
fn said_by(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("starting {name}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}", stderr.trim().lines().last().unwrap_or_default());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The number behind the figure's name, which begins a line.
fn figure_in(said: &str, name: &str) -> Result<f64> {
    let number = said.lines().find_map(|line| line.strip_prefix(name));
    let number = number.with_context(|| format!("nothing says {name}"))?;
    number.trim().parse().with_context(|| format!("the number of {name}"))
}
