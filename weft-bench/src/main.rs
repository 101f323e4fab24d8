//! `weft-bench` measures Weft, through its C interface, on this machine.
//!
//! | | |
//! | --- | --- |
//! | [`commands`] | what a user calls, one file for each command |
//! | [`figures`] | the figures by name: what each is, and how it is measured |
//! | [`process`] | the processes of a measurement, and what they say to each other |
//! | [`endpoint`] | Weft through its C interface |
//! | [`pair`] | an initiator and a target, and the engines by which they move pages in turns |
//! | [`engines`] | the ways to move pages: bare libfabric, Weft, a socket, memcpy |
//! | [`sim`] | both sides in one process, over simulated NICs |
//! | [`load`] | two hosts, a load between them, and what it reached |
//! | [`faults`] | what happens when rails and peers fail, and what it costs |
//! | [`prometheus`] | what an endpoint has done, for Prometheus |
//! | [`lab`], [`wire`] | networks of our own to measure in, and what they carry |
//! | [`machine`], [`processors`], [`tree`] | what the machine is, and how it is drawn |
//! | [`memory`], [`pages`], [`stats`] | buffers, page lists, medians |
//! | [`show`] | the terminal |

mod commands;
mod endpoint;
mod engines;
mod faults;
mod figures;
mod lab;
mod load;
mod machine;
mod memory;
mod pages;
mod pair;
mod process;
mod processors;
mod prometheus;
mod show;
mod sim;
mod stats;
mod tree;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    match commands::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weft-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
