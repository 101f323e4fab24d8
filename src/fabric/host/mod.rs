//! The fabric between processes of one host: Weft's own, since libfabric's shm cannot keep Weft's
//! promises.
//!
//! A NIC of this fabric listens at an abstract Unix socket. A route to another NIC is a `channel`:
//! memory that only these two processes share, passed over that socket. The initiator's worker puts
//! requests and bytes into it (`outgoing`). The target's worker checks each request against its own
//! registrations, serves and answers it (`incoming`). So a completion means delivered, the target
//! itself decides about fences and deregistrations, and the socket's hangup reports the end of a
//! process to its peers. No lock and no file can be left behind.
//!
//! Bytes of ordinary memory are copied twice, by both sides at the same time. The target reads
//! memory from `weft_memory_alloc` (`area`) in place. `copy` has the measurements. Between devices'
//! memory the target's device copies writes (`device`), and the initiator's device copies reads
//! (`pull`). Where devices do not reach each other, both sides copy between their memory and the
//! channel. Disks copy to and from slots of the NIC (`own::pool`), and a peer's have a channel of
//! their own, since requests are answered in order.
//!
//! Peers must have the same user and group, and the same network namespace: this defines a host
//! here. The endpoint assigns `connections` to peers; the others reach no memory. When a peer ends,
//! so do its requests in flight.

pub mod area;
mod budget;
mod channel;
mod connections;
mod copies;
mod copy;
mod device;
mod errands;
mod incoming;
mod mapped;
mod nic;
mod op;
mod outgoing;
mod parts;
mod pull;
mod request;
pub mod socket;
#[cfg(test)]
mod tests;
pub mod user;
mod watch;

pub use nic::HostNic;

use crate::status::{Error, Result, Status};
use std::os::unix::fs::MetadataExt;

/// The fabric's name, and that of its only NIC.
pub const NAME: &str = "host";

/// Decodes a cell with these words, which may come from any process.
#[cfg(any(test, fuzzing))]
pub fn check_cell(words: [u64; 8]) {
    request::check(words);
}

/// The identity that the processes of one host share.
pub fn network() -> Result<String> {
    let unknown = |what: &str, error: std::io::Error| {
        Error::new(Status::System, format!("the fabric \"host\" needs {what}: {error}"))
    };
    const BOOT: &str = "/proc/sys/kernel/random/boot_id";
    const NAMESPACE: &str = "/proc/thread-self/ns/net";
    let boot = crate::descriptor::read_to_string(BOOT).map_err(|error| unknown(BOOT, error))?;
    let namespace = std::fs::metadata(NAMESPACE).map_err(|error| unknown(NAMESPACE, error))?;
    Ok(format!("{}/{}", boot.trim(), namespace.ino()))
}
