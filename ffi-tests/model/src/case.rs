//! What a case is: a few choices, and operations. Each prints itself on a line.

use crate::atomics::Atomic;
use crate::counters::CountOp;
use crate::lists::{KeptOp, ListMove};
use std::fmt::{self, Display, Formatter};

/// Memories that a side can have at once.
pub const SLOTS: usize = 3;

/// One of the two sides: 0 or 1, printed as A or B.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Who(pub usize);

impl Who {
    pub fn other(self) -> Who {
        Who(1 - self.0)
    }
}

impl Display for Who {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str(["A", "B"][self.0])
    }
}

/// In which order a side's pages are named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// No list.
    Absent,
    Ascending,
    Descending,
    Shuffled(u64),
    /// Some more than once.
    Repeated(u64),
}

/// How a side lays out pages and layers; fitted into the memory that it meets.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Bytes between pages.
    pub gap: u64,
    /// Bytes between layers of one range.
    pub layer_gap: u64,
    /// Layers are ranges of their own, so many apart; 0: they share one.
    pub range_step: u32,
    pub first_range: u32,
    /// Of 65,535: where in the room that there is.
    pub place: u16,
    pub order: Order,
}

#[derive(Clone, Debug)]
pub struct Shape {
    /// By `weft_write` and `weft_read`.
    pub single: bool,
    pub page_len: u64,
    pub pages: u64,
    pub layers: u64,
    pub local: Layout,
    pub remote: Layout,
}

/// What is wrong with a write or read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    NoEndpoint,
    NoArgs,
    NoLocal,
    NoRemote,
    LocalIsRemote,
    StaleLocal,
    LocalOfOther,
    QueueOfOther,
    LocalRange,
    RemoteRange,
    LocalEnd,
    RemoteEnd,
    HugeStride,
    HugeOffset,
    NoPageLen,
    HugePageLen,
    ManyPages,
    ManyLayers,
    OddList,
    UnknownFlag,
    DataWithoutNotify,
    LongData,
    NullData,
    LongTimeout,
    NoSize,
    HugeSize,
    NewerStruct,
    Reserved,
    OwnCounter,
    CountWithoutCounter,
    CountReads,
}

#[derive(Clone, Debug)]
pub struct Move {
    pub who: Who,
    pub read: bool,
    pub local: usize,
    pub remote: usize,
    pub shape: Shape,
    /// Bytes of the notification's data.
    pub notify: Option<usize>,
    /// The counter that it raises, and whether each page does.
    pub counter: Option<(usize, bool)>,
    pub urgent: bool,
    pub timeout_ns: u64,
    /// Completes in the second queue.
    pub second_queue: bool,
    pub flaw: Option<Flaw>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendFlaw {
    TooLong,
    NullData,
    UnknownFlag,
    NoPeer,
    LongTimeout,
    QueueOfOther,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegisterFlaw {
    NoRanges,
    EmptyRange,
    NullRange,
    LocalAndRemote,
    UnknownAccess,
    UnknownRail,
    NotThere,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImportFlaw {
    Truncated,
    Damaged(u16),
    Empty,
    OwnDescriptor,
    NoPeer,
}

#[derive(Clone, Debug)]
pub enum Op {
    Move(Move),
    List(ListMove),
    Kept(Who, KeptOp),
    Count(Who, CountOp),
    Atomic(Atomic),
    Send {
        who: Who,
        len: usize,
        timeout_ns: u64,
        second_queue: bool,
        flaw: Option<SendFlaw>,
    },
    /// The operation so many before the last that this side submitted.
    Cancel {
        who: Who,
        back: usize,
    },
    /// `ranges`: place and length in the arena; `rails`: as in `weft_memory_args`.
    Register {
        who: Who,
        slot: usize,
        ranges: Vec<(usize, usize)>,
        access: u32,
        rails: u64,
        flaw: Option<RegisterFlaw>,
    },
    Deregister {
        who: Who,
        slot: usize,
    },
    Import {
        who: Who,
        slot: usize,
        flaw: Option<ImportFlaw>,
    },
    Release {
        who: Who,
        slot: usize,
    },
    /// Polls both queues of a side once.
    Poll {
        who: Who,
    },
    ReleaseMessages {
        who: Who,
    },
    /// Polls until everything has completed, and compares everything.
    Settle,
    Disconnect {
        who: Who,
        wait: bool,
    },
    Connect {
        who: Who,
    },
}

#[derive(Clone)]
pub struct Case {
    /// `WEFT_PACKING_*`.
    pub packing: u32,
    /// `WEFT_IDLE_*`.
    pub idle: u32,
    pub workers: u32,
    /// Of the bytes, and of a virtual world.
    pub seed: u64,
    /// Ends without waiting for what is outstanding.
    pub abrupt: bool,
    pub ops: Vec<Op>,
}

pub fn timeout(ns: u64) -> String {
    if ns == 0 {
        String::new()
    } else {
        format!(", timeout {ns} ns")
    }
}

pub fn queue(second: bool) -> &'static str {
    if second {
        ", second queue"
    } else {
        ""
    }
}

pub fn notifies(bytes: Option<usize>) -> String {
    bytes.map_or(String::new(), |bytes| format!(", notifies with {bytes} bytes"))
}

pub fn flawed<T: fmt::Debug>(flaw: &Option<T>) -> String {
    flaw.as_ref().map_or(String::new(), |flaw| format!(", WRONG: {flaw:?}"))
}

impl Display for Layout {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Layout { gap, layer_gap, range_step, first_range, place, order } = self;
        write!(f, "(gap {gap}/{layer_gap}, range {first_range}+{range_step}l, place {place}, {order:?})")
    }
}

impl Display for Move {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Shape { single, page_len, pages, layers, local, remote } = &self.shape;
        let (verb, to) = if self.read { ("reads", "from") } else { ("writes", "to") };
        if *single {
            write!(f, "{} {verb} {page_len} bytes, ", self.who)?;
        } else {
            write!(f, "{} {verb} {pages} pages of {page_len} bytes x {layers} layers, ", self.who)?;
        }
        write!(f, "memory {}{local} {to} {}{remote}", self.local, self.remote)?;
        write!(f, "{}", notifies(self.notify))?;
        if let Some((slot, pages)) = self.counter {
            write!(f, ", raises counter {slot}{}", if pages { " with each page" } else { "" })?;
        }
        let class = if self.urgent { ", latency" } else { "" };
        let rest = (timeout(self.timeout_ns), queue(self.second_queue), flawed(&self.flaw));
        write!(f, "{class}{}{}{}", rest.0, rest.1, rest.2)
    }
}

impl Display for Op {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match self {
            Op::Move(op) => op.fmt(f),
            Op::List(op) => op.fmt(f),
            Op::Kept(who, op) => write!(f, "{who} {op}"),
            Op::Count(who, op) => write!(f, "{who} {op}"),
            Op::Atomic(op) => op.fmt(f),
            Op::Send { who, len, timeout_ns, second_queue, flaw } => {
                let rest = (timeout(*timeout_ns), queue(*second_queue), flawed(flaw));
                write!(f, "{who} sends {len} bytes{}{}{}", rest.0, rest.1, rest.2)
            }
            Op::Cancel { who, back } => write!(f, "{who} cancels its last operation but {back}"),
            Op::Register { who, slot, ranges, access, rails, flaw } => {
                let flaw = flawed(flaw);
                write!(
                    f,
                    "{who} registers memory {slot}: {ranges:?}, access {access}, rails {rails:#x}{flaw}"
                )
            }
            Op::Deregister { who, slot } => write!(f, "{who} deregisters memory {slot}"),
            Op::Import { who, slot, flaw } => write!(f, "{who} imports memory {slot}{}", flawed(flaw)),
            Op::Release { who, slot } => write!(f, "{who} releases the imported memory {slot}"),
            Op::Poll { who } => write!(f, "{who} polls"),
            Op::ReleaseMessages { who } => write!(f, "{who} releases its messages"),
            Op::Settle => write!(f, "all settles"),
            Op::Disconnect { who, wait } => {
                write!(f, "{who} disconnects{}", if *wait { "" } else { ", and goes on" })
            }
            Op::Connect { who } => write!(f, "{who} connects"),
        }
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Case { packing, idle, workers, seed, abrupt, ops } = self;
        writeln!(f, "packing {packing}, idle {idle}, workers {workers}, seed {seed}, abrupt {abrupt}")?;
        ops.iter().enumerate().try_for_each(|(i, op)| writeln!(f, "    {i:2}  {op}"))
    }
}
