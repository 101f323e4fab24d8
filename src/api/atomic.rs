//! Atomics: single words of peers' memory, changed by many at once.

use super::endpoint::Endpoint;
use super::ids::Op;
use super::options::OpOptions;
use super::remote::RemoteMemory;
use crate::status::Result;
use crate::transfer::atomic::{AtomicSpec, Operation};
use crate::transfer::options::Takes;

impl Endpoint {
    /// Adds `operand` to a word of remote memory (modulo 2^64), for coordination: it costs a message there and one
    /// back.
    ///
    /// The word is 8 bytes in the owner's byte order, aligned there, in memory that peers may write to and read from. The
    /// owner's CPU does it, sequentially consistent: atomic with what all peers ask for and with the owner's atomic
    /// instructions, but not with writes of peers to the same bytes. With manual progress it is done while the owner
    /// polls. It has no order with other operations. Ends in one
    /// [`Completion::Atomic`](crate::Completion::Atomic). Success: done, once. After
    /// [`TimedOut`](crate::Status::TimedOut), [`Canceled`](crate::Status::Canceled),
    /// [`PeerLost`](crate::Status::PeerLost) or [`PeerClosed`](crate::Status::PeerClosed) it may have been done (once)
    /// or may still be, until the owner has deregistered the memory or polled PEER_DOWN; after
    /// [`MemoryGone`](crate::Status::MemoryGone) it may have been; else not.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let (a, remote, theirs) = (&world.a, &world.remote, &world.theirs);
    /// use libweft::{Completion, OpOptions};
    ///
    /// theirs.write_at(0, &41u64.to_ne_bytes())?; // At the peer.
    /// let op = a.fetch_add(remote, 0, 1, &OpOptions::new())?;
    /// let Completion::Atomic(atomic) = world.wait_a(op)? else { panic!() };
    /// assert_eq!(atomic.previous, 41);
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`write`](Endpoint::write); [`Unsupported`](crate::Status::Unsupported) (the peer does no atomics),
    /// [`Invalid`](crate::Status::Invalid) (not aligned).
    pub fn fetch_add(
        &self,
        remote: &RemoteMemory,
        offset: u64,
        operand: u64,
        options: &OpOptions,
    ) -> Result<Op> {
        self.atomic(Operation::FetchAdd, operand, 0, remote, offset, options)
    }

    /// Replaces a word of remote memory by `desired` if it is `expected`, which it was if the completion's `previous`
    /// is `expected`; otherwise as [`fetch_add`](Endpoint::fetch_add).
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let (a, remote) = (&world.a, &world.remote);
    /// use libweft::{Completion, OpOptions};
    ///
    /// let op = a.compare_swap(remote, 8, 0, 7, &OpOptions::new().latency())?; // A lock, say.
    /// let Completion::Atomic(atomic) = world.wait_a(op)? else { panic!() };
    /// atomic.done.result()?;
    /// assert_eq!(atomic.previous, 0); // We have it.
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as `fetch_add`.
    pub fn compare_swap(
        &self,
        remote: &RemoteMemory,
        offset: u64,
        expected: u64,
        desired: u64,
        options: &OpOptions,
    ) -> Result<Op> {
        self.atomic(Operation::CompareSwap, desired, expected, remote, offset, options)
    }

    fn atomic(
        &self,
        operation: Operation,
        operand: u64,
        compare: u64,
        remote: &RemoteMemory,
        offset: u64,
        options: &OpOptions,
    ) -> Result<Op> {
        let remote = self.own_remote(remote)?;
        options.submit(self.shared(), Takes::ATOMIC, |ep, common| {
            ep.atomic(AtomicSpec { operation, remote, offset, operand, compare, common })
        })
    }
}
