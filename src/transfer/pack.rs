//! Bundles: how bytes go to or from memory of devices that no NIC reaches.
//!
//! The sender gathers pages, or parts of them, into a slot of its staging memory, writes the slot to
//! the same place of the peer's landing, and announces it with a control frame
//! that says where each piece belongs. The target checks that against its own
//! registrations, scatters, and acknowledges: then the slot is free, and the
//! slices have arrived. Frames and writes of a lane keep their order; where they do
//! not, a bundle is announced once its write is done.
//!
//! Devices copy behind the worker's back: a bundle is posted once its pieces are in its slot,
//! and acknowledged once they are in their places. A read is a frame that lists what is
//! wanted (`fetch`), and an answer in a bundle.

use super::fetch::{Fetcher, Spot};
use crate::codec::Reader;
use crate::device::staging::Stage;
use crate::device::Device;
use crate::fabric::{Immediate, Limits, Posted, Rma, Segment};
use crate::ids::MemoryId;
use crate::rail::{Burst, Frame, Lane, Rail, Tag, Work};
use crate::status::{Result, Status};
use crate::wire::frame::Slots;
use crate::wire::seal::SEAL;
use crate::wire::HEADER;
use std::collections::VecDeque;
use std::fmt;

/// Slots of a lane, and the bytes of one where there are no devices.
pub const SLOTS: u32 = 8;
pub const HOST_LEN: u64 = 256 << 10;
/// Bytes of a slot where there are devices, which fill all of it: launches, frames and looks at
/// the device cost 15 us for each, and caches do not matter.
const DEVICE_LEN: u64 = 1 << 20;
/// Writes of a lane's pass where devices gather: the others are gathered meanwhile, by one
/// launch. (Over tcp a write takes as long as the kernel copies.)
const WRITES: u32 = SLOTS / 2;
/// Pieces of a bundle: what a frame's list has room for.
const PIECES: usize = 480;
/// Bytes of the list's parts: the memory's id with the immediate that each piece counts for (0:
/// none), and each piece.
const MEMORY: usize = 16;
const PIECE: usize = 16;

/// Of a bundle that belongs to no stripe of ours: it answers a peer.
const NO_STRIPE: u32 = u32::MAX;

/// Whether a rail's lanes can carry bundles.
pub fn is_possible(limits: &Limits) -> bool {
    has_room(limits.message_max)
}

/// Whether messages of this many bytes have room for what tells of a bundle.
pub fn has_room(message_max: usize) -> bool {
    message_max >= HEADER + SEAL + MEMORY + PIECES * PIECE
}

/// Whether to have a landing. Where no NIC learns of it, it costs nothing until it is
/// used.
pub fn is_wanted(limits: &Limits) -> bool {
    let is_cheap = !limits.local_registration || crate::device::present().is_some();
    is_possible(limits) && is_cheap
}

/// Bytes of each slot of a new lane.
pub fn slot_len() -> u64 {
    if crate::device::present().is_some() {
        DEVICE_LEN
    } else {
        HOST_LEN
    }
}

/// Whether slots of this many bytes can be.
pub fn is_slot(len: u64) -> bool {
    (HOST_LEN..=DEVICE_LEN).contains(&len)
}

/// One piece of a bundle, as the frame lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub range: u32,
    pub len: u32,
    pub offset: u64,
    /// More of the same page follows: it does not count yet.
    pub goes_on: bool,
}

/// In the word of a piece's length.
const GOES_ON: u32 = 1 << 31;

/// What is said of bundles in a frame: their number, then the rest.
pub enum Word<'a> {
    Bundle(u32, &'a [u8]),
    Fetch(u32, &'a [u8]),
    /// Which fetch the bundle answers, and whether its bytes are there.
    Fetched(u32, u32, Status),
}

/// Writes a frame, and says its length.
pub type Say<'a> = &'a dyn Fn(&Word, &mut [u8]) -> usize;

/// A bundle on its way.
#[derive(Default)]
pub struct Bundle {
    pub stripe: u32,
    pub slices: u32,
    pub bytes: u64,
    pub sampled: bool,
    /// Its write is done.
    delivered: bool,
    /// The fetch that it answers, and how that went.
    answers: Option<(u32, Status)>,
    /// The memory's id and the immediate, then the pieces.
    pub list: Vec<u8>,
}

impl Bundle {
    pub fn begin(&mut self, memory: MemoryId, immediate: Option<Immediate>) {
        self.list.clear();
        self.list.extend_from_slice(&memory.get().to_le_bytes());
        self.list.extend_from_slice(&u64::from(immediate.map_or(0, Immediate::get)).to_le_bytes());
        (self.slices, self.bytes, self.delivered, self.answers) = (0, 0, false, None);
    }

    fn note(&mut self, piece: &Piece, slices: u32) {
        self.bytes += u64::from(piece.len);
        self.slices += slices;
        let mut entry = [0; PIECE];
        let len = piece.len | if piece.goes_on { GOES_ON } else { 0 };
        entry[0..4].copy_from_slice(&piece.range.to_le_bytes());
        entry[4..8].copy_from_slice(&len.to_le_bytes());
        entry[8..16].copy_from_slice(&piece.offset.to_le_bytes());
        self.list.extend_from_slice(&entry);
    }
}

/// What an acknowledged bundle gives back to its stripe.
pub struct Landed {
    pub stripe: u32,
    pub slices: u32,
    pub bytes: u64,
    pub sampled: bool,
}

/// The sender's end, of one lane.
pub struct Packer {
    stage: Stage,
    staging: Frame,
    landing: Slots,
    /// Bytes of a slot here, and of what both ends have room for.
    slot: u64,
    most: u64,
    slots: Box<[Bundle]>,
    /// Bundles so far: gathered, written, announced, acknowledged.
    gathered: u32,
    written: u32,
    announced: u32,
    acknowledged: u32,
    /// Frames follow the writes before them.
    follows: bool,
    pub fetcher: Fetcher,
    /// Stripes whose bytes could not be gathered.
    lost: Vec<u32>,
}

impl Packer {
    pub fn new(rail: &mut Rail, landing: Slots, slot: u64) -> Result<Packer> {
        let len = slot * u64::from(SLOTS);
        let staging = rail.make_frame(len as usize, false)?;
        let most = slot.min(landing.len);
        Ok(Packer {
            stage: Stage::new(staging.address() as u64, len, SLOTS),
            staging,
            landing,
            slot,
            most,
            slots: (0..SLOTS).map(|_| Bundle::default()).collect(),
            gathered: 0,
            written: 0,
            announced: 0,
            acknowledged: 0,
            follows: rail.limits().sends_follow_writes,
            fetcher: Fetcher::new(most),
            lost: Vec::new(),
        })
    }

    /// Gives the staging memory back; nothing of it may be in flight.
    pub fn close(self, rail: &mut Rail) {
        drop(self.stage);
        rail.drop_frame(self.staging);
    }

    /// Waits until no device reads for it.
    pub fn settle(&mut self) {
        self.stage.wait();
    }

    /// Bytes of a bundle that fills its slot.
    pub fn most(&self) -> u64 {
        self.most
    }

    pub fn has_slot(&self) -> bool {
        self.gathered.wrapping_sub(self.acknowledged) < SLOTS
    }

    /// Bundles wait to be posted or announced.
    pub fn is_behind(&self) -> bool {
        self.announced != self.gathered || self.fetcher.is_behind()
    }

    /// Bundles are not acknowledged.
    pub fn is_awaiting(&self) -> bool {
        self.acknowledged != self.gathered || self.fetcher.is_awaiting()
    }

    /// The write of a slot is done.
    pub fn delivered(&mut self, slot: u32) {
        if let Some(bundle) = self.slots.get_mut(slot as usize) {
            bundle.delivered = true;
        }
    }

    /// A stripe whose bytes could not be gathered.
    pub fn take_lost(&mut self) -> Option<u32> {
        self.lost.pop()
    }

    /// Begins a bundle for a memory of the peer's, each of whose pieces raises a counter if there
    /// is an immediate; `None` without a free slot. `device`: the one that has the bytes.
    pub fn gather(
        &mut self,
        memory: MemoryId,
        immediate: Option<Immediate>,
        device: Option<Device>,
    ) -> Result<Option<Gathering<'_>>> {
        if !self.has_slot() {
            return Ok(None);
        }
        let copier = device.map(|device| self.stage.copier(device)).transpose()?;
        let slot = self.gathered % SLOTS;
        let bundle = &mut self.slots[slot as usize];
        bundle.begin(memory, immediate);
        let base = self.staging.address() as u64 + u64::from(slot) * self.slot;
        let into = match copier {
            None => Into::Staging { base },
            Some(copier) => Into::Stage { base, stage: &mut self.stage, copier, slot },
        };
        Ok(Some(Gathering { bundle, into, most: self.most, count: &mut self.gathered }))
    }

    /// As `gather`, of what the peer fetches.
    pub fn answer(
        &mut self,
        fetch: u32,
        status: Status,
        device: Option<Device>,
    ) -> Result<Option<Gathering<'_>>> {
        let mut gathering = self.gather(MemoryId::default(), None, device)?;
        if let Some(gathering) = &mut gathering {
            gathering.bundle.answers = Some((fetch, status));
        }
        Ok(gathering)
    }

    /// Posts what has been gathered, and asks for what is to be fetched, as far as there
    /// is room.
    pub fn advance(
        &mut self,
        rail: &mut Rail,
        lane: &mut Lane,
        now: u64,
        say: Say,
    ) -> std::result::Result<(), i32> {
        let mut most = if self.stage.is_used() { WRITES } else { SLOTS };
        while most > 0 && self.write(rail, lane, now)? {
            most -= 1;
        }
        self.announce(rail, lane, say)?;
        self.fetcher.advance(rail, lane, say)
    }

    /// Tells of bundles that were written.
    fn announce(&mut self, rail: &mut Rail, lane: &mut Lane, say: Say) -> std::result::Result<(), i32> {
        while self.announced != self.written {
            let number = self.announced;
            let bundle = &self.slots[(number % SLOTS) as usize];
            if !self.follows && !bundle.delivered && bundle.bytes > 0 {
                break;
            }
            let word = match bundle.answers {
                None => Word::Bundle(number, &bundle.list),
                Some((fetch, status)) => Word::Fetched(number, fetch, status),
            };
            match rail.send_behind(lane, |frame| say(&word, frame)) {
                Posted::Yes => self.announced = number.wrapping_add(1),
                Posted::Again => break,
                Posted::Failed(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Whether the bytes of the next bundle to be written are there.
    fn is_gathered(&mut self, slot: u32) -> bool {
        let done = self.stage.is_done(slot);
        let bundle = &mut self.slots[slot as usize];
        match done {
            Ok(done) => return done,
            // It goes all the same, with nothing in it: the order of bundles stays.
            Err(_) if bundle.answers.is_none() => {
                bundle.list.truncate(MEMORY);
                self.lost.push(bundle.stripe);
            }
            Err(_) => bundle.answers = bundle.answers.map(|(fetch, _)| (fetch, Status::MemoryGone)),
        }
        true
    }

    /// Posts the write of the next bundle, if that was gathered; whether there may be more.
    fn write(&mut self, rail: &mut Rail, lane: &mut Lane, now: u64) -> std::result::Result<bool, i32> {
        let slot = self.written % SLOTS;
        if self.written == self.gathered || !self.is_gathered(slot) {
            return Ok(false);
        }
        let Bundle { bytes, slices, .. } = self.slots[slot as usize];
        if bytes > 0 {
            let local = self.staging.address() as u64 + u64::from(slot) * self.slot;
            let remote = self.landing.address.wrapping_add(u64::from(slot) * self.landing.len);
            let rma = Rma {
                read: false,
                segments: &[Segment { local, remote, len: bytes }],
                descriptor: self.staging.descriptor(),
                key: self.landing.key,
                immediate: None,
                more: false,
            };
            let tag = Tag { len: bytes, ..Tag::new(Work::Bundle, lane.id.slot, slot, slices) };
            let Some(mut burst) = rail.burst(lane, now) else { return Err(libc::ENOTCONN) };
            // SAFETY: the staging memory stays until nothing of it is in flight; the slot is not
            // touched until the target has acknowledged it.
            match unsafe { burst.post(rma, 0, tag) } {
                Posted::Yes => {}
                Posted::Again => return Ok(false),
                Posted::Failed(errno) => return Err(errno),
            }
        }
        self.written = self.written.wrapping_add(1);
        Ok(true)
    }

    /// Bundles that the target has scattered or refused.
    pub fn acknowledged(&self) -> u32 {
        self.acknowledged
    }

    /// The next bundle that the target has scattered, up to bundle `count`.
    pub fn acknowledge(&mut self, count: u32) -> Option<Landed> {
        let open = self.announced.wrapping_sub(self.acknowledged);
        let newly = count.wrapping_sub(self.acknowledged);
        // A number that was never announced is rubbish.
        if newly == 0 || newly > open {
            return None;
        }
        let bundle = &self.slots[(self.acknowledged % SLOTS) as usize];
        self.acknowledged = self.acknowledged.wrapping_add(1);
        Some(Landed {
            stripe: bundle.stripe,
            slices: bundle.slices,
            bytes: bundle.bytes,
            sampled: bundle.sampled,
        })
    }
}

/// How far its bundles are, for the log.
impl fmt::Display for Packer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Packer { gathered, written, announced, acknowledged, .. } = self;
        write!(
            f,
            "{gathered} gathered, {written} written, {announced} announced, {acknowledged} acknowledged"
        )
    }
}

/// Where the pieces of a bundle go as they are added.
pub enum Into<'a> {
    /// Into its slot, at once.
    Staging { base: u64 },
    /// By a device.
    Stage { base: u64, stage: &'a mut Stage, copier: usize, slot: u32 },
    /// Nowhere yet: where their bytes belong is kept.
    Places(&'a mut Vec<Spot>),
}

/// A bundle that is being filled.
pub struct Gathering<'a> {
    pub bundle: &'a mut Bundle,
    pub into: Into<'a>,
    /// Bytes that it may have.
    most: u64,
    /// How many there are.
    pub count: &'a mut u32,
}

impl<'a> Gathering<'a> {
    /// A question, which becomes bytes at the peer.
    pub fn question(
        bundle: &'a mut Bundle,
        places: &'a mut Vec<Spot>,
        most: u64,
        count: &'a mut u32,
    ) -> Gathering<'a> {
        Gathering { bundle, into: Into::Places(places), most, count }
    }

    /// Bytes that there is room for.
    pub fn room(&self) -> u64 {
        match self.bundle.list.len() {
            len if len >= MEMORY + PIECE * PIECES => 0,
            _ => self.most - self.bundle.bytes,
        }
    }

    /// Copies a piece in; false if it does not fit.
    ///
    /// # Safety
    /// `local` must be valid for `piece.len` bytes, until the bundle is written.
    #[inline]
    pub unsafe fn add(&mut self, local: u64, piece: Piece, slices: u32) -> bool {
        if u64::from(piece.len) > self.room() {
            return false;
        }
        let (at, len) = (self.bundle.bytes, u64::from(piece.len));
        match &mut self.into {
            // SAFETY: inside the slot, which nobody reads until it is posted; the source as promised.
            Into::Staging { base } => unsafe {
                let to = (*base + at) as *mut u8;
                std::ptr::copy_nonoverlapping(local as *const u8, to, len as usize);
            },
            // SAFETY: as above.
            Into::Stage { base, stage, copier, .. } => unsafe {
                stage.add(*copier, local, *base + at, len);
            },
            Into::Places(places) => places.push((local, piece.len)),
        }
        self.bundle.note(&piece, slices);
        true
    }

    /// It is complete, and will be posted.
    pub fn finish(self, burst: &mut Burst, stripe: u32) {
        let sampled = burst.charge(self.bundle.bytes);
        (self.bundle.stripe, self.bundle.sampled) = (stripe, sampled);
        if let Into::Stage { stage, copier, slot, .. } = self.into {
            stage.close(copier, slot);
        }
        *self.count = self.count.wrapping_add(1);
    }

    /// As `finish`, of an answer.
    pub fn finish_answer(self, burst: &mut Burst) {
        self.finish(burst, NO_STRIPE);
    }
}

/// The target's end, of one lane.
pub struct Landing {
    pub stage: Stage,
    frame: Frame,
    slot: u64,
    pub tally: Tally,
    /// Bundles that were announced, and whose pieces are not all in their places.
    arrived: VecDeque<Arrived>,
}

/// A bundle that was announced.
pub struct Arrived {
    /// Whether its pieces may go where it says.
    pub outcome: std::result::Result<(), Status>,
    /// The counter that its pieces raise, and how many they are.
    pub counts: Option<(Immediate, u64)>,
    /// The fetch that it answers.
    pub fetch: Option<u32>,
}

/// What became of the bundles of a landing.
#[derive(Default)]
pub struct Tally {
    /// Bundles so far: scattered or refused; and of these, those that the sender was
    /// told of.
    seen: u32,
    told: u32,
    /// Bundles that were refused, and that the sender was not told of.
    refused: VecDeque<(u32, Status)>,
}

/// What the sender should hear next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// So many bundles were scattered.
    Landed(u32),
    /// All before this one were, and this one was refused.
    Refused(u32, Status),
}

impl Tally {
    /// Whether a bundle is the next, and comes to a slot that the sender may use.
    /// `waiting`: those before it that nothing became of yet.
    pub fn expects(&self, number: u32, waiting: u32) -> bool {
        number == self.seen && self.seen.wrapping_sub(self.told) + waiting < SLOTS
    }

    /// What became of the next bundle.
    pub fn advance(&mut self, outcome: std::result::Result<(), Status>) {
        if let Err(status) = outcome {
            self.refused.push_back((self.seen, status));
        }
        self.seen = self.seen.wrapping_add(1);
    }

    /// A count says nothing of what was refused among it: that is told one by one.
    pub fn due(&self) -> Option<Due> {
        match self.refused.front() {
            Some((number, status)) => Some(Due::Refused(*number, *status)),
            None => (self.told != self.seen).then_some(Due::Landed(self.seen)),
        }
    }

    pub fn said(&mut self, due: Due) {
        self.told = match due {
            Due::Landed(count) => count,
            Due::Refused(number, _) => {
                self.refused.pop_front();
                number.wrapping_add(1)
            }
        };
    }
}

impl Landing {
    pub fn new(rail: &mut Rail, slot: u64) -> Result<Landing> {
        let len = slot * u64::from(SLOTS);
        let frame = rail.make_frame(len as usize, true)?;
        let stage = Stage::new(frame.address() as u64, len, SLOTS);
        Ok(Landing { stage, frame, slot, tally: Tally::default(), arrived: VecDeque::new() })
    }

    pub fn close(self, rail: &mut Rail) {
        drop(self.stage);
        rail.drop_frame(self.frame);
    }

    /// Waits until no device writes for it.
    pub fn settle(&mut self) {
        self.stage.wait();
    }

    /// Whether a bundle is the next, and comes to a slot that the sender may use.
    pub fn expects(&self, number: u32) -> bool {
        let waiting = self.arrived.len() as u32;
        waiting < SLOTS && self.tally.expects(number.wrapping_sub(waiting), waiting)
    }

    /// The number of the next bundle, and its slot.
    pub fn next_number(&self) -> u32 {
        self.tally.seen.wrapping_add(self.arrived.len() as u32)
    }

    pub fn next_slot(&self) -> u32 {
        self.next_number() % SLOTS
    }

    pub fn push(&mut self, arrived: Arrived) {
        self.arrived.push_back(arrived);
    }

    /// The first bundle that is in its places, or was refused: it is counted.
    pub fn take(&mut self) -> Option<Arrived> {
        let slot = self.tally.seen % SLOTS;
        let mut arrived = match (self.arrived.front()?, self.stage.is_done(slot)) {
            (_, Ok(false)) => return None,
            (_, done) => self.arrived.pop_front().map(|arrived| (arrived, done))?,
        };
        if arrived.1.is_err() {
            arrived.0.outcome = Err(Status::MemoryGone);
        }
        // Who fetched knows how it went.
        let told = if arrived.0.fetch.is_some() { Ok(()) } else { arrived.0.outcome };
        self.tally.advance(told);
        Some(arrived.0)
    }

    /// Devices work for it.
    pub fn is_waiting(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// What the peer writes to.
    pub fn place(&self, rail: &Rail) -> Slots {
        let base = if rail.limits().virtual_addresses { self.frame.address() as u64 } else { 0 };
        Slots { address: base, key: self.frame.key(), len: self.slot }
    }

    /// Bytes of a slot.
    pub fn slot_len(&self) -> usize {
        self.slot as usize
    }

    /// Where the next bundle is, a slot long. (A peer may write to it at
    /// any time: it can change only what it has sent itself.)
    pub fn next(&self) -> *const u8 {
        let offset = self.next_slot() as usize * self.slot_len();
        (self.frame.address() as usize + offset) as *const u8
    }
}

/// The list of a bundle.
pub struct List<P> {
    pub memory: MemoryId,
    /// What its pieces count for.
    pub immediate: Option<Immediate>,
    pub pieces: P,
}

pub fn read_list(list: &[u8]) -> Option<List<impl Iterator<Item = Piece> + '_>> {
    let mut r = Reader::new(list);
    let (memory, immediate) = (MemoryId::new(r.u64()?), Immediate::new(r.u64()? as u32));
    let rest = r.rest();
    if rest.len() % PIECE != 0 {
        return None;
    }
    let piece = |entry: &[u8]| {
        let mut r = Reader::new(entry);
        let (range, len, offset) = (r.u32()?, r.u32()?, r.u64()?);
        Some(Piece { range, len: len & !GOES_ON, offset, goes_on: len & GOES_ON != 0 })
    };
    Some(List { memory, immediate, pieces: rest.chunks_exact(PIECE).map_while(piece) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_is_sent_once_there_is_room() {
        let mut tally = Tally::default();
        let outcomes = [Ok(()), Err(Status::MemoryGone), Ok(()), Err(Status::RemoteAccess), Ok(())];
        for (number, outcome) in outcomes.into_iter().enumerate() {
            assert!(tally.expects(number as u32, 0));
            tally.advance(outcome);
        }
        let mut told = Vec::new();
        while let Some(due) = tally.due() {
            tally.said(due);
            told.push(due);
        }
        let expected =
            [Due::Refused(1, Status::MemoryGone), Due::Refused(3, Status::RemoteAccess), Due::Landed(5)];
        assert_eq!(told, expected);
    }

    #[test]
    fn sender_that_exceeds_its_slots_is_rejected() {
        let mut tally = Tally::default();
        (0..SLOTS).for_each(|_| tally.advance(Ok(())));
        assert!(!tally.expects(SLOTS, 0));
        tally.said(Due::Landed(1));
        assert!(tally.expects(SLOTS, 0) && !tally.expects(SLOTS + 1, 0) && !tally.expects(SLOTS, 1));
    }
}
