//! Connections that other NICs make: how many may exist before a peer has authenticated over them,
//! and for how long.

use super::connection::{Connection, State};
use super::listener::LISTENER;
use super::nic::TcpNic;
use super::paths::Carriers;
use super::routes::NOBODY;
use super::sealed::Sealed;
use super::socket::{self, Outcome};
use crate::fabric::own::admission::admit;
use crate::fabric::{error_text, Rejected};
use crate::logging::seldom::warn_seldom;
use std::os::fd::AsFd;

/// The most connections accepted in one pass.
const ACCEPTS: usize = 16;
/// The most connections without a peer, and the time that each has for its handshake. At the limit,
/// the oldest connection of the host that has the most is closed, once its time has passed.
pub const UNAUTHENTICATED_MOST: usize = 256;
pub const TIME_NS: u64 = 50_000_000;
pub const UNAUTHENTICATED_NS: u64 = 5_000_000_000;
/// The listener pauses for this long when nothing can be accepted.
const PAUSE_NS: u64 = 10_000_000;
/// The first outcome that is not "later"; else the last.
fn until_one_accepts<T>(outcomes: impl Iterator<Item = Outcome<T>>) -> Option<Outcome<T>> {
    let mut last = None;
    for outcome in outcomes {
        match outcome {
            Err(errno) if socket::is_later(errno) => last = Some(outcome),
            decided => return Some(decided),
        }
    }
    last
}

impl TcpNic {
    #[cold]
    pub(super) fn accept(&mut self) {
        let now = self.clock.now();
        self.calls = false;
        for _ in 0..ACCEPTS {
            let Ok(others_place) = self.find_room(now) else { return self.pause(now) };
            let accepted = self.listeners.iter().rev().map(|one| socket::accept(one.as_fd(), &self.options));
            let Some(accepted) = until_one_accepts(accepted) else { break };
            match accepted {
                Ok((socket, from)) => {
                    if let Some(at) = others_place {
                        self.end(at, libc::ECONNABORTED);
                    }
                    let secrets = self.options.secrets.as_ref();
                    let sealed = secrets.map(|secrets| Sealed::target(&secrets.now(now)));
                    let carried = from.map(|from| {
                        self.paths.accept(socket.as_fd(), self.own_for(from), from, &self.options, now)
                    });
                    let Some(carriers) = carried.unwrap_or(Some(Carriers::default())) else {
                        log::debug!("a connection that another NIC has received is closed: {from:?}");
                        continue;
                    };
                    let mut connection = Connection::accepted(socket, sealed, now);
                    (connection.far, connection.carriers) = (from, carriers);
                    if let Err(error) = self.add(connection) {
                        log::debug!("a connection is closed: {error}");
                    }
                }
                Err(errno) if errno == libc::ECONNABORTED || errno == libc::EINTR => {}
                Err(errno) => {
                    if !socket::is_later(errno) {
                        // Others may give some back.
                        warn_seldom!(
                            "at {}: connections are not accepted: {} (RLIMIT_NOFILE is the limit of descriptors)",
                            self.at,
                            error_text(errno)
                        );
                        self.pause(now);
                    }
                    break;
                }
            }
        }
    }

    fn pause(&mut self, now: u64) {
        self.paused_until = now + PAUSE_NS;
        self.heed_listeners(false);
    }

    /// Sets whether events of the listeners are reported.
    pub(super) fn heed_listeners(&self, heed: bool) {
        for listener in &self.listeners {
            self.epoll.change(listener.as_fd(), if heed { libc::EPOLLIN } else { 0 }, LISTENER);
        }
    }

    /// Whether one more connection without a peer is admitted, and in place of which one.
    fn find_room(&self, now: u64) -> Result<Option<u32>, ()> {
        let all = self.connections.iter().enumerate().filter_map(|(at, one)| Some((at, one.as_deref()?)));
        let waiting = all.filter(|(_, one)| one.is_unauthenticated());
        let waiting = waiting.map(|(at, one)| (at as u32, one.host(), now.saturating_sub(one.since_ns)));
        admit(&waiting.collect::<Vec<_>>(), UNAUTHENTICATED_MOST, TIME_NS)
    }

    /// What a dialed connection that is not up waits for.
    pub(super) fn dialed_waits_for(&mut self, at: u32) -> &'static str {
        match self.connection(at) {
            Some(connection) if connection.state == State::Dialing => {
                "no answer to the attempt to connect: a firewall drops it, the address is wrong, or its host is down"
            }
            Some(connection) if connection.state == State::Handshaking => {
                "connected, and nothing answers: its process is stopped or has no descriptors left, or another program has the port"
            }
            Some(connection) if connection.socket().is_some_and(socket::is_unacknowledged) => {
                "connected, and what is sent does not arrive: does the path carry packets as large as the interface's MTU?"
            }
            _ => "connected, and the handshake is not answered",
        }
    }

    /// A handshake names the NIC that it calls, and its sender. The peer has to prove its identity:
    /// until then it is answered only over the same connection.
    #[cold]
    pub(super) fn meet(&mut self, at: u32) {
        let Some(handshake) = self.connection(at).and_then(|connection| connection.handshake) else { return };
        if handshake.target != self.name || handshake.initiator == NOBODY {
            let one = self.connection(at);
            let from = one.and_then(|one| {
                one.turn_away();
                one.far
            });
            self.rejected.push(Rejected { from, why: Rejected::NO_NIC });
            return self.list(at);
        }
        if handshake.beside {
            return self.meet_beside(at, handshake);
        }
        if let Some(one) = self.connection(at) {
            one.accept();
        }
        self.list(at);
    }
}
