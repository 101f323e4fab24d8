//! Transfers of ours that no lane carries.

use super::{copy, failure, len_of, numbered, put_down, Stage};
use crate::bytes;
use crate::device::is_slow;
use crate::fabric::staged::asking::{Asked, Next, Step};
use crate::fabric::staged::{Answer, Breach, Piece, Pool, Request, NUMBER, OF_MEMORY, PIECES, SLOT};
use crate::ids::{Hold, OpId};
use crate::owner::deliver::{Delivery, Pass};
use crate::peer::link::Link;
use crate::peer::staged::{Carried, Portion};
use crate::session::channel::Out;
use crate::status::Status;
use crate::transfer::geometry::Position;
use crate::transfer::operation::Move;
use crate::transfer::table::{Left, Table};
use crate::transfer::{Direction, Outcome};
use crate::wire::frame::{numbers, Kind};
use crate::worker::core::Core;
use std::sync::atomic::Ordering;

/// The parts of these places from a byte on, of this many bytes.
fn parts(places: &[(u64, u64)], from: u64, len: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
    let mut begins = 0;
    places.iter().filter_map(move |&(address, piece)| {
        let (first, last) = (from.max(begins), (from + len).min(begins + piece));
        let part = (first < last).then(|| (address + first - begins, last - first));
        begins += piece;
        part
    })
}

impl Link {
    /// Nothing of ours waits for a request whose operation has ended.
    fn leave_asked(&mut self, stage: &mut Stage, id: u64) {
        let Some(part) = self.staged.asking.get_mut(id).map(|asked| &mut asked.what) else { return };
        let (op, slot) = (part.op, part.slot);
        if stage.core.table.is_active(op) {
            return;
        }
        let Some(tells) = self.staged.asking.leave(id) else { return };
        if let Some(asked) = self.staged.asking.get_mut(id) {
            asked.what.slot = None;
        }
        if let Some(slot) = slot {
            stage.pool.give_back(slot);
        }
        if let Some(one) = self.staged.transfers.iter_mut().find(|one| one.hold.id() == op) {
            one.asked -= 1;
        }
        if tells {
            self.push(Out::new(Kind::Unstage, numbers(&[id])));
        }
    }

    /// Whether a transfer that no lane can carry is staged.
    pub(crate) fn stages(&self, transfer: &Move) -> bool {
        self.peer.address.stages() && transfer.view().is_on_device()
    }

    pub(crate) fn stage_transfer(&mut self, core: &Core, hold: Hold) {
        if !std::mem::replace(&mut self.staged.said, true) {
            log::info!("{}: memory that no NIC reaches goes in frames, which CPUs copy", self.peer);
        }
        Table::stage(core.table.held_slot(&hold));
        self.staged.transfers.push(Carried { hold, next: 0, at: Position::default(), within: 0, asked: 0 });
    }

    pub(crate) fn stage_answered(&mut self, pass: &mut Pass, body: &[u8]) -> Delivery {
        let answered = Answer::decode(body).ok_or(Breach);
        match answered.and_then(|(id, answer)| Ok((id, self.staged.asking.handle_answer(id, answer)?))) {
            Ok((id, Next::End(status, errno))) => {
                self.end_asked(pass.core, pass.pool, id, (status, errno), pass.now)
            }
            Ok(_) => {}
            Err(Breach) => self.broke(pass.core),
        }
        Delivery::Taken
    }

    /// Bytes of a read of ours.
    pub(crate) fn fetched(&mut self, pass: &mut Pass, body: &[u8]) -> Delivery {
        let place =
            |(id, bytes): (u64, _)| Some((id, bytes, self.staged.asking.place(id, len_of(bytes)).ok()?));
        let Some((id, bytes, at)) = numbered(body).and_then(place) else {
            self.broke(pass.core);
            return Delivery::Taken;
        };
        let (core, transfers) = (pass.core, &self.staged.transfers);
        let Some(asked) = self.staged.asking.get_mut(id) else { return Delivery::Taken };
        let (part, len) = (&asked.what, len_of(bytes));
        let there = match part.slot {
            Some(slot) => {
                // SAFETY: the request's bytes fit its slot, and no device copies it yet.
                unsafe { bytes::copy((pass.pool.base(slot) + at) as *mut u8, bytes.as_ptr(), bytes.len()) };
                true
            }
            None => {
                let (to, run) = (parts(&part.places, at, len), bytes.as_ptr().cast_mut());
                // SAFETY: the operation's memory stays registered as long as the operation is held, and its completion
                // waits; the frame has as many bytes, which are only read.
                carried(core, transfers, part.op, || unsafe { copy(to, run, false, part.may_fault) })
            }
        };
        let op = part.op;
        if !there {
            core.table.end(op, Outcome::new(Status::MemoryGone), pass.now);
        }
        match self.staged.asking.handle_bytes(id, len) {
            Next::Nothing => {}
            Next::Scatter => self.copy_own(core, pass.pool, id, pass.now),
            Next::End(status, errno) => self.end_asked(core, pass.pool, id, (status, errno), pass.now),
        }
        Delivery::Taken
    }

    /// A device copies between our memory and a slot; its operation's completion waits, unless it is a disk.
    fn copy_own(&mut self, core: &Core, pool: &mut Pool, id: u64, now: u64) {
        let transfers = &self.staged.transfers;
        let Some(part) = self.staged.asking.get_mut(id).map(|asked| &mut asked.what) else { return };
        let (Some(slot), Some(device)) = (part.slot, part.device) else { return };
        let slow = is_slow(device);
        let active = match transfers.iter().find(|one| one.hold.id() == part.op) {
            Some(one) if !slow => {
                part.carried = true;
                core.table.carry(core.table.held_slot(&one.hold))
            }
            one => one.is_some() && core.table.is_active(part.op),
        };
        let failed = match active {
            // SAFETY: the memory stays registered as long as the operation is held, and no operation is let go before its
            // requests have ended.
            true => unsafe { pool.copy(slot, part.places.iter().copied(), None) }.err().map(failure),
            false => {
                pool.give_back(slot);
                Some((Status::Canceled, 0))
            }
        };
        if let Some(how) = failed {
            part.slot = None;
            self.end_asked(core, pool, id, how, now);
        }
    }

    /// A request of ours has ended.
    fn end_asked(&mut self, core: &Core, pool: &mut Pool, id: u64, how: (Status, i32), now: u64) {
        let Some(Asked { what: part, .. }) = self.staged.asking.end(id).filter(|asked| !asked.left) else {
            return;
        };
        if let Some(slot) = part.slot {
            pool.give_back(slot);
        }
        put_down(core, &self.staged.transfers, part.op, part.carried);
        if how.0 != Status::Ok {
            let outcome = Outcome { provider_errno: how.1, entry: part.entry, ..Outcome::new(how.0) };
            core.table.end(part.op, outcome, now);
        }
        if let Some(one) = self.staged.transfers.iter_mut().find(|one| one.hold.id() == part.op) {
            one.asked -= 1;
        }
    }

    pub(super) fn carry_staged(&mut self, stage: &mut Stage) -> bool {
        let mut busy = false;
        let ours = self.staged.asking.iter().filter(|(_, asked)| !asked.left);
        let sends = ours.filter(|(_, asked)| matches!(asked.step, Step::Sends(_)));
        for id in sends.map(|(id, _)| id).collect::<Vec<_>>() {
            busy |= self.send_stored(stage, id);
        }
        for at in 0..self.staged.transfers.len() {
            while self.ask_next(stage, at) {
                busy = true;
            }
        }
        // The next pass begins with another one.
        if let 2.. = self.staged.transfers.len() {
            self.staged.transfers.rotate_left(1);
        }
        busy
    }

    /// Goes on with the requests whose bytes a device of ours copies.
    pub(super) fn poll_own(&mut self, stage: &mut Stage) -> bool {
        let ours = self.staged.asking.iter();
        let copied = ours.filter(|(_, asked)| matches!(asked.step, Step::Gathers | Step::Scatters));
        let all: Vec<_> = copied.filter_map(|(id, asked)| Some((id, asked.what.slot?))).collect();
        all.into_iter().fold(false, |busy, (id, slot)| self.poll_one(stage, id, slot) | busy)
    }

    /// Whether a device of ours has copied a request's bytes.
    fn poll_one(&mut self, stage: &mut Stage, id: u64, slot: u32) -> bool {
        let polled = stage.pool.poll(slot);
        if polled == Ok(false) {
            return false;
        }
        let Some(asked) = self.staged.asking.get_mut(id) else { return false };
        let wanted = stage.core.table.is_active(asked.what.op);
        match polled {
            Ok(_) if asked.step == Step::Gathers && wanted => {
                put_down(
                    stage.core,
                    &self.staged.transfers,
                    asked.what.op,
                    std::mem::take(&mut asked.what.carried),
                );
                let body = asked.what.request.encode(id);
                self.staged.asking.handle_gathered(id);
                self.push(Out::new(Kind::Stage, body));
            }
            Ok(_) => self.end_asked(stage.core, stage.pool, id, (Status::Ok, 0), stage.now),
            Err(errno) => {
                asked.what.slot = None;
                self.end_asked(stage.core, stage.pool, id, failure(errno), stage.now);
            }
        }
        true
    }

    /// Sends bytes of a write that has a slot there.
    fn send_stored(&mut self, stage: &mut Stage, id: u64) -> bool {
        let (core, mut busy) = (stage.core, false);
        while self.has_room_for_bytes() {
            let transfers = &self.staged.transfers;
            let Some(asked) = self.staged.asking.get_mut(id) else { break };
            let Step::Sends(sent) = asked.step else { break };
            let (part, len) = (&mut asked.what, stage.frame().min(asked.len - sent));
            let mut body = vec![0; NUMBER + len as usize];
            body[..NUMBER].copy_from_slice(&id.to_le_bytes());
            let run = body[NUMBER..].as_mut_ptr();
            let copied = match part.slot {
                Some(slot) => {
                    let from = (stage.pool.base(slot) + sent) as *const u8;
                    // SAFETY: the slot has the request's bytes, and no device copies it any longer.
                    unsafe { bytes::copy(run, from, len as usize) };
                    core.table.is_active(part.op)
                }
                None => {
                    let from = parts(&part.places, sent, len);
                    // SAFETY: as where bytes of a read arrive (`fetched`); the body has as many bytes.
                    carried(core, transfers, part.op, || unsafe { copy(from, run, true, part.may_fault) })
                }
            };
            if !copied {
                core.table.end(part.op, Outcome::new(Status::MemoryGone), stage.now); // Unless it had ended.
                return busy;
            }
            if sent + len == asked.len {
                if let Some(slot) = part.slot.take() {
                    stage.pool.give_back(slot);
                }
            }
            self.staged.asking.handle_sent(id, len);
            self.push(Out::new(Kind::Stored, body));
            busy = true;
        }
        busy
    }

    /// Asks for the next bytes of a transfer; false if there are none, or no room for them now.
    fn ask_next(&mut self, stage: &mut Stage, at: usize) -> bool {
        let core = stage.core;
        let one = &self.staged.transfers[at];
        let (slot, body) = core.table.held(&one.hold);
        let op = one.hold.id();
        let Some(transfer) = body.transfer().filter(|transfer| one.next < transfer.slices) else {
            return false;
        };
        if !Table::wanted(slot) || !self.staged.asking.has_room() {
            return false;
        }
        let Some((part, next)) = next_part(transfer, one) else {
            core.table.end(op, Outcome::new(Status::MemoryGone), stage.now); // Local memory of a device.
            return false;
        };
        let of_memory =
            |memory| self.staged.asking.iter().filter(|(_, one)| one.what.request.memory == memory).count();
        if of_memory(part.request.memory) >= OF_MEMORY {
            return false;
        }
        let (read, len) = (part.request.read, part.request.len());
        let purpose = part.device.map(|device| self.purpose(!read, device, None));
        let own = match purpose.map(|purpose| stage.pool.take(purpose)) {
            None => None,
            Some(Ok(Some(slot))) => Some(slot),
            Some(Ok(None)) => return false,
            Some(Err(errno)) => {
                let (status, provider_errno) = failure(errno);
                let outcome = Outcome { provider_errno, entry: part.entry, ..Outcome::new(status) };
                core.table.end(op, outcome, stage.now);
                return false;
            }
        };
        if slot.first_post.load(Ordering::Relaxed) == 0 {
            slot.first_post.store(stage.now, Ordering::Relaxed);
        }
        let one = &mut self.staged.transfers[at];
        (one.next, one.at, one.within) = next;
        one.asked += 1;
        let request = part.request.clone();
        let id = self.staged.asking.begin(read, len, own.is_some(), Portion { slot: own, ..part });
        match own.is_some() && !read {
            true => self.copy_own(core, stage.pool, id, stage.now),
            false => self.push(Out::new(Kind::Stage, request.encode(id))),
        }
        true
    }

    /// Lets go of the transfers that have ended, whatever the peer does, or have all of their bytes.
    pub(super) fn leave_ended(&mut self, stage: &mut Stage) -> bool {
        let ids: Vec<u64> = self.staged.asking.iter().map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.leave_asked(stage, id));
        let (before, table) = (self.staged.transfers.len(), &stage.core.table);
        for at in (0..before).rev() {
            let one = &self.staged.transfers[at];
            let (slot, body) = table.held(&one.hold);
            let Some(transfer) = body.transfer() else { continue };
            let wanted = Table::wanted(slot);
            if one.asked > 0 || wanted && one.next < transfer.slices {
                continue;
            }
            let (counted, slices) = (transfer.is_counted(), transfer.slices);
            let hold = self.staged.transfers.swap_remove(at).hold;
            if !wanted {
                stage.left.push(table.leave(hold));
                continue;
            }
            let slot = table.held_slot(&hold);
            hold.give();
            stage.left.push(match table.stripe_leaves(slot, slices) {
                // A frame raises what posts would have raised.
                Left::Arrived(id) if counted => Left::ToNotify(id, self.peer.id),
                left => left,
            });
        }
        self.staged.transfers.len() < before
    }
}

/// Lets the CPU use memory of an operation unless it has ended; false if it has, or if the use fails.
fn carried(core: &Core, transfers: &[Carried], op: OpId, act: impl FnOnce() -> bool) -> bool {
    let Some(one) = transfers.iter().find(|one| one.hold.id() == op) else { return false };
    let slot = core.table.held_slot(&one.hold);
    let done = core.table.carry(slot) && act();
    core.table.put_down(slot);
    done
}

/// The next bytes of a transfer, of one layer or entry, and where it goes on. `None`: local memory of a device is gone.
fn next_part(transfer: &Move, one: &Carried) -> Option<(Portion, (u64, Position, u64))> {
    let view = transfer.view();
    let (mut next, mut at, mut within) = (one.next, one.at, one.within);
    let layer = at.layer;
    let (local, (from, begins)) = view.local_place(layer);
    let (remote, range, offset) = view.remote_place(layer);
    if !local.place().is_none_or(|place| place.holds(from, &local.ranges()[from])) {
        return None;
    }
    let base = local.ranges()[from].base + begins;
    let (mut pieces, mut places, mut len) = (Vec::new(), Vec::new(), 0);
    while pieces.len() < PIECES && len < SLOT && next < transfer.slices && at.layer == layer {
        let (slice, after) = view.take(at, transfer.slices - next);
        let part = (slice.len - within).min(SLOT - len);
        if part > 0 {
            pieces.push(Piece { range: range as u64, offset: offset + slice.remote + within, len: part });
            places.push((base + slice.local + within, part));
        }
        len += part;
        within += part;
        if within == slice.len {
            (next, at, within) = (next + slice.slices, after, 0);
        }
    }
    let request = Request {
        read: transfer.direction == Direction::Read,
        memory: remote.id,
        grant: transfer.grant,
        pieces,
    };
    let part = Portion {
        op: one.hold.id(),
        request,
        places,
        device: local.device(),
        may_fault: local.access().may_fault,
        slot: None,
        carried: false,
        entry: view.entry_in(layer),
    };
    Some((part, (next, at, within)))
}
