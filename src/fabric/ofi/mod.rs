//! NICs by libfabric. `discover` finds them, `nic` drives one; `cuts` tries out
//! whether a connection can be closed; `settings` are what providers read as theirs;
//! `signals` keeps them from replacing the host program's handlers; `segments` cleans up after shm.

mod cuts;
pub mod discover;
pub mod nic;
mod registrations;
mod routes;
mod segments;
mod settings;
pub mod signals;

use crate::status::{Error, Status};
use discover::Source;

/// An error of libfabric, with what was being done.
fn error(source: Source, doing: &str, rc: i32) -> Error {
    let errno = rc.abs();
    let status = if errno == libc::ENOMEM { Status::NoMemory } else { Status::Fabric };
    let text = format!("{doing}: {} (libfabric error {errno})", source.strerror(errno));
    Error { provider_errno: errno, ..Error::new(status, text) }
}
