//! The record that polling returns.

use crate::ids::{PeerId, RailIndex};
use crate::status::Status;
use crate::trace::{self, Event};
use std::ffi::c_void;

pub const KIND_WRITE: i32 = 1;
pub const KIND_READ: i32 = 2;
pub const KIND_SEND: i32 = 3;
pub const KIND_MESSAGE: i32 = 4;
pub const KIND_NOTIFICATION: i32 = 5;
pub const KIND_PEER_UP: i32 = 6;
pub const KIND_PEER_DOWN: i32 = 7;
pub const KIND_COUNTER: i32 = 8;
pub const KIND_ATOMIC: i32 = 9;
pub const KIND_RAIL_DOWN: i32 = 10;
pub const KIND_RAIL_UP: i32 = 11;
pub const KIND_FENCE: i32 = 12;

/// The name of an operation with this kind of completion.
pub fn name_of(kind: i32) -> &'static str {
    match kind {
        KIND_WRITE => "write",
        KIND_READ => "read",
        KIND_SEND => "send",
        KIND_COUNTER => "wait for counters",
        KIND_ATOMIC => "atomic",
        KIND_FENCE => "fence",
        _ => "operation",
    }
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    pub status: Status,
    pub provider_errno: i32,
    pub rail: Option<RailIndex>,
    /// The entry of a list that failed.
    pub entry: Option<u64>,
}

impl Outcome {
    pub const OK: Outcome = Outcome::new(Status::Ok);

    pub const fn new(status: Status) -> Outcome {
        Outcome { status, provider_errno: 0, rail: None, entry: None }
    }
}

/// The layout is the ABI's (`weft_completion`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Completion {
    pub kind: i32,
    pub status: i32,
    pub transfer: u64,
    pub user_data: u64,
    pub peer: Option<PeerId>,
    pub notify: u64,
    pub bytes: u64,
    pub data: *const c_void,
    pub provider_errno: i32,
    pub rail: u32,
    pub entry: u64,
    pub submit_ns: u64,
    pub first_post_ns: u64,
    pub done_ns: u64,
    pub previous: u64,
    pub accepted: u32,
    pub reserved: [u32; 5],
}

// SAFETY: `data` is not dereferenced before the poller reads it.
unsafe impl Send for Completion {}

impl Completion {
    /// Adds it to the trace, if there is one.
    #[inline]
    pub fn trace(&self) {
        trace::add(|| self.event());
    }

    fn event(&self) -> Event {
        let Completion { status, rail, done_ns: done, first_post_ns: first_post, .. } = *self;
        let peer = self.peer.map_or(0, PeerId::get);
        let arrived = |name| Event::Arrived { name, peer, rail, status, at: done };
        match self.kind {
            KIND_MESSAGE => arrived("message"),
            KIND_NOTIFICATION => arrived("notification"),
            KIND_PEER_UP => arrived("PEER_UP"),
            KIND_PEER_DOWN => arrived("PEER_DOWN"),
            KIND_RAIL_DOWN => arrived("RAIL_DOWN"),
            KIND_RAIL_UP => arrived("RAIL_UP"),
            kind => {
                let (name, id, bytes, submit) = (name_of(kind), self.transfer, self.bytes, self.submit_ns);
                Event::Operation { name, id, peer, bytes, status, submit, first_post, done }
            }
        }
    }

    pub fn new(kind: i32, outcome: Outcome, peer: impl Into<Option<PeerId>>, now: u64) -> Completion {
        Completion {
            kind,
            status: outcome.status as i32,
            transfer: 0,
            user_data: 0,
            peer: peer.into(),
            notify: 0,
            bytes: 0,
            data: std::ptr::null(),
            provider_errno: outcome.provider_errno,
            rail: outcome.rail.map_or(u32::MAX, |rail| rail.get().into()),
            entry: outcome.entry.unwrap_or(u64::MAX),
            submit_ns: 0,
            first_post_ns: 0,
            done_ns: now,
            previous: 0,
            accepted: 0,
            reserved: [0; 5],
        }
    }
}
