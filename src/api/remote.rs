//! Memory of peers.

use super::endpoint::Endpoint;
use super::ids::Peer;
use super::parked::{Parked, Shared};
use crate::memory;
use crate::status::Result;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// Memory of a peer, the remote side of transfers. Dropping it gives it back, once operations and prepared geometry
/// no longer use it.
pub struct RemoteMemory {
    pub(super) shared: Arc<Shared>,
    pub(super) remote: ManuallyDrop<Arc<memory::RemoteMemory>>,
}

impl Drop for RemoteMemory {
    fn drop(&mut self) {
        // SAFETY: only the drop takes it, and nothing uses it afterwards.
        let remote = unsafe { ManuallyDrop::take(&mut self.remote) };
        if self.shared.call(|ep| ep.release(&remote)).is_err() {
            self.shared.park(Parked::Remote(remote));
        }
    }
}

impl fmt::Debug for RemoteMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteMemory").field("peer", &self.peer()).field("len", &self.len()).finish()
    }
}

impl RemoteMemory {
    /// Its owner.
    pub fn peer(&self) -> Peer {
        Peer(self.remote.peer)
    }

    /// Bytes of all ranges.
    #[allow(clippy::len_without_is_empty)] // It is never empty: each range has a byte.
    pub fn len(&self) -> u64 {
        (0..).map_while(|range| self.remote.range_len(range)).fold(0, u64::saturating_add)
    }

    /// Bytes of a range; `None`: there is no such range.
    pub fn range_len(&self, range: usize) -> Option<u64> {
        self.remote.range_len(range as u64)
    }
}

impl Endpoint {
    /// Makes a peer's memory usable as the remote side of transfers. `descriptor`: from its owner's
    /// [`Memory::export`](crate::Memory::export).
    ///
    /// Transfers may be submitted at once: the owner is asked in the background whether the memory still exists, and
    /// they end with [`MemoryGone`](crate::Status::MemoryGone) if it does not.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let (a, b, peer) = (&world.a, &world.b, world.a_to_b);
    /// let memory = b.register(vec![0; 4096])?;
    /// let remote = a.import(peer, &memory.export()?)?;
    /// assert_eq!((remote.peer(), remote.len()), (peer, 4096));
    ///
    /// use libweft::Status;
    /// assert_eq!(a.import(peer, b"not a descriptor").unwrap_err().status, Status::Format);
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Format`](crate::Status::Format), [`PeerGone`](crate::Status::PeerGone) (of another incarnation than the peer,
    /// as after a restart), [`MemoryGone`](crate::Status::MemoryGone).
    pub fn import(&self, peer: Peer, descriptor: &[u8]) -> Result<RemoteMemory> {
        let remote = self.shared().call(|ep| ep.import(peer.id(), descriptor))?;
        Ok(RemoteMemory { shared: self.shared().clone(), remote: ManuallyDrop::new(remote) })
    }
}
