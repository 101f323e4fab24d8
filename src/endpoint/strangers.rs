//! Unauthenticated endpoints whose handshake is under way: counted, and bounded in all and for each
//! source. One costs a place in the table of peers, two in the queue, and handshakes over its lanes.
//! No source keeps others out: the one with the most handshakes makes room for the next source.

use super::core::Core;
use super::inbox::Command;
use crate::ids::PeerId;
use crate::status::{Error, Result, Status};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

/// Strangers whose greeting is under way; a quarter of the places is for those that leave for
/// another.
const MOST: usize = 256;
/// No stranger is dropped for another of a source with as many before this: greetings take
/// milliseconds.
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
    peer: PeerId,
    source: u64,
    since: u64,
    told_to_go: bool,
}

/// Whether one more may come in, in whose stead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Room {
    /// Its place is kept, until `came` or `stayed_out`.
    enters: bool,
    goes: Option<PeerId>,
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

    /// `source`: where its greeting came from.
    fn room(&self, source: u64, now: u64) -> Room {
        let mut inner = self.inner.lock();
        let Inner { greeting, entering } = &mut *inner;
        let staying = || greeting.iter().filter(|stranger| !stranger.told_to_go);
        let of = |source| staying().filter(|stranger| stranger.source == source).count();
        let usual = (self.most - self.most / 4).max(1);
        let (all, own) = (staying().count() + *entering, of(source));
        let (fits, leaving) = (greeting.len() + *entering < self.most, greeting.len() + *entering > all);
        if fits && all < usual && own < (usual / 2).max(1) {
            *entering += 1;
            return Room { enters: true, goes: None };
        }
        if !fits && leaving {
            return Room { enters: false, goes: None }; // Its next greeting finds room.
        }
        // The oldest of the sources that have most.
        let mut counts = HashMap::new();
        staying().for_each(|stranger| *counts.entry(stranger.source).or_insert(0usize) += 1);
        let most = counts.values().copied().max().unwrap_or(0);
        let is_one =
            |stranger: &&mut Stranger| !stranger.told_to_go && counts.get(&stranger.source) == Some(&most);
        let fair = |stranger: &&mut Stranger| most > own + 1 || now.saturating_sub(stranger.since) >= TIME_NS;
        let Some(oldest) = greeting.iter_mut().find(is_one).filter(fair) else {
            return Room { enters: false, goes: None };
        };
        oldest.told_to_go = true;
        let goes = Some(oldest.peer);
        *entering += usize::from(fits);
        Room { enters: fits, goes }
    }

    /// One that was let in is a peer now.
    pub fn came(&self, peer: PeerId, source: u64, now: u64) {
        let mut inner = self.inner.lock();
        inner.entering -= 1;
        inner.greeting.push_back(Stranger { peer, source, since: now, told_to_go: false });
    }

    /// One that was let in is none.
    pub fn stayed_out(&self) {
        self.inner.lock().entering -= 1;
    }

    /// One of them is up, or has gone.
    pub fn settled(&self, peer: PeerId) {
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
    pub fn let_in(&self, source: u64, now: u64) -> Result<()> {
        let room = self.strangers.room(source, now);
        if let Some(peer) = room.goes.and_then(|oldest| self.peers.get(oldest).ok()) {
            self.inboxes[peer.home].command(Command::TurnOut { peer: peer.id });
        }
        if room.enters {
            return Ok(());
        }
        self.turn_away("too many greet at once");
        Err(Error::new(Status::Again, "too many strangers greet at once"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO: Room = Room { enters: false, goes: None };

    fn id(number: u64) -> PeerId {
        PeerId::numbered(number + 1)
    }

    fn yes(goes: Option<PeerId>) -> Room {
        Room { enters: true, goes }
    }

    #[test]
    fn oldest_unauthenticated_endpoint_makes_room_after_its_time() {
        let strangers = Strangers::new(16, 1024);
        (0..6).for_each(|peer| {
            assert_eq!(strangers.room(peer, peer), yes(None));
            strangers.came(id(peer), peer, peer);
        });
        assert_eq!(strangers.room(9, TIME_NS - 1), NO);
        strangers.settled(id(2));
        assert_eq!(strangers.room(9, TIME_NS - 1), yes(None));
        assert_eq!(strangers.room(9, TIME_NS - 1), NO, "the place is kept");
        strangers.came(id(6), 9, TIME_NS - 1);
        assert_eq!(strangers.room(10, TIME_NS), yes(Some(id(0))));
        assert_eq!(strangers.room(10, TIME_NS), NO, "the next has come later");
        strangers.stayed_out();
        assert_eq!(strangers.room(10, TIME_NS), yes(None));
        strangers.came(id(7), 10, TIME_NS);
        assert_eq!(strangers.room(11, TIME_NS + 1), yes(Some(id(1))));
        strangers.stayed_out();
        strangers.settled(id(0));
        strangers.settled(id(1));
    }

    #[test]
    fn one_source_leaves_room_for_others() {
        let strangers = Strangers::new(64, 1024);
        let enter = |source: u64, now| {
            let room = strangers.room(source, now);
            if room.enters {
                strangers.came(PeerId::numbered(source << 32 | now), source, now);
            }
            room
        };
        let entered = (0..100).filter(|now| enter(1, *now).enters).count();
        assert_eq!(entered, 12, "half of the usual places");
        assert_eq!(enter(2, 100), yes(None));
        (0..100).for_each(|now| {
            enter(3, now);
        });
        // All are taken: who has fewer takes the place of the oldest of who has most.
        let other = enter(4, 101);
        assert!(other.enters && other.goes.is_some_and(|gone| matches!(gone.get() >> 32, 1 | 3)));
        assert!(strangers.inner.lock().greeting.len() <= 32);
        // Many sources that come without an end are bounded, too.
        (5..1000).for_each(|source| {
            enter(source, 102);
        });
        assert!(strangers.inner.lock().greeting.len() <= 32);
    }
}
