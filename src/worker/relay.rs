//! Control frames out. Those of a peer whose owner has no lane that serves it are relayed by another
//! worker.

use super::core::Core;
use super::inbox::Command;
use super::lanes::{DataPath, LaneWork};
use super::later::Relayed;
use crate::fabric::{Posted, Resets};
use crate::ids::{LaneId, PeerId, RailIndex};
use crate::peer::link::Link;
use crate::peer::Peer;
use crate::session::channel::{self, Channel, Out};
use crate::wire::frame::{numbers, Header, Kind, HEADER, SYSTEM};

/// A lane that refuses frames for this long, with nothing in flight, is lost.
const REFUSED_NS: u64 = 3_000_000_000;
/// The same where lanes can be reset: only the lane's own connection can be the cause, so a new one
/// is tried, and if the peer does not accept it, the peer is lost.
const REFUSED_AGAIN_NS: u64 = 100_000_000;

/// Frames that a lane may have under way when a keep-alive joins them.
const BEATS: u32 = 4;

/// The path for a link's frames.
#[derive(Clone, Copy)]
pub(crate) enum Path {
    /// Over a lane of this worker; `behind`: after its writes.
    Lane {
        lane: LaneId,
        behind: bool,
    },
    Worker(usize),
}

/// The body of an acknowledgement of all channels.
fn acknowledgement(link: &Link) -> Vec<u8> {
    numbers(&channel::acknowledgement(&link.session.channels))
}

fn is_ack(bytes: &[u8]) -> bool {
    Header::read(bytes).is_some_and(|(header, _)| header.kind == Kind::Ack)
}

impl Core {
    /// A worker that has a lane which serves a link.
    fn relaying_worker(&self, link: &Link) -> Option<usize> {
        link.lanes_up().next().map(|plan| self.rails[plan.rail.place()].worker)
    }

    fn relay(&self, worker: usize, peer: PeerId, header: &Header, body: &[u8], payload: &[u8]) {
        let mut bytes = vec![0; HEADER + body.len() + payload.len()];
        header.write(&mut bytes, body, payload);
        self.inboxes[worker].command(Command::Relay { peer, bytes });
    }
}

impl DataPath {
    /// A lane of this worker that can carry control frames to a peer.
    pub(crate) fn control_lane(&self, peer: PeerId) -> Option<LaneId> {
        let lanes = self.lanes_of.get(peer.place())?;
        let serves = |work: &LaneWork| {
            let up = work.lane.peer == peer && work.lane.life.is_up();
            up && work.peer.is_served_by(work.lane.id.rail)
        };
        lanes.iter().copied().find(|lane| self.rails.lane(*lane).is_some_and(serves))
    }

    /// How long a lane may refuse frames.
    pub(crate) fn refusal_ns(&self, rail: RailIndex) -> u64 {
        if self.rails[rail].rail.limits().resets == Resets::Lane {
            REFUSED_AGAIN_NS
        } else {
            REFUSED_NS
        }
    }

    pub(crate) fn path_to(&self, link: &Link) -> Option<Path> {
        let lane = self.control_lane(link.peer.id).map(|lane| Path::Lane { lane, behind: false });
        let relaying_worker =
            || self.core.relaying_worker(link).filter(|worker| *worker != self.index).map(Path::Worker);
        lane.or_else(relaying_worker)
    }

    /// Whether a path is the lane whose writes a speculative frame follows: it was the first, and is, unless it has
    /// failed.
    fn leads_behind_writes(&self, path: Path, peer: &Peer) -> bool {
        let first = self.lanes_of.get(peer.id.place()).and_then(|lanes| lanes.first());
        matches!(path, Path::Lane { lane, .. } if first == Some(&lane)) && !peer.lanes.lock().is_losing()
    }

    /// Posts a control frame, or passes it to a relay.
    pub(crate) fn send_by(
        &mut self,
        path: Path,
        peer: PeerId,
        header: &Header,
        body: &[u8],
        payload: &[u8],
    ) -> Posted {
        match path {
            Path::Lane { lane, behind } => match self.rails.lane_mut(lane) {
                Some((rail, work)) => {
                    rail.send_frame(&mut work.lane, behind, |frame| header.write(frame, body, payload))
                }
                None => Posted::Failed(libc::ENOTCONN),
            },
            Path::Worker(worker) => {
                self.core.relay(worker, peer, header, body, payload);
                Posted::Yes
            }
        }
    }

    /// The peer's owner requests us to post a frame.
    pub fn relay(&mut self, peer: PeerId, bytes: Vec<u8>, now: u64) {
        let waiting = self.relayed.iter_mut().find(|other| {
            // Both acknowledge everything up to a number: the later frame suffices.
            other.peer == peer && is_ack(&other.bytes) && is_ack(&bytes)
        });
        match waiting {
            Some(other) => other.bytes = bytes,
            None => self.relayed.push_back(Relayed { peer, bytes, since: now }),
        }
        self.post_relayed(now);
    }

    /// Posts relayed frames while lanes have space, each peer's in order.
    pub(crate) fn post_relayed(&mut self, now: u64) -> bool {
        let mut queue = std::mem::take(&mut self.relayed);
        let (mut held, mut posted) = (Vec::new(), false);
        queue.retain(|frame| {
            if held.contains(&frame.peer) {
                return true;
            }
            // Without a lane, the peer has ended, or is about to.
            let Some(lane) = self.control_lane(frame.peer) else { return false };
            let Some((rail, work)) = self.rails.lane_mut(lane) else { return false };
            let fill = |to: &mut [u8]| {
                to[..frame.bytes.len()].copy_from_slice(&frame.bytes);
                frame.bytes.len()
            };
            if rail.send_frame(&mut work.lane, false, fill) == Posted::Yes {
                posted = true;
                return false;
            }
            if work.lane.refused && now.saturating_sub(frame.since) > self.refusal_ns(lane.rail) {
                self.post_failed(lane, libc::ENOTCONN);
            }
            held.push(frame.peer);
            true
        });
        queue.append(&mut self.relayed);
        self.relayed = queue;
        posted
    }

    // Frames of links.

    /// Sends a link's frames and acknowledgements; returns whether any was sent, and whether more
    /// remain.
    pub(crate) fn flush(&mut self, link: &mut Link, now: u64) -> (bool, bool) {
        if link.session.is_away() {
            return (false, false);
        }
        let core = self.core.clone();
        for memory in link.take_revoked() {
            link.answer(&core, Out::new(Kind::Revoked, numbers(&[memory.get()])));
        }
        let Some(path) = self.path_to(link) else { return (false, false) };
        let peer = link.peer.id;
        let (mut sent, mut full) = (false, false);
        let up = link.session.is_up();
        // Before a revoke: what has notified here is to succeed there.
        let channels = &link.session.channels;
        if up && channels[SYSTEM].waiting() > 0 && channels.iter().any(Channel::owes) {
            sent |= self.acknowledge(path, link, now);
        }
        for channel in &mut link.session.channels {
            while let Some((sequence, out)) = channel.next() {
                if !up && out.kind != Kind::Ready {
                    break;
                }
                let acknowledged = channel.acknowledged_in_headers();
                let header = Header { acknowledged, ..Header::numbered(out.kind, sequence) };
                let path = match path {
                    Path::Lane { lane, .. } => Path::Lane { lane, behind: out.speculative },
                    path => path,
                };
                if out.speculative && !self.leads_behind_writes(path, &link.peer) {
                    full = true; // It is taken back once the owner knows that the lane has failed.
                    break;
                }
                if self.send_by(path, peer, &header, &out.body, out.payload()) != Posted::Yes {
                    full = true;
                    break;
                }
                channel.sent(now);
                sent = true;
            }
        }
        if link.session.channels.iter().any(|channel| channel.acknowledgement_due(now)) {
            let posted = self.acknowledge(path, link, now);
            (sent, full) = (sent || posted, full || !posted);
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

    /// Acknowledges the frames of all channels; false if the lane has no room.
    fn acknowledge(&mut self, path: Path, link: &mut Link, now: u64) -> bool {
        let (header, body) = (Header::plain(Kind::Ack), acknowledgement(link));
        let posted = self.send_by(path, link.peer.id, &header, &body, &[]) == Posted::Yes;
        if posted {
            link.session.channels.iter_mut().for_each(|channel| channel.acknowledgement_sent_alone(now));
        }
        posted
    }

    /// Sends a keep-alive: an acknowledgement of all channels.
    pub(crate) fn beat(&mut self, link: &mut Link, now: u64) -> bool {
        let Some(path) = self.path_to(link).filter(|_| !link.session.is_away()) else { return false };
        if let Path::Lane { lane, .. } = path {
            if self.rails.lane(lane).is_some_and(|work| work.lane.inflight_frames >= BEATS) {
                return false; // The lane accepts none; more frames would only use up space.
            }
        }
        let posted = self.send_by(path, link.peer.id, &Header::plain(Kind::Ack), &acknowledgement(link), &[]);
        if let Path::Lane { lane, .. } = path {
            self.watch_refusal(link, lane, now);
        }
        posted == Posted::Yes
    }

    /// A provider whose peer has died may refuse frames for ever, without an error: a lane with
    /// nothing in flight that does so has lost its peer. (A lane whose peer has only stopped
    /// accepts frames into its buffers.)
    fn watch_refusal(&mut self, link: &mut Link, lane: LaneId, now: u64) {
        if !self.rails.lane(lane).is_some_and(|work| work.lane.refused) {
            link.refused_ns = None;
            return;
        }
        let since = *link.refused_ns.get_or_insert(now);
        // Until then it tries at every tick.
        link.session.keep_alive_soon(now);
        if now - since > self.refusal_ns(lane.rail) {
            self.post_failed(lane, libc::ENOTCONN);
        }
    }

    /// As `watch_refusal`, of a link's control lane, if that refused its last frame.
    pub(crate) fn watch_control_lane(&mut self, link: &mut Link, now: u64) {
        let lane = self.control_lane(link.peer.id).filter(|_| link.session.is_up());
        let refuses = |lane: &LaneId| self.rails.lane(*lane).is_some_and(|work| work.lane.refused);
        if let Some(lane) = lane.filter(refuses) {
            self.watch_refusal(link, lane, now);
        }
    }

    /// Posts a frame without a number; false if the lane was full.
    pub(crate) fn send_plain(&mut self, link: &Link, kind: Kind, body: &[u8]) -> bool {
        let Some(path) = self.path_to(link) else { return false };
        self.send_by(path, link.peer.id, &Header::plain(kind), body, &[]) == Posted::Yes
    }
}
