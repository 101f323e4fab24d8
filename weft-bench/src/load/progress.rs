//! Whether the bytes of a load move. A path may carry small frames, so that the peer stays connected, and drop the packets
//! of transfers.

use super::side::Side;
use super::INTERRUPTED;
use crate::endpoint::text;
use ::weft::capi::info::weft_lane_statistics;
use anyhow::{bail, Result};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often it is looked, when nothing has moved for how long that is said, and when the load ends.
const LOOK: Duration = Duration::from_millis(250);
const SAY: Duration = Duration::from_secs(5);
const END: Duration = Duration::from_secs(20);
/// What is in flight has this long to end after an interruption.
const GRACE: Duration = Duration::from_secs(1);

pub struct Progress {
    looked: Instant,
    moved: Instant,
    /// `u64::MAX` before the first look.
    bytes: u64,
    /// Bytes that had arrived by the system's count as something last moved.
    received: u64,
    said: bool,
    interrupted: Option<Instant>,
}

impl Progress {
    pub fn new() -> Progress {
        let now = Instant::now();
        Progress { looked: now, moved: now, bytes: u64::MAX, received: 0, said: false, interrupted: None }
    }

    /// Whether the user has interrupted, and what is in flight has had its time.
    pub fn is_interrupted(&mut self) -> bool {
        INTERRUPTED.load(Ordering::Relaxed)
            && self.interrupted.get_or_insert_with(Instant::now).elapsed() > GRACE
    }

    /// Says that nothing moves, and at last fails.
    pub fn look(&mut self, side: &Side) -> Result<()> {
        if self.looked.elapsed() < LOOK {
            return Ok(());
        }
        self.looked = Instant::now();
        let bytes = side.rails()?.iter().map(|rail| rail.bytes).sum();
        let lanes = side.service()?.lanes;
        let received = lanes.iter().map(|lane| lane.bytes_received).sum();
        if bytes != self.bytes {
            (self.moved, self.bytes, self.received, self.said) = (self.looked, bytes, received, false);
            return Ok(());
        }
        let still = self.moved.elapsed();
        if still > END {
            bail!("the load is given up: {}", why(side, &lanes, received > self.received, still)?);
        }
        if still > SAY && !std::mem::replace(&mut self.said, true) {
            eprintln!("weft-bench: {}", why(side, &lanes, received > self.received, still)?);
        }
        Ok(())
    }
}

/// Why nothing moves, as far as it can be seen here.
fn why(side: &Side, lanes: &[weft_lane_statistics], frames: bool, still: Duration) -> Result<String> {
    let said = format!("nothing has moved over any lane for {} s", still.as_secs());
    let Some(up) = lanes.iter().find(|lane| lane.up == 1) else {
        return Ok(format!("{said}: none is up"));
    };
    if !frames {
        return Ok(said);
    }
    let rails = side.rails()?;
    let rail = rails.get(up.rail as usize).map_or("", |rail| &rail.name);
    let mtu = std::fs::read_to_string(format!("/sys/class/net/{rail}/mtu")).unwrap_or_default();
    Ok(format!("{said}, while small frames arrive: {}", try_ping(&text(&up.remote_address), mtu.trim())))
}

/// The MTU has the headers of IP and ICMP in it.
fn try_ping(address: &str, mtu: &str) -> String {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    let headers = if host.contains(':') { 48 } else { 28 };
    let len = mtu.parse::<u32>().unwrap_or(1500).saturating_sub(headers);
    format!("does the path carry packets of the interface's MTU? ping -M do -s {len} {host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_has_the_mtu_without_headers() {
        assert!(try_ping("10.0.0.2:4711", "9000").ends_with("ping -M do -s 8972 10.0.0.2"));
        assert!(try_ping("[fd00::2]:4711", "1500").ends_with("ping -M do -s 1452 fd00::2"));
    }
}
