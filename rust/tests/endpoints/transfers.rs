//! What operations move.

use super::world::*;
use crate::each_nic;
use libweft::*;
use std::sync::atomic::Ordering;
use std::time::Duration;

each_nic! {
    write_arrives_and_is_announced
    read_fetches
    messages_keep_their_order
    counter_counts_what_has_arrived
    pages_lie_where_they_belong
}

fn write_arrives_and_is_announced(like: &str) {
    let mut world = world(like);
    let options = none().notify(7).notify_data(b"done");
    let op = world.a.write(&world.local, 8, &world.remote, 16, 600, &options);
    world.succeeds(op);
    assert_eq!(world.notification(), (7, Status::Ok, b"done".to_vec()));
    let theirs = world.theirs();
    assert!(theirs[16..616].iter().all(|byte| *byte == 1));
    assert!(theirs[..16].iter().chain(&theirs[616..]).all(|byte| *byte == 2));
}

fn read_fetches(like: &str) {
    let mut world = world(like);
    let op = world.a.read(&world.local, 1, &world.remote, 2, 333, &none());
    world.succeeds(op);
    let local = bytes(&world.local);
    assert!(local[1..334].iter().all(|byte| *byte == 2));
    assert!(local[..1].iter().chain(&local[334..]).all(|byte| *byte == 1));
}

fn messages_keep_their_order(like: &str) {
    let mut world = world(like);
    let ops: Vec<_> = (0..4u8).map(|i| world.a.send(world.a_to_b, &[i; 90], &none())).collect();
    for i in 0..4 {
        assert_eq!(world.message(), [i; 90]);
    }
    ops.into_iter().for_each(|op| world.succeeds(op));
}

fn counter_counts_what_has_arrived(like: &str) {
    let mut world = world(like);
    let counter = world.b.create_counter().expect("a counter");
    let all = world.b.expect(&[(counter.id(), 2)], &none());
    for _ in 0..2 {
        let op = world.a.write(&world.local, 0, &world.remote, 0, 64, &none().counter(counter.id()));
        world.succeeds(op);
    }
    world.succeeds(all);
    assert_eq!(counter.read().expect("it is there"), 2);
}

/// Pages 2 and 0 of ours become 1 and 3 of theirs.
const OURS: PageSide = PageSide {
    pages: Some(&[2, 0]),
    page_stride: 0,
    offset: 0,
    layer_stride: 0,
    first_range: 0,
    range_step: 0,
};

fn pages() -> Pages<'static> {
    let theirs = PageSide { pages: Some(&[1, 3]), ..OURS };
    Pages { page_len: 128, page_count: 2, local: OURS, remote: theirs, ..Pages::default() }
}

fn ours_with_numbers(world: &World) {
    for page in 0..8 {
        world.local.write_at(page * 128, &[page as u8 + 10; 128]).expect("it is in the memory");
    }
}

fn pages_lie_where_they_belong(like: &str) {
    let mut world = world(like);
    ours_with_numbers(&world);
    let op = world.a.write_pages(&world.local, &world.remote, &pages(), &none());
    world.succeeds(op);
    let theirs = world.theirs();
    assert_eq!([theirs[0], theirs[128], theirs[256], theirs[384], theirs[512]], [2, 12, 2, 10, 2]);
}

#[test]
fn pages_are_read_into_their_places() {
    let mut world = world("tcp");
    let op = world.a.read_pages(&world.local, &world.remote, &pages(), &none());
    world.succeeds(op);
    let local = bytes(&world.local);
    assert_eq!([local[0], local[128], local[256], local[384]], [2, 1, 2, 1]);
}

#[test]
fn list_writes_its_entries_and_notifies_with_empty_ones() {
    let mut world = world("tcp");
    let entry = |at: u64, len| ListEntry {
        local: Some(&world.local),
        remote: Some(&world.remote),
        local_offset: at,
        remote_offset: 2 * at,
        len,
        ..ListEntry::default()
    };
    let entries =
        [entry(0, 64), entry(128, 64), ListEntry { peer: Some(world.a_to_b), ..ListEntry::default() }];
    let op = world.a.write_list(&entries, &none().notify(3));
    world.succeeds(op);
    assert_eq!(world.notification().0, 3);
    let theirs = world.theirs();
    assert_eq!([theirs[0], theirs[64], theirs[255], theirs[256], theirs[320]], [1, 2, 2, 1, 2]);
}

#[test]
fn list_reads_its_entries() {
    let mut world = world("tcp");
    let entry = |at: u64| ListEntry {
        local: Some(&world.local),
        remote: Some(&world.remote),
        local_offset: at,
        len: 32,
        ..ListEntry::default()
    };
    let op = world.a.read_list(&[entry(0), entry(512)], &none());
    world.succeeds(op);
    let local = bytes(&world.local);
    assert_eq!([local[31], local[32], local[512], local[544]], [2, 1, 2, 1]);
}

#[test]
fn prepared_geometry_serves_many_operations() {
    let mut world = world("tcp");
    ours_with_numbers(&world);
    let prepared = world.a.prepare_pages(&world.local, &world.remote, &pages(), &none()).expect("it fits");
    let of_write = world.a.write_prepared(&prepared, &none());
    world.succeeds(of_write);
    assert_eq!(world.theirs()[128], 12);
    world.theirs.write_at(128, &[77; 128]).expect("it is in the memory");
    let of_read = world.a.read_prepared(&prepared, &none());
    world.succeeds(of_read);
    assert_eq!(bytes(&world.local)[256], 77);
}

#[test]
fn atomics_return_what_was_there() {
    let mut world = world("tcp");
    let at = world.aligned;
    world.theirs.write_at(at, &5u64.to_le_bytes()).expect("it is in the memory");
    let previous = |world: &mut World, op: Result<Op>| match world.completion(op.expect("it is accepted")) {
        Completion::Atomic(atomic) => (atomic.done.status, atomic.previous),
        other => panic!("{other:?}"),
    };
    let add = world.a.fetch_add(&world.remote, at, 3, &none());
    assert_eq!(previous(&mut world, add), (Status::Ok, 5));
    let swap = world.a.compare_swap(&world.remote, at, 8, 21, &none());
    assert_eq!(previous(&mut world, swap), (Status::Ok, 8));
    assert_eq!(world.theirs()[at as usize..][..8], 21u64.to_le_bytes());
}

#[test]
fn start_watch_holds_back_and_done_watch_is_set() {
    let mut world = world("tcp");
    let (start, done) = (world.a.create_watch().expect("a watch"), world.a.create_watch().expect("a watch"));
    let options = none().start_watch(&start, 1).done_watch(&done, 9);
    let op = world.a.write(&world.local, 0, &world.remote, 0, 64, &options).expect("it is accepted");
    (0..20).for_each(|_| world.poll());
    assert_eq!((world.theirs()[0], done.word().load(Ordering::Acquire)), (2, 0));
    start.word().store(1, Ordering::Release);
    assert_eq!(world.status(op), Status::Ok);
    assert_eq!((world.theirs()[0], done.word().load(Ordering::Acquire)), (1, 9));
}

#[test]
fn operation_of_no_bytes_is_announced() {
    let mut world = world("tcp");
    let op = world.a.write(&world.local, 0, &world.remote, 0, 0, &none().notify(1));
    world.succeeds(op);
    assert_eq!(world.notification(), (1, Status::Ok, vec![]));
}

#[test]
fn ranges_of_one_memory_are_one_after_the_other() {
    let mut world = world("tcp");
    let several =
        world.b.register_with(vec![vec![3; 16], vec![4; 24]], &MemoryArgs::new()).expect("a memory");
    let remote = import(&world.a, world.a_to_b, &several);
    let pages = Pages {
        page_len: 16,
        page_count: 1,
        layer_count: 2,
        local: PageSide { layer_stride: 16, ..PageSide::default() },
        remote: PageSide { range_step: 1, ..PageSide::default() },
    };
    let op = world.a.read_pages(&world.local, &remote, &pages, &none());
    world.succeeds(op);
    let local = bytes(&world.local);
    assert_eq!([local[15], local[16], local[31], local[32]], [3, 4, 4, 1]);
}

#[test]
fn deadline_ends_what_waits() {
    let mut world = world("tcp");
    let counter = world.a.create_counter().expect("a counter");
    let soon = none().timeout(Duration::from_millis(20));
    let op = world.a.expect(&[(counter.id(), 1)], &soon).expect("it is accepted");
    assert_eq!(world.status(op), Status::TimedOut);
}

#[test]
fn statistics_and_metrics_tell_of_what_went() {
    let mut world = world("tcp");
    let op = world.a.write(&world.local, 0, &world.remote, 0, 64, &none());
    world.succeeds(op);
    assert!(world.a.statistics().expect("statistics").completions.iter().sum::<u64>() >= 1);
    assert!(world.a.metrics().expect("metrics").contains("weft_"));
    assert_eq!(world.a.info().expect("information").peers, 1);
}
