//! Memory that other processes of this host can read, which `weft_memory_alloc` returns. All areas
//! of the process are listed here by address.

use super::budget::budget;
use super::channel::{area_seals, memfd, page_len, Mapping, HUGE};
use crate::descriptor::Descriptor;
use crate::device::{Device, Handle};
use crate::failing;
use crate::status::{Error, Result, Status};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

// From <linux/mman.h>; Linux 5.14 and 6.1 have them.
const MADV_POPULATE_WRITE: i32 = 23;
const MADV_COLLAPSE: i32 = 25;

/// Populate in steps of this size, and check the free memory between them: other processes use it,
/// too.
const STEP: usize = 1 << 30;
/// Memory that stays free for the system, in addition to page tables.
const SPARE: u64 = 16 << 20;

/// All areas of this process, by first byte.
static AREAS: Mutex<BTreeMap<u64, Arc<Area>>> = Mutex::new(BTreeMap::new());

/// The kind of an area's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pages {
    /// From the system's pool of huge pages.
    Pool,
    /// Huge pages where the system has them, else small ones.
    Any,
}

pub struct Area {
    file: Descriptor,
    mapping: Mapping,
}

impl Area {
    pub fn base(&self) -> u64 {
        self.mapping.base() as u64
    }

    pub fn len(&self) -> u64 {
        self.mapping.len() as u64
    }

    fn make(len: usize, pages: Pages, node: Option<u32>) -> Result<Area> {
        let len = len.next_multiple_of(if len >= HUGE { HUGE } else { page_len() });
        if pages == Pages::Any {
            check_room(len, len)?;
        }
        let flags = if pages == Pages::Pool { libc::MFD_HUGETLB | libc::MFD_HUGE_2MB } else { 0 };
        let file = memfd(c"weft-memory", flags)?;
        // SAFETY: the descriptor is open during the call.
        if failing::step("memory") || unsafe { libc::ftruncate(file.as_raw_fd(), len as libc::off_t) } != 0 {
            return Err(no_memory(len));
        }
        // SAFETY: the call takes no pointers, and the file is open.
        if pages == Pages::Pool && unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as libc::off_t) } != 0
        {
            return Err(no_memory(len)); // The pool has too few pages.
        }
        let mapping = match pages {
            Pages::Pool => Mapping::new(file.as_fd(), len, true)?,
            Pages::Any => Mapping::aligned(file.as_fd(), len, true)?,
        };
        if let Some(node) = node {
            prefer_node(&mapping, node);
        }
        populate(&mapping, pages)?;
        // A peer may map it to read it, never to write it, and it cannot shrink under either of us.
        // SAFETY: the descriptor is open during the call.
        if failing::step("seals")
            || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, area_seals()) } != 0
        {
            return Err(Error::system("sealing memory that can be shared"));
        }
        Ok(Area { file, mapping })
    }
}

fn no_memory(len: usize) -> Error {
    let why = std::io::Error::last_os_error();
    Error::new(Status::NoMemory, format!("{len} bytes of memory that can be shared: {why}"))
}

/// Checks that the system has memory for `more` bytes, of the `len` that were requested.
fn check_room(more: usize, len: usize) -> Result<()> {
    let tables = more as u64 / 256;
    match budget() {
        _ if failing::step("memory") => Err(Error::new(Status::NoMemory, format!("len is {len}"))),
        Some(room) if more as u64 + tables + SPARE > room.bytes => Err(Error::new(
            Status::NoMemory,
            format!("len is {len}, and {} has {} bytes left for the last {more}", room.owner, room.bytes),
        )),
        _ => Ok(()),
    }
}

/// Populates every page now: a transfer should not wait for pages, and a lack of memory should fail
/// here.
fn populate(mapping: &Mapping, pages: Pages) -> Result<()> {
    let (base, len) = (mapping.base(), mapping.len());
    // SAFETY: the range lies in our own mapping, and advice does not change its contents.
    unsafe {
        if pages == Pages::Any && len >= HUGE {
            libc::madvise(base.cast(), len, libc::MADV_HUGEPAGE);
        }
        for at in (0..len).step_by(STEP) {
            if pages == Pages::Any && at > 0 {
                check_room(len - at, len)?;
            }
            let step = STEP.min(len - at);
            if failing::step("pages") {
                return Err(no_memory(len));
            }
            if libc::madvise(base.add(at).cast(), step, MADV_POPULATE_WRITE) == 0 {
                continue;
            }
            let errno = super::socket::errno();
            if errno != libc::EINVAL || pages == Pages::Pool {
                return Err(no_memory(len));
            }
            // Linux before 5.14 has no `MADV_POPULATE_WRITE`.
            touch(mapping, at..at + step);
        }
        if pages == Pages::Any && len >= HUGE {
            // Collapse makes huge pages even where they are off for shared memory.
            libc::madvise(base.cast(), len, MADV_COLLAPSE);
        }
    }
    Ok(())
}

fn touch(mapping: &Mapping, part: Range<usize>) {
    for at in part.step_by(4096) {
        // SAFETY: the byte lies inside the mapping, which no other thread has yet.
        unsafe { mapping.base().add(at).write_volatile(0) };
    }
}

/// Best effort: memory on another node is slower, but works.
fn prefer_node(mapping: &Mapping, node: u32) {
    const MPOL_PREFERRED: libc::c_long = 1;
    let Some(bit) = 1u64.checked_shl(node) else { return };
    let mask = [bit];
    // SAFETY: the range is our own mapping, and the mask has 64 bits.
    unsafe {
        libc::syscall(
            libc::SYS_mbind,
            mapping.base(),
            mapping.len(),
            MPOL_PREFERRED,
            mask.as_ptr(),
            64 as libc::c_ulong + 1,
            0,
        )
    };
}

/// Makes an area, and returns its address.
pub fn allocate(len: u64, node: Option<u32>) -> Result<u64> {
    let len = usize::try_from(len).map_err(|_| Error::limit("more bytes than an address space has"))?;
    // An administrator reserves the pool: without one, this fails at once.
    let pool = if len >= HUGE { Area::make(len, Pages::Pool, node).ok() } else { None };
    let area = match pool {
        Some(area) => area,
        None => Area::make(len, Pages::Any, node)?,
    };
    let base = area.base();
    AREAS.lock().insert(base, Arc::new(area));
    Ok(base)
}

/// How many areas there are.
#[cfg(feature = "sim")]
pub fn count() -> usize {
    AREAS.lock().len()
}

/// The area that contains a range.
pub fn find(base: u64, len: u64) -> Option<Arc<Area>> {
    let areas = AREAS.lock();
    let (_, area) = areas.range(..=base).next_back()?;
    let offset = base - area.base();
    (offset <= area.len() && len <= area.len() - offset).then(|| area.clone())
}

/// Frees an area, unless it is still in use.
pub fn free(base: u64) -> Result<()> {
    let mut areas = AREAS.lock();
    let Some(area) = areas.get(&base) else {
        return Err(Error::invalid(format!(
            "{base:#x} is no address that weft_memory_alloc gave, or it was freed already"
        )));
    };
    if Arc::strong_count(area) > 1 {
        return Err(Error::new(Status::Busy, "the memory is registered: deregister it first"));
    }
    let unmapped = areas.remove(&base);
    // Freeing much memory takes long; the lock is released so that other threads can register.
    drop(areas);
    drop(unmapped);
    Ok(())
}

/// An area as a NIC names it to its peers.
pub struct Shared {
    /// The area's index among the NIC's areas, and a number that is never reused.
    pub place: usize,
    pub number: u32,
    what: What,
    /// Registrations inside the area.
    users: usize,
}

enum What {
    Area(Arc<Area>),
    Device(Handle),
}

impl Shared {
    pub fn base(&self) -> u64 {
        match &self.what {
            What::Area(area) => area.base(),
            What::Device(handle) => handle.base,
        }
    }

    /// The file and length of an area.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.what {
            What::Area(area) => Some((area.file.as_fd(), area.len())),
            What::Device(_) => None,
        }
    }

    /// The handle of device memory.
    pub fn handle(&self) -> Option<&Handle> {
        match &self.what {
            What::Area(_) => None,
            What::Device(handle) => Some(handle),
        }
    }

    /// The descriptor that posts from the area carry: index and number in one.
    fn descriptor(&self) -> u64 {
        (self.place as u64 + 1) << 32 | self.number as u64
    }
}

/// The descriptor of registrations of device memory that no other process can open: no area has it.
pub fn only_on(device: Device) -> u64 {
    u64::from(device) + 1
}

/// The device whose memory has this descriptor.
#[inline]
pub fn device_of(descriptor: u64, area: Option<&Shared>) -> Option<Device> {
    match area {
        Some(area) => area.handle().map(|handle| handle.device),
        None => u32::try_from(descriptor).ok()?.checked_sub(1),
    }
}

/// The areas that contain a NIC's registrations.
#[derive(Default)]
pub struct SharedAreas {
    places: Vec<Option<Shared>>,
    /// The indexes of areas, by first byte; and the free indexes.
    by_base: HashMap<u64, usize>,
    free: Vec<usize>,
    last_number: u32,
}

impl SharedAreas {
    /// The descriptor of a registered range; 0 outside all areas.
    pub fn enter(&mut self, base: u64, len: u64) -> u64 {
        let Some(area) = find(base, len) else { return 0 };
        if let Some(shared) = self.by_base.get(&area.base()).and_then(|place| self.places[*place].as_mut()) {
            shared.users += 1;
            return shared.descriptor();
        }
        let base = area.base();
        let descriptor = self.put(What::Area(area));
        if let Some(shared) = self.get(descriptor) {
            self.by_base.insert(base, shared.place);
        }
        descriptor
    }

    /// Like `enter`, for device memory that other processes can open.
    pub fn enter_device(&mut self, handle: Handle) -> u64 {
        let same = |shared: &&mut Shared| shared.handle() == Some(&handle);
        if let Some(shared) = self.places.iter_mut().flatten().find(same) {
            shared.users += 1;
            return shared.descriptor();
        }
        self.put(What::Device(handle))
    }

    fn put(&mut self, what: What) -> u64 {
        // A peer may still hold an earlier area with this number, so no number is reused.
        let Some(number) = self.last_number.checked_add(1) else { return 0 };
        self.last_number = number;
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        let shared = Shared { place, number, what, users: 1 };
        self.places[place].insert(shared).descriptor()
    }

    /// Ends a registration; returns the area if this was its last one.
    pub fn leave(&mut self, descriptor: u64) -> Option<Shared> {
        let place = self.get(descriptor)?.place;
        let shared = self.places[place].as_mut()?;
        shared.users -= 1;
        let left = self.places[place].take_if(|shared| shared.users == 0)?;
        self.free.push(place);
        if left.handle().is_none() {
            self.by_base.remove(&left.base());
        }
        Some(left)
    }

    #[inline]
    pub fn get(&self, descriptor: u64) -> Option<&Shared> {
        let place = ((descriptor >> 32) as usize).wrapping_sub(1);
        self.places.get(place)?.as_ref().filter(|shared| shared.number == descriptor as u32)
    }

    /// Device memory that other processes can open.
    pub fn devices(&self) -> impl Iterator<Item = &Shared> {
        self.places.iter().flatten().filter(|shared| shared.handle().is_some())
    }

    pub fn clear(&mut self) {
        self.places.clear();
        self.free.clear();
        self.by_base.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn area_is_found_by_any_range_inside_it_and_freed_once() {
        let len = 3 << 20;
        let base = allocate(len, None).unwrap();
        assert!(base % HUGE as u64 == 0);
        // SAFETY: the range was just allocated with this length.
        unsafe { std::slice::from_raw_parts_mut(base as *mut u8, len as usize) }.fill(7);
        assert!(find(base, len).is_some() && find(base + 5, 100).is_some());
        assert!(find(base, len << 8).is_none() && find(base + len, len << 8).is_none());
        let held = find(base, 1);
        assert_eq!(free(base).err().map(|e| e.status), Some(Status::Busy));
        drop(held);
        assert!(free(base).is_ok());
        assert_eq!(free(base).err().map(|e| e.status), Some(Status::Invalid));
    }

    #[test]
    fn area_is_readable_but_not_writable_for_peers() {
        let base = allocate(4096, None).unwrap();
        let area = find(base, 1).unwrap();
        assert!(Mapping::of_area(area.file.as_fd(), 4096).is_ok());
        assert!(Mapping::of_area(area.file.as_fd(), 8192).is_err());
        assert!(Mapping::new(area.file.as_fd(), 4096, true).is_err());
        drop(area);
        assert!(free(base).is_ok());
    }

    #[test]
    fn area_keeps_one_number_per_nic() {
        let base = allocate(8192, None).unwrap();
        let mut shared = SharedAreas::default();
        assert_eq!(shared.enter(0x1000, 10), 0);
        let number = shared.enter(base, 4096);
        assert_eq!(shared.enter(base + 4096, 4096), number);
        assert!(shared.leave(number).is_none() && shared.get(number).is_some());
        assert!(shared.leave(number).is_some() && shared.get(number).is_none());
        assert!(shared.leave(number).is_none() && shared.leave(0).is_none());
        assert_ne!(shared.enter(base, 1), number);
        shared.clear();
        assert!(free(base).is_ok());
    }
}
