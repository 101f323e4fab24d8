//! Two hosts in network namespaces: tools/lab.sh, which this program carries, makes
//! and removes them.

use anyhow::{bail, Context, Result};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const LAB: &str = include_str!("../../tools/lab.sh");

/// Runs a command of this program on each host, and returns what the right one
/// printed.
pub fn run(shape: &[&str], left: &str, right: &str) -> Result<String> {
    let program = std::env::current_exe().context("finding this program")?;
    let program = program.display();
    let mut command = Command::new("bash");
    command.args(["-c", LAB, "lab"]).args(shape);
    command.args(["--left", &format!("'{program}' {left} >/dev/null")]);
    command.args(["--right", &format!("'{program}' {right}")]);
    // SAFETY: a system call that is safe after a fork. The hosts are removed even if we are killed.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        });
    }
    let output = command.stdin(Stdio::null()).output().context("starting bash")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}", said.trim().lines().map(str::trim).collect::<Vec<&str>>().join("; "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
