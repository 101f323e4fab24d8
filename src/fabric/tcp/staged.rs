//! What a connection moves of devices' memory: through slots that devices copy to and from, while the
//! socket takes or brings what is in others.

use super::incoming::Read;
use super::socket::Outcome;
use crate::device::staging::Slots;
use crate::device::Device;
use crate::fabric::grants::Use;
use crate::fabric::{Immediate, GONE};
use crate::status::Result;
use crate::wire::tcp::RUN;
use std::collections::VecDeque;

/// Slots of each direction. Half of them are filled together: a launch takes the worker as long as 64 KiB.
const SLOTS: u32 = 20;
const TOGETHER: u32 = SLOTS / 2;

/// What follows copies.
pub enum Next {
    /// A request of the peer is settled.
    Settled(i32, Option<Immediate>),
    /// A read of the peer is to be answered.
    Answer(Read),
    /// A request of this operation of ours has its data.
    Data(u32),
}

/// Bytes of an operation that were gathered before they are asked to be written.
pub struct Run {
    pub op: u32,
    pub len: u64,
    pub slot: Option<u32>,
}

pub struct Staged {
    pub out: Slots,
    pub ahead: VecDeque<Run>,
    /// Slots that the batch has.
    pub lent: Vec<u32>,
    arrivals: Slots,
    /// The slot of the payload that is being received, and the device that it is for.
    pub arriving: Option<(u32, Device)>,
    /// With the use of a grant, until the bytes are copied.
    landing: VecDeque<(Next, Option<u32>, Option<Use>)>,
}

impl Staged {
    pub fn new() -> Result<Box<Staged>> {
        Ok(Box::new(Staged {
            out: Slots::new(SLOTS, RUN)?,
            ahead: VecDeque::new(),
            lent: Vec::new(),
            arrivals: Slots::new(SLOTS, RUN)?,
            arriving: None,
            landing: VecDeque::new(),
        }))
    }

    // What goes.

    /// Whether it is time to fill slots.
    pub fn gathers(&self) -> bool {
        self.out.free() >= TOGETHER
    }

    /// Begins to fill a slot from places of a device; `Ok(None)`: there is none.
    ///
    /// # Safety
    /// The places are valid until it is done, and no longer than a run.
    pub unsafe fn gather(
        &mut self,
        device: Device,
        places: impl Iterator<Item = (u64, u64)>,
    ) -> Outcome<Option<u32>> {
        let Some(slot) = self.out.take() else { return Ok(None) };
        // SAFETY: passed on.
        let begun = unsafe { self.out.copy((slot, true), device, places) };
        begun.map(|()| Some(slot)).map_err(|error| {
            log::warn!("{error}");
            self.out.give_back(slot);
            GONE
        })
    }

    /// Whether what goes next is an operation's, of `most` bytes, and is there.
    pub fn is_ahead(&mut self, op: u32, most: u64) -> Outcome<bool> {
        let next = self.ahead.front().filter(|run| run.op == op && run.len <= most);
        let Some(run) = next else { return Ok(false) };
        run.slot.map_or(Ok(true), |slot| self.is_gathered(slot))
    }

    pub fn is_gathered(&mut self, slot: u32) -> Outcome<bool> {
        self.out.is_done(slot).map_err(|_| GONE)
    }

    /// An operation is over: what was gathered for it is not sent.
    pub fn drop_ahead(&mut self, op: u32) {
        while let Some(run) = self.ahead.front().filter(|run| run.op == op) {
            if let Some(slot) = run.slot {
                self.out.wait();
                self.out.give_back(slot);
            }
            self.ahead.pop_front();
        }
    }

    /// The batch is sent.
    pub fn sent(&mut self) {
        self.lent.drain(..).for_each(|slot| self.out.give_back(slot));
    }

    // What comes.

    pub fn has_room(&self) -> bool {
        self.arrivals.free() > 0
    }

    /// Where the payload that comes next goes.
    pub fn expect(&mut self, device: Device) -> Option<u64> {
        let slot = self.arrivals.take()?;
        self.arriving = Some((slot, device));
        Some(self.arrivals.base(slot))
    }

    /// It is there: begins to copy it to its places.
    ///
    /// # Safety
    /// As for `gather`.
    pub unsafe fn arrived(&mut self, places: impl Iterator<Item = (u64, u64)>) -> Outcome<Option<u32>> {
        let Some((slot, device)) = self.arriving.take() else { return Ok(None) };
        // SAFETY: passed on.
        let begun = unsafe { self.arrivals.copy((slot, false), device, places) };
        begun.map(|()| Some(slot)).map_err(|error| {
            log::warn!("{error}");
            self.arrivals.give_back(slot);
            GONE
        })
    }

    /// It goes nowhere.
    pub fn refuse(&mut self) {
        let refused = self.arriving.take();
        refused.into_iter().for_each(|(slot, _)| self.arrivals.give_back(slot));
    }

    /// Something comes after all that was begun, and after a slot is empty.
    pub fn push(&mut self, next: Next, slot: Option<u32>, entered: Option<Use>) {
        self.landing.push_back((next, slot, entered));
    }

    /// The next of it whose turn it is, and an error number if its bytes could not be copied.
    pub fn take(&mut self) -> Option<(Next, i32)> {
        let mut errno = 0;
        if let Some(slot) = self.landing.front()?.1 {
            match self.arrivals.is_done(slot) {
                Ok(false) => return None,
                Ok(true) => {}
                Err(_) => errno = GONE,
            }
            self.arrivals.give_back(slot);
        }
        self.landing.pop_front().map(|(next, ..)| (next, errno))
    }

    pub fn is_landing(&self) -> bool {
        !self.landing.is_empty()
    }

    pub fn landing(&self) -> usize {
        self.landing.len()
    }

    pub fn is_idle(&self) -> bool {
        self.out.is_empty() && self.arrivals.is_empty() && self.landing.is_empty()
    }

    /// Waits until devices touch the memory of nobody else.
    pub fn settle(&mut self) {
        self.out.wait();
        self.arrivals.wait();
    }
}
