//! What a user calls: one file for each command.

mod ablate;
mod crossover;
mod figures;
mod load;
mod markdown;
mod raw;
mod topo;

use crate::load::idle;
use crate::{faults, host, pair, sim, throw, wire};
use anyhow::Result;
use clap::{Parser, Subcommand};
use std::net::SocketAddr;

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
    Topo(topo::Args),
    Serve(load::ServeArgs),
    Run(load::RunArgs),
    Loopback(load::LoopbackArgs),
    /// One of the two ends of the sockets that a network is tried with.
    #[command(hide = true)]
    Wire {
        end: wire::End,
        #[arg(value_delimiter = ',')]
        addresses: Vec<SocketAddr>,
    },
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
    /// The same, of what is thrown there and back over tcp.
    #[command(hide = true)]
    ThrowPart {
        role: throw::Role,
        spec: String,
    },
    /// One of two hosts that do nothing for a while; the other one serves.
    #[command(hide = true)]
    Idle(idle::Spec),
    /// One side of what happens when something fails: started by the figures.
    #[command(hide = true)]
    Fault {
        #[command(subcommand)]
        fault: faults::Fault,
    },
    /// Both sides of a transfer over simulated NICs: started by the figures.
    #[command(hide = true)]
    Simulated(sim::Drive),
}

pub fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Ablate(args) => ablate::run(&args),
        Command::Crossover(args) => crossover::run(&args),
        Command::Figures(args) => figures::run(&args),
        Command::Raw(args) => raw::run(&args),
        Command::Topo(args) => topo::run(&args),
        Command::Simulated(drive) => sim::run(&drive),
        Command::Serve(args) => load::serve(&args),
        Command::Run(args) => load::run(&args),
        Command::Loopback(args) => load::loopback(&args),
        Command::Wire { end, addresses } => wire::run(end, &addresses),
        Command::Part { role, spec } => pair::run(role, &spec),
        Command::HostPart { role, spec } => host::run(role, &spec),
        Command::ThrowPart { role, spec } => throw::run(role, &spec),
        Command::Fault { fault } => faults::run(&fault),
        Command::Idle(spec) => {
            println!("{}", serde_json::to_string(&idle::run(&spec)?)?);
            Ok(())
        }
    }
}
