//! Replacing the keys of a memory, to revoke it from a peer that does not answer.
//!
//! Where NICs do not check grants, any holder of a key reaches the memory. A peer that answers
//! quiesces on request (`grants`). For a peer that does not, or that has ended without draining its
//! lanes:
//!
//! 1. Every rail registers the memory again.
//! 2. Importers are sent the new keys (Keys), after all frames about revoked grants, and are asked
//!    to quiesce: what they have posted with the old keys arrives.
//! 3. When they have, or after `ANSWER_NS`, the old keys are closed. From then on nothing that was
//!    posted with them moves bytes, whichever peer posted it.
//!
//! An importer takes the new keys once its operations under revoked grants have ended (`keys_came`).
//! What it posts by an old key that is closed fails there: it is posted again once the new
//! key has come (`Stripes::refuse`). Where NICs have connections, that failure resets the lane
//! (`failover`), and if it was the last, operations under grants wait for the new keys
//! (`session::resuming`). If the memory cannot be registered anew, importers are notified that it is
//! gone.
//!
//! Destroying the connection of a silent peer alone would not do where there is one: the peer may
//! connect again with what it knows, and only an honest one would wait for news of its grants.
//!
//! This applies to memories that are reached only under grants (`memory::Exports`): others have one
//! registration for peers and for our own posts.

use super::chores::{Registered, Registrations, Wanted};
use super::core::Core;
use super::inbox::Command;
use crate::fabric::Access;
use crate::ids::{MemoryId, PeerId, RailIndex};
use crate::memory::Memory;
use crate::peer::link::Link;
use crate::peer::{Replacing, Rests, Revoking};
use crate::session::channel::Out;
use crate::session::liveness::{Verdict, LOOKS};
use crate::wire::frame::{numbers, Kind, HEADER};
use std::collections::VecDeque;
use std::sync::Arc;

/// A peer that was asked to quiesce, and sends nothing for this long, does not answer. (For this
/// and the times below, only time counts in which this worker received: `session::liveness`.)
const SILENT_NS: u64 = 50_000_000;
/// A peer that sends only other frames for this long does not answer either.
const REST_NS: u64 = 1_000_000_000;
/// For importers that are not idle by then, posts with the old keys are refused.
const ANSWER_NS: u64 = 100_000_000;
/// Bytes of a Keys frame before the keys.
const BEFORE_KEYS: usize = 24;

impl Core {
    /// Those of the rails that know a memory with separate keys for peers' access, one bit each.
    fn rails_apart(&self, known: u64, access: Access) -> u64 {
        let apart = |(index, rail): &(RailIndex, &super::RailInfo)| !rail.grants && index.is_in(known);
        RailIndex::each(&self.rails)
            .filter(|of| access.granted_only && apart(of))
            .fold(0, |set, (rail, _)| set | rail.bit())
    }

    /// How to make the separate registrations for peers of a memory that these rails know, if it has
    /// any.
    pub(super) fn wanted_apart(&self, of: &Wanted, known: u64) -> Option<Wanted> {
        let rails = self.rails_apart(known, of.access);
        let access = Access { granted_only: false, ..of.access };
        (rails != 0).then(|| Wanted { access, rails, ..of.clone() })
    }

    /// Refreshes a memory's descriptor.
    pub(super) fn describe(&self, memory: &Memory) {
        memory.describe(self.incarnation, self.rails.iter().map(|rail| rail.virtual_addresses));
    }

    /// Replaces the keys of a memory for a peer that does not answer or has ended, and for a grant
    /// of it. `None`: there are no separate keys.
    pub(super) fn replace_keys(
        &self,
        memory: &Arc<Memory>,
        silent: PeerId,
        of: Option<&Arc<Revoking>>,
    ) -> Option<Arc<Replacing>> {
        if self.rails_apart(memory.known(), memory.access()) == 0 {
            return None;
        }
        let mut all = self.replacing.lock();
        let last = all.get(&memory.id).and_then(VecDeque::back);
        if let Some(known) = last.filter(|known| known.join(silent, of)) {
            return Some(known.clone());
        }
        if !memory.enter() {
            return None; // The memory is being deregistered, which ends all access.
        }
        let new = Arc::new(Replacing::new(memory.clone()));
        new.join(silent, of);
        let those = all.entry(memory.id).or_default();
        those.push_back(new.clone());
        let first = those.len() == 1;
        drop(all);
        if first {
            self.register_anew(&new);
        }
        Some(new)
    }

    fn register_anew(&self, of: &Arc<Replacing>) {
        of.begin(self.inboxes.len());
        let memory = &of.memory;
        let device = memory.place().map(|place| (place.device, place.shareable));
        let whole = Wanted { ranges: memory.ranges().into(), access: memory.access(), rails: 0, device };
        for inbox in self.inboxes.iter() {
            if let Some(wanted) = self.wanted_apart(&whole, memory.known()) {
                inbox.command(Command::Register { wanted, reply: Registered::Keys(of.clone()) });
            }
        }
    }

    /// One worker has registered the memory again.
    pub(super) fn registered_anew(&self, of: &Arc<Replacing>, all: Registrations) {
        if let Some(error) = &all.error {
            log::error!(
                "memory {:#x} cannot be registered anew, so peers cannot reach it any longer: {error}",
                of.memory.id
            );
            of.fail();
        }
        of.memory.exports.lock().add(all.of_rails, all.left);
        if of.is_done_by_one() {
            self.give_keys(of);
        }
    }

    fn give_keys(&self, of: &Arc<Replacing>) {
        let memory = &of.memory;
        let silent = of.announce();
        {
            let mut exports = memory.exports.lock();
            if !exports.is_complete() {
                of.fail();
            }
            match of.has_failed() {
                true => exports.lose(),
                false => exports.replace(),
            }
        }
        self.describe(memory);
        let importers = memory.importers();
        of.begin(importers.len() + 1);
        for peer in importers {
            match self.owner_of(peer) {
                Some(owner) => {
                    let waits = !silent.contains(&peer);
                    self.inboxes[owner].command(Command::GiveKeys { peer, of: of.clone(), waits });
                }
                None => self.keys_known(of),
            }
        }
        self.keys_known(of);
    }

    /// An importer no longer uses the old keys, or is not waited for.
    pub(super) fn keys_known(&self, of: &Arc<Replacing>) {
        if of.is_done_by_one() {
            of.begin(self.inboxes.len());
            self.inboxes.iter().for_each(|inbox| inbox.command(Command::CloseKeys(of.clone())));
        }
    }

    /// One worker's rails have closed the old keys.
    pub(super) fn closed_by_one(&self, of: &Arc<Replacing>, now: u64) {
        if !of.is_done_by_one() {
            return;
        }
        log::debug!("memory {:#x}: its keys were replaced", of.memory.id);
        of.memory.exit();
        of.end().iter().for_each(|revoking| self.count_arrivals_of(revoking, now));
        let mut all = self.replacing.lock();
        let next = all.get_mut(&of.memory.id).and_then(|those| {
            those.pop_front();
            those.front().cloned()
        });
        if next.is_none() {
            all.remove(&of.memory.id);
        }
        drop(all);
        next.iter().for_each(|next| self.register_anew(next));
    }

    /// A peer has ended that may have posted more: the keys of memories for which it had grants are
    /// replaced.
    pub(super) fn replace_keys_of_end(&self, peer: PeerId) -> Vec<Arc<Replacing>> {
        let mut memories: Vec<MemoryId> =
            self.grants.of_peer(peer).iter().map(|grant| grant.memory).collect();
        let revoking = self.revoking.lock();
        memories.extend(
            revoking.values().filter(|of| of.grant.peer == peer && !of.is_done()).map(|of| of.grant.memory),
        );
        drop(revoking);
        memories.sort_unstable();
        memories.dedup();
        let known = |id: MemoryId| self.memories.lock().get(&id).cloned();
        memories.into_iter().filter_map(|id| self.replace_keys(&known(id)?, peer, None)).collect()
    }
}

impl Link {
    /// An importer is given the new keys of a memory. True: it is waited for, until it is at rest.
    pub(super) fn take_keys(&mut self, core: &Core, of: &Arc<Replacing>, waits: bool) -> bool {
        if of.has_failed() {
            self.push(Out::new(Kind::Revoke, numbers(&[of.memory.id.get()])));
        } else {
            self.push_keys(&of.memory, core.frame_bytes());
        }
        self.session.keys_replaced();
        let waits = waits && self.session.is_up() && !of.has_failed();
        if waits {
            self.to_rest.push(Rests::Keys(of.clone(), 0));
            self.ask_to_rest(core);
        }
        waits
    }

    /// Queues the keys of a memory, behind its owner's frames about grants.
    pub(super) fn push_keys(&mut self, memory: &Memory, frame: usize) {
        let most = (frame - HEADER - BEFORE_KEYS) / 8;
        let exports = memory.exports.lock();
        for rail in exports.rails() {
            let keys = exports.keys(rail).unwrap_or_default();
            for (at, some) in keys.chunks(most).enumerate() {
                let before = [memory.id.get(), rail.get().into(), (at * most) as u64];
                self.push(Out::new(Kind::Keys, numbers(&[&before[..], some].concat())));
            }
        }
    }

    /// The peer has replaced keys of its memory.
    pub(super) fn keys_came(&mut self, core: &Core, body: &[u8], now: u64) {
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let whole = body.len() > BEFORE_KEYS && body.len() % 8 == 0;
        let (before, keys) = body.split_at(BEFORE_KEYS.min(body.len()));
        let &[memory, rail, first] = &before.chunks_exact(8).map(word).collect::<Vec<u64>>()[..] else {
            return core.count_malformed();
        };
        // Operations under grants that were revoked before end first: none is posted by a new key.
        self.sweeps.retain_mut(|sweep| !(sweep.is_of_grants() && core.table.go_on(sweep, now, || false)));
        self.session.keys_replaced();
        let keys = || keys.chunks_exact(8).map(word);
        let remotes = self.remotes_of(MemoryId::new(memory));
        if !whole || !remotes.iter().all(|remote| remote.replace_keys(rail, first, keys())) {
            core.count_malformed();
        }
    }

    /// Whether a peer that was asked to come to rest answers.
    pub(super) fn tend_resting(&mut self, core: &Core, now: u64) {
        let Some(resting) = &mut self.resting else { return };
        let passed = now.saturating_sub(resting.counted_ns);
        resting.counted_ns = now;
        resting.waited_ns += passed.min(REST_NS / LOOKS);
        let verdict = resting.silence.look(self.peer.received_ns(), now, SILENT_NS);
        let silent = verdict == Verdict::Lost || resting.waited_ns > REST_NS;
        let peer = self.peer.id;
        for those in [&mut resting.of, &mut self.to_rest] {
            those.retain_mut(|one| match one {
                Rests::Keys(of, waited) => {
                    *waited += passed.min(ANSWER_NS / LOOKS);
                    let ends = silent || *waited > ANSWER_NS;
                    if ends {
                        core.keys_known(of);
                    }
                    !ends
                }
                Rests::Revoke(of) => !silent || core.replace_keys(of.memory(), peer, Some(of)).is_none(),
            });
        }
    }
}
