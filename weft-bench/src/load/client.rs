//! The running side: requests a server's pages, keeps transfers in flight, and reports.

use super::progress::Progress;
use super::side::{cpu_ns, Side, SMALL};
use super::talk::{talk, Ask, Ready, Talk, VERSION};
use super::tally::{table_of, Ending, Lane, Report, Tally};
use super::{catch_interruptions, Load, INTERRUPTED};
use crate::pages::Lists;
use crate::show::Rates;
use ::weft::capi::completion::weft_completion;
use anyhow::{anyhow, bail, Context, Result};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The two sides may be started in either order.
const REFUSED_PATIENCE: Duration = Duration::from_secs(3);
/// A server opens, registers and checks its pages within this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
const WAIT: Duration = Duration::from_millis(20);
const SHOW: Duration = Duration::from_millis(250);
/// How long the single transfers run before the load.
const ALONE: Duration = Duration::from_millis(500);
/// Single transfers during the load, and as many without it.
const SMALL_ONES: usize = 50;
/// For these the load may continue this many times as long.
const SMALL_PATIENCE: f64 = 6.0;

struct Client<'a> {
    load: &'a Load,
    lists: Vec<Lists>,
    side: Side,
    talk: Talk,
    remote_rails: u32,
    progress: Progress,
}

/// Runs a load against the server at `place`, "HOST:PORT".
pub fn run(place: &str, load: &Load, prometheus: Option<&Path>, rates: &mut Rates) -> Result<Report> {
    let Met { mut side, talk, remote_rails } = meet(place, load)?;
    // Before this there is nothing to show: an interrupt ends the process.
    catch_interruptions();
    side.export(prometheus)?;
    let lists = (0..load.in_flight).map(|place| load.lists(place)).collect();
    let mut client = Client { load, lists, side, talk, remote_rails, progress: Progress::new() };
    let report = client.run(rates);
    report.inspect_err(|error| {
        say_failed(&mut client.talk, error);
        rates.finish();
        // What has moved so far, as far as that is known.
        if let Ok(lanes) = client.lanes() {
            eprint!("{}", table_of(&lanes));
        }
    })
}

/// The serving side is to know why the client ends. (It may be gone itself.)
fn say_failed(talk: &mut Talk, error: &anyhow::Error) {
    let _ = talk.say(&Ask::Failed(format!("{error:#}")));
}

/// The two connected sides.
pub struct Met {
    pub side: Side,
    pub talk: Talk,
    /// Of the fabric that serves.
    pub remote_rails: u32,
}

pub fn meet(place: &str, load: &Load) -> Result<Met> {
    let mut talk = talk(connect(place)?)?;
    let hello = Ask::Hello { version: VERSION.to_owned(), load: load.clone() };
    let Ready { offer, rails } = talk.ask(&hello).with_context(|| place.to_owned())?;
    let opened = || {
        let mut side = Side::open(load, &load.opening)?;
        if !load.read {
            side.pool.fill();
        }
        side.connect(&offer).context("connecting to the serving side")?;
        Ok(side)
    };
    let side = opened().inspect_err(|error| say_failed(&mut talk, error))?;
    let fabric = side.service()?.fabric;
    let remote_rails = rails.iter().filter(|rail| **rail == fabric).count() as u32;
    Ok(Met { side, talk, remote_rails })
}

fn connect(place: &str) -> Result<TcpStream> {
    let begun = Instant::now();
    loop {
        let failure = match connect_once(place) {
            Ok(stream) => return Ok(stream),
            Err(failure) => failure,
        };
        let refused = failure.downcast_ref::<io::Error>().map(io::Error::kind);
        if refused != Some(io::ErrorKind::ConnectionRefused) || begun.elapsed() > REFUSED_PATIENCE {
            let hint = match refused {
                Some(io::ErrorKind::ConnectionRefused) => {
                    "does weft-bench serve run there, or does a firewall there reject it?"
                }
                Some(io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) => {
                    "is its host down, or does a firewall there reject it?"
                }
                Some(io::ErrorKind::TimedOut) => {
                    "no answer: does a firewall drop it, or is the address wrong?"
                }
                _ => "does weft-bench serve run there?",
            };
            return Err(failure.context(format!("connecting to {place}: {hint}")));
        }
        std::thread::sleep(WAIT);
    }
}

fn connect_once(place: &str) -> Result<TcpStream> {
    let mut failure = anyhow!("no such host");
    for address in place.to_socket_addrs().context("HOST:PORT is needed")? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
                return Ok(stream);
            }
            Err(error) => failure = error.into(),
        }
    }
    Err(failure)
}

impl Client<'_> {
    fn run(&mut self, rates: &mut Rates) -> Result<Report> {
        let mut report = self.measure(rates)?;
        rates.finish();
        if self.load.verify && !report.interrupted {
            report.verified = self.verify()?.then_some(true);
            report.interrupted = report.verified.is_none();
        }
        Ok(report)
    }

    fn lanes(&self) -> Result<Vec<Lane>> {
        let (lanes, rails) = (self.side.service()?.lanes, self.side.rails()?);
        Ok(lanes.iter().map(|lane| Lane::new(lane, &rails)).collect())
    }

    /// The transfers that have ended, after waiting for the first.
    fn done(&mut self) -> Result<Vec<weft_completion>> {
        let done = self.side.done(WAIT)?;
        self.progress.look(&self.side)?;
        Ok(done)
    }

    /// The same, and an error if the user does not wait for more.
    fn done_uninterrupted(&mut self) -> Result<Vec<weft_completion>> {
        if self.progress.is_interrupted() {
            bail!("interrupted");
        }
        self.done()
    }

    fn measure(&mut self, rates: &mut Rates) -> Result<Report> {
        let mut tally = Tally::default();
        if self.load.small > 0 {
            tally.small_alone = self.small_alone()?;
        }
        if !self.load.cold {
            self.once()?;
        }
        let remote_before: u64 = self.talk.ask(&Ask::Usage)?;
        let before = self.side.rails()?;
        let cpu_before = cpu_ns();
        self.stream(&mut tally, rates)?;
        let cpu_ns =
            (cpu_ns() - cpu_before, self.talk.ask::<u64>(&Ask::Usage)?.saturating_sub(remote_before));
        let ending = Ending {
            rails: (before, self.side.rails()?),
            cpu_ns,
            service: self.side.service()?,
            remote_rails: self.remote_rails,
            interrupted: INTERRUPTED.load(Ordering::Relaxed),
        };
        if tally.transfers() == 0 {
            bail!("interrupted before a transfer was complete");
        }
        Ok(Report { rates: std::mem::take(&mut rates.all), ..tally.report(self.load, ending) })
    }

    /// Each transfer once: then connections are warm and token buckets empty.
    fn once(&mut self) -> Result<()> {
        for place in 0..self.load.in_flight {
            self.side.submit(self.load, place, &self.lists[place])?;
        }
        let mut left = self.load.in_flight;
        while left > 0 {
            left -= self.done_uninterrupted()?.len();
        }
        Ok(())
    }

    /// The single transfers without the load, one after the other. Only the last ones count: after
    /// idling, a link carries some faster than it can sustain.
    fn small_alone(&mut self) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        let begun = Instant::now();
        while begun.elapsed() < ALONE || times.len() < SMALL_ONES {
            self.side.submit_small(self.load)?;
            let mut done = self.done_uninterrupted()?;
            while done.is_empty() {
                done = self.done_uninterrupted()?;
            }
            times.extend(done.iter().map(|one| (one.done_ns - one.submit_ns) as f64));
        }
        Ok(times.split_off(times.len() - SMALL_ONES))
    }

    /// The load itself.
    fn stream(&mut self, tally: &mut Tally, rates: &mut Rates) -> Result<()> {
        let load = self.load;
        let begun = Instant::now();
        let mut shown = begun;
        let (mut free, mut small_free): (Vec<usize>, bool) = ((0..load.in_flight).rev().collect(), true);
        let mut submitted = 0;
        loop {
            let all_free = free.len() == load.in_flight;
            while (all_free || !load.together) && !self.is_over(begun, submitted, tally) {
                let Some(place) = free.pop() else { break };
                self.side.submit(load, place, &self.lists[place])?;
                submitted += 1;
            }
            if load.small > 0 && small_free && !self.is_over(begun, submitted, tally) {
                self.side.submit_small(load)?;
                small_free = false;
            }
            if free.len() == load.in_flight && (small_free || load.small == 0) {
                break;
            }
            if self.progress.is_interrupted() {
                break; // What has ended is the result.
            }
            for one in self.done()? {
                if one.user_data as usize == SMALL {
                    small_free = true;
                    tally.small.push((one.done_ns - one.submit_ns) as f64);
                } else {
                    free.push(one.user_data as usize);
                    tally.add(&one, load);
                }
            }
            if shown.elapsed() > SHOW {
                shown = Instant::now();
                let carried: Vec<u64> = self.side.rails()?.iter().map(|rail| rail.bytes).collect();
                rates.show(&carried, begun.elapsed(), load.seconds);
            }
        }
        Ok(())
    }

    fn is_over(&self, begun: Instant, submitted: u64, tally: &Tally) -> bool {
        if INTERRUPTED.load(Ordering::Relaxed) {
            return true;
        }
        if let Some(repeat) = self.load.repeat {
            return submitted >= repeat;
        }
        let passed = begun.elapsed().as_secs_f64();
        let enough = self.load.small == 0 || tally.small.len() >= SMALL_ONES;
        passed >= self.load.seconds * if enough { 1.0 } else { SMALL_PATIENCE }
    }

    /// Each transfer once more, into wiped pages, which are verified byte by byte. `false`: the user interrupted before all
    /// was moved.
    fn verify(&mut self) -> Result<bool> {
        if self.load.read {
            self.side.pool.wipe();
        } else {
            self.talk.ask::<()>(&Ask::Wipe)?;
        }
        match self.once() {
            Err(_) if self.progress.is_interrupted() => return Ok(false),
            moved => moved?,
        }
        if self.load.read {
            let looked_at = self.side.pool.verify(&self.load.all_lists());
            looked_at.map_err(|wrong| anyhow!("wrong bytes were read: {wrong}"))?;
        } else {
            self.talk.ask::<()>(&Ask::Verify).context("wrong bytes were written")?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Opening;
    use crate::load::server;
    use std::net::TcpListener;
    use std::thread;

    #[test]
    fn interrupted_verification_is_no_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let serves =
            thread::spawn(move || server::serve(listener.accept().unwrap().0, &Opening::over("tcp"), None));
        let load = Load { verify: true, opening: Opening::over("tcp"), ..Load::over_tcp(1, 4096, 8, 2) };
        let Met { side, talk, remote_rails } = meet(&place, &load).unwrap();
        let lists = (0..load.in_flight).map(|place| load.lists(place)).collect();
        let mut client = Client { load: &load, lists, side, talk, remote_rails, progress: Progress::new() };
        assert!(client.verify().unwrap());
        INTERRUPTED.store(true, Ordering::Relaxed);
        while !client.progress.is_interrupted() {
            thread::sleep(WAIT);
        }
        let verified = client.verify();
        INTERRUPTED.store(false, Ordering::Relaxed);
        assert!(!verified.unwrap());
        drop(client);
        serves.join().unwrap().unwrap();
    }
}
