//! Atomics: one word of the other side's memory.

use crate::case::{flawed, queue, timeout, Who};
use crate::driver::{Driver, DAY_NS};
use crate::model::{status_name, Bytes, Outcome, Word};
use crate::side::sized;
use std::ffi::c_void;
use std::fmt::{self, Display, Formatter};
use std::ptr;
use weft::capi::atomic::*;
use weft::capi::completion::WEFT_COMPLETION_ATOMIC;
use weft::capi::memory::*;
use weft::capi::status::*;

const WORD: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicFlaw {
    NoEndpoint,
    NoArgs,
    NoRemote,
    RemoteIsLocal,
    QueueOfOther,
    RemoteRange,
    RemoteEnd,
    HugeOffset,
    Odd,
    AddCompares,
    UnknownFlag,
    Reserved,
    LongTimeout,
    NoSize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Add(u64),
    /// Swaps; whether it compares with what is there.
    Swap(bool, u64),
}

#[derive(Clone, Debug)]
pub struct Atomic {
    pub who: Who,
    pub remote: usize,
    pub change: Change,
    pub range: usize,
    /// Of 65,535: where in the range.
    pub place: u16,
    pub timeout_ns: u64,
    pub second_queue: bool,
    pub flaw: Option<AtomicFlaw>,
}

impl Display for Atomic {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Atomic { who, remote, change, range, place, timeout_ns, second_queue, flaw } = self;
        write!(f, "{who} changes a word of memory {remote} (range {range}, place {place}): {change:?}")?;
        write!(f, "{}{}{}", timeout(*timeout_ns), queue(*second_queue), flawed(flaw))
    }
}

impl Driver {
    pub fn atomic(&mut self, op: &Atomic) -> Outcome<String> {
        let part = &self.model.parts[op.who.0];
        let Some(import) = part.import_slots[op.remote] else { return Ok("no such memory".into()) };
        let memory = &self.model.parts[1 - op.who.0].memories[part.imports[import].memory];
        let range = op.range % memory.ranges.len();
        let (at, len) = memory.ranges[range];
        let first = at.next_multiple_of(WORD);
        let Some(words) = (at + len).checked_sub(first).map(|room| room / WORD).filter(|words| *words > 0)
        else {
            return Ok("no word in this range".into());
        };
        let place = first + (words - 1) * usize::from(op.place) / 65_535 * WORD;
        let bytes = Bytes::word(op.who.0, place);
        if self.model.conflicts(op.who.0, &bytes, None) {
            self.note("      waits for operations on the same bytes".into());
            self.settle()?;
            return self.atomic(op);
        }
        let word = self.word(op, place);
        let mut args = sized!(weft_atomic_args);
        args.remote = self.remotes[op.who.0][import];
        (args.remote_range, args.remote_offset) = (range as u32, (place - at) as u64);
        match op.change {
            Change::Add(operand) => args.operand = operand,
            Change::Swap(right, operand) => {
                (args.operand, args.compare) = (operand, word.old.wrapping_add(u64::from(!right)));
            }
        }
        (args.timeout_ns, args.user_data) = (op.timeout_ns, (self.model.operations.len() + 1) as *mut c_void);
        args.queue = if op.second_queue { self.sides[op.who.0].queue } else { ptr::null() };
        let mut refusal = self.refusal(op.who, op.second_queue);
        let needed = WEFT_ACCESS_REMOTE_READ | WEFT_ACCESS_REMOTE_WRITE;
        if memory.access != 0 && memory.access & needed != needed {
            refusal.must(WEFT_ERR_REMOTE_ACCESS);
        }
        self.refuse_import(&mut refusal, op.who, import);
        if let Some(status) = op.flaw.and_then(|flaw| self.spoil_atomic(flaw, op, &mut args, len as u64)) {
            refusal.must(status);
        }
        let (status, transfer) = self.make_atomic(op, &args);
        if refusal.judge("the atomic", status)? {
            let mut begun = self.begun(op.who, WEFT_COMPLETION_ATOMIC, transfer, op.second_queue);
            (begun.timeout_ns, begun.word) = (op.timeout_ns, Some(word));
            begun.moved = Some(bytes);
            self.follow(&mut begun, &[import]);
            self.model.operations.push(begun);
        }
        Ok(format!("{}: {place:#x}", status_name(status)))
    }

    fn word(&self, op: &Atomic, at: usize) -> Word {
        let mut bytes = [0; WORD];
        bytes.copy_from_slice(&self.model.parts[1 - op.who.0].bytes[at..at + WORD]);
        let old = u64::from_ne_bytes(bytes);
        let new = match op.change {
            Change::Add(operand) => old.wrapping_add(operand),
            Change::Swap(true, operand) => operand,
            Change::Swap(false, _) => old,
        };
        Word { at, old, new }
    }

    fn make_atomic(&self, op: &Atomic, args: &weft_atomic_args) -> (i32, u64) {
        let mut transfer = 0;
        let none = |flaw| op.flaw == Some(flaw);
        let endpoint =
            if none(AtomicFlaw::NoEndpoint) { ptr::null_mut() } else { self.sides[op.who.0].endpoint };
        let args = if none(AtomicFlaw::NoArgs) { ptr::null() } else { ptr::from_ref(args) };
        let submit = if matches!(op.change, Change::Add(_)) { weft_fetch_add } else { weft_compare_swap };
        // SAFETY: valid arguments, but for what a flaw made of them, which is checked.
        (unsafe { submit(endpoint, args, &mut transfer) }, transfer)
    }

    fn spoil_atomic(
        &self,
        flaw: AtomicFlaw,
        op: &Atomic,
        args: &mut weft_atomic_args,
        len: u64,
    ) -> Option<i32> {
        Some(match flaw {
            AtomicFlaw::NoEndpoint => WEFT_ERR_HANDLE,
            AtomicFlaw::NoArgs => WEFT_ERR_INVALID,
            AtomicFlaw::NoRemote => {
                args.remote = ptr::null();
                WEFT_ERR_HANDLE
            }
            AtomicFlaw::RemoteIsLocal => {
                args.remote = self.memories[op.who.0].first()?.cast();
                WEFT_ERR_HANDLE
            }
            AtomicFlaw::QueueOfOther => {
                args.queue = self.sides[1 - op.who.0].queue;
                WEFT_ERR_HANDLE
            }
            AtomicFlaw::RemoteRange => {
                args.remote_range = u32::MAX;
                WEFT_ERR_RANGE
            }
            AtomicFlaw::RemoteEnd => {
                args.remote_offset = len - 7;
                WEFT_ERR_RANGE
            }
            AtomicFlaw::HugeOffset => {
                args.remote_offset = u64::MAX - 7;
                WEFT_ERR_RANGE
            }
            AtomicFlaw::Odd if args.remote_offset > 0 => {
                args.remote_offset -= 1;
                WEFT_ERR_INVALID
            }
            AtomicFlaw::AddCompares if matches!(op.change, Change::Add(_)) => {
                args.compare = 1;
                WEFT_ERR_INVALID
            }
            AtomicFlaw::Odd | AtomicFlaw::AddCompares => return None,
            AtomicFlaw::UnknownFlag => {
                args.flags = 1 << 31;
                WEFT_ERR_UNSUPPORTED
            }
            AtomicFlaw::Reserved => {
                args.reserved = 1;
                WEFT_ERR_UNSUPPORTED
            }
            AtomicFlaw::LongTimeout => {
                args.timeout_ns = DAY_NS + 1;
                WEFT_ERR_LIMIT
            }
            AtomicFlaw::NoSize => {
                args.size = 0;
                WEFT_ERR_INVALID
            }
        })
    }
}
