//! Writes between devices' memory: the target opens what the initiator passed, checks
//! each request as any other, and has its own device copy. Many requests go in one
//! launch; they are answered, in order, when it is done.

use super::registry::Registry;
use super::request::Piece;
use crate::fabric::{Immediate, Reaped, GONE};
use crate::memory::device::{driver, present, Copier, Device, Handle};
use std::collections::VecDeque;

/// Bytes that are begun while others are under way: a launch takes the worker about 5 us,
/// in which NVLink carries half of this.
const ENOUGH: u64 = 4 << 20;
/// Copiers of a device, in turn: the end of one launch and the beginning of the next
/// overlap.
const COPIERS: usize = 3;
/// What a piece costs of the bytes that a pass may copy: nothing is copied here.
pub const COST: u64 = 256;

/// Device memory of the peer's.
struct Opened {
    number: u32,
    handle: Handle,
    /// The device of ours that reaches it, and where it is there, and how long.
    at: Option<(Device, (u64, u64))>,
}

/// A request that was done, but not before those before it.
struct Begun {
    errno: i32,
    immediate: Option<Immediate>,
    /// The launch that does it: a copier, and whether it has begun.
    launch: Option<(usize, Launch)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Launch {
    Gathered,
    Begun(u64),
}

/// One channel's.
#[derive(Default)]
pub struct Devices {
    opened: Vec<Opened>,
    copiers: Vec<(Device, Box<dyn Copier>)>,
    /// Requests that are not answered yet, in order.
    begun: VecDeque<Begun>,
    /// Bytes that were gathered for no launch yet, and of which copier.
    gathered: u64,
    filling: usize,
    turn: usize,
    /// The key that was looked at last in this pass.
    checked: Option<u64>,
}

impl Devices {
    pub fn is_empty(&self) -> bool {
        self.begun.is_empty()
    }

    pub fn add(&mut self, number: u32, handle: Handle) {
        self.opened.push(Opened { number, handle, at: None });
    }

    pub fn count(&self) -> usize {
        self.opened.len()
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

    /// Begins a request's copies. An error number: they may not be, or cannot.
    pub fn copy(
        &mut self,
        number: u32,
        key: u64,
        pieces: &[Piece],
        registry: &mut Registry,
    ) -> Result<(), i32> {
        let mut device = None;
        for piece in pieces {
            let of = registry.allows_device(key, piece.remote, piece.len).ok_or(libc::EACCES)?;
            device = Some(of);
        }
        let Some(device) = device else { return Err(libc::EACCES) };
        let (base, len) = self.place_of(number, device)?;
        if !pieces.iter().all(|p| p.offset <= len && p.len <= len - p.offset) {
            return Err(libc::EACCES);
        }
        if self.checked != Some(key) && !is_there(registry.identity_of(key)) {
            return Err(GONE);
        }
        self.checked = Some(key);
        if self.gathered == 0 || self.copiers[self.filling].0 != device {
            self.launch();
            self.filling = self.copier(device)?;
        }
        let copier = self.filling;
        for piece in pieces {
            // SAFETY: inside what the peer passed, and inside a registration of ours, which
            // waits for us before it ends.
            unsafe { self.copiers[copier].1.add(base + piece.offset, piece.remote, piece.len) };
            self.gathered += piece.len.max(1);
        }
        Ok(())
    }

    fn place_of(&mut self, number: u32, device: Device) -> Result<(u64, u64), i32> {
        let opened = self.opened.iter_mut().find(|opened| opened.number == number).ok_or(libc::EIO)?;
        match opened.at {
            Some((of, place)) if of == device => Ok(place),
            // One device of ours reaches it; to others' memory bytes are staged.
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

    /// A request follows those that are not answered. `copied`: by the last `copy`.
    pub fn push(&mut self, errno: i32, immediate: Option<Immediate>, copied: bool) {
        let launch = copied.then_some((self.filling, Launch::Gathered));
        self.begun.push_back(Begun { errno, immediate, launch });
    }

    /// Ends a pass: begins what was gathered, unless enough is under way.
    pub fn pump(&mut self) {
        self.checked = None;
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

    /// The next request whose turn it is: its error number. What it tells goes to `reaped`.
    pub fn take(&mut self, reaped: &mut Vec<Reaped>) -> Option<i32> {
        let begun = self.begun.front()?;
        let mut errno = begun.errno;
        match begun.launch {
            None => {}
            Some((_, Launch::Gathered)) => return None,
            Some((copier, Launch::Begun(ticket))) => match self.copiers[copier].1.is_done(ticket) {
                Ok(false) => return None,
                Ok(true) => {}
                Err(_) => errno = GONE,
            },
        }
        if errno == 0 {
            reaped.extend(begun.immediate.map(Reaped::arrival));
        }
        self.begun.pop_front();
        Some(errno)
    }

    /// Waits until no device touches memory for it.
    pub fn settle(&mut self) {
        self.launch();
        self.copiers.iter_mut().for_each(|(_, copier)| copier.wait());
    }

    /// Nothing more comes, and nobody waits for an answer.
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

/// Whether device memory was not freed: an address, and what was there.
fn is_there(registered: Option<(u64, u64)>) -> bool {
    let Some((address, identity)) = registered else { return false };
    present().and_then(|driver| driver.identity(address)) == Some(identity)
}
