//! Both machines over a channel, thousands of seeds: requests begin, wait for slots, fail, and are given up by either side.

use super::asking::{self, Asking};
use super::serving::{self, Serving};
use super::{Answer, Piece, Request, ASKS, SLOT};
use crate::ids::{GrantToken, MemoryId};
use crate::status::Status;
use std::collections::{BTreeMap, VecDeque};

fn request(read: bool, lens: &[u64]) -> Request {
    let piece = |(at, len): (usize, &u64)| Piece { range: at as u64, offset: 4096, len: *len };
    let pieces = lens.iter().enumerate().map(piece).collect();
    Request { read, memory: MemoryId::new(7), grant: GrantToken::new(3 << 64 | 5), pieces }
}

#[test]
fn requests_and_answers_round_trip_and_malformed_ones_are_rejected() {
    let asked = request(true, &[1, SLOT - 1]);
    let body = asked.encode(9);
    assert!(Request::decode(&body).is_some_and(|(id, read)| id == 9 && read == asked));
    for cut in 0..body.len() {
        let whole = cut == body.len() - 24;
        assert_eq!(Request::decode(&body[..cut]).is_some(), whole, "{cut}");
    }
    for lens in [&[][..], &[0], &[SLOT + 1], &[SLOT, 1], &[u64::MAX, 2], &[1; 65]] {
        assert!(Request::decode(&request(false, lens).encode(1)).is_none(), "{lens:?}");
    }
    let ended = [(Status::Ok, 0), (Status::File, libc::ENOSPC), (Status::Revoked, 0)];
    let all = ended.map(|(status, errno)| Answer::Ended(status, errno)).into_iter().chain([Answer::Ready]);
    all.for_each(|answer| assert!(Answer::decode(&answer.encode(4)) == Some((4, answer))));
    let other = Answer::Ended(Status::Internal, 5).encode(4);
    assert!(Answer::decode(&other) == Some((4, Answer::Ended(Status::RemoteAccess, 0))));
}

/// Random numbers from a seed (splitmix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % n.max(1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

enum Frame {
    Stage(u64, Request),
    Answer(u64, Answer),
    Stored(u64, Vec<u8>),
    Fetched(u64, Vec<u8>),
    Unstage(u64),
}

/// A byte of a request, by where it is.
fn byte(id: u64, at: u64) -> u8 {
    (id * 31 + at * 7) as u8
}

fn bytes(id: u64, from: u64, len: u64) -> Vec<u8> {
    (from..from + len).map(|at| byte(id, at)).collect()
}

/// What must hold of a request at the end.
#[derive(Default)]
struct Fate {
    /// Its operation has ended, and its memory is free.
    left: bool,
    fails: bool,
    /// The owner has seen no bytes of it for too long.
    late: bool,
    landed: u32,
    ended: u32,
}

struct World {
    draw: Draw,
    asking: Asking<()>,
    serving: Serving,
    forth: VecDeque<Frame>,
    back: VecDeque<Frame>,
    /// Slots of the owner, and those of this side.
    slots: Vec<Option<Vec<u8>>>,
    own: BTreeMap<u64, Vec<u8>>,
    fates: BTreeMap<u64, Fate>,
    now: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut draw = Draw(seed);
        let slots = vec![None; 1 + draw.below(4) as usize];
        let (asking, serving, fates) = (Asking::default(), Serving::default(), BTreeMap::new());
        let (forth, back, own) = (VecDeque::new(), VecDeque::new(), BTreeMap::new());
        World { draw, asking, serving, forth, back, slots, own, fates, now: 0 }
    }

    fn begin(&mut self) {
        let (read, staged) = (self.draw.one_in(2), self.draw.one_in(2));
        let len = 1 + self.draw.below(8);
        let id = self.asking.begin(read, len, staged, ());
        self.own.insert(id, vec![0; len as usize]);
        self.fates.insert(id, Fate { fails: self.draw.one_in(5), ..Fate::default() });
        if read || !staged {
            self.forth.push_back(Frame::Stage(id, request(read, &[len])));
        }
    }

    /// The end of a request on this side.
    fn end(&mut self, id: u64, status: Status) {
        let asked = self.asking.end(id).expect("it has not ended before");
        let fate = self.fates.get_mut(&id).expect("its fate");
        fate.ended += 1;
        match self.own.remove(&id) {
            Some(own) if status == Status::Ok => {
                assert!(!fate.fails);
                assert_eq!(fate.landed, 1, "an end means landed");
                assert!(!matches!(asked.step, asking::Step::Receives(_)) || own == bytes(id, 0, asked.len));
            }
            own => assert!(own.is_none() == fate.left),
        }
        assert!(status == Status::Ok || fate.fails || fate.left || fate.late);
    }

    /// The operation of a request ends: from here on nothing touches its memory.
    fn leave(&mut self, id: u64) {
        let Some(tells) = self.asking.leave(id) else { return };
        self.own.remove(&id).expect("it was not left before");
        self.fates.get_mut(&id).expect("its fate").left = true;
        if tells {
            self.forth.push_back(Frame::Unstage(id));
        }
    }

    fn here(&mut self, frame: Frame) {
        let next = match frame {
            Frame::Answer(id, answer) => {
                (id, self.asking.handle_answer(id, answer).expect("an honest answer"))
            }
            Frame::Fetched(id, bytes) => {
                let at = self.asking.place(id, bytes.len() as u64).expect("honest bytes") as usize;
                if let Some(own) = self.own.get_mut(&id) {
                    own[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                (id, self.asking.handle_bytes(id, bytes.len() as u64))
            }
            Frame::Stage(..) | Frame::Stored(..) | Frame::Unstage(..) => unreachable!(),
        };
        if let (id, asking::Next::End(status, _)) = next {
            self.end(id, status);
        }
    }

    fn there(&mut self, frame: Frame) {
        match frame {
            Frame::Stage(id, request) => self.serving.handle_request(id, request).expect("an honest request"),
            Frame::Stored(id, got) => {
                let Some((slot, at)) = self.serving.place(id, got.len() as u64).expect("honest bytes") else {
                    return assert!(self.fates[&id].late);
                };
                let at = at as usize;
                self.slots[slot as usize].as_mut().expect("its slot")[at..at + got.len()]
                    .copy_from_slice(&got);
                self.serving.handle_bytes(id, got.len() as u64, self.now);
            }
            Frame::Unstage(id) if self.serving.handle_unstage(id) => self.drop(id, Status::Canceled),
            Frame::Unstage(_) => {}
            Frame::Answer(..) | Frame::Fetched(..) => unreachable!(),
        }
    }

    fn answer(&mut self, id: u64, status: Status) {
        self.serving.end(id).expect("it has not ended before");
        self.back.push_back(Frame::Answer(id, Answer::Ended(status, 0)));
    }

    fn drop(&mut self, id: u64, why: Status) {
        if let Some(slot) = self.serving.get(id).expect("it is there").taken() {
            self.slots[slot as usize] = None;
        }
        self.answer(id, why);
    }

    /// The owner goes on with a request: a slot, a device, or bytes.
    fn serve(&mut self, id: u64) {
        let Some(served) = self.serving.get(id) else { return };
        let (step, len, slot, read) = (served.step, served.len, served.slot, served.request.read);
        let fails = self.fates[&id].fails;
        match step {
            serving::Step::Waits => {
                let Some(free) = self.slots.iter().position(Option::is_none) else { return };
                self.slots[free] = Some(if read { bytes(id, 0, len) } else { vec![0; len as usize] });
                self.serving.handle_slot(id, free as u32, self.now);
                if !read {
                    self.back.push_back(Frame::Answer(id, Answer::Ready));
                }
            }
            serving::Step::Receives(_) if self.serving.is_late(id, self.now, 60) => {
                self.fates.get_mut(&id).expect("its fate").late = true;
                self.drop(id, Status::TimedOut);
            }
            serving::Step::Receives(_) => {}
            serving::Step::Lands | serving::Step::Gathers if fails => {
                self.slots[slot as usize] = None;
                self.answer(id, Status::File);
            }
            serving::Step::Lands => {
                let landed = self.slots[slot as usize].take().expect("its slot");
                assert_eq!(landed, bytes(id, 0, len));
                let fate = self.fates.get_mut(&id).expect("its fate");
                assert_eq!(fate.ended, 0, "nothing lands after the answer");
                fate.landed += 1;
                self.answer(id, Status::Ok);
            }
            serving::Step::Gathers => {
                self.fates.get_mut(&id).expect("its fate").landed += 1;
                self.serving.handle_gathered(id);
            }
            serving::Step::Sends(sent) => {
                let some = 1 + self.draw.below(len - sent);
                self.back.push_back(Frame::Fetched(id, bytes(id, sent, some)));
                if self.serving.handle_sent(id, some) {
                    self.slots[slot as usize] = None;
                    self.serving.end(id);
                }
            }
        }
    }

    /// This side goes on with a request.
    fn carry(&mut self, id: u64) {
        let Some(asked) = self.asking.get_mut(id).filter(|asked| !asked.left) else { return };
        let (step, len) = (asked.step, asked.len);
        match step {
            asking::Step::Gathers => {
                self.asking.handle_gathered(id);
                self.forth.push_back(Frame::Stage(id, request(false, &[len])));
            }
            asking::Step::Scatters => self.end(id, Status::Ok),
            asking::Step::Sends(sent) => {
                let some = 1 + self.draw.below(len - sent);
                self.asking.handle_sent(id, some);
                self.forth.push_back(Frame::Stored(id, bytes(id, sent, some)));
            }
            _ => {}
        }
    }

    fn step(&mut self) {
        self.now += 1;
        let ids: Vec<u64> = self.asking.iter().map(|(id, _)| id).collect();
        let any = |draw: &mut Draw| ids.get(draw.below(ids.len() as u64) as usize).copied();
        let (forth, what) = (self.draw.one_in(2), self.draw.below(6));
        let id = any(&mut self.draw);
        match what {
            0..4 if forth => {
                if let Some(frame) = self.forth.pop_front() {
                    self.there(frame);
                }
            }
            0..4 => {
                if let Some(frame) = self.back.pop_front() {
                    self.here(frame);
                }
            }
            _ => {
                let Some(id) = id else { return };
                match forth {
                    true => self.serve(id),
                    false => self.carry(id),
                }
            }
        }
    }
}

#[test]
fn each_request_ends_once_and_a_write_that_succeeds_has_landed() {
    let mut late = 0;
    for seed in 0..if cfg!(miri) { 20 } else { 1000 } {
        let mut world = World::new(seed);
        for _ in 0..300 {
            if world.draw.one_in(7) && world.asking.has_room() {
                world.begin();
            }
            if world.draw.one_in(20) {
                let some = world.draw.below(world.fates.len() as u64 + 1);
                world.leave(some);
            }
            world.step();
        }
        for _ in 0..100_000 {
            if world.asking.is_empty() {
                break;
            }
            world.step();
        }
        assert!(world.asking.is_empty() && world.serving.is_empty(), "seed {seed}");
        assert!(world.fates.values().all(|fate| fate.ended == 1 && fate.landed <= 1), "seed {seed}");
        assert!(world.slots.iter().all(Option::is_none) && world.own.is_empty(), "seed {seed}");
        late += world.fates.values().filter(|fate| fate.late).count();
    }
    assert!(cfg!(miri) || late > 0, "an owner has waited for too long");
}

#[test]
fn frames_that_fit_no_request_change_nothing() {
    for seed in 0..if cfg!(miri) { 5 } else { 500 } {
        let mut draw = Draw(seed);
        let (mut asking, mut serving) = (Asking::default(), Serving::default());
        for _ in 0..200 {
            let (id, some) = (draw.below(40), draw.below(12));
            match draw.below(9) {
                0 => _ = asking.has_room().then(|| asking.begin(draw.one_in(2), 8, draw.one_in(2), ())),
                1 => _ = asking.handle_answer(id, Answer::Ready),
                2 => _ = asking.handle_answer(id, Answer::Ended(Status::Ok, 0)),
                3 => {
                    let placed = asking.place(id, some);
                    assert!(placed.is_err() || placed.is_ok_and(|at| at + some <= 8));
                    _ = placed.map(|_| asking.handle_bytes(id, some));
                }
                4 => _ = serving.handle_request(id, request(draw.one_in(2), &[8])),
                5 => serving.handle_slot(id, 3, 0),
                6 => {
                    let placed = serving.place(id, some).ok().flatten();
                    assert!(placed.is_none_or(|(slot, at)| slot == 3 && at + some <= 8));
                    _ = placed.map(|_| serving.handle_bytes(id, some, 0));
                }
                7 => _ = (asking.leave(id), serving.handle_unstage(id) && serving.end(id).is_some()),
                _ => asking.handle_sent(id, some),
            }
        }
        assert!(serving.ids().count() <= ASKS && asking.iter().count() <= ASKS);
    }
}
