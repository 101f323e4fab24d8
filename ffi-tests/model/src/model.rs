//! What should happen: the bytes of both sides, and all operations that are open.
//!
//! No two open operations touch the same bytes, if one of them writes them: so what
//! each leaves behind is known, whatever the order. An operation that failed stays
//! open, for what it had in flight may still land, until it is fenced off.

use crate::arena::Arena;
use crate::case::{Who, SLOTS};
use crate::counters::COUNTERS;
pub use crate::counting::Counter;
use crate::counting::Raise;
use crate::lists::KEPT;
use crate::messages::{explained, Mark};
use crate::shape::Segment;
use weft::capi::completion::*;
use weft::capi::status::*;

pub type Outcome<T = ()> = Result<T, String>;

/// A deadline is kept within this.
const GRACE_NS: u64 = 5_000_000_000;
/// Longer timeouts never pass in a test.
const GENEROUS_NS: u64 = 10_000_000_000;

#[derive(Clone, Debug)]
pub struct Memory {
    pub ranges: Vec<(usize, usize)>,
    pub access: u32,
    pub rails: u64,
    pub alive: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Live,
    /// Its owner deregistered it.
    Gone,
    /// The connection that it came over has ended.
    Ended,
    /// Both: the importer may know of either.
    GoneAndEnded,
}

#[derive(Clone, Copy, Debug)]
pub struct Import {
    /// Index in the other side's memories.
    pub memory: usize,
    pub state: State,
    /// Made while the connection was ending: how it ended may not be known any more.
    pub late: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    Up,
    /// One side has disconnected; not both have seen the end.
    Parting,
    Down,
}

pub struct Bytes {
    /// Whose bytes change.
    pub to: usize,
    pub segments: Vec<Segment>,
    /// Sorted; of the initiator's arena, and of the other's.
    local: Vec<(usize, usize)>,
    remote: Vec<(usize, usize)>,
    /// Destinations overlap: any may win.
    overlapping: bool,
}

/// Geometry that a side keeps.
#[derive(Clone)]
pub struct Kept {
    pub alive: bool,
    pub segments: Vec<Segment>,
    pub locals: Vec<usize>,
    /// Those of entries with bytes.
    pub sources: Vec<usize>,
    /// Those that it moves bytes to or from, and the first entry of each.
    pub imports: Vec<(usize, u64)>,
    /// Named by an entry without bytes.
    pub idle: Vec<usize>,
    /// Of entries without memories.
    pub peer: Option<u64>,
    /// By entries; pages are counted when it is used.
    pub raises: Vec<Raise>,
    pub is_list: bool,
    /// Its pages may be counted.
    pub whole: bool,
}

/// What an atomic changes.
#[derive(Clone, Copy)]
pub struct Word {
    pub at: usize,
    pub old: u64,
    pub new: u64,
}

pub struct Note {
    pub value: u64,
    pub data: Vec<u8>,
    pub seen: bool,
}

pub struct Operation {
    pub step: usize,
    pub who: usize,
    pub kind: i32,
    pub transfer: u64,
    pub peer: u64,
    pub bytes: u64,
    pub second_queue: bool,
    pub timeout_ns: u64,
    pub moved: Option<Bytes>,
    pub note: Option<Note>,
    pub message: Option<Mark>,
    /// Indexes of the memories and the imports that it uses.
    pub locals: Vec<usize>,
    pub imports: Vec<usize>,
    /// Imports that an entry without bytes names.
    pub idle: Vec<usize>,
    /// Of a list: the first entry of each import that it moves bytes of.
    pub entries: Option<Vec<(usize, u64)>>,
    /// It uses what is kept.
    pub kept: Option<usize>,
    pub raises: Vec<Raise>,
    /// Counters that it waits for, and their values.
    pub expects: Vec<(usize, u64)>,
    /// One of them is gone, and had not the value.
    pub deserted: bool,
    pub word: Option<Word>,
    /// Statuses that it may end with, beside `WEFT_OK`.
    pub may: Vec<i32>,
    pub not_ok: bool,
    /// What a cancel said: it comes first, or the completion did.
    pub canceled: Option<bool>,
    pub status: Option<i32>,
    /// Nothing of it can land any more.
    pub fenced: bool,
    /// When it was fenced, all of its bytes were there.
    pub complete: bool,
}

impl Operation {
    /// Nothing of it is to come.
    pub fn is_over(&self) -> bool {
        let told = self.note.as_ref().is_none_or(|note| note.seen || self.status != Some(WEFT_OK));
        self.status.is_some() && self.fenced && told
    }
}

#[derive(Default)]
pub struct Part {
    pub bytes: Vec<u8>,
    pub memories: Vec<Memory>,
    /// The memory in each slot, and whether it was ever used.
    pub slots: [Option<usize>; SLOTS],
    pub imports: Vec<Import>,
    pub import_slots: [Option<usize>; SLOTS],
    pub counters: Vec<Counter>,
    pub counter_slots: [Option<usize>; COUNTERS],
    pub kept: Vec<Kept>,
    pub kept_slots: [Option<usize>; KEPT],
    pub peer: u64,
    /// What the other side sent over this connection and arrived.
    pub arrived: Vec<Mark>,
    /// This connection's sends, by operation.
    pub sent: Vec<usize>,
    pub saw_down: bool,
    /// The user_data of the PEER_UPs to come.
    pub ups: Vec<u64>,
}

pub struct Model {
    pub parts: [Part; 2],
    pub link: Link,
    /// Who has disconnected or shut down.
    pub left: [bool; 2],
    pub operations: Vec<Operation>,
}

fn sorted(places: impl Iterator<Item = (usize, usize)>) -> (Vec<(usize, usize)>, bool) {
    let mut places: Vec<_> = places.collect();
    places.sort_unstable();
    let overlapping = places.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0);
    let mut joined: Vec<(usize, usize)> = Vec::new();
    for (at, len) in places {
        match joined.last_mut() {
            Some(last) if at <= last.0 + last.1 => last.1 = last.1.max(at + len - last.0),
            _ => joined.push((at, len)),
        }
    }
    (joined, overlapping)
}

fn meet(a: &[(usize, usize)], b: &[(usize, usize)]) -> bool {
    let (mut i, mut k) = (0, 0);
    while let (Some(x), Some(y)) = (a.get(i), b.get(k)) {
        if x.0 + x.1 <= y.0 {
            i += 1;
        } else if y.0 + y.1 <= x.0 {
            k += 1;
        } else {
            return true;
        }
    }
    false
}

impl Bytes {
    pub fn new(who: usize, read: bool, segments: Vec<Segment>) -> Bytes {
        let (local, local_overlaps) = sorted(segments.iter().map(|s| (s.local, s.len)));
        let (remote, remote_overlaps) = sorted(segments.iter().map(|s| (s.remote, s.len)));
        let overlapping = if read { local_overlaps } else { remote_overlaps };
        let to = if read { who } else { 1 - who };
        Bytes { to, segments, local, remote, overlapping }
    }

    /// One word of the other side.
    pub fn word(who: usize, at: usize) -> Bytes {
        let remote = vec![(at, size_of::<u64>())];
        Bytes { to: 1 - who, segments: Vec::new(), local: Vec::new(), remote, overlapping: false }
    }

    /// What it touches on a side.
    fn on(&self, initiator: usize, side: usize) -> &[(usize, usize)] {
        if initiator == side {
            &self.local
        } else {
            &self.remote
        }
    }

    /// Source and destination of a segment.
    fn ends(&self, initiator: usize, segment: &Segment) -> (usize, usize) {
        if self.to == initiator {
            (segment.remote, segment.local)
        } else {
            (segment.local, segment.remote)
        }
    }
}

impl Model {
    pub fn new(bytes: [Vec<u8>; 2]) -> Model {
        let parts = bytes.map(|bytes| Part { bytes, ..Part::default() });
        Model { parts, link: Link::Down, left: [false; 2], operations: Vec::new() }
    }

    pub fn open(&self) -> impl Iterator<Item = (usize, &Operation)> {
        self.operations.iter().enumerate().filter(|(_, op)| !op.is_over())
    }

    /// Whether these bytes must wait for an open operation. Transfers of one `kept`
    /// geometry in one direction bring the same bytes.
    pub fn conflicts(&self, who: usize, bytes: &Bytes, kept: Option<usize>) -> bool {
        let alike = |op: &Operation, moved: &Bytes| {
            kept.is_some() && (op.who, op.kept, moved.to) == (who, kept, bytes.to) && !bytes.overlapping
        };
        self.open().filter_map(|(_, op)| op.moved.as_ref().map(|moved| (op, moved))).any(|(op, moved)| {
            if alike(op, moved) {
                return false;
            }
            let written = |side| moved.to == side || bytes.to == side;
            (0..2).any(|side| written(side) && meet(bytes.on(who, side), moved.on(op.who, side)))
        })
    }

    /// Places of the second queue that are taken.
    pub fn queued(&self, who: usize) -> usize {
        self.operations.iter().filter(|op| op.who == who && op.second_queue && op.status.is_none()).count()
    }

    /// Bytes of messages that may still count against `message_bytes`.
    pub fn sending(&self, who: usize) -> u64 {
        let open = |index: &&usize| self.operations[**index].status != Some(WEFT_OK);
        let cost = |index: &usize| self.operations[*index].bytes + 64;
        self.parts[who].sent.iter().filter(open).map(cost).sum()
    }

    pub fn name(&self, index: usize) -> String {
        let op = &self.operations[index];
        format!("the {} of step {} (by {})", kind_name(op.kind), op.step, Who(op.who))
    }

    // What arrives.

    /// The completion of a write, read or send.
    pub fn completed(
        &mut self,
        who: usize,
        second_queue: bool,
        c: &weft_completion,
        arenas: &[Arena; 2],
    ) -> Outcome {
        let index = (c.user_data as usize).wrapping_sub(1);
        let known = self.operations.get(index).filter(|op| op.who == who && op.transfer == c.transfer);
        let op = known.ok_or(format!("a completion of no operation: {}", told(c)))?;
        let name = self.name(index);
        let wrong = |what: &str| Err(format!("{name}: {what}: {}", told(c)));
        if op.status.is_some() {
            return wrong("completed twice");
        }
        if (op.kind, op.second_queue, op.peer) != (c.kind, second_queue, c.peer) {
            return wrong("kind, queue or peer are not its own");
        }
        if c.bytes != if c.status == WEFT_OK { op.bytes } else { 0 } {
            return wrong(&format!("bytes are not the {} that it moves", op.bytes));
        }
        let value = op.word.filter(|_| c.status == WEFT_OK).map_or(0, |word| word.old);
        if c.value != value {
            return wrong(&format!("its value is not {value:#x}"));
        }
        if !self.entry_fits(op, c) {
            return wrong(&format!("entry {:#x} is not one of those that failed", c.entry));
        }
        let clean = c.data.is_null() && c.reserved == [0; 4];
        if !clean || (c.status == WEFT_OK && (c.rail != u32::MAX || c.provider_errno != 0)) {
            return wrong("fields are set that it does not have");
        }
        if let Err(why) = op.allows(c) {
            return wrong(&why);
        }
        self.operations[index].status = Some(c.status);
        let op = &mut self.operations[index];
        (op.fenced, op.complete) = (op.moved.is_none(), op.moved.is_none());
        if c.status == WEFT_OK {
            self.landed(index, arenas)?;
        }
        Ok(())
    }

    /// A list that failed names the first entry of what did.
    fn entry_fits(&self, op: &Operation, c: &weft_completion) -> bool {
        let Some(entries) = op.entries.as_ref().filter(|_| c.status != WEFT_OK) else {
            return c.entry == u64::MAX;
        };
        match c.status {
            WEFT_ERR_MEMORY_GONE => entries.iter().any(|(_, entry)| *entry == c.entry),
            _ => c.entry == 0,
        }
    }

    /// A notification: its value says whose it is.
    pub fn notified(&mut self, who: usize, value: u64, data: &[u8], arenas: &[Arena; 2]) -> Outcome {
        let of = |op: &Operation| op.who != who && op.note.as_ref().is_some_and(|note| note.value == value);
        let found = self.operations.iter().position(of);
        let index = found.ok_or(format!("a notification of nobody arrived at {}: {value:#x}", Who(who)))?;
        let name = self.name(index);
        let Some(note) = self.operations[index].note.as_mut() else { return Ok(()) };
        if std::mem::replace(&mut note.seen, true) {
            return Err(format!("the notification of {name} arrived twice"));
        }
        if note.data != data {
            return Err(format!("the notification of {name} has other data"));
        }
        let op = &self.operations[index];
        let there = if op.fenced { op.complete } else { self.differs(index, false, arenas).is_none() };
        if !there {
            return Err(format!("the notification of {name} came before its bytes"));
        }
        Ok(())
    }

    // Bytes.

    /// The first byte of an operation's destination that is neither new nor (if
    /// that may be) old.
    pub fn differs(&self, index: usize, or_old: bool, arenas: &[Arena; 2]) -> Option<String> {
        let op = &self.operations[index];
        let moved = op.moved.as_ref()?;
        if let Some(Word { at, old, new }) = op.word {
            let actual = arenas[moved.to].read(at, size_of::<u64>());
            let fine = actual == new.to_ne_bytes() || or_old && actual == old.to_ne_bytes();
            return (!fine).then(|| format!("the word at {at:#x} of {} is {actual:x?}", Who(moved.to)));
        }
        let (source, target) = (&self.parts[1 - moved.to].bytes, &self.parts[moved.to].bytes);
        for (at, len) in moved.on(op.who, moved.to) {
            let actual = arenas[moved.to].read(*at, *len);
            let mut fine: Vec<bool> =
                actual.iter().zip(&target[*at..]).map(|(is, old)| or_old && is == old).collect();
            for segment in &moved.segments {
                let (from, to) = moved.ends(op.who, segment);
                if to < *at || to >= at + len {
                    continue;
                }
                for i in 0..segment.len {
                    fine[to - at + i] |= actual[to - at + i] == source[from + i];
                }
            }
            if let Some(bad) = fine.iter().position(|fine| !fine) {
                let is = actual[bad];
                return Some(format!("byte {:#x} of {} is {is:#x}", at + bad, Who(moved.to)));
            }
        }
        None
    }

    /// Whether all bytes of one of its segments are there.
    pub fn has_arrived(&self, index: usize, segment: usize, arenas: &[Arena; 2]) -> bool {
        let op = &self.operations[index];
        let Some(moved) = &op.moved else { return true };
        let Some(segment) = moved.segments.get(segment) else { return true };
        let (from, to) = moved.ends(op.who, segment);
        arenas[moved.to].read(to, segment.len) == self.parts[1 - moved.to].bytes[from..from + segment.len]
    }

    pub fn is_overlapping(&self, index: usize) -> bool {
        self.operations[index].moved.as_ref().is_some_and(|moved| moved.overlapping)
    }

    /// It ended well: its bytes are there.
    fn landed(&mut self, index: usize, arenas: &[Arena; 2]) -> Outcome {
        if let Some(bad) = self.differs(index, false, arenas) {
            return Err(format!("{} completed, but {bad}", self.name(index)));
        }
        self.adopt(index, arenas);
        Ok(())
    }

    /// It failed, and nothing of it lands any more: old or new, byte by byte.
    pub fn fence(&mut self, index: usize, arenas: &[Arena; 2]) -> Outcome {
        if let Some(bad) = self.differs(index, true, arenas) {
            return Err(format!("{} failed, and {bad}: neither old nor new", self.name(index)));
        }
        self.operations[index].complete = self.differs(index, false, arenas).is_none();
        self.adopt_actual(index, arenas);
        Ok(())
    }

    fn adopt(&mut self, index: usize, arenas: &[Arena; 2]) {
        let op = &self.operations[index];
        if op.word.is_some() || op.moved.as_ref().is_some_and(|moved| moved.overlapping) {
            return self.adopt_actual(index, arenas);
        }
        let op = &mut self.operations[index];
        (op.fenced, op.complete) = (true, true);
        let Some(moved) = &op.moved else { return };
        let [a, b] = &mut self.parts;
        let (source, target) = if moved.to == 1 { (a, b) } else { (b, a) };
        for segment in &moved.segments {
            let (from, to) = moved.ends(op.who, segment);
            target.bytes[to..to + segment.len].copy_from_slice(&source.bytes[from..from + segment.len]);
        }
    }

    fn adopt_actual(&mut self, index: usize, arenas: &[Arena; 2]) {
        let op = &mut self.operations[index];
        op.fenced = true;
        op.complete |= op.status == Some(WEFT_OK);
        let Some(moved) = &op.moved else { return };
        for (at, len) in moved.on(op.who, moved.to) {
            self.parts[moved.to].bytes[*at..at + len].copy_from_slice(&arenas[moved.to].read(*at, *len));
        }
    }

    /// Every byte of both sides is as it should be.
    pub fn check_bytes(&self, arenas: &[Arena; 2]) -> Outcome {
        for (side, part) in self.parts.iter().enumerate() {
            let actual = arenas[side].read(0, part.bytes.len());
            if actual == part.bytes {
                continue;
            }
            let mut expected = part.bytes.clone();
            for (index, op) in self.open().filter(|(_, op)| !op.fenced) {
                let Some(moved) = op.moved.as_ref().filter(|moved| moved.to == side) else { continue };
                if let Some(bad) = self.differs(index, true, arenas) {
                    return Err(format!("{} is under way, and {bad}", self.name(index)));
                }
                for (at, len) in moved.on(op.who, side) {
                    expected[*at..at + len].copy_from_slice(&actual[*at..at + len]);
                }
            }
            if let Some(at) = (0..actual.len()).find(|at| actual[*at] != expected[*at]) {
                let (is, want) = (actual[at], expected[at]);
                return Err(format!("byte {at:#x} of {} is {is:#x}, not {want:#x}", Who(side)));
            }
        }
        Ok(())
    }

    /// What was sent over this connection explains what arrived.
    pub fn check_messages(&self) -> Outcome {
        for (who, part) in self.parts.iter().enumerate() {
            let sent = part.sent.iter().filter_map(|index| {
                let op = &self.operations[*index];
                Some((op.message?, op.status == Some(WEFT_OK)))
            });
            let (sent, arrived) = (sent.collect::<Vec<_>>(), &self.parts[1 - who].arrived);
            if !explained(&sent, arrived) {
                return Err(format!(
                    "messages of {} (length and hash, and whether it must arrive): {sent:x?}, but these arrived: {arrived:x?}",
                    Who(who)
                ));
            }
        }
        Ok(())
    }
}

impl Operation {
    fn allows(&self, c: &weft_completion) -> Outcome {
        let status = c.status;
        let late = self.timeout_ns > 0 && self.timeout_ns < GENEROUS_NS;
        let allowed = match self.canceled {
            Some(true) => status == WEFT_ERR_CANCELED,
            _ => match status {
                WEFT_OK => !self.not_ok,
                WEFT_ERR_TIMED_OUT => late || self.may.contains(&status),
                other => self.may.contains(&other),
            },
        };
        if !allowed {
            return Err("this status is not expected".into());
        }
        let took = c.done_ns.checked_sub(c.submit_ns).ok_or("done before it was submitted")?;
        if c.first_post_ns != 0 && c.first_post_ns < c.submit_ns {
            return Err("posted before it was submitted".into());
        }
        if status == WEFT_ERR_TIMED_OUT && took < self.timeout_ns {
            return Err(format!("timed out after {took} ns of {}", self.timeout_ns));
        }
        if late && took > self.timeout_ns + GRACE_NS {
            return Err(format!("took {took} ns, and had {}", self.timeout_ns));
        }
        Ok(())
    }
}

pub fn kind_name(kind: i32) -> &'static str {
    ["?", "write", "read", "send", "message", "notification", "PEER_UP", "PEER_DOWN", "counter", "atomic"]
        .get(kind as usize)
        .copied()
        .unwrap_or("?")
}

pub fn status_name(status: i32) -> String {
    // SAFETY: a static C string.
    let name = unsafe { std::ffi::CStr::from_ptr(weft_status_name(status)) };
    name.to_string_lossy().into_owned()
}

/// A completion, in words.
pub fn told(c: &weft_completion) -> String {
    format!(
        "{} {} (transfer {:#x}, user_data {:#x}, peer {:#x}, value {:#x}, bytes {}, rail {}, errno {})",
        kind_name(c.kind),
        status_name(c.status),
        c.transfer,
        c.user_data as u64,
        c.peer,
        c.value,
        c.bytes,
        c.rail as i32,
        c.provider_errno
    )
}
