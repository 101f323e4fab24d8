//! Copies between slots in host memory and device memory.

use super::{driver, Copied, Copier, Device};
use crate::status::{Error, Result};
use memmap2::{MmapMut, MmapRaw};
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;

/// The ticket of copies that are added but not launched.
const ADDED: u64 = u64::MAX;

/// The copier of a device.
struct Kept {
    device: Device,
    copier: Box<dyn Copier>,
    /// Its copies wait for a disk (`Driver::waits`).
    slow: bool,
    /// `watch` has returned its descriptor.
    watched: bool,
}

/// Slots of one length: one launch fills or empties several slots.
pub struct Slots {
    copiers: Vec<Kept>,
    /// By slot: its copier and ticket; `ADDED` before the launch.
    busy: Box<[Option<(usize, u64)>]>,
    /// The copier with copies to launch.
    filling: Option<usize>,
    /// Free slots, one bit each.
    free: u64,
    len: u64,
    /// The device that the memory was pinned for; all devices can use it then.
    pinned: Option<Device>,
    memory: ManuallyDrop<MmapRaw>,
}

impl Slots {
    /// Makes at most 64 slots.
    pub fn new(count: u32, len: u64) -> Result<Slots> {
        let memory = MmapMut::map_anon((u64::from(count) * len) as usize);
        let memory = memory.map_err(|_| Error::system("mapping memory for copies of devices"))?;
        Ok(Slots {
            copiers: Vec::new(),
            busy: (0..count).map(|_| None).collect(),
            filling: None,
            free: u64::MAX >> (64 - count),
            len,
            pinned: None,
            memory: ManuallyDrop::new(memory.into()),
        })
    }

    /// Takes a free slot; `give_back` it when its bytes are no longer needed.
    pub fn take(&mut self) -> Option<u32> {
        let slot = self.free.trailing_zeros();
        (self.free != 0).then(|| {
            self.free &= !(1 << slot);
            slot
        })
    }

    /// The slot must have no copy in flight.
    pub fn give_back(&mut self, slot: u32) {
        self.free |= 1 << slot;
    }

    pub fn base(&self, slot: u32) -> u64 {
        self.memory.as_mut_ptr() as u64 + u64::from(slot) * self.len
    }

    /// The copier of a device. The first call makes it, and pins the memory.
    fn copier(&mut self, device: Device) -> Result<usize> {
        if let Some(at) = self.copiers.iter().position(|kept| kept.device == device) {
            return Ok(at);
        }
        let driver = driver(device)?;
        let copier = driver.copier(device)?;
        if self.pinned.is_none() {
            driver.pin(device, self.base(0), self.memory.len() as u64)?;
            self.pinned = Some(device);
        }
        self.copiers.push(Kept { device, copier, slow: driver.waits(), watched: false });
        Ok(self.copiers.len() - 1)
    }

    /// Adds a device's copies between a slot and places of its memory, in order. They are launched
    /// together with those of other slots, by `poll`, or at once where each launch is independent.
    ///
    /// # Safety
    /// The places must be valid until the copies are done, and fit the slot together.
    pub unsafe fn copy(
        &mut self,
        slot: u32,
        into_slot: bool,
        device: Device,
        places: impl Iterator<Item = (u64, u64)>,
    ) -> Result<()> {
        let at = self.copier(device)?;
        let mut run = self.base(slot);
        for (place, len) in places {
            let (from, to) = if into_slot { (place, run) } else { (run, place) };
            // SAFETY: the caller keeps the places valid, and the run is inside the slot.
            unsafe { self.copiers[at].copier.add(from, to, len) };
            run += len;
        }
        if self.filling != Some(at) {
            self.launch();
        }
        self.busy[slot as usize] = Some((at, ADDED));
        self.filling = Some(at);
        if self.copiers[at].slow {
            self.launch();
        }
        Ok(())
    }

    fn launch(&mut self) {
        let Some(filling) = self.filling.take() else { return };
        let begun = self.copiers[filling].copier.launch();
        for (copier, ticket) in self.busy.iter_mut().flatten() {
            if *copier == filling && *ticket == ADDED {
                *ticket = begun;
            }
        }
    }

    /// How the copy of a slot is; `Done` if there is none.
    pub fn poll(&mut self, slot: u32) -> Copied {
        self.launch();
        let Some((copier, ticket)) = self.busy[slot as usize] else { return Copied::Done };
        let how = self.copiers[copier].copier.poll(ticket);
        if !matches!(how, Copied::Pending | Copied::Hung) {
            self.busy[slot as usize] = None;
        }
        how
    }

    /// Whether a slot's copy waits for a disk.
    pub fn is_slow(&self, slot: u32) -> bool {
        self.busy[slot as usize].is_some_and(|(copier, _)| self.copiers[copier].slow)
    }

    /// Whether only polling shows the end of some copy.
    pub fn needs_polls(&self) -> bool {
        self.busy.iter().flatten().any(|(copier, _)| !self.copiers[*copier].watched)
    }

    /// Watches the descriptors that become readable when copies have ended.
    pub fn watch(&mut self, mut add: impl FnMut(BorrowedFd) -> bool) {
        for kept in self.copiers.iter_mut().filter(|kept| !kept.watched) {
            kept.watched = kept.copier.wakes().is_some_and(&mut add);
        }
    }

    /// Stops watching them.
    pub fn unwatch(&self, remove: impl FnMut(BorrowedFd)) {
        self.copiers
            .iter()
            .filter(|kept| kept.watched)
            .filter_map(|kept| kept.copier.wakes())
            .for_each(remove);
    }

    /// One of them has become readable.
    pub fn heard(&mut self) {
        self.copiers.iter_mut().filter(|kept| kept.watched).for_each(|kept| kept.copier.heard());
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.launch();
        if self.copiers.iter_mut().filter_map(|kept| (!kept.copier.wait()).then_some(())).count() > 0 {
            // A disk may still use the slots, and its copier answers for it.
            return std::mem::forget(std::mem::take(&mut self.copiers));
        }
        self.copiers.clear();
        if let Some(device) = self.pinned {
            if let Ok(driver) = driver(device) {
                driver.unpin(device, self.base(0));
            }
        }
        // SAFETY: it is dropped once, and no device uses it.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}
