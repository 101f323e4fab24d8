//! What a user calls: one file for each command.

mod ablate;
mod crossover;
mod figures;
mod markdown;
mod raw;

use crate::pair;
use anyhow::Result;
use clap::{Parser, Subcommand};

/// Measures Weft on this machine, beside bare libfabric and plain sockets.
#[derive(Parser)]
#[command(name = "weft-bench", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Ablate(ablate::Args),
    Crossover(crossover::Args),
    Figures(figures::Args),
    Raw(raw::Args),
    /// One of the two processes of a measurement: started by the others.
    #[command(hide = true)]
    Part {
        role: pair::Role,
        spec: String,
    },
}

pub fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Ablate(args) => ablate::run(&args),
        Command::Crossover(args) => crossover::run(&args),
        Command::Figures(args) => figures::run(&args),
        Command::Raw(args) => raw::run(&args),
        Command::Part { role, spec } => pair::run(role, &spec),
    }
}
