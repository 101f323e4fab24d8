//! Grants that are being revoked, and memories whose keys are replaced to revoke them.

use crate::fabric::grants::Grant;
use crate::ids::{OpId, PeerId};
use crate::memory::Memory;
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

/// A grant of ours that is being revoked.
pub struct Revoking {
    pub grant: Arc<Grant>,
    memory: Arc<Memory>,
    let_go: AtomicBool,
    /// Operations that wait for the revoke; `None` once it is done.
    ops: Mutex<Option<Vec<OpId>>>,
    /// Whether the peer has to quiesce; set when the revoke begins.
    begun: OnceCell<bool>,
    /// Workers, and the peer, that the revoke still waits for.
    left: AtomicUsize,
    /// The peer has acknowledged the revoke, or is gone.
    known: AtomicBool,
    /// The grant has expired, or its revoke took longer than the operations that waited for it, and
    /// its owner has not revoked it since.
    unclaimed: AtomicBool,
}

impl Revoking {
    pub fn new(grant: Arc<Grant>, memory: Arc<Memory>, expired: bool) -> Revoking {
        Revoking {
            grant,
            memory,
            let_go: AtomicBool::new(false),
            ops: Mutex::new(Some(Vec::new())),
            begun: OnceCell::new(),
            left: AtomicUsize::new(0),
            known: AtomicBool::new(false),
            unclaimed: AtomicBool::new(expired),
        }
    }

    /// Adds an operation to wait for it; false if it is already done.
    pub fn await_by(&self, id: OpId) -> bool {
        self.ops.lock().as_mut().map(|ops| ops.push(id)).is_some()
    }

    /// Starts the wait for `workers` workers and (`rests`) for the peer. False if it was started
    /// before.
    pub fn begin(&self, workers: usize, rests: bool) -> bool {
        let mut first = false;
        self.begun.get_or_init(|| {
            first = true;
            self.left.store(workers + rests as usize, Ordering::SeqCst);
            rests
        });
        first
    }

    pub fn rests(&self) -> bool {
        self.begun.get().copied().unwrap_or(false)
    }

    pub fn is_done_by_one(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Adds to the number that the revoke waits for.
    pub fn awaits(&self, more: usize) {
        self.left.fetch_add(more, Ordering::AcqRel);
    }

    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Nothing reaches the memory under the grant any longer.
    pub fn let_memory_go(&self) {
        if !self.let_go.swap(true, Ordering::AcqRel) {
            self.memory.ungrant();
        }
    }

    /// The revoke is done. `end` ends an operation that waits for it; false if that has ended before.
    pub fn finish(&self, mut end: impl FnMut(OpId) -> bool) {
        let mut ops = self.ops.lock();
        let Some(waiting) = ops.take() else { return };
        let ended = waiting.into_iter().filter(|id| end(*id)).count();
        if ended == 0 {
            self.unclaim();
        }
    }

    pub fn peer_knows(&self) {
        self.known.store(true, Ordering::Release);
    }

    pub fn is_known(&self) -> bool {
        self.known.load(Ordering::Acquire)
    }

    pub fn is_done(&self) -> bool {
        self.ops.lock().is_none()
    }

    pub fn is_unclaimed(&self) -> bool {
        self.unclaimed.load(Ordering::Acquire)
    }

    /// The operation that claimed it has ended otherwise.
    pub fn unclaim(&self) {
        self.unclaimed.store(true, Ordering::Release);
    }

    /// The owner revokes the grant.
    pub fn claim(&self) {
        self.unclaimed.store(false, Ordering::Release);
    }

    pub fn is_over(&self) -> bool {
        self.is_known() && self.is_done() && !self.is_unclaimed()
    }
}

/// Keys of a memory that are being replaced (`endpoint::keys`).
pub struct Replacing {
    pub memory: Arc<Memory>,
    waits: Mutex<Waits>,
    /// Workers, or importers, that the current step still waits for.
    left: AtomicUsize,
    failed: AtomicBool,
    done: AtomicBool,
}

/// The peers and grants for which keys are replaced.
#[derive(Default)]
struct Waits {
    /// The new keys may have been sent: further peers cannot join.
    announced: bool,
    revoking: Vec<Arc<Revoking>>,
    silent: Vec<PeerId>,
}

impl Replacing {
    pub fn new(memory: Arc<Memory>) -> Replacing {
        Replacing {
            memory,
            waits: Mutex::default(),
            left: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            done: AtomicBool::new(false),
        }
    }

    /// Adds a peer that does not answer, or has ended, and a grant of it. False: the peer may
    /// already have the new keys.
    pub fn join(&self, silent: PeerId, of: Option<&Arc<Revoking>>) -> bool {
        let mut waits = self.waits.lock();
        if !waits.announced {
            waits.silent.push(silent);
            waits.revoking.extend(of.cloned());
        }
        !waits.announced
    }

    /// Begins to send the new keys to peers; returns the peers that do not answer.
    pub fn announce(&self) -> Vec<PeerId> {
        let mut waits = self.waits.lock();
        waits.announced = true;
        std::mem::take(&mut waits.silent)
    }

    /// Begins a step that waits for this many workers or importers.
    pub fn begin(&self, count: usize) {
        self.left.store(count, Ordering::SeqCst);
    }

    /// One is finished; true if it was the last.
    pub fn is_done_by_one(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// The old keys are closed: returns the grants that waited for that.
    pub fn end(&self) -> Vec<Arc<Revoking>> {
        self.done.store(true, Ordering::Release);
        std::mem::take(&mut self.waits.lock().revoking)
    }

    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}

/// What waits for a peer to quiesce.
pub enum Rests {
    Revoke(Arc<Revoking>),
    /// The new keys that the peer was sent, and how long they were waited for.
    Keys(Arc<Replacing>, u64),
}
