//! The two directions of a connection: what is to be sent, and what was received.

use super::sealed::Sealed;
use super::socket::{self, Outcome};
use crate::fabric::grants::Use;
use std::os::fd::BorrowedFd;

/// Vectors of one call: the system takes 1024.
const VECTORS: usize = 1000;
/// Bytes of headers, lists and small payloads of one call.
const HEADS: usize = 64 << 10;
/// Nothing is added to what one call sends beyond this many bytes. Together with the last run this
/// is what has to be copied when memory is taken back.
pub const BATCH: u64 = 64 << 10;
/// Runs of requests are this long until some MiB have gone without a message: with `BATCH`, a
/// message finds at most 256 KiB in front of it. (Throughput would lose 3 % by short runs alone.)
pub const SHORT_RUN: u64 = 192 << 10;
/// Operations that a connection at rest keeps room for.
pub const FEW: usize = 8;
/// Bytes that go nowhere go here, again and again.
pub const SINK: usize = 64 << 10;
/// Bytes that may be in front of a payload.
pub const INBOX: usize = 16 << 10;

fn vector(at: *const u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len }
}

/// Moves past the first bytes of some vectors, from `at` on.
pub fn advance(iov: &mut [libc::iovec], at: &mut usize, mut bytes: usize) {
    while let Some(first) = iov.get_mut(*at) {
        if bytes < first.iov_len {
            // SAFETY: inside the vector.
            first.iov_base = unsafe { first.iov_base.cast::<u8>().add(bytes) }.cast();
            first.iov_len -= bytes;
            return;
        }
        bytes -= first.iov_len;
        *at += 1;
    }
}

/// The ranges of `len` bytes that go nowhere: all to the same place.
pub fn chunks(sink: &mut [u8], len: usize) -> impl Iterator<Item = (u64, usize)> {
    let (at, size) = (sink.as_mut_ptr() as u64, sink.len().max(1));
    (0..len).step_by(size).map(move |done| (at, size.min(len - done)))
}

/// Buffers of one NIC, for connections that are sending or receiving: an idle one has none.
#[derive(Default)]
pub struct Spare {
    batches: Vec<Batch>,
    inboxes: Vec<Inbox>,
}

/// How many of each are kept.
const SPARE: usize = 16;

/// The bytes of the next sends: nothing is added before all are sent, so that copied bytes stay in
/// place. The default has no buffers (`begin`).
#[derive(Default)]
pub struct Batch {
    iov: Vec<libc::iovec>,
    owners: Vec<Owner>,
    at: usize,
    heads: Box<[u8]>,
    used: usize,
    /// Bytes in all.
    bytes: u64,
    /// Copies of what was taken back.
    stash: Vec<Vec<u8>>,
    /// Uses of the grants under which memory is lent.
    entered: Vec<Use>,
}

/// The owner of a vector's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The batch itself: in `heads` or `stash`.
    Batch,
    /// An operation's.
    Op(u32),
    /// A registration's, by its key.
    Key(u64),
}

impl Batch {
    fn with_room() -> Batch {
        Batch { heads: vec![0; HEADS].into_boxed_slice(), ..Batch::default() }
    }

    /// Gets room.
    #[inline]
    pub fn begin(&mut self, spare: &mut Spare) {
        if self.heads.is_empty() {
            *self = spare.batches.pop().unwrap_or_else(Batch::with_room);
        }
    }

    /// Gives its room back if all of it is gone.
    #[inline]
    pub fn end(&mut self, spare: &mut Spare) {
        if self.is_empty() && !self.heads.is_empty() {
            self.clear();
            let batch = std::mem::take(self);
            if spare.batches.len() < SPARE {
                spare.batches.push(batch);
            }
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.at == self.iov.len()
    }

    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.heads.len() + self.iov.capacity() * size_of::<libc::iovec>()
    }

    /// Whether that many vectors and copied bytes can be added, below `most` bytes in all.
    #[inline]
    pub fn has_room(&self, vectors: usize, copied: usize, most: u64) -> bool {
        self.iov.len() + vectors < VECTORS && self.used + copied <= HEADS && self.bytes < most
    }

    /// Adds bytes, which are copied.
    #[inline]
    pub fn copy(&mut self, bytes: &[u8]) {
        // SAFETY: a slice is readable.
        unsafe { self.copy_from(bytes.as_ptr(), bytes.len()) }
    }

    /// Like `copy`, for memory that may change meanwhile.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    #[inline]
    pub unsafe fn copy_from(&mut self, from: *const u8, len: usize) {
        let Some(to) = self.heads.get_mut(self.used..self.used + len) else { return };
        // SAFETY: as the caller promised; our own bytes do not overlap it.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), len) };
        let at = to.as_ptr();
        match self.iov.last_mut().filter(|last| {
            self.owners.last() == Some(&Owner::Batch)
                && last.iov_base.cast_const().cast::<u8>().wrapping_add(last.iov_len) == at
        }) {
            Some(last) => last.iov_len += len,
            None => {
                self.iov.push(vector(at, len));
                self.owners.push(Owner::Batch);
            }
        }
        self.used += len;
        self.bytes += len as u64;
    }

    /// Adds memory of an owner.
    ///
    /// # Safety
    /// It stays readable until the batch is empty, or it was taken back.
    #[inline]
    pub unsafe fn lend(&mut self, owner: Owner, address: u64, len: usize) {
        self.iov.push(vector(address as *const u8, len));
        self.owners.push(owner);
        self.bytes += len as u64;
    }

    /// Memory is lent under a grant.
    pub fn enter(&mut self, entered: Use) {
        self.entered.push(entered);
    }

    /// Memory of these owners is no longer read: what is still to be sent is copied.
    pub fn take_back(&mut self, is_theirs: impl Fn(Owner) -> bool) {
        for (iov, owner) in self.iov[self.at..].iter_mut().zip(&mut self.owners[self.at..]) {
            if !is_theirs(*owner) {
                continue;
            }
            let mut copy: Vec<u8> = Vec::with_capacity(iov.iov_len);
            // SAFETY: the owner's memory is readable until we return (it may change meanwhile, so it is
            // read by a raw pointer), and the copy has room for it.
            unsafe {
                std::ptr::copy_nonoverlapping(iov.iov_base.cast(), copy.as_mut_ptr(), iov.iov_len);
                copy.set_len(iov.iov_len);
            }
            (iov.iov_base, *owner) = (copy.as_ptr().cast_mut().cast(), Owner::Batch);
            self.stash.push(copy);
        }
    }

    /// Sends until all is gone (true), or the socket takes no more.
    #[inline]
    pub fn send(
        &mut self,
        socket: BorrowedFd,
        sealed: Option<&mut Sealed>,
        budget: &mut u64,
    ) -> Outcome<bool> {
        if let Some(sealed) = sealed {
            return self.send_sealed(socket, sealed, budget);
        }
        while !self.is_empty() {
            // SAFETY: our own bytes, and lent memory, which is readable.
            match unsafe { socket::send(socket, &self.iov[self.at..]) } {
                Ok(sent) => {
                    advance(&mut self.iov, &mut self.at, sent);
                    *budget = budget.saturating_sub(sent as u64);
                }
                Err(errno) if socket::is_later(errno) => return Ok(false),
                Err(errno) => return Err(errno),
            }
        }
        self.clear();
        Ok(true)
    }

    fn send_sealed(&mut self, socket: BorrowedFd, sealed: &mut Sealed, budget: &mut u64) -> Outcome<bool> {
        while sealed.send(socket)? {
            if self.is_empty() {
                self.clear();
                return Ok(true);
            }
            // SAFETY: our own bytes, and lent memory, which is readable.
            let len = unsafe { sealed.seal(&mut self.iov, &mut self.at) }?;
            *budget = budget.saturating_sub(len as u64);
        }
        Ok(false)
    }

    pub fn clear(&mut self) {
        self.iov.clear();
        self.owners.clear();
        self.stash.clear();
        self.entered.clear();
        (self.at, self.used, self.bytes) = (0, 0, 0);
    }
}

/// The result of a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Got {
    /// There may be more.
    Some,
    /// All that was there.
    All,
    /// The other side sends nothing more.
    End,
}

/// Bytes received and not used yet, and the payload that is being received. The default has no
/// buffers (`begin`).
#[derive(Default)]
pub struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// Where the rest of the payload goes.
    iov: Vec<libc::iovec>,
    at: usize,
    left: usize,
}

impl Inbox {
    fn with_room() -> Inbox {
        let bytes = vec![0; INBOX].into_boxed_slice();
        Inbox { bytes, ..Inbox::default() }
    }

    /// Gets room.
    #[inline]
    pub fn begin(&mut self, spare: &mut Spare) {
        if self.bytes.is_empty() {
            *self = spare.inboxes.pop().unwrap_or_else(Inbox::with_room);
        }
    }

    /// Gives its room back if there is nothing in it, and no payload is missing.
    #[inline]
    pub fn end(&mut self, spare: &mut Spare) {
        if self.start == self.end && self.left == 0 && !self.bytes.is_empty() {
            self.iov.clear();
            let inbox = std::mem::take(self);
            if spare.inboxes.len() < SPARE {
                spare.inboxes.push(Inbox { at: 0, ..inbox });
            }
        }
    }

    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.bytes.len() + self.iov.capacity() * size_of::<libc::iovec>()
    }

    /// The buffered bytes, unless a payload before them is incomplete.
    #[inline]
    pub fn ready(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    #[inline]
    pub fn consume(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Bytes of the payload that are missing.
    #[inline]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Begins a payload.
    ///
    /// # Safety
    /// The ranges stay writable until the payload is complete, or discarded.
    #[inline]
    pub unsafe fn expect(&mut self, ranges: impl Iterator<Item = (u64, usize)>) {
        self.iov.clear();
        self.iov.extend(ranges.filter(|(_, len)| *len > 0).map(|(at, len)| vector(at as *const u8, len)));
        self.at = 0;
        self.left = self.iov.iter().map(|iov| iov.iov_len).sum();
        // Bytes that are buffered already.
        while self.left > 0 && self.start < self.end {
            let Some(first) = self.iov.get(self.at) else { break };
            let len = first.iov_len.min(self.end - self.start);
            // SAFETY: the vector is writable and as long; our own bytes do not overlap it.
            unsafe {
                std::ptr::copy_nonoverlapping(self.bytes[self.start..].as_ptr(), first.iov_base.cast(), len)
            };
            advance(&mut self.iov, &mut self.at, len);
            self.left -= len;
            self.consume(len);
        }
    }

    /// The rest of the payload goes nowhere: to `sink`.
    pub fn discard(&mut self, sink: &mut [u8]) {
        self.iov.clear();
        self.iov.extend(chunks(sink, self.left).map(|(at, len)| vector(at as *const u8, len)));
        self.at = 0;
    }

    /// Receives: the rest of the payload, and up to `ahead` bytes of what follows it.
    #[inline]
    pub fn receive(
        &mut self,
        socket: BorrowedFd,
        sealed: Option<&mut Sealed>,
        ahead: usize,
        budget: &mut u64,
    ) -> Outcome<Got> {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = if self.left > 0 { ahead.min(INBOX - self.end) } else { INBOX - self.end };
        let tail = vector(self.bytes[self.end..].as_ptr(), room);
        self.iov.push(tail);
        let wanted = self.left + room;
        // SAFETY: the payload's memory is writable, and so is the tail of our own bytes.
        let got = unsafe {
            match sealed {
                Some(sealed) => sealed.receive(socket, &self.iov[self.at..]),
                None => socket::receive(socket, &self.iov[self.at..]),
            }
        };
        self.iov.pop();
        match got {
            Ok(0) if wanted > 0 => Ok(Got::End),
            Ok(got) => {
                let payload = got.min(self.left);
                advance(&mut self.iov, &mut self.at, payload);
                self.left -= payload;
                self.end += got - payload;
                *budget = budget.saturating_sub(got as u64);
                Ok(if got == wanted { Got::Some } else { Got::All })
            }
            Err(errno) if socket::is_later(errno) => Ok(Got::All),
            Err(errno) => Err(errno),
        }
    }
}
