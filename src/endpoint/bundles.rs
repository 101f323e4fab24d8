//! Bundles at their target: checked against the registrations, scattered, and
//! acknowledged (see `transfer::pack` for the sender's end).

use super::worker::{LaneWork, Worker};
use crate::fabric::Posted;
use crate::memory::Memory;
use crate::peer::wire::{self, Header, Kind};
use crate::peer::{Peer, Plan};
use crate::rail::lane_index;
use crate::status::Status;
use crate::transfer::pack::{read_list, Due, SLOT_LEN};
use crate::transfer::Outcome;
use std::sync::atomic::Ordering;
use std::sync::Arc;

impl Worker {
    /// Our end of the lane that a frame is about.
    pub(super) fn lane_about<'a>(
        &self,
        r: usize,
        peer: &Peer,
        body: &'a [u8],
    ) -> Option<(usize, u32, &'a [u8])> {
        let (remote_rail, rest) = wire::read_about_lane(body)?;
        let plan = Plan { rail: self.rails[r].rail.index, remote_rail };
        let (r, lane) = self.find_lane(peer, plan)?;
        Some((r, lane, rest))
    }

    /// A bundle is in one of our landings.
    pub(super) fn bundle(&mut self, r: usize, peer: &Arc<Peer>, header: &Header, body: &[u8], now: u64) {
        let Some((r, lane, list)) = self.lane_about(r, peer, body) else { return self.core.count_rubbish() };
        let core = self.core.clone();
        let Some(of) = self.rails[r].lanes.get_mut(lane_index(lane)).and_then(Option::as_mut) else { return };
        if !of.landing.as_ref().is_some_and(|landing| landing.tally.expects(header.sequence)) {
            return core.count_rubbish();
        }
        let scattered = scatter(of, list, |memory| core.offered(memory, peer.id));
        if let Err(status) = scattered {
            log::warn!("{peer}: a bundle was refused: {status:?}");
        }
        if let Some(landing) = &mut of.landing {
            landing.tally.advance(scattered.map(drop));
        }
        if let Ok((immediate @ 1.., pieces)) = scattered {
            core.count(immediate, pieces, now);
        }
        if !self.owing.contains(&(r, lane)) {
            self.owing.push((r, lane));
        }
    }

    /// Tells senders how far their bundles were scattered, and which were refused.
    pub(super) fn acknowledge_bundles(&mut self, now: u64) {
        if self.owing.is_empty() {
            return;
        }
        let mut owing = std::mem::take(&mut self.owing);
        owing.retain(|(r, lane)| match self.acknowledge_lane(*r, *lane) {
            Posted::Yes => false,
            Posted::Again => true,
            Posted::Failed(errno) => {
                self.lane_failed(*r, *lane, errno, 0, now);
                false
            }
        });
        self.owing = owing;
    }

    fn acknowledge_lane(&mut self, r: usize, lane: u32) -> Posted {
        let from = self.core.incarnation;
        let work = &mut self.rails[r];
        let of = work.lanes.get_mut(lane_index(lane)).and_then(Option::as_mut);
        let Some(of) = of.filter(|of| of.lane == lane) else { return Posted::Yes };
        let Some(landing) = of.landing.as_mut() else { return Posted::Yes };
        let to = of.peer.their_id.load(Ordering::Acquire);
        while let Some(due) = landing.tally.due() {
            let (kind, number, status) = match due {
                Due::Landed(count) => (Kind::Landed, count, 0),
                Due::Refused(number, status) => (Kind::Unlanded, number, status as i32),
            };
            let header = Header { sequence: number, ..Header::plain(kind, to, from) };
            let (index, body) = (work.rail.index, status.to_le_bytes());
            match work.rail.send_frame(lane, |frame| wire::about_lane(index, &body, frame, &header)) {
                Posted::Yes => landing.tally.said(due),
                other => return other,
            }
        }
        Posted::Yes
    }

    /// A target says how far it has scattered our bundles, or refuses the next.
    pub(super) fn bundle_landed(&mut self, r: usize, peer: &Peer, header: &Header, body: &[u8], now: u64) {
        let Some((r, lane, rest)) = self.lane_about(r, peer, body) else { return self.core.count_rubbish() };
        let core = self.core.clone();
        let work = &mut self.rails[r];
        let Some(of) = work.lanes.get_mut(lane_index(lane)).and_then(Option::as_mut) else { return };
        let (rail, left) = (&mut work.rail, &mut self.left);
        of.flows.landed(header.sequence, rail, lane, now, &core.table, left);
        if header.kind == Kind::Unlanded && of.flows.is_next(header.sequence) {
            let code = rest.first_chunk::<4>().map_or(0, |code| i32::from_le_bytes(*code));
            let status = match Status::from_code(code) {
                Status::MemoryGone => Status::MemoryGone,
                _ => Status::RemoteAccess,
            };
            if let Some(id) = of.flows.refused(rail, lane, now, &core.table, left) {
                core.table.end(id, Outcome::of(status), now);
            }
        }
    }
}

/// Copies the pieces of a bundle to where they belong, if all of them may go there: which counter
/// they raise (0: none), and how many they are.
fn scatter(
    of: &mut LaneWork,
    list: &[u8],
    find: impl Fn(u64) -> Option<Arc<Memory>>,
) -> Result<(u32, u64), Status> {
    let Some(landing) = &of.landing else { return Err(Status::Format) };
    let (id, immediate, pieces) = read_list(list).ok_or(Status::Format)?;
    if of.memory.as_ref().is_none_or(|last| last.id != id) {
        of.memory = find(id);
    }
    let memory = of.memory.as_ref().ok_or(Status::MemoryGone)?;
    if !memory.access().remote_write {
        return Err(Status::RemoteAccess);
    }
    let (from, mut at, mut count) = (landing.next(), 0, 0);
    for piece in pieces {
        let len = piece.len as usize;
        let range = memory.ranges().get(piece.range as usize).ok_or(Status::RemoteAccess)?;
        let end = piece.offset.checked_add(piece.len.into()).ok_or(Status::RemoteAccess)?;
        if end > range.len || at + len > SLOT_LEN {
            return Err(Status::RemoteAccess);
        }
        // SAFETY: inside the landing's slot, and inside a range that stays registered: it is
        // deregistered by this thread.
        unsafe {
            let to = (range.base + piece.offset) as *mut u8;
            std::ptr::copy_nonoverlapping(from.add(at), to, len);
        }
        at += len;
        count += 1;
    }
    Ok((immediate, count))
}
