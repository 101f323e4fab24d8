//! A caller's mistake is an error with a message; and the end of a peer ends its operations.

use libweft::testing::{config, wait, wait_for, world};
use libweft::*;
use std::time::Duration;

fn status<T>(result: Result<T>) -> Status {
    let Err(error) = result else { return Status::Ok };
    assert!(!error.message.is_empty());
    for name in ["weft_", "WEFT_", "_ns ", "in flags"] {
        assert!(!error.message.contains(name), "a name of C: {error}");
    }
    assert_eq!(error.category(), error.status.category());
    error.status
}

#[test]
fn wrong_arguments_are_refused() {
    let world = world().expect("a world");
    let (a, local, remote) = (&world.a, &world.local, &world.remote);
    let none = OpOptions::new();
    assert_eq!(status(a.register(Vec::new())), Status::Invalid);
    assert_eq!(status(a.register_with(Vec::new(), &MemoryArgs::new())), Status::Invalid);
    assert_eq!(status(a.alloc(0, None, &MemoryArgs::new())), Status::Limit);
    assert_eq!(status(a.alloc(1, Some(64), &MemoryArgs::new())), Status::Invalid);
    assert_eq!(status(a.write(local, u64::MAX, remote, 0, 1, &none)), Status::Range);
    assert_eq!(status(a.write(local, 0, remote, u64::MAX, u64::MAX, &none)), Status::Range);
    assert_eq!(status(local.read_at(u64::MAX, &mut [0; 8])), Status::Range);
    assert_eq!(status(local.write_at(local.len() - 4, &[0; 8])), Status::Range);
    let pages = Pages { page_len: 4096, page_count: 2, ..Pages::default() };
    let wrong = Pages { local: PageSide { pages: Some(&[0]), ..PageSide::default() }, ..pages };
    assert_eq!(status(a.write_pages(local, remote, &wrong, &none)), Status::Invalid);
    let wrong = Pages { page_len: u64::MAX, ..pages };
    assert_eq!(status(a.read_pages(local, remote, &wrong, &none)), Status::Limit);
    let far = PageSide { page_stride: u64::MAX, offset: u64::MAX, ..PageSide::default() };
    assert_eq!(status(a.read_pages(local, remote, &Pages { remote: far, ..pages }, &none)), Status::Range);
    assert_eq!(status(a.write_list(&[], &none)), Status::Invalid);
    assert_eq!(status(a.write_list(&[ListEntry::default()], &none)), Status::Handle);
    assert_eq!(status(a.send(world.a_to_b, &vec![0; MESSAGE_MAX + 1], &none)), Status::Limit);
    assert_eq!(status(a.expect(&[], &none)), Status::Limit);
    assert_eq!(status(a.connect(b"")), Status::Format);
    assert_eq!(status(a.import(world.a_to_b, b"")), Status::Format);
    assert_eq!(status(a.rail_info(64)), Status::Range);
    assert_eq!(status(a.create_queue(1)), Status::Limit);
    assert_eq!(status(a.fetch_add(remote, 4, 1, &none)), Status::Invalid);
    assert_eq!(status(Endpoint::open(&config().workers(65))), Status::Limit);
    assert_eq!(status(Endpoint::open(&config().encrypt())), Status::Invalid);
    assert_eq!(status(Endpoint::open(&config().liveness(Some(Duration::ZERO)))), Status::Limit);
    let local_only = a.register_with(vec![vec![0; 64]], &MemoryArgs::new().access(Access::Local));
    assert_eq!(status(local_only.expect("a memory").export()), Status::Invalid);
}

#[test]
fn unsupported_options_are_refused() {
    let world = world().expect("a world");
    let (a, local, remote, peer) = (&world.a, &world.local, &world.remote, world.a_to_b);
    let counter = a.create_counter().expect("a counter");
    let watch = a.create_watch().expect("a watch");
    let send = |options: OpOptions| status(a.send(peer, b"", &options));
    let write = |options: OpOptions| status(a.write(local, 0, remote, 0, 1, &options));
    assert_eq!(send(OpOptions::new().notify(1)), Status::Unsupported);
    assert_eq!(send(OpOptions::new().latency()), Status::Unsupported);
    assert_eq!(send(OpOptions::new().counter(counter.id())), Status::Invalid);
    assert_eq!(send(OpOptions::new().done_watch(&watch, 1)), Status::Invalid);
    assert_eq!(send(OpOptions::new().timeout(Duration::MAX)), Status::Limit);
    assert_eq!(write(OpOptions::new().complete_each_peer()), Status::Unsupported);
    assert_eq!(write(OpOptions::new().count_pages()), Status::Invalid);
    assert_eq!(write(OpOptions::new().notify_data(b"x")), Status::Invalid);
    assert_eq!(write(OpOptions::new().notify_failure()), Status::Invalid);
    assert_eq!(write(OpOptions::new().notify(1).notify_data(&[0; NOTIFY_DATA_MAX + 1])), Status::Limit);
    // A counter of our own, not of the peer.
    assert_eq!(write(OpOptions::new().counter(counter.id())), Status::Handle);
    assert_eq!(
        status(a.connect_with(world.b.address(), &OpOptions::new().queue(&a.queue()))),
        Status::Invalid
    );
}

#[test]
fn objects_of_another_endpoint_are_refused() {
    let world = world().expect("a world");
    let (a, b, local, remote, theirs) = (&world.a, &world.b, &world.local, &world.remote, &world.theirs);
    let none = OpOptions::new();
    assert_eq!(status(a.write(theirs, 0, remote, 0, 1, &none)), Status::Handle);
    assert_eq!(status(b.write(theirs, 0, remote, 0, 1, &none)), Status::Handle);
    let (queue, watch) = (b.create_queue(16).expect("a queue"), b.create_watch().expect("a watch"));
    assert_eq!(status(a.write(local, 0, remote, 0, 1, &none.queue(&queue))), Status::Handle);
    assert_eq!(status(a.write(local, 0, remote, 0, 1, &none.start_watch(&watch, 1))), Status::Handle);
    let entry = ListEntry { local: Some(theirs), remote: Some(remote), len: 1, ..ListEntry::default() };
    assert_eq!(status(a.write_list(&[entry], &none)), Status::Handle);
    let counter = b.create_counter().expect("a counter");
    assert_eq!(status(a.expect(&[(counter.id(), 1)], &none)), Status::Handle);
    let pages = Pages { page_len: 1, page_count: 1, ..Pages::default() };
    let prepared = a.prepare_pages(local, remote, &pages, &none).expect("it is checked");
    assert_eq!(status(b.write_prepared(&prepared, &none)), Status::Handle);
}

#[test]
fn disallowed_access_direction_is_refused() {
    let world = world().expect("a world");
    let (a, b, local) = (&world.a, &world.b, &world.local);
    let none = OpOptions::new();
    let reached = |access| {
        let memory = b.register_with(vec![vec![0; 64]], &MemoryArgs::new().access(access)).expect("a memory");
        let remote = a.import(world.a_to_b, &memory.export().expect("a descriptor")).expect("it is imported");
        let results = [a.write(local, 0, &remote, 0, 1, &none), a.read(local, 0, &remote, 0, 1, &none)];
        results.map(status)
    };
    assert_eq!(reached(Access::RemoteRead), [Status::RemoteAccess, Status::Ok]);
    assert_eq!(reached(Access::RemoteWrite), [Status::Ok, Status::RemoteAccess]);
    assert_eq!(reached(Access::Granted), [Status::Invalid; 2]);
}

#[test]
fn deregister_returns_memory_that_is_in_use() {
    let world = world().expect("a world");
    let pages = Pages { page_len: 1, page_count: 1, ..Pages::default() };
    let prepared = world.a.prepare_pages(&world.local, &world.remote, &pages, &OpOptions::new());
    let (memory, error) = world.local.deregister().expect_err("prepared geometry uses it");
    assert_eq!(error.status, Status::Busy);
    drop(prepared);
    assert_eq!(memory.deregister().expect("nothing uses it").len(), 1);
}

#[test]
fn operations_end_when_their_peer_disappears() {
    let world = world().expect("a world");
    let (a, local, remote) = (&world.a, &world.local, &world.remote);
    let watch = a.create_watch().expect("a watch");
    // They wait for a watch that nothing sets.
    let waits = OpOptions::new().start_watch(&watch, 1);
    let ops: Vec<Op> =
        (0..8).map(|_| a.write(local, 0, remote, 0, 4096, &waits).expect("it is accepted")).collect();
    drop((world.theirs, world.b));
    let (mut ended, mut down) = (Vec::new(), None);
    wait(&a.queue(), |completion| {
        if let Completion::PeerDown(ended) = &completion {
            down = Some(*ended);
        }
        ended.extend(completion.done().copied());
        down.is_some().then_some(())
    })
    .expect("the peer is down");
    let down = down.expect("it was seen");
    assert!(matches!(down.status, Status::PeerClosed | Status::PeerLost), "{down:?}");
    assert_eq!(ended.iter().map(|done| done.op).collect::<Vec<_>>().len(), ops.len());
    assert!(ended.iter().all(|done| done.status.category() == Category::Peer && done.result().is_err()));
    assert!(matches!(
        status(a.write(local, 0, remote, 0, 1, &OpOptions::new())),
        Status::PeerClosed | Status::PeerLost
    ));
    assert_eq!(status(a.send(world.a_to_b, b"", &OpOptions::new())), Status::Handle);
}

#[test]
fn operation_ends_at_its_deadline() {
    let a = Endpoint::open(&config()).expect("an endpoint");
    let counter = a.create_counter().expect("a counter");
    let options = OpOptions::new().timeout(Duration::from_millis(20));
    let op = a.expect(&[(counter.id(), 1)], &options).expect("it is accepted");
    let done = wait_for(&a, op).expect("it completes");
    assert_eq!(done.done().map(|done| done.status), Some(Status::TimedOut));
}
