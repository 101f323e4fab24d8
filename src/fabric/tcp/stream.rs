//! The two directions of a connection: bytes to be sent, and bytes received.

use super::sealed::Sealed;
use super::socket::{self, Outcome};
use crate::bytes;
use crate::fabric::grants::Use;
use crate::fabric::FAULT;
use crate::kernel_copy;
use crate::wire::tcp::RUN;
use std::os::fd::BorrowedFd;

/// Vectors of one call: the system takes 1024, and messages may be put between them.
const VECTORS: usize = 1000;
const VECTORS_MOST: usize = 1024;
/// Bytes of headers, lists and small payloads of one call.
const HEADS: usize = 64 << 10;
/// Bytes that one call sends beside these: fewer cost the rate (192 KiB a fifth of it), and those that
/// are not sent have to be copied when memory is taken back.
const BATCH: u64 = 1 << 20;
/// Messages are put between frames that have this many bytes together, or more: one waits for at most
/// 256 KiB of a batch.
pub const STEP: u64 = 64 << 10;
/// Operations for which an idle connection keeps buffers.
pub const FEW: usize = 8;
/// The buffer that all discarded bytes go to.
pub const SINK: usize = 64 << 10;
/// The most bytes in front of a payload.
pub const INBOX: usize = 16 << 10;

fn vector(at: *const u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len }
}

/// Copies bytes; an error number if memory that may fault could not be reached.
///
/// # Safety
/// `to` is writable and `from` readable for `len` bytes, except for pages that have become
/// unreachable where the memory may fault; they do not overlap.
#[inline]
pub unsafe fn copy_or_fail(to: *mut u8, from: *const u8, len: usize, may_fault: bool) -> Outcome<()> {
    // SAFETY: neither copy goes beyond `len` bytes, and only the kernel's meets pages that are gone.
    unsafe {
        if may_fault {
            return if kernel_copy::copy(to, from, len) { Ok(()) } else { Err(FAULT) };
        }
        bytes::copy(to, from, len);
    }
    Ok(())
}

/// Moves past the first bytes of some vectors, from `at` on; true if it ends inside one.
pub fn advance(iov: &mut [libc::iovec], at: &mut usize, mut bytes: usize) -> bool {
    while let Some(first) = iov.get_mut(*at) {
        if bytes < first.iov_len {
            // SAFETY: the new address lies inside the vector.
            first.iov_base = unsafe { first.iov_base.cast::<u8>().add(bytes) }.cast();
            first.iov_len -= bytes;
            return bytes > 0;
        }
        bytes -= first.iov_len;
        *at += 1;
    }
    false
}

/// Ranges for `len` discarded bytes, all in the same buffer.
pub fn chunks(sink: &mut [u8], len: usize) -> impl Iterator<Item = (u64, usize)> {
    let (at, size) = (sink.as_mut_ptr() as u64, sink.len().max(1));
    (0..len).step_by(size).map(move |done| (at, size.min(len - done)))
}

/// Buffers of one NIC, for connections that are sending or receiving: an idle connection has none.
#[derive(Default)]
pub struct Spare {
    batches: Vec<Batch>,
    inboxes: Vec<Inbox>,
}

/// How many free buffers of each kind are kept.
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
    /// Bytes that are lent.
    lent: u64,
    /// For each request, the number of vectors after which it may be answered: through the last that
    /// it lends, or else through the first of its frame, of which some bytes suffice.
    requests: Vec<(usize, bool)>,
    /// The vector in which the last frame begins.
    frame: usize,
    /// Where messages may come between: vectors that begin a frame, and the requests before them.
    seams: Vec<(usize, usize)>,
    /// What was lent before the last of these.
    seamed: u64,
    /// Some bytes of the first vector are sent.
    inside: bool,
    /// Copies of memory that was taken back.
    stash: Vec<Vec<u8>>,
    /// Uses of the grants that the borrowed memory is under.
    entered: Vec<Use>,
    /// Pages of borrowed memory may become unreachable.
    may_fault: bool,
}

/// The owner of a vector's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The batch itself: bytes in `heads` or `stash`.
    Batch,
    /// The operation.
    Op(u32),
    /// The registration with this key.
    Key(u64),
}

impl Batch {
    fn with_room() -> Batch {
        Batch { heads: vec![0; HEADS].into_boxed_slice(), ..Batch::default() }
    }

    /// Allocates buffers.
    #[inline]
    pub fn begin(&mut self, spare: &mut Spare) {
        if self.heads.is_empty() {
            *self = spare.batches.pop().unwrap_or_else(Batch::with_room);
        }
    }

    /// Frees the buffers once everything is sent.
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

    /// Whether that many vectors, copied bytes and lent bytes can be added.
    #[inline]
    pub fn has_room(&self, vectors: usize, copied: usize, lent: u64) -> bool {
        self.iov.len() + vectors < VECTORS && self.used + copied <= HEADS && self.lent + lent <= BATCH
    }

    /// Bytes of a longer run that can be lent.
    #[inline]
    pub fn room(&self) -> u64 {
        ((BATCH - self.lent) / STEP * STEP).min(RUN)
    }

    /// A frame begins.
    #[inline]
    pub fn begin_frame(&mut self) {
        let goes_on = self.goes_on();
        self.frame = self.iov.len() - usize::from(goes_on);
        if self.lent - self.seamed >= STEP && !goes_on {
            self.seams.push((self.iov.len(), self.requests.len()));
            self.seamed = self.lent;
        }
    }

    /// A frame that is a request ends, and lends something or not.
    #[inline]
    pub fn end_request(&mut self, lends: bool) {
        self.requests.push((if lends { self.iov.len() } else { self.frame + 1 }, lends));
    }

    /// Puts a request between frames that are not sent: how many requests follow it, of `open` that
    /// have no answer, unless there is no such place.
    pub fn put_between(&mut self, bytes: Vec<u8>, open: usize) -> Option<usize> {
        let unsent = self.at + usize::from(self.inside);
        let first = self.seams.iter().position(|(place, _)| *place >= unsent)?;
        let (place, before) = self.seams[first];
        let behind = self.requests.len() - before;
        if self.iov.len() == VECTORS_MOST || behind > open {
            return None;
        }
        self.iov.insert(place, vector(bytes.as_ptr(), bytes.len()));
        self.owners.insert(place, Owner::Batch);
        self.stash.push(bytes);
        self.requests[before..].iter_mut().for_each(|(vectors, _)| *vectors += 1);
        self.requests.insert(before, (place + 1, false));
        self.seams[first..]
            .iter_mut()
            .for_each(|(place, before)| (*place, *before) = (*place + 1, *before + 1));
        Some(behind)
    }

    /// Whether the last but `behind` of the requests may be answered: it is sent, and lends nothing
    /// any longer.
    #[inline]
    pub fn is_sent(&self, behind: usize) -> bool {
        let at = self.requests.len().checked_sub(behind);
        at.and_then(|at| self.requests.get(at))
            .is_none_or(|(vectors, lends)| self.at + usize::from(self.inside && !lends) >= *vectors)
    }

    /// Whether the next copied bytes belong to the last vector.
    #[inline]
    fn goes_on(&self) -> bool {
        let Some(next) = self.heads.get(self.used..).map(<[u8]>::as_ptr) else { return false };
        let last = self.iov.last().filter(|_| self.owners.last() == Some(&Owner::Batch));
        last.is_some_and(|last| last.iov_base.cast_const().cast::<u8>().wrapping_add(last.iov_len) == next)
    }

    /// Adds bytes, which are copied.
    #[inline]
    pub fn copy(&mut self, bytes: &[u8]) {
        // SAFETY: a slice is readable for its length.
        let _ = unsafe { self.copy_from(bytes.as_ptr(), bytes.len(), false) };
    }

    /// Like `copy`, for memory that may change meanwhile; an error if it may fault, and did.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes, but for pages that have become unreachable.
    #[inline]
    pub unsafe fn copy_from(&mut self, from: *const u8, len: usize, may_fault: bool) -> Outcome<()> {
        let goes_on = self.goes_on();
        let Some(to) = self.heads.get_mut(self.used..self.used + len) else { return Ok(()) };
        // SAFETY: `from` is readable for `len` bytes or may fault, and `to` is a slice of as many.
        let copied = unsafe { copy_or_fail(to.as_mut_ptr(), from, len, may_fault) };
        let at = to.as_ptr();
        match self.iov.last_mut().filter(|_| goes_on) {
            Some(last) => last.iov_len += len,
            None => {
                self.iov.push(vector(at, len));
                self.owners.push(Owner::Batch);
            }
        }
        // The frame keeps its length even so.
        self.used += len;
        copied
    }

    /// Adds borrowed memory of an owner.
    ///
    /// # Safety
    /// The memory stays readable until the batch is empty, or it was taken back.
    #[inline]
    pub unsafe fn lend(&mut self, owner: Owner, address: u64, len: usize) {
        self.iov.push(vector(address as *const u8, len));
        self.owners.push(owner);
        self.lent += len as u64;
    }

    /// Pages of memory that this batch borrows may become unreachable.
    pub fn may_fault(&mut self) {
        self.may_fault = true;
    }

    /// Adds the use of a grant for the borrowed memory.
    pub fn enter(&mut self, entered: Use) {
        self.entered.push(entered);
    }

    /// Stops reading the memory of these owners: unsent bytes are copied.
    pub fn take_back(&mut self, is_theirs: impl Fn(Owner) -> bool) {
        for (iov, owner) in self.iov[self.at..].iter_mut().zip(&mut self.owners[self.at..]) {
            if !is_theirs(*owner) {
                continue;
            }
            let mut copy = vec![0; iov.iov_len];
            // SAFETY: the owner's memory is readable until this returns (it may change meanwhile,
            // so it is read through a raw pointer), and the copy has space for it. What cannot be
            // reached stays 0: the operation ends without these bytes.
            let _ =
                unsafe { copy_or_fail(copy.as_mut_ptr(), iov.iov_base.cast(), iov.iov_len, self.may_fault) };
            (iov.iov_base, *owner) = (copy.as_ptr().cast_mut().cast(), Owner::Batch);
            self.stash.push(copy);
        }
    }

    /// Sends until everything is sent (true), or the socket is full.
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
            // SAFETY: the bytes are our own, or borrowed and readable.
            match unsafe { socket::send(socket, &self.iov[self.at..]) } {
                Ok(sent) => {
                    self.inside = advance(&mut self.iov, &mut self.at, sent);
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
            // SAFETY: the bytes are our own, or borrowed and readable.
            let (len, inside) = unsafe { sealed.seal(&mut self.iov, &mut self.at, self.may_fault) }?;
            self.inside = inside;
            *budget = budget.saturating_sub(len as u64);
        }
        Ok(false)
    }

    pub fn clear(&mut self) {
        self.iov.clear();
        self.owners.clear();
        self.stash.clear();
        self.entered.clear();
        self.requests.clear();
        self.seams.clear();
        (self.at, self.used, self.lent, self.seamed, self.inside) = (0, 0, 0, 0, false);
        self.may_fault = false;
    }
}

/// The result of a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Got {
    /// More bytes may be available.
    Some,
    /// All available bytes were received.
    All,
    /// Part of a payload, before the rest has come, or before a page that is unreachable: the next receive says
    /// which.
    Part,
    /// Nothing has come. An event tells when more does.
    Nothing,
    /// The other side has closed its sending direction.
    End,
}

/// Bytes received but not yet used, and the payload that is being received. The default has no
/// buffers (`begin`).
#[derive(Default)]
pub struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// The destination of the rest of the payload.
    iov: Vec<libc::iovec>,
    at: usize,
    left: usize,
    /// Pages of that destination may become unreachable.
    may_fault: bool,
}

impl Inbox {
    fn with_room() -> Inbox {
        let bytes = vec![0; INBOX].into_boxed_slice();
        Inbox { bytes, ..Inbox::default() }
    }

    /// Allocates buffers.
    #[inline]
    pub fn begin(&mut self, spare: &mut Spare) {
        if self.bytes.is_empty() {
            *self = spare.inboxes.pop().unwrap_or_else(Inbox::with_room);
        }
    }

    /// Frees the buffers if they are empty, and no payload is incomplete.
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

    /// Begins a payload. `may_fault`: pages of the ranges may be unreachable, which an error reports
    /// here or when bytes are received: the payload is to be discarded then.
    ///
    /// # Safety
    /// The ranges stay writable until the payload is complete, or discarded.
    #[inline]
    pub unsafe fn expect(
        &mut self,
        ranges: impl Iterator<Item = (u64, usize)>,
        may_fault: bool,
    ) -> Outcome<()> {
        self.may_fault = may_fault;
        self.iov.clear();
        self.iov.extend(ranges.filter(|(_, len)| *len > 0).map(|(at, len)| vector(at as *const u8, len)));
        self.at = 0;
        self.left = self.iov.iter().map(|iov| iov.iov_len).sum();
        // Copy bytes that are already buffered.
        while self.left > 0 && self.start < self.end {
            let Some(first) = self.iov.get(self.at) else { break };
            let len = first.iov_len.min(self.end - self.start);
            let from = self.bytes[self.start..].as_ptr();
            // SAFETY: the vector is writable for this length; our own bytes do not overlap it.
            if let Err(errno) = unsafe { copy_or_fail(first.iov_base.cast(), from, len, may_fault) } {
                let lost = self.left.min(self.end - self.start);
                self.left -= lost;
                self.consume(lost);
                return Err(errno);
            }
            advance(&mut self.iov, &mut self.at, len);
            self.left -= len;
            self.consume(len);
        }
        Ok(())
    }

    /// Discards the rest of the payload into `sink`.
    pub fn discard(&mut self, sink: &mut [u8]) {
        self.may_fault = false;
        self.iov.clear();
        self.iov.extend(chunks(sink, self.left).map(|(at, len)| vector(at as *const u8, len)));
        self.at = 0;
    }

    /// Receives the rest of the payload, and up to `ahead` bytes beyond it.
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
        // SAFETY: the payload's memory is writable, and so is the free end of our own buffer.
        let got = unsafe {
            match sealed {
                Some(sealed) => sealed.receive(socket, &self.iov[self.at..], self.may_fault),
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
                Ok(match (got == wanted, self.left) {
                    (true, _) => Got::Some,
                    (false, 0) => Got::All,
                    (false, _) => Got::Part,
                })
            }
            Err(errno) if socket::is_later(errno) => Ok(Got::Nothing),
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames: their bytes, of which the first are copied, and whether they are requests.
    const FRAMES: [(usize, usize, bool); 6] = [
        (32, 70_000, true),
        (16, 70_000, false),
        (40, 0, true),
        (32, 100_000, true),
        (500, 0, true),
        (32, 9, true),
    ];

    fn batch(memory: &[u8], spare: &mut Spare) -> (Batch, Vec<u8>, Vec<usize>) {
        let (mut batch, mut bytes, mut ends) = (Batch::default(), Vec::new(), vec![0]);
        batch.begin(spare);
        for (i, (copied, lent, is_request)) in FRAMES.into_iter().enumerate() {
            let head = vec![i as u8 + 100; copied];
            batch.begin_frame();
            batch.copy(&head);
            if lent > 0 {
                // SAFETY: memory of the test.
                unsafe { batch.lend(Owner::Op(i as u32), memory.as_ptr() as u64, lent) };
            }
            if is_request {
                batch.end_request(lent > 0);
            }
            bytes.extend([&head[..], &memory[..lent]].concat());
            ends.push(bytes.len());
        }
        (batch, bytes, ends)
    }

    #[test]
    fn messages_are_put_between_frames_wherever_sending_stopped() {
        let memory: Vec<u8> = (0..100_000u32).map(|i| (i % 97) as u8).collect();
        let mut spare = Spare::default();
        let (_, whole, ends) = batch(&memory, &mut spare);
        let near = ends.iter().flat_map(|end| end.saturating_sub(40)..end + 40);
        for sent in near.chain((0..whole.len()).step_by(999)).filter(|sent| *sent < whole.len()) {
            let (mut batch, whole, ends) = batch(&memory, &mut spare);
            batch.inside = advance(&mut batch.iov, &mut batch.at, sent);
            // Of the frames that lend memory, those that are sent as a whole are sent.
            let requests: Vec<usize> = (0..FRAMES.len()).filter(|i| FRAMES[*i].2).collect();
            for (n, i) in requests.iter().enumerate() {
                let wanted = if FRAMES[*i].1 == 0 { sent > ends[*i] } else { sent >= ends[i + 1] };
                assert_eq!(batch.is_sent(requests.len() - n), wanted, "{sent}: {i}");
            }
            assert_eq!(batch.put_between(vec![7; 50], 0), None, "an answer too early leaves no place");
            let Some(behind) = batch.put_between(vec![7; 50], requests.len()) else {
                assert!(sent > ends[1], "{sent}: there is a place");
                continue;
            };
            assert_eq!(
                batch.put_between(vec![8; 20], requests.len()),
                Some(behind),
                "the second follows the first"
            );
            let rest: Vec<u8> = batch.iov[batch.at..]
                .iter()
                // SAFETY: memory of the test and of the batch.
                .flat_map(|iov| unsafe { std::slice::from_raw_parts(iov.iov_base.cast::<u8>(), iov.iov_len) })
                .copied()
                .collect();
            let both = [[7; 50].to_vec(), vec![8; 20]].concat();
            let at = sent + rest.windows(both.len()).position(|some| some == both).unwrap();
            let frame = ends.iter().position(|end| *end == at).expect("between frames");
            assert!(
                at >= sent && [&rest[..at - sent], &rest[at - sent + both.len()..]].concat() == whole[sent..]
            );
            assert_eq!(requests.iter().filter(|i| **i >= frame).count(), behind);
            // And each until its last vector is sent.
            for (n, i) in requests.iter().enumerate().filter(|(_, i)| FRAMES[**i].1 > 0) {
                let last = batch.owners.iter().rposition(|owner| *owner == Owner::Op(*i as u32)).unwrap();
                let mut is_sent = |at| {
                    batch.at = at;
                    batch.is_sent(requests.len() - n)
                };
                assert!(*i < frame || !is_sent(last) && is_sent(last + 1), "{sent}: {i}");
            }
        }
    }
}
