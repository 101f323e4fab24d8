//! The figures by name: what each is, its target value, and how it is measured. One file for each
//! family.

mod calls;
mod chaos;
mod failures;
mod grants;
mod host;
mod hostile;
mod lab;
mod latency;
mod left;
mod package;
mod page;
mod random;
mod raw;
mod sim;

use crate::machine::Facts;
use crate::show::Progress;
use anyhow::{anyhow, ensure, Context, Result};
use std::any::Any;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

#[derive(Clone, Copy)]
pub struct Figure {
    pub id: &'static str,
    pub what: &'static str,
    /// The least acceptable value, and the aim, as text; "" for a figure that is only shown.
    pub least: &'static str,
    pub aim: &'static str,
    /// The value of the figure with this name; an error says why it cannot be measured here.
    pub run: fn(&mut Bench, id: &str) -> Result<f64>,
}

/// Name, least and aim, measurement, description.
macro_rules! figures {
    ($($id:ident [$least:literal, $aim:literal] $run:expr => $what:literal;)*) => {
        pub const ALL: &[Figure] = &[$(Figure {
            id: stringify!($id), what: $what, least: $least, aim: $aim, run: |bench, _| {
                let run: fn(&mut Bench) -> Result<f64> = $run;
                run(bench)
            },
        }),*];
    };
}
use figures;

const FAMILIES: &[&[Figure]] = &[
    raw::ALL,
    host::ALL,
    latency::ALL,
    page::ALL,
    calls::ALL,
    lab::ALL,
    failures::ALL,
    hostile::ALL,
    chaos::ALL,
    random::ALL,
    grants::ALL,
    sim::ALL,
    package::ALL,
    left::ALL,
];

/// All named figures.
pub fn named() -> impl Iterator<Item = &'static Figure> {
    FAMILIES.iter().copied().flatten()
}

/// These, and other files that the make targets left.
pub fn all() -> Vec<Figure> {
    named().copied().chain(left::others()).collect()
}

/// What the figures share while they are measured.
pub struct Bench {
    pub quick: bool,
    pub progress: Progress,
    pub facts: Facts,
    /// Notes for the reader, in addition to the numbers.
    pub notes: Vec<String>,
    known: HashMap<String, Result<Rc<dyn Any>, String>>,
}

impl Bench {
    pub fn new(quick: bool) -> Bench {
        let (progress, facts) = (Progress::default(), Facts::of_machine());
        Bench { quick, progress, facts, notes: Vec::new(), known: HashMap::new() }
    }

    /// Makes a measurement once, for all figures that use it.
    fn once<T: 'static>(
        &mut self,
        name: &str,
        measure: impl FnOnce(&mut Bench) -> Result<T>,
    ) -> Result<Rc<T>> {
        if !self.known.contains_key(name) {
            let measured = measure(self).map(|measured| Rc::new(measured) as Rc<dyn Any>);
            self.known.insert(name.to_owned(), measured.map_err(|error| format!("{error:#}")));
        }
        let known = self.known[name].clone().map_err(|error| anyhow!(error))?;
        known.downcast().map_err(|_| anyhow!("{name} is the name of something else"))
    }

    /// The first of two numbers in a full measurement, the second in a quick one.
    fn full_or<T>(&self, full: T, quick: T) -> T {
        if self.quick {
            quick
        } else {
            full
        }
    }
}

/// The source tree that the working folder or this program is in; the working folder otherwise. Not the one of the build: its
/// name would make the program differ from folder to folder.
fn root() -> PathBuf {
    let places = [std::env::current_dir(), std::env::current_exe()];
    let mut around = places.iter().flatten().flat_map(|place| place.ancestors());
    around.find(|folder| folder.join("weft-bench/Cargo.toml").is_file()).unwrap_or(Path::new(".")).to_owned()
}

/// The folder of this program, and of the library.
fn folder() -> Result<PathBuf> {
    let program = std::env::current_exe().context("finding this program")?;
    Ok(program.parent().context("this program is nowhere")?.to_owned())
}

fn library() -> Result<PathBuf> {
    let library = folder()?.join("libweft.so");
    ensure!(library.exists(), "there is no {}: build it by `make lib`", library.display());
    Ok(library)
}

/// The same with simulated NICs, which the shipped library does not have.
fn simulated() -> Result<PathBuf> {
    let library = folder()?.join("libweft_simulated.so");
    ensure!(library.exists(), "there is no {}: build it by `make lib-simulated`", library.display());
    Ok(library)
}

/// What a program prints; if it fails, its last line.
fn said_by(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("starting {name}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}", stderr.trim().lines().last().unwrap_or_default());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The number behind the figure's name at the beginning of a line.
fn figure_in(said: &str, name: &str) -> Result<f64> {
    let number = said.lines().find_map(|line| line.strip_prefix(name));
    let number = number.with_context(|| format!("nothing says {name}"))?;
    number.trim().parse().with_context(|| format!("the number of {name}"))
}
