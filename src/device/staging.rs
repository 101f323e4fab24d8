//! Copies between slots in host memory and device memory.

use super::{driver, Copied, Copier, Device};
use crate::status::{Error, Result};
use memmap2::{MmapMut, MmapRaw};

/// The ticket of copies that are added but not launched.
const ADDED: u64 = u64::MAX;

/// Slots of one length: one launch fills or empties several slots.
pub struct Slots {
    copiers: Vec<(Device, Box<dyn Copier>)>,
    /// By slot: its copier and ticket; `ADDED` before the launch.
    busy: Box<[Option<(usize, u64)>]>,
    /// The copier with copies to launch.
    filling: Option<usize>,
    /// Free slots, one bit each.
    free: u32,
    len: u64,
    /// The device that the memory was pinned for; all devices can use it then.
    pinned: Option<Device>,
    memory: MmapRaw,
}

impl Slots {
    /// Makes at most 31 slots.
    pub fn new(count: u32, len: u64) -> Result<Slots> {
        let memory = MmapMut::map_anon((u64::from(count) * len) as usize);
        let memory = memory.map_err(|_| Error::system("mapping memory for copies of devices"))?;
        Ok(Slots {
            copiers: Vec::new(),
            busy: (0..count).map(|_| None).collect(),
            filling: None,
            free: (1 << count) - 1,
            len,
            pinned: None,
            memory: memory.into(),
        })
    }

    pub fn free(&self) -> u32 {
        self.free.count_ones()
    }

    pub fn is_empty(&self) -> bool {
        self.free() as usize == self.busy.len()
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
        if let Some(at) = self.copiers.iter().position(|(known, _)| *known == device) {
            return Ok(at);
        }
        let copier = driver(device)?.copier(device)?;
        if self.pinned.is_none() {
            driver(device)?.pin(device, self.base(0), self.memory.len() as u64)?;
            self.pinned = Some(device);
        }
        self.copiers.push((device, copier));
        Ok(self.copiers.len() - 1)
    }

    /// Adds a device's copies between a slot and places of its memory, in order. They are launched
    /// together with those of other slots, by `poll`.
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
            unsafe { self.copiers[at].1.add(from, to, len) };
            run += len;
        }
        if self.filling != Some(at) {
            self.launch();
        }
        self.busy[slot as usize] = Some((at, ADDED));
        self.filling = Some(at);
        Ok(())
    }

    fn launch(&mut self) {
        let Some(filling) = self.filling.take() else { return };
        let begun = self.copiers[filling].1.launch();
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
        let how = self.copiers[copier].1.poll(ticket);
        if !matches!(how, Copied::Pending | Copied::Hung) {
            self.busy[slot as usize] = None;
        }
        how
    }

    /// Waits until no copy is in flight: from then on, no memory but the slots' own is accessed.
    pub fn wait(&mut self) {
        self.launch();
        self.copiers.iter_mut().for_each(|(_, copier)| _ = copier.wait());
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.wait();
        self.copiers.clear();
        if let Some(device) = self.pinned {
            if let Ok(driver) = driver(device) {
                driver.unpin(device, self.base(0));
            }
        }
    }
}
