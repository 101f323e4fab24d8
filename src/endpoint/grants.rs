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

use super::core::Core;
use super::deliver::{Delivery, Pass};
use super::Endpoint;
use crate::fabric::grants::{Grant, OnDevice};
use crate::fabric::HostRange;
use crate::ids::{GrantToken, PeerId, RailIndex};
use crate::logging::seldom::warn_seldom;
use crate::memory::{Access, Memory};
use crate::peer::link::Link;
use crate::peer::Peer;
use crate::status::{Error, Result, Status};
use crate::transfer::completion::{Completion, KIND_NOTIFICATION};
use crate::transfer::geometry::Pages;
use crate::transfer::Outcome;
use crate::wire::frame::Kind;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// The most pieces of a grant.
pub(super) const PIECES: u64 = 1 << 20;

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
        core.check_open()?;
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
            let Some(token) = GrantToken::of(core.random.u64()?, peer.begun, number) else { continue };

            let grant = Grant::new(token, peer.id, peer.owner, memory.id, access, ranges.clone())
                .on_device(on_device(memory));
            if core.grants.add(grant.until(deadline, spec.notify)) {
                granted.keep();
                place.into_iter().for_each(GrantPlace::keep);
                if deadline != u64::MAX {
                    core.inboxes[0].wake(); // The worker that checks deadlines may sleep beyond this one.
                }
                if core.peers.get(peer.id).is_err() {
                    core.notify_of_end(peer.id, Outcome::of(Status::PeerLost));
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
}

/// A grant that could not be taken back is not made. Until it is known which rails serve the peer, any may.
fn check_revokes(core: &Core, peer: &Peer) -> Result<()> {
    let mut rails = RailIndex::each(&core.rails);
    let may_serve = |rail| peer.is_served_by(rail) || !peer.has_service();
    match rails.find(|(rail, of)| !of.revokes && may_serve(*rail)) {
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

/// The token at the beginning of a body, and the rest.
pub(super) fn granted(body: &[u8]) -> Option<(GrantToken, &[u8])> {
    let (token, rest) = body.split_first_chunk::<16>()?;
    Some((GrantToken::new(u128::from_le_bytes(*token))?, rest))
}

fn granted_access(of: Access, spec: &GrantSpec) -> Result<Access> {
    let any = !spec.write && !spec.read;
    let (write, read) = (spec.write || any && of.remote_write, spec.read || any && of.remote_read);
    if write && !of.remote_write || read && !of.remote_read || !write && !read {
        return Err(Error::invalid("the memory was not registered with the access that is to be granted"));
    }
    Ok(Access { remote_write: write, remote_read: read, granted_only: false, ..of })
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

impl Core {
    /// Notifies the owner of grants to a peer that has ended, where that was requested.
    pub(super) fn notify_of_end(&self, peer: PeerId, outcome: Outcome) {
        self.grants.of_peer(peer).iter().for_each(|grant| self.notify_owner(grant, outcome));
    }

    pub(super) fn notify_owner(&self, grant: &Grant, outcome: Outcome) {
        let Some(value) = grant.take_notify() else { return };
        let now = self.clock.now();
        let mut completion = Completion::new(KIND_NOTIFICATION, outcome, grant.peer, now);
        completion.notify = value;
        self.table.tally.notification();
        self.grants.yield_place();
        self.queue.publish(completion);
    }

    /// The owner has received the grant's notification.
    pub(super) fn spare_owner(&self, grant: &Grant) {
        grant.take_notify().into_iter().for_each(|_| self.give_place_back());
    }

    /// The queue is full for a peer's arrivals. Logs at most one line per second.
    pub(super) fn warn_of_full_queue(&self, peer: &Peer) {
        let (depth, unpolled, held) = (self.queue.capacity(), self.queue.unpolled(), self.grants.places());
        warn_seldom!(
            "the endpoint's queue is full, and what arrives from {peer} waits: of its {depth} places {unpolled} are \
             completions to be polled, {held} are held by grants with WEFT_NOTIFY_FAILURE, and the others by \
             operations under way: poll, or raise queue_depth"
        );
    }

    fn give_place_back(&self) {
        self.grants.yield_place();
        self.queue.unreserve(1);
    }
}

impl Link {
    /// A frame that announces an operation under a grant.
    pub(super) fn under_a_grant(&mut self, pass: &mut Pass, kind: Kind, body: &[u8]) -> Delivery {
        let core = pass.core;
        let Some((token, body)) = granted(body) else {
            core.count_malformed();
            return Delivery::Taken;
        };
        let ours = |grant: &Arc<Grant>| grant.peer == self.peer.id;
        let entered = core.grants.named(token).filter(ours).and_then(|grant| grant.enter());
        if let Some(entered) = entered {
            return match kind {
                Kind::NotifyUnder => self.notification(pass, body),
                Kind::FailureUnder => {
                    let delivery = self.failure(pass, body);
                    if !matches!(delivery, Delivery::Stalled) {
                        core.spare_owner(entered.grant());
                    }
                    delivery
                }
                Kind::AtomicUnder => self.atomic(core, body, Some(entered.grant())),
                _ => pass.raise(body),
            };
        }
        if kind == Kind::AtomicUnder {
            return self.refuse_atomic(core, body, Status::Revoked);
        }
        log::debug!(
            "{}: announces an operation under grant {token}, which is revoked or not its own",
            self.peer
        );
        if kind == Kind::FailureUnder {
            return Delivery::TakenUrgently;
        }
        if self.peer.address.answers_about_grants() {
            return Delivery::Refused;
        }
        // Check after the table: a grant that has left the table is there.
        match core.revocations.lock().is_unknown_to(self.peer.id, token) {
            true => Delivery::Stalled,
            false => Delivery::TakenUrgently,
        }
    }
}
