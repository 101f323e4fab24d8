//! The output of `weft-bench loopback --prometheus`, parsed as Prometheus does.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PAGES: [&str; 9] = ["--page", "4K", "--pages", "100", "--layers", "3", "--repeat", "10", "--verify"];
/// Once before the load and once after it, with four in flight each, in addition to the ten.
const TRANSFERS: f64 = 18.0;

fn loopback(path: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft-bench"));
    command.args(["loopback", "--provider", "tcp", "--rail-names", "lo", "--prometheus"]).arg(path);
    command.args(PAGES).output().unwrap()
}

/// A sample of a series: "name{label="value",...} number", as the texts between these marks.
struct Sample<'a> {
    name: &'a str,
    labels: BTreeMap<&'a str, &'a str>,
    value: f64,
}

fn sample(line: &str) -> Sample<'_> {
    let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let words: Vec<&str> = labels.split(['"', '=', ',', '}']).filter(|word| !word.is_empty()).collect();
    let labels = words.chunks(2).map(|label| (label[0], label[1])).collect();
    Sample { name, labels, value: value.parse().expect(line) }
}

/// Checks the format; returns all samples.
fn parse(text: &str) -> Vec<Sample<'_>> {
    let (mut samples, mut name, mut kind) = (Vec::new(), "", "");
    let mut seen = HashSet::new();
    for line in text.lines() {
        assert!(seen.insert(line.rsplit_once(' ').expect(line).0), "{line} is there twice");
        if let Some(help) = line.strip_prefix("# HELP ") {
            name = help.split_once(' ').expect("a help has a text").0;
        } else if let Some(typed) = line.strip_prefix("# TYPE ") {
            kind = typed.strip_prefix(name).expect("HELP comes before TYPE").trim();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
        } else {
            let sample = sample(line);
            let rest = sample.name.strip_prefix(name).expect("a sample follows its type");
            let suffixes = if kind == "histogram" { &["_bucket", "_sum", "_count"][..] } else { &[""] };
            assert!(suffixes.contains(&rest) && sample.value >= 0.0, "{line}");
            samples.push(sample);
        }
    }
    samples
}

fn total(samples: &[Sample], name: &str, label: (&str, &str)) -> f64 {
    let has = |sample: &&Sample| {
        sample.name == name && (label.0.is_empty() || sample.labels.get(label.0) == Some(&label.1))
    };
    let found: Vec<f64> = samples.iter().filter(has).map(|sample| sample.value).collect();
    assert!(!found.is_empty(), "{name} {label:?}");
    found.iter().sum()
}

#[test]
fn prometheus_text_counts_what_was_moved() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("weft-bench.prom");
    let _ = std::fs::remove_file(&path);
    let output = loopback(&path);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!path.with_extension("prom.new").exists());
    let text = std::fs::read_to_string(&path).unwrap();
    let samples = parse(&text);
    let all = ("", "");
    let bytes = TRANSFERS * 4096.0 * 300.0;
    assert_eq!(total(&samples, "weft_rail_bytes_total", ("direction", "write")), bytes);
    let rail = samples.iter().find(|sample| sample.name == "weft_rail_bytes_total").unwrap();
    // The rail is below ofi_rxm, where libfabric is old.
    assert!(rail.labels["rail"] == "0" && rail.labels["fabric"].starts_with("tcp"), "{:?}", rail.labels);
    assert_eq!(total(&samples, "weft_rail_bytes_total", ("name", "lo")), bytes);
    assert_eq!(total(&samples, "weft_bytes_total", ("kind", "write")), bytes);
    assert_eq!(total(&samples, "weft_completions_total", ("status", "ok")), TRANSFERS);
    assert_eq!(total(&samples, "weft_completions_total", ("status", "timed_out")), 0.0);
    assert_eq!(total(&samples, "weft_transfer_seconds_count", all), TRANSFERS);
    let sum = total(&samples, "weft_transfer_seconds_sum", all);
    assert!(sum > TRANSFERS * 1e-6 && sum < 600.0, "{sum}");
    assert_eq!(total(&samples, "weft_rail_up", all), 1.0);
    assert!(total(&samples, "weft_rail_posts_total", all) > 0.0);
    let buckets: Vec<(f64, f64)> = samples
        .iter()
        .filter(|sample| sample.name == "weft_transfer_seconds_bucket")
        .map(|sample| (sample.labels["le"].replace("+Inf", "inf").parse().unwrap(), sample.value))
        .collect();
    assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1), "{buckets:?}");
    assert_eq!(buckets.last(), Some(&(f64::INFINITY, TRANSFERS)));
}

#[test]
fn unwritable_prometheus_file_is_an_error() {
    let output = loopback(Path::new("/nowhere/weft.prom"));
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("writing /nowhere/weft.prom"), "{said}");
}
