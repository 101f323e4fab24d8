//! Who waits for values of counters. All of it is behind one lock, which an
//! arrival takes only when it reaches a value that somebody waits for.

use super::counters::{Counters, Place, NOBODY};
use crate::ids::OpId;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Entries that are entered or removed at one go: an arrival may wait for the lock.
const STRIDE: usize = 256;

/// A value that is waited for.
#[derive(Clone, Copy)]
pub struct Entry {
    pub place: Place,
    pub value: u64,
}

#[derive(Default)]
pub struct Waiting {
    next: u64,
    /// By counter, the lowest value first: counter, value, ticket, place in its list.
    values: BTreeSet<(u32, u64, u64, u32)>,
    /// By ticket.
    waits: HashMap<u64, Wait>,
    /// Of operations that have ended: what is still among the values, and from where on. It
    /// does no harm, and goes as others come, by their callers' threads.
    left: VecDeque<(u64, Arc<Vec<Entry>>, usize)>,
    /// Counters of which not all that was reached is taken out.
    unsettled: Vec<u32>,
}

struct Wait {
    /// `None`: it is not entered yet.
    operation: Option<OpId>,
    /// Values that were not reached; one more while they are entered.
    missing: u64,
}

/// An operation's interest in counters, which ends with it.
pub struct Expecting {
    counters: Arc<Counters>,
    ticket: u64,
    entries: Arc<Vec<Entry>>,
}

impl Expecting {
    pub fn new(counters: &Arc<Counters>, entries: Arc<Vec<Entry>>) -> Expecting {
        counters.clear_left(2 * entries.len() + STRIDE);
        let mut waiting = counters.waiting.lock();
        waiting.next += 1;
        let ticket = waiting.next;
        waiting.waits.insert(ticket, Wait { operation: None, missing: entries.len() as u64 + 1 });
        Expecting { counters: counters.clone(), ticket, entries }
    }

    pub fn ticket(&self) -> u64 {
        self.ticket
    }
}

impl Drop for Expecting {
    fn drop(&mut self) {
        let mut waiting = self.counters.waiting.lock();
        let Some(wait) = waiting.waits.remove(&self.ticket) else { return };
        if wait.operation.is_some() {
            waiting.left.push_back((self.ticket, self.entries.clone(), 0));
            drop(waiting);
            self.counters.clear_left(STRIDE);
        }
    }
}

fn strides(entries: &[Entry]) -> impl Iterator<Item = Range<usize>> {
    let len = entries.len();
    (0..len).step_by(STRIDE).map(move |from| from..len.min(from + STRIDE))
}

impl Counters {
    /// Enters what an operation waits for. Operations whose values are all reached go
    /// to `ended`. False: a counter is gone.
    pub fn watch(&self, ticket: u64, operation: OpId, entries: &[Entry], ended: &mut Vec<OpId>) -> bool {
        for stride in strides(entries) {
            let mut waiting = self.waiting.lock();
            for at in stride {
                // The operation has ended meanwhile, and its entries are taken out.
                let Some(wait) = waiting.waits.get_mut(&ticket) else { return true };
                wait.operation = Some(operation);
                let Entry { place, value } = entries[at];
                waiting.values.insert((place.index, value, ticket, at as u32));
                let counter = self.counter(place.index);
                if counter.and_then(|counter| counter.value(place.generation)).is_none() {
                    return false;
                }
                self.settle_in(&mut waiting, place.index, ended, usize::MAX);
            }
        }
        let mut waiting = self.waiting.lock();
        waiting.reached(ticket, ended);
        true
    }

    /// A counter may have reached values that somebody waits for. Where very many do, it is
    /// settled again (`next_unsettled`).
    pub fn settle(&self, index: u32, ended: &mut Vec<OpId>) {
        let waiting = &mut *self.waiting.lock();
        let all = self.settle_in(waiting, index, ended, STRIDE);
        if !all && !waiting.unsettled.contains(&index) {
            waiting.unsettled.push(index);
            self.unsettled.store(true, Ordering::Release);
        }
    }

    /// A counter that is to be settled again.
    pub fn next_unsettled(&self) -> Option<u32> {
        if !self.unsettled.load(Ordering::Acquire) {
            return None;
        }
        let waiting = &mut *self.waiting.lock();
        let next = waiting.unsettled.pop();
        self.unsettled.store(!waiting.unsettled.is_empty(), Ordering::Release);
        next
    }

    /// Takes out what was reached, of so many entries; false if there are more. The lowest value that is left is published before
    /// the counter is read again, and an arrival raises the counter before it reads the
    /// lowest value, all in one order (SeqCst): so one of the two sees the other.
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

    /// A counter is gone: who waits for it ends.
    pub fn desert(&self, index: u32, ended: &mut Vec<OpId>) {
        let mut waiting = self.waiting.lock();
        while let Some(&first) = waiting.first(index) {
            waiting.values.remove(&first);
            ended.extend(waiting.waits.get(&first.2).and_then(|wait| wait.operation));
        }
        if let Some(counter) = self.counter(index) {
            counter.wanted.store(NOBODY, Ordering::SeqCst);
        }
    }

    /// Takes out what operations left that have ended, of so many entries or some more. (Until
    /// then it may go on being published: an arrival that reaches it finds nothing.)
    fn clear_left(&self, mut entries: usize) {
        while entries > 0 {
            let mut waiting = self.waiting.lock();
            let Some((ticket, of, from)) = waiting.left.pop_front() else { return };
            let to = of.len().min(from + STRIDE);
            for (at, Entry { place, value }) in of.iter().enumerate().take(to).skip(from) {
                waiting.values.remove(&(place.index, *value, ticket, at as u32));
            }
            if to < of.len() {
                waiting.left.push_front((ticket, of, to));
            }
            entries = entries.saturating_sub(STRIDE);
        }
    }
}

impl Waiting {
    fn first(&self, index: u32) -> Option<&(u32, u64, u64, u32)> {
        self.values.range((index, 0, 0, 0)..).next().filter(|first| first.0 == index)
    }

    /// Takes out a counter's values up to one, of so many entries; the lowest that is left.
    fn take_reached(&mut self, index: u32, value: u64, ended: &mut Vec<OpId>, most: &mut usize) -> u64 {
        while let Some(&first) = self.first(index) {
            if first.1 > value || *most == 0 {
                return first.1;
            }
            *most -= 1;
            self.values.remove(&first);
            self.reached(first.2, ended);
        }
        NOBODY
    }

    /// One thing less that an operation waits for.
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
    use crate::transfer::counters::Raised;
    use std::sync::atomic::AtomicU64;

    fn entry(counters: &Counters, id: u64, value: u64) -> Entry {
        Entry { place: counters.find(id).expect("it exists").0, value }
    }

    #[test]
    fn an_operation_ends_when_the_last_value_is_reached() {
        let counters = Arc::new(Counters::new(8, 1));
        let [a, b] = [(); 2].map(|()| counters.create().expect("room"));
        let entries = Arc::new(vec![entry(&counters, a, 2), entry(&counters, b, 0), entry(&counters, a, 1)]);
        let expecting = Expecting::new(&counters, entries.clone());
        let mut ended = Vec::new();
        assert!(
            counters.watch(expecting.ticket(), OpId::numbered(77), &entries, &mut ended) && ended.is_empty()
        );
        for (by, expected) in [(1, &[][..]), (1, &[OpId::numbered(77)][..])] {
            match counters.raise(a as u32, by) {
                Raised::Reached(index) => counters.settle(index, &mut ended),
                other => panic!("{other:?}"),
            }
            assert_eq!(ended, expected);
        }
        assert_eq!(counters.raise(a as u32, 1), Raised::Yes, "nobody waits any more");
    }

    #[test]
    fn ended_expectation_leaks_nothing() {
        let counters = Arc::new(Counters::new(8, 1));
        let a = counters.create().expect("room");
        let entries = Arc::new((1..1000).map(|value| entry(&counters, a, value)).collect::<Vec<_>>());
        let expecting = Expecting::new(&counters, entries.clone());
        assert!(counters.watch(expecting.ticket(), OpId::numbered(5), &entries, &mut Vec::new()));
        drop(expecting);
        assert!(counters.waiting.lock().waits.is_empty());
        // The next one clears away what it left.
        drop(Expecting::new(&counters, entries.clone()));
        let waiting = counters.waiting.lock();
        assert!(waiting.values.is_empty() && waiting.left.is_empty());
    }

    #[test]
    fn expectation_of_a_destroyed_counter_ends() {
        let counters = Arc::new(Counters::new(8, 1));
        let a = counters.create().expect("room");
        let entries: Arc<Vec<Entry>> = Arc::new(vec![entry(&counters, a, 9)]);
        let early = Expecting::new(&counters, entries.clone());
        assert!(counters.watch(early.ticket(), OpId::numbered(5), &entries, &mut Vec::new()));
        let late = Expecting::new(&counters, entries.clone());
        let mut ended = Vec::new();
        counters.destroy(a, &mut ended).expect("it exists");
        assert_eq!(ended, [OpId::numbered(5)]);
        assert!(!counters.watch(late.ticket(), OpId::numbered(6), &entries, &mut ended));
    }

    /// In each round one arrival and one who waits for it meet: one of them sees it.
    #[test]
    fn no_value_is_missed_while_others_raise_it() {
        const ROUNDS: u64 = 50_000;
        let counters = Arc::new(Counters::new(8, 1));
        let a = counters.create().expect("room");
        let (others, round) = (counters.clone(), Arc::new(AtomicU64::new(0)));
        let (begun, done) = (round.clone(), Arc::new(AtomicU64::new(0)));
        let raised = done.clone();
        let raiser = std::thread::spawn(move || {
            let mut ended = Vec::new();
            for n in 1..=ROUNDS {
                while begun.load(Ordering::SeqCst) < n {
                    std::thread::yield_now();
                }
                if let Raised::Reached(index) = others.raise(a as u32, 1) {
                    others.settle(index, &mut ended);
                }
                raised.store(n, Ordering::SeqCst);
            }
            ended
        });
        let mut ended = Vec::new();
        for n in 1..=ROUNDS {
            let entries: Arc<Vec<Entry>> = Arc::new(vec![entry(&counters, a, n)]);
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
