//! An operation of an initiator, and the copies between its memory and the channel.

use super::copy;
use super::request::{Kind, Piece, Pieces, PIECES};
use crate::device::Device;
use crate::fabric::segments::{Cursor, Parts};
use crate::fabric::{Immediate, Scratch, Segment};
use std::ptr;

/// An operation whose requests are not all answered.
pub struct Op {
    pub scratch: *mut Scratch,
    /// Set for an operation of our own, which finds out whether the target reaches device memory.
    pub probe: Option<usize>,
    pub kind: Kind,
    pub key: u64,
    /// The target's number for its memory; 0 if none. For a read into device memory: the number of
    /// the target's memory.
    pub area: u32,
    pub area_base: u64,
    pub on_device: bool,
    /// The one that copies its bytes from the channel, or to it.
    pub through: Option<Device>,
    /// Goes with the last request.
    pub immediate: Option<Immediate>,
    pub segments: Vec<Segment>,
    /// Up to where requests were made, and up to where reads have arrived.
    pub asked: Cursor,
    pub arrived: Cursor,
    /// Requests without an answer.
    pub open: u32,
    pub all_asked: bool,
    pub errno: i32,
    /// Its caller is gone: its memory is not touched.
    pub disowned: bool,
}

impl Default for Op {
    fn default() -> Op {
        Op {
            scratch: ptr::null_mut(),
            probe: None,
            kind: Kind::Write,
            key: 0,
            area: 0,
            area_base: 0,
            on_device: false,
            through: None,
            disowned: false,
            immediate: None,
            segments: Vec::new(),
            asked: Cursor::default(),
            arrived: Cursor::default(),
            open: 0,
            all_asked: false,
            errno: 0,
        }
    }
}

impl Op {
    /// Whether its memory is being copied.
    #[inline]
    pub fn goes_on(&self) -> bool {
        self.errno == 0 && !self.disowned
    }

    /// The next pieces, of `most` bytes in all: their bytes, and where they end.
    #[inline]
    pub fn take(&self, most: u64, pieces: &mut Pieces) -> (u64, Cursor) {
        let mut parts = Parts::new(&self.segments, self.asked, most);
        pieces.extend(parts.by_ref().take(PIECES).map(|part| Piece {
            remote: part.remote,
            len: part.len,
            offset: part.local.wrapping_sub(self.area_base),
        }));
        let (left, after) = parts.rest();
        (most - left, after)
    }

    /// Copies the next `len` bytes from where requests were made up to.
    ///
    /// # Safety
    /// The segments' memory must be valid, and `to` writable for `len` bytes.
    #[inline]
    pub unsafe fn gather(&self, len: u64, mut to: *mut u8, stream: bool) {
        for part in Parts::new(&self.segments, self.asked, len) {
            // SAFETY: a part of the segment, and of the `len` bytes at `to`.
            unsafe {
                copy::copy(to, part.local as *const u8, part.len as usize, stream);
                to = to.add(part.len as usize);
            }
        }
    }

    /// The next `len` bytes that were read, in parts: an error number, or 0.
    pub fn arrive(&mut self, len: u64, each: impl FnMut(Segment) -> std::result::Result<(), i32>) -> i32 {
        let mut parts = Parts::new(&self.segments, self.arrived, len);
        let ended = parts.by_ref().try_for_each(each);
        self.arrived = parts.rest().1;
        ended.err().unwrap_or(0)
    }

    /// Copies the next `len` bytes that were read to their place.
    ///
    /// # Safety
    /// The segments' memory must be valid, and `from` readable for `len` bytes.
    pub unsafe fn scatter(&mut self, len: u64, mut from: *const u8, stream: bool) {
        let mut parts = Parts::new(&self.segments, self.arrived, len);
        for part in parts.by_ref() {
            // SAFETY: a part of the segment, and of the `len` bytes at `from`.
            unsafe {
                copy::copy(part.local as *mut u8, from, part.len as usize, stream);
                from = from.add(part.len as usize);
            }
        }
        self.arrived = parts.rest().1;
        copy::settle(stream);
    }
}
