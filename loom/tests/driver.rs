//! A worker's thread and callers take turns: nothing that is pushed, or that peers send, is left
//! unhandled.

use loom::sync::atomic::{fence, AtomicBool, AtomicUsize, Ordering};
use loom::sync::Arc;
use loom::thread;
use std::time::Duration;
use weft_loom::driver::Driver;
use weft_loom::ids::{Hold, OpId};
use weft_loom::mailbox::Mailbox;

const fn op(number: u64) -> Hold {
    Hold::on(OpId::new(number).unwrap())
}

/// What a peer shares with a rail: what it sent, and whether it must ring.
struct Line {
    sent: AtomicUsize,
    armed: AtomicBool,
}

/// A worker with one rail.
struct Worker {
    taken: Vec<u64>,
    received: usize,
}

struct Side {
    driver: Driver<Worker>,
    mailbox: Mailbox<u64>,
    line: Line,
    /// All work so far: pushed, and sent by the peer.
    all: (usize, usize),
}

impl Side {
    fn new(all: (usize, usize)) -> Arc<Side> {
        Arc::new(Side {
            all,
            driver: Driver::new(Worker { taken: Vec::new(), received: 0 }),
            mailbox: Mailbox::new(2).unwrap(),
            line: Line { sent: AtomicUsize::new(0), armed: AtomicBool::new(false) },
        })
    }

    /// A pass; true if there was work.
    fn step(&self, worker: &mut Worker) -> bool {
        self.line.armed.store(false, Ordering::Relaxed);
        let (before, sent) = (worker.taken.len(), self.line.sent.load(Ordering::Acquire));
        if !self.mailbox.is_empty() {
            let transfers = 0..self.mailbox.transfers();
            transfers.for_each(|_| worker.taken.extend(self.mailbox.next_transfer().map(|hold| hold.give().get())));
            worker.taken.extend(self.mailbox.take_commands());
        }
        let busy = worker.taken.len() != before || worker.received != sent;
        worker.received = sent;
        busy
    }

    /// Asks the peer to ring; false if something has arrived already.
    fn arm(&self, worker: &Worker) -> bool {
        self.line.armed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.line.sent.load(Ordering::Acquire) == worker.received
    }

    fn is_over(&self, worker: &Worker) -> bool {
        (worker.taken.len(), worker.received) == self.all
    }

    /// The thread's life, until everything has arrived.
    fn run(&self) -> Vec<u64> {
        let mut worker = self.driver.take(&self.mailbox, || ());
        loop {
            if self.step(&mut worker) {
                continue;
            }
            if self.is_over(&worker) {
                return worker.taken.clone();
            }
            if self.arm(&worker) {
                self.driver.sleep(worker, &self.mailbox, &mut Vec::new(), |_| Duration::MAX);
                worker = self.driver.take(&self.mailbox, || ());
            }
        }
    }

    /// A caller makes a pass if it may. (A thread that slept on when everything has arrived would
    /// never end.)
    fn drive(&self, after: impl FnOnce()) {
        let worker = self.driver.enter(&self.mailbox);
        after();
        if let Some(mut worker) = worker {
            self.step(&mut worker);
            self.driver.leave(worker, &self.mailbox, |worker| self.arm(worker) && !self.is_over(worker));
        }
    }

    fn send(&self) {
        self.line.sent.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.line.armed.load(Ordering::Relaxed) && self.line.armed.swap(false, Ordering::Relaxed) {
            self.mailbox.ring();
        }
    }
}

fn bounded(most: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(most);
    model.check(test);
}

#[test]
fn transfer_reaches_the_thread_or_the_caller() {
    bounded(3, || {
        let side = Side::new((1, 0));
        let other = side.clone();
        let caller = thread::spawn(move || other.drive(|| other.mailbox.transfer(op(7)).unwrap()));
        assert_eq!(side.run(), [7]);
        caller.join().unwrap();
    });
}

#[test]
fn frame_sent_while_a_caller_leaves_is_received() {
    bounded(3, || {
        let side = Side::new((0, 1));
        let (one, peer) = (side.clone(), side.clone());
        let caller = thread::spawn(move || one.drive(|| ()));
        let peer = thread::spawn(move || peer.send());
        assert!(side.run().is_empty());
        caller.join().unwrap();
        peer.join().unwrap();
    });
}

#[test]
fn command_pushed_while_a_caller_leaves_is_handled() {
    bounded(3, || {
        let side = Side::new((1, 0));
        let (one, other) = (side.clone(), side.clone());
        let caller = thread::spawn(move || one.drive(|| ()));
        let other = thread::spawn(move || assert!(other.mailbox.try_command(8).is_none()));
        assert_eq!(side.run(), [8]);
        caller.join().unwrap();
        other.join().unwrap();
    });
}
