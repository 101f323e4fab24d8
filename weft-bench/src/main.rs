//! `weft-bench` measures Weft, through its C interface, on this machine.
//!
//! | | |
//! | --- | --- |
//! | [`commands`] | what a user calls, one file for each command |
//! | [`figures`] | the figures by name: what each is, and how it is measured |
//! | [`pair`] | two processes, an initiator and a target, and what they do together |
//! | [`engines`] | the ways to move pages: bare libfabric, Weft, a socket |
//! | [`lab`], [`machine`] | a network of our own to measure in, and what the machine is |
//! | [`memory`], [`pages`], [`stats`] | buffers, page lists, medians |
//! | [`show`], [`chart`] | the terminal, and charts |

mod chart;
mod commands;
mod engines;
mod figures;
mod lab;
mod machine;
mod memory;
mod pages;
mod pair;
mod show;
mod stats;

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
