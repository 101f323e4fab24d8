//! The life of a grant: the part of a memory that one peer may reach, until its owner revokes it.
//!
//! 1. The owner creates it (`Endpoint::grant`): it stands in the table that the endpoint's NICs
//!    share (`fabric::grants`), and nothing is sent. The token reaches the peer by the caller's own
//!    message.
//! 2. The peer names it in operations. Requests carry its key instead of the memory's where the NIC
//!    checks grants; frames that announce an operation carry the token (`under_a_grant`).
//! 3. The owner revokes it (`Endpoint::revoke`). It leaves the table at once, and no use of it can
//!    begin. Then nothing moves under it, whatever the peer does; uses in progress end once each of
//!    the peer's workers has had its NICs forget it. Over fabrics that do not check, the peer is
//!    asked to come to rest, as for a fence (`ask_to_rest`). If it does not answer, the keys of the
//!    memory are replaced (`keys`). The end of the peer is as good an answer.
//! 4. The peer is notified (Withdraw): its operations under the grant end with `WEFT_ERR_REVOKED`.
//!    Until then, frames of the grant are neither delivered nor acknowledged: an operation that was
//!    not announced does not succeed.

use super::core::Core;
use super::deliver::{Delivery, Pass};
use super::inbox::Command;
use super::Endpoint;
use crate::fabric::grants::{Grant, OnDevice};
use crate::fabric::HostRange;
use crate::ids::{GrantToken, OpId, PeerId, RailIndex};
use crate::logging::seldom::warn_seldom;
use crate::memory::{Access, Memory};
use crate::peer::link::{Link, Resting};
use crate::peer::{Peer, Rests, Revoking};
use crate::session::channel::Out;
use crate::session::liveness::Silence;
use crate::status::{Error, Result, Status};
use crate::transfer::completion::{Completion, KIND_NOTIFICATION};
use crate::transfer::ending::Sweep;
use crate::transfer::geometry::Pages;
use crate::transfer::{Outcome, RevokeSpec};
use crate::wire::frame::{numbers, Kind};
use std::num::NonZeroU64;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Pieces of a grant at most.
const PIECES: u64 = 1 << 20;

/// What the caller asks for.
pub struct GrantSpec<'a> {
    /// As the caller names it.
    pub peer: u64,
    pub write: bool,
    pub read: bool,
    /// `None`: the whole memory. Else its remote side.
    pub pages: Option<Pages<'a>>,
    /// How long it lasts.
    pub timeout_ns: Option<NonZeroU64>,
    /// What we are notified of if the peer ends, or the grant by itself.
    pub notify: Option<u64>,
}

impl Endpoint {
    pub fn grant(&self, memory: &Arc<Memory>, spec: &GrantSpec) -> Result<GrantToken> {
        let core = &self.core;
        core.check_open()?;
        let peer = core.peers.find(spec.peer)?;
        let access = granted_access(memory.access(), spec)?;
        let ranges = match &spec.pages {
            Some(pages) => pieces(memory, pages)?,
            None => memory.ranges().to_vec(),
        };
        if !memory.enter() {
            return Err(Error::handle("the memory is being deregistered"));
        }
        memory.grants.fetch_add(1, Ordering::Relaxed);
        if spec.notify.is_some() {
            self.hold_place().inspect_err(|_| memory.ungrant())?;
        }
        let end = |ns: NonZeroU64| core.clock.now().saturating_add(ns.get());
        let deadline = spec.timeout_ns.map_or(u64::MAX, end);
        let number = peer.grants.fetch_add(1, Ordering::Relaxed);
        // Another one has the key: one in 2^64.
        for _ in 0..8 {
            let Some(token) = GrantToken::of(core.random.u128()?, number) else { continue };
            let of = (memory.id, access);
            let grant =
                Grant::new(token, (peer.id, peer.owner), of, ranges.clone()).on_device(on_device(memory));
            if core.grants.add(grant.until(deadline, spec.notify)) {
                if deadline != u64::MAX {
                    core.inboxes[0].wake(); // Who looks after deadlines may sleep for longer.
                }
                if core.peers.get(peer.id).is_err() {
                    core.notify_of_end(peer.id, Outcome::of(Status::PeerLost));
                }
                return Ok(token);
            }
        }
        spec.notify.into_iter().for_each(|_| core.give_place_back());
        memory.ungrant();
        Err(Error::new(Status::System, "no random numbers"))
    }

    /// Holds a place for the notification of a grant. The other half of the queue stays for arrivals: grants live
    /// for long, and nobody can poll their places free.
    fn hold_place(&self) -> Result<()> {
        let (core, depth) = (&self.core, self.core.queue.capacity());
        if !core.grants.hold_place(depth / 2) {
            return Err(Error::limit(format!(
                "grants with WEFT_NOTIFY_FAILURE hold {} of the {depth} places of the endpoint's queue, which is the \
                 most: revoke some, or raise queue_depth",
                depth / 2
            )));
        }
        if core.queue.reserve(1) {
            return Ok(());
        }
        core.grants.yield_place();
        Err(self.no_places(&core.queue, 1))
    }

    pub fn revoke(&self, spec: RevokeSpec) -> Result<OpId> {
        let core = &self.core;
        core.check_open()?;
        let of = core.begin_to_revoke(spec.grant, false)?;
        // It outlives the peer: PEER_LOST would say less than it can.
        let id = self.begin_fence((spec.queue, spec.user_data, spec.timeout_ns), None, || None)?;
        let now = core.clock.now();
        if !of.await_by(id) {
            core.table.end(id, Outcome::OK, now);
        }
        of.ask();
        core.revoke(&of);
        core.forget_revoking(&of);
        self.kick(now);
        Ok(id)
    }
}

/// The grant that a body begins with, and what follows.
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

/// What NICs need to know of a device's memory.
fn on_device(memory: &Memory) -> Option<OnDevice> {
    let place = memory.place()?;
    let mut ranges: Vec<(HostRange, u64)> = memory.ranges().iter().copied().zip(place.identities()).collect();
    ranges.sort_unstable_by_key(|(range, _)| range.base);
    Some(OnDevice { device: place.device, ranges: ranges.into() })
}

/// Where the pages of one side lie.
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
    /// Takes a grant off the table, or finds it where it was. `expired`: it ends by itself.
    fn begin_to_revoke(&self, token: GrantToken, expired: bool) -> Result<Arc<Revoking>> {
        // Held: a thread that finds no grant must find that it is being revoked.
        let mut revoking = self.revoking.lock();
        let unknown =
            || Error::handle("the token is of no grant of this endpoint, or that was revoked before");
        if let Some(of) = revoking.get(&token) {
            return if of.is_done() && !of.is_expired() { Err(unknown()) } else { Ok(of.clone()) };
        }
        let grant = self.grants.take(token).ok_or_else(unknown)?;
        let memory = self.memories.lock().get(&grant.memory).cloned().ok_or_else(unknown)?;
        let of = Arc::new(Revoking::new(grant, memory, expired));
        revoking.insert(token, of.clone());
        Ok(of)
    }

    /// Has the peer's workers forget a grant, once.
    fn revoke(&self, of: &Arc<Revoking>) {
        let peer = self.peers.get(of.grant.peer).ok();
        // Which workers had lanes of a peer that has gone is unknown.
        let workers = peer.as_ref().map_or(u64::MAX, |peer| peer.workers) | 1 << of.grant.worker;
        // Where a fabric that does not check may still come to serve it, the answer is waited for.
        let checks = |(index, rail): (RailIndex, &super::RailInfo)| {
            let other = |peer: &Arc<Peer>| peer.has_service() && !peer.is_served_by(index);
            rail.grants || peer.as_ref().is_some_and(other)
        };
        let rests = !RailIndex::each(&self.rails).all(checks);
        let those: Vec<usize> = (0..self.inboxes.len()).filter(|at| workers >> at & 1 != 0).collect();
        if of.begin(those.len(), rests) {
            // Nobody waits for workers that do not use it.
            if of.grant.close() && !rests {
                self.is_revoked(of, self.clock.now());
            }
            those.iter().for_each(|at| self.inboxes[*at].command(Command::RevokeGrant(of.clone())));
        }
    }

    /// Ends grants whose time is over.
    pub(super) fn expire_grants(&self, now: u64) {
        for token in self.grants.due(now) {
            // It may have been revoked meanwhile.
            let of = self.begin_to_revoke(token, true);
            of.into_iter().for_each(|of| self.revoke(&of));
        }
    }

    /// Tells the owner of what its grants to a peer promised, as the peer has ended.
    pub(super) fn notify_of_end(&self, peer: PeerId, outcome: Outcome) {
        self.grants.of_peer(peer).iter().for_each(|grant| self.notify_owner(grant, outcome));
    }

    fn notify_owner(&self, grant: &Grant, outcome: Outcome) {
        let Some(value) = grant.take_notify() else { return };
        let now = self.clock.now();
        let mut completion = Completion::new(KIND_NOTIFICATION, outcome, grant.peer, now);
        completion.notify = value;
        self.table.tally.notification();
        self.grants.yield_place();
        self.queue.publish(completion);
    }

    /// Nothing reaches the memory under it any longer.
    fn is_revoked(&self, of: &Arc<Revoking>, now: u64) {
        of.let_memory_go();
        if of.is_expired() {
            self.notify_owner(&of.grant, Outcome::of(Status::TimedOut));
        }
        self.spare_owner(&of.grant);
        of.take_ops().into_iter().for_each(|id| _ = self.table.end(id, Outcome::OK, now));
        self.forget_revoking(of);
    }

    /// The owner knows of what it was to be notified of.
    fn spare_owner(&self, grant: &Grant) {
        grant.take_notify().into_iter().for_each(|_| self.give_place_back());
    }

    /// Arrivals of a peer find no place. At most a line a second.
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

    /// The peer posts nothing under it any longer, where NICs raise counters by immediates: workers may
    /// not have reaped some.
    pub(super) fn count_arrivals_of(&self, of: &Arc<Revoking>, now: u64) {
        of.awaits(self.inboxes.len());
        self.inboxes.iter().for_each(|inbox| inbox.command(Command::CountArrivals(of.clone())));
        self.revoked_by_one(of, now);
    }

    /// One of those for whom a revoke waits is done.
    pub(super) fn revoked_by_one(&self, of: &Arc<Revoking>, now: u64) {
        if of.is_done_by_one() {
            self.is_revoked(of, now);
        }
    }

    /// The peer knows of a withdraw with this body.
    pub(super) fn knows_of_revoke(&self, body: &[u8]) {
        let of = granted(body).and_then(|(token, _)| self.revoking.lock().get(&token).cloned());
        of.into_iter().for_each(|of| {
            of.peer_knows();
            self.forget_revoking(&of);
        });
    }

    /// A peer has ended: its grants are revoked without notifying it.
    pub(super) fn no_peer_to_know(&self, peer: PeerId) {
        let all: Vec<Arc<Revoking>> = self.revoking.lock().values().cloned().collect();
        for of in all.iter().filter(|of| of.grant.peer == peer) {
            of.peer_knows();
            self.forget_revoking(of);
        }
    }

    fn forget_revoking(&self, of: &Revoking) {
        if of.is_over() {
            self.revoking.lock().remove(&of.grant.token);
        }
    }

    /// The rails are closed: no grant lets anybody reach anything.
    pub(super) fn forget_grants(&self) {
        self.revoking.lock().drain().for_each(|(_, of)| of.let_memory_go());
        for grant in self.grants.take_all() {
            let memory = self.memories.lock().get(&grant.memory).cloned();
            memory.into_iter().for_each(|memory| memory.ungrant());
        }
    }
}

impl Link {
    /// A grant of ours ends.
    pub(super) fn push_withdraw(&mut self, core: &Core, of: &Arc<Revoking>) {
        let token = of.grant.token.get();
        self.push(Out::new(Kind::Withdraw, numbers(&[token as u64, (token >> 64) as u64])));
        if of.rests() {
            self.to_rest.push(Rests::Revoke(of.clone()));
        }
        self.ask_to_rest(core);
    }

    /// Asks the peer to come to rest for what came to wait for that since it was asked last.
    pub(super) fn ask_to_rest(&mut self, core: &Core) {
        if self.resting.is_some() || self.to_rest.is_empty() {
            return;
        }
        let number = self.next_fence;
        self.next_fence += 1;
        let (counted_ns, of) = (core.clock.now(), std::mem::take(&mut self.to_rest));
        self.resting = Some(Resting { number, silence: Silence::default(), waited_ns: 0, counted_ns, of });
        self.push(Out::new(Kind::Rest, numbers(&[number])));
    }

    /// The peer takes a grant back that it made for us.
    pub(super) fn withdrawn(&mut self, pass: &Pass, grant: GrantToken) {
        let peer = self.peer.id;
        log::debug!("{} has revoked grant {grant}: its operations end", self.peer);
        if !self.peer.revoked.insert(grant) {
            return pass.core.breach(&self.peer, "it takes back more grants than there can be");
        }
        if !self.sweeps.iter().any(|sweep| sweep.is_of_revoked(peer)) {
            self.sweeps.push_back(Sweep::of_revoked(peer, &self.peer.revoked));
        }
        self.go_on_sweeping(pass.core, pass.now, || true);
    }

    /// What tells of an operation under a grant.
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
                        core.spare_owner(entered.of());
                    }
                    delivery
                }
                Kind::AtomicUnder => self.atomic(core, body, Some(entered.of())),
                _ => pass.raise(body),
            };
        }
        if kind == Kind::AtomicUnder {
            return self.refuse_atomic(core, body, Status::Revoked);
        }
        // After the table: a grant that has left it is here.
        let revoking = core.revoking.lock().get(&token).cloned();
        match revoking {
            Some(of) if ours(&of.grant) && !of.is_known() => Delivery::Stalled,
            _ => {
                log::debug!(
                    "{}: announces an operation under grant {token}, which is revoked or not its own",
                    self.peer
                );
                Delivery::TakenUrgently
            }
        }
    }
}
