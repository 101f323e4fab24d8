//! Device memory at the target. A write's bytes are copied by the target's own device,
//! from memory that the initiator passed; a read's by the initiator's (`pull`), from
//! memory that the target passes. Where devices do not reach each other, bytes go through the
//! channel, which both copy from and to. Each request is checked as any other. Those that a
//! device does are answered, in order, when it has.

use super::copies::Copies;
use super::request::Piece;
use super::socket;
use crate::device::{driver, present, Device, Handle};
use crate::fabric::grants::Use;
use crate::fabric::{Immediate, Reaped};
use std::os::fd::BorrowedFd;

/// The cost of a piece in the byte budget of a pass, although the CPU copies nothing here.
pub const COST: u64 = 256;
/// Memories of ours that a peer may have open at once, and of its that we may.
const SHOWN: usize = 4096;
const OPENED: usize = 4096;

/// Device memory of the peer's.
struct Opened {
    number: u32,
    handle: Handle,
    /// The device of ours that reaches it, and where it is there, and how long.
    at: Option<(Device, (u64, u64))>,
}

/// A request's answer.
struct Answer {
    errno: i32,
    immediate: Option<Immediate>,
    /// The use of a grant, until its bytes are copied.
    _entered: Option<Use>,
}

/// State of one channel.
#[derive(Default)]
pub struct Devices {
    opened: Vec<Opened>,
    /// Memory of ours that the peer reads: by what number, and its key.
    shown: Vec<(u32, u64)>,
    /// Requests that are not answered yet, in order.
    copies: Copies<Answer>,
}

impl Devices {
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    pub fn add(&mut self, number: u32, handle: Handle) {
        self.opened.push(Opened { number, handle, at: None });
    }

    /// For one more of the peer's.
    pub fn has_room(&self) -> bool {
        self.opened.len() < OPENED
    }

    pub fn has(&self, number: u32) -> bool {
        self.opened.iter().any(|opened| opened.number == number)
    }

    /// The peer writes from it no more; false if there is no such memory.
    pub fn forget(&mut self, number: u32) -> bool {
        let Some(at) = self.opened.iter().position(|opened| opened.number == number) else { return false };
        self.settle();
        self.opened.swap_remove(at).close();
        true
    }

    /// Begins a write's copies, to what was checked. An error number: they may not be, or cannot.
    pub fn copy(&mut self, number: u32, device: Device, pieces: &[Piece]) -> Result<(), i32> {
        let (base, len) = self.place_of(number, device)?;
        if !pieces.iter().all(|p| p.offset <= len && p.len <= len - p.offset) {
            return Err(libc::EACCES);
        }
        self.copies.choose(device)?;
        for piece in pieces {
            // SAFETY: inside what the peer passed, and inside a registration of ours, which
            // waits for us before it ends.
            unsafe { self.copies.add(base + piece.offset, piece.remote, piece.len) };
        }
        Ok(())
    }

    /// Begins to copy between a run of the channel, which was pinned, and what was checked: places
    /// and lengths. An error number: it cannot.
    ///
    /// # Safety
    /// The run is as long, and stays until it is answered.
    pub unsafe fn stage(
        &mut self,
        device: Device,
        (mut run, into_run): (u64, bool),
        places: impl Iterator<Item = (u64, u64)>,
    ) -> Result<(), i32> {
        self.copies.choose(device)?;
        for (place, len) in places {
            let (from, to) = if into_run { (place, run) } else { (run, place) };
            // SAFETY: as promised; and inside a registration of ours, which waits for us before it ends.
            unsafe { self.copies.add(from, to, len) };
            run += len;
        }
        Ok(())
    }

    /// The peer may read so: the first time it is passed what it opens the memory by. An error
    /// number: it cannot.
    pub fn show(
        &mut self,
        (number, key): (u32, u64),
        device: Device,
        address: u64,
        socket: BorrowedFd,
    ) -> Result<(), i32> {
        if self.shown.contains(&(number, key)) {
            return Ok(());
        }
        if self.shown.len() >= SHOWN {
            return Err(libc::ENOBUFS);
        }
        let handle = driver().and_then(|driver| driver.share(device, address));
        let handle = handle.inspect_err(|error| log::info!("bytes go through the host: {error}"));
        if !handle.is_ok_and(|handle| socket::pass_device(socket, number, &handle)) {
            return Err(libc::EIO);
        }
        self.shown.push((number, key));
        Ok(())
    }

    /// A registration ends: the peer need not keep it open.
    pub fn hide(&mut self, key: u64, socket: BorrowedFd) {
        self.shown.retain(|(number, of)| {
            if *of == key {
                socket::forget_area(socket, *number);
            }
            *of != key
        });
    }

    /// The peer has closed what it knew by this number.
    pub fn unread(&mut self, number: u32) {
        self.shown.retain(|(of, _)| *of != number);
    }

    fn place_of(&mut self, number: u32, device: Device) -> Result<(u64, u64), i32> {
        let opened = self.opened.iter_mut().find(|opened| opened.number == number).ok_or(libc::EIO)?;
        match opened.at {
            Some((of, place)) if of == device => Ok(place),
            // Reached by one device of ours alone; memory of other devices is staged.
            Some(_) => Err(libc::EIO),
            None => {
                let place = driver().and_then(|driver| driver.open(device, &opened.handle));
                let place = place.inspect_err(|error| log::info!("bytes go through the host: {error}"));
                let place = place.map_err(|_| libc::EIO)?;
                opened.at = Some((device, place));
                Ok(place)
            }
        }
    }

    /// A request follows those that are not answered. `copied`: by the last `copy`.
    pub fn push(&mut self, errno: i32, immediate: Option<Immediate>, copied: bool, entered: Option<Use>) {
        self.copies.push(Answer { errno, immediate, _entered: entered }, copied);
    }

    /// Ends a pass.
    pub fn pump(&mut self) {
        self.copies.pump();
    }

    /// The next request whose turn it is: its error number. What it tells goes to `reaped`.
    pub fn take(&mut self, reaped: &mut Vec<Reaped>) -> Option<i32> {
        let (Answer { errno, immediate, .. }, failed) = self.copies.take()?;
        let errno = if failed != 0 { failed } else { errno };
        if errno == 0 {
            reaped.extend(immediate.map(Reaped::arrival));
        }
        Some(errno)
    }

    /// Waits until no device touches memory for it.
    pub fn settle(&mut self) {
        self.copies.settle();
    }

    /// Ends it: no request comes any longer, and no answer is expected.
    pub fn end(&mut self) {
        self.settle();
        self.opened.drain(..).for_each(Opened::close);
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        self.end();
    }
}

impl Opened {
    fn close(self) {
        if let (Some((device, _)), Some(driver)) = (self.at, present()) {
            driver.close(device, &self.handle);
        }
    }
}
