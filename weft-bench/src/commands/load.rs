//! `weft-bench serve`, `run` and `loopback`: a load between two hosts, or between
//! two processes of this one.

use super::Args;
use crate::endpoint::{Endpoint, Opening};
use crate::load::tally::{table_of, Report};
use crate::load::{client, server, Load};
use crate::process::Process;
use crate::show::{self, Rates};
use anyhow::{anyhow, Context, Result};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

macro_rules! opening {
    () => {
        "
Where both sides name something, what serves does as its own command line says:
  --provider NAME        the fabric: a libfabric provider as \"tcp\" or \"efa\", or one of Weft's own
  --rails N              number of rails
  --rail-names PATTERNS  which rails: separated by commas, as \"eth*,!eth3\"
  --workers N            worker threads
  --tcp-ports PORTS      on which tcp listens, as \"7000\" or \"7000-7099\"; --tcp-address, --tcp-streams as in weft.h
  --secret-file FILE     who may connect: the secret is on the first line; --encrypt: nothing travels in the clear
  --connect-timeout TIME, --liveness TIME   as \"30s\" or \"500ms\"
  --prometheus FILE      write what this side's endpoint has done, once a second and at the end, in Prometheus' text
                         format; as FILE.prom in the folder of a node exporter's textfile collector
"
    };
}

macro_rules! options {
    () => {
        concat!(
            "
  --page BYTES       bytes of a page, as 65536 or 64K (64K)
  --pages N          pages of a transfer, in each layer (256)
  --layers N         layers of a transfer (1)
  --in-flight N      transfers at once (4)
  --seconds N        how long it goes on; the transfers in flight are then waited for (5)
  --repeat N         this many transfers, instead of a time
  --read             read the serving side's pages, instead of writing them
  --adjacent         pages that lie behind each other, instead of random ones
  --together         submit all that may be in flight at once, and wait for all, again and again
  --small BYTES      beside the load, one transfer of this many bytes after the other, of the latency class
  --cold             count the first transfers, too: without them connections are warm
  --verify           at the end move everything once more, into wiped pages, and look at every byte
  --json FILE        write the result as JSON, too; \"-\" writes it to stdout instead of the table
",
            opening!()
        )
    };
}

pub const SERVE: &str = concat!(
    "\
Waits for `weft-bench run` from another host, and lends it pages of this one.

  --listen HOST:PORT  where to wait, for control only: the pages go over the rails; port 0: any (0.0.0.0:4711)
  --once              end after the first client
",
    opening!()
);
pub const RUN: &str = concat!(
    "\
Moves pages to or from a host where `weft-bench serve` waits, and shows what it reached.

  --connect HOST:PORT  where it waits
",
    options!()
);
pub const LOOPBACK: &str = concat!("Moves pages between two processes of this machine.\n", options!());

/// Options that are this side's alone, and set a variable of Weft's.
const SETTINGS: [(&str, &str); 6] = [
    ("--tcp-ports", "WEFT_TCP_PORTS"),
    ("--tcp-address", "WEFT_TCP_ADDRESS"),
    ("--tcp-streams", "WEFT_TCP_STREAMS"),
    ("--secret-file", "WEFT_SECRET_FILE"),
    ("--connect-timeout", "WEFT_CONNECT_TIMEOUT"),
    ("--liveness", "WEFT_LIVENESS"),
];

/// The options with which a side opens its endpoint, and the file for Prometheus. No thread has been started yet.
fn opening(args: &mut Args) -> Result<(Opening, Option<PathBuf>)> {
    for (option, variable) in SETTINGS {
        args.maybe::<String>(option)?.into_iter().for_each(|value| std::env::set_var(variable, value));
    }
    if args.has("--encrypt") {
        std::env::set_var("WEFT_ENCRYPT", "1");
    }
    let opening = Opening {
        fabric: args.maybe("--provider")?,
        rail_names: args.maybe("--rail-names")?,
        rails: args.or("--rails", 0)?,
        workers: args.or("--workers", 0)?,
        ..Opening::default()
    };
    Ok((opening, args.maybe("--prometheus")?))
}

/// A number of bytes, as "64K".
fn bytes(args: &mut Args, option: &'static str) -> Result<Option<usize>> {
    let text: Option<String> = args.maybe(option)?;
    text.map(|text| show::parse_size(&text)).transpose().map_err(|error| anyhow!("{option}: {error}"))
}

/// The parameters of a load, and the file for its results.
struct Order {
    load: Load,
    json: Option<PathBuf>,
    prometheus: Option<PathBuf>,
}

impl Order {
    fn read(mut args: Args) -> Result<Order> {
        let (opening, prometheus) = opening(&mut args)?;
        let json = args.maybe("--json")?;
        let load = Load {
            page_len: bytes(&mut args, "--page")?.unwrap_or(65536),
            pages: args.or("--pages", 256)?,
            layers: args.or("--layers", 1)?,
            in_flight: args.or("--in-flight", 4)?,
            adjacent: args.has("--adjacent"),
            read: args.has("--read"),
            seconds: args.or("--seconds", 5.0)?,
            repeat: args.maybe("--repeat")?,
            together: args.has("--together"),
            cold: args.has("--cold"),
            small: bytes(&mut args, "--small")?.unwrap_or(0),
            verify: args.has("--verify"),
            opening,
        };
        args.end()?;
        load.check()?;
        Ok(Order { load, json, prometheus })
    }

    fn run(&self, place: &str) -> Result<Report> {
        client::run(place, &self.load, self.prometheus.as_deref(), &mut Rates::default())
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
        println!("{}\n{}\n{}", results(report), rails(report), table_of(&report.served_by));
        Ok(())
    }
}

pub fn serve(mut args: Args) -> Result<()> {
    let listen: String = args.or("--listen", "0.0.0.0:4711".to_owned())?;
    let once = args.has("--once");
    let (opening, prometheus) = opening(&mut args)?;
    args.end()?;
    Endpoint::open(&opening)?; // An error of this command line is reported here, not to the first client.
    let listener = TcpListener::bind(&listen).with_context(|| format!("listening on {listen}"))?;
    // A parent process reads it: it must not wait in a buffer.
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (stream, from) = listener.accept().context("waiting for a client")?;
        // It has words of the client's in it.
        let served = server::serve(stream, &opening, prometheus.as_deref())
            .map_err(|error| anyhow!("{from}: {}", show::printable(&format!("{error:#}"))));
        if once {
            return served;
        }
        if let Err(error) = served {
            eprintln!("weft-bench: {error:#}");
        }
    }
}

pub fn run(mut args: Args) -> Result<()> {
    let place: String = args.maybe("--connect")?.context("--connect HOST:PORT is needed")?;
    let order = Order::read(args)?;
    order.show(&order.run(&place)?)
}

pub fn loopback(args: Args) -> Result<()> {
    let order = Order::read(args)?;
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    // This process handles an interrupt: the server stays alive until this process has ended.
    command.args(["serve", "--once", "--listen", "127.0.0.1:0"]).process_group(0);
    let mut server = Process::start(&mut command)?;
    let line = server.lines.line()?;
    let place = line.trim().strip_prefix("listening on ").context("the serving process did not start")?;
    let report = order.run(place)?;
    server.end()?;
    order.show(&report)
}

fn results(report: &Report) -> String {
    let mut rows = Vec::new();
    let mut row = |name: &str, value: String| rows.push(vec![name.to_owned(), value]);
    row("rate", format!("{:.3} Gbps, {:.0} pages/s", report.gbps, report.pages_per_s));
    let interrupted = if report.interrupted { ", interrupted" } else { "" };
    let (transfers, bytes, seconds) = (report.transfers, report.bytes, report.seconds);
    row("moved", format!("{transfers} transfers, {bytes} bytes, {seconds:.3} s{interrupted}"));
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
        let (count, beside, alone) = (small.count, small.beside_us, small.alone_us);
        let text = format!("{count} transfers, median {beside:.1} us; alone {alone:.1} us in the mean");
        row("beside the load", text);
    }
    row("verified", report.verified.map_or("not looked at", |_| "every byte is right").to_owned());
    row("fabric", format!("{} to {}, {} lanes up", report.fabric, report.peer, report.lanes));
    row("rails there", report.remote_rails.to_string());
    show::table(&rows, 0..0)
}

fn rails(report: &Report) -> String {
    let mut rows = vec![["rail", "address", "bytes", "share"].map(String::from).to_vec()];
    for rail in &report.rails {
        let share = format!("{:.1} %", rail.share * 100.0);
        rows.push(vec![rail.name.clone(), rail.address.clone(), rail.bytes.to_string(), share]);
    }
    show::table(&rows, 2..4)
}
