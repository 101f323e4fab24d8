//! The addresses of a layer, or of an entry of a list, through one lane: looked up
//! once for all its slices.

use super::geometry::Slice;
use super::operation::Move;
use super::shape::View;
use crate::device::is_slow;
use crate::fabric::{Immediate, Segment, MAY_FAULT};
use crate::ids::GrantToken;

use crate::rail::Burst;
use std::ffi::c_void;
use std::ptr;

#[derive(Clone, Copy)]
pub struct Layer {
    pub index: u64,
    pub local: u64,
    pub descriptor: *mut c_void,
    pub remote: u64,
    pub key: u64,
    /// Whether one end is device memory, which CPUs cannot access.
    pub on_device: bool,
    /// Whether one end is on a disk, and whether the remote one is.
    pub slow: bool,
    pub theirs: bool,
    /// Whether the local end is device memory that was freed.
    pub gone: bool,
    /// The counter that each page, or the entry, raises; each is a single post.
    pub immediate: Option<Immediate>,
}

impl Layer {
    pub const NONE: Layer = Layer {
        index: u64::MAX,
        local: 0,
        descriptor: std::ptr::null_mut(),
        remote: 0,
        key: 0,
        on_device: false,
        slow: false,
        theirs: false,
        gone: false,
        immediate: None,
    };

    pub fn new(transfer: &Move, index: u64, burst: &Burst) -> Layer {
        let (rail, remote_rail, grants) = burst.path();
        let view = transfer.view();
        let (local, remote) = match view {
            View::Pages(paged) => (&paged.local, &paged.remote),
            View::List(list, part) => list.memories(part.entry(index)),
        };
        let ((from, at), (range, offset)) = match view {
            View::Pages(paged) => (paged.geometry.local.layer(index), paged.geometry.remote.layer(index)),
            View::List(_, part) => part.entry(index).places(),
        };
        let immediate = match view {
            View::Pages(_) => transfer.page_immediate(),
            View::List(_, part) => part.immediate_of(index, transfer.posts_raise()),
        };
        let (address, base_key) = remote.locate(remote_rail, range, offset);
        let grant = transfer.grant.filter(|_| grants);
        let key = grant.map_or(base_key, GrantToken::key);
        let descriptor = local.local_descriptor(rail, from);
        // Where the rail has the target's CPU do the work, that CPU cannot access device memory.
        let hidden = grants && remote.device.is_some() && local.place().is_none();
        let hidden = hidden && descriptor as u64 != MAY_FAULT;
        let [ours, theirs] =
            [local.device(), remote.device.map(u32::from)].map(|device| device.is_some_and(is_slow));
        Layer {
            index,
            local: local.ranges()[from].base + at,
            descriptor: if hidden { ptr::null_mut() } else { descriptor },
            remote: address,
            key,
            on_device: local.place().is_some() || remote.device.is_some(),
            slow: grants && (ours || theirs),
            theirs,
            gone: local.place().is_some_and(|place| !place.holds(from, &local.ranges()[from])),
            immediate,
        }
    }

    #[inline]
    pub fn segment(&self, slice: &Slice) -> Segment {
        Segment { local: self.local + slice.local, remote: self.remote + slice.remote, len: slice.len }
    }

    /// Whether its slices may share a post with the other's: both use the same registrations, and
    /// raise the same counter or none.
    pub fn joins(&self, other: &Layer) -> bool {
        (self.descriptor, self.on_device, self.gone) == (other.descriptor, other.on_device, other.gone)
            && (self.slow, self.theirs) == (other.slow, other.theirs)
            && (self.key, self.immediate) == (other.key, other.immediate)
    }
}
