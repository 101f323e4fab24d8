//! Unauthenticated endpoints in their handshakes: counted, and limited in all and per source. Each
//! takes a slot in the table of peers, two places in the queue, and handshakes over its lanes. No
//! source excludes others: the one with the most handshakes loses its oldest one to the next
//! source.

use super::core::Core;
use super::inbox::Command;
use crate::ids::PeerId;
use crate::logging::seldom::Seldom;
use crate::status::{Error, Result, Status};
use crate::transfer::Outcome;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

/// The most handshakes in progress; a quarter of the slots is for those that are being replaced.
const MOST: usize = 256;
/// Within this time, a handshake is not replaced by one from a source that has as many: handshakes
/// take milliseconds.
const TIME_NS: u64 = 2_000_000_000;

/// The most causes that are remembered, and the length of each.
const CAUSES: usize = 16;
const CAUSE: usize = 60;

pub struct Unauthenticated {
    most: usize,
    inner: Mutex<Inner>,
    refused: AtomicU64,
    /// Malformed frames, which are dropped.
    malformed: AtomicU64,
    lines: Seldom,
    late_answers: Seldom,
    /// Why some were rejected: the first line of each cause is logged whatever the rate.
    causes: Mutex<Vec<String>>,
}

#[derive(Default)]
struct Inner {
    /// Oldest first. A handshake that is being replaced keeps its slot until it has ended.
    under_way: VecDeque<Handshake>,
    /// Slots of endpoints that are becoming peers.
    entering: usize,
}

struct Handshake {
    peer: PeerId,
    source: u64,
    since: u64,
    ends: bool,
}

/// Whether a further handshake is admitted, and which one it replaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Admission {
    /// Whether it is admitted; its slot is kept until `came` or `stayed_out`.
    enters: bool,
    goes: Option<PeerId>,
}

impl Unauthenticated {
    /// Most peers, and most of the queue, stay reserved for the caller's own.
    pub fn new(max_peers: usize, queue_depth: usize) -> Unauthenticated {
        Unauthenticated {
            most: MOST.min(max_peers / 2).min(queue_depth / 8).max(1),
            inner: Mutex::default(),
            refused: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
            lines: Seldom::new(),
            late_answers: Seldom::new(),
            causes: Mutex::default(),
        }
    }

    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Whether no endpoint was rejected for this reason before. The text before a colon names the
    /// endpoint.
    fn is_new_cause(&self, why: &str) -> bool {
        let why = why.split_once(": ").map_or(why, |(_, why)| why);
        let cause: String = why.chars().filter(|c| !c.is_ascii_digit()).take(CAUSE).collect();
        let mut known = self.causes.lock();
        let new = known.len() < CAUSES && !known.contains(&cause);
        known.extend(new.then_some(cause));
        new
    }

    /// `source`: the origin of its handshake.
    fn admit(&self, source: u64, now: u64) -> Admission {
        let mut inner = self.inner.lock();
        let Inner { under_way, entering } = &mut *inner;
        let staying = || under_way.iter().filter(|one| !one.ends);
        let of_source = |source| staying().filter(|one| one.source == source).count();
        let usual = (self.most - self.most / 4).max(1);
        let (all, own) = (staying().count() + *entering, of_source(source));
        let (fits, leaving) = (under_way.len() + *entering < self.most, under_way.len() + *entering > all);
        if fits && all < usual && own < (usual / 2).max(1) {
            *entering += 1;
            return Admission { enters: true, goes: None };
        }
        if !fits && leaving {
            return Admission { enters: false, goes: None }; // Its next handshake finds space.
        }
        // The oldest handshake of the sources that have most.
        let mut counts = HashMap::new();
        staying().for_each(|one| *counts.entry(one.source).or_insert(0usize) += 1);
        let most = counts.values().copied().max().unwrap_or(0);
        let is_one = |one: &&mut Handshake| !one.ends && counts.get(&one.source) == Some(&most);
        let fair = |one: &&mut Handshake| most > own + 1 || now.saturating_sub(one.since) >= TIME_NS;
        let Some(oldest) = under_way.iter_mut().find(is_one).filter(fair) else {
            return Admission { enters: false, goes: None };
        };
        oldest.ends = true;
        let goes = Some(oldest.peer);
        *entering += usize::from(fits);
        Admission { enters: fits, goes }
    }

    /// An admitted endpoint is a peer now.
    pub fn came(&self, peer: PeerId, source: u64, now: u64) {
        let mut inner = self.inner.lock();
        inner.entering -= 1;
        inner.under_way.push_back(Handshake { peer, source, since: now, ends: false });
    }

    /// An admitted endpoint did not become a peer.
    pub fn stayed_out(&self) {
        self.inner.lock().entering -= 1;
    }

    /// Undoes `came`: the worker that would own the peer has ended.
    pub fn took_back(&self, peer: PeerId) {
        let mut inner = self.inner.lock();
        let before = inner.under_way.len();
        inner.under_way.retain(|one| one.peer != peer);
        inner.entering += before - inner.under_way.len();
    }

    /// One of these peers is up, or gone.
    pub fn settled(&self, peer: PeerId) {
        let mut inner = self.inner.lock();
        if let Some(at) = inner.under_way.iter().position(|one| one.peer == peer) {
            inner.under_way.remove(at);
        }
    }
}

impl Core {
    /// Counts a malformed frame, which is dropped.
    #[cold]
    pub fn count_malformed(&self) {
        self.unauthenticated.malformed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an answer to a connect that has ended, which is dropped.
    #[cold]
    pub fn count_late_answer(&self) {
        self.count_malformed();
        if let Some(more) = self.unauthenticated.late_answers.due(self.clock.now()) {
            log::info!("dropped a late answer to a connect that this endpoint had given up{more}");
        }
    }

    pub fn malformed(&self) -> u64 {
        self.unauthenticated.malformed.load(Ordering::Relaxed)
    }

    /// Counts a rejected endpoint.
    #[cold]
    pub fn reject(&self, why: &str) {
        let known = &self.unauthenticated;
        let count = known.refused.fetch_add(1, Ordering::Relaxed) + 1;
        if known.lines.due(self.clock.now()).is_some() | known.is_new_cause(why) {
            log::warn!("rejected what an unauthenticated endpoint sent ({count} so far): {why}");
        }
    }

    /// Reserves a slot for a handshake, if one is free.
    pub fn let_in(&self, source: u64, now: u64) -> Result<()> {
        let room = self.unauthenticated.admit(source, now);
        if let Some(peer) = room.goes.and_then(|oldest| self.peers.get(oldest).ok()) {
            let outcome = Outcome::new(Status::Unreachable);
            self.command_owner(&peer, Command::EndPeer { peer: peer.id, outcome });
        }
        if room.enters {
            return Ok(());
        }
        self.reject("too many handshakes are under way");
        Err(Error::new(Status::Again, "too many handshakes of unauthenticated endpoints are under way"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO: Admission = Admission { enters: false, goes: None };

    #[test]
    fn each_rejection_cause_is_new_only_once() {
        let known = Unauthenticated::new(16, 1024);
        let causes =
            ["a handshake from 10.0.0.1:4711: wrong secret", "peer 0x7 (10.0.0.2:9): no answer for 3 ms"];
        assert!(causes.iter().all(|why| known.is_new_cause(why)));
        assert!(!known.is_new_cause("a handshake from 10.0.0.9:1: wrong secret"));
        let new = (0..1000u32).filter(|n| known.is_new_cause(&"x".repeat(*n as usize))).count();
        assert_eq!(new, CAUSES - causes.len());
    }

    fn id(number: u64) -> PeerId {
        PeerId::numbered(number + 1)
    }

    fn yes(goes: Option<PeerId>) -> Admission {
        Admission { enters: true, goes }
    }

    #[test]
    fn oldest_unauthenticated_endpoint_is_replaced_after_its_time() {
        let known = Unauthenticated::new(16, 1024);
        (0..6).for_each(|peer| {
            assert_eq!(known.admit(peer, peer), yes(None));
            known.came(id(peer), peer, peer);
        });
        assert_eq!(known.admit(9, TIME_NS - 1), NO);
        known.settled(id(2));
        assert_eq!(known.admit(9, TIME_NS - 1), yes(None));
        assert_eq!(known.admit(9, TIME_NS - 1), NO, "the place is kept");
        known.came(id(6), 9, TIME_NS - 1);
        assert_eq!(known.admit(10, TIME_NS), yes(Some(id(0))));
        assert_eq!(known.admit(10, TIME_NS), NO, "the next has come later");
        known.stayed_out();
        assert_eq!(known.admit(10, TIME_NS), yes(None));
        known.came(id(7), 10, TIME_NS);
        assert_eq!(known.admit(11, TIME_NS + 1), yes(Some(id(1))));
        known.stayed_out();
        known.settled(id(0));
        known.settled(id(1));
    }

    #[test]
    fn one_source_leaves_room_for_others() {
        let known = Unauthenticated::new(64, 1024);
        let enter = |source: u64, now| {
            let room = known.admit(source, now);
            if room.enters {
                known.came(PeerId::numbered(source << 32 | now), source, now);
            }
            room
        };
        let entered = (0..100).filter(|now| enter(1, *now).enters).count();
        assert_eq!(entered, 12, "half of the usual places");
        assert_eq!(enter(2, 100), yes(None));
        (0..100).for_each(|now| {
            enter(3, now);
        });
        // All slots are taken: a source with fewer replaces the oldest handshake of the source with
        // most.
        let other = enter(4, 101);
        assert!(other.enters && other.goes.is_some_and(|gone| matches!(gone.get() >> 32, 1 | 3)));
        assert!(known.inner.lock().under_way.len() <= 32);
        // Any number of sources is limited, too.
        (5..1000).for_each(|source| {
            enter(source, 102);
        });
        assert!(known.inner.lock().under_way.len() <= 32);
    }
}
