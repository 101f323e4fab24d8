//! Copies by devices, many in one launch, in the order in which they were added.

use crate::device::{driver, Copied, Copier, Device};
use crate::fabric::GONE;
use std::collections::VecDeque;

/// Bytes in flight above which no further launch begins: a launch takes the worker about 5 us, in
/// which NVLink carries half of this.
const ENOUGH: u64 = 4 << 20;
/// Copiers of a device, used in turn: the end of one launch and the beginning of the next overlap.
const COPIERS: usize = 3;

/// An item that is done when its copies, and all copies before them, are done.
struct Begun<T> {
    what: T,
    /// The launch with the item's copies: a copier, and the launch if it has begun.
    launch: Option<(usize, Launch)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Launch {
    Gathered,
    Begun(u64),
}

pub struct Copies<T> {
    copiers: Vec<(Device, Box<dyn Copier>)>,
    /// Items that are not done yet, in order.
    begun: VecDeque<Begun<T>>,
    /// Bytes gathered for the next launch, and their copier.
    gathered: u64,
    filling: usize,
    turn: usize,
}

impl<T> Default for Copies<T> {
    fn default() -> Copies<T> {
        Copies { copiers: Vec::new(), begun: VecDeque::new(), gathered: 0, filling: 0, turn: 0 }
    }
}

impl<T> Copies<T> {
    pub fn is_empty(&self) -> bool {
        self.begun.is_empty()
    }

    /// Chooses the device for the next copies. An error number if it cannot copy.
    pub fn choose(&mut self, device: Device) -> Result<(), i32> {
        if self.gathered == 0 || self.copiers[self.filling].0 != device {
            self.launch();
            self.filling = self.copier(device)?;
        }
        Ok(())
    }

    fn copier(&mut self, device: Device) -> Result<usize, i32> {
        let is_ours = |copier: &(Device, Box<dyn Copier>)| copier.0 == device;
        while self.copiers.iter().filter(|copier| is_ours(copier)).count() < COPIERS {
            let copier = driver(device).and_then(|driver| driver.copier(device)).map_err(|error| {
                log::warn!("{error}");
                GONE
            })?;
            self.copiers.push((device, copier));
        }
        self.turn = (self.turn + 1) % COPIERS;
        let mut ours = (0..self.copiers.len()).filter(|at| is_ours(&self.copiers[*at]));
        ours.nth(self.turn).ok_or(GONE)
    }

    /// Adds a copy by the chosen device.
    ///
    /// # Safety
    /// Both addresses are valid for `len` bytes until the copy is done.
    #[inline]
    pub unsafe fn add(&mut self, from: u64, to: u64, len: u64) {
        // SAFETY: both ranges stay valid until the copy is done, which this function's contract says.
        unsafe { self.copiers[self.filling].1.add(from, to, len) };
        self.gathered += len.max(1);
    }

    /// Adds an item that is done after all earlier ones, and, if `copied`, after the last copy.
    pub fn push(&mut self, what: T, copied: bool) {
        let launch = copied.then_some((self.filling, Launch::Gathered));
        self.begun.push_back(Begun { what, launch });
    }

    /// Ends a pass: launches the gathered copies, unless enough bytes are in flight.
    pub fn pump(&mut self) {
        let is_idle = || !self.begun.iter().any(|begun| matches!(begun.launch, Some((_, Launch::Begun(_)))));
        if self.gathered >= ENOUGH || self.gathered > 0 && is_idle() {
            self.launch();
        }
    }

    fn launch(&mut self) {
        if self.gathered == 0 {
            return;
        }
        let Some((_, copier)) = self.copiers.get_mut(self.filling) else { return };
        let ticket = copier.launch();
        self.gathered = 0;
        for begun in self.begun.iter_mut().rev() {
            match &mut begun.launch {
                Some((_, launch @ Launch::Gathered)) => *launch = Launch::Begun(ticket),
                Some(_) => break,
                None => {}
            }
        }
    }

    /// The items that were not taken yet, in order.
    pub fn each(&self) -> impl Iterator<Item = &T> {
        self.begun.iter().map(|begun| &begun.what)
    }

    /// The next item if it is done, with an error number if its copies failed.
    pub fn take(&mut self) -> Option<(T, i32)> {
        let errno = match self.begun.front()?.launch {
            None => 0,
            Some((_, Launch::Gathered)) => return None,
            Some((copier, Launch::Begun(ticket))) => match self.copiers[copier].1.poll(ticket) {
                Copied::Pending => return None,
                Copied::Done => 0,
                Copied::Gone | Copied::Failed(_) | Copied::Hung => GONE,
            },
        };
        self.begun.pop_front().map(|begun| (begun.what, errno))
    }

    /// Drops the unfinished items; call `settle` first.
    pub fn clear(&mut self) {
        self.begun.clear();
    }

    /// Waits until no device touches memory for these copies.
    pub fn settle(&mut self) {
        self.launch();
        self.copiers.iter_mut().for_each(|(_, copier)| _ = copier.wait());
    }
}
