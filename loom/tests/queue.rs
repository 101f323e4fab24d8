//! The completion queue: a thread that sleeps, or has armed the queue, is signalled by a publish.

use loom::sync::Arc;
use loom::thread;
use std::mem::MaybeUninit;
use std::time::Duration;
use weft_loom::sync::Event;
use weft_loom::transfer::completion::Completion;
use weft_loom::transfer::queue::{Arm, Queue};

fn take(queue: &Queue) -> usize {
    queue.poll(&mut [MaybeUninit::uninit(); 2])
}

fn publishes(queue: &Arc<Queue>, count: u32) -> thread::JoinHandle<()> {
    let queue = queue.clone();
    thread::spawn(move || {
        for i in 0..count {
            assert!(queue.reserve(1), "there is room");
            queue.publish(Completion(i));
        }
    })
}

/// With this many voluntary thread switches, where exploring all would take too long.
fn bounded(most: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(most);
    model.check(test);
}

fn sleep_until(queue: &Queue, wanted: usize) {
    let mut taken = 0;
    while taken < wanted {
        match take(queue) {
            0 => queue.sleep(Duration::MAX),
            some => taken += some,
        }
    }
}

#[test]
fn sleeping_thread_is_woken() {
    loom::model(|| {
        let queue = Arc::new(Queue::new(2).expect("there is memory"));
        let publisher = publishes(&queue, 1);
        sleep_until(&queue, 1);
        publisher.join().unwrap();
        assert!(!queue.in_use());
    });
}

#[test]
fn sleeping_thread_is_woken_again() {
    bounded(3, || {
        let queue = Arc::new(Queue::new(2).expect("there is memory"));
        let publisher = publishes(&queue, 2);
        sleep_until(&queue, 2);
        publisher.join().unwrap();
    });
}

#[test]
fn each_of_two_sleepers_gets_one() {
    bounded(2, || {
        let queue = Arc::new(Queue::new(2).expect("there is memory"));
        let publisher = publishes(&queue, 2);
        let of_other = queue.clone();
        let other = thread::spawn(move || {
            while of_other.poll(&mut [MaybeUninit::uninit()]) == 0 {
                of_other.sleep(Duration::MAX);
            }
        });
        while queue.poll(&mut [MaybeUninit::uninit()]) == 0 {
            queue.sleep(Duration::MAX);
        }
        other.join().unwrap();
        publisher.join().unwrap();
    });
}

#[test]
fn sleeping_thread_is_woken_by_the_end() {
    loom::model(|| {
        let queue = Arc::new(Queue::new(2).expect("there is memory"));
        let closing = queue.clone();
        let closer = thread::spawn(move || closing.interrupt(true));
        queue.sleep(Duration::MAX);
        closer.join().unwrap();
    });
}

/// Acts as a caller with an event loop: polls until the queue is empty, arms, waits.
fn arm_until(queue: &Queue, wanted: usize) {
    let mut taken = 0;
    while taken < wanted {
        taken += take(queue);
        if taken < wanted && matches!(queue.arm(), Ok(Arm::Armed)) {
            Event.wait(&mut Vec::new(), Duration::MAX);
        }
    }
}

#[test]
fn armed_descriptor_is_signalled() {
    loom::model(|| {
        let queue = Arc::new(Queue::new(2).expect("there is memory"));
        let publisher = publishes(&queue, 1);
        arm_until(&queue, 1);
        publisher.join().unwrap();
    });
}

#[test]
fn rearmed_descriptor_is_signalled_again() {
    bounded(3, || {
        let queue = Arc::new(Queue::new(2).expect("there is memory"));
        let publisher = publishes(&queue, 2);
        arm_until(&queue, 2);
        publisher.join().unwrap();
    });
}

#[test]
fn two_publishers_signal_the_armed_poller() {
    bounded(2, || {
        let queue = Arc::new(Queue::new(2).expect("there is memory"));
        let publishers = [publishes(&queue, 1), publishes(&queue, 1)];
        arm_until(&queue, 2);
        publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
    });
}

/// `publish` itself asserts that there is space.
#[test]
fn one_place_is_reserved_once() {
    loom::model(|| {
        let queue = Arc::new(Queue::new(1).expect("there is memory"));
        let publishes = |queue: &Queue| {
            let room = queue.reserve(1);
            if room {
                queue.publish(Completion(0));
            }
            usize::from(room)
        };
        let of_other = queue.clone();
        let other = thread::spawn(move || publishes(&of_other));
        let published = publishes(&queue) + other.join().unwrap();
        assert_eq!((published, take(&queue), queue.in_use()), (1, 1, false));
    });
}

#[test]
fn refused_reservation_takes_no_place_from_another() {
    loom::model(|| {
        let queue = Arc::new(Queue::new(2).expect("there is memory"));
        assert!(queue.reserve(1));
        let other = queue.clone();
        let large = thread::spawn(move || assert!(!other.reserve(2), "there is one"));
        assert!(queue.reserve(1), "there is one");
        large.join().unwrap();
    });
}
