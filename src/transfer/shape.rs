//! The checked shape of a transfer, with the memories that it holds: pages, or the part of a list
//! for one peer. `Geometry` and `Part` cut it into slices.

use super::geometry::{Geometry, Position, Slice};
use super::list::{List, Part};
use super::Direction;
use crate::ids::{PeerId, RailIndex};
use crate::memory::{Memory, RemoteMemory};
use crate::status::{Error, Result, Status};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

/// Pages between two memories.
pub struct Paged {
    pub geometry: Geometry,
    pub local: Arc<Memory>,
    pub remote: Arc<RemoteMemory>,
}

/// Pages whose memories are not deregistered or released while this lives.
pub struct PreparedPages(Paged);

impl PreparedPages {
    pub fn new(geometry: Geometry, local: &Arc<Memory>, remote: &Arc<RemoteMemory>) -> Result<PreparedPages> {
        enter_local(local)?;
        if !remote.keep() {
            local.exit();
            return Err(released());
        }
        Ok(PreparedPages(Paged { geometry, local: local.clone(), remote: remote.clone() }))
    }
}

impl Deref for PreparedPages {
    type Target = Paged;
    fn deref(&self) -> &Paged {
        &self.0
    }
}

impl Drop for PreparedPages {
    fn drop(&mut self) {
        self.local.exit();
        self.remote.unkeep();
    }
}

/// Two memories that are not deregistered or released while this, or the shape made from it, lives.
pub struct Entered<'a>(&'a Arc<Memory>, &'a Arc<RemoteMemory>);

impl<'a> Entered<'a> {
    #[inline]
    pub fn new(local: &'a Arc<Memory>, remote: &'a Arc<RemoteMemory>) -> Result<Entered<'a>> {
        enter_local(local)?;
        if !remote.keep_and_enter() {
            local.exit();
            return Err(released());
        }
        Ok(Entered(local, remote))
    }

    #[inline(always)]
    pub fn shape(self, geometry: Geometry) -> Shape {
        let Entered(local, remote) = *ManuallyDrop::new(self);
        Shape { held: Held::Own(Paged { geometry, local: local.clone(), remote: remote.clone() }) }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.exit();
        self.1.exit_and_unkeep();
    }
}

fn enter_local(local: &Memory) -> Result<()> {
    if !local.enter() {
        return Err(Error::handle("the local memory is being deregistered"));
    }
    Ok(())
}

#[cold]
fn released() -> Error {
    Error::handle("the remote memory was released")
}

/// Checks that bytes may be moved in this direction between two memories.
pub fn check_access(direction: Direction, local: &Memory, remote: &RemoteMemory) -> Result<()> {
    let (allowed, needed) = match direction {
        Direction::Write => (remote.writable, "WEFT_ACCESS_REMOTE_WRITE"),
        Direction::Read => (remote.readable, "WEFT_ACCESS_REMOTE_READ"),
    };
    if !allowed {
        return Err(Error::new(
            Status::RemoteAccess,
            format!("the owner registered this memory without {needed}"),
        ));
    }
    if direction == Direction::Read && !local.is_writable() {
        return Err(Error::invalid("a read into memory that this process may not write to"));
    }
    Ok(())
}

/// A transfer's shape: its own, or shared with other transfers. The transfer counts as a user of
/// the remote memories while this lives.
pub struct Shape {
    held: Held,
}

enum Held {
    Own(Paged),
    Pages(Arc<PreparedPages>),
    /// A part of a list.
    List(Arc<List>, usize),
}

impl Shape {
    #[inline(always)]
    pub fn pages(paged: &Arc<PreparedPages>) -> Shape {
        View::Pages(paged).enter();
        Shape { held: Held::Pages(paged.clone()) }
    }

    #[inline(always)]
    pub fn part(list: &Arc<List>, part: usize) -> Shape {
        View::List(list, &list.parts()[part]).enter();
        Shape { held: Held::List(list.clone(), part) }
    }

    #[inline]
    pub fn view(&self) -> View<'_> {
        match &self.held {
            Held::Own(paged) => View::Pages(paged),
            Held::Pages(paged) => View::Pages(paged),
            Held::List(list, part) => View::List(list, &list.parts()[*part]),
        }
    }
}

impl Drop for Shape {
    fn drop(&mut self) {
        match &self.held {
            Held::Own(paged) => {
                paged.local.exit();
                paged.remote.exit_and_unkeep();
            }
            _ => self.view().remotes().for_each(|remote| remote.exit()),
        }
    }
}

#[derive(Clone, Copy)]
pub enum View<'a> {
    Pages(&'a Paged),
    List(&'a List, &'a Part),
}

impl<'a> View<'a> {
    fn enter(self) {
        self.remotes().for_each(|remote| remote.enter());
    }

    pub fn peer(self) -> PeerId {
        match self {
            View::Pages(paged) => paged.remote.peer,
            View::List(_, part) => part.peer,
        }
    }

    #[inline]
    pub fn slices(self) -> u64 {
        match self {
            View::Pages(paged) => paged.geometry.slices,
            View::List(_, part) => part.slices,
        }
    }

    pub fn bytes(self) -> u64 {
        match self {
            View::Pages(paged) => paged.geometry.bytes(),
            View::List(_, part) => part.bytes,
        }
    }

    /// The length of most slices, or the mean length.
    #[inline]
    pub fn slice_len(self) -> u64 {
        match self {
            View::Pages(paged) => paged.geometry.slice_len(),
            View::List(_, part) => part.slice_len(),
        }
    }

    pub fn seek(self, slice: u64) -> Position {
        match self {
            View::Pages(paged) => paged.geometry.seek(slice),
            View::List(_, part) => part.seek(slice),
        }
    }

    /// Like `Geometry::take`; entries of lists are not merged.
    #[inline(always)]
    pub fn take(self, at: Position, most: u64) -> (Slice, Position) {
        match self {
            View::Pages(paged) => paged.geometry.take(at, most),
            View::List(_, part) => part.take(at),
        }
    }

    /// The remote memory of a layer or entry, with the range and the offset where it begins.
    #[inline]
    pub fn remote_place(self, layer: u64) -> (&'a Arc<RemoteMemory>, usize, u64) {
        let (remote, (range, offset)) = match self {
            View::Pages(paged) => (&paged.remote, paged.geometry.remote.layer(layer)),
            View::List(list, part) => (list.memories(part.entry(layer)).1, part.entry(layer).places().1),
        };
        (remote, range, offset)
    }

    /// The local memory of a layer or entry, with the range and the offset where it begins.
    pub fn local_place(self, layer: u64) -> (&'a Arc<Memory>, (usize, u64)) {
        match self {
            View::Pages(paged) => (&paged.local, paged.geometry.local.layer(layer)),
            View::List(list, part) => (list.memories(part.entry(layer)).0, part.entry(layer).places().0),
        }
    }

    /// Whether memory of a device is at either end.
    pub fn is_on_device(self) -> bool {
        match self {
            View::Pages(paged) => paged.local.place().is_some() || paged.remote.device.is_some(),
            View::List(list, part) => list.is_on_device(part),
        }
    }

    /// Like `Geometry::whole_pages`, with the geometry.
    #[inline]
    pub fn whole_pages(self, at: Position, most: u64) -> Option<(&'a Geometry, u64)> {
        let View::Pages(paged) = self else { return None };
        let run = paged.geometry.whole_pages(at, most);
        (run > 0).then_some((&paged.geometry, run))
    }

    #[inline]
    pub fn remotes(self) -> impl Iterator<Item = &'a Arc<RemoteMemory>> {
        let (all, which) = match self {
            View::Pages(paged) => (std::slice::from_ref(&paged.remote), None),
            View::List(list, part) => (list.remotes(), Some(&part.remotes[..])),
        };
        let at = move |i: usize| which.map_or(0, |which| which[i].0 as usize);
        (0..which.map_or(1, <[_]>::len)).map(move |i| &all[at(i)])
    }

    pub fn uses(self, remote: &Arc<RemoteMemory>) -> bool {
        self.remotes().any(|used| Arc::ptr_eq(used, remote))
    }

    /// The first entry of a list that uses a remote memory.
    pub fn entry_of(self, remote: &Arc<RemoteMemory>) -> Option<u64> {
        match self {
            View::Pages(_) => None,
            View::List(list, part) => list.entry_of(part, remote),
        }
    }

    /// The entry of a list that is a layer.
    pub fn entry_in(self, layer: u64) -> Option<u64> {
        match self {
            View::Pages(_) => None,
            View::List(_, part) => part.number(layer),
        }
    }

    pub fn first_entry(self) -> Option<u64> {
        match self {
            View::Pages(_) => None,
            View::List(_, part) => Some(part.first_entry),
        }
    }

    /// Whether counters are raised by frames after the last byte.
    pub fn announces(self, posts_raise: bool) -> bool {
        match self {
            View::Pages(_) => false,
            View::List(_, part) => part.announces(posts_raise),
        }
    }

    /// Whether all rails have registered all of its memories.
    #[inline]
    pub fn is_whole(self) -> bool {
        match self {
            View::Pages(paged) => paged.local.is_whole() && paged.remote.is_whole(),
            View::List(_, part) => part.whole,
        }
    }

    #[inline]
    pub fn knows(self, rail: RailIndex) -> bool {
        match self {
            View::Pages(paged) => paged.local.knows(rail),
            View::List(_, part) => rail.is_in(part.local_known),
        }
    }

    #[inline]
    pub fn remote_knows(self, rail: RailIndex) -> bool {
        match self {
            View::Pages(paged) => paged.remote.knows(rail),
            View::List(_, part) => rail.is_in(part.remote_known),
        }
    }

    /// Whether a lane between two rails can carry it: both have registered its memories.
    #[inline]
    pub fn reaches(self, rail: RailIndex, remote_rail: RailIndex) -> bool {
        self.knows(rail) && self.remote_knows(remote_rail)
    }
}
