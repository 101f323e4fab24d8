//! Silent peers: they are probed, and then lost (`session::liveness`).

use super::worker::Worker;
use crate::ids::PeerId;
use crate::session::liveness::Verdict;
use crate::status::Status;
use crate::transfer::Outcome;
use crate::wire::frame::{Header, Kind};

impl Worker {
    /// Looks at the peers that this worker owns.
    pub(super) fn listen(&mut self, now: u64) {
        let Some(allowed) = self.core.config.liveness_ns else { return };
        let mut silent = Vec::new();
        for link in
            self.links.iter_mut().flatten().filter(|link| link.session.is_up() && link.closing.is_none())
        {
            match link.silence.look(link.peer.alive_ns(), now, allowed) {
                Verdict::Alive => {}
                verdict => silent.push((link.peer.id, verdict)),
            }
        }
        for (peer, verdict) in silent {
            match verdict {
                Verdict::Lost => self.end_peer(peer, Outcome::of(Status::PeerLost), now),
                _ => self.send_probe(peer),
            }
        }
    }

    fn send_probe(&mut self, peer: PeerId) {
        let Some(path) = self.link_here(peer).and_then(|link| self.path_to(link)) else {
            return;
        };
        let header = Header::plain(Kind::Ask);
        // Without room, what is under way asks as well.
        let _ = self.send_by(path, peer, &header, &[], &[]);
    }

    /// The peer has received nothing of ours for long: the next tick sends a keep-alive.
    pub(super) fn answer_probe(&mut self, peer: PeerId) {
        if let Some(link) = self.link(peer) {
            link.sent_ns = 0;
        }
    }
}
