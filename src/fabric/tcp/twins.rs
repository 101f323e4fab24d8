//! Two connections with each other over a stream that splits, stalls and ends: in one thread, in steps that
//! bytes decide. Each operation ends once; one that succeeded has moved its bytes and counted once, one that
//! failed nothing but its own; memory that was taken back stays as it is; messages come once, in their order.

use super::connection::{Connection, State};
use super::sealed::Sealed;
use super::stand::{handshake, number, sockets, Stand, RECEIVE};
use crate::fabric::registry::Registry;
use crate::fabric::{Access, HostRange, Immediate, Rma, Scratch, Segment};
use crate::ids::PeerId;
use crate::wire::seal::Root;
use crate::wire::tcp::Kind;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;

/// Each operation has one of these places, at both ends: the largest takes several requests.
const PLACES: [usize; 5] = [64, 700, 5_000, 40_000, 250_000];
const PIECES: usize = 8;
/// The tokens of messages begin with this one; those of operations are their numbers.
const SENT: usize = 1 << 20;
const BUDGETS: [u64; 4] = [1, 5_000, 100_000, 1 << 20];
/// Rounds without a byte after which nothing is under way.
const STILL: usize = 8;

struct Op {
    number: usize,
    read: bool,
    counted: Option<Immediate>,
    /// The bytes where it moves them to, before it and after it.
    before: Vec<u8>,
    after: Vec<u8>,
    arrivals: usize,
    disowned: bool,
    /// What the place had when it was taken back: that of a read's caller, or of a write's target.
    frozen: Option<Vec<u8>>,
    ended: Option<i32>,
}

/// The use of a place by one end, at the other.
#[derive(Default)]
struct Way {
    key: u64,
    local: Vec<u8>,
    remote: Vec<u8>,
    op: Option<Op>,
}

struct End {
    near: Stand,
    /// The other side of its socket.
    stream: UnixStream,
    /// What it does at the other end.
    ways: Vec<Way>,
    /// Messages that were sent, and came: those that overtake, and those that follow.
    sent: [Vec<usize>; 2],
    came: [usize; 2],
    /// Bytes on their way to the other end, and steps for which they wait.
    wire: VecDeque<u8>,
    stalled: u64,
    /// They go nowhere.
    lost: bool,
    /// It takes the other end's peer for one that has ended.
    refuses: bool,
}

struct World {
    ends: [End; 2],
    sealed: bool,
    numbers: usize,
    pass: u32,
}

/// A number's bytes; `other` ones before.
fn bytes_of(number: usize, len: usize, other: bool) -> Vec<u8> {
    let first = (number * 37 + if other { 101 } else { 0 }) as u8;
    // In blocks: a fuzzer counts each step of a loop.
    let turn: Vec<u8> = (0..512).map(|i| first.wrapping_add(i as u8)).collect();
    let mut bytes = Vec::with_capacity(len.next_multiple_of(256));
    (0..len.div_ceil(256)).for_each(|block| bytes.extend_from_slice(&turn[block % 256..][..256]));
    bytes.truncate(len);
    bytes
}

fn connections(sealed: bool) -> [(Connection, UnixStream); 2] {
    let root = [Root::new(b"correct horse battery")];
    [true, false].map(|dials| {
        let (socket, far) = sockets();
        let connection = match dials {
            true => {
                let sealed = sealed.then(|| Sealed::initiator(&root).expect("a key"));
                Connection::dialed(socket, sealed, handshake(), Some(PEER), 0)
            }
            false => Connection::accepted(socket, sealed.then(|| Sealed::target(&root)), 0),
        };
        (connection, far)
    })
}

const PEER: PeerId = PeerId::numbered(1);

pub fn twins(mut data: &[u8]) {
    let mut world = World::new(number(&mut data, 1) & 1 != 0);
    while !data.is_empty() {
        world.step(&mut data);
        world.check();
    }
    world.finish();
    for end in &mut world.ends {
        end.near.connection.die(libc::ECONNRESET, &mut end.near.pool, &mut end.near.reaped);
    }
    world.renew();
}

impl World {
    fn new(sealed: bool) -> World {
        let ends = connections(sealed).map(|(connection, stream)| End {
            near: Stand::new(connection, Registry::default()),
            stream,
            ways: PLACES.map(|_| Way::default()).into(),
            sent: [Vec::new(), Vec::new()],
            came: [0; 2],
            wire: VecDeque::new(),
            stalled: 0,
            lost: false,
            refuses: false,
        });
        let mut world = World { ends, sealed, numbers: 0, pass: 0 };
        world.meet();
        world
    }

    /// Until both ends have authenticated.
    fn meet(&mut self) {
        let mut rounds = 0..100;
        while self.ends.iter().any(|end| end.near.connection.state != State::Up) {
            assert!(rounds.next().is_some(), "they do not meet");
            (0..2).for_each(|at| _ = self.relay(at, usize::MAX));
            (0..2).for_each(|at| self.progress(at, 1 << 20));
        }
        self.ends.iter_mut().for_each(|end| end.near.connection.authenticate(PEER));
    }

    fn step(&mut self, data: &mut &[u8]) {
        let (what, how) = (number(data, 1), number(data, 1) as usize);
        let (at, place) = (how & 1, (how >> 1) % PLACES.len());
        match what % 16 {
            0..=4 => self.push(at, place, what as usize >> 4, number(data, 1) as usize),
            5 => self.send(at, how >> 1 & 1, how >> 2),
            6 => (0..=how >> 1 & 3).for_each(|_| self.ends[at].near.receive()),
            7 => self.disown(at, place),
            8 => self.deregister(at, place),
            9 if how < 32 => self.refuse(at),
            10 if how < 64 => self.end(at, how >> 1),
            11 => self.ends[at].stalled = how as u64 >> 1 & 15,
            12 => _ = self.relay(at, number(data, 1) as usize),
            _ => _ = self.relay(at, (number(data, 2) as usize) << (how >> 6)),
        }
        self.ends.iter_mut().for_each(|end| end.stalled = end.stalled.saturating_sub(1));
        self.progress(what as usize >> 7 & 1, BUDGETS[what as usize >> 5 & 3]);
        if self.ends.iter().all(|end| end.near.connection.dead().is_some()) {
            self.renew();
        }
    }

    /// A write or read of several pieces of a place, if it is free.
    fn push(&mut self, at: usize, place: usize, kind: usize, shape: usize) {
        let (number, size) = (self.numbers + 1, PLACES[place]);
        let [one, other] = self.pair(at);
        let way = &mut one.ways[place];
        if way.op.is_some() || one.near.connection.dead().is_some() {
            return;
        }
        let (read, count) = (kind & 1 != 0, if shape & 1 == 0 { 1 } else { 1 + (shape >> 2) % PIECES });
        let (moved, before) = (bytes_of(number, size, false), bytes_of(number, size, true));
        let mut after = before.clone();
        (way.local, way.remote) =
            if read { (before.clone(), moved.clone()) } else { (moved.clone(), before.clone()) };
        // The pieces have gaps between them, and go in any order.
        let each = size / count;
        let mut segments = Vec::new();
        for i in 0..count {
            let (from, len) = (i * each, (each - each * (shape >> 5) / 8).max(1));
            after[from..from + len].copy_from_slice(&moved[from..from + len]);
            let at = |part: &Vec<u8>| part.as_ptr() as u64 + from as u64;
            segments.push(Segment { local: at(&way.local), remote: at(&way.remote), len: len as u64 });
        }
        segments.rotate_left(shape % count);
        way.key = number as u64;
        let range = HostRange { base: way.remote.as_ptr() as u64, len: size as u64 };
        assert!(other.near.registry.add(way.key, range, Access::ALL, None));
        let counted = Immediate::new(number as u32).filter(|_| !read && kind & 2 != 0);
        let rma = Rma {
            read,
            segments: &segments,
            descriptor: null_mut(),
            key: way.key,
            immediate: counted,
            more: false,
        };
        let kind = if read { Kind::Read } else { Kind::Write };
        one.near.connection.push(kind, &rma, number as *mut Scratch);
        let (arrivals, disowned, frozen, ended) = (0, false, None, None);
        way.op = Some(Op { number, read, counted, before, after, arrivals, disowned, frozen, ended });
        self.numbers = number;
    }

    fn send(&mut self, at: usize, follows: usize, len: usize) {
        self.numbers += 1;
        let end = &mut self.ends[at];
        if end.near.connection.dead().is_some() {
            return;
        }
        let mut text = (self.numbers as u64).to_le_bytes().to_vec();
        text.push(follows as u8);
        text.resize(text.len() + len * 100, self.numbers as u8);
        let segment = Segment { local: text.as_ptr() as u64, remote: 0, len: text.len() as u64 };
        let (key, immediate) = (0, None);
        let rma =
            Rma { read: false, segments: &[segment], descriptor: null_mut(), key, immediate, more: false };
        end.near.connection.outgoing.push_message(
            &rma,
            follows != 0,
            (SENT + end.near.rooms.len()) as *mut Scratch,
        );
        end.near.rooms.push(text);
        end.sent[follows].push(self.numbers);
    }

    /// An operation's caller takes its memory back.
    fn disown(&mut self, at: usize, place: usize) {
        let end = &mut self.ends[at];
        let way = &mut end.ways[place];
        let Some(op) = way.op.as_mut().filter(|op| op.ended.is_none() && !op.disowned) else { return };
        end.near.connection.disown(&[op.number as *mut Scratch], &mut end.near.pool, &mut end.near.sink);
        op.disowned = true;
        if op.read {
            op.frozen = Some(way.local.clone());
        } else {
            way.local.fill(0xEE);
        }
    }

    /// The memory at the other end is taken back.
    fn deregister(&mut self, at: usize, place: usize) {
        let [one, other] = self.pair(at);
        let way = &mut one.ways[place];
        if way.op.is_some() && other.near.registry.remove(way.key) {
            other.near.connection.forget(way.key, &mut other.near.sink);
            way.freeze();
        }
    }

    /// The other end takes this one for a peer that has ended.
    fn refuse(&mut self, at: usize) {
        let [one, other] = self.pair(at);
        other.near.connection.refuse(0, &mut other.near.sink);
        other.refuses = true;
        one.ways.iter_mut().for_each(Way::freeze);
    }

    /// The stream ends: for one direction, for both, or with an end itself.
    fn end(&mut self, at: usize, how: usize) {
        let end = &mut self.ends[at];
        match how % 4 {
            0 => _ = end.stream.shutdown(Shutdown::Write),
            1 => _ = end.stream.shutdown(Shutdown::Both),
            2 => end.lost = true,
            _ => end.near.connection.die(libc::ECANCELED, &mut end.near.pool, &mut end.near.reaped),
        }
    }

    fn pair(&mut self, at: usize) -> [&mut End; 2] {
        let [a, b] = &mut self.ends;
        if at == 0 {
            [a, b]
        } else {
            [b, a]
        }
    }

    /// Carries bytes from an end to the other; false if there were none.
    fn relay(&mut self, at: usize, most: usize) -> bool {
        let [one, other] = self.pair(at);
        if one.stalled > 0 {
            return false;
        }
        let mut room = vec![0; most.min(1 << 16)];
        let got = one.stream.read(&mut room);
        one.wire.extend(&room[..*got.as_ref().unwrap_or(&0)]);
        if one.lost {
            one.wire.clear();
        }
        let most = most.min(one.wire.len());
        let taken = other.stream.write(&one.wire.make_contiguous()[..most]).unwrap_or(0);
        one.wire.drain(..taken);
        let ended = !room.is_empty()
            && match &got {
                Ok(got) => *got == 0,
                Err(error) => error.kind() != ErrorKind::WouldBlock,
            };
        if (one.lost || ended) && one.wire.is_empty() {
            let _ = other.stream.shutdown(Shutdown::Write);
        }
        taken > 0 || got.is_ok_and(|got| got > 0)
    }

    fn progress(&mut self, at: usize, budget: u64) {
        self.pass += 1;
        let end = &mut self.ends[at];
        if end.near.connection.dead().is_some() {
            return self.reap(at);
        }
        let progressed = end.near.progress(self.pass, budget);
        assert_ne!(progressed, Err(libc::EPROTO), "the other end is malformed");
        self.reap(at);
    }

    fn reap(&mut self, at: usize) {
        for one in std::mem::take(&mut self.ends[at].near.reaped) {
            let scratch = one.scratch as usize;
            if let Some(counted) = one.immediate {
                let ways = &mut self.ends[1 - at].ways;
                let way =
                    ways.iter_mut().find(|way| way.op.as_ref().is_some_and(|op| op.counted == Some(counted)));
                let Some((op, remote)) = way.and_then(|way| Some((way.op.as_mut()?, &way.remote))) else {
                    panic!("{counted:?} counts after its operation")
                };
                op.arrivals += 1;
                assert!(*remote == op.after, "counted before its bytes");
            } else if scratch >= RECEIVE {
                self.arrived(at, scratch - RECEIVE, one.len as usize);
            } else if scratch < SENT {
                let mut ways = self.ends[at].ways.iter_mut();
                let op = ways.find_map(|way| way.op.as_mut().filter(|op| op.number == scratch));
                let op = op.expect("an operation ends once");
                assert_eq!(op.ended.replace(one.errno), None, "an operation ends once");
            }
        }
    }

    fn arrived(&mut self, at: usize, room: usize, len: usize) {
        let [one, other] = self.pair(at);
        let text = &one.near.rooms[room][..len];
        let (number, rest) = text.split_first_chunk().expect("a number");
        let (number, follows) = (u64::from_le_bytes(*number) as usize, usize::from(rest[0]));
        assert!(rest[1..].iter().all(|byte| *byte == number as u8), "a message's bytes");
        assert_eq!(other.sent[follows].get(one.came[follows]), Some(&number), "messages in their order");
        one.came[follows] += 1;
        for way in other.ways.iter().filter(|_| follows != 0 && !one.refuses) {
            let Some(op) = way.op.as_ref().filter(|op| !op.read && op.number < number) else { continue };
            assert!(op.disowned || op.frozen.is_some() || way.remote == op.after, "a message follows writes");
        }
    }

    /// Looks at operations that have ended. What failed with its connection may go on at the other end.
    fn check(&mut self) {
        let dead = self.ends.iter().any(|end| end.near.connection.dead().is_some());
        for at in 0..2 {
            let [one, other] = self.pair(at);
            for way in &mut one.ways {
                let Some(op) = way.op.take_if(|op| op.ended == Some(0) || op.ended.is_some() && !dead) else {
                    continue;
                };
                other.near.registry.remove(way.key);
                way.judge(&op, !dead);
            }
        }
    }

    /// With all that was posted: nothing waits for ever.
    fn finish(&mut self) {
        let mut still = 0;
        while still < STILL {
            self.ends.iter_mut().for_each(|end| end.stalled = 0);
            (0..2).for_each(|at| self.ends[at].near.receive());
            let moved = (0..2).fold(false, |moved, at| self.relay(at, usize::MAX) | moved);
            (0..2).for_each(|at| self.progress(at, 1 << 20));
            self.check();
            still = if moved { 0 } else { still + 1 };
        }
        let [a, b] = &self.ends;
        if self.ends.iter().all(|end| end.near.connection.dead().is_none()) {
            assert!(self.ends.iter().all(|end| end.ways.iter().all(|way| way.op.is_none())), "it waits");
            for (one, other) in [(a, b), (b, a)] {
                assert_eq!(one.sent.each_ref().map(Vec::len), other.came, "messages that were sent come");
            }
        }
    }

    /// Both ends are dead: nothing changes after it. They connect anew.
    fn renew(&mut self) {
        (0..2).for_each(|at| self.reap(at));
        for at in 0..2 {
            let [one, other] = self.pair(at);
            for way in &mut one.ways {
                let Some(op) = way.op.take() else { continue };
                assert!(op.ended.is_some(), "an operation of a connection that ended is there");
                other.near.registry.remove(way.key);
                way.judge(&op, false);
            }
            (one.sent, one.came, one.wire, one.stalled) = Default::default();
            (one.lost, one.refuses) = (false, false);
            one.near.receives.clear();
        }
        let [a, b] = &mut self.ends;
        [(a.near.connection, a.stream), (b.near.connection, b.stream)] = connections(self.sealed);
        self.meet();
    }
}

impl Way {
    /// Nothing changes at the target from now on, and nothing of a read is sent from there.
    fn freeze(&mut self) {
        match &mut self.op {
            Some(op) if op.read => self.remote.fill(0xDD),
            Some(op) if op.frozen.is_none() => op.frozen = Some(self.remote.clone()),
            _ => {}
        }
    }

    fn judge(&self, op: &Op, answered: bool) {
        let (is, ok) =
            (if op.read { &self.local } else { &self.remote }, op.ended == Some(0) && !op.disowned);
        let frozen = op.frozen.as_ref();
        assert!(frozen.is_none_or(|then| then == is), "{}: changed after it was taken back", op.number);
        let mut all = is.iter().zip(&op.before).zip(&op.after);
        let own = *is == op.after || !ok && all.all(|((is, before), after)| is == before || is == after);
        assert!(own, "{}: other bytes", op.number);
        let most = usize::from(op.counted.is_some() && (ok || op.disowned || !answered));
        let least = if ok { most } else { 0 };
        assert!((least..=most).contains(&op.arrivals), "{}: counted {} times", op.number, op.arrivals);
    }
}

/// What a seed plays: this many bytes for `twins`.
#[cfg(test)]
pub fn of_seed(seed: u64) -> Vec<u8> {
    let mut random = crate::clock::Sequence(seed);
    let words = 32 + random.next() as usize % 96;
    (0..words).flat_map(|_| random.next().to_le_bytes()).collect()
}

/// WEFT_TWINS_SEED plays one again, WEFT_TWINS_SEEDS as many.
#[test]
fn twins_agree_whatever_the_stream_does() {
    let asked = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let one = asked("WEFT_TWINS_SEED");
    for seed in one.map_or(1..=asked("WEFT_TWINS_SEEDS").unwrap_or(300), |seed| seed..=seed) {
        let played = std::panic::catch_unwind(|| twins(&of_seed(seed)));
        assert!(played.is_ok(), "seed {seed}: WEFT_TWINS_SEED={seed} plays it again");
    }
}
