//! The immutable description of an operation.

use super::atomic::Atomic;
use super::expect::Expecting;
use super::geometry::Position;
use super::queue::Queue;
use super::shape::{Shape, View};
use super::watch::Mark;
use super::{Direction, Outcome};
use crate::fabric::Immediate;
use crate::ids::{GrantToken, OpId, PeerId};
use crate::memory::{Covered, RemoteMemory};
use crate::status::Status;
use once_cell::sync::OnceCell;
use std::num::NonZeroU64;
use std::sync::Arc;

/// What a transfer moves, and under which terms.
pub struct Move {
    pub direction: Direction,
    /// In the latency class.
    pub urgent: bool,
    /// The owner of the memories flushes their files once the bytes have arrived (`durable`).
    pub durable: bool,
    pub shape: Shape,
    pub slices: u64,
    pub notify: Option<(u64, Box<[u8]>)>,
    /// A notification is sent also if the transfer fails.
    pub notifies_failure: bool,
    pub counting: Option<Counting>,
    /// The peer's grant under which the transfer runs.
    pub grant: Option<GrantToken>,
    /// What the grant covers, where only this side checks it (`owner::covered`).
    pub covered: OnceCell<Arc<Covered>>,
}

/// How a transfer raises a counter of its peer.
#[derive(Clone, Copy)]
pub struct Counting {
    /// Names the counter.
    pub immediate: Immediate,
    /// The amount added after the last byte; `None`: each page adds its bytes.
    pub at_end: Option<NonZeroU64>,
}

impl Move {
    /// The counter that each page raises; each page is a single post.
    #[inline]
    pub fn page_immediate(&self) -> Option<Immediate> {
        self.counting.filter(|counting| counting.at_end.is_none()).map(|counting| counting.immediate)
    }

    /// Whether posts of it carry immediates.
    #[inline]
    pub fn is_counted(&self) -> bool {
        match self.view() {
            View::Pages(_) => self.page_immediate().is_some(),
            View::List(_, part) => part.is_counted(self.posts_raise()),
        }
    }

    /// Whether the immediates of posts may raise counters; otherwise frames do, after the last byte.
    #[inline]
    pub fn posts_raise(&self) -> bool {
        self.direction == Direction::Write && !self.durable
    }

    /// Whether the peer's owner sends a frame after the last byte, before the transfer ends.
    pub fn is_announced(&self) -> bool {
        self.durable || self.tells()
    }

    /// Whether a frame announces it to the peer after the last byte, and the flush if it is durable.
    pub fn tells(&self) -> bool {
        let counted = self.counting.is_some_and(|counting| counting.at_end.is_some());
        // Without bytes, nothing else shows whether the grant is live.
        let asks = self.slices == 0 && self.grant.is_some();
        asks || self.notify.is_some() || counted || self.view().announces(self.posts_raise())
    }

    /// Whether at most one frame announces it, so the peer gets all of the announcement or nothing.
    pub fn is_one_frame(&self) -> bool {
        let counted = self.counting.is_some_and(|counting| counting.at_end.is_some());
        let twice = counted && self.notify.is_some() || self.view().announces(self.posts_raise());
        !twice
    }

    /// The counters raised after the last byte, with the amounts.
    pub fn raises(&self) -> Vec<(Immediate, u64)> {
        let mut raises: Vec<(Immediate, u64)> = Vec::new();
        if let Some(Counting { immediate, at_end: Some(by) }) = self.counting {
            raises.push((immediate, by.get()));
        }
        if let View::List(_, part) = self.view() {
            for immediate in part.announced(self.posts_raise()) {
                match raises.last_mut().filter(|(last, _)| *last == immediate) {
                    Some((_, by)) => *by += 1,
                    None => raises.push((immediate, 1)),
                }
            }
        }
        raises
    }

    /// The counters that its posts raise, with the amounts.
    pub fn raised_by_posts(&self) -> Vec<(Immediate, u64)> {
        match self.view() {
            View::Pages(_) => self.page_immediate().map(|page| (page, self.slices)).into_iter().collect(),
            View::List(_, part) => part.raised_by_posts(self.posts_raise()).map(|entry| (entry, 1)).collect(),
        }
    }

    /// Whether slices may be posted. `checked`: the target checks that they are under the grant.
    #[inline]
    pub fn allows(&self, at: Position, count: u64, checked: bool) -> bool {
        self.grant.is_none() || checked || self.is_covered(at, count)
    }

    /// Whether the grant covers these slices: the memory, the direction and each byte.
    fn is_covered(&self, mut at: Position, mut count: u64) -> bool {
        let Some(covered) = self.covered.get() else { return false };
        let allows = match self.direction {
            Direction::Write => covered.write,
            Direction::Read => covered.read,
        };
        let view = self.view();
        while allows && count > 0 {
            let (remote, range, offset) = view.remote_place(at.layer);
            let (slice, after) = view.take(at, count);
            let address =
                remote.range(range as u64).map(|range| range.base.wrapping_add(offset + slice.remote));
            let within = |address| remote.id == covered.memory && covered.contains(address, slice.len);
            if !address.is_some_and(within) {
                return false;
            }
            (at, count) = (after, count - slice.slices);
        }
        allows
    }

    #[inline]
    pub fn view(&self) -> View<'_> {
        self.shape.view()
    }
}

/// The part of a slot that does not change while it is held.
pub struct Body {
    /// The kind of its completion.
    pub kind: i32,
    pub to: To,
    pub user_data: u64,
    pub peer: Option<PeerId>,
    pub submit_ns: u64,
    pub bytes: u64,
    /// Set when the operation has ended. (Boxed: it is rare, and should not make every slot
    /// larger.)
    pub done: Option<Box<Mark>>,
    pub work: Work,
}

/// A transfer whose peer is to be notified: that it has arrived, or how it failed.
pub struct Notice {
    pub id: OpId,
    pub peer: PeerId,
    pub failed: Option<Failed>,
}

pub struct Failed {
    pub status: Status,
    pub value: u64,
    pub grant: Option<GrantToken>,
}

pub enum To {
    /// There is no completion: a part that only its whole completes, or a whole whose parts
    /// complete.
    Nowhere,
    /// The endpoint's own queue, without a reference count.
    Own,
    Queue(Arc<Queue>),
}

/// A message, and what it takes of its sender's allowance.
pub struct Message {
    pub data: Arc<Vec<u8>>,
    pub allowance: u64,
}

pub enum Work {
    Send(Message),
    Fence,
    Transfer(Move),
    /// A whole, whose parts are operations of their own.
    Parts,
    Atomic(Atomic),
    /// A wait for counters, which ends when the slot is freed.
    Expect {
        _until: Expecting,
    },
}

impl Body {
    /// Of a write that moves nothing by itself.
    #[cfg(test)]
    pub fn bare(to: To) -> Body {
        let (kind, work) = (super::completion::KIND_WRITE, Work::Parts);
        Body { kind, to, user_data: 0, peer: None, submit_ns: 0, bytes: 0, done: None, work }
    }

    #[inline]
    pub fn transfer(&self) -> Option<&Move> {
        match &self.work {
            Work::Transfer(transfer) => Some(transfer),
            _ => None,
        }
    }

    /// The notification of its failure, if one is due.
    pub(super) fn failed(&self, id: OpId, status: Status) -> Option<Notice> {
        let transfer = self.transfer().filter(|transfer| transfer.notifies_failure)?;
        let value = transfer.notify.as_ref().map_or(0, |(value, _)| *value);
        let failed = Some(Failed { status, value, grant: transfer.grant });
        Some(Notice { id, peer: transfer.view().peer(), failed })
    }

    pub(super) fn completes(&self) -> bool {
        !matches!(self.to, To::Nowhere)
    }

    pub fn atomic(&self) -> Option<&Atomic> {
        match &self.work {
            Work::Atomic(atomic) => Some(atomic),
            _ => None,
        }
    }

    /// Its outcome if a remote memory ends it; `None` if it does not use that memory.
    pub(super) fn if_using(&self, remote: &Arc<RemoteMemory>, outcome: Outcome) -> Option<Outcome> {
        if self.atomic().is_some_and(|atomic| Arc::ptr_eq(&atomic.remote, remote)) {
            return Some(outcome);
        }
        let view = self.transfer().map(Move::view).filter(|view| view.uses(remote))?;
        Some(Outcome { entry: view.entry_of(remote), ..outcome })
    }
}
