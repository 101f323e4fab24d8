//! The addresses of a layer, or of an entry of a list, through one lane: looked up
//! once for all its slices.

use super::geometry::Slice;
use super::operation::Move;
use super::shape::View;
use crate::device::Device;
use crate::fabric::{Immediate, Segment};
use crate::ids::{GrantToken, MemoryId, RailIndex};
use std::ffi::c_void;

#[derive(Clone, Copy)]
pub struct Layer {
    pub index: u64,
    pub local: u64,
    pub descriptor: *mut c_void,
    pub remote: u64,
    pub key: u64,
    /// The owner's name for the same memory.
    pub memory: MemoryId,
    pub range: u32,
    pub offset: u64,
    /// The device that the local end is on.
    pub device: Option<Device>,
    /// Whether one end is on a device, which CPUs and most NICs do not reach.
    pub on_device: bool,
    /// The remote end is.
    pub to_device: bool,
    /// Whether that memory was freed.
    pub gone: bool,
    /// The counter that each page, or the entry, raises; each is posted in one piece.
    pub immediate: Option<Immediate>,
}

impl Layer {
    pub const NONE: Layer = Layer {
        index: u64::MAX,
        local: 0,
        descriptor: std::ptr::null_mut(),
        remote: 0,
        key: 0,
        memory: MemoryId::new(0),
        range: 0,
        offset: 0,
        device: None,
        on_device: false,
        to_device: false,
        gone: false,
        immediate: None,
    };

    /// `grants`: the rail's NIC checks them.
    pub fn of(
        transfer: &Move,
        index: u64,
        (rail, remote_rail, grants): (RailIndex, RailIndex, bool),
    ) -> Layer {
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
            View::List(_, part) => part.immediate_of(index, transfer.direction),
        };
        let (address, base_key) = remote.locate(remote_rail, range, offset);
        let grant = transfer.grant.filter(|_| grants && remote.device.is_none());
        let key = grant.map_or(base_key, GrantToken::key);
        Layer {
            index,
            local: local.ranges()[from].base + at,
            descriptor: local.registration(rail, from).descriptor,
            remote: address,
            key,
            memory: remote.id,
            range: range as u32,
            offset,
            device: local.device(),
            on_device: local.place().is_some() || remote.device.is_some(),
            to_device: remote.device.is_some(),
            gone: local.place().is_some_and(|place| !place.holds(from, &local.ranges()[from])),
            immediate,
        }
    }

    /// Whether it may be posted as of any memory: what is on devices, the lane's NICs know.
    pub fn may_be_posted(&self) -> bool {
        (self.device.is_none() || !self.descriptor.is_null()) && (!self.to_device || self.key != 0)
    }

    #[inline]
    pub fn segment(&self, slice: &Slice) -> Segment {
        Segment { local: self.local + slice.local, remote: self.remote + slice.remote, len: slice.len }
    }

    /// Whether its slices may go in one post with another's: they lie in the same
    /// registrations, and raise the same counter or none.
    pub fn joins(&self, other: &Layer) -> bool {
        (self.descriptor, self.on_device, self.gone) == (other.descriptor, other.on_device, other.gone)
            && (self.memory, self.key, self.immediate) == (other.memory, other.key, other.immediate)
    }

    /// Whether its slices may go in one bundle with another's.
    pub fn packs(&self, other: &Layer) -> bool {
        (self.memory, self.immediate, self.on_device) == (other.memory, other.immediate, other.on_device)
            && (self.device, self.gone) == (other.device, other.gone)
    }
}
