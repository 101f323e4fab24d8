//! `weft-bench` measures Weft, through its C interface, on this machine.
//!
//! | | |
//! | --- | --- |
//! | [`commands`] | what a user calls, one file for each command |
//! | [`figures`] | the figures by name: what each is, and how it is measured |
//! | [`pair`] | two processes, an initiator and a target, and what they do together |
//! | [`host`] | two processes of this host, beside memcpy |
//! | [`throw`] | a word there and back over tcp, by Weft and by bare libfabric |
//! | [`sim`] | both sides in one process, over simulated NICs |
//! | [`load`] | two hosts, a load between them, and what it reached |
//! | [`faults`] | what happens when rails and peers fail, and what it costs |
//! | [`prometheus`] | what an endpoint has done, for Prometheus |
//! | [`engines`] | the ways to move pages: bare libfabric, Weft, a socket |
//! | [`lab`], [`hosts`], [`wire`] | networks of our own to measure in, and what they carry |
//! | [`machine`], [`tree`] | what the machine is, and how it is drawn |
//! | [`memory`], [`pages`], [`stats`] | buffers, page lists, medians |
//! | [`show`], [`chart`] | the terminal, and charts |

mod chart;
mod commands;
mod engines;
mod faults;
mod figures;
mod host;
mod hosts;
mod lab;
mod load;
mod machine;
mod memory;
mod pages;
mod pair;
mod processors;
mod prometheus;
mod show;
mod sim;
mod stats;
mod throw;
mod tree;
mod wire;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match commands::run(commands::Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weft-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
