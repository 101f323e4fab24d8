//! A peer whose last lane was reset is resumed over a new lane.
//!
//! 1. **Park.** The peer stays up. What its lanes had claimed waits in them until the peer's end is
//!    known to be reset, too; then it is parked here, with what is submitted meanwhile. Operations
//!    whose deadlines pass end as always.
//! 2. **Handshake.** A new lane between the same rails starts a handshake with a higher epoch. The
//!    receiver resets any older lane before it replies with an epoch of its own, so the handshake
//!    has the effect of Reset and ResetDone. (Both sides may begin; a side that has another lane by
//!    then sends Reset over that, as `failover` does.)
//! 3. **Ask.** A Resume frame asks which of our frames the peer has delivered. A transfer with a
//!    speculative notification (`Worker::speculative_lane`) has arrived if that was delivered;
//!    otherwise it is notified again after its last byte. Until the answer comes nothing is sent
//!    over the channels.
//! 4. **Continue.** Frames that were not delivered are sent again, and parked transfers go on.
//!
//! A peer that does not come back is lost: at once if it is known to be gone (`Nic::is_gone`); else
//! when it has been silent for longer than is allowed.

use super::failover::of_lane;
use super::inbox::Command;
use super::lanes::PeerEnd;
use super::later::Parked;
use super::later::HOPS;
use super::worker::Worker;
use crate::fabric::is_closed;
use crate::ids::{Hold, LaneId, OpId, PeerId};
use crate::peer::link::{PendingReset, Resumes, Resuming};
use crate::peer::{Peer, PeerState};
use crate::rail::LaneState;
use crate::session::{channel::Out, Plan};
use crate::status::Status;
use crate::transfer::claims::Run;
use crate::transfer::operation::Move;
use crate::transfer::table::Table;
use crate::transfer::Outcome;
use crate::wire::frame::{numbers, read_numbers, Header, Kind, CHANNELS};

/// A peer that closed the connection, as a dying process does, has sent a new handshake within this
/// time or is gone. For fabrics that report no ends otherwise.
const CLOSED_NS: u64 = 1_000_000_000;
/// How long the lanes may be away where silence is allowed forever (`liveness_ns`).
const AWAY_NS: u64 = 120_000_000_000;
/// A lane that fails sooner than this after its return was brief. After several in a row another is
/// pointless: an operation may be what makes them fail.
const BRIEF_NS: u64 = 1_000_000_000;
const BRIEF_MOST: u32 = 8;
/// Between questions that are not answered.
const AGAIN_NS: u64 = 100_000_000;
/// How long a new lane waits for the reset of the old one to be known; after that, another lane has
/// come back first.
const FENCE_NS: u64 = 50_000_000;
/// Parked transfers that a tick looks at.
const LOOKS: usize = 1024;

/// Whether an error is of a connection: a new one may not have it.
pub(super) fn helps(errno: i32) -> bool {
    use libc::*;
    is_closed(errno)
        || matches!(errno, ETIMEDOUT | EHOSTUNREACH | EHOSTDOWN | ENETUNREACH | ENETDOWN | ENETRESET)
}

impl Worker {
    // Park.

    /// Keeps a transfer until its peer has a lane for it.
    pub(super) fn park(&mut self, hold: Hold, runs: Vec<Run>) {
        let peer = self.core.held(&hold).map(|transfer| transfer.view().peer());
        self.parked.push_back(Parked { hold, peer, runs });
    }

    /// Lets parked transfers go on that can, and go that are over.
    pub(super) fn unpark(&mut self) {
        let core = self.core.clone();
        for _ in 0..self.parked.len().min(LOOKS) {
            let Some(one) = self.parked.pop_front() else { return };
            let slot = core.table.held_slot(&one.hold);
            let Some(peer) =
                one.peer.and_then(|peer| core.peers.get(peer).ok()).filter(|_| Table::wanted(slot))
            else {
                self.left.push(core.table.leave(one.hold));
                continue;
            };
            let waits = Table::is_notified(slot)
                || peer.is_away()
                || core.workers_for(&one.hold, &peer.lanes.lock().working()) == 0;
            if waits {
                self.parked.push_back(one);
            } else {
                self.again(one.hold, one.runs, HOPS);
            }
        }
    }

    /// The rails are closed.
    pub(super) fn leave_parked(&mut self) {
        let core = self.core.clone();
        let parked = std::mem::take(&mut self.parked);
        self.left.extend(parked.into_iter().map(|one| core.table.leave(one.hold)));
    }

    /// An operation of a lane that is being reset failed. If it would fail on any lane, new lanes
    /// are pointless.
    pub(super) fn reset_fails(&self, lane: LaneId, errno: i32) {
        let Some(of) = self.rails.lane(lane) else { return };
        if errno != 0 && !helps(errno) && of.resetting.is_some() && of.peer.is_away() {
            let rail = Some(lane.rail);
            let outcome = Outcome { provider_errno: errno, rail, ..Outcome::of(Status::PeerLost) };
            of.peer.note_failure(outcome);
            self.command_owner(&of.peer, Command::EndPeer { peer: of.peer.id, outcome });
        }
    }

    // Handshake.

    /// A lane of the peer sent a request: an older lane of ours to it is reset. False if the peer
    /// is to repeat the request later.
    pub(super) fn meets(&mut self, peer: &Peer, plan: Plan, epoch: u64) -> bool {
        if !self.note_peer_reset(peer.id, plan, epoch) {
            return false;
        }
        let lane = self.find_lane(peer, plan);
        let Some((rail, of)) = lane.and_then(|lane| self.rails.lane_mut(lane)) else { return true };
        let (lane, state) = (of.lane.id, of.lane.state);
        if of.peer_epoch.is_none_or(|epoch_seen| epoch_seen == epoch)
            || peer.state() != PeerState::Up
            || !rail.limits().resets
        {
            of.peer_epoch = Some(epoch);
            return true;
        }
        if Some(epoch) < of.peer_epoch {
            return false; // Of long ago.
        }
        match state {
            LaneState::Up => {
                let (errno, rail) = (libc::ECONNRESET, Some(plan.rail));
                let outcome = Outcome { provider_errno: errno, rail, ..Outcome::of(Status::PeerLost) };
                peer.take_out(plan);
                self.begin_reset(lane, outcome, PeerEnd::Reset);
            }
            LaneState::Handshaking | LaneState::Probing => self.give_up_lane(lane),
            LaneState::Down => return false,
        }
        self.reap_closing();
        self.note_peer_reset(peer.id, plan, epoch)
    }

    /// The peer has a lane of this epoch, so it has reset its ends of older ones. False if an older
    /// one is not reset here yet.
    pub(super) fn note_peer_reset(&mut self, peer: PeerId, plan: Plan, epoch: u64) -> bool {
        let mut both = true;
        let lanes = self.rails[plan.rail].lanes.iter_mut();
        for of in lanes.filter(|of| of.peer.id == peer && of.plan() == plan) {
            if let Some(resetting) = &mut of.resetting {
                resetting.peer_reset |= of.peer_epoch < Some(epoch);
                both &= resetting.peer_reset;
            }
        }
        both
    }

    /// At the peer's owner: its last lane is cut.
    pub(super) fn begin_resuming(&mut self, peer: PeerId, of: (Plan, u64), outcome: Outcome, now: u64) {
        // Of the fabrics that reconnect, only ofi_rxm does not report a refused connection.
        let reports_ends = !self.core.rails[of.0.rail.place()].fabric.ends_with(";ofi_rxm");
        let Some(link) = self.link(peer) else { return };
        link.peer.note_failure(outcome);
        let errno = outcome.provider_errno;
        let Resumes { count, last_ns, brief } = &mut link.resumes;
        let lasted = last_ns.is_none_or(|last| now.saturating_sub(last) > BRIEF_NS);
        (*count, *brief) =
            (*count + 1, if lasted { 0 } else { *brief + u32::from(errno != libc::ETIMEDOUT) });
        if !link.session.is_up() || link.session.closing().is_some() || *brief > BRIEF_MOST {
            return self.end_peer(peer, outcome, now);
        }
        let before = link.resuming.take().filter(|of| of.up_ns.is_none());
        link.resuming = Some(Resuming {
            since_ns: before.as_ref().map_or(now, |of| of.since_ns),
            closed: is_closed(errno) && !reports_ends || before.is_some_and(|of| of.closed),
            up_ns: None,
            asked_ns: None,
            outcome,
        });
        let (plan, epoch) = of;
        link.pending_resets.push(PendingReset { plan, epoch, handshaking: false });
        for at in 0..link.pending_resets.len() {
            if !std::mem::replace(&mut link.pending_resets[at].handshaking, true) {
                link.let_return(link.pending_resets[at].plan, now);
            }
        }
        if lasted && is_closed(errno) {
            link.kick(plan, now); // Who was there a moment ago is again, or is not at all.
        }
    }

    // Ask.

    /// Advances a resume: a lane is up, the old lane's reset is known, the peer has answered.
    pub(super) fn go_on_resuming(&mut self, peer: PeerId, now: u64) {
        let forever = self.core.config.liveness_ns.is_none();
        let Some(link) = self.link(peer) else { return };
        let none_up = link.lanes_up().is_empty();
        let Some(of) = link.resuming.as_mut() else { return };
        let took = now.saturating_sub(of.since_ns);
        if none_up {
            let over = of.closed && took > CLOSED_NS || forever && took > AWAY_NS;
            let outcome = of.outcome;
            return if over {
                self.end_peer(peer, outcome, now)
            };
        }
        let up = *of.up_ns.get_or_insert(now);
        if up == now {
            link.resumes.last_ns = Some(now);
        }
        if !link.pending_resets.is_empty() {
            if now.saturating_sub(up) > FENCE_NS {
                self.resume_blindly(peer, now);
            }
        } else if of.asked_ns.is_none_or(|asked| now.saturating_sub(asked) > AGAIN_NS) {
            of.asked_ns = Some(now);
            let body = numbers(&[link.resumes.count]);
            self.send_plainly(peer, Kind::Resume, &body);
        }
    }

    /// Posts an unsequenced frame, if there is room.
    fn send_plainly(&mut self, peer: PeerId, kind: Kind, body: &[u8]) {
        let Some(link) = self.link_here(peer) else { return };
        let Some(path) = self.path_to(link) else { return };
        let header = Header::plain(kind);
        let _ = self.send_by(path, peer, &header, body, &[]);
    }

    /// The peer asks what has been delivered of it. All that came over lanes which are cut has
    /// been looked at: it came to us before this did.
    pub(super) fn asked_to_resume(&mut self, peer: PeerId, body: &[u8]) {
        let Some([number]) = read_numbers::<1>(body) else { return self.core.count_malformed() };
        let Some(link) = self.link(peer) else { return };
        let mut answer = vec![number];
        answer.extend(link.session.channels.iter().map(|channel| u64::from(channel.delivered())));
        self.send_plainly(peer, Kind::Resumed, &numbers(&answer));
    }

    /// The peer's answer to Resume.
    pub(super) fn resumed(&mut self, peer: PeerId, body: &[u8], now: u64) {
        let core = self.core.clone();
        let Some([number, delivered @ ..]) = read_numbers::<{ 1 + CHANNELS }>(body) else {
            return core.count_malformed();
        };
        let Some(link) = self.link(peer) else { return };
        let asked = link.resuming.as_ref().is_some_and(|of| of.asked_ns.is_some());
        if !asked || number != link.resumes.count {
            return;
        }
        for (channel, delivered) in delivered.into_iter().enumerate() {
            self.acknowledged(peer, channel, delivered as u32, now);
        }
        let Some(link) = self.link(peer) else { return };
        let unheard: Vec<OpId> =
            link.session.channels.iter_mut().flat_map(|channel| channel.rewind()).collect();
        for id in unheard {
            self.retract(peer, id, now);
        }
        self.has_resumed(peer, now);
    }

    /// The peer has not received a speculative notification.
    fn retract(&mut self, peer: PeerId, id: OpId, now: u64) {
        let core = self.core.clone();
        let one_frame = core.table.read(id).map(|slot| {
            // SAFETY: held as a reader until it is released.
            let one_frame = unsafe { core.table.body(slot) }.transfer().is_some_and(Move::is_one_frame);
            core.table.release(slot);
            one_frame
        });
        match one_frame {
            // It may have received a part.
            Some(false) => _ = core.table.end(id, Outcome::of(Status::RailLost), now),
            Some(true) if core.table.retract(id) == Some(true) => self.link_notify(peer, id, false, now),
            _ => {}
        }
    }

    /// Another lane came back before the failed one: the Reset goes over this one. What became of
    /// speculative notifications is unknown.
    fn resume_blindly(&mut self, peer: PeerId, now: u64) {
        let core = self.core.clone();
        let Some(link) = self.link(peer) else { return };
        let retracted: Vec<OpId> =
            link.session.channels.iter_mut().flat_map(|channel| channel.rewind()).collect();
        let outcome = link.resuming.as_ref().map_or(Outcome::OK, |of| of.outcome);
        for of in link.pending_resets.clone() {
            link.push(Out::new(Kind::Reset, of_lane(of.plan, of.epoch)));
        }
        for id in retracted {
            core.table.end(id, Outcome { status: Status::RailLost, ..outcome }, now);
        }
        self.has_resumed(peer, now);
    }

    // Go on.

    fn has_resumed(&mut self, peer: PeerId, now: u64) {
        let Some(link) = self.link(peer) else { return };
        if let Some(of) = link.resuming.take() {
            let ms = now.saturating_sub(of.since_ns) / 1_000_000;
            log::info!("{}: a new connection is up after {ms} ms, and operations go on", link.peer);
        }
        link.peer.forget_failure();
        self.mark(peer);
    }
}
