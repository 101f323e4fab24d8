//! Bundles at their target: checked against the registrations, scattered, and
//! acknowledged (see `transfer::pack` for the sender's end).

use super::core::Core;
use super::lanes::LaneWork;
use super::worker::Worker;
use crate::device::staging::Stage;
use crate::device::Device;
use crate::fabric::{Immediate, Posted};
use crate::ids::{LaneId, MemoryId, RailIndex};
use crate::logging::seldom::warn_seldom;
use crate::memory::Memory;
use crate::peer::{Peer, Plan};
use crate::rail::Rail;
use crate::status::Status;
use crate::transfer::pack::{read_list, Arrived, Due, Landing, List, Packer, Piece, SLOTS};
use crate::transfer::Outcome;
use crate::wire::frame::{self, Header, Kind};
use std::sync::Arc;

impl Worker {
    /// Our end of the lane that a frame is about.
    pub(super) fn lane_about(&self, rail: RailIndex, peer: &Peer, header: &Header) -> Option<LaneId> {
        self.find_lane(peer, Plan { rail, remote_rail: header.rail })
    }

    /// A bundle is in one of our landings.
    pub(super) fn bundle(
        &mut self,
        rail: RailIndex,
        peer: &Arc<Peer>,
        header: &Header,
        list: &[u8],
        now: u64,
    ) {
        let Some(lane) = self.lane_about(rail, peer, header) else { return self.core.count_malformed() };
        let core = self.core.clone();
        let Some((_, of)) = self.rails.lane_mut(lane) else { return };
        let Some(next) = of.landing.as_ref().map(Landing::next_number) else { return core.count_malformed() };
        if header.sequence != next {
            // Where frames overtake each other, it waits for those before it.
            let ahead = header.sequence.wrapping_sub(next);
            if ahead >= SLOTS || of.early.len() >= SLOTS as usize {
                return core.count_malformed();
            }
            return of.early.push((*header, list.to_vec()));
        }
        let mut known = of.bundle(header, list, |memory| core.offered(memory, peer.id));
        while let Some((header, list)) = of.next_early().filter(|_| known) {
            known = of.bundle(&header, &list, |memory| core.offered(memory, peer.id));
        }
        if !known {
            core.count_malformed();
        }
        match of.landing.as_ref().is_some_and(|landing| landing.stage.has_added()) {
            // With those that come behind it, in this pass.
            true if self.copying.contains(&lane) => {}
            true => self.copying.push(lane),
            false => self.advance_landing(lane, now),
        }
    }

    /// Goes on with bundles whose pieces devices copy.
    pub(super) fn advance_landings(&mut self, now: u64) {
        for _ in 0..self.copying.len() {
            let Some(lane) = self.copying.pop() else { return };
            self.advance_landing(lane, now);
        }
    }

    /// Counts the bundles of a lane that are where they belong.
    fn advance_landing(&mut self, lane: LaneId, now: u64) {
        let Some((rail, of)) = self.rails.lane_mut(lane) else { return };
        while let Some(arrived) = of.landing.as_mut().and_then(Landing::take) {
            match arrived {
                Arrived { outcome, fetch: Some(_), .. } => {
                    let (table, left) = (&self.core.table, &mut self.left);
                    of.stripes.fetched(outcome, rail, (&mut of.lane, now), table, left);
                }
                Arrived { outcome: Ok(()), counts: Some((immediate, pieces)), .. } => {
                    self.core.count(immediate.get(), pieces, now, &mut self.counted)
                }
                _ => {}
            }
            if !self.owing.contains(&lane) {
                self.owing.push(lane);
            }
        }
        let waits = of.landing.as_ref().is_some_and(Landing::is_waiting);
        if waits && !self.copying.contains(&lane) {
            self.copying.insert(0, lane);
        }
    }

    /// A peer wants bytes of ours.
    pub(super) fn fetch(&mut self, rail: RailIndex, peer: &Peer, header: &Header, list: &[u8]) {
        let Some(lane) = self.lane_about(rail, peer, header) else { return self.core.count_malformed() };
        let of = self.rails.lane_mut(lane).map(|(_, of)| of);
        match of.filter(|of| of.fetches.len() < SLOTS as usize) {
            Some(of) => of.fetches.push((header.sequence, list.to_vec())),
            None => self.core.count_malformed(),
        }
    }

    /// Tells senders how far their bundles were scattered, and which were refused.
    pub(super) fn acknowledge_bundles(&mut self, now: u64) {
        if self.owing.is_empty() {
            return;
        }
        let mut owing = std::mem::take(&mut self.owing);
        owing.retain(|lane| match self.acknowledge_lane(*lane) {
            Posted::Yes => false,
            Posted::Again => true,
            Posted::Failed(errno) => {
                self.lane_failed(*lane, errno, 0, now);
                false
            }
        });
        self.owing = owing;
    }

    fn acknowledge_lane(&mut self, lane: LaneId) -> Posted {
        let Some((rail, of)) = self.rails.lane_mut(lane) else { return Posted::Yes };
        let Some(landing) = of.landing.as_mut() else { return Posted::Yes };
        while let Some(due) = landing.tally.due() {
            let (kind, number, status) = match due {
                Due::Landed(count) => (Kind::Landed, count, 0),
                Due::Refused(number, status) => (Kind::Unlanded, number, status as i32),
            };
            let header = Header::numbered(kind, number);
            match rail.send_frame(&mut of.lane, |frame| header.write(frame, &status.to_le_bytes(), &[])) {
                Posted::Yes => landing.tally.said(due),
                other => return other,
            }
        }
        Posted::Yes
    }

    /// A target says how far it has scattered our bundles, or refuses the next.
    pub(super) fn bundle_landed(
        &mut self,
        rail: RailIndex,
        peer: &Peer,
        header: &Header,
        rest: &[u8],
        now: u64,
    ) {
        let Some(lane) = self.lane_about(rail, peer, header) else { return self.core.count_malformed() };
        let core = self.core.clone();
        let Some((rail, of)) = self.rails.lane_mut(lane) else { return };
        let (lane, left) = (&mut of.lane, &mut self.left);
        of.stripes.landed(header.sequence, rail, lane, now, &core.table, left);
        if header.kind == Kind::Unlanded && of.stripes.is_next(header.sequence) {
            let code = rest.first_chunk::<4>().map_or(0, |code| i32::from_le_bytes(*code));
            let status = match Status::from_code(code) {
                Status::MemoryGone => Status::MemoryGone,
                _ => Status::RemoteAccess,
            };
            if let Some(id) = of.stripes.refused(rail, lane, now, &core.table, left) {
                core.table.end(id, Outcome::of(status), now);
            }
        }
    }
}

impl LaneWork {
    /// A bundle that came too early, whose turn it is.
    fn next_early(&mut self) -> Option<(Header, Vec<u8>)> {
        let next = self.landing.as_ref()?.next_number();
        let at = self.early.iter().position(|(header, _)| header.sequence == next)?;
        Some(self.early.swap_remove(at))
    }

    /// The next bundle is in our landing; false if we cannot know it.
    fn bundle(
        &mut self,
        header: &Header,
        list: &[u8],
        find: impl Fn(MemoryId) -> Option<Arc<Memory>>,
    ) -> bool {
        if !self.landing.as_ref().is_some_and(|landing| landing.expects(header.sequence)) {
            return false;
        }
        let arrived = match header.kind {
            Kind::Fetched => self.fetched(list),
            _ => Some(self.landed(list, find)),
        };
        let (Some(arrived), Some(landing)) = (arrived, &mut self.landing) else { return false };
        if let (Err(status), None) = (arrived.outcome, arrived.fetch) {
            let memory = read_list(list).map_or(MemoryId::default(), |list| list.memory);
            warn_seldom!("{}: a coalesced write to memory {memory:#x} is refused: {status:?}", self.peer);
        }
        landing.push(arrived);
        true
    }

    /// The memory that a peer names.
    fn memory_of(
        &mut self,
        id: MemoryId,
        find: impl Fn(MemoryId) -> Option<Arc<Memory>>,
    ) -> Option<&Arc<Memory>> {
        if self.memory.as_ref().is_none_or(|last| last.id != id) {
            self.memory = find(id);
        }
        self.memory.as_ref()
    }

    /// A bundle has landed: copies its pieces to where they belong, if all of them may go
    /// there, or has a device do it.
    fn landed(&mut self, list: &[u8], find: impl Fn(MemoryId) -> Option<Arc<Memory>>) -> Arrived {
        let scattered = self.scatter(list, find);
        Arrived { outcome: scattered.map(drop), counts: scattered.unwrap_or_default(), fetch: None }
    }

    /// Which counter the pieces raise, and how many they are.
    fn scatter(
        &mut self,
        list: &[u8],
        find: impl Fn(MemoryId) -> Option<Arc<Memory>>,
    ) -> Result<Option<(Immediate, u64)>, Status> {
        let List { memory, immediate, pieces } = read_list(list).ok_or(Status::Format)?;
        let memory = self.memory_of(memory, find).ok_or(Status::MemoryGone)?.clone();
        let landing = self.landing.as_mut().ok_or(Status::Format)?;
        if !memory.access().remote_write {
            return Err(Status::RemoteAccess);
        }
        let most = landing.slot_len();
        let mut into = Scatter::begin(landing, memory.device())?;
        let (mut at, mut count) = (0, 0);
        let mut places = Places::of(&memory);
        for piece in pieces {
            let to = places.find(&piece)?;
            if at + piece.len as usize > most {
                return Err(Status::RemoteAccess);
            }
            // SAFETY: inside the landing's slot, and inside a range that stays registered: it is
            // deregistered by this thread, which waits for devices.
            unsafe { into.add(at, to, piece.len as usize) };
            at += piece.len as usize;
            count += u64::from(!piece.goes_on);
        }
        Ok(immediate.map(|immediate| (immediate, count)))
    }

    /// The peer has answered a question of ours: copies the bytes to where they belong.
    /// `None`: we did not ask that.
    fn fetched(&mut self, body: &[u8]) -> Option<Arrived> {
        let [number, status] = frame::read_numbers::<2>(body)?;
        let number = u32::try_from(number).ok()?;
        let stripe = self.stripes.packer.as_ref()?.fetcher.stripe_of(number)?;
        let wanted = self.stripes.wants(stripe);
        let (device, places) = self.stripes.packer.as_mut()?.fetcher.answered(number)?;
        let outcome = match Status::from_code(status as u32 as i32) {
            Status::Ok if wanted => scatter_to(self.landing.as_mut()?, device, places),
            Status::Ok => Err(Status::Canceled),
            Status::MemoryGone => Err(Status::MemoryGone),
            _ => Err(Status::RemoteAccess),
        };
        Some(Arrived { outcome, counts: None, fetch: Some(number) })
    }

    /// Sends the peer what it wants, as far as there are slots for it.
    pub(super) fn answer_fetches(&mut self, rail: &mut Rail, core: &Core, now: u64) {
        while self.stripes.packer.as_ref().is_some_and(Packer::has_slot) {
            let next = self.fetches.iter().position(|(number, _)| *number == self.next_fetch);
            let Some(next) = next.filter(|_| !self.lane.reset) else { return };
            let (number, list) = self.fetches.swap_remove(next);
            self.next_fetch = number.wrapping_add(1);
            let peer = self.peer.id;
            let find = |memory| core.offered(memory, peer);
            if let Err(status) = self.answer(number, &list, (rail, now), find) {
                warn_seldom!("{}: a read is refused: {status:?}", self.peer);
                let packer = self.stripes.packer.as_mut();
                let refusal = packer.and_then(|packer| packer.answer(number, status, None).ok().flatten());
                let refusal = refusal.zip(rail.burst(&mut self.lane, now));
                refusal.into_iter().for_each(|(refusal, mut burst)| refusal.finish_answer(&mut burst));
            }
        }
    }

    fn answer(
        &mut self,
        number: u32,
        list: &[u8],
        (rail, now): (&mut Rail, u64),
        find: impl Fn(MemoryId) -> Option<Arc<Memory>>,
    ) -> Result<(), Status> {
        let List { memory, pieces, .. } = read_list(list).ok_or(Status::Format)?;
        let memory = self.memory_of(memory, find).ok_or(Status::MemoryGone)?.clone();
        if !memory.access().remote_read {
            return Err(Status::RemoteAccess);
        }
        // All of it first: what a device was asked to copy cannot be taken back.
        let (mut places, mut bytes) = (Places::of(&memory), 0);
        for piece in read_list(list).into_iter().flat_map(|list| list.pieces) {
            places.find(&piece)?;
            bytes += u64::from(piece.len);
        }
        let packer = self.stripes.packer.as_mut().ok_or(Status::Unsupported)?;
        if bytes > packer.most() {
            return Err(Status::RemoteAccess);
        }
        let answer = packer.answer(number, Status::Ok, memory.device()).map_err(|error| error.status)?;
        let mut answer = answer.ok_or(Status::Again)?;
        let mut places = Places::of(&memory);
        for piece in pieces {
            let from = places.find(&piece)?;
            // SAFETY: inside a range that stays registered, as for a bundle.
            unsafe { answer.add(from, piece, 0) };
        }
        if let Some(mut burst) = rail.burst(&mut self.lane, now) {
            answer.finish_answer(&mut burst);
        }
        Ok(())
    }
}

/// Copies what is in the next slot of a landing to its places.
fn scatter_to(landing: &mut Landing, device: Option<Device>, places: &[(u64, u32)]) -> Result<(), Status> {
    let mut into = Scatter::begin(landing, device)?;
    let mut at = 0;
    for (to, len) in places {
        // SAFETY: as many bytes as were asked for, which a slot has room for; to memory of a
        // transfer that has not ended.
        unsafe { into.add(at, *to, *len as usize) };
        at += *len as usize;
    }
    Ok(())
}

/// The places of pieces in a memory of ours.
struct Places<'a> {
    memory: &'a Memory,
    /// The range that was looked at last.
    last: Option<u32>,
}

impl<'a> Places<'a> {
    fn of(memory: &'a Memory) -> Places<'a> {
        Places { memory, last: None }
    }

    fn find(&mut self, piece: &Piece) -> Result<u64, Status> {
        let (index, memory) = (piece.range as usize, self.memory);
        let range = memory.ranges().get(index).ok_or(Status::RemoteAccess)?;
        let end = piece.offset.checked_add(piece.len.into()).ok_or(Status::RemoteAccess)?;
        if end > range.len {
            return Err(Status::RemoteAccess);
        }
        if self.last != Some(piece.range) && memory.place().is_some_and(|place| !place.holds(index, range)) {
            warn_seldom!("range {index} of device memory was freed while it was registered");
            return Err(Status::MemoryGone);
        }
        self.last = Some(piece.range);
        Ok(range.base + piece.offset)
    }
}

/// Pieces of a slot on their way to their places.
struct Scatter<'a> {
    from: *const u8,
    slot: u32,
    /// The device's copier, if one does it.
    device: Option<(&'a mut Stage, usize)>,
}

impl Scatter<'_> {
    fn begin(landing: &mut Landing, device: Option<Device>) -> Result<Scatter<'_>, Status> {
        let (from, slot) = (landing.next(), landing.next_slot());
        let stage = &mut landing.stage;
        let copier = device.map(|device| stage.copier(device)).transpose();
        let copier = copier.map_err(|error| {
            warn_seldom!("bytes for device memory are refused: {error}");
            error.status
        })?;
        Ok(Scatter { from, slot, device: copier.map(|copier| (stage, copier)) })
    }

    /// # Safety
    /// The slot has `len` bytes at `at`, and they may be written to `to`.
    unsafe fn add(&mut self, at: usize, to: u64, len: usize) {
        // SAFETY: as promised.
        unsafe {
            match &mut self.device {
                None => std::ptr::copy_nonoverlapping(self.from.add(at), to as *mut u8, len),
                Some((stage, copier)) => stage.add(*copier, self.from.add(at) as u64, to, len as u64),
            }
        }
    }
}

impl Drop for Scatter<'_> {
    fn drop(&mut self) {
        // What was added before a refusal is the peer's own affair; it must be over before
        // the slot is used again.
        if let Some((stage, copier)) = &mut self.device {
            stage.close(*copier, self.slot);
        }
    }
}
