//! Writes and reads: arguments, what is wrong with them on purpose, and what the
//! model has to know of them.

use crate::case::{Flaw, Move, Who};
use crate::driver::{Driver, Refusal, DAY_NS};
use crate::lists::raise;
use crate::model::{status_name, Bytes, Link, Note, Outcome};
use crate::shape::{fit, Fitted, Laid, Ranges};
use crate::side::sized;
use std::ffi::c_void;
use std::ptr;
use weft::capi::completion::*;
use weft::capi::endpoint::weft_endpoint;
use weft::capi::memory::*;
use weft::capi::status::*;
use weft::capi::transfer::*;

/// Arguments of a newer library: what follows ours is not 0.
#[repr(C)]
struct Tailed<T> {
    args: T,
    tail: u64,
}

enum Args {
    Range(Tailed<weft_range_args>),
    Pages(Tailed<weft_pages_args>),
}

/// Sets fields that both kinds of arguments have.
macro_rules! both {
    ($args:expr, $a:ident => $body:expr) => {
        match $args {
            Args::Range(Tailed { args: $a, .. }) => $body,
            Args::Pages(Tailed { args: $a, .. }) => $body,
        }
    };
}

/// What a call is made of, besides its arguments.
struct Call {
    endpoint: *mut weft_endpoint,
    args: Args,
    no_args: bool,
}

fn build(fitted: &Fitted, single: bool) -> Args {
    if single {
        let mut args = sized!(weft_range_args);
        args.len = fitted.page_len;
        (args.local_range, args.remote_range) = (fitted.local.first_range, fitted.remote.first_range);
        (args.local_offset, args.remote_offset) = (fitted.local.offset, fitted.remote.offset);
        return Args::Range(Tailed { args, tail: 0 });
    }
    Args::Pages(Tailed { args: pages_args(fitted), tail: 0 })
}

pub fn pages_args(fitted: &Fitted) -> weft_pages_args {
    let list = |side: &Laid| side.pages.as_ref().map_or(ptr::null(), |list| list.as_ptr());
    let mut args = sized!(weft_pages_args);
    (args.page_len, args.page_count, args.layer_count) =
        (fitted.page_len, fitted.pages, fitted.layers as u32);
    let Fitted { local, remote, .. } = fitted;
    (args.local_pages, args.remote_pages) = (list(local), list(remote));
    (args.local_page_stride, args.remote_page_stride) = (local.stride, remote.stride);
    (args.local_offset, args.remote_offset) = (local.offset, remote.offset);
    (args.local_layer_stride, args.remote_layer_stride) = (local.layer_stride, remote.layer_stride);
    (args.local_first_range, args.remote_first_range) = (local.first_range, remote.first_range);
    (args.local_range_step, args.remote_range_step) = (local.range_step, remote.range_step);
    args
}

fn largest(side: &Laid, fitted: &Fitted) -> u64 {
    match &side.pages {
        Some(list) => list.iter().copied().max().unwrap_or(0).into(),
        None => fitted.pages.saturating_sub(1),
    }
}

/// The least offset with which a side reaches past its ranges.
fn beyond(side: &Laid, fitted: &Fitted, ranges: &Ranges) -> u64 {
    let layer = |l: u64| {
        let range = u64::from(side.first_range) + l * u64::from(side.range_step);
        let end = largest(side, fitted) * side.stride + l * side.layer_stride + fitted.page_len;
        ranges[range as usize].1 as u64 + 1 - end
    };
    (0..fitted.layers.max(1)).map(layer).min().unwrap_or(u64::MAX)
}

impl Driver {
    pub fn transfer(&mut self, op: &Move) -> Outcome<String> {
        let (part, other) = (&self.model.parts[op.who.0], &self.model.parts[1 - op.who.0]);
        let (Some(local), Some(import)) = (part.slots[op.local], part.import_slots[op.remote]) else {
            return Ok("no such memory".into());
        };
        let (own, theirs) = (&part.memories[local], &other.memories[part.imports[import].memory]);
        let fitted = fit(&op.shape, &own.ranges, &theirs.ranges);
        let segments = fitted.segments(&own.ranges, &theirs.ranges);
        let bytes = Bytes::new(op.who.0, op.read, segments);
        if self.model.conflicts(op.who.0, &bytes, None) {
            self.note("      waits for operations on the same bytes".into());
            self.settle()?;
            return self.transfer(op);
        }
        let mut call = Call {
            endpoint: self.sides[op.who.0].endpoint,
            args: build(&fitted, op.shape.single),
            no_args: false,
        };
        let note = self.common(op, &mut call.args, (local, import));
        let mut refusal = self.move_refusal(op, (local, import));
        let counter = op.counter.filter(|_| op.flaw.is_none());
        let counter =
            counter.and_then(|(slot, pages)| Some((self.counter_of_other(op.who, Some(slot))?, pages)));
        let mut raises = Vec::new();
        if let Some(((counter, id), pages)) = counter {
            both!(&mut call.args, a => a.counter = id);
            raises.push(raise(counter, pages, bytes.segments.len()));
            self.count_with(op, pages, &mut call.args, &mut refusal);
        }
        let ranges = [&own_ranges(self, op.who, local)[..], &import_ranges(self, op.who, import)[..]];
        if let Some(status) = op.flaw.and_then(|flaw| self.spoil(flaw, op, &fitted, ranges, &mut call)) {
            refusal.must(status);
        }
        let (status, transfer) = make(op.read, &call);
        let accepted = refusal.judge("the transfer", status)?;
        let described = format!("{}: {fitted:?}", status_name(status));
        if accepted {
            let kind = if op.read { WEFT_COMPLETION_READ } else { WEFT_COMPLETION_WRITE };
            let mut begun = self.begun(op.who, kind, transfer, op.second_queue);
            (begun.bytes, begun.timeout_ns) = (fitted.bytes(), op.timeout_ns);
            (begun.locals, begun.note, begun.raises) = (vec![local], note, raises);
            self.follow(&mut begun, &[import]);
            begun.moved = Some(bytes);
            self.model.operations.push(begun);
        }
        Ok(described)
    }

    /// Fills in what both kinds of calls have; the notification that is to come.
    fn common(&mut self, op: &Move, args: &mut Args, (local, import): (usize, usize)) -> Option<Note> {
        let note = self.note_of(op.notify);
        let side = &self.sides[op.who.0];
        let user_data = (self.model.operations.len() + 1) as *mut c_void;
        both!(args, a => {
            a.local = self.memories[op.who.0][local];
            a.remote = self.remotes[op.who.0][import];
            a.timeout_ns = op.timeout_ns;
            a.user_data = user_data;
            a.queue = if op.second_queue { side.queue } else { ptr::null() };
            if op.urgent {
                a.flags |= WEFT_CLASS_LATENCY;
            }
            if let Some(note) = &note {
                a.flags |= WEFT_NOTIFY;
                a.notify = note.value;
                a.notify_data = note.data.as_ptr().cast();
                a.notify_data_len = note.data.len() as u32;
            }
        });
        note
    }

    /// It raises a counter, with each page or in the end.
    fn count_with(&self, op: &Move, pages: bool, args: &mut Args, refusal: &mut Refusal) {
        if pages {
            both!(args, a => a.flags |= WEFT_COUNT_PAGES);
            if op.read {
                refusal.must(WEFT_ERR_UNSUPPORTED);
            }
        }
        if self.model.link == Link::Parting {
            refusal.may(WEFT_ERR_HANDLE);
        }
    }

    /// What refuses it, were its arguments right.
    fn move_refusal(&self, op: &Move, (local, import): (usize, usize)) -> Refusal {
        let (part, other) = (&self.model.parts[op.who.0], &self.model.parts[1 - op.who.0]);
        let mut refusal = self.refusal(op.who, op.second_queue);
        if !part.memories[local].alive {
            refusal.must(WEFT_ERR_HANDLE);
        }
        self.refuse_import(&mut refusal, op.who, import);
        let import = &part.imports[import];
        let needed = if op.read { WEFT_ACCESS_REMOTE_READ } else { WEFT_ACCESS_REMOTE_WRITE };
        let access = other.memories[import.memory].access;
        if access != 0 && access & needed == 0 {
            refusal.must(WEFT_ERR_REMOTE_ACCESS);
        }
        refusal
    }

    /// Puts a flaw into a call: the status that it must get, or none where this
    /// call cannot have it.
    fn spoil(
        &self,
        flaw: Flaw,
        op: &Move,
        fitted: &Fitted,
        [local, remote]: [&Ranges; 2],
        call: &mut Call,
    ) -> Option<i32> {
        let args = &mut call.args;
        match flaw {
            Flaw::NoEndpoint => call.endpoint = ptr::null_mut(),
            Flaw::NoArgs => {
                call.no_args = true;
                return Some(WEFT_ERR_INVALID);
            }
            Flaw::NoLocal => both!(args, a => a.local = ptr::null()),
            Flaw::NoRemote => both!(args, a => a.remote = ptr::null()),
            Flaw::LocalIsRemote => both!(args, a => a.local = a.remote.cast()),
            Flaw::StaleLocal => both!(args, a => a.local = a.local.wrapping_byte_add(1)),
            Flaw::LocalOfOther => {
                let theirs = self.model.parts[1 - op.who.0].memories.iter().position(|m| m.alive)?;
                both!(args, a => a.local = self.memories[1 - op.who.0][theirs]);
            }
            Flaw::OwnCounter => {
                let own = self.counter_of_other(op.who.other(), Some(0))?;
                both!(args, a => a.counter = own.1);
            }
            Flaw::CountReads if op.read => {
                let theirs = self.counter_of_other(op.who, Some(0))?;
                both!(args, a => (a.counter, a.flags) = (theirs.1, a.flags | WEFT_COUNT_PAGES));
                return Some(WEFT_ERR_UNSUPPORTED);
            }
            Flaw::QueueOfOther => both!(args, a => a.queue = self.sides[1 - op.who.0].queue),
            _ => return spoil_values(flaw, args).or_else(|| spoil_places(flaw, fitted, local, remote, args)),
        }
        Some(WEFT_ERR_HANDLE)
    }
}

/// Flaws of single fields.
fn spoil_values(flaw: Flaw, args: &mut Args) -> Option<i32> {
    static DATA: [u8; 300] = [7; 300];
    let status = match flaw {
        Flaw::UnknownFlag => {
            both!(args, a => a.flags |= 1 << 31);
            WEFT_ERR_UNSUPPORTED
        }
        Flaw::DataWithoutNotify => {
            both!(args, a => {
                a.flags &= !WEFT_NOTIFY;
                (a.notify_data, a.notify_data_len) = (DATA.as_ptr().cast(), 5);
            });
            WEFT_ERR_INVALID
        }
        Flaw::LongData => {
            both!(args, a => {
                a.flags |= WEFT_NOTIFY;
                (a.notify_data, a.notify_data_len) = (DATA.as_ptr().cast(), WEFT_NOTIFY_DATA_MAX + 1);
            });
            WEFT_ERR_LIMIT
        }
        Flaw::NullData => {
            both!(args, a => {
                a.flags |= WEFT_NOTIFY;
                (a.notify_data, a.notify_data_len) = (ptr::null(), 3);
            });
            WEFT_ERR_INVALID
        }
        Flaw::CountWithoutCounter => {
            both!(args, a => a.flags |= WEFT_COUNT_PAGES);
            WEFT_ERR_INVALID
        }
        Flaw::LongTimeout => {
            both!(args, a => a.timeout_ns = DAY_NS + 1);
            WEFT_ERR_LIMIT
        }
        Flaw::NoSize => {
            both!(args, a => a.size = 0);
            WEFT_ERR_INVALID
        }
        Flaw::HugeSize => {
            both!(args, a => a.size = 5000);
            WEFT_ERR_INVALID
        }
        Flaw::NewerStruct => {
            match args {
                Args::Range(Tailed { args, tail }) => (args.size, *tail) = (args.size + 8, 1),
                Args::Pages(Tailed { args, tail }) => (args.size, *tail) = (args.size + 8, 1),
            }
            WEFT_ERR_UNSUPPORTED
        }
        _ => return None,
    };
    Some(status)
}

/// Flaws of what is moved; those of bytes need some.
fn spoil_places(
    flaw: Flaw,
    fitted: &Fitted,
    local: &Ranges,
    remote: &Ranges,
    args: &mut Args,
) -> Option<i32> {
    let moves = fitted.bytes() > 0;
    match (flaw, &mut *args) {
        (Flaw::LocalRange, Args::Range(a)) if moves => a.args.local_range = local.len() as u32,
        (Flaw::LocalRange, Args::Pages(a)) if moves => a.args.local_first_range = local.len() as u32,
        (Flaw::RemoteRange, Args::Range(a)) if moves => a.args.remote_range = u32::MAX,
        (Flaw::RemoteRange, Args::Pages(a)) if moves => a.args.remote_first_range = u32::MAX,
        (Flaw::LocalEnd, args) if moves => {
            both!(args, a => a.local_offset = beyond(&fitted.local, fitted, local));
        }
        (Flaw::RemoteEnd, args) if moves => {
            both!(args, a => a.remote_offset = beyond(&fitted.remote, fitted, remote));
        }
        (Flaw::HugeOffset, args) if moves => both!(args, a => a.remote_offset = u64::MAX),
        (Flaw::HugeStride, Args::Pages(a)) if moves && largest(&fitted.local, fitted) > 0 => {
            a.args.local_page_stride = u64::MAX;
        }
        (Flaw::HugePageLen, Args::Range(a)) => a.args.len = (1 << 47) + 1,
        (Flaw::HugePageLen, Args::Pages(a)) => {
            a.args.page_len = (1 << 47) + 1;
            return Some(WEFT_ERR_LIMIT);
        }
        (Flaw::NoPageLen, Args::Pages(a)) if moves => {
            a.args.page_len = 0;
            return Some(WEFT_ERR_INVALID);
        }
        (Flaw::ManyPages, Args::Pages(a)) => {
            (a.args.local_pages, a.args.remote_pages) = (ptr::null(), ptr::null());
            a.args.page_count = 1 << 32;
            return Some(WEFT_ERR_LIMIT);
        }
        (Flaw::ManyLayers, Args::Pages(a)) => {
            a.args.layer_count = 65_537;
            return Some(WEFT_ERR_LIMIT);
        }
        (Flaw::OddList, Args::Pages(a)) if moves && fitted.local.pages.is_some() => {
            a.args.local_pages = a.args.local_pages.wrapping_byte_add(1);
            return Some(WEFT_ERR_INVALID);
        }
        (Flaw::Reserved, Args::Range(a)) => {
            a.args.reserved = 1;
            return Some(WEFT_ERR_UNSUPPORTED);
        }
        _ => return None,
    }
    Some(WEFT_ERR_RANGE)
}

fn own_ranges(driver: &Driver, who: Who, memory: usize) -> Vec<(usize, usize)> {
    driver.model.parts[who.0].memories[memory].ranges.clone()
}

fn import_ranges(driver: &Driver, who: Who, import: usize) -> Vec<(usize, usize)> {
    own_ranges(driver, who.other(), driver.model.parts[who.0].imports[import].memory)
}

fn make(read: bool, call: &Call) -> (i32, u64) {
    let mut transfer = 0;
    // SAFETY: valid arguments, but for what a flaw made of them, which is checked.
    let status = unsafe {
        match &call.args {
            Args::Range(tailed) => {
                let args: *const weft_range_args =
                    if call.no_args { ptr::null() } else { ptr::from_ref(tailed).cast() };
                let submit = if read { weft_read } else { weft_write };
                submit(call.endpoint, args, &mut transfer)
            }
            Args::Pages(tailed) => {
                let args: *const weft_pages_args =
                    if call.no_args { ptr::null() } else { ptr::from_ref(tailed).cast() };
                let submit = if read { weft_read_pages } else { weft_write_pages };
                submit(call.endpoint, args, &mut transfer)
            }
        }
    };
    (status, transfer)
}
