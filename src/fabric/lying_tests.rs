//! A peer that lies: it names revoked grants, other peers' grants and guessed ones, and continues after every refusal.

use super::grants::{Grant, Grants};
use super::host::HostNic;
use super::tcp::{list, TcpNic};
use super::{Access, Buffer, HostRange, Nic, Posted, Reaped, Rma, Route, Scratch, Segment};
use crate::ids::{GrantToken, MemoryId, PeerId};
use std::ptr::{null_mut, NonNull};
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

impl<N: Nic> Pair<N> {
    fn new(mut liar: N, mut owner: N) -> Pair<N> {
        let grants = Arc::new(Grants::default());
        owner.use_grants(grants.clone());
        let (source, target) = (vec![0xee; LEN], vec![0; LEN]);
        let descriptor = liar.register(range(&source), Access::ALL).unwrap().descriptor;
        owner.register(range(&target), Access { granted_only: true, ..Access::ALL }).unwrap();
        let route = liar.insert(owner.address(), Some(LIAR)).unwrap();
        let (text, room) = ([1u8; 8], [0u8; 8]);
        let of = |bytes: &[u8; 8]| Buffer {
            address: bytes.as_ptr().cast_mut().cast(),
            len: 8,
            descriptor: null_mut(),
            follows: false,
        };
        // SAFETY: both are there until the message has arrived.
        unsafe {
            assert_eq!(owner.receive(of(&room), scratch()), Posted::Yes);
            assert_eq!(liar.send(of(&text), route, scratch()), Posted::Yes);
        }
        let (mut sent, mut received) = (Vec::new(), Vec::<Reaped>::new());
        while sent.is_empty() || received.is_empty() {
            liar.reap(&mut sent);
            owner.reap(&mut received);
        }
        owner.assign_connection(received[0].connection, LIAR);
        Pair { liar, owner, route, grants, source, target, descriptor }
    }

    fn grant(&self, peer: PeerId, number: u64) -> GrantToken {
        let token = GrantToken::of(0x1234_5678_9abc_def0 ^ u128::from(number) << 8, number).unwrap();
        let of = (MemoryId::new(1), Access::ALL);
        assert!(self.grants.add(Grant::new(token, (peer, 0), of, vec![range(&self.target)])));
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
    let mut done = Vec::new();
    pair.ask(false, live.key());
    pair.drive(&mut done, 1);
    assert!(done[0].errno == 0 && pair.target == pair.source);
}

#[test]
fn a_liar_reaches_nothing_by_old_or_guessed_grants() {
    a_liar_reaches_nothing(HostNic::open().unwrap(), HostNic::open().unwrap());
    let lo = list().unwrap().into_iter().find(|interface| interface.name == "lo").unwrap();
    let open = || TcpNic::open(&lo, Arc::default()).unwrap();
    a_liar_reaches_nothing(open(), open());
}
