//! Grants that are being taken back, and memories whose keys are replaced for that.

use crate::fabric::grants::Grant;
use crate::ids::{OpId, PeerId};
use crate::memory::Memory;
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

/// A grant of ours that is being taken back.
pub struct Revoking {
    pub grant: Arc<Grant>,
    memory: Arc<Memory>,
    let_go: AtomicBool,
    /// Operations that wait for it; `None` once it is done.
    ops: Mutex<Option<Vec<OpId>>>,
    /// Whether the peer is to come to rest: once that has begun.
    begun: OnceCell<bool>,
    /// Workers, and the peer, that are not done with it.
    left: AtomicUsize,
    /// The peer knows, or is not there to.
    known: AtomicBool,
    /// The grant ended by itself, and its owner has not revoked it yet.
    expired: AtomicBool,
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
            expired: AtomicBool::new(expired),
        }
    }

    /// False: it is done already.
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

    /// Adds to those for whom it waits.
    pub fn awaits(&self, more: usize) {
        self.left.fetch_add(more, Ordering::AcqRel);
    }

    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Nothing reaches the memory under it.
    pub fn let_memory_go(&self) {
        if !self.let_go.swap(true, Ordering::AcqRel) {
            self.memory.ungrant();
        }
    }

    pub fn take_ops(&self) -> Vec<OpId> {
        self.ops.lock().take().unwrap_or_default()
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

    pub fn is_expired(&self) -> bool {
        self.expired.load(Ordering::Acquire)
    }

    /// The owner asks for the end of what ended by itself. False: it has before, or it did not.
    pub fn ask(&self) -> bool {
        self.expired.swap(false, Ordering::AcqRel)
    }

    pub fn is_over(&self) -> bool {
        self.is_known() && self.is_done() && !self.is_expired()
    }
}

/// Keys of a memory that are being replaced (`endpoint::keys`).
pub struct Replacing {
    pub memory: Arc<Memory>,
    waits: Mutex<Waits>,
    /// Workers, or importers, that are not done with the present step.
    left: AtomicUsize,
    failed: AtomicBool,
    done: AtomicBool,
}

/// For whom keys are replaced.
#[derive(Default)]
struct Waits {
    /// The new keys may be on their way: it is too late for others.
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

    /// Replaces them for a peer that does not answer, or has ended, and for a grant of it. False:
    /// the peer may know the new keys already.
    pub fn join(&self, silent: PeerId, of: Option<&Arc<Revoking>>) -> bool {
        let mut waits = self.waits.lock();
        if !waits.announced {
            waits.silent.push(silent);
            waits.revoking.extend(of.cloned());
        }
        !waits.announced
    }

    /// Peers are given the new keys: those that do not answer.
    pub fn announce(&self) -> Vec<PeerId> {
        let mut waits = self.waits.lock();
        waits.announced = true;
        std::mem::take(&mut waits.silent)
    }

    /// Begins a step that waits for this many.
    pub fn begin(&self, count: usize) {
        self.left.store(count, Ordering::SeqCst);
    }

    /// True: it was the last.
    pub fn is_done_by_one(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// The old keys are closed: the grants that waited for that.
    pub fn end(&self) -> Vec<Arc<Revoking>> {
        self.done.store(true, Ordering::Release);
        std::mem::take(&mut self.waits.lock().revoking)
    }

    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}

/// What waits for a peer to come to rest.
pub enum Rests {
    Revoke(Arc<Revoking>),
    /// New keys, which it was given: for how long they were waited for.
    Keys(Arc<Replacing>, u64),
}
