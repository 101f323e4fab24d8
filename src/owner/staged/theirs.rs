//! What a peer asks of our memory that no NIC reaches.

use super::{copy, failure, len_of, numbered, Stage};
use crate::bytes;
use crate::device::Device;
use crate::fabric::grants::{Grant, Use};
use crate::fabric::staged::serving::Step;
use crate::fabric::staged::{Answer, Breach, Piece, Pool, Request, NUMBER};
use crate::ids::{GrantToken, PeerId};
use crate::memory::Memory;
use crate::owner::deliver::{Delivery, Pass};
use crate::peer::link::Link;
use crate::session::channel::Out;
use crate::status::Status;
use crate::wire::frame::{read_numbers, Kind, REQUESTS};
use crate::worker::core::Core;
use std::sync::Arc;

/// Requests get answers and slots while fewer frames wait for their peer.
const ANSWERS: usize = 256;
/// Stands for host memory where slots are taken.
const HOST: Device = u32::MAX;

/// The bytes of a request, if its peer may reach them.
struct Located {
    places: Vec<(u64, u64)>,
    memory: Arc<Memory>,
    entered: Option<Use>,
}

fn locate(core: &Core, peer: PeerId, request: &Request) -> Result<Located, Status> {
    let (memory, entered) = match request.grant {
        Some(token) => {
            let theirs = |grant: &Arc<Grant>| grant.peer == peer;
            let entered = core.grants.named(token).filter(theirs).and_then(|grant| grant.enter());
            let entered = entered.ok_or(Status::Revoked)?;
            (core.memories.granted(entered.grant(), request.memory)?, Some(entered))
        }
        None => (core.memories.offered(request.memory, peer).ok_or(Status::MemoryGone)?, None),
    };
    let grant = entered.as_ref().map(Use::grant);
    let access = grant.map_or(memory.access(), |grant| grant.access);
    if !(if request.read { access.remote_read } else { access.remote_write }) {
        return Err(if grant.is_some() { Status::Revoked } else { Status::RemoteAccess });
    }
    let place = |piece: &Piece| {
        let at = usize::try_from(piece.range).map_err(|_| Status::Range)?;
        let range = memory.ranges().get(at).ok_or(Status::Range)?;
        let end = piece.offset.checked_add(piece.len).filter(|end| *end <= range.len);
        end.ok_or(Status::Range)?;
        let address = range.base + piece.offset;
        if grant.is_some_and(|grant| !grant.covers(address, piece.len)) {
            return Err(Status::Revoked);
        }
        match memory.place().is_none_or(|place| place.holds(at, range)) {
            true => Ok((address, piece.len)),
            false => Err(Status::MemoryGone),
        }
    };
    let places = request.pieces.iter().map(place).collect::<Result<_, _>>()?;
    Ok(Located { places, memory, entered })
}

impl Link {
    pub(crate) fn stage_asked(&mut self, core: &Core, body: &[u8]) -> Delivery {
        let asked = Request::decode(body).ok_or(Breach);
        if asked.and_then(|(id, request)| self.staged.serving.handle_request(id, request)).is_err() {
            self.broke(core);
        }
        Delivery::Taken
    }

    /// Bytes of a write of the peer's.
    pub(crate) fn stored(&mut self, pass: &mut Pass, body: &[u8]) -> Delivery {
        let place =
            |(id, bytes): (u64, _)| Some((id, bytes, self.staged.serving.place(id, len_of(bytes)).ok()?));
        let Some((id, bytes, place)) = numbered(body).and_then(place) else {
            self.broke(pass.core);
            return Delivery::Taken;
        };
        let Some((slot, at)) = place else { return Delivery::Taken };
        let to = (pass.pool.base(slot) + at) as *mut u8;
        // SAFETY: the request's bytes fit its slot, and no device copies it yet.
        unsafe { bytes::copy(to, bytes.as_ptr(), bytes.len()) };
        if self.staged.serving.handle_bytes(id, len_of(bytes), pass.now) {
            self.copy_served(pass.core, pass.pool, id, None);
        }
        Delivery::Taken
    }

    /// The peer has given a request up.
    pub(crate) fn unstage(&mut self, pass: &mut Pass, body: &[u8]) -> Delivery {
        match read_numbers(body) {
            Some([id]) if self.staged.serving.handle_unstage(id) => {
                self.drop_served(pass.pool, id, Status::Canceled)
            }
            Some(_) => {}
            None => pass.core.count_malformed(),
        }
        Delivery::Taken
    }

    /// Ends a request before its time; a device that still fills its slot keeps that until it is done.
    fn drop_served(&mut self, pool: &mut Pool, id: u64, why: Status) {
        let slot = self.staged.serving.get(id).and_then(|served| served.taken());
        if let Some(slot) = slot {
            pool.give_back(slot);
        }
        self.end_served(id, (why, 0));
    }

    fn answer_staged(&mut self, id: u64, answer: Answer) {
        self.push(Out::new(Kind::Staged, answer.encode(id)));
    }

    fn end_served(&mut self, id: u64, how: (Status, i32)) {
        self.staged.serving.end(id);
        self.answer_staged(id, Answer::Ended(how.0, how.1));
    }

    pub(super) fn serve_staged(&mut self, stage: &mut Stage) -> bool {
        let mut busy = false;
        for id in self.staged.serving.ids() {
            let Some(served) = self.staged.serving.get(id) else { continue };
            let (slot, read) = (served.slot, served.request.read);
            busy |= match served.step {
                Step::Waits => self.give_slot(stage, id),
                Step::Receives(_) => {
                    let late = self.staged.serving.is_late(id, stage.now, stage.core.config.timeout_ns);
                    if late {
                        self.drop_served(stage.pool, id, Status::TimedOut);
                    }
                    late
                }
                Step::Sends(_) => self.send_fetched(stage, id),
                Step::Lands | Step::Gathers => match stage.pool.poll(slot) {
                    Ok(false) => false,
                    Ok(true) if read => {
                        self.staged.serving.handle_gathered(id);
                        self.send_fetched(stage, id)
                    }
                    Ok(true) => {
                        stage.pool.give_back(slot);
                        self.end_served(id, (Status::Ok, 0));
                        true
                    }
                    Err(errno) => {
                        self.end_served(id, failure(errno));
                        true
                    }
                },
            };
        }
        busy
    }

    /// A request gets a slot, if one is free for it.
    fn give_slot(&mut self, stage: &mut Stage, id: u64) -> bool {
        // A peer that reads no answers gets no further ones.
        if self.session.channels[REQUESTS].waiting() >= ANSWERS {
            return false;
        }
        let Some(served) = self.staged.serving.get(id) else { return false };
        let (read, grant) = (served.request.read, served.request.grant);
        let located = match locate(stage.core, self.peer.id, &served.request) {
            Ok(located) => located,
            Err(status) => {
                self.end_served(id, (status, 0));
                return true;
            }
        };
        let key = grant.map_or(located.memory.secret, GrantToken::key);
        let device = located.memory.device().unwrap_or(HOST);
        match stage.pool.take(self.purpose(read, device, Some(key))) {
            Ok(None) => return false,
            Err(errno) => self.end_served(id, failure(errno)),
            Ok(Some(slot)) => {
                self.staged.serving.handle_slot(id, slot, stage.now);
                match read {
                    true => self.copy_served(stage.core, stage.pool, id, Some(located)),
                    false => self.answer_staged(id, Answer::Ready),
                }
            }
        }
        true
    }

    /// Copies between a request's slot and its memory, if the peer may still reach that (`located`: it may).
    fn copy_served(&mut self, core: &Core, pool: &mut Pool, id: u64, located: Option<Located>) {
        let Some(served) = self.staged.serving.get(id) else { return };
        let (slot, read) = (served.slot, served.request.read);
        let located = located.map_or_else(|| locate(core, self.peer.id, &served.request), Ok);
        let copied = match located {
            Err(status) => Err((true, (status, 0))),
            Ok(Located { places, memory, entered }) => match memory.device() {
                // SAFETY: the request's bytes fit its slot. Deregistering the memory, and revoking the grant, wait for the
                // copy (`Copying`), whose key was given with the slot.
                Some(_) => unsafe { pool.copy(slot, places.into_iter(), entered) }
                    .map_err(|errno| (false, failure(errno))),
                None => {
                    let (run, may_fault) = (pool.base(slot) as *mut u8, memory.access().may_fault);
                    // SAFETY: deregistering waits for every worker's pass to end; the request's bytes fit its slot.
                    match unsafe { copy(places.into_iter(), run, read, may_fault) } {
                        true => Ok(()),
                        false => Err((true, (Status::MemoryGone, 0))),
                    }
                }
            },
        };
        if let Err((has_slot, how)) = copied {
            if has_slot {
                pool.give_back(slot);
            }
            self.end_served(id, how);
        }
    }

    fn send_fetched(&mut self, stage: &mut Stage, id: u64) -> bool {
        let mut busy = false;
        while self.has_room_for_bytes() {
            let Some(served) = self.staged.serving.get(id) else { break };
            let (Step::Sends(sent), slot) = (served.step, served.slot) else { break };
            let len = stage.frame().min(served.len - sent);
            let mut body = Vec::with_capacity(NUMBER + len as usize);
            body.extend_from_slice(&id.to_le_bytes());
            // SAFETY: the slot has the request's bytes, and no device copies it any longer.
            body.extend_from_slice(unsafe {
                std::slice::from_raw_parts((stage.pool.base(slot) + sent) as *const u8, len as usize)
            });
            self.push(Out::new(Kind::Fetched, body));
            busy = true;
            if self.staged.serving.handle_sent(id, len) {
                stage.pool.give_back(slot);
                self.staged.serving.end(id);
            }
        }
        busy
    }
}
