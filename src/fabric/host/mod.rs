//! The fabric between processes of one host: our own, since libfabric's shm
//! cannot keep Weft's promises.
//!
//! A NIC of this fabric listens at an abstract Unix socket. A route to another
//! one is a `channel`: memory that the two processes share and nobody else sees,
//! passed over that socket. The initiator's worker puts requests and bytes into
//! it (`outgoing`), the target's worker checks each against its own registrations,
//! does it and answers (`incoming`). So a completion means delivered, a fence or a
//! deregistration is the target's own decision, and what ends with a process ends
//! for its peers by the socket's hangup. There is no lock and no file to be left
//! behind.
//!
//! Bytes of ordinary memory are copied twice, by both sides at the same time;
//! memory that `weft_memory_alloc` made (`area`) is read by the target straight
//! from where it is. `copy` has the measurements. Between devices' memory the target's
//! device copies what is written (`device`), and the initiator's what is read (`pull`); where they
//! do not reach each other, both copy from and to the channel.
//!
//! Peers must be of the same user and group, and in the same network namespace: that is
//! what makes a host here. Which `connections` are of which peer the endpoint tells; the
//! others reach no memory. Once a peer has ended, so has what it had under way.

pub mod area;
mod budget;
mod channel;
mod connections;
mod copies;
mod copy;
mod device;
mod incoming;
mod mapped;
mod nic;
mod op;
mod outgoing;
mod pull;
mod request;
mod socket;
#[cfg(test)]
mod tests;
mod user;
mod watch;

pub use nic::HostNic;

use crate::status::{Error, Result, Status};
use std::os::unix::fs::MetadataExt;

/// The fabric's name, and that of its only NIC.
pub const NAME: &str = "host";

/// Decodes a cell with these words, from any writer.
#[cfg(any(test, fuzzing))]
pub fn check_cell(words: [u64; 8]) {
    request::check(words);
}

/// The identity that processes of one host have in common.
pub fn network() -> Result<String> {
    let unknown = |what: &str, error: std::io::Error| {
        Error::new(Status::System, format!("the fabric \"host\" needs {what}: {error}"))
    };
    const BOOT: &str = "/proc/sys/kernel/random/boot_id";
    const NAMESPACE: &str = "/proc/thread-self/ns/net";
    let boot = std::fs::read_to_string(BOOT).map_err(|error| unknown(BOOT, error))?;
    let namespace = std::fs::metadata(NAMESPACE).map_err(|error| unknown(NAMESPACE, error))?;
    Ok(format!("{}/{}", boot.trim(), namespace.ino()))
}
