//! What the two sides say to each other over TCP: a line of JSON each.

use super::Load;
use anyhow::{bail, Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// Both sides must be of one version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// A descriptor of many ranges and rails is long; nothing is longer than this.
const LINE_MAX: u64 = 64 << 20;

#[derive(Serialize, Deserialize)]
pub enum Ask {
    Hello {
        version: String,
        load: Load,
    },
    /// CPU time of the process so far.
    Usage,
    Wipe,
    Verify,
}

#[derive(Serialize, Deserialize)]
pub enum Answer {
    Ready { address: Vec<u8>, descriptor: Vec<u8>, rails: u32 },
    Usage { cpu_ns: u64 },
    Done,
    Failed(String),
}

pub struct Talk {
    stream: BufReader<TcpStream>,
}

impl Talk {
    pub fn new(stream: TcpStream) -> Result<Talk> {
        stream.set_nodelay(true).context("the control connection")?;
        Ok(Talk { stream: BufReader::new(stream) })
    }

    pub fn say(&mut self, what: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(what)? + "\n";
        self.stream.get_mut().write_all(line.as_bytes()).context("the other side went away")
    }

    /// None when the other side has ended.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let mut line = String::new();
        let len = self.stream.by_ref().take(LINE_MAX).read_line(&mut line).context("the other side")?;
        if len == 0 {
            return Ok(None);
        }
        serde_json::from_str(&line).map(Some).context("the other side is no weft-bench of this version")
    }

    pub fn ask(&mut self, what: &Ask) -> Result<Answer> {
        self.say(what)?;
        match self.hear()?.context("the serving side ended")? {
            Answer::Failed(why) => bail!("the serving side: {why}"),
            answer => Ok(answer),
        }
    }

    pub fn remote_cpu_ns(&mut self) -> Result<u64> {
        match self.ask(&Ask::Usage)? {
            Answer::Usage { cpu_ns } => Ok(cpu_ns),
            _ => bail!("the serving side gave another answer than its CPU time"),
        }
    }
}
