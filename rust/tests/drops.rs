//! Everything is dropped in every order while transfers run. Memory freed under a worker shows as
//! wrong bytes, or in `valgrind`, which is run by hand:
//!
//!     valgrind $(ls -t target/debug/deps/drops-* | head -1)

use libweft::testing::{config, wait_for, world, World};
use libweft::*;
use std::time::Duration;

const BYTES: usize = 8 << 20;

/// What a test drops, and the writes that run meanwhile.
struct Running {
    world: World,
    local: Memory,
    theirs: Memory,
    remote: RemoteMemory,
    prepared: Prepared,
    queue: Queue,
    counter: Counter,
}

fn running(seed: u64) -> Result<Running> {
    let world = world()?;
    let (a, b) = (&world.a, &world.b);
    let (local, theirs) = (a.register(vec![1; BYTES])?, b.register(vec![2; BYTES])?);
    let remote = a.import(world.a_to_b, &theirs.export()?)?;
    let queue = a.create_queue(64)?;
    let pages = Pages { page_len: 4096, page_count: 64, ..Pages::default() };
    let prepared = a.prepare_pages(&local, &remote, &pages, &OpOptions::new())?;
    let counter = b.create_counter()?;
    let options = OpOptions::new().queue(&queue);
    for _ in 0..4 + seed % 4 {
        a.write(&local, 0, &remote, 0, BYTES as u64, &options)?;
        a.read(&local, 0, &remote, 0, BYTES as u64 / 2, &OpOptions::new())?;
        a.write_prepared(&prepared, &OpOptions::new().counter(counter.id()))?;
    }
    a.send(world.a_to_b, &[3; 1000], &options)?;
    Ok(Running { world, local, theirs, remote, prepared, queue, counter })
}

/// A permutation chosen by a seed.
fn shuffled<T>(mut items: Vec<T>, mut seed: u64) -> Vec<T> {
    for i in (1..items.len()).rev() {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        items.swap(i, (seed >> 33) as usize % (i + 1));
    }
    items
}

#[test]
fn everything_drops_in_every_order_while_transfers_run() {
    for seed in 0..24 {
        let Running { world, local, theirs, remote, prepared, queue, counter } =
            running(seed).expect("a world");
        let World { a, b, local: other, theirs: another, remote: third, .. } = world;
        let drops: Vec<Box<dyn FnOnce()>> = vec![
            Box::new(move || drop(local)),
            Box::new(move || drop(theirs)),
            Box::new(move || drop(remote)),
            Box::new(move || drop(prepared)),
            Box::new(move || drop(queue)),
            Box::new(move || drop(counter)),
            Box::new(move || drop(a)),
            Box::new(move || drop(b)),
            Box::new(move || drop((other, another, third))),
        ];
        for drop in shuffled(drops, seed) {
            drop();
        }
    }
}

#[test]
fn dropped_memory_keeps_its_bytes_until_its_transfers_end() {
    let running = running(0).expect("a world");
    let (a, b) = (&running.world.a, &running.world.b);
    let prepared = running.prepared;
    drop(running.local);
    // The prepared geometry holds it.
    assert_eq!(a.reclaim().expect("it can be asked"), 1);
    let op = a.write_prepared(&prepared, &OpOptions::new()).expect("its memory is there");
    let done = wait_for(a, op).expect("it completes");
    assert_eq!(done.done().map(|done| done.status), Some(Status::Ok));
    let mut bytes = vec![0; 64 * 4096];
    running.theirs.read_at(0, &mut bytes).expect("they are there");
    assert!(bytes.iter().all(|byte| matches!(byte, 1 | 2)), "bytes of freed memory arrived");
    drop(prepared);
    while a.reclaim().expect("it can be asked") > 0 {
        let _ = a.queue().wait(Duration::from_millis(10));
    }
    drop(b.clone());
}

#[test]
fn dropped_memory_is_not_freed_while_peers_write() {
    let running = running(1).expect("a world");
    let (a, b) = (&running.world.a, &running.world.b);
    drop(running.theirs); // `a` writes to it.
    let more: Vec<Vec<u8>> = (0..16).map(|_| vec![9; BYTES / 16]).collect();
    for _ in 0..4 {
        // Allocations that would reuse freed memory.
        assert!(
            more.iter().all(|bytes| bytes.iter().all(|byte| *byte == 9)),
            "a late write hit other memory"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(b.reclaim().expect("it can be asked"), 0);
    let late = a.write(&running.local, 0, &running.remote, 0, 1, &OpOptions::new());
    let status = match late {
        Err(error) => error.status,
        Ok(op) => wait_for(a, op).expect("it completes").done().expect("an operation").status,
    };
    assert_eq!(status, Status::MemoryGone);
}

#[test]
fn objects_of_a_closed_endpoint_return_closed() {
    let Running { world, local, remote, queue, counter, prepared, .. } = running(2).expect("a world");
    let World { a, b, a_to_b, .. } = world;
    let event = queue.event().expect("worker threads");
    let own = a.queue();
    drop(a);
    local.write_at(0, b"still ours").expect("the bytes are valid");
    assert_eq!(local.deregister().expect("nothing uses it")[0][..10], *b"still ours");
    assert_eq!(b.create_counter().and_then(|counter| counter.read()).expect("`b` is open"), 0);
    while own.poll().is_ok() {}
    while queue.poll().is_ok() {}
    assert_eq!(queue.wait(Duration::MAX).expect_err("it is over").status, Status::Closed);
    assert_eq!(event.arm().expect_err("it is over").status, Status::Closed);
    drop((remote, prepared, counter, event, own, a_to_b));
}

#[test]
fn waiting_thread_wakes_when_its_endpoint_is_dropped() {
    let a = Endpoint::open(&config()).expect("an endpoint");
    let queue = a.queue();
    let waiting = std::thread::spawn(move || queue.wait(Duration::MAX));
    std::thread::sleep(Duration::from_millis(50));
    drop(a);
    let status = waiting.join().expect("no panic").expect_err("it is over").status;
    assert_eq!(status, Status::Closed);
}

#[test]
fn message_outlives_queue_and_endpoint() {
    let world = world().expect("a world");
    world.a.send(world.a_to_b, b"kept", &OpOptions::new()).expect("it is sent");
    let message = world.message_b().expect("it arrives");
    drop(world);
    assert_eq!(&message[..], b"kept");
}

/// All types can be used by all threads.
#[test]
fn types_are_send_and_sync() {
    fn check<T: Send + Sync>() {}
    check::<(Endpoint, Memory, RemoteMemory, Prepared, Queue, QueueEvent, Counter, Watch)>();
    check::<(Completion, Message, Notification, Error, Op, Peer, EndpointConfig)>();
}
