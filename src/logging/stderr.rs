//! Standard error, written to without blocking: a full pipe, a stopped terminal or a log collector
//! that hangs must not stop a worker. Lines that do not fit are dropped, and the next one that fits
//! reports how many.
//!
//! The flags of descriptor 2 are shared with other processes and stay as they are: a file that can
//! block is reopened for each line, with its own flags.

use crate::descriptor;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem::{zeroed, ManuallyDrop};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

const STDERR: RawFd = 2;
/// A pipe takes this many bytes whole or not at all (PIPE_BUF).
const LINE: usize = 4096;
const CUT: &str = "...";

/// The target that env_logger writes lines to, one call each.
#[derive(Default)]
pub struct Stderr {
    dropped: u64,
    /// The last line was written in part.
    cut: bool,
}

/// The time of a line, as "2026-11-25T04:05:06.789Z".
pub fn now() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs() as libc::time_t;
    // SAFETY: integers, which the call fills in.
    let at = unsafe {
        let mut at: libc::tm = zeroed();
        libc::gmtime_r(&seconds, &mut at);
        at
    };
    format!(
        "{}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        at.tm_year + 1900,
        at.tm_mon + 1,
        at.tm_mday,
        at.tm_hour,
        at.tm_min,
        at.tm_sec,
        since.subsec_millis()
    )
}

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = self.framed(line);
        match write_now(STDERR, &text) {
            Ok(0) | Err(_) => self.dropped += 1,
            Ok(written) => (self.dropped, self.cut) = (0, written < text.len()),
        }
        // Reports success: otherwise the logger would write the rest again.
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stderr {
    /// The line as written: short enough, and with the number of dropped lines.
    fn framed(&self, line: &[u8]) -> Vec<u8> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let dropped = match self.dropped {
            0 => String::new(),
            lines => format!(" (before this line, {lines} did not fit into stderr and were dropped)"),
        };
        let mut text = Vec::with_capacity(line.len() + dropped.len() + 2);
        text.extend(self.cut.then_some(b'\n'));
        let room = LINE - text.len() - dropped.len() - 1;
        if line.len() <= room {
            text.extend_from_slice(line);
        } else {
            let inside = |end: &usize| line[*end] & 0xc0 == 0x80;
            let end = (0..=room - CUT.len()).rev().find(|end| !inside(end)).unwrap_or(0);
            text.extend_from_slice(&line[..end]);
            text.extend_from_slice(CUT.as_bytes());
        }
        text.extend_from_slice(dropped.as_bytes());
        text.push(b'\n');
        text
    }
}

/// Writes in one call as much as fits.
fn write_now(fd: RawFd, text: &[u8]) -> io::Result<usize> {
    match kind(fd)? {
        libc::S_IFREG => borrowed(fd).write(text), // Writes what fits on the device, or fails.
        libc::S_IFSOCK => {
            // SAFETY: reads `text` only.
            let sent = unsafe {
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                libc::send(fd, text.as_ptr().cast(), text.len(), flags)
            };
            usize::try_from(sent).map_err(|_| io::Error::last_os_error())
        }
        _ => match reopened(fd) {
            Ok(mut file) => file.write(text),
            // Without a reader, a write would raise SIGPIPE and kill the process.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Err(error),
            // Without permission, /proc or a free descriptor, use the shared descriptor.
            Err(_) if is_writable(fd) => borrowed(fd).write(text),
            Err(error) => Err(error),
        },
    }
}

/// The type of a descriptor's file.
fn kind(fd: RawFd) -> io::Result<libc::mode_t> {
    // SAFETY: `about` is made of integers, and valid for the call.
    let (rc, about) = unsafe {
        let mut about: libc::stat = zeroed();
        (libc::fstat(fd, &mut about), about)
    };
    match rc {
        0 => Ok(about.st_mode & libc::S_IFMT),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reopens the pipe or terminal with its own non-blocking file description.
fn reopened(fd: RawFd) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    descriptor::open(OpenOptions::new().write(true).custom_flags(flags), format!("/proc/self/fd/{fd}"))
}

/// Whether a line fits, unless another process writes first.
fn is_writable(fd: RawFd) -> bool {
    let mut fd = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: `fd` is one valid pollfd.
    unsafe { libc::poll(&mut fd, 1, 0) == 1 && fd.revents == libc::POLLOUT }
}

fn borrowed(fd: RawFd) -> ManuallyDrop<File> {
    // SAFETY: never closed here; if the descriptor is not open, a write returns an error.
    ManuallyDrop::new(unsafe { File::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::{AsRawFd, OwnedFd};

    /// A pipe whose writer blocks.
    fn pipe() -> (File, OwnedFd) {
        let mut fds = [0; 2];
        // SAFETY: `fds` has space for two descriptors, which nothing else owns.
        unsafe {
            assert_eq!(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC), 0);
            (File::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1]))
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "opens a descriptor anew")]
    fn full_pipe_rejects_lines_and_keeps_its_flags() {
        let (mut reader, writer) = pipe();
        let fd = writer.as_raw_fd();
        let mut room = 0;
        while let Ok(written) = write_now(fd, &[b'x'; LINE]) {
            room += written;
        }
        assert!(room >= LINE, "room for {room} bytes");
        // SAFETY: the call takes no pointers.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_NONBLOCK, 0);
        assert!(write_now(fd, b"y").is_err());
        reader.read_exact(&mut vec![0; room]).expect("what was written");
        assert_eq!(write_now(fd, b"again\n").ok(), Some(6));
    }

    #[test]
    fn writes_without_reader_or_descriptor_fail() {
        let (reader, writer) = pipe();
        drop(reader);
        assert!(write_now(writer.as_raw_fd(), b"x").is_err());
        assert!(write_now(-1, b"x").is_err());
    }

    #[test]
    fn files_are_written_at_their_shared_offset() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"a").expect("a byte");
        assert_eq!(write_now(file.as_raw_fd(), b"b").ok(), Some(1));
        file.write_all(b"c").expect("a byte");
        let mut text = String::new();
        io::Seek::rewind(&mut file).expect("a file");
        file.read_to_string(&mut text).expect("what was written");
        assert_eq!(text, "abc");
    }

    #[test]
    fn lines_are_cut_between_characters_and_report_drops() {
        let text =
            |stderr: &Stderr, line: &str| String::from_utf8(stderr.framed(line.as_bytes())).expect("text");
        let mut stderr = Stderr::default();
        assert_eq!(text(&stderr, "a\n"), "a\n");
        for extra in 0..4 {
            let long = text(&stderr, &("x".repeat(extra) + &"\u{20ac}".repeat(2000)));
            assert!(long.len() <= LINE && long.len() > LINE - 4 && long.ends_with("\u{20ac}...\n"));
        }
        (stderr.dropped, stderr.cut) = (7, true);
        assert_eq!(
            text(&stderr, "a\n"),
            "\na (before this line, 7 did not fit into stderr and were dropped)\n"
        );
    }
}
