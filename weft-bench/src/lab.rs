//! A loopback of our own: a network namespace in which TCP's congestion control
//! can be chosen without touching the machine.

use anyhow::{Context, Result};
use std::io;

/// Kernels whose default is another one (bbr above all) halve loopback TCP, for
/// all alike.
const CONGESTION_CONTROL: &str = "reno";
const SETTING: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Moves this process, which must have one thread, and those that it starts
/// into a new network namespace. Says what became of it.
pub fn enter() -> String {
    match try_enter() {
        Ok(()) => "own network namespace".to_owned(),
        Err(error) => format!("the machine's own loopback ({error:#})"),
    }
}

fn try_enter() -> Result<()> {
    // SAFETY: plain system calls.
    unsafe {
        if libc::geteuid() != 0 {
            anyhow::bail!("not root: no network namespace");
        }
        if libc::unshare(libc::CLONE_NEWNET) != 0 {
            return Err(io::Error::last_os_error()).context("no network namespace");
        }
    }
    raise_loopback().context("raising lo in the new namespace")?;
    std::fs::write(SETTING, CONGESTION_CONTROL).with_context(|| format!("writing {SETTING}"))
}

fn raise_loopback() -> io::Result<()> {
    let check = |rc: i32| if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) };
    // SAFETY: the request is one of an interface's flags, filled in by the first call.
    unsafe {
        let socket = check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?;
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
            *to = *from as libc::c_char;
        }
        let raised = check(libc::ioctl(socket, libc::SIOCGIFFLAGS as _, &mut request)).and_then(|_| {
            request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
            check(libc::ioctl(socket, libc::SIOCSIFFLAGS as _, &request))
        });
        libc::close(socket);
        raised.map(|_| ())
    }
}

pub fn congestion_control() -> String {
    std::fs::read_to_string(SETTING).unwrap_or_default().trim().to_owned()
}
