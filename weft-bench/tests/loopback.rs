//! `weft-bench loopback` as a user calls it.

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

fn loopback(options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft-bench"));
    command.args(["loopback", "--provider", "tcp"]).args(options).output().unwrap()
}

fn report(options: &[&str]) -> Value {
    let output = loopback(&[&["--rail-names", "lo", "--json", "-"], options].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const LOAD: [&str; 9] = ["--page", "4K", "--pages", "100", "--layers", "3", "--repeat", "10", "--verify"];
const BYTES: u64 = 4096 * 100 * 3 * 10;

#[test]
fn loopback_counts_and_verifies_writes_and_reads() {
    for further in [&["--adjacent"][..], &["--read"], &["--rails", "2", "--workers", "2"]] {
        let report = report(&[&LOAD[..], further].concat());
        assert_eq!(report["transfers"], 10);
        assert_eq!(report["bytes"], BYTES);
        assert_eq!(report["verified"], true);
        let rails = report["rails"].as_array().unwrap();
        assert_eq!(rails.len(), if further.len() == 4 { 2 } else { 1 });
        assert_eq!(rails.iter().map(|rail| rail["bytes"].as_u64().unwrap()).sum::<u64>(), BYTES);
        assert!(report["gbps"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn loopback_reports_grouped_and_single_transfers() {
    let report =
        report(&["--page", "64K", "--pages", "32", "--together", "--small", "64K", "--seconds", "0.5"]);
    let evenness = report["evenness"].as_f64().unwrap();
    assert!(evenness > 0.0 && evenness <= 1.0, "{evenness}");
    assert!(report["small"]["count"].as_u64().unwrap() >= 50);
    assert!(report["small"]["alone_us"].as_f64().unwrap() > 0.0);
}

#[test]
fn impossible_loads_are_rejected_with_a_reason() {
    for (options, reason) in [
        (&["--page", "7"][..], "multiple of 8"),
        (&["--in-flight", "0"], "at least one page"),
        (&["--rail-names", "nope"], "matches none"),
    ] {
        let output = loopback(options);
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(reason), "{said}");
    }
}

#[test]
fn client_that_waits_for_the_serving_side_is_ended_by_a_signal() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft-bench"));
    let place = listener.local_addr().unwrap().to_string();
    let mut run = command.args(["run", "--connect", &place]).stderr(Stdio::piped()).spawn().unwrap();
    let (mut serving, mut hello) = (BufReader::new(listener.accept().unwrap().0), String::new());
    serving.read_line(&mut hello).unwrap();
    // SAFETY: the call takes no pointers; the process has not been waited for.
    assert_eq!(unsafe { libc::kill(run.id() as i32, libc::SIGTERM) }, 0);
    drop(serving); // what has not ended by then sees this
    let ended = run.wait().unwrap();
    assert_eq!(ended.signal(), Some(libc::SIGTERM), "{ended}");
}

#[test]
fn client_with_another_secret_fails_both_sides_and_each_says_why() {
    let folder = std::env::temp_dir().join(format!("weft-bench-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let bench = |secret: &str, options: &[&str]| {
        let file = folder.join(secret.split(' ').next().unwrap());
        fs::write(&file, secret).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft-bench"));
        command.args(options).args(["--provider", "tcp", "--rail-names", "lo", "--secret-file"]).arg(file);
        command
    };
    let mut serve = bench("one secret of this test alone", &["serve", "--once", "--listen", "127.0.0.1:0"]);
    let mut serve = serve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut line, mut said) = (String::new(), String::new());
    BufReader::new(serve.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let place = line.trim().strip_prefix("listening on ").unwrap();
    let run = bench("another secret of this test", &["run", "--connect", place]).output().unwrap();
    drop(TcpStream::connect(place)); // If that client has not come so far, this one ends the server.
    serve.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    fs::remove_dir_all(folder).unwrap();
    assert_eq!((run.status.code(), serve.wait().unwrap().code()), (Some(1), Some(1)), "{said}");
    assert!(said.contains("the same secret") && said.contains(": the client says: \""), "{said}");
    assert!(said.contains("weft-bench: 127.0.0.1:"), "{said}");
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(said.contains("the same secret") && !said.contains("unauthenticated"), "{said}");
}
