//! Writes figures as a table into a page of documentation, so that numbers are not copied by hand.

use crate::figures::Figure;
use crate::machine::Facts;
use anyhow::{bail, Context, Result};
use std::fmt::Write;
use std::path::Path;

const BEGIN: &str = "<!-- figures: begin -->\n";
const END: &str = "<!-- figures: end -->";

/// A figure, and its value as text.
pub type Row<'a> = (&'a Figure, String);

/// Replaces the text between the markers of the file.
pub fn write(path: &Path, facts: &Facts, quick: bool, rows: &[Row]) -> Result<()> {
    let doing = || format!("the page {}", path.display());
    let page = std::fs::read_to_string(path).with_context(doing)?;
    let page = replace(&page, &table(facts, &today(), quick, rows)).with_context(doing)?;
    std::fs::write(path, page).with_context(doing)
}

fn replace(page: &str, table: &str) -> Result<String> {
    let parts = page.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    let Some((head, tail)) = parts else {
        bail!("it must have a line {BEGIN:?} and, behind it, {END:?}");
    };
    Ok(format!("{head}{BEGIN}{table}{END}{tail}"))
}

fn table(facts: &Facts, date: &str, quick: bool, rows: &[Row]) -> String {
    let facts: Vec<String> = facts.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let quick = if quick { "Rough: taken with `--quick`. " } else { "" };
    let mut text = format!("{quick}{date}; {}.\n\n", facts.join("; "));
    text += "| figure | value | least | aim | what it is |\n| --- | ---: | ---: | ---: | --- |\n";
    for (Figure { id, what, least, aim, .. }, value) in rows {
        let value = value.replace('|', "\\|");
        // Writing to a String does not fail.
        let _ = writeln!(text, "| `{id}` | {value} | {least} | {aim} | {what} |");
    }
    text
}

/// Today's date, in UTC.
fn today() -> String {
    // SAFETY: the arguments are a time, and space for its parts.
    unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut parts: libc::tm = std::mem::zeroed();
        libc::gmtime_r(&now, &mut parts);
        format!("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_between_the_markers_is_replaced() {
        let page = format!("above\n{BEGIN}old\n{END}\nbelow\n");
        let figure = Figure { id: "a", what: "b", least: "", aim: "", run: |_, _| Ok(1.0) };
        let rows = [(&figure, "1.000".to_owned())];
        let table = table(&Facts::default(), "2026-01-01", false, &rows);
        let new = replace(&page, &table).unwrap();
        assert!(new.starts_with(&format!("above\n{BEGIN}")) && new.ends_with(&format!("{END}\nbelow\n")));
        assert!(new.contains("| `a` | 1.000 |") && !new.contains("old"));
        assert_eq!(replace(&new, &table).unwrap(), new);
        assert!(replace("no markers", &table).is_err());
        assert!(replace(&format!("{END}\n{BEGIN}"), &table).is_err());
    }
}
