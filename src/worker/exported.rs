//! The memories of this endpoint, by id, and waiting for peers to release them.

use crate::fabric::grants::Grant;
use crate::ids::{MemoryId, PeerId};
use crate::memory::Memory;
use crate::status::Status;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

#[derive(Default)]
pub struct Exported {
    all: Mutex<HashMap<MemoryId, Arc<Memory>>>,
    importers: Mutex<()>,
    /// Signalled when importers have released memory.
    released: Condvar,
}

impl Exported {
    pub fn insert(&self, id: MemoryId, memory: Arc<Memory>) {
        self.all.lock().insert(id, memory);
    }

    pub fn remove(&self, id: MemoryId) {
        self.all.lock().remove(&id);
    }

    pub fn get(&self, id: MemoryId) -> Option<Arc<Memory>> {
        self.all.lock().get(&id).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Memory>> {
        self.all.lock().values().cloned().collect()
    }

    /// A peer requests the use of our memory: whether that is allowed.
    pub fn offer(&self, memory: MemoryId, secret: u64, peer: PeerId) -> Option<Arc<Memory>> {
        let all = self.all.lock();
        all.get(&memory).filter(|memory| memory.secret == secret && memory.import(peer)).cloned()
    }

    /// Our memory that a peer may use without a grant.
    pub fn offered(&self, memory: MemoryId, peer: PeerId) -> Option<Arc<Memory>> {
        let open = |memory: &&Arc<Memory>| memory.is_imported(peer) && !memory.access().granted_only;
        self.all.lock().get(&memory).filter(open).cloned()
    }

    /// Our memory under a grant, if the grant names this peer.
    pub fn granted(&self, grant: &Grant, memory: MemoryId) -> std::result::Result<Arc<Memory>, Status> {
        let named = self.all.lock().get(&memory).filter(|_| memory == grant.memory).cloned();
        named.ok_or(Status::Revoked)
    }

    /// A peer has released our memory.
    pub fn released(&self, memory: MemoryId, peer: PeerId) {
        if let Some(memory) = self.all.lock().get(&memory) {
            memory.forget(peer);
        }
        self.notify();
    }

    /// The peer has ended, and no longer uses these memories.
    pub fn forget_importer(&self, peer: PeerId, imports: &HashSet<MemoryId>) {
        for memory in imports {
            if let Some(memory) = self.all.lock().get(memory) {
                memory.forget(peer);
            }
        }
        self.notify();
    }

    fn notify(&self) {
        let _held = self.importers.lock();
        self.released.notify_all();
    }

    /// Waits for a moment in which importers may release the memory.
    pub fn wait_importers(&self, memory: &Memory, at_most: std::time::Duration) {
        let mut held = self.importers.lock();
        if !memory.importers().is_empty() {
            self.released.wait_for(&mut held, at_most);
        }
    }
}
