//! Frames of links, out and in: messages, notifications, imports.

use super::core::Core;
use super::grants::granted;
use super::handshake;
use super::inbox::Command;
use super::lanes::{LaneWork, RailWork};
use super::later::Until;
use super::relay::Path;
use super::sessions::show_lanes;
use super::worker::Worker;
use crate::fabric::Posted;
use crate::ids::{GrantToken, LaneId, MemoryId, OpId, PeerId, RailIndex};
use crate::memory::{RemoteMemory, RemoteState, Revoked};
use crate::peer::link::{remote_state_of_end, Assembly, Link, Part};
use crate::peer::table::Named;
use crate::peer::Peer;
use crate::rail::LaneState;
use crate::room;
use crate::session::channel::Out;
use crate::session::Plan;
use crate::status::Status;
use crate::transfer::completion::{self, Completion};
use crate::transfer::ending::Sweep;
use crate::transfer::operation::Failed;
use crate::transfer::Outcome;
use crate::wire::address::Address;
use crate::wire::frame::{
    self, numbers, read_numbers, Header, Kind, Token, CHANNELS, HEADER, REQUESTS, USER,
};
use crate::wire::seal::SEAL;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Frames that a lane may have under way when a heartbeat joins them.
const BEATS: u32 = 4;

/// Most data of a notification, in bytes: callers rely on it.
const NOTIFY_DATA: usize = 256;

/// A peer whose notifications or messages have waited for this long for a full queue is reported.
const HELD_BACK_NS: u64 = 1_000_000_000;

/// The outcome of delivering the next frame of a channel.
pub(super) enum Delivery {
    Taken,
    /// Taken, and a caller waits for its acknowledgement.
    TakenUrgently,
    /// No room: leave it with the sender.
    Stalled,
}

/// The body of an acknowledgement of all channels.
fn acknowledgement(link: &Link) -> Vec<u8> {
    numbers(&link.session.channels.each_ref().map(|channel| channel.delivered().into()))
}

/// Whether a frame is under a grant that the peer has revoked. The peer announces that before it
/// drops such frames.
fn is_revoked(out: &Out, revoked: &Revoked) -> bool {
    let under = out.kind.announces().is_some_and(|kind| kind != out.kind);
    under && granted(&out.body).is_some_and(|(grant, _)| revoked.contains(grant))
}

/// What an acknowledgement changed.
#[derive(Default)]
pub(super) struct Acknowledged {
    /// It was of frames that had not been acknowledged.
    opened: bool,
    /// The peer knows of a revoke.
    withdrawn: bool,
}

impl Core {
    /// The peer has these frames: the operations that wait for that end. `of`: the peer, and its
    /// failed transfers of whose success it was notified.
    pub(super) fn frames_taken(
        &self,
        (peer, notified): (&Peer, &mut BTreeSet<OpId>),
        frames: impl IntoIterator<Item = Out>,
        now: u64,
    ) -> Acknowledged {
        let mut news = Acknowledged::default();
        for out in frames {
            news.opened = true;
            if out.kind == Kind::Withdraw {
                self.knows_of_revoke(&out.body);
                news.withdrawn = true;
            }
            // First: the poller of the completion may send the next at once.
            if out.allowance > 0 {
                peer.outgoing.fetch_sub(out.allowance, Ordering::Relaxed);
            }
            if let Some(id) = out.done {
                // A speculative notification implies that the bytes have arrived: they came first.
                let revoked = is_revoked(&out, &peer.revoked);
                let outcome = if revoked { Outcome::of(Status::Revoked) } else { Outcome::OK };
                if !self.table.end(id, outcome, now) && out.or_failure {
                    notified.insert(id);
                }
            }
        }
        news
    }
}

impl Worker {
    // Frames out.

    /// A lane of this worker that can carry control frames to a peer.
    pub(super) fn control_lane(&self, peer: PeerId) -> Option<LaneId> {
        let lanes = self.lanes_of.get(peer.place())?;
        let serves = |of: &LaneWork| {
            let up = of.lane.peer == peer && of.lane.state == LaneState::Up;
            up && of.peer.is_served_by(of.lane.id.rail)
        };
        lanes.iter().copied().find(|lane| self.rails.lane(*lane).is_some_and(serves))
    }

    /// Control lanes that refused their last frame.
    pub(super) fn refusals(&self) -> Vec<(PeerId, LaneId)> {
        let links = self.links.iter().flatten().filter(|link| link.session.is_up());
        let lanes = links.filter_map(|link| Some((link.peer.id, self.control_lane(link.peer.id)?)));
        lanes.filter(|(_, lane)| self.refuses(*lane)).collect()
    }

    fn refuses(&self, lane: LaneId) -> bool {
        self.rails.lane(lane).is_some_and(|of| of.lane.refused)
    }

    /// Lets links send what they have; true if anything was sent.
    pub fn talk(&mut self, now: u64) -> bool {
        let mut busy = !self.relayed.is_empty() && self.post_relayed(now);
        if self.dirty.is_empty() {
            return busy;
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.retain(|at| {
            let Some(mut link) = self.links.get_mut(*at).and_then(Option::take) else { return false };
            let (sent, more) = self.flush(&mut link, now);
            busy |= sent;
            let peer = link.peer.id;
            self.links[*at] = Some(link);
            let more = self.resume_requests(peer, now) | more;
            if let Some(link) = self.link(peer) {
                link.dirty = more;
            }
            more
        });
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
        busy
    }

    /// Sends a keep-alive: an acknowledgement of all channels.
    pub(super) fn beat(&mut self, peer: PeerId, now: u64) -> bool {
        let Some(path) = self.link_here(peer).and_then(|link| self.path_to(link)) else { return false };
        let under_way = match path {
            Path::Lane { lane, .. } => {
                self.rails.lane(lane).is_some_and(|of| of.lane.inflight_frames >= BEATS)
            }
            Path::Worker(_) => false,
        };
        let Some(link) = self.link(peer).filter(|link| !under_way && !link.session.is_away()) else {
            return false; // They are not taken; more would only take up room.
        };
        let header = Header::plain(Kind::Ack);
        let body = acknowledgement(link);
        let posted = self.send_by(path, peer, &header, &body, &[]) == Posted::Yes;
        if let Path::Lane { lane, .. } = path {
            self.watch_refusal(peer, lane, now);
        }
        posted
    }

    /// A provider whose peer has died may refuse frames for ever, without an
    /// error: a lane with nothing in flight that does so has lost its peer. (One
    /// that only stopped takes frames into its buffers.)
    pub(super) fn watch_refusal(&mut self, peer: PeerId, lane: LaneId, now: u64) {
        let refused = self.refuses(lane);
        let Some(link) = self.link(peer) else { return };
        if !refused {
            link.refused_ns = None;
            return;
        }
        let since = *link.refused_ns.get_or_insert(now);
        // Until then it tries at every tick.
        link.session.keep_alive_soon(now);
        if now - since > self.refusal_ns(lane.rail) {
            self.lane_failed(lane, libc::ENOTCONN, 0, now);
        }
    }

    /// Sends a link's frames and acknowledgements: whether any was sent, and
    /// whether there is more to do.
    pub(super) fn flush(&mut self, link: &mut Link, now: u64) -> (bool, bool) {
        if link.session.is_away() {
            return (false, false);
        }
        for memory in link.take_revoked() {
            self.answer(link, Out::new(Kind::Revoked, numbers(&[memory.get()])));
        }
        let Some(path) = self.path_to(link) else { return (false, false) };
        let peer = link.peer.id;
        let (mut sent, mut full) = (false, false);
        let up = link.session.is_up();
        for channel in &mut link.session.channels {
            while let Some((sequence, out)) = channel.next() {
                if !up && out.kind != Kind::Ready {
                    break;
                }
                let acknowledged = channel.delivered();
                let header = Header { acknowledged, ..Header::numbered(out.kind, sequence) };
                let path = match path {
                    Path::Lane { lane, .. } => Path::Lane { lane, behind: out.follows_writes() },
                    path => path,
                };
                if self.send_by(path, peer, &header, &out.body, out.payload()) != Posted::Yes {
                    full = true;
                    break;
                }
                channel.sent(now);
                sent = true;
            }
        }
        if link.session.channels.iter().any(|channel| channel.acknowledgement_due(now)) {
            let body = acknowledgement(link);
            let header = Header::plain(Kind::Ack);
            match self.send_by(path, peer, &header, &body, &[]) {
                Posted::Yes => {
                    link.session
                        .channels
                        .iter_mut()
                        .for_each(|channel| channel.acknowledgement_sent_alone(now));
                    sent = true;
                }
                _ => full = true,
            }
        }
        if sent {
            link.session.note_sent(now);
            if link.is_asking() {
                link.asked_ns.get_or_insert(now);
            }
        }
        let owes = link.session.channels.iter().any(|channel| channel.owes());
        (sent, full || owes || !link.revoking.is_empty())
    }

    // Frames in.

    /// A frame came over a rail of ours.
    pub fn frame(&mut self, origin: handshake::Origin, frame: &[u8], now: u64) {
        let r = origin.0;
        if frame.is_empty() {
            return; // Its sender only wanted to know whether it can be sent.
        }
        let Some((header, body, rest)) = Header::begins(frame) else { return self.core.count_malformed() };
        if header.kind == Kind::HandshakeRequest && rest == body.len() {
            return self.on_handshake_request(origin, body, now);
        }
        let peer = match self.core.peers.named(header.to) {
            Some(Named::Peer(peer)) => peer,
            Some(Named::Ended(token, address)) => return self.answer_ended(origin, &header, token, &address),
            None => return self.core.reject("it names no peer"),
        };
        // A handshake's messages prove themselves.
        let frame = match header.kind {
            Kind::HandshakeReply if rest == body.len() => {
                return self.on_handshake_reply(r, &peer, body, now)
            }
            Kind::Refuse => frame,
            _ => match self.open_frame(r, &peer, &header, frame) {
                Some(frame) => frame,
                None => return self.core.reject("a frame that is not of the peer's session"),
            },
        };
        if frame.len() != HEADER + body.len() {
            return self.core.count_malformed();
        }
        peer.note_received(now);
        match header.kind {
            Kind::Spent => return self.credits_asked(r, &peer, &header),
            Kind::Credits => return self.credits_granted(r, &peer, &header, body),
            _ => {}
        }
        if peer.owner != self.index {
            return self.hand_to_owner(&peer, Command::Frame { peer: peer.id, bytes: frame.to_vec() });
        }
        self.link_frame(peer.id, frame, now);
    }

    /// A frame without its seal, if it is of the session of the lane that it came over. Without a
    /// secret there is no seal: a sender that knows the token is the peer.
    fn open_frame<'a>(
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

    /// The local end of the lane that a frame is about.
    pub(super) fn lane_about(&self, rail: RailIndex, peer: &Peer, header: &Header) -> Option<LaneId> {
        self.find_lane(peer, Plan { rail, remote_rail: header.rail })
    }

    /// A frame for a peer that has ended here: the other side gets a refusal or Close.
    fn answer_ended(&mut self, origin: handshake::Origin, header: &Header, token: Token, address: &Address) {
        let unasked = [Kind::Closing, Kind::Close, Kind::CloseAck, Kind::Refuse, Kind::HandshakeReply];
        if unasked.contains(&header.kind) {
            return;
        }
        let fabric = &self.core.rails[origin.0.place()].fabric;
        let Some(theirs) = address.rails.iter().find(|rail| rail.fabric == *fabric) else { return };
        if self.core.has_secret() {
            // Out of the session, which has ended, too.
            let body = frame::refuse(Status::PeerGone, "the other side has ended this peer");
            return self.send_refusal(origin, token, (address.incarnation, &theirs.address), body);
        }
        let close = Header { to: token, ..Header::plain(Kind::Close) };
        let now = self.core.clock.now();
        let RailWork { rail, lanes, .. } = &mut self.rails[origin.0];
        rail.answer(lanes, (&theirs.address, origin.1), now, |frame| close.write(frame, &[], &[]));
    }

    /// A frame for a link that this worker owns.
    pub fn link_frame(&mut self, peer: PeerId, frame: &[u8], now: u64) {
        let Some((header, body)) = Header::read(frame) else { return };
        if self.link(peer).is_none_or(|link| link.peer.breached.load(Ordering::Relaxed)) {
            return;
        }
        match header.kind {
            Kind::Refuse => self.refused(peer, body, now),
            Kind::Closing | Kind::Close | Kind::CloseAck | Kind::Ask | Kind::Resume | Kind::Resumed => {
                self.session_frame(peer, (header.kind, body), now)
            }
            Kind::Ack => {
                // A peer may know fewer channels.
                for (channel, number) in body.chunks_exact(8).take(CHANNELS).enumerate() {
                    if let Some([number]) = read_numbers::<1>(number) {
                        self.acknowledged(peer, channel, number as u32, now);
                    }
                }
            }
            kind => {
                let Some(channel) = kind.channel() else { return self.core.count_malformed() };
                self.acknowledged(peer, channel, header.acknowledged, now);
                self.arrive(peer, channel, (header.sequence, kind, body), now);
                self.mark(peer);
            }
        }
    }

    /// A sequenced frame came: what is next is handed over where it lies.
    fn arrive(&mut self, peer: PeerId, channel: usize, frame: (u32, Kind, &[u8]), now: u64) {
        let (number, kind, body) = frame;
        let Some(link) = self.link(peer) else { return };
        if !link.session.channels[channel].is_next(number) || !link.takes(channel) {
            link.session.channels[channel].receive(number, kind, body, now);
        } else if let Some(mut link) = self.links.get_mut(peer.place()).and_then(Option::take) {
            if !self.hand_in(&mut link, channel, (kind, body), now) {
                link.session.channels[channel].receive(number, kind, body, now);
            }
            self.bring_back(link, now);
        }
        self.deliver(peer, channel, now);
    }

    pub(super) fn refused(&mut self, peer: PeerId, body: &[u8], now: u64) {
        let core = self.core.clone();
        let Some((status, text)) = frame::read_refuse(body) else { return core.count_malformed() };
        let Some(link) = self.link(peer) else { return };
        // Before it is up, whoever is there in its place may refuse.
        let believed = match core.has_secret() {
            true => core.is_own_refusal(&link.peer, body, now),
            false => link.session.is_away(),
        };
        if link.session.is_up() && !believed {
            return core.reject("a refusal by somebody else");
        }
        let what = if link.session.is_up() {
            "closed the connection"
        } else {
            "rejected the handshake of this endpoint"
        };
        log::warn!("{} {what}: {text}", link.peer);
        let status = if link.session.is_up() { Status::PeerClosed } else { status };
        self.end_peer(peer, Outcome::of(status), now);
    }

    pub(super) fn acknowledged(&mut self, peer: PeerId, channel: usize, number: u32, now: u64) {
        let core = self.core.clone();
        let Some(Link { peer: of, session, notified, .. }) = self.link(peer) else { return };
        let taken = session.channels[channel].acknowledge(number);
        let news = core.frames_taken((of, notified), taken, now);
        self.go_on_after(peer, channel, news, now);
    }

    /// Goes on with what waited for the acknowledgement of frames.
    pub(super) fn go_on_after(&mut self, peer: PeerId, channel: usize, news: Acknowledged, now: u64) {
        let Some(link) = self.link(peer).filter(|_| news.opened) else { return };
        link.asked_ns = link.is_asking().then_some(now);
        if link.session.channels[channel].next().is_some() {
            self.mark(peer);
        }
        if news.withdrawn {
            // Delivers the frames that waited for it.
            self.deliver(peer, USER, now);
            self.deliver(peer, REQUESTS, now);
            self.mark(peer);
        }
    }

    /// Hands over what has come in order, until there is no room for it.
    pub(super) fn deliver(&mut self, peer: PeerId, channel: usize, now: u64) {
        while let Some(link) = self.link(peer).filter(|link| link.takes(channel)) {
            let Some((kind, body)) = link.session.channels[channel].take_deliverable() else { return };
            let Some(mut link) = self.links.get_mut(peer.place()).and_then(Option::take) else { return };
            let taken = self.hand_in(&mut link, channel, (kind, &body), now);
            if !taken {
                link.session.channels[channel].put_back(kind, body);
            }
            self.bring_back(link, now);
            if !taken {
                return;
            }
        }
    }

    /// Hands over the next frame of a channel; false if there is no room for it.
    fn hand_in(&mut self, link: &mut Link, channel: usize, (kind, body): (Kind, &[u8]), now: u64) -> bool {
        let delivery = self.hand_over(link, kind, body, now);
        let taken = !matches!(delivery, Delivery::Stalled);
        if taken {
            link.session.channels[channel].deliver(now, matches!(delivery, Delivery::TakenUrgently));
            link.held_back_ns = None;
        } else {
            let since = *link.held_back_ns.get_or_insert(now);
            if now.saturating_sub(since) > HELD_BACK_NS && self.core.queue.is_full() {
                self.core.warn_of_full_queue(&link.peer);
            }
        }
        taken
    }

    fn hand_over(&mut self, link: &mut Link, kind: Kind, body: &[u8], now: u64) -> Delivery {
        match kind {
            Kind::Message => self.message(link, body, now),
            Kind::Notify => self.notification(link, body, now),
            Kind::Count | Kind::Raise => self.raise(body, now),
            Kind::Failure => self.failure(link, body, now),
            Kind::Atomic => self.atomic(link, body, None),
            Kind::NotifyUnder
            | Kind::RaiseUnder
            | Kind::CountUnder
            | Kind::FailureUnder
            | Kind::AtomicUnder => self.under_a_grant(link, kind, body, now),
            Kind::AtomicDone => self.atomic_done(link, body, now),
            _ => self.system(link, kind, body, now),
        }
    }

    /// The link is in its place again.
    fn bring_back(&mut self, link: Box<Link>, now: u64) {
        let (peer, acts) = (link.peer.id, link.session.has_news());
        self.links[peer.place()] = Some(link);
        if acts {
            self.carry_out(peer, None, now);
        }
    }

    fn system(&mut self, link: &mut Link, kind: Kind, body: &[u8], now: u64) -> Delivery {
        let core = self.core.clone();
        match (kind, read_numbers::<1>(body), read_numbers::<2>(body), read_numbers::<3>(body)) {
            (Kind::Ready | Kind::Reset | Kind::ResetDone, ..) => {
                if link.session.handle_frame(kind, body, now).is_err() {
                    core.count_malformed();
                }
            }
            (Kind::Import, .., Some([memory, secret, number])) => {
                let memory = MemoryId::new(memory);
                let offered = core.offer(memory, secret, link.peer.id);
                let known = offered.is_some();
                link.imports.extend(known.then_some(memory));
                let found = if known { "found" } else { "not here" };
                log::debug!("{}: imports memory {memory:#x}: {found}", link.peer);
                let answer = Out::new(Kind::Imported, numbers(&[number, known as u64]));
                match offered.filter(|memory| memory.exports.lock().generation > 1) {
                    Some(memory) => self.answer_with_keys(link, &memory, answer),
                    None => self.answer(link, answer),
                }
            }
            (Kind::Imported, _, Some([number, known]), _) => {
                if let Some(remote) = link.remotes.get(&number) {
                    let state = if known == 1 { RemoteState::Ready } else { RemoteState::Gone };
                    if state == RemoteState::Gone {
                        link.peer.gone.lock().insert(remote.id);
                    }
                    show_lanes(&core, link, [remote]);
                    core.answered(remote, state, now);
                }
            }
            (Kind::Revoke, Some([memory]), ..) => {
                let memory = MemoryId::new(memory);
                link.peer.gone.lock().insert(memory);
                // Transfers of a remote memory known to be gone have ended, or are being ended.
                let unknown = |remote: &Arc<RemoteMemory>| remote.state() != RemoteState::Gone;
                for remote in link.remotes_of(memory).into_iter().filter(unknown) {
                    core.answered(&remote, RemoteState::Gone, now);
                    self.sweeps.push_back(Sweep::of_remote(&remote, Outcome::of(Status::MemoryGone)));
                }
                self.go_on_sweeping(now, || true);
                self.revoking(link, memory);
            }
            (Kind::Revoked, Some([memory]), ..) => {
                let memory = MemoryId::new(memory);
                link.imports.remove(&memory);
                core.revoked(memory, link.peer.id)
            }
            (Kind::Withdraw, _, Some([low, high]), _) => {
                let token = u128::from(low) | u128::from(high) << 64;
                GrantToken::new(token)
                    .map_or_else(|| core.count_malformed(), |grant| self.withdrawn(link, grant, now))
            }
            (Kind::Rest, Some([number]), ..) => self.come_to_rest(link, number, Until::Swept),
            (Kind::Keys, ..) => self.keys_came(link, body),
            (Kind::Quiesce, Some([number]), ..) => self.quiesce(link, number),
            (Kind::Quiesced, Some([number]), ..) => self.quiesced(link, number, now),
            _ => core.count_malformed(),
        }
        Delivery::TakenUrgently
    }

    /// A part of a message: the last one publishes it.
    fn message(&mut self, link: &mut Link, body: &[u8], now: u64) -> Delivery {
        let core = &self.core;
        let Some(part) = Part::read(body).filter(|part| part.total <= core.config.message_max()) else {
            core.count_malformed();
            return Delivery::Taken;
        };
        if part.offset == 0 && link.assembly.is_some() || part.bytes.is_empty() && part.total > 0 {
            core.count_malformed();
            return Delivery::Taken;
        }
        if part.offset == 0 {
            let held = link.peer.held.load(Ordering::Relaxed);
            let room = held == 0 || held + part.total as u64 <= core.config.message_bytes;
            let bytes = room::vec(part.total, "a message of a peer");
            let Some(mut bytes) = bytes.ok().filter(|_| room && core.queue.reserve(1)) else {
                link.peer.stalled.store(true, Ordering::Relaxed);
                return Delivery::Stalled;
            };
            if part.bytes.len() == part.total {
                bytes.extend_from_slice(part.bytes);
                self.publish_message(link, bytes, now);
                return Delivery::Taken;
            }
            link.assembly = Some(Assembly { bytes, total: part.total });
        }
        let Some(assembly) =
            link.assembly.as_mut().filter(|a| a.total == part.total && a.bytes.len() == part.offset)
        else {
            core.count_malformed();
            return Delivery::Taken;
        };
        assembly.bytes.extend_from_slice(part.bytes);
        if assembly.bytes.len() < assembly.total {
            return Delivery::Taken;
        }
        let bytes = link.assembly.take().map(|a| a.bytes).unwrap_or_default();
        self.publish_message(link, bytes, now);
        Delivery::Taken
    }

    /// Publishes a message, whose place in the queue is reserved.
    fn publish_message(&self, link: &Link, bytes: Vec<u8>, now: u64) {
        let core = &self.core;
        let mut completion = Completion::new(completion::KIND_MESSAGE, Outcome::OK, link.peer.id, now);
        completion.bytes = bytes.len() as u64;
        core.table.tally.message(completion.bytes);
        if !bytes.is_empty() {
            let (id, data) = core.messages.keep(bytes, &link.peer, true);
            completion.transfer = id;
            completion.data = data.cast();
        }
        core.queue.publish(completion);
    }

    pub(super) fn notification(&mut self, link: &Link, body: &[u8], now: u64) -> Delivery {
        let core = &self.core;
        let Some((value, data)) = body.split_first_chunk::<8>().filter(|(_, data)| data.len() <= NOTIFY_DATA)
        else {
            core.count_malformed();
            return Delivery::Taken;
        };
        if !core.queue.reserve(1) {
            return Delivery::Stalled;
        }
        let mut completion = Completion::new(completion::KIND_NOTIFICATION, Outcome::OK, link.peer.id, now);
        completion.notify = u64::from_le_bytes(*value);
        core.table.tally.notification();
        if !data.is_empty() {
            let (id, kept) = core.messages.keep(data.to_vec(), &link.peer, false);
            completion.transfer = id;
            completion.data = kept.cast();
            completion.bytes = data.len() as u64;
        }
        core.queue.publish(completion);
        Delivery::TakenUrgently
    }

    /// A transfer of the peer has failed.
    pub(super) fn failure(&mut self, link: &Link, body: &[u8], now: u64) -> Delivery {
        let core = &self.core;
        let known =
            read_numbers::<2>(body).map(|[value, code]| (value, Status::from_code(code as u32 as i32)));
        let Some((value, status)) = known.filter(|(_, status)| *status != Status::Ok) else {
            core.count_malformed();
            return Delivery::Taken;
        };
        if !core.queue.reserve(1) {
            return Delivery::Stalled;
        }
        let outcome = Outcome::of(status);
        let mut completion = Completion::new(completion::KIND_NOTIFICATION, outcome, link.peer.id, now);
        completion.notify = value;
        core.table.tally.notification();
        core.queue.publish(completion);
        Delivery::TakenUrgently
    }

    /// Counters that a transfer raises after its last byte: pairs of an immediate and an increment.
    pub(super) fn raise(&mut self, body: &[u8], now: u64) -> Delivery {
        for pair in body.chunks(16) {
            match read_numbers::<2>(pair) {
                Some([immediate, by]) => self.core.count(immediate as u32, by, now, &mut self.counted),
                None => self.core.count_malformed(),
            }
        }
        Delivery::TakenUrgently
    }

    // Requests of callers.

    pub fn link_send(&mut self, peer: PeerId, id: OpId, data: Arc<Vec<u8>>, allowance: u64) {
        let frame = self.frame_bytes();
        // A peer that has ended took its sends with it.
        let Some(link) = self.link(peer) else { return };
        link.push_message(id, data, frame, allowance);
        self.mark(peer);
    }

    /// With manual progress: sends at once, unless something came before it or the
    /// worker has ended.
    pub fn send_now(
        &mut self,
        peer: PeerId,
        id: OpId,
        (data, allowance): (&Arc<Vec<u8>>, u64),
        now: u64,
    ) -> bool {
        if self.is_closed() || self.has_mail() || self.link(peer).is_none() {
            return false;
        }
        let frame = self.frame_bytes();
        match self.link(peer) {
            Some(link) if Link::is_short(data.len(), frame) => {
                link.push_short(id, data, allowance);
                self.mark(peer);
            }
            _ => self.link_send(peer, id, data.clone(), allowance),
        }
        self.talk(now);
        true
    }

    /// Bytes of a frame that every lane can carry.
    pub(super) fn frame_bytes(&self) -> usize {
        let smallest = self.core.rails.iter().map(|rail| rail.message_max).min();
        smallest.unwrap_or(HEADER + SEAL + 1024) - SEAL
    }

    /// Tells the peer of a transfer that has arrived, or (`early`) all of which was
    /// posted to the lane that the frame goes over.
    pub fn link_notify(&mut self, peer: PeerId, id: OpId, speculative: bool, now: u64) {
        let core = self.core.clone();
        if self.link(peer).is_none() {
            core.table.end(id, Outcome::of(Status::PeerLost), now);
            return;
        }
        let Some(slot) = core.table.read(id) else { return };
        // SAFETY: held as a reader until it is released.
        let body = unsafe { core.table.body(slot) };
        if let (Some(link), Some(transfer)) = (self.link(peer), body.transfer()) {
            link.push_arrived(id, transfer, speculative);
            link.session.channels.iter_mut().for_each(|channel| channel.sweep(|id| core.table.is_active(id)));
            if speculative {
                core.table.notify_early(slot);
            }
        }
        core.table.release(slot);
        self.mark(peer);
    }

    /// Tells a peer of the failure of a transfer.
    pub fn link_failed(&mut self, failed: Failed) {
        let core = self.core.clone();
        // A peer that has ended is not notified.
        let Some(owner) = core.owner_of(failed.peer) else { return };
        if owner != self.index {
            return core.inboxes[owner].command(Command::Failed(failed));
        }
        if let Some(link) = self.link(failed.peer) {
            link.push_failed(&failed);
            self.mark(failed.peer);
        }
    }

    pub fn link_import(&mut self, remote: Arc<RemoteMemory>, now: u64) {
        let core = self.core.clone();
        let peer = remote.peer;
        match self.link(peer) {
            Some(link) => match link.session.closing() {
                Some(outcome) => core.answered(&remote, remote_state_of_end(outcome.status), now),
                None => {
                    link.push_import(remote);
                    self.mark(peer);
                }
            },
            None => core.answered(&remote, RemoteState::PeerLost, now),
        }
    }

    pub fn link_release(&mut self, remote: &Arc<RemoteMemory>) {
        if let Some(link) = self.link(remote.peer) {
            link.forget(remote);
        }
    }

    pub fn link_revoke(&mut self, peer: PeerId, memory: MemoryId) {
        let core = self.core.clone();
        match self.link(peer) {
            Some(link) => {
                link.push(Out::new(Kind::Revoke, numbers(&[memory.get()])));
                self.mark(peer);
            }
            None => core.revoked(memory, peer),
        }
    }

    /// The caller released messages: there may be room for more.
    pub fn link_resume(&mut self, peer: PeerId, now: u64) {
        self.deliver(peer, USER, now);
        self.mark(peer);
    }
}
