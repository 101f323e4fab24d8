//! Where NICs check no grants, the sender does. It asks the owner, once for each grant, what the
//! grant covers; operations under the grant wait for the answer (`Core::covers`). Then each
//! run of slices is checked when it is claimed (`Move::is_covered`).
//!
//! The answer comes in as many frames as it needs, each of them asked for, so that an owner keeps
//! nothing for peers that ask and do not read. A grant that is not live covers nothing: the
//! operations end with `WEFT_ERR_REVOKED`.
//!
//! This keeps an honest sender within its grants. Peers that lie are the owner's affair (`keys`).

use super::deliver::Delivery;
use super::granted::{granted, PIECES};
use crate::fabric::{Access, HostRange};
use crate::ids::{GrantToken, Hold, MemoryId, PeerId, RailIndex};
use crate::memory::{Asking, Covered};
use crate::peer::link::Link;
use crate::peer::Peer;
use crate::session::channel::Out;
use crate::status::{Error, Result, Status};
use crate::transfer::operation::Move;
use crate::transfer::Outcome;
use crate::wire::frame::{numbers, read_numbers, Kind, HEADER};
use crate::worker::core::Core;

/// Bytes of an answer before the ranges: the token, the memory, the directions, and the number of
/// ranges in all and before these.
const BEFORE: usize = 16 + 4 * 8;
const RANGE: usize = 16;
const WRITE: u64 = 1;
const READ: u64 = 2;

fn about(grant: GrantToken, values: &[u64]) -> Vec<u8> {
    [&grant.get().to_le_bytes()[..], &numbers(values)].concat()
}

impl Core {
    /// Whether the NICs that serve a peer check its requests, so that this side need not.
    fn checks_for(&self, peer: &Peer) -> bool {
        RailIndex::each(&self.rails).all(|(index, rail)| rail.grants || !peer.is_served_by(index))
    }

    /// Checks that operations under grants can be kept within them.
    pub(crate) fn check_covered(&self, peer: PeerId) -> Result<()> {
        match self.peers.get(peer) {
            Ok(peer) if !peer.address.answers_about_grants() && !self.checks_for(&peer) => Err(Error::new(
                Status::Unsupported,
                "NICs of this fabric check no grants, and the peer's Weft does not say what its grants cover: \
                 update it, or use host or tcp",
            )),
            _ => Ok(()),
        }
    }

    /// Whether a transfer may go on: it needs no grant, its target checks it, or what it covers is
    /// known. Otherwise its owner is asked first.
    pub(crate) fn covers(&self, transfer: &Move) -> Result<bool> {
        if self.rails_check {
            return Ok(true);
        }
        let Some(grant) = transfer.grant else { return Ok(true) };
        let Ok(peer) = self.peers.get(transfer.view().peer()) else { return Ok(false) };
        if self.checks_for(&peer) {
            return Ok(true);
        }
        if let Some(covered) = peer.covered.get(grant) {
            // Set before, if it goes on again.
            let _ = transfer.covered.set(covered);
            return Ok(true);
        }
        self.check_covered(peer.id).map(|()| false)
    }
}

impl Link {
    /// A transfer needs to know what its grant covers.
    pub(crate) fn ask_grant(&mut self, core: &Core, hold: Hold, now: u64) {
        let Some(grant) = core.held(&hold).and_then(|transfer| transfer.grant) else {
            return core.abandon(hold, Outcome::new(Status::Internal), now);
        };
        if self.peer.revoked.contains(grant) {
            return core.abandon(hold, Outcome::new(Status::Revoked), now);
        }
        if let Some(asking) = self.asking.get_mut(&grant) {
            return asking.waiting.push(hold);
        }
        let covered = Covered { memory: MemoryId::new(0), write: false, read: false, ranges: Vec::new() };
        self.asking.insert(grant, Asking { covered, waiting: vec![hold] });
        self.push_ask(grant, 0);
    }

    fn push_ask(&mut self, grant: GrantToken, first: usize) {
        self.push(Out::new(Kind::AskGrant, about(grant, &[first as u64])));
    }

    /// The peer asks what a grant covers, from one of its ranges on.
    pub(crate) fn tell_grant(&mut self, core: &Core, body: &[u8]) -> Delivery {
        if !self.takes_requests() {
            return Delivery::Stalled;
        }
        let asked = granted(body).and_then(|(token, rest)| Some((token, read_numbers::<1>(rest)?)));
        let Some((token, [first])) = asked else {
            core.count_malformed();
            return Delivery::Taken;
        };
        let most = (core.frame_bytes() - HEADER - BEFORE) / RANGE;
        let mut answer = vec![0; 4];
        if let Some(grant) = core.grants.named(token).filter(|grant| grant.peer == self.peer.id) {
            let (Access { remote_write, remote_read, .. }, all) = (grant.access, grant.ranges());
            let access = if remote_write { WRITE } else { 0 } | if remote_read { READ } else { 0 };
            let before = [grant.memory.get(), access, all.len() as u64, first];
            let some = all.iter().skip(usize::try_from(first).unwrap_or(usize::MAX)).take(most);
            answer = before.into_iter().chain(some.flat_map(|range| [range.base, range.len])).collect();
        }
        self.answer(core, Out::new(Kind::Granted, about(token, &answer)));
        Delivery::Taken
    }

    /// The owner of a grant says what it covers.
    pub(crate) fn grant_answered(&mut self, core: &Core, body: &[u8], now: u64) {
        let answer = granted(body).and_then(|(token, rest)| Some((token, read_numbers::<4>(rest)?)));
        let Some((grant, [memory, access, total, first])) = answer else { return core.count_malformed() };
        // It may have been revoked meanwhile.
        let Some(mut asking) = self.asking.remove(&grant) else { return };
        let covered = &mut asking.covered;
        let some = body.get(BEFORE..).unwrap_or_default().chunks_exact(RANGE).filter_map(read_numbers::<2>);
        let before = covered.ranges.len();
        covered.ranges.extend(some.map(|[base, len]| HostRange { base, len }));
        let (known, total) = (covered.ranges.len(), usize::try_from(total).unwrap_or(usize::MAX));
        if first != before as u64 || known == before || known > total || total > PIECES as usize {
            if total != 0 {
                core.count_malformed();
            }
            return self.refused_under(core, grant, asking.waiting, now);
        }
        if known < total {
            self.asking.insert(grant, asking);
            return self.push_ask(grant, known);
        }
        let Asking { covered, waiting } = asking;
        let (write, read) = (access & WRITE != 0, access & READ != 0);
        self.peer.covered.insert(grant, Covered { memory: MemoryId::new(memory), write, read, ..covered });
        core.go_on_all(self.peer.id, waiting, now);
    }

    fn refused_under(&self, core: &Core, grant: GrantToken, waiting: Vec<Hold>, now: u64) {
        log::debug!("{}: grant {grant} is revoked there, or not ours", self.peer);
        waiting.into_iter().for_each(|hold| core.abandon(hold, Outcome::new(Status::Revoked), now));
    }

    /// The peer revokes a grant: what it covers is of no use any longer.
    pub(crate) fn forget_covered(&mut self, core: &Core, grant: GrantToken, now: u64) {
        self.peer.covered.forget(grant);
        if let Some(asking) = self.asking.remove(&grant) {
            self.refused_under(core, grant, asking.waiting, now);
        }
    }
}
