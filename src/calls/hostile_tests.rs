//! Unauthenticated endpoints and peers that break the rules: this test's rail sends its own frames
//! to a real endpoint.

use super::grants::GrantSpec;
use super::{Endpoint, EndpointConfig};
use crate::clock::{Random, Sequence};
use crate::device::Claim;
use crate::fabric::select;
use crate::fabric::{Posted, Progress};
use crate::ids::{LaneSlot, MemoryId, PeerId, RailIndex};
use crate::lane::Life;
use crate::memory::{Access, Range, RemoteState};
use crate::owner::bounds;
use crate::rail::{Lane, Lanes, OfPeer, Rail, Work};
use crate::room::Theirs;
use crate::session::channel::WINDOW;
use crate::status::Status;
use crate::topology::read;
use crate::topology::Machine;
use crate::transfer::completion::{Completion, KIND_FENCE, KIND_MESSAGE, KIND_PEER_DOWN, KIND_PEER_UP};
use crate::transfer::watch::Marks;
use crate::transfer::Common;
use crate::wire::address::{Address, RailAddress};
use crate::wire::descriptor::{self, Descriptor};
use crate::wire::frame::{self, numbers, HandshakeReply, HandshakeRequest, Header, Kind, Token, HEADER};
use crate::wire::seal::{Proof, Root, Sealer, Side, SEAL};
use crate::wire::secret::Secrets;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

const FABRICS: [&str; 3] = ["sim:like=tcp", "host", "tcp"];
const PATIENCE: Duration = Duration::from_secs(70);
/// The options of an operation of this endpoint.
fn common<'a>(endpoint: &'a Endpoint, marks: &'a Marks) -> Common<'a> {
    let timeout_ns = NonZeroU64::new(PATIENCE.as_nanos() as u64);
    Common { timeout_ns, user_data: 0, queue: endpoint.queue(), marks, grant: None }
}

const SECRET: &[u8] = b"sixteen bytes or more";
const OTHERS: &[u8] = b"another of sixteen bytes";
/// The token that attackers choose for the endpoints that they contact.
const TOKEN: Token = 77;
const NONCE: u128 = 99;

fn secrets(texts: &[&[u8]]) -> Option<Arc<Secrets>> {
    let named: Vec<(&[u8], &str)> = texts.iter().map(|secret| (*secret, "secret")).collect();
    Some(Arc::new(Secrets::new(&named).expect("secrets")))
}

fn config(fabric: &str) -> EndpointConfig {
    EndpointConfig { fabric: Some(fabric.into()), ..EndpointConfig::default() }
}

fn open(config: EndpointConfig) -> Arc<Endpoint> {
    Endpoint::open(config).expect("it opens")
}

/// A received frame.
struct ReceivedFrame {
    header: Header,
    body: Vec<u8>,
    /// The whole frame.
    frame: Vec<u8>,
}

struct Attacker {
    rail: Rail,
    fabric: String,
    network: String,
    incarnation: u64,
    /// The endpoint that the attacker contacts.
    target: Address,
    lanes: Lanes<Lane>,
    lane: LaneSlot,
    sequence: u32,
    /// The number in its handshake requests.
    begun: u64,
    epoch: u64,
    own_rail: u16,
    /// The secret that proves its handshake requests.
    root: Option<Root>,
    /// Whether it acknowledges received frames.
    acknowledges: bool,
    received: Vec<ReceivedFrame>,
}

impl Attacker {
    fn new(fabric: &str, target: &Endpoint) -> Attacker {
        let machine = Machine::read(read::Root::from_environment());
        let found = select::candidates(Some(fabric), None, &machine).expect("a fabric");
        let candidate = &found.candidates[0];
        let mut rail = Rail::open(
            RailIndex::at(0),
            candidate.open(Progress { waits: false, threads: false }).expect("a NIC"),
        )
        .expect("a rail");
        let target = Address::decode(target.address()).expect("an address");
        let theirs = &target.rails[0];
        let mut lanes = Lanes::new(RailIndex::at(0));
        let (peer, remote_rail) = (PeerId::numbered(1), RailIndex::at(0));
        let to = OfPeer { peer, remote_rail, traffic: Arc::default() };
        let life = Life::new(1, 0);
        let lane = rail.add_lane(&mut lanes, to, life, &theirs.address, |lane| lane).expect("a lane").slot;
        let incarnation = Random::System.u64().expect("random numbers");
        let (fabric, network) = (candidate.fabric.clone(), candidate.network.clone());
        let (sequence, begun, epoch, root, received) = (0, 1, 1, None, Vec::new());
        Attacker {
            rail,
            fabric,
            network,
            incarnation,
            target,
            lanes,
            lane,
            sequence,
            begun,
            epoch,
            own_rail: 0,
            root,
            acknowledges: true,
            received,
        }
    }

    fn address(&self) -> Address {
        let rail = RailAddress {
            fabric: self.fabric.clone(),
            network: self.network.clone(),
            address: self.rail.address().to_vec(),
            other: None,
        };
        Address::new(self.incarnation, vec![rail])
    }

    fn lane(&mut self) -> &mut Lane {
        self.lanes.get_mut(self.lane).expect("a lane")
    }

    /// Sets its name from now on.
    fn named(&mut self, to: Token) {
        self.lane().to = to;
    }

    fn name(&mut self) -> Token {
        self.lane().to
    }

    /// Sends the frame unchanged, except for the name.
    fn send(&mut self, frame: &[u8]) {
        let began = Instant::now();
        let fill = |to: &mut [u8]| {
            to[..frame.len()].copy_from_slice(frame);
            frame.len()
        };
        while self.rail.send_open(self.lanes.get_mut(self.lane).expect("a lane"), fill) != Posted::Yes {
            assert!(began.elapsed() < PATIENCE, "a frame finds no room");
            self.listen();
        }
    }

    /// Sends a frame in its session, if it has one; returns the bytes.
    fn say(&mut self, header: Header, body: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; HEADER + body.len() + SEAL];
        let mut len = header.write(&mut frame, body, &[]);
        let lane = self.lane();
        crate::wire::stamp(&mut frame, RailIndex::at(0), lane.to);
        if let Some(sealer) = &mut lane.sealer {
            len = sealer.seal(&mut frame, len);
        }
        frame.truncate(len);
        self.send(&frame);
        frame
    }

    /// Sends a frame without a session.
    fn say_openly(&mut self, header: Header, body: &[u8]) -> Vec<u8> {
        let sealer = self.lane().sealer.take();
        let said = self.say(header, body);
        self.lane().sealer = sealer;
        said
    }

    fn handshake(&mut self, address: &Address) -> Vec<u8> {
        let address = address.encode();
        let request = HandshakeRequest {
            target: self.target.incarnation,
            token: TOKEN,
            yours: 0,
            nonce: NONCE,
            begun: self.begun,
            epoch: self.epoch,
            rail: RailIndex::new(self.own_rail),
            your_rail: RailIndex::at(0),
            wire: frame::WIRE_HIGHEST,
            proven: self.root.is_some(),
            address: &address,
        };
        let mut body = request.encode();
        if let Some(root) = &self.root {
            root.prove(Proof::Request, self.incarnation, self.target.incarnation, &mut body);
        }
        self.say_openly(Header::plain(Kind::HandshakeRequest), &body)
    }

    /// Sends the next frame of a channel.
    fn ask(&mut self, kind: Kind, body: &[u8]) {
        self.sequence += 1;
        self.say(Header::numbered(kind, self.sequence), body);
    }

    fn listen(&mut self) {
        let mut done = Vec::new();
        self.rail.reap(&mut self.lanes, &mut done, 1);
        for one in &done {
            if one.work == Work::Receive && one.errno == 0 {
                let frame = self.rail.received(one).to_vec();
                self.rail.give_back(one).expect("a receive");
                self.rail.assign_connection(one.connection, PeerId::numbered(1));
                let (header, body, rest) = Header::begins(&frame).expect("an endpoint makes sense");
                // The proof of a handshake is in its body.
                let open =
                    matches!(header.kind, Kind::HandshakeRequest | Kind::HandshakeReply | Kind::Refuse);
                assert_eq!(rest - body.len(), if self.root.is_some() && !open { SEAL } else { 0 });
                if self.acknowledges && header.kind.channel() == Some(frame::SYSTEM) {
                    let ack = numbers(&[header.sequence.into(), 0, 0]);
                    self.say(Header::plain(Kind::Ack), &ack);
                }
                let body = body.to_vec();
                self.received.push(ReceivedFrame { header, body, frame });
            }
        }
    }

    fn receives_within(&mut self, kind: Kind, time: Duration) -> Option<ReceivedFrame> {
        let began = Instant::now();
        loop {
            if let Some(at) = self.received.iter().position(|received| received.header.kind == kind) {
                return Some(self.received.remove(at));
            }
            if began.elapsed() > time {
                return None;
            }
            self.listen();
        }
    }

    fn receive(&mut self, kind: Kind) -> ReceivedFrame {
        self.receives_within(kind, PATIENCE).unwrap_or_else(|| panic!("no {kind:?} came"))
    }

    /// Repeats its handshake until that is accepted: a full endpoint does not answer.
    fn handshake_again(&mut self) -> ReceivedFrame {
        let (address, began) = (self.address(), Instant::now());
        loop {
            self.handshake(&address);
            if let Some(reply) = self.receives_within(Kind::HandshakeReply, Duration::from_secs(1)) {
                return reply;
            }
            assert!(began.elapsed() < PATIENCE, "no welcome came");
        }
    }

    /// Handles a handshake reply, which begins a session.
    fn take_reply(&mut self, reply: &ReceivedFrame) -> HandshakeReply {
        let (us, them) = (self.incarnation, self.target.incarnation);
        let body = match &self.root {
            None => Some(&reply.body[..]),
            Some(root) => root.verify(Proof::Reply, them, us, &reply.body),
        };
        let reply = body.and_then(HandshakeReply::decode).expect("a welcome");
        let ours = Side { incarnation: us, nonce: NONCE, epoch: self.epoch, rail: RailIndex::at(0) };
        let theirs = Side { incarnation: them, nonce: reply.own, epoch: reply.epoch, rail: RailIndex::at(0) };
        let sealer = self.root.as_ref().map(|root| Sealer::new(root, &ours, &theirs));
        (self.lane().sealer, self.lane().to) = (sealer, reply.token);
        reply
    }

    fn reply(&self, nonce: u128) -> Vec<u8> {
        self.reply_with(nonce, self.rail.probe_buffer())
    }

    fn reply_with(&self, nonce: u128, probe_buffer: (u64, u64)) -> Vec<u8> {
        let (token, begun, epoch) = (TOKEN, self.begun, self.epoch);
        let reply = HandshakeReply { nonce, own: 5, token, begun, epoch, probe_buffer };
        let mut body = reply.encode();
        if let Some(root) = &self.root {
            root.prove(Proof::Reply, self.incarnation, self.target.incarnation, &mut body);
        }
        body
    }

    /// Follows the protocol until it is a peer that is up.
    fn become_a_peer(&mut self) {
        let reply = self.handshake_again();
        self.take_reply(&reply);
        let request = self.receive(Kind::HandshakeRequest);
        let request = HandshakeRequest::decode(&request.body).expect("a hello");
        let reply = self.reply(request.nonce);
        self.say_openly(Header::plain(Kind::HandshakeReply), &reply);
        let ready = frame::ready(&self.fabric.clone());
        let began = Instant::now();
        while self.receives_within(Kind::Ready, Duration::from_millis(50)).is_none() {
            // Repeat Ready: the side that selects drops one that comes too early.
            assert!(began.elapsed() < PATIENCE, "it does not get ready");
            self.ask(Kind::Ready, &ready);
        }
        self.ask(Kind::Ready, &ready);
    }
}

fn next(endpoint: &Endpoint, time: Duration) -> Option<Completion> {
    let mut room = [MaybeUninit::uninit()];
    let count = endpoint.wait(endpoint.queue(), &mut room, time.as_nanos() as u64).expect("it is open");
    // SAFETY: one entry was written.
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

/// Two connected endpoints that exchange messages meanwhile.
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

    /// Sends messages from a to b; returns how long the slowest took.
    fn talk(&self, count: usize) -> Duration {
        let (mut slowest, marks) = (Duration::ZERO, Marks::default());
        for _ in 0..count {
            let began = Instant::now();
            let common = common(&self.a, &marks);
            self.a.send(self.b_of_a, b"hello"[..].into(), &common).expect("a send");
            assert_eq!(next(&self.a, PATIENCE).expect("its completion").status, Status::Ok as i32);
            take(&self.b, KIND_MESSAGE);
            slowest = slowest.max(began.elapsed());
        }
        slowest
    }
}

#[test]
fn unauthenticated_endpoint_is_ignored() {
    // The connect has to last until the attacker has said everything, on a loaded machine, too.
    let client = |fabric, secret| {
        let secrets = if secret { secrets(&[SECRET]) } else { None };
        let endpoint = open(EndpointConfig { secrets, ..config(fabric) });
        let memory = register(&endpoint);
        let mut attacker = Attacker::new(fabric, &endpoint);
        endpoint.connect(&attacker.address().encode(), 20_000_000_000, 0).expect("a connect");
        let request = attacker.receive(Kind::HandshakeRequest);
        let request = HandshakeRequest::decode(&request.body).expect("a hello");
        assert_eq!(request.proven, secret);
        // The attacker knows everything that it was shown, and a descriptor.
        attacker.named(request.token);
        attacker.acknowledges = false;
        attacker.ask(Kind::Import, &numbers(&[memory.id.get(), memory.secret, 1]));
        if !secret {
            until("an import is taken", || !memory.importers().is_empty());
            return;
        }
        let reply = attacker.reply(request.nonce);
        attacker.say(Header::plain(Kind::HandshakeReply), &reply);
        until("it is counted", || endpoint.handshakes_rejected() >= 2);
        assert!(memory.importers().is_empty());
        attacker.say(Header::plain(Kind::Closing), &[]);
        until("it is counted", || endpoint.handshakes_rejected() >= 3);
        assert_eq!(take(&endpoint, KIND_PEER_UP).status, Status::Unreachable as i32);
    };
    std::thread::scope(|all| {
        for (fabric, secret) in FABRICS.into_iter().flat_map(|fabric| [(fabric, true), (fabric, false)]) {
            all.spawn(move || client(fabric, secret));
        }
    });
}

#[test]
fn handshake_is_accepted_only_with_a_valid_proof() {
    for fabric in FABRICS {
        let endpoint = open(EndpointConfig { secrets: secrets(&[SECRET, OTHERS]), ..config(fabric) });
        let refused = |root: Option<Root>, target: Option<u64>| {
            let mut attacker = Attacker::new(fabric, &endpoint);
            attacker.root = root;
            attacker.target.incarnation = target.unwrap_or(attacker.target.incarnation);
            let address = attacker.address();
            attacker.handshake(&address);
            let refusal = attacker.receive(Kind::Refuse);
            assert_eq!((refusal.header.to, refusal.header.rail), (TOKEN, RailIndex::at(0)));
            let (status, text) = frame::read_refuse(&refusal.body).expect("a refusal");
            let known = endpoint.incarnation().to_le_bytes();
            let tells = |bytes: &[u8]| bytes.windows(8).any(|bytes| bytes == known);
            assert!(!tells(&refusal.body), "{text}");
            status
        };
        assert_eq!(refused(None, None), Status::Denied);
        assert_eq!(refused(Some(Root::new(b"yet another secret")), None), Status::Denied);
        // The answer to a wrong name does not reveal which names exist.
        assert_eq!(refused(None, Some(7)), Status::PeerGone);
        assert_eq!(refused(Some(Root::new(SECRET)), Some(7)), Status::PeerGone);
        assert_eq!(endpoint.handshakes_rejected(), 4);
        for known in [SECRET, OTHERS] {
            let mut attacker = Attacker::new(fabric, &endpoint);
            attacker.root = Some(Root::new(known));
            let reply = attacker.handshake_again();
            assert_eq!(attacker.take_reply(&reply).nonce, NONCE);
        }
    }
}

#[test]
fn answer_to_a_connect_that_was_given_up_is_no_attack() {
    for fabric in FABRICS {
        let endpoint = open(config(fabric));
        let mut slow = Attacker::new(fabric, &endpoint);
        let peer = endpoint.connect(&slow.address().encode(), 20_000_000_000, 0).expect("a connect");
        let request = slow.receive(Kind::HandshakeRequest);
        let request = HandshakeRequest::decode(&request.body).expect("a hello");
        endpoint.disconnect(peer).expect("a peer");
        assert_eq!(take(&endpoint, KIND_PEER_UP).status, Status::Canceled as i32);
        slow.named(request.token);
        let reply = slow.reply(request.nonce);
        slow.say_openly(Header::plain(Kind::HandshakeReply), &reply);
        until("it is counted", || endpoint.malformed() + endpoint.handshakes_rejected() > 0);
        assert_eq!(endpoint.handshakes_rejected(), 0, "{fabric}");
    }
}

fn message(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

#[test]
fn token_alone_does_not_authenticate() {
    for fabric in FABRICS {
        let friends = Friends::meet(|| EndpointConfig { secrets: secrets(&[SECRET]), ..config(fabric) });
        let counter = friends.b.create_counter().expect("a counter");
        let memory = register(&friends.b);
        let a_of_b = friends.b.core.peers.all()[0].token;
        let mut attacker = Attacker::new(fabric, &friends.b);
        let mut sent = 0;
        let raise = numbers(&[u64::from(counter as u32), 5]);
        let import = numbers(&[memory.id.get(), memory.secret, 1]);
        for seal in [&[][..], &[7; SEAL]] {
            for sequence in 0..200 {
                attacker.named(a_of_b);
                let mut say = |kind, body: &[u8]| {
                    let mut frame = vec![0; HEADER + body.len()];
                    Header::numbered(kind, sequence).write(&mut frame, body, &[]);
                    attacker.send(&[&frame[..], seal].concat());
                    attacker.listen();
                    sent += 1;
                };
                say(Kind::Message, &message(b"forged"));
                say(Kind::Count, &raise);
                say(Kind::Import, &import);
                say(Kind::Revoke, &numbers(&[1]));
                [Kind::Closing, Kind::Close, Kind::CloseAck, Kind::Ack]
                    .into_iter()
                    .for_each(|kind| say(kind, &[]));
                say(Kind::Refuse, &frame::refuse(Status::PeerGone, "it is gone"));
                // Names that no endpoint has.
                attacker.named(Random::System.u128().expect("a number"));
                attacker.say(Header::numbered(Kind::Message, 1), &message(b"guessed"));
                sent += 1;
            }
        }
        // On a slow machine the connection is closed before everything has arrived: it does not
        // authenticate in time.
        let counted = || friends.b.handshakes_rejected() + friends.b.malformed();
        let (mut last, mut since) = (counted(), Instant::now());
        until("they are counted", || {
            if counted() != last {
                (last, since) = (counted(), Instant::now());
            }
            last >= sent || (last > 0 && since.elapsed() > Duration::from_secs(2))
        });
        friends.talk(20);
        assert!(next(&friends.b, Duration::from_millis(20)).is_none());
        assert!(memory.importers().is_empty());
        assert_eq!(friends.b.read_counter(counter).expect("a counter"), 0);
    }
}

#[test]
fn replayed_frames_have_no_effect() {
    for fabric in FABRICS {
        let endpoint = open(EndpointConfig { secrets: secrets(&[SECRET]), ..config(fabric) });
        let mut peer = Attacker::new(fabric, &endpoint);
        peer.root = Some(Root::new(SECRET));
        peer.become_a_peer();
        assert_eq!(take(&endpoint, KIND_PEER_UP).status, Status::Ok as i32);
        let address = peer.address();
        let request = peer.handshake(&address);
        let (said, name) = (peer.say(Header::numbered(Kind::Message, 1), &message(b"once")), peer.name());
        take(&endpoint, KIND_MESSAGE);
        let mut thief = Attacker::new(fabric, &endpoint);
        let again = |thief: &mut Attacker, names: &[Token], frames: &[&Vec<u8>]| {
            for (name, frame) in names.iter().flat_map(|name| frames.iter().map(move |frame| (name, frame))) {
                thief.named(*name);
                thief.send(frame);
                thief.listen();
            }
            assert!(next(&endpoint, Duration::from_millis(50)).is_none());
        };
        again(&mut thief, &[0, name], &[&request, &said]);
        let bye = peer.say(Header::plain(Kind::Close), &[]);
        assert_eq!(take(&endpoint, KIND_PEER_DOWN).status, Status::PeerClosed as i32);
        // Replay all frames, after the peer has ended and after it has returned.
        again(&mut thief, &[0, name], &[&request, &said, &bye]);
        (peer.begun, peer.epoch, peer.sequence) = (2, 2, 0);
        peer.received.clear();
        peer.named(0);
        peer.become_a_peer();
        assert_eq!(take(&endpoint, KIND_PEER_UP).status, Status::Ok as i32);
        let names = [0, name, peer.name()];
        again(&mut thief, &names, &[&request, &said, &bye]);
        peer.say(Header::numbered(Kind::Message, 1), &message(b"again"));
        take(&endpoint, KIND_MESSAGE);
    }
}

#[test]
fn frames_of_other_sessions_have_no_effect() {
    for fabric in FABRICS {
        let endpoint = open(EndpointConfig { secrets: secrets(&[SECRET]), ..config(fabric) });
        let mut peers = [0, 1].map(|_| {
            let mut peer = Attacker::new(fabric, &endpoint);
            peer.root = Some(Root::new(SECRET));
            peer.become_a_peer();
            assert_eq!(take(&endpoint, KIND_PEER_UP).status, Status::Ok as i32);
            peer
        });
        let names = [peers[0].name(), peers[1].name()];
        // Replay the endpoint's own frames, to each of them.
        let said = |peer: &mut Attacker| {
            peer.acknowledges = false;
            until("it says something", || {
                peer.listen();
                peer.received.iter().any(|received| received.header.kind.channel().is_some())
            });
            std::mem::take(&mut peer.received).into_iter().map(|received| received.frame).collect::<Vec<_>>()
        };
        peers.iter_mut().for_each(|peer| peer.ask(Kind::Import, &numbers(&[1, 2, 3])));
        let mut frames = [said(&mut peers[0]), said(&mut peers[1])].concat();
        // Send frames in the other's name, sealed with the attacker's key, and with guessed
        // numbers.
        for number in [0, 1, 2, 100, u64::MAX] {
            let mut frame = vec![0; HEADER + 13 + SEAL];
            let sequence = peers[0].sequence + 1;
            let len = Header::numbered(Kind::Message, sequence).write(&mut frame, &message(b"guess"), &[]);
            crate::wire::stamp(&mut frame, RailIndex::at(0), names[1]);
            if let Some(sealer) = &mut peers[0].lane().sealer {
                sealer.seal(&mut frame, len);
            }
            frames.push(frame.clone());
            frame[16..24].copy_from_slice(&number.to_le_bytes());
            frames.push(frame);
        }
        let before = endpoint.handshakes_rejected() + endpoint.malformed();
        let mut thief = Attacker::new(fabric, &endpoint);
        let mut sent = 0;
        for frame in &frames {
            for name in names {
                thief.named(name);
                let mut frame = frame.clone();
                thief.send(&frame);
                crate::wire::stamp(&mut frame, RailIndex::at(0), name);
                thief.send(&frame);
                sent += 2;
            }
        }
        until("they are counted", || endpoint.handshakes_rejected() + endpoint.malformed() >= before + sent);
        assert!(next(&endpoint, Duration::from_millis(50)).is_none(), "{fabric}");
        for peer in &mut peers {
            peer.say(Header::numbered(Kind::Message, 1), &message(b"itself"));
            take(&endpoint, KIND_MESSAGE);
        }
    }
}

#[test]
fn secrets_are_replaced_under_load() {
    let fabric = FABRICS[0];
    let folder = tempfile::tempdir().expect("a folder");
    let files = ["a", "b"].map(|name| folder.path().join(name));
    let put = |file: &std::path::Path, lines: &[&[u8]]| {
        let new = folder.path().join("new");
        std::fs::write(&new, lines.join(&b'\n')).expect("written");
        std::fs::rename(&new, file).expect("renamed");
    };
    let knowing = |file: &std::path::Path| EndpointConfig {
        secrets: Some(Arc::new(Secrets::of_file(file.into()).expect("secrets"))),
        ..config(fabric)
    };
    files.iter().for_each(|file| put(file, &[SECRET]));
    let (a, b) = (open(knowing(&files[0])), open(knowing(&files[1])));
    // Each stage reaches one endpoint, then the other; both check once per second.
    let stages: [&[&[u8]]; 3] = [&[SECRET, OTHERS], &[OTHERS, SECRET], &[OTHERS]];
    for (stage, file) in stages.into_iter().flat_map(|stage| files.iter().map(move |file| (stage, file))) {
        put(file, stage);
        std::thread::sleep(Duration::from_millis(1100));
        for (from, to) in [(&a, &b), (&b, &a)] {
            let peer = from.connect(to.address(), 0, 0).expect("a connect");
            assert_eq!(take(from, KIND_PEER_UP).status, Status::Ok as i32);
            take(to, KIND_PEER_UP);
            from.disconnect(peer).expect("a peer");
            take(from, KIND_PEER_DOWN);
            take(to, KIND_PEER_DOWN);
        }
    }
    let late = open(EndpointConfig { secrets: secrets(&[SECRET]), ..config(fabric) });
    until("the first secret is known no longer", || {
        let peer = late.connect(b.address(), 0, 0).expect("a connect");
        let status = take(&late, KIND_PEER_UP).status;
        if status == Status::Ok as i32 {
            late.disconnect(peer).expect("a peer");
            take(&late, KIND_PEER_DOWN);
        }
        status == Status::Denied as i32
    });
}

#[test]
fn text_from_peers_stays_on_one_log_line() {
    static LINES: parking_lot::Mutex<Vec<String>> = parking_lot::Mutex::new(Vec::new());
    let sink = |_: log::Level, _: &str, line: &str| LINES.lock().push(line.into());
    crate::logging::set(Some(log::LevelFilter::Warn), Some(Box::new(sink))).expect("a log");
    let endpoint = open(config(FABRICS[0]));
    let mut attacker = Attacker::new(FABRICS[0], &endpoint);
    let mut address = attacker.address();
    address.rails.push(RailAddress { fabric: "evil\nfabric\x1b[31m".into(), ..address.rails[0].clone() });
    endpoint.connect(&address.encode(), 5_000_000_000, 0).expect("a connect");
    let request = attacker.receive(Kind::HandshakeRequest);
    attacker.named(HandshakeRequest::decode(&request.body).expect("a hello").token);
    let text = format!("evil\nERROR a defect of Weft\x1b[31m{}", "A".repeat(4000));
    attacker.say(Header::plain(Kind::Refuse), &frame::refuse(Status::Denied, &text));
    assert_eq!(take(&endpoint, KIND_PEER_UP).status, Status::Denied as i32);
    crate::logging::set(None, None).expect("a log");
    let lines = LINES.lock();
    let evil: Vec<&String> = lines.iter().filter(|line| line.contains("evil")).collect();
    assert!(!evil.is_empty());
    assert!(
        evil.iter().all(|line| line.len() < 400 && line.chars().all(|c| matches!(c, ' '..='~'))),
        "{evil:?}"
    );
}

fn status_of_self(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a process");
    let line = status.lines().find(|line| line.starts_with(name)).expect("a line");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

/// Each handshake names another return address. `cargo test -p weft refused_handshakes -- --ignored
/// --nocapture` prints the figures.
#[test]
#[ignore = "it looks at the whole process: alone"]
fn refused_handshakes_leak_nothing() {
    let mut most = (0, 0);
    for (fabric, secret) in [("tcp", false), ("tcp", true), ("host", false), ("host", true)] {
        let secrets = if secret { secrets(&[SECRET]) } else { None };
        let rails = Some("lo".to_string()).filter(|_| fabric == "tcp");
        let endpoint = open(EndpointConfig { rails, secrets, ..config(fabric) });
        let mut random = Sequence(4711);
        // host closes such a connection after some time, and does not make it again.
        let mut refused = |count: u64| {
            let all = endpoint.handshakes_rejected() + count;
            let mut attacker = Attacker::new(fabric, &endpoint);
            let mut began = Instant::now();
            while endpoint.handshakes_rejected() < all {
                if began.elapsed() > Duration::from_secs(2) {
                    attacker = Attacker::new(fabric, &endpoint);
                    began = Instant::now();
                }
                // An attacker without the secret may know the address.
                attacker.target.incarnation = if secret { endpoint.incarnation() } else { 7 };
                let mut address = attacker.address();
                let to = &mut address.rails[0].address;
                if fabric == "tcp" {
                    to[2..4].copy_from_slice(&(1024 + random.next() as u16 % 60_000).to_be_bytes());
                    to[4..8].copy_from_slice(&[127, 1 + random.next() as u8 % 250, random.next() as u8, 1]);
                }
                attacker.incarnation = random.next();
                attacker.handshake(&address);
                attacker.listen();
                attacker.received.clear();
            }
            drop(attacker);
            std::thread::sleep(Duration::from_secs(5));
        };
        let open_files = || std::fs::read_dir("/proc/self/fd").expect("a process").count();
        // The first handshakes let pools grow to their working size.
        refused(10_000);
        // A leak recurs each time; first touches of pages occur only now and then.
        let (mut growth, mut descriptors) = (u64::MAX, 0);
        for _ in 0..3 {
            let before = (status_of_self("VmRSS"), open_files(), allocated());
            refused(10_000);
            let grown = status_of_self("VmRSS").saturating_sub(before.0);
            let live = allocated().saturating_sub(before.2) >> 10;
            descriptors = descriptors.max(open_files().saturating_sub(before.1));
            println!("{fabric}, secret: {secret}: grew by {grown} KiB, of which {live} are allocated, and {descriptors} descriptors");
            growth = growth.min(grown);
        }
        most = (most.0.max(growth), most.1.max(descriptors));
    }
    println!("hostile_growth_kb {}\nhostile_descriptors {}", most.0, most.1);
    assert!(most.0 <= 256 && most.1 == 0);
}

/// Bytes that malloc has allocated.
fn allocated() -> usize {
    // SAFETY: the calls have no preconditions.
    let usage = unsafe { libc::mallinfo2() };
    usage.uordblks + usage.hblkhd
}

#[test]
fn malformed_frames_are_counted_and_do_not_delay_peers() {
    for fabric in FABRICS {
        let friends = Friends::meet(|| config(fabric));
        // Measures an undisturbed pair at the same time.
        let others = Friends::meet(|| config(fabric));
        let mut attacker = Attacker::new(fabric, &friends.b);
        let mut random = Sequence(4711);
        let (mut slowest, mut undisturbed) = (Duration::ZERO, Duration::ZERO);
        let mut sent = 0;
        for round in 0..100 {
            for _ in 0..50 {
                let len = 1 + random.next() as usize % 300;
                let mut frame: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
                if random.next() % 2 == 0 && len > HEADER {
                    // A frame that is valid except for its contents.
                    let kind = if round % 2 == 0 { Kind::HandshakeRequest } else { Kind::Import };
                    Header::plain(kind).write(&mut frame, &[], &vec![9; len - HEADER]);
                    attacker.named(random.next().into());
                }
                attacker.send(&frame);
                sent += 1;
            }
            attacker.listen();
            slowest = slowest.max(friends.talk(1));
            undisturbed = undisturbed.max(others.talk(1));
        }
        until("they are counted", || friends.b.malformed() + friends.b.handshakes_rejected() == sent);
        println!(
            "{fabric}: slowest message {slowest:?} beside a stranger with {sent} frames, of others {undisturbed:?}"
        );
        assert!(slowest < Duration::from_secs(1) + 10 * undisturbed);
    }
}

#[test]
fn another_wire_version_is_refused_and_counted() {
    for fabric in FABRICS {
        let endpoint = open(config(fabric));
        let mut attacker = Attacker::new(fabric, &endpoint);
        let newer = Address { wire: (8, 9), ..attacker.address() };
        attacker.handshake(&newer);
        let (status, text) = frame::read_refuse(&attacker.receive(Kind::Refuse).body).expect("a refusal");
        assert_eq!(status, Status::Version);
        assert!(text.to_string().contains("8 to 9"), "{text}");
        assert_eq!(endpoint.handshakes_rejected(), 1);
    }
}

#[test]
fn handshake_flood_is_limited_and_others_still_connect() {
    for fabric in FABRICS {
        let config = || EndpointConfig { connect_timeout_ns: 3_000_000_000, ..config(fabric) };
        let friends = Friends::meet(config);
        let mut attacker = Attacker::new(fabric, &friends.b);
        let flood = |attacker: &mut Attacker, count| {
            for _ in 0..count {
                attacker.incarnation = Random::System.u64().expect("a number");
                let address = attacker.address();
                attacker.handshake(&address);
                attacker.listen();
                attacker.received.clear();
            }
        };
        let most = 256 + 1;
        flood(&mut attacker, 2000);
        until("they are counted", || friends.b.handshakes_rejected() >= 1000);
        assert!(friends.b.core.peers.all().len() <= most);
        let slowest = friends.talk(50);
        // One more honest endpoint connects while the flood goes on.
        let guest = open(config());
        guest.connect(friends.b.address(), 60_000_000_000, 0).expect("a connect");
        let began = Instant::now();
        let up = loop {
            flood(&mut attacker, 10);
            assert!(friends.b.core.peers.all().len() <= most + 1);
            if let Some(up) = next(&guest, Duration::from_millis(1)) {
                break up;
            }
            assert!(began.elapsed() < PATIENCE);
        };
        println!("{fabric}: in the flood a message took {slowest:?}, a connect {:?}", began.elapsed());
        assert_eq!((up.kind, up.status), (KIND_PEER_UP, Status::Ok as i32));
        until("they are forgotten", || friends.b.core.peers.all().len() == 2);
    }
}

/// A request that a peer repeats without end.
fn asks_for_ever(fabric: &str, acknowledges: bool, body: impl Fn(u64) -> (Kind, Vec<u8>)) -> Option<Status> {
    let endpoint = open(config(fabric));
    let friends = Friends::meet(|| config(fabric));
    let mut attacker = Attacker::new(fabric, &endpoint);
    attacker.become_a_peer();
    assert_eq!(take(&endpoint, KIND_PEER_UP).status, Status::Ok as i32);
    attacker.acknowledges = acknowledges;
    attacker.received.clear();
    for n in 0..3 * bounds::ANSWERS as u64 {
        let (kind, body) = body(n);
        attacker.ask(kind, &body);
        attacker.listen();
        // An honest peer respects the window.
        let began = Instant::now();
        while acknowledges && (attacker.received.len() as u64) + u64::from(WINDOW) / 2 < n {
            attacker.listen();
            attacker.received.retain(|received| received.header.kind.channel().is_some());
            assert!(began.elapsed() < PATIENCE, "no answer to {n}");
        }
    }
    let others = Friends::meet(|| config(fabric));
    let (slowest, undisturbed) = (friends.talk(20), others.talk(20));
    assert!(slowest < Duration::from_secs(1) + 10 * undisturbed, "{slowest:?}, others {undisturbed:?}");
    let down = next(&endpoint, if acknowledges { Duration::from_millis(300) } else { PATIENCE });
    let down = down.inspect(|down| assert_eq!(down.kind, KIND_PEER_DOWN))?;
    Some(Status::from_code(down.status))
}

#[test]
fn peer_that_reads_no_answers_is_dropped() {
    for fabric in FABRICS {
        let import = |n| (Kind::Import, numbers(&[n, n, n]));
        let revoke = |n| (Kind::Revoke, numbers(&[n]));
        assert_eq!(asks_for_ever(fabric, false, import), Some(Status::Protocol));
        assert_eq!(asks_for_ever(fabric, false, revoke), Some(Status::Protocol));
        assert_eq!(asks_for_ever(fabric, true, import), None);
        assert_eq!(asks_for_ever(fabric, true, revoke), None);
    }
}

/// A connection belongs to a peer only at workers that learn when the peer ends, or a grant is revoked.
#[test]
fn handshake_over_a_fabric_that_does_not_lead_to_its_peer_is_rejected() {
    let endpoint = open(EndpointConfig { workers: 2, rail_count: 1, ..config("host,tcp") });
    let rails = &endpoint.core.rails;
    assert!(rails[0].fabric == "host" && rails[0].worker != rails[1].worker);
    let silent = open(EndpointConfig { manual: true, rail_count: 1, ..config("tcp") });
    let mut attacker = Attacker::new("host", &endpoint);
    let mut elsewhere = attacker.address();
    elsewhere.rails[0].network.push('x');
    elsewhere.rails.extend(Address::decode(silent.address()).expect("an address").rails);
    attacker.handshake(&elsewhere);
    until("it is rejected", || endpoint.handshakes_rejected() == 1);
    assert!(endpoint.core.peers.all().is_empty());
    // As a peer over tcp, too.
    endpoint.connect(&elsewhere.encode(), 0, 0).expect("a connect");
    let address = attacker.address();
    attacker.handshake(&address);
    until("it is rejected", || endpoint.handshakes_rejected() == 2);
}

/// A receiver drops frames with numbers that it has seen: a session that begins anew would lose some.
#[test]
fn session_continues_after_a_failed_probe() {
    const SEALED: u64 = 100;
    let one = EndpointConfig { manual: true, rail_count: 1, ..config("tcp") };
    let endpoint = open(EndpointConfig { secrets: secrets(&[SECRET]), ..one });
    let worker = endpoint.worker().expect("manual progress");
    let mut peer = Attacker::new("tcp", &endpoint);
    (peer.root, peer.acknowledges) = (Some(Root::new(SECRET)), false);
    endpoint.connect(&peer.address().encode(), PATIENCE.as_nanos() as u64, 0).expect("a connect");
    let probe_buffer = peer.rail.probe_buffer();
    let mut number = |probe_buffer, up: bool| {
        let mut frame = vec![0; SEAL];
        until("it has probed", || {
            peer.listen();
            while let Some(request) = peer.receives_within(Kind::HandshakeRequest, Duration::ZERO) {
                let request = HandshakeRequest::decode(&request.body).expect("a request");
                peer.named(request.token);
                let reply = peer.reply_with(request.nonce, probe_buffer);
                peer.say_openly(Header::plain(Kind::HandshakeReply), &reply);
            }
            let mut worker = worker.lock();
            worker.step();
            let lane = worker.data.rails.lanes_mut().next();
            let Some(lane) =
                lane.filter(|lane| lane.lane.life.is_up() == up && lane.lane.life.is_handshaking() != up)
            else {
                return false;
            };
            let Some(sealer) = &mut lane.lane.sealer else { return false };
            (0..SEALED).for_each(|_| _ = sealer.seal(&mut frame, 0));
            true
        });
        frame.first_chunk().map(|number| u64::from_le_bytes(*number))
    };
    assert_eq!(number((0, 0), false), Some(SEALED), "the probe fails");
    assert!(number(probe_buffer, true) >= Some(2 * SEALED));
}

/// Half revoked, it would not expire, and the peer's operations under it would neither succeed nor fail.
#[test]
fn revoke_without_a_place_for_its_completion_changes_nothing() {
    let friends = Friends::meet(|| config("host"));
    let (owner, memory, marks) = (&friends.b, register(&friends.b), Marks::default());
    let peer = owner.core.peers.all()[0].id.get();
    let spec = GrantSpec { peer, write: true, read: false, pages: None, timeout_ns: None, notify: None };
    let token = owner.grant(&memory, &spec).expect("a grant");
    let taken = (0..).take_while(|_| owner.queue().reserve(1)).count();
    let refused = owner.revoke(token, &common(owner, &marks)).err().map(|error| error.status);
    assert_eq!(refused, Some(Status::Again));
    assert!(owner.core.grants.named(token).is_some());
    owner.queue().unreserve(taken as u64);
    owner.revoke(token, &common(owner, &marks)).expect("a revoke");
    assert_eq!(take(owner, KIND_FENCE).status, Status::Ok as i32);
    assert!(owner.core.grants.named(token).is_none());
}

/// Memory that a peer revokes again and again is swept once.
#[test]
fn repeated_revocations_cause_one_sweep() {
    const MEMORY: u64 = 5;
    let config =
        EndpointConfig { manual: true, max_transfers: 32_768, queue_depth: 65_536, ..config("host") };
    let endpoint = open(config);
    let mut attacker = Attacker::new("host", &endpoint);
    let worker = endpoint.worker().expect("manual progress");
    let over = AtomicBool::new(false);
    let remote = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                worker.lock().step();
            }
        });
        attacker.become_a_peer();
        let rails = vec![descriptor::Rail { virtual_addresses: true, keys: Box::new([1]) }];
        let ranges = vec![Range { base: 4096, len: 4096 }];
        let (incarnation, id) = (attacker.incarnation, MemoryId::new(MEMORY));
        let descriptor =
            Descriptor { incarnation, id, writable: true, ranges, rails, ..Descriptor::default() };
        let peer = endpoint.core.peers.all()[0].id.get();
        let remote = endpoint.import(peer, &descriptor.encode()).expect("an import");
        let asked = attacker.receive(Kind::Import);
        let [.., number] = frame::read_numbers::<3>(&asked.body).expect("an import");
        attacker.ask(Kind::Imported, &numbers(&[number, 1]));
        until("it is imported", || remote.state() == RemoteState::Ready);
        over.store(true, Ordering::Relaxed);
        remote
    });
    // A sweep over a large table takes long.
    let counter = endpoint.create_counter().expect("a counter");
    for _ in 0..30_000 {
        let (counters, values, marks) = ([counter], [1u64], Marks::default());
        let (counters, values) = (Theirs::from(&counters[..]), Theirs::from(&values[..]));
        endpoint.expect(counters, values, &common(&endpoint, &marks)).expect("an operation");
    }
    let mut most = 0;
    for _ in 0..200 {
        attacker.ask(Kind::Revoke, &numbers(&[MEMORY]));
        attacker.listen();
        let mut worker = worker.lock();
        worker.step();
        most = worker.links.iter().map(|link| link.withdrawals.len()).sum::<usize>().max(most);
    }
    assert_eq!(remote.state(), RemoteState::Gone);
    assert!(most <= 1, "{most} sweeps");
}
