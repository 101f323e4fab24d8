//! Copies between the slots of a staging buffer and device memory.

use super::{driver, Copier, Device};
use crate::status::Result;

/// Of what was added and not begun.
const ADDED: u64 = u64::MAX;

/// Of one buffer that has slots: one launch fills, or empties, what slots there are.
pub struct Stage {
    base: u64,
    len: u64,
    /// The device that it was pinned for: then all reach it.
    pinned: Option<Device>,
    copiers: Vec<(Device, Box<dyn Copier>)>,
    /// By slot: the copier that works for it, and its ticket; `ADDED` before there is one.
    busy: Box<[Option<(usize, u64)>]>,
    /// The copier that has something to begin.
    filling: Option<usize>,
}

impl Stage {
    pub fn new(base: u64, len: u64, slots: u32) -> Stage {
        let busy = (0..slots).map(|_| None).collect();
        Stage { base, len, pinned: None, copiers: Vec::new(), busy, filling: None }
    }

    /// The copier of a device. The first time it is made, and the buffer pinned.
    pub fn copier(&mut self, device: Device) -> Result<usize> {
        if let Some(at) = self.copiers.iter().position(|(of, _)| *of == device) {
            return Ok(at);
        }
        let driver = driver()?;
        let copier = driver.copier(device)?;
        if self.pinned.is_none() {
            driver.pin(device, self.base, self.len)?;
            self.pinned = Some(device);
        }
        self.copiers.push((device, copier));
        Ok(self.copiers.len() - 1)
    }

    /// Adds a copy to the next launch of a copier.
    ///
    /// # Safety
    /// As `Copier::add`.
    pub unsafe fn add(&mut self, copier: usize, from: u64, to: u64, len: u64) {
        // SAFETY: passed on.
        unsafe { self.copiers[copier].1.add(from, to, len) }
    }

    /// What was added is all of a slot. It is begun with that of others, when it is asked
    /// for.
    pub fn close(&mut self, copier: usize, slot: u32) {
        if self.filling != Some(copier) {
            self.launch();
        }
        self.busy[slot as usize] = Some((copier, ADDED));
        self.filling = Some(copier);
    }

    /// A device works for it, or has.
    pub fn is_used(&self) -> bool {
        !self.copiers.is_empty()
    }

    /// Something waits to be begun.
    pub fn has_added(&self) -> bool {
        self.filling.is_some()
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

    /// Whether nothing is under way for a slot. An error: its bytes are not there.
    pub fn is_done(&mut self, slot: u32) -> Result<bool> {
        self.launch();
        let Some((copier, ticket)) = self.busy[slot as usize] else { return Ok(true) };
        let done = self.copiers[copier].1.is_done(ticket);
        if !matches!(done, Ok(false)) {
            self.busy[slot as usize] = None;
        }
        done
    }

    /// Waits until nothing is under way: the memory of nobody is touched any longer.
    pub fn wait(&mut self) {
        self.launch();
        self.copiers.iter_mut().for_each(|(_, copier)| copier.wait());
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.copiers.clear();
        if let Some(device) = self.pinned {
            driver().into_iter().for_each(|driver| driver.unpin(device, self.base));
        }
    }
}
