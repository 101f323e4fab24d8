//! The serving side: opens an endpoint and pages as the client wants them, then
//! answers what it asks while Weft's workers do the rest.

use super::side::{cpu_ns, Side};
use super::talk::{Answer, Ask, Talk, VERSION};
use super::{Load, Opening};
use anyhow::{bail, Context, Result};
use std::net::TcpStream;
use std::path::Path;

/// Serves one client to its end. What `opening` names goes before what the client asks for.
pub fn serve(stream: TcpStream, opening: &Opening, prometheus: Option<&Path>) -> Result<()> {
    let mut talk = Talk::new(stream)?;
    let Some(Ask::Hello { version, load }) = talk.hear()? else {
        bail!("a client that says nothing, or not hello first");
    };
    let opened = match version == VERSION {
        true => open(&load, opening, prometheus),
        false => Err(anyhow::anyhow!("weft-bench {VERSION} here, {version} there: use one version")),
    };
    let mut side = match opened {
        Ok((side, ready)) => {
            talk.say(&ready)?;
            side
        }
        Err(error) => {
            talk.say(&Answer::Failed(format!("{error:#}")))?;
            return Err(error);
        }
    };
    while let Some(ask) = talk.hear()? {
        let answer = match ask {
            Ask::Hello { .. } => bail!("a client that says hello twice"),
            Ask::Usage => Answer::Usage { cpu_ns: cpu_ns() },
            Ask::Wipe => {
                side.pool.wipe();
                Answer::Done
            }
            Ask::Verify => side.pool.verify(&load.all_lists()).map_or_else(Answer::Failed, |()| Answer::Done),
        };
        talk.say(&answer)?;
    }
    Ok(())
}

fn open(load: &Load, opening: &Opening, prometheus: Option<&Path>) -> Result<(Side, Answer)> {
    load.check()?;
    let mut side = Side::open(load, &opening.clone().or(load.opening.clone()))?;
    side.export(prometheus)?;
    if load.read {
        side.pool.fill();
    }
    let rails = side.rails()?.len() as u32;
    let ready = Answer::Ready {
        address: side.address().context("the address")?,
        descriptor: side.descriptor().context("the descriptor")?,
        rails,
    };
    Ok((side, ready))
}
