//! Frames of links in both directions: messages, notifications, imports.

use super::deliver::Pass;
use super::granted::granted;
use crate::ids::{OpId, PeerId};
use crate::memory::Revoked;
use crate::peer::link::Link;
use crate::peer::table::Named;
use crate::peer::Peer;
use crate::session::channel::{read_refusal, Out};
use crate::status::Status;
use crate::transfer::table::Table;
use crate::transfer::Outcome;
use crate::wire::frame::{self, read_numbers, Header, Kind, CHANNELS, HEADER, REQUESTS, USER};
use crate::worker::core::Core;
use crate::worker::handshake;
use crate::worker::inbox::Command;
use crate::worker::Worker;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// Whether a frame is under a grant that the peer has revoked. The peer announces the revoke before
/// it drops such frames.
fn is_revoked(out: &Out, revoked: &Revoked) -> bool {
    out.kind.is_under_a_grant() && granted(&out.body).is_some_and(|(grant, _)| revoked.contains(grant))
}

/// The effects of an acknowledgement.
#[derive(Default)]
pub(crate) struct Acknowledged {
    /// It acknowledged new frames.
    opened: bool,
    /// The peer has acknowledged a revoke.
    withdrawn: bool,
}

impl Core {
    /// The peer has received these frames: operations that wait for that end. `of`: the peer, and
    /// those of its failed transfers whose success was notified.
    pub(crate) fn frames_taken(
        &self,
        peer: &Peer,
        notified: &mut BTreeSet<OpId>,
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
            // Return the allowance first: the poller of the completion may send the next message at
            // once.
            if out.allowance > 0 {
                peer.outgoing.fetch_sub(out.allowance, Ordering::Relaxed);
            }
            if let Some(id) = out.done.filter(|_| out.kind != Kind::Flush) {
                // A speculative notification implies that the bytes have arrived: they precede it.
                let revoked = is_revoked(&out, &peer.revoked);
                let outcome = if revoked { Outcome::new(Status::Revoked) } else { Outcome::OK };
                if !self.table.end(id, outcome, now) && out.or_failure {
                    notified.insert(id);
                }
            }
        }
        news
    }
}

impl Worker {
    /// Lets links send their frames; true if any was sent.
    pub fn talk(&mut self, now: u64) -> bool {
        let mut busy = !self.data.relayed.is_empty() && self.data.post_relayed(now);
        if self.links.dirty.is_empty() {
            return busy;
        }
        let mut dirty = std::mem::take(&mut self.links.dirty);
        dirty.retain(|at| {
            let Some(link) = self.links.at(*at) else { return false };
            let (sent, mut more) = self.data.flush(link, now);
            busy |= sent;
            let peer = link.peer.id;
            if link.resumes_requests() {
                self.deliver(peer, REQUESTS, now);
                more = true;
            }
            if let Some(link) = self.links.get_mut(peer) {
                link.dirty = more;
            }
            more
        });
        dirty.append(&mut self.links.dirty);
        self.links.dirty = dirty;
        busy
    }

    // Incoming frames.

    /// A frame arrived over a rail of ours.
    pub fn frame(&mut self, origin: handshake::Origin, frame: &[u8], now: u64) {
        let r = origin.0;
        if frame.is_empty() {
            return; // The frame is empty: its sender only tests the connection.
        }
        let Some((header, body, rest)) = Header::begins(frame) else { return self.core.count_malformed() };
        if header.kind == Kind::HandshakeRequest && rest == body.len() {
            return self.data.on_handshake_request(origin, body, now);
        }
        let peer = match self.core.peers.named(header.to) {
            Some(Named::Peer(peer)) => peer,
            Some(Named::Ended(token, address)) => {
                return self.data.answer_ended(origin, &header, token, &address)
            }
            // It answers a handshake of ours that has ended since.
            None if matches!(header.kind, Kind::Refuse | Kind::HandshakeReply) => {
                return self.core.count_late_answer()
            }
            None => return self.core.reject("it names no peer"),
        };
        // Handshake messages authenticate themselves.
        let frame = match header.kind {
            Kind::HandshakeReply if rest == body.len() => {
                return self.data.on_handshake_reply(r, &peer, body, now)
            }
            Kind::Refuse => frame,
            _ => match self.data.open_frame(r, &peer, &header, frame) {
                Some(frame) => frame,
                None => return self.core.reject("a frame that is not of the peer's session"),
            },
        };
        if frame.len() != HEADER + body.len() {
            return self.core.count_malformed();
        }
        if header.kind != Kind::Refuse {
            peer.note_received(now); // Another endpoint in its place refuses.
        }
        match header.kind {
            Kind::Spent => return self.data.credits_asked(r, &peer, &header),
            Kind::Credits => return self.data.credits_granted(r, &peer, &header, body),
            _ => {}
        }
        if peer.owner != self.index {
            return self.core.hand_to_owner(&peer, Command::Frame { peer: peer.id, bytes: frame.to_vec() });
        }
        self.link_frame(peer.id, frame, now);
    }

    /// A frame for a link that this worker owns.
    pub fn link_frame(&mut self, peer: PeerId, frame: &[u8], now: u64) {
        let Some((header, body)) = Header::read(frame) else { return };
        if self.links.get_mut(peer).is_none_or(|link| link.peer.breached.load(Ordering::Relaxed)) {
            return;
        }
        match header.kind {
            Kind::Refuse => self.refused(peer, body, now),
            Kind::Closing | Kind::Close | Kind::CloseAck | Kind::Ask | Kind::Resume | Kind::Resumed => {
                self.session_frame(peer, header.kind, body, now)
            }
            Kind::Ack => {
                let entries = || body.chunks_exact(8).filter_map(read_numbers::<1>).map(|[entry]| entry);
                // First: acknowledged frames end their operations.
                self.refused_by_peer(peer, entries().filter_map(read_refusal), now);
                // A peer may know fewer channels.
                let numbers = entries().take_while(|entry| entry >> 32 == 0);
                for (channel, number) in numbers.take(CHANNELS).enumerate() {
                    self.acknowledged(peer, channel, number as u32, now);
                }
            }
            kind => {
                let Some(channel) = kind.channel() else { return self.core.count_malformed() };
                self.acknowledged(peer, channel, header.acknowledged, now);
                self.arrive(peer, channel, (header.sequence, kind, body), now);
                self.links.mark(peer);
            }
        }
    }

    /// A sequenced frame arrived: the next one in order is delivered without a copy.
    fn arrive(&mut self, peer: PeerId, channel: usize, frame: (u32, Kind, &[u8]), now: u64) {
        let (number, kind, body) = frame;
        let Some(link) = self.links.get_mut(peer) else { return };
        let (ended, pool) = (&mut self.counting.ended, &mut self.staging.pool);
        let mut pass = Pass { core: &self.core, ended, pool, now };
        link.session.channels[channel].arrived(number);
        let next = link.session.channels[channel].is_next(number) && link.takes(channel);
        if !next || !link.hand_in(&mut pass, channel, kind, body) {
            link.session.channels[channel].receive(number, kind, body, now);
        }
        self.handed_in(peer, now);
        self.deliver(peer, channel, now);
    }

    /// Delivers received frames in order, until there is no space.
    pub(crate) fn deliver(&mut self, peer: PeerId, channel: usize, now: u64) {
        while let Some(link) = self.links.get_mut(peer).filter(|link| link.takes(channel)) {
            let Some((kind, body)) = link.session.channels[channel].take_deliverable() else { return };
            let (ended, pool) = (&mut self.counting.ended, &mut self.staging.pool);
            let mut pass = Pass { core: &self.core, ended, pool, now };
            let taken = link.hand_in(&mut pass, channel, kind, &body);
            if !taken {
                link.session.channels[channel].put_back(kind, body);
            }
            self.handed_in(peer, now);
            if !taken {
                return;
            }
        }
    }

    /// Goes on with what a frame has brought about.
    fn handed_in(&mut self, peer: PeerId, now: u64) {
        self.stage(peer);
        let Some(link) = self.links.get(peer) else { return };
        let (fences, news) = (!link.quiescing.is_empty(), link.session.has_news());
        if fences {
            self.links.await_rest(peer);
        }
        if news {
            self.carry_out(peer, None, now);
        }
    }

    pub(crate) fn refused(&mut self, peer: PeerId, body: &[u8], now: u64) {
        let core = self.core.clone();
        let Some((status, text)) = frame::read_refuse(body) else { return core.count_malformed() };
        let Some(link) = self.links.get_mut(peer) else { return };
        // Before the peer is up, another endpoint in its place may refuse.
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
        core.note_end(link, &format!("it {what}: {text}"));
        log::warn!("{} {what}: {text}", link.peer);
        let status = if link.session.is_up() { Status::PeerClosed } else { status };
        self.end_peer(peer, Outcome::new(status), now);
    }

    pub(crate) fn acknowledged(&mut self, peer: PeerId, channel: usize, number: u32, now: u64) {
        let core = self.core.clone();
        let Some(Link { peer: owned, session, notified, .. }) = self.links.get_mut(peer) else { return };
        let taken = session.channels[channel].acknowledge(number);
        let news = core.frames_taken(owned, notified, taken, now);
        self.go_on_after(peer, channel, news, now);
    }

    /// The peer has refused frames: their grants are not live.
    fn refused_by_peer(&mut self, peer: PeerId, refused: impl Iterator<Item = (usize, u32)>, now: u64) {
        let Some(link) = self.links.get_mut(peer) else { return };
        refused.filter_map(|(channel, number)| link.session.channels[channel].refused(number)).for_each(
            |id| {
                self.core.table.end(id, Outcome::new(Status::Revoked), now);
            },
        );
    }

    /// Continues work that waited for the acknowledgement of frames.
    pub(crate) fn go_on_after(&mut self, peer: PeerId, channel: usize, news: Acknowledged, now: u64) {
        let Some(link) = self.links.get_mut(peer).filter(|_| news.opened) else { return };
        link.asked_ns = link.is_asking().then_some(now);
        if link.session.channels[channel].next().is_some() {
            self.links.mark(peer);
        }
        if news.withdrawn {
            // Delivers the frames that waited for it.
            self.deliver(peer, USER, now);
            self.deliver(peer, REQUESTS, now);
            self.links.mark(peer);
        }
    }

    /// Notifies the peer of a transfer that has arrived, or (`early`) all of which was posted to
    /// the lane that the frame goes over.
    pub fn link_notify(&mut self, peer: PeerId, id: OpId, speculative: bool, now: u64) {
        let core = self.core.clone();
        if self.links.get_mut(peer).is_none() {
            core.table.end(id, Outcome::new(Status::PeerLost), now);
            return;
        }
        let Some(slot) = core.table.read(id) else { return };
        // SAFETY: a reader hold keeps the slot alive until it is released.
        let body = unsafe { core.table.body(slot) };
        if let (Some(link), Some(transfer)) = (self.links.get_mut(peer), body.transfer()) {
            match transfer.durable && transfer.view().remotes().next().is_some() {
                true => {
                    link.push_flush(id, transfer);
                    core.table.asks_to_flush(slot);
                }
                false => link.push_arrived(id, transfer, speculative, Table::is_staged(slot)),
            }
            link.session.channels.iter_mut().for_each(|channel| channel.sweep(|id| core.table.is_active(id)));
            if speculative {
                core.table.notify_early(slot);
            }
        }
        core.table.release(slot);
        self.links.mark(peer);
    }
}
