//! The path of an atomic: it is submitted, sent as a request to the peer's owner, executed by the
//! peer, and answered.
//!
//! Requests have a channel of their own, which the target does not read while its answers pile up;
//! answers use the system channel, which is always read. So two sides that send requests to each
//! other cannot block one another.

use super::submit::ungranted;
use super::Endpoint;
use crate::device::{Device, FILE};
use crate::ids::{GrantToken, OpId};
use crate::memory::{place, RemoteMemory, RemoteState};
use crate::peer::Peer;
use crate::status::{Error, Result, Status};
use crate::transfer::atomic::{Atomic, AtomicSpec, Request, WORD};
use crate::transfer::completion::KIND_ATOMIC;
use crate::transfer::operation::Work;

impl Endpoint {
    pub fn atomic(&self, spec: AtomicSpec) -> Result<OpId> {
        let core = &self.core;
        core.phase.check_open()?;
        let remote = spec.remote;
        if let Some(error) = Error::of_remote(remote.state()) {
            return Err(error);
        }
        let ended = |error| Error::of_remote(RemoteState::PeerLost).unwrap_or(error);
        check_support(&*core.peers.get(remote.peer).map_err(ended)?)?;
        check_access(remote, spec.common.grant)?;
        let (range, offset) = place(|range| remote.range_len(range), spec.offset);
        check_place(remote, range.into(), offset)?;
        let request = Request {
            operation: spec.operation,
            memory: remote.id,
            range: range.into(),
            offset,
            operand: spec.operand,
            compare: spec.compare,
        };
        let Some(atomic) = Atomic::new(remote, spec.common.grant, request) else {
            return Err(Error::handle("the remote memory was released"));
        };
        let ended = || Error::of_remote(remote.state_under(spec.common.grant));
        let work = Work::Atomic(atomic);
        let (hold, now) = self.begin(&spec.common, KIND_ATOMIC, Some(remote.peer), 0, work, ended)?;
        let id = hold.id();
        core.go_on(hold, now);
        self.kick(now);
        Ok(id)
    }
}

fn check_support(peer: &Peer) -> Result<()> {
    if !peer.address.does_atomics() {
        return Err(Error::new(
            Status::Unsupported,
            "the peer's Weft does no atomics: see capabilities in weft_peer_info",
        ));
    }
    Ok(())
}

fn check_access(remote: &RemoteMemory, grant: Option<GrantToken>) -> Result<()> {
    if !remote.writable || !remote.readable {
        let missing = if remote.writable { "READ" } else { "WRITE" };
        return Err(Error::new(
            Status::RemoteAccess,
            format!(
                "the owner registered this memory without WEFT_ACCESS_REMOTE_{missing}: atomics need both"
            ),
        ));
    }
    if remote.granted_only && grant.is_none() {
        return Err(ungranted());
    }
    let what = match remote.device {
        None => return Ok(()),
        Some(device) if Device::from(device) == FILE => "is a file",
        Some(_) => "is on a device",
    };
    Err(Error::new(Status::Unsupported, format!("the remote memory {what}: atomics are for memory of CPUs")))
}

fn outside(message: String) -> Error {
    Error::new(Status::Range, message)
}

fn check_place(remote: &RemoteMemory, range: u64, offset: u64) -> Result<()> {
    let Some(place) = remote.range(range) else {
        return Err(outside(format!("remote_range is {range}, which the remote memory does not have")));
    };
    if offset.checked_add(WORD).is_none_or(|end| end > place.len) {
        return Err(outside(format!(
            "remote_offset is {offset}: the {WORD} bytes from there are not all in range {range}, which has {}",
            place.len
        )));
    }
    let address = place.base.wrapping_add(offset);
    if address % WORD != 0 {
        return Err(Error::invalid(format!(
            "remote_offset is {offset}, which is address {address:#x} there: it must be a multiple of {WORD}"
        )));
    }
    Ok(())
}
