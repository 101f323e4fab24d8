//! Figures that targets of make leave, each as one number in a file of its name.

use super::{named, root, Bench, Figure};
use anyhow::{Context, Result};

const FOLDER: &str = "target/figures";

pub const ALL: &[Figure] = &[
    left(
        "bench_build_s",
        "120",
        "CPU seconds of a clean release build of weft-bench, beyond that of the library",
    ),
    left("bench_lines", "8,500", "lines of weft-bench"),
    left("ci_minutes", "", "minutes of the last .ci/run"),
    left("src_lines_untested", "", "lines of src/ that no test of the last run with coverage has executed"),
    left(
        "test_under_load_failed",
        "0",
        "tests that failed in the last tools/test-load.sh, beside a load on all cores",
    ),
];

const fn left(id: &'static str, least: &'static str, what: &'static str) -> Figure {
    Figure { id, what, least, aim: "", run: read }
}

fn read(_: &mut Bench, id: &str) -> Result<f64> {
    let text = std::fs::read_to_string(root().join(FOLDER).join(id))
        .with_context(|| format!("nothing has left {FOLDER}/{id}"))?;
    text.trim().parse().with_context(|| format!("{FOLDER}/{id} is not one number"))
}

/// Those that are there without a name here.
pub fn others() -> impl Iterator<Item = Figure> {
    let files = std::fs::read_dir(root().join(FOLDER)).into_iter().flatten().flatten();
    let mut names: Vec<String> = files.filter_map(|file| file.file_name().into_string().ok()).collect();
    names.retain(|name| named().all(|figure| figure.id != name));
    names.sort();
    // They live as long as the list of figures: as the program.
    names.into_iter().map(|name| left(name.leak(), "", "as the last target of make left it"))
}
