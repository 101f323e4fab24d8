//! Messages and notification data that the caller holds until it releases them.

use crate::peer::Peer;
use crate::status::{Error, Result};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Distinguishes messages from transfers: no transfer's id has this bit.
const MESSAGE: u64 = 1 << 63;

/// The bytes, their peer, and how many of them count towards the limit of that peer's waiting
/// messages: those of a message, but not the data of a notification.
type Held = (Box<[u8]>, Arc<Peer>, u64);

#[derive(Default)]
pub struct Messages {
    next: AtomicU64,
    /// Keyed by our own ids, so a peer cannot choose their hashes.
    held: Mutex<FxHashMap<u64, Held>>,
}

impl Messages {
    /// Stores bytes until they are released; returns their id and address.
    pub fn keep(&self, bytes: Vec<u8>, peer: &Arc<Peer>, counts: bool) -> (u64, *const u8) {
        let counted = if counts { bytes.len() as u64 } else { 0 };
        let id = MESSAGE | self.next.fetch_add(1, Ordering::Relaxed);
        let bytes = bytes.into_boxed_slice();
        let data = bytes.as_ptr();
        peer.held.fetch_add(counted, Ordering::Relaxed);
        self.held.lock().insert(id, (bytes, peer.clone(), counted));
        (id, data)
    }

    /// Releases bytes; returns their peer.
    pub fn release(&self, id: u64) -> Result<Arc<Peer>> {
        let removed = self.held.lock().remove(&id);
        let (_, peer, counted) = removed
            .ok_or_else(|| Error::handle(format!("{id:#x} is not a message that waits to be released")))?;
        peer.held.fetch_sub(counted, Ordering::Relaxed);
        Ok(peer)
    }
}
