//! How access that peers were given ends, as a state machine without I/O: grants that are being revoked, and
//! memories whose keys are replaced for that (`keys`).
//!
//! It takes calls, and the answers of workers and peers; it gives back actions, which the thread that called it carries
//! out (`owner/revoke.rs`). An endpoint has one, and all threads use it under one lock. How a peer is asked to
//! quiesce, and does not answer, is in `asking`, with the peer's owner.
//!
//! A grant leaves the table of live grants as it enters here: a thread that finds it nowhere may take it as revoked.

pub mod asking;
mod keys;
pub mod quiescing;
#[cfg(test)]
mod quiescing_tests;
#[cfg(test)]
mod tests;
pub mod withdrawals;

use crate::fabric::grants::Grant;
use crate::ids::{GrantToken, MemoryId, OpId, PeerId};
use std::collections::HashMap;
use std::sync::Arc;

/// What is to come to rest.
#[derive(Clone)]
pub enum Scope {
    /// A worker's lanes to a peer.
    Lanes(PeerId),
    /// What a worker's NICs do under a grant.
    Grant(Arc<Grant>),
    /// What a worker's NICs do by replaced keys of a memory.
    Keys(MemoryId),
    /// A peer: to its owner, which asks it.
    Peer(PeerId),
    /// What has arrived from a peer: a worker counts it.
    Arrivals(PeerId),
}

/// What goes on once it is at rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    /// The lanes take more, once the peer's request of this number is answered.
    Answer(u64),
    /// The session closes: the lanes take nothing more.
    Close,
    /// The lanes are dropped, reset if `cut`: their peer has ended, and its owner waits.
    Leave { cut: bool, owner: usize },
    /// A caller's fence.
    Fence(OpId),
    /// The revoke of the grant. Its peer is notified, and (`asks`) asked to quiesce.
    Revoke { asks: bool },
    /// The revoke of the grant, of which all has arrived: it is counted.
    Count,
    /// The memory's old keys are closed. Its importer is sent the new ones, and (`waits`) asked to quiesce.
    Keys { memory: MemoryId, waits: bool },
    /// The memory is deregistered.
    Deregister(MemoryId),
}

/// What remains until a grant is revoked. Beside the peer, it waits for workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Workers have to drop it, or to count what has arrived under it.
    Dropping,
    /// The peer has to quiesce: a NIC that serves it checks no grants.
    Asking,
    /// The peer does not answer: the memory's keys have to be replaced.
    Rekeying,
    /// Nothing reaches the memory under it: the memory is let go.
    Releasing,
    Done,
}

/// The moves between states, for the diagram of ARCHITECTURE.
#[cfg(test)]
pub(crate) const MOVES: &[(&str, &str, &str)] = &[
    ("Asking", "Dropping", "the peer has quiesced, or is gone"),
    ("Asking", "Rekeying", "the peer does not answer"),
    ("Rekeying", "Dropping", "the old keys are closed"),
    ("Dropping", "Releasing", "no worker serves it, and all that arrived is counted"),
    ("Releasing", "Done", "the memory is let go, and the owner notified"),
];

pub enum Action {
    /// Each of these workers (one bit each) is to quiesce the grant.
    Quiesce { grant: Arc<Grant>, workers: u64, then: Then },
    /// Nothing reaches the memory under the grant: the memory is let go, and, where it expired before its owner revoked it
    /// (`expired`), the owner notified; then `handle_released`.
    Revoked { grant: Arc<Grant>, expired: bool },
    /// All workers are to register the memory again.
    Register(MemoryId),
    /// What was registered takes the place of what there was; if it failed, nothing does.
    Replace { memory: MemoryId, failed: bool },
    /// An importer is to get the new keys, and (`waits`) to quiesce.
    GiveKeys { memory: MemoryId, peer: PeerId, waits: bool },
    /// All workers are to close the old keys.
    CloseKeys(MemoryId),
    /// Nothing reaches the memory by its old keys.
    Rekeyed(MemoryId),
}

/// A grant of ours that is being revoked, or was, as long as its peer or its owner does not know.
struct Revocation {
    grant: Arc<Grant>,
    end: End,
    /// Workers that have yet to answer.
    workers: usize,
    /// Operations that wait for it.
    ops: Vec<OpId>,
    /// The peer has acknowledged the revoke, or is gone.
    known: bool,
    expired: bool,
    /// No operation of its owner has ended with its revoke, or waits for it: the owner may still revoke it.
    unclaimed: bool,
}

/// What a revoke begins with.
pub struct Begun {
    pub grant: Arc<Grant>,
    /// The workers that may serve it, one bit each.
    pub workers: u64,
    /// Its peer has to quiesce.
    pub asks: bool,
}

pub struct Revocations {
    /// Of the endpoint.
    workers: usize,
    grants: HashMap<GrantToken, Revocation>,
    keys: HashMap<MemoryId, keys::Rekeyings>,
    actions: Vec<Action>,
}

impl Revocation {
    fn enter(&mut self, end: End) {
        #[cfg(test)]
        tests::note_move(self.end, end);
        log::trace!("grant {}: {:?}, then {end:?}", self.grant.token, self.end);
        self.end = end;
    }

    /// Goes on if no worker has yet to answer.
    fn go_on(&mut self, actions: &mut Vec<Action>) {
        if self.end == End::Dropping && self.workers == 0 {
            self.enter(End::Releasing);
            let expired = self.expired && self.unclaimed;
            actions.push(Action::Revoked { grant: self.grant.clone(), expired });
        }
    }

    /// Nothing more of the peer moves under the grant; what `workers` workers have to reap is counted.
    fn arrived(&mut self, workers: usize, actions: &mut Vec<Action>) {
        self.enter(End::Dropping);
        self.workers += workers;
        if workers > 0 {
            let all = (1u128 << workers) - 1;
            actions.push(Action::Quiesce {
                grant: self.grant.clone(),
                workers: all as u64,
                then: Then::Count,
            });
        }
        self.go_on(actions);
    }

    /// Nothing reaches the memory under it.
    fn is_revoked(&self) -> bool {
        matches!(self.end, End::Releasing | End::Done)
    }

    fn is_over(&self) -> bool {
        self.end == End::Done && self.known && !self.unclaimed
    }
}

impl Revocations {
    pub fn new(workers: usize) -> Revocations {
        Revocations { workers, grants: HashMap::new(), keys: HashMap::new(), actions: Vec::new() }
    }

    /// What follows from the calls so far.
    pub fn poll_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    // Grants.

    /// A grant is revoked, or (`expired`) has expired. False: `take` finds no such grant, and its revoke is not in
    /// progress, or its owner knows that it is done.
    pub fn handle_revoke(
        &mut self,
        token: GrantToken,
        expired: bool,
        take: impl FnOnce() -> Option<Begun>,
    ) -> bool {
        if let Some(revocation) = self.grants.get(&token) {
            return revocation.end != End::Done || revocation.unclaimed;
        }
        let Some(Begun { grant, workers, asks }) = take() else { return false };
        let end = if asks { End::Asking } else { End::Dropping };
        // A revoke does not wait for workers that do not use the grant.
        let unused = grant.close() && !asks;
        let count = if unused { 0 } else { workers.count_ones() as usize };
        let mut revocation = Revocation {
            grant: grant.clone(),
            end,
            workers: count,
            ops: Vec::new(),
            known: false,
            expired,
            unclaimed: true,
        };
        revocation.go_on(&mut self.actions);
        self.grants.insert(token, revocation);
        self.actions.push(Action::Quiesce { grant, workers, then: Then::Revoke { asks } });
        true
    }

    /// An operation of the owner waits for a revoke; where that is done, `end` ends it, and says whether it had not ended
    /// before.
    pub fn handle_wait(&mut self, token: GrantToken, id: OpId, end: impl FnOnce(OpId) -> bool) {
        match self.grants.get_mut(&token).filter(|revocation| revocation.end != End::Done) {
            Some(revocation) => {
                revocation.unclaimed = false;
                revocation.ops.push(id);
            }
            None => {
                let ended = end(id);
                self.on(token, |revocation, _| revocation.unclaimed &= !ended);
            }
        }
    }

    /// The memory is let go, and the owner notified: what waited for the revoke ends, by `end` as above.
    pub fn handle_released(&mut self, token: GrantToken, mut end: impl FnMut(OpId) -> bool) {
        self.on(token, |revocation, _| {
            revocation.enter(End::Done);
            let ops = std::mem::take(&mut revocation.ops);
            let waited = !ops.is_empty();
            let ended = ops.into_iter().filter(|id| end(*id)).count();
            revocation.unclaimed |= waited && ended == 0;
        });
    }

    /// A worker has dropped a grant, or counted what had arrived.
    pub fn handle_quiesced(&mut self, token: GrantToken) {
        self.on(token, |revocation, actions| {
            revocation.workers = revocation.workers.saturating_sub(1);
            revocation.go_on(actions);
        });
    }

    /// The peer has quiesced.
    pub fn handle_answer(&mut self, token: GrantToken) {
        let workers = self.workers;
        self.on(token, |revocation, actions| {
            if revocation.end == End::Asking {
                revocation.arrived(workers, actions);
            }
        });
    }

    /// The peer does not answer: the keys of the memory are replaced. The answer is that of `handle_rekey`.
    pub fn handle_silence(&mut self, token: GrantToken) -> bool {
        let Some(revocation) = self.grants.get_mut(&token).filter(|revocation| revocation.end == End::Asking)
        else {
            return false;
        };
        revocation.enter(End::Rekeying);
        let (memory, peer) = (revocation.grant.memory, revocation.grant.peer);
        self.handle_rekey(memory, peer, Some(token))
    }

    /// The peer has acknowledged that the grant is revoked.
    pub fn handle_known(&mut self, token: GrantToken) {
        self.on(token, |revocation, _| revocation.known = true);
    }

    /// A peer is gone: nothing more of it can arrive.
    pub fn handle_gone(&mut self, peer: PeerId) {
        let (workers, actions) = (self.workers, &mut self.actions);
        self.grants.retain(|_, revocation| {
            if revocation.grant.peer == peer {
                revocation.known = true;
                if revocation.end == End::Asking {
                    revocation.arrived(workers, actions);
                }
            }
            !revocation.is_over()
        });
    }

    /// Whether the peer may still announce operations under the grant, since it does not know of its revoke.
    pub fn is_unknown_to(&self, peer: PeerId, token: GrantToken) -> bool {
        self.grants.get(&token).is_some_and(|revocation| revocation.grant.peer == peer && !revocation.known)
    }

    /// The memories of which grants of a peer are being revoked.
    pub fn memories_of(&self, peer: PeerId) -> impl Iterator<Item = MemoryId> + '_ {
        let live = move |revocation: &&Revocation| revocation.grant.peer == peer && !revocation.is_revoked();
        self.grants.values().filter(live).map(|revocation| revocation.grant.memory)
    }

    /// How many revokes, and how many memories whose keys are replaced, there are.
    #[cfg(any(test, feature = "sim"))]
    pub fn count(&self) -> (usize, usize) {
        (self.grants.len(), self.keys.len())
    }

    /// The rails are closed: nothing reaches any memory. Returns the memories of unfinished revokes, and those whose
    /// keys were being replaced.
    pub fn close(&mut self) -> (Vec<MemoryId>, Vec<MemoryId>) {
        let unfinished = self.grants.drain().filter(|(_, revocation)| !revocation.is_revoked());
        (unfinished.map(|(_, revocation)| revocation.grant.memory).collect(), self.close_keys())
    }

    fn on(&mut self, token: GrantToken, act: impl FnOnce(&mut Revocation, &mut Vec<Action>)) {
        let Some(revocation) = self.grants.get_mut(&token) else { return };
        act(revocation, &mut self.actions);
        if revocation.is_over() {
            self.grants.remove(&token);
        }
    }
}
