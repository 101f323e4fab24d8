//! libfabric's shm keeps its endpoints in files of /dev/shm, named "PID:domain:
//! endpoint". They outlive a process that did not close them, and where there is
//! no room for one, libfabric dies of a SIGBUS.

use crate::status::{Error, Result, Status};
use std::fs;
use std::os::unix::fs::MetadataExt;

const FOLDER: &str = "/dev/shm";
/// Bytes that one endpoint takes.
const NEEDED: u64 = 17 << 20;
/// The inode of the first PID namespace: there, a PID that is not to be seen is dead.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Removes segments of dead processes of this user, then sees that there is room
/// for another one.
pub fn make_room() -> Result<()> {
    let sees_all = fs::metadata("/proc/self/ns/pid").is_ok_and(|ns| ns.ino() == FIRST_PID_NAMESPACE);
    for entry in fs::read_dir(FOLDER).into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(owner) else { continue };
        // SAFETY: asks for our own user.
        let ours = entry.metadata().is_ok_and(|file| file.uid() == unsafe { libc::geteuid() });
        if ours && sees_all && is_dead(pid) {
            // Another process may have been faster.
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

/// The process that made a segment, by its name.
fn owner(name: &str) -> Option<i32> {
    let mut parts = name.split(':').map(|part| part.parse::<i32>().ok());
    let pid = parts.next()??;
    (parts.next()?.is_some() && parts.next()?.is_some() && parts.next().is_none() && pid > 0).then_some(pid)
}

fn is_dead(pid: i32) -> bool {
    // SAFETY: signal 0 only asks.
    let rc = unsafe { libc::kill(pid, 0) };
    rc != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

fn free_bytes() -> Option<u64> {
    // SAFETY: integers, filled in by the call.
    let mut at: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a C string and a valid place.
    let rc = unsafe { libc::statvfs(c"/dev/shm".as_ptr(), &mut at) };
    (rc == 0).then_some(at.f_bavail * at.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_segments_have_owners() {
        assert_eq!(owner("4711:0:1"), Some(4711));
        for name in ["4711:0", "4711:0:1:2", "x:0:0", "sem.4711", "-1:0:0", ""] {
            assert_eq!(owner(name), None, "{name}");
        }
    }
}
