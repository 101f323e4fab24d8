//! The user's commands: one file each.

mod figures;
mod load;
mod manual;
mod markdown;
mod top;
mod topo;

use crate::process::Part;
use anyhow::{anyhow, bail, ensure, Context, Result};
use std::str::FromStr;

const HELP: &str = "\
Measures Weft on this machine, beside bare libfabric and plain sockets.

weft-bench COMMAND [OPTIONS]; weft-bench COMMAND --help says more.

  figures    measures this library's figures
  top        shows what processes of this user do with Weft
  topo       draws the machine, and the rails that Weft opens
  serve      waits for `weft-bench run` from another host, and lends it pages
  run        moves pages to or from a host where `weft-bench serve` waits
  loopback   both at once, as two processes of this machine
  manual     prints all of this as a man page
";

/// The commands of the man page.
const HELPS: [(&str, &str); 6] = [
    ("figures", figures::HELP),
    ("top", top::HELP),
    ("topo", topo::HELP),
    ("serve", load::SERVE),
    ("run", load::RUN),
    ("loopback", load::LOOPBACK),
];

/// The options behind a command.
struct Args(pico_args::Arguments);

impl Args {
    /// Whether a flag such as "--quick" is present.
    fn has(&mut self, option: &'static str) -> bool {
        self.0.contains(option)
    }

    fn maybe<T: FromStr<Err: std::fmt::Display>>(&mut self, option: &'static str) -> Result<Option<T>> {
        self.0.opt_value_from_str(option).map_err(|error| anyhow!("{option}: {error}"))
    }

    /// The option's value, or the default.
    fn or<T: FromStr<Err: std::fmt::Display>>(&mut self, option: &'static str, default: T) -> Result<T> {
        Ok(self.maybe(option)?.unwrap_or(default))
    }

    /// An unused option is a mistake.
    fn end(self) -> Result<()> {
        let rest = self.0.finish();
        ensure!(rest.is_empty(), "{rest:?} is not understood: see weft-bench --help");
        Ok(())
    }
}

type Command = fn(Args) -> Result<()>;

pub fn run() -> Result<()> {
    let mut args = pico_args::Arguments::from_env();
    let name = args.subcommand().map_err(|error| anyhow!("{error}"))?;
    let (help, command): (&str, Command) = match name.as_deref() {
        Some("figures") => (figures::HELP, figures::run),
        Some("top") => (top::HELP, top::run),
        Some("topo") => (topo::HELP, topo::run),
        Some("serve") => (load::SERVE, load::serve),
        Some("run") => (load::RUN, load::run),
        Some("loopback") => (load::LOOPBACK, load::loopback),
        Some("manual") => (manual::HELP, manual::run),
        // The other commands start these.
        Some("part") => ("", |mut args| Part::run(&args.0.free_from_str::<String>().context("a part")?)),
        None if args.contains(["-V", "--version"]) => {
            println!("weft-bench {}", env!("CARGO_PKG_VERSION"));
            return Ok(());
        }
        None => (HELP, |args| args.end()),
        Some(other) => bail!("{other}: no such command; see weft-bench --help"),
    };
    if name.is_none() || args.contains(["-h", "--help"]) {
        print!("{help}");
        return Ok(());
    }
    command(Args(args))
}
