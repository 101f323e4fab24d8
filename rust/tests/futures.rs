//! What wakers may do: own futures of the dispatcher that they are dropped by, and panic.
#![cfg(feature = "futures")]

use futures_core::Stream;
use libweft::futures::{Completions, Dispatcher, OpFuture};
use libweft::testing::{world, World};
use libweft::*;
use std::future::Future;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// A waker of a task that owns a future, as an executor's may.
struct Owner(#[allow(dead_code)] Mutex<Option<OpFuture>>);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker of the test");
    }
}

#[derive(Default)]
struct Counts(AtomicU64);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll(future: &mut OpFuture, waker: &Waker) -> bool {
    Pin::new(future).poll(&mut Context::from_waker(waker)).is_ready()
}

fn write(world: &World, dispatcher: &Dispatcher) -> OpFuture {
    let submit = |options: &OpOptions| world.a.write(&world.local, 0, &world.remote, 0, 64, options);
    dispatcher.submit(OpOptions::new(), submit).expect("accepted")
}

/// Runs what may deadlock in a thread, which is left behind if it does.
fn ends(what: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    std::thread::spawn(move || {
        what();
        let _ = done.send(());
    });
    assert!(ended.recv_timeout(Duration::from_secs(60)).is_ok(), "a deadlock");
}

#[test]
fn waker_that_is_replaced_may_own_a_future_of_the_same_dispatcher() {
    ends(|| {
        let world = world().expect("a world");
        let dispatcher = Dispatcher::new(&world.a.create_queue(0).expect("a queue")).expect("a dispatcher");
        let owner = || Waker::from(Arc::new(Owner(Mutex::new(Some(write(&world, &dispatcher))))));
        let mut stream: Completions = dispatcher.completions();
        let mut next = |waker: &Waker| match Pin::new(&mut stream).poll_next(&mut Context::from_waker(waker))
        {
            Poll::Pending => {}
            Poll::Ready(got) => panic!("{got:?}"),
        };
        next(&owner());
        next(Waker::noop());
        let mut future = write(&world, &dispatcher);
        assert!(!poll(&mut future, &owner()));
        assert!(!poll(&mut future, Waker::noop()));
        dispatcher.block_on(future).expect("it ends");
    });
}

#[test]
fn waker_that_panics_keeps_no_other_from_being_called() {
    let world = world().expect("a world");
    let queue = world.a.create_queue(0).expect("a queue");
    let dispatcher = Dispatcher::new(&queue).expect("a dispatcher");
    let counts = Arc::new(Counts::default());
    let mut futures: Vec<OpFuture> = (0..8).map(|_| write(&world, &dispatcher)).collect();
    for (i, future) in futures.iter_mut().enumerate() {
        let waker = if i % 2 == 0 { Waker::from(Arc::new(Panics)) } else { Waker::from(counts.clone()) };
        assert!(!poll(future, &waker));
    }
    // All are there before the first is taken, so that one dispatch wakes all.
    let there = || world.a.statistics().expect("statistics").completions.iter().sum::<u64>() >= 8;
    while !there() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let panicked = catch_unwind(AssertUnwindSafe(|| dispatcher.dispatch())).is_err();
    assert_eq!((panicked, counts.0.load(Ordering::Relaxed)), (true, 4));
    futures.into_iter().for_each(|future| drop(dispatcher.block_on(future).expect("it ends")));
}

#[test]
fn failed_connect_has_the_reason_and_the_number() {
    let a = Endpoint::open(&testing::config()).expect("an endpoint");
    let gone = Endpoint::open(&testing::config()).expect("an endpoint").address().to_vec();
    let dispatcher = Dispatcher::new(&a.queue()).expect("a dispatcher");
    let connect = dispatcher.connect(&a, &gone, OpOptions::new()).expect("it begins");
    let peer = connect.peer();
    let error = dispatcher.block_on(connect).unwrap_err();
    let reason = a.peer_reason(peer).expect("it is known");
    assert!(!reason.is_empty() && error.message.contains(&reason), "{error}");
    assert_eq!((error.status, error.provider_errno), (Status::Unreachable, libc::ECONNREFUSED));
}

#[test]
fn queue_has_one_dispatcher_at_a_time() {
    let world = world().expect("a world");
    let first = Dispatcher::new(&world.a.queue()).expect("a dispatcher");
    let refused = Dispatcher::new(&world.a.queue()).unwrap_err();
    assert_eq!(refused.status, Status::Busy);
    Dispatcher::new(&world.a.create_queue(0).expect("a queue")).expect("of another queue");
    drop(first);
    Dispatcher::new(&world.a.queue()).expect("the first is gone");
}

#[test]
fn list_with_a_completion_for_each_peer_is_no_future_and_loses_none() {
    let world = world().expect("a world");
    let c = Endpoint::open(&testing::config()).expect("an endpoint");
    let theirs = c.register(vec![0; 4096]).expect("memory");
    let to_c = world.a.connect(c.address()).expect("a connect");
    let remote = world.a.import(to_c, &theirs.export().expect("a descriptor")).expect("a memory");
    let entry = |remote| ListEntry {
        local: Some(&world.local),
        remote: Some(remote),
        len: 512,
        ..ListEntry::default()
    };
    let entries = [entry(&world.remote), entry(&remote)];
    let queue = world.a.create_queue(0).expect("a queue");
    let dispatcher = Dispatcher::new(&queue).expect("a dispatcher");
    let each = OpOptions::new().complete_each_peer();
    let refused = dispatcher.submit(each, |options| world.a.write_list(&entries, options)).unwrap_err();
    assert_eq!(refused.status, Status::Invalid);
    assert!(refused.message.contains("completions"), "{}", refused.message);

    world.a.write_list(&entries, &each.queue(&queue).user_data(7)).expect("accepted");
    let mut peers = Vec::new();
    let mut stream = dispatcher.completions();
    while peers.len() < 2 {
        let next = std::future::poll_fn(|cx| Pin::new(&mut stream).poll_next(cx));
        let completion = dispatcher.block_on(next).expect("the endpoint is open");
        let done = completion.done().expect("of the list");
        done.result().expect("a success");
        assert_eq!(done.user_data, 7);
        peers.push(done.peer.expect("of one peer"));
    }
    assert_ne!(peers[0], peers[1]);
}
