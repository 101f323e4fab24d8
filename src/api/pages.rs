//! Geometry: pages x layers, and lists.

use super::endpoint::Endpoint;
use super::ids::{CounterId, Peer};
use super::memory::Memory;
use super::options::OpOptions;
use super::parked::Shared;
use super::remote::RemoteMemory;
use crate::calls::lists;
use crate::memory;
use crate::room::Theirs;
use crate::status::{Error, Result};
use crate::transfer::geometry;
use crate::transfer::list::{Asked, Builder, List, ENTRIES_MAX};
use std::fmt;
use std::sync::Arc;

/// Entries of the longest list.
pub const LIST_ENTRIES_MAX: usize = ENTRIES_MAX as usize;

/// The places of a transfer's pages on one side.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageSide<'a> {
    /// `page_count` page indexes. `None`: 0, 1, 2, ...
    pub pages: Option<&'a [u32]>,
    /// Bytes from one page to the next. 0: `page_len`.
    pub page_stride: u64,
    /// Bytes from the start of the range to page 0 of layer 0.
    pub offset: u64,
    /// Bytes from one layer to the next, within a range.
    pub layer_stride: u64,
    /// The range of layer 0.
    pub first_range: u32,
    /// Ranges from one layer to the next. Several layers are not written to one place (0 with a `layer_stride` of 0),
    /// but may be read from one.
    pub range_step: u32,
}

/// The geometry of pages x layers. On each side, page `i` of layer `l` is at
///
/// | | |
/// | --- | --- |
/// | range | `first_range + l * range_step` |
/// | offset | `offset + pages[i] * page_stride + l * layer_stride` |
/// | bytes | `page_len` |
///
/// so that layers can be ranges of their own (`range_step` 1) or lie behind each other in one (`layer_stride`), and a
/// page can be a part of the other side's page. Nothing else is moved. Pages may repeat; where destinations overlap,
/// it is not defined which bytes win.
///
/// ```
/// # let world = libweft::testing::world()?;
/// # let a = &world.a;
/// use libweft::{OpOptions, PageSide, Pages};
///
/// // 2 layers here and there, each a range; of each, pages 7 and 1 of ours go to their 0 and 1.
/// let layers = || vec![vec![0; 32768]; 2];
/// let ours = a.register_with(layers(), &Default::default())?;
/// let theirs = world.b.register_with(layers(), &Default::default())?;
/// let remote = a.import(world.a_to_b, &theirs.export()?)?;
/// let pages = Pages {
///     layer_count: 2,
///     page_len: 4096,
///     page_count: 2,
///     local: PageSide { pages: Some(&[7, 1]), range_step: 1, ..PageSide::default() },
///     remote: PageSide { range_step: 1, ..PageSide::default() },
/// };
/// let op = a.write_pages(&ours, &remote, &pages, &OpOptions::new())?;
/// assert_eq!(world.wait_a(op)?.done().unwrap().bytes, 2 * 2 * 4096);
/// # Ok::<(), libweft::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Pages<'a> {
    /// Layers, up to 65,536. 0: 1.
    pub layer_count: u32,
    /// Bytes of a page: 1 to 2^47; 0 only with a `page_count` of 0.
    pub page_len: u64,
    /// Pages in each layer, up to 2^32 - 1. 0 moves nothing, and completes and notifies all the same.
    pub page_count: u64,
    /// Our side.
    pub local: PageSide<'a>,
    /// The peer's side.
    pub remote: PageSide<'a>,
}

impl<'a> PageSide<'a> {
    fn given(&self, page_count: u64, name: &str) -> Result<geometry::Side<'a>> {
        if let Some(pages) = self.pages.filter(|pages| pages.len() as u64 != page_count) {
            return Err(Error::invalid(format!(
                "{name}.pages has {} indexes, but page_count is {page_count}",
                pages.len()
            )));
        }
        Ok(geometry::Side {
            pages: self.pages.map(Theirs::from),
            page_stride: self.page_stride,
            offset: self.offset,
            layer_stride: self.layer_stride,
            first_range: self.first_range,
            range_step: self.range_step,
        })
    }
}

impl<'a> Pages<'a> {
    pub(super) fn check(&self) -> Result<geometry::Pages<'a>> {
        geometry::Pages::new(self.page_len, self.page_count, self.layer_count, || {
            Ok((self.local.given(self.page_count, "local")?, self.remote.given(self.page_count, "remote")?))
        })
    }
}

/// One entry of a list: bytes between a local and a remote range. With a `len` of 0 it needs only a peer, to notify it
/// or to raise its counter.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListEntry<'a> {
    /// Source of a write, destination of a read; `None` only with a `len` of 0.
    pub local: Option<&'a Memory>,
    /// Destination of a write, source of a read; `None` only with a `len` of 0.
    pub remote: Option<&'a RemoteMemory>,
    /// `None`: the peer of `remote`; anything else must be that peer.
    pub peer: Option<Peer>,
    /// The range of `local`.
    pub local_range: u32,
    /// The range of `remote`.
    pub remote_range: u32,
    /// The offset in the local range.
    pub local_offset: u64,
    /// The offset in the remote range.
    pub remote_offset: u64,
    /// 0 moves nothing; ranges and offsets are not read then.
    pub len: u64,
    /// A counter of the peer, raised by 1 when the bytes of this entry have arrived, or (an empty entry, a read) when
    /// all bytes of the list for this peer have. With one, `len` is at most 1 GiB.
    pub counter: Option<CounterId>,
}

/// The geometry of a transfer, checked once and used many times. Its memories are in use until it is dropped and the
/// last transfer that uses it has ended.
pub struct Prepared {
    pub(super) shared: Arc<Shared>,
    pub(super) prepared: Arc<lists::Prepared>,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        let _ = self.shared.call(|_| {
            self.prepared.release();
            Ok(())
        });
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("is_list", &self.prepared.is_list()).finish()
    }
}

impl Endpoint {
    /// A memory of this endpoint.
    pub(super) fn own<'a>(&self, memory: &'a Memory) -> Result<&'a Arc<memory::Memory>> {
        self.shared().check(&memory.shared, "Memory")?;
        memory.internal()
    }

    pub(super) fn own_remote<'a>(&self, remote: &'a RemoteMemory) -> Result<&'a Arc<memory::RemoteMemory>> {
        self.shared().check(&remote.shared, "RemoteMemory")?;
        Ok(&remote.remote)
    }

    pub(super) fn list(
        &self,
        ep: &Arc<crate::calls::Endpoint>,
        entries: &[ListEntry],
        latency: bool,
    ) -> Result<List> {
        let mut list = Builder::new(entries.len() as u64)?;
        for entry in entries {
            let asked = |list: &mut Builder| {
                let local = entry.local.map(|local| self.own(local)).transpose()?;
                let remote = entry.remote.map(|remote| self.own_remote(remote)).transpose()?;
                Ok(Asked {
                    local: match local {
                        None => None,
                        Some(memory) => list.local(Arc::as_ptr(memory) as usize, || Ok(memory.clone()))?,
                    },
                    remote: match remote {
                        None => None,
                        Some(memory) => list.remote(Arc::as_ptr(memory) as usize, || Ok(memory.clone()))?,
                    },
                    peer: entry.peer.map(|peer| peer.0),
                    local_range: entry.local_range,
                    remote_range: entry.remote_range,
                    local_offset: entry.local_offset,
                    remote_offset: entry.remote_offset,
                    len: entry.len,
                    counter: entry.counter.map_or(0, |counter| counter.0),
                })
            };
            list.add(asked, |peer| ep.raises(peer))?;
        }
        list.finish(latency)
    }

    /// Checks pages as [`write_pages`](Endpoint::write_pages) does, and keeps a copy (4 bytes per page index) for any
    /// number of transfers in either direction. Of the options `latency` cuts large pages finer; pages can be counted
    /// only if prepared with [`count_pages`](OpOptions::count_pages).
    ///
    /// # Errors
    /// The same as `write_pages`, but for the access, which each transfer checks.
    pub fn prepare_pages(
        &self,
        local: &Memory,
        remote: &RemoteMemory,
        pages: &Pages,
        options: &OpOptions,
    ) -> Result<Prepared> {
        let (local, remote, pages) = (self.own(local)?, self.own_remote(remote)?, pages.check()?);
        let prepared = self.shared().call(|ep| ep.prepare_pages(&pages, local, remote, options.cuts()))?;
        Ok(Prepared { shared: self.shared().clone(), prepared })
    }

    /// Like [`prepare_pages`](Endpoint::prepare_pages), for a list: about 72 bytes per entry.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let (a, local, remote) = (&world.a, &world.local, &world.remote);
    /// use libweft::{ListEntry, OpOptions};
    ///
    /// let entry = ListEntry { local: Some(local), remote: Some(remote), len: 512, ..ListEntry::default() };
    /// let prepared = a.prepare_list(&[entry], &OpOptions::new())?;
    /// let op = a.read_prepared(&prepared, &OpOptions::new())?;
    /// assert_eq!(world.wait_a(op)?.done().unwrap().bytes, 512);
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`write_list`](Endpoint::write_list), but for the access.
    pub fn prepare_list(&self, entries: &[ListEntry], options: &OpOptions) -> Result<Prepared> {
        let make = |ep: &Arc<crate::calls::Endpoint>| {
            ep.prepare_list(self.list(ep, entries, options.is_latency())?)
        };
        let prepared = self.shared().call(make)?;
        Ok(Prepared { shared: self.shared().clone(), prepared })
    }
}
