//! The peer's requests on a connection: the memory that they may touch, and the answers, which keep
//! the requests' order. Without I/O: answers go into a `Batch`.
//!
//! A request is checked against our own registrations before its first byte is accepted, and a read
//! is checked again when its answer is made.

use super::socket::Outcome;
use super::staged::{Staged, Whose};
use super::stream::{Batch, Owner, FEW};
use crate::device::Device;
use crate::fabric::own::pool::Pool;
use crate::fabric::registry::{Allowed, Registry, Wish};
use crate::fabric::{Immediate, Reaped, GONE, ON_DISK};
use crate::ids::PeerId;
use crate::kernel_copy;
use crate::wire::tcp::{Answer, Piece, ANSWER, FLIGHTS, PIECES, RUN};
use std::collections::VecDeque;

/// An acknowledgement waits for a request if this many acknowledgements before it were followed by
/// one.
const RIDES: u8 = 4;

/// How the other end's writes and reads are handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reach {
    /// They wait until a peer has authenticated over the connection.
    #[default]
    Waits,
    Memory,
    /// They fail, since the peer has ended.
    Refused,
}

/// A read by the peer. `device` has the bytes, which are copied into `slot`.
pub struct Read {
    pub key: u64,
    pub len: u32,
    pub pieces: Vec<Piece>,
    pub device: Option<Device>,
    pub slot: Option<u32>,
}

enum Pending {
    Read(Read),
    Failed(i32),
}

/// Whether these bytes can still be read. A file that became shorter lacks the last of a piece.
#[cold]
fn are_there(pieces: &[Piece], registry: &Registry) -> bool {
    if registry.doubts() {
        return pieces.iter().all(|piece| kernel_copy::can_read_all(piece.address, u64::from(piece.len)));
    }
    let last = |piece: &Piece| piece.address + u64::from(piece.len) - 1;
    kernel_copy::can_read(pieces.iter().filter(|piece| piece.len > 0).map(last))
}

#[derive(Default)]
pub struct Incoming {
    pub owner: Option<PeerId>,
    pub reach: Reach,
    /// The other end knows the error numbers of disks.
    pub tells_disks: bool,
    /// The pieces of the request that is being received.
    pub pieces: Vec<Piece>,
    /// Requests of the peer that were settled, and those that were acknowledged.
    settled: u64,
    acknowledged: u64,
    /// Answers to be sent, with the numbers of their requests.
    pending: VecDeque<(u64, Pending)>,
    /// How many of the latest acknowledgements were followed by a request of ours in the same pass.
    rides: u8,
    /// The pass in which the last acknowledgement was sent alone.
    alone: u32,
    /// An acknowledgement waits for the next pass, or for a request of ours.
    held: bool,
}

impl Incoming {
    pub fn has_answers(&self) -> bool {
        !self.pending.is_empty() || self.owes()
    }

    /// Whether settled requests are not acknowledged yet.
    #[inline]
    fn owes(&self) -> bool {
        self.acknowledged != self.settled
    }

    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// Whether another request can be accepted, while devices copy `landing`. An honest peer has no
    /// more in flight; one that reads no answers would otherwise pile them up here.
    #[inline]
    pub fn has_room(&self, landing: usize) -> bool {
        self.pending.len() + landing < FLIGHTS
    }

    /// The connection has ended: nothing is answered.
    pub fn end(&mut self, pool: &mut Pool) {
        for (_, pending) in self.pending.drain(..) {
            if let Pending::Read(Read { slot: Some(slot), .. }) = pending {
                pool.give_back(slot);
            }
        }
    }

    /// Frees the buffers of requests, only while no answers are queued.
    pub fn shrink(&mut self) {
        if self.pending.capacity().max(self.pieces.capacity()) > FEW {
            (self.pending, self.pieces) = (VecDeque::new(), Vec::new());
        }
    }

    /// Bytes of its buffers.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.pending.capacity() * size_of::<(u64, Pending)>() + self.pieces.capacity() * size_of::<Piece>()
    }

    /// Checks that all pieces may be accessed, or returns an error number.
    #[inline]
    pub fn check(&self, key: u64, pieces: &[Piece], wish: Wish, registry: &mut Registry) -> Outcome<Allowed> {
        if self.reach != Reach::Memory {
            return Err(libc::EACCES);
        }
        let bytes = pieces.iter().map(|piece| (piece.address, piece.len.into()));
        registry.check(self.owner, key, bytes, wish)
    }

    /// The next request is finished.
    #[inline]
    pub fn settle(&mut self, errno: i32, immediate: Option<Immediate>, reaped: &mut Vec<Reaped>) {
        if errno == 0 {
            reaped.extend(immediate.map(Reaped::arrival));
        } else {
            self.pending.push_back((self.settled, Pending::Failed(errno)));
        }
        self.settled += 1;
    }

    /// The next request is a read.
    pub fn read(&mut self, read: Read) {
        self.pending.push_back((self.settled, Pending::Read(read)));
        self.settled += 1;
    }

    // Acknowledgements.

    /// Whether an acknowledgement, the only frame to send, waits for one pass, because a request
    /// lately followed each one: the answering side then sends both in one call.
    #[inline]
    pub fn holds(&mut self) -> bool {
        if !self.owes() || !self.pending.is_empty() || self.rides < RIDES {
            return false;
        }
        if std::mem::replace(&mut self.held, true) {
            (self.rides, self.held) = (0, false);
        }
        self.held
    }

    /// Requests are about to be made (`asks`), or an acknowledgement was sent without any.
    #[inline]
    pub fn watch(&mut self, asks: bool, pass: u32) {
        let owes = self.owes();
        if asks && (owes || self.alone == pass) {
            self.rides = (self.rides + 1).min(RIDES);
            self.alone = pass.wrapping_sub(1);
        } else if owes {
            self.alone = pass;
        }
        self.held &= !owes;
    }

    // Answers.

    /// Lets devices gather the bytes of reads.
    #[cold]
    pub fn gather(&mut self, whose: Whose, pool: &mut Pool, registry: &mut Registry) {
        for at in 0..self.pending.len() {
            let (_, Pending::Read(Read { key, pieces, device: Some(device), slot: None, .. })) =
                &self.pending[at]
            else {
                continue;
            };
            let Ok(Allowed { entered, .. }) = self.check(*key, pieces, Wish::Read, registry) else {
                continue; // The answer reports the error.
            };
            let places = pieces.iter().map(|piece| (piece.address, u64::from(piece.len)));
            // SAFETY: the memory is registered, and what takes it back waits for the copy (`Copying`).
            let gathered = unsafe { Staged::gather(whose, pool, *device, Some(*key), places, entered) };
            match (gathered, &mut self.pending[at].1) {
                (Ok(None), _) => return,
                (Ok(gathered), Pending::Read(read)) => read.slot = gathered,
                (Err(errno), pending) => *pending = Pending::Failed(errno),
                _ => {}
            }
        }
    }

    /// Acknowledges what was settled before the first answer.
    pub fn acknowledge(&mut self, batch: &mut Batch) {
        let settled = self.pending.front().map_or(self.settled, |(number, _)| *number);
        if self.acknowledged < settled {
            batch.copy(&Answer::Done(settled).bytes());
            self.acknowledged = settled;
        }
    }

    /// Answers as many requests as one call sends.
    #[inline]
    /// `asks`: requests of ours wait, for which space for one is left: a peer's reads without end delay
    /// no write.
    pub fn answer(
        &mut self,
        batch: &mut Batch,
        staged: &mut Option<Box<Staged>>,
        pool: &mut Pool,
        registry: &mut Registry,
        asks: bool,
    ) {
        let (kept_vectors, kept) = if asks { (1 + PIECES, RUN) } else { (0, 0) };
        while let Some((_, first)) = self.pending.front_mut() {
            if let Pending::Read(Read { slot: Some(slot), .. }) = first {
                match pool.poll(*slot) {
                    Ok(false) => return,
                    Ok(true) => {}
                    Err(errno) => *first = Pending::Failed(errno),
                }
            }
            let (vectors, len) = match first {
                Pending::Read(read) => (1 + read.pieces.len(), u64::from(read.len)),
                Pending::Failed(_) => (1, 0),
            };
            // One more: the acknowledgement at the end.
            if !batch.has_room(vectors + kept_vectors, 2 * ANSWER, len + kept) {
                return;
            }
            let Some((number, first)) = self.pending.pop_front() else { return };
            let answered = match first {
                Pending::Failed(errno) => Err(errno),
                Pending::Read(read) => {
                    let checked = match self.check(read.key, &read.pieces, Wish::Read, registry) {
                        Ok(allowed) if allowed.may_fault && !are_there(&read.pieces, registry) => Err(GONE),
                        checked => checked,
                    };
                    if checked.is_ok() && read.device.is_some() && read.slot.is_none() {
                        return self.pending.push_front((number, Pending::Read(read)));
                    }
                    if let Some((slot, staged)) = read.slot.zip(staged.as_mut()) {
                        staged.lent.push(slot);
                    }
                    checked.map(|allowed| (read, allowed))
                }
            };
            self.acknowledged = number + 1;
            batch.begin_frame();
            match answered {
                Err(errno) => {
                    let errno = if errno > ON_DISK && !self.tells_disks { GONE } else { errno };
                    batch.copy(&Answer::Failed { number, errno: errno as u32 }.bytes());
                }
                Ok((read, allowed)) => {
                    if allowed.may_fault {
                        batch.may_fault();
                    }
                    if let Some(entered) = allowed.entered {
                        batch.enter(entered);
                    }
                    batch.copy(&Answer::Data { number, len: read.len }.bytes());
                    if let Some(slot) = read.slot {
                        // SAFETY: the slot is ours, and stays until the batch is sent.
                        unsafe { batch.lend(Owner::Batch, pool.base(slot), read.len as usize) };
                        continue;
                    }
                    for piece in read.pieces.iter().filter(|piece| piece.len > 0) {
                        // SAFETY: the memory is registered, and stays so until `forget` takes it
                        // back.
                        unsafe { batch.lend(Owner::Key(read.key), piece.address, piece.len as usize) };
                    }
                }
            }
        }
        self.acknowledge(batch);
    }
}

#[cfg(test)]
mod tests {
    use super::super::stream::Spare;
    use super::*;
    use crate::fabric::{Access, HostRange};

    #[test]
    fn short_answers_share_a_call() {
        let memory = vec![0u8; 1 << 20];
        let base = memory.as_ptr() as u64;
        let mut registry = Registry::default();
        assert!(registry.add(7, HostRange { base, len: 1 << 20 }, Access::ALL, None));
        registry.begin_pass();
        for (len, together) in [(4u32 << 10, 64), (64 << 10, 16), (128 << 10, 8), (192 << 10, 5)] {
            let mut incoming = Incoming { reach: Reach::Memory, ..Incoming::default() };
            for _ in 0..64 {
                let pieces = vec![Piece { address: base, len }];
                incoming.read(Read { key: 7, len, pieces, device: None, slot: None });
            }
            let mut batch = Batch::default();
            batch.begin(&mut Spare::default());
            incoming.answer(&mut batch, &mut None, &mut Pool::default(), &mut registry, false);
            assert_eq!(64 - incoming.pending.len(), together, "answers of {len} bytes");
        }
    }
}
