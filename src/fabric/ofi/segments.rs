//! Segment files of libfabric's shm: it keeps its endpoints in files of /dev/shm, named
//! "PID:domain: endpoint". They outlive a process that did not close them, and without space for
//! one, libfabric dies of a SIGBUS.

use crate::status::{Error, Result, Status};
use std::fs;
use std::os::unix::fs::MetadataExt;

const FOLDER: &str = "/dev/shm";
/// Bytes that one endpoint takes.
const NEEDED: u64 = 17 << 20;
/// The inode of the first PID namespace: in that namespace, an invisible PID is dead.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Removes segments of this user's dead processes, then checks that there is space for another one.
pub fn make_room() -> Result<()> {
    let sees_all = fs::metadata("/proc/self/ns/pid").is_ok_and(|ns| ns.ino() == FIRST_PID_NAMESPACE);
    for entry in fs::read_dir(FOLDER).into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(owner) else { continue };
        // SAFETY: the call has no preconditions.
        let ours = entry.metadata().is_ok_and(|file| file.uid() == unsafe { libc::geteuid() });
        if ours && sees_all && is_dead(pid) {
            // Another process may have removed it first.
            let _ = fs::remove_file(entry.path());
        }
    }
    let free = free_bytes();
    if free.is_some_and(|free| free < NEEDED) {
        return Err(Error::new(
            Status::NoMemory,
            format!(
                "shm needs {} MiB in {FOLDER}, and {} are free: enlarge it, or remove what is not used",
                NEEDED >> 20,
                free.unwrap_or(0) >> 20
            ),
        ));
    }
    Ok(())
}

/// The process that a segment's name gives.
fn owner(name: &str) -> Option<i32> {
    let mut parts = name.split(':').map(|part| part.parse::<i32>().ok());
    let pid = parts.next()??;
    (parts.next()?.is_some() && parts.next()?.is_some() && parts.next().is_none() && pid > 0).then_some(pid)
}

fn is_dead(pid: i32) -> bool {
    // SAFETY: signal 0 only checks that the process exists.
    let rc = unsafe { libc::kill(pid, 0) };
    rc != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

fn free_bytes() -> Option<u64> {
    // SAFETY: the struct has only integers, and the call fills it in.
    let mut at: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a NUL-terminated string, and the struct is valid.
    let rc = unsafe { libc::statvfs(c"/dev/shm".as_ptr(), &mut at) };
    (rc == 0).then_some(at.f_bavail * at.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_parsed_only_from_segment_names() {
        assert_eq!(owner("4711:0:1"), Some(4711));
        for name in ["4711:0", "4711:0:1:2", "x:0:0", "sem.4711", "-1:0:0", ""] {
            assert_eq!(owner(name), None, "{name}");
        }
    }
}
