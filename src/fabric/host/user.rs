//! Identifies processes of our own user, by the kernel's credentials of a socket's other end.

use crate::descriptor;
use crate::device::{this_process, Handle};
use crate::status::{Error, Result, Status};
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The id that stands for unmapped user ids, where /proc does not name it.
const OVERFLOW: u32 = 65534;

fn ours() -> (u32, u32) {
    // SAFETY: the calls have no preconditions.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// The process at the other end, if it has our user and group.
pub fn process_of(socket: BorrowedFd) -> Option<libc::pid_t> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the buffer has the size that the option needs.
    let rc = unsafe {
        let place = (&raw mut peer).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &mut len)
    };
    (rc == 0 && (peer.uid, peer.gid) == ours() && is_distinct(peer.uid)).then_some(peer.pid)
}

/// Whether a peer may pass this handle: what it says is a memory of ours, which is used where it is,
/// only we may pass to ourselves.
pub fn may_pass(socket: BorrowedFd, handle: &Handle) -> bool {
    // SAFETY: asks for our own number.
    handle.process != this_process() || process_of(socket) == Some(unsafe { libc::getpid() })
}

/// Checks that our user id stands for one user only.
pub fn check() -> Result<()> {
    let (uid, _) = ours();
    if is_distinct(uid) {
        return Ok(());
    }
    Err(Error::new(
        Status::Unsupported,
        format!(
            "the fabric \"host\" cannot tell users apart: user id {uid} of this process has no mapping in its \
             user namespace (/proc/self/uid_map), and neither have other users' processes: map it"
        ),
    ))
}

/// In a user namespace, all unmapped ids read as one and the same.
fn is_distinct(uid: u32) -> bool {
    let read = |path: &str| descriptor::read_to_string(path).unwrap_or_default();
    let overflow = || read("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(OVERFLOW);
    (uid != OVERFLOW && uid != overflow()) || maps(&read("/proc/self/uid_map"), uid)
}

/// Whether an id lies in a range of a map, whose lines have the first id inside, the first outside,
/// and a count.
fn maps(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) => {
                u64::from(id).checked_sub(first).is_some_and(|offset| offset < count)
            }
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_id_is_mapped_only_inside_a_range() {
        let whole = "         0          0 4294967295\n";
        let two = "0 1001 1\n 1000 5000 10\n";
        for (map, id, expected) in [
            (whole, 65534, true),
            (two, 0, true),
            (two, 1, false),
            (two, 1009, true),
            (two, 1010, false),
            (two, 65534, false),
            ("", 65534, false),
            ("0 0 x\nrubbish", 0, false),
        ] {
            assert_eq!(maps(map, id), expected, "{map:?} {id}");
        }
    }
}
