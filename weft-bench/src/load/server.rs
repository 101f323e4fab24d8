//! The serving side: opens an endpoint and pages as the client requests, then answers its requests
//! while Weft's workers do the rest.

use super::side::{cpu_ns, Side};
use super::talk::{talk, Ask, Ready, VERSION};
use super::Load;
use crate::endpoint::Opening;
use anyhow::{bail, Result};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

/// Clients are served one after the other: one that says nothing must not hold up the next.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves one client until it ends. `opening` takes precedence over the client's options.
pub fn serve(stream: TcpStream, opening: &Opening, prometheus: Option<&Path>) -> Result<()> {
    let hello = stream.try_clone()?;
    hello.set_read_timeout(Some(HELLO_TIMEOUT))?;
    let mut talk = talk(stream)?;
    let Some(Ask::Hello { version, load }) = talk.hear_or_end()? else {
        bail!("a client that says nothing, or not hello first");
    };
    hello.set_read_timeout(None)?;
    let opened = match version == VERSION {
        true => open(&load, opening, prometheus),
        false => Err(anyhow::anyhow!("weft-bench {VERSION} serves, {version} runs: use one version")),
    };
    talk.reply(&opened.as_ref().map(|(_, ready)| ready).map_err(|error| format!("{error:#}")))?;
    let (mut side, _) = opened?;
    while let Some(ask) = talk.hear_or_end()? {
        match ask {
            Ask::Failed(why) => bail!("the client says: \"{why}\""),
            Ask::Hello { .. } => bail!("a client that says hello twice"),
            Ask::Usage => talk.say(&cpu_ns())?,
            Ask::Wipe => {
                side.pool.wipe();
                talk.say(&())?;
            }
            Ask::Verify => talk.reply(&side.pool.verify(&load.all_lists()))?,
        }
    }
    Ok(())
}

fn open(load: &Load, opening: &Opening, prometheus: Option<&Path>) -> Result<(Side, Ready)> {
    load.check()?;
    let mut side = Side::open(load, &opening.clone().or(load.opening.clone()))?;
    side.export(prometheus)?;
    if load.read {
        side.pool.fill();
    }
    let rails = side.rails()?.into_iter().map(|rail| rail.fabric).collect();
    let ready = Ready { offer: side.offer()?, rails };
    Ok((side, ready))
}
