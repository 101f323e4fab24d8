//! Socket options, and networks other than loopback: hosts in namespaces, which only root can make.

use super::connection::State;
use super::interfaces::{self, Interface};
use super::nic::TcpNic;
use super::socket::to_system;
use super::Options;
use crate::fabric::{Access, Buffer, HostRange, Nic, Posted, Reaped, Rma, Route, Scratch, Segment};
use crate::ids::PeerId;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process::Command;
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SECOND_NS: u64 = 1_000_000_000;

fn open(interface: &str, options: Options) -> TcpNic {
    TcpNic::open(&interfaces::named(interface), Arc::new(options)).unwrap()
}

fn option(socket: BorrowedFd, level: i32, name: i32) -> i32 {
    let (mut value, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the buffer has space for the integer.
    let rc = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &mut len) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    value
}

/// A NIC's second address is dialed where nothing listens at the first, and both have to refuse for
/// its endpoint to be gone.
#[test]
fn other_address_is_dialed_if_the_first_refuses() {
    let other = Ipv6Addr::LOCALHOST;
    if TcpListener::bind((other, 0)).is_err() {
        return; // This host has no IPv6.
    }
    let open = || {
        let interface = Interface { other: Some(other.into()), ..interfaces::named("lo") };
        TcpNic::open(&interface, Arc::default()).unwrap()
    };
    let (mut a, mut b) = (open(), open());
    let first = SocketAddr::from(([127, 0, 0, 2], b.at.port()));
    let address = [to_system(first), b.name.to_vec(), other.octets().to_vec()].concat();
    let route = a.insert(&address, None).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while !a.connections.iter().flatten().any(|one| one.state == State::Up) {
        [&mut a, &mut b].into_iter().for_each(|nic| _ = nic.reap(&mut Vec::new()));
        assert!(!a.is_gone(route) && Instant::now() < until);
    }
    drop(b);
    let gone = a.insert(&address, Some(PeerId::numbered(7))).unwrap();
    while !a.is_gone(gone) {
        a.reap(&mut Vec::new());
        assert!(Instant::now() < until);
    }
}

/// A packet to the second address may be lost: the endpoint is not gone before it was repeated.
#[test]
fn other_address_has_time_to_answer_if_the_first_refuses() {
    let other = Ipv6Addr::LOCALHOST;
    let Ok(silent) = TcpListener::bind((other, 0)) else { return }; // This host has no IPv6.
    let far = silent.local_addr().unwrap();
    // SAFETY: the call takes no pointers.
    assert_eq!(unsafe { libc::listen(silent.as_raw_fd(), 0) }, 0);
    // Its queue is full, so it drops what comes.
    let _full = std::net::TcpStream::connect(far).unwrap();
    let interface = Interface { other: Some(other.into()), ..interfaces::named("lo") };
    let mut a = TcpNic::open(&interface, Arc::default()).unwrap();
    let address =
        [to_system(([127, 0, 0, 2], far.port()).into()), vec![1; 16], other.octets().to_vec()].concat();
    let (route, began) = (a.insert(&address, Some(PeerId::numbered(7))).unwrap(), Instant::now());
    while !a.is_gone(route) {
        a.reap(&mut Vec::new());
        a.tend();
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(began.elapsed() > Duration::from_millis(1500));
}

/// Listeners, and both ends of a connection over loopback.
fn with_sockets(options: impl Fn() -> Options, check: impl Fn(BorrowedFd)) {
    let (mut a, mut b) = (open("lo", options()), open("lo", options()));
    a.insert(b.address(), None).unwrap();
    while a.sockets().len() + b.sockets().len() < 4 {
        a.reap(&mut Vec::new());
        b.reap(&mut Vec::new());
    }
    a.sockets().into_iter().chain(b.sockets()).for_each(check);
}

#[test]
fn connection_timeouts_follow_from_liveness() {
    let limits = |socket: BorrowedFd| {
        let tcp = |name| option(socket, libc::IPPROTO_TCP, name);
        let alive = option(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE);
        (alive, tcp(libc::TCP_USER_TIMEOUT), tcp(libc::TCP_KEEPIDLE), tcp(libc::TCP_KEEPINTVL))
    };
    let silent_for = |ns| move || Options { liveness_ns: Some(ns), ..Options::default() };
    with_sockets(silent_for(6 * SECOND_NS), |socket| assert_eq!(limits(socket), (1, 6000, 2, 1)));
    with_sockets(silent_for(SECOND_NS), |socket| assert_eq!(limits(socket), (1, 1000, 1, 1)));
    let day = 24 * 3600;
    with_sockets(silent_for(day as u64 * SECOND_NS), |socket| {
        assert_eq!(limits(socket), (1, day * 1000, day / 3, day / 6));
    });
    // Unlimited liveness keeps the system's limits.
    with_sockets(Options::default, |socket| assert_eq!((limits(socket).0, limits(socket).1), (0, 0)));
}

#[test]
fn packets_carry_the_configured_dscp() {
    let marked = || Options { dscp: 46, ..Options::default() };
    with_sockets(marked, |socket| assert_eq!(option(socket, libc::IPPROTO_IP, libc::IP_TOS), 46 << 2));
    with_sockets(Options::default, |socket| assert_eq!(option(socket, libc::IPPROTO_IP, libc::IP_TOS), 0));
}

/// The system accepts connections for a stopped program, which must be waited for.
#[test]
fn unanswered_connection_ends_after_the_liveness_timeout() {
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = [to_system(deaf.local_addr().unwrap()), vec![7; 16]].concat();
    let mut nic = open("lo", Options { liveness_ns: Some(SECOND_NS), ..Options::default() });
    let (began, route) = (Instant::now(), nic.insert(&address, None).unwrap());
    // SAFETY: the address outlives the NIC's operations.
    assert_eq!(unsafe { nic.send(whole(&address), route, token()) }, Posted::Yes);
    assert_eq!(next(&mut nic), libc::ETIMEDOUT);
    assert!(began.elapsed() >= Duration::from_secs(1) && nic.sockets().len() == 1);
}

/// Moves this thread to a host of its own; an error tells why that is impossible.
fn leave_this_host() -> Result<(), String> {
    // SAFETY: the call affects only this thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(format!("no namespace can be made: {}", std::io::Error::last_os_error()));
    }
    // Each NIC answers for its own addresses alone.
    let set = std::fs::write("/proc/sys/net/ipv4/conf/all/arp_ignore", "1");
    set.map_err(|error| format!("arp_ignore cannot be set: {error}"))?;
    ip("link set lo up")
}

/// Runs a command of iproute2, on this thread's host.
fn ip(words: &str) -> Result<(), String> {
    let done = Command::new("ip").args(words.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    done.status.success().then_some(()).ok_or_else(|| format!("ip {words}: {done:?}"))
}

/// Waits until this thread's host sends by all of its interfaces: the kernel takes a moment, in which
/// it drops what they are given.
fn run_interfaces() {
    let began = Instant::now();
    let waits = || {
        let shown = Command::new("ip").args(["-br", "link", "show", "up"]).output().unwrap().stdout;
        let shown = String::from_utf8_lossy(&shown).into_owned();
        shown.lines().any(|line| line.split_whitespace().nth(1).is_some_and(|state| state.contains("DOWN")))
    };
    while waits() {
        assert!(began.elapsed() < Duration::from_secs(60), "interfaces do not come up");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs both sides, each on a host of its own; an interface "rail" connects the two. `setup` are
/// commands for each, the left ones first; "{right}" is the right host.
fn on_two_hosts(
    setup: [&'static [&'static str]; 2],
    left: impl FnOnce() + Send,
    right: impl FnOnce() + Send,
) {
    let ((give, take), (ready, made)) = (channel::<Result<i32, String>>(), channel::<bool>());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // SAFETY: the call has no preconditions.
            let place = leave_this_host().map(|()| unsafe { libc::gettid() });
            give.send(place).unwrap();
            if made.recv() == Ok(true) {
                for words in setup[1] {
                    ip(words).unwrap();
                }
                right();
            }
        });
        scope.spawn(move || {
            let made = take.recv().unwrap().and_then(|place| {
                leave_this_host()?;
                ip(&format!("link add rail type veth peer name rail netns {place}"))?;
                Ok(place)
            });
            let Ok(place) = made.as_ref() else {
                ready.send(false).unwrap();
                return println!("skipped: {made:?}");
            };
            for words in setup[0] {
                ip(&words.replace("{right}", &place.to_string())).unwrap();
            }
            ready.send(true).unwrap();
            left();
        });
    });
}

/// Drives a NIC until it is stopped. Every sender becomes a peer.
fn serve(mut nic: TcpNic, stop: &AtomicBool, met: &AtomicU64) {
    let room = [0u8; 16];
    while !stop.load(Ordering::Relaxed) {
        let mut done: Vec<Reaped> = Vec::new();
        // SAFETY: the buffer outlives the NIC.
        unsafe { nic.receive(whole(&room), token()) };
        nic.reap(&mut done);
        for one in done.iter().filter(|one| one.connection != 0) {
            nic.assign_connection(one.connection, PeerId::numbered(2 + met.load(Ordering::Relaxed)));
            met.fetch_add(1, Ordering::Relaxed);
        }
        nic.tend();
        std::thread::sleep(Duration::from_micros(50));
    }
}

fn whole(bytes: &[u8]) -> Buffer {
    Buffer {
        address: bytes.as_ptr().cast_mut().cast(),
        len: bytes.len(),
        descriptor: null_mut(),
        follows: false,
    }
}

fn token() -> *mut Scratch {
    NonNull::<Scratch>::dangling().as_ptr()
}

/// Posts a write or read of all of `local`.
fn post(nic: &mut TcpNic, route: Route, read: bool, local: &[u8], far: &Far) {
    let (key, remote) = far.memory;
    let segment = Segment { local: local.as_ptr() as u64, remote, len: local.len() as u64 };
    let rma = Rma { read, segments: &[segment], descriptor: null_mut(), key, immediate: None, more: false };
    // SAFETY: the tests' memory outlives their NICs' operations.
    assert_eq!(unsafe { nic.rma(&rma, route, &[token()]) }.1, Posted::Yes);
}

/// The outcome of the next operation.
fn next(nic: &mut TcpNic) -> i32 {
    let mut done: Vec<Reaped> = Vec::new();
    drive(nic, |nic| {
        nic.reap(&mut done);
        !done.is_empty()
    });
    done[0].errno
}

/// Drives the NIC until a condition holds.
fn drive(nic: &mut TcpNic, mut is_so: impl FnMut(&mut TcpNic) -> bool) {
    let began = Instant::now();
    while !is_so(nic) {
        nic.tend();
        assert!(began.elapsed() < Duration::from_secs(60), "nothing happens");
    }
}

const BOTH: Access = Access::ALL;

/// The other end of a rail: its NIC's address, and its memory.
struct Far {
    address: Vec<u8>,
    memory: (u64, u64),
    met: Arc<AtomicU64>,
}

impl Far {
    /// A route to it, over which this side has become its peer.
    fn meet(&self, nic: &mut TcpNic) -> Route {
        let route = nic.insert(&self.address, Some(PeerId::numbered(1))).unwrap();
        let (text, before) = ([1u8; 16], self.met.load(Ordering::Relaxed));
        // SAFETY: the text lives until the message was reaped.
        assert_eq!(unsafe { nic.send(whole(&text), route, token()) }, Posted::Yes);
        assert_eq!(next(nic), 0);
        drive(nic, |nic| {
            nic.reap(&mut Vec::new());
            self.met.load(Ordering::Relaxed) > before
        });
        route
    }
}

/// The right side of most tests: serves memory until the left side has finished with it.
fn with_far(setup: [&'static [&'static str]; 2], len: usize, left: impl FnOnce(Far) + Send) {
    with_far_at("rail", setup, len, left);
}

/// The same; the right side serves at this interface.
fn with_far_at(
    interface: &'static str,
    setup: [&'static [&'static str]; 2],
    len: usize,
    left: impl FnOnce(Far) + Send,
) {
    let (give, take) = channel();
    let stop = AtomicBool::new(false);
    let (stop, bytes, met) = (&stop, vec![0u8; len], Arc::new(AtomicU64::new(0)));
    on_two_hosts(
        setup,
        move || {
            struct Stop<'a>(&'a AtomicBool);
            impl Drop for Stop<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
            let _stop = Stop(stop);
            if let Ok(far) = take.recv() {
                run_interfaces();
                left(far);
            }
        },
        move || {
            run_interfaces();
            let mut nic = open(interface, Options::default());
            let range = HostRange { base: bytes.as_ptr() as u64, len: len as u64 };
            let registered = nic.register(range, BOTH).unwrap();
            let memory = (registered.key, range.base);
            give.send(Far { address: nic.address().to_vec(), memory, met: met.clone() }).unwrap();
            serve(nic, stop, &met);
        },
    );
}

const V4: [&[&str]; 2] = [
    &["addr add 10.78.0.1/24 dev rail", "link set rail up"],
    &["addr add 10.78.0.2/24 dev rail", "link set rail up"],
];

const V6: [&[&str]; 2] = [
    &["addr add fd00:78::1/64 dev rail nodad", "link set rail up"],
    &["addr add fd00:78::2/64 dev rail nodad", "link set rail up"],
];

/// Pages move in both directions over IPv6 alone, with its smallest MTU, and with marked packets.
#[test]
fn pages_move_over_ipv6_alone() {
    with_far(V6, 300_000, |far| {
        let mut nic = open("rail", Options { dscp: 10, ..Options::default() });
        ip("link set rail mtu 1280").unwrap();
        let local: Vec<u8> = (0..300_000u32).map(|i| (i * 7) as u8).collect();
        let route = far.meet(&mut nic);
        post(&mut nic, route, false, &local, &far);
        assert_eq!(next(&mut nic), 0);
        let back = vec![0u8; local.len()];
        post(&mut nic, route, true, &back, &far);
        assert_eq!(next(&mut nic), 0);
        assert!(back == local);
        nic.sockets().into_iter().for_each(|socket| {
            assert_eq!(option(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS), 10 << 2);
        });
    });
}

/// A connection ends when the peer would be lost, and not sooner, idle or not; one with a longer
/// limit stays.
#[test]
fn dropped_path_ends_connections_after_the_liveness_timeout() {
    with_far(V4, 1000, |far| {
        let silent_for = |ns| open("rail", Options { liveness_ns: Some(ns), ..Options::default() });
        let [mut busy, mut idle, mut patient] =
            [silent_for(2 * SECOND_NS), silent_for(SECOND_NS), silent_for(3600 * SECOND_NS)];
        let local = vec![1u8; 1000];
        let [to_busy, _, to_patient] = [&mut busy, &mut idle, &mut patient].map(|nic| {
            let route = far.meet(nic);
            post(nic, route, false, &local, &far);
            assert_eq!(next(nic), 0);
            route
        });
        // Packets go to a host that does not exist.
        ip("neigh replace 10.78.0.2 lladdr 02:00:00:00:00:99 dev rail nud permanent").unwrap();
        let began = Instant::now();
        post(&mut busy, to_busy, false, &local, &far);
        post(&mut patient, to_patient, false, &local, &far);
        assert_eq!(next(&mut busy), libc::ETIMEDOUT);
        assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
        drive(&mut idle, |idle| {
            idle.reap(&mut Vec::new());
            idle.sockets().len() == 1
        });
        let mut done = Vec::new();
        patient.reap(&mut done);
        assert!(done.is_empty() && patient.sockets().len() == 2);
    });
}

/// A host with two NICs in one subnet, and a switch that has the address of the other host.
const TWO: &[&str] = &[
    "link add spare type veth peer name spare netns {right}",
    "addr add 10.78.0.1/24 dev rail",
    "addr add 10.78.0.3/24 dev spare",
    "link set rail up",
    "link set spare up",
];
const SWITCH: &[&str] = &[
    "link add name switch type bridge",
    "link set rail master switch up",
    "link set spare master switch up",
    "addr add 10.78.0.2/24 dev switch",
    "link set switch up",
];
/// The same, with the switch on the left.
const SWITCH_LEFT: &[&str] = &[
    "link add spare type veth peer name spare netns {right}",
    "link add name switch type bridge",
    "link set rail master switch up",
    "link set spare master switch up",
    "addr add 10.78.0.2/24 dev switch",
    "link set switch up",
];
const TWO_RIGHT: &[&str] = &[
    "addr add 10.78.0.1/24 dev rail",
    "addr add 10.78.0.3/24 dev spare",
    "link set rail up",
    "link set spare up",
];

/// The bytes that an interface of this thread's host has received and sent.
fn counted(interface: &str) -> [u64; 2] {
    let all = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let counts = |line: &str| Some(line.trim().strip_prefix(interface)?.strip_prefix(':')?.to_owned());
    let line = all.lines().find_map(counts).unwrap();
    let numbers: Vec<u64> = line.split_whitespace().map(|number| number.parse().unwrap()).collect();
    [numbers[0], numbers[8]]
}

const LARGE: usize = 1_000_000;

/// Writes and reads all; returns the bytes that each interface has received and sent for that.
fn moved(nic: &mut TcpNic, far: &Far, interfaces: [&str; 2]) -> ([[u64; 2]; 2], Route) {
    let (local, route) = (vec![3u8; LARGE], far.meet(nic));
    let before = interfaces.map(counted);
    for read in [false, true] {
        post(nic, route, read, &local, far);
        assert_eq!(next(nic), 0);
    }
    let after = interfaces.map(counted);
    let grown = |at: usize| std::array::from_fn(|i| after[at][i] - before[at][i]);
    ([grown(0), grown(1)], route)
}

/// Checks that all went by the second interface, or nothing.
fn assert_by_second(moved: [[u64; 2]; 2], second: bool) {
    for way in [0, 1] {
        let (most, least) =
            if second { (moved[1][way], moved[0][way]) } else { (moved[0][way], moved[1][way]) };
        assert!(most > LARGE as u64 && least < LARGE as u64 / 10, "{moved:?}");
    }
}

#[test]
fn dialled_connection_leaves_and_arrives_by_its_own_nic() {
    with_far_at("switch", [TWO, SWITCH], LARGE, |far| {
        let mut nic = open("spare", Options::default());
        let (moved, route) = moved(&mut nic, &far, ["rail", "spare"]);
        assert_by_second(moved, true);
        assert_eq!(nic.elsewhere(route), [None, None]);
    });
}

#[test]
fn accepted_connection_leaves_by_the_nic_that_it_arrived_by() {
    with_far_at("spare", [SWITCH_LEFT, TWO_RIGHT], LARGE, |far| {
        let mut nic = open("switch", Options::default());
        // (By the switch's ports.)
        assert_by_second(moved(&mut nic, &far, ["rail", "spare"]).0, true);
    });
}

#[test]
fn policy_and_longer_prefixes_are_not_overridden() {
    for by_rule in [true, false] {
        with_far_at("switch", [TWO, SWITCH], LARGE, move |far| {
            if by_rule {
                ip("rule add from 10.78.0.3 lookup 100").unwrap();
                ip("route add 10.78.0.0/24 dev rail table 100").unwrap();
            } else {
                ip("route add 10.78.0.2/32 dev rail").unwrap();
            }
            let mut nic = open("spare", Options::default());
            let (moved, route) = moved(&mut nic, &far, ["rail", "spare"]);
            assert!(moved[0][1] > LARGE as u64 && moved[1][1] < LARGE as u64 / 10, "{moved:?}");
            assert_eq!(nic.elsewhere(route)[0].as_deref(), Some("rail"));
        });
    }
}
