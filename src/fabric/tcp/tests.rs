//! NICs of one process connected to each other; and attackers, some of which speak the protocol.

use super::accept::{TIME_NS, UNAUTHENTICATED_MOST, UNAUTHENTICATED_NS};
use super::interfaces::{self, Interface};
use super::nic::TcpNic;
use super::socket::{self, to_system, UNSENT};
use super::Options;
use crate::clock::{Clock, Sequence, Virtual};
use crate::fabric::{
    Access, Buffer, Connection, HostRange, Immediate, Nic, Posted, Reaped, Registration, Rma, Route, Scratch,
    Segment, ANOTHER, GONE,
};
use crate::ids::PeerId;
use crate::wire::secret::Secrets;
use crate::wire::tcp::{
    Answer, Handshake, Kind, Name, Piece, Request, ANSWER, HANDSHAKE, MESSAGE, PIECES, REQUEST, RUN,
};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{null_mut, NonNull};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const BOTH: Access = Access::ALL;
const LEN: usize = 3 << 20;
/// The peer of these tests' connections, and another that authenticates under the same name.
const PEER: PeerId = PeerId::numbered(7);
const THIEF: PeerId = PeerId::numbered(8);
/// The name that attackers use.
const NAME: Name = [1; 16];

fn lo() -> Interface {
    interfaces::named("lo")
}

fn open_with(options: Options) -> TcpNic {
    TcpNic::open(&lo(), Arc::new(options)).unwrap()
}

fn open() -> TcpNic {
    open_with(Options::default())
}

/// A NIC that encrypts with these secrets.
fn open_sealed(secrets: &[&[u8]]) -> TcpNic {
    let named: Vec<(&[u8], &str)> = secrets.iter().map(|secret| (*secret, "secret")).collect();
    open_with(Options { secrets: Some(Arc::new(Secrets::new(&named).unwrap())), ..Options::default() })
}

const SECRET: &[u8] = b"correct horse battery";
const OTHER: &[u8] = b"correct horse batterz";

/// Two NICs that have not connected yet: unencrypted, and encrypted.
fn pairs() -> [(TcpNic, TcpNic); 2] {
    [(open(), open()), (open_sealed(&[SECRET]), open_sealed(&[SECRET]))]
}

/// The token that identifies operation `n` of a test.
fn token(n: usize) -> *mut Scratch {
    NonNull::<Scratch>::dangling().as_ptr().wrapping_add(n)
}

fn register(nic: &mut TcpNic, bytes: &mut [u8]) -> Registration {
    nic.register(HostRange { base: bytes.as_ptr() as u64, len: bytes.len() as u64 }, BOTH).unwrap()
}

fn rma(read: bool, segments: &[Segment], key: u64) -> Rma<'_> {
    Rma { read, segments, descriptor: null_mut(), key, immediate: None, more: false }
}

fn post(nic: &mut TcpNic, route: Route, rma: &Rma, n: usize) {
    // SAFETY: the tests' memory outlives their NICs' operations.
    assert_eq!(unsafe { nic.rma(rma, route, &[token(n)]) }.1, Posted::Yes);
}

/// A route from one NIC to another, which assigns the connection to the peer.
fn link(a: &mut TcpNic, b: &mut TcpNic) -> Route {
    let route = a.insert(b.address(), Some(PEER)).unwrap();
    introduce(a, b, route);
    route
}

/// Sends a message, as a handshake does.
fn introduce(a: &mut TcpNic, b: &mut TcpNic, route: Route) {
    let (text, mut room) = ([1u8; 8], [0u8; 8]);
    // SAFETY: both buffers live until the message has arrived.
    unsafe {
        assert_eq!(b.receive(buffer(&room), token(0)), Posted::Yes);
        assert_eq!(a.send(buffer(&text), route, token(0)), Posted::Yes);
    }
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    let began = Instant::now();
    while sent.is_empty() || received.is_empty() {
        a.reap(&mut sent);
        b.reap(&mut received);
        assert!(began.elapsed() < Duration::from_secs(60), "no message arrives");
    }
    let one: &Reaped = &received[0];
    assert!(one.connection != 0 && std::mem::take(&mut room) == text);
    b.assign_connection(one.connection, PEER);
}

fn buffer(bytes: &[u8]) -> Buffer {
    Buffer {
        address: bytes.as_ptr().cast_mut().cast(),
        len: bytes.len(),
        descriptor: null_mut(),
        follows: false,
    }
}

/// Drives both NICs until the first has finished this many operations.
fn drive(a: &mut TcpNic, b: &mut TcpNic, count: usize) -> Vec<(*mut Scratch, i32)> {
    let (mut done, mut others) = (Vec::new(), Vec::new());
    while done.len() < count {
        a.reap(&mut done);
        b.reap(&mut others);
    }
    done.iter().map(|one: &Reaped| (one.scratch, one.errno)).collect()
}

fn rounds(a: &mut TcpNic, b: &mut TcpNic, count: usize) -> (Vec<Reaped>, Vec<Reaped>) {
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    for _ in 0..count {
        a.reap(&mut of_a);
        b.reap(&mut of_b);
        std::thread::sleep(Duration::from_micros(50));
    }
    (of_a, of_b)
}

fn random_bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Sequence(seed);
    (0..len.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(len).collect()
}

fn at(bytes: &[u8], offset: u64) -> u64 {
    bytes.as_ptr() as u64 + offset
}

#[test]
fn writes_and_reads_of_all_shapes_complete() {
    pairs().into_iter().for_each(|(a, b)| all_shapes_arrive(a, b));
}

fn all_shapes_arrive(mut a: TcpNic, mut b: TcpNic) {
    let (source, mut target, mut back) = (random_bytes(LEN, 1), vec![0u8; LEN], vec![0u8; LEN]);
    let to = register(&mut b, &mut target);
    let route = link(&mut a, &mut b);
    for (len, count) in
        [(0u64, 1u64), (1, 1), (511, 1), (513, 3), (100, 300), (4096, 500), (65_537, 7), (LEN as u64, 1)]
    {
        target.fill(0);
        back.fill(0);
        // Local pages ascend, remote ones descend.
        let segments = |local: &[u8]| -> Vec<Segment> {
            let far = |i| at(&target, (count - 1 - i) * len);
            (0..count).map(|i| Segment { local: at(local, i * len), remote: far(i), len }).collect()
        };
        post(&mut a, route, &rma(false, &segments(&source), to.key), 1);
        assert_eq!(drive(&mut a, &mut b, 1), [(token(1), 0)]);
        for i in 0..count as usize {
            let (near, far) = (i * len as usize, (count as usize - 1 - i) * len as usize);
            assert!(source[near..][..len as usize] == target[far..][..len as usize], "{len} x {count}");
        }
        let whole = (len * count) as usize;
        assert!(target[whole..].iter().all(|byte| *byte == 0));
        post(&mut a, route, &rma(true, &segments(&back), to.key), 2);
        assert_eq!(drive(&mut a, &mut b, 1), [(token(2), 0)]);
        assert!(back[..whole] == source[..whole], "{len} x {count}, read");
        assert!(back[whole..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn operations_of_both_sides_complete_exactly_once() {
    pairs().into_iter().for_each(|(a, b)| operations_finish_once_each(a, b));
}

fn operations_finish_once_each(mut a: TcpNic, mut b: TcpNic) {
    let (mut ours, mut theirs) = (random_bytes(200_000, 2), random_bytes(200_000, 3));
    let (of_a, of_b) = (register(&mut a, &mut ours), register(&mut b, &mut theirs));
    // Both dial before either has progressed.
    let to_b = a.insert(b.address(), Some(PEER)).unwrap();
    let to_a = b.insert(a.address(), Some(PEER)).unwrap();
    introduce(&mut a, &mut b, to_b);
    introduce(&mut b, &mut a, to_a);
    let mut random = Sequence(4);
    let (mut done, mut others) = (Vec::new(), Vec::new());
    for n in 0..2000usize {
        let len = random.next() % 100_000;
        let segment =
            |local: &[u8], remote: &[u8]| Segment { local: at(local, 100_000), remote: at(remote, 0), len };
        post(&mut a, to_b, &rma(n % 3 == 0, &[segment(&ours, &theirs)], of_b.key), n);
        post(&mut b, to_a, &rma(n % 2 == 0, &[segment(&theirs, &ours)], of_a.key), n);
        if n % 50 == 0 {
            a.reap(&mut done);
            b.reap(&mut others);
        }
    }
    while done.len() < 2000 || others.len() < 2000 {
        a.reap(&mut done);
        b.reap(&mut others);
    }
    for finished in [done, others] {
        assert!(finished.iter().enumerate().all(|(n, one)| one.scratch == token(n) && one.errno == 0));
    }
}

#[test]
fn acknowledgement_waits_one_pass_for_a_request_to_join() {
    pairs().into_iter().for_each(|(a, b)| acknowledgement_waits(a, b));
}

fn acknowledgement_waits(mut a: TcpNic, mut b: TcpNic) {
    let (mut ours, mut theirs) = (random_bytes(64, 2), random_bytes(64, 3));
    let (of_a, of_b) = (register(&mut a, &mut ours), register(&mut b, &mut theirs));
    let segment =
        |local: &[u8], remote: &[u8]| [Segment { local: at(local, 0), remote: at(remote, 32), len: 8 }];
    let (there, back) = (segment(&ours, &theirs), segment(&theirs, &ours));
    let to_b = link(&mut a, &mut b);
    let to_a = b.insert(a.address(), Some(PEER)).unwrap();
    introduce(&mut b, &mut a, to_a);
    let (mut done, mut came) = (Vec::new(), Vec::new());
    let immediate = Immediate::new(5);
    for n in 0..20 {
        done.clear();
        came.clear();
        post(&mut a, to_b, &Rma { immediate, ..rma(false, &there, of_b.key) }, n);
        reap_until(&mut b, &mut came, |all| all.iter().any(|one| one.immediate.is_some()));
        if n == 19 {
            break;
        }
        post(&mut b, to_a, &Rma { immediate, ..rma(false, &back, of_a.key) }, n);
        reap_until(&mut a, &mut done, |all| all.len() == 2);
        assert_eq!(done[0].scratch, token(n), "the acknowledgement goes first");
    }
    std::thread::sleep(Duration::from_millis(5));
    a.reap(&mut done);
    assert!(done.is_empty(), "it was sent alone, though an answer followed 19 times");
    b.reap(&mut came);
    reap_until(&mut a, &mut done, |all| !all.is_empty());
    assert_eq!((done[0].scratch, done[0].errno), (token(19), 0));
}

fn reap_until(nic: &mut TcpNic, done: &mut Vec<Reaped>, enough: impl Fn(&[Reaped]) -> bool) {
    let began = Instant::now();
    while !enough(done) {
        nic.reap(done);
        assert!(began.elapsed() < Duration::from_secs(60), "{} came", done.len());
    }
}

#[test]
fn messages_wait_for_receives_and_stay_behind_writes() {
    pairs().into_iter().for_each(|(a, b)| messages_wait_for_receives(a, b));
}

fn messages_wait_for_receives(mut a: TcpNic, mut b: TcpNic) {
    let (source, mut target) = (random_bytes(100_000, 5), vec![0u8; 100_000]);
    let to = register(&mut b, &mut target);
    let route = link(&mut a, &mut b);
    let text = random_bytes(MESSAGE, 6);
    let segment = Segment { local: at(&source, 0), remote: at(&target, 0), len: 100_000 };
    let immediate = Immediate::new(77);
    post(&mut a, route, &Rma { immediate, ..rma(false, &[segment], to.key) }, 1);
    // SAFETY: the buffers outlive the NICs' operations.
    unsafe {
        let follows = |text: &[u8]| Buffer { follows: true, ..buffer(text) };
        assert_eq!(a.send(follows(&text), route, token(2)), Posted::Yes);
        assert_eq!(a.send(follows(&text[..MESSAGE - 1]), route, token(3)), Posted::Yes);
        assert_eq!(a.send(buffer(&[0; MESSAGE + 1]), route, token(4)), Posted::Failed(libc::EMSGSIZE));
    }
    let (of_a, of_b) = rounds(&mut a, &mut b, 200);
    assert_eq!(of_a.len(), 3, "a message is over when it was copied");
    assert_eq!(of_b.iter().map(|one| one.immediate).collect::<Vec<_>>(), [immediate]);
    assert!(target == source && b.wait_fd().is_some_and(|(_, may)| may), "it does not spin for a receive");
    let rooms = [vec![0u8; MESSAGE], vec![0u8; MESSAGE]];
    for (n, room) in rooms.iter().enumerate() {
        // SAFETY: the room and the token's scratch are never freed.
        assert_eq!(unsafe { b.receive(buffer(room), token(n)) }, Posted::Yes);
    }
    let (_, of_b) = rounds(&mut a, &mut b, 200);
    assert_eq!(of_b.iter().map(|one| one.len).collect::<Vec<_>>(), [MESSAGE as u32, MESSAGE as u32 - 1]);
    assert!(rooms[0] == text && rooms[1][..MESSAGE - 1] == text[..MESSAGE - 1]);
}

#[test]
fn idle_connection_frees_its_buffers() {
    let (mut a, mut b) = (open(), open());
    let (source, mut target) = (random_bytes(LEN, 5), vec![0u8; LEN]);
    let to = register(&mut b, &mut target);
    let route = link(&mut a, &mut b);
    let pages: Vec<Segment> = (0..64u64)
        .map(|i| Segment { local: at(&source, i << 12), remote: at(&target, i << 12), len: 4096 })
        .collect();
    for n in 0..400 {
        post(&mut a, route, &rma(n % 2 == 0, &pages, to.key), n);
    }
    let busy = a.held();
    drive(&mut a, &mut b, 400);
    assert!(busy > 400 * 64 * size_of::<Segment>());
    // Without a request, the next pass acknowledges everything, and the pass after it nothing new.
    let began = Instant::now();
    while a.held().max(b.held()) > 2000 {
        rounds(&mut a, &mut b, 10);
        a.tend();
        b.tend();
        assert!(began.elapsed() < Duration::from_secs(60), "{} and {} bytes", a.held(), b.held());
    }
    post(&mut a, route, &rma(false, &pages, to.key), 1);
    assert_eq!(drive(&mut a, &mut b, 1), [(token(1), 0)]);
}

/// A device gets the bytes of a request once all have arrived, at the places that its pieces say.
#[test]
fn idle_connection_keeps_the_pieces_of_what_is_arriving() {
    let mut nic = open();
    let mut target = vec![0u8; 64 << 10];
    let registered = register(&mut nic, &mut target);
    let mut one = proven(&mut nic, NAME, PEER);
    let (pieces, key) = (32u16, registered.key);
    let write = Request { kind: Kind::Write, pieces, len: 32 * 100, key, immediate: None, address: 0 };
    let list = (0..32).flat_map(|i| Piece { address: at(&target, 1000 * i), len: 100 }.bytes());
    let bytes: Vec<u8> = write.bytes().into_iter().chain(list).chain([7; 1600]).collect();
    one.0.write_all(&bytes).unwrap();
    let kept = |nic: &TcpNic| nic.connections.iter().flatten().map(|one| one.pieces()).sum::<usize>();
    let began = Instant::now();
    while kept(&nic) < 32 {
        nic.reap(&mut Vec::new());
        assert!(began.elapsed() < Duration::from_secs(60), "it does not arrive");
    }
    for _ in 0..10 {
        nic.looked_ns = 0;
        nic.tend();
        nic.reap(&mut Vec::new());
    }
    assert_eq!(kept(&nic), 32);
    one.0.write_all(&[7; 1600]).unwrap();
    while std::hint::black_box(&target)[31_099] != 7 {
        nic.reap(&mut Vec::new());
        assert!(began.elapsed() < Duration::from_secs(60), "the rest does not arrive");
    }
}

#[test]
fn write_to_unregistered_memory_fails_alone() {
    let (mut a, mut b) = (open(), open());
    let (source, mut target) = (random_bytes(200_000, 7), vec![0u8; 200_000]);
    // The last byte is not registered.
    let to = register(&mut b, &mut target[..199_999]);
    let route = link(&mut a, &mut b);
    let piece = |remote: u64, len| Segment { local: at(&source, 0), remote, len };
    let whole = piece(at(&target, 0), 199_999);
    for (n, (read, segments, key)) in [
        (false, vec![piece(at(&target, 0), 200_000)], to.key),
        (true, vec![piece(at(&target, 199_999), 1)], to.key),
        (false, vec![piece(at(&target, 0), 10), piece(8, 10)], to.key),
        (false, vec![piece(at(&target, 0), 10)], to.key ^ 1),
        (true, vec![piece(u64::MAX, 2)], to.key),
        (false, vec![piece(1 << 63, 10)], to.key),
        (true, vec![piece(at(&target, 0), 10), piece(at(&target, 0) ^ 1 << 63, 10)], to.key),
        // A piece without bytes has to be somewhere, too.
        (false, vec![piece(at(&target, 0), 10), piece(8, 0)], to.key),
    ]
    .into_iter()
    .enumerate()
    {
        let before = target[..].to_vec();
        post(&mut a, route, &rma(read, &segments, key), n);
        let refusal = if key == to.key { libc::EACCES } else { GONE };
        assert_eq!(drive(&mut a, &mut b, 1), [(token(n), refusal)], "{n}");
        let run = RUN as usize; // The earlier runs of a long write have arrived already.
        assert!(target[..] == before || n == 0 && target[run..] == before[run..], "{n}");
        post(&mut a, route, &rma(false, &[whole], to.key), 9);
        assert_eq!(drive(&mut a, &mut b, 1), [(token(9), 0)], "after {n}");
    }
    // Pieces may overlap each other.
    let twice = [piece(at(&target, 0), 10), piece(at(&target, 5), 10), piece(at(&target, 3), 0)];
    post(&mut a, route, &rma(false, &twice, to.key), 1);
    assert_eq!(drive(&mut a, &mut b, 1), [(token(1), 0)]);
    assert!(target[..5] == source[..5] && target[10..15] == source[5..10] && target[15] == source[15]);
}

/// Everything has arrived when a receive stops before such a page: no event follows.
#[test]
fn write_to_pages_that_are_gone_ends_without_another_event() {
    const PAGE: usize = 4096;
    let run = RUN as usize;
    let (mut a, mut b) = (open(), open());
    let source = random_bytes(16 * run, 7);
    let mut target = memmap2::MmapMut::map_anon(source.len()).unwrap();
    let to = register(&mut b, &mut target);
    let route = link(&mut a, &mut b);
    for end in (run..=target.len()).step_by(run) {
        // SAFETY: the page is of the mapping, and nothing but the NIC refers to it.
        let rc = unsafe { libc::mprotect(target.as_mut_ptr().add(end - PAGE).cast(), PAGE, libc::PROT_NONE) };
        assert_eq!(rc, 0);
    }
    let whole = Segment { local: at(&source, 0), remote: at(&target, 0), len: source.len() as u64 };
    post(&mut a, route, &rma(false, &[whole], to.key), 1);
    // (The kernel's next event would come after some 200 ms.)
    let (done, _) = rounds(&mut a, &mut b, 400);
    let done: Vec<_> = done.iter().map(|one| (one.scratch, one.errno)).collect();
    assert_eq!(done, [(token(1), GONE)]);
}

#[test]
fn no_write_lands_after_a_deregistration_or_reset() {
    for cut in [false, true] {
        let (mut a, mut b) = (open(), open());
        let (source, mut target) = (random_bytes(LEN, 8), vec![0u8; LEN]);
        let to = register(&mut b, &mut target);
        let back = b.insert(a.address(), Some(PEER)).unwrap();
        let route = link(&mut a, &mut b);
        rounds(&mut a, &mut b, 50);
        for n in 0..20 {
            let segment = Segment { local: at(&source, 0), remote: at(&target, 0), len: LEN as u64 };
            post(&mut a, route, &rma(n % 4 == 3, &[segment], to.key), n);
        }
        rounds(&mut a, &mut b, 3);
        if cut {
            b.reset(back);
        } else {
            b.deregister(to).unwrap();
        }
        let mark = random_bytes(LEN, 9);
        target.copy_from_slice(&mark);
        let done = drive(&mut a, &mut b, 20);
        rounds(&mut a, &mut b, 50);
        assert!(target == mark, "cut: {cut}");
        assert!(done.iter().rev().take(5).all(|one| one.1 == if cut { libc::ECONNRESET } else { GONE }));
    }
}

#[test]
fn disowned_memory_is_not_touched() {
    let (mut a, mut b) = (open(), open());
    let (mut source, mut target) = (random_bytes(LEN, 10), vec![0u8; LEN]);
    let to = register(&mut b, &mut target);
    let route = link(&mut a, &mut b);
    rounds(&mut a, &mut b, 50);
    let segment = Segment { local: at(&source, 0), remote: at(&target, 0), len: LEN as u64 };
    post(&mut a, route, &rma(false, &[segment], to.key), 0);
    post(&mut a, route, &rma(true, &[segment], to.key), 1);
    let before = source[..].to_vec();
    a.disown(&[token(0), token(1)]);
    source.fill(0xee);
    let mut done = drive(&mut a, &mut b, 2);
    done.sort();
    assert_eq!(done, [(token(0), 0), (token(1), 0)]);
    assert!(source.iter().all(|byte| *byte == 0xee), "the read went nowhere");
    assert!(
        target.iter().zip(&before).all(|(is, was)| is == was || *is == 0),
        "what was sent was the memory's"
    );
    // The data of this read is in flight.
    post(&mut a, route, &rma(true, &[segment], to.key), 2);
    rounds(&mut a, &mut b, 1);
    a.disown(&[token(2)]);
    source.fill(0xdd);
    drive(&mut a, &mut b, 1);
    assert!(source.iter().all(|byte| *byte == 0xdd));
}

#[test]
fn reset_connection_is_made_again() {
    let (mut a, mut b) = (open(), open());
    let (source, mut target) = (random_bytes(100_000, 11), vec![0u8; 100_000]);
    let to = register(&mut b, &mut target);
    for n in 0..20 {
        let back = b.insert(a.address(), Some(PEER)).unwrap();
        let route = link(&mut a, &mut b);
        let segment = Segment { local: at(&source, 0), remote: at(&target, 0), len: 100_000 };
        post(&mut a, route, &rma(false, &[segment], to.key), n);
        assert_eq!(drive(&mut a, &mut b, 1), [(token(n), 0)]);
        assert!(target == source);
        target.fill(0);
        if n % 2 == 0 {
            a.reset(route);
            b.reset(back);
        } else {
            b.reset(back);
            a.remove(route);
        }
    }
}

#[test]
fn connection_without_the_end_that_was_announced_waits() {
    let (mut a, mut b) = (open(), open());
    link(&mut a, &mut b);
    a.connections[0].as_mut().unwrap().heed(true, false, true);
    rounds(&mut a, &mut b, 10);
    assert!(a.connections[0].as_ref().is_some_and(|one| !one.has_work()));
}

/// An ended connection's socket stays open while a caller's thread has it.
#[test]
fn events_of_an_ended_socket_are_not_its_successors() {
    let (mut a, mut b, c) = (open(), open(), open());
    let route = link(&mut a, &mut b);
    let held = a.sockets_of(route);
    a.end(0, libc::ECONNABORTED);
    a.insert(c.address(), Some(THIEF)).unwrap();
    assert!(held.len() == 1 && a.connections[0].is_some());
    rounds(&mut a, &mut b, 200);
    assert!(b.connections.iter().all(Option::is_none), "it has seen the end, and has closed, too");
    assert!(!a.connections[0].as_ref().unwrap().has_closed());
}

#[test]
fn route_to_the_own_nic_works() {
    let mut nic = open();
    let mut bytes = random_bytes(200_000, 12);
    let registered = register(&mut nic, &mut bytes);
    let address = nic.address().to_vec();
    let route = nic.insert(&address, Some(PEER)).unwrap();
    let (text, room) = ([1u8; 8], [0u8; 8]);
    // SAFETY: both buffers live until the message has arrived.
    unsafe {
        assert_eq!(nic.receive(buffer(&room), token(3)), Posted::Yes);
        assert_eq!(nic.send(buffer(&text), route, token(4)), Posted::Yes);
    }
    let segment = Segment { local: at(&bytes, 0), remote: at(&bytes, 100_000), len: 100_000 };
    post(&mut nic, route, &rma(false, &[segment], registered.key), 5);
    let mut done: Vec<Reaped> = Vec::new();
    while !done.iter().any(|one| one.scratch == token(5)) {
        reap_believing(&mut nic, &mut done);
    }
    assert!(done.iter().all(|one| one.errno == 0) && bytes[..100_000] == bytes[100_000..]);
}

#[test]
fn missing_listener_fails_at_once() {
    let (mut a, b) = (open(), open());
    let address = b.address().to_vec();
    drop(b);
    let route = a.insert(&address, Some(PEER)).unwrap();
    let mut done = Vec::new();
    let byte = [0u8];
    // SAFETY: the byte outlives the operation.
    unsafe { a.send(buffer(&byte), route, token(1)) };
    while done.is_empty() {
        a.reap(&mut done);
    }
    assert_eq!((done[0].scratch, done[0].errno), (token(1), libc::ECONNREFUSED));
    assert!(a.is_gone(route));
}

/// No frame of an earlier session may follow over a new connection.
#[test]
fn ended_route_is_dialled_by_handshakes_only() {
    let mut a = open();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let route = a.insert(&[to_system(at), vec![7; 16]].concat(), Some(PEER)).unwrap();
    let text = random_bytes(100, 12);
    let fails = |a: &mut TcpNic, n| {
        // SAFETY: the text outlives the NIC.
        assert_eq!(unsafe { a.send(buffer(&text), route, token(n)) }, Posted::Yes);
        let (mut done, began) = (Vec::new(), Instant::now());
        while done.is_empty() {
            a.reap(&mut done);
            assert!(began.elapsed() < Duration::from_secs(60), "message {n} waits");
        }
        assert!(done.len() == 1 && done[0].scratch == token(n) && done[0].errno != 0);
    };
    drop(listener.accept().unwrap());
    fails(&mut a, 0);
    listener.set_nonblocking(true).unwrap();
    for n in 1..4 {
        fails(&mut a, n);
        rounds(&mut a, &mut open(), 20);
        assert!(listener.accept().is_err(), "it was dialled for what is no handshake");
    }
    a.redial(route);
    listener.set_nonblocking(false).unwrap();
    drop(listener.accept().unwrap());
    fails(&mut a, 4);
    // The system refuses to dial, as when a link is down.
    let nowhere = [to_system("10.255.255.1:9".parse().unwrap()), vec![7; 16]].concat();
    let undialled = a.insert(&nowhere, Some(PEER)).unwrap();
    for n in 5..7 {
        a.redial(undialled);
        // SAFETY: the text outlives the NIC, and the token's scratch is never freed.
        assert_eq!(unsafe { a.send(buffer(&text), undialled, token(n)) }, Posted::Yes);
        let mut done = Vec::new();
        a.reap(&mut done);
        assert!(done.len() == 1 && done[0].scratch == token(n) && done[0].errno != 0);
    }
}

// Ownership of connections.

/// Reaps, and treats every message as an authentication of the peer.
fn reap_believing(nic: &mut TcpNic, done: &mut Vec<Reaped>) {
    let from = done.len();
    nic.reap(done);
    let all: Vec<Connection> = done[from..].iter().map(|one| one.connection).collect();
    all.into_iter().for_each(|connection| nic.assign_connection(connection, PEER));
}

#[test]
fn unauthenticated_connection_reaches_no_memory() {
    pairs().into_iter().for_each(|(a, b)| unauthenticated_reaches_no_memory(a, b));
}

fn unauthenticated_reaches_no_memory(mut a: TcpNic, mut b: TcpNic) {
    let (mut source, mut target) = (vec![1u8; 4096], vec![2u8; 4096]);
    let (from, to) = (register(&mut a, &mut source), register(&mut b, &mut target));
    let route = a.insert(b.address(), Some(PEER)).unwrap();
    let (text, room) = ([1u8; 8], [0u8; 8]);
    // SAFETY: both buffers live until the message has arrived.
    unsafe {
        assert_eq!(b.receive(buffer(&room), token(3)), Posted::Yes);
        assert_eq!(a.send(buffer(&text), route, token(4)), Posted::Yes);
    }
    let half = |at_: u64| Segment { local: at(&source, at_), remote: at(&target, at_), len: 2048 };
    post(&mut a, route, &rma(false, &[half(0)], to.key), 1);
    post(&mut a, route, &rma(true, &[half(2048)], to.key), 2);
    let (of_a, of_b) = rounds(&mut a, &mut b, 200);
    assert!(of_a.len() == 1 && of_b.len() == 1, "the messages'");
    assert!(target.iter().all(|byte| *byte == 2) && source.iter().all(|byte| *byte == 1));
    b.assign_connection(of_b[0].connection, PEER);
    assert_eq!(drive(&mut a, &mut b, 2), [(token(1), 0), (token(2), 0)]);
    assert!(target[..2048].iter().all(|byte| *byte == 1) && source[2048..].iter().all(|byte| *byte == 2));
    // The dialled side has to authenticate, too.
    let forth = Segment { local: at(&target, 0), remote: at(&source, 0), len: 4096 };
    let back = b.insert(a.address(), Some(PEER)).unwrap();
    target.fill(3);
    // SAFETY: room and text outlive both NICs, and scratches of tokens are never freed.
    unsafe {
        assert_eq!(a.receive(buffer(&room), token(5)), Posted::Yes);
        assert_eq!(b.send(buffer(&text), back, token(6)), Posted::Yes);
    }
    post(&mut b, back, &rma(false, &[forth], from.key), 7);
    let (of_a, _) = rounds(&mut a, &mut b, 200);
    assert!(source.iter().all(|byte| *byte != 3) && of_a.len() == 1);
    a.assign_connection(of_a[0].connection, THIEF);
    rounds(&mut a, &mut b, 20);
    assert!(source.iter().all(|byte| *byte != 3), "another peer than was dialled");
    a.assign_connection(of_a[0].connection, PEER);
    assert_eq!(drive(&mut b, &mut a, 1), [(token(7), 0)]);
    assert!(source.iter().all(|byte| *byte == 3));
}

#[test]
fn memory_does_not_change_after_its_peer_ended() {
    for at_once in [true, false] {
        pairs().into_iter().for_each(|(a, b)| ended_peer_changes_nothing(a, b, at_once));
    }
}

fn ended_peer_changes_nothing(mut a: TcpNic, mut b: TcpNic, at_once: bool) {
    let (mut source, mut target) = (random_bytes(LEN, 14), vec![0u8; LEN]);
    let to = register(&mut b, &mut target);
    let whole = Segment { local: at(&source, 0), remote: at(&target, 0), len: LEN as u64 };
    let route = link(&mut a, &mut b);
    post(&mut a, route, &rma(false, &[whole], to.key), 1);
    assert_eq!(drive(&mut a, &mut b, 1), [(token(1), 0)]);
    // The peer ends while a write and a read are in flight.
    (2..6).for_each(|n| post(&mut a, route, &rma(n % 2 == 1, &[whole], to.key), n));
    let (mut done, mut others) = (Vec::new(), Vec::new());
    b.reap(&mut others);
    a.reap(&mut done);
    b.end_peer(PEER, at_once);
    let before = random_bytes(LEN, 15);
    target.copy_from_slice(&before);
    let mut ended = drive(&mut a, &mut b, 4 - done.len());
    ended.retain(|one| one.1 == 0);
    assert!(target == before && ended.is_empty(), "at once: {at_once}");
    // Nothing arrives later, or over another connection.
    let again = random_bytes(LEN, 16);
    source.copy_from_slice(&again);
    if !at_once {
        post(&mut a, route, &rma(false, &[whole], to.key), 6);
        post(&mut a, route, &rma(true, &[whole], to.key), 7);
        assert_eq!(drive(&mut a, &mut b, 2), [(token(6), libc::EACCES), (token(7), libc::EACCES)]);
        introduce(&mut a, &mut b, route);
        post(&mut a, route, &rma(false, &[whole], to.key), 8);
        assert_eq!(drive(&mut a, &mut b, 1), [(token(8), libc::EACCES)], "it does not come back");
    }
    a.reset(route);
    let route = a.insert(b.address(), Some(PEER)).unwrap();
    post(&mut a, route, &rma(false, &[whole], to.key), 9);
    let (of_a, _) = rounds(&mut a, &mut b, 200);
    assert!(target == before && source == again && of_a.is_empty(), "at once: {at_once}");
}

#[test]
fn reset_keeps_an_unauthenticated_connection() {
    let (mut a, mut b) = (open(), open());
    let (mut source, mut target) = (vec![1u8; 1000], vec![0u8; 1000]);
    let to = register(&mut b, &mut target);
    let back = b.insert(a.address(), Some(PEER)).unwrap();
    let first = link(&mut a, &mut b);
    // The peer has reset its end, and its next connection exists before ours is reset.
    a.reset(first);
    let next = a.insert(b.address(), Some(PEER)).unwrap();
    rounds(&mut a, &mut b, 50);
    b.reset(back);
    introduce(&mut a, &mut b, next);
    let segment = Segment { local: source.as_mut_ptr() as u64, remote: at(&target, 0), len: 1000 };
    post(&mut a, next, &rma(false, &[segment], to.key), 1);
    assert_eq!(drive(&mut a, &mut b, 1), [(token(1), 0)]);
    assert!(target == source);
}

/// A handshake counts for the connection that it came over, even if that has ended meanwhile.
#[test]
fn authentication_applies_to_one_connection() {
    let mut nic = open();
    let mut target = vec![0u8; 4096];
    let registered = register(&mut nic, &mut target);
    let (mut first, number) = speaker(&mut nic, NAME);
    first.0.shutdown(Shutdown::Write).unwrap();
    assert!(first.is_closed(&mut nic).0);
    let (mut second, _) = speaker(&mut nic, NAME);
    nic.assign_connection(number, PEER);
    second.0.write_all(&conversation(registered.key, &target)).unwrap();
    assert!(!second.is_closed(&mut nic).0 && target.iter().all(|byte| *byte == 0));
}

// Attackers.

struct Attacker(TcpStream);

fn target_of(nic: &TcpNic) -> (SocketAddr, [u8; 16]) {
    let (at, name) = nic.address().split_at(16);
    (socket::from_system(at).unwrap(), name.try_into().unwrap())
}

fn attacker(nic: &TcpNic) -> Attacker {
    let socket = TcpStream::connect(target_of(nic).0).unwrap();
    socket.set_nonblocking(true).unwrap();
    Attacker(socket)
}

/// An attacker that has sent its handshake and a message, over the connection with this number.
fn speaker(nic: &mut TcpNic, name: Name) -> (Attacker, Connection) {
    let mut one = attacker(nic);
    let handshake = Handshake { target: target_of(nic).1, initiator: name, beside: false };
    one.0.write_all(&[&handshake.bytes()[..], &message(&[9; 20])].concat()).unwrap();
    let (room, mut done) = ([0u8; 20], Vec::new());
    // SAFETY: the buffer lives until the message has arrived.
    assert_eq!(unsafe { nic.receive(buffer(&room), token(1)) }, Posted::Yes);
    while done.is_empty() {
        nic.reap(&mut done);
    }
    (one, done[0].connection)
}

/// It is also a peer.
fn proven(nic: &mut TcpNic, name: Name, peer: PeerId) -> Attacker {
    let (one, number) = speaker(nic, name);
    nic.assign_connection(number, peer);
    one
}

fn message(text: &[u8]) -> Vec<u8> {
    let len = text.len() as u32;
    let header = Request { kind: Kind::Message, pieces: 1, len, key: 0, immediate: None, address: 0 };
    [&header.bytes()[..], text].concat()
}

impl Attacker {
    /// Whether the NIC has closed the connection, and the bytes that it sent.
    fn is_closed(&mut self, nic: &mut TcpNic) -> (bool, Vec<u8>) {
        let mut said = Vec::new();
        for _ in 0..200 {
            nic.reap(&mut Vec::new());
            let mut room = [0; 4096];
            match self.0.read(&mut room) {
                Ok(0) => return (true, said),
                Ok(len) => said.extend(&room[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return (true, said),
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        (false, said)
    }
}

fn handshake(nic: &TcpNic) -> Vec<u8> {
    Handshake { target: target_of(nic).1, initiator: NAME, beside: false }.bytes().to_vec()
}

/// It is whose that announced it, over a connection of its own, and is accepted once.
#[test]
fn connection_beside_another_is_accepted_after_its_announcement() {
    let mut nic = open();
    let beside = Handshake { target: target_of(&nic).1, initiator: [7; 16], beside: true }.bytes();
    let accepted = Answer::Accepted.bytes().to_vec();
    let (mut other, number) = speaker(&mut nic, NAME);
    other.0.write_all(&Request::beside(&[7; 16]).bytes()).unwrap();
    let mut early = attacker(&nic);
    early.0.write_all(&beside).unwrap();
    assert_eq!(early.is_closed(&mut nic), (false, Vec::new()), "nobody has authenticated over that one");
    assert_eq!(other.is_closed(&mut nic).1[..16], accepted);
    nic.assign_connection(number, PEER);
    assert_eq!(early.is_closed(&mut nic), (false, accepted.clone()));
    let mut late = attacker(&nic);
    late.0.write_all(&beside).unwrap();
    assert_eq!(late.is_closed(&mut nic), (false, Vec::new()), "its name was used");
    other.0.write_all(&Request::beside(&[7; 16]).bytes()).unwrap();
    assert_eq!(late.is_closed(&mut nic), (false, accepted), "announced again");
    assert!(early.is_closed(&mut nic).0, "a new one takes its place");
    drop(other);
    assert!(late.is_closed(&mut nic).0, "both end together");
}

#[test]
fn connection_must_name_the_nic() {
    let mut nic = open();
    let mut wrong = handshake(&nic);
    wrong[16] ^= 1;
    let mut version = handshake(&nic);
    version[8] += 1;
    let elsewhere = Answer::Failed { number: 0, errno: ANOTHER as u32 }.bytes().to_vec();
    for (bytes, answer) in [
        (wrong, elsewhere),
        (version, Vec::new()),
        (vec![0; 64], Vec::new()),
        (b"GET / HTTP/1.1\r\nHost: somebody\r\nAccept: everything at all\r\n\r\n".to_vec(), Vec::new()),
    ] {
        let mut one = attacker(&nic);
        one.0.write_all(&bytes).unwrap();
        assert_eq!(one.is_closed(&mut nic), (true, answer));
    }
    let mut silent: Vec<Attacker> = (0..400).map(|_| attacker(&nic)).collect();
    let closed = silent.iter_mut().take(100).filter(|one| {
        nic.reap(&mut Vec::new());
        one.0.set_nonblocking(true).is_ok()
    });
    assert_eq!(closed.count(), 100);
    while !silent[0].is_closed(&mut nic).0 {
        nic.tend(); // The oldest connection is replaced once its time has passed.
    }
    assert!(!silent[399].is_closed(&mut nic).0);
}

/// The host with the most connections without a peer gives up its oldest ones once their time has
/// passed; no connection without a peer lasts more than 5 s.
#[test]
fn unauthenticated_connections_are_bounded_by_host_and_time() {
    const MOST: usize = UNAUTHENTICATED_MOST;
    let (mut nic, time) = (open(), Arc::new(Virtual::new(1)));
    nic.clock = Clock::Virtual(time.clone());
    let host = |last: u8| IpAddr::from([127, 0, 0, last]);
    let counts = |nic: &TcpNic| {
        let count =
            |last| nic.connections.iter().flatten().filter(|one| one.host() == Some(host(last))).count();
        (count(1), count(2))
    };
    let pass = |nic: &mut TcpNic, ns: u64| {
        time.step(time.now() + ns);
        for _ in 0..MOST {
            nic.tend();
            nic.reap(&mut Vec::new());
        }
        counts(nic)
    };
    let _many: Vec<Attacker> = (0..MOST).map(|_| attacker(&nic)).collect();
    assert_eq!(pass(&mut nic, 0), (MOST, 0));
    let from =
        |last| socket::connect((host(last), 0).into(), target_of(&nic).0, 0, &Options::default()).unwrap();
    let _few = [from(2), from(2), from(2)];
    assert_eq!(pass(&mut nic, TIME_NS / 2), (MOST, 0), "each has some time");
    assert_eq!(pass(&mut nic, TIME_NS), (MOST - 3, 3));
    let _more: Vec<Attacker> = (0..100).map(|_| attacker(&nic)).collect();
    assert_eq!(pass(&mut nic, TIME_NS), (MOST - 3, 3), "others of the host make room");
    assert_eq!(pass(&mut nic, UNAUTHENTICATED_NS + 1), (0, 0));
    assert_eq!(nic.sockets().len(), 1);
}

#[test]
fn thousand_simultaneous_connections_are_all_served() {
    const COUNT: usize = 1000;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls read and raise this process's own limit.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_cur.max(limit.rlim_max.min(2 * COUNT as u64 + 500));
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    let mut nic = open();
    let mut all: Vec<Attacker> = (0..COUNT)
        .map(|n| {
            let (mut one, mut name) = (attacker(&nic), NAME);
            name[..8].copy_from_slice(&(n as u64 + 1).to_le_bytes());
            let handshake = Handshake { target: target_of(&nic).1, initiator: name, beside: false };
            one.0.write_all(&[&handshake.bytes()[..], &message(&n.to_le_bytes())].concat()).unwrap();
            one
        })
        .collect();
    let (room, mut met, began) = ([0u8; 8], 0, Instant::now());
    while met < COUNT as u64 {
        let mut done = Vec::new();
        // SAFETY: the buffer outlives the NIC.
        while unsafe { nic.receive(buffer(&room), token(1)) } == Posted::Yes {}
        nic.reap(&mut done);
        nic.tend();
        for one in done.iter().filter(|one| one.connection != 0) {
            met += 1;
            nic.assign_connection(one.connection, PeerId::numbered(met + 10));
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{met} have come");
    }
    rounds(&mut nic, &mut open(), 10);
    assert!(all.iter_mut().all(|one| one.0.read(&mut [0; 64]).is_ok_and(|len| len >= ANSWER)));
}

/// An attacker under another's name receives nothing that is meant for the owner of the name, and
/// takes nothing from it, even if the attacker is a peer itself.
#[test]
fn claimed_name_diverts_nothing() {
    for (first, proves) in [(true, false), (false, false), (true, true), (false, true)] {
        let (mut a, mut b) = (open(), open());
        let (source, mut target) = (random_bytes(1000, 13), vec![0u8; 1000]);
        let to = register(&mut a, &mut target);
        let claim = |a: &TcpNic, b: &mut TcpNic| {
            let (mut thief, number) = speaker(b, target_of(a).1);
            if proves {
                b.assign_connection(number, THIEF);
            }
            assert_eq!(
                thief.is_closed(b),
                (false, [Answer::Accepted, Answer::Done(1)].map(|it| it.bytes()).concat())
            );
            thief
        };
        let thief = if first { Some(claim(&a, &mut b)) } else { None };
        let there = link(&mut a, &mut b);
        let mut thief = thief.unwrap_or_else(|| claim(&a, &mut b));
        let back = b.insert(a.address(), Some(PEER)).unwrap();
        introduce(&mut b, &mut a, back);
        let segment = Segment { local: at(&source, 0), remote: at(&target, 0), len: 1000 };
        post(&mut b, back, &rma(false, &[segment], to.key), 1);
        assert_eq!(drive(&mut b, &mut a, 1), [(token(1), 0)]);
        assert!(target == source, "claimed first: {first}, is a peer: {proves}");
        let empty = Segment { local: at(&source, 0), remote: at(&target, 0), len: 0 };
        let sound = |a: &mut TcpNic, b: &mut TcpNic| {
            post(a, there, &rma(false, &[empty], 0), 2);
            assert_eq!(drive(a, b, 1)[0].1, GONE, "only that memory is not there");
        };
        sound(&mut a, &mut b);
        assert_eq!(thief.is_closed(&mut b), (false, Vec::new()), "it hears nothing");
        if proves {
            // A route to the name that is also in the attacker's address: its end is not the end of
            // the other.
            let route = b.insert(a.address(), Some(THIEF)).unwrap();
            b.reset(route);
            assert!(thief.is_closed(&mut b).0);
            b.end_peer(THIEF, true);
            sound(&mut a, &mut b);
            post(&mut b, back, &rma(false, &[segment], to.key), 3);
            assert_eq!(drive(&mut b, &mut a, 1), [(token(3), 0)]);
        }
    }
}

/// The limit holds for any number of NICs that the peer claims.
#[test]
fn peer_has_a_bounded_number_of_connections() {
    const MOST: usize = crate::wire::address::RAILS_MAX;
    let mut nic = open();
    let mut other = proven(&mut nic, NAME, PEER);
    let names = 0..MOST as u8 + 20;
    let mut all: Vec<Attacker> = names.map(|name| proven(&mut nic, [name + 2; 16], THIEF)).collect();
    let open = all.iter_mut().filter_map(|one| (!one.is_closed(&mut nic).0).then_some(())).count();
    assert_eq!(open, MOST);
    assert!(!all.pop().unwrap().is_closed(&mut nic).0 && !other.is_closed(&mut nic).0);
}

#[test]
fn attacker_is_answered_over_its_own_connection() {
    let (mut b, a) = (open(), open());
    let (mut one, number) = speaker(&mut b, NAME);
    let answer = b.insert_caller(a.address(), number).unwrap();
    let text = [5u8; 7];
    // SAFETY: the text outlives the NIC.
    unsafe { b.send(buffer(&text), answer, token(4)) };
    b.remove(answer);
    let (_, said) = one.is_closed(&mut b);
    assert!(said.windows(7).any(|bytes| *bytes == text), "{said:?}");
    assert!(b.insert_caller(a.address(), 0).is_err());
    drop(one);
    rounds(&mut b, &mut open(), 50);
    assert!(b.insert_caller(a.address(), number).is_err());
}

#[test]
fn answers_resume_when_the_peer_reads_again() {
    const COUNT: usize = 1500;
    let (mut b, a) = (open(), open());
    let (one, number) = speaker(&mut b, NAME);
    let answer = b.insert_caller(a.address(), number).unwrap();
    let text = random_bytes(MESSAGE, 17);
    // It reads nothing: most answers wait. SAFETY: the text outlives the NIC.
    (0..COUNT).for_each(|n| assert_eq!(unsafe { b.send(buffer(&text), answer, token(n)) }, Posted::Yes));
    let mut done = Vec::new();
    b.reap(&mut done);
    assert!(done.len() < COUNT);
    b.remove(answer);
    let others: Vec<Attacker> = (0..300).map(|_| attacker(&b)).collect();
    let began = Instant::now();
    while done.len() < COUNT {
        b.reap(&mut done);
        b.tend();
        assert!(began.elapsed() < Duration::from_secs(60), "{} of {COUNT} came back", done.len());
    }
    drop((one, others));
}

/// A valid stream: a write in two pieces, a read, a message.
fn conversation(key: u64, target: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let write = Request { kind: Kind::Write, pieces: 2, len: 300, key, immediate: None, address: 0 };
    bytes.extend(write.bytes());
    for (i, len) in [(0, 100), (1, 200)] {
        bytes.extend(Piece { address: at(target, 1000 * i), len }.bytes());
    }
    bytes.extend([7u8; 300]);
    let read = Request { kind: Kind::Read, pieces: 1, len: 50, key, immediate: None, address: at(target, 0) };
    bytes.extend(read.bytes());
    bytes.extend(message(&[9; 20]));
    bytes
}

#[test]
fn stream_may_be_split_or_end_at_any_byte() {
    let mut nic = open();
    let mut target = vec![0u8; 4096];
    let registered = register(&mut nic, &mut target);
    let whole = [handshake(&nic), message(&[8; 20]), conversation(registered.key, &target)].concat();
    let room = vec![0u8; MESSAGE];
    let answers: Vec<u8> =
        [&Answer::Accepted.bytes()[..], &Answer::Data { number: 2, len: 50 }.bytes(), &[7; 50]].concat();
    for split in 1..whole.len() {
        target.fill(0);
        // SAFETY: the buffer outlives the NIC.
        (0..2).for_each(|_| _ = unsafe { nic.receive(buffer(&room), token(split)) });
        let mut one = attacker(&nic);
        one.0.write_all(&whole[..split]).unwrap();
        for _ in 0..20 {
            reap_believing(&mut nic, &mut Vec::new());
        }
        if split % 2 == 0 {
            // The connection ends: the NIC continues with others.
            drop(one);
            continue;
        }
        one.0.write_all(&whole[split..]).unwrap();
        for _ in 0..20 {
            reap_believing(&mut nic, &mut Vec::new());
        }
        let (closed, said) = one.is_closed(&mut nic);
        assert!(!closed, "split at {split}");
        let data = said.windows(answers.len() - ANSWER).any(|at| *at == answers[ANSWER..]);
        assert!(data && said.starts_with(&answers[..ANSWER]), "split at {split}: {said:?}");
        assert!(target[..100].iter().chain(&target[1000..1200]).all(|byte| *byte == 7));
        assert!(target[100..1000].iter().chain(&target[1200..]).all(|byte| *byte == 0));
    }
}

/// The ways in which a connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// The peer has closed its sending direction, and still reads.
    Half,
    Whole,
    Reset,
}

const ENDS: [End; 3] = [End::Half, End::Whole, End::Reset];

/// The socket, if it is not closed.
fn end(socket: TcpStream, how: End) -> Option<TcpStream> {
    match how {
        End::Half => socket.shutdown(Shutdown::Write).unwrap(),
        End::Whole => {}
        End::Reset => {
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            let (at, len) = ((&raw const linger).cast(), size_of_val(&linger) as u32);
            // SAFETY: the socket is open, and the option outlives the call.
            let rc =
                unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, at, len) };
            assert_eq!(rc, 0);
        }
    }
    (how == End::Half).then_some(socket)
}

/// Requests that were complete before a peer ended count, and no others.
#[test]
fn peer_may_disconnect_at_each_byte() {
    let (mut nic, room) = (open(), [0u8; 64]);
    let mut target = vec![0u8; 4096];
    let registered = register(&mut nic, &mut target);
    let first = [handshake(&nic), message(&[8; 20])].concat();
    let write = Request {
        kind: Kind::Write,
        pieces: 1,
        len: 60,
        key: registered.key,
        immediate: Immediate::new(5),
        address: at(&target, 100),
    };
    let read = Request { kind: Kind::Read, immediate: None, ..write };
    let rest = [&write.bytes()[..], &[7; 60], &read.bytes(), &message(&[9; 20])].concat();
    let written = first.len() + 92;
    for (until, how) in (1..=first.len() + rest.len()).flat_map(|until| ENDS.map(|how| (until, how))) {
        target.fill(0);
        // SAFETY: the buffer outlives the NIC.
        (0..2).for_each(|_| _ = unsafe { nic.receive(buffer(&room), token(1)) });
        let mut one = attacker(&nic);
        let mut done = Vec::new();
        one.0.write_all(&first[..until.min(first.len())]).unwrap();
        (0..10).for_each(|_| reap_believing(&mut nic, &mut done));
        one.0.write_all(&rest[..until.saturating_sub(first.len())]).unwrap();
        (0..2).for_each(|_| _ = nic.reap(&mut done));
        let socket = end(one.0, how);
        (0..20).for_each(|_| _ = nic.reap(&mut done));
        let arrivals = done.iter().filter(|one| one.immediate.is_some()).count();
        let whole = usize::from(until >= written);
        assert!(arrivals == whole || how == End::Reset && arrivals < whole, "{until}, {how:?}: {arrivals}");
        assert!(target[..100].iter().chain(&target[160..]).all(|byte| *byte == 0), "{until}, {how:?}");
        assert!(arrivals == 0 || target[100..160] == [7; 60]);
        assert!(socket.is_none_or(|socket| Attacker(socket).is_closed(&mut nic).0), "{until}");
    }
}

/// Each operation comes back once, successfully if its answer was complete.
#[test]
fn target_may_disconnect_at_each_byte() {
    let (source, back) = (random_bytes(1000, 18), vec![0u8; 50]);
    let (accepted, done, data) = (Answer::Accepted, Answer::Done(1), Answer::Data { number: 1, len: 50 });
    let answers = [&accepted.bytes()[..], &done.bytes(), &data.bytes(), &[6; 50]].concat();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut nic = open();
    for (until, how) in (0..=answers.len()).flat_map(|until| ENDS.map(|how| (until, how))) {
        let address = [to_system(listener.local_addr().unwrap()), vec![7; 16]].concat();
        let route = nic.insert(&address, Some(PEER)).unwrap();
        let near = |bytes: &[u8]| Segment { local: at(bytes, 0), remote: 0, len: bytes.len() as u64 };
        post(&mut nic, route, &rma(false, &[near(&source)], 1), 1);
        post(&mut nic, route, &rma(true, &[near(&back)], 1), 2);
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let (mut finished, mut came, began) = (Vec::new(), 0, Instant::now());
        socket.write_all(&answers[..until.min(ANSWER)]).unwrap();
        // Its requests, if the handshake was accepted.
        let asked = HANDSHAKE + if until < ANSWER { 0 } else { 1000 + 2 * REQUEST };
        while came < asked && began.elapsed() < Duration::from_secs(60) {
            nic.reap(&mut finished);
            came += socket.read(&mut [0; 4096]).unwrap_or(0);
        }
        assert_eq!(came, asked, "{until}, {how:?}");
        socket.write_all(&answers[until.min(ANSWER)..until]).unwrap();
        (0..2).for_each(|_| _ = nic.reap(&mut finished));
        let socket = end(socket, how);
        while finished.len() < 2 && began.elapsed() < Duration::from_secs(60) {
            nic.reap(&mut finished);
        }
        (0..5).for_each(|_| _ = nic.reap(&mut finished));
        let ended = |n| finished.iter().filter(|one| one.scratch == token(n)).collect::<Vec<_>>();
        for (n, whole) in [(1, until >= 2 * ANSWER), (2, until == answers.len())] {
            let [one] = ended(n)[..] else {
                panic!("{until}, {how:?}: operation {n} came back {} times", ended(n).len())
            };
            assert!(
                (one.errno == 0) == whole || how == End::Reset && !whole,
                "{until}, {how:?}: {n}: {}",
                one.errno
            );
        }
        assert_eq!(finished.len(), 2);
        nic.remove(route);
        drop(socket);
    }
}

/// A request that is not sent cannot be done: its memory would be sent after its caller has it back.
#[test]
fn answer_to_what_was_not_sent_ends_the_connection() {
    let source = vec![0u8; 10 * LEN];
    for early in [false, true] {
        let mut nic = open();
        let (mut socket, number) = speaker(&mut nic, NAME);
        let route = nic.insert_caller(&[], number).unwrap();
        (0..20).for_each(|_| _ = nic.reap(&mut Vec::new()));
        while socket.0.read(&mut [0; 64]).is_ok() {}
        // One that is sent as a whole, and far more than sockets take.
        for (n, len) in [(1, 4096), (2, source.len() as u64)] {
            let segment = Segment { local: at(&source, 0), remote: 0, len };
            post(&mut nic, route, &rma(false, &[segment], 1), n);
        }
        let mut done = Vec::new();
        let mut before = 0;
        while std::mem::replace(&mut before, waiting(&nic, &socket.0)) != before || before == 0 {
            (0..20).for_each(|_| _ = nic.reap(&mut done));
            std::thread::sleep(Duration::from_millis(1));
        }
        let sent = 1 + (before - REQUEST - 4096) as u64 / (RUN + REQUEST as u64);
        let requests = sent + u64::from(early);
        socket.0.write_all(&Answer::Done(requests).bytes()).unwrap();
        (0..50).for_each(|_| _ = nic.reap(&mut done));
        let ended: Vec<_> = done.iter().map(|one| (one.scratch, one.errno)).collect();
        match early {
            true => assert!(ended.len() == 2 && ended[1] == (token(2), libc::EPROTO), "{ended:?}"),
            false => assert_eq!(ended, [(token(1), 0)]),
        }
    }
}

/// It does not slow others down, and gets at most its share of answers.
fn bytes_of(socket: BorrowedFd, what: libc::c_ulong) -> usize {
    let mut bytes = 0i32;
    // SAFETY: the buffer has space for the number.
    assert_eq!(unsafe { libc::ioctl(socket.as_raw_fd(), what as _, &raw mut bytes) }, 0);
    bytes as usize
}

/// Bytes that the system holds for a connection: sent but not acknowledged, and received but not
/// read.
fn waiting(sender: &TcpNic, receiver: &TcpStream) -> usize {
    bytes_of(sender.sockets()[1], libc::TIOCOUTQ) + bytes_of(receiver.as_fd(), libc::FIONREAD)
}

/// Bytes that the system has not sent.
fn unsent(sender: &TcpNic) -> usize {
    const SIOCOUTQNSD: libc::c_ulong = 0x894b;
    bytes_of(sender.sockets()[1], SIOCOUTQNSD)
}

/// Behind writes, and behind the data of the other side's reads.
#[test]
fn message_waits_for_at_most_256_kib() {
    const MARK: [u8; 25] = *b"overtakes what was posted";
    let mut source = vec![0u8; LEN];
    for (reads, page) in [(false, 4096), (false, LEN), (true, 16 << 10), (true, RUN as usize)] {
        let mut nic = open();
        let (mut socket, number) = speaker(&mut nic, NAME);
        nic.assign_connection(number, PEER);
        let route = nic.insert_caller(&[], number).unwrap();
        let whole = 10 * LEN;
        if reads {
            let key = register(&mut nic, &mut source).key;
            let (len, address) = (page as u32, at(&source, 0));
            let read = Request { kind: Kind::Read, pieces: 1, len, key, immediate: None, address };
            for _ in 0..whole / page / 32 {
                socket.0.write_all(&read.bytes().repeat(32)).unwrap();
                nic.reap(&mut Vec::new());
            }
        } else {
            let pages: Vec<Segment> = (0..LEN / page)
                .map(|i| Segment { local: at(&source, (i * page) as u64), remote: 0, len: page as u64 })
                .collect();
            for n in 0..10 {
                pages.chunks(PIECES).for_each(|some| post(&mut nic, route, &rma(false, some, 1), n));
            }
        }
        // Post until the sockets are full.
        let mut before = 0;
        while std::mem::replace(&mut before, waiting(&nic, &socket.0)) != before || before == 0 {
            (0..20).for_each(|_| _ = nic.reap(&mut Vec::new()));
            std::thread::sleep(Duration::from_millis(1));
        }
        // One call may exceed the limit, by one packet.
        assert!(unsent(&nic) <= UNSENT as usize + (64 << 10), "{} bytes are unsent", unsent(&nic));
        // SAFETY: the bytes are copied, or the NIC ends first.
        assert_eq!(unsafe { nic.send(buffer(&MARK), route, token(1)) }, Posted::Yes);
        let (mut came, mut room) = (Vec::new(), vec![0; 1 << 20]);
        while came.len() < whole {
            nic.reap(&mut Vec::new());
            let len = socket.0.read(&mut room).unwrap_or(0);
            came.extend_from_slice(&room[..len]);
        }
        let at = came.windows(MARK.len()).position(|some| some == MARK).unwrap_or(whole);
        assert!(before + (1 << 20) < whole, "the sockets take {before} bytes, nothing has to wait");
        assert!(at <= before + (256 << 10), "{page}, reads: {reads}: {at} bytes came first, {before} had to");
    }
}

#[test]
fn peer_that_reads_slowly_delays_no_other() {
    let (mut a, mut b) = (open(), open());
    let (source, mut target) = (random_bytes(LEN, 19), vec![0u8; LEN]);
    let to = register(&mut b, &mut target);
    let route = link(&mut a, &mut b);
    let segment = Segment { local: at(&source, 0), remote: at(&target, 0), len: 10_000 };
    // Count passes, not time, which other programs use, too.
    let passes = |a: &mut TcpNic, b: &mut TcpNic, each: &mut dyn FnMut()| {
        let mut passes = 0;
        for n in 0..300 {
            post(a, route, &rma(n % 2 == 1, &[segment], to.key), n);
            let mut done = Vec::new();
            while done.is_empty() {
                a.reap(&mut done);
                b.reap(&mut Vec::new());
                passes += 1;
            }
            assert_eq!(done[0].errno, 0);
            each();
        }
        passes
    };
    let alone = passes(&mut a, &mut b, &mut || ());
    let mut slow = proven(&mut b, NAME, THIEF);
    let read = Request {
        kind: Kind::Read,
        pieces: 1,
        len: 60_000,
        key: to.key,
        immediate: None,
        address: at(&target, 0),
    };
    slow.0.write_all(&read.bytes().repeat(4000)).unwrap();
    let beside = passes(&mut a, &mut b, &mut || _ = slow.0.read(&mut [0; 1]));
    assert!(beside <= 2 * alone + 300, "{beside} passes beside it, {alone} without");
    // And a peer that sends its write one byte at a time.
    let mut drips = proven(&mut b, [2; 16], THIEF);
    let write = Request { kind: Kind::Write, len: 250, ..read };
    let bytes = [&write.bytes()[..], &[0; 250]].concat();
    let mut said = bytes.iter();
    let beside = passes(&mut a, &mut b, &mut || {
        if let Some(byte) = said.next() {
            drips.0.write_all(&[*byte]).unwrap();
        }
    });
    assert!(said.next().is_none() && beside <= 2 * alone + 300, "{beside} passes beside it, {alone} without");
    // More requests than an honest peer has in flight.
    slow.0.set_nonblocking(true).unwrap();
    let asked = (0..20_000).take_while(|_| {
        b.reap(&mut Vec::new());
        !matches!(slow.0.write(&read.bytes()), Err(error) if error.kind() != std::io::ErrorKind::WouldBlock)
    });
    let asked = asked.count();
    assert!(asked < 20_000, "{asked} more requests, and it is still there");
    passes(&mut a, &mut b, &mut || ());
}

#[test]
fn malformed_request_ends_only_its_connection() {
    let mut nic = open();
    let mut target = vec![0u8; 4096];
    let registered = register(&mut nic, &mut target);
    let right = Request {
        kind: Kind::Write,
        pieces: 1,
        len: 8,
        key: registered.key,
        immediate: None,
        address: at(&target, 0),
    };
    let with = |at: usize, value: u8| {
        let mut bytes = right.bytes();
        bytes[at] = value;
        [&bytes[..], &[1; 64]].concat()
    };
    let lists = Request { pieces: 2, len: 8, ..right };
    let lies = [lists.bytes().to_vec(), vec![0xff; 24], vec![1; 64]].concat();
    let answer = |answer: Answer| [&answer.bytes()[..], &[0; 64]].concat();
    for bytes in [
        with(0, 0),
        with(0, 9),
        with(1, 1),
        with(2, 0),
        with(3, PIECES as u8 / 2 + 2),
        with(6, (RUN >> 16) as u8 + 1),
        with(20, 1),
        lies,
        answer(Answer::Done(1)),
        answer(Answer::Done(u64::MAX)),
        answer(Answer::Data { number: 0, len: 8 }),
        answer(Answer::Failed { number: 0, errno: 5 }),
        answer(Answer::Accepted),
    ] {
        let mut one = proven(&mut nic, NAME, PEER);
        one.0.write_all(&bytes).unwrap();
        assert!(one.is_closed(&mut nic).0, "{bytes:02x?}");
        assert!(target.iter().all(|byte| *byte == 0));
    }
    let mut one = proven(&mut nic, NAME, PEER);
    one.0.write_all(&conversation(registered.key, &target)).unwrap();
    assert!(!one.is_closed(&mut nic).0);
}

// Encryption.

/// Relays between an initiator and a target, with byte `flip` from the initiator corrupted; records
/// what both have sent.
struct Between {
    listener: TcpListener,
    to: SocketAddr,
}

impl Between {
    fn new(nic: &TcpNic) -> (Between, Vec<u8>) {
        let (to, name) = target_of(nic);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = [to_system(listener.local_addr().unwrap()), name.to_vec()].concat();
        (Between { listener, to }, address)
    }

    fn start(self, flip: Option<usize>) -> JoinHandle<Vec<u8>> {
        // Connect now: the target may be gone by the time the thread runs.
        let theirs = TcpStream::connect(self.to).unwrap();
        std::thread::spawn(move || {
            let (ours, _) = self.listener.accept().unwrap();
            let copy = |mut from: TcpStream, mut to: TcpStream, flip: Option<usize>| {
                let (mut heard, mut buffer) = (Vec::new(), [0; 4096]);
                while let Ok(len @ 1..) = from.read(&mut buffer) {
                    let at = flip.and_then(|flip| flip.checked_sub(heard.len()));
                    if let Some(byte) = at.and_then(|at| buffer[..len].get_mut(at)) {
                        *byte ^= 1;
                    }
                    heard.extend_from_slice(&buffer[..len]);
                    if to.write_all(&buffer[..len]).is_err() {
                        break;
                    }
                }
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                heard
            };
            let (back, forth) = (theirs.try_clone().unwrap(), ours.try_clone().unwrap());
            let answers = std::thread::spawn(move || copy(back, forth, None));
            let mut heard = copy(ours, theirs, flip);
            heard.extend(answers.join().unwrap());
            heard
        })
    }
}

#[test]
fn encrypted_connections_reveal_nothing() {
    let (mut a, mut b) = (open_sealed(&[SECRET]), open_sealed(&[SECRET]));
    let (source, mut target) = (vec![b'x'; 300_000], vec![0u8; 300_000]);
    let to = register(&mut b, &mut target);
    let (between, address) = Between::new(&b);
    let heard = between.start(None);
    let route = a.insert(&address, Some(PEER)).unwrap();
    introduce(&mut a, &mut b, route);
    let segment = Segment { local: at(&source, 0), remote: at(&target, 0), len: 300_000 };
    post(&mut a, route, &rma(false, &[segment], to.key), 1);
    assert_eq!(drive(&mut a, &mut b, 1), [(token(1), 0)]);
    assert!(target == source);
    drop((a, b));
    let heard = heard.join().unwrap();
    assert!(heard.len() > 300_000);
    let shows = |text: &[u8]| heard.windows(text.len()).any(|bytes| bytes == text);
    assert!(!shows(b"xxxx") && !shows(&to.key.to_le_bytes()) && !shows(b"WEFT"));
}

#[test]
fn corrupted_record_ends_the_connection_and_writes_nothing() {
    let (source, mut target) = (vec![b'x'; 50_000], vec![0u8; 50_000]);
    // In the handshake, and in the two records of the write: length, text, tag.
    for (flip, most) in
        [(0, 0), (1, 0), (7, 0), (50, 0), (105, 0), (106, 0), (107, 0), (200, 0), (40_000, 40_000)]
    {
        target.fill(0);
        let (mut a, mut b) = (open_sealed(&[SECRET]), open_sealed(&[SECRET]));
        let to = register(&mut b, &mut target);
        let (between, address) = Between::new(&b);
        let heard = between.start(Some(flip));
        let route = a.insert(&address, Some(PEER)).unwrap();
        let segment = Segment { local: at(&source, 0), remote: at(&target, 0), len: 50_000 };
        post(&mut a, route, &rma(false, &[segment], to.key), 1);
        // A corrupted length may make the target wait for bytes that never come.
        let (mut of_a, _) = rounds(&mut a, &mut b, 100);
        b.assign_connection(1, PEER);
        of_a.extend(rounds(&mut a, &mut b, 100).0);
        let landed = target.iter().filter(|byte| **byte != 0).count();
        assert!(landed <= most && of_a.iter().all(|one| one.errno != 0), "byte {flip}: {landed} landed");
        drop((a, b));
        heard.join().unwrap();
    }
}

#[test]
fn peer_without_our_secret_or_encryption_is_refused() {
    let mut memory = vec![0u8; 1000];
    let source = vec![b'x'; 1000];
    let mut meets = |mut a: TcpNic, mut b: TcpNic| {
        let to = register(&mut b, &mut memory);
        let route = a.insert(b.address(), Some(PEER)).unwrap();
        let segment = Segment { local: at(&source, 0), remote: at(&memory, 0), len: 1000 };
        post(&mut a, route, &rma(false, &[segment], to.key), 1);
        let mut done: Vec<Reaped> = Vec::new();
        while done.is_empty() {
            a.reap(&mut done);
            b.reap(&mut Vec::new());
            b.assign_connection(1, PEER);
        }
        done[0].errno == 0
    };
    assert!(meets(open_sealed(&[SECRET]), open_sealed(&[SECRET])));
    assert!(!meets(open(), open_sealed(&[SECRET])) && !meets(open_sealed(&[SECRET]), open()));
    assert!(!meets(open_sealed(&[OTHER]), open_sealed(&[SECRET])));
    // While secrets are exchanged, each side proves its first one, and accepts both.
    assert!(meets(open_sealed(&[SECRET, OTHER]), open_sealed(&[OTHER, SECRET])));
    assert!(meets(open_sealed(&[SECRET]), open_sealed(&[OTHER, SECRET])));
}
