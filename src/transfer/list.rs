//! Lists: entries between many memories of many peers, checked once. The entries of each peer form
//! a part, which is a transfer of its own.
//!
//! Slice `s` of a part is a piece of an entry. Each entry has the sum of slices before it
//! (`Entry::first`), by which a slice's entry is found.

use super::counters::immediate_of;
use super::geometry::{piece_len, within, Position, Slice, SLICES_MAX};
use super::shape::check_access;
use super::Direction;
use crate::fabric::Immediate;
use crate::ids::PeerId;
use crate::memory::{Memory, RemoteMemory};
use crate::room;
use crate::status::{Error, Result};
use std::collections::HashMap;
use std::sync::Arc;

const LIST: &str = "a list";

/// The most entries of a list.
pub const ENTRIES_MAX: u64 = 1 << 20;

/// An entry as requested; memories are named by their number in the builder.
#[derive(Clone, Copy)]
pub struct Asked {
    pub local: Option<u32>,
    pub remote: Option<u32>,
    /// `None`: the peer of the remote memory.
    pub peer: Option<PeerId>,
    pub local_range: u32,
    pub remote_range: u32,
    pub local_offset: u64,
    pub remote_offset: u64,
    pub len: u64,
    pub counter: u64,
}

/// An entry that moves bytes.
#[derive(Clone, Copy)]
pub struct Entry {
    local: u32,
    remote: u32,
    local_range: u32,
    remote_range: u32,
    local_offset: u64,
    remote_offset: u64,
    len: u64,
    /// The counter that the entry raises.
    immediate: Option<Immediate>,
    /// The caller's index of it.
    number: u32,
    /// The entry's first slice.
    first: u64,
}

/// A range, and an offset in it.
type RangeOffset = (usize, u64);

impl Entry {
    /// The places on both sides.
    #[inline]
    pub fn places(&self) -> (RangeOffset, RangeOffset) {
        let local = (self.local_range as usize, self.local_offset);
        (local, (self.remote_range as usize, self.remote_offset))
    }

    fn slices(&self, piece: u64) -> u64 {
        // An entry that raises a counter is a single post.
        match self.immediate {
            None => self.len.div_ceil(piece),
            Some(_) => 1,
        }
    }
}

/// Which ways of raising counters a peer accepts.
#[derive(Clone, Copy)]
pub struct Raises {
    pub incarnation: u64,
    /// A write can carry an immediate.
    pub immediates: bool,
    /// Maximum bytes of an entry that raises a counter.
    pub most: u64,
}

/// The entries of one peer.
pub struct Part {
    pub peer: PeerId,
    /// The first entry for this peer, by the caller's index, like those in `remotes`.
    pub first_entry: u64,
    entries: Vec<Entry>,
    /// Each remote memory, and the first entry that uses it.
    pub(super) remotes: Vec<(u32, u64)>,
    pub bytes: u64,
    pub slices: u64,
    piece: u64,
    /// Rails that registered all memories, one bit each.
    pub local_known: u64,
    pub remote_known: u64,
    pub whole: bool,
    /// Set once an entry names a counter.
    raises: Option<Raises>,
    /// The counters of its empty entries.
    empty: Vec<Immediate>,
    /// Another entry raises a counter.
    counted: bool,
}

impl Part {
    fn new(peer: PeerId, first_entry: u64) -> Part {
        Part {
            peer,
            first_entry,
            entries: Vec::new(),
            remotes: Vec::new(),
            bytes: 0,
            slices: 0,
            piece: 1,
            local_known: u64::MAX,
            remote_known: u64::MAX,
            whole: true,
            raises: None,
            empty: Vec::new(),
            counted: false,
        }
    }

    /// Whether its posts, if they may (`Move::posts_raise`), raise counters by their immediates.
    fn uses_immediates(&self, posts_raise: bool) -> bool {
        posts_raise && self.raises.is_some_and(|raises| raises.immediates)
    }

    /// Whether posts of it carry immediates.
    pub fn is_counted(&self, posts_raise: bool) -> bool {
        self.counted && self.uses_immediates(posts_raise)
    }

    /// The immediate of an entry's post.
    #[inline]
    pub fn immediate_of(&self, entry: u64, posts_raise: bool) -> Option<Immediate> {
        self.entry(entry).immediate.filter(|_| self.uses_immediates(posts_raise))
    }

    /// The immediates of its entries' posts.
    pub fn raised_by_posts(&self, posts_raise: bool) -> impl Iterator<Item = Immediate> + '_ {
        (0..self.entries.len() as u64).filter_map(move |entry| self.immediate_of(entry, posts_raise))
    }

    /// Whether counters are raised by frames after the last byte.
    pub fn announces(&self, posts_raise: bool) -> bool {
        !self.empty.is_empty() || self.counted && !self.uses_immediates(posts_raise)
    }

    /// The counters raised by frames, each repeated for each raise.
    pub fn announced(&self, posts_raise: bool) -> impl Iterator<Item = Immediate> + '_ {
        let at_end = if self.uses_immediates(posts_raise) { &[] } else { self.entries.as_slice() };
        self.empty.iter().copied().chain(at_end.iter().filter_map(|entry| entry.immediate))
    }

    #[inline]
    pub fn entry(&self, index: u64) -> &Entry {
        &self.entries[index as usize]
    }

    /// The caller's index of an entry.
    pub fn number(&self, index: u64) -> Option<u64> {
        self.entries.get(usize::try_from(index).ok()?).map(|entry| entry.number.into())
    }

    pub fn slice_len(&self) -> u64 {
        (self.bytes / self.slices.max(1)).max(1)
    }

    pub fn seek(&self, slice: u64) -> Position {
        let entry = self.entries.partition_point(|entry| entry.first <= slice) - 1;
        Position { layer: entry as u64, page: 0, piece: slice - self.entries[entry].first }
    }

    #[inline]
    pub fn take(&self, at: Position) -> (Slice, Position) {
        let entry = self.entry(at.layer);
        let within = at.piece * self.piece;
        let left = entry.len - within;
        if entry.immediate.is_none() && left > self.piece {
            let slice = Slice { local: within, remote: within, len: self.piece, slices: 1 };
            return (slice, Position { piece: at.piece + 1, ..at });
        }
        let slice = Slice { local: within, remote: within, len: left, slices: 1 };
        (slice, Position { layer: at.layer + 1, page: 0, piece: 0 })
    }

    /// Cuts the part into slices for this many rails and the class.
    fn cut(&mut self, rails: u64, urgent: bool) -> Result<()> {
        self.entries.shrink_to_fit();
        self.piece = piece_len(self.bytes, rails, urgent);
        for entry in &mut self.entries {
            entry.first = self.slices;
            self.slices += entry.slices(self.piece);
        }
        if self.slices >= SLICES_MAX {
            return Err(Error::limit(format!(
                "{} bytes to one peer are more than one list can move: split it",
                self.bytes
            )));
        }
        Ok(())
    }
}

/// A checked list. Its memories are not given back while this lives.
pub struct List {
    locals: Vec<Arc<Memory>>,
    remotes: Vec<Arc<RemoteMemory>>,
    parts: Vec<Part>,
    /// Why the list cannot be written, or read: by direction.
    refusals: [Option<Error>; 2],
}

impl List {
    #[inline]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    #[inline]
    pub fn memories(&self, entry: &Entry) -> (&Arc<Memory>, &Arc<RemoteMemory>) {
        (&self.locals[entry.local as usize], &self.remotes[entry.remote as usize])
    }

    /// Whether an entry of a part has memory of a device at either end.
    pub fn is_on_device(&self, part: &Part) -> bool {
        let mut memories = part.entries.iter().map(|entry| self.memories(entry));
        memories.any(|(local, remote)| local.place().is_some() || remote.device.is_some())
    }

    pub fn locals(&self) -> &[Arc<Memory>] {
        &self.locals
    }

    pub fn remotes(&self) -> &[Arc<RemoteMemory>] {
        &self.remotes
    }

    pub fn remotes_of<'a>(&'a self, part: &'a Part) -> impl Iterator<Item = &'a Arc<RemoteMemory>> {
        part.remotes.iter().map(|(remote, _)| &self.remotes[*remote as usize])
    }

    pub fn entry_of(&self, part: &Part, remote: &Arc<RemoteMemory>) -> Option<u64> {
        let same = |(known, _): &&(u32, u64)| Arc::ptr_eq(&self.remotes[*known as usize], remote);
        part.remotes.iter().find(same).map(|(_, entry)| *entry)
    }

    pub fn allows(&self, direction: Direction) -> Result<()> {
        self.refusals[direction as usize].clone().map_or(Ok(()), Err)
    }
}

impl Drop for List {
    fn drop(&mut self) {
        self.locals.iter().for_each(|memory| memory.exit());
        self.remotes.iter().for_each(|memory| memory.unkeep());
    }
}

/// The numbers of a list's memories. Entries name few memories, often the same as the entry before.
#[derive(Default)]
struct Numbers {
    numbers: HashMap<usize, u32>,
    last: Option<(usize, u32)>,
}

impl Numbers {
    /// The number of the memory with this handle, which is looked up once. A handle of 0: no
    /// memory.
    fn number(&mut self, name: usize, look_up: impl FnOnce() -> Result<u32>) -> Result<Option<u32>> {
        if name == 0 {
            return Ok(None);
        }
        if let Some((_, number)) = self.last.filter(|(last, _)| *last == name) {
            return Ok(Some(number));
        }
        let number = match self.numbers.get(&name) {
            Some(number) => *number,
            None => {
                let number = look_up()?;
                room::insert(&mut self.numbers, name, number, LIST)?;
                number
            }
        };
        self.last = Some((name, number));
        Ok(Some(number))
    }
}

/// Checks entries one by one, and builds the list.
#[derive(Default)]
pub struct Builder {
    locals: Vec<Arc<Memory>>,
    remotes: Vec<Arc<RemoteMemory>>,
    /// The part of each remote memory; `None` until an entry uses it.
    part_of: Vec<Option<u32>>,
    part_of_peer: HashMap<PeerId, u32>,
    parts: Vec<Part>,
    refusals: [Option<Error>; 2],
    entries: u64,
    /// By the names that the caller has for memories.
    numbers: (Numbers, Numbers),
}

impl Builder {
    /// Begins a list of this many entries.
    pub fn new(count: u64) -> Result<Builder> {
        match count {
            0 => Err(Error::invalid("count is 0: a list without entries has no peer")),
            1..=ENTRIES_MAX => Ok(Builder::default()),
            _ => Err(Error::limit(format!("{count} entries: at most {ENTRIES_MAX} are allowed"))),
        }
    }

    /// The number of a memory that the caller names, and gives when it is first named.
    pub fn local(
        &mut self,
        name: usize,
        memory: impl FnOnce() -> Result<Arc<Memory>>,
    ) -> Result<Option<u32>> {
        self.numbers.0.number(name, || {
            room::push(&mut self.locals, memory()?, LIST)?;
            Ok(self.locals.len() as u32 - 1)
        })
    }

    pub fn remote(
        &mut self,
        name: usize,
        memory: impl FnOnce() -> Result<Arc<RemoteMemory>>,
    ) -> Result<Option<u32>> {
        self.numbers.1.number(name, || {
            room::push(&mut self.remotes, memory()?, LIST)?;
            room::push(&mut self.part_of, None, LIST)?;
            Ok(self.remotes.len() as u32 - 1)
        })
    }

    fn part(&mut self, peer: PeerId) -> Result<u32> {
        if let Some(part) = self.part_of_peer.get(&peer) {
            return Ok(*part);
        }
        room::push(&mut self.parts, Part::new(peer, self.entries), LIST)?;
        let part = self.parts.len() as u32 - 1;
        room::insert(&mut self.part_of_peer, peer, part, LIST)?;
        Ok(part)
    }

    /// Adds an entry. `raises`: the ways of raising counters that a peer accepts.
    pub fn add(
        &mut self,
        asked: impl FnOnce(&mut Builder) -> Result<Asked>,
        raises: impl Fn(PeerId) -> Result<Raises>,
    ) -> Result<()> {
        let added = asked(self).and_then(|asked| self.add_one(&asked, raises));
        added.map_err(|error| error.about(&format!("entry {}", self.entries)))
    }

    fn add_one(&mut self, asked: &Asked, raises: impl Fn(PeerId) -> Result<Raises>) -> Result<()> {
        let index = self.entries;
        let peer = self.peer(asked)?;
        let immediate = self.immediate(asked, peer, raises)?;
        if asked.len == 0 {
            let part = self.part(peer)?;
            let empty = &mut self.parts[part as usize].empty;
            immediate.map_or(Ok(()), |immediate| room::push(empty, immediate, LIST))?;
        } else {
            let (Some(local), Some(remote)) = (asked.local, asked.remote) else {
                return Err(Error::handle("its memories are NULL, but its len is not 0"));
            };
            self.check(asked, local, remote)?;
            let part = self.part_using(peer, local, remote)?;
            part.bytes = part
                .bytes
                .checked_add(asked.len)
                .ok_or_else(|| Error::limit("with it, the bytes to this peer are more than 2^64"))?;
            part.counted |= immediate.is_some();
            let entry = Entry {
                local,
                remote,
                local_range: asked.local_range,
                remote_range: asked.remote_range,
                local_offset: asked.local_offset,
                remote_offset: asked.remote_offset,
                len: asked.len,
                immediate,
                number: index.try_into().unwrap_or(u32::MAX),
                first: 0,
            };
            room::push(&mut part.entries, entry, LIST)?;
        }
        self.entries = index + 1;
        Ok(())
    }

    fn immediate(
        &mut self,
        asked: &Asked,
        peer: PeerId,
        raises: impl Fn(PeerId) -> Result<Raises>,
    ) -> Result<Option<Immediate>> {
        if asked.counter == 0 {
            return Ok(None);
        }
        let part = self.part(peer)? as usize;
        let raises = match self.parts[part].raises {
            Some(known) => known,
            None => *self.parts[part].raises.insert(raises(peer)?),
        };
        if asked.len > raises.most {
            return Err(Error::limit(format!(
                "its len is {}, and it raises a counter: at most {} are allowed, since one post carries it",
                asked.len, raises.most
            )));
        }
        immediate_of(asked.counter, raises.incarnation).map(Some)
    }

    fn peer(&self, asked: &Asked) -> Result<PeerId> {
        let of_remote = asked.remote.map(|remote| self.remotes[remote as usize].peer);
        match (of_remote, asked.peer) {
            (None, None) => Err(Error::handle("it names neither a remote memory nor a peer: both are 0")),
            (None, Some(peer)) | (Some(peer), None) => Ok(peer),
            (Some(of_remote), Some(peer)) if of_remote == peer => Ok(peer),
            (Some(of_remote), Some(peer)) => Err(Error::invalid(format!(
                "its peer is {peer:#x}, but its remote memory is of peer {of_remote:#x}"
            ))),
        }
    }

    fn check(&mut self, asked: &Asked, local: u32, remote: u32) -> Result<()> {
        let (local, remote) = (&self.locals[local as usize], &self.remotes[remote as usize]);
        let (range, offset) = (asked.local_range, asked.local_offset);
        within("local", range, offset, asked.len, |range| local.range_len(range))?;
        let (range, offset) = (asked.remote_range, asked.remote_offset);
        within("remote", range, offset, asked.len, |range| remote.range_len(range))?;
        for direction in [Direction::Write, Direction::Read] {
            let refusal = &mut self.refusals[direction as usize];
            if refusal.is_none() {
                let refused = check_access(direction, local, remote).err();
                *refusal = refused.map(|error| error.about(&format!("entry {}", self.entries)));
            }
        }
        Ok(())
    }

    /// The part of an entry, with the entry's memories added.
    fn part_using(&mut self, peer: PeerId, local: u32, remote: u32) -> Result<&mut Part> {
        let entry = self.entries;
        let known = self.part_of[remote as usize];
        let index = known.map_or_else(|| self.part(peer), Ok)?;
        let part = &mut self.parts[index as usize];
        if known.is_none() {
            self.part_of[remote as usize] = Some(index);
            room::push(&mut part.remotes, (remote, entry), LIST)?;
            let remote = &self.remotes[remote as usize];
            part.remote_known &= remote.known();
            part.whole &= remote.is_whole();
        }
        let local = &self.locals[local as usize];
        part.local_known &= local.known();
        part.whole &= local.is_whole();
        Ok(part)
    }

    pub fn finish(mut self, urgent: bool) -> Result<List> {
        for part in &mut self.parts {
            let rails = part.remotes.iter().map(|(remote, _)| self.remotes[*remote as usize].lanes()).max();
            part.cut(rails.unwrap_or(1), urgent)?;
        }
        hold(&self.locals, &self.remotes)?;
        let Builder { locals, remotes, parts, refusals, .. } = self;
        Ok(List { locals, remotes, parts, refusals })
    }
}

/// Holds all memories, or none.
fn hold(locals: &[Arc<Memory>], remotes: &[Arc<RemoteMemory>]) -> Result<()> {
    let entered = locals.iter().take_while(|memory| memory.enter()).count();
    let kept = remotes.iter().take_while(|memory| memory.keep()).count();
    if (entered, kept) == (locals.len(), remotes.len()) {
        return Ok(());
    }
    locals[..entered].iter().for_each(|memory| memory.exit());
    remotes[..kept].iter().for_each(|memory| memory.unkeep());
    Err(Error::handle("a memory of the list is being given back"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(lens: &[u64]) -> Part {
        let mut part = Part::new(PeerId::numbered(1), 0);
        for len in lens {
            part.bytes += len;
            part.entries.push(Entry {
                local: 0,
                remote: 0,
                local_range: 0,
                remote_range: 0,
                local_offset: 0,
                remote_offset: 0,
                len: *len,
                immediate: None,
                number: 0,
                first: 0,
            });
        }
        part.cut(4, false).expect("not too long");
        part
    }

    #[test]
    fn list_slices_are_found_from_any_position() {
        let lens = [1, 5 << 20, 64 << 10, (64 << 10) + 1, 7];
        let part = part(&lens);
        let (mut at, mut sums) = (Position::default(), [0; 5]);
        for slice in 0..part.slices {
            assert_eq!((part.seek(slice).layer, part.seek(slice).piece), (at.layer, at.piece));
            let (taken, next) = part.take(at);
            assert_eq!(taken.local, sums[at.layer as usize]);
            sums[at.layer as usize] += taken.len;
            at = next;
        }
        assert_eq!((sums, at.layer), (lens, 5));
    }
}
