//! What an endpoint holds, for tests that let steps of calls fail (`failing`): as much after a call
//! that failed as before it.

use super::Endpoint;
use crate::peer::Peer;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A name, and how many there are.
pub type Held = (&'static str, u64);

impl Endpoint {
    pub fn held(&self) -> Vec<Held> {
        let core = &self.core;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let memories = core.memories.all();
        let peers = core.peers.all();
        let of_peers = |what: fn(&Peer) -> &AtomicU64| peers.iter().map(|peer| count(what(peer))).sum();
        let queues: Vec<_> = self.queues.lock().iter().filter_map(Weak::upgrade).collect();
        let places = |queue: &Arc<_>| crate::transfer::queue::Queue::reserved(queue);
        let (revokes, rekeyed) = core.revocations.lock().count();
        vec![
            ("operations", core.table.active()),
            ("queues", queues.len() as u64),
            ("places in queues", places(&core.queue) + queues.iter().map(places).sum::<u64>()),
            ("places of grants", core.grants.places()),
            ("memories", memories.len() as u64),
            ("users of memories", memories.iter().map(|memory| memory.users()).sum()),
            ("grants of memories", memories.iter().map(|memory| count(&memory.grants)).sum()),
            ("prepared of memories", memories.iter().map(|memory| count(&memory.prepared)).sum()),
            ("registrations of memories", memories.iter().map(|memory| memory.open()).sum()),
            ("revokes", revokes as u64),
            ("replacements of keys", rekeyed as u64),
            ("counters", core.counters.count()),
            ("peers", peers.len() as u64),
            ("bytes of messages to peers", of_peers(|peer| &peer.outgoing)),
            ("bytes of messages of peers", of_peers(|peer| &peer.held)),
        ]
    }
}
