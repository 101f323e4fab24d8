//! Calls beside the end of a queue, or of the endpoint.

use super::peers::Begin;
use super::{Endpoint, EndpointConfig};
use crate::status::Status;
use crate::transfer::operation::{Body, To};
use crate::transfer::queue::Queue;
use crate::wire::address::Address;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough for a thread to come to its wait.
const A_WHILE: Duration = Duration::from_millis(300);

fn open(manual: bool) -> Arc<Endpoint> {
    let config = EndpointConfig { fabric: Some("tcp".into()), manual, ..EndpointConfig::default() };
    Endpoint::open(config).expect("it opens")
}

fn poll(endpoint: &Endpoint, queue: &Queue, timeout: Duration) -> Result<i32, Status> {
    let timed = endpoint.wait(queue, &mut [MaybeUninit::uninit()], timeout.as_nanos() as u64);
    timed.map_err(|error| error.status)
}

#[test]
fn thread_that_waits_for_a_destroyed_queue_returns() {
    for manual in [false, true] {
        let endpoint = open(manual);
        let queue = endpoint.create_queue(0).expect("a queue");
        std::thread::scope(|scope| {
            let begun = Instant::now();
            let waiting = scope.spawn(|| poll(&endpoint, &queue, PATIENCE));
            std::thread::sleep(A_WHILE);
            endpoint.retire_queue(&queue).expect("nothing uses it");
            assert_eq!(waiting.join().expect("no panic"), Err(Status::Handle), "manual: {manual}");
            assert!(begun.elapsed() < PATIENCE / 2, "manual: {manual}");
        });
    }
}

/// The caller has found the queue, and another destroys it.
#[test]
fn destroyed_queue_accepts_no_operation() {
    let endpoint = open(false);
    let queue = endpoint.create_queue(0).expect("a queue");
    let places = endpoint.hold_places(&queue, 1).expect("there is room");
    assert_eq!(endpoint.retire_queue(&queue).map_err(|error| error.status), Err(Status::Busy));
    drop(places);
    endpoint.retire_queue(&queue).expect("nothing uses it");
    assert_eq!(endpoint.hold_places(&queue, 1).err().map(|error| error.status), Some(Status::Handle));
    assert_eq!(poll(&endpoint, &queue, Duration::ZERO), Err(Status::Handle));
}

#[test]
fn endpoint_is_closed_once_all_ends_are_published() {
    let endpoint = open(false);
    std::thread::scope(|scope| {
        // As a thread has it that has ended an operation, and not published that.
        let passing = endpoint.core.table.pass();
        let shutdown = scope.spawn(|| endpoint.shutdown(0));
        let until = Instant::now() + A_WHILE;
        while Instant::now() < until {
            assert_eq!(poll(&endpoint, endpoint.queue(), Duration::ZERO), Ok(0));
        }
        drop(passing);
        shutdown.join().expect("no panic").expect("it ends");
    });
    assert_eq!(poll(&endpoint, endpoint.queue(), Duration::ZERO), Err(Status::Closed));
}

/// The phase was checked before it changed.
#[test]
fn connect_beside_a_shutdown_is_refused() {
    let (a, b) = (open(false), open(false));
    a.shutdown(0).expect("it ends");
    let address = Address::decode(b.address()).expect("an address");
    let made = a.core.make_peer(address, 1_000_000_000, Begin::Connecting { user_data: 7 });
    assert_eq!(made.map(drop).map_err(|error| error.status), Err(Status::Closed));
    assert!(a.core.peers.all().is_empty());
}

#[test]
fn transfer_to_a_worker_that_has_ended_keeps_nothing() {
    let endpoint = open(false);
    let queue = endpoint.create_queue(0).expect("a queue");
    assert!(queue.reserve(1));
    let body = || Body::bare(To::Queue(queue.clone()));
    let hold = endpoint.core.table.begin(body, 1, u64::MAX).expect("a slot");
    endpoint.shutdown(0).expect("it ends");
    let others = Arc::strong_count(&queue);
    endpoint.core.dispatch(hold, 1, 1, 0);
    assert_eq!(Arc::strong_count(&queue), others - 1, "the slot is free");
    assert_eq!(poll(&endpoint, &queue, Duration::ZERO), Ok(1));
}
