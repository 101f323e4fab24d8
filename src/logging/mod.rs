//! The log: lines go to stderr, filtered by WEFT_LOG, or to the host program's callback.

pub mod seldom;
mod stderr;

use crate::codec::Text;
use crate::status::{Error, Result, Status};
use env_logger::Target;
use log::{LevelFilter, Log, Metadata, Record};
use once_cell::sync::OnceCell;
use parking_lot::RwLock;
use std::cell::Cell;
use std::io::Write;

/// The host program's handler of a line: level, component, message.
pub type Sink = Box<dyn Fn(log::Level, &str, &str) + Send + Sync>;

struct Logger {
    /// The level of WEFT_LOG.
    usual: LevelFilter,
    /// A thread holds the lock for reading while it writes a line, so a change of the sink waits
    /// until the old one is unused.
    to: RwLock<To>,
}

enum To {
    Stderr(env_logger::Logger),
    Sink(LevelFilter, Sink),
}

impl To {
    fn stderr(level: Option<LevelFilter>) -> To {
        let mut builder = env_logger::Builder::new();
        match level {
            Some(level) => builder.filter_module(CRATE, level),
            None if unknown_level().is_some() => builder.filter_module(CRATE, LevelFilter::Warn),
            None => builder.parse_env(
                env_logger::Env::new().filter_or(VARIABLE, concat!(env!("CARGO_CRATE_NAME"), "=warn")),
            ),
        };
        builder.format(|out, record| {
            let (level, target) = (record.level(), record.target());
            writeln!(out, "[{} {} {level:<5} {target}] {}", stderr::now(), std::process::id(), record.args())
        });
        To::Stderr(builder.target(Target::Pipe(Box::new(stderr::Stderr::default()))).build())
    }
}

/// Names a level, or the levels of parts of the library, as env_logger reads them.
const VARIABLE: &str = "WEFT_LOG";

/// What the variable says, if it names no level.
fn unknown_level() -> Option<String> {
    let said = std::env::var(VARIABLE).ok()?;
    let known =
        said.parse::<LevelFilter>().is_ok() || said.contains(['=', ',', '/']) || said.starts_with(CRATE);
    (!known).then_some(said)
}

static LOGGER: OnceCell<Logger> = OnceCell::new();

thread_local! {
    /// This thread is inside the sink: lines that it logs there are dropped.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Starts the log, once. False if the host program has its own Rust logger, which stays.
fn logger() -> (&'static Logger, bool) {
    static OURS: OnceCell<bool> = OnceCell::new();
    let logger = LOGGER.get_or_init(|| {
        let to = To::stderr(None);
        let usual = if let To::Stderr(stderr) = &to { stderr.filter() } else { LevelFilter::Warn };
        Logger { usual, to: RwLock::new(to) }
    });
    let ours = *OURS.get_or_init(|| {
        let taken = log::set_logger(logger).is_ok();
        if taken {
            log::set_max_level(logger.usual);
            if let Some(said) = unknown_level().filter(|said| !said.trim().is_empty()) {
                let said = Text::escaped(said.as_bytes());
                log::warn!("{VARIABLE} is \"{said}\", which is no level (error, warn, info, debug, trace): warn is used");
            }
        }
        taken
    });
    (logger, ours)
}

pub fn start() {
    logger();
}

/// Sends lines to `sink`, or to stderr, up to a level (`None`: WEFT_LOG's). The previous sink is no
/// longer called.
pub fn set(level: Option<LevelFilter>, sink: Option<Sink>) -> Result<()> {
    let (logger, ours) = logger();
    if !ours {
        return Err(Error::new(
            Status::Unsupported,
            "the host program has a logger of Rust's: set its level",
        ));
    }
    if INSIDE.get() {
        return Err(Error::new(Status::Busy, "a log callback cannot change the log: return first"));
    }
    let most = level.unwrap_or(logger.usual);
    let new = match sink {
        Some(sink) => To::Sink(most, sink),
        None => To::stderr(level),
    };
    let mut to = logger.to.write();
    log::set_max_level(most);
    *to = new;
    Ok(())
}

/// The prefix of the targets of Weft's lines.
const CRATE: &str = env!("CARGO_CRATE_NAME");

/// The component of a line's target: "rail" for "weft::rail::lane". To programs an endpoint is one, whatever thread speaks.
fn component(target: &str) -> Option<&str> {
    let mut parts = target.split("::");
    (parts.next()? == CRATE).then(|| match parts.next() {
        Some("calls" | "owner" | "worker") => "endpoint",
        part => part.unwrap_or("weft"),
    })
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record) {
        // A thread that is ending no longer has thread-locals.
        if INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true) {
            return;
        }
        self.pass_on(record);
        INSIDE.set(false);
    }

    fn flush(&self) {}
}

impl Logger {
    fn pass_on(&self, record: &Record) {
        match (&*self.to.read(), component(record.target())) {
            (To::Stderr(logger), _) => logger.log(record),
            (To::Sink(most, sink), Some(component)) if record.level() <= *most => {
                sink(record.level(), component, &record.args().to_string());
            }
            (To::Sink(..), _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn component_is_the_first_module_of_the_target() {
        assert_eq!(component("weft::rail::lane"), Some("rail"));
        assert_eq!(component("weft::worker::rest"), Some("endpoint"));
        assert_eq!(component("weft"), Some("weft"));
        assert_eq!(component("other::rail"), None);
    }
}
