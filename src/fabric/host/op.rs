//! An operation of an initiator, and the copies between its memory and the channel.

use super::copy;
use super::request::{Kind, Piece, Pieces, AREA_BYTES, BYTES, DEVICE_BYTES, PIECES};
use crate::device::Device;
use crate::fabric::segments::{Cursor, Parts};
use crate::fabric::{Immediate, Scratch, Segment};
use std::ptr;

/// Fewer requests than this leave the target without work soon.
const FEW: u64 = 4;

/// An operation that has requests without an answer.
pub struct Op {
    pub scratch: *mut Scratch,
    /// Set for our own operation that finds out whether the target reaches device memory.
    pub probe: Option<usize>,
    pub kind: Kind,
    pub key: u64,
    /// The target's number for the operation's memory; 0 if it has none. For a read into device
    /// memory: the number of the target's memory.
    pub area: u32,
    pub area_base: u64,
    pub on_device: bool,
    /// The device that copies the bytes between memory and channel.
    pub through: Option<Device>,
    /// Devices copy its bytes: its requests are as long as may be.
    pub whole: bool,
    /// The most bytes of one of its requests through the channel.
    pub longest: u64,
    /// Its memory's pages may become unreachable.
    pub may_fault: bool,
    /// The immediate that the last request carries.
    pub immediate: Option<Immediate>,
    pub segments: Vec<Segment>,
    /// The position up to which requests were made, and up to which reads have arrived.
    pub asked: Cursor,
    pub arrived: Cursor,
    /// Requests without an answer.
    pub open: u32,
    pub all_asked: bool,
    pub errno: i32,
    /// The caller has abandoned the operation: its memory is not touched.
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
            whole: false,
            longest: BYTES,
            may_fault: false,
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
    /// Whether devices are copying its memory.
    #[inline]
    pub fn goes_on(&self) -> bool {
        self.errno == 0 && !self.disowned
    }

    /// The most bytes of its next request, with this many requests under way.
    #[inline]
    pub fn most(&self, under_way: u64) -> u64 {
        match self.area {
            // The target copies the first bytes while this side copies the next.
            0 if under_way < FEW && !self.whole => BYTES / 4,
            0 => self.longest,
            _ if self.on_device => DEVICE_BYTES,
            _ => AREA_BYTES,
        }
    }

    /// The next pieces, `most` bytes at most: their bytes, and where they end.
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

    /// Copies the next `len` bytes after the last request's; an error number if some cannot be read.
    ///
    /// # Safety
    /// The segments' memory must be valid, and `to` writable for `len` bytes.
    #[inline]
    pub unsafe fn gather(&self, len: u64, mut to: *mut u8, stream: bool) -> Result<(), i32> {
        for part in Parts::new(&self.segments, self.asked, len) {
            // SAFETY: the range is a part of the segment, and of the `len` bytes at `to`.
            unsafe {
                let (from, len) = (part.local as *const u8, part.len as usize);
                copy::copy_or_fail(to, from, len, stream, self.may_fault)?;
                to = to.add(len);
            }
        }
        Ok(())
    }

    /// Passes the next `len` bytes of a read on in parts; returns an error number, or 0.
    pub fn arrive(&mut self, len: u64, each: impl FnMut(Segment) -> std::result::Result<(), i32>) -> i32 {
        let mut parts = Parts::new(&self.segments, self.arrived, len);
        let ended = parts.by_ref().try_for_each(each);
        self.arrived = parts.rest().1;
        ended.err().unwrap_or(0)
    }

    /// Copies the next `len` bytes of a read to their destination; the operation fails if some cannot
    /// be written.
    ///
    /// # Safety
    /// The segments' memory must be valid, and `from` readable for `len` bytes.
    pub unsafe fn scatter(&mut self, len: u64, mut from: *const u8, stream: bool) {
        let mut parts = Parts::new(&self.segments, self.arrived, len);
        for part in parts.by_ref() {
            // SAFETY: the range is a part of the segment, and of the `len` bytes at `from`.
            unsafe {
                let (to, len) = (part.local as *mut u8, part.len as usize);
                if let Err(errno) = copy::copy_or_fail(to, from, len, stream, self.may_fault) {
                    self.errno = errno;
                }
                from = from.add(len);
            }
        }
        self.arrived = parts.rest().1;
        copy::settle(stream);
    }
}
