//! Memories whose keys are replaced: in steps, one replacement of a memory after the other.

use super::{Action, End, Revocations};
use crate::ids::{GrantToken, MemoryId, PeerId};
use std::collections::VecDeque;

/// What a replacement waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// For the one before it.
    Queued,
    /// For this many workers to register the memory again.
    Registering(usize),
    /// For the new keys to take the place of the old ones.
    Replacing,
    /// For this many importers, which were sent the new keys, to quiesce.
    Giving(usize),
    /// For this many workers to close the old keys.
    Closing(usize),
}

/// The moves between steps, for the diagram of ARCHITECTURE.
#[cfg(test)]
pub(crate) const MOVES: &[(&str, &str, &str)] = &[
    ("Queued", "Registering", "the replacement before it is done"),
    ("Registering", "Replacing", "all workers have registered the memory again"),
    ("Replacing", "Giving", "the descriptor has the new keys"),
    ("Giving", "Closing", "every importer has quiesced, ended, or had its time"),
];

pub(super) struct Rekeying {
    step: Step,
    /// Peers that do not answer, or have ended; and the grants for which that is waited for.
    silent: Vec<PeerId>,
    grants: Vec<GrantToken>,
    failed: bool,
}

/// The first is in progress.
pub(super) type Rekeyings = VecDeque<Rekeying>;

impl Rekeying {
    fn enter(&mut self, step: Step) {
        #[cfg(test)]
        super::tests::note_step(self.step, step);
        self.step = step;
    }

    /// Counts down; true if that was the last of those that the step waits for.
    fn is_done_by_one(left: &mut usize) -> bool {
        *left = left.saturating_sub(1);
        *left == 0
    }
}

impl Revocations {
    /// Keys are replaced for a peer that does not answer, or has ended, and for a grant of it. True: by a replacement
    /// of its own; false: by one whose new keys nobody has been sent.
    pub fn handle_rekey(&mut self, memory: MemoryId, silent: PeerId, grant: Option<GrantToken>) -> bool {
        let all = self.keys.entry(memory).or_default();
        let joins = |last: &&mut Rekeying| matches!(last.step, Step::Queued | Step::Registering(_));
        if let Some(last) = all.back_mut().filter(joins) {
            last.silent.push(silent);
            last.grants.extend(grant);
            return false;
        }
        let (silent, grants) = (vec![silent], grant.into_iter().collect());
        all.push_back(Rekeying { step: Step::Queued, silent, grants, failed: false });
        if all.len() == 1 {
            self.register(memory);
        }
        true
    }

    fn register(&mut self, memory: MemoryId) {
        let workers = self.workers;
        if let Some(first) = self.first(memory) {
            first.enter(Step::Registering(workers));
            self.actions.push(Action::Register(memory));
        }
    }

    /// A worker has registered the memory again, or could not.
    pub fn handle_registered(&mut self, memory: MemoryId, failed: bool) {
        let Some(first) = self.first(memory) else { return };
        let Step::Registering(left) = &mut first.step else { return };
        let all = Rekeying::is_done_by_one(left);
        first.failed |= failed;
        if all {
            first.enter(Step::Replacing);
            let failed = first.failed;
            self.actions.push(Action::Replace { memory, failed });
        }
    }

    /// The new keys have taken the place of the old ones, which these importers have.
    pub fn handle_replaced(&mut self, memory: MemoryId, importers: Vec<PeerId>) {
        let Some(first) = self.first(memory).filter(|first| first.step == Step::Replacing) else { return };
        first.enter(Step::Giving(importers.len() + 1));
        let waits: Vec<bool> = importers.iter().map(|peer| !first.silent.contains(peer)).collect();
        for (peer, waits) in importers.into_iter().zip(waits) {
            self.actions.push(Action::GiveKeys { memory, peer, waits });
        }
        self.handle_keys_known(memory);
    }

    /// An importer no longer uses the old keys, or is not waited for.
    pub fn handle_keys_known(&mut self, memory: MemoryId) {
        let workers = self.workers;
        let Some(first) = self.first(memory) else { return };
        let Step::Giving(left) = &mut first.step else { return };
        if Rekeying::is_done_by_one(left) {
            first.enter(Step::Closing(workers));
            self.actions.push(Action::CloseKeys(memory));
        }
    }

    /// A worker's rails have closed the old keys.
    pub fn handle_keys_closed(&mut self, memory: MemoryId) {
        let Some(first) = self.first(memory) else { return };
        let Step::Closing(left) = &mut first.step else { return };
        if !Rekeying::is_done_by_one(left) {
            return;
        }
        self.actions.push(Action::Rekeyed(memory));
        let done = self.keys.get_mut(&memory).and_then(VecDeque::pop_front);
        let workers = self.workers;
        for token in done.into_iter().flat_map(|done| done.grants) {
            self.on(token, |revocation, actions| {
                if revocation.end == End::Rekeying {
                    revocation.arrived(workers, actions);
                }
            });
        }
        match self.first(memory) {
            Some(_) => self.register(memory),
            None => _ = self.keys.remove(&memory),
        }
    }

    /// Whether keys are being replaced for a peer.
    pub fn is_rekeying_for(&self, peer: PeerId) -> bool {
        self.keys.values().flatten().any(|rekey| rekey.silent.contains(&peer))
    }

    /// One for each replacement that has not ended.
    pub(super) fn close_keys(&mut self) -> Vec<MemoryId> {
        self.keys.drain().flat_map(|(memory, all)| all.into_iter().map(move |_| memory)).collect()
    }

    fn first(&mut self, memory: MemoryId) -> Option<&mut Rekeying> {
        self.keys.get_mut(&memory)?.front_mut()
    }
}
