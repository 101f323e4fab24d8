//! A peer that lies: it names revoked grants, other peers' grants and guessed ones, and continues after every refusal.

use super::grants::{Grant, Grants};
use super::host::HostNic;
use super::tcp::{named, TcpNic};
use super::{Access, Buffer, HostRange, Nic, Posted, Reaped, Rma, Route, Scratch, Segment};
use crate::ids::{GrantToken, MemoryId, PeerId};
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

const LIAR: PeerId = PeerId::numbered(7);
const OTHER: PeerId = PeerId::numbered(8);
const LEN: usize = 1 << 20;
const ROUNDS: u64 = 60;

struct Pair<N> {
    liar: N,
    owner: N,
    route: Route,
    grants: Arc<Grants>,
    source: Vec<u8>,
    target: Vec<u8>,
    descriptor: *mut std::ffi::c_void,
}

fn range(bytes: &[u8]) -> HostRange {
    HostRange { base: bytes.as_ptr() as u64, len: bytes.len() as u64 }
}

fn scratch() -> *mut Scratch {
    NonNull::<Scratch>::dangling().as_ptr()
}

/// Connects a NIC to the owner's, as this peer's.
fn connect<N: Nic>(nic: &mut N, owner: &mut N, peer: PeerId) -> Route {
    let route = nic.insert(owner.address(), Some(peer)).unwrap();
    let (text, room) = ([1u8; 8], [0u8; 8]);
    let whole = |bytes: &[u8; 8]| Buffer {
        address: bytes.as_ptr().cast_mut().cast(),
        len: 8,
        descriptor: null_mut(),
        follows: false,
    };
    // SAFETY: both are there until the message has arrived.
    unsafe {
        assert_eq!(owner.receive(whole(&room), scratch()), Posted::Yes);
        assert_eq!(nic.send(whole(&text), route, scratch()), Posted::Yes);
    }
    let (mut sent, mut received) = (Vec::new(), Vec::<Reaped>::new());
    while sent.is_empty() || received.is_empty() {
        nic.reap(&mut sent);
        owner.reap(&mut received);
    }
    owner.assign_connection(received[0].connection, peer);
    route
}

impl<N: Nic> Pair<N> {
    fn new(mut liar: N, mut owner: N) -> Pair<N> {
        let grants = Arc::new(Grants::default());
        owner.use_grants(grants.clone());
        let (source, target) = (vec![0xee; LEN], vec![0; LEN]);
        let descriptor = liar.register(range(&source), Access::ALL).unwrap().descriptor;
        owner.register(range(&target), Access { granted_only: true, ..Access::ALL }).unwrap();
        let route = connect(&mut liar, &mut owner, LIAR);
        Pair { liar, owner, route, grants, source, target, descriptor }
    }

    fn grant(&self, peer: PeerId, number: u64) -> GrantToken {
        let token = GrantToken::from_parts(0x1234_5678_9abc_def0 ^ number << 8, 1, number).unwrap();
        assert!(self.grants.add(Grant::new(
            token,
            peer,
            0,
            MemoryId::new(1),
            Access::ALL,
            vec![range(&self.target)]
        )));
        token
    }

    fn ask(&mut self, read: bool, key: u64) {
        let segment = Segment {
            local: self.source.as_ptr() as u64,
            remote: self.target.as_ptr() as u64,
            len: LEN as u64,
        };
        let rma = Rma {
            read,
            segments: &[segment],
            descriptor: self.descriptor,
            key,
            immediate: None,
            more: false,
        };
        // SAFETY: both sides' memory outlives the operations, which are awaited.
        assert_eq!(unsafe { self.liar.rma(&rma, self.route, &[scratch()]) }.1, Posted::Yes);
    }

    fn drive(&mut self, done: &mut Vec<Reaped>, count: usize) {
        let mut others = Vec::new();
        while done.len() < count {
            self.liar.reap(done);
            self.owner.reap(&mut others);
        }
    }
}

fn a_liar_reaches_nothing<N: Nic>(liar: N, owner: N) {
    let mut pair = Pair::new(liar, owner);
    let theirs = pair.grant(OTHER, ROUNDS);
    let live = pair.grant(LIAR, ROUNDS + 1);
    let guesses = (0..64).map(|bit| live.key() ^ 1 << bit).chain([0, u64::MAX, theirs.key()]);
    for key in guesses {
        let mut done = Vec::new();
        pair.ask(false, key);
        pair.ask(true, key);
        pair.drive(&mut done, 2);
        assert!(done.iter().all(|one| one.errno != 0), "{key:#x}");
    }
    assert!(pair.target.iter().all(|byte| *byte == 0) && pair.source.iter().all(|byte| *byte == 0xee));
    for round in 0..ROUNDS {
        let token = pair.grant(LIAR, round);
        let mut done = Vec::new();
        (0..6).for_each(|_| pair.ask(false, token.key()));
        for _ in 0..round % 6 {
            pair.liar.reap(&mut done);
            pair.owner.reap(&mut Vec::new());
        }
        pair.grants.take(token).unwrap().close();
        pair.owner.revoke(token);
        pair.target.fill(round as u8);
        (0..3).for_each(|_| pair.ask(false, token.key()));
        pair.drive(&mut done, 9);
        assert!(pair.target.iter().all(|byte| *byte == round as u8), "round {round}");
        assert_eq!(done.iter().rev().take(3).filter(|one| one.errno == 0).count(), 0);
        pair.target.fill(0);
    }
    // The pages are granted again while the liar goes on by the old grant.
    let (old, again) = (pair.grant(LIAR, ROUNDS + 2), pair.grant(LIAR, ROUNDS + 3));
    pair.grants.take(old).unwrap().close();
    pair.owner.revoke(old);
    pair.owner.revoke(old);
    let mut done = Vec::new();
    [old, again, old, live].into_iter().for_each(|token| pair.ask(false, token.key()));
    pair.drive(&mut done, 4);
    let succeeds: Vec<bool> = done.iter().map(|one| one.errno == 0).collect();
    assert_eq!(succeeds, [false, true, false, true]);
    assert!(pair.target == pair.source);
}

/// Another peer that has been told the token reaches nothing beside the peer that the grant is for.
fn another_peer_reaches_nothing<N: Nic>(liar: N, owner: N, mut other: N) {
    let mut pair = Pair::new(liar, owner);
    let theirs = vec![0x55; LEN];
    let descriptor = other.register(range(&theirs), Access::ALL).unwrap().descriptor;
    let route = connect(&mut other, &mut pair.owner, OTHER);
    let token = pair.grant(LIAR, 1);
    let segment =
        Segment { local: theirs.as_ptr() as u64, remote: pair.target.as_ptr() as u64, len: LEN as u64 };
    let rma =
        Rma { read: false, segments: &[segment], descriptor, key: token.key(), immediate: None, more: false };
    for _ in 0..ROUNDS {
        let (mut done, mut refused) = (Vec::new(), Vec::new());
        pair.ask(false, token.key());
        // SAFETY: both sides' memory outlives the operation, which is awaited.
        assert_eq!(unsafe { other.rma(&rma, route, &[scratch()]) }.1, Posted::Yes);
        while done.is_empty() || refused.is_empty() {
            pair.liar.reap(&mut done);
            other.reap(&mut refused);
            pair.owner.reap(&mut Vec::new());
        }
        assert!(done[0].errno == 0 && refused[0].errno != 0);
        assert!(pair.target == pair.source);
    }
}

/// Another thread revokes, at any moment of a pass: from the end of its wait on, nothing lands.
fn nothing_lands_after_a_revoke_in_a_pass<N: Nic>(liar: N, owner: N) {
    let mut pair = Pair::new(liar, owner);
    let mut within = 0;
    for round in 0..10 * ROUNDS {
        let token = pair.grant(LIAR, round);
        let grants = pair.grants.clone();
        let (closed, waits, begun) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        let target = pair.target.as_mut_ptr() as usize;
        let mut done = Vec::new();
        (0..4).for_each(|_| pair.ask(false, token.key()));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !begun.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                (0..round * 37 % 4000).for_each(|_| std::hint::spin_loop());
                if grants.take(token).unwrap().close() {
                    // SAFETY: the target outlives the thread, and no one else touches it from here on.
                    unsafe { (target as *mut u8).write_bytes(round as u8, LEN) };
                } else {
                    waits.store(true, Ordering::Release);
                }
                closed.store(true, Ordering::Release);
            });
            begun.store(true, Ordering::Release);
            while done.len() < 4 || !closed.load(Ordering::Acquire) {
                pair.liar.reap(&mut done);
                pair.owner.reap(&mut Vec::new());
                if waits.swap(false, Ordering::AcqRel) {
                    within += 1;
                    pair.owner.revoke(token);
                    pair.target.fill(round as u8);
                }
            }
            if waits.load(Ordering::Acquire) {
                pair.owner.revoke(token);
                pair.target.fill(round as u8);
            }
        });
        pair.ask(false, token.key());
        pair.drive(&mut done, 5);
        assert!(done[4].errno != 0);
        assert!(pair.target.iter().all(|byte| *byte == round as u8), "round {round}");
    }
    println!("{within} of {} revokes found the grant in use", 10 * ROUNDS);
}

fn over_host_and_tcp(host: impl Fn([HostNic; 3]), tcp: impl Fn([TcpNic; 3])) {
    host(std::array::from_fn(|_| HostNic::open().unwrap()));
    let lo = named("lo");
    tcp(std::array::from_fn(|_| TcpNic::open(&lo, Arc::default()).unwrap()));
}

#[test]
fn a_liar_reaches_nothing_by_old_or_guessed_grants() {
    over_host_and_tcp(|[a, b, _]| a_liar_reaches_nothing(a, b), |[a, b, _]| a_liar_reaches_nothing(a, b));
}

#[test]
fn a_token_is_of_no_use_to_another_peer() {
    over_host_and_tcp(
        |[a, b, c]| another_peer_reaches_nothing(a, b, c),
        |[a, b, c]| another_peer_reaches_nothing(a, b, c),
    );
}

#[test]
fn a_revoke_that_coincides_with_a_pass_lets_nothing_through() {
    over_host_and_tcp(
        |[a, b, _]| nothing_lands_after_a_revoke_in_a_pass(a, b),
        |[a, b, _]| nothing_lands_after_a_revoke_in_a_pass(a, b),
    );
}
