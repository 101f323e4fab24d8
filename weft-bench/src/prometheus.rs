//! An endpoint's and its rails' counts, in a file for Prometheus, in its text format 0.0.4, for the
//! textfile collector of its node exporter.

use crate::endpoint::Endpoint;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(1);

/// Writes the file once a second, and when it is dropped, which is before the endpoint is closed.
pub struct Exporter {
    /// Nothing is sent: the thread ends when this is dropped.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// A path that cannot be written is an error at once.
    pub fn start(path: &Path, endpoint: Arc<Endpoint>) -> Result<Exporter> {
        let path = path.to_owned();
        let write = move || replace(&path, &endpoint.metrics()?);
        write()?;
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::Builder::new().name("prometheus".into()).spawn(move || loop {
            let last = stopped.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout);
            if let Err(error) = write() {
                eprintln!("weft-bench: {error:#}");
            }
            if last {
                return;
            }
        })?;
        Ok(Exporter { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.stop.take();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            eprintln!("weft-bench: the thread that writes for Prometheus failed");
        }
    }
}

/// Readers see the old or the new text, never a part: the collector only reads *.prom.
fn replace(path: &Path, text: &str) -> Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    written.with_context(|| format!("writing {}", path.display()))
}
