//! Carries out staging (`fabric::staged`) for a peer: our transfers that no lane carries, and the peer's requests.

mod ours;
mod theirs;

use crate::bytes;
use crate::device::Device;
use crate::fabric::staged::{Pool, Purpose, NUMBER};
use crate::fabric::{Cause, ON_DISK};
use crate::ids::{Hold, OpId, PeerId};
use crate::kernel_copy;
use crate::peer::link::Link;
use crate::peer::staged::{Carried, Portion};
use crate::status::Status;
use crate::transfer::table::Left;
use crate::wire::frame::{read_numbers, HEADER, REQUESTS};
use crate::worker::core::Core;
use crate::worker::Worker;

/// Frames that a peer may have without acknowledgement when another one with bytes follows: what is behind them does not
/// wait for long, and they take little memory.
const AHEAD: usize = 20;

/// How a request ends whose bytes were not copied: with the system's error number.
fn failure(errno: i32) -> (Status, i32) {
    match Cause::from_errno(errno) {
        Cause::Disk => (Status::File, errno - ON_DISK),
        _ if errno == libc::ENOMEM => (Status::NoMemory, errno),
        _ => (Status::MemoryGone, 0),
    }
}

/// Copies between host memory and a run of bytes of ours. False: pages of it are gone.
///
/// # Safety
/// The places are memory that this process may read, or write, but for pages that may be gone if `may_fault`; the run
/// has as many bytes.
unsafe fn copy(
    places: impl Iterator<Item = (u64, u64)>,
    mut run: *mut u8,
    into_run: bool,
    may_fault: bool,
) -> bool {
    for (address, len) in places {
        let (place, len) = (address as *mut u8, len as usize);
        let (to, from) = if into_run { (run, place) } else { (place, run) };
        // SAFETY: both have as many bytes, which this function's contract says.
        unsafe {
            if may_fault && !kernel_copy::copy(to, from, len) {
                return false;
            }
            if !may_fault {
                bytes::copy(to, from, len);
            }
            run = run.add(len);
        }
    }
    true
}

/// The number of a frame with bytes, and these.
fn numbered(body: &[u8]) -> Option<(u64, &[u8])> {
    let (number, bytes) = body.split_at_checked(NUMBER)?;
    read_numbers(number).map(|[number]| (number, bytes))
}

/// What staging works with.
pub(crate) struct Stage<'a> {
    pub core: &'a Core,
    pub pool: &'a mut Pool,
    pub left: &'a mut Vec<Left>,
    pub now: u64,
}

impl Stage<'_> {
    /// The most bytes of one frame.
    fn frame(&self) -> u64 {
        (self.core.frame_bytes() - HEADER - NUMBER) as u64
    }
}

impl Worker {
    /// Something may be staged for a peer.
    #[inline]
    pub(crate) fn stage(&mut self, peer: PeerId) {
        let Some(link) = self.links.get_mut(peer) else { return };
        if !link.staged.listed && !link.staged.is_idle() {
            link.staged.listed = true;
            self.staging.peers.push(peer);
        }
    }

    /// Goes on with what is staged; true if there was any that could.
    pub(crate) fn go_on_staging(&mut self, now: u64) -> bool {
        if self.staging.is_idle() {
            return false;
        }
        let mut busy = self.staging.go_on();
        let core = self.core.clone();
        for peer in std::mem::take(&mut self.staging.peers) {
            let Some(link) = self.links.get_mut(peer) else { continue };
            let (pool, left) = (&mut self.staging.pool, &mut self.data.left);
            let mut stage = Stage { core: &core, pool, left, now };
            // Our own devices copy whatever the session does: an operation that has ended waits for them alone.
            busy |= link.poll_own(&mut stage);
            if link.session.is_away() {
                link.staged.serving.handle_away(now);
            } else {
                busy |= link.serve_staged(&mut stage);
                busy |= link.carry_staged(&mut stage);
            }
            busy |= link.leave_ended(&mut stage);
            link.staged.listed = !link.staged.is_idle();
            if link.staged.listed {
                self.staging.peers.push(peer);
            }
            self.links.mark(peer);
        }
        self.staging.watch();
        busy
    }
}

impl Link {
    fn purpose(&self, out: bool, device: Device, key: Option<u64>) -> Purpose {
        let peer = self.peer.id;
        // What the peer asks gets its first slot apart from our own: otherwise both sides could wait for each other.
        let connection = 2 * peer.place() as u32 + 1 + u32::from(key.is_some());
        Purpose { out, connection, device, key, peer: Some(peer) }
    }

    fn has_room_for_bytes(&self) -> bool {
        self.session.channels[REQUESTS].outstanding() < AHEAD
    }

    fn broke(&self, core: &Core) {
        core.breach(&self.peer, "a frame of staging that fits no request");
    }

    /// The peer has ended: gives back what is its, and returns the holds of transfers that go on no longer.
    pub(crate) fn end_staged(&mut self, core: &Core, pool: &mut Pool) -> Vec<Hold> {
        let transfers = std::mem::take(&mut self.staged.transfers);
        for Portion { op, slot, carried, .. } in self.staged.asking.take_all().map(|asked| asked.what) {
            if let Some(slot) = slot {
                pool.settle(slot);
                pool.give_back(slot);
            }
            put_down(core, &transfers, op, carried);
        }
        self.staged
            .serving
            .take_all()
            .filter_map(|served| served.taken())
            .for_each(|slot| pool.give_back(slot));
        transfers.into_iter().map(|one| one.hold).collect()
    }
}

fn len_of(bytes: &[u8]) -> u64 {
    bytes.len() as u64
}

/// A device no longer uses memory of an operation.
fn put_down(core: &Core, transfers: &[Carried], op: OpId, carried: bool) {
    if let Some(one) = transfers.iter().find(|one| carried && one.hold.id() == op) {
        core.table.put_down(core.table.held_slot(&one.hold));
    }
}
