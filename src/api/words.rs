//! The bytes of a registered range, as the safe interface reads and writes them: with atomics, since other threads may do
//! so at the same time.
//!
//! Atomics of two sizes must not meet on one byte, so each byte of a range has its size: the aligned words of 8 bytes
//! inside of the range are always accessed whole, also by the atomics of peers (`transfer::atomic`), and the bytes before and
//! after them one by one. A write of a part of a word replaces the word, if it has not changed meanwhile.

use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};

const WORD: usize = size_of::<u64>();

/// A range, and its parts: from `head` up to `tail` it is words.
pub(super) struct Words {
    base: *mut u8,
    head: usize,
    tail: usize,
    len: usize,
}

impl Words {
    /// # Safety
    /// The range must be readable, and writable if it is written to, for as long as the result is used. All that access it
    /// meanwhile with atomics must have it as this same range.
    pub unsafe fn new(base: *mut u8, len: usize) -> Words {
        let head = base.align_offset(WORD).min(len);
        Words { base, head, tail: head + (len - head) / WORD * WORD, len }
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        assert!(at < self.head || (self.tail..self.len).contains(&at));
        // SAFETY: it is in the range, in the part that is accessed by bytes alone.
        unsafe { AtomicU8::from_ptr(self.base.add(at)) }
    }

    /// The words of `len` bytes. `at`: where a word begins.
    fn words(&self, at: usize, len: usize) -> &[AtomicU64] {
        assert!(
            (self.head..self.tail).contains(&at) && (at - self.head) % WORD == 0 && len <= self.tail - at
        );
        // SAFETY: all of them are in the range, in the part that is accessed by words alone; and they are aligned, as
        // `head` is.
        unsafe { std::slice::from_raw_parts(self.base.add(at).cast(), len / WORD) }
    }

    /// The word that has the byte, and which of its bytes that is; `None`: it is accessed alone.
    fn within(&self, at: usize) -> Option<(usize, usize)> {
        let byte = at.checked_sub(self.head).filter(|_| at < self.tail)? % WORD;
        Some((at - byte, byte))
    }

    /// Copies bytes out, from an offset in the range, in which they must be.
    pub fn read(&self, mut at: usize, mut into: &mut [u8]) {
        assert!(at <= self.len && into.len() <= self.len - at);
        while !into.is_empty() {
            let len = match self.within(at) {
                None => {
                    into[0] = self.byte(at).load(Ordering::Relaxed);
                    1
                }
                Some((_, 0)) if into.len() >= WORD => {
                    let len = into.len().min(self.tail - at) / WORD * WORD;
                    for (word, bytes) in self.words(at, len).iter().zip(into.chunks_exact_mut(WORD)) {
                        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
                    }
                    len
                }
                Some((word, byte)) => {
                    let len = into.len().min(WORD - byte);
                    let bytes = self.words(word, WORD)[0].load(Ordering::Relaxed).to_ne_bytes();
                    into[..len].copy_from_slice(&bytes[byte..byte + len]);
                    len
                }
            };
            at += len;
            into = &mut into[len..];
        }
    }

    /// Copies bytes in; otherwise as `read`.
    pub fn write(&self, mut at: usize, mut from: &[u8]) {
        assert!(at <= self.len && from.len() <= self.len - at);
        while !from.is_empty() {
            let len = match self.within(at) {
                None => {
                    self.byte(at).store(from[0], Ordering::Relaxed);
                    1
                }
                Some((_, 0)) if from.len() >= WORD => {
                    let len = from.len().min(self.tail - at) / WORD * WORD;
                    for (word, bytes) in self.words(at, len).iter().zip(from.chunks_exact(WORD)) {
                        let mut copy = [0; WORD];
                        copy.copy_from_slice(bytes);
                        word.store(u64::from_ne_bytes(copy), Ordering::Relaxed);
                    }
                    len
                }
                Some((word, byte)) => {
                    let len = from.len().min(WORD - byte);
                    let place = |old: u64| {
                        let mut bytes = old.to_ne_bytes();
                        bytes[byte..byte + len].copy_from_slice(&from[..len]);
                        Some(u64::from_ne_bytes(bytes))
                    };
                    let _ =
                        self.words(word, WORD)[0].fetch_update(Ordering::Relaxed, Ordering::Relaxed, place);
                    len
                }
            };
            at += len;
            from = &from[len..];
        }
    }
}
