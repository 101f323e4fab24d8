//! The buffers of a NIC between its connections and devices: slots that devices fill and empty. One pool for each NIC,
//! so that its memory does not grow with its peers.
//!
//! A peer, a direction and a memory of a disk each take a part at most, and slots are left for peers that have none, so
//! that none keeps the others waiting. A copy that hangs keeps its slot, and what it touches counts as in use
//! (`Copying`), until the disk has returned; once half of the slots are lost so, requests for disks fail at once.

use crate::device::staging::Slots;
use crate::device::{is_slow, Copied, Device};
use crate::fabric::copying::{Copy, Copying};
use crate::fabric::grants::Use;
use crate::fabric::{error_text, Connection, GONE, ON_DISK};
use crate::ids::PeerId;
use crate::logging::seldom::warn_seldom;
use crate::wire::tcp::RUN;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The slots: twice what a disk's queue takes.
const SLOTS: u32 = 64;
/// The most of one direction: received bytes never wait for slots whose bytes wait to be sent.
const OF_DIRECTION: usize = 40;
/// The same with the first ones of peers that have none.
const WITH_FIRST: usize = 56;
/// The most of one memory that its disk copies, or that are received for it.
const OF_MEMORY: usize = 20;
/// Requests for disks fail while this many slots hang, or this many of their memory.
const HUNG: usize = SLOTS as usize / 2;
const HUNG_OF_MEMORY: usize = OF_MEMORY / 2;
const TIMED_OUT: i32 = ON_DISK + libc::ETIMEDOUT;

/// Which slot is taken, and for whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Purpose {
    /// The bytes are sent.
    pub out: bool,
    pub connection: Connection,
    /// The device, and the key of a peer's request.
    pub device: Device,
    pub key: Option<u64>,
    pub peer: Option<PeerId>,
}

struct Taken {
    purpose: Purpose,
    /// While a device copies: what it touches, and the use of the grant.
    copies: Option<(Option<Copy>, Option<Use>)>,
    /// How they ended, or that they hang.
    errno: i32,
    hangs: bool,
    /// Nobody waits for them: the slot is free once they have ended. The request may have no answer.
    abandoned: bool,
    unanswered: bool,
}

impl Taken {
    /// Whether it counts where somebody takes another: a peer's disks keep none from its memory, and what is for our own
    /// operations none from what the peer asks, which these may wait for.
    fn is_share_of(&self, other: &Purpose) -> bool {
        let own = &self.purpose;
        let is_theirs = match own.peer.or(other.peer) {
            Some(_) => own.peer == other.peer,
            None => own.connection == other.connection,
        };
        let alike = own.out == other.out && is_slow(own.device) == is_slow(other.device);
        is_theirs && alike && own.key.is_some() == other.key.is_some() && !self.hangs
    }
}

#[derive(Default)]
pub struct Pool {
    slots: Option<Slots>,
    taken: Vec<Option<Taken>>,
    copying: Arc<Copying>,
    /// Slots became free, or copies ended, since connections looked.
    news: bool,
    /// Nothing was taken since the last look.
    rests: bool,
    unwatched: bool,
}

impl Pool {
    pub fn use_copying(&mut self, copying: Arc<Copying>) {
        self.copying = copying;
    }

    /// Something is under way for a request of a peer: a copy, or what is announced behind other copies.
    pub fn begin(&self, peer: Option<PeerId>, key: u64) -> Copy {
        self.copying.begin(peer, key)
    }

    /// Takes a slot; `give_back` it when its bytes are no longer needed. `Ok(None)`: none is free for this.
    pub fn take(&mut self, purpose: Purpose) -> Result<Option<u32>, i32> {
        let slow = is_slow(purpose.device);
        let is_its = |taken: &&Taken| {
            let waits_for_disk = taken.copies.is_some() || !taken.purpose.out;
            slow && purpose.key.is_some() && taken.purpose.key == purpose.key && waits_for_disk
        };
        let hangs = |taken: &&Taken| taken.hangs;
        let taken = || self.taken.iter().flatten();
        if slow
            && (taken().filter(hangs).count() >= HUNG
                || taken().filter(is_its).filter(hangs).count() >= HUNG_OF_MEMORY)
        {
            return Err(TIMED_OUT);
        }
        let theirs = self.count(|taken| taken.is_share_of(&purpose));
        let most = if theirs == 0 { WITH_FIRST } else { OF_DIRECTION };
        let free = most.saturating_sub(self.count(|taken| taken.purpose.out == purpose.out));
        // Of what is free, a peer may have as much as it has: others find some. Each connection may have one.
        let is_first = !self.has(purpose.out, purpose.connection);
        if free == 0 || theirs >= free && !is_first || taken().filter(is_its).count() >= OF_MEMORY {
            return Ok(None);
        }
        let Some(slot) = self.slots()?.take() else { return Ok(None) };
        self.rests = false;
        self.taken[slot as usize] = Some(Taken {
            purpose,
            copies: None,
            errno: 0,
            hangs: false,
            abandoned: false,
            unanswered: false,
        });
        Ok(Some(slot))
    }

    /// Whether it has memory.
    #[inline]
    pub fn exists(&self) -> bool {
        self.slots.is_some()
    }

    fn count(&self, is_one: impl Fn(&Taken) -> bool) -> usize {
        self.taken.iter().flatten().filter(|taken| is_one(taken)).count()
    }

    fn slots(&mut self) -> Result<&mut Slots, i32> {
        if self.slots.is_none() {
            let made = Slots::new(SLOTS, RUN).map_err(|error| {
                log::warn!("{error}");
                libc::ENOMEM
            })?;
            self.slots = Some(made);
            self.taken.resize_with(SLOTS as usize, || None);
        }
        self.slots.as_mut().ok_or(libc::ENOMEM)
    }

    /// Whether a connection has slots of a direction, other than what hangs.
    pub fn has(&self, out: bool, connection: Connection) -> bool {
        let is_its = |purpose: &Purpose| (purpose.out, purpose.connection) == (out, connection);
        self.count(|taken| is_its(&taken.purpose) && !taken.hangs) > 0
    }

    /// Whether slots were taken lately.
    #[inline]
    pub fn is_in_use(&self) -> bool {
        self.slots.is_some()
    }

    /// How many slots could be taken for sending.
    pub fn free_out(&self) -> usize {
        OF_DIRECTION - self.count(|taken| taken.purpose.out).min(OF_DIRECTION)
    }

    pub fn base(&self, slot: u32) -> u64 {
        self.slots.as_ref().map_or(0, |slots| slots.base(slot))
    }

    /// Starts a device's copies between a slot and places of its memory. An error: the slot is given back.
    ///
    /// # Safety
    /// The places are valid until the copies have ended (`poll`, `touches`), and fit the slot together.
    pub unsafe fn copy(
        &mut self,
        slot: u32,
        places: impl Iterator<Item = (u64, u64)>,
        entered: Option<Use>,
    ) -> Result<(), i32> {
        let Some(taken) = self.taken.get_mut(slot as usize).and_then(Option::as_mut) else {
            return Err(GONE);
        };
        let Purpose { out, device, key, peer, .. } = taken.purpose;
        taken.copies = Some((key.map(|key| self.copying.begin(peer, key)), entered));
        let Some(slots) = &mut self.slots else { return Err(GONE) };
        self.unwatched = true;
        // SAFETY: the places are valid until the copies have ended, which this function's contract says.
        unsafe { slots.copy(slot, out, device, places) }.map_err(|error| {
            log::warn!("{error}");
            self.free(slot);
            GONE
        })
    }

    /// Whether the copy of a slot has ended, or an error number: then the slot is the pool's again, which it keeps
    /// while the copy hangs.
    pub fn poll(&mut self, slot: u32) -> Result<bool, i32> {
        match self.ask(slot) {
            None => Ok(false),
            Some(0) => Ok(true),
            Some(errno) => {
                self.give_back(slot);
                Err(errno)
            }
        }
    }

    /// How the copy of a slot has ended, or that it hangs: an error number.
    fn ask(&mut self, slot: u32) -> Option<i32> {
        let slots = self.slots.as_mut()?;
        let taken = self.taken.get_mut(slot as usize)?.as_mut()?;
        if taken.copies.is_none() {
            return Some(taken.errno);
        }
        let errno = match slots.poll(slot) {
            Copied::Pending => return None,
            Copied::Done => 0,
            Copied::Gone => GONE,
            Copied::Failed(errno) => ON_DISK + errno,
            Copied::Hung => TIMED_OUT,
        };
        if errno > ON_DISK && taken.errno == 0 && !taken.abandoned {
            explain(&taken.purpose, errno - ON_DISK);
        }
        taken.errno = errno;
        let hangs = errno == TIMED_OUT && slots.is_slow(slot);
        // What waits for a slot may now have one, or an error.
        self.news |= hangs && !taken.hangs;
        taken.hangs = hangs;
        if !taken.hangs {
            taken.copies = None;
        }
        Some(errno)
    }

    fn free(&mut self, slot: u32) {
        if let Some(taken) = self.taken.get_mut(slot as usize) {
            *taken = None;
        }
        if let Some(slots) = &mut self.slots {
            slots.give_back(slot);
        }
        self.news = true;
    }

    /// A slot's bytes are no longer needed. If a device copies them, it is free when that has ended.
    pub fn give_back(&mut self, slot: u32) {
        match self.taken.get_mut(slot as usize).and_then(Option::as_mut) {
            Some(taken) if taken.copies.is_some() => {
                (taken.abandoned, taken.unanswered) = (true, !taken.hangs);
            }
            _ => self.free(slot),
        }
    }

    /// Waits for the copy of a slot, unless it waits for a disk.
    pub fn settle(&mut self, slot: u32) {
        while !self.slots.as_ref().is_some_and(|slots| slots.is_slow(slot)) && self.ask(slot).is_none() {
            std::hint::spin_loop();
        }
    }

    /// The same for all slots.
    pub fn settle_all(&mut self) {
        for slot in 0..self.taken.len() as u32 {
            if self.taken[slot as usize].is_some() {
                self.settle(slot);
            }
        }
    }

    /// Whether devices copy for requests of a peer that were not answered, since their connection has ended.
    pub fn touches(&self, peer: PeerId) -> bool {
        let is_theirs = |purpose: &Purpose| purpose.peer == Some(peer) && purpose.key.is_some();
        self.count(|taken| taken.unanswered && is_theirs(&taken.purpose)) > 0
    }

    /// Frees what nobody waits for; true if connections are to look at their slots. `heard`: a disk has said
    /// something.
    pub fn go_on(&mut self, heard: bool) -> bool {
        let Some(slots) = self.slots.as_mut() else { return false };
        if heard {
            slots.heard();
        }
        let polls = heard || slots.needs_polls();
        for slot in (0..self.taken.len() as u32).filter(|_| polls) {
            self.ask(slot);
            let over = |taken: &Taken| taken.abandoned && taken.copies.is_none();
            if self.taken[slot as usize].as_ref().is_some_and(over) {
                self.free(slot);
            }
        }
        std::mem::take(&mut self.news) || polls
    }

    /// Whether `go_on` may find something although no descriptor has become readable.
    pub fn is_busy(&self) -> bool {
        self.news || self.slots.as_ref().is_some_and(Slots::needs_polls)
    }

    /// Watches the descriptors of disks that are new.
    pub fn watch(&mut self, add: impl FnMut(BorrowedFd) -> bool) {
        if let Some(slots) = self.slots.as_mut().filter(|_| std::mem::take(&mut self.unwatched)) {
            slots.watch(add);
        }
    }

    /// Frees the memory if nothing was taken since the last call.
    pub fn rest(&mut self, remove: impl FnMut(BorrowedFd)) {
        // Not before its news were looked at: without slots it would have them for ever.
        if std::mem::replace(&mut self.rests, true) && !self.news && self.count(|_| true) == 0 {
            self.slots.take().inspect(|slots| slots.unwatch(remove));
        }
    }
}

#[cold]
fn explain(purpose: &Purpose, errno: i32) {
    let what = match (purpose.key.is_some(), purpose.out) {
        (true, true) => "a read by",
        (true, false) => "a write by",
        (false, true) => "the local file of a write to",
        (false, false) => "the local file of a read from",
    };
    let peer = purpose.peer.map_or(0, PeerId::get);
    warn_seldom!(
        "device {}: {what} peer {peer:#x} failed: {} (error {errno})",
        purpose.device,
        error_text(errno)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_of(pool: &mut Pool, purpose: Purpose) -> Vec<u32> {
        std::iter::from_fn(|| pool.take(purpose).unwrap()).collect()
    }

    fn of_peer(peer: u32, connection: Connection) -> Purpose {
        Purpose { out: true, connection, device: 0, key: None, peer: Some(PeerId::numbered(peer.into())) }
    }

    #[test]
    fn a_peer_that_has_nothing_can_take_while_others_stall() {
        let mut pool = Pool::default();
        let stalled: Vec<_> = (1..=3).map(|peer| all_of(&mut pool, of_peer(peer, peer)).len()).collect();
        assert_eq!(stalled, [20, 10, 5]);
        // The same peers with more and more connections.
        for connection in 4..100 {
            all_of(&mut pool, of_peer(connection % 3 + 1, connection));
        }
        let first = all_of(&mut pool, of_peer(7, 107));
        assert_eq!(first.len(), 1);
        assert_eq!(all_of(&mut pool, of_peer(8, 108)).len(), 1);
        pool.give_back(first[0]);
        assert!(!pool.has(true, 107) && all_of(&mut pool, of_peer(7, 107)).len() == 1, "again and again");
        (9..100).for_each(|peer| _ = all_of(&mut pool, of_peer(peer, peer)));
        let received = Purpose { out: false, ..of_peer(1, 1) };
        assert_eq!(all_of(&mut pool, received).len(), SLOTS as usize - WITH_FIRST, "the other direction");
    }

    #[test]
    fn slots_go_once_nobody_waits_for_them() {
        let mut pool = Pool::default();
        let slot = pool.take(of_peer(1, 1)).unwrap().unwrap();
        pool.rest(|_| ());
        pool.give_back(slot);
        pool.rest(|_| ());
        assert!(pool.is_busy() && pool.go_on(false) && !pool.is_busy());
        pool.rest(|_| ());
        assert!(!pool.exists() && !pool.is_busy());
    }

    #[test]
    fn a_peer_alone_leaves_others_their_part() {
        let mut pool = Pool::default();
        let connections = (1..=10).map(|connection| all_of(&mut pool, of_peer(1, connection)).len());
        assert_eq!(connections.sum::<usize>(), 20 + 9);
        assert!(all_of(&mut pool, of_peer(2, 20)).len() > 1);
        let served = Purpose { key: Some(1), ..of_peer(1, 30) };
        assert!(!all_of(&mut pool, served).is_empty(), "what it asks of us, as much as what we ask of it");
        let to_disk = Purpose { device: crate::device::FILE, ..of_peer(1, 1) };
        assert!(!all_of(&mut pool, to_disk).is_empty());
    }
}
