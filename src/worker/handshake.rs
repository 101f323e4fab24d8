//! Lanes come up: handshake and probe.

use super::authenticate::{denial, Verdict};
use super::inbox::{AcceptedHandshake, Command};
use super::lanes::{DataPath, Handshake, LaneWork, RailWork};
use super::later::ENDS_NS;
use crate::fabric::select::readable;
use crate::fabric::{Connection, LinkState, Posted, Resets};
use crate::ids::{LaneId, RailIndex};
use crate::lane::{Life, Sight, Step};
use crate::peer::{Meeting, Peer, PeerState};
use crate::rail::OfPeer;
use crate::session::{LaneEvent, Plan};
use crate::status::{Error, Status};
use crate::transfer::Outcome;
use crate::wire::address::Address;
use crate::wire::frame::{self, HandshakeReply, HandshakeRequest, Header, Kind, Token};
use crate::wire::seal::{Opener, Proof, Sealer, Side};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The error for a request or reply that repeats an earlier one.
const STALE: &str = "what it says was said before, and holds no longer";

/// The origin of a frame: the rail, and the connection on it.
pub type Origin = (RailIndex, Connection);

/// The source of a request: its connection, or else the address in it.
fn source((rail, connection): Origin, back: &[u8]) -> u64 {
    if connection != 0 {
        return u64::from(rail.get()) << 32 | u64::from(connection);
    }
    let mut hasher = DefaultHasher::new();
    back.hash(&mut hasher);
    hasher.finish()
}

impl DataPath {
    pub fn add_lanes(
        &mut self,
        peer: &Arc<Peer>,
        plans: &[Plan],
        reply: Option<&AcceptedHandshake>,
        now: u64,
    ) {
        if peer.state() == PeerState::Down {
            return; // The peer ended before this command arrived.
        }
        for plan in plans {
            match self.add_lane(peer, plan) {
                Ok(Some(lane)) => {
                    if let Some(accepted) = reply.filter(|accepted| accepted.plan == *plan) {
                        self.reply_to_handshake(lane, accepted);
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    let errno = error.provider_errno;
                    let why = self.core.why_not(peer, *plan, error.message.into_owned());
                    log::debug!("{peer}: no lane to {}: {}", why.at, why.text);
                    self.core.tell_of_lane(peer, *plan, LaneEvent::Failed { errno, why });
                }
            }
        }
        self.advance_handshakes(now);
    }

    fn add_lane(&mut self, peer: &Arc<Peer>, plan: &Plan) -> crate::status::Result<Option<LaneId>> {
        if self.rails.get_mut(plan.rail).is_none() {
            return Ok(None);
        }
        let Some(theirs) = peer.rail_address(plan.remote_rail) else { return Ok(None) };
        if let Some(lane) = self.find_lane(peer, *plan) {
            self.restart(lane);
            return Ok(Some(lane));
        }
        if self.rails[plan.rail].reopening.is_away() {
            let error = Error::new(Status::Fabric, "its device was removed");
            return Err(Error { provider_errno: LinkState::Removed.errno(), ..error });
        }
        let (nonce, own) = (self.core.random.u128()?, self.core.random.u128()?);
        let epoch = self.epochs + 1;
        let root = self.core.root_for(Some(peer));
        let handshake = Handshake { nonce, root, waits_for: "" };
        let life = Life::new(epoch, self.core.clock.now());
        let RailWork { rail, lanes, .. } = &mut self.rails[plan.rail];
        let to = OfPeer { peer: peer.id, remote_rail: plan.remote_rail, traffic: peer.traffic_of(*plan) };
        let theirs = theirs.whole();
        let id = rail.add_lane(lanes, to, life, &theirs, |lane| LaneWork {
            lane,
            peer: peer.clone(),
            theirs: theirs.clone(),
            stripes: Default::default(),
            handshake,
            own,
            accepted: None,
            owed: Vec::new(),
        })?;
        self.note_moved(plan.rail);
        self.epochs = epoch;
        let place = peer.id.place();
        if self.lanes_of.len() <= place {
            self.lanes_of.resize_with(place + 1, Vec::new);
        }
        self.lanes_of[place].push(id);
        Ok(Some(id))
    }

    fn restart(&mut self, lane: LaneId) {
        if let Some((_, work)) = self.rails.lane_mut(lane) {
            work.lane.life.restart();
        }
    }

    /// Sends handshake requests on lanes without an answer, and probes answered ones. A driver may
    /// take long to make a connection: then the others' follow in the next passes, the longest due
    /// first.
    pub fn advance_handshakes(&mut self, now: u64) {
        let core = self.core.clone();
        let (mut failed, mut unanswered, mut requests) = (Vec::new(), Vec::new(), Vec::new());
        for work in self.rails.iter_mut() {
            for lane in work.lanes.iter_mut().filter(|one| one.lane.life.is_open() && !one.lane.life.is_up())
            {
                let plan = lane.plan();
                let sight = Sight {
                    peer_up: lane.peer.state() == PeerState::Up,
                    resets: work.rail.limits().resets != Resets::Never,
                    gone: lane.peer.is_away() && work.rail.is_gone(&lane.lane),
                    unfinished: lane.peer.unfinished(),
                };
                match lane.lane.life.poll(sight, now) {
                    None => {}
                    Some(Step::Gone) => failed.push((lane.peer.clone(), plan, libc::ECONNREFUSED)),
                    Some(Step::Unanswered) => unanswered.push(lane.lane.id),
                    // Above the limit of concurrent handshakes it stays due.
                    Some(Step::Request { due_ns }) if work.rail.may_handshake(&lane.lane) => {
                        requests.push((due_ns, lane.lane.id))
                    }
                    Some(Step::Request { .. }) => {}
                    Some(Step::Probe) => match work.rail.post_probe(&mut lane.lane, now) {
                        Posted::Yes => lane.lane.life.probe_posted(false, now),
                        Posted::Again => lane.lane.life.probe_posted(true, now),
                        Posted::Failed(errno) => {
                            let reconnects = work.rail.limits().reconnects;
                            if lane.lane.life.attempt_failed(errno, reconnects, now) {
                                failed.push((lane.peer.clone(), plan, errno));
                            }
                        }
                    },
                }
            }
        }
        requests.sort_by_key(|(due, lane)| (*due, lane.rail));
        let began = core.clock.now();
        for (due, lane) in requests {
            if let Some(one) = self.request_handshake(lane, due, now) {
                failed.push(one);
            }
            if core.clock.now().saturating_sub(began) > ENDS_NS {
                break;
            }
        }
        for (peer, plan, errno) in failed {
            self.core.lane_not_up(&peer, plan, errno);
        }
        for lane in unanswered {
            if let Some(work) = self.rails.lane(lane) {
                work.peer.count_unfinished();
            }
            self.give_up_lane(lane);
        }
    }

    /// Returns why the lane fails, if it does.
    fn request_handshake(&mut self, lane: LaneId, due: u64, now: u64) -> Option<(Arc<Peer>, Plan, i32)> {
        let DataPath { core, rails, .. } = self;
        let (rail, lane) = rails.lane_mut(lane)?;
        if !rail.may_handshake(&lane.lane) {
            return None; // Others of this pass have reached the limit: it stays due.
        }
        lane.lane.life.requested(now);
        let plan = lane.plan();
        if due != 0 {
            rail.count_retry(now);
            let waits_for = rail.waits_for(&lane.lane);
            let known = &mut lane.handshake.waits_for;
            if !waits_for.is_empty() && std::mem::replace(known, waits_for) != waits_for {
                let why = core.why_not(&lane.peer, plan, waits_for.into());
                core.tell_of_lane(&lane.peer, plan, LaneEvent::Waits(why));
            }
        }
        let request = HandshakeRequest {
            target: lane.peer.address.incarnation,
            token: lane.peer.token,
            yours: lane.peer.named_by().0,
            nonce: lane.handshake.nonce,
            begun: lane.peer.begun,
            epoch: lane.lane.life.epoch(),
            rail: plan.rail,
            your_rail: plan.remote_rail,
            wire: frame::WIRE_HIGHEST,
            proven: false,
            address: core.address.bytes(),
        };
        let header = Header::plain(Kind::HandshakeRequest);
        let body = core.handshake_request(request, lane.handshake.root.as_ref());
        match rail.send_open(&mut lane.lane, |f| header.write(f, &body, &[])) {
            Posted::Failed(errno) => {
                let fails = lane.lane.life.attempt_failed(errno, rail.limits().reconnects, now);
                fails.then(|| (lane.peer.clone(), plan, errno))
            }
            _ => None,
        }
    }

    /// A handshake request arrived over one of our rails.
    pub fn on_handshake_request(&mut self, (rail, connection): Origin, body: &[u8], now: u64) {
        let Some(request) = HandshakeRequest::decode(body) else { return self.core.count_malformed() };
        let address = match Address::decode(request.address) {
            Ok(address) if address.rails.len() > request.rail.place() => address,
            _ => return self.core.count_malformed(),
        };
        let incarnation = address.incarnation;
        let back = &address.rails[request.rail.place()].whole();
        let mut root = None;
        let refusal = if request.target != self.core.incarnation {
            Some((Status::PeerGone, "another endpoint lives at this address now".into()))
        } else if request.your_rail != rail {
            return self.core.count_malformed();
        } else if let Err(error) = address.common_wire() {
            Some((error.status, error.message))
        } else {
            match self.core.judge(&request, incarnation, body, now) {
                Verdict::Believed(by) => {
                    root = by;
                    None
                }
                Verdict::Denied(why) => Some((Status::Denied, denial(why))),
            }
        };
        if let Some((status, text)) = refusal {
            let from = readable(&address.rails[request.rail.place()].address);
            self.core.reject(&format!("a handshake from {from}: {text}"));
            return self.refuse((rail, connection), &request, (incarnation, back), status, &text);
        }
        let plan = Plan { rail, remote_rail: request.rail };
        let accepted = AcceptedHandshake { plan, nonce: request.nonce, epoch: request.epoch, root };
        let known = self.core.peers.by_incarnation(incarnation);
        let ours = known.as_ref().map_or(0, |peer| peer.token);
        if request.yours != 0 && request.yours != ours {
            let text = "the other side has ended this peer";
            return self.refuse((rail, connection), &request, (incarnation, back), Status::PeerGone, text);
        }
        let over = &self.core.rails[rail.place()].fabric;
        let leads = known
            .as_ref()
            .map_or(self.core.shares_host(over, &address), |peer| peer.workers >> self.index & 1 != 0);
        if !leads {
            // This worker would not learn when the peer ends, or a grant of it is revoked.
            return self.core.reject("a handshake over a fabric that does not lead to its peer");
        }
        let Some(peer) = known else {
            if request.begun <= self.core.peers.begun_before(incarnation) {
                return self.core.reject(STALE);
            }
            let source = source((rail, connection), back);
            match self.core.accept(address, request.token, request.begun, accepted, source) {
                Ok(peer) => self.rails[rail].rail.assign_connection(connection, peer),
                Err(error) => log::debug!("a peer cannot be accepted: {error}"),
            }
            return;
        };
        if peer.state() == PeerState::Down {
            return;
        }
        match peer.meet(request.token, request.begun) {
            Meeting::Same => {}
            // The peer's next handshake request then finds no peer here.
            Meeting::Other => return self.end_stale(&peer),
            Meeting::Stale => return self.core.reject(STALE),
        }
        let most = 2 * self.core.rails.len().max(peer.address.rails.len());
        if !peer.lanes.lock().is_newest(plan, request.epoch, most) {
            return self.core.reject(STALE);
        }
        peer.authenticate_by(&accepted.root);
        peer.has_moved_to(address.rails);
        if !self.meets(&peer, plan, request.epoch, back) {
            return; // The peer retries, and its connection is not the one that was reset with the older lane.
        }
        self.rails[rail].rail.assign_connection(connection, peer.id);
        if let Some(lane) = self.find_lane(&peer, plan) {
            self.restart(lane);
            self.reply_to_handshake(lane, &accepted);
            if let Some((rail, work)) = self.rails.lane_mut(lane) {
                rail.watch_sockets(&work.lane);
            }
        } else {
            self.core.hand_to_owner(&peer, Command::HandshakeAccepted { peer: peer.id, accepted });
        }
    }

    /// The other side has ended a peer that still exists here.
    fn end_stale(&self, peer: &Peer) {
        let outcome = Outcome::new(Status::PeerClosed);
        self.core.command_owner(peer, Command::EndPeer { peer: peer.id, outcome });
    }

    pub(crate) fn find_lane(&self, peer: &Peer, plan: Plan) -> Option<LaneId> {
        let lanes = self.lanes_of.get(peer.id.place())?;
        lanes.iter().copied().find(|id| {
            self.rails.lane(*id).is_some_and(|work| work.lane.peer == peer.id && work.plan() == plan)
        })
    }

    fn refuse(
        &mut self,
        origin: Origin,
        request: &HandshakeRequest,
        to: (u64, &[u8]),
        status: Status,
        text: &str,
    ) {
        self.send_refusal(origin, request.token, to, frame::refuse(status, text));
    }

    /// Sends a refusal to the address `to.1`, which names the receiver by incarnation and `token`.
    pub(crate) fn send_refusal(&mut self, origin: Origin, token: Token, to: (u64, &[u8]), body: Vec<u8>) {
        let header = Header { to: token, ..Header::plain(Kind::Refuse) };
        let body = self.core.refusal(to.0, token, body);
        let RailWork { rail, lanes, .. } = &mut self.rails[origin.0];
        rail.answer(lanes, to.1, origin.1, |frame| header.write(frame, &body, &[]));
    }

    fn reply_to_handshake(&mut self, lane: LaneId, accepted: &AcceptedHandshake) {
        let Some(peer) = self.rails.lane(lane).map(|work| work.peer.clone()) else { return };
        let Some((rail, work)) = self.rails.lane_mut(lane) else { return };
        work.lane.to = peer.named_by().0;
        if let Some(root) = accepted.root.as_ref().filter(|_| work.accepted != Some(accepted.nonce)) {
            let &AcceptedHandshake { plan, nonce, epoch, .. } = accepted;
            let theirs = Side { incarnation: peer.address.incarnation, nonce, epoch, rail: plan.remote_rail };
            let ours = Side {
                incarnation: self.core.incarnation,
                nonce: work.own,
                epoch: work.lane.life.epoch(),
                rail: plan.rail,
            };
            work.lane.opener = Some(Opener::new(root, &theirs, &ours));
            work.accepted = Some(nonce);
        }
        let reply = HandshakeReply {
            nonce: accepted.nonce,
            own: work.own,
            token: peer.token,
            begun: peer.begun,
            epoch: work.lane.life.epoch(),
            probe_buffer: rail.probe_buffer(),
        };
        let body = self.core.handshake_reply(&peer, &reply, accepted.root.as_ref());
        let header = Header::plain(Kind::HandshakeReply);
        // If the lane is full, the requester repeats its request.
        let _ = rail.send_open(&mut work.lane, |frame| header.write(frame, &body, &[]));
    }

    /// A handshake reply arrived over one of our rails.
    pub fn on_handshake_reply(&mut self, rail: RailIndex, peer: &Peer, body: &[u8], now: u64) {
        let Some(nonce) = body.first_chunk::<16>().map(|nonce| u128::from_le_bytes(*nonce)) else {
            return self.core.count_malformed();
        };
        let work = &mut self.rails[rail];
        let lane =
            work.lanes.iter_mut().find(|lane| lane.handshake.nonce == nonce && lane.peer.id == peer.id);
        let Some(lane) = lane else { return };
        let (from, to) = (peer.address.incarnation, self.core.incarnation);
        let proven = match &lane.handshake.root {
            None => Some(body),
            Some(root) => root.verify(Proof::Reply, from, to, body),
        };
        let Some(proven) = proven else {
            return self.core.reject("a welcome without proof of the secret");
        };
        let Some(reply) = HandshakeReply::decode(proven) else { return self.core.count_malformed() };
        let (plan, l) = (lane.plan(), &mut lane.lane);
        if !l.life.awaits(reply.epoch) {
            return;
        }
        match peer.meet(reply.token, reply.begun) {
            Meeting::Same => {}
            Meeting::Other => return self.end_stale(peer),
            Meeting::Stale => return self.core.reject(STALE),
        }
        (l.to, l.probe_buffer) = (reply.token, reply.probe_buffer);
        l.life.answered(reply.epoch);
        // Both ends keep their session where a probe failed: its numbers continue.
        l.sealer = l.sealer.take().or_else(|| {
            let ours = Side { incarnation: to, nonce, epoch: l.life.epoch(), rail: plan.rail };
            let theirs =
                Side { incarnation: from, nonce: reply.own, epoch: reply.epoch, rail: plan.remote_rail };
            lane.handshake.root.as_ref().map(|root| Sealer::new(root, &ours, &theirs))
        });
        let theirs = lane.theirs.clone();
        self.note_peer_reset(peer.id, plan, reply.epoch, &theirs);
        self.advance_handshakes(now);
    }

    pub fn lane_is_probed(&mut self, lane: LaneId, now: u64) {
        let Some((rail, work)) = self.rails.lane_mut(lane) else { return };
        if !work.lane.life.probed() {
            return;
        }
        rail.lane_is_up(&work.lane);
        let names = rail.elsewhere(&work.lane);
        let (peer, plan) = (work.peer.clone(), work.plan());
        peer.lanes.lock().is_carried_by(plan, self.core.carrier(lane.rail, names[0].as_deref()));
        work.lane.elsewhere = self.core.elsewhere(lane.rail, names);
        work.lane.delivered_ns = now;
        peer.count_finished();
        self.core.command_owner(&peer, Command::Lane { peer: peer.id, plan, event: LaneEvent::Up });
        self.rejoin(lane, &peer);
    }

    // Frames in.

    /// A frame without its seal, if it belongs to the session of the lane that it came over.
    /// Without a secret there is no seal: a sender that knows the token is the peer.
    pub(crate) fn open_frame<'a>(
        &mut self,
        rail: RailIndex,
        peer: &Peer,
        header: &Header,
        frame: &'a [u8],
    ) -> Option<&'a [u8]> {
        if !self.core.has_secret() {
            return Some(frame);
        }
        let lane = self.lane_about(rail, peer, header)?;
        self.rails.lane_mut(lane)?.1.lane.opener.as_mut()?.open(frame)
    }

    /// The local end of the lane that a frame refers to.
    pub(crate) fn lane_about(&self, rail: RailIndex, peer: &Peer, header: &Header) -> Option<LaneId> {
        self.find_lane(peer, Plan { rail, remote_rail: header.rail })
    }

    /// A frame for a peer that has ended here: the other side gets a refusal or Close.
    pub(crate) fn answer_ended(&mut self, origin: Origin, header: &Header, token: Token, address: &Address) {
        let unasked = [Kind::Closing, Kind::Close, Kind::CloseAck, Kind::Refuse, Kind::HandshakeReply];
        if unasked.contains(&header.kind) {
            return;
        }
        let fabric = &self.core.rails[origin.0.place()].fabric;
        let Some(theirs) = address.rails.iter().find(|rail| rail.fabric == *fabric) else { return };
        if self.core.has_secret() {
            // It is sent outside the session, which has ended, too.
            let body = frame::refuse(Status::PeerGone, "the other side has ended this peer");
            return self.send_refusal(origin, token, (address.incarnation, &theirs.whole()), body);
        }
        let close = Header { to: token, ..Header::plain(Kind::Close) };
        let RailWork { rail, lanes, .. } = &mut self.rails[origin.0];
        rail.answer(lanes, &theirs.whole(), origin.1, |frame| close.write(frame, &[], &[]));
    }
}
