//! How a connection moves device memory: through slots of its NIC (`Pool`) that devices copy to and from, while the
//! socket sends or receives other slots.

use super::incoming::Read;
use super::socket::Outcome;
use crate::device::Device;
use crate::fabric::copying::Copy;
use crate::fabric::grants::Use;
use crate::fabric::own::pool::{Pool, Purpose};
use crate::fabric::{Connection, Immediate};
use crate::ids::PeerId;
use std::collections::VecDeque;

/// Slots that are filled together: a launch takes the worker as long as 64 KiB.
const TOGETHER: usize = 8;

/// The step behind a copy.
pub enum Next {
    /// A request of the peer is settled, and what it announces, for which a revoke waits.
    Settled(i32, Option<(Immediate, Option<Copy>)>),
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

#[derive(Default)]
pub struct Staged {
    pub ahead: VecDeque<Run>,
    /// Slots in the current batch.
    pub lent: Vec<u32>,
    /// The slot of the payload that is being received.
    arriving: Option<u32>,
    landing: VecDeque<(Next, Option<u32>)>,
}

/// A connection's slots: what they are for.
#[derive(Clone, Copy)]
pub struct Whose {
    pub connection: Connection,
    pub peer: Option<PeerId>,
}

impl Whose {
    fn takes(self, out: bool, device: Device, key: Option<u64>) -> Purpose {
        Purpose { out, connection: self.connection, device, key, peer: self.peer }
    }
}

impl Staged {
    // Sending.

    /// Whether slots should be filled now: many together, or the connection has none.
    pub fn gathers(whose: Whose, pool: &Pool) -> bool {
        pool.free_out() >= TOGETHER || !pool.has(true, whose.connection)
    }

    /// Starts to fill a slot from device memory; `Ok(None)`: no slot is free. `key`: for a request of the peer.
    ///
    /// # Safety
    /// The memory is valid until the copy is done, and is no longer than a run.
    pub unsafe fn gather(
        whose: Whose,
        pool: &mut Pool,
        device: Device,
        key: Option<u64>,
        places: impl Iterator<Item = (u64, u64)>,
        entered: Option<Use>,
    ) -> Outcome<Option<u32>> {
        let Some(slot) = pool.take(whose.takes(true, device, key))? else { return Ok(None) };
        // SAFETY: the places are valid until the copy is done, which this function's contract says.
        unsafe { pool.copy(slot, places, entered) }.map(|()| Some(slot))
    }

    /// Whether what goes next is an operation's, of `most` bytes, and is there.
    pub fn is_ahead(&mut self, pool: &mut Pool, op: u32, most: u64) -> Outcome<bool> {
        let next = self.ahead.front().filter(|run| run.op == op && run.len <= most);
        let Some(Run { slot: Some(slot), .. }) = next else { return Ok(next.is_some()) };
        pool.poll(*slot).inspect_err(|_| _ = self.ahead.pop_front())
    }

    /// An operation has ended: its gathered bytes are not sent.
    pub fn drop_ahead(&mut self, pool: &mut Pool, op: u32) {
        while let Some(run) = self.ahead.front().filter(|run| run.op == op) {
            if let Some(slot) = run.slot {
                pool.settle(slot);
                pool.give_back(slot);
            }
            self.ahead.pop_front();
        }
    }

    /// The batch is sent.
    pub fn sent(&mut self, pool: &mut Pool) {
        self.lent.drain(..).for_each(|slot| pool.give_back(slot));
    }

    // Receiving.

    /// The slot for the next payload; `Ok(None)`: none is free. `key`: for a request of the peer.
    pub fn expect(
        &mut self,
        whose: Whose,
        pool: &mut Pool,
        device: Device,
        key: Option<u64>,
    ) -> Outcome<Option<u64>> {
        self.arriving = pool.take(whose.takes(false, device, key))?;
        Ok(self.arriving.map(|slot| pool.base(slot)))
    }

    /// The payload was received: starts to copy it to its destination.
    ///
    /// # Safety
    /// The same contract as `gather`.
    pub unsafe fn arrived(
        &mut self,
        pool: &mut Pool,
        places: impl Iterator<Item = (u64, u64)>,
        entered: &mut Option<Use>,
    ) -> Outcome<Option<u32>> {
        let Some(slot) = self.arriving.take() else { return Ok(None) };
        // SAFETY: the places are valid until the copy is done, which this function's contract says.
        unsafe { pool.copy(slot, places, entered.take()) }.map(|()| Some(slot))
    }

    /// Discards the payload.
    pub fn refuse(&mut self, pool: &mut Pool) {
        if let Some(slot) = self.arriving.take() {
            pool.give_back(slot);
        }
    }

    /// Adds a step behind all started copies, and behind the copy out of a slot.
    pub fn push(&mut self, next: Next, slot: Option<u32>) {
        self.landing.push_back((next, slot));
    }

    /// The next step whose turn it is, and an error number if its bytes could not be copied.
    pub fn take(&mut self, pool: &mut Pool) -> Option<(Next, i32)> {
        let mut errno = 0;
        if let Some(slot) = self.landing.front()?.1 {
            match pool.poll(slot) {
                Ok(false) => return None,
                Ok(true) => pool.give_back(slot),
                Err(failed) => errno = failed,
            }
        }
        self.landing.pop_front().map(|(next, _)| (next, errno))
    }

    #[inline]
    pub fn is_landing(&self) -> bool {
        !self.landing.is_empty()
    }

    pub fn landing(&self) -> usize {
        self.landing.len()
    }

    pub fn is_idle(&self) -> bool {
        self.ahead.is_empty() && self.lent.is_empty() && self.arriving.is_none() && self.landing.is_empty()
    }

    /// Waits for the copies of operations, but for those of disks.
    pub fn settle(&mut self, pool: &mut Pool, is_theirs: impl Fn(u32) -> bool) {
        let ahead = self.ahead.iter().filter(|run| is_theirs(run.op)).filter_map(|run| run.slot);
        let landing = self.landing.iter().filter_map(|(next, slot)| match next {
            Next::Data(op) if is_theirs(*op) => *slot,
            _ => None,
        });
        ahead.chain(landing).for_each(|slot| pool.settle(slot));
    }

    /// The connection has ended: what is left are copies for our own operations.
    pub fn end(&mut self, pool: &mut Pool) {
        self.sent(pool);
        self.refuse(pool);
        self.landing.retain(|(next, slot)| {
            if let (Next::Data(_), Some(_)) = (next, slot) {
                return true;
            }
            let gathered = if let Next::Answer(read) = next { read.slot } else { None };
            for slot in [gathered, *slot].into_iter().flatten() {
                pool.give_back(slot);
            }
            false
        });
    }

    /// Operations whose memory devices may still copy, after the end. `is_gone`: those that have ended.
    pub fn copied(&mut self, pool: &mut Pool, is_gone: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut copied = Vec::new();
        let mut is_copied = |op: u32, slot: u32| {
            let waits = pool.poll(slot);
            if waits == Ok(true) || is_gone(op) && waits.is_ok() {
                pool.give_back(slot);
            }
            let waits = waits == Ok(false) && !is_gone(op);
            copied.extend(waits.then_some(op));
            waits
        };
        self.ahead.retain(|run| run.slot.is_some_and(|slot| is_copied(run.op, slot)));
        self.landing.retain(|(next, slot)| match (next, slot) {
            (Next::Data(op), Some(slot)) => is_copied(*op, *slot),
            _ => false,
        });
        copied
    }
}
