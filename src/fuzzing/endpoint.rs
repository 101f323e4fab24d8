//! A whole endpoint, with memory that a peer has imported: frames come from that peer, and forged
//! ones from others. In virtual time, without a thread.

use super::Input;
use crate::calls::{Endpoint, EndpointConfig};
use crate::device::Claim;
use crate::ids::{PeerId, RailIndex};
use crate::memory::{Access, Memory, Range};
use crate::transfer::completion::Completion;
use crate::wire::address::Address;
use crate::wire::frame::{numbers, HandshakeRequest, Header, Kind, HEADER, WIRE_HIGHEST};
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

const KINDS: [Kind; 19] = [
    Kind::HandshakeRequest,
    Kind::HandshakeReply,
    Kind::Refuse,
    Kind::Ack,
    Kind::Import,
    Kind::Imported,
    Kind::Revoke,
    Kind::Revoked,
    Kind::Count,
    Kind::AtomicDone,
    Kind::Message,
    Kind::Notify,
    Kind::Raise,
    Kind::Atomic,
    Kind::Ready,
    Kind::Closing,
    Kind::Close,
    Kind::Flush,
    Kind::Flushed,
];

const LEN: usize = 4096;
/// Bytes around the memory, which must not change.
const GUARD: usize = 4096;
/// Longer than a handshake may take.
const PEERS: usize = 300;
/// Passes until a connection attempt is abandoned.
const PASSES: usize = 20_000;
/// Runs after which the endpoints are opened again.
const RUNS: u32 = 20_000;

struct World {
    ours: Arc<Endpoint>,
    theirs: Arc<Endpoint>,
    memory: Arc<Memory>,
    counter: u64,
    bytes: Box<[u8]>,
    /// Our id of the peer.
    peer: Option<PeerId>,
    runs: u32,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

pub fn endpoint(data: &[u8]) {
    WORLD.with(|world| {
        let mut world = world.borrow_mut();
        if world.as_ref().is_some_and(|world| world.runs >= RUNS) {
            *world = None;
        }
        world.get_or_insert_with(World::open).run(data);
    });
}

fn drain(endpoint: &Endpoint) -> usize {
    let mut room = [const { MaybeUninit::uninit() }; 64];
    let count = endpoint.poll(endpoint.queue(), &mut room).expect("it is open") as usize;
    for done in &room[..count] {
        // SAFETY: this many entries were written.
        let done: Completion = unsafe { done.assume_init_read() };
        if !done.data.is_null() {
            endpoint.release_message(done.transfer).expect("a message");
        }
    }
    count
}

impl World {
    fn open() -> World {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let world = NEXT.fetch_add(1, Ordering::Relaxed);
        let open = || {
            let fabric = format!("sim:like=tcp:clock=virtual:world=fuzz{world}");
            let config = EndpointConfig {
                fabric: Some(fabric),
                manual: true,
                max_transfers: 64,
                connect_timeout_ns: 2_000_000_000,
                ..EndpointConfig::default()
            };
            Endpoint::open(config).expect("it opens")
        };
        let (ours, theirs) = (open(), open());
        #[cfg(fuzzing)]
        log::set_max_level(log::LevelFilter::Off);
        let bytes = vec![0xA5; GUARD + LEN + GUARD].into_boxed_slice();
        let range = Range { base: bytes.as_ptr() as u64 + GUARD as u64, len: LEN as u64 };
        let memory = ours.register(vec![range], Access::ALL, 0, Claim::Host).expect("a memory");
        let counter = ours.create_counter().expect("a counter");
        World { ours, theirs, memory, counter, bytes, peer: None, runs: 0 }
    }

    /// Connects, unless they are connected, and imports the memory.
    fn connect(&mut self) {
        if self.ours.peer_info(self.peer.map_or(0, PeerId::get)).is_ok_and(|info| info.up)
            && !self.memory.importers().is_empty()
        {
            return;
        }
        for peer in self.theirs.core().peers.all() {
            let _ = self.theirs.disconnect(peer.id.get());
        }
        let mut theirs = 0;
        for pass in 0..PASSES {
            drain(&self.ours);
            drain(&self.theirs);
            if theirs == 0 && self.theirs.core().peers.all().is_empty() {
                theirs = self.theirs.connect(self.ours.address(), 0, 0).unwrap_or(0);
            }
            match self.theirs.peer_info(theirs) {
                Ok(info) if info.up => break,
                Err(_) => theirs = 0,
                _ => {}
            }
            assert!(pass + 1 < PASSES, "they do not connect again");
        }
        let descriptor = self.memory.descriptor().expect("it has one");
        let remote = self.theirs.import(theirs, &descriptor).expect("an import");
        let passes = (0..PASSES).take_while(|_| {
            drain(&self.ours);
            drain(&self.theirs);
            self.memory.importers().is_empty()
        });
        assert!(passes.count() < PASSES, "nobody imports");
        self.theirs.release(&remote).expect("it was not released");
        self.peer = Some(self.memory.importers()[0]);
    }

    fn run(&mut self, data: &[u8]) {
        self.runs += 1;
        self.connect();
        let mut input = Input(data);
        while !input.is_empty() {
            let frame = self.forge(&mut input);
            let worker = self.ours.worker().expect("it has manual progress");
            worker.lock().frame((RailIndex::at(0), 0), &frame, self.ours.core().clock.now());
            if input.u8() % 4 == 0 {
                drain(&self.ours);
                drain(&self.theirs);
            }
        }
        for _ in 0..4 {
            drain(&self.ours);
            drain(&self.theirs);
        }
        self.check();
    }

    fn check(&self) {
        assert!(self.ours.check_poison().is_ok());
        let guards = self.bytes[..GUARD].iter().chain(&self.bytes[GUARD + LEN..]);
        assert!(guards.clone().all(|byte| *byte == 0xA5), "written outside of the memory");
        assert!(self.ours.core().peers.all().len() <= PEERS, "unauthenticated peers pile up");
    }

    /// A frame of the peer's, as valid as the input makes it.
    fn forge(&self, input: &mut Input) -> Vec<u8> {
        let (kind, how, len) = (input.u8(), input.u8(), usize::from(input.u8()));
        let kind = KINDS[usize::from(kind) % KINDS.len()];
        let mut body = match how % 4 {
            1 => numbers(&[self.memory.id.get()]),
            2 => numbers(&[self.memory.id.get(), self.memory.secret]),
            _ => Vec::new(),
        };
        if kind == Kind::Count || kind == Kind::Raise {
            body = numbers(&[u64::from(self.counter as u32)]);
        }
        if kind == Kind::Atomic {
            body = numbers(&[1, 1 + u64::from(how % 2), self.memory.id.get()]);
        }
        if kind == Kind::Flush {
            body = numbers(&[1, 0, 0, self.memory.id.get()]);
        }
        if kind == Kind::HandshakeRequest && how & 4 != 0 {
            body = self.request(input);
        }
        body.extend_from_slice(input.take(len));
        let peers = &self.ours.core().peers;
        let token = self.peer.and_then(|peer| peers.get(peer).ok()).map_or(7, |peer| peer.token);
        let channel = kind.channel().unwrap_or(0);
        let delivered = self.delivered(channel);
        let header = Header {
            kind,
            to: if how & 8 != 0 { input.u64().into() } else { token },
            rail: RailIndex::new(if how & 16 != 0 { input.u64() as u16 } else { 0 }),
            sequence: match kind.channel() {
                Some(_) => delivered.wrapping_add(1 + u32::from(how >> 6)),
                None => u32::from(how >> 6),
            },
            acknowledged: if how & 32 != 0 { input.u64() as u32 } else { 0 },
        };
        let mut frame = vec![0; HEADER + body.len()];
        header.write(&mut frame, &body, &[]);
        frame
    }

    /// The last frame of the peer that was delivered.
    fn delivered(&self, channel: usize) -> u32 {
        let worker = self.ours.worker().expect("it has manual progress").lock();
        let link = self.peer.and_then(|peer| worker.links.get(peer));
        link.map_or(0, |link| link.session.channels[channel].delivered())
    }

    /// A frame of an unauthenticated endpoint with few or many unreachable rails; or of the peer.
    fn request(&self, input: &mut Input) -> Vec<u8> {
        let mut address = Address::decode(self.theirs.address()).expect("an address");
        if input.u8() % 2 == 0 {
            address.incarnation = input.u64();
        }
        let rails = usize::from(input.u8()) % 4;
        let first = address.rails[0].clone();
        address.rails.resize(1 + rails, first);
        let blob = address.encode();
        HandshakeRequest {
            target: self.ours.incarnation(),
            token: input.u64().into(),
            yours: 0,
            nonce: input.u64().into(),
            begun: u64::from(input.u8()),
            epoch: u64::from(input.u8()),
            rail: RailIndex::new(u16::from(input.u8() % 5)),
            your_rail: RailIndex::new(u16::from(input.u8() % 2)),
            wire: WIRE_HIGHEST,
            proven: false,
            address: &blob,
        }
        .encode()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for endpoint in [&self.ours, &self.theirs] {
            endpoint.shutdown(0).expect("it shuts down");
        }
    }
}
