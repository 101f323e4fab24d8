//! Networks made by this program: a loopback, in a network namespace in which TCP's congestion
//! control can be chosen without touching the machine; and two hosts, which tools/lab.sh, embedded
//! here, makes and removes.

use crate::process::{self, Part};
use anyhow::{bail, ensure, Context, Result};
use serde::de::DeserializeOwned;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const LAB: &str = include_str!("../../tools/lab.sh");
/// The address at which the left host serves.
pub const PLACE: &str = "10.77.0.1:4711";

/// Other default algorithms (above all bbr) halve loopback TCP, for all engines alike.
const CONGESTION_CONTROL: &str = "reno";
/// As between hosts, whose packets are no longer than this.
const MTU: i32 = 9000;
const SETTING: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Moves this process, which must have one thread, and its later threads into a new network
/// namespace. Returns the outcome as text.
pub fn enter() -> String {
    match try_enter() {
        Ok(()) => "own network namespace".to_owned(),
        Err(error) => format!("the machine's own loopback ({error:#})"),
    }
}

fn try_enter() -> Result<()> {
    // SAFETY: the system calls take no pointers.
    unsafe {
        if libc::geteuid() != 0 {
            bail!("not root: no network namespace");
        }
        if libc::unshare(libc::CLONE_NEWNET) != 0 {
            return Err(io::Error::last_os_error()).context("no network namespace");
        }
    }
    raise_loopback().context("raising the loopback")?;
    std::fs::write(SETTING, CONGESTION_CONTROL).with_context(|| format!("writing {SETTING}"))
}

/// Without `ip`, which is not everywhere.
fn raise_loopback() -> io::Result<()> {
    // SAFETY: the descriptor is new, and has no other owner.
    let socket = unsafe {
        match libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) {
            ..0 => return Err(io::Error::last_os_error()),
            fd => OwnedFd::from_raw_fd(fd),
        }
    };
    let ask = |what, value| {
        // SAFETY: integers and a name, for which zero is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_name[..2].copy_from_slice(&[b'l' as libc::c_char, b'o' as libc::c_char]);
        request.ifr_ifru = value;
        // SAFETY: the socket is open, and the request outlives the call.
        match unsafe { libc::ioctl(socket.as_raw_fd(), what, &request) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    ask(libc::SIOCSIFMTU, libc::__c_anonymous_ifr_ifru { ifru_mtu: MTU })?;
    let flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    ask(libc::SIOCSIFFLAGS, libc::__c_anonymous_ifr_ifru { ifru_flags: flags })
}

/// Makes the namespace's loopback lose and delay packets, each as long as the MTU. The machine's
/// own loopback is not changed.
pub fn lose() -> Result<()> {
    ensure!(congestion_control() == CONGESTION_CONTROL, "no network namespace of our own (not root?)");
    set_link("lo", &["gso_max_segs", "1"])?;
    let netem =
        ["qdisc", "add", "dev", "lo", "root", "netem", "loss", "1%", "delay", "5ms", "limit", "100000"];
    let status = Command::new("tc").args(netem).stderr(Stdio::null()).status().context("starting tc")?;
    ensure!(status.success(), "this kernel has no netem");
    Ok(())
}

/// Runs an `ip` command, usually to bring an interface up or down.
pub fn set_link(interface: &str, to: &[&str]) -> Result<()> {
    let status =
        Command::new("ip").args(["link", "set", interface]).args(to).status().context("starting ip")?;
    ensure!(status.success(), "ip link set {interface} {}: {status}", to.join(" "));
    Ok(())
}

/// Brings a port of the lab's switch up or down, from one of its hosts.
pub fn set_port(port: &str, to: &str) -> Result<()> {
    let switch = std::env::var("WEFT_LAB_SWITCH").context("the lab has no switch")?;
    let status = Command::new("ip").args(["-n", &switch, "link", "set", port, to]).status();
    ensure!(status.context("starting ip")?.success(), "the switch's {port} cannot be set {to}");
    Ok(())
}

pub fn congestion_control() -> String {
    std::fs::read_to_string(SETTING).unwrap_or_default().trim().to_owned()
}

/// Runs a command of this program on each host, and returns what the right one printed.
fn run(shape: &[&str], left: &str, right: &str) -> Result<String> {
    let program = std::env::current_exe().context("finding this program")?;
    let program = program.display();
    let mut command = Command::new("bash");
    command.args(["-c", LAB, "lab"]).args(shape);
    command.args(["--left", &format!("'{program}' {left} >/dev/null")]);
    command.args(["--right", &format!("'{program}' {right}")]);
    // SAFETY: the system call is allowed after a fork. The hosts are removed even if this process
    // is killed.
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

/// What a part measures on the right host, while another part runs on the left host, or the left
/// host serves.
pub fn measure<T: DeserializeOwned>(shape: &[&str], left: Option<&Part>, right: &Part) -> Result<T> {
    // JSON has no single quotes as long as names of hosts and rails have none.
    let words = |part: &Part| part.words().map(|[_, part, json]| format!("{part} '{json}'"));
    let left = left.map_or_else(|| Ok(format!("serve --once --listen {PLACE}")), words)?;
    process::answer(&run(shape, &left, &words(right)?)?)
}

/// The result of a load that the right host runs against the left one.
pub fn load<T: DeserializeOwned>(shape: &[&str], options: &str) -> Result<T> {
    let right = format!("run --connect {PLACE} --json - {options}");
    let report = run(shape, &format!("serve --once --listen {PLACE}"), &right)?;
    serde_json::from_str(&report).context("the report")
}
