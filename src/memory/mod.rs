//! Memory: registered ranges of this process, and imported ranges of peers.

pub mod alloc;
mod covered;
mod exports;
mod kept;
mod remote;
mod revoked;

pub use covered::{Asking, Covered, Known};
pub use exports::Exports;
use kept::Kept;
pub use remote::{RemoteMemory, RemoteState};
pub use revoked::Revoked;

use crate::device::{Device, Place};
use crate::fabric::host::area::Area;
pub use crate::fabric::Access;
use crate::fabric::{Registration, Way};
use crate::ids::{MemoryId, PeerId, RailIndex};
use crate::prefetch;
pub use crate::range::Range;
use crate::room;
use crate::status::{Error, Result, Status};
use crate::wire::descriptor::{self, Descriptor};
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, AtomicU8, AtomicUsize, Ordering};
use std::sync::Arc;

/// Packs up to 64 flags, one bit each.
fn bits(flags: impl Iterator<Item = bool>) -> u64 {
    flags.take(64).enumerate().fold(0, |bits, (i, flag)| bits | (flag as u64) << i)
}

/// The range, and the offset in it, of an offset into a memory's concatenated ranges. An offset
/// beyond the end maps to the last range, whose bounds check rejects it.
#[inline(always)]
pub fn place(range_len: impl Fn(u64) -> Option<u64>, mut offset: u64) -> (u32, u64) {
    let mut range = 0;
    while let Some(len) = range_len(range).filter(|len| offset >= *len) {
        if range_len(range + 1).is_none() {
            break;
        }
        (range, offset) = (range + 1, offset - len);
    }
    (range as u32, offset)
}

fn range(i: usize, base: u64, len: u64, in_file: bool) -> Result<Range> {
    if base == 0 && !in_file || len == 0 {
        return Err(Error::invalid(format!("range {i} is empty (address {base:#x}, {len} bytes)")));
    }
    if len > 1 << 47 || base.checked_add(len).is_none() {
        return Err(Error::limit(format!("range {i} has {len} bytes: at most 2^47 are allowed")));
    }
    if in_file && base + len > i64::MAX as u64 {
        return Err(Error::limit(format!("range {i} ends at {}: files end at 2^63", base + len)));
    }
    Ok(Range { base, len })
}

/// The ranges of a memory, from a caller; `in_file`: they begin at offsets of a file.
pub fn ranges(count: usize, theirs: impl Iterator<Item = (u64, u64)>, in_file: bool) -> Result<Vec<Range>> {
    match count {
        0 => return Err(Error::invalid("no ranges: pass at least one")),
        1..=RANGES_MAX => {}
        _ => return Err(Error::limit(format!("{count} ranges: at most {RANGES_MAX} are allowed"))),
    }
    let mut checked = room::vec(count, "the ranges")?;
    for (i, (base, len)) in theirs.enumerate() {
        checked.push(range(i, base, len, in_file)?);
    }
    Ok(checked)
}

/// Why a memory cannot be deregistered or released yet.
pub fn in_use(what: &str, prepared: &AtomicU64, users: u64) -> Error {
    let text = match prepared.load(Ordering::Relaxed) {
        0 => format!("operations use the {what} ({users}), or what has ended is not given back by the fabric or the peer yet: poll, then try again"),
        prepared => format!("prepared geometry uses the {what} ({prepared} times): weft_prepared_destroy it first"),
    };
    Error::new(Status::Busy, text)
}

/// Maximum ranges of one memory.
const RANGES_MAX: usize = 65_536;

/// Stages of a memory: in use; importers are being notified; its registrations are being closed;
/// some could not be closed.
const IN_USE: u8 = 0;
const LEAVING: u8 = 1;
const CLOSING: u8 = 2;
const STUCK: u8 = 3;

/// One handle for one or many ranges, registered on every rail.
pub struct Memory {
    pub id: MemoryId,
    /// Proves, in an import, that the importer has the descriptor.
    pub secret: u64,
    ranges: Box<[Range]>,
    access: Access,
    /// The memory's device and location, if not on the host.
    place: Option<Place>,
    /// Registrations by rail, then by range; empty for rails without them.
    rails: Box<[Box<[Kept]>]>,
    /// The number of open registrations by rail; they are closed from the last to the first.
    open: Box<[AtomicUsize]>,
    /// Rails that registered it, one bit each.
    known: u64,
    /// Registrations for peers alone, where there are such.
    pub exports: Mutex<Exports>,
    descriptor: Mutex<Option<Arc<[u8]>>>,
    /// Allocations of `weft_memory_alloc` that contain its ranges: held until it is deregistered.
    areas: Mutex<Vec<Arc<Area>>>,
    /// Transfers that use it. SeqCst, with `stage`: a new user counts itself and then reads
    /// `stage`; deregistration sets `stage` and then reads this count. (Apart from read-only
    /// fields, because this line is always being written.)
    users: CachePadded<AtomicU64>,
    /// Prepared geometries and grants, which `users` includes.
    pub prepared: AtomicU64,
    pub grants: AtomicU64,
    /// Changed under the importers' lock.
    stage: AtomicU8,
    /// Peers that imported it.
    importers: Mutex<HashSet<PeerId>>,
}

/// A grant of a memory that nobody has yet: no longer counted if this is dropped.
pub struct Granted<'a>(&'a Memory);

impl Granted<'_> {
    /// The grant is made: `ungrant` ends it.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        self.0.ungrant();
    }
}

impl Memory {
    pub fn new(
        id: MemoryId,
        secret: u64,
        ranges: Vec<Range>,
        access: Access,
        place: Option<Place>,
        rails: Vec<Box<[Registration]>>,
    ) -> Memory {
        Memory {
            id,
            secret,
            areas: Mutex::new(alloc::hold(&ranges)),
            ranges: ranges.into(),
            access,
            place,
            known: bits(rails.iter().map(|rail| !rail.is_empty())),
            open: rails.iter().map(|rail| AtomicUsize::new(rail.len())).collect(),
            rails: rails.iter().map(|rail| rail.iter().map(Kept::new).collect()).collect(),
            exports: Mutex::default(),
            descriptor: Mutex::default(),
            users: CachePadded::default(),
            prepared: AtomicU64::new(0),
            grants: AtomicU64::new(0),
            stage: AtomicU8::new(IN_USE),
            importers: Mutex::default(),
        }
    }

    /// Makes the descriptor of it as it is now.
    pub fn describe(&self, incarnation: u64, virtual_addresses: impl Iterator<Item = bool>) {
        let exports = self.exports.lock();
        if self.access.remote_read || self.access.remote_write {
            let descriptor = self.descriptor_of(&exports, incarnation, virtual_addresses);
            *self.descriptor.lock() = (!exports.lost).then(|| descriptor.encode().into());
        }
    }

    fn descriptor_of(
        &self,
        exports: &Exports,
        incarnation: u64,
        virtual_addresses: impl Iterator<Item = bool>,
    ) -> Descriptor {
        let rail = |(rail, is_virtual): (RailIndex, bool)| descriptor::Rail {
            virtual_addresses: is_virtual,
            keys: self.keys(exports, rail),
        };
        Descriptor {
            incarnation,
            id: self.id,
            secret: self.secret,
            writable: self.access.remote_write,
            readable: self.access.remote_read,
            granted_only: self.access.granted_only,
            device: self.device().map(|device| device.min(254) as u8),
            ranges: self.ranges.to_vec(),
            rails: RailIndex::each(&self.rails)
                .map(|(rail, _)| rail)
                .zip(virtual_addresses)
                .map(rail)
                .collect(),
        }
    }

    /// The keys that peers use over a rail.
    pub fn keys(&self, exports: &Exports, rail: RailIndex) -> Box<[u64]> {
        exports.keys(rail).unwrap_or_else(|| self.rails[rail.place()].iter().map(Kept::key).collect())
    }

    /// A rail has registered it again (`Nic::refreshed`). Only the rail's worker may call this.
    pub fn refresh(&self, rail: RailIndex, mut now: impl FnMut(Registration) -> Registration) {
        self.exports.lock().refresh(rail, &mut now);
        for kept in &self.rails[rail.place()] {
            kept.set(now(kept.get()));
        }
    }

    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    pub fn access(&self) -> Access {
        self.access
    }

    #[inline]
    pub fn knows(&self, rail: RailIndex) -> bool {
        rail.is_in(self.known)
    }

    pub fn known(&self) -> u64 {
        self.known
    }

    /// Whether all rails registered it.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.known.count_ones() as usize == self.rails.len()
    }

    pub fn is_writable(&self) -> bool {
        self.access.local_write
    }

    /// Its device and location, if not on the host: the CPU must not access it.
    #[inline]
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// Whether peers on this host map it.
    pub fn is_shared(&self) -> bool {
        self.any_rail(|r| r.way == Some(Way::Shared))
    }

    /// Whether its bytes may be staged through the host.
    pub fn is_staged(&self) -> bool {
        let by_frames = self.place.is_some() && self.known == 0;
        by_frames || self.any_rail(|r| matches!(r.way, Some(Way::Shared | Way::Staged)))
    }

    /// Whether it is device memory that NICs access directly.
    pub fn is_direct(&self) -> bool {
        self.any_rail(|r| matches!(r.way, Some(Way::Address | Way::Dmabuf)))
    }

    /// Whether a rail registered it by a DMA-BUF.
    pub fn is_exported(&self) -> bool {
        self.any_rail(|r| r.way == Some(Way::Dmabuf))
    }

    fn any_rail(&self, which: impl Fn(&Registration) -> bool) -> bool {
        self.rails.iter().filter_map(|rail| rail.first()).any(|kept| which(&kept.get()))
    }

    #[inline]
    pub fn device(&self) -> Option<Device> {
        self.place.as_ref().map(|place| place.device)
    }

    pub fn range_len(&self, range: u64) -> Option<u64> {
        self.ranges.get(usize::try_from(range).ok()?).map(|r| r.len)
    }

    /// A rail's descriptor for posts of a range.
    #[inline]
    pub fn local_descriptor(&self, rail: RailIndex, range: usize) -> *mut c_void {
        self.rails[rail.place()][range].descriptor()
    }

    pub fn descriptor(&self) -> Result<Arc<[u8]>> {
        let known = self.descriptor.lock().clone();
        known.ok_or_else(|| match self.exports.lock().lost {
            true => Error::new(
                Status::MemoryGone,
                "this memory could not be registered anew when its keys were replaced: register it again",
            ),
            false => {
                Error::invalid("this memory was registered with WEFT_ACCESS_LOCAL: it has no descriptor")
            }
        })
    }

    /// Prefetches its count of users, which other processors wrote last.
    #[inline]
    pub fn prefetch(&self) {
        prefetch::to_write(&*self.users);
    }

    /// Counts a new user; false once the memory is being deregistered.
    pub fn enter(&self) -> bool {
        self.users.fetch_add(1, Ordering::SeqCst);
        if self.stage.load(Ordering::SeqCst) != IN_USE {
            self.exit();
            return false;
        }
        true
    }

    pub fn exit(&self) {
        self.users.fetch_sub(1, Ordering::SeqCst);
    }

    pub fn users(&self) -> u64 {
        self.users.load(Ordering::SeqCst)
    }

    /// Counts a grant; `None` once the memory is being deregistered.
    pub fn grant(&self) -> Option<Granted<'_>> {
        self.enter().then(|| {
            self.grants.fetch_add(1, Ordering::Relaxed);
            Granted(self)
        })
    }

    pub fn ungrant(&self) {
        self.grants.fetch_sub(1, Ordering::Relaxed);
        self.exit();
    }

    /// Whether prepared geometries or grants use it, which end by their owner's calls alone.
    pub fn is_kept(&self) -> bool {
        self.prepared.load(Ordering::Relaxed) + self.grants.load(Ordering::Relaxed) > 0
    }

    /// Why it cannot be deregistered yet.
    pub fn in_use(&self) -> Error {
        match self.grants.load(Ordering::Relaxed) {
            0 => in_use("memory", &self.prepared, self.users()),
            grants => {
                let text =
                    format!("{grants} grants let peers reach the memory: weft_grant_revoke them first");
                Error::new(Status::Busy, text)
            }
        }
    }

    /// Begins to deregister it, or continues a failed attempt. False, without any change, if
    /// transfers use it or another thread is deregistering it.
    pub fn leave(&self) -> bool {
        // Under the lock, so that an import sees the outcome and not the attempt.
        let _importers = self.importers.lock();
        let before = self.stage.load(Ordering::SeqCst);
        if !matches!(before, IN_USE | STUCK) {
            return false;
        }
        self.stage.store(LEAVING, Ordering::SeqCst);
        if self.users() > 0 {
            self.stage.store(before, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// Marks its registrations as closing: from here on, nothing that peers have sent may access
    /// them.
    pub fn close(&self) {
        let _importers = self.importers.lock();
        self.stage.store(CLOSING, Ordering::SeqCst);
    }

    /// Marks it as partly deregistered. Deregistering may be tried again; until then nothing can
    /// use the memory.
    pub fn stay_stuck(&self) {
        let _importers = self.importers.lock();
        self.stage.store(STUCK, Ordering::SeqCst);
    }

    /// The registration of a rail to be closed next; call `closed` afterwards. Only the rail's
    /// worker may call both.
    pub fn last_open(&self, rail: RailIndex) -> Option<Registration> {
        let open = self.open.get(rail.place())?.load(Ordering::Relaxed);
        self.rails.get(rail.place())?.get(open.checked_sub(1)?).map(Kept::get)
    }

    pub fn closed(&self, rail: RailIndex) {
        if let Some(open) = self.open.get(rail.place()) {
            _ = open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub fn open(&self) -> u64 {
        let own: u64 = self.open.iter().map(|open| open.load(Ordering::Relaxed) as u64).sum();
        own + self.exports.lock().open()
    }

    /// Releases its allocations, once it is no longer registered.
    pub fn let_go(&self) {
        self.areas.lock().clear();
        if let Some(place) = &self.place {
            place.let_go();
        }
    }

    /// False if it is being deregistered.
    pub fn import(&self, peer: PeerId) -> bool {
        let mut importers = self.importers.lock();
        if self.stage.load(Ordering::SeqCst) != IN_USE || self.exports.lock().lost {
            return false;
        }
        importers.insert(peer);
        true
    }

    pub fn forget(&self, peer: PeerId) {
        self.importers.lock().remove(&peer);
    }

    /// Whether a peer may use it: an importer may, until it acknowledges the deregistration.
    pub fn is_imported(&self, peer: PeerId) -> bool {
        let importers = self.importers.lock();
        matches!(self.stage.load(Ordering::SeqCst), IN_USE | LEAVING) && importers.contains(&peer)
    }

    pub fn importers(&self) -> Vec<PeerId> {
        self.importers.lock().iter().copied().collect()
    }
}
