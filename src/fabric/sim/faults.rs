//! Planned faults: lines of "at_us target action", separated by newlines or ";".
//!
//! `at_us` counts from the world's beginning, or, as `port4+at_us`, from the opening of the world's
//! NIC 4, so that a test can choose the time by opening an endpoint. `target` is `*`, `rail2` (that
//! rail of every endpoint) or `port5` (the world's NIC 5 in order of opening, from 0). Actions:
//!
//! | | |
//! | --- | --- |
//! | `down`, `up` | the link, or one direction of it: `down:tx`, `up:rx` |
//! | `unplugged`, `plugged` | the same, and the kernel reports it |
//! | `removed`, `removed=US` | the device: nothing passes, and the kernel reports it; after this time, another of its name is there |
//! | `forgotten` | no connection can be enabled (EINVAL) until the NIC is opened anew |
//! | `dead` | no operation completes |
//! | `error=N` | the next N operations fail; where NICs do not connect, the queue does not name them |
//! | `busy=N` | closing the Nth registration fails once, as if it were in use |
//! | `stuck=N` | closing the NIC fails N times |
//! | `again=US` | posts fail with EAGAIN for this time |
//! | `slow=SHARE` | the link runs at this share of its rate |
//! | `kill` | the endpoint vanishes silently |

use super::port::{Port, AGAIN, DEAD, ERRORS, FORGOTTEN, KILLED, LINKLESS, REMOVED, RX_DOWN, TX_DOWN};
use crate::status::{Error, Result};
use std::sync::atomic::Ordering::Relaxed;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Action {
    Set(u32),
    Clear(u32),
    Errors(u32),
    Busy(u32),
    Stuck(u32),
    Again(u64),
    Slow(f64),
    Removed(u64),
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Target {
    All,
    Rail(usize),
    Port(u64),
}

/// A time before `u64::MAX`, which stands for no planned fault.
const NOT_YET: u64 = u64::MAX - 1;

/// A time that counts from the opening of a NIC.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Opening {
    port: u64,
    after: u64,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fault {
    /// Picoseconds from the world's beginning; `NOT_YET` until the NIC in `opens` exists.
    pub at: u64,
    opens: Option<Opening>,
    target: Target,
    action: Action,
}

/// Parses a plan; an error names the part that is invalid.
pub fn parse(plan: &str) -> Result<Vec<Fault>> {
    let lines = plan.split(['\n', ';']).map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| fault(line).ok_or_else(|| wrong(line))).collect()
}

fn wrong(line: &str) -> Error {
    Error::invalid(format!(
        "the fault \"{line}\" is invalid: write \"AT_US TARGET ACTION\"; TARGET is *, railN or portN; ACTION is down, up, \
         down:tx, down:rx, up:tx, up:rx, unplugged, plugged, removed, removed=US, forgotten, dead, error=N, busy=N, stuck=N, again=US, slow=SHARE or kill"
    ))
}

fn fault(line: &str) -> Option<Fault> {
    let mut words = line.split_whitespace();
    let (at, opens) = when(words.next()?)?;
    let (target, action) = (target(words.next()?)?, action(words.next()?)?);
    words.next().is_none().then_some(Fault { at, opens, target, action })
}

fn when(word: &str) -> Option<(u64, Option<Opening>)> {
    let (port, us) = word.strip_prefix("port").and_then(|word| word.split_once('+')).unzip();
    let after = us.unwrap_or(word).parse::<u64>().ok()?.checked_mul(1_000_000)?;
    match port {
        Some(port) => Some((NOT_YET, Some(Opening { port: port.parse().ok()?, after }))),
        None => Some((after, None)),
    }
}

fn target(word: &str) -> Option<Target> {
    match word {
        "*" => Some(Target::All),
        _ if word.starts_with("rail") => word[4..].parse().ok().map(Target::Rail),
        _ => word.strip_prefix("port")?.parse().ok().map(Target::Port),
    }
}

fn action(word: &str) -> Option<Action> {
    Some(match word {
        "down" => Action::Set(TX_DOWN | RX_DOWN),
        "down:tx" => Action::Set(TX_DOWN),
        "down:rx" => Action::Set(RX_DOWN),
        "up" => Action::Clear(TX_DOWN | RX_DOWN),
        "up:tx" => Action::Clear(TX_DOWN),
        "up:rx" => Action::Clear(RX_DOWN),
        "unplugged" => Action::Set(TX_DOWN | RX_DOWN | LINKLESS),
        "plugged" => Action::Clear(TX_DOWN | RX_DOWN | LINKLESS),
        "removed" => Action::Removed(u64::MAX),
        "forgotten" => Action::Set(FORGOTTEN),
        "dead" => Action::Set(DEAD),
        "kill" => Action::Set(KILLED),
        _ => match word.split_once('=')? {
            ("error", n) => Action::Errors(n.parse().ok().filter(|n| *n > 0)?),
            ("busy", n) => Action::Busy(n.parse().ok().filter(|n| *n > 0)?),
            ("stuck", n) => Action::Stuck(n.parse().ok()?),
            ("again", us) => Action::Again(us.parse().ok()?),
            ("removed", us) => Action::Removed(us.parse().ok()?),
            ("slow", share) => Action::Slow(share.parse().ok().filter(|s| *s > 0.0 && *s <= 1.0)?),
            _ => return None,
        },
    })
}

impl Fault {
    /// A NIC was opened: sets the times of its faults.
    pub fn opened(&mut self, port: u64, now: u64) {
        if let Some(opening) = self.opens.take_if(|opening| opening.port == port) {
            self.at = now.saturating_add(opening.after).min(NOT_YET);
        }
    }

    pub fn has_time(&self) -> bool {
        self.at < NOT_YET
    }

    pub fn is_about(&self, port: &Port) -> bool {
        match self.target {
            Target::All => true,
            Target::Rail(rail) => port.rail == rail,
            Target::Port(number) => port.number == number,
        }
    }

    pub fn strike(&self, port: &Port, now: u64) {
        match self.action {
            Action::Set(bits) => _ = port.state.fetch_or(bits, Relaxed),
            Action::Clear(bits) => _ = port.state.fetch_and(!bits, Relaxed),
            Action::Errors(count) => {
                port.errors.store(count, Relaxed);
                port.state.fetch_or(ERRORS, Relaxed);
            }
            Action::Busy(count) => port.busy.store(count, Relaxed),
            Action::Stuck(count) => port.stuck.store(count, Relaxed),
            Action::Again(us) => {
                port.again_until.store(now.saturating_add(us.saturating_mul(1_000_000)), Relaxed);
                port.state.fetch_or(AGAIN, Relaxed);
            }
            Action::Slow(share) => port.slow_down(share),
            Action::Removed(us) => {
                port.away.store(now.saturating_add(us.saturating_mul(1_000_000)), Relaxed);
                port.state.fetch_or(TX_DOWN | RX_DOWN | REMOVED, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_plan_is_parsed() {
        let plan = "10 rail2 down:rx; 20 * up\n30 port7 again=5; port4+9 * dead";
        let opens = Some(Opening { port: 4, after: 9_000_000 });
        let want = [
            Fault { at: 10_000_000, opens: None, target: Target::Rail(2), action: Action::Set(RX_DOWN) },
            Fault {
                at: 20_000_000,
                opens: None,
                target: Target::All,
                action: Action::Clear(TX_DOWN | RX_DOWN),
            },
            Fault { at: 30_000_000, opens: None, target: Target::Port(7), action: Action::Again(5) },
            Fault { at: NOT_YET, opens, target: Target::All, action: Action::Set(DEAD) },
        ];
        assert_eq!(parse(plan).unwrap_or_default(), want);
    }

    #[test]
    fn fault_waits_until_its_port_opens() {
        let mut fault = parse("port4+9 * dead").unwrap()[0];
        fault.opened(3, 1_000);
        assert!(!fault.has_time());
        fault.opened(4, 2_000);
        assert_eq!(fault.at, 9_002_000);
        fault.opened(4, 3_000);
        assert_eq!(fault.at, 9_002_000);
    }

    #[test]
    fn unknown_fault_is_named_in_the_error() {
        for bad in [
            "x * up",
            "port4 * up",
            "port+1 * up",
            "port4+ * up",
            "1 rail up",
            "1 * slow=2",
            "1 * error=0",
            "1 * up now",
            "1 port1",
            "1 nic1 up",
        ] {
            let message = parse(bad).map_or_else(|e| e.message.into_owned(), |_| String::new());
            assert!(message.contains(bad), "{bad}: {message}");
        }
    }
}
