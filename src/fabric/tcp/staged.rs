//! How a connection moves device memory: through slots that devices copy to and from, while the
//! socket sends or receives other slots.

use super::incoming::Read;
use super::socket::Outcome;
use crate::device::staging::Slots;
use crate::device::{Copied, Device};
use crate::fabric::grants::Use;
use crate::fabric::{Immediate, GONE};
use crate::status::Result;
use crate::wire::tcp::RUN;
use std::collections::VecDeque;

/// Slots of each direction. Half of them are filled together: a launch takes the worker as long as 64 KiB.
const SLOTS: u32 = 20;
const TOGETHER: u32 = SLOTS / 2;

/// The step behind a copy.
pub enum Next {
    /// A request of the peer is settled.
    Settled(i32, Option<Immediate>),
    /// A read of the peer can be answered.
    Answer(Read),
    /// A request of our operation has its data.
    Data(u32),
}

/// Bytes of an operation that were gathered before their write is requested.
pub struct Run {
    pub op: u32,
    pub len: u64,
    pub slot: Option<u32>,
}

pub struct Staged {
    pub out: Slots,
    pub ahead: VecDeque<Run>,
    /// Slots in the current batch.
    pub lent: Vec<u32>,
    arrivals: Slots,
    /// The slot of the payload that is being received, and its device.
    pub arriving: Option<(u32, Device)>,
    /// The use of a grant lasts until the bytes are copied.
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

    // Sending.

    /// Whether slots should be filled now.
    pub fn gathers(&self) -> bool {
        self.out.free() >= TOGETHER
    }

    /// Starts to fill a slot from device memory; `Ok(None)`: no slot is free.
    ///
    /// # Safety
    /// The memory is valid until the copy is done, and is no longer than a run.
    pub unsafe fn gather(
        &mut self,
        device: Device,
        places: impl Iterator<Item = (u64, u64)>,
    ) -> Outcome<Option<u32>> {
        let Some(slot) = self.out.take() else { return Ok(None) };
        // SAFETY: the places are valid until the copy is done, which this function's contract says.
        let begun = unsafe { self.out.copy(slot, true, device, places) };
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
        match self.out.poll(slot) {
            Copied::Pending => Ok(false),
            Copied::Done => Ok(true),
            Copied::Gone | Copied::Failed(_) | Copied::Hung => Err(GONE),
        }
    }

    /// An operation has ended: its gathered bytes are not sent.
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

    // Receiving.

    pub fn has_room(&self) -> bool {
        self.arrivals.free() > 0
    }

    /// The slot for the next payload.
    pub fn expect(&mut self, device: Device) -> Option<u64> {
        let slot = self.arrivals.take()?;
        self.arriving = Some((slot, device));
        Some(self.arrivals.base(slot))
    }

    /// The payload was received: starts to copy it to its destination.
    ///
    /// # Safety
    /// The same contract as `gather`.
    pub unsafe fn arrived(&mut self, places: impl Iterator<Item = (u64, u64)>) -> Outcome<Option<u32>> {
        let Some((slot, device)) = self.arriving.take() else { return Ok(None) };
        // SAFETY: the places are valid until the copy is done, which this function's contract says.
        let begun = unsafe { self.arrivals.copy(slot, false, device, places) };
        begun.map(|()| Some(slot)).map_err(|error| {
            log::warn!("{error}");
            self.arrivals.give_back(slot);
            GONE
        })
    }

    /// Discards the payload.
    pub fn refuse(&mut self) {
        if let Some((slot, _)) = self.arriving.take() {
            self.arrivals.give_back(slot);
        }
    }

    /// Adds a step behind all started copies, and behind the copy out of a slot.
    pub fn push(&mut self, next: Next, slot: Option<u32>, entered: Option<Use>) {
        self.landing.push_back((next, slot, entered));
    }

    /// The next step whose turn it is, and an error number if its bytes could not be copied.
    pub fn take(&mut self) -> Option<(Next, i32)> {
        let mut errno = 0;
        if let Some(slot) = self.landing.front()?.1 {
            match self.arrivals.poll(slot) {
                Copied::Pending => return None,
                Copied::Done => {}
                Copied::Gone | Copied::Failed(_) | Copied::Hung => errno = GONE,
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

    /// Waits until devices touch no memory but the slots.
    pub fn settle(&mut self) {
        self.out.wait();
        self.arrivals.wait();
    }
}
