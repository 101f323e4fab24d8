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

use crate::fabric::Access;
use crate::ids::{MemoryId, PeerId, RailIndex};
use crate::memory::Memory;
use crate::peer::link::Link;
use crate::revocation::asking::Waits;
use crate::revocation::Revocations;
use crate::session::channel::Out;
use crate::wire::frame::{numbers, Kind, HEADER};
use crate::worker::chores::{Chore, Registered, Registrations, Wanted};
use crate::worker::core::Core;
use crate::worker::inbox::Command;
use std::sync::Arc;

/// Bytes of a Keys frame before the keys.
const BEFORE_KEYS: usize = 24;

impl Core {
    /// Those of the rails that know a memory with separate keys for peers' access, one bit each.
    fn rails_apart(&self, known: u64, access: Access) -> u64 {
        let apart =
            |(index, rail): &(RailIndex, &crate::worker::core::RailInfo)| !rail.grants && index.is_in(known);
        RailIndex::each(&self.rails)
            .filter(|one| access.granted_only && apart(one))
            .fold(0, |set, (rail, _)| set | rail.bit())
    }

    /// How to make the separate registrations for peers of a memory that these rails know, if it has
    /// any.
    pub(crate) fn wanted_apart(&self, wanted: &Wanted, known: u64) -> Option<Wanted> {
        let rails = self.rails_apart(known, wanted.access);
        let access = Access { granted_only: false, ..wanted.access };
        (rails != 0).then(|| Wanted { access, rails, ..wanted.clone() })
    }

    /// Refreshes a memory's descriptor.
    pub(crate) fn describe(&self, memory: &Memory) {
        memory.describe(self.incarnation, self.rails.iter().map(|rail| rail.virtual_addresses));
    }

    /// Replaces the keys of a memory: `handle` says so. False: there are no separate keys.
    fn rekey(&self, memory: MemoryId, handle: impl FnOnce(&mut Revocations) -> bool) -> bool {
        let Some(memory) = self.memory(memory) else { return false };
        // While it is being deregistered, which ends all access, there is nothing to replace.
        if self.rails_apart(memory.known(), memory.access()) == 0 || !memory.enter() {
            return false;
        }
        if !self.revoking(handle) {
            memory.exit(); // It joins one that has entered.
        }
        true
    }

    /// Has all workers register a memory again.
    pub(crate) fn register_anew(&self, memory: &Arc<Memory>) {
        let device = memory.place().map(|place| (place.device, place.shareable));
        let whole = Wanted { ranges: memory.ranges().into(), access: memory.access(), rails: 0, device };
        for inbox in self.inboxes.iter() {
            if let Some(wanted) = self.wanted_apart(&whole, memory.known()) {
                let chore = Chore::register(wanted, Registered::Keys(memory.clone()));
                inbox.command(Command::Chore(chore));
            }
        }
    }

    /// One worker has registered the memory again.
    pub(crate) fn registered_anew(&self, memory: &Memory, all: Registrations) {
        if let Some(error) = &all.error {
            log::error!(
                "memory {:#x} cannot be registered anew, so peers cannot reach it any longer: {error}",
                memory.id
            );
        }
        let failed = all.error.is_some();
        memory.exports.lock().add(all.of_rails, all.left);
        self.revoking(|all| all.handle_registered(memory.id, failed));
    }

    /// The new keys take the place of the old ones; without all of them, nothing does.
    pub(crate) fn replace_keys(&self, memory: &Memory, failed: bool) {
        {
            let mut exports = memory.exports.lock();
            match failed || !exports.is_complete() {
                true => exports.lose(),
                false => exports.replace(),
            }
        }
        self.describe(memory);
        let importers = memory.importers();
        self.revoking(|all| all.handle_replaced(memory.id, importers));
    }

    /// Whether PEER_DOWN waits for keys.
    pub(crate) fn is_rekeying_for(&self, peer: PeerId) -> bool {
        self.revocations.lock().is_rekeying_for(peer)
    }

    /// A peer has ended that may have posted more: the keys of memories for which it had grants are
    /// replaced.
    pub(crate) fn replace_keys_of_end(&self, peer: PeerId) {
        let mut memories: Vec<MemoryId> =
            self.grants.of_peer(peer).iter().map(|grant| grant.memory).collect();
        memories.extend(self.revocations.lock().memories_of(peer));
        memories.sort_unstable();
        memories.dedup();
        for memory in memories {
            self.rekey(memory, |all| all.handle_rekey(memory, peer, None));
        }
    }
}

impl Link {
    /// An importer is given the new keys of a memory. True: it is waited for, until it is at rest.
    pub(crate) fn take_keys(&mut self, core: &Core, memory: MemoryId, waits: bool) -> bool {
        let known = core.memory(memory).filter(|memory| !memory.exports.lock().lost);
        match &known {
            Some(memory) => self.push_keys(memory, core.frame_bytes()),
            None => self.push(Out::new(Kind::Revoke, numbers(&[memory.get()]))),
        }
        self.session.keys_replaced();
        let waits = waits && self.session.is_up() && known.is_some();
        if waits {
            self.await_peer(core, Waits::Keys { memory, waited_ns: 0 });
        }
        waits
    }

    /// NICs have registered an imported memory again.
    pub(crate) fn give_keys(&mut self, core: &Core, memory: &Memory) {
        self.push_keys(memory, core.frame_bytes());
        self.session.keys_replaced();
    }

    /// Queues the keys of a memory, behind its owner's frames about grants.
    pub(crate) fn push_keys(&mut self, memory: &Memory, frame: usize) {
        let most = (frame - HEADER - BEFORE_KEYS) / 8;
        let exports = memory.exports.lock();
        for rail in exports.rails() {
            let keys = memory.keys(&exports, rail);
            for (at, some) in keys.chunks(most).enumerate() {
                let before = [memory.id.get(), rail.get().into(), (at * most) as u64];
                self.push(Out::new(Kind::Keys, numbers(&[&before[..], some].concat())));
            }
        }
    }

    /// The peer has replaced keys of its memory.
    pub(crate) fn keys_came(&mut self, core: &Core, body: &[u8], now: u64) {
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let whole = body.len() > BEFORE_KEYS && body.len() % 8 == 0;
        let (before, keys) = body.split_at(BEFORE_KEYS.min(body.len()));
        let &[memory, rail, first] = &before.chunks_exact(8).map(word).collect::<Vec<u64>>()[..] else {
            return core.count_malformed();
        };
        self.withdrawals.handle_keys(|sweep| _ = core.table.go_on(sweep, now, || false));
        self.session.keys_replaced();
        let keys = || keys.chunks_exact(8).map(word);
        let remotes = self.remotes_of(MemoryId::new(memory));
        if !whole || !remotes.iter().all(|remote| remote.replace_keys(rail, first, keys())) {
            core.count_malformed();
        }
    }

    /// Whether a peer that was asked to come to rest answers.
    pub(crate) fn tend_quiesces(&mut self, core: &Core, now: u64) {
        self.end_fences(core, now);
        self.quiesces.handle_time(self.peer.received_ns(), now, |waits| match waits {
            Waits::Grant { token, memory } => core.rekey(memory, |all| all.handle_silence(token)),
            Waits::Keys { memory, .. } => {
                core.revoking(|all| all.handle_keys_known(memory));
                true
            }
        });
    }
}
