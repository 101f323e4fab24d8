//! The cost of grants, and whether anything arrives under a revoked one: from their tests.

use super::hostile::{built_test, by_test, by_test_with};
use super::{figure_in, figures, library, said_by, simulated, Bench, Figure};
use anyhow::{Context, Result};
use std::process::Command;

figures! {
    revoked_bytes ["0", ""] |bench| revoked(bench, "revoked_bytes") =>
        "bytes that change after the revoke of their grant, in 10,000 of writes that were under way, canceled or \
         too late: host, tcp, and simulated efa and verbs";
    revoked_notifications ["0", ""] |bench| revoked(bench, "revoked_notifications") =>
        "notifications that come after it";
    revoked_counts ["0", ""] |bench| revoked(bench, "revoked_counts") =>
        "increments of counters that come after it";
    revoke_us ["20", ""] |bench| revoke(bench, "host", "revoke_us") =>
        "us from a revoke to its completion over host, of an idle peer; median";
    revoke_round_trips ["1.5", ""] |bench| revoke(bench, "tcp", "revoke_round_trips") =>
        "the same over tcp, over that of a write of 8 bytes";
    revoke_silent_ms ["5", ""] silent =>
        "ms from a revoke to its completion, of a writer that is stopped: the longer of host and tcp";
    revoke_silent_efa_ms ["200", ""] silent_efa =>
        "the same where keys are replaced: simulated efa";
    grant_check_instructions ["60", "20"] checked =>
        "instructions of both sides that a transfer of 64 pages over host takes more under a grant (callgrind)";
    others_during_revoke ["0.95", ""] others =>
        "rate of other writes of a peer while 1,000 of its grants come and go each second, over that without: \
         the lower of host and tcp";
    stalled_channel_share ["0.9", ""] refused =>
        "rate of other notified writes of a peer while frames arrive whose grant was just revoked, over that beside the \
         same frames under live grants, four busy processes beside: the lower of host and tcp";
}

fn revoked(bench: &mut Bench, figure: &str) -> Result<f64> {
    let rounds = bench.full_or("2500", "200");
    let all = bench.once("revoked", |bench| {
        let mut said = Vec::new();
        for fabric in ["host", "tcp", "sim:like=efa", "sim:like=verbs"] {
            let library = if fabric.starts_with("sim") { simulated()? } else { library()? };
            let settings = [("WEFT_TEST_FABRIC", fabric), ("WEFT_GRANT_REVOKES", rounds)];
            said.push(by_test_with(bench, &library, "revokes", "revokes_of_every_kind", &settings)?);
        }
        Ok(said)
    })?;
    all.iter().map(|said| figure_in(said, figure)).sum()
}

fn revoke(bench: &mut Bench, fabric: &str, figure: &str) -> Result<f64> {
    let said = by_test(bench, "grants", "a_revoke_takes_no_round_trip", &[("WEFT_TEST_FABRIC", fabric)])?;
    figure_in(&said, figure)
}

fn silent(bench: &mut Bench) -> Result<f64> {
    worst(bench, "a_stopped_writer_is_revoked_at_once", "revoke_silent_ms", f64::max)
}

fn silent_efa(bench: &mut Bench) -> Result<f64> {
    let settings = [("WEFT_TEST_FABRIC", "sim:like=efa")];
    let said = by_test_with(bench, &simulated()?, "keys", "a_silent_writer_is_locked_out", &settings)?;
    figure_in(&said, "revoke_silent_ms")
}

fn others(bench: &mut Bench) -> Result<f64> {
    worst(bench, "others_go_on_beside_revokes", "others_during_revoke", f64::min)
}

fn refused(bench: &mut Bench) -> Result<f64> {
    let ms = bench.full_or("30000", "3000");
    let mut share = |fabric| {
        let settings = [("WEFT_TEST_FABRIC", fabric), ("WEFT_REFUSALS_MS", ms)];
        let said = by_test(bench, "refusals", "others_go_on_beside_refused_frames", &settings)?;
        figure_in(&said, "stalled_channel_share")
    };
    Ok(f64::min(share("host")?, share("tcp")?))
}

fn worst(bench: &mut Bench, test: &str, figure: &str, choose: fn(f64, f64) -> f64) -> Result<f64> {
    let mut value =
        |fabric| figure_in(&by_test(bench, "grants", test, &[("WEFT_TEST_FABRIC", fabric)])?, figure);
    Ok(choose(value("host")?, value("tcp")?))
}

/// Callgrind dumps each transfer by itself, both sides of which are one thread's; the least is one during which no
/// timer was due.
fn checked(bench: &mut Bench) -> Result<f64> {
    built_test(&library()?, "grants", |program, folder| {
        let least = |under: &str| -> Result<u64> {
            bench.progress.begin("transfers under callgrind");
            let dumps = folder.join(format!("dumps-{under}"));
            std::fs::create_dir_all(&dumps)?;
            let mut run = Command::new("valgrind");
            run.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}/each", dumps.display()));
            run.args(["--toggle-collect=one_transfer_of_64_pages", "--dump-after=one_transfer_of_64_pages"]);
            run.arg(program).arg("transfers_of_64_pages").env("LD_LIBRARY_PATH", folder);
            run.env("WEFT_TEST_FABRIC", "host")
                .env("WEFT_TEST_PATIENCE", "20")
                .env("WEFT_GRANT_UNDER", under);
            said_by(&mut run)?;
            let mut each = Vec::new();
            for dump in std::fs::read_dir(&dumps)? {
                let text = std::fs::read_to_string(dump?.path())?;
                each.extend(
                    text.lines().find_map(|line| line.strip_prefix("summary: ")?.trim().parse::<u64>().ok()),
                );
            }
            each.into_iter().filter(|count| *count > 0).min().context("callgrind dumped no transfer")
        };
        let (with, without) = (least("1")?, least("0")?);
        bench.notes.push(format!(
            "a transfer of 64 pages over host: {without} instructions of both sides, under a grant {with}"
        ));
        Ok(with as f64 - without as f64)
    })
}
