//! Callers' memory: allocating, registering and deregistering it, and importing that of peers.

use super::{Endpoint, UNRESPONSIVE};
use crate::device::{self, Claim, Place};
use crate::fabric::Registration;
use crate::ids::MemoryId;
use crate::memory::{self, Access, Memory, Range, RemoteMemory};
use crate::range::Checked;
use crate::revocation::{Scope, Then};
use crate::room;
use crate::status::{Error, Result, Status};
use crate::transfer::Outcome;
use crate::wire::descriptor::Descriptor;
use crate::worker::chores::{Chore, Closable, Reply, Wanted};
use crate::worker::inbox::{Command, Inbox};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// Importers that do not answer a revocation within this time are disconnected.
const REVOKE: Duration = Duration::from_secs(2);
/// Operations that ended early keep their memories until their workers have put them away. A caller that has polled their
/// completions waits for that by some looks, with a pause after each.
const LOOKS: usize = 50;
const PAUSE: Duration = Duration::from_micros(200);

impl Endpoint {
    /// Allocates memory that is ready for transfers, near the rails by default.
    pub fn allocate(&self, len: u64, node: Option<i64>) -> Result<u64> {
        let node = match node {
            None => self.node_of_most_rails(),
            Some(node @ 0..=63) => Some(node as u32),
            Some(other) => {
                return Err(Error::invalid(format!(
                    "numa_node is {other}: it must be a NUMA node, 0 to 63, or WEFT_NUMA_ANY"
                )))
            }
        };
        self.core.phase.check_open()?;
        crate::memory::alloc::allocate(len, node)
    }

    /// The NUMA node of more than half of the rails whose node is known.
    fn node_of_most_rails(&self) -> Option<u32> {
        let nodes: Vec<u32> = self.rails().iter().filter_map(|rail| rail.node).collect();
        let on = |node: u32| nodes.iter().filter(|other| **other == node).count();
        nodes.iter().copied().find(|node| on(*node) * 2 > nodes.len())
    }

    /// `rails`: the rails that register it, one bit each; 0: all, or for device memory those near
    /// it. `claim`: the kind of memory that the caller names. Whether the process may write to it
    /// is detected.
    pub fn register(
        &self,
        ranges: Vec<Range>,
        mut access: Access,
        rails: u64,
        claim: Claim,
    ) -> Result<Arc<Memory>> {
        let core = &self.core;
        core.phase.check_open()?;
        if (rails as u128) >> core.rails.len() != 0 {
            return Err(Error::invalid(format!(
                "rails is {rails:#x}, but this endpoint has {}: bit i stands for rail i",
                core.rails.len()
            )));
        }
        // The memory that workers and the descriptor will need, piece by piece.
        let each =
            3 * size_of::<Range>() + core.rails.len() * (size_of::<Registration>() + 2 * size_of::<u64>());
        room::probe::<u8>(ranges.len() * each, "the registrations of the ranges")?;
        let (place, ranges) = match claim {
            Claim::File(fd) => {
                let (place, places) = self.place_file(fd, &ranges, &access)?;
                (Some(place), places)
            }
            _ => (device::locate(&ranges, claim)?, ranges),
        };
        let rails = match &place {
            Some(place) if rails == 0 => self.rails_near(place.device),
            _ => rails,
        };
        let unknown = ranges.iter().enumerate().filter(|(_, range)| !memory::alloc::has(range));
        let found = if place.is_some() { Checked::default() } else { crate::range::check(unknown)? };
        access.local_write = found.fixed.is_none() && place.as_ref().is_none_or(Place::is_writable);
        access.may_fault = found.may_fault;
        if let Some(index) = found.fixed.filter(|_| access.remote_write) {
            let Range { base, len } = ranges[index];
            return Err(Error::invalid(format!(
                "range {index} ({len} bytes at {base:#x}) has pages that this process may not write to, so peers may \
                 not either: register it with WEFT_ACCESS_REMOTE_READ or WEFT_ACCESS_LOCAL"
            )));
        }
        let device = place.as_ref().map(|place| (place.device, place.shareable));
        let wanted = Wanted { ranges: ranges.into(), access, rails, device };
        let id = MemoryId::new(core.random.u64()?);
        let returns = core.returns.load(Ordering::SeqCst);
        let memory = Arc::new(self.make_memory(id, core.random.u64()?, wanted, place)?);
        core.describe(&memory);
        core.memories.insert(id, memory.clone());
        if core.returns.load(Ordering::SeqCst) != returns {
            // A device came back between its registering and this.
            let set = core.returned.load(Ordering::SeqCst);
            let again = |inbox: &Inbox| inbox.command(Command::Chore(Chore::Refresh(memory.clone(), set)));
            core.inboxes.iter().for_each(again);
        }
        log::trace!("memory {id:#x} is registered: {} ranges", memory.ranges().len());
        Ok(memory)
    }

    pub fn deregister(&self, memory: &Arc<Memory>) -> Result<()> {
        let core = &self.core;
        if self.down.load(Ordering::Acquire) {
            core.forget_grants();
        }
        self.await_put_away(|| memory.users() == 0 || memory.is_kept());
        if !memory.leave() {
            return Err(memory.in_use());
        }
        log::trace!("memory {:#x} is deregistered: {} importers", memory.id, memory.importers().len());
        for peer in memory.importers() {
            match core.peers.get(peer) {
                Ok(peer) => core.quiesce(peer.owner, Scope::Peer(peer.id), Then::Deregister(memory.id)),
                Err(_) => memory.forget(peer),
            }
        }
        self.await_importers(memory);
        memory.close();
        memory.exports.lock().lose();
        if !self.down.load(Ordering::Acquire) {
            // The rest can be tried again. Once the rails are closed, so are the registrations.
            let ended = self.deregister_from_rails(memory).and_then(|()| self.settle_file(memory));
            ended.inspect_err(|_| memory.stay_stuck())?;
        }
        core.memories.remove(memory.id);
        memory.let_go();
        Ok(())
    }

    /// Waits some 10 ms for what is put away without a caller's help. (Virtual time need not go on meanwhile.)
    fn await_put_away(&self, is_over: impl Fn() -> bool) {
        for _ in 0..LOOKS {
            if is_over() {
                return;
            }
            self.progress();
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until no peer uses a memory, and disconnects those that do not answer.
    fn await_importers(&self, memory: &Arc<Memory>) {
        let core = &self.core;
        let mut until = core.clock.now() + REVOKE.as_nanos() as u64;
        let mut cut = false;
        while !memory.importers().is_empty() && !self.down.load(Ordering::Acquire) {
            if self.core.config.manual {
                self.progress();
            } else {
                core.memories.wait_importers(memory, Duration::from_millis(5));
            }
            if core.clock.now() < until {
                continue;
            }
            if cut {
                break; // Their lanes are gone: none will answer any longer.
            }
            for peer in memory.importers() {
                if let Ok(peer) = core.peers.get(peer) {
                    let outcome = Outcome::new(Status::PeerLost);
                    core.inboxes[peer.owner].command(Command::EndPeer { peer: peer.id, outcome });
                }
            }
            cut = true;
            until = core.clock.now() + REVOKE.as_nanos() as u64;
        }
    }

    fn deregister_from_rails(&self, memory: &Arc<Memory>) -> Result<()> {
        let ask = |inbox: &Inbox| {
            let reply = Reply::new();
            inbox.command(Command::Chore(Chore::close(Closable::Memory(memory.clone()), &reply)));
            reply
        };
        let replies: Vec<Reply<Result<()>>> = self.core.inboxes.iter().map(ask).collect();
        // Waits for all of them, so that a retry finds no worker still busy with the memory.
        let answers: Vec<Result<()>> =
            replies.iter().map(|reply| self.answer(reply, UNRESPONSIVE, || memory.open())?).collect();
        answers.into_iter().collect::<Result<()>>()?;
        self.core.phase.check_closed()
    }

    pub fn import(&self, peer: u64, blob: &[u8]) -> Result<Arc<RemoteMemory>> {
        self.core.phase.check_open()?;
        let peer = self.core.named_peer(peer)?;
        room::probe::<u8>(blob.len().saturating_mul(4), "what the descriptor says")?;
        let descriptor = Descriptor::decode(blob)?;
        if descriptor.incarnation != peer.address.incarnation {
            return Err(Error::new(
                Status::PeerGone,
                format!(
                    "the descriptor is of endpoint {:#x}, but the peer is endpoint {:#x}: it was restarted, or the descriptor is another's",
                    descriptor.incarnation, peer.address.incarnation
                ),
            ));
        }
        let remote = Arc::new(RemoteMemory::new(peer.id, peer.revoked.clone(), descriptor));
        if peer.gone.lock().contains(remote.id) {
            return Err(Error::new(
                Status::MemoryGone,
                "the descriptor is of a memory that its owner has deregistered: get its new descriptor",
            ));
        }
        if remote.rail_count() < peer.address.rails.len() {
            return Err(Error::new(
                Status::Format,
                "the descriptor has fewer rails than its owner's address",
            ));
        }
        log::trace!("memory {:#x} of {peer} is imported", remote.id);
        let all = remote.device.is_some();
        for (worker, inbox) in self.core.inboxes.iter().enumerate() {
            if all || worker == peer.owner {
                inbox.command(Command::Remote { remote: remote.clone() });
            }
        }
        Ok(remote)
    }

    pub fn release(&self, remote: &Arc<RemoteMemory>) -> Result<()> {
        self.await_put_away(|| remote.keepers() == 0 || remote.prepared.load(Ordering::Relaxed) > 0);
        remote.release().map_err(|keepers| match keepers {
            0 => Error::handle("the remote memory was released before"),
            _ => memory::in_use("remote memory", &remote.prepared, keepers),
        })?;
        if let Ok(peer) = self.core.peers.get(remote.peer) {
            self.core.inboxes[peer.owner].command(Command::Remote { remote: remote.clone() });
        }
        Ok(())
    }
}
