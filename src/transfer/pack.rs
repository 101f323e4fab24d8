//! Bundles: many small pages in one large write, where a post costs more than a
//! copy.
//!
//! The sender gathers pages into a slot of its staging memory, writes the slot to
//! the same place of the peer's landing, and announces it with a control frame
//! that says where each piece belongs. The target checks that against its own
//! registrations, scatters, and acknowledges: then the slot is free, and the
//! slices have arrived. Frames and writes of a lane keep their order.

use crate::codec::Reader;
use crate::fabric::{Immediate, Limits, Posted, Rma, Segment};
use crate::peer::wire::{ABOUT_LANE, HEADER};
use crate::rail::{Burst, Frame, Rail, Tag, Work};
use crate::status::{Result, Status};
use std::collections::VecDeque;

/// Bytes of a slot, and slots of a lane: large enough that a post costs little
/// beside its bytes, small enough to stay in a core's cache (see `weft-bench
/// crossover`).
pub const SLOT_LEN: usize = 256 << 10;
pub const SLOTS: u32 = 8;
/// Pieces of a bundle: what a frame's list has room for.
const PIECES: usize = 480;
/// Bytes of the list's parts: the memory's id with the immediate that each piece counts for (0:
/// none), and each piece.
const MEMORY: usize = 16;
const PIECE: usize = 16;

/// Whether a rail's lanes carry bundles.
pub fn is_worthwhile(limits: &Limits) -> bool {
    limits.costly_posts
        && limits.sends_follow_writes
        && limits.message_max >= HEADER + ABOUT_LANE + MEMORY + PIECES * PIECE
}

/// Where a peer takes bundles: address and key.
pub type Place = (u64, u64);

/// One piece of a bundle, as the frame lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub range: u32,
    pub len: u32,
    pub offset: u64,
}

/// A bundle on its way.
#[derive(Default)]
struct Bundle {
    flow: u32,
    slices: u32,
    bytes: u64,
    sampled: bool,
    /// The memory's id and the immediate, then the pieces.
    list: Vec<u8>,
}

/// Writes a frame that announces bundle `number`, and says its length.
pub type Announce<'a> = &'a dyn Fn(u32, &[u8], &mut [u8]) -> usize;

/// What an acknowledged bundle gives back to its flow.
pub struct Landed {
    pub flow: u32,
    pub slices: u32,
    pub bytes: u64,
    pub sampled: bool,
}

/// The sender's end, of one lane.
pub struct Packer {
    staging: Frame,
    landing: Place,
    slots: Box<[Bundle]>,
    /// Bundles so far: gathered, written, announced, acknowledged.
    gathered: u32,
    written: u32,
    announced: u32,
    acknowledged: u32,
}

impl Packer {
    pub fn new(rail: &mut Rail, landing: Place) -> Result<Packer> {
        Ok(Packer {
            staging: rail.make_frame(SLOT_LEN * SLOTS as usize, false)?,
            landing,
            slots: (0..SLOTS).map(|_| Bundle::default()).collect(),
            gathered: 0,
            written: 0,
            announced: 0,
            acknowledged: 0,
        })
    }

    /// Gives the staging memory back; nothing of it may be in flight.
    pub fn close(self, rail: &mut Rail) {
        rail.drop_frame(self.staging);
    }

    fn has_slot(&self) -> bool {
        self.gathered.wrapping_sub(self.acknowledged) < SLOTS
    }

    /// Bundles wait to be posted or announced.
    pub fn is_behind(&self) -> bool {
        self.announced != self.gathered
    }

    /// Bundles are not acknowledged.
    pub fn is_awaiting(&self) -> bool {
        self.acknowledged != self.gathered
    }

    /// Begins a bundle for a memory of the peer's, each of whose pieces raises a counter if there
    /// is an immediate; `None` without a free slot.
    pub fn gather(&mut self, memory: u64, immediate: Option<Immediate>) -> Option<Gathering<'_>> {
        if !self.has_slot() {
            return None;
        }
        let slot = self.gathered % SLOTS;
        let bundle = &mut self.slots[slot as usize];
        bundle.list.clear();
        bundle.list.extend_from_slice(&memory.to_le_bytes());
        bundle.list.extend_from_slice(&u64::from(immediate.map_or(0, Immediate::get)).to_le_bytes());
        (bundle.slices, bundle.bytes) = (0, 0);
        Some(Gathering { packer: self, slot })
    }

    /// Posts what has been gathered, as far as there is room.
    pub fn advance(
        &mut self,
        rail: &mut Rail,
        lane: u32,
        now: u64,
        announce: Announce,
    ) -> std::result::Result<(), i32> {
        self.write(rail, lane, now)?;
        while self.announced != self.written {
            let number = self.announced;
            let list = &self.slots[(number % SLOTS) as usize].list;
            match rail.send_frame(lane, |frame| announce(number, list, frame)) {
                Posted::Yes => self.announced = number.wrapping_add(1),
                Posted::Again => break,
                Posted::Failed(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Posts the writes of bundles that were gathered.
    fn write(&mut self, rail: &mut Rail, lane: u32, now: u64) -> std::result::Result<(), i32> {
        let Some(mut burst) = rail.burst(lane, now) else { return Err(libc::ENOTCONN) };
        while self.written != self.gathered {
            let slot = self.written % SLOTS;
            let offset = slot as u64 * SLOT_LEN as u64;
            let segment = Segment {
                local: self.staging.address() as u64 + offset,
                remote: self.landing.0 + offset,
                len: self.slots[slot as usize].bytes,
            };
            let rma = Rma {
                read: false,
                segments: &[segment],
                descriptor: self.staging.descriptor(),
                key: self.landing.1,
                delivered: false,
                immediate: None,
                more: false,
            };
            let tag = Tag {
                len: segment.len,
                ..Tag::new(Work::Bundle, lane, slot, self.slots[slot as usize].slices)
            };
            // SAFETY: the staging memory stays until nothing of it is in flight; the slot is not
            // touched until the target has acknowledged it.
            match unsafe { burst.post(rma, 0, tag) } {
                Posted::Yes => self.written = self.written.wrapping_add(1),
                Posted::Again => break,
                Posted::Failed(errno) => return Err(errno),
            }
        }
        Ok(())
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
            flow: bundle.flow,
            slices: bundle.slices,
            bytes: bundle.bytes,
            sampled: bundle.sampled,
        })
    }
}

/// A bundle that is being filled.
pub struct Gathering<'a> {
    packer: &'a mut Packer,
    slot: u32,
}

impl Gathering<'_> {
    fn bundle(&mut self) -> &mut Bundle {
        &mut self.packer.slots[self.slot as usize]
    }

    /// Copies a piece in; false if it does not fit.
    ///
    /// # Safety
    /// `local` must be valid for `piece.len` bytes.
    #[inline]
    pub unsafe fn add(&mut self, local: u64, piece: Piece, slices: u32) -> bool {
        let at = self.bundle().bytes as usize;
        if at + piece.len as usize > SLOT_LEN || self.bundle().list.len() >= MEMORY + PIECE * PIECES {
            return false;
        }
        let to = self.packer.staging.address() as usize + self.slot as usize * SLOT_LEN + at;
        // SAFETY: inside the slot, which nobody reads until it is posted; the source as promised.
        unsafe { std::ptr::copy_nonoverlapping(local as *const u8, to as *mut u8, piece.len as usize) };
        let bundle = self.bundle();
        bundle.bytes += u64::from(piece.len);
        bundle.slices += slices;
        let mut entry = [0; PIECE];
        entry[0..4].copy_from_slice(&piece.range.to_le_bytes());
        entry[4..8].copy_from_slice(&piece.len.to_le_bytes());
        entry[8..16].copy_from_slice(&piece.offset.to_le_bytes());
        bundle.list.extend_from_slice(&entry);
        true
    }

    /// It is complete, and will be posted.
    pub fn finish(mut self, burst: &mut Burst, flow: u32) {
        let bytes = self.bundle().bytes;
        let sampled = burst.charge(bytes);
        let bundle = self.bundle();
        (bundle.flow, bundle.sampled) = (flow, sampled);
        self.packer.gathered = self.packer.gathered.wrapping_add(1);
    }
}

/// The target's end, of one lane.
pub struct Landing {
    frame: Frame,
    pub tally: Tally,
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
    pub fn expects(&self, number: u32) -> bool {
        number == self.seen && self.seen.wrapping_sub(self.told) < SLOTS
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
    pub fn new(rail: &mut Rail) -> Result<Landing> {
        let frame = rail.make_frame(SLOT_LEN * SLOTS as usize, true)?;
        Ok(Landing { frame, tally: Tally::default() })
    }

    pub fn close(self, rail: &mut Rail) {
        rail.drop_frame(self.frame);
    }

    /// What the peer writes to.
    pub fn place(&self, rail: &Rail) -> Place {
        let base = if rail.limits().virtual_addresses { self.frame.address() as u64 } else { 0 };
        (base, self.frame.key())
    }

    /// Where the next bundle is, `SLOT_LEN` bytes long. (A peer may write to it at
    /// any time: it can change only what it has sent itself.)
    pub fn next(&self) -> *const u8 {
        let offset = (self.tally.seen % SLOTS) as usize * SLOT_LEN;
        (self.frame.address() as usize + offset) as *const u8
    }
}

/// Reads the list of a bundle: the memory's id, the immediate that its pieces count for, and the
/// pieces.
pub fn read_list(list: &[u8]) -> Option<(u64, u32, impl Iterator<Item = Piece> + '_)> {
    let mut r = Reader::new(list);
    let (memory, immediate) = (r.u64()?, r.u64()?);
    let rest = r.rest();
    if rest.len() % PIECE != 0 {
        return None;
    }
    let piece = |entry: &[u8]| {
        let mut r = Reader::new(entry);
        Some(Piece { range: r.u32()?, len: r.u32()?, offset: r.u64()? })
    };
    Some((memory, immediate as u32, rest.chunks_exact(PIECE).map_while(piece)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_however_late_there_is_room_for_it() {
        let mut tally = Tally::default();
        let outcomes = [Ok(()), Err(Status::MemoryGone), Ok(()), Err(Status::RemoteAccess), Ok(())];
        for (number, outcome) in outcomes.into_iter().enumerate() {
            assert!(tally.expects(number as u32));
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
    fn a_sender_that_fills_more_than_its_slots_is_not_believed() {
        let mut tally = Tally::default();
        (0..SLOTS).for_each(|_| tally.advance(Ok(())));
        assert!(!tally.expects(SLOTS));
        tally.said(Due::Landed(1));
        assert!(tally.expects(SLOTS) && !tally.expects(SLOTS + 1));
    }
}
