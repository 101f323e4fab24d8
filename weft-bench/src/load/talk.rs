//! Messages between the two sides over TCP, in the line format of [`crate::process`].

use super::Load;
use crate::endpoint::Offer;
use crate::process::{said, Lines};
use crate::show::printable;
use anyhow::{anyhow, Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

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
    /// The client ends without a result, for this reason; not answered.
    Failed(String),
}

#[derive(Serialize, Deserialize)]
pub struct Ready {
    pub offer: Offer,
    /// The fabric of each.
    pub rails: Vec<String>,
}

pub type Talk = Lines<TcpStream, TcpStream>;

/// A side that has vanished is noticed this soon, although nothing is said while a load runs.
const SILENCE_S: i32 = 10;

pub fn talk(stream: TcpStream) -> Result<Talk> {
    keep_alive(&stream).context("the control connection")?;
    Ok(Lines::new(stream.try_clone()?, stream))
}

fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, SILENCE_S / 2),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 1),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, SILENCE_S * 1000),
    ];
    for (level, name, value) in options {
        let len = size_of::<i32>() as libc::socklen_t;
        // SAFETY: the option is an integer that lives through the call.
        if unsafe { libc::setsockopt(stream.as_raw_fd(), level, name, (&raw const value).cast(), len) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

impl Talk {
    /// A reason of the serving side's is quoted: "here" in it is there.
    pub fn ask<T: DeserializeOwned>(&mut self, what: &Ask) -> Result<T> {
        self.say(what)?;
        let line = self.line().context("the serving side")?;
        let answer =
            said(&line).map_err(|error| anyhow!("the serving side: {}", printable(&format!("{error:#}"))))?;
        answer.map_err(|why: String| anyhow!("the serving side says: \"{}\"", printable(&why)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    #[test]
    fn reason_of_the_serving_side_is_quoted_without_control_characters() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut talk = talk(TcpStream::connect(listener.local_addr().unwrap()).unwrap()).unwrap();
        let mut serving = listener.accept().unwrap().0;
        serving.write_all(b"{\"Err\":\"set here\\u001b[2J\"}\n{\"Er\\u001br\":1}\n").unwrap();
        let mut ask = || talk.ask::<u64>(&Ask::Usage).map_err(|error| format!("{error:#}")).unwrap_err();
        assert_eq!(ask(), "the serving side says: \"set here\\u{1b}[2J\"");
        let malformed = ask();
        assert!(malformed.starts_with("the serving side: ") && !malformed.contains('\u{1b}'), "{malformed}");
    }
}
