//! `weft-bench` measures Weft, through its C interface, on this machine.
//!
//! | | |
//! | --- | --- |
//! | [`commands`] | what a user calls, one file for each command |
//! | [`figures`] | the figures by name: what each is, and how it is measured |
//! | [`pair`] | two processes, an initiator and a target, and what they do together |
//! | [`host`] | two processes of this host, beside memcpy |
//! | [`sim`] | both sides in one process, over simulated NICs |
//! | [`engines`] | the ways to move pages: bare libfabric, Weft, a socket |
//! | [`lab`], [`machine`] | a network of our own to measure in, and what the machine is |
//! | [`tree`] | the machine, drawn |
//! | [`memory`], [`pages`], [`stats`], [`show`] | buffers, page lists, medians, the terminal |

mod commands;
mod engines;
mod figures;
mod host;
mod lab;
mod machine;
mod memory;
mod pages;
mod pair;
mod show;
mod sim;
mod stats;
mod tree;

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
