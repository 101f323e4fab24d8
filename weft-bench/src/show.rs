//! The terminal: progress while it runs, facts and sizes for people.

use crate::machine::Facts;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// One bar for each measurement. Where nobody watches, one line instead.
pub struct Progress {
    bar: ProgressBar,
    begun: std::cell::Cell<usize>,
}

impl Progress {
    pub fn new() -> Progress {
        let mut progress = Progress { bar: ProgressBar::hidden(), begun: Default::default() };
        if std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{prefix} {wide_msg} {bar:30} {pos:>4}/{len} {eta:>4}");
            progress.bar = ProgressBar::new(1);
            progress.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        }
        progress
    }

    pub fn begin(&self, what: &str) {
        self.begun.set(self.begun.get() + 1);
        let prefix = format!("[{}]", self.begun.get());
        if self.bar.is_hidden() {
            eprintln!("{prefix} {what}");
        }
        self.bar.set_prefix(prefix);
        self.bar.set_message(what.to_owned());
        self.bar.set_position(0);
    }

    pub fn at(&self, done: u64, of: u64) {
        self.bar.set_length(of);
        if done == 0 {
            self.bar.reset_eta();
        }
        self.bar.set_position(done);
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// A line with the rate of each rail, while a load runs. Only where somebody watches.
pub struct Rates {
    bar: ProgressBar,
    last: Option<(Instant, Vec<u64>)>,
}

impl Rates {
    pub fn new() -> Rates {
        let bar = if std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{prefix} {wide_msg}");
            ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
        } else {
            ProgressBar::hidden()
        };
        Rates { bar, last: None }
    }

    /// `bytes`: what each rail has carried so far.
    pub fn show(&mut self, bytes: &[u64], passed: Duration, of_seconds: f64) {
        let now = Instant::now();
        let Some((then, before)) = &self.last else {
            self.last = Some((now, bytes.to_vec()));
            return;
        };
        let seconds = (now - *then).as_secs_f64();
        let rates: Vec<f64> =
            bytes.iter().zip(before).map(|(to, from)| (to - from) as f64 * 8.0 / seconds / 1e9).collect();
        let each: Vec<String> = rates.iter().map(|rate| format!("{rate:.2}")).collect();
        self.bar.set_prefix(format!("{:.0}/{of_seconds:.0} s", passed.as_secs_f64()));
        let all: f64 = rates.iter().sum();
        self.bar.set_message(format!("{all:.2} Gbps; of each rail: {}", each.join(" ")));
        self.bar.tick();
        self.last = Some((now, bytes.to_vec()));
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

pub fn facts(facts: &Facts) {
    let all: Vec<String> = facts.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    println!("{}", all.join("; "));
}

/// Bytes for people to read.
pub fn size(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KiB", b >> 10),
        b => format!("{b} bytes"),
    }
}

/// "65536", "64K", "1M".
pub fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.trim().to_ascii_uppercase() {
        t if t.ends_with('K') => (t[..t.len() - 1].to_owned(), 10),
        t if t.ends_with('M') => (t[..t.len() - 1].to_owned(), 20),
        t => (t, 0),
    };
    let number: usize = digits.parse().map_err(|_| format!("\"{text}\" is no size: 65536, 64K or 1M are"))?;
    number.checked_mul(1 << shift).filter(|n| *n > 0).ok_or_else(|| format!("{text} is out of range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse_size("64K"), Ok(65536));
        assert_eq!(parse_size("1m"), Ok(1 << 20));
        assert_eq!(parse_size("8"), Ok(8));
        assert!(parse_size("K").is_err());
        assert!(parse_size("0").is_err());
        assert_eq!(size(65536), "64 KiB");
        assert_eq!(size(1000), "1000 bytes");
    }
}
