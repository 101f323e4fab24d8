//! Copies of devices, many in one launch, in the order in which they were asked for.

use crate::device::{driver, Copier, Device};
use crate::fabric::GONE;
use std::collections::VecDeque;

/// Bytes that are begun while others are under way: a launch takes the worker about 5 us,
/// in which NVLink carries half of this.
const ENOUGH: u64 = 4 << 20;
/// Copiers of a device, in turn: the end of one launch and the beginning of the next
/// overlap.
const COPIERS: usize = 3;

/// An item that is done when the copies added for it, and those before them, are.
struct Begun<T> {
    what: T,
    /// The launch that does it: a copier, and whether it has begun.
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
    /// Bytes that were gathered for no launch yet, and of which copier.
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

    /// The device that does what is added next. An error number: it cannot.
    pub fn choose(&mut self, device: Device) -> Result<(), i32> {
        if self.gathered == 0 || self.copiers[self.filling].0 != device {
            self.launch();
            self.filling = self.copier(device)?;
        }
        Ok(())
    }

    fn copier(&mut self, device: Device) -> Result<usize, i32> {
        let mut ours = (0..self.copiers.len()).filter(|at| self.copiers[*at].0 == device);
        if ours.clone().count() == COPIERS {
            self.turn = (self.turn + 1) % COPIERS;
            return ours.nth(self.turn).ok_or(GONE);
        }
        let copier = driver().and_then(|driver| driver.copier(device)).map_err(|error| {
            log::warn!("{error}");
            GONE
        })?;
        self.copiers.push((device, copier));
        Ok(self.copiers.len() - 1)
    }

    /// Adds a copy, by the device that was chosen.
    ///
    /// # Safety
    /// Both ends are valid for `len` bytes until it is done.
    #[inline]
    pub unsafe fn add(&mut self, from: u64, to: u64, len: u64) {
        // SAFETY: as promised.
        unsafe { self.copiers[self.filling].1.add(from, to, len) };
        self.gathered += len.max(1);
    }

    /// Something is done after what is before it, and, if `copied`, what was added last.
    pub fn push(&mut self, what: T, copied: bool) {
        let launch = copied.then_some((self.filling, Launch::Gathered));
        self.begun.push_back(Begun { what, launch });
    }

    /// Ends a pass: begins what was gathered, unless enough is under way.
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

    /// The next item, if it is done, and an error number if its copies were not.
    pub fn take(&mut self) -> Option<(T, i32)> {
        let errno = match self.begun.front()?.launch {
            None => 0,
            Some((_, Launch::Gathered)) => return None,
            Some((copier, Launch::Begun(ticket))) => match self.copiers[copier].1.is_done(ticket) {
                Ok(false) => return None,
                Ok(true) => 0,
                Err(_) => GONE,
            },
        };
        self.begun.pop_front().map(|begun| (begun.what, errno))
    }

    /// Forgets what is not done; `settle` first.
    pub fn clear(&mut self) {
        self.begun.clear();
    }

    /// Waits until no device touches memory for it.
    pub fn settle(&mut self) {
        self.launch();
        self.copiers.iter_mut().for_each(|(_, copier)| copier.wait());
    }
}
