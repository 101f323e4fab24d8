//! Resistance to attackers of an endpoint: from its tests, which print what they saw.

use super::{figure_in, figures, library, root, said_by, Bench, Figure};
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;

figures! {
    deregister_65536_ms ["10", ""] deregistered =>
        "ms that another operation of the endpoint ends after its deadline, while 65,536 ranges are \
         deregistered on 4 rails of tcp: the worst of each of 5 times, their median";
    hostile_lateness_ms ["50", ""] late =>
        "ms that deadlines of 100 ms are late beside 48 programs that attack what host listens at, more than \
         beside as many that compute: the worst of the attacks";
    hostile_growth_kb ["256", ""] |bench| refused(bench, "hostile_growth_kb") =>
        "KiB that 10,000 refused handshakes leave in use: the most of tcp and host, with a secret and without";
    hostile_descriptors ["0", ""] |bench| refused(bench, "hostile_descriptors") =>
        "descriptors that they leave open";
    ghost_bytes_after_peer_down ["0", ""] ghosts =>
        "bytes that change after the PEER_DOWN of their writer: 500 deaths, stops and losses on each of host \
         and tcp";
    mac_ns ["400", ""] mac =>
        "ns to make and check the MAC of a control frame of 64 bytes";
}

/// A value that a C test prints.
pub(super) fn by_test(
    bench: &mut Bench,
    program: &str,
    test: &str,
    settings: &[(&str, &str)],
) -> Result<String> {
    by_test_with(bench, &library()?, program, test, settings)
}

pub(super) fn by_test_with(
    bench: &mut Bench,
    library: &Path,
    program: &str,
    test: &str,
    settings: &[(&str, &str)],
) -> Result<String> {
    bench.progress.begin(test);
    built_test(library, program, |program, folder| {
        let mut run = Command::new(program);
        said_by(run.arg(test).envs(settings.iter().copied()).env("LD_LIBRARY_PATH", folder))
    })
}

/// Builds a program of C tests; returns the program, and the folder with its library, while it is
/// used.
pub(super) fn built_test<T>(
    library: &Path,
    program: &str,
    mut run: impl FnMut(&Path, &Path) -> Result<T>,
) -> Result<T> {
    let out = std::env::temp_dir().join(format!("weft-{program}-{}", std::process::id()));
    std::fs::create_dir_all(&out)?;
    let result = (|| {
        std::os::unix::fs::symlink(library, out.join("libweft.so.0"))?;
        let mut build = Command::new("make");
        build.arg("-f").arg(root().join("ffi-tests/Makefile")).arg(format!("OUT={}", out.display()));
        said_by(build.arg(program))?;
        run(&out.join(program), &out)
    })();
    std::fs::remove_dir_all(&out)?;
    result
}

/// An ignored test of the library.
fn by_own_test(bench: &mut Bench, test: &str) -> Result<String> {
    bench.progress.begin(test);
    let mut run = Command::new("cargo");
    run.current_dir(root()).args(["test", "--release", "-q", "-p", "weft", "--lib", test]);
    said_by(run.args(["--", "--ignored", "--nocapture"]))
}

/// The test prints what an idle endpoint measured at the same time.
fn deregistered(bench: &mut Bench) -> Result<f64> {
    let said = by_test(
        bench,
        "ranges",
        "many_ranges_on_four_rails_delay_no_operation",
        &[("WEFT_TEST_FABRIC", "tcp")],
    )?;
    let idle = figure_in(&said, "deregister_65536_idle_ms")?;
    let pass = figure_in(&said, "worker_pass_ms")?;
    bench.notes.push(format!(
        "65,536 ranges on 4 rails: an idle endpoint's operation was {idle:.1} ms late in the same moments; the longest \
         pass of the worker took {pass:.1} ms of its own"
    ));
    figure_in(&said, "deregister_65536_ms")
}

fn late(bench: &mut Bench) -> Result<f64> {
    let mut worst = 0.0f64;
    for test in ["unauthenticated_connections_of_our_user", "unauthenticated_connections_of_another_user"] {
        let said = by_test(bench, "flood", test, &[("WEFT_TEST_FABRIC", "host")])?;
        for line in said.lines().filter(|line| line.starts_with("hostile_lateness_ms")) {
            bench.notes.push(line.to_owned());
            let mut numbers = line.split([' ', ':', ';']).filter_map(|word| word.parse::<f64>().ok());
            let hostile = numbers.next().context("no lateness")?;
            worst = worst.max(hostile - numbers.next_back().context("no control")?);
        }
    }
    Ok(worst)
}

fn refused(bench: &mut Bench, figure: &str) -> Result<f64> {
    let said = bench.once("refused", |bench| by_own_test(bench, "refused_handshakes"))?;
    figure_in(&said, figure)
}

fn ghosts(bench: &mut Bench) -> Result<f64> {
    let rounds = bench.full_or("100", "5");
    let mut bytes = 0.0;
    for fabric in ["host", "tcp"] {
        let settings = [("WEFT_TEST_FABRIC", fabric), ("WEFT_GHOST_ROUNDS", rounds)];
        bytes += figure_in(&by_test(bench, "ghosts", "threads", &settings)?, "ghost_bytes_after_peer_down")?;
    }
    Ok(bytes)
}

fn mac(bench: &mut Bench) -> Result<f64> {
    figure_in(&by_own_test(bench, "mac_ns")?, "mac_ns")
}
