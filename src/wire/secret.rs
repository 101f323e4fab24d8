//! The secrets by which endpoints authenticate each other: one, or two during a rotation. A proof
//! by either is accepted; the first one is used for connecting.
//!
//! They are set once, or are the lines of a file, which is read again when it has changed: it is
//! checked when a handshake needs a secret, at most once a second.

use crate::codec::Text;
use crate::status::{Error, Result};
use crate::wire::seal::Root;
use parking_lot::Mutex;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a secret.
pub const SHORTEST: usize = 16;
pub const LONGEST: usize = 1024;
/// Maximum valid secrets.
const MOST: usize = 2;
/// Minimum time between checks of a file.
const CHECK_NS: u64 = 1_000_000_000;
/// Longer files are not read.
const FILE_LONGEST: u64 = 64 << 10;

/// The valid secrets, the one for connecting first.
pub type Roots = Arc<[Root]>;

#[derive(Debug)]
pub struct Secrets {
    file: Option<PathBuf>,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    roots: Roots,
    checked_ns: u64,
    /// The stamp of the file when it was last read, even if it was invalid.
    stamp: Option<Stamp>,
}

/// Identifies a file's contents: device, inode, length, and modification time.
type Stamp = (u64, u64, u64, i64, i64);

pub fn check_len(len: u64, name: &str) -> Result<usize> {
    usize::try_from(len).ok().filter(|len| (SHORTEST..=LONGEST).contains(len)).ok_or_else(|| {
        Error::limit(format!(
            "{name}_len is {len}: a secret has {SHORTEST} to {LONGEST} bytes ({name} NULL and {name}_len 0: none)"
        ))
    })
}

fn root(bytes: &[u8], name: &str) -> Result<Root> {
    if bytes.iter().all(|byte| Some(byte) == bytes.first()) {
        return Err(Error::invalid(format!(
            "all bytes of {name} are the same: it was not filled in; take random bytes"
        )));
    }
    Ok(Root::new(bytes))
}

impl Secrets {
    pub fn new(secrets: &[(&[u8], &str)]) -> Result<Secrets> {
        let check = |(bytes, name): &(&[u8], &str)| {
            check_len(bytes.len() as u64, name)?;
            root(bytes, name)
        };
        let roots = secrets.iter().map(check).collect::<Result<Vec<Root>>>()?;
        Ok(Self::with(None, roots.into(), None))
    }

    /// The secrets in the lines of a file.
    pub fn of_file(file: PathBuf) -> Result<Secrets> {
        let (stamp, roots) = (stamp_of(&file)?, read(&file)?);
        Ok(Self::with(Some(file), roots, Some(stamp)))
    }

    fn with(file: Option<PathBuf>, roots: Roots, stamp: Option<Stamp>) -> Secrets {
        Secrets { file, known: Mutex::new(Known { roots, checked_ns: 0, stamp }) }
    }

    pub fn now(&self, now: u64) -> Roots {
        let mut known = self.known.lock();
        let Some(file) = &self.file else { return known.roots.clone() };
        if known.checked_ns != 0 && now.saturating_sub(known.checked_ns) < CHECK_NS {
            return known.roots.clone();
        }
        known.checked_ns = now.max(1);
        let stamp = stamp_of(file);
        if stamp.as_ref().ok() != known.stamp.as_ref() {
            known.stamp = stamp.as_ref().ok().copied();
            match stamp.and_then(|_| read(file)) {
                Ok(roots) => {
                    log::info!("the secrets were read again: {} hold now", roots.len());
                    known.roots = roots;
                }
                Err(error) => {
                    log::warn!("{}; the secrets from before are used until it can be read", error.message)
                }
            }
        }
        known.roots.clone()
    }
}

fn failed(file: &Path, why: impl std::fmt::Display) -> Error {
    let name = Text::escaped(file.as_os_str().as_encoded_bytes());
    Error::invalid(format!("the secret file {name} (secret_file, or WEFT_SECRET_FILE): {why}"))
}

fn stamp_of(file: &Path) -> Result<Stamp> {
    let metadata = fs::metadata(file).map_err(|error| failed(file, error))?;
    if !metadata.is_file() || metadata.len() > FILE_LONGEST {
        return Err(failed(file, format_args!("it must be a file of at most {FILE_LONGEST} bytes")));
    }
    Ok((metadata.dev(), metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
}

/// Reads one secret per line; empty lines, and white space around secrets, are skipped.
fn read(file: &Path) -> Result<Roots> {
    let bytes = crate::descriptor::read(file).map_err(|error| failed(file, error))?;
    let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let lines: Vec<&[u8]> = lines.filter(|line| !line.is_empty()).collect();
    if lines.is_empty() || lines.len() > MOST {
        return Err(failed(
            file,
            format_args!("it has {} secrets: one in each line, 1 or {MOST}", lines.len()),
        ));
    }
    let root_of = |line: &&[u8]| match line.len() {
        SHORTEST..=LONGEST => root(line, "a line").map_err(|error| failed(file, error.message)),
        len => {
            Err(failed(file, format_args!("a line has {len} bytes: a secret has {SHORTEST} to {LONGEST}")))
        }
    };
    lines.iter().map(root_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::seal::Proof;

    fn proof(secret: &[u8]) -> Vec<u8> {
        let mut message = b"hello".to_vec();
        Root::new(secret).prove(Proof::Request, 1, 2, &mut message);
        message
    }

    /// Which of the valid secrets accept a proof by `secret`.
    fn accepted(secrets: &Secrets, secret: &[u8], now: u64) -> Vec<bool> {
        let proves = |root: &Root| root.verify(Proof::Request, 1, 2, &proof(secret)).is_some();
        secrets.now(now).iter().map(proves).collect()
    }

    #[test]
    fn weak_secrets_are_rejected_and_secrets_are_never_shown() {
        for poor in [&b""[..], b"too short", &[7; 64], &[0; LONGEST + 1]] {
            assert!(Secrets::new(&[(poor, "secret")]).is_err(), "{poor:?}");
            assert!(Secrets::new(&[(b"correct horse battery", "secret"), (poor, "other")]).is_err());
        }
        let shown = format!("{:?}", Secrets::new(&[(b"correct horse battery", "secret")]));
        assert!(shown.contains("Root(not shown)") && !shown.contains("horse"), "{shown}");
    }

    #[test]
    fn secret_file_is_reloaded_when_it_changes() {
        let (first, second) = (b"the first secret of all", b"the second secret of all");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("secrets");
        let put = |lines: &[&[u8]], file: &Path| {
            let new = folder.path().join("new");
            fs::write(&new, lines.join(&b'\n')).expect("written");
            fs::rename(&new, file).expect("renamed");
        };
        assert!(Secrets::of_file(file.clone()).is_err());
        for bad in [&b""[..], b"short", b"one of the secrets\none of the secrets\none of the secrets"] {
            put(&[bad], &file);
            let error = Secrets::of_file(file.clone()).expect_err("no good");
            assert!(error.message.contains("WEFT_SECRET_FILE") && !error.message.contains("one of"));
        }
        put(&[b"", first, b" "], &file);
        let secrets = Secrets::of_file(file.clone()).expect("it is good");
        assert_eq!((accepted(&secrets, first, 1), accepted(&secrets, second, 1)), (vec![true], vec![false]));
        put(&[second, first], &file);
        assert_eq!(accepted(&secrets, first, CHECK_NS), [true], "it was checked less than a second ago");
        assert_eq!(accepted(&secrets, first, 2 * CHECK_NS), [false, true]);
        put(&[b"short"], &file);
        assert_eq!(
            accepted(&secrets, second, 4 * CHECK_NS),
            [true, false],
            "an invalid file changes nothing"
        );
        fs::remove_file(&file).expect("removed");
        assert_eq!(accepted(&secrets, second, 6 * CHECK_NS), [true, false]);
        put(&[second], &file);
        assert_eq!(accepted(&secrets, second, 8 * CHECK_NS), [true]);
    }
}
