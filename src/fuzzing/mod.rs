//! Decoders of others' data, fed with arbitrary input: entry points for `fuzz/`, and a test that
//! runs them with a limited number of mutations.
//!
//! Each takes any bytes, and panics when something is wrong.

mod blobs;
mod channel;
mod endpoint;
mod frames;
mod numbers;
mod session;
mod tcp;
#[cfg(test)]
mod tests;

pub use blobs::{address, descriptor};
pub use channel::channel;
pub use endpoint::endpoint;
pub use frames::{frame, handshake};
pub use numbers::{immediates, request};
pub use session::session;
pub use tcp::{tcp_frame, tcp_stream, tcp_twins};

/// Bytes to make decisions from; zeros when there are no more.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let taken = self.take(8);
        bytes[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(bytes)
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}
