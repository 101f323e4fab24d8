//! The shipped library: its size, and how much of it is tested. Some values come from the last
//! `make test` and `make test-distros`.

use super::{figure_in, figures, library, root, said_by, Bench, Figure};
use anyhow::{anyhow, bail, Context, Result};
use std::fs;
use std::path::Path;
use std::process::Command;

const WAYS: [&str; 6] = [
    "add_subdirectory",
    "fetch_content_debug",
    "find_package",
    "moved_prefix",
    "pkg_config",
    "dist_without_rust",
];
const SYSTEMS: [&str; 3] = ["here", "debian13", "none"];

figures! {
    exported_not_weft ["0", "0"] exported_not_weft =>
        "symbols that libweft.so exports beside those of weft.h";
    glibc_newest ["at most 2.34", "2.28"] glibc_newest =>
        "the newest version of glibc that libweft.so needs";
    so_size_mb ["", ""] so_size =>
        "MB of libweft.so, without what only debuggers read";
    src_lines_delta ["at most 0", "at most -1500"] src_lines_delta =>
        "lines of src/ beyond those before it had a tcp of its own, whose tests are left out";
    cmake_ways_passed ["6", "6"] |bench| passed(bench, "make test", "ffi-tests/package", &WAYS) =>
        "ways to get Weft by CMake, pkg-config or tarball that passed in the last make test, of 6";
    distros_passed ["3", "3"] |bench| passed(bench, "make test-distros", "distros", &SYSTEMS) =>
        "systems on which the same build passed in the last make test-distros: Debian 12, Debian 13, one \
         without libfabric";
    cpp_extra_instructions_per_call ["", "0"] cpp_extra =>
        "instructions of a call of weft.hpp beyond those of the same call in C, as compiled";
    header_functions_untested ["0", "0"] untested =>
        "functions of weft.h that the C and C++ tests of the last make test did not call both with success \
         and in vain";
    hello_lines ["at most 45", ""] hello_lines =>
        "lines of the first program in C of README.md, with its error checks, as clang-format leaves it";
}

fn exported_not_weft(_: &mut Bench) -> Result<f64> {
    let symbols = said_by(Command::new("nm").args(["-D", "--defined-only"]).arg(library()?))?;
    let names = symbols.lines().filter_map(|line| line.split_whitespace().last());
    Ok(names.filter(|name| !name.starts_with("weft_")).count() as f64)
}

fn glibc_newest(_: &mut Bench) -> Result<f64> {
    let version = said_by(Command::new(root().join("tools/glibc.sh")).arg(library()?))?;
    version.trim().parse().context("what tools/glibc.sh said")
}

/// Of src/ before.
const SRC_LINES: f64 = 45_268.0;
const TESTS_OF_TCP: [&str; 5] = ["tests.rs", "network_tests.rs", "fuzz.rs", "twins.rs", "stand.rs"];

fn src_lines_delta(_: &mut Bench) -> Result<f64> {
    let lines = |found: &mut Command| Ok::<f64, anyhow::Error>(said_by(found)?.lines().count() as f64);
    let src = root().join("src");
    let tests = TESTS_OF_TCP.map(|name| src.join("fabric/tcp").join(name));
    let all = lines(Command::new("grep").args(["-rh", "--include=*.rs", ""]).arg(&src))?;
    Ok(all - lines(Command::new("cat").args(tests))? - SRC_LINES)
}

fn so_size(bench: &mut Bench) -> Result<f64> {
    let library = library()?;
    let stripped = library.with_extension("so.stripped");
    said_by(Command::new("strip").arg("--strip-unneeded").arg("-o").arg(&stripped).arg(&library))?;
    let mb = |path: &Path| Ok::<f64, anyhow::Error>(fs::metadata(path)?.len() as f64 / 1e6);
    bench.notes.push(format!("so_size_mb: {:.1} MB with debug information", mb(&library)?));
    let size = mb(&stripped);
    fs::remove_file(&stripped)?;
    size
}

fn cpp_extra(_: &mut Bench) -> Result<f64> {
    let said = said_by(&mut Command::new(root().join("ffi-tests/api/cost/compare")))?;
    figure_in(&said, "cpp_extra_instructions_per_call")
}

/// A value that a test left in the folder `target`.
fn left(by: &str, file: &str) -> Result<String> {
    let text = fs::read_to_string(root().join("target").join(file));
    text.map_err(|_| anyhow!("there is no target/{file}: `{by}` leaves it"))
}

/// How many tests passed when they last ran.
fn passed(bench: &mut Bench, by: &str, folder: &str, names: &[&str]) -> Result<f64> {
    let results: Vec<_> =
        names.iter().map(|name| (name, left(by, &format!("{folder}/{name}.result")))).collect();
    if results.iter().all(|(_, result)| result.is_err()) {
        bail!("there are no results of `{by}`");
    }
    let good = |result: &Result<String>| matches!(result, Ok(text) if text.trim() == "passed");
    let others: Vec<&str> =
        results.iter().filter(|(_, result)| !good(result)).map(|(name, _)| **name).collect();
    if !others.is_empty() {
        bench.notes.push(format!("{by}, not passed: {}", others.join(", ")));
    }
    Ok((names.len() - others.len()) as f64)
}

fn untested(bench: &mut Bench) -> Result<f64> {
    let functions = left("make test", "ffi-tests/untested")?;
    for function in functions.lines() {
        bench.notes.push(format!("header_functions_untested: {function}"));
    }
    Ok(functions.lines().count() as f64)
}

fn hello_lines(_: &mut Bench) -> Result<f64> {
    let readme = fs::read_to_string(root().join("README.md")).context("README.md")?;
    let program = readme.split_once("```c\n").and_then(|(_, rest)| rest.split_once("\n```"));
    let (program, _) = program.context("README.md has no program in C")?;
    Ok(program.lines().count() as f64)
}
