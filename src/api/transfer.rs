//! Transfers of ranges, pages, lists, and of what was prepared.

use super::endpoint::Endpoint;
use super::ids::Op;
use super::memory::Memory;
use super::options::OpOptions;
use super::pages::{ListEntry, Pages, Prepared};
use super::remote::RemoteMemory;
use crate::status::Result;
use crate::transfer::geometry;
use crate::transfer::options::Takes;
use crate::transfer::Direction;
use std::sync::Arc;

impl Endpoint {
    /// Writes one range of local memory into remote memory. Offsets count from the memory's start, all ranges counted
    /// through; the bytes must be in one range on each side.
    ///
    /// Ends in one [`Completion::Write`](crate::Completion::Write). Success: every byte is visible at the target, and
    /// none arrives later. The local bytes must not change before. Operations have no order among each other. With a
    /// `len` of 0 nothing moves, and it completes and notifies all the same.
    ///
    /// After any other status, bytes (any of them: a page may be cut at any byte), notification and counter may have
    /// arrived, each once, or may still arrive until the target has a [`fence`](Endpoint::fence) or
    /// [`revoke`](Endpoint::revoke), has polled this peer's PEER_DOWN or has deregistered the memory. Local memory is
    /// left alone after the completion, with one exception: a NIC that does not return it within 160 ms.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let (a, local, remote, theirs) = (&world.a, &world.local, &world.remote, &world.theirs);
    /// use libweft::OpOptions;
    ///
    /// local.write_at(0, b"moved")?;
    /// let op = a.write(local, 0, remote, 100, 5, &OpOptions::new())?;
    /// world.wait_a(op)?.done().unwrap().result()?;
    ///
    /// let mut bytes = [0; 5];
    /// theirs.read_at(100, &mut bytes)?; // At the peer.
    /// assert_eq!(&bytes, b"moved");
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Again`](crate::Status::Again) (`max_transfers` or `queue_depth` are in use: poll, try again),
    /// [`Range`](crate::Status::Range), [`RemoteAccess`](crate::Status::RemoteAccess) (registered without this
    /// direction), [`Invalid`](crate::Status::Invalid) (also: the memory needs a grant),
    /// [`Revoked`](crate::Status::Revoked), [`MemoryGone`](crate::Status::MemoryGone),
    /// [`PeerLost`](crate::Status::PeerLost), [`PeerClosed`](crate::Status::PeerClosed).
    pub fn write(
        &self,
        local: &Memory,
        local_offset: u64,
        remote: &RemoteMemory,
        remote_offset: u64,
        len: u64,
        options: &OpOptions,
    ) -> Result<Op> {
        self.move_pages(Direction::Write, local, remote, options, |ours, theirs| {
            Ok(geometry::Pages::one((ours, local_offset), (theirs, remote_offset), len))
        })
    }

    /// Reads one range of remote memory into local memory: as [`write`](Endpoint::write), in the other direction.
    /// Ends in one [`Completion::Read`](crate::Completion::Read); success: every byte is in local memory. A
    /// notification goes to the peer after the last byte was read.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let (a, local, remote, theirs) = (&world.a, &world.local, &world.remote, &world.theirs);
    /// use libweft::OpOptions;
    ///
    /// theirs.write_at(0, b"fetched")?; // At the peer.
    /// let op = a.read(local, 0, remote, 0, 7, &OpOptions::new())?;
    /// world.wait_a(op)?.done().unwrap().result()?;
    ///
    /// let mut bytes = [0; 7];
    /// local.read_at(0, &mut bytes)?;
    /// assert_eq!(&bytes, b"fetched");
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as `write`.
    pub fn read(
        &self,
        local: &Memory,
        local_offset: u64,
        remote: &RemoteMemory,
        remote_offset: u64,
        len: u64,
        options: &OpOptions,
    ) -> Result<Op> {
        self.move_pages(Direction::Read, local, remote, options, |ours, theirs| {
            Ok(geometry::Pages::one((ours, local_offset), (theirs, remote_offset), len))
        })
    }

    /// Writes pages x layers; otherwise as [`write`](Endpoint::write). The cost of the call grows with `page_count`,
    /// not with layers or bytes.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let (a, local, remote) = (&world.a, &world.local, &world.remote);
    /// use libweft::{OpOptions, PageSide, Pages};
    ///
    /// // Our pages 0 and 1 become their pages 5 and 3.
    /// let pages = Pages {
    ///     page_len: 4096,
    ///     page_count: 2,
    ///     remote: PageSide { pages: Some(&[5, 3]), ..PageSide::default() },
    ///     ..Pages::default()
    /// };
    /// let op = a.write_pages(local, remote, &pages, &OpOptions::new().notify(1))?;
    /// assert_eq!(world.wait_a(op)?.done().unwrap().bytes, 8192);
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as `write`.
    pub fn write_pages(
        &self,
        local: &Memory,
        remote: &RemoteMemory,
        pages: &Pages,
        options: &OpOptions,
    ) -> Result<Op> {
        self.move_pages(Direction::Write, local, remote, options, |_, _| pages.check())
    }

    /// Reads pages x layers; otherwise as [`read`](Endpoint::read) and [`write_pages`](Endpoint::write_pages). Many
    /// small pages are faster written by the peer.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let (a, local, remote) = (&world.a, &world.local, &world.remote);
    /// use libweft::{OpOptions, Pages};
    /// let pages = Pages { page_len: 4096, page_count: 4, ..Pages::default() };
    /// let op = a.read_pages(local, remote, &pages, &OpOptions::new())?;
    /// assert_eq!(world.wait_a(op)?.done().unwrap().bytes, 16384);
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as `write`.
    pub fn read_pages(
        &self,
        local: &Memory,
        remote: &RemoteMemory,
        pages: &Pages,
        options: &OpOptions,
    ) -> Result<Op> {
        self.move_pages(Direction::Read, local, remote, options, |_, _| pages.check())
    }

    fn move_pages<'a>(
        &self,
        direction: Direction,
        local: &Memory,
        remote: &RemoteMemory,
        options: &OpOptions,
        pages: impl FnOnce(&crate::memory::Memory, &crate::memory::RemoteMemory) -> Result<geometry::Pages<'a>>,
    ) -> Result<Op> {
        let (ours, theirs) = (self.own(local)?, self.own_remote(remote)?);
        let pages = pages(ours, theirs)?;
        options.transfer(self.shared(), Takes::TRANSFER, direction, |ep, terms| {
            ep.submit(ours, theirs, &pages, terms)
        })
    }

    /// Writes the entries of a list, between any memories of this endpoint and its peers; otherwise as
    /// [`write`](Endpoint::write).
    ///
    /// Every entry is checked before any starts; an error names the entry, from 0. Entries have no order; where
    /// destinations overlap, it is not defined which bytes win. Ends in one
    /// [`Completion::Write`](crate::Completion::Write), when all peers have everything or have failed, with the status of
    /// the peer that failed first; with [`complete_each_peer`](OpOptions::complete_each_peer) each peer has a completion,
    /// with the same operation and user data. A peer that fails does not stop the others; a cancel is for all. With
    /// [`notify`](OpOptions::notify) every peer gets one notification, after its own last byte. N peers take N + 1 of
    /// `max_transfers` (one: 1), and a place in the queue for each completion.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let (a, local, remote) = (&world.a, &world.local, &world.remote);
    /// use libweft::{ListEntry, OpOptions};
    ///
    /// let entry = |local_offset, remote_offset| ListEntry {
    ///     local: Some(local),
    ///     remote: Some(remote),
    ///     local_offset,
    ///     remote_offset,
    ///     len: 512,
    ///     ..ListEntry::default()
    /// };
    /// let op = a.write_list(&[entry(0, 4096), entry(512, 0)], &OpOptions::new())?;
    /// assert_eq!(world.wait_a(op)?.done().unwrap().bytes, 1024);
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as `write`; [`Limit`](crate::Status::Limit) also beyond `max_transfers` or the queue.
    pub fn write_list(&self, entries: &[ListEntry], options: &OpOptions) -> Result<Op> {
        self.move_list(Direction::Write, entries, options)
    }

    /// Reads the entries of a list; otherwise as [`read`](Endpoint::read) and [`write_list`](Endpoint::write_list).
    ///
    /// # Errors
    /// The same as `write_list`.
    pub fn read_list(&self, entries: &[ListEntry], options: &OpOptions) -> Result<Op> {
        self.move_list(Direction::Read, entries, options)
    }

    fn move_list(&self, direction: Direction, entries: &[ListEntry], options: &OpOptions) -> Result<Op> {
        options.transfer(self.shared(), Takes::LIST, direction, |ep, terms| {
            let list = Arc::new(self.list(ep, entries, options.is_latency())?);
            ep.submit_list(&list, terms)
        })
    }

    /// Writes what was [prepared](Endpoint::prepare_pages). Several transfers may use it at once. The cost does not
    /// grow with pages, layers or entries.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let (a, local, remote) = (&world.a, &world.local, &world.remote);
    /// use libweft::{OpOptions, Pages};
    ///
    /// let pages = Pages { page_len: 4096, page_count: 8, ..Pages::default() };
    /// let prepared = a.prepare_pages(local, remote, &pages, &OpOptions::new())?;
    /// for round in 0..3 {
    ///     let op = a.write_prepared(&prepared, &OpOptions::new().notify(round))?;
    ///     world.wait_a(op)?.done().unwrap().result()?;
    /// }
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`write`](Endpoint::write); after [`MemoryGone`](crate::Status::MemoryGone),
    /// [`PeerLost`](crate::Status::PeerLost) and [`PeerClosed`](crate::Status::PeerClosed) it is of no more use.
    pub fn write_prepared(&self, prepared: &Prepared, options: &OpOptions) -> Result<Op> {
        self.move_prepared(Direction::Write, prepared, options)
    }

    /// Reads what was prepared; otherwise as [`write_prepared`](Endpoint::write_prepared).
    ///
    /// # Errors
    /// The same as `write_prepared`.
    pub fn read_prepared(&self, prepared: &Prepared, options: &OpOptions) -> Result<Op> {
        self.move_prepared(Direction::Read, prepared, options)
    }

    fn move_prepared(&self, direction: Direction, prepared: &Prepared, options: &OpOptions) -> Result<Op> {
        self.shared().check(&prepared.shared, "Prepared")?;
        let takes = if prepared.prepared.is_list() { Takes::LIST } else { Takes::TRANSFER };
        options.transfer(self.shared(), takes, direction, |ep, terms| {
            ep.submit_prepared(&prepared.prepared, terms)
        })
    }

    /// Ends a transfer, send, atomic or wait for counters early: it completes with
    /// [`Canceled`](crate::Status::Canceled), unless it has completed already. A transfer completes when its NICs
    /// have stopped using the local memory, in most cases at once. Bytes, notification and counter may have arrived,
    /// or may still until a fence or (also if the sender lies) a revoke at the target: treat its contribution to a
    /// counter as unknown.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let a = &world.a;
    /// use libweft::{OpOptions, Status};
    ///
    /// let counter = a.create_counter()?;
    /// let op = a.expect(&[(counter.id(), 1)], &OpOptions::new())?; // Nobody raises it.
    /// a.cancel(op)?;
    /// assert_eq!(world.wait_a(op)?.done().unwrap().status, Status::Canceled);
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Handle`](crate::Status::Handle) (completed already: normal when the two race).
    pub fn cancel(&self, op: Op) -> Result<()> {
        self.shared().call(|ep| ep.cancel(op.0))
    }
}
