//! Connections that others make: how many may be here before a peer has authenticated over them, and
//! for how long.

use super::connection::Connection;
use super::nic::{TcpNic, LISTENER};
use super::sealed::Sealed;
use super::socket;
use crate::wire::tcp::Name;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd};

/// Accepted in one pass.
const ACCEPTS: usize = 16;
/// The most connections that belong to no peer. The oldest of the host with the most of them makes
/// room, once it has had time to send its handshake; one is closed after this time.
pub const UNAUTHENTICATED_MOST: usize = 256;
pub const TIME_NS: u64 = 50_000_000;
pub const UNAUTHENTICATED_NS: u64 = 5_000_000_000;
/// The listener pauses for this long where nothing can be accepted.
const PAUSE_NS: u64 = 10_000_000;
/// The target of a route back to an unauthenticated endpoint: no NIC's name.
pub const NOBODY: Name = [0; 16];

impl TcpNic {
    #[cold]
    pub(super) fn accept(&mut self) {
        let now = self.clock.now();
        self.calls = false;
        for _ in 0..ACCEPTS {
            let Some(others_place) = self.find_room(now) else { return self.pause(now) };
            let Some(listener) = &self.listener else { break };
            match socket::accept(listener.as_fd(), &self.options) {
                Ok((socket, host)) => {
                    others_place.into_iter().for_each(|at| self.end(at, libc::ECONNABORTED));
                    let secrets = self.options.secrets.as_ref();
                    let sealed = secrets.map(|secrets| Sealed::target(&secrets.now(now)));
                    if let Err(error) = self.add(Connection::accepted(socket, sealed, host, now)) {
                        log::debug!("a connection is closed: {error}");
                    }
                }
                Err(errno) if errno == libc::ECONNABORTED || errno == libc::EINTR => {}
                Err(errno) => {
                    if !socket::is_later(errno) {
                        // No descriptors or no memory: others may give some back.
                        self.pause(now);
                    }
                    break;
                }
            }
        }
    }

    fn pause(&mut self, now: u64) {
        self.paused_until = now + PAUSE_NS;
        self.heed_listener(false);
    }

    /// Sets whether events of the listener are reported.
    pub(super) fn heed_listener(&self, heed: bool) {
        let Some(listener) = &self.listener else { return };
        let events = if heed { libc::EPOLLIN as u32 } else { 0 };
        let mut event = libc::epoll_event { events, u64: LISTENER };
        // SAFETY: two descriptors of ours, an event that outlives the call.
        unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_MOD, listener.as_raw_fd(), &mut event)
        };
    }

    /// Room for one more connection of no peer: `Some(Some(at))` is another's place, `None` that there
    /// is none yet.
    fn find_room(&self, now: u64) -> Option<Option<u32>> {
        let all = self.connections.iter().enumerate().filter_map(|(at, one)| Some((at, one.as_deref()?)));
        let unauthenticated: Vec<_> = all.filter(|(_, one)| one.is_unauthenticated()).collect();
        if unauthenticated.len() < UNAUTHENTICATED_MOST {
            return Some(None);
        }
        let mut counts = HashMap::new();
        unauthenticated.iter().for_each(|(_, one)| *counts.entry(one.host).or_insert(0usize) += 1);
        let worst =
            unauthenticated.iter().max_by_key(|(_, one)| (counts.get(&one.host), Reverse(one.since_ns)));
        let (at, _) = worst.filter(|(_, one)| now.saturating_sub(one.since_ns) >= TIME_NS)?;
        Some(Some(*at as u32))
    }

    /// A handshake names the NIC that it means, and its sender. Which peer that is, the peer has to
    /// prove: until then it is only answered over the connection.
    #[cold]
    pub(super) fn meet(&mut self, at: u32) {
        let Some(handshake) = self.connection(at).and_then(|connection| connection.handshake) else { return };
        if handshake.target != self.name || handshake.initiator == NOBODY {
            self.rejected += 1;
            return self.end(at, libc::EPROTO);
        }
        self.connection(at).into_iter().for_each(Connection::accept);
        self.list(at);
    }
}
