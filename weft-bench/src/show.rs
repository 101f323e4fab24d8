//! The terminal: progress, values and sizes in readable form, tables.

use crate::machine::Facts;
use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A line that is overwritten repeatedly, on a terminal.
fn line(text: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
    }
}

/// What another program says, for the terminal: control characters could do anything there.
pub fn printable(text: &str) -> String {
    let mut shown = String::new();
    for char in text.chars() {
        match char.is_control() {
            true => shown.extend(char.escape_default()),
            false => shown.push(char),
        }
    }
    shown
}

/// The progress of the current measurement. Without a terminal, one line for each.
#[derive(Default)]
pub struct Progress {
    begun: Cell<usize>,
    what: Cell<String>,
}

impl Progress {
    pub fn begin(&self, what: &str) {
        self.begun.set(self.begun.get() + 1);
        let what = format!("[{}] {what}", self.begun.get());
        line(&what);
        if !std::io::stderr().is_terminal() {
            eprintln!("{what}");
        }
        self.what.set(what);
    }

    pub fn at(&self, done: u64, all: u64) {
        let what = self.what.take();
        line(&format!("{what}: {done} of {all}"));
        self.what.set(what);
    }

    pub fn finish(&self) {
        line("");
    }
}

/// The rates of a load while it runs: a line with that of each rail, on a terminal.
#[derive(Default)]
pub struct Rates {
    last: Option<(Instant, Vec<u64>)>,
    /// The rate of all rails since the last look, in Gbps, and when that was, in seconds since 1970.
    pub all: Vec<(f64, f64)>,
}

impl Rates {
    /// `bytes`: what each rail has carried so far.
    pub fn show(&mut self, bytes: &[u64], passed: Duration, of_seconds: f64) {
        let now = Instant::now();
        if let Some((then, before)) = self.last.replace((now, bytes.to_vec())) {
            let seconds = (now - then).as_secs_f64();
            let rate = |(to, from): (&u64, &u64)| (to.saturating_sub(*from)) as f64 * 8.0 / seconds / 1e9;
            let rates: Vec<f64> = bytes.iter().zip(&before).map(rate).collect();
            let each: Vec<String> = rates.iter().map(|rate| format!("{rate:.2}")).collect();
            let (passed, all) = (passed.as_secs_f64(), rates.iter().sum::<f64>());
            let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.all.push((at.as_secs_f64(), all));
            line(&format!("{passed:.0}/{of_seconds:.0} s {all:.2} Gbps; of each rail: {}", each.join(" ")));
        }
    }

    pub fn finish(&self) {
        line("");
    }
}

pub fn facts(facts: &Facts) {
    let all: Vec<String> = facts.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    println!("{}", all.join("; "));
}

/// Columns; those in `numbers` are aligned to the right. The first row is the head.
pub fn table(rows: &[Vec<String>], numbers: std::ops::Range<usize>) -> String {
    let len = |text: &String| text.chars().count();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|at| rows.iter().filter_map(|row| row.get(at)).map(len).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            line += &match numbers.contains(&at) {
                true => format!(" {cell:>width$} "),
                false => format!(" {cell:<width$} "),
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Bytes in readable form.
pub fn size(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KiB", b >> 10),
        b => format!("{b} bytes"),
    }
}

/// Parses "65536", "64K" or "1M".
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
    fn control_characters_of_others_do_not_reach_the_terminal() {
        assert_eq!(printable("a \"\u{e9}\"\n\u{1b}[2J\u{9b}m"), "a \"\u{e9}\"\\n\\u{1b}[2J\\u{9b}m");
    }

    #[test]
    fn sizes_are_parsed() {
        assert_eq!(parse_size("64K"), Ok(65536));
        assert_eq!(parse_size("1m"), Ok(1 << 20));
        assert_eq!(parse_size("8"), Ok(8));
        assert!(parse_size("K").is_err());
        assert!(parse_size("0").is_err());
        assert_eq!(size(65536), "64 KiB");
        assert_eq!(size(1000), "1000 bytes");
    }

    #[test]
    fn table_columns_are_aligned() {
        let rows = [["a", "1"], ["bcd", "23"]].map(|row| row.map(String::from).to_vec());
        assert_eq!(table(&rows, 1..2), " a     1\n bcd  23\n");
    }
}
