//! The slots of operations: each belongs to one operation at a time, until all holders have left.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::collections::HashSet;
use weft_loom::ids::{Hold, OpId, PeerId};
use weft_loom::status::Status;
use weft_loom::transfer::completion::KIND_WRITE;
use weft_loom::transfer::operation::Body;
use weft_loom::transfer::queue::Queue;
use weft_loom::transfer::table::{Left, Table};
use weft_loom::transfer::tally::{Ended, Tally};

const SLOTS: usize = 2;

fn bounded(most: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(most);
    model.check(test);
}

/// A table whose slots have been used.
fn table() -> Arc<Table> {
    let table = Arc::new(Table::new(SLOTS, 1, 1, std::sync::Arc::new(Queue::new(1).expect("there is memory"))));
    let holds: Vec<Hold> = (0..SLOTS).map(|_| begin(&table, 0, 0)).collect();
    holds.into_iter().for_each(|hold| finish(&table, hold));
    table
}

fn begin(table: &Table, peer: u64, slices: u64) -> Hold {
    table.begin(|| Body::new(peer), slices, u64::MAX).expect("a free slot")
}

fn try_begin(table: &Table, peer: u64) -> Option<Hold> {
    table.begin(|| Body::new(peer), 0, u64::MAX)
}

fn peer_of(table: &Table, hold: &Hold) -> u64 {
    table.held(hold).1.peer.map_or(0, PeerId::get)
}

/// The only stripe of an operation without slices leaves, and ends it.
fn finish(table: &Table, hold: Hold) {
    let id = hold.id();
    assert_eq!(table.leave(hold), Left::Arrived(id));
    assert!(table.end(id));
}

#[test]
fn slot_belongs_to_one_operation_at_a_time() {
    bounded(3, || {
        let table = table();
        let works = |table: &Table, peer| {
            let hold = begin(table, peer, 0);
            assert_eq!(peer_of(table, &hold), peer);
            finish(table, hold);
        };
        let of_other = table.clone();
        let other = thread::spawn(move || works(&of_other, 7));
        works(&table, 8);
        other.join().unwrap();
        assert_ne!(begin(&table, 1, 0).give(), begin(&table, 2, 0).give());
        assert!(try_begin(&table, 3).is_none(), "there are no more");
    });
}

/// One thread takes a slot while others take it and the next one, and release the first.
#[test]
fn reused_slot_is_not_taken_for_its_predecessor() {
    bounded(2, || {
        let table = table();
        let of_other = table.clone();
        let other = thread::spawn(move || {
            let (first, second) = (try_begin(&of_other, 1), try_begin(&of_other, 2));
            if let Some(hold) = first { finish(&of_other, hold); }
            second
        });
        let ours = try_begin(&table, 3);
        let theirs = other.join().unwrap();
        let more = [try_begin(&table, 4), try_begin(&table, 5)];
        let all = [ours, theirs].into_iter().chain(more).flatten().map(Hold::give);
        let all: Vec<OpId> = all.collect();
        let slots: HashSet<usize> = all.iter().map(|id| id.index()).collect();
        assert_eq!((all.len(), slots.len()), (SLOTS, SLOTS));
    });
}

/// A lookup finds its operation, or nothing: never the slot's next operation.
#[test]
fn a_reader_finds_what_it_looks_for() {
    bounded(3, || {
        let table = table();
        let hold = begin(&table, 7, 0);
        let id = hold.id();
        let reads = table.clone();
        let reader = thread::spawn(move || {
            let Some(slot) = reads.read(id) else { return };
            // SAFETY: a reader hold keeps the slot alive.
            assert_eq!(unsafe { reads.body(slot) }.peer.map_or(0, PeerId::get), 7);
            reads.release(slot);
        });
        finish(&table, hold);
        let next = begin(&table, 8, 0);
        assert_eq!(peer_of(&table, &next), 8);
        finish(&table, next);
        reader.join().unwrap();
        assert!(table.read(id).is_none());
    });
}

/// The last stripe sees everything that the others did before they left.
#[test]
fn one_flow_is_the_last_and_sees_all() {
    loom::model(|| {
        let table = table();
        let hold = begin(&table, 7, 2);
        table.add_stripes(table.held_slot(&hold), 1);
        let id = hold.give();
        let arrived = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
        let leaves = move |table: &Table, arrived: &[UnsafeCell<u32>; 2], stripe: usize| {
            // SAFETY: each stripe has its own part, until the last has left.
            arrived[stripe].with_mut(|bytes| unsafe { *bytes = 1 });
            let hold = Hold::on(id);
            let last = table.stripe_leaves(table.held_slot(&hold), 1) == Left::Arrived(id);
            hold.give();
            if last {
                // SAFETY: both threads have ended.
                let all = arrived.iter().map(|bytes| bytes.with(|bytes| unsafe { *bytes })).sum::<u32>();
                assert_eq!(all, 2);
                assert!(table.end(id));
            }
            last
        };
        let (of_other, theirs) = (table.clone(), arrived.clone());
        let other = thread::spawn(move || leaves(&of_other, &theirs, 1));
        let last = leaves(&table, &arrived, 0);
        assert_ne!(last, other.join().unwrap());
    });
}

/// An operation that is canceled while its last stripe leaves.
#[test]
fn an_operation_ends_once() {
    loom::model(|| {
        let table = table();
        let hold = begin(&table, 7, 0);
        let id = hold.id();
        let cancels = table.clone();
        let other = thread::spawn(move || cancels.end(id));
        let arrived = table.leave(hold) == Left::Arrived(id);
        let ended = arrived && table.end(id);
        assert_ne!(ended, other.join().unwrap());
        let next = begin(&table, 8, 0);
        finish(&table, next);
    });
}

/// A lane joins an operation that its peer already has.
#[test]
fn joining_a_peers_operations_holds_them() {
    bounded(3, || {
        let table = table();
        let hold = begin(&table, 7, 0);
        Table::send_off(table.held_slot(&hold));
        let joins = table.clone();
        let other = thread::spawn(move || {
            joins.join(PeerId::new(7).expect("it is not 0"), |hold| {
                let (slot, body) = joins.held(&hold);
                assert_eq!(body.peer == PeerId::new(7), Table::is_sent_off(slot), "the next one waits");
                leave(&joins, hold);
            });
        });
        leave(&table, hold);
        if let Some(hold) = try_begin(&table, 8) {
            assert_eq!(peer_of(&table, &hold), 8);
            leave(&table, hold);
        }
        other.join().unwrap();
        assert_eq!(table.active(), 0);
    });
}

/// The last one to leave ends it.
fn leave(table: &Table, hold: Hold) {
    if let Left::Arrived(id) = table.leave(hold) {
        assert!(table.end(id));
    }
}

/// One thread begins it and another ends it; a concurrent count never finds more ended than begun.
#[test]
fn no_more_are_over_than_began() {
    bounded(2, || {
        let table = table();
        let counts = table.clone();
        let reader = thread::spawn(move || assert!(counts.active() <= 1));
        let hold = begin(&table, 7, 0);
        let ends = table.clone();
        let other = thread::spawn(move || finish(&ends, hold));
        other.join().unwrap();
        reader.join().unwrap();
        assert_eq!(table.active(), 0);
    });
}

/// Statistics do not show it either.
#[test]
fn no_more_are_counted_as_ended_than_began() {
    bounded(1, || {
        let tally = Arc::new(Tally::new());
        let counts = tally.clone();
        let other = thread::spawn(move || {
            counts.begun(KIND_WRITE);
            counts.ended(&Ended { kind: KIND_WRITE, status: Status::Again, bytes: 0, took_ns: 0 });
        });
        let sum = tally.sum();
        assert!(sum.completions.iter().sum::<u64>() <= sum.writes);
        other.join().unwrap();
    });
}
