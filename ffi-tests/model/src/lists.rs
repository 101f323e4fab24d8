//! Lists, and geometry that is kept and used again.

use crate::case::{flawed, notifies, queue, timeout, Shape, Who};
use crate::counting::Raise;
use crate::driver::{Driver, Refusal, DAY_NS};
use crate::model::{status_name, Bytes, Kept, Link, Operation, Outcome, State};
use crate::moves::pages_args;
use crate::shape::{fit, Segment};
use crate::side::sized;
use std::ffi::c_void;
use std::fmt::{self, Display, Formatter};
use std::ptr;
use weft::capi::completion::*;
use weft::capi::kept::*;
use weft::capi::list::*;
use weft::capi::memory::*;
use weft::capi::status::*;
use weft::capi::transfer::*;

/// Kept geometries that a side can name at once.
pub const KEPT: usize = 2;

/// What an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    Bytes,
    /// Without bytes, but with memories.
    Empty,
    /// Only a peer.
    Peer,
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub sort: Sort,
    pub local: usize,
    pub remote: usize,
    pub shape: Shape,
    /// Its peer is named, too.
    pub named: bool,
    pub counter: Option<usize>,
}

/// What is wrong with a list; of entries, it is the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListFlaw {
    NoEndpoint,
    NoArgs,
    NoEntries,
    ManyEntries,
    NullEntries,
    OddEntries,
    NoLocal,
    NoRemote,
    StaleLocal,
    LocalIsRemote,
    OtherPeer,
    LocalRange,
    RemoteRange,
    LocalEnd,
    HugeOffset,
    HugeLen,
    OwnCounter,
    CountPages,
    UnknownFlag,
    Reserved,
    LongData,
    DataWithoutNotify,
    LongTimeout,
    QueueOfOther,
    NoSize,
    /// Of kept ones: what belongs to a transfer.
    Terms,
}

/// How a transfer goes, whatever it moves.
#[derive(Clone, Debug)]
pub struct Way {
    pub read: bool,
    pub notify: Option<usize>,
    pub urgent: bool,
    pub each_peer: bool,
    pub timeout_ns: u64,
    pub second_queue: bool,
}

#[derive(Clone, Debug)]
pub struct ListMove {
    pub who: Who,
    pub entries: Vec<Entry>,
    pub way: Way,
    pub flaw: Option<ListFlaw>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UseFlaw {
    NoKept,
    NotKept,
    NoArgs,
    OwnCounter,
    CounterOfList,
    EachPeerOfPages,
    CountWithoutCounter,
    UnknownFlag,
    Reserved,
    LongTimeout,
    QueueOfOther,
    NoSize,
}

#[derive(Clone, Debug)]
pub enum What {
    /// Memories, and whether pages may be counted.
    Pages(Shape, usize, usize, bool),
    List(Vec<Entry>),
}

#[derive(Clone, Debug)]
pub enum KeptOp {
    Keep {
        slot: usize,
        what: What,
        urgent: bool,
        flaw: Option<ListFlaw>,
    },
    /// So many transfers at once; a counter, and whether each page raises it.
    Use {
        slot: usize,
        times: usize,
        way: Way,
        counter: Option<(usize, bool)>,
        flaw: Option<UseFlaw>,
    },
    Release {
        slot: usize,
    },
}

impl Display for Entry {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Shape { page_len, local, remote, .. } = &self.shape;
        let counter = self.counter.map_or(String::new(), |slot| format!(", counter {slot}"));
        match self.sort {
            Sort::Bytes => write!(f, "[{page_len}: {}{local} {}{remote}{counter}]", self.local, self.remote),
            sort => write!(f, "[{sort:?} {} {}{counter}]", self.local, self.remote),
        }
    }
}

fn all(entries: &[Entry]) -> String {
    entries.iter().map(Entry::to_string).collect::<Vec<_>>().join(" ")
}

impl Display for Way {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let class = if self.urgent { ", latency" } else { "" };
        let each = if self.each_peer { ", each peer" } else { "" };
        let verb = if self.read { "read" } else { "written" };
        let (timeout, queue) = (timeout(self.timeout_ns), queue(self.second_queue));
        write!(f, "{verb}{}{class}{each}{timeout}{queue}", notifies(self.notify))
    }
}

impl Display for ListMove {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let ListMove { who, entries, way, flaw } = self;
        write!(f, "{who}: a list, {way}{}: {}", flawed(flaw), all(entries))
    }
}

impl Display for KeptOp {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match self {
            KeptOp::Keep { slot, what: What::Pages(shape, local, remote, counted), urgent, flaw } => {
                let Shape { page_len, pages, layers, local: own, remote: theirs, .. } = shape;
                write!(
                    f,
                    "keeps as {slot}: {pages} pages of {page_len} bytes x {layers} layers, {local}{own} "
                )?;
                write!(f, "{remote}{theirs}, counted {counted}, latency {urgent}{}", flawed(flaw))
            }
            KeptOp::Keep { slot, what: What::List(entries), urgent, flaw } => {
                write!(f, "keeps as {slot}, latency {urgent}{}: {}", flawed(flaw), all(entries))
            }
            KeptOp::Use { slot, times, way, counter, flaw } => {
                write!(
                    f,
                    "uses what is kept as {slot}, {times} times, {way}, counter {counter:?}{}",
                    flawed(flaw)
                )
            }
            KeptOp::Release { slot } => write!(f, "releases what is kept as {slot}"),
        }
    }
}

/// A list, fitted into the memories that there are.
#[derive(Default)]
struct Fit {
    raw: Vec<weft_list_entry>,
    segments: Vec<Segment>,
    locals: Vec<usize>,
    /// Those of entries with bytes.
    sources: Vec<usize>,
    /// Those that it moves bytes to or from, and their first entries.
    imports: Vec<(usize, u64)>,
    /// Named by an entry without bytes.
    idle: Vec<usize>,
    /// Named by an entry without memories.
    peer: Option<u64>,
    raises: Vec<Raise>,
    /// Raised by writes with their bytes.
    counts: bool,
}

/// What a transfer is made of, however it was asked for.
struct Going<'a> {
    who: Who,
    way: &'a Way,
    segments: Vec<Segment>,
    raises: Vec<Raise>,
    locals: Vec<usize>,
    imports: Vec<(usize, u64)>,
    idle: Vec<usize>,
    sources: Vec<usize>,
    is_list: bool,
    kept: Option<usize>,
}

impl Driver {
    fn fit_list(&self, who: Who, entries: &[Entry]) -> Fit {
        let mut list = Fit::default();
        for entry in entries {
            self.fit_entry(who, entry, &mut list);
        }
        list
    }

    fn fit_entry(&self, who: Who, entry: &Entry, list: &mut Fit) {
        let (part, other) = (&self.model.parts[who.0], &self.model.parts[1 - who.0]);
        // SAFETY: integers and pointers only.
        let mut raw: weft_list_entry = unsafe { std::mem::zeroed() };
        let at = list.raw.len() as u64;
        let memories = part.slots[entry.local].zip(part.import_slots[entry.remote]);
        let mut with = Vec::new();
        match (memories, entry.sort) {
            (Some((local, import)), Sort::Bytes | Sort::Empty) => {
                (raw.local, raw.remote) = (self.memories[who.0][local], self.remotes[who.0][import]);
                if entry.named && matches!(part.imports[import].state, State::Live | State::Gone) {
                    raw.peer = part.peer;
                }
                list.locals.push(local);
                if entry.sort == Sort::Bytes {
                    list.sources.push(local);
                }
                if entry.sort == Sort::Bytes {
                    let (own, theirs) = (&part.memories[local], &other.memories[part.imports[import].memory]);
                    let fitted = fit(&entry.shape, &own.ranges, &theirs.ranges);
                    raw.len = fitted.bytes();
                    (raw.local_range, raw.remote_range) =
                        (fitted.local.first_range, fitted.remote.first_range);
                    (raw.local_offset, raw.remote_offset) = (fitted.local.offset, fitted.remote.offset);
                    with.extend((raw.len > 0).then_some(list.segments.len()));
                    list.segments.extend(fitted.segments(&own.ranges, &theirs.ranges));
                }
                match raw.len {
                    0 => list.idle.push(import),
                    _ if list.imports.iter().any(|(known, _)| *known == import) => {}
                    _ => list.imports.push((import, at)),
                }
            }
            _ => {
                raw.peer = part.peer;
                list.peer = Some(part.peer);
            }
        }
        if let Some((counter, id)) = self.counter_of_other(who, entry.counter) {
            raw.counter = id;
            list.counts = true;
            let at_end = u64::from(with.is_empty());
            list.raises.push(Raise { counter, at_end, with });
        }
        list.raw.push(raw);
    }

    /// What refuses a list, besides its access.
    fn list_refusal(&self, refusal: &mut Refusal, who: Who, list: &Fit) {
        let part = &self.model.parts[who.0];
        if list.locals.iter().any(|local| !part.memories[*local].alive) {
            refusal.must(WEFT_ERR_HANDLE);
        }
        for (import, _) in &list.imports {
            self.refuse_import(refusal, who, *import);
        }
        let old = |import: &usize| matches!(part.imports[*import].state, State::Ended | State::GoneAndEnded);
        let another = list.peer.is_some_and(|peer| peer != part.peer);
        let ended =
            another || list.idle.iter().any(old) || list.imports.iter().any(|(import, _)| old(import));
        let only_peers = list.imports.is_empty() || list.counts;
        match self.model.link {
            Link::Down => {
                refusal.must(WEFT_ERR_PEER_CLOSED);
                refusal.may(WEFT_ERR_HANDLE);
            }
            Link::Parting => [WEFT_ERR_HANDLE, WEFT_ERR_PEER_CLOSED].into_iter().for_each(|s| refusal.may(s)),
            Link::Up if ended => {
                refusal.must(WEFT_ERR_HANDLE);
                refusal.may(WEFT_ERR_PEER_CLOSED);
            }
            Link::Up => {}
        }
        if self.model.link == Link::Parting && only_peers {
            refusal.may(WEFT_ERR_PEER_LOST);
        }
    }

    fn refuse_access(&self, refusal: &mut Refusal, who: Who, read: bool, imports: &[(usize, u64)]) {
        let needed = if read { WEFT_ACCESS_REMOTE_READ } else { WEFT_ACCESS_REMOTE_WRITE };
        let (part, other) = (&self.model.parts[who.0], &self.model.parts[1 - who.0]);
        for (import, _) in imports {
            let access = other.memories[part.imports[*import].memory].access;
            if access != 0 && access & needed == 0 {
                refusal.must(WEFT_ERR_REMOTE_ACCESS);
            }
        }
    }

    pub fn list(&mut self, op: &ListMove) -> Outcome<String> {
        let list = self.fit_list(op.who, &op.entries);
        let bytes = Bytes::new(op.who.0, op.way.read, list.segments.clone());
        if self.model.conflicts(op.who.0, &bytes, None) {
            self.note("      waits for operations on the same bytes".into());
            self.settle()?;
            return self.list(op);
        }
        let mut refusal = self.refusal(op.who, op.way.second_queue);
        self.list_refusal(&mut refusal, op.who, &list);
        self.refuse_access(&mut refusal, op.who, op.way.read, &list.imports);
        let Fit { mut raw, segments, locals, imports, idle, sources, raises, .. } = list;
        let raises = if op.way.read { at_end(raises) } else { raises };
        let note = self.note_of(op.way.notify);
        let mut args = sized!(weft_list_args);
        args.flags = flags(&op.way, note.is_some());
        if let Some(note) = &note {
            args.notify = note.value;
            (args.notify_data, args.notify_data_len) = (note.data.as_ptr().cast(), note.data.len() as u32);
        }
        (args.timeout_ns, args.user_data) =
            (op.way.timeout_ns, (self.model.operations.len() + 1) as *mut c_void);
        args.queue = if op.way.second_queue { self.sides[op.who.0].queue } else { ptr::null() };
        if let Some(status) =
            op.flaw.and_then(|flaw| self.spoil_list(flaw, op.who, &mut args, &mut raw, false))
        {
            refusal.must(status);
        }
        place(&mut args, &raw, op.flaw);
        let none = |flaw| op.flaw == Some(flaw);
        let endpoint =
            if none(ListFlaw::NoEndpoint) { ptr::null_mut() } else { self.sides[op.who.0].endpoint };
        let given = if none(ListFlaw::NoArgs) { ptr::null() } else { &raw const args };
        let mut transfer = 0;
        let submit = if op.way.read { weft_read_list } else { weft_write_list };
        // SAFETY: valid arguments, but for what a flaw made of them, which is checked.
        let status = unsafe { submit(endpoint, given, &mut transfer) };
        if refusal.judge("the list", status)? {
            let going = Going {
                who: op.who,
                way: &op.way,
                segments,
                raises,
                locals,
                imports,
                idle,
                sources,
                is_list: true,
                kept: None,
            };
            let begun = self.going(going, transfer);
            self.model.operations.push(Operation { note, ..begun });
        }
        Ok(format!("{}: {:?}", status_name(status), bytes.segments))
    }

    /// Whether rails know all memories of a side; without, no rail carries them.
    fn have_common_rails(&self, who: Who, imports: &[(usize, u64)], sources: &[usize]) -> bool {
        let (part, other) = (&self.model.parts[who.0], &self.model.parts[1 - who.0]);
        let known = |rails: u64| if rails == 0 { u64::MAX } else { rails };
        let here = sources.iter().fold(u64::MAX, |all, local| all & known(part.memories[*local].rails));
        let memory = |import: usize| &other.memories[part.imports[import].memory];
        let there = imports.iter().fold(u64::MAX, |all, (import, _)| all & known(memory(*import).rails));
        here != 0 && there != 0
    }

    fn going(&self, going: Going, transfer: u64) -> Operation {
        let Going { who, way, segments, raises, locals, imports, idle, sources, is_list, kept } = going;
        let kind = if way.read { WEFT_COMPLETION_READ } else { WEFT_COMPLETION_WRITE };
        let mut begun = self.begun(who, kind, transfer, way.second_queue);
        begun.bytes = segments.iter().map(|segment| segment.len as u64).sum();
        (begun.timeout_ns, begun.raises, begun.locals, begun.kept) = (way.timeout_ns, raises, locals, kept);
        begun.entries = is_list.then(|| imports.clone());
        begun.idle = idle;
        if !self.have_common_rails(who, &imports, &sources) {
            begun.may.push(WEFT_ERR_NO_RAILS);
            begun.not_ok = true;
        }
        begun.moved = (!begun.locals.is_empty()).then(|| Bytes::new(who.0, way.read, segments));
        let imports: Vec<usize> = imports.into_iter().map(|(import, _)| import).collect();
        self.follow(&mut begun, &imports);
        begun
    }

    /// The status that a flaw must get; none where this list cannot have it.
    fn spoil_list(
        &self,
        flaw: ListFlaw,
        who: Who,
        args: &mut weft_list_args,
        raw: &mut Vec<weft_list_entry>,
        kept: bool,
    ) -> Option<i32> {
        match flaw {
            ListFlaw::NoEndpoint => return Some(WEFT_ERR_HANDLE),
            ListFlaw::NoArgs => return Some(WEFT_ERR_INVALID),
            ListFlaw::NoEntries => raw.clear(),
            ListFlaw::ManyEntries | ListFlaw::NullEntries | ListFlaw::OddEntries => {}
            ListFlaw::UnknownFlag => args.flags |= 1 << 31,
            ListFlaw::Reserved => args.reserved = 1,
            ListFlaw::CountPages => args.flags |= WEFT_COUNT_PAGES,
            ListFlaw::NoSize => args.size = 0,
            ListFlaw::Terms if kept => args.flags |= WEFT_NOTIFY,
            ListFlaw::LongTimeout if !kept => args.timeout_ns = DAY_NS + 1,
            ListFlaw::QueueOfOther if !kept => {
                args.queue = self.sides[1 - who.0].queue;
                return Some(WEFT_ERR_HANDLE);
            }
            ListFlaw::LongData if !kept => {
                static DATA: [u8; 300] = [7; 300];
                args.flags |= WEFT_NOTIFY;
                (args.notify_data, args.notify_data_len) = (DATA.as_ptr().cast(), WEFT_NOTIFY_DATA_MAX + 1);
            }
            ListFlaw::DataWithoutNotify if !kept => {
                args.flags &= !WEFT_NOTIFY;
                args.notify = 5;
            }
            ListFlaw::Terms
            | ListFlaw::LongTimeout
            | ListFlaw::QueueOfOther
            | ListFlaw::LongData
            | ListFlaw::DataWithoutNotify => return None,
            _ => return self.spoil_entry(flaw, who, raw.last_mut()?),
        }
        Some(match flaw {
            ListFlaw::UnknownFlag | ListFlaw::Reserved => WEFT_ERR_UNSUPPORTED,
            ListFlaw::ManyEntries | ListFlaw::LongTimeout | ListFlaw::LongData => WEFT_ERR_LIMIT,
            _ => WEFT_ERR_INVALID,
        })
    }

    fn spoil_entry(&self, flaw: ListFlaw, who: Who, entry: &mut weft_list_entry) -> Option<i32> {
        match flaw {
            ListFlaw::OwnCounter => {
                entry.counter = self.counter_of_other(who.other(), Some(0))?.1;
                return Some(WEFT_ERR_HANDLE);
            }
            ListFlaw::OtherPeer if !entry.remote.is_null() => {
                entry.peer = self.model.parts[who.0].peer ^ 1 << 40;
                return Some(WEFT_ERR_INVALID);
            }
            _ if entry.len == 0 => return None,
            ListFlaw::NoLocal => entry.local = ptr::null(),
            ListFlaw::NoRemote => entry.remote = ptr::null(),
            ListFlaw::StaleLocal => entry.local = entry.local.wrapping_byte_add(1),
            ListFlaw::LocalIsRemote => entry.local = entry.remote.cast(),
            ListFlaw::LocalRange => entry.local_range = u32::MAX,
            ListFlaw::RemoteRange => entry.remote_range = u32::MAX,
            ListFlaw::LocalEnd => entry.local_offset += 1 << 30,
            ListFlaw::HugeOffset => entry.remote_offset = u64::MAX,
            ListFlaw::HugeLen => (entry.len, entry.counter) = (u64::MAX, 0),
            _ => return None,
        }
        Some(match flaw {
            ListFlaw::NoLocal | ListFlaw::NoRemote | ListFlaw::StaleLocal | ListFlaw::LocalIsRemote => {
                WEFT_ERR_HANDLE
            }
            _ => WEFT_ERR_RANGE,
        })
    }

    // What is kept.

    pub fn kept(&mut self, who: Who, op: &KeptOp) -> Outcome<String> {
        match op {
            KeptOp::Keep { slot, what, urgent, flaw } => {
                let before = self.model.parts[who.0].kept_slots[*slot];
                if let Some(before) = before {
                    self.release_kept(who, before)?;
                }
                match what {
                    What::Pages(shape, local, remote, counted) => {
                        self.keep_pages(who, *slot, (shape, *local, *remote), (*urgent, *counted), *flaw)
                    }
                    What::List(entries) => self.keep_list(who, *slot, entries, *urgent, *flaw),
                }
            }
            KeptOp::Use { slot, times, way, counter, flaw } => {
                let mut told = Vec::new();
                for _ in 0..*times {
                    told.push(self.use_kept(who, *slot, way, *counter, *flaw)?);
                }
                Ok(told.join("; "))
            }
            KeptOp::Release { slot } => match self.model.parts[who.0].kept_slots[*slot] {
                Some(kept) => self.release_kept(who, kept).map(status_name),
                None => Ok(String::new()),
            },
        }
    }

    fn keep_pages(
        &mut self,
        who: Who,
        slot: usize,
        (shape, local, remote): (&Shape, usize, usize),
        (urgent, counted): (bool, bool),
        flaw: Option<ListFlaw>,
    ) -> Outcome<String> {
        let (part, other) = (&self.model.parts[who.0], &self.model.parts[1 - who.0]);
        let (Some(local), Some(import)) = (part.slots[local], part.import_slots[remote]) else {
            return Ok("no such memory".into());
        };
        let (own, theirs) = (&part.memories[local], &other.memories[part.imports[import].memory]);
        let fitted = fit(shape, &own.ranges, &theirs.ranges);
        let segments = fitted.segments(&own.ranges, &theirs.ranges);
        let mut refusal = Refusal::default();
        if !own.alive {
            refusal.must(WEFT_ERR_HANDLE);
        }
        self.refuse_import(&mut refusal, who, import);
        if self.model.link == Link::Parting {
            refusal.may(WEFT_ERR_PEER_CLOSED);
        }
        let mut args = pages_args(&fitted);
        (args.local, args.remote) = (self.memories[who.0][local], self.remotes[who.0][import]);
        args.flags = if urgent { WEFT_CLASS_LATENCY } else { 0 } | if counted { WEFT_COUNT_PAGES } else { 0 };
        match flaw {
            Some(ListFlaw::Terms) => args.user_data = ptr::without_provenance_mut(1),
            Some(ListFlaw::OwnCounter) => args.counter = 1,
            Some(ListFlaw::UnknownFlag) => args.flags |= 1 << 31,
            Some(ListFlaw::NoLocal) => args.local = ptr::null(),
            Some(ListFlaw::RemoteRange) if fitted.bytes() > 0 => args.remote_first_range = u32::MAX,
            _ => {}
        }
        match flaw {
            Some(ListFlaw::Terms | ListFlaw::OwnCounter) => refusal.must(WEFT_ERR_INVALID),
            Some(ListFlaw::UnknownFlag) => refusal.must(WEFT_ERR_UNSUPPORTED),
            Some(ListFlaw::NoLocal) => refusal.must(WEFT_ERR_HANDLE),
            Some(ListFlaw::RemoteRange) if fitted.bytes() > 0 => refusal.must(WEFT_ERR_RANGE),
            _ => {}
        }
        let mut handle = ptr::null_mut();
        // SAFETY: valid arguments, but for what a flaw made of them, which is checked.
        let status = unsafe { weft_pages_keep(self.sides[who.0].endpoint, &args, &mut handle) };
        if refusal.judge("weft_pages_keep", status)? {
            let kept = Kept {
                alive: true,
                segments,
                locals: vec![local],
                sources: vec![local],
                imports: vec![(import, 0)],
                idle: Vec::new(),
                peer: None,
                raises: Vec::new(),
                is_list: false,
                whole: counted,
            };
            self.hold(who, slot, kept, handle);
        }
        Ok(format!("{}: {fitted:?}", status_name(status)))
    }

    fn hold(&mut self, who: Who, slot: usize, kept: Kept, handle: *mut weft_kept) {
        let part = &mut self.model.parts[who.0];
        part.kept_slots[slot] = Some(part.kept.len());
        part.kept.push(kept);
        self.kept[who.0].push(handle);
    }

    fn keep_list(
        &mut self,
        who: Who,
        slot: usize,
        entries: &[Entry],
        urgent: bool,
        flaw: Option<ListFlaw>,
    ) -> Outcome<String> {
        let list = self.fit_list(who, entries);
        let mut refusal = Refusal::default();
        self.list_refusal(&mut refusal, who, &list);
        let Fit { mut raw, segments, locals, imports, idle, peer, sources, raises, .. } = list;
        let mut args = sized!(weft_list_args);
        args.flags = if urgent { WEFT_CLASS_LATENCY } else { 0 };
        if let Some(status) = flaw.and_then(|flaw| self.spoil_list(flaw, who, &mut args, &mut raw, true)) {
            refusal.must(status);
        }
        place(&mut args, &raw, flaw);
        let none = |this| flaw == Some(this);
        let endpoint = if none(ListFlaw::NoEndpoint) { ptr::null_mut() } else { self.sides[who.0].endpoint };
        let given = if none(ListFlaw::NoArgs) { ptr::null() } else { &raw const args };
        let mut handle = ptr::null_mut();
        // SAFETY: valid arguments, but for what a flaw made of them, which is checked.
        let status = unsafe { weft_list_keep(endpoint, given, &mut handle) };
        if refusal.judge("weft_list_keep", status)? {
            let kept = Kept {
                alive: true,
                segments,
                locals,
                sources,
                imports,
                idle,
                peer,
                raises,
                is_list: true,
                whole: false,
            };
            self.hold(who, slot, kept, handle);
        }
        Ok(status_name(status))
    }

    pub fn release_kept(&mut self, who: Who, index: usize) -> Outcome<i32> {
        let kept = &mut self.model.parts[who.0].kept[index];
        let mut refusal = Refusal::default();
        if !kept.alive {
            refusal.must(WEFT_ERR_HANDLE);
        }
        // SAFETY: a handle that is checked.
        let status = unsafe { weft_kept_release(self.kept[who.0][index]) };
        if refusal.judge("weft_kept_release", status)? {
            kept.alive = false;
        }
        Ok(status)
    }

    fn use_kept(
        &mut self,
        who: Who,
        slot: usize,
        way: &Way,
        counter: Option<(usize, bool)>,
        flaw: Option<UseFlaw>,
    ) -> Outcome<String> {
        let Some(index) = self.model.parts[who.0].kept_slots[slot] else {
            return Ok("nothing is kept".into());
        };
        let Kept { alive, segments, locals, sources, imports, idle, peer, raises, is_list, whole } =
            self.model.parts[who.0].kept[index].clone();
        let bytes = Bytes::new(who.0, way.read, segments.clone());
        if self.model.conflicts(who.0, &bytes, Some(index)) {
            self.note("      waits for operations on the same bytes".into());
            self.settle()?;
            return self.use_kept(who, slot, way, counter, flaw);
        }
        let mut refusal = self.refusal(who, way.second_queue);
        if !alive {
            refusal.must(WEFT_ERR_HANDLE);
        }
        let fit = Fit { imports: imports.clone(), idle: idle.clone(), peer, counts: true, ..Fit::default() };
        if is_list {
            self.list_refusal(&mut refusal, who, &fit);
        } else {
            imports.iter().for_each(|(import, _)| self.refuse_import(&mut refusal, who, *import));
        }
        self.refuse_access(&mut refusal, who, way.read, &imports);
        let mut args = sized!(weft_kept_args);
        let mut way = way.clone();
        way.each_peer &= is_list;
        let note = self.note_of(way.notify);
        args.flags = flags(&way, note.is_some());
        if let Some(note) = &note {
            args.notify = note.value;
            (args.notify_data, args.notify_data_len) = (note.data.as_ptr().cast(), note.data.len() as u32);
        }
        (args.timeout_ns, args.user_data) =
            (way.timeout_ns, (self.model.operations.len() + 1) as *mut c_void);
        args.queue = if way.second_queue { self.sides[who.0].queue } else { ptr::null() };
        let mut raises = if way.read { at_end(raises) } else { raises };
        let counter = counter.filter(|_| !is_list && flaw.is_none());
        if let Some((counter, id, pages)) = counter
            .and_then(|(slot, pages)| Some((self.counter_of_other(who, Some(slot))?, pages)))
            .map(|((c, id), p)| (c, id, p))
        {
            args.counter = id;
            self.count_pages(&mut refusal, (way.read, pages, whole), &mut args.flags);
            raises = vec![raise(counter, pages, segments.len())];
            if self.model.link == Link::Parting {
                refusal.may(WEFT_ERR_HANDLE);
            }
        }
        let mut handle = self.kept[who.0][index];
        if let Some(status) = flaw.and_then(|flaw| self.spoil_use(flaw, who, is_list, &mut args, &mut handle))
        {
            refusal.must(status);
        }
        let given = if flaw == Some(UseFlaw::NoArgs) { ptr::null() } else { &raw const args };
        let mut transfer = 0;
        let submit = if way.read { weft_read_kept } else { weft_write_kept };
        // SAFETY: valid arguments, but for what a flaw made of them, which is checked.
        let status = unsafe { submit(self.sides[who.0].endpoint, handle, given, &mut transfer) };
        if refusal.judge("what was kept", status)? {
            let kept = Some(index);
            let going =
                Going { who, way: &way, segments, raises, locals, imports, idle, sources, is_list, kept };
            let begun = self.going(going, transfer);
            self.model.operations.push(Operation { note, ..begun });
        }
        Ok(status_name(status))
    }

    fn count_pages(&self, refusal: &mut Refusal, (read, pages, whole): (bool, bool, bool), flags: &mut u32) {
        if !pages {
            return;
        }
        *flags |= WEFT_COUNT_PAGES;
        match (read, whole) {
            (_, false) => {
                refusal.must(WEFT_ERR_INVALID);
                if read {
                    refusal.may(WEFT_ERR_UNSUPPORTED);
                }
            }
            (true, true) => refusal.must(WEFT_ERR_UNSUPPORTED),
            (false, true) => {}
        }
    }

    fn spoil_use(
        &self,
        flaw: UseFlaw,
        who: Who,
        is_list: bool,
        args: &mut weft_kept_args,
        handle: &mut *mut weft_kept,
    ) -> Option<i32> {
        Some(match flaw {
            UseFlaw::NoKept => {
                *handle = ptr::null_mut();
                WEFT_ERR_HANDLE
            }
            UseFlaw::NotKept => {
                *handle = self.memories[who.0].first()?.cast();
                WEFT_ERR_HANDLE
            }
            UseFlaw::NoArgs => WEFT_ERR_INVALID,
            UseFlaw::OwnCounter if !is_list => {
                args.counter = self.counter_of_other(who.other(), Some(0))?.1;
                WEFT_ERR_HANDLE
            }
            UseFlaw::CounterOfList if is_list => {
                args.counter = 1;
                WEFT_ERR_INVALID
            }
            UseFlaw::EachPeerOfPages if !is_list => {
                args.flags |= WEFT_COMPLETE_EACH_PEER;
                WEFT_ERR_UNSUPPORTED
            }
            UseFlaw::OwnCounter | UseFlaw::CounterOfList | UseFlaw::EachPeerOfPages => return None,
            UseFlaw::CountWithoutCounter => {
                args.flags |= WEFT_COUNT_PAGES;
                WEFT_ERR_INVALID
            }
            UseFlaw::UnknownFlag => {
                args.flags |= 1 << 31;
                WEFT_ERR_UNSUPPORTED
            }
            UseFlaw::Reserved => {
                args.reserved = 1;
                WEFT_ERR_UNSUPPORTED
            }
            UseFlaw::LongTimeout => {
                args.timeout_ns = DAY_NS + 1;
                WEFT_ERR_LIMIT
            }
            UseFlaw::QueueOfOther => {
                args.queue = self.sides[1 - who.0].queue;
                WEFT_ERR_HANDLE
            }
            UseFlaw::NoSize => {
                args.size = 0;
                WEFT_ERR_INVALID
            }
        })
    }
}

fn flags(way: &Way, notify: bool) -> u32 {
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    flag(notify, WEFT_NOTIFY)
        | flag(way.urgent, WEFT_CLASS_LATENCY)
        | flag(way.each_peer, WEFT_COMPLETE_EACH_PEER)
}

/// The entries, as the call gets them.
fn place(args: &mut weft_list_args, raw: &[weft_list_entry], flaw: Option<ListFlaw>) {
    (args.entries, args.count) = (raw.as_ptr(), raw.len() as u64);
    match flaw {
        Some(ListFlaw::ManyEntries) => args.count = u64::from(WEFT_LIST_ENTRIES_MAX) + 1,
        Some(ListFlaw::NullEntries) => args.entries = ptr::null(),
        Some(ListFlaw::OddEntries) => args.entries = args.entries.wrapping_byte_add(1),
        _ => {}
    }
}

/// A counter that pages raise, or their transfer.
pub fn raise(counter: usize, pages: bool, segments: usize) -> Raise {
    match pages {
        true => Raise { counter, at_end: 0, with: (0..segments).collect() },
        false => Raise { counter, at_end: 1, with: Vec::new() },
    }
}

/// Of reads: when all was read.
fn at_end(raises: Vec<Raise>) -> Vec<Raise> {
    let later = |Raise { counter, at_end, with }: Raise| Raise {
        counter,
        at_end: at_end + with.len() as u64,
        with: Vec::new(),
    };
    raises.into_iter().map(later).collect()
}
