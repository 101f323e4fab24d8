//! An operation of a NIC: its purpose, and its result.

use super::credits::Half;
use crate::fabric::{Connection, Scratch, SLOT};
use crate::ids::LaneSlot;
use std::ptr;

/// The purpose of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// The NIC does not have the operation.
    Nothing,
    /// A post of a stripe (`Tag::index`).
    Slice,
    /// A post of a stripe with an immediate, which took a credit.
    Counted(Half),
    /// A post of a stripe to or from a disk. `Tag::bytes` is its layer, since the windows do not count it.
    Slow,
    /// A lane's probe write.
    Probe,
    /// A control frame in send buffer `Tag::index`.
    Frame,
    /// A control frame of a lane that is not up yet.
    Handshake,
    /// A frame to an unauthenticated endpoint, whose route is `Tag::bytes`.
    Answer,
    /// A receive into buffer `Tag::index`.
    Receive,
    /// A peer's write with an immediate (`Done::immediate`); it may have taken a receive.
    Arrival,
}

#[derive(Clone, Copy, Debug)]
pub struct Tag {
    pub work: Work,
    pub lane: LaneSlot,
    pub index: u32,
    pub slices: u32,
    /// Bytes that count as delivered when it completes.
    pub bytes: u64,
    /// Bytes of transfers in the post.
    pub len: u64,
    /// Whether its completion ends a sample of the lane's window.
    pub sampled: bool,
    pub read: bool,
}

impl Tag {
    pub fn new(work: Work, lane: LaneSlot, index: u32, slices: u32) -> Tag {
        Tag { work, lane, index, slices, bytes: 0, len: 0, sampled: false, read: false }
    }
}

/// An operation posted to the NIC. The provider's scratch comes first, because the NIC returns its
/// address. (The size is a power of two, so that dividing an address by it is fast.)
#[repr(C, align(64))]
pub(super) struct Op {
    pub scratch: Scratch,
    pub tag: Tag,
}

const _: () = assert!(size_of::<Op>() == SLOT && SLOT.is_power_of_two());

impl Op {
    pub fn empty() -> Op {
        let tag = Tag::new(Work::Nothing, LaneSlot::NONE, 0, 0);
        Op { scratch: Scratch([ptr::null_mut(); 8]), tag }
    }
}

/// A finished operation, or a run of finished posts of one stripe.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub work: Work,
    pub lane: LaneSlot,
    pub index: u32,
    pub slices: u32,
    pub posts: u32,
    /// 0, or an error number of libfabric.
    pub errno: i32,
    pub provider_errno: i32,
    /// Bytes received, and the connection that they came over. Of a post to a disk: its layer.
    pub len: usize,
    pub connection: Connection,
    /// The immediate of an arrival.
    pub immediate: u32,
}

/// The index of an arrival that took no receive.
pub(super) const NO_RECEIVE: u32 = u32::MAX;

impl Done {
    pub(super) fn new(work: Work, lane: LaneSlot, index: u32) -> Done {
        let (slices, errno, provider_errno, len, connection, immediate) = (0, 0, 0, 0, 0, 0);
        Done { work, lane, index, slices, posts: 1, errno, provider_errno, len, connection, immediate }
    }

    /// Whether it holds a receive buffer, to be reposted.
    pub fn took_receive(&self) -> bool {
        self.work == Work::Receive || self.work == Work::Arrival && self.index != NO_RECEIVE
    }
}
