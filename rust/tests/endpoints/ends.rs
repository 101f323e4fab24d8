//! What ends: peers, memories, endpoints and what was to be.

use super::world::*;
use crate::each_nic;
use libweft::*;
use std::time::Duration;

each_nic! {
    disconnect_is_seen_by_both
    endpoint_that_goes_ends_the_operations_of_its_peer
    everything_drops_while_operations_run
}

fn disconnect_is_seen_by_both(like: &str) {
    let mut world = world(like);
    world.a.disconnect(world.a_to_b).expect("it is connected");
    assert_eq!(world.down(), Status::Ok);
    let status = world.arrival(|one| match one {
        Completion::PeerDown(down) => Some(down.status),
        _ => None,
    });
    assert_eq!(status, Status::PeerClosed);
    let late = world.a.write(&world.local, 0, &world.remote, 0, 1, &none());
    assert_eq!(late.expect_err("the peer is gone").status.category(), Category::Peer);
}

/// `a` without `b`, and operations that were under way.
fn endpoint_that_goes_ends_the_operations_of_its_peer(like: &str) {
    let mut world = world(like);
    let start = world.a.create_watch().expect("a watch");
    let op = world.a.write(&world.local, 0, &world.remote, 0, 64, &none().start_watch(&start, 1));
    let op = op.expect("it is accepted");
    world.b.shutdown(Duration::ZERO).expect("it is open");
    assert_eq!(world.status(op).category(), Category::Peer);
    assert_eq!(world.down().category(), Category::Peer);
}

fn everything_drops_while_operations_run(like: &str) {
    let world = world(like);
    let prepared = world
        .a
        .prepare_pages(
            &world.local,
            &world.remote,
            &Pages { page_len: 64, page_count: 8, ..Pages::default() },
            &none(),
        )
        .expect("it fits");
    for _ in 0..2 {
        world.a.write(&world.local, 0, &world.remote, 0, 1024, &none()).expect("it is accepted");
        world.a.read(&world.local, 0, &world.remote, 0, 512, &none()).expect("it is accepted");
        world.a.write_prepared(&prepared, &none()).expect("it is accepted");
        world.a.send(world.a_to_b, &[4; 64], &none()).expect("it is accepted");
    }
    let World { local, theirs, remote, a, b, .. } = world;
    drop(theirs);
    drop(local);
    drop(a);
    drop((prepared, remote, b));
}

#[test]
fn endpoints_drop_first() {
    let mut world = world("tcp");
    let queue = world.a.create_queue(16).expect("a queue");
    let counter = world.a.create_counter().expect("a counter");
    let op = world.a.write(&world.local, 0, &world.remote, 0, 64, &none().queue(&queue));
    op.expect("it is accepted");
    world.poll();
    let World { local, theirs, remote, a, b, .. } = world;
    drop((a, b));
    while queue.poll().is_ok() {}
    assert_eq!(queue.poll().expect_err("it is over").status, Status::Closed);
    local.write_at(0, b"ours").expect("the bytes are valid");
    assert_eq!(local.deregister().expect("nothing uses it")[0][..4], *b"ours");
    drop((theirs, remote, counter, queue));
}

#[test]
fn dropped_memory_keeps_its_bytes_until_its_transfers_end() {
    let mut world = world("tcp");
    let local = world.a.register(vec![6; 512]).expect("a memory");
    let op = world.a.write(&local, 0, &world.remote, 0, 512, &none()).expect("it is accepted");
    drop(local);
    assert_eq!(world.status(op), Status::Ok);
    assert!(world.theirs()[..512].iter().all(|byte| *byte == 6));
    world.until(|world| (world.a.reclaim().expect("it can be asked") == 0).then_some(()));
}

#[test]
fn memory_that_its_owner_drops_is_gone_for_peers() {
    let mut world = world("tcp");
    let theirs = world.b.register(vec![0; 512]).expect("a memory");
    let remote = import(&world.a, world.a_to_b, &theirs);
    let early = world.a.write(&world.local, 0, &remote, 0, 512, &none());
    drop(theirs);
    let early = world.outcome(early);
    world.until(|world| (world.b.reclaim().expect("it can be asked") == 0).then_some(()));
    assert!(matches!(early, Status::Ok | Status::MemoryGone), "{early:?}");
    let late = world.a.write(&world.local, 0, &remote, 0, 512, &none());
    assert_eq!(world.outcome(late), Status::MemoryGone);
}

#[test]
fn deregister_refuses_what_operations_use() {
    let mut world = world("tcp");
    let start = world.a.create_watch().expect("a watch");
    let waits = none().start_watch(&start, 1);
    let op = world.a.write(&world.local, 0, &world.remote, 0, 64, &waits).expect("it is accepted");
    let local = std::mem::replace(&mut world.local, world.a.register(vec![0; 8]).expect("a memory"));
    let (local, error) = local.deregister().expect_err("an operation uses it");
    assert_eq!(error.status, Status::Busy);
    world.a.cancel(op).expect("it is under way");
    assert_eq!(world.status(op), Status::Canceled);
    assert_eq!(local.deregister().expect("nothing uses it"), [vec![1; LEN]]);
}

#[test]
fn cancel_ends_what_waits_and_refuses_what_has_ended() {
    let mut world = world("tcp");
    let counter = world.a.create_counter().expect("a counter");
    let op = world.a.expect(&[(counter.id(), 1)], &none()).expect("it is accepted");
    world.a.cancel(op).expect("it is under way");
    assert_eq!(world.status(op), Status::Canceled);
    let _ = world.a.cancel(op);
    drop(counter);
}

#[test]
fn counter_that_goes_ends_what_waits_for_it() {
    let mut world = world("tcp");
    let counter = world.a.create_counter().expect("a counter");
    let op = world.a.expect(&[(counter.id(), 1)], &none()).expect("it is accepted");
    drop(counter);
    assert_ne!(world.status(op), Status::Ok);
}

#[test]
fn message_outlives_queue_and_endpoint() {
    let world = world("tcp");
    let queue = world.b.queue();
    world.a.send(world.a_to_b, b"kept", &none()).expect("it is accepted");
    let kept = (0..1000).find_map(|_| {
        world.a.queue().poll().expect("it is open");
        match queue.poll().expect("it is open") {
            Some(Completion::Message(message)) => Some(message),
            _ => None,
        }
    });
    drop((world, queue));
    assert_eq!(kept.map(|message| message.to_vec()), Some(b"kept".to_vec()));
}

#[test]
fn queue_that_is_full_refuses_and_takes_more_later() {
    let mut world = world("tcp");
    let queue = world.a.create_queue(2).or_else(|_| world.a.create_queue(16)).expect("a queue");
    let mut refused = None;
    let mut accepted = 0;
    for _ in 0..64 {
        match world.a.send(world.a_to_b, b"x", &none().queue(&queue)) {
            Ok(_) => accepted += 1,
            Err(error) => {
                refused = Some(error.status);
                break;
            }
        }
    }
    assert_eq!(refused, Some(Status::Again));
    let mut ended = 0;
    world.until(|_| {
        while let Ok(Some(_)) = queue.poll() {
            ended += 1;
        }
        (ended == accepted).then_some(())
    });
    world.a.send(world.a_to_b, b"y", &none().queue(&queue)).expect("there is a place");
}

#[test]
fn connect_to_an_endpoint_that_is_gone_fails() {
    let config = configs("tcp");
    let (a, b) =
        (Endpoint::open(&config()).expect("an endpoint"), Endpoint::open(&config()).expect("an endpoint"));
    let address = b.address().to_vec();
    drop(b);
    a.connect_with(&address, &none().timeout(Duration::from_millis(200))).expect("it begins");
    let status = (0..100_000).find_map(|_| match a.queue().poll().expect("it is open") {
        Some(Completion::PeerUp(up)) => Some(up.status),
        _ => None,
    });
    assert!(matches!(status, Some(Status::PeerGone | Status::Unreachable)), "{status:?}");
}

#[test]
fn peers_connect_again() {
    let mut world = world("tcp");
    world.a.disconnect(world.a_to_b).expect("it is connected");
    world.down();
    let World { a, b, .. } = world;
    let mut again = connected(a, b);
    let op = again.a.write(&again.local, 0, &again.remote, 0, 64, &none());
    again.succeeds(op);
}

#[test]
fn both_that_connect_at_once_are_one_peer() {
    let config = configs("tcp");
    let (a, b) =
        (Endpoint::open(&config()).expect("an endpoint"), Endpoint::open(&config()).expect("an endpoint"));
    b.connect(a.address()).expect("it begins");
    let mut world = connected(a, b);
    let op = world.a.write(&world.local, 0, &world.remote, 0, 64, &none());
    world.succeeds(op);
    assert_eq!(world.a.info().expect("information").peers, 1);
}

#[test]
fn shutdown_lets_operations_end() {
    let mut world = world("tcp");
    let op = world.a.write(&world.local, 0, &world.remote, 0, 1024, &none()).expect("it is accepted");
    world.a.shutdown(Duration::from_secs(1)).expect("it is open");
    let done = world.status(op);
    assert!(matches!(done, Status::Ok | Status::Closed | Status::Canceled), "{done:?}");
}

#[test]
fn wrong_arguments_are_refused() {
    let world = world("tcp");
    let (a, local, remote) = (&world.a, &world.local, &world.remote);
    let status = |result: Result<Op>| result.expect_err("it is refused").status;
    assert_eq!(status(a.write(local, u64::MAX, remote, 0, 1, &none())), Status::Range);
    assert_eq!(status(a.read(local, 0, remote, 1000, 100, &none())), Status::Range);
    assert_eq!(status(a.write(&world.theirs, 0, remote, 0, 1, &none())), Status::Handle);
    assert_eq!(status(a.send(world.b_to_a, b"", &none())), Status::Handle);
    assert_eq!(status(a.expect(&[], &none())), Status::Limit);
    assert_eq!(a.connect(b"no address").expect_err("it is refused").status, Status::Format);
    assert_eq!(a.import(world.a_to_b, b"").expect_err("it is refused").status, Status::Format);
    assert_eq!(local.read_at(1020, &mut [0; 8]).expect_err("it is refused").status, Status::Range);
}
