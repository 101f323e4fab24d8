//! What a user calls: one file for each command.

mod figures;
mod raw;
mod topo;

use crate::{host, pair, sim};
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
    Figures(figures::Args),
    Raw(raw::Args),
    Topo(topo::Args),
    /// One of the two processes of a measurement: started by the others.
    #[command(hide = true)]
    Part {
        role: pair::Role,
        spec: String,
    },
    /// The same, of the measurements on one host.
    #[command(hide = true)]
    HostPart {
        role: host::Role,
        spec: String,
    },
    /// Both sides of a transfer over simulated NICs: started by the figures.
    #[command(hide = true)]
    Simulated(sim::Drive),
}

pub fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Figures(args) => figures::run(&args),
        Command::Raw(args) => raw::run(&args),
        Command::Topo(args) => topo::run(&args),
        Command::Simulated(drive) => sim::run(&drive),
        Command::Part { role, spec } => pair::run(role, &spec),
        Command::HostPart { role, spec } => host::run(role, &spec),
    }
}
