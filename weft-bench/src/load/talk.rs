//! What the two sides say to each other over TCP, in the lines of [`crate::process`].

use super::Load;
use crate::endpoint::Offer;
use crate::process::{answer, read_line, write_line};
use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::BufReader;
use std::net::TcpStream;

/// Both sides must be of one version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Serialize, Deserialize)]
pub enum Ask {
    /// Answered by `Ready`.
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
pub struct Ready {
    pub offer: Offer,
    pub rails: u32,
}

pub struct Talk(BufReader<TcpStream>);

impl Talk {
    pub fn new(stream: TcpStream) -> Result<Talk> {
        stream.set_nodelay(true).context("the control connection")?;
        Ok(Talk(BufReader::new(stream)))
    }

    pub fn say(&mut self, what: &Result<impl Serialize, String>) -> Result<()> {
        write_line(self.0.get_mut(), what).context("the other side went away")
    }

    /// None when the other side has ended.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        read_line(&mut self.0).context("the other side")?.map(|line| answer(&line)).transpose()
    }

    pub fn ask<T: DeserializeOwned>(&mut self, what: &Ask) -> Result<T> {
        self.say(&Ok(what))?;
        self.hear().context("the serving side")?.context("the serving side ended")
    }
}
