//! `weft-bench figures`: every figure of the registry, as a table and as JSON.

use super::markdown;
use super::Args;
use crate::figures::{self, Bench, Figure};
use crate::show;
use anyhow::{bail, Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};

pub const HELP: &str = "\
Measures the figures of this library on this machine. It measures; it does not judge.

  --list           say what the figures are, and measure nothing
  --only PATTERNS  only those whose names match: separated by commas, \"*\" matches any text
  --quick          fewer transfers: rough numbers, soon
  --json FILE      write them as JSON, too: one object, from name to number, or to why there is none
  --markdown FILE  write them as a table between the two markers of this file, too
";

pub fn run(mut args: Args) -> Result<()> {
    let (json, markdown): (Option<PathBuf>, Option<PathBuf>) =
        (args.maybe("--json")?, args.maybe("--markdown")?);
    let patterns: String = args.or("--only", "*".to_owned())?;
    let (quick, list) = (args.has("--quick"), args.has("--list"));
    args.end()?;
    let all = figures::all();
    let chosen: Vec<&Figure> = all.iter().filter(|figure| matches_any(&patterns, figure.id)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = all.iter().map(|figure| figure.id).collect();
        bail!("no figure matches \"{patterns}\"; there are {}", names.join(", "));
    }
    if list {
        chosen.iter().for_each(|figure| println!("{:22} {}", figure.id, figure.what));
        return Ok(());
    }
    let mut bench = Bench::new(quick);
    let values: Vec<(&Figure, Result<f64>)> =
        chosen.iter().map(|figure| (*figure, (figure.run)(&mut bench, figure.id))).collect();
    bench.progress.finish();
    show::facts(&bench.facts);
    bench.notes.iter().for_each(|note| println!("{note}"));
    println!("{}", table(&values, quick));
    for (figure, value) in &values {
        if let Err(error) = value {
            println!("{}: {}", figure.id, why_not(error));
        }
    }
    if let Some(path) = &json {
        save(path, &values)?;
    }
    if let Some(path) = &markdown {
        let shown = |value: &Result<f64>| value.as_ref().map_or_else(why_not, |value| text_of(*value));
        let rows: Vec<_> = values.iter().map(|(figure, value)| (*figure, shown(value))).collect();
        markdown::write(path, &bench.facts, quick, &rows)?;
    }
    Ok(())
}

/// To a thousandth; what rounds to -0 is 0.
fn text_of(value: f64) -> String {
    format!("{:.3}", (value * 1e3).round() / 1e3 + 0.0)
}

fn why_not(error: &anyhow::Error) -> String {
    format!("not measured: {error:#}")
}

/// One object with the number of each figure, or a text that says why it has none.
fn save(path: &Path, values: &[(&Figure, Result<f64>)]) -> Result<()> {
    let value =
        |value: &Result<f64>| value.as_ref().map_or_else(|error| why_not(error).into(), |n| Value::from(*n));
    let object: serde_json::Map<String, Value> =
        values.iter().map(|(figure, measured)| (figure.id.to_owned(), value(measured))).collect();
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let text = serde_json::to_string_pretty(&object)? + "\n";
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn table(values: &[(&Figure, Result<f64>)], quick: bool) -> String {
    let mut rows = vec![["figure", "value", "least", "aim", "command"].map(String::from).to_vec()];
    let quick = if quick { " --quick" } else { "" };
    for (figure, value) in values {
        let value = value.as_ref().map_or("not measured".to_owned(), |value| text_of(*value));
        let command = format!("weft-bench figures --only {}{quick}", figure.id);
        rows.push(vec![figure.id.into(), value, figure.least.into(), figure.aim.into(), command]);
    }
    show::table(&rows, 1..4)
}

fn matches_any(patterns: &str, name: &str) -> bool {
    patterns.split(',').any(|pattern| matches(pattern.trim().as_bytes(), name.as_bytes()))
}

/// Whether a pattern of "*" and literal text matches the name.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|skip| matches(rest, &name[skip..])),
        Some((byte, rest)) => name.first() == Some(byte) && matches(rest, &name[1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn figure_patterns_match_names() {
        assert!(matches_any("raw_*_64k_gbs", "raw_tcp_64k_gbs"));
        assert!(matches_any("socket*, raw_self_ratio", "raw_self_ratio"));
        assert!(!matches_any("raw", "raw_self_ratio"));
        assert!(matches_any("*", "anything"));
    }

    #[test]
    fn values_that_round_to_0_have_no_sign() {
        assert_eq!([-0.0, -0.0004, -1.5].map(text_of), ["0.000", "0.000", "-1.500"]);
    }

    /// Comparisons of two versions, and the pages of docs/, refer to these names.
    #[test]
    fn figures_keep_their_names() {
        let names: Vec<&str> = figures::named().map(|figure| figure.id).collect();
        assert_eq!(names.join("\n"), include_str!("../figures/names").trim_end());
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        assert!(figures::named().all(|figure| !figure.what.is_empty()));
    }
}
