//! The options of operations, as callers set them: checked here, once, for C and for Rust.

use super::watch::Marks;
use super::{Common, Count, Direction, Notify, Queue, Terms};
use crate::ids::GrantToken;
use crate::room::Theirs;
use crate::status::{Error, Result, Status};
use std::num::NonZeroU64;
use std::sync::Arc;

pub const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;
/// Bytes of the longest data of a notification.
pub const NOTIFY_DATA_MAX: usize = 256;

/// Bits of the flags, as in the header.
pub const NOTIFY: u32 = 1;
pub const LATENCY: u32 = 2;
pub const COUNT_PAGES: u32 = 4;
pub const EACH_PEER: u32 = 8;
pub const NOTIFY_FAILURE: u32 = 16;
pub const DURABLE: u32 = 32;

/// The names of flags, and the operations that they are for.
const FLAGS: [(u32, &str, &str); 6] = [
    (NOTIFY, "WEFT_NOTIFY", "writes and reads"),
    (LATENCY, "WEFT_CLASS_LATENCY", "writes, reads and atomics"),
    (COUNT_PAGES, "WEFT_COUNT_PAGES", "writes of ranges and pages that name a counter"),
    (EACH_PEER, "WEFT_COMPLETE_EACH_PEER", "lists and prepared lists"),
    (NOTIFY_FAILURE, "WEFT_NOTIFY_FAILURE", "writes, reads and grants"),
    (DURABLE, "WEFT_DURABLE", "writes into files of peers"),
];

/// Refuses flags that a call does not take.
#[inline(always)]
pub fn check_flags(flags: u32, taken: u32) -> Result<()> {
    match flags & !taken {
        0 => Ok(()),
        wrong => Err(wrong_flags(wrong)),
    }
}

#[cold]
fn wrong_flags(wrong: u32) -> Error {
    let text = match FLAGS.iter().find(|(flag, ..)| wrong & flag != 0) {
        None => format!("flags {wrong:#x} are not known to this version of Weft"),
        Some((_, name, for_what)) => {
            format!("{name} is set in flags: it is for {for_what}, not for this call")
        }
    };
    Error::new(Status::Unsupported, text)
}

/// The timeout of one operation; 0: the endpoint's default.
#[inline]
pub fn timeout(name: &str, ns: u64) -> Result<Option<NonZeroU64>> {
    if ns > DAY_NS {
        return Err(Error::limit(format!("{name} is {ns} ns: at most 24 hours ({DAY_NS} ns) are allowed")));
    }
    Ok(NonZeroU64::new(ns))
}

/// The options that operations of one kind take, beside those of all operations.
#[derive(Clone, Copy)]
pub struct Takes {
    pub flags: u32,
    pub counter: bool,
    pub start: bool,
    pub done: bool,
    pub grant: bool,
}

impl Takes {
    pub const NOTHING: Takes = Takes { flags: 0, counter: false, start: false, done: false, grant: false };
    pub const EXPECT: Takes = Takes { done: true, ..Takes::NOTHING };
    pub const ATOMIC: Takes = Takes { flags: LATENCY, grant: true, ..Takes::NOTHING };
    pub const TRANSFER: Takes = Takes {
        flags: NOTIFY | NOTIFY_FAILURE | LATENCY | COUNT_PAGES | DURABLE,
        counter: true,
        start: true,
        done: true,
        grant: true,
    };
    pub const LIST: Takes = Takes {
        flags: NOTIFY | NOTIFY_FAILURE | LATENCY | EACH_PEER | DURABLE,
        counter: false,
        ..Takes::TRANSFER
    };
}

/// Options from a caller: 0 means the default.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    pub flags: u32,
    pub timeout_ns: u64,
    pub user_data: u64,
    pub notify: u64,
    pub notify_data: Theirs<'a, u8>,
    pub counter: u64,
    pub grant: Option<GrantToken>,
}

impl<'a> Options<'a> {
    /// `watches`: whether a start, and a done watch or its value are set.
    #[inline(always)]
    pub fn check(&self, takes: Takes, watches: (bool, bool)) -> Result<()> {
        check_flags(self.flags, takes.flags)?;
        absent(!takes.counter && self.counter != 0, "counter")?;
        absent(!takes.start && watches.0, "start_watch")?;
        absent(!takes.done && watches.1, "done_watch")?;
        absent(!takes.grant && self.grant.is_some(), "grant")?;
        if self.flags & COUNT_PAGES != 0 && self.counter == 0 {
            return Err(Error::invalid("WEFT_COUNT_PAGES is set in flags, but counter is 0"));
        }
        if self.flags & (COUNT_PAGES | DURABLE) == COUNT_PAGES | DURABLE {
            return Err(Error::invalid(
                "WEFT_COUNT_PAGES and WEFT_DURABLE are set in flags: a counter of durable bytes rises once, after all",
            ));
        }
        timeout("timeout_ns", self.timeout_ns)?;
        match (self.flags & (NOTIFY | NOTIFY_FAILURE), self.notify, self.notify_data.len()) {
            (0, 0, 0) => Ok(()),
            _ => self.check_notification(takes),
        }
    }

    fn check_notification(&self, takes: Takes) -> Result<()> {
        let len = self.notify_data.len();
        if len > NOTIFY_DATA_MAX {
            return Err(Error::limit(format!(
                "notify_data has {len} bytes: at most {NOTIFY_DATA_MAX} are allowed"
            )));
        }
        if self.flags & NOTIFY != 0 {
            return Ok(());
        }
        if self.flags & NOTIFY_FAILURE != 0 {
            return Err(Error::invalid("WEFT_NOTIFY_FAILURE is set in flags, but WEFT_NOTIFY is not"));
        }
        let what = if len > 0 { "notify_data is given".into() } else { format!("notify is {}", self.notify) };
        let why = match takes.flags & NOTIFY {
            0 => "this operation does not notify",
            _ => "WEFT_NOTIFY is not set in flags",
        };
        Err(Error::invalid(format!("{what}, but {why}")))
    }

    #[inline(always)]
    pub fn common<'b>(&self, queue: &'b Arc<Queue>, marks: &'b Marks) -> Common<'b> {
        let timeout_ns = NonZeroU64::new(self.timeout_ns);
        Common { timeout_ns, user_data: self.user_data, queue, marks, grant: self.grant }
    }

    #[inline(always)]
    pub fn terms<'b>(&self, direction: Direction, common: Common<'b>) -> Terms<'b>
    where
        'a: 'b,
    {
        let Options { flags, notify: value, notify_data: data, counter, .. } = *self;
        Terms {
            direction,
            notify: (flags & NOTIFY != 0).then_some(Notify {
                value,
                data,
                of_failure: flags & NOTIFY_FAILURE != 0,
            }),
            count: (counter != 0).then_some(Count { counter, pages: flags & COUNT_PAGES != 0 }),
            each_peer: flags & EACH_PEER != 0,
            urgent: self.is_urgent(),
            durable: flags & DURABLE != 0,
            common,
        }
    }

    #[inline(always)]
    pub fn is_urgent(&self) -> bool {
        self.flags & LATENCY != 0
    }
}

#[inline(always)]
pub fn absent(set: bool, name: &str) -> Result<()> {
    match set {
        true => Err(Error::invalid(format!("{name} is set, but this operation does not have that option"))),
        false => Ok(()),
    }
}
