//! The tree that the machine is read from: `/`, or a folder in its place. Missing, hidden or
//! malformed files read as nothing.

use crate::descriptor;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// No genuine file here is longer.
const BYTES_MAX: u64 = 64 << 10;
/// A thousand interfaces take half a megabyte.
const JSON_MAX: u64 = 64 << 20;

#[derive(Clone, Debug)]
pub struct Root {
    folder: PathBuf,
}

impl Root {
    /// `WEFT_SYSFS_ROOT`, or the machine itself.
    pub fn from_environment() -> Root {
        match libfabric_sys::variable("WEFT_SYSFS_ROOT") {
            None => Root::at("/"),
            Some(folder) => {
                if !Path::new(&folder).is_dir() {
                    log::warn!("WEFT_SYSFS_ROOT is {folder:?}, which is not a folder: the topology of this machine is unknown");
                }
                Root::at(folder)
            }
        }
    }

    pub fn at(folder: impl Into<PathBuf>) -> Root {
        Root { folder: folder.into() }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether it is this machine, and not a replaced tree.
    pub fn is_real(&self) -> bool {
        self.folder == Path::new("/")
    }

    /// A file's text without the white space around it.
    pub fn text(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        self.file(path)?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// What a file has as JSON; null without one.
    pub fn json(&self, path: &str) -> serde_json::Value {
        let file = self.file(path).map(|file| file.take(JSON_MAX));
        file.and_then(|file| serde_json::from_reader(std::io::BufReader::new(file)).ok()).unwrap_or_default()
    }

    fn file(&self, path: &str) -> Option<fs::File> {
        // A pipe in a replaced tree must not block. (Miri opens with no such flag.)
        let flags = if cfg!(miri) { 0 } else { libc::O_NONBLOCK };
        let mut options = OpenOptions::new();
        descriptor::open(options.read(true).custom_flags(flags), self.folder.join(path)).ok()
    }

    /// A decimal number, or a hexadecimal one that starts with "0x".
    pub fn number(&self, path: &str) -> Option<i64> {
        let text = self.text(path)?;
        match text.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// The names in a folder, sorted.
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.folder.join(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// The number that tells a file or folder from others at its path, before and after.
    pub fn number_of(&self, path: &str) -> Option<u64> {
        Some(fs::metadata(self.folder.join(path)).ok()?.ino())
    }

    /// The target of a link, as written.
    pub fn link(&self, path: &str) -> Option<String> {
        Some(fs::read_link(self.folder.join(path)).ok()?.to_string_lossy().into_owned())
    }

    /// A path with all links resolved, if it is in the tree.
    pub fn resolved(&self, path: &str) -> Option<String> {
        let whole = fs::canonicalize(self.folder.join(path)).ok()?;
        let folder = fs::canonicalize(&self.folder).ok()?;
        Some(whole.strip_prefix(folder).ok()?.to_string_lossy().into_owned())
    }
}
