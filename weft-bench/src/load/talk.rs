//! Messages between the two sides over TCP, in the line format of [`crate::process`].

use super::Load;
use crate::endpoint::Offer;
use crate::process::Lines;
use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::net::TcpStream;

/// Both sides must have the same version.
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

pub type Talk = Lines<TcpStream, TcpStream>;

pub fn talk(stream: TcpStream) -> Result<Talk> {
    stream.set_nodelay(true).context("the control connection")?;
    Ok(Lines::new(stream.try_clone()?, stream))
}

impl Talk {
    pub fn ask<T: DeserializeOwned>(&mut self, what: &Ask) -> Result<T> {
        self.say(what)?;
        self.hear().context("the serving side")
    }
}
