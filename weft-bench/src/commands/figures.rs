//! `weft-bench figures`: every figure of the registry, as a table and as JSON.

use super::markdown::{self, Row};
use crate::figures::{self, Bench, Figure};
use crate::show::{self, Progress};
use anyhow::{bail, Context, Result};
use comfy_table::{CellAlignment, Table};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Measures the figures of this library on this machine. It measures; it does
/// not judge.
#[derive(clap::Args)]
pub struct Args {
    /// Write them as JSON, too: one object, from name to number, or to why there is none.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write them as a table between the two markers of this file, too.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Only those whose names match: patterns separated by commas, "*" matches any text.
    #[arg(long, value_name = "PATTERN")]
    only: Option<String>,
    /// Fewer transfers: rough numbers, soon.
    #[arg(long)]
    quick: bool,
    /// Say what the figures are, and measure nothing.
    #[arg(long)]
    list: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let patterns = args.only.as_deref().unwrap_or("*");
    let chosen: Vec<&Figure> = figures::all().filter(|figure| matches_any(patterns, figure.id)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = figures::all().map(|figure| figure.id).collect();
        bail!("no figure matches \"{patterns}\"; there are {}", names.join(", "));
    }
    if args.list {
        for figure in chosen {
            println!("{:22} {}", figure.id, figure.what);
        }
        return Ok(());
    }
    let mut bench = Bench::new(args.quick, Progress::new());
    let mut values: Vec<(&Figure, Result<f64>)> = Vec::new();
    for figure in chosen {
        let value = (figure.run)(&mut bench);
        values.push((figure, value));
    }
    bench.progress.finish();
    show::facts(&bench.facts);
    for note in &bench.notes {
        println!("{note}");
    }
    println!("{}", table(&values, args.quick));
    for (figure, value) in &values {
        if let Err(error) = value {
            println!("{}: {}", figure.id, why_not(error));
        }
    }
    if let Some(path) = &args.json {
        save(path, &values)?;
    }
    if let Some(path) = &args.markdown {
        let rows: Vec<Row> = values.iter().map(|(figure, value)| row_of(figure, value)).collect();
        markdown::write(path, &bench.facts, args.quick, &rows)?;
    }
    Ok(())
}

fn row_of(figure: &Figure, value: &Result<f64>) -> Row {
    let value = value.as_ref().map_or_else(why_not, |value| format!("{value:.3}"));
    Row { id: figure.id, what: figure.what, value, least: figure.least, aim: figure.aim }
}

fn why_not(error: &anyhow::Error) -> String {
    format!("not measured: {error:#}")
}

/// One object: of each figure its number, or a text that says why there is none.
fn save(path: &Path, values: &[(&Figure, Result<f64>)]) -> Result<()> {
    let object: serde_json::Map<String, Value> = values
        .iter()
        .map(|(figure, value)| {
            let value =
                value.as_ref().map_or_else(|error| why_not(error).into(), |value| Value::from(*value));
            (figure.id.to_owned(), value)
        })
        .collect();
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let text = serde_json::to_string_pretty(&object)? + "\n";
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn table(values: &[(&Figure, Result<f64>)], quick: bool) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(["figure", "value", "least", "aim", "command"]);
    for (figure, value) in values {
        let value = value.as_ref().map_or("not measured".to_owned(), |value| format!("{value:.3}"));
        let quick = if quick { " --quick" } else { "" };
        let command = format!("{}{quick}", figure.command);
        table.add_row([figure.id, &value, figure.least, figure.aim, &command]);
    }
    for column in 1..4 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn matches_any(patterns: &str, name: &str) -> bool {
    patterns.split(',').any(|pattern| matches(pattern.trim().as_bytes(), name.as_bytes()))
}

/// Whether "*" and literal text cover the name.
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

    #[test]
    fn patterns_match() {
        assert!(matches_any("raw_*_64k_gbs", "raw_tcp_64k_gbs"));
        assert!(matches_any("socket*, raw_self_ratio", "raw_self_ratio"));
        assert!(!matches_any("raw", "raw_self_ratio"));
        assert!(matches_any("*", "anything"));
    }

    #[test]
    fn every_figure_is_printed_by_its_own_command() {
        for figure in figures::all() {
            assert_eq!(figure.command, format!("weft-bench figures --only {}", figure.id));
            assert!(!figure.what.is_empty());
        }
    }
}
