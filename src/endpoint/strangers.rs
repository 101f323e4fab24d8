//! Who greets us and is no peer yet: counted, and never many at once. A stranger
//! costs a place in the table of peers, two in the queue, and greetings over its
//! lanes: so there is a bound, and who has had time enough makes room for the next.

use super::core::Core;
use super::inbox::Command;
use crate::status::{Error, Result, Status};
use crate::transfer::Outcome;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// Strangers whose greeting is under way.
const MOST: usize = 256;
/// Nobody is dropped for another before this: greetings take milliseconds.
const TIME_NS: u64 = 2_000_000_000;
/// The log hears of strangers so often at most.
const SAID_NS: u64 = 1_000_000_000;

pub struct Strangers {
    most: usize,
    /// Their ids as peers, and since when; the oldest first.
    greeting: Mutex<VecDeque<(u64, u64)>>,
    refused: AtomicU64,
    said_ns: AtomicU64,
}

/// Whether one more may come in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Room {
    Yes,
    /// When this one was dropped.
    Instead(u64),
    No,
}

impl Strangers {
    /// Most of the peers, and of the queue, stay for those that the caller wants.
    pub fn new(max_peers: usize, queue_depth: usize) -> Strangers {
        Strangers {
            most: MOST.min(max_peers / 2).min(queue_depth / 8).max(1),
            greeting: Mutex::default(),
            refused: AtomicU64::new(0),
            said_ns: AtomicU64::new(0),
        }
    }

    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn room(&self, now: u64) -> Room {
        let mut greeting = self.greeting.lock();
        match greeting.front().copied() {
            Some((oldest, since)) if greeting.len() >= self.most => {
                if now.saturating_sub(since) < TIME_NS {
                    return Room::No;
                }
                greeting.pop_front();
                Room::Instead(oldest)
            }
            _ => Room::Yes,
        }
    }

    pub fn came(&self, peer: u64, now: u64) {
        self.greeting.lock().push_back((peer, now));
    }

    /// One of them is up, or has ended.
    pub fn settled(&self, peer: u64) {
        let mut greeting = self.greeting.lock();
        if let Some(at) = greeting.iter().position(|(other, _)| *other == peer) {
            greeting.remove(at);
        }
    }
}

impl Core {
    /// Counts one that is turned away.
    #[cold]
    pub fn turn_away(&self, why: &str) {
        let strangers = &self.strangers;
        let count = strangers.refused.fetch_add(1, Ordering::Relaxed) + 1;
        let (now, said) = (self.clock.now(), strangers.said_ns.load(Ordering::Relaxed));
        let due = said == 0 || now.saturating_sub(said) >= SAID_NS;
        if due && strangers.said_ns.compare_exchange(said, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            log::warn!("a stranger is turned away ({count} so far): {why}");
        }
    }

    /// Makes room for a stranger, if there can be.
    pub fn let_in(&self, now: u64) -> Result<()> {
        match self.strangers.room(now) {
            Room::Yes => {}
            Room::Instead(oldest) => {
                self.turn_away("it greets without an end, and others want its place");
                if let Ok(peer) = self.peers.get(oldest) {
                    let outcome = Outcome::of(Status::Unreachable);
                    self.inboxes[peer.home].command(Command::EndPeer { peer: oldest, outcome });
                }
            }
            Room::No => {
                self.turn_away("too many greet at once");
                return Err(Error::new(Status::Again, "too many strangers greet at once"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_makes_room_when_it_had_its_time() {
        let strangers = Strangers::new(8, 1024);
        (0..4).for_each(|peer| {
            assert_eq!(strangers.room(peer), Room::Yes);
            strangers.came(peer, peer);
        });
        assert_eq!(strangers.room(TIME_NS - 1), Room::No);
        strangers.settled(2);
        assert_eq!(strangers.room(TIME_NS - 1), Room::Yes);
        strangers.came(4, TIME_NS - 1);
        assert_eq!(strangers.room(TIME_NS), Room::Instead(0));
        strangers.came(5, TIME_NS);
        assert_eq!(strangers.room(TIME_NS), Room::No, "the next has come later");
        assert_eq!(strangers.room(TIME_NS + 1), Room::Instead(1));
    }
}
