//! Latency figures through the user's command.

use serde_json::Value;
use std::process::Command;

fn figures(names: &str) -> Value {
    let path = std::env::temp_dir().join(format!("weft-latency-{}.json", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft-bench"));
    let output = command.args(["figures", "--quick", "--only", names, "--json"]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn pingpong_ratio_is_measured() {
    let ratio = &figures("pingpong_tcp_ratio")["pingpong_tcp_ratio"];
    // The value means nothing on a loaded machine.
    assert!(ratio.as_f64().is_some_and(|ratio| ratio > 0.0), "{ratio}");
}
