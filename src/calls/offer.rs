//! Offers an endpoint's metrics by a Unix socket that only its own user may open, where `WEFT_METRICS_SOCKET` asks for that:
//! `weft-bench top` reads them.
//!
//! A thread of its own answers, so a reader that does not read holds up other readers alone, and for a second.

use crate::clock::Random;
use crate::descriptor::Descriptor;
use crate::fabric::host::{socket, user};
use crate::fabric::ofi::signals::Blocked;
use crate::fork;
use crate::status::{Error, Result, Status};
use std::fs::{self, DirBuilder, Permissions};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A folder, 1 for the user's own, or 0.
const VARIABLE: &str = "WEFT_METRICS_SOCKET";
/// How long a reader may take.
const PATIENCE: Duration = Duration::from_secs(1);

fn failed(error: std::io::Error) -> Error {
    Error::new(Status::System, format!("offering metrics by a socket: {error}"))
}

fn this_user() -> u32 {
    // SAFETY: the call has no preconditions.
    unsafe { libc::geteuid() }
}

/// A socket that listens, and has a name until it is dropped.
#[derive(Debug)]
pub struct Socket {
    listener: Descriptor,
    path: PathBuf,
}

impl Socket {
    /// `None` if the environment does not ask for it.
    pub fn from_environment() -> Result<Option<Socket>> {
        let Some(folder) = libfabric_sys::variable(VARIABLE).filter(|folder| folder != "0") else {
            return Ok(None);
        };
        let own = || match libfabric_sys::variable("XDG_RUNTIME_DIR") {
            Some(folder) => Path::new(&folder).join("weft"),
            None => format!("/tmp/weft-{}", this_user()).into(),
        };
        let folder = if folder == "1" { own() } else { folder.into() };
        if !folder.is_absolute() {
            return Err(Error::invalid(format!(
                "{VARIABLE} is 0, 1 or an absolute path, not {}",
                folder.display()
            )));
        }
        let opened = Socket::open(&folder);
        opened.map(Some).map_err(|error| error.about(&format!("{VARIABLE}, {}", folder.display())))
    }

    fn open(folder: &Path) -> Result<Socket> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        // Not what a link leads to: others can make one in /tmp.
        let found = fs::symlink_metadata(folder).map_err(failed)?;
        if !found.is_dir() || found.uid() != this_user() || found.mode() & 0o077 != 0 {
            return Err(Error::invalid(format!(
                "it must be a folder that belongs to user {} and has mode 0700, not user {} and mode {:o}",
                this_user(),
                found.uid(),
                found.mode() & 0o7777
            )));
        }
        let name = format!("{}-{:016x}.sock", std::process::id(), Random::System.u64()?);
        let made = UnixListener::bind(folder.join(format!(".{name}"))).map_err(failed)?;
        let listener = Descriptor::opened(|| made.into_raw_fd());
        let listener = listener.ok_or_else(|| failed(std::io::Error::last_os_error()))?;
        let mut socket = Socket { listener, path: folder.join(format!(".{name}")) };
        fs::set_permissions(&socket.path, Permissions::from_mode(0o600)).map_err(failed)?;
        // A name without a dot is of one that listens: if it refuses, its process was killed.
        fs::rename(&socket.path, folder.join(&name)).map_err(failed)?;
        socket.path = folder.join(name);
        Ok(socket)
    }

    /// Answers until the socket is shut, or there is no text any longer.
    fn serve(&self, metrics: impl Fn() -> Option<String>) {
        let mut reader: Option<Reader> = None;
        loop {
            let listener = if reader.is_none() { libc::POLLIN } else { 0 };
            let wait = |fd, events| libc::pollfd { fd, events, revents: 0 };
            let mut waits = [
                wait(self.listener.as_raw_fd(), listener),
                wait(reader.as_ref().map_or(-1, |reader| reader.socket.as_raw_fd()), libc::POLLOUT),
            ];
            let left = reader.as_ref().map_or(-1, |reader| reader.left().as_millis() as i32);
            // SAFETY: the array has this length; negative descriptors are skipped.
            unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, left) };
            if waits[0].revents & !libc::POLLIN != 0 {
                return;
            }
            reader = reader.filter(|reader| !reader.left().is_zero()).and_then(Reader::write);
            if reader.is_some() || waits[0].revents == 0 {
                continue;
            }
            match socket::accept(self.listener.as_fd()) {
                Ok(Some(socket)) if user::process_of(socket.as_fd()).is_some() => {
                    let Some(text) = metrics() else { return };
                    reader = Reader { socket, text, sent: 0, until: Instant::now() + PATIENCE }.write();
                }
                Ok(Some(_)) => log::warn!("metrics: a process of another user or group is refused"),
                Ok(None) => {}
                Err(errno) => {
                    log::debug!("metrics: no reader can be accepted now: error {errno}");
                    thread::sleep(PATIENCE / 10);
                }
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !fork::is_child() {
            // It may have been removed by others; there is nothing that could be done about another failure.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A process that is sent the text.
struct Reader {
    socket: Descriptor,
    text: String,
    sent: usize,
    until: Instant,
}

impl Reader {
    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Sends what the socket takes; `None` once that was all, or the reader is gone.
    fn write(mut self) -> Option<Reader> {
        while let Some(rest) = self.text.as_bytes().get(self.sent..).filter(|rest| !rest.is_empty()) {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: the buffer has this length.
            let sent =
                unsafe { libc::send(self.socket.as_raw_fd(), rest.as_ptr().cast(), rest.len(), flags) };
            match usize::try_from(sent) {
                Ok(sent) => self.sent += sent,
                Err(_) if matches!(socket::errno(), libc::EAGAIN | libc::EINTR) => return Some(self),
                Err(_) => return None,
            }
        }
        None
    }
}

/// Metrics that are offered until this is dropped.
pub struct Offer {
    socket: Arc<Socket>,
    thread: Option<JoinHandle<()>>,
}

impl Offer {
    /// `metrics`: `None` once there is nothing that has any.
    pub fn begin(socket: Socket, metrics: impl Fn() -> Option<String> + Send + 'static) -> Result<Offer> {
        // The thread inherits the mask: signals are for the host program's threads.
        let _blocked = Blocked::all();
        let socket = Arc::new(socket);
        let served = socket.clone();
        let thread = thread::Builder::new().name("weft-metrics".into()).spawn(move || served.serve(metrics));
        Ok(Offer { socket, thread: Some(thread.map_err(failed)?) })
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        socket::shut(self.socket.listener.as_fd());
        // The thread itself drops this where it was the last to use the endpoint.
        if let Some(thread) =
            self.thread.take().filter(|thread| thread.thread().id() != thread::current().id())
        {
            // A panic there was reported, and concerns nothing else.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn refused(folder: &Path) -> String {
        Socket::open(folder).expect_err("it is not refused").message.to_string()
    }

    #[test]
    fn metrics_socket_is_for_its_own_user_and_goes_with_the_endpoint() {
        let at = tempfile::tempdir().unwrap();
        let folder = at.path().join("weft");
        let socket = Socket::open(&folder).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        let found = fs::metadata(&socket.path).unwrap();
        assert_eq!(found.mode() & 0o777, 0o600);
        drop(socket);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }

    #[test]
    fn reader_that_does_not_read_holds_up_others_for_a_moment_alone() {
        let at = tempfile::tempdir().unwrap();
        let socket = Socket::open(&at.path().join("weft")).unwrap();
        let path = socket.path.clone();
        let long = "x".repeat(8 << 20);
        let offered = long.clone();
        let offer = Offer::begin(socket, move || Some(offered.clone())).unwrap();
        let silent = UnixStream::connect(&path).unwrap();
        let mut text = String::new();
        UnixStream::connect(&path).unwrap().read_to_string(&mut text).unwrap();
        assert!(text == long);
        let silent_too = UnixStream::connect(&path).unwrap();
        drop(offer);
        assert!(UnixStream::connect(&path).is_err());
        for mut socket in [silent, silent_too] {
            let mut part = Vec::new();
            // An error is of what was not read.
            let _ = socket.read_to_end(&mut part);
            assert!(part.len() < long.len());
        }
    }

    #[test]
    fn metrics_socket_is_refused_in_a_folder_that_others_may_open() {
        let at = tempfile::tempdir().unwrap();
        fs::set_permissions(at.path(), Permissions::from_mode(0o750)).unwrap();
        assert!(refused(at.path()).contains("mode 750"));
        fs::set_permissions(at.path(), Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(at.path(), at.path().join("link")).unwrap();
        assert!(refused(&at.path().join("link")).contains("must be a folder"));
    }
}
