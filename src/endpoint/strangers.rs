//! Who greets us and is no peer yet: counted, and never many at once. A stranger
//! costs a place in the table of peers, two in the queue, and greetings over its
//! lanes: so there is a bound, and who has had time enough makes room for the next.

use super::core::Core;
use super::inbox::Command;
use crate::status::{Error, Result, Status};
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
    inner: Mutex<Inner>,
    refused: AtomicU64,
    said_ns: AtomicU64,
}

#[derive(Default)]
struct Inner {
    /// The oldest first. Who is told to go keeps its place until it has gone.
    greeting: VecDeque<Stranger>,
    /// Places of those that become peers at this moment.
    entering: usize,
}

struct Stranger {
    peer: u64,
    since: u64,
    told_to_go: bool,
}

/// Whether one more may come in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Room {
    /// Its place is kept, until `came` or `stayed_out`.
    Yes,
    /// There will be, when this one has gone, for who greets then.
    After(u64),
    No,
}

impl Strangers {
    /// Most of the peers, and of the queue, stay for those that the caller wants.
    pub fn new(max_peers: usize, queue_depth: usize) -> Strangers {
        Strangers {
            most: MOST.min(max_peers / 2).min(queue_depth / 8).max(1),
            inner: Mutex::default(),
            refused: AtomicU64::new(0),
            said_ns: AtomicU64::new(0),
        }
    }

    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn room(&self, now: u64) -> Room {
        let mut inner = self.inner.lock();
        if inner.greeting.len() + inner.entering < self.most {
            inner.entering += 1;
            return Room::Yes;
        }
        let oldest = inner.greeting.iter_mut().find(|stranger| !stranger.told_to_go);
        match oldest.filter(|oldest| now.saturating_sub(oldest.since) >= TIME_NS) {
            Some(oldest) => {
                oldest.told_to_go = true;
                Room::After(oldest.peer)
            }
            None => Room::No,
        }
    }

    /// One that was let in is a peer now.
    pub fn came(&self, peer: u64, now: u64) {
        let mut inner = self.inner.lock();
        inner.entering -= 1;
        inner.greeting.push_back(Stranger { peer, since: now, told_to_go: false });
    }

    /// One that was let in is none.
    pub fn stayed_out(&self) {
        self.inner.lock().entering -= 1;
    }

    /// One of them is up, or has gone.
    pub fn settled(&self, peer: u64) {
        let mut inner = self.inner.lock();
        if let Some(at) = inner.greeting.iter().position(|stranger| stranger.peer == peer) {
            inner.greeting.remove(at);
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

    /// Keeps a place for a stranger, if there is one.
    pub fn let_in(&self, now: u64) -> Result<()> {
        let why = match self.strangers.room(now) {
            Room::Yes => return Ok(()),
            Room::After(oldest) => {
                if let Ok(peer) = self.peers.get(oldest) {
                    self.inboxes[peer.home].command(Command::TurnOut { peer: oldest });
                }
                "another greets without an end, and goes"
            }
            Room::No => "too many greet at once",
        };
        self.turn_away(why);
        Err(Error::new(Status::Again, "too many strangers greet at once"))
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
        assert_eq!(strangers.room(TIME_NS - 1), Room::No, "the place is kept");
        strangers.came(4, TIME_NS - 1);
        assert_eq!(strangers.room(TIME_NS), Room::After(0));
        assert_eq!(strangers.room(TIME_NS), Room::No, "the next has come later, and the first is there");
        strangers.settled(0);
        assert_eq!(strangers.room(TIME_NS), Room::Yes);
        strangers.stayed_out();
        assert_eq!(strangers.room(TIME_NS), Room::Yes);
        strangers.came(5, TIME_NS);
        assert_eq!(strangers.room(TIME_NS + 1), Room::After(1));
    }
}
