//! The fabric of plain TCP sockets: Weft's own, since libfabric's tcp ends a process for a few
//! bytes from any sender, and posts one operation where a socket takes hundreds of pages.
//!
//! A NIC of this fabric is a listener at one interface's address, and a connection to each NIC that
//! it communicates with. A connection belongs to one peer: the one whose address was dialled, or
//! the one that authenticated over it by a handshake (`Nic::assign_connection`). The name in a
//! handshake is valid only among that peer's connections. Until a peer has authenticated over an
//! accepted connection, messages are received over it, and writes and reads wait; when that peer
//! has ended, they are refused.
//!
//! The initiator's worker sends many pages in one call, without a copy. The target's worker checks
//! each request against its own registrations before it accepts the first byte, and receives the
//! bytes directly into place. So a completion means delivered, and closing one end of a connection
//! has the effect of a fence: nothing that the peer sent is copied afterwards.
//!
//! Two NICs that dial each other at once keep both connections: each side has authenticated over
//! the one that it dialled, and would have to do so again over the other before its writes are
//! served there. A later connect reuses an existing connection. An idle connection costs some
//! hundred bytes.
//!
//! The initiator first sends the name of the NIC that it calls, 128 random bits that only an
//! address contains, and its own name. Integers are little-endian.
//!
//! ```text
//! handshake      "WEFT-TCP"   u16 version   u8 beside   5 zero bytes   name of the target   name of the initiator
//!
//! request    u8 kind      u8 0   u16 pieces   u32 len    u64 key
//!            u32 immediate       u32 0        u64 address
//!            pieces x (u64 address, u32 len), unless there is one: `address` is its
//!            len bytes of a write or message
//! kind       0 beside, 1 write, 2 read, 3 message
//!
//! answer     u8 kind      3 zero bytes        u32 len    u64 number
//!            len bytes of what was read
//! kind       4 done: requests below `number` are settled
//!            5 data: of the request `number`, and those before it are settled
//!            6 failed: the request `number`; `len` is an error number, or 2048 and a disk's
//!            7 acceptance, to a handshake
//! ```
//!
//! A peer's disks are reached over a second connection (`beside`), whose handshake has 1 in `beside`, and in the place of
//! the initiator's name 16 random bytes: those of a request of kind 0 over the first one, in its key and address. An
//! endpoint that has no disks gets neither.
//!
//! Where connections are encrypted, all bytes go through `sealed`.
//!
//! Requests are settled in order, and are short (`RUN`), so that nothing waits long for the end of
//! one. Messages overtake requests that are not begun, even in the call that is being made. An
//! initiator takes back memory that is not sent yet by copying the unsent bytes of the current
//! call; a target whose memory is being read does the same.
//!
//! Device memory, and that on disks, moves through slots of the NIC's host memory (`staged`, `own::pool`), run by run:
//! devices fill the next runs while the socket takes the last, and a write is settled, counted and acknowledged when
//! the device has its bytes. While no slot is free, the connection is not read. The protocol does not show where
//! memory is.

mod accept;
mod beside;
mod carriers;
mod connection;
mod devices;
mod dial;
mod ends;
#[cfg(any(test, fuzzing))]
mod fuzz;
mod incoming;
mod interfaces;
mod listener;
mod moves;
#[cfg(test)]
mod network_tests;
mod nic;
mod options;
mod outgoing;
mod paths;
mod return_trial;
mod routes;
mod sealed;
mod socket;
mod staged;
#[cfg(any(test, fuzzing))]
mod stand;
mod stream;
#[cfg(test)]
mod tests;
#[cfg(any(test, fuzzing))]
mod twins;
mod upkeep;

#[cfg(any(test, fuzzing))]
pub use fuzz::stream as check_stream;
#[cfg(test)]
pub use interfaces::named;
pub use interfaces::Interface;
pub use nic::TcpNic;
pub use options::{At, Options};
pub use paths::index_of;
pub use socket::{ends, seen};
#[cfg(test)]
pub use twins::of_seed;
#[cfg(any(test, fuzzing))]
pub use twins::twins as check_twins;

/// The fabric's name.
pub const NAME: &str = "tcp";
/// The fabric's name where connections are encrypted: it does not reach the unencrypted one.
pub const ENCRYPTED: &str = "tcp-encrypted";
