//! The life of a grant: a part of a memory that one peer may reach, until its owner revokes it.
//!
//! 1. The owner creates it (`Endpoint::grant`): it enters the table that the endpoint's NICs share
//!    (`fabric::grants`), and nothing is sent. The caller itself sends the token to the peer.
//! 2. The peer names it in operations. Requests carry its key instead of the memory's where the NIC
//!    checks grants; frames that announce an operation carry the token (`under_a_grant`).
//! 3. The owner revokes it (`Endpoint::revoke`). It leaves the table at once, so no new use can
//!    begin. From then on nothing moves under it, whatever the peer does; current uses end once the
//!    NICs of each of the peer's workers have dropped it. Over fabrics that do not check grants,
//!    the peer is asked to quiesce, as for a fence. If it does not answer, the keys
//!    of the memory are replaced (`keys`). The end of the peer counts as an answer.
//! 4. The peer is notified (Withdraw): its operations under the grant end with `WEFT_ERR_REVOKED`.
//!
//! A frame that announces an operation under a grant that is not live is refused (`session::channel`),
//! so the operation does not succeed. (A peer of Weft 0.2 does not know refusals: its frames wait
//! until it has the Withdraw.)

use super::Endpoint;
use crate::fabric::grants::{Grant, OnDevice};
use crate::fabric::HostRange;
use crate::ids::OpId;
use crate::ids::{GrantToken, RailIndex};
use crate::memory::{Access, Memory};
use crate::owner::granted::PIECES;
use crate::peer::Peer;
use crate::status::{Error, Result, Status};
use crate::transfer::geometry::Pages;
use crate::transfer::Common;
use crate::transfer::Outcome;
use crate::worker::core::Core;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// The caller's request for a grant.
pub struct GrantSpec<'a> {
    /// The peer's id from the caller.
    pub peer: u64,
    pub write: bool,
    pub read: bool,
    /// `None`: the whole memory. Otherwise the pages that its remote side describes.
    pub pages: Option<Pages<'a>>,
    /// How long it is valid.
    pub timeout_ns: Option<NonZeroU64>,
    /// The value of the notification if the peer ends, or the grant expires.
    pub notify: Option<u64>,
}

/// The place of a grant's notification: given back if this is dropped.
struct GrantPlace<'a>(&'a Core);

impl GrantPlace<'_> {
    /// The grant has it from here on.
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for GrantPlace<'_> {
    fn drop(&mut self) {
        self.0.give_place_back();
    }
}

impl Endpoint {
    pub fn grant(&self, memory: &Arc<Memory>, spec: &GrantSpec) -> Result<GrantToken> {
        let core = &self.core;
        core.phase.check_open()?;
        let peer = core.named_peer(spec.peer)?;
        check_revokes(core, &peer)?;
        let access = granted_access(memory.access(), spec)?;
        let ranges = match &spec.pages {
            Some(pages) => pieces(memory, pages)?,
            None => memory.ranges().to_vec(),
        };
        let granted = memory.grant().ok_or_else(|| Error::handle("the memory is being deregistered"))?;
        let place = spec.notify.map(|_| self.hold_place()).transpose()?;
        let end = |ns: NonZeroU64| core.clock.now().saturating_add(ns.get());
        let deadline = spec.timeout_ns.map_or(u64::MAX, end);
        let number = peer.grants.fetch_add(1, Ordering::Relaxed);
        // The key is already in use, which happens once in 2^64.
        for _ in 0..8 {
            let Some(token) = GrantToken::from_parts(core.random.u64()?, peer.begun, number) else {
                continue;
            };

            let grant = Grant::new(token, peer.id, peer.owner, memory.id, access, ranges.clone())
                .on_device(on_device(memory));
            if core.grants.add(grant.until(deadline, spec.notify)) {
                granted.keep();
                if let Some(place) = place {
                    place.keep();
                }
                if deadline != u64::MAX {
                    core.inboxes[0].wake(); // The worker that checks deadlines may sleep beyond this one.
                }
                if core.peers.get(peer.id).is_err() {
                    core.notify_of_end(peer.id, Outcome::new(Status::PeerLost));
                }
                return Ok(token);
            }
        }
        Err(Error::new(Status::System, "no random numbers"))
    }

    /// Reserves a place in the queue for a grant's notification. Half of the queue stays free for
    /// arrivals: grants last long, and polling does not free their places.
    fn hold_place(&self) -> Result<GrantPlace<'_>> {
        let (core, depth) = (&self.core, self.core.queue.capacity());
        if !core.grants.hold_place(depth / 2) {
            return Err(Error::limit(format!(
                "grants with WEFT_NOTIFY_FAILURE hold {} of the {depth} places of the endpoint's queue, which is the \
                 most: revoke some, or raise queue_depth",
                depth / 2
            )));
        }
        self.hold_places(&core.queue, 1).inspect_err(|_| core.grants.yield_place())?.keep();
        Ok(GrantPlace(core))
    }

    pub fn revoke(&self, grant: GrantToken, common: &Common) -> Result<OpId> {
        let core = &self.core;
        core.phase.check_open()?;
        // Without a place for its completion, the revoke changes nothing. The grant outlives the peer:
        // PEER_LOST would say less than its own notification can.
        let id = self.begin_fence(common, None, || core.begin_to_revoke(grant, false).err())?;
        core.revoking(|all| all.handle_wait(grant, id, |id| core.ends_with_revoke(id)));
        self.kick(core.clock.now());
        Ok(id)
    }
}

/// A grant that could not be taken back is not made. Until it is known which rails serve the peer, any may.
fn check_revokes(core: &Core, peer: &Peer) -> Result<()> {
    let mut rails = RailIndex::each(&core.rails);
    let may_serve = |rail| peer.is_served_by(rail) || !peer.has_service();
    match rails.find(|(rail, limits)| !limits.revokes && may_serve(*rail)) {
        None => Ok(()),
        Some((_, rail)) => Err(Error::new(
            Status::Unsupported,
            format!(
                "{} ({}) cannot take back what a silent peer has begun to write, since libfabric emulates the writes of \
                 this device: grants need a device with RDMA writes and libfabric 1.18 or later, or the fabric tcp",
                rail.name, rail.fabric
            ),
        )),
    }
}

fn granted_access(registered: Access, spec: &GrantSpec) -> Result<Access> {
    let any = !spec.write && !spec.read;
    let (write, read) =
        (spec.write || any && registered.remote_write, spec.read || any && registered.remote_read);
    if write && !registered.remote_write || read && !registered.remote_read || !write && !read {
        return Err(Error::invalid("the memory was not registered with the access that is to be granted"));
    }
    Ok(Access { remote_write: write, remote_read: read, granted_only: false, ..registered })
}

/// The properties of device memory that NICs need.
fn on_device(memory: &Memory) -> Option<OnDevice> {
    let place = memory.place()?;
    let mut ranges: Vec<(HostRange, u64)> = memory.ranges().iter().copied().zip(place.identities()).collect();
    ranges.sort_unstable_by_key(|(range, _)| range.base);
    Some(OnDevice { device: place.device, ranges: ranges.into() })
}

/// The addresses of one side's pages.
fn pieces(memory: &Memory, pages: &Pages) -> Result<Vec<HostRange>> {
    if pages.count() == 0 || pages.page_len == 0 {
        return Err(Error::invalid("a grant on no bytes: page_count and page_len are at least 1"));
    }
    if pages.count() > PIECES {
        return Err(Error::limit(format!(
            "{} pages of all layers: at most {PIECES} are allowed",
            pages.count()
        )));
    }
    let mut all = crate::room::vec(pages.count() as usize, "the pages of the grant")?;
    pages.each_remote(
        |range| memory.range_len(range),
        |range, offset| {
            let base = memory.ranges()[range].base + offset;
            all.push(HostRange { base, len: pages.page_len });
        },
    )?;
    Ok(all)
}
