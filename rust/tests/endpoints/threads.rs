//! Several threads with the same endpoints.

use super::world::*;
use libweft::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const EACH: u64 = 2;

/// Polls `b`, and `a` without taking, until the others have ended.
fn serve(world: &World, over: &AtomicBool) {
    while !over.load(Ordering::Acquire) {
        let _ = world.b.queue().poll();
        thread::yield_now();
    }
}

/// What each thread does, with a queue of its own, while another polls the peer.
fn together(threads: usize, work: impl Fn(&World, usize, &Queue) + Sync) -> World {
    let world = world("tcp");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let served = scope.spawn(|| serve(&world, &over));
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                let (world, work) = (&world, &work);
                scope.spawn(move || {
                    let queue = world.a.create_queue(16).expect("a queue");
                    work(world, number, &queue)
                })
            })
            .collect();
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        over.store(true, Ordering::Release);
        served.join().expect("no panic");
        ended.into_iter().for_each(|worker| worker.expect("no panic"));
    });
    world
}

fn await_ok(queue: &Queue, op: Result<Op>) {
    let op = op.expect("it is accepted");
    loop {
        if let Some(completion) = queue.poll().expect("it is open") {
            assert_eq!(completion.op(), Some(op));
            return assert_eq!(completion.done().map(|done| done.status), Some(Status::Ok));
        }
        thread::yield_now();
    }
}

#[test]
fn threads_submit_and_poll_at_the_same_time() {
    let world = together(2, |world, number, queue| {
        for round in 0..EACH {
            let at = number as u64 * 256 + round * 64;
            let op = world.a.write(&world.local, at, &world.remote, at, 64, &none().queue(queue));
            await_ok(queue, op);
        }
    });
    let theirs = world.theirs();
    assert!((0..2).all(|number| theirs[number * 256..][..EACH as usize * 64].iter().all(|byte| *byte == 1)));
}

#[test]
fn bytes_are_read_and_written_beside_transfers() {
    together(2, |world, number, queue| match number {
        0 => (0..EACH).for_each(|_| {
            await_ok(queue, world.a.write(&world.local, 0, &world.remote, 0, 256, &none().queue(queue)));
            await_ok(queue, world.a.read(&world.local, 0, &world.remote, 0, 256, &none().queue(queue)));
        }),
        _ => {
            for round in 0..4 * EACH {
                let mut some = [0; 64];
                world.local.write_at(round * 8, &[1; 24]).expect("it is in the memory");
                world.theirs.read_at(round * 8, &mut some).expect("it is in the memory");
                world.theirs.write_at(128, &[2; 16]).expect("it is in the memory");
                assert!(some.iter().all(|byte| matches!(byte, 1 | 2)));
            }
        }
    });
}

#[test]
fn atomics_of_threads_lose_no_count() {
    let previous = AtomicU64::new(0);
    let world = together(2, |world, _, queue| {
        for _ in 0..EACH {
            let op = world.a.fetch_add(&world.remote, world.aligned, 1, &none().queue(queue));
            await_ok(queue, op);
            previous.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut word = [0; 8];
    world.theirs.read_at(world.aligned, &mut word).expect("it is in the memory");
    let began = u64::from_ne_bytes([2; 8]);
    assert_eq!(u64::from_ne_bytes(word) - began, previous.load(Ordering::Relaxed));
}

#[test]
fn one_thread_submits_what_another_takes() {
    let world = world("tcp");
    let queue = world.a.create_queue(16).expect("a queue");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| serve(&world, &over));
        scope.spawn(|| {
            for _ in 0..EACH {
                world.a.send(world.a_to_b, &[3; 100], &none().queue(&queue)).expect("it is accepted");
            }
        });
        let mut taken = 0;
        while taken < EACH {
            taken += u64::from(queue.poll().expect("it is open").is_some());
            thread::yield_now();
        }
        over.store(true, Ordering::Release);
    });
}

#[test]
fn cancel_of_one_thread_meets_the_end_in_another() {
    together(2, |world, number, queue| {
        if number > 0 {
            return;
        }
        for _ in 0..EACH {
            let options = none().queue(queue);
            let op = world.a.write(&world.local, 0, &world.remote, 0, 128, &options).expect("it is accepted");
            thread::scope(|scope| {
                scope.spawn(|| {
                    let _ = world.a.cancel(op);
                });
                let done = loop {
                    if let Some(completion) = queue.poll().expect("it is open") {
                        break completion.done().copied().expect("of an operation");
                    }
                    thread::yield_now();
                };
                assert_eq!(done.op, op);
                assert!(matches!(done.status, Status::Ok | Status::Canceled), "{done:?}");
            });
        }
    });
}

#[test]
fn endpoint_goes_while_other_threads_use_it() {
    let world = world("tcp");
    let World { local, theirs, remote, a, b, a_to_b, .. } = world;
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..4 {
                let _ = a.write(&local, 0, &remote, 0, 64, &none());
                let _ = a.send(a_to_b, b"more", &none());
                let _ = a.queue().poll();
            }
        });
        scope.spawn(|| drop((theirs, b)));
        let _ = a.shutdown(std::time::Duration::ZERO);
    });
}

#[test]
fn memories_come_and_go_in_threads() {
    together(2, |world, _, queue| {
        for _ in 0..EACH {
            let memory = world.a.register(vec![8; 64]).expect("a memory");
            let op = world.a.write(&memory, 0, &world.remote, 0, 64, &none().queue(queue));
            await_ok(queue, op);
            drop(memory);
            world.a.reclaim().expect("it can be asked");
        }
    });
}
