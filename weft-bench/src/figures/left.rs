//! Figures that make targets leave, each as one number in a file of its name.

use super::{named, root, Bench, Figure};
use anyhow::{Context, Result};

const FOLDER: &str = "target/figures";

pub const ALL: &[Figure] = &[
    left("test_minutes", "15", "minutes of the last whole make test, without building"),
    left(
        "bench_build_s",
        "120",
        "CPU seconds of a clean release build of weft-bench, beyond that of the library",
    ),
    left("bench_lines", "8,500", "lines of weft-bench"),
    left("ci_minutes", "35", "minutes of the last .ci/run"),
    left("one_test_s", "10", "seconds from a change of a .c file to the verdict of its test"),
    left("one_test_rust_s", "40", "seconds from a change of src/transfer to the verdict of a test"),
    left("src_lines_untested", "8", "per cent of src/ that no test of the last make coverage has executed"),
    left(
        "test_under_load_failed",
        "0",
        "tests that failed in the last make test-load, beside a load on all cores",
    ),
    left("doctest_count", "30", "doctests of the crate libweft that passed in the last make crate"),
    left("crate_public_undocumented", "0", "public items of the crate without a comment"),
    left(
        "contract_drift",
        "0",
        "functions of the Rust API whose text was not compared with the header's since one changed",
    ),
    left("miri_tests", "60", "tests that the last make miri ran with every seed"),
    left("miri_findings", "0", "of these, those in which Miri found undefined behaviour"),
    left("host_snapshots", "25", "hosts in the table of which interfaces become rails, all of which passed"),
    left("trace_off_instructions", "0", "instructions per slice by which tracing that is off exceeds none"),
    left("network_worlds_passed", "24", "worlds of the last whole make test-networks that passed"),
    left("network_worlds_failed", "0", "those that failed"),
    left("efa_tests_passed_117", "120", "tests of the last whole make test-efa that passed over libfabric 1.17"),
    left("efa_tests_passed_21", "120", "the same over libfabric 2.1"),
    left("efa_tests_failed", "0", "those that failed"),
    left("bounce_tests_passed", "30", "tests of files and devices that passed over NICs in the last make test-staged"),
    left("bounce_tests_failed", "0", "those that failed"),
    left("efa_foreign_clients", "4", "programs of others that passed over the emulated NICs"),
    left(
        "efa_over_mooncake_64k",
        "1",
        "writes of 1000 pages of 64 KiB over two emulated NICs, as a share of Mooncake's EFA engine",
    ),
    left(
        "efa_failover_ms",
        "4000",
        "median ms from the death of one of four emulated NICs under load, with three peers, until the others carry all",
    ),
    left("efa_failover_peers_lost", "0", "peers lost in all deaths of the last make test-efa DEATHS=100"),
    left("efa_failover_wrong", "0", "what came wrong, late, twice or not at all in these"),
    left(
        "rail_bytes_error",
        "0.05",
        "the largest difference of a rail's statistics from its NIC's counters, in all of these worlds",
    ),
    left(
        "address_change_ms",
        "3000",
        "ms from the change of the address of one NIC of two, on either side, until its lane carries again",
    ),
    left(
        "address_change_dialer_ms",
        "5000",
        "ms from the change of the only address of the side that dials until its lane carries again",
    ),
    left(
        "python_interrupts_lost",
        "0",
        "completions, messages and notifications that exceptions of signal handlers lost in the last make interrupts",
    ),
    left("python_closes_hung", "0", "closes in signal handlers, or children that end, that did not return"),
    left("weights_roundtrip_failed", "0", "of 42 files that libweft.weights moved, those that were not the same afterwards"),
    left(
        "checkpoint_torn",
        "0",
        "checkpoints that were neither the old nor the new one, of the last make checkpoint-kills and the last power cuts of make test-files-vm",
    ),
    left(
        "checkpoint_over_dcp",
        "1",
        "time of PyTorch's own files over that of libweft.checkpoint, for the same bytes until all are durable",
    ),
    left("checkpoint_load_over_dcp", "1", "the same, to load them cold into touched memory"),
    left("wheel_mb", "at most 5", "MB of the x86-64 wheel of the last make wheels"),
    left("wheels_tested", "5", "roots times Pythons in which the last make wheels installed and tested them"),
    left("first_hour_tasks", "12", "of twelve tasks of new users, those done without reading the sources (docs/first-hours.md)"),
    left("first_hour_stumbles", "0", "what cost them over five minutes, or gave a wrong result"),
    left("deb_roots_passed", "3", "roots of Debian and Ubuntu in which the last make test-deb installed and used the packages"),
    left("dashboard_queries_empty", "0", "queries of the Grafana dashboard that returned nothing in the last make test-grafana"),
    left("reproducible", "1", "whether two builds in different folders gave the same bytes"),
    left(
        "soak_rss_slope_kb_per_h",
        "at most 256",
        "kB per hour by which the steepest process of the last make soak grew, after ten minutes",
    ),
    left(
        "soak_descriptors",
        "0",
        "descriptors, or threads, that a process of make soak had more at the end than after ten minutes",
    ),
];

const fn left(id: &'static str, least: &'static str, what: &'static str) -> Figure {
    Figure { id, what, least, aim: "", run: read }
}

pub fn read(_: &mut Bench, id: &str) -> Result<f64> {
    let text = std::fs::read_to_string(root().join(FOLDER).join(id))
        .with_context(|| format!("nothing has left {FOLDER}/{id}"))?;
    text.trim().parse().with_context(|| format!("{FOLDER}/{id} is not one number"))
}

/// Files without a named figure.
pub fn others() -> impl Iterator<Item = Figure> {
    let files = std::fs::read_dir(root().join(FOLDER)).into_iter().flatten().flatten();
    let mut names: Vec<String> = files.filter_map(|file| file.file_name().into_string().ok()).collect();
    names.retain(|name| named().all(|figure| figure.id != name));
    names.sort();
    // They live as long as the list of figures: as long as the program.
    names.into_iter().map(|name| left(name.leak(), "", "as the last target of make left it"))
}
