//! Strangers and peers that keep to no rules: a rail of this test speaks frames of
//! its own making to a real endpoint.

use super::{bounds, Endpoint, EndpointConfig};
use crate::clock::{Random, Sequence};
use crate::fabric::select;
use crate::fabric::Posted;
use crate::memory::device::Claim;
use crate::memory::{Access, Range};
use crate::peer::address::{Address, RailAddress};
use crate::peer::channel::WINDOW;
use crate::peer::secret::{Sealed, Secret};
use crate::peer::wire::{self, numbers, Credential, Header, Hello, Kind, Welcome, HEADER};
use crate::rail::{Rail, Work};
use crate::status::Status;
use crate::topology::read::Root;
use crate::topology::Machine;
use crate::transfer::completion::{Completion, KIND_MESSAGE, KIND_PEER_DOWN, KIND_PEER_UP};
use crate::transfer::SendSpec;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

const FABRICS: [&str; 2] = ["sim:like=tcp", "host"];
const PATIENCE: Duration = Duration::from_secs(70);
const SECRET: &[u8] = b"sixteen bytes or more";

fn config(fabric: &str) -> EndpointConfig {
    EndpointConfig { fabric: Some(fabric.into()), ..EndpointConfig::default() }
}

fn open(config: EndpointConfig) -> Arc<Endpoint> {
    Endpoint::open(config).expect("it opens")
}

/// A frame as it came.
struct Heard {
    header: Header,
    body: Vec<u8>,
}

struct Stranger {
    rail: Rail,
    fabric: String,
    network: String,
    incarnation: u64,
    /// Of the endpoint that it talks to.
    target: Address,
    lane: u32,
    /// The endpoint's id of us.
    to: u64,
    sequence: u32,
    /// Acknowledges what it hears.
    acknowledges: bool,
    heard: Vec<Heard>,
}

impl Stranger {
    fn new(fabric: &str, target: &Endpoint) -> Stranger {
        let machine = Machine::read(Root::from_environment());
        let found = select::candidates(Some(fabric), None, &machine).expect("a fabric");
        let candidate = &found.candidates[0];
        let mut rail = Rail::open(0, candidate.open(false).expect("a NIC")).expect("a rail");
        let target = Address::decode(target.address()).expect("an address");
        let theirs = &target.rails[0];
        let lane = rail.add_lane(1, 0, &theirs.address, theirs.pad).expect("a lane");
        let incarnation = Random::System.u64().expect("random numbers");
        let (fabric, network) = (candidate.fabric.clone(), candidate.network.clone());
        let (to, sequence, heard) = (0, 0, Vec::new());
        Stranger { rail, fabric, network, incarnation, target, lane, to, sequence, acknowledges: true, heard }
    }

    fn address(&self) -> Address {
        let rail = RailAddress {
            fabric: self.fabric.clone(),
            network: self.network.clone(),
            address: self.rail.address().to_vec(),
            pad: self.rail.pad(),
        };
        Address::new(self.incarnation, vec![rail])
    }

    fn send(&mut self, frame: &[u8]) {
        let began = Instant::now();
        while self.rail.send_frame(self.lane, |to| {
            to[..frame.len()].copy_from_slice(frame);
            frame.len()
        }) != Posted::Yes
        {
            assert!(began.elapsed() < PATIENCE, "a frame finds no room");
            self.listen();
        }
    }

    fn say(&mut self, header: Header, body: &[u8]) {
        let mut frame = vec![0; HEADER + body.len()];
        header.write(&mut frame, body, &[]);
        self.send(&frame);
    }

    fn greet(&mut self, address: &Address, credential: Credential, secret: Option<&Secret>) {
        let address = address.encode();
        let hello = Hello {
            target: self.target.incarnation,
            peer: 77,
            nonce: 99,
            yours: 0,
            epoch: 1,
            rail: 0,
            your_rail: 0,
            wire: 1,
            credential,
            address: &address,
        };
        let mut body = hello.encode();
        if let Credential::Proof(_) = credential {
            match secret {
                Some(secret) => {
                    secret.seal(Sealed::Hello, self.incarnation, self.target.incarnation, &mut body)
                }
                None => body.extend([7; 32]),
            }
        }
        self.say(Header::plain(Kind::Hello, 0, self.incarnation), &body);
    }

    /// The next frame of a channel.
    fn ask(&mut self, kind: Kind, body: &[u8]) {
        self.sequence += 1;
        let header = Header {
            sequence: self.sequence,
            acknowledged: 0,
            ..Header::plain(kind, self.to, self.incarnation)
        };
        self.say(header, body);
    }

    fn listen(&mut self) {
        let mut done = Vec::new();
        self.rail.reap(&mut done, 1);
        for one in &done {
            if one.work == Work::Receive && one.errno == 0 {
                let frame = self.rail.received(one).to_vec();
                self.rail.give_back(one).expect("a receive");
                self.rail.assign_connection(one.connection, 1);
                let (header, body) = Header::read(&frame).expect("an endpoint makes sense");
                if self.acknowledges && header.kind.channel() == Some(wire::SYSTEM) {
                    let ack = numbers(&[header.sequence.into(), 0, 0]);
                    self.say(Header::plain(Kind::Ack, self.to, self.incarnation), &ack);
                }
                self.heard.push(Heard { header, body: body.to_vec() });
            }
        }
    }

    fn hears_within(&mut self, kind: Kind, time: Duration) -> Option<Heard> {
        let began = Instant::now();
        loop {
            if let Some(at) = self.heard.iter().position(|heard| heard.header.kind == kind) {
                return Some(self.heard.remove(at));
            }
            if began.elapsed() > time {
                return None;
            }
            self.listen();
        }
    }

    fn hear(&mut self, kind: Kind) -> Heard {
        self.hears_within(kind, PATIENCE).unwrap_or_else(|| panic!("no {kind:?} came"))
    }

    /// Greets until it is welcome: an endpoint without room says nothing.
    fn greet_again(&mut self, credential: Credential, secret: Option<&Secret>) -> Heard {
        let (address, began) = (self.address(), Instant::now());
        loop {
            self.greet(&address, credential, secret);
            if let Some(welcome) = self.hears_within(Kind::Welcome, Duration::from_secs(1)) {
                return welcome;
            }
            assert!(began.elapsed() < PATIENCE, "no welcome came");
        }
    }

    /// Keeps to the rules until it is a peer that is up.
    fn become_a_peer(&mut self) {
        let welcome = self.greet_again(Credential::Nothing, None);
        self.to = Welcome::decode(&welcome.body).expect("a welcome").peer;
        let hello = self.hear(Kind::Hello);
        let hello = Hello::decode(&hello.body).expect("a hello");
        let welcome = Welcome { nonce: hello.nonce, peer: 77, epoch: 1, landing: None };
        self.say(Header::plain(Kind::Welcome, self.to, self.incarnation), &welcome.encode());
        let ready = wire::ready(&self.fabric.clone());
        let began = Instant::now();
        while self.hears_within(Kind::Ready, Duration::from_millis(50)).is_none() {
            // Whoever decides: said early, it is dropped.
            assert!(began.elapsed() < PATIENCE, "it does not get ready");
            self.ask(Kind::Ready, &ready);
        }
        self.ask(Kind::Ready, &ready);
    }
}

fn next(endpoint: &Endpoint, time: Duration) -> Option<Completion> {
    let mut room = [MaybeUninit::uninit()];
    let count = endpoint.wait(endpoint.queue(), &mut room, time.as_nanos() as u64).expect("it is open");
    // SAFETY: one was written.
    (count == 1).then(|| unsafe { room[0].assume_init() })
}

fn take(endpoint: &Endpoint, kind: i32) -> Completion {
    let done = next(endpoint, PATIENCE).expect("a completion");
    assert_eq!(done.kind, kind);
    done
}

fn register(endpoint: &Endpoint) -> Arc<crate::memory::Memory> {
    let bytes: &'static mut [u8] = Box::leak(vec![0; 4096].into_boxed_slice());
    let range = Range { base: bytes.as_ptr() as u64, len: 4096 };
    endpoint.register(vec![range], Access::ALL, 0, Claim::Host).expect("a memory")
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Two that know each other, and send messages meanwhile.
struct Friends {
    a: Arc<Endpoint>,
    b: Arc<Endpoint>,
    b_of_a: u64,
}

impl Friends {
    fn meet(config: impl Fn() -> EndpointConfig) -> Friends {
        let (a, b) = (open(config()), open(config()));
        let b_of_a = a.connect(b.address(), 0, 0).expect("a connect");
        assert_eq!(take(&a, KIND_PEER_UP).status, Status::Ok as i32);
        assert_eq!(take(&b, KIND_PEER_UP).status, Status::Ok as i32);
        Friends { a, b, b_of_a }
    }

    /// From a to b; how long the slowest took.
    fn talk(&self, count: usize) -> Duration {
        let mut slowest = Duration::ZERO;
        for _ in 0..count {
            let began = Instant::now();
            let queue = self.a.queue();
            let spec = SendSpec {
                peer: self.b_of_a,
                data: b"hello",
                timeout_ns: 10_000_000_000,
                user_data: 0,
                queue,
            };
            self.a.send(spec).expect("a send");
            assert_eq!(next(&self.a, PATIENCE).expect("its completion").status, Status::Ok as i32);
            take(&self.b, KIND_MESSAGE);
            slowest = slowest.max(began.elapsed());
        }
        slowest
    }
}

#[test]
fn who_has_not_proven_itself_is_not_listened_to() {
    for (fabric, secret) in FABRICS.into_iter().flat_map(|fabric| [(fabric, true), (fabric, false)]) {
        let ours = secret.then(|| Secret::new(SECRET).expect("a secret"));
        let endpoint = open(EndpointConfig { secret: ours, ..config(fabric) });
        let memory = register(&endpoint);
        let mut stranger = Stranger::new(fabric, &endpoint);
        endpoint.connect(&stranger.address().encode(), 5_000_000_000, 0).expect("a connect");
        let hello = stranger.hear(Kind::Hello);
        let hello = Hello::decode(&hello.body).expect("a hello");
        assert_eq!(hello.credential != Credential::Nothing, secret);
        // It knows everything that it was shown, and a descriptor.
        stranger.to = hello.peer;
        stranger.acknowledges = false;
        stranger.ask(Kind::Import, &numbers(&[memory.id, memory.secret, 1]));
        if !secret {
            until("an import is taken", || !memory.importers().is_empty());
            continue;
        }
        let welcome = Welcome { nonce: hello.nonce, peer: 77, epoch: 1, landing: None };
        stranger.say(Header::plain(Kind::Welcome, stranger.to, stranger.incarnation), &welcome.encode());
        until("it is counted", || endpoint.strangers_refused() >= 2);
        assert!(memory.importers().is_empty());
        stranger.say(Header::plain(Kind::Leave, stranger.to, stranger.incarnation), &[]);
        until("it is counted", || endpoint.strangers_refused() >= 3);
        assert_eq!(take(&endpoint, KIND_PEER_UP).status, Status::Unreachable as i32);
    }
}

#[test]
fn a_proof_answers_its_own_challenge() {
    for fabric in FABRICS {
        let secret = Secret::new(SECRET).expect("a secret");
        let endpoint = open(EndpointConfig { secret: Some(secret.clone()), ..config(fabric) });
        let mut stranger = Stranger::new(fabric, &endpoint);
        let address = stranger.address();
        let refused = |stranger: &mut Stranger, credential, secret: Option<&Secret>| {
            stranger.greet(&address, credential, secret);
            let refusal = stranger.hear(Kind::Refuse);
            let (status, text) = wire::read_refuse(&refusal.body).expect("a refusal");
            assert_eq!(status, Status::Denied, "{text}");
        };
        refused(&mut stranger, Credential::Nothing, None);
        let address = stranger.address();
        stranger.greet(&address, Credential::Asks, None);
        let (nonce, challenge) = wire::read_challenge(&stranger.hear(Kind::Challenge).body).expect("one");
        assert_eq!(nonce, 99);
        let others = Secret::new(b"another of sixteen bytes").expect("a secret");
        refused(&mut stranger, Credential::Proof(challenge), None);
        refused(&mut stranger, Credential::Proof(challenge), Some(&others));
        // A challenge that was not drawn for it gets another one.
        stranger.greet(&address, Credential::Proof([0; 32]), Some(&secret));
        stranger.hear(Kind::Challenge);
        assert!(stranger.hears_within(Kind::Welcome, Duration::from_millis(50)).is_none());
        assert_eq!(endpoint.strangers_refused(), 3);
        let welcome = stranger.greet_again(Credential::Proof(challenge), Some(&secret));
        let (us, them) = (stranger.incarnation, stranger.target.incarnation);
        let opened = secret.open(Sealed::Welcome, them, us, &welcome.body);
        assert_eq!(opened.and_then(Welcome::decode).map(|welcome| welcome.nonce), Some(99));
    }
}

#[test]
fn rubbish_is_dropped_and_counted_and_slows_nobody() {
    for fabric in FABRICS {
        let friends = Friends::meet(|| config(fabric));
        let quiet = friends.talk(200);
        let mut stranger = Stranger::new(fabric, &friends.b);
        let mut random = Sequence(4711);
        let mut slowest = Duration::ZERO;
        let mut sent = 0;
        for round in 0..100 {
            for _ in 0..50 {
                let len = 1 + random.next() as usize % 300;
                let mut frame: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
                if random.next() % 2 == 0 && len > HEADER {
                    // As sound as can be on the outside.
                    let kind = if round % 2 == 0 { Kind::Hello } else { Kind::Import };
                    Header::plain(kind, random.next(), random.next()).write(
                        &mut frame,
                        &[],
                        &vec![9; len - HEADER],
                    );
                }
                stranger.send(&frame);
                sent += 1;
            }
            stranger.listen();
            slowest = slowest.max(friends.talk(1));
        }
        // Those for peers that never were are not told from those of peers that have ended.
        until("they are counted", || friends.b.rubbish() >= sent / 2);
        println!(
            "{fabric}: slowest message {quiet:?} alone, {slowest:?} beside a stranger with {sent} frames"
        );
        assert!(slowest < Duration::from_secs(1));
    }
}

#[test]
fn another_wire_version_is_refused_and_counted() {
    for fabric in FABRICS {
        let endpoint = open(config(fabric));
        let mut stranger = Stranger::new(fabric, &endpoint);
        let newer = Address { wire: (8, 9), ..stranger.address() };
        stranger.greet(&newer, Credential::Nothing, None);
        let (status, text) = wire::read_refuse(&stranger.hear(Kind::Refuse).body).expect("a refusal");
        assert_eq!(status, Status::Version);
        assert!(text.contains("8 to 9"), "{text}");
        assert_eq!(endpoint.strangers_refused(), 1);
    }
}

#[test]
fn a_flood_of_greetings_is_bounded_and_others_get_in() {
    for fabric in FABRICS {
        let config = || EndpointConfig { connect_timeout_ns: 3_000_000_000, ..config(fabric) };
        let friends = Friends::meet(config);
        let mut stranger = Stranger::new(fabric, &friends.b);
        let flood = |stranger: &mut Stranger, count| {
            for _ in 0..count {
                stranger.incarnation = Random::System.u64().expect("a number");
                let address = stranger.address();
                stranger.greet(&address, Credential::Nothing, None);
                stranger.listen();
                stranger.heard.clear();
            }
        };
        let most = 256 + 1;
        flood(&mut stranger, 2000);
        until("they are counted", || friends.b.strangers_refused() >= 1000);
        assert!(friends.b.core.peers.all().len() <= most);
        let slowest = friends.talk(50);
        // One more that means well, while the flood goes on.
        let guest = open(config());
        guest.connect(friends.b.address(), 60_000_000_000, 0).expect("a connect");
        let began = Instant::now();
        let up = loop {
            flood(&mut stranger, 10);
            assert!(friends.b.core.peers.all().len() <= most + 1);
            match next(&guest, Duration::from_millis(1)) {
                Some(up) => break up,
                None => assert!(began.elapsed() < PATIENCE),
            }
        };
        println!("{fabric}: in the flood a message took {slowest:?}, a connect {:?}", began.elapsed());
        assert_eq!((up.kind, up.status), (KIND_PEER_UP, Status::Ok as i32));
        until("they are forgotten", || friends.b.core.peers.all().len() == 2);
    }
}

/// What a peer asks for again and again.
fn asks_for_ever(fabric: &str, acknowledges: bool, body: impl Fn(u64) -> (Kind, Vec<u8>)) -> Option<Status> {
    let endpoint = open(config(fabric));
    let friends = Friends::meet(|| config(fabric));
    let mut stranger = Stranger::new(fabric, &endpoint);
    stranger.become_a_peer();
    assert_eq!(take(&endpoint, KIND_PEER_UP).status, Status::Ok as i32);
    stranger.acknowledges = acknowledges;
    stranger.heard.clear();
    for n in 0..3 * bounds::ANSWERS as u64 {
        let (kind, body) = body(n);
        stranger.ask(kind, &body);
        stranger.listen();
        // Who means well keeps to the window.
        let began = Instant::now();
        while acknowledges && (stranger.heard.len() as u64) + u64::from(WINDOW) / 2 < n {
            stranger.listen();
            stranger.heard.retain(|heard| heard.header.kind.channel().is_some());
            assert!(began.elapsed() < PATIENCE, "no answer to {n}");
        }
    }
    assert!(friends.talk(20) < Duration::from_secs(1));
    let down = next(&endpoint, Duration::from_millis(if acknowledges { 300 } else { 20_000 }));
    let down = down.inspect(|down| assert_eq!(down.kind, KIND_PEER_DOWN))?;
    Some(Status::from_code(down.status))
}

#[test]
fn who_asks_and_takes_no_answers_is_dropped() {
    for fabric in FABRICS {
        let import = |n| (Kind::Import, numbers(&[n, n, n]));
        let revoke = |n| (Kind::Revoke, numbers(&[n]));
        assert_eq!(asks_for_ever(fabric, false, import), Some(Status::Protocol));
        assert_eq!(asks_for_ever(fabric, false, revoke), Some(Status::Protocol));
        assert_eq!(asks_for_ever(fabric, true, import), None);
        assert_eq!(asks_for_ever(fabric, true, revoke), None);
    }
}
