//! A push to a worker reaches it, asleep or not, or is refused.

use loom::sync::Arc;
use loom::thread;
use std::time::Duration;
use weft_loom::ids::{Hold, OpId};
use weft_loom::mailbox::Mailbox;

const fn op(number: u64) -> Hold {
    Hold::on(OpId::new(number).unwrap())
}

fn bounded(most: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(most);
    model.check(test);
}

/// Acts as a worker: takes what was pushed, and sleeps when there is nothing.
fn take(mailbox: &Mailbox<u64>, wanted: usize) -> Vec<u64> {
    let mut taken = Vec::new();
    while taken.len() < wanted {
        let before = taken.len();
        if !mailbox.is_empty() {
            (0..mailbox.transfers()).for_each(|_| taken.extend(mailbox.next_transfer().map(|hold| hold.give().get())));
            taken.extend(mailbox.take_commands());
        }
        if taken.len() == before {
            mailbox.sleep(&mut Vec::new(), || Duration::MAX);
        }
    }
    taken.sort();
    taken
}

#[test]
fn transfer_wakes_its_worker() {
    loom::model(|| {
        let mailbox = Arc::new(Mailbox::<u64>::new(2).unwrap());
        let pushes = mailbox.clone();
        let submitter = thread::spawn(move || pushes.transfer(op(7)).unwrap());
        assert_eq!(take(&mailbox, 1), [7]);
        submitter.join().unwrap();
    });
}

#[test]
fn command_wakes_its_worker() {
    loom::model(|| {
        let mailbox = Arc::new(Mailbox::<u64>::new(2).unwrap());
        let pushes = mailbox.clone();
        let other = thread::spawn(move || assert!(pushes.try_command(8).is_none()));
        assert_eq!(take(&mailbox, 1), [8]);
        other.join().unwrap();
    });
}

#[test]
fn concurrent_pushes_arrive_once() {
    bounded(2, || {
        let mailbox = Arc::new(Mailbox::<u64>::new(2).unwrap());
        let (first, second) = (mailbox.clone(), mailbox.clone());
        let threads = [
            thread::spawn(move || first.transfer(op(1)).unwrap()),
            thread::spawn(move || assert!(second.try_command(2).is_none())),
        ];
        assert_eq!(take(&mailbox, 2), [1, 2]);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn second_push_wakes_the_worker_again() {
    bounded(3, || {
        let mailbox = Arc::new(Mailbox::<u64>::new(2).unwrap());
        let pushes = mailbox.clone();
        let submitter = thread::spawn(move || {
            pushes.transfer(op(1)).unwrap();
            pushes.transfer(op(2)).unwrap();
        });
        assert_eq!(take(&mailbox, 2), [1, 2]);
        submitter.join().unwrap();
    });
}

/// A worker that ends: one of the two answers a command.
#[test]
fn a_command_is_taken_or_given_back() {
    loom::model(|| {
        let mailbox = Arc::new(Mailbox::<u64>::new(2).unwrap());
        let pushes = mailbox.clone();
        let other = thread::spawn(move || pushes.try_command(9).is_some());
        let mut taken: Vec<u64> = mailbox.take_commands().into();
        taken.extend(mailbox.close());
        assert_eq!(taken.is_empty(), other.join().unwrap());
        assert!(mailbox.try_command(10).is_some());
    });
}

/// The same of a transfer.
#[test]
fn a_transfer_is_taken_by_the_worker_or_its_submitter() {
    loom::model(|| {
        let mailbox = Arc::new(Mailbox::<u64>::new(2).unwrap());
        let drain = |mailbox: &Mailbox<u64>| {
            std::iter::from_fn(|| mailbox.next_transfer()).map(Hold::give).count()
        };
        let pushes = mailbox.clone();
        let other = thread::spawn(move || {
            pushes.transfer(op(7)).unwrap();
            if pushes.is_closed() { drain(&pushes) } else { 0 }
        });
        mailbox.close();
        assert_eq!(drain(&mailbox) + other.join().unwrap(), 1);
    });
}
