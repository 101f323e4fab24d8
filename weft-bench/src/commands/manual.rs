//! `weft-bench manual`: the man page, made of what `--help` says; `weft-bench.1` keeps it.

use super::{Args, HELPS};
use anyhow::Result;

pub const HELP: &str = "Prints what --help says, of all commands, as a man page.\n";

const AFTER: &str = "\
.SH EXAMPLES
.PP
.nf
hostb$ weft-bench serve
hosta$ weft-bench run --connect hostb:4711 --verify
hosta$ WEFT_METRICS_SOCKET=1 ./engine & weft-bench top
.fi
.SH EXIT STATUS
0 if all was done, 1 if not: stderr has the reason. `run` and `loopback` that are interrupted while they measure or verify
show what they have reached and end with 0; interrupted twice, with 130. Before they are connected an interrupt ends them
at once.
.SH SEE ALSO
.BR ss (8),
.BR fi_info (1);
docs/networks.md, docs/troubleshooting.md, docs/metrics.md and docs/topology.md of Weft
";

pub fn run(args: Args) -> Result<()> {
    args.end()?;
    print!("{}", page());
    Ok(())
}

fn page() -> String {
    let name = "weft\\-bench \\- measures the Weft library, and looks at processes that use it";
    let mut page = format!(".TH WEFT\\-BENCH 1 \"\" \"Weft\" \"User Commands\"\n.SH NAME\n{name}\n");
    page += ".SH SYNOPSIS\n.B weft\\-bench\n.I COMMAND\n[\\fIOPTIONS\\fR]\n.SH COMMANDS\n";
    for (command, help) in HELPS {
        page += &format!(".SS {command}\n{}", section(help));
    }
    page + &escaped(AFTER)
}

/// A line "  --option VALUE  text" is an option's; lines that are indented deeper continue it, all others are a paragraph.
fn section(help: &str) -> String {
    let mut text = String::new();
    for line in help.trim().lines() {
        let words = escaped(line.trim());
        text += &match line.strip_prefix("  ").filter(|rest| rest.starts_with("--")) {
            Some(_) => {
                let (option, what) = words.split_once("  ").unwrap_or((&words, ""));
                format!(".TP\n.B {option}\n{}\n", what.trim())
            }
            None if words.is_empty() => ".PP\n".to_owned(),
            None if line.starts_with(' ') => format!("{words}\n"),
            None if text.ends_with(".PP\n") || text.is_empty() || !text.contains(".TP") => {
                format!("{words}\n")
            }
            None => format!(".PP\n{words}\n"),
        };
    }
    text.replace(".PP\n.TP", ".TP")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

#[cfg(test)]
mod tests {
    #[test]
    fn kept_man_page_is_the_one_of_the_help_texts() {
        let kept = include_str!("../../weft-bench.1");
        assert_eq!(super::page(), kept, "weft-bench manual >weft-bench/weft-bench.1");
    }
}
