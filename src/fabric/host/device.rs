//! Device memory at the target. The target's own device copies a write's bytes, from memory that
//! the initiator passed; the initiator's device copies a read's (`pull`), from memory that the
//! target passes. Where devices do not reach each other, bytes go through the channel, and both
//! sides copy between it and their memory. Each request is checked like any other. Requests that a
//! device serves are answered in order, when their copies are done.
//!
//! Copies of a disk may take long, or hang: it copies to and from slots of the NIC's pool, which
//! outlive the channel.

use super::copies::Copies;
use super::parts::{Foreign, Parts, Passed, Passing, Reached};
use super::request::Piece;
use super::socket::Forgotten;
use crate::descriptor::Descriptor;
use crate::device::{driver, Device, Handle};
use crate::fabric::copying::Copy;
use crate::fabric::grants::Use;
use crate::fabric::own::pool::Pool;
use crate::fabric::{Immediate, Reaped};
use crate::range::Range;
use std::os::fd::BorrowedFd;

/// The cost of a piece in the byte budget of a pass, although the CPU copies nothing for it.
pub const COST: u64 = 256;
/// The most memories of ours that a peer may have open, and of the peer's that we have open.
const SHOWN: usize = 4096;
const OPENED: usize = 4096;

/// Device memory that the peer passed.
struct Opened {
    number: u32,
    handle: Handle,
    open: Option<Foreign>,
}

/// A slot that a disk fills with the bytes of a read, or empties.
#[derive(Clone, Copy)]
pub struct Slot {
    pub number: u32,
    pub filled: bool,
    pub len: u64,
}

/// A request's answer.
#[derive(Default)]
pub struct Answer {
    pub errno: i32,
    /// Announced in the request's turn, for which a revoke waits.
    pub immediate: Option<(Immediate, Option<Copy>)>,
    /// Keeps the grant in use until the bytes are copied.
    pub _entered: Option<Use>,
    /// A read whose bytes have a place in the channel already: where it begins.
    pub placed: Option<u64>,
    /// It is done when a disk has copied this.
    pub slot: Option<Slot>,
}

/// State of one channel.
#[derive(Default)]
pub struct Devices {
    opened: Vec<Opened>,
    parts: Parts,
    /// Memory of ours that the peer reads: its number, and its key.
    shown: Vec<(u32, u64)>,
    passing: Passing,
    forgotten: Forgotten,
    /// Requests without an answer, in order, and how many of them have a disk's slot.
    copies: Copies<Answer>,
    slots: usize,
    /// Reads among them whose bytes come from a disk.
    filling: usize,
    /// Reads among them that have a place in the channel.
    placed: usize,
}

impl Devices {
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    pub fn add(&mut self, number: u32, handle: Handle) {
        self.opened.push(Opened { number, handle, open: None });
    }

    /// Imports a part of memory of the peer's; false if there are too many.
    pub fn add_part(&mut self, number: u32, len: u64, file: Descriptor) -> bool {
        self.parts.add(number, len, file)
    }

    /// Whether one more memory of the peer's can be opened.
    pub fn has_room(&self) -> bool {
        self.opened.len() < OPENED
    }

    pub fn has(&self, number: u32) -> bool {
        self.opened.iter().any(|opened| opened.number == number)
    }

    /// The peer no longer writes from this memory; false if there is no such memory.
    pub fn forget(&mut self, number: u32) -> bool {
        let begun = self.parts.forget(number);
        let Some(at) = self.opened.iter().position(|opened| opened.number == number) else {
            return begun;
        };
        self.settle();
        self.opened.swap_remove(at);
        true
    }

    /// Starts the copies of a write into checked memory. An error number if they are not allowed,
    /// or not possible.
    pub fn copy(&mut self, number: u32, device: Device, pieces: &[Piece]) -> Result<(), i32> {
        let place = self.place_of(number, device)?;
        if !pieces.iter().all(|p| place.within(p.offset, p.len).is_some()) {
            return Err(libc::EACCES);
        }
        self.copies.choose(device)?;
        for piece in pieces {
            let Some(from) = place.within(piece.offset, piece.len) else { break };
            // SAFETY: the source lies inside memory that the peer passed, and the target inside a
            // registration of ours, which waits for this copy before it ends.
            unsafe { self.copies.add(from, piece.remote, piece.len) };
        }
        Ok(())
    }

    /// Starts copies between a pinned run of the channel and checked pieces (addresses and
    /// lengths). An error number if that is not possible.
    ///
    /// # Safety
    /// The run has as many bytes, and stays until the request is answered.
    pub unsafe fn stage(
        &mut self,
        device: Device,
        mut run: u64,
        into_run: bool,
        places: impl Iterator<Item = (u64, u64)>,
    ) -> Result<(), i32> {
        self.copies.choose(device)?;
        for (place, len) in places {
            let (from, to) = if into_run { (place, run) } else { (run, place) };
            // SAFETY: the run lies in the shared channel, and the piece inside a registration of ours,
            // which waits for this copy before it ends.
            unsafe { self.copies.add(from, to, len) };
            run += len;
        }
        Ok(())
    }

    /// Allows the peer to read: on first use, passes the handle by which the peer opens the memory.
    /// An error number if that is not possible; EAGAIN if the socket did not take all of it.
    pub fn show(
        &mut self,
        number: u32,
        key: u64,
        device: Device,
        range: &Range,
        socket: BorrowedFd,
    ) -> Result<(), i32> {
        if self.shown.contains(&(number, key)) {
            return Ok(());
        }
        if self.shown.len() + self.passing.len() >= SHOWN {
            return Err(libc::ENOBUFS);
        }
        if !self.forgotten.send(socket) {
            return Err(libc::EAGAIN);
        }
        let handle = driver(device).and_then(|driver| driver.share(device, range));
        let handle = handle.inspect_err(|error| log::info!("bytes go through the host: {error}"));
        match self.passing.pass(socket, (number, key), &handle.map_err(|_| libc::EIO)?) {
            Passed::All => {
                self.shown.push((number, key));
                Ok(())
            }
            Passed::Some => Err(libc::EAGAIN),
            Passed::Never => Err(libc::EIO),
        }
    }

    /// Ends a registration: the peer need not keep it open.
    pub fn hide(&mut self, key: u64, socket: BorrowedFd) {
        for number in self.passing.forget(|(_, shown)| shown == key) {
            self.forgotten.add(socket, number);
        }
        self.shown.retain(|(number, shown)| {
            if *shown == key {
                self.forgotten.add(socket, *number);
            }
            *shown != key
        });
    }

    /// Sends what a full socket did not take from `hide`.
    pub fn send_forgotten(&mut self, socket: BorrowedFd) {
        self.forgotten.send(socket);
    }

    fn place_of(&mut self, number: u32, device: Device) -> Result<Reached, i32> {
        let opened = self.opened.iter_mut().find(|opened| opened.number == number).ok_or(libc::EIO)?;
        let place = match &opened.open {
            Some(place) => place.place,
            None => {
                let place = self.parts.open(number, device, opened.handle).map_err(|_| libc::EIO)?;
                opened.open.insert(place).place
            }
        };
        // Only one device of ours reaches this memory; memory of other devices is staged.
        (place.device == device).then_some(place).ok_or(libc::EIO)
    }

    /// Adds a request behind the unanswered ones. `copied`: the last `copy` belongs to it.
    pub fn push(&mut self, answer: Answer, copied: bool) {
        self.slots += usize::from(answer.slot.is_some());
        self.filling += usize::from(answer.slot.is_some_and(|slot| slot.filled));
        self.placed += usize::from(answer.placed.is_some());
        self.copies.push(answer, copied);
    }

    /// The slot that the next answer waits for.
    pub fn next_slot(&self) -> Option<Slot> {
        self.copies.each().next()?.slot
    }

    /// Whether answers wait for disks.
    pub fn waits_for_disks(&self) -> bool {
        self.slots > 0
    }

    /// Whether bytes of reads are on their way from a disk.
    pub fn is_filling(&self) -> bool {
        self.filling > 0
    }

    /// Whether some reads without an answer have a place in the channel.
    pub fn has_placed(&self) -> bool {
        self.placed > 0
    }

    /// Ends a pass.
    pub fn pump(&mut self) {
        self.copies.pump();
    }

    /// The next answered request: its error number (`of_slot`, if not 0), and the place that it had in the channel. Its
    /// events go to `reaped`.
    pub fn take(&mut self, of_slot: i32, reaped: &mut Vec<Reaped>) -> Option<(i32, Option<u64>)> {
        let (Answer { errno, immediate, slot, placed, _entered }, failed) = self.copies.take()?;
        self.slots -= usize::from(slot.is_some());
        self.filling -= usize::from(slot.is_some_and(|slot| slot.filled));
        self.placed -= usize::from(placed.is_some());
        let errno = [of_slot, failed, errno].into_iter().find(|errno| *errno != 0).unwrap_or(0);
        if errno == 0 {
            reaped.extend(immediate.map(|(immediate, _)| Reaped::arrival(immediate)));
        }
        Some((errno, placed))
    }

    /// Waits until no device touches memory for this channel.
    pub fn settle(&mut self) {
        self.copies.settle();
    }

    /// Nothing is answered any longer. The slots are free when disks have copied them.
    pub fn give_up(&mut self, pool: &mut Pool) {
        self.settle();
        self.copies.each().filter_map(|answer| answer.slot).for_each(|slot| pool.give_back(slot.number));
        self.copies.clear();
        (self.slots, self.filling, self.placed) = (0, 0, 0);
    }

    /// Ends the channel: no further request comes, and no answer is expected.
    pub fn end(&mut self) {
        self.settle();
        self.parts.clear();
        self.opened.clear();
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        self.end();
    }
}
