//! Operations that wait for values of counters. One lock guards them all. Callers hold it for a
//! stride at a time, and workers never wait for it: where an arrival reaches a waited value and the
//! lock is taken, the worker lists the counter and tries again in its next pass.

use super::counters::{CounterPlace, Counters, NO_WAITER};
use crate::ids::OpId;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// Entries added or removed per hold of the lock.
const STRIDE: usize = 256;
/// Operations that a new operation checks for having ended.
const ENDED_CHECKS: usize = 4;

/// A value that is waited for.
#[derive(Clone, Copy)]
pub struct Expected {
    pub place: CounterPlace,
    pub value: u64,
}

/// The counters and values that an operation waits for.
pub struct Wanted {
    entries: Vec<Expected>,
    /// The operation has ended.
    ended: AtomicBool,
}

impl Wanted {
    pub fn new(entries: Vec<Expected>) -> Arc<Wanted> {
        Arc::new(Wanted { entries, ended: AtomicBool::new(false) })
    }

    fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

#[derive(Default)]
pub struct Waiting {
    next: u64,
    /// Waiting values by counter, the lowest first.
    values: BTreeSet<Value>,
    /// Waits by ticket. Waits of operations that ended early do no harm; the callers of later
    /// operations remove them.
    waits: BTreeMap<u64, Wait>,
    /// The last ticket that was checked for having ended.
    checked: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Value {
    index: u32,
    value: u64,
    ticket: u64,
    /// Its index in the operation.
    at: u32,
}

struct Wait {
    /// `None`: not entered yet.
    operation: Option<OpId>,
    /// Values not reached so far; one more while entries are being added.
    missing: u64,
    wanted: Arc<Wanted>,
    /// Entries removed since the operation ended.
    cleared: usize,
}

/// An operation's interest in counters, which ends with it.
pub struct Expecting {
    ticket: u64,
    wanted: Arc<Wanted>,
}

impl Expecting {
    pub fn new(counters: &Counters, wanted: Arc<Wanted>) -> Expecting {
        let entries = wanted.entries.len();
        counters.clear_ended(2 * entries + STRIDE);
        let mut waiting = counters.waiting.lock();
        waiting.next += 1;
        let ticket = waiting.next;
        let missing = entries as u64 + 1;
        waiting.waits.insert(ticket, Wait { operation: None, missing, wanted: wanted.clone(), cleared: 0 });
        Expecting { ticket, wanted }
    }

    pub fn ticket(&self) -> u64 {
        self.ticket
    }
}

impl Drop for Expecting {
    fn drop(&mut self) {
        self.wanted.ended.store(true, Ordering::Release);
    }
}

/// Operations that end with a destroyed counter.
#[derive(Default)]
pub struct Abandoned {
    /// Their last value was reached.
    pub reached: Vec<OpId>,
    pub canceled: Vec<OpId>,
}

fn strides(entries: &[Expected]) -> impl Iterator<Item = Range<usize>> {
    let len = entries.len();
    (0..len).step_by(STRIDE).map(move |from| from..len.min(from + STRIDE))
}

impl Counters {
    /// Enters an operation's counters and values. Operations whose values are all reached are added
    /// to `ended`. False: a counter was destroyed.
    pub fn watch(&self, ticket: u64, operation: OpId, wanted: &Wanted, ended: &mut Vec<OpId>) -> bool {
        for stride in strides(&wanted.entries) {
            let mut waiting = self.waiting.lock();
            for at in stride {
                // The operation has ended meanwhile, and its entries are being removed.
                let Some(wait) = waiting.waits.get_mut(&ticket).filter(|_| !wanted.is_ended()) else {
                    return true;
                };
                wait.operation = Some(operation);
                let Expected { place, value } = wanted.entries[at];
                waiting.values.insert(Value { index: place.index, value, ticket, at: at as u32 });
                let counter = self.counter(place.index);
                if counter.and_then(|counter| counter.value(place.generation)).is_none() {
                    return false;
                }
                if !self.settle_in(&mut waiting, place.index, ended, STRIDE) {
                    self.list(place.index);
                }
            }
        }
        let mut waiting = self.waiting.lock();
        waiting.reached(ticket, ended);
        true
    }

    /// Settles a counter that may have reached waited values. With very many values, or while
    /// another thread holds the lock, the counter is listed to be settled again. False: another
    /// thread holds the lock.
    pub fn settle(&self, index: u32, ended: &mut Vec<OpId>) -> bool {
        let waiting = self.waiting.try_lock();
        let alone = waiting.is_some();
        if !waiting.is_some_and(|mut waiting| self.settle_in(&mut waiting, index, ended, STRIDE)) {
            self.list(index);
        }
        alone
    }

    /// Removes reached values, at most `most` of them; false if more are left. SeqCst: this
    /// publishes the lowest value left and then reads the counter again, while an arrival raises
    /// the counter and then reads the lowest value. So one of the two sees the other.
    fn settle_in(&self, waiting: &mut Waiting, index: u32, ended: &mut Vec<OpId>, mut most: usize) -> bool {
        let Some(counter) = self.counter(index) else { return true };
        loop {
            let lowest = waiting.take_reached(index, counter.any_value(), ended, &mut most);
            counter.wanted.store(lowest, Ordering::SeqCst);
            let all = counter.any_value() < lowest;
            if all || most == 0 {
                return all;
            }
        }
    }

    /// The counter was destroyed with this value: nothing waits for it from here on. Reached values may
    /// be among those left (`settle`).
    pub fn abandon(&self, index: u32, value: u64) -> Abandoned {
        let mut abandoned = Abandoned::default();
        loop {
            let mut waiting = self.waiting.lock();
            for _ in 0..STRIDE {
                let Some(first) = waiting.first(index) else {
                    if let Some(counter) = self.counter(index) {
                        counter.wanted.store(NO_WAITER, Ordering::SeqCst);
                    }
                    return abandoned;
                };
                waiting.values.remove(&first);
                if first.value <= value {
                    waiting.reached(first.ticket, &mut abandoned.reached);
                } else {
                    let operation = waiting.waits.get(&first.ticket).and_then(|wait| wait.operation);
                    abandoned.canceled.extend(operation);
                }
            }
        }
    }

    /// Removes about this many values of ended operations. (Until then such a value may stay
    /// published: an arrival that reaches it finds no operation.)
    fn clear_ended(&self, mut entries: usize) {
        let mut checks = ENDED_CHECKS;
        while entries > 0 {
            let mut waiting = self.waiting.lock();
            let Waiting { values, waits, checked, .. } = &mut *waiting;
            let (ticket, wait) = loop {
                let Some((&ticket, wait)) = waits.range_mut(*checked..).next() else {
                    *checked = 0; // The next call begins with the first ticket.
                    return;
                };
                *checked = ticket;
                if wait.wanted.is_ended() {
                    break (ticket, wait);
                }
                *checked += 1;
                checks -= 1;
                if checks == 0 {
                    return;
                }
            };
            let waited = &wait.wanted.entries;
            let to = waited.len().min(wait.cleared + STRIDE);
            for (at, Expected { place, value }) in waited.iter().enumerate().take(to).skip(wait.cleared) {
                values.remove(&Value { index: place.index, value: *value, ticket, at: at as u32 });
            }
            wait.cleared = to;
            if to == waited.len() {
                waits.remove(&ticket);
            }
            entries = entries.saturating_sub(STRIDE);
        }
    }
}

impl Waiting {
    fn first(&self, index: u32) -> Option<Value> {
        let least = Value { index, value: 0, ticket: 0, at: 0 };
        self.values.range(least..).next().filter(|first| first.index == index).copied()
    }

    /// Removes at most `most` values of a counter, up to `value`; returns the lowest one left.
    fn take_reached(&mut self, index: u32, value: u64, ended: &mut Vec<OpId>, most: &mut usize) -> u64 {
        while let Some(first) = self.first(index) {
            if first.value > value || *most == 0 {
                return first.value;
            }
            *most -= 1;
            self.values.remove(&first);
            self.reached(first.ticket, ended);
        }
        NO_WAITER
    }

    /// Counts off a value that an operation waits for.
    fn reached(&mut self, ticket: u64, ended: &mut Vec<OpId>) {
        let Some(wait) = self.waits.get_mut(&ticket) else { return };
        wait.missing -= 1;
        if wait.missing == 0 {
            ended.extend(wait.operation);
            self.waits.remove(&ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::counters::{Raised, Unsettled};
    use std::sync::atomic::AtomicU64;

    fn entry(counters: &Counters, id: u64, value: u64) -> Expected {
        Expected { place: counters.find(id).expect("it exists").0, value }
    }

    #[test]
    fn expectation_ends_when_its_last_value_is_reached() {
        let counters = Arc::new(Counters::new(8, 1));
        let [a, b] = [(); 2].map(|()| counters.create().expect("room"));
        let entries =
            Wanted::new(vec![entry(&counters, a, 2), entry(&counters, b, 0), entry(&counters, a, 1)]);
        let expecting = Expecting::new(&counters, entries.clone());
        let mut ended = Vec::new();
        assert!(
            counters.watch(expecting.ticket(), OpId::numbered(77), &entries, &mut ended) && ended.is_empty()
        );
        for (by, expected) in [(1, &[][..]), (1, &[OpId::numbered(77)][..])] {
            match counters.raise(a as u32, by) {
                Raised::Reached(index) => assert!(counters.settle(index, &mut ended)),
                other => panic!("{other:?}"),
            }
            assert_eq!(ended, expected);
        }
        assert_eq!(counters.raise(a as u32, 1), Raised::Yes, "no operation waits");
    }

    #[test]
    fn ended_expectation_leaks_nothing() {
        let counters = Arc::new(Counters::new(8, 1));
        let a = counters.create().expect("room");
        let entries = Wanted::new((1..1000).map(|value| entry(&counters, a, value)).collect());
        let expecting = Expecting::new(&counters, entries.clone());
        assert!(counters.watch(expecting.ticket(), OpId::numbered(5), &entries, &mut Vec::new()));
        drop(expecting);
        // Later operations remove its entries, also from among active ones.
        let others: Vec<Expecting> = (0..100).map(|_| Expecting::new(&counters, entries.clone())).collect();
        assert!(counters.waiting.lock().values.is_empty());
        drop(others);
    }

    #[test]
    fn expectation_of_a_destroyed_counter_ends() {
        let counters = Arc::new(Counters::new(8, 1));
        let a = counters.create().expect("room");
        let entries = Wanted::new(vec![entry(&counters, a, 9)]);
        let early = Expecting::new(&counters, entries.clone());
        assert!(counters.watch(early.ticket(), OpId::numbered(5), &entries, &mut Vec::new()));
        let late = Expecting::new(&counters, entries.clone());
        let abandoned = counters.destroy(a).expect("it exists");
        assert_eq!((&abandoned.reached[..], &abandoned.canceled[..]), (&[][..], &[OpId::numbered(5)][..]));
        assert!(!counters.watch(late.ticket(), OpId::numbered(6), &entries, &mut Vec::new()));
    }

    /// One step settles fewer values than are reached; the counter is destroyed before the next.
    #[test]
    fn destroyed_counter_cancels_no_wait_for_a_reached_value() {
        const COUNT: u64 = STRIDE as u64 + 44;
        let counters = Arc::new(Counters::new(8, 1));
        let [a, b] = [(); 2].map(|()| counters.create().expect("room"));
        let wait = |number, entries: &[(u64, u64)]| {
            let entries = entries.iter().map(|(id, value)| entry(&counters, *id, *value));
            let wanted = Wanted::new(entries.collect());
            let expecting = Expecting::new(&counters, wanted.clone());
            assert!(counters.watch(expecting.ticket(), OpId::numbered(number), &wanted, &mut Vec::new()));
            expecting
        };
        let mut waits: Vec<Expecting> = (1..=COUNT).map(|number| wait(number, &[(a, 1)])).collect();
        waits.extend([wait(1000, &[(a, 2)]), wait(1001, &[(a, 1), (b, 1)])]);
        let (mut ended, Raised::Reached(index)) = (Vec::new(), counters.raise(a as u32, 1)) else {
            panic!("operations wait for 1")
        };
        assert!(counters.settle(index, &mut ended) && ended.len() == STRIDE);
        let Abandoned { reached, canceled } = counters.destroy(a).expect("it exists");
        ended.extend(reached);
        ended.sort();
        assert_eq!(ended, (1..=COUNT).map(OpId::numbered).collect::<Vec<OpId>>());
        assert_eq!(canceled, [OpId::numbered(1000)]);
        let Raised::Reached(index) = counters.raise(b as u32, 1) else { panic!("1001 waits for 1") };
        let mut ended = Vec::new();
        assert!(counters.settle(index, &mut ended) && ended == [OpId::numbered(1001)]);
    }

    /// A caller's thread preempted with the lock delays no arrival, and no value is lost.
    #[test]
    fn arrivals_and_ends_never_wait_for_a_caller_with_the_lock() {
        let counters = Arc::new(Counters::new(8, 1));
        let a = counters.create().expect("room");
        let of_first = Wanted::new(vec![entry(&counters, a, 1)]);
        let of_late = Wanted::new(vec![entry(&counters, a, 9)]);
        let [first, late] = [&of_first, &of_late].map(|entries| Expecting::new(&counters, entries.clone()));
        let mut ended = Vec::new();
        assert!(counters.watch(first.ticket(), OpId::numbered(5), &of_first, &mut ended));
        assert!(counters.watch(late.ticket(), OpId::numbered(6), &of_late, &mut ended));
        let held = counters.waiting.lock();
        let Raised::Reached(index) = counters.raise(a as u32, 1) else { panic!("5 waits for 1") };
        assert!(!counters.settle(index, &mut ended) && ended.is_empty());
        drop(late);
        drop(held);
        assert_eq!(counters.next_unsettled(&mut Unsettled::default()), Some(index));
        assert!(counters.settle(index, &mut ended) && !counters.has_unsettled());
        assert_eq!(ended, [OpId::numbered(5)]);
    }

    /// In each round an arrival races with a wait for it: one of the two sees the other.
    #[test]
    fn expected_values_are_not_missed_during_concurrent_raises() {
        const ROUNDS: u64 = 50_000;
        let counters = Arc::new(Counters::new(8, 1));
        let a = counters.create().expect("room");
        let (others, round) = (counters.clone(), Arc::new(AtomicU64::new(0)));
        let (begun, done) = (round.clone(), Arc::new(AtomicU64::new(0)));
        let raised = done.clone();
        let raiser = std::thread::spawn(move || {
            let (mut ended, mut taken) = (Vec::new(), Unsettled::default());
            for n in 1..=ROUNDS {
                while begun.load(Ordering::SeqCst) < n {
                    std::thread::yield_now();
                }
                if let Raised::Reached(index) = others.raise(a as u32, 1) {
                    others.settle(index, &mut ended);
                }
                while let Some(index) = others.next_unsettled(&mut taken) {
                    others.settle(index, &mut ended);
                }
                raised.store(n, Ordering::SeqCst);
            }
            ended
        });
        let mut ended = Vec::new();
        for n in 1..=ROUNDS {
            let entries = Wanted::new(vec![entry(&counters, a, n)]);
            let expecting = Expecting::new(&counters, entries.clone());
            round.store(n, Ordering::SeqCst);
            (0..n % 64).for_each(|_| std::hint::spin_loop());
            assert!(counters.watch(expecting.ticket(), OpId::numbered(n), &entries, &mut ended));
            while done.load(Ordering::SeqCst) < n {
                std::thread::yield_now();
            }
        }
        ended.extend(raiser.join().expect("no panic"));
        ended.sort();
        assert_eq!(ended, (1..=ROUNDS).map(OpId::numbered).collect::<Vec<OpId>>());
    }
}
