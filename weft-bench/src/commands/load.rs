//! `weft-bench serve`, `run` and `loopback`: a load between two hosts, or between
//! two processes of this one.

use crate::load::tally::Report;
use crate::load::{client, server, Load, Opening};
use crate::show::{self, Rates};
use anyhow::{bail, Context, Result};
use comfy_table::{CellAlignment, Table};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Waits for `weft-bench run` from another host, and lends it pages of this one.
#[derive(clap::Args)]
pub struct ServeArgs {
    /// Where to wait, for control only: the pages go over the rails. Port 0: any.
    #[arg(long, value_name = "HOST:PORT", default_value = "0.0.0.0:4711")]
    listen: String,
    /// End after the first client.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    export: ExportArgs,
    #[command(flatten)]
    opening: OpeningArgs,
}

/// Moves pages to or from a host where `weft-bench serve` waits, and shows what it reached.
#[derive(clap::Args)]
pub struct RunArgs {
    /// Where `weft-bench serve` waits.
    #[arg(long, value_name = "HOST:PORT")]
    connect: String,
    #[command(flatten)]
    load: LoadArgs,
}

/// Both sides on this machine, as two processes.
#[derive(clap::Args)]
pub struct LoopbackArgs {
    #[command(flatten)]
    load: LoadArgs,
}

/// Where both sides name something, what serves does as its own command line says.
#[derive(clap::Args)]
struct OpeningArgs {
    /// The fabric: a libfabric provider as "tcp" or "efa", or one of Weft's own.
    #[arg(long)]
    provider: Option<String>,
    /// Number of rails.
    #[arg(long)]
    rails: Option<u32>,
    /// Which rails: patterns separated by commas, as "eth*,!eth3".
    #[arg(long, value_name = "PATTERNS")]
    rail_names: Option<String>,
    /// Worker threads.
    #[arg(long)]
    workers: Option<u32>,
}

#[derive(clap::Args)]
struct ExportArgs {
    /// Write what this side's endpoint has done, once a second and at the end, in Prometheus' text
    /// format; as FILE.prom in the folder of a node exporter's textfile collector.
    #[arg(long, value_name = "FILE")]
    prometheus: Option<PathBuf>,
}

impl ExportArgs {
    fn path(&self) -> Option<&Path> {
        self.prometheus.as_deref()
    }
}

#[derive(clap::Args)]
struct LoadArgs {
    /// Bytes of a page, as 65536 or 64K.
    #[arg(long, default_value = "64K", value_parser = show::parse_size)]
    page: usize,
    /// Pages of a transfer, in each layer.
    #[arg(long, default_value_t = 256)]
    pages: usize,
    /// Layers of a transfer.
    #[arg(long, default_value_t = 1)]
    layers: usize,
    /// Transfers at once.
    #[arg(long, default_value_t = 4)]
    in_flight: usize,
    /// Seconds that it goes on; the transfers in flight are then waited for.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// So many transfers, instead of a time.
    #[arg(long)]
    repeat: Option<u64>,
    /// Read the serving side's pages, instead of writing them.
    #[arg(long)]
    read: bool,
    /// Pages that lie behind each other, instead of random ones.
    #[arg(long)]
    adjacent: bool,
    /// Submit all that may be in flight at once, and wait for all, again and again.
    #[arg(long)]
    together: bool,
    /// Beside the load, one transfer of so many bytes after the other, of the latency class.
    #[arg(long, value_name = "BYTES", value_parser = show::parse_size)]
    small: Option<usize>,
    /// At the end move everything once more, into wiped pages, and look at every byte.
    #[arg(long)]
    verify: bool,
    /// Write the result as JSON, too; "-" writes it to stdout instead of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    export: ExportArgs,
    #[command(flatten)]
    opening: OpeningArgs,
}

impl OpeningArgs {
    fn opening(&self) -> Opening {
        Opening {
            fabric: self.provider.clone(),
            rail_names: self.rail_names.clone(),
            rails: self.rails,
            workers: self.workers,
        }
    }
}

impl LoadArgs {
    fn load(&self) -> Result<Load> {
        let load = Load {
            page_len: self.page,
            pages: self.pages,
            layers: self.layers,
            in_flight: self.in_flight,
            adjacent: self.adjacent,
            read: self.read,
            seconds: self.seconds,
            repeat: self.repeat,
            together: self.together,
            small: self.small.unwrap_or(0),
            verify: self.verify,
            opening: self.opening.opening(),
        };
        load.check()?;
        Ok(load)
    }

    fn show(&self, report: &Report) -> Result<()> {
        let json = serde_json::to_string_pretty(report)? + "\n";
        match &self.json {
            Some(path) if path.as_os_str() == "-" => {
                print!("{json}");
                return Ok(());
            }
            Some(path) => {
                std::fs::write(path, json).with_context(|| format!("writing {}", path.display()))?
            }
            None => {}
        }
        println!("{}\n{}", results(report), rails(report));
        Ok(())
    }
}

pub fn serve(args: &ServeArgs) -> Result<()> {
    let listener =
        TcpListener::bind(&args.listen).with_context(|| format!("listening on {}", args.listen))?;
    // A parent reads it: it must not wait in a buffer.
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (stream, from) = listener.accept().context("waiting for a client")?;
        let served = server::serve(stream, &args.opening.opening(), args.export.path());
        if args.once {
            return served;
        }
        if let Err(error) = served {
            eprintln!("weft-bench: {from}: {error:#}");
        }
    }
}

pub fn run(args: &RunArgs) -> Result<()> {
    let load = args.load.load()?;
    let report = client::run(&args.connect, &load, args.load.export.path(), &mut Rates::new())?;
    args.load.show(&report)
}

pub fn loopback(args: &LoopbackArgs) -> Result<()> {
    let load = args.load.load()?;
    let (mut server, place) = start_server()?;
    let report = client::run(&place, &load, args.load.export.path(), &mut Rates::new());
    if report.is_err() {
        server.kill().context("ending the serving process")?;
    }
    let ended = server.wait().context("the serving process")?;
    let report = report?;
    if !ended.success() {
        bail!("the serving process ended with {ended}");
    }
    args.load.show(&report)
}

fn start_server() -> Result<(Child, String)> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut child = Command::new(program)
        .args(["serve", "--once", "--listen", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // An interruption is for us: the server lives until we have ended.
        .process_group(0)
        .spawn()
        .context("starting the serving process")?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("the server's output")?).read_line(&mut line)?;
    let place = line.trim().strip_prefix("listening on ").context("the serving process did not start")?;
    Ok((child, place.to_owned()))
}

fn results(report: &Report) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("rate", format!("{:.3} Gbps, {:.0} pages/s", report.gbps, report.pages_per_s));
    let interrupted = if report.interrupted { ", interrupted" } else { "" };
    row(
        "moved",
        format!(
            "{} transfers, {} bytes, {:.3} s{interrupted}",
            report.transfers, report.bytes, report.seconds
        ),
    );
    let us = &report.transfer_us;
    row(
        "time of a transfer",
        format!("p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us", us.p50, us.p99, us.p99_9),
    );
    let cpu = &report.cpu_ns_per_slice;
    row("CPU time of a slice", format!("{:.0} ns here, {:.0} ns there", cpu.local, cpu.remote));
    if let Some(evenness) = report.evenness {
        row("slowest over fastest", format!("{evenness:.3}"));
    }
    if let Some(small) = &report.small {
        row(
            "beside the load",
            format!(
                "{} transfers, median {:.1} us; alone {:.1} us in the mean",
                small.count, small.beside_us, small.alone_us
            ),
        );
    }
    let verified = report.verified.map_or("not looked at", |_| "every byte is right");
    row("verified", verified.to_owned());
    row("fabric", format!("{}, {} rails there, {} lanes", report.fabric, report.remote_rails, report.lanes));
    table
}

fn rails(report: &Report) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(["rail", "address", "bytes", "share"]);
    for rail in &report.rails {
        let share = format!("{:.1} %", rail.share * 100.0);
        table.add_row([&rail.name, &rail.address, &rail.bytes.to_string(), &share]);
    }
    for column in 2..4 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
