//! NICs of one process, or of two threads, connected to each other; and peers that write malformed
//! data into shared memory.

use super::area;
use super::channel::{self, Block, Channel, CELLS};
use super::incoming::{Incoming, Serving};
use super::nic::HostNic;
use super::outgoing::Outgoing;
use super::request::{Kind, Piece, Request};
use super::socket;
use crate::descriptor::Descriptor;
use crate::fabric::own::pool::Pool;
use crate::fabric::registry::Registry;
use crate::fabric::{
    Access, Buffer, HostRange, Nic, Posted, Reaped, Registration, Rma, Route, Scratch, Segment, GONE,
};
use crate::ids::PeerId;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// The peer to which connections of these tests are assigned.
const PEER: PeerId = PeerId::numbered(7);
const BOTH: Access = Access::ALL;

/// The token that identifies operation `n` of a test.
fn token(n: usize) -> *mut Scratch {
    NonNull::<Scratch>::dangling().as_ptr().wrapping_add(n)
}

/// A route from one NIC to another, which assigns the connection to the peer.
fn link(a: &mut HostNic, b: &mut HostNic) -> Route {
    let route = a.insert(b.address(), Some(PEER)).unwrap();
    introduce(a, b, route);
    route
}

/// Sends a message, as a handshake does.
fn introduce(a: &mut HostNic, b: &mut HostNic, route: Route) {
    let mut buffer = [0u8; 8];
    let whole = |buffer: &mut [u8; 8]| Buffer {
        address: buffer.as_mut_ptr().cast(),
        len: 8,
        descriptor: null_mut(),
        follows: false,
    };
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    // SAFETY: the buffers live until the message has arrived.
    unsafe {
        assert_eq!(b.receive(whole(&mut buffer), token(0)), Posted::Yes);
        assert_eq!(a.send(whole(&mut [1; 8]), route, token(0)), Posted::Yes);
    }
    while received.is_empty() {
        a.reap(&mut sent);
        b.reap(&mut received);
    }
    let one: &Reaped = &received[0];
    assert!(one.connection != 0 && buffer == [1; 8]);
    b.assign_connection(one.connection, PEER);
}

fn register(nic: &mut HostNic, bytes: &mut [u8]) -> Registration {
    nic.register(HostRange { base: bytes.as_ptr() as u64, len: bytes.len() as u64 }, BOTH).unwrap()
}

fn post(
    nic: &mut HostNic,
    route: Route,
    read: bool,
    segments: &[Segment],
    registration: &Registration,
    key: u64,
    n: usize,
) {
    let rma = Rma { read, segments, descriptor: registration.descriptor, key, immediate: None, more: false };
    // SAFETY: the tests' memory outlives their NICs' operations.
    assert_eq!(unsafe { nic.rma(&rma, route, &[token(n)]) }.1, Posted::Yes);
}

/// Drives both NICs until the first has finished this many operations.
fn drive(a: &mut HostNic, b: &mut HostNic, count: usize) -> Vec<(*mut Scratch, i32)> {
    let (mut done, mut others) = (Vec::new(), Vec::new());
    for _ in 0..200_000 {
        a.reap(&mut done);
        b.reap(&mut others);
        if done.len() >= count {
            break;
        }
    }
    done.iter().map(|one| (one.scratch, one.errno)).collect()
}

fn random_bytes(len: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn writes_and_reads_of_all_shapes_complete() {
    let (mut a, mut b) = (HostNic::open().unwrap(), HostNic::open().unwrap());
    let mut source = random_bytes(3 << 20, 1);
    let mut target = vec![0u8; 3 << 20];
    let mut back = vec![0u8; 3 << 20];
    let (from, to) = (register(&mut a, &mut source), register(&mut b, &mut target));
    let home = register(&mut a, &mut back);
    let route = link(&mut a, &mut b);
    for (len, count) in
        [(1u64, 1u64), (8, 1), (32, 1), (33, 1), (100, 64), (4096, 64), (65_537, 7), (3 << 20, 1)]
    {
        target.fill(0);
        back.fill(0);
        // Local pages ascend, remote ones descend.
        let segments = |local: &[u8]| -> Vec<Segment> {
            let at = |base: &[u8], i: u64| base.as_ptr() as u64 + i * len;
            (0..count)
                .map(|i| Segment { local: at(local, i), remote: at(&target, count - 1 - i), len })
                .collect()
        };
        post(&mut a, route, false, &segments(&source), &from, to.key, 1);
        assert_eq!(drive(&mut a, &mut b, 1), [(token(1), 0)]);
        for i in 0..count as usize {
            let (near, far) = (i * len as usize, (count as usize - 1 - i) * len as usize);
            assert!(source[near..near + len as usize] == target[far..far + len as usize], "{len} x {count}");
        }
        assert!(target[(len * count) as usize..].iter().all(|byte| *byte == 0));
        post(&mut a, route, true, &segments(&back), &home, to.key, 2);
        assert_eq!(drive(&mut a, &mut b, 1), [(token(2), 0)]);
        let whole = (len * count) as usize;
        assert!(back[..whole] == source[..whole], "{len} x {count}, read");
        assert!(back[whole..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn operations_complete_once_and_in_order() {
    let (mut a, mut b) = (HostNic::open().unwrap(), HostNic::open().unwrap());
    let mut source = random_bytes(100_000, 2);
    let mut target = vec![0u8; 100_000];
    let (from, to) = (register(&mut a, &mut source), register(&mut b, &mut target));
    let route = link(&mut a, &mut b);
    for n in 0..3000usize {
        let len = (n as u64 * 7919) % 100_000;
        let segment = Segment { local: source.as_ptr() as u64, remote: target.as_ptr() as u64, len };
        post(&mut a, route, n % 3 == 0, &[segment], &from, to.key, n);
    }
    let done = drive(&mut a, &mut b, 3000);
    assert_eq!(done.len(), 3000);
    assert!(done.iter().enumerate().all(|(n, one)| *one == (token(n), 0)));
}

#[test]
fn route_to_the_own_nic_works() {
    let mut nic = HostNic::open().unwrap();
    let mut bytes = random_bytes(200_000, 3);
    let registered = register(&mut nic, &mut bytes);
    let address = nic.address().to_vec();
    let route = nic.insert(&address, None).unwrap();
    let mut buffer = [0u8; 8];
    let message =
        Buffer { address: buffer.as_mut_ptr().cast(), len: 8, descriptor: null_mut(), follows: false };
    let mut done = Vec::new();
    // SAFETY: the buffer lives until the message has arrived.
    unsafe {
        assert_eq!(nic.receive(message, token(1)), Posted::Yes);
        assert_eq!(nic.send(message, route, token(2)), Posted::Yes);
    }
    while done.len() < 2 {
        nic.reap(&mut done);
    }
    let connection = done.iter().map(|one| one.connection).max().unwrap();
    nic.assign_connection(connection, PEER);
    let base = bytes.as_ptr() as u64;
    post(
        &mut nic,
        route,
        false,
        &[Segment { local: base, remote: base + 100_000, len: 100_000 }],
        &registered,
        registered.key,
        5,
    );
    done.clear();
    for _ in 0..100_000 {
        nic.reap(&mut done);
    }
    assert_eq!(done.len(), 1);
    assert!(done[0].errno == 0 && bytes[..100_000] == bytes[100_000..]);
}

#[test]
fn allocated_area_is_read_in_place() {
    let (mut a, mut b) = (HostNic::open().unwrap(), HostNic::open().unwrap());
    let len = 4 << 20;
    let base = area::allocate(len as u64, None).unwrap();
    // SAFETY: the range was just allocated with this length.
    let source = unsafe { std::slice::from_raw_parts_mut(base as *mut u8, len) };
    source.copy_from_slice(&random_bytes(len, 4));
    let mut target = vec![0u8; len];
    let (from, to) = (register(&mut a, source), register(&mut b, &mut target));
    assert!(!from.descriptor.is_null() && to.descriptor.is_null());
    let route = link(&mut a, &mut b);
    let segment = Segment { local: base, remote: target.as_ptr() as u64, len: len as u64 };
    post(&mut a, route, false, &[segment], &from, to.key, 1);
    assert_eq!(drive(&mut a, &mut b, 1), [(token(1), 0)]);
    assert!(*source == target[..]);
    // A new registration may have another number; the old mapping must not be used.
    a.deregister(from).unwrap();
    let other = area::allocate(8192, None).unwrap();
    // SAFETY: the range was just allocated with this length.
    let small = unsafe { std::slice::from_raw_parts_mut(other as *mut u8, 8192) };
    small.fill(9);
    let of_small = register(&mut a, small);
    post(
        &mut a,
        route,
        false,
        &[Segment { local: other, remote: target.as_ptr() as u64, len: 8192 }],
        &of_small,
        to.key,
        2,
    );
    assert_eq!(drive(&mut a, &mut b, 1), [(token(2), 0)]);
    assert!(target[..8192].iter().all(|byte| *byte == 9) && target[8192..] == source[8192..]);
    a.deregister(of_small).unwrap();
    drop((a, b));
    assert!(area::free(base).is_ok() && area::free(other).is_ok());
}

#[test]
fn deregistered_area_is_forgotten_although_the_socket_was_full() {
    let name = format!("weft-test-{}", crate::clock::Random::System.u64().unwrap());
    let listener = socket::listen(&name).unwrap();
    let mut outgoing = Outgoing::new().unwrap();
    assert!(outgoing.connect(&name).unwrap());
    let far = socket::accept(listener.as_fd()).unwrap().unwrap();
    let (base, mut areas) = (area::allocate(4096, None).unwrap(), area::SharedAreas::default());
    let descriptor = areas.enter(base, 4096);
    let segment = Segment { local: base, remote: 0, len: 4096 };
    let rma = Rma {
        read: false,
        segments: &[segment],
        descriptor: descriptor as *mut _,
        key: 1,
        immediate: None,
        more: false,
    };
    outgoing.rma(&rma, areas.get(descriptor), token(1));
    (0..10_000).for_each(|_| socket::wake(outgoing.socket().unwrap())); // More than a socket holds.
    outgoing.forget(&areas.leave(descriptor).unwrap());
    let received = || {
        let mut forgotten = 0;
        loop {
            match socket::receive(far.as_fd()) {
                socket::Received::Control(socket::Control::Forget(_)) => forgotten += 1,
                socket::Received::Control(_) => {}
                _ => return forgotten,
            }
        }
    };
    assert_eq!(received(), 0);
    outgoing.send_forgotten();
    assert_eq!(received(), 1);
    outgoing.send_forgotten();
    assert_eq!(received(), 0);
    assert!(area::free(base).is_ok());
}

#[test]
fn write_to_unregistered_memory_fails_alone() {
    let (mut a, mut b) = (HostNic::open().unwrap(), HostNic::open().unwrap());
    let mut source = random_bytes(200_000, 5);
    let mut target = vec![0u8; 200_000];
    let from = register(&mut a, &mut source);
    // The last byte is not registered.
    let to = register(&mut b, &mut target[..199_999]);
    let route = link(&mut a, &mut b);
    let whole = Segment { local: source.as_ptr() as u64, remote: target.as_ptr() as u64, len: 199_999 };
    post(&mut a, route, false, &[whole], &from, to.key ^ 1, 1);
    post(&mut a, route, false, &[Segment { len: 200_000, ..whole }], &from, to.key, 2);
    post(&mut a, route, true, &[Segment { remote: whole.remote - 1, len: 10, ..whole }], &from, to.key, 3);
    post(&mut a, route, false, &[Segment { remote: u64::MAX - 3, len: 8, ..whole }], &from, to.key, 4);
    post(&mut a, route, false, &[whole], &from, to.key, 5);
    let done = drive(&mut a, &mut b, 5);
    assert_eq!(done[..2], [(token(1), GONE), (token(2), libc::EACCES)]);
    assert_eq!(done[2..4], [(token(3), libc::EACCES), (token(4), libc::EACCES)]);
    assert_eq!(done[4], (token(5), 0));
    assert!(target[..199_999] == source[..199_999] && target[199_999] == 0);
    b.deregister(to).unwrap();
    target.fill(0);
    post(&mut a, route, false, &[whole], &from, to.key, 6);
    assert_eq!(drive(&mut a, &mut b, 1), [(token(6), GONE)]);
    assert!(target.iter().all(|byte| *byte == 0));
}

#[test]
fn read_only_registration_can_be_read() {
    static CONSTANT: [u8; 4096] = [7; 4096];
    let (mut a, mut b) = (HostNic::open().unwrap(), HostNic::open().unwrap());
    let mut bytes = vec![0u8; 4096];
    let near = register(&mut a, &mut bytes);
    let readable = Access { remote_write: false, local_write: false, ..Access::ALL };
    let far = b.register(HostRange { base: CONSTANT.as_ptr() as u64, len: 4096 }, readable).unwrap();
    let route = link(&mut a, &mut b);
    let segment = Segment { local: bytes.as_ptr() as u64, remote: CONSTANT.as_ptr() as u64, len: 4096 };
    post(&mut a, route, false, &[segment], &near, far.key, 1);
    assert_eq!(drive(&mut a, &mut b, 1), [(token(1), libc::EACCES)]);
    post(&mut a, route, true, &[segment], &near, far.key, 2);
    assert_eq!(drive(&mut a, &mut b, 1), [(token(2), 0)]);
    assert!(bytes == CONSTANT);
}

#[test]
fn messages_wait_for_receives_and_stay_behind_writes() {
    let (mut a, mut b) = (HostNic::open().unwrap(), HostNic::open().unwrap());
    let mut source = random_bytes(1 << 20, 6);
    let mut target = vec![0u8; 1 << 20];
    let (from, to) = (register(&mut a, &mut source), register(&mut b, &mut target));
    let route = link(&mut a, &mut b);
    let write = Segment { local: source.as_ptr() as u64, remote: target.as_ptr() as u64, len: 1 << 20 };
    post(&mut a, route, false, &[write], &from, to.key, 1);
    let message =
        |len| Buffer { address: source.as_ptr() as *mut _, len, descriptor: null_mut(), follows: false };
    for (n, len) in [(2, 0), (3, 8192), (4, 77)] {
        // SAFETY: the source outlives the NIC.
        assert_eq!(unsafe { a.send(message(len), route, token(n)) }, Posted::Yes);
    }
    // SAFETY: the message's bytes and the token's scratch are never freed.
    assert!(matches!(unsafe { a.send(message(8193), route, token(9)) }, Posted::Failed(_)));
    let mut received = Vec::new();
    for _ in 0..10_000 {
        a.reap(&mut Vec::new());
        b.reap(&mut received);
    }
    assert!(received.is_empty() && target == source);
    let mut buffers = vec![[0u8; 8192]; 4];
    for (n, buffer) in buffers.iter_mut().enumerate() {
        let buffer =
            Buffer { address: buffer.as_mut_ptr().cast(), len: 8192, descriptor: null_mut(), follows: false };
        // SAFETY: the buffers outlive the NIC's use of them.
        assert_eq!(unsafe { b.receive(buffer, token(n)) }, Posted::Yes);
    }
    for _ in 0..1000 {
        b.reap(&mut received);
    }
    let lengths: Vec<(*mut Scratch, u32)> = received.iter().map(|one| (one.scratch, one.len)).collect();
    assert_eq!(lengths, [(token(0), 0), (token(1), 8192), (token(2), 77)]);
    assert!(buffers[1][..] == source[..8192] && buffers[2][..77] == source[..77]);
}

#[test]
fn outstanding_operations_fail_when_the_peer_closes() {
    let (mut a, mut b) = (HostNic::open().unwrap(), HostNic::open().unwrap());
    let mut source = vec![1u8; 8 << 20];
    let from = register(&mut a, &mut source);
    let address = b.address().to_vec();
    let route = a.insert(&address, None).unwrap();
    let whole = Segment { local: source.as_ptr() as u64, remote: 4096, len: 8 << 20 };
    (0..10).for_each(|n| post(&mut a, route, false, &[whole], &from, 1, n));
    let mut done = Vec::new();
    a.reap(&mut done);
    assert!(done.is_empty());
    b.close().unwrap();
    for _ in 0..1000 {
        a.reap(&mut done);
    }
    assert_eq!(done.len(), 10);
    assert!(done.iter().all(|one| one.errno != 0));
    let message =
        Buffer { address: source.as_mut_ptr().cast(), len: 8, descriptor: null_mut(), follows: false };
    done.clear();
    // SAFETY: the source outlives the NIC.
    assert_eq!(unsafe { a.send(message, route, token(11)) }, Posted::Yes);
    a.reap(&mut done);
    assert!(done.len() == 1 && done[0].errno != 0);
    assert!(a.insert(&address, None).is_err());
    for bad in [&b"10.0.0.7"[..], b"another-boot/1/weft-0123456789abcdef0123456789abcdef", b"\xff/\0"] {
        assert!(a.insert(bad, None).is_err());
    }
}

#[test]
fn messages_sent_before_close_arrive() {
    let (mut a, mut b) = (HostNic::open().unwrap(), HostNic::open().unwrap());
    let mut word = [7u8; 8];
    let mut buffer = [0u8; 64];
    let route = link(&mut a, &mut b);
    let message =
        Buffer { address: word.as_mut_ptr().cast(), len: 8, descriptor: null_mut(), follows: false };
    // SAFETY: both buffers outlive their use by the NICs.
    unsafe {
        assert_eq!(a.send(message, route, token(1)), Posted::Yes);
        a.close().unwrap();
        // The hangup is seen before there is a receive.
        (0..1000).for_each(|_| _ = b.reap(&mut Vec::new()));
        let to =
            Buffer { address: buffer.as_mut_ptr().cast(), len: 64, descriptor: null_mut(), follows: false };
        assert_eq!(b.receive(to, token(2)), Posted::Yes);
    }
    let mut received = Vec::new();
    (0..1000).for_each(|_| _ = b.reap(&mut received));
    assert!(received.len() == 1 && buffer[..8] == word);
}

/// Posts writes until the channel is full; returns how much of the target has arrived.
fn write_much(a: &mut HostNic, route: Route, source: &mut [u8], target: &[u8], key: u64) -> Registration {
    let from = register(a, source);
    let len = target.len() as u64;
    let whole = Segment { local: source.as_ptr() as u64, remote: target.as_ptr() as u64, len };
    (0..4).for_each(|n| post(a, route, false, &[whole], &from, key, n));
    from
}

#[test]
fn memory_does_not_change_after_its_peer_ended() {
    for at_once in [true, false] {
        let (mut a, mut b) = (HostNic::open().unwrap(), HostNic::open().unwrap());
        let (mut source, mut target) = (vec![1u8; 8 << 20], vec![0u8; 8 << 20]);
        let to = register(&mut b, &mut target);
        let route = link(&mut a, &mut b);
        write_much(&mut a, route, &mut source, &target, to.key);
        // A part is written, and the channel is full again.
        let (mut done, mut others) = (Vec::new(), Vec::new());
        b.reap(&mut others);
        (0..3).for_each(|_| _ = a.reap(&mut done));
        assert!(target[0] == 1 && target[target.len() - 1] == 0 && done.is_empty());
        b.end_peer(PEER, at_once);
        let before = target.clone();
        for _ in 0..2000 {
            a.reap(&mut done);
            b.reap(&mut others);
        }
        assert!(target == before, "at once: {at_once}");
        assert_eq!(done.len(), 4);
        assert!(done.iter().all(|one| one.errno != 0));
    }
}

#[test]
fn all_messages_of_a_closed_peer_are_received() {
    let (mut a, mut b) = (HostNic::open().unwrap(), HostNic::open().unwrap());
    let (mut word, mut buffer) = ([7u8; 8], [0u8; 64]);
    let route = link(&mut a, &mut b);
    b.end_peer(PEER, false);
    let message =
        Buffer { address: word.as_mut_ptr().cast(), len: 8, descriptor: null_mut(), follows: false };
    let to = Buffer { address: buffer.as_mut_ptr().cast(), len: 64, descriptor: null_mut(), follows: false };
    // SAFETY: both buffers outlive their use by the NICs.
    unsafe {
        assert_eq!(b.receive(to, token(2)), Posted::Yes);
        assert_eq!(a.send(message, route, token(1)), Posted::Yes);
    }
    assert_eq!(drive(&mut b, &mut a, 1), [(token(2), 0)]);
    assert_eq!(buffer[..8], word);
}

#[test]
fn unauthenticated_connection_reaches_no_memory() {
    let (mut a, mut b) = (HostNic::open().unwrap(), HostNic::open().unwrap());
    let (mut source, mut target) = (vec![1u8; 4096], vec![0u8; 4096]);
    let (from, to) = (register(&mut a, &mut source), register(&mut b, &mut target));
    let route = a.insert(b.address(), None).unwrap();
    let whole = Segment { local: source.as_ptr() as u64, remote: target.as_ptr() as u64, len: 4096 };
    for (n, read) in [(1, false), (2, true)] {
        post(&mut a, route, read, &[whole], &from, to.key, n);
        assert_eq!(drive(&mut a, &mut b, 1), [(token(n), libc::EACCES)]);
    }
    assert!(target.iter().all(|byte| *byte == 0));
    introduce(&mut a, &mut b, route);
    post(&mut a, route, false, &[whole], &from, to.key, 3);
    assert_eq!(drive(&mut a, &mut b, 1), [(token(3), 0)]);
}

/// When a process ends, the requests in its channel are served or dropped before its peers see a
/// failure.
#[test]
fn no_write_lands_after_a_route_failed() {
    let (mut a, mut b) = (HostNic::open().unwrap(), HostNic::open().unwrap());
    let (mut source, mut target) = (vec![1u8; 8 << 20], vec![0u8; 8 << 20]);
    let to = register(&mut b, &mut target);
    let route = link(&mut a, &mut b);
    let back = link(&mut b, &mut a);
    write_much(&mut a, route, &mut source, &target, to.key);
    let message =
        Buffer { address: source.as_mut_ptr().cast(), len: 8, descriptor: null_mut(), follows: false };
    // SAFETY: the source outlives the NICs.
    assert_eq!(unsafe { b.send(message, back, token(9)) }, Posted::Yes);
    let far = Segment { local: target.as_ptr() as u64, remote: 4096, len: 4096 };
    post(&mut b, back, false, &[far], &to, 1, 10);
    a.close().unwrap();
    let mut done = Vec::new();
    while !done.iter().any(|one: &Reaped| one.scratch == token(10)) {
        b.reap(&mut done);
    }
    let before = target.clone();
    (0..2000).for_each(|_| _ = b.reap(&mut done));
    assert!(target == before);
    // What was there was done.
    assert_eq!(target[0], 1);
}

/// Connections of this process that send nothing: their number is limited, and unused ones are
/// closed.
#[test]
fn unassigned_connections_are_limited_in_number_and_time() {
    let mut b = HostNic::open().unwrap();
    let address = String::from_utf8(b.address().to_vec()).unwrap();
    let (_, name) = address.rsplit_once('/').unwrap();
    let mut all: Vec<Descriptor> = Vec::new();
    let mut done = Vec::new();
    for at in 0..200 {
        let Some(near) = socket::connect(name).unwrap() else { break };
        if at % 2 == 0 {
            let (_, file) = Channel::create().unwrap();
            assert!(socket::pass_channel(near.as_fd(), file.as_fd()));
        }
        all.push(near);
    }
    // (Connections in the listener's queue count as open.)
    let open = |all: &[Descriptor]| all.iter().filter(|one| !is_closed(one)).count();
    let began = std::time::Instant::now();
    for most in [64, 0] {
        while open(&all) > most {
            (0..200).for_each(|_| _ = b.reap(&mut done));
            b.tend();
            assert!(began.elapsed().as_secs() < 60, "{} are open", open(&all));
        }
    }
}

fn is_closed(socket: &Descriptor) -> bool {
    matches!(socket::receive(socket.as_fd()), socket::Received::End)
}

/// Two threads that sleep after each message wake each other 100,000 times.
#[test]
fn sleeping_threads_lose_no_wake_up() {
    const ROUNDS: u64 = 50_000;
    let mut nics = [HostNic::open().unwrap(), HostNic::open().unwrap()];
    let words = [const { AtomicU64::new(0) }; 2];
    let place = |i: usize| words[i].as_ptr() as u64;
    let registered: Vec<Registration> =
        (0..2).map(|i| nics[i].register(HostRange { base: place(i), len: 8 }, BOTH).unwrap()).collect();
    let [first, second] = &mut nics;
    let routes = [link(first, second), link(second, first)];
    std::thread::scope(|scope| {
        for (me, mut nic) in nics.into_iter().enumerate() {
            let (words, registered, route) = (&words, &registered, routes[me]);
            let (near, far) = (words[me].as_ptr() as u64, words[1 - me].as_ptr() as u64);
            scope.spawn(move || {
                let mut done = Vec::new();
                let mut number = [0u64];
                for round in 0..ROUNDS {
                    if me == 0 {
                        number[0] = round + 1;
                        let segment = Segment { local: number.as_ptr() as u64, remote: far, len: 8 };
                        post(&mut nic, route, false, &[segment], &registered[me], registered[1 - me].key, 0);
                    }
                    while words[me].load(Ordering::Acquire) != round + 1 {
                        nic.reap(&mut done);
                        if words[me].load(Ordering::Acquire) != round + 1 {
                            sleep(&mut nic);
                        }
                    }
                    if me == 1 {
                        let segment = Segment { local: near, remote: far, len: 8 };
                        post(&mut nic, route, false, &[segment], &registered[me], registered[1 - me].key, 0);
                    }
                    done.clear();
                }
                // The last message must get through.
                (0..1_000).for_each(|_| _ = nic.reap(&mut done));
            });
        }
    });
}

/// An answer wakes a worker that waits for nothing else.
#[test]
fn sleeping_misses_no_answer() {
    let (mut a, mut b) = (HostNic::open().unwrap(), HostNic::open().unwrap());
    let (mut source, mut target) = (vec![1u8; 64], vec![0u8; 64]);
    let (from, to) = (register(&mut a, &mut source), register(&mut b, &mut target));
    let route = link(&mut a, &mut b);
    let segment = Segment { local: source.as_ptr() as u64, remote: target.as_ptr() as u64, len: 64 };
    let over = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut b = b;
            while over.load(Ordering::Acquire) == 0 {
                b.reap(&mut Vec::new());
                if let Some((fd, true)) = b.wait_fd() {
                    let mut event = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                    // SAFETY: the array has one entry, which outlives the call.
                    unsafe { libc::poll(&mut event, 1, 50) };
                }
            }
        });
        let _over = Over(&over);
        let mut done = Vec::new();
        for n in 0..20_000 {
            post(&mut a, route, false, &[segment], &from, to.key, n);
            while done.is_empty() {
                a.reap(&mut done);
                if done.is_empty() {
                    sleep(&mut a);
                }
            }
            done.clear();
        }
    });
}

/// A peer wakes up while its request is still being made.
#[test]
fn sleeping_peer_is_roused() {
    let (mut a, mut b) = (HostNic::open().unwrap(), HostNic::open().unwrap());
    let route = link(&mut a, &mut b);
    let is_readable = |fd| {
        let mut event = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: the array has one entry, which outlives the call.
        unsafe { libc::poll(&mut event, 1, 0) == 1 }
    };
    let mut fall_asleep = || loop {
        (0..1_000).for_each(|_| _ = b.reap(&mut Vec::new()));
        match b.wait_fd() {
            Some((fd, true)) if !is_readable(fd) => break fd,
            _ => {}
        }
    };
    let fd = fall_asleep();
    a.rouse(route);
    assert!(is_readable(fd));
    // It finds no request, and may sleep again.
    fall_asleep();
    a.rouse(route);
    assert!(is_readable(fd));
}

/// A failed test also ends its other thread.
struct Over<'a>(&'a AtomicU64);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(1, Ordering::Release);
    }
}

fn sleep(nic: &mut HostNic) {
    let Some((fd, true)) = nic.wait_fd() else { return };
    let mut event = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one entry, which outlives the call.
    let rc = unsafe { libc::poll(&mut event, 1, 5_000) };
    assert_ne!(rc, 0, "nobody wakes us");
}

/// A channel, its peer's socket, and its target's end.
fn under_attack() -> (Channel, Descriptor, Incoming) {
    let name = format!("weft-test-{}", crate::clock::Random::System.u64().unwrap());
    let listener = socket::listen(&name).unwrap();
    let near = socket::connect(&name).unwrap().unwrap();
    let far = socket::accept(listener.as_fd()).unwrap().unwrap();
    let (channel, file) = Channel::create().unwrap();
    let mut incoming = Incoming::new(far, 1, Channel::attach(file.as_fd()).unwrap());
    incoming.assign(PEER);
    (channel, near, incoming)
}

#[test]
fn malformed_ring_entries_reach_only_registered_memory() {
    let mut arena = vec![0xabu8; 4096 * 3];
    let base = arena.as_mut_ptr() as u64 + 4096;
    let mut receive = vec![0u8; 8192];
    let mut seed = 7u64;
    let mut next = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        seed >> 11
    };
    let (mut refused, mut written) = (0, 0);
    for _ in 0..300 {
        let (channel, _near, mut incoming) = under_attack();
        let mut registry = Registry::default();
        assert!(registry.add(5, HostRange { base, len: 4096 }, BOTH, None));
        let mut receives: VecDeque<(Buffer, *mut Scratch)> = VecDeque::new();
        let buffer = Buffer {
            address: receive.as_mut_ptr().cast(),
            len: 8192,
            descriptor: null_mut(),
            follows: false,
        };
        receives.push_back((buffer, null_mut()));
        for n in 0..CELLS {
            // The cells are often nearly valid, so that not all fail at the first check.
            let cell = channel.cell(n);
            for word in &cell[1..] {
                word.store(if next() % 4 == 0 { next() << 20 } else { next() % 6000 }, Ordering::Relaxed);
            }
            if next() % 4 != 0 {
                cell[1].store(next() % 5000, Ordering::Relaxed);
                cell[2].store(5, Ordering::Relaxed);
                cell[3].store(base.wrapping_add(next() % 5000).wrapping_sub(400), Ordering::Relaxed);
            }
            let shape = (next() % 5) << 32 | (next() % 3 * 8) << 40 | (next() % 4) << 48;
            cell[0].store(channel::stamp(n) as u64 | shape, Ordering::Relaxed);
        }
        channel.returned().store(next(), Ordering::Relaxed);
        let mut reaped: Vec<Reaped> = Vec::new();
        let mut with = Serving {
            registry: &mut registry,
            receives: &mut receives,
            reaped: &mut reaped,
            pool: &mut Pool::default(),
            budget: u64::MAX,
            words: u32::MAX,
        };
        let sane = incoming.serve(&mut with);
        refused += !sane as usize;
        written += arena[4096..8192].iter().any(|byte| *byte != 0xab) as usize;
        assert!(arena[..4096].iter().chain(&arena[8192..]).all(|byte| *byte == 0xab));
        arena[4096..8192].fill(0xab);
    }
    // The input was not all rejected at once.
    assert!(refused > 0 && written > 0, "{refused} {written}");
}

#[test]
fn malformed_answers_touch_no_other_memory() {
    let mut seed = 9u64;
    let mut next = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        seed >> 33
    };
    let mut refused = 0;
    for _ in 0..500 {
        let mut outgoing = Outgoing::new().unwrap();
        let mut arena = vec![0xcdu8; 3 << 16];
        let local = arena.as_mut_ptr() as u64 + (1 << 16);
        let segment = Segment { local, remote: 0, len: 1 << 16 };
        let mut reaped = Vec::new();
        for n in 0..10 {
            let rma = Rma {
                read: n % 2 == 0,
                segments: &[segment],
                descriptor: std::ptr::null_mut(),
                key: 1,
                immediate: None,
                more: false,
            };
            outgoing.rma(&rma, None, token(n));
        }
        outgoing.pump(&mut { u64::MAX }, &mut reaped);
        for n in 0..CELLS {
            outgoing.channel().failure(n).store((next() << 32) | (next() % 12), Ordering::Relaxed);
        }
        for _ in 0..4 {
            let wild = |value: u64, wild: u64| if wild % 8 == 0 { value << 20 } else { value % 14 };
            outgoing.channel().failed().store(wild(next(), next()), Ordering::Relaxed);
            outgoing.channel().done().store(wild(next(), next()), Ordering::Relaxed);
            if !outgoing.progress(&mut { u64::MAX }, &mut reaped) {
                refused += 1;
                break;
            }
        }
        outgoing.fail_all(libc::EPROTO, &mut reaped);
        assert_eq!(reaped.len(), 10);
        assert!(arena[..1 << 16].iter().chain(&arena[2 << 16..]).all(|byte| *byte == 0xcd));
    }
    assert!(refused > 0);
}

/// A write from the area with number 5, or from the bytes behind it in the ring.
fn write_of(pieces: usize, len: u64, area: u32, remote: u64) -> Request {
    let (kind, key) = (Kind::Write, 5);
    Request { kind, inline: 0, stream: false, pieces, len, area, key, immediate: None, remote, words: [0; 4] }
}

/// Whether the target accepts the request as well-formed.
fn serve(incoming: &mut Incoming, registry: &mut Registry) -> bool {
    let (mut receives, mut reaped) = (VecDeque::new(), Vec::new());
    let (receives, reaped) = (&mut receives, &mut reaped);
    let pool = &mut Pool::default();
    incoming.serve(&mut Serving { registry, receives, reaped, pool, budget: 1 << 20, words: 64 })
}

#[test]
fn channel_ends_when_pieces_exceed_their_request() {
    for (second, sane) in [(64, true), (65, false), (u64::MAX - 63, false)] {
        let (channel, _near, mut incoming) = under_attack();
        let mut arena = vec![0u8; 4096];
        let mut registry = Registry::default();
        let base = arena.as_mut_ptr() as u64;
        assert!(registry.add(5, HostRange { base, len: 4096 }, BOTH, None));
        let request = write_of(2, 128, 0, base);
        let pieces = [64, second].map(|len| Piece { remote: base, len, offset: 0 });
        let block = Block::after(0, request.block_len());
        // SAFETY: the block begins with its pieces.
        unsafe { channel.forward(&block).cast::<[Piece; 2]>().write_unaligned(pieces) };
        request.publish(channel.cell(0), channel::stamp(0));
        assert_eq!(serve(&mut incoming, &mut registry), sane, "{second}");
    }
}

#[test]
fn request_from_an_unknown_area_is_refused() {
    let (channel, _near, mut incoming) = under_attack();
    let mut arena = vec![0u8; 4096];
    let mut registry = Registry::default();
    let base = arena.as_mut_ptr() as u64;
    assert!(registry.add(5, HostRange { base, len: 4096 }, BOTH, None));
    let request = write_of(1, 4096, 3, base);
    request.publish(channel.cell(0), channel::stamp(0));
    assert!(serve(&mut incoming, &mut registry));
    assert_eq!((channel.done().load(Ordering::Relaxed), channel.failed().load(Ordering::Relaxed)), (1, 1));
}
