//! Carries out how access ends (`revocation`): what callers revoke, what workers and peers are to quiesce, and what
//! follows once they have.

use super::deliver;
use super::granted::granted;
use crate::fabric::grants::Grant;
use crate::ids::{GrantToken, MemoryId, OpId, RailIndex};
use crate::memory::Memory;
use crate::peer::link::{Fence, Link};
use crate::peer::Peer;
use crate::revocation::asking::Waits;
use crate::revocation::{Action, Begun, Revocations, Scope, Then};
use crate::session::channel::Out;
use crate::status::{Error, Result, Status};
use crate::transfer::ending::Sweep;
use crate::transfer::Outcome;
use crate::wire::frame::{numbers, Kind};
use crate::worker::chores::{Chore, Closable, Closing};
use crate::worker::core::{Core, RailInfo};
use crate::worker::inbox::Command;
use crate::worker::Worker;
use std::sync::Arc;

impl Core {
    pub(crate) fn memory(&self, id: MemoryId) -> Option<Arc<Memory>> {
        self.memories.get(id)
    }

    /// Lets the machine handle something, and carries out what follows.
    pub(crate) fn revoking<T>(&self, handle: impl FnOnce(&mut Revocations) -> T) -> T {
        let (result, actions) = {
            let mut all = self.revocations.lock();
            (handle(&mut all), all.poll_actions())
        };
        actions.into_iter().for_each(|action| self.carry_out_revocation(action));
        result
    }

    fn carry_out_revocation(&self, action: Action) {
        let with = |memory: MemoryId, act: &dyn Fn(&Arc<Memory>)| {
            if let Some(memory) = self.memory(memory) {
                act(&memory);
            }
        };
        match action {
            Action::Quiesce { grant, workers, then } => {
                for worker in (0..self.inboxes.len()).filter(|worker| workers >> worker & 1 != 0) {
                    self.quiesce(worker, Scope::Grant(grant.clone()), then);
                }
            }
            Action::Revoked { grant, expired } => self.is_revoked(&grant, expired),
            Action::Register(memory) => with(memory, &|memory| self.register_anew(memory)),
            Action::Replace { memory, failed } => with(memory, &|memory| self.replace_keys(memory, failed)),
            Action::GiveKeys { memory, peer, waits } => {
                let (scope, then) = (Scope::Peer(peer), Then::Keys { memory, waits });
                match self.owner_of(peer) {
                    Some(owner) => self.quiesce(owner, scope, then),
                    None => self.quiesced(&scope, then),
                }
            }
            Action::CloseKeys(memory) => {
                let all = 0..self.inboxes.len();
                all.for_each(|worker| self.quiesce(worker, Scope::Keys(memory), Then::Count));
            }
            Action::Rekeyed(memory) => {
                log::debug!("memory {memory:#x}: its keys were replaced");
                with(memory, &|memory| memory.exit());
            }
        }
    }

    /// Has a worker bring something to rest.
    pub(crate) fn quiesce(&self, worker: usize, scope: Scope, then: Then) {
        if let Some(Command::Quiesce { scope, then }) =
            self.inboxes[worker].try_command(Command::Quiesce { scope, then })
        {
            self.quiesced(&scope, then); // Its rails are closed.
        }
    }

    /// A worker has brought something to rest.
    pub(crate) fn quiesced(&self, scope: &Scope, then: Then) {
        match (scope, then) {
            (Scope::Lanes(peer), Then::Leave { owner, .. }) => {
                self.inboxes[owner].command(Command::Quiesced { peer: *peer, then });
            }
            (Scope::Lanes(peer) | Scope::Arrivals(peer), _) => {
                if let Ok(found) = self.peers.get(*peer) {
                    self.command_owner(&found, Command::Quiesced { peer: *peer, then });
                }
            }
            (Scope::Grant(grant), _) => self.revoking(|all| all.handle_quiesced(grant.token)),
            (Scope::Keys(memory), _) => self.revoking(|all| all.handle_keys_closed(*memory)),
            (Scope::Peer(_), Then::Keys { memory, .. }) => self.revoking(|all| all.handle_keys_known(memory)),
            (Scope::Peer(peer), Then::Deregister(memory)) => self.memories.released(memory, *peer),
            (Scope::Peer(_), _) => {} // A fence ends with its peer.
        }
    }

    /// Removes a grant from the table, or finds its revoke in progress. `expired`: it has expired.
    pub(crate) fn begin_to_revoke(&self, token: GrantToken, expired: bool) -> Result<()> {
        let take = || self.grants.take(token).map(|grant| self.begun(grant));
        match self.revoking(|all| all.handle_revoke(token, expired, take)) {
            true => Ok(()),
            false => {
                Err(Error::handle("the token is of no grant of this endpoint, or that was revoked before"))
            }
        }
    }

    fn begun(&self, grant: Arc<Grant>) -> Begun {
        let peer = self.peers.get(grant.peer).ok();
        // It is unknown which workers had lanes to a peer that is gone.
        let workers = peer.as_ref().map_or(u64::MAX, |peer| peer.workers) | 1 << grant.worker;
        let workers = workers & ((1u128 << self.inboxes.len()) - 1) as u64;
        // If a fabric that does not check grants may still be selected for the peer, the answer is
        // awaited.
        let checks = |(index, rail): (RailIndex, &RailInfo)| {
            let other = |peer: &Arc<Peer>| peer.has_service() && !peer.is_served_by(index);
            rail.grants || peer.as_ref().is_some_and(other)
        };
        let asks = !RailIndex::each(&self.rails).all(checks);
        Begun { grant, workers, asks }
    }

    /// Ends expired grants.
    pub(crate) fn expire_grants(&self, now: u64) {
        for token in self.grants.due(now) {
            let _ = self.begin_to_revoke(token, true); // It may have been revoked meanwhile.
        }
    }

    /// Nothing reaches the memory under the grant any longer.
    fn is_revoked(&self, grant: &Grant, expired: bool) {
        if let Some(memory) = &self.memory(grant.memory) {
            memory.ungrant();
        }
        if expired {
            self.notify_owner(grant, Outcome::new(Status::TimedOut));
        }
        self.spare_owner(grant);
        self.revoking(|all| all.handle_released(grant.token, |id| self.ends_with_revoke(id)));
    }

    /// Ends an operation that waits for a revoke, under the lock of `revocations`: a caller that polls it finds the revoke done.
    pub(crate) fn ends_with_revoke(&self, id: OpId) -> bool {
        self.table.end(id, Outcome::OK, self.clock.now())
    }

    /// The peer has acknowledged a Withdraw with this body.
    pub(crate) fn knows_of_revoke(&self, body: &[u8]) {
        if let Some((token, _)) = granted(body) {
            self.revoking(|all| all.handle_known(token));
        }
    }

    /// The rails are closed: no grant allows access any longer.
    pub(crate) fn forget_grants(&self) {
        let (revoked, rekeyed) = self.revocations.lock().close();
        let granted = self.grants.take_all().into_iter().map(|grant| grant.memory).chain(revoked);
        granted.filter_map(|id| self.memory(id)).for_each(|memory| memory.ungrant());
        rekeyed.into_iter().filter_map(|id| self.memory(id)).for_each(|memory| memory.exit());
    }
}

impl Worker {
    pub(crate) fn quiesce(&mut self, scope: &Scope, then: Then, now: u64) {
        let core = self.core.clone();
        match scope {
            Scope::Lanes(peer) => match then {
                Then::Leave { cut, .. } => {
                    self.data.drop_lanes(*peer, 0, Some(cut));
                    self.reap_all(false, now);
                }
                _ => return self.data.quiesce_lanes(*peer, then),
            },
            Scope::Keys(memory) => {
                if let Some(memory) = core.memory(*memory) {
                    let keys =
                        Chore::Close(Closing { what: Closable::Keys(memory), reply: None, since_ns: None });
                    return self.chores.push(keys, &self.data.rails);
                }
            }
            Scope::Grant(grant) => {
                self.drop_grant(grant, then, now);
                if core.grants.copying.has_key(grant.token.key()) {
                    return self.chores.push(Chore::Dropped(grant.clone(), then), &self.data.rails);
                }
            }
            Scope::Arrivals(_) => self.reap_all(false, now),
            Scope::Peer(peer) => {
                let link = self.links.get_mut(*peer);
                if link.is_some_and(|link| link.ask_for(&core, then, now)) {
                    return self.links.mark(*peer);
                }
                self.links.mark(*peer);
            }
        }
        core.quiesced(scope, then);
    }

    /// A grant of ours ends: its requests are no longer served here, and what has arrived is counted.
    fn drop_grant(&mut self, grant: &Grant, then: Then, now: u64) {
        self.data.rails.iter_mut().for_each(|work| work.rail.revoke(grant.token));
        if then == Then::Count || grant.device().is_some() {
            self.reap_all(true, now); // Copies that devices have finished for it are counted now, too.
        }
        let (peer, core) = (grant.peer, &self.core);
        let Then::Revoke { asks } = then else { return };
        if grant.worker != self.index {
            return;
        }
        if let Some(link) = self.links.get_mut(peer) {
            let token = grant.token.get();
            link.push(Out::new(Kind::Withdraw, numbers(&[token as u64, (token >> 64) as u64])));
            if asks {
                link.await_peer(core, Waits::Grant { token: grant.token, memory: grant.memory });
            }
            self.links.mark(peer);
        } else if !self.leaving.iter().any(|leaving| leaving.peer == peer) {
            core.revoking(|all| all.handle_gone(peer));
        }
    }
}

impl Link {
    /// The peer is to quiesce. False: that is not waited for.
    fn ask_for(&mut self, core: &Core, then: Then, now: u64) -> bool {
        match then {
            Then::Fence(id) => match self.quiesces.handle_fence(id, |id| core.table.is_active(id)) {
                Some(number) => self.push(Out::new(Kind::Quiesce, numbers(&[number]))),
                None => _ = core.table.end(id, Outcome::new(Status::Limit), now),
            },
            Then::Keys { memory, waits } => return self.take_keys(core, memory, waits),
            Then::Deregister(memory) => self.push(Out::new(Kind::Revoke, numbers(&[memory.get()]))),
            Then::Answer(_) | Then::Close | Then::Leave { .. } | Then::Revoke { .. } | Then::Count => {}
        }
        true
    }

    /// Something waits for the peer to quiesce, which is asked to once it has answered the request before.
    pub(crate) fn await_peer(&mut self, core: &Core, waits: Waits) {
        self.quiesces.handle_wait(waits);
        self.ask_to_quiesce(core);
    }

    /// Ends the fences that the peer has answered, once no device copies what had arrived by then, and then all workers have
    /// counted it.
    pub(crate) fn end_fences(&mut self, core: &Core, now: u64) {
        let peer = &self.peer;
        self.fences.retain_mut(|fence| {
            let active = core.table.is_active(fence.id);
            if !active || core.grants.copying.has_peer(peer.id, fence.before) {
                return active;
            }
            let ask = || {
                let workers = (0..core.inboxes.len()).filter(|at| peer.workers >> at & 1 != 0);
                workers.map(|at| core.quiesce(at, Scope::Arrivals(peer.id), Then::Fence(fence.id))).count()
            };
            let waits = *fence.workers.get_or_insert_with(ask) > 0;
            if !waits {
                core.table.end(fence.id, Outcome::OK, now);
            }
            waits
        });
    }

    /// A worker has counted what has arrived.
    pub(crate) fn arrivals_are_counted(&mut self, core: &Core, id: OpId, now: u64) {
        let fences = self.fences.iter_mut().filter(|fence| fence.id == id);
        fences.flat_map(|fence| &mut fence.workers).for_each(|workers| *workers = workers.saturating_sub(1));
        self.end_fences(core, now);
    }

    fn ask_to_quiesce(&mut self, core: &Core) {
        if let Some(number) = self.quiesces.poll_request(core.clock.now()) {
            self.push(Out::new(Kind::QuiesceRevoked, numbers(&[number])));
        }
    }

    /// The peer has quiesced.
    pub(crate) fn peer_quiesced(&mut self, core: &Core, number: u64, now: u64) {
        let (fence, answered) = self.quiesces.handle_answer(number);
        let before = core.grants.copying.next();
        self.fences.extend(fence.map(|id| Fence { id, before, workers: None }));
        self.end_fences(core, now);
        for waits in answered {
            core.revoking(|all| match waits {
                Waits::Grant { token, .. } => all.handle_answer(token),
                Waits::Keys { memory, .. } => all.handle_keys_known(memory),
            });
        }
        self.ask_to_quiesce(core);
    }

    /// The peer has ended. Revokes of its grants wait until nothing of it can arrive (`handle_gone`).
    pub(crate) fn stop_quiesces(&mut self, core: &Core) {
        for waits in self.quiesces.close() {
            if let Waits::Keys { memory, .. } = waits {
                core.revoking(|all| all.handle_keys_known(memory));
            }
        }
    }

    /// The peer revokes a grant that it made for us.
    pub(crate) fn withdrawn(&mut self, pass: &deliver::Pass, grant: GrantToken) {
        let peer = self.peer.id;
        log::debug!("{} has revoked grant {grant}: its operations end", self.peer);
        self.peer.revoked.insert(grant);
        self.forget_covered(pass.core, grant, pass.now);
        self.withdrawals
            .handle_revoked(|sweep| sweep.join_revoked(peer, grant), || Sweep::of_revoked(peer, grant));
        self.go_on_sweeping(pass.core, pass.now, || true);
    }
}
